"""Gradients, and how fast they change: Lemmas 12 to 14, and what is printed in their proofs."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.encoder.batch import (
    LETTERS,
    SHAPES,
    Draws,
    aligned_pairs,
    bound_constants,
    evaluate,
    jacobian,
    largest,
    loss_gradient,
    random_pairs,
    stacked,
    steep_pairs,
    total_change,
)
from attnlab.claims.encoder.lipschitz import NORMS, pairs
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.encoder import Constants, lemma_12, lemma_13, lemma_14

RATIO = 1.0 + 1e-6
DERIVATIVE = 1e-10
ASSUMPTION = "|X_n|_F <= sqrt(T) C_x (Assumption 1)"

# Lemmas 12 and 13 -------------------------------------------------------------------------------------------------


def errors_of(draws: Draws, aligned: bool) -> Array:
    """Errors f - y: Gaussian, or all equal, for which gradients of equal sequences add up."""
    B, N = draws.x.shape[:2]
    size = 10.0 ** np.random.default_rng(5).uniform(-3, 3, (B, 1))
    return size * (np.ones((B, N)) if aligned else np.random.default_rng(6).standard_normal((B, N)))


def loss_gradients_are_bounded(scale: Scale) -> Outcome:
    """Frobenius norm of the gradient of the loss by each parameter over the bound of Lemma 12."""
    ratios: dict[str, dict[str, float]] = {}
    for name, draws, _ in pairs(scale):
        errors = errors_of(draws, name.startswith("aligned"))
        found = loss_gradient(draws, evaluate(draws), errors)
        misfit = np.linalg.norm(errors, axis=-1)
        bounds = [lemma_12(c, float(r)) for c, r in zip(bound_constants(draws), misfit, strict=True)]
        ratios[name] = {
            p: float((np.sqrt(np.sum(found[p] ** 2, axis=tuple(range(1, found[p].ndim))))
                      / np.array([b[p] for b in bounds])).max())
            for p in LETTERS
        }  # fmt: skip
    worst = largest(*(value for row in ratios.values() for value in row.values()))
    return within(worst, RATIO, instances=scale.pick(10, 60, 400) * len(ratios), seeds=(0,),
                  numbers={"largest norm / bound": ratios})  # fmt: skip


def output_gradients_are_bounded(scale: Scale) -> Outcome:
    """Spectral norm of the gradient of all outputs over c2 of Lemma 13, and its Frobenius norm, as in the proof."""
    ratios: dict[str, list[float]] = {}
    for name, draws, _ in pairs(scale):
        J = stacked(jacobian(draws))
        c2 = np.array([lemma_13(c) for c in bound_constants(draws)])
        ratios[name] = [float((np.linalg.norm(J, order, axis=(-2, -1)) / c2).max()) for order in (2, "fro")]
    worst = largest(*(value for row in ratios.values() for value in row))
    return within(worst, RATIO, instances=scale.pick(10, 60, 400) * len(ratios), seeds=(0,),
                  numbers={"largest spectral and Frobenius norm / c2": ratios})  # fmt: skip


# Lemma 14 ---------------------------------------------------------------------------------------------------------


def gradient_changes(one: Draws, other: Draws) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Spectral norm of the change of the gradient, length of the move, and whether no relu changes its side, (B,)."""
    before, after = evaluate(one), evaluate(other)
    J = stacked(jacobian(other, after)) - stacked(jacobian(one, before))
    same = ((before.inside > 0) == (after.inside > 0)).all((1, 2, 3))
    return np.linalg.norm(J, 2, axis=(-2, -1)), total_change(one, other), same


def smooth_pairs(scale: Scale) -> list[tuple[str, Draws, Draws]]:
    """As `pairs`, with aligned ones that have small w_O besides, where Lemma 14 is closest."""
    found = pairs(scale)
    one, other = aligned_pairs(scale.pick(10, 60, 400), 1, seed=1)
    return [*found, ("aligned T=1, small w_O", one._replace(O=1e-3 * one.O), other._replace(O=1e-3 * other.O))]


