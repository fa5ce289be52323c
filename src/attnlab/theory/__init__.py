"""Assumptions, constants, bounds and predictions of the theorems, measured on given data: one package per paper.

| package | paper |
|---|---|
| `attnlab.theory.svm` | *Transformers as Support Vector Machines* |
| `attnlab.theory.rates` | *Implicit Bias and Fast Convergence Rates for Self-attention* |
| `attnlab.theory.multihead` | *On the Optimization and Generalization of Multi-head Attention* |
| `attnlab.theory.encoder` | *On the Convergence of Encoder-only Shallow Transformers* |

What all of them share, and the names of the first two papers, are here:

| name | what |
|---|---|
| `Check` | one thing that is asked, what there is, what is wanted; what every check comes back as |
| `is_locally_optimal`, `locally_optimal_selections` | can descent settle on this selection, and on which? |
| `support_indices` | the tokens that hold the margin |
| `assumption_b1`, `assumption_b1_proxy`, `assumption_b2`, `assumption_c`, `_d`, `_e` | do they hold here? |
| `interpolation_room` | how far constraints are from being tight all at once |
| `local_cone`, `in_cone` | the neighbourhood of a max-margin direction that descent does not leave |
| `barrier`, `in_barrier_cone`, `default_eps`, `score_sides` | the cone of the local regularization path |
| `lipschitz_constants`, `loss_constants` | how fast the gradient can change |
| `rate_constants`, `RateConstants` | Lambda, B, the score gaps and what the rates make of them |
| `assumption_1`, `assumption_2`, `initialization` | nearly orthogonal tokens, equal scores, a small start |
| `condition_1`, `JointModel` | what joint training of head and attention asks for |
| `rate_bounds` | explicit constants of the rates, printed and corrected (a module) |
| `ntk`, `ntk_eigenvalues`, `kernel_distance`, `hessian_norm` | tangent kernel and curvature of any model |
| `fit_rate`, `compare_families` | how fast does a curve fall? |
"""

from attnlab.theory import encoder as encoder, multihead as multihead
from attnlab.theory.check import Check as Check
from attnlab.theory.fitting import (
    FamilyComparison as FamilyComparison,
    RateFit as RateFit,
    compare_families as compare_families,
    fit_rate as fit_rate,
)
from attnlab.theory.rates import bounds as rate_bounds  # noqa: F401
from attnlab.theory.rates.constants import RateConstants as RateConstants, rate_constants as rate_constants
from attnlab.theory.rates.joint import JointModel as JointModel, condition_1 as condition_1
from attnlab.theory.rates.orthogonality import (
    assumption_1 as assumption_1,
    assumption_2 as assumption_2,
    initialization as initialization,
)
from attnlab.theory.svm.assumption_e import assumption_e as assumption_e
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
from attnlab.theory.tangent import (
    Curvature as Curvature,
    hessian_norm as hessian_norm,
    kernel_distance as kernel_distance,
    ntk as ntk,
    ntk_eigenvalues as ntk_eigenvalues,
)
