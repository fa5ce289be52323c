"""What there is of the paper: its parts in order, and what its letters are called here."""

from __future__ import annotations

# Modules of this package; each has a list CLAIMS.
PARTS = (
    "feasibility",
    "landscape",
    "smoothness",
    "limits",
    "other_norms",
    "narrow_factors",
    "global_convergence",
    "lemma_10",
    "first_step",
    "local_convergence",
    "local_steps",
    "local_paths",
    "shielding",
    "selection",
    "conjecture",
    "composition",
    "errata_formulas",
    "errata_convergence",
    "text_slips",
)

# (the paper's letter, our name, meaning)
SYMBOLS = [
    ("n, T, d, m", "n, T, d, rank", "sequences, tokens in each, their dimension, width of K and Q"),
    ("X_i, z_i, Y_i", "tokens.x, .z, .y", "tokens (T, d), query (d,), label +-1 of sequence i"),
    ("v", "tokens.v", "linear head; the score of a token is gamma = Y v^T x"),
    ("W; K, Q", "run.W; run.K, run.Q", "attention weights, trained as one matrix or as W = K Q^T"),
    ("opt_i", "al.optimal_tokens", "token of highest score; alpha is any selection of tokens"),
    ("W^mm", "al.solve_margin(...).W", "least W with (x_opt - x_t)^T W z >= 1, in the Frobenius norm"),
    ("W^mm_*", 'norm="nuclear"', "the same in the nuclear norm, for K and Q"),
    ("Theta, Xi", "svm.margin", "margin: 1 over the norm of W^mm"),
    ("|W|_F, |W|_*, |W|", "-", "Frobenius, nuclear and spectral norm"),
    ("L, L_*", "loss, its infimum", "mean loss over sequences, and what it tends to on the best tokens"),
    ("s", "attention", "softmax of the logits X W z"),
    (
        "L_W, M0, M1",
        "theory.lipschitz_constants",
        "Lipschitz constant of the gradient; of the loss's slope; bound on it",
    ),
    ("R", "radius", "radius of the ball of a regularization path"),
    ("R_mu, mu, delta", "theory.local_cone", "radius, angle and score gap of the cone of Theorem 7"),
    (
        "B.1, B.2, C, D",
        "theory.assumption_b1, ...",
        "assumptions: all tokens support, equal scores, first step, tight constraints",
    ),
    ("1 - cos", "al.misalignment", "1 less the cosine of two matrices, computed without cancellation"),
]
