"""Tokens, their scores, and seeded families of them.

| name | what |
|---|---|
| `Tokens` | checked, frozen container of sequences, queries, labels |
| `scores`, `optimal_tokens` | how good each token is, and the best one |
| `sphere`, `two_clusters` | the sets of *Transformers as Support Vector Machines* |
| `orthogonal_signal`, `antipodal_signal`, `gaussian_signal`, `two_tokens`, `bad_direction` | of *Implicit Bias and
  Fast Convergence Rates for Self-attention* |
"""

from attnlab.data.families import (
    antipodal_signal as antipodal_signal,
    bad_direction as bad_direction,
    gaussian_signal as gaussian_signal,
    orthogonal_signal as orthogonal_signal,
    sphere as sphere,
    two_clusters as two_clusters,
    two_tokens as two_tokens,
)
from attnlab.data.selection import optimal_tokens as optimal_tokens, scores as scores
from attnlab.data.tokens import Tokens as Tokens
