"""Gradient and Hessian of the output: Lemma 1, Proposition 1 and Lemma 5, other decoders, sharper constants."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.multihead.derivatives import Draws, Head, decoded, draw, head, in_line
from attnlab.claims.multihead.lemma_1 import derivatives_are_those_of_the_lemma
from attnlab.claims.parts import Bound, Identity
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array
from attnlab.models import MultiHead
from attnlab.models.multihead import Decoder
from attnlab.theory.multihead import Shape, token_bounds

SIZES = ((2, 2), (4, 3), (3, 5))  # (T, d) of random draws
IN_LINE = ((2, 1, 1.0), (4, 1, 3.0), (2, 8, 1.0))  # (T, d, R) of tokens in line
TILTS = np.linspace(-2.0, 2.0, 81)
LENGTHS = np.array([0.0, 0.1, 1.0, 10.0, 100.0, 1e4])
HEADS = (1, 2, 4, 8)
# With U so long that the other term of a bound is less than this share of it, the bound is judged once more.
SMALL = 0.01

CLOSE_INSTANCES = (
    "Random draws, Gaussian times log-uniform scales, (T, d) = (2, 2), (4, 3), (3, 5); and a search over tokens plus "
    "or minus one vector with equal entries, 81 tilts of the attention times 6 lengths of U, (T, d, R) = (2, 1, 1), "
    "(4, 1, 3), (2, 8, 1), where the bounds are nearly attained."
)

# Proposition 1 ----------------------------------------------------------------------------------------------------


def norms(derivatives: Head) -> tuple[Array, Array]:
    """|gradient| and |Hessian|."""
    gradient = np.linalg.norm(derivatives.gradient, axis=-1)
    return gradient, np.abs(np.linalg.eigvalsh(derivatives.hessian)).max(-1)


def betas(draws: Draws, m: Array, *, decoder: Decoder = "full", sharp: bool = False) -> tuple[Array, Array]:
    """beta1 and beta3 of each draw, where no head is longer than m; R is the longest token of the draw, or 1."""
    T, d = draws.x.shape[-2:]
    shapes = [Shape(T=T, d=d, R=float(R), decoder=decoder, sharp=sharp) for R in draws.R]
    beta1 = [shape.beta1(float(length)) for shape, length in zip(shapes, m, strict=True)]
    beta3 = [shape.beta3(float(length)) for shape, length in zip(shapes, m, strict=True)]
    return np.array(beta1), np.array(beta3)


def alternating(T: int) -> Array:
    """Signs +, -, +, ..."""
    return np.where(np.arange(T) % 2, -1.0, 1.0)


def one_minus(T: int) -> Array:
    """Signs +, ..., +, -: then queries pull together although one vector u serves all."""
    return np.where(np.arange(T) == T - 1, -1.0, 1.0)


def searched(signs: Array, d: int, R: float, heads: int = 1) -> Draws:
    """Tokens in line, for every tilt and length; all heads alike."""
    tilt, length = (grid.reshape(-1, 1) for grid in np.meshgrid(TILTS, LENGTHS))
    return in_line(signs, d, R, np.repeat(tilt, heads, axis=1), np.repeat(length, heads, axis=1))


def single_heads(scale: Scale) -> Iterator[Draws]:
    """Random draws and tokens in line, one sequence and one head each."""
    for T, d in SIZES:
        yield draw(scale.pick(60, 200, 500), 1, 1, T, d)
    for T, d, R in IN_LINE:
        yield searched(alternating(T), d, R)


def one_head_is_bounded(scale: Scale, *, sharp: bool = False) -> Outcome:
    """Norms over their bounds: with the norms of the tokens at hand, and with R."""
    by_U = Bound("|grad_U F| / bound")
    by_W = Bound("|grad_W F| / bound")
    gradient = Bound("|grad F| / bound")
    hessian = Bound("|hess F| / bound")
    hessian_long = Bound("|hess F| / bound, long U")
    gradient_R = Bound("|grad F| / bound in R")
    gradient_R_long = Bound("|grad F| / bound in R, long U")
    hessian_R = Bound("|hess F| / bound in R")
    hessian_R_long = Bound("|hess F| / bound in R, long U")
    for draws in single_heads(scale):
        x, U = draws.x[:, 0], draws.U[:, 0]
        derivatives = head(x, U, draws.W[:, 0])
        size, curvature = norms(derivatives)
        by_token = token_bounds(x, U, sharp=sharp)
        without_U = token_bounds(x, 0.0 * U, sharp=sharp)
        by_U.add(np.linalg.norm(derivatives.gradient[:, : U[0].size], axis=-1), by_token.by_U)
        by_W.add(np.linalg.norm(derivatives.gradient[:, U[0].size :], axis=-1), by_token.by_W)
        gradient.add(size, by_token.gradient)
        hessian.add(curvature, by_token.hessian)
        long = without_U.hessian <= SMALL * by_token.hessian
        hessian_long.add(curvature[long], by_token.hessian[long])

        beta1, beta3 = betas(draws, draws.longest_U, sharp=sharp)
        short1, short3 = betas(draws, 0.0 * draws.longest_U, sharp=sharp)
        gradient_R.add(size, beta1)
        hessian_R.add(curvature, beta3)
        gradient_R_long.add(size[short1 <= SMALL * beta1], beta1[short1 <= SMALL * beta1])
        hessian_R_long.add(curvature[short3 <= SMALL * beta3], beta3[short3 <= SMALL * beta3])
    return outcome(
        by_U,
        by_W,
        gradient,
        hessian,
        hessian_long,
        gradient_R,
        gradient_R_long,
        hessian_R,
        hessian_R_long,
        seeds=(0,),
    )


def one_head_is_bounded_sharply(scale: Scale) -> Outcome:
    """The same for the constants without the dimension."""
    return one_head_is_bounded(scale, sharp=True)


def other_decoders_are_bounded(scale: Scale) -> Outcome:
    """The same with one vector per head."""
    bounds: dict[str, Bound] = {}
    decoders: tuple[Decoder, ...] = ("pooling", "last")
    instances = [draw(scale.pick(60, 200, 500), 1, 1, T, d) for T, d in SIZES]
    instances += [searched(one_minus(T), d, R) for T, d, R in (*IN_LINE, (16, 1, 1.0))]
    for draws in instances:
        T, d = draws.x.shape[-2:]
        u = draws.U[:, 0, 0]
        for decoder in decoders:
            rows = np.ones(T) if decoder == "pooling" else np.eye(T)[-1]
            full = head(draws.x[:, 0], rows[:, None] * u[:, None], draws.W[:, 0])
            gradient, hessian = norms(decoded(full, T, d, decoder))
            for sharp in (False, True):
                constants = f"{decoder}{', sharp' if sharp else ''}"
                beta1, beta3 = betas(draws, np.linalg.norm(u, axis=-1), decoder=decoder, sharp=sharp)
                _, short3 = betas(draws, 0.0 * u[:, 0], decoder=decoder, sharp=sharp)
                long = short3 <= SMALL * beta3
                _bound(bounds, f"|grad F| / bound, {constants}").add(gradient, beta1)
                _bound(bounds, f"|hess F| / bound, {constants}").add(hessian, beta3)
                _bound(bounds, f"|hess F| / bound, long u, {constants}").add(hessian[long], beta3[long])
    return outcome(*bounds.values(), seeds=(0,))


def _bound(bounds: dict[str, Bound], name: str) -> Bound:
    """The tally of this name, made when first asked for."""
    return bounds.setdefault(name, Bound(name))


# Lemma 5 ----------------------------------------------------------------------------------------------------------


def many_heads_are_bounded(scale: Scale) -> Outcome:
    """Gradient and Hessian of the output of H heads over their bounds; and the Hessian by automatic differentiation."""
    gradient = Bound("|grad F~| / bound")
    hessian = Bound("|hess F~| sqrt(H) / beta3")
    hessian_long = Bound("|hess F~| sqrt(H) / beta3, long U")
    blocks = Identity("dense Hessian of H heads against blocks of single heads / sqrt(H)", tolerance=1e-10)
    for H in HEADS:
        drawn = draw(scale.pick(30, 100, 300), 1, H, 3, 2)
        if H == 2:
            blocks.add([_error_of_blocks(drawn, i) for i in range(scale.pick(3, 6, 20))])
        for draws in (drawn, searched(alternating(2), 1, 1.0, heads=H)):
            each = head(draws.x, draws.U, draws.W)  # (B, H, ..)
            size, curvature = norms(each)
            beta1, beta3 = betas(draws, draws.longest_U)
            _, short3 = betas(draws, 0.0 * draws.longest_U)
            gradient.add(np.sqrt(np.sum(size**2, -1) / H), beta1)
            hessian.add(curvature.max(-1), beta3)
            long = short3 <= SMALL * beta3
            hessian_long.add(curvature.max(-1)[long], beta3[long])
    return outcome(gradient, hessian, hessian_long, blocks, seeds=(0,), numbers={"heads": HEADS})


def _error_of_blocks(draws: Draws, i: int) -> float:
    """Relative error of one draw: the model's own Hessian, all U before all W, against head after head."""
    H, (T, d) = draws.heads, draws.x.shape[-2:]
    dense = MultiHead(H).hessian(draws.tokens(i), {"U": draws.U[i], "W": draws.W[i]}, of="output")
    each = head(draws.x[i], draws.U[i], draws.W[i]).hessian / np.sqrt(H)  # (H, P, P)
    wanted = np.zeros_like(dense)
    for h in range(H):
        of_U = np.arange(h * T * d, (h + 1) * T * d)
        of_W = H * T * d + np.arange(h * d * d, (h + 1) * d * d)
        places = np.concatenate([of_U, of_W])
        wanted[np.ix_(places, places)] = each[h]
    size = np.abs(wanted).max()
    return float(np.abs(dense - wanted).max() / size) if size > 0 else float(np.abs(dense).max())


