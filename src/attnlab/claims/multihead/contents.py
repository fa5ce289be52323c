"""What there is of the paper: its parts in order, and what its letters are called here."""

from __future__ import annotations

# Modules of this package; each has a list CLAIMS.
PARTS = (
    "gradients",
    "curvature",
    "curvature_errata",
    "theorem_1",
    "dynamics",
    "tangent",
    "realizable",
    "generalization",
    "expansion",
    "first_phase",
    "good_start",
    "phase_one_lemmas",
    "two_phases",
    "mixture_margins",
    "section_5_3",
    "saturation",
    "text",
)

# (the paper's letter, our name, meaning)
SYMBOLS = [
    ("n, T, d, H", "n, T, d, H", "sequences, tokens in each, their dimension, heads"),
    ("W_h, U_h; theta", "weights", "attention and decoder of head h; all of them"),
    ("|theta|_2,inf", "longest head", "largest norm of the weights of one head"),
    ("R", "Shape.R", "bound on the norm of a token, at least 1"),
    ("theta_0, theta_K, K, eta", "start, end, steps, step", "weights at the start and after K steps of size eta"),
    ("D, g", "distance, longest head", "distance from start to target; longest head of the target"),
    ("beta_1, beta_2, beta_3", "theory.multihead.bounds", "constants of gradient, curvature and weak convexity"),
    ("B_2, B_Phi, gamma", "GoodStart", "longest head, largest output, tangent-kernel margin at the start"),
    ("g_0(eps), g(eps)", "distance for loss eps", "realizability: how far a loss of eps is"),
    ("mu_+-, nu_l; u_*", "patterns; mu_+ - mu_-", "signal and noise patterns of data model DM1; oracle classifier"),
    ("S, M, zeta, Z", "al.data.tokenized_mixture", "signal norm, patterns, share of relevant tokens, noise bound"),
    (
        "gamma_lin, gamma_attn, gamma_star",
        "theory.multihead.margins",
        "margins of a linear model, of one head of attention, and of the tangent kernel",
    ),
    ("Gamma_eps", "saturation.py", "norm of W that saturates attention to eps"),
    ("n_1, alpha_h", "phase one", "fresh sample of the first step, its random signs"),
    ("L, L-hat", "population loss, loss", "logistic loss on the distribution and on the sample"),
]
