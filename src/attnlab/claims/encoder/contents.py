"""What there is of the paper: its parts in order, and what its letters are called here."""

from __future__ import annotations

# Modules of this package; each has a list CLAIMS.
PARTS = (
    "probability",
    "lipschitz",
    "gradients_bounds",
    "proposition_1",
    "eigenvalues",
    "lemma_15",
    "conditions",
    "theorem_2",
    "data_and_labels",
    "kernel_limits",
    "degenerate",
    "linear_width",
    "hessian",
    "training",
    "comparisons",
    "errata_proofs",
    "kernel_errata",
    "training_errata",
    "vision",
    "vision_regression",
    "sentences",
)

# (the paper's letter, our name, meaning)
SYMBOLS = [
    ("N", "n", "sequences"),
    ("d_s", "T", "tokens in a sequence"),
    ("d", "d", "dimension of a token"),
    ("d_m", "m, width", "width: rows of W_Q, W_K, W_V, entries of w_O"),
    ("tau_0", "attention scale", "factor of the logits: d_m^-1/2 or d_m^-1"),
    ("tau_1", "tau1", "factor of the hidden layer: 1 (LeCun, He) or d_m^-1/2 (NTK)"),
    ("eta_O, eta_V, eta_Q, eta_K", "variances", "of the Gaussian start"),
    ("theta, gamma", "weights, step", "all parameters; step size of gradient descent"),
    ("l(theta)", "loss", "half the sum of squared errors"),
    ("alpha", "theory.encoder", "least singular value of the last hidden layer at the start"),
    ("lambda_Q, ..., lambda-bar", "l_P", "norms of the weights at the start and bounds on them along the run"),
    ("rho, z, c_1, c_2, c_3", "theory.encoder.constants", "constants of Proposition 1 and Lemmas 9 to 14"),
    ("K, K^t, K*", "theory.ntk, limiting kernel", "tangent kernel; at step t; at infinite width"),
    ("lambda_0, lambda_*", "theory.encoder", "least eigenvalue of the limiting feature kernel; of Phi* Phi*^T"),
    ("C_x", "theory.encoder", "bound: |X_n|_F <= sqrt(d_s) C_x"),
    ("H", "theory.hessian_norm", "Hessian of the output"),
    ("c-hat", "assumption 3", "exponent of the decay of token correlations"),
]