def gradient_is_lipschitz_between_kinks(scale: Scale) -> Outcome:
    """Change of the gradient over c3 times the move, for pairs between which no relu changes its side."""
    ratios, judged, tried = {}, 0, 0
    for name, one, other in smooth_pairs(scale):
        change, move, same = gradient_changes(one, other)
        bounds = np.array([lemma_14(c, float(s)) for c, s in zip(bound_constants(one, other), move, strict=True)])
        if same.any():
            ratios[name] = float((change / bounds)[same].max())
        judged, tried = judged + int(same.sum()), tried + len(same)
    return within(largest(*ratios.values()), RATIO, instances=judged, tried=tried, seeds=(0,),
                  numbers={"largest change / bound": ratios})  # fmt: skip


STEPS = (1e-2, 1e-4, 1e-6, 1e-8)


def across_a_kink(draws: Draws, step: float) -> tuple[Draws, Draws]:
    """W_V moved along one attended token so that one preactivation, that nearest to 0, goes from step/2 to -step/2."""
    at = evaluate(draws)
    B = len(draws.x)
    which = np.abs(at.inside).reshape(B, -1).argmin(-1)
    n, i, k = np.unravel_index(which, at.inside.shape[1:])
    rows = np.arange(B)
    token = at.attended[rows, n, i]
    by = np.zeros_like(draws.V)
    by[rows, k] = token / np.sum(token**2, axis=-1, keepdims=True)  # moves the preactivation by 1
    now = at.inside[rows, n, i, k]
    return draws.moved({"V": by}, step / 2 - now), draws.moved({"V": by}, -step / 2 - now)


def gradient_is_lipschitz_across_kinks(scale: Scale) -> Outcome:
    """The same for pairs on both sides of one kink, over the larger of c3 as printed and repaired."""
    count, ratios, slopes, worst, crossed = scale.pick(5, 20, 100), {}, {}, 0.0, 0
    for step in STEPS:
        most, steepest = 0.0, 0.0
        for shape in SHAPES[:3]:
            one, other = across_a_kink(random_pairs(count, shape, seed=2)[0], step)
            change, move, same = gradient_changes(one, other)
            bounds = [max(lemma_14(c, float(s)), lemma_14(c, float(s), mode="paper"))
                      for c, s in zip(bound_constants(one, other), move, strict=True)]  # fmt: skip
            most, steepest = max(most, float((change / bounds).max())), max(steepest, float((change / move).max()))
            crossed += int((~same).sum())
        ratios[str(step)], slopes[str(step)], worst = most, steepest, max(worst, most)
    return within(worst, RATIO, instances=crossed, tried=count * 3 * len(STEPS), seeds=(2,),
                  numbers={"largest change / bound, by how far the preactivation goes": ratios,
                           "largest |change of the gradient| / |move|": slopes})  # fmt: skip


# E4 ---------------------------------------------------------------------------------------------------------------


def bound_with(c: Constants, z: float) -> float:
    """c3 of Lemma 14, repaired, with this z in place of its own."""
    bar, T, C_x = c.lambda_bar, float(c.T), c.C_x
    a = 1.0 + bar["V"] * z
    b = bar["O"] * C_x * np.sqrt(T) * a + 1.0
    each = c.tau1 * C_x * T**1.5

    def q(p: str) -> float:
        return c.tau0 * each * (2.0 * bar[p] * T * C_x**2 * (bar["V"] * b + bar["O"])
                                + bar["V"] * bar["O"] * C_x**2 * T * (1.0 + 3.0 * bar[p] * z))  # fmt: skip

    return float(np.sqrt(c.N) * np.linalg.norm([each * a, each * (bar["O"] * z + b), q("K"), q("Q")]))


def gradient_bound_with_z(scale: Scale, which: Literal["proposition", "lemma"]) -> Outcome:
    """Change of the gradient over c3 with one of the two z, where no relu changes its side."""
    ratios, judged, tried, apart = {}, 0, 0, []
    for name, one, other in [*smooth_pairs(scale), ("steep", *steep_pairs(scale.pick(10, 60, 400), "Q"))]:
        change, move, same = gradient_changes(one, other)
        constants = bound_constants(one, other)
        bounds = move * [bound_with(c, c.z if which == "proposition" else c.zeta) for c in constants]
        apart += [c.z / c.zeta for c in constants]
        if same.any():
            ratios[name] = float((change / bounds)[same].max())
        judged, tried = judged + int(same.sum()), tried + len(same)
    return within(largest(*ratios.values()), RATIO, instances=judged, tried=tried, seeds=(0, 1),
                  numbers={"largest change / bound": ratios,
                           "least and largest z of Proposition 1 / z of Lemma 14":
                           [min(apart), max(apart)]})  # fmt: skip


