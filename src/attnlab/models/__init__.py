"""The attention layer: softmax that survives saturation, heads, losses, and gradients that never underflow.

| name | what |
|---|---|
| `softmax` | softmax whose derivative keeps full relative accuracy when one token takes all |
| `Linear`, `ReluSum`, `Mlp`, `Concave`, `FunctionHead` | prediction heads; `as_head` accepts names and functions |
| `LOSSES`, `Loss`, `as_loss` | logistic, exponential, correlation, or your own function |
| `AttentionModel`, `Problem` | one layer with weights W or (K, Q); its loss, excess loss and scaled gradient |
| `loss`, `excess_loss`, `gradient` | the same for NumPy users, on `Tokens` |
| `MultiHead` | many heads with a decoder each: output, loss, gradient, Hessian products |
| `Encoder`, `FullyConnected` | a shallow Transformer encoder, and networks without attention, on squared errors |
"""

from attnlab.models.attention import (
    AttentionModel as AttentionModel,
    Evaluation as Evaluation,
    Problem as Problem,
    ScaledGradient as ScaledGradient,
)
from attnlab.models.dense import FullyConnected as FullyConnected
from attnlab.models.encoder import Encoder as Encoder
from attnlab.models.evaluate import (
    attention as attention,
    excess_loss as excess_loss,
    gradient as gradient,
    loss as loss,
)
from attnlab.models.heads import (
    Concave as Concave,
    FunctionHead as FunctionHead,
    Head as Head,
    Linear as Linear,
    Mlp as Mlp,
    ReluSum as ReluSum,
    as_head as as_head,
)
from attnlab.models.losses import LOSSES as LOSSES, Loss as Loss, as_loss as as_loss
from attnlab.models.multihead import MultiHead as MultiHead
from attnlab.models.network import Network as Network
from attnlab.models.precision import in_float64 as in_float64
from attnlab.models.softmax import softmax as softmax
