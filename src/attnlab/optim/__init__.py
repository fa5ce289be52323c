"""Step rules, each an optax `GradientTransformationExtraArgs`.

| rule | step |
|---|---|
| `gd(step)` | constant |
| `ngd(step, cap=)` | normalized: step / norm of the gradient, at most `cap` |
| `ngd_momentum(step, momentum=, form=)` | normalized with momentum, two forms |
| `polyak(cap=, constant=, floor=)` | constant * (loss - floor) / squared norm |
| `heavy_ball(step, momentum=)` | gradient descent with momentum |
| `adam(step)` | Adam |
| `joint_decay(step)`, `joint_separate(step)`, `joint_total(step)` | head and attention trained together |
| `scale_free(rule)` | an optax rule that does not see the size of gradients, such as `optax.sign_sgd` |

Inside `attnlab.descend` they read gradients as (mantissa, log-scale) and so work where the gradient itself
underflows; in any other optax loop they take plain gradients.
"""

from attnlab.optim.descent import adam as adam, gd as gd, ngd as ngd, ngd_momentum as ngd_momentum
from attnlab.optim.joint import (
    joint_decay as joint_decay,
    joint_separate as joint_separate,
    joint_total as joint_total,
)
from attnlab.optim.momentum import heavy_ball as heavy_ball
from attnlab.optim.polyak import polyak as polyak
from attnlab.optim.rule import StepRule as StepRule
from attnlab.optim.scalefree import scale_free as scale_free