# E7 ---------------------------------------------------------------------------------------------------------------


def printed_gradients(draws: Draws, errors: Array) -> dict[str, Array]:
    """Gradient of the loss as Eqs. (7) and (9) print it: relu where its slope is meant, and a minus in front."""
    at = evaluate(draws)
    slopes = draws.O[:, None, None, :] * np.maximum(at.inside, 0.0)
    v = at.attention
    covariance = v[..., :, None] * np.eye(v.shape[-1]) - v[..., :, None] * v[..., None, :]  # (B, N, i, T, T)
    towards = np.einsum("bnsd,bnist,bnte,bnie->bnid", draws.x, covariance, draws.x, slopes @ draws.V[:, None])
    product = np.einsum("bn,bnid,bnie->bde", errors, towards, draws.x)
    by_V = np.einsum("bn,bnim,bnid->bmd", errors, slopes, at.attended)
    return {"Q": -(draws.tau0 * draws.tau1)[:, None, None] * (draws.K @ product),
            "V": -draws.tau1[:, None, None] * by_V}  # fmt: skip


def numeric_gradient(draws: Draws, errors: Array, p: str) -> Array:
    """<errors, f> differentiated by one parameter, one entry after the other, by imaginary steps: no digit is lost."""
    own = getattr(draws, p)
    found = np.zeros_like(own)
    for entry in np.ndindex(own.shape[1:]):
        moved = own.astype(complex)
        moved[(slice(None), *entry)] += 1e-30j
        found[(slice(None), *entry)] = np.einsum(
            "bn,bn->b", errors, evaluate(draws._replace(**{p: moved})).outputs.imag
        )
    return found / 1e-30


def gradients_are_as_written(scale: Scale, *, printed: bool) -> Outcome:
    """Relative error of the gradient of the loss, as printed or with slopes of relu and without the minus."""
    count, errors_found = scale.pick(10, 50, 200), {}
    for shape in SHAPES[:3]:
        draws, _ = random_pairs(count, shape, seed=4)
        # Moderate logits: saturated ones leave no gradient to compare.
        logits = draws.x @ (np.swapaxes(draws.Q, -1, -2) @ draws.K)[:, None] @ np.swapaxes(draws.x, -1, -2)
        draws = draws._replace(tau0=1.0 / np.abs(logits).max((1, 2, 3)))
        errors = errors_of(draws, False)
        given = printed_gradients(draws, errors) if printed else loss_gradient(draws, evaluate(draws), errors)
        for p in "QV" if printed else LETTERS:
            true = numeric_gradient(draws, errors, p)
            axes = tuple(range(1, true.ndim))
            size = np.sqrt(np.sum(true**2, axis=axes))
            some = size > 0
            gap = np.sqrt(np.sum((given[p] - true) ** 2, axis=axes))[some] / size[some]
            errors_found[p] = largest(errors_found.get(p, 0.0), float(gap.max()))
    v, gaps = softmax_rows(count)
    closed = v["printed" if printed else "product"]
    errors_found["softmax, j != k"] = float(np.abs(closed - gaps).max())
    return within(min(errors_found.values()) if printed else largest(*errors_found.values()), DERIVATIVE,
                  instances=3 * count, seeds=(4,), numbers={"largest relative error": errors_found})  # fmt: skip


def softmax_rows(count: int) -> tuple[dict[str, Array], Array]:
    """dv_1/du_2 of a softmax: with the middle line of Lemma 11 as printed, with a product, and differentiated."""
    u = np.random.default_rng(0).standard_normal((count, 4))
    e = np.exp(u)
    total = e.sum(-1) ** 2
    moved = u + 1e-30j * (np.arange(4) == 1)
    true = (np.exp(moved)[:, 0] / np.exp(moved).sum(-1)).imag / 1e-30
    return {"printed": (-e[:, 0] - e[:, 1]) / total, "product": -e[:, 0] * e[:, 1] / total}, true


