"""Gradient and Hessian of one head: Lemma 1, Proposition 1, and the same for other decoders and sharper constants."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.multihead.derivatives import Draws, Head, decoded, draw, head
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array, Tokens
from attnlab.models import MultiHead
from attnlab.theory.multihead import Shape, attention_of, token_bounds
from attnlab.theory.multihead.bounds import Decoder

SIZES = ((2, 2), (4, 3), (3, 5))  # (T, d)
RATIO = 1.0 + 1e-9
NEAR, EXACT = 1e-6, 1e-10  # relative errors of finite differences, and of two closed forms

# Lemma 1 ----------------------------------------------------------------------------------------------------------


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
    along, scores = np.einsum("bsd,bd->bs", x, b), np.einsum("bsd,btd->bts", x, U)
    means = np.einsum("bts,bs->bt", A, along), np.einsum("bts,bts->bt", A, scores)
    delta = along[:, None] * scores - means[0][..., None] * scores - means[1][..., None] * along[:, None]
    towards = np.einsum("btd,bd->bt", x, c)
    return np.einsum("bt,bti,bts,btsk,bkj->bij", towards, x, delta, jacobians(x, W), x, optimize=True)


def relative(found: Array, wanted: Array) -> float:
    """The largest error of a draw, relative to the norm of what is wanted."""
    error = np.linalg.norm((found - wanted).reshape(len(found), -1), axis=-1)
    return float((error / np.linalg.norm(wanted.reshape(len(wanted), -1), axis=-1)).max())


def derivatives_are_those_of_the_lemma(scale: Scale) -> Outcome:
    """Formulas of the lemma against central differences, and Hessian products against the dense Hessian."""
    B, T, d, h = scale.pick(20, 200, 1000), 4, 3, 1e-6
    rng = np.random.default_rng(0)
    x, U, dU = (rng.standard_normal((B, T, d)) for _ in range(3))
    W, dW = (rng.standard_normal((B, d, d)) for _ in range(2))
    a, (b, c) = rng.standard_normal((B, T)), rng.standard_normal((2, B, d))
    tokens = Tokens.self_attention(x[:, None], np.ones((B, 1)), np.ones(d))

    def output(along: float) -> Array:
        weights = {"U": (U + along * dU)[:, None], "W": (W + along * dW)[:, None]}
        return MultiHead(1).output(tokens, weights)[:, 0]

    def difference(function, along: Array) -> Array:
        return (function(W + h * along) - function(W - h * along)) / (2 * h)

    mean = attention_of(x, W) @ x
    slope = np.einsum("btd,btd->b", mean, dU) + np.einsum("bij,bij->b", by_W(x, U, W), dW)
    size = np.linalg.norm(np.concatenate([mean.reshape(B, -1), by_W(x, U, W).reshape(B, -1)], -1), axis=-1)
    size *= np.sqrt(np.sum(dU**2, (-2, -1)) + np.sum(dW**2, (-2, -1)))
    near = {
        "gradient": float((np.abs((output(h) - output(-h)) / (2 * h) - slope) / size).max()),
        "grad_W <a, grad_U F b>": _entries(
            by_W_of_by_U(x, W, a, b),
            lambda E: difference(lambda V: np.einsum("bt,btd,bd->b", a, attention_of(x, V) @ x, b), E),
        ),
        "grad_W <c, grad_W F b>": _entries(
            by_W_twice(x, U, W, c, b), lambda E: difference(lambda V: np.einsum("bi,bij,bj->b", c, by_W(x, U, V), b), E)
        ),
    }  # fmt: skip
    exact = _closed_forms_agree(x, U, W, dU, dW)
    worst = max(*(e / NEAR for e in near.values()), *(e / EXACT for e in exact.values()))
    return within(worst, 1.0, instances=B, seeds=(0,), numbers={"by differences": near, "closed forms": exact})


def _entries(wanted: Array, difference) -> float:
    """Error of a matrix (B, d, d) whose entries are central differences along unit matrices."""
    d = wanted.shape[-1]
    found = np.stack([difference(E) for E in np.eye(d * d).reshape(-1, d, d)], axis=-1)
    return relative(found.reshape(wanted.shape), wanted)


def _closed_forms_agree(x: Array, U: Array, W: Array, dU: Array, dW: Array) -> dict[str, float]:
    """Gradient and dense Hessian from moments, against the lemma and against products by automatic differentiation."""
    T, d = x.shape[-2:]
    found = head(x, U, W)
    lemma = np.concatenate([(attention_of(x, W) @ x).reshape(len(x), -1), by_W(x, U, W).reshape(len(x), -1)], -1)
    product = np.einsum("bpq,bq->bp", found.hessian, np.concatenate([v.reshape(len(x), -1) for v in (dU, dW)], -1))
    wanted = []
    for i in range(min(len(x), 20)):
        tokens = Tokens.self_attention(x[i, None], np.ones(1), np.ones(d))
        along = MultiHead(1).hessian_product(tokens, {"U": U[i], "W": W[i]}, {"U": dU[i], "W": dW[i]}, of="output")
        wanted.append(np.concatenate([along["U"].ravel(), along["W"].ravel()]))
    turned = np.swapaxes(found.hessian, -1, -2)
    return {
        "gradient": relative(found.gradient, lemma),
        "Hessian product": relative(product[: len(wanted)], np.array(wanted)),
        "symmetry": relative(turned, found.hessian),
        "by U twice": float(np.abs(found.hessian[:, : T * d, : T * d]).max()),
    }


# Proposition 1 ----------------------------------------------------------------------------------------------------


def norms(found: Head) -> tuple[Array, Array]:
    """|gradient| and |Hessian|."""
    return np.linalg.norm(found.gradient, axis=-1), np.abs(np.linalg.eigvalsh(found.hessian)).max(-1)


def shapes(draws: Draws, *, decoder: Decoder = "full", sharp: bool = False) -> list[Shape]:
    """As bounds see each draw, with R its own longest token."""
    T, d = draws.x.shape[-2:]
    return [Shape(T=T, d=d, R=float(R), decoder=decoder, sharp=sharp) for R in draws.R]


def betas(draws: Draws, m: Array, **options) -> tuple[Array, Array]:
    """beta1 and beta3 of each draw, where no head is longer than m."""
    found = [(s.beta1(float(v)), s.beta3(float(v))) for s, v in zip(shapes(draws, **options), m, strict=True)]
    beta1, beta3 = np.array(found).T
    return beta1, beta3


def one_head_is_bounded(scale: Scale, *, sharp: bool = False) -> Outcome:
    """Norms over their bounds: with the norms of the tokens at hand, and with R."""
    count = scale.pick(60, 200, 500)
    ratios: dict[str, float] = {}
    for T, d in SIZES:
        draws = draw(count, 1, 1, T, d)
        x, U, W = draws.x[:, 0], draws.U[:, 0], draws.W[:, 0]
        found = head(x, U, W)
        gradient, hessian = norms(found)
        bound = token_bounds(x, U, sharp=sharp)
        beta1, beta3 = betas(draws, draws.longest_U, sharp=sharp)
        values = {
            "grad_U": np.linalg.norm(found.gradient[:, : T * d], axis=-1) / bound.by_U,
            "grad_W": np.linalg.norm(found.gradient[:, T * d :], axis=-1) / bound.by_W,
            "gradient": gradient / bound.gradient, "Hessian": hessian / bound.hessian,
            "gradient, R": gradient / beta1, "Hessian, R": hessian / beta3,
        }  # fmt: skip
        ratios = {name: max(ratios.get(name, 0.0), float(v.max())) for name, v in values.items()}
    return within(max(ratios.values()), RATIO, instances=count * len(SIZES), seeds=(0,),
                  numbers={"norm / bound": ratios, "sizes (T, d)": [list(s) for s in SIZES]})  # fmt: skip


def other_decoders_are_bounded(scale: Scale) -> Outcome:
    """The same with one vector per head."""
    count = scale.pick(60, 200, 500)
    ratios: dict[str, float] = {}
    decoders: tuple[Decoder, ...] = ("pooling", "last")
    for T, d in SIZES:
        draws = draw(count, 1, 1, T, d)
        u = draws.U[:, 0, 0]
        for decoder in decoders:
            rows = np.ones(T) if decoder == "pooling" else np.eye(T)[-1]
            found = head(draws.x[:, 0], rows[:, None] * u[:, None], draws.W[:, 0])
            gradient, hessian = norms(decoded(found, T, d, decoder))
            for sharp in (False, True):
                beta1, beta3 = betas(draws, np.linalg.norm(u, axis=-1), decoder=decoder, sharp=sharp)
                for name, ratio in (("gradient", gradient / beta1), ("Hessian", hessian / beta3)):
                    key = f"{decoder}, {name}{', sharp' if sharp else ''}"
                    ratios[key] = max(ratios.get(key, 0.0), float(ratio.max()))
    return within(max(ratios.values()), RATIO, instances=2 * count * len(SIZES), seeds=(0,),
                  numbers={"norm / bound": ratios, "sizes (T, d)": [list(s) for s in SIZES]})  # fmt: skip


# E14 --------------------------------------------------------------------------------------------------------------


def hessian_is_bounded_by_its_terms(scale: Scale, *, printed: bool) -> Outcome:
    """|Hessian| over Term 1 + 2 Term 2, with the blocks of Eqs. (49) and (51), or with those of the Hessian.

    Term 1 is the largest |q^T M q| for the block M of W alone, twice Term 2 the norm of the mixed block.
    """
    count, judged, worst, ratios, unlike = scale.pick(60, 200, 500), 0, 0.0, {}, 0.0
    for T, d in SIZES:
        draws = draw(count, 1, 1, T, d)
        found = head(draws.x[:, 0], draws.U[:, 0], draws.W[:, 0])
        twice, mixed = found.hessian[:, T * d :, T * d :], found.hessian[:, : T * d, T * d :]
        if printed:  # entry ((i, a), (j, b)) in place of ((i, j), (a, b))
            twice, mixed = _realigned(twice, d, d), _realigned(mixed, T, d)
        quadratic = 0.5 * (twice + np.swapaxes(twice, -1, -2))
        total = np.abs(np.linalg.eigvalsh(quadratic)).max(-1) + np.linalg.norm(mixed, 2, axis=(-2, -1))
        some = total > 0  # saturated attention has no curvature left in float64
        ratio = np.abs(np.linalg.eigvalsh(found.hessian[some])).max(-1) / total[some]
        ratios[f"T={T}, d={d}"] = [float(ratio.min()), float(ratio.max())]
        turned = np.abs(twice - np.swapaxes(twice, -1, -2)).max((-2, -1)) / np.abs(twice).max((-2, -1)).clip(1e-300)
        worst, unlike, judged = max(worst, float(ratio.max())), max(unlike, float(turned.max())), judged + len(ratio)
    return within(worst, RATIO, instances=judged, tried=count * len(SIZES), seeds=(0,),
                  numbers={"least and largest ratio": ratios, "asymmetry of the block of W": unlike})  # fmt: skip


def _realigned(block: Array, rows: int, d: int) -> Array:
    parts = block.reshape(len(block), rows, d, d, d)
    return parts.transpose(0, 1, 3, 2, 4).reshape(block.shape)


CLAIMS = [
    Claim(
        id="multihead-C-L1",
        title="Gradients and second derivatives of one head",
        statement="grad_U F = A x, grad_W F = sum_t x_t u_t^T x^T phi'(x W^T x_t) x, and the derivatives of both by W "
        "as in Lemma 1, with phi' = diag(phi) - phi phi^T; F is linear in U.",
        hypotheses=("none",),
        tolerance=1.0,
        reason="relative errors in units of 1e-6 (central differences of step 1e-6) and of 1e-10 (closed forms against "
        "automatic differentiation)",
        measure=derivatives_are_those_of_the_lemma,
    ),
    Claim(
        id="multihead-C-P1",
        title="Gradient and Hessian of one head are bounded",
        statement="|grad F| <= 2 |x|^2 sum_t max_k |<u_t, x_k>| + sqrt(T) |x|, |hess F| <= 6 d |x|^2 |x|_max^2 sum_t "
        "max_k |<u_t, x_k>| + 2 sqrt(T d) |x|^2 |x|_max with |x| the longest token; for tokens no longer than R >= 1, "
        "sqrt(T) R (2 R^2 |U| + 1) and 2 sqrt(T d) R^3 (3 sqrt(d) R^2 |U| + 1) (Proposition 1).",
        hypotheses=("none; R is the longest token, or 1",),
        tolerance=RATIO,
        reason="norm over bound, the Hessian's from its eigenvalues; 1e-9 for rounding",
        measure=one_head_is_bounded,
    ),
    Claim(
        id="multihead-C-P1b",
        title="The same with one vector per head",
        statement="With U = 1 u^T (pooling) or e_T u^T (last token) and N = T or 1: |grad F| <= N R (2 R^2 |u| + 1), "
        "|hess F| <= 2 N sqrt(d) R^3 (3 sqrt(d) R^2 |u| + 1); sharper, N R (R^2 |u| + 1) and N R^3 (2 R^2 |u| + 1). "
        "The paper says that its results apply to these decoders, without constants.",
        hypotheses=("none; R is the longest token, or 1",),
        tolerance=RATIO,
        reason="norm over bound; 1e-9 for rounding",
        measure=other_decoders_are_bounded,
    ),
    Claim(
        id="multihead-C-SH",
        title="Sharper bounds, free of the dimension",
        statement="|grad_W F| <= |x|^2 s and |hess F| <= 2 |x|^4 s + sqrt(T) |x|^3 with s = sum_t max_k |<u_t, x_k>|, "
        "hence beta1 = sqrt(T) R (R^2 |U| + 1) and beta3 = sqrt(T) R^3 (2 R^2 |U| + 1) may stand for those of "
        "Proposition 1 and Corollary 1; multihead-C-C1 measures them on the loss.",
        hypotheses=("none; R is the longest token, or 1",),
        tolerance=RATIO,
        reason="norm over bound; 1e-9 for rounding",
        measure=partial(one_head_is_bounded, sharp=True),
    ),
    erratum(
        id="multihead-E14",
        title="The matrix that the proof of Proposition 1 bounds",
        printed="|hess F| <= max Term 1 + 2 max Term 2, where the Hessian has the matrix grad_W [grad_W F]_ij as its "
        "block (i, j) (Eqs. 49 to 52).",
        corrected="the Hessian has the derivative by W_ij and W_ab in row (i, j) and column (a, b), not in row (i, a) "
        "and column (j, b); then the inequality holds. The bound of Proposition 1 is true: that of "
        "multihead-C-SH is below it, as |x|^2 <= d |x|_max^2.",
        hypotheses=("none",),
        tolerance=RATIO,
        reason="|Hessian| over the right side; 1e-9 for rounding",
        measure_printed=partial(hessian_is_bounded_by_its_terms, printed=True),
        measure_corrected=partial(hessian_is_bounded_by_its_terms, printed=False),
    ),
]  # fmt: skip
