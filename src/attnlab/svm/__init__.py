"""Max-margin problems over tokens, solved with a certificate.

| name | what |
|---|---|
| `solve_margin` | the max-margin direction of one selection, in the Frobenius, the nuclear or your own norm |
| `solve_margins` | of a whole batch of trials |
| `bracket_margin`, `bracket_margins` | bounds of the best margin, fast, from arrays; W may be rectangular |
| `solve_generalized` | where queries keep several tokens; `finite_part` and `combine` for the rest of the prediction |
| `solve_factored` | over K and Q of given width |
| `linear_margin`, `kernel_margin` | hard-margin classification without bias, on features or on a Gram matrix |
| `Norm`, `check_norm` | a norm of your own; ready-made ones are in `attnlab.svm.norms` |
| `MarginSolution`, `MarginSolutions`, `MarginStatus` | what comes back, with its certificate |
| `Bracket`, `BracketStatus` | the bounds, with the W and the multipliers that prove them |
| `OptimalFace`, `distance_to_face` | all optima of the nuclear problem, where there are several |
| `Rows`, `margin_rows` | the constraints themselves |
"""

from attnlab.svm.batch import MarginSolutions as MarginSolutions, solve_margins as solve_margins
from attnlab.svm.bracket import (
    Bracket as Bracket,
    BracketStatus as BracketStatus,
    bracket_margin as bracket_margin,
    bracket_margins as bracket_margins,
)
from attnlab.svm.face import OptimalFace as OptimalFace, distance_to_face as distance_to_face
from attnlab.svm.factored import FactoredSolution as FactoredSolution, solve_factored as solve_factored
from attnlab.svm.finite import (
    Combination as Combination,
    FinitePart as FinitePart,
    combine as combine,
    finite_part as finite_part,
)
from attnlab.svm.generalized import solve_generalized as solve_generalized
from attnlab.svm.linear import (
    HardMargin as HardMargin,
    kernel_margin as kernel_margin,
    linear_margin as linear_margin,
)
from attnlab.svm.margin import solve_margin as solve_margin
from attnlab.svm.norms import Norm as Norm, check_norm as check_norm
from attnlab.svm.rows import Rows as Rows, margin_rows as margin_rows
from attnlab.svm.solution import MarginSolution as MarginSolution, MarginStatus as MarginStatus
