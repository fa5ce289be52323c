"""What *Implicit Bias and Fast Convergence Rates for Self-attention* assumes, bounds and predicts, on given data.

| module | what |
|---|---|
| `constants`, `orthogonality` | Lambda, B, score gaps; Assumptions 1 and 2, the small start |
| `bounds` | explicit constants of Theorems 1, 5, 6, 7 and their lemmas, printed and corrected |
| `joint` | Condition 1 and the bounds for head and attention trained together |
| `predictions`, `compare`, `table` | what is proved of a step rule here; `al.rates`, rules side by side |
"""
