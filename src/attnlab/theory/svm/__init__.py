"""Token geometry, assumptions, cones and constants of *Transformers as Support Vector Machines*, on given data.

| name | what |
|---|---|
| `is_locally_optimal`, `locally_optimal_selections` | can descent settle on this selection, and on which? |
| `support_indices` | the tokens that hold the margin |
| `assumption_b1`, `assumption_b1_proxy`, `assumption_b2`, `assumption_c`, `assumption_d` | do they hold here? |
| `interpolation_room` | how far constraints are from being tight all at once |
| `local_cone`, `in_cone` | the neighbourhood of a max-margin direction that descent does not leave |
| `barrier`, `in_barrier_cone`, `default_eps`, `score_sides` | the cone of the local regularization path |
| `lipschitz_constants`, `loss_constants` | how fast the gradient can change |
"""

from attnlab.theory.svm.assumptions import (
    assumption_b1 as assumption_b1,
    assumption_b1_proxy as assumption_b1_proxy,
    assumption_b2 as assumption_b2,
    assumption_c as assumption_c,
    assumption_d as assumption_d,
    interpolation_room as interpolation_room,
)
from attnlab.theory.svm.cones import (
    LocalCone as LocalCone,
    barrier as barrier,
    default_eps as default_eps,
    in_barrier_cone as in_barrier_cone,
    in_cone as in_cone,
    local_cone as local_cone,
    score_sides as score_sides,
)
from attnlab.theory.svm.geometry import (
    LocallyOptimalSelections as LocallyOptimalSelections,
    LocalOptimality as LocalOptimality,
    is_locally_optimal as is_locally_optimal,
    locally_optimal_selections as locally_optimal_selections,
    support_indices as support_indices,
)
from attnlab.theory.svm.lipschitz import (
    LipschitzConstants as LipschitzConstants,
    LossConstants as LossConstants,
    lipschitz_constants as lipschitz_constants,
    loss_constants as loss_constants,
)
