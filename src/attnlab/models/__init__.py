"""Models: what can be trained, and the parts they are made of.

| name | what |
|---|---|
| `Model`, `weights`, `Example` | write your own: two methods, and what they see |
| `Attention` | one layer with weights W or (K, Q), and a head |
| `CrossAttention` | the same with a value matrix, a trained query, a head for each query, trained heads |
| `TrainedLinear`, `TrainedMlp`, `TrainedHead` | heads with weights, for it |
| `MultiHead` | many heads with a decoder each |
| `Encoder`, `FullyConnected` | a shallow Transformer encoder, and networks without attention, on squared errors |
| `VisionTransformer` | transformers on patches of images, of any depth |
| `Bert`, `Gpt2` | transformers on text: pretrained (`load`) or random; `LayerStates` is what their heads see |
| `softmax` | softmax whose derivative keeps full relative accuracy when one token takes all |
| `Linear`, `Along`, `ReluSum`, `Mlp`, `RoundedMlp`, `Concave`, `FunctionHead` | heads; `as_head` makes them |
| `LOSSES`, `Loss`, `as_loss` | losses by name, or your own function of a margin |
| `loss`, `excess_loss`, `gradient`, `attention` | one layer by its weights alone |

Every model has `outputs`, `attention`, `loss`, `gradient`, `features`, `hessian` and `initial` for NumPy users.
"""

from attnlab.models.attention import Attention as Attention
from attnlab.models.bert import Bert as Bert
from attnlab.models.crossattention import CrossAttention as CrossAttention
from attnlab.models.dense import FullyConnected as FullyConnected
from attnlab.models.encoder import Encoder as Encoder
from attnlab.models.gpt2 import Gpt2 as Gpt2
from attnlab.models.heads import (
    Along as Along,
    Concave as Concave,
    FunctionHead as FunctionHead,
    Head as Head,
    Linear as Linear,
    Mlp as Mlp,
    ReluSum as ReluSum,
    RoundedMlp as RoundedMlp,
    as_head as as_head,
)
from attnlab.models.headtokens import HeadTokens as HeadTokens
from attnlab.models.losses import LOSSES as LOSSES, Loss as Loss, MarginLoss as MarginLoss, as_loss as as_loss
from attnlab.models.model import Model as Model, View as View
from attnlab.models.multihead import MultiHead as MultiHead
from attnlab.models.network import Network as Network
from attnlab.models.of_layer import (
    attention as attention,
    excess_loss as excess_loss,
    gradient as gradient,
    loss as loss,
)
from attnlab.models.precision import in_float64 as in_float64
from attnlab.models.problem import Example as Example, Forward as Forward, Held as Held, Problem as Problem
from attnlab.models.scaled import ScaledGradient as ScaledGradient
from attnlab.models.softmax import softmax as softmax
from attnlab.models.text import TextTransformer as TextTransformer
from attnlab.models.textstates import LayerStates as LayerStates
from attnlab.models.trainedheads import (
    TrainedHead as TrainedHead,
    TrainedLinear as TrainedLinear,
    TrainedMlp as TrainedMlp,
)
from attnlab.models.vision import VisionTransformer as VisionTransformer
from attnlab.models.weight import Weight as Weight, weights as weights
