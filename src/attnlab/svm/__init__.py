"""Max-margin problems over tokens, solved with a certificate.

| name | what |
|---|---|
| `solve_margin` | the max-margin direction of one selection |
| `solve_margins` | of a whole batch of trials |
| `MarginSolution`, `MarginSolutions`, `MarginStatus` | what comes back, with its certificate |
| `Rows`, `margin_rows` | the constraints themselves |
"""

from attnlab.svm.batch import MarginSolutions as MarginSolutions, solve_margins as solve_margins
from attnlab.svm.frobenius import solve_margin as solve_margin
from attnlab.svm.rows import Rows as Rows, margin_rows as margin_rows
from attnlab.svm.solution import MarginSolution as MarginSolution, MarginStatus as MarginStatus