CLAIMS = [
    Claim(
        id="encoder-L12",
        title="The gradient of the loss is bounded",
        statement="The gradient of the loss is at most rho l_O |f - y| by W_V, rho l_V |f - y| by w_O, 2 rho tau0 l_K "
        "l_V l_O T C_x^2 |f - y| by W_Q, and the same with l_Q by W_K (Lemma 12).",
        hypotheses=(ASSUMPTION, "norms of the weights at most l_P; here equal to l_P"),
        tolerance=RATIO,
        reason="norm over bound; random draws, and draws made to come close",
        measure=loss_gradients_are_bounded,
    ),
    Claim(
        id="encoder-L13",
        title="The gradient of the outputs is bounded",
        statement="|grad f| <= c2 = rho sqrt(l_O^2 + l_V^2 + (2 tau0 l_K l_V l_O T C_x^2)^2 + (2 tau0 l_Q l_V l_O T "
        "C_x^2)^2) (Lemma 13).",
        hypotheses=(ASSUMPTION, "norms of the weights at most l_P; here equal to l_P"),
        tolerance=RATIO,
        reason="spectral and Frobenius norm over c2; random draws, and draws made to come close",
        measure=output_gradients_are_bounded,
    ),
    erratum(
        id="encoder-L14",
        title="The gradient of the outputs changes slowly",
        printed="|grad f' - grad f| <= c3 |theta' - theta| (Lemma 14); its proof takes the slope of relu to be "
        "1-Lipschitz (Eq. 19).",
        corrected="it holds for any two points between which no preactivation changes its sign, with c3 repaired as in "
        "encoder-E3; across a kink of relu the gradient jumps, and no constant is enough.",
        hypotheses=(ASSUMPTION, NORMS),
        tolerance=RATIO,
        reason="change of the gradient over bound. Printed: pairs on both sides of one kink, over the larger of both "
        "c3. Corrected: pairs with equal signs of all preactivations; others are dropped and counted",
        measure_printed=gradient_is_lipschitz_across_kinks,
        measure_corrected=gradient_is_lipschitz_between_kinks,
    ),
    erratum(
        id="encoder-E4",
        title="Two numbers are called z",
        printed="z in c3 of Lemma 14 is the z of Proposition 1, l_O^2 (1 + 4 tau0^2 C_x^4 T^2 l_V^2 (l_Q^2 + l_K^2)).",
        corrected="it is 2 tau0 C_x^2 T (l_Q + l_K), as defined in the lemma and nowhere equal to the other.",
        hypotheses=(ASSUMPTION, NORMS, "no preactivation changes its sign"),
        tolerance=RATIO,
        reason="change of the gradient over c3 with either z; a matter of notation, but the lemma is false with the "
        "other",
        measure_printed=partial(gradient_bound_with_z, which="proposition"),
        measure_corrected=partial(gradient_bound_with_z, which="lemma"),
    ),
    erratum(
        id="encoder-E7",
        title="Slopes of relu, a sign and a product in printed derivatives",
        printed="the gradients of the loss are -sum_n (f_n - y_n) tau1 sum_i (w_O * relu(W_V X^T b_i)) b_i^T X and so "
        "on (Eqs. 7 and 9), and dv_j/du_k has (-exp(u_j) - exp(u_k)) / (sum exp)^2 for j != k (Lemma 11).",
        corrected="the slope of relu stands in place of relu, without the minus, and the product -exp(u_j) exp(u_k) in "
        "place of the difference. All bounds are untouched; what Eq. (19) makes of the slope is encoder-L14.",
        hypotheses=("no preactivation is 0",),
        tolerance=DERIVATIVE,
        reason="relative error against derivatives by imaginary steps, which are exact to rounding; the printed half "
        "takes the least of its three errors",
        measure_printed=partial(gradients_are_as_written, printed=True),
        measure_corrected=partial(gradients_are_as_written, printed=False),
    ),
]  # fmt: skip
