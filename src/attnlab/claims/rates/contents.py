"""What there is of the paper: its parts in order, and what its letters are called here."""

from __future__ import annotations

# Modules of this package; each has a list CLAIMS.
PARTS = (
    "lemmas",
    "example",
    "direction",
    "theorem_5",
    "saturation",
    "theorem_6",
    "polyak",
    "two_tokens",
    "step_rules",
    "starts",
    "joint_data",
    "joint_dynamics",
    "joint_limits",
    "joint_smoothness",
    "errata_constants",
    "joint_errata",
    "joint_proofs",
    "joint_quarter",
    "joint_remarks",
    "vision",
    "text",
    "token_cosines",
)

# (the paper's letter, our name, meaning)
SYMBOLS = [
    ("n, T, d", "n, T, d", "sequences, tokens in each, their dimension; the query is the first token"),
    ("X_i, y_i, u", "tokens.x, .y, .v", "tokens, label +-1, linear decoder"),
    ("phi_i", "attention", "softmax of X W x_1"),
    ("gamma_i, opt_i", "al.scores, al.optimal_tokens", "scores y X u, and the best token"),
    ("W_mm, Lambda", "al.solve_margin", "max-margin direction, and its norm"),
    ("B", "theory.rate_constants(...).B", "largest token norm"),
    (
        "kappa, Upsilon",
        "rate_constants(...).upsilon",
        "e to the largest and least score gap; the constant made of them",
    ),
    ("eta; t, t_0", "step; steps", "step size; time, and the time from which a theorem speaks"),
    ("C", "rate_bounds.rate_constant", "constant of the rate C (log t)^2 / t of Theorem 5"),
    ("A1, A2", "theory.assumption_1, assumption_2", "nearly orthogonal tokens; equal scores of the other tokens"),
    ("alpha, rho, delta", "JointModel", "signal strength, noise and probability of the data for joint training"),
    ("gamma (joint)", "1 / |u_mm|", "margin of the decoder"),
    ("omega_0, omega_1, omega_2", "theory.rates.joint", "constants of the joint rates"),
    ("Condition 1", "theory.condition_1", "what the joint theorems ask of d, eta, alpha, rho"),
    ("1 - cos", "al.misalignment", "1 less the cosine of two matrices, computed without cancellation"),
]
