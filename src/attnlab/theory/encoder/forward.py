"""The shallow encoder on plain arrays: what every constant of the theory is computed from.

Eq. (1.2) of *On the Convergence of Encoder-only Shallow Transformers*, with tokens pooled by their sum; pooling by the
mean is the same with tau1 / T in place of tau1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from attnlab.checks import instance, number, whole
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.theory.arrays import BLOCK, finite, sequences

# The four parameters, by the letter that the theory gives them.
NAMES = {"Q": "W_Q", "K": "W_K", "V": "W_V", "O": "w_O"}


class Forward(NamedTuple):
    """One pass, for n sequences of T tokens and width m.

    Attributes:
        attention: rows of softmax weights, (n, T, T).
        attended: `attention @ x`, (n, T, d).
        preactivation: `attended @ W_V^T`, with the residual if there is one, (n, T, m).
        hidden: F_pre, `tau1 sum_i relu(preactivation_i)`, (n, m).
        outputs: `hidden @ w_O`, (n,).
    """

    attention: Array
    attended: Array
    preactivation: Array
    hidden: Array
    outputs: Array


def forward(
    x: ArrayLike,
    weights: Mapping[str, ArrayLike],
    tau0: float,
    tau1: float,
    residual: ArrayLike | str | None = None,
) -> Forward:
    """`f = tau1 w_O^T sum_i relu(W_V x^T b_i)` with `b_i = softmax(tau0 x W_Q^T W_K x_i)`.

    Args:
        x: tokens, (n, T, d).
        weights: W_Q, W_K, W_V of shape (m, d) and w_O of shape (m,).
        tau0: scale inside the softmax.
        tau1: scale of the hidden layer; divide it by T for mean pooling.
        residual: None; "identity" adds x to the preactivation (needs m = d); S (d, m) adds x S.

    Eq. (1.2) and Appendix C.7. The printed residual adds x to an array of width m, so it asks for m = d.

    >>> ones = {"W_Q": [[0.0]], "W_K": [[0.0]], "W_V": [[1.0]], "w_O": [2.0]}
    >>> forward([[[1.0], [3.0]]], ones, tau0=1.0, tau1=0.5).outputs.tolist()  # two tokens attend to their mean, 2
    [4.0]
    """
    return _pass(*_checked(x, weights, tau0, tau1, residual))


def hidden(
    x: ArrayLike,
    weights: Mapping[str, ArrayLike],
    tau0: float,
    tau1: float,
    residual: ArrayLike | str | None = None,
    *,
    block: int = BLOCK,
) -> tuple[Array, Array]:
    """`hidden` (n, m) and `outputs` (n,) of `forward`, in memory for about `block` numbers besides."""
    x_, checked, tau0, tau1, S = _checked(x, weights, tau0, tau1, residual)
    n, T, d = x_.shape
    size = max(1, whole("block", block) // (2 * T * len(checked["w_O"]) + T * (2 * T + d)))
    blocks = [_pass(x_[i : i + size], checked, tau0, tau1, S) for i in range(0, n, size)]
    return np.concatenate([f.hidden for f in blocks]), np.concatenate([f.outputs for f in blocks])


def checked_weights(weights: Mapping[str, ArrayLike], d: int) -> dict[str, Array]:
    """The four parameters as finite arrays of matching shapes."""
    instance("weights", weights, Mapping, "a mapping of names to arrays", "W_Q, W_K, W_V and w_O")
    missing = [name for name in NAMES.values() if name not in weights]
    if missing:
        raise InputError(message(f"`weights` lack {', '.join(missing)}; wanted {', '.join(NAMES.values())}."))
    w_O = finite("w_O", weights["w_O"], ("m",))
    matrices = {name: finite(name, weights[name], (len(w_O), d)) for name in ("W_Q", "W_K", "W_V")}
    return {**matrices, "w_O": w_O}


def residual_matrix(residual: ArrayLike | str | None, d: int, m: int) -> Array | None:
    """S (d, m), which is what x is multiplied by before it is added; None without a residual."""
    if residual is None:
        return None
    if isinstance(residual, str):
        if residual != "identity":
            raise InputError(message(f"`residual` is {residual!r}; wanted None, 'identity' or an array (d, m)."))
        if m != d:
            raise InputError(
                message(
                    f"`residual='identity'` adds tokens of dimension {d} to a layer of width {m}; wanted m = d.",
                    "pass an array S (d, m), which adds x @ S",
                )
            )
        return np.eye(d)
    return finite("residual", residual, (d, m))


def _checked(
    x: ArrayLike, weights: Mapping[str, ArrayLike], tau0: float, tau1: float, residual: ArrayLike | str | None
) -> tuple[Array, dict[str, Array], float, float, Array | None]:
    tau0, tau1 = number("tau0", tau0, least=0), number("tau1", tau1, above=0)
    x_ = sequences(x)
    checked = checked_weights(weights, x_.shape[-1])
    return x_, checked, tau0, tau1, residual_matrix(residual, x_.shape[-1], len(checked["w_O"]))


def _pass(x: Array, weights: dict[str, Array], tau0: float, tau1: float, S: Array | None) -> Forward:
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        logits = tau0 * (x @ (weights["W_Q"].T @ weights["W_K"]) @ np.swapaxes(x, -1, -2))
        attention = scipy.special.softmax(logits, axis=-1)
        attended = attention @ x
        inside = attended @ weights["W_V"].T
        if S is not None:
            inside += x @ S
        pooled = tau1 * np.maximum(inside, 0.0).sum(axis=1)
        passed = Forward(attention, attended, inside, pooled, pooled @ weights["w_O"])
    if not all(np.isfinite(part).all() for part in passed):
        sizes = {"x": x, **weights, **({} if S is None else {"residual": S})}
        largest = ", ".join(f"`{name}` {np.abs(array).max():.1e}" for name, array in sizes.items())
        told = f"`tau0` is {tau0:g}, `tau1` {tau1:g}, and the largest entries are {largest}"
        raise InputError(message(f"The encoder leaves float64, which ends at 1.8e308: {told}.", "smaller tokens"))
    return passed
