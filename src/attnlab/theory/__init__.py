"""Token geometry, assumptions, cones and constants of the theorems, measured on given data.

| name | what |
|---|---|
| `is_locally_optimal`, `locally_optimal_selections` | can descent settle on this selection, and on which? |
| `support_indices` | the tokens that hold the margin |
| `assumption_b1`, `assumption_b1_proxy`, `assumption_b2`, `assumption_c`, `assumption_d` | do they hold here? |
| `local_cone`, `in_cone` | the neighbourhood of a max-margin direction that descent does not leave |
| `barrier`, `in_barrier_cone`, `default_eps`, `score_sides` | the cone of the local regularization path |
| `lipschitz_constants`, `loss_constants` | how fast the gradient can change |
| `rate_constants` | Lambda, B, the score gaps and what the rates make of them |
| `assumption_1`, `assumption_2`, `initialization` | nearly orthogonal tokens, equal scores, a small start |
| `condition_1`, `JointModel` | what joint training of head and attention asks for |
| `rate_bounds` | explicit constants of the rates, printed and corrected (a module) |
| `attnlab.theory.multihead` | bounds, margins and reports for multi-head attention (a package) |
| `attnlab.theory.encoder` | constants, kernels, widths and reports for shallow encoders (a package) |
| `ntk`, `ntk_eigenvalues`, `kernel_distance`, `hessian_norm` | tangent kernel and curvature of any model |
| `fit_rate`, `compare_families` | how fast does a curve fall? |
"""

from attnlab.theory.assumptions import (
    AssumptionCheck as AssumptionCheck,
    assumption_b1 as assumption_b1,
    assumption_b1_proxy as assumption_b1_proxy,
    assumption_b2 as assumption_b2,
    assumption_c as assumption_c,
    assumption_d as assumption_d,
    interpolation_room as interpolation_room,
)
from attnlab.theory.cones import (
    LocalCone as LocalCone,
    barrier as barrier,
    default_eps as default_eps,
    in_barrier_cone as in_barrier_cone,
    in_cone as in_cone,
    local_cone as local_cone,
    score_sides as score_sides,
)
from attnlab.theory.fast_rates import bounds as rate_bounds  # noqa: F401
from attnlab.theory.fast_rates.constants import RateConstants as RateConstants, rate_constants as rate_constants
from attnlab.theory.fast_rates.joint import JointModel as JointModel, condition_1 as condition_1
from attnlab.theory.fast_rates.orthogonality import (
    assumption_1 as assumption_1,
    assumption_2 as assumption_2,
    initialization as initialization,
)
from attnlab.theory.fitting import (
    FamilyComparison as FamilyComparison,
    RateFit as RateFit,
    compare_families as compare_families,
    fit_rate as fit_rate,
)
from attnlab.theory.geometry import (
    LocallyOptimalSelections as LocallyOptimalSelections,
    LocalOptimality as LocalOptimality,
    is_locally_optimal as is_locally_optimal,
    locally_optimal_selections as locally_optimal_selections,
    support_indices as support_indices,
)
from attnlab.theory.lipschitz import (
    LipschitzConstants as LipschitzConstants,
    LossConstants as LossConstants,
    lipschitz_constants as lipschitz_constants,
    loss_constants as loss_constants,
)
from attnlab.theory.tangent import (
    Curvature as Curvature,
    hessian_norm as hessian_norm,
    kernel_distance as kernel_distance,
    ntk as ntk,
    ntk_eigenvalues as ntk_eigenvalues,
)
