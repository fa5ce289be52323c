"""The two data models of *On the Optimization and Generalization of Multi-head Attention*.

Every token is a query there, so the models read x and y alone. `seed` and `trials` are those of all families.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from attnlab.checks import finite_array, instance, number, one_of, whole
from attnlab.data.families import MAX_ATTEMPTS, _batch, _signs, room_for
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

Noise = Literal["gauss", "bounded", "extreme"]
NOISES: tuple[Noise, ...] = ("gauss", "bounded", "extreme")
# Lengths from one over this to this, whose quotients and their squares are ordinary numbers.
EXTREME = 1e50


def tokenized_mixture(
    n: int = 100,
    T: int = 10,
    d: int = 4,
    *,
    sparsity: float = 0.1,
    patterns: int = 2,
    signal: float = 2.0,
    noise: Noise = "gauss",
    sigma: float = 0.1,
    Z_mu: float = 0.0,
    Z_nu: float = 0.0,
    relevant: Literal["random", "first"] = "random",
    seed: int = 0,
    trials: int | None = None,
) -> Tokens:
    """The tokenized mixture (DM1): a share of the tokens is the pattern of the label, the others are noisy patterns.

    Patterns mu+, mu-, nu_1, ..., nu_M are the first M + 2 coordinate vectors times S. Relevant tokens are mu_y, without
    noise; every other token is nu_j + z with j uniform. Labels are +1 or -1 with probability 1/2. Defaults are those
    of figures 2 and 3.

    Args:
        n, T, d: sequences, tokens per sequence, dimension (at least M + 2).
        sparsity: zeta, the share of relevant tokens; zeta T is a whole number, at least 1 and less than T.
        patterns: M, how many nu there are.
        signal: S, the norm of every pattern.
        noise: "gauss" is N(0, sigma^2 I), which has no bound. "bounded" has independent uniform coordinates with
            |<z, mu>| <= Z_mu and |<z, nu_j>| <= Z_nu / M; "extreme" has random signs at these bounds. Coordinates
            beyond the patterns are at most Z_mu / S.
        sigma: of "gauss".
        Z_mu, Z_nu: of "bounded" and "extreme".
        relevant: which tokens are relevant: a random subset for each sequence, or the first ones.
        seed, trials: see `attnlab.data.families`.

    `info` holds relevant (n, T), patterns (M + 2, d) in the order above, oracle u* = mu+ - mu-, the constants S, M,
    zeta, Z_mu, Z_nu, Z = sup |z| and R = max(1, sqrt(S^2 + Z^2 + 2 Z_nu / M)); the last four are infinite for "gauss".
    `v` is the oracle. Draw order: y, relevant tokens, patterns, noise.

    >>> tokenized_mixture(n=20, noise="bounded", Z_mu=0.1, Z_nu=0.1).info["zeta"]
    0.1
    """
    patterns = whole("patterns", patterns)
    room_for("tokenized_mixture", n, T, d, trials, facts=lambda n, T, d: (patterns + 2) * d + n * T)
    count = _relevant_count(number("sparsity", sparsity, least=0, most=1), T)
    if d < patterns + 2:
        raise InputError(message(f"`d` is {d}; {patterns} + 2 orthogonal patterns need d >= {patterns + 2}."))
    signal = number("signal", signal, least=1 / EXTREME, most=EXTREME)
    one_of("noise", noise, NOISES)
    sigma = number("sigma", sigma, least=0, most=EXTREME)
    Z_mu = number("Z_mu", Z_mu, least=0, most=EXTREME)
    Z_nu = number("Z_nu", Z_nu, least=0, most=EXTREME)
    if noise == "gauss" and (Z_mu or Z_nu):
        raise InputError(message("`Z_mu` and `Z_nu` bound the noise; Gaussian noise has no bound.", "noise='bounded'"))
    one_of("relevant", relevant, ("random", "first"))

    means = signal * np.eye(patterns + 2, d)
    reach = np.full(d, Z_mu / signal)
    reach[2 : patterns + 2] = Z_nu / (patterns * signal)

    def draw(rng: np.random.Generator) -> Tokens:
        y = _signs(rng, n)
        mask = np.tile(np.arange(T) < count, (n, 1))
        if relevant == "random":
            mask = rng.permuted(mask, axis=1)
        which = np.where(mask, (y < 0)[:, None], rng.integers(2, patterns + 2, (n, T)))
        x = means[which] + np.where(mask[..., None], 0.0, _noise(rng, noise, sigma, reach, (n, T, d)))
        facts = {"relevant": mask, "patterns": means, "oracle": means[0] - means[1]}
        return Tokens.self_attention(x, y, means[0] - means[1], info=facts)

    bounded = noise != "gauss"
    Z = float(np.linalg.norm(reach))
    constants = {
        "S": float(signal), "M": int(patterns), "zeta": count / T, "noise": noise,
        "Z_mu": float(Z_mu) if bounded else np.inf, "Z_nu": float(Z_nu) if bounded else np.inf,
        "Z": Z if bounded else np.inf,
        "R": max(1.0, float(np.sqrt(signal**2 + Z**2 + 2.0 * Z_nu / patterns))) if bounded else np.inf,
    }  # fmt: skip
    return _with_facts(_batch("tokenized_mixture", draw, seed, trials), constants)


def planted(
    n: int = 1000,
    T: int = 10,
    d: int = 5,
    *,
    margin: float = 0.2,
    norm_U: float = 1.0,
    norm_W: float = 5.0,
    teacher: Tokens | None = None,
    seed: int = 0,
    trials: int | None = None,
) -> Tokens:
    """The planted model (DM2): Gaussian tokens, labelled by one attention head, away from its decision boundary.

    `y = sign F(x; U*, W*)` with `F = <U*, softmax(x W* x^T) x>`, and only sequences with |F| > margin are kept. U* and
    W* are Gaussian, scaled to their norms. Defaults are those of figures 4 and 5.

    Args:
        n, T, d: sequences, tokens per sequence, dimension.
        margin: a sequence is drawn again until |F| exceeds it.
        norm_U, norm_W: Frobenius norms of the teacher.
        teacher: tokens of this family; their teacher labels these, trial by trial, instead of a new one. So a test set
            is `planted(n, teacher=train, seed=another)`.
        seed, trials: see `attnlab.data.families`.

    `info` holds teacher_U (T, d), teacher_W (d, d), outputs F (n,), margin, attempts per sequence, and acceptance, the
    share of draws that were kept. Draw order: W*, U*, then x (rejected sequences again, in rounds).
    """
    room_for(
        "planted",
        n,
        T,
        d,
        trials,
        besides=lambda n, T, d: 4 * n * T * T,  # logits and attention weights
        facts=lambda n, T, d: d * d + T * d + 2 * n,  # the teacher, outputs and attempts
    )
    norm_U = number("norm_U", norm_U, least=1 / EXTREME, most=EXTREME)
    norm_W = number("norm_W", norm_W, least=1 / EXTREME, most=EXTREME)
    margin = number("margin", margin, least=0)
    given = None if teacher is None else iter(_teachers(teacher, T, d, trials))

    def draw(rng: np.random.Generator) -> Tokens:
        W, U = rng.standard_normal((d, d)), rng.standard_normal((T, d))
        W, U = norm_W * W / np.linalg.norm(W), norm_U * U / np.linalg.norm(U)
        if given is not None:
            U, W = next(given)
        x = rng.standard_normal((n, T, d))
        outputs = head_output(x, U, W)
        attempts = np.ones(n, dtype=int)
        while (short := np.flatnonzero(~(np.abs(outputs) > margin))).size:
            if attempts.max() >= MAX_ATTEMPTS or attempts.sum() >= 1_000 * max(n, 100):
                met = f"{n - short.size} of {n} sequences after {attempts.sum()}"
                problem = f"`margin` = {margin} is met by too few draws ({met})."
                raise InputError(message(problem, "lower `margin` or raise `norm_U`"))
            x[short] = rng.standard_normal((short.size, T, d))
            outputs[short] = head_output(x[short], U, W)
            attempts[short] += 1
        facts = {
            "teacher_U": U,
            "teacher_W": W,
            "outputs": outputs,
            "attempts": attempts,
            "acceptance": float(n / attempts.sum()),
        }
        return Tokens.self_attention(x, np.sign(outputs), info=facts)

    return _with_facts(_batch("planted", draw, seed, trials), {"margin": float(margin)})


def head_output(x: Array, U: Array, W: Array) -> Array:
    """`<U, softmax(x W x^T) x>` of one head for x (..., T, d): shape (...)."""
    from scipy.special import softmax

    attention = softmax(x @ W @ np.swapaxes(x, -1, -2), axis=-1)
    return np.sum(attention * (U @ np.swapaxes(x, -1, -2)), axis=(-2, -1))


def _noise(rng: np.random.Generator, kind: str, sigma: float, reach: Array, shape: tuple[int, ...]) -> Array:
    if kind == "gauss":
        return sigma * rng.standard_normal(shape)
    if kind == "bounded":
        return reach * rng.uniform(-1.0, 1.0, shape)
    return reach * rng.choice([-1.0, 1.0], shape)


def _relevant_count(sparsity: float, T: int) -> int:
    """zeta T, which must be whole."""
    count = round(sparsity * T) if np.isfinite(sparsity) else 0
    if not 1 <= count < T or abs(sparsity * T - count) > 1e-9 * T:
        wanted = f"with T = {T} wanted a whole number of relevant tokens, 1 to {T - 1}"
        raise InputError(message(f"`sparsity` is {sparsity}; {wanted}.", f"sparsity = k / {T}"))
    return count


def _teachers(tokens: Tokens, T: int, d: int, trials: int | None) -> list[tuple[Array, Array]]:
    """U* and W* of each trial."""
    instance("teacher", tokens, Tokens, "al.Tokens that `planted` drew", "teacher=planted(...)")
    if "teacher_U" not in tokens.info or "teacher_W" not in tokens.info:
        raise InputError(message("`teacher` has no planted teacher in its `info`.", "teacher=planted(...)"))
    if (tokens.T, tokens.d, tokens.trials) != (T, d, trials):
        has = f"T = {tokens.T}, d = {tokens.d}, trials = {tokens.trials}"
        raise InputError(message(f"`teacher` has {has}; wanted T = {T}, d = {d}, trials = {trials}."))
    every = [tokens] if trials is None else [tokens[i] for i in range(trials)]
    return [(_teacher(t, "teacher_U", (T, d)), _teacher(t, "teacher_W", (d, d))) for t in every]


def _teacher(tokens: Tokens, name: str, shape: tuple[int, int]) -> Array:
    weights = finite_array(f"teacher.info[{name!r}]", tokens.info[name])
    if weights.shape != shape:
        raise InputError(message(f"`teacher.info[{name!r}]` has shape {weights.shape}; wanted {shape}."))
    return weights


def _with_facts(tokens: Tokens, facts: dict[str, object]) -> Tokens:
    info = {**tokens.info, **facts}
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, mask=tokens.mask, info=info)
