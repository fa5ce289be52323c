"""Tokens, their scores, and seeded families of them.

| name | what |
|---|---|
| `Tokens` | checked, frozen container of sequences, queries, labels |
| `scores`, `optimal_tokens` | how good each token is, and the best one |
| `sphere`, `two_clusters` | the sets of *Transformers as Support Vector Machines* |
| `orthogonal_signal`, `antipodal_signal`, `gaussian_signal`, `two_tokens`, `bad_direction` | of *Implicit Bias and
  Fast Convergence Rates for Self-attention* |
| `digit_patches` | its digit images among noise: scikit-learn's digits or your MNIST files |
| `separated_signal` | tokens that truly meet the assumptions of that paper |
| `gaussian_signal_in_span` | `gaussian_signal` of any dimension, up to 1e300 |
| `tokenized_mixture`, `planted` | of *On the Optimization and Generalization of Multi-head Attention* |
| `Sequences`, `gaussian_sequences` | sequences with real labels, for encoders; Gaussian ones |
| `Images` | pictures with class labels, and their patches as `Sequences` |
| `mnist`, `fashion_mnist`, `cifar10`, `digits` | sets of them: from a folder, or downloaded once; scikit-learn's own |
| `Texts`, `read_texts`, `Tokenizer` | texts with class labels, from files of GLUE, Jigsaw, IMDB and others; their
  tokens |
| `made_up_texts` | a few words put together, to try things out |
| `trap` | data sets on which descent goes astray although a theorem says that it does not |
| `in_span`, `gaussian_start` | the same tokens in fewer coordinates, and a random start seen from there |
"""

from attnlab.data.digitpatches import digit_patches as digit_patches
from attnlab.data.families import (
    antipodal_signal as antipodal_signal,
    bad_direction as bad_direction,
    gaussian_signal as gaussian_signal,
    orthogonal_signal as orthogonal_signal,
    sphere as sphere,
    two_clusters as two_clusters,
    two_tokens as two_tokens,
)
from attnlab.data.highdim import gaussian_signal_in_span as gaussian_signal_in_span
from attnlab.data.images import Images as Images
from attnlab.data.imagesets import (
    cifar10 as cifar10,
    digits as digits,
    fashion_mnist as fashion_mnist,
    mnist as mnist,
)
from attnlab.data.madeup import made_up_texts as made_up_texts
from attnlab.data.mixture import planted as planted, tokenized_mixture as tokenized_mixture
from attnlab.data.selection import optimal_tokens as optimal_tokens, scores as scores
from attnlab.data.separated import separated_signal as separated_signal
from attnlab.data.sequences import Sequences as Sequences, gaussian_sequences as gaussian_sequences
from attnlab.data.span import gaussian_start as gaussian_start, in_span as in_span
from attnlab.data.textfiles import read_texts as read_texts
from attnlab.data.texts import Texts as Texts
from attnlab.data.tokenizer import Tokenizer as Tokenizer
from attnlab.data.tokens import Tokens as Tokens
from attnlab.data.trap import trap as trap
