"""Constants, kernels, widths and assumptions of *On the Convergence of Encoder-only Shallow Transformers*.

| name | what |
|---|---|
| `forward`, `Forward` | the shallow encoder on plain arrays: attention, hidden layer, outputs |
| `Constants` | Proposition 1: conditions (2) and (3), and the largest step size |
| `rate_bound`, `rate_follows`, `drift_bound`, `weight_bounds`, `residual_alpha` | what it promises |
| `lemma_4` to `lemma_14`, `lemma_20` | how far outputs and gradients can move |
| `arc_cosine_0`, `arc_cosine_1`, `pooled_expectation` | expectations of relu over Gaussian weights |
| `limiting_ntk`, `kernel_regression` | Lemma 1: the tangent kernel of infinite width, and what it predicts |
| `lambda_0`, `lemma_15`, `chernoff_bound`, `predict_alpha` | how far from singular the hidden layer starts |
| `required_width`, `probability`, `lemma_16_error`, `lemma_16_width` | which width is enough, and how likely |
| `LITERATURE` | Table 3: widths that others ask for |
| `assumption_1` to `assumption_4`, `similarities`, `tail_probability` | do they hold here? |
"""

from attnlab.theory.encoder.assumptions import (
    BoundedTokens as BoundedTokens,
    Covariance as Covariance,
    Dissimilarity as Dissimilarity,
    FullRank as FullRank,
    Line as Line,
    assumption_1 as assumption_1,
    assumption_2 as assumption_2,
    assumption_3 as assumption_3,
    assumption_4 as assumption_4,
    similarities as similarities,
    tail_probability as tail_probability,
)
from attnlab.theory.encoder.constants import Constants as Constants, least_singular_value as least_singular_value
from attnlab.theory.encoder.forward import Forward as Forward, forward as forward
from attnlab.theory.encoder.kernels import (
    arc_cosine_0 as arc_cosine_0,
    arc_cosine_1 as arc_cosine_1,
    kernel_regression as kernel_regression,
    limiting_ntk as limiting_ntk,
    pooled_expectation as pooled_expectation,
)
from attnlab.theory.encoder.lemmas import (
    lemma_4 as lemma_4,
    lemma_5 as lemma_5,
    lemma_6 as lemma_6,
    lemma_7 as lemma_7,
    lemma_8 as lemma_8,
    lemma_9 as lemma_9,
    lemma_10 as lemma_10,
    lemma_12 as lemma_12,
    lemma_13 as lemma_13,
    lemma_14 as lemma_14,
    lemma_20 as lemma_20,
)
from attnlab.theory.encoder.rates import (
    drift_bound as drift_bound,
    rate_bound as rate_bound,
    rate_follows as rate_follows,
    residual_alpha as residual_alpha,
    weight_bounds as weight_bounds,
)
from attnlab.theory.encoder.spectrum import (
    AlphaPrediction as AlphaPrediction,
    Lambda0 as Lambda0,
    Lemma15 as Lemma15,
    chernoff_bound as chernoff_bound,
    lambda_0 as lambda_0,
    lemma_15 as lemma_15,
    predict_alpha as predict_alpha,
)
from attnlab.theory.encoder.widths import (
    LITERATURE as LITERATURE,
    LiteratureWidth as LiteratureWidth,
    RequiredWidth as RequiredWidth,
    lemma_16_error as lemma_16_error,
    lemma_16_width as lemma_16_width,
    probability as probability,
    required_width as required_width,
)