# E14 --------------------------------------------------------------------------------------------------------------


def hessian_is_bounded_by_its_terms(scale: Scale, *, printed: bool) -> Outcome:
    """|Hessian| over Term 1 + 2 Term 2, with the blocks of Eqs. (49) and (51), or with those of the Hessian.

    Term 1 is the largest |q^T M q| for the block M of W alone, twice Term 2 the norm of the mixed block.
    """
    count = scale.pick(60, 200, 500)
    total = Bound("|hess F| / (max Term 1 + 2 max Term 2)")
    asymmetry = 0.0
    for T, d in SIZES:
        draws = draw(count, 1, 1, T, d)
        hessian = head(draws.x[:, 0], draws.U[:, 0], draws.W[:, 0]).hessian
        twice, mixed = hessian[:, T * d :, T * d :], hessian[:, : T * d, T * d :]
        if printed:  # entry ((i, a), (j, b)) in place of ((i, j), (a, b))
            twice, mixed = _realigned(twice, d, d), _realigned(mixed, T, d)
        quadratic = 0.5 * (twice + np.swapaxes(twice, -1, -2))
        terms = np.abs(np.linalg.eigvalsh(quadratic)).max(-1) + np.linalg.norm(mixed, 2, axis=(-2, -1))
        some = terms > 0  # saturated attention has no curvature left in float64
        total.add(np.abs(np.linalg.eigvalsh(hessian[some])).max(-1), terms[some])
        turned = np.abs(twice - np.swapaxes(twice, -1, -2)).max((-2, -1))
        asymmetry = max(asymmetry, float((turned / np.abs(twice).max((-2, -1)).clip(1e-300)).max()))
    return outcome(
        total, tried=count * len(SIZES), seeds=(0,), numbers={"largest asymmetry of the block of W": asymmetry}
    )


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
        setting="Gaussian tokens and weights, T = 4, d = 3, one head.",
        reason="relative errors: 1e-6 for central differences of step 1e-6, 1e-10 between closed forms and automatic "
        "differentiation",
        measure=derivatives_are_those_of_the_lemma,
    ),
    Claim(
        id="multihead-C-P1",
        title="Gradient and Hessian of one head are bounded",
        statement="|grad F| <= 2 |x|^2 sum_t max_k |<u_t, x_k>| + sqrt(T) |x|, |hess F| <= 6 d |x|^2 |x|_max^2 sum_t "
        "max_k |<u_t, x_k>| + 2 sqrt(T d) |x|^2 |x|_max with |x| the longest token; for tokens no longer than R >= 1, "
        "sqrt(T) R (2 R^2 |U| + 1) and 2 sqrt(T d) R^3 (3 sqrt(d) R^2 |U| + 1) (Proposition 1).",
        hypotheses=("none; R is the longest token, or 1",),
        setting=CLOSE_INSTANCES,
        reason="norm over bound, the Hessian's from its eigenvalues; again where U is so long that the term with U is "
        "99 % of the bound, so that each term is judged",
        measure=one_head_is_bounded,
    ),
    Claim(
        id="multihead-C-P1b",
        title="The same with one vector per head",
        statement="With U = 1 u^T (pooling) or e_T u^T (last token) and N = T or 1: |grad F| <= N R (2 R^2 |u| + 1), "
        "|hess F| <= 2 N sqrt(d) R^3 (3 sqrt(d) R^2 |u| + 1); sharper, N R (R^2 |u| + 1) and N R^3 (2 R^2 |u| + 1). "
        "The paper says that its results apply to these decoders, without constants; these are derived here.",
        hypotheses=("none; R is the longest token, or 1",),
        setting=CLOSE_INSTANCES + " Here all tokens but the last have one sign, also T = 16.",
        reason="norm over bound, again with long u",
        measure=other_decoders_are_bounded,
    ),
    Claim(
        id="multihead-C-SH",
        title="Sharper bounds, free of the dimension",
        statement="|grad_W F| <= |x|^2 s and |hess F| <= 2 |x|^4 s + sqrt(T) |x|^3 with s = sum_t max_k |<u_t, x_k>|, "
        "hence beta1 = sqrt(T) R (R^2 |U| + 1) and beta3 = sqrt(T) R^3 (2 R^2 |U| + 1) may stand for those of "
        "Proposition 1 and Corollary 1. Derived here; multihead-C-C1 measures them on the loss.",
        hypotheses=("none; R is the longest token, or 1",),
        setting=CLOSE_INSTANCES,
        reason="norm over bound, again with long U",
        measure=one_head_is_bounded_sharply,
    ),
    Claim(
        id="multihead-C-L5",
        title="Gradient and Hessian of many heads are bounded",
        statement="|grad F~| <= sqrt(T) R (2 R^2 max_h |U_h| + 1) and |hess F~| <= (2 sqrt(T d) R^3 / sqrt(H)) "
        "(3 sqrt(d) R^2 max_h |U_h| + 1) for F~ = H^(-1/2) sum_h F(x; U_h, W_h) (Lemma 5).",
        hypotheses=("tokens no longer than R >= 1 (Assumption 1); R is the longest, or 1",),
        setting="H = 1, 2, 4, 8 heads; random draws with T = 3, d = 2, and the search over tokens in line of "
        "multihead-C-P1 with T = 2, d = 1.",
        reason="norm over bound; that the Hessian is one block per head over sqrt(H) is checked against automatic "
        "differentiation of the whole model",
        measure=many_heads_are_bounded,
    ),
    erratum(
        id="multihead-E14",
        title="The matrix that the proof of Proposition 1 bounds",
        printed="|hess F| <= max Term 1 + 2 max Term 2, where the Hessian has the matrix grad_W [grad_W F]_ij as its "
        "block (i, j) (Eqs. 49 to 52).",
        corrected="the Hessian has the derivative by W_ij and W_ab in row (i, j) and column (a, b), not in row (i, a) "
        "and column (j, b); then the inequality holds. The bound of Proposition 1 is true: that of "
        "multihead-C-SH is below it, as |x|^2 <= d |x|_max^2.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="proof of Proposition 5, Eqs. (49) to (52)",
            quote="To find the maximum eigenvalue of the Hessian we need to upper-bound",
            charitable="Read (49) and (51) as a list of blocks that are to be put in the order of the Hessian: then "
            "Term 1 and Term 2 are those of the Hessian and (52) holds, but (54) to (57) bound other sums than those. "
            "The proposition itself was not contradicted in any order: see multihead-C-P1.",
            correction="Put the derivative by W_ij and W_ab in row (i, j) and column (a, b); bound it as in "
            "multihead-C-SH.",
        ),
        hypotheses=("none",),
        setting="Random draws as of multihead-C-P1; those whose curvature underflows are dropped and counted.",
        reason="|Hessian| over the right side",
        measure_printed=partial(hessian_is_bounded_by_its_terms, printed=True),
        measure_corrected=partial(hessian_is_bounded_by_its_terms, printed=False),
    ),
]
