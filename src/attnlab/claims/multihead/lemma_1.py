"""The formulas of Lemma 1, against central differences, automatic differentiation and the closed forms in use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlab.claims.claim import Outcome, outcome
from attnlab.claims.multihead.derivatives import head
from attnlab.claims.parts import Identity
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array, Tokens
from attnlab.models import MultiHead
from attnlab.theory.multihead import attention_of
from attnlab.theory.multihead.ntk import head_gradient

STEP = 1e-6
NEAR, EXACT = 1e-6, 1e-10  # relative errors of central differences, and of two closed forms
PRODUCTS = 20  # Hessian products by automatic differentiation, at most


def jacobians(x: Array, W: Array) -> Array:
    """phi'(x W^T x_t) = diag(phi) - phi phi^T for every query, (B, T, T, T)."""
    A = attention_of(x, W)
    return A[..., None] * np.eye(A.shape[-1]) - A[..., :, None] * A[..., None, :]


def by_W(x: Array, U: Array, W: Array) -> Array:
    """Lemma 1: sum_t x_t u_t^T x^T phi'(x W^T x_t) x."""
    return np.einsum("bti,btd,bsd,btsk,bkj->bij", x, U, x, jacobians(x, W), x, optimize=True)


def by_W_of_by_U(x: Array, W: Array, a: Array, b: Array) -> Array:
    """Lemma 1: the gradient by W of <a, grad_U F b> is sum_t a_t x_t b^T x^T phi'(x W^T x_t) x."""
    return np.einsum("bt,bti,bd,bsd,btsk,bkj->bij", a, x, b, x, jacobians(x, W), x, optimize=True)


def by_W_twice(x: Array, U: Array, W: Array, c: Array, b: Array) -> Array:
    """Lemma 1: that of <c, grad_W F b> is sum_t (c^T x_t) x_t delta_t^T phi'(x W^T x_t) x."""
    A = attention_of(x, W)
    along = np.einsum("bsd,bd->bs", x, b)  # x b
    scores = np.einsum("bsd,btd->bts", x, U)  # x u_t
    mean_along = np.einsum("bts,bs->bt", A, along)
    mean_score = np.einsum("bts,bts->bt", A, scores)
    delta = (
        along[:, None] * scores - mean_along[..., None] * scores - mean_score[..., None] * along[:, None]
    )  # (B, t, s)
    towards = np.einsum("btd,bd->bt", x, c)
    return np.einsum("bt,bti,bts,btsk,bkj->bij", towards, x, delta, jacobians(x, W), x, optimize=True)


def derivatives_are_those_of_the_lemma(scale: Scale) -> Outcome:
    """Formulas of the lemma against central differences, and Hessian products against the dense Hessian."""
    B, T, d = scale.pick(20, 200, 1000), 4, 3
    rng = np.random.default_rng(0)
    x, U, dU = (rng.standard_normal((B, T, d)) for _ in range(3))
    W, dW = (rng.standard_normal((B, d, d)) for _ in range(2))
    a, b, c = (rng.standard_normal((B, size)) for size in (T, d, d))
    tokens = Tokens.self_attention(x[:, None], np.ones((B, 1)), np.ones(d))

    def output(decoder: Array, query: Array) -> Array:
        return MultiHead(1).outputs(tokens, {"U": decoder[:, None], "W": query[:, None]})[:, 0]

    slope = Identity("grad F along a direction, by differences", tolerance=NEAR)
    mixed = Identity("grad_W <a, grad_U F b>, by differences", tolerance=NEAR)
    twice = Identity("grad_W <c, grad_W F b>, by differences", tolerance=NEAR)
    linear = Identity("F(U + 2 V) = F(U) + 2 F(V)", tolerance=EXACT)
    gradient = Identity("grad F, the lemma against moments", tolerance=EXACT)
    in_use = Identity("grad F, the lemma against the gradient of the tangent kernel", tolerance=EXACT)
    product = Identity("Hessian times a direction, moments against automatic differentiation", tolerance=EXACT)
    symmetry = Identity("symmetry of the Hessian", tolerance=EXACT)

    lemma = _flat(attention_of(x, W) @ x, by_W(x, U, W))  # (B, P)
    direction = _flat(dU, dW)
    change = output(U + STEP * dU, W + STEP * dW) - output(U - STEP * dU, W - STEP * dW)
    lengths = np.linalg.norm(lemma, axis=-1) * np.linalg.norm(direction, axis=-1)
    slope.add((change / (2 * STEP) - np.sum(lemma * direction, -1)) / lengths)
    mixed.add(
        _by_entries(
            by_W_of_by_U(x, W, a, b), lambda V: np.einsum("bt,btd,bd->b", a, attention_of(x, V) @ x, b), around=W
        )
    )
    twice.add(
        _by_entries(by_W_twice(x, U, W, c, b), lambda V: np.einsum("bi,bij,bj->b", c, by_W(x, U, V), b), around=W)
    )
    together = output(U + 2.0 * dU, W)
    apart = output(U, W) + 2.0 * output(dU, W)
    linear.add((together - apart) / np.linalg.norm(U, axis=(-2, -1)))

    closed = head(x, U, W)
    gradient.add(_relative(closed.gradient, lemma))
    in_use.add(_relative(np.concatenate([head_gradient(x[i : i + 1], U[i], W[i]).flat for i in range(B)]), lemma))
    products = _hessian_products(x[:PRODUCTS], U, W, dU, dW)
    along = np.einsum("bpq,bq->bp", closed.hessian, direction)
    product.add(_relative(along[: len(products)], products))
    symmetry.add(_relative(np.swapaxes(closed.hessian, -1, -2), closed.hessian))
    return outcome(slope, mixed, twice, linear, gradient, in_use, product, symmetry, seeds=(0,))


def _flat(by_U: Array, by_W: Array) -> Array:
    """U then W, as rows."""
    return np.concatenate([by_U.reshape(len(by_U), -1), by_W.reshape(len(by_W), -1)], axis=-1)


def _relative(values: Array, wanted: Array) -> Array:
    """The error of every draw, relative to the norm of what is wanted."""
    error = np.linalg.norm((values - wanted).reshape(len(values), -1), axis=-1)
    return error / np.linalg.norm(wanted.reshape(len(wanted), -1), axis=-1)


def _by_entries(wanted: Array, function: Callable[[Array], Array], *, around: Array) -> Array:
    """Errors of matrices (B, d, d) whose entries are central differences along unit matrices."""
    d = wanted.shape[-1]
    entries = [
        (function(around + STEP * unit) - function(around - STEP * unit)) / (2 * STEP)
        for unit in np.eye(d * d).reshape(-1, d, d)
    ]
    return _relative(np.stack(entries, axis=-1).reshape(wanted.shape), wanted)


def _hessian_products(x: Array, U: Array, W: Array, dU: Array, dW: Array) -> Array:
    """The Hessian of every output times its direction, by automatic differentiation, (B, P)."""
    found = []
    for i in range(len(x)):
        tokens = Tokens.self_attention(x[i, None], np.ones(1), np.ones(x.shape[-1]))
        along = MultiHead(1).hessian_product(tokens, {"U": U[i], "W": W[i]}, {"U": dU[i], "W": dW[i]}, of="output")
        found.append(np.concatenate([along["U"].ravel(), along["W"].ravel()]))
    return np.array(found)
