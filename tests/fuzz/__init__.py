"""Hostile calls over the whole public API, and what must come of them: a right answer or a clear, typed error.

| module | what |
|---|---|
| `source` | where choices come from: a seed, a tape to play again, or Hypothesis |
| `arrays`, `scalars`, `material` | hostile arrays, single arguments, and data sets made of them |
| `calls`, `calls_*`, `tabled` | the table of cases: for every public name how its arguments are made |
| `coverage` | every public name, and the few that have no case, with the reason |
| `outcomes` | what a call came to, and whether that is good enough |
| `finite`, `margins`, `proofs`, `runs`, `directions` | judges: of numbers, optima, proofs, runs, comparisons |
| `smaller`, `written` | the least call that still fails in the same way, as a line of Python |
| `run` | `make fuzz SECONDS=600` |
"""
