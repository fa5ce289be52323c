"""What *Implicit Bias and Fast Convergence Rates for Self-attention* assumes, bounds and predicts, on given data.

| name | what |
|---|---|
| `rate_constants`, `RateConstants` | Lambda, B, the score gaps and what the rates make of them |
| `assumption_1`, `assumption_2`, `initialization` | nearly orthogonal tokens, equal scores, a small start |
| `bounds` | explicit constants of Theorems 1, 5, 6, 7 and their lemmas, printed and corrected (a module) |
| `condition_1`, `JointModel` | what joint training of head and attention asks for |
| `joint` | bounds for head and attention trained together (a module) |
| `predictions` | what is proved of a step rule, and whether its hypotheses hold here (a module) |
"""

from attnlab.theory.rates import bounds as bounds, joint as joint, predictions as predictions
from attnlab.theory.rates.constants import RateConstants as RateConstants, rate_constants as rate_constants
from attnlab.theory.rates.joint import JointModel as JointModel, condition_1 as condition_1
from attnlab.theory.rates.orthogonality import (
    assumption_1 as assumption_1,
    assumption_2 as assumption_2,
    initialization as initialization,
)
