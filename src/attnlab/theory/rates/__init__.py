"""What *Implicit Bias and Fast Convergence Rates for Self-attention* assumes, bounds and predicts, on given data.

Constants and assumptions are in `al.theory`. Modules to look into:

| module | what |
|---|---|
| `bounds` | explicit constants of Theorems 1, 5, 6, 7 and their lemmas, printed and corrected |
| `joint` | bounds for head and attention trained together |
| `predictions` | what is proved of a step rule, and whether its hypotheses hold here |
"""

from attnlab.theory.rates import bounds as bounds, joint as joint, predictions as predictions
