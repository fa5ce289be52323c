"""Curvature of the loss of many heads: Corollary 1, Proposition 4, and what is printed about them."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.multihead.derivatives import Draws, draw, loss, loss_value
from attnlab.claims.multihead.gradients import RATIO, betas
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array

HEADS = (1, 2, 4, 8)
SIZES = ((3, 2), (4, 3))  # (T, d)
SEQUENCES = 5
PARTS = np.linspace(0.0, 1.0, 21)  # of a segment
TAYLOR = 1e-10

# Corollary 1 ------------------------------------------------------------------------------------------------------


def loss_is_bounded(scale: Scale) -> Outcome:
    """The three properties with m the longest head and m the longest U, for the constants printed and sharp."""
    count, judged = scale.pick(6, 30, 80), 0
    ratios: dict[str, dict[str, float]] = {}
    for T, d in SIZES:
        for H in HEADS:
            draws = draw(count, SEQUENCES, H, T, d)
            found = loss(draws)
            some = found.value > 0
            judged += int(some.sum())
            gradient = np.linalg.norm(found.gradient, axis=-1)
            eigenvalues = np.linalg.eigvalsh(found.hessian)
            for name, m in (("longest head", draws.longest), ("longest U", draws.longest_U)):
                for sharp in (False, True):
                    beta1, beta3 = betas(draws, m, sharp=sharp)
                    values = {
                        "|grad L| / (beta1 L)": gradient[some] / (beta1 * found.value)[some],
                        "|hess L| / beta2": np.abs(eigenvalues).max(-1) / (beta3 / np.sqrt(H) + beta1**2 / 4),
                        "-least eigenvalue sqrt(H) / (beta3 L)": (-eigenvalues[:, 0] * np.sqrt(H))[some]
                        / (beta3 * found.value)[some],
                    }
                    kept = ratios.setdefault(f"{name}{', sharp' if sharp else ''}", {})
                    kept |= {key: max(kept.get(key, -np.inf), float(v.max())) for key, v in values.items()}
    worst = max(value for kept in ratios.values() for value in kept.values())
    return within(worst, RATIO, instances=judged, tried=count * len(SIZES) * len(HEADS), seeds=(0,),
                  numbers={"value / bound": ratios, "heads": list(HEADS)})  # fmt: skip


# How the least eigenvalue goes with H -----------------------------------------------------------------------------

MANY = np.array([1, 4, 16, 64])
FEW_HEADS = (
    "With few heads the convex part of the Hessian, of rank n, hides the negative curvature, and more heads are more "
    "chances for a large one; the slope is taken from 16 to 64 heads."
)


def unit_heads(scale: Scale) -> Draws:
    """64 heads with U and W uniform on unit spheres, so that beta3 is the same for any number of them."""
    count, T, d = scale.pick(5, 10, 50), *SIZES[0]
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((count, SEQUENCES, T, d)), rng.choice([-1.0, 1.0], (count, SEQUENCES))
    U, W = (rng.standard_normal((count, MANY[-1], *size)) for size in ((T, d), (d, d)))
    return Draws(x, y, *(w / np.linalg.norm(w, axis=(-2, -1), keepdims=True) for w in (U, W)))


def relative_curvature(scale: Scale) -> tuple[Array, Array]:
    """-least eigenvalue / loss with the first H heads, and beta3, (H, draws)."""
    draws = unit_heads(scale)
    some = [draws._replace(U=draws.U[:, :H], W=draws.W[:, :H]) for H in MANY]
    found = [loss(heads) for heads in some]
    curved = np.array([-np.linalg.eigvalsh(f.hessian)[:, 0] / f.value for f in found])
    return curved, np.array([betas(heads, heads.longest)[1] for heads in some])


def least_eigenvalue_shrinks(scale: Scale) -> Outcome:
    """Slope of the mean log(-least eigenvalue / loss) in log H; infinite if the bound is missed."""
    curved, beta3 = relative_curvature(scale)
    over = float((curved * np.sqrt(MANY)[:, None] / beta3).max())
    logs = np.log(np.maximum(curved, 1e-300)).mean(1)
    slopes = np.diff(logs) / np.diff(np.log(MANY))
    numbers = {
        "heads": MANY, "mean -least eigenvalue / loss": np.exp(logs),
        "the same times sqrt(H)": np.exp(logs) * np.sqrt(MANY), "slopes between": slopes, "over its bound": over,
    }  # fmt: skip
    worst = float(slopes[-1]) if over <= RATIO and (curved > 0).all() else np.inf
    return within(worst, -0.2, instances=curved.shape[1], seeds=(0,), numbers=numbers, note=FEW_HEADS)


def least_eigenvalue_is_positive(scale: Scale) -> Outcome:
    """How far the least eigenvalue is below zero, relative to the loss; wanted is at most 0."""
    curved, _ = relative_curvature(scale)
    return within(float(curved.max()), 0.0, instances=curved.size, seeds=(0,))


def least_eigenvalue_rises(scale: Scale) -> Outcome:
    """Mean -least eigenvalue / loss with 64 heads over that with 16; infinite if one is positive."""
    curved, _ = relative_curvature(scale)
    logs = np.log(np.maximum(curved, 1e-300)).mean(1)
    worst = float(np.exp(logs[-1] - logs[-2])) if (curved > 0).all() else np.inf
    return within(worst, 1.0, instances=curved.size, seeds=(0,), note=FEW_HEADS)


# Proposition 4 ----------------------------------------------------------------------------------------------------


def directions(draws: Draws, *, seed: int = 0) -> Array:
    """Unit directions (B, H, P): most negative curvature of the loss in every other draw, else random."""
    curved = np.linalg.eigh(loss(draws).hessian)[1][..., 0]
    drawn = np.random.default_rng(seed).standard_normal(curved.shape)
    chosen = np.where((np.arange(len(curved)) % 4 < 2)[:, None], curved, drawn)  # labels fit in every other draw
    return (chosen / np.linalg.norm(chosen, axis=-1, keepdims=True)).reshape(len(curved), draws.heads, -1)


def needed_root(draws: Draws, by: Array, length: Array, *, sharp: bool) -> Array:
    """2 max(beta3 at both ends) length^2 for segments of these lengths with the weights in the middle."""
    ends = [betas(draws, draws.moved(by, side * length / 2).longest, sharp=sharp)[1] for side in (-1, 1)]
    return 2.0 * np.maximum(*ends) * length**2


def longest_allowed(draws: Draws, by: Array, *, sharp: bool) -> Array:
    """The longest segment that the condition allows, by bisection of the logarithm; it meets the condition."""
    low, high = np.full(len(by), -40.0), np.full(len(by), 10.0)
    for _ in range(40):
        middle = 0.5 * (low + high)
        fits = needed_root(draws, by, np.exp(middle), sharp=sharp) <= np.sqrt(draws.heads)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.exp(low)


def loss_is_quasi_convex_nearby(scale: Scale) -> Outcome:
    """The largest loss on a segment over the larger of its ends, for the longest segments allowed."""
    count, (T, d) = scale.pick(6, 25, 75), SIZES[0]
    ratios, slack = {}, np.inf
    for sharp in (False, True):
        largest = 0.0
        for H in HEADS:
            draws = draw(count, SEQUENCES, H, T, d, seed=1)
            by = directions(draws)
            length = longest_allowed(draws, by, sharp=sharp)
            slack = min(slack, float((1 - needed_root(draws, by, length, sharp=sharp) / np.sqrt(H)).min()))
            values = np.array([loss_value(draws.moved(by, (part - 0.5) * length)) for part in PARTS])
            largest = max(largest, float((values.max(0) / np.maximum(values[0], values[-1])).max()))
        ratios["beta3 sharp" if sharp else "beta3"] = largest
    return within(max(ratios.values()), 4.0 / 3.0, instances=2 * count * len(HEADS), seeds=(1,),
                  slack={"1 - 2 beta3 distance^2 / sqrt(H)": slack},
                  numbers={"largest loss between / larger of the ends": ratios, "points": len(PARTS)})  # fmt: skip


# E10 --------------------------------------------------------------------------------------------------------------


def slopes_and_losses(scale: Scale, *, printed: bool) -> Outcome:
    """mean |loss'| over the loss; also the loss over 1 (printed), or mean |loss'| over 1 (corrected)."""
    count, judged, worst, top = scale.pick(20, 100, 500), 0, 0.0, 0.0
    for H in HEADS:
        found = loss(draw(count, SEQUENCES, H, *SIZES[0]))
        some = found.value > 0
        value, slope = found.value[some], found.slope[some]
        worst = max(worst, float(np.maximum(slope / value, value if printed else slope).max()))
        judged, top = judged + len(value), max(top, float(value.max()))
    return within(worst, RATIO, instances=judged, tried=count * len(HEADS), seeds=(0,), numbers={"largest loss": top})


def there_and_back(sizes: Array) -> Draws:
    """One sequence of two tokens (1, 1), (1, -1), and weights +-(U, W) at both ends of the segment through zero.

    W = s e_1 e_2^T and rows of U are s e_2. Changing both signs chooses the other token and turns U, so both ends
    have the output 2 s tanh(s), and all between them less.
    """
    B = len(sizes)
    x = np.tile([[[1.0, 1.0], [1.0, -1.0]]], (B, 1, 1, 1))
    U, W = np.zeros((B, 1, 2, 2)), np.zeros((B, 1, 2, 2))
    U[..., 1], W[:, 0, 0, 1] = sizes[:, None, None], sizes
    return Draws(x, np.ones((B, 1)), U, W)


def curvature_between(scale: Scale, *, printed: bool) -> Outcome:
    """-least eigenvalue on the segment over beta3 / sqrt(H) times the larger loss of its ends, or the largest on it."""
    parts = np.linspace(-1.0, 1.0, scale.pick(21, 41, 201))
    sizes = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    ends = there_and_back(sizes)
    along = [loss(ends._replace(U=part * ends.U, W=part * ends.W)) for part in parts]
    value = np.array([found.value for found in along])
    least = np.array([np.linalg.eigvalsh(found.hessian)[:, 0] for found in along]).min(0)
    allowed = betas(ends, ends.longest)[1] * (np.maximum(value[0], value[-1]) if printed else value.max(0))
    return within(float((-least / allowed).max()), RATIO, instances=len(sizes),
                  numbers={"s": sizes, "value / bound": -least / allowed, "loss at the ends": value[0],
                           "largest loss": value.max(0)})  # fmt: skip


def taylor(scale: Scale, *, at_least: bool) -> Outcome:
    """By how much loss(theta) misses its side of the second-order expression, relative to the terms."""
    count, worst = scale.pick(10, 50, 200), -np.inf
    for H in HEADS[:3]:
        draws = draw(count, SEQUENCES, H, *SIZES[0], seed=2)
        by, length = directions(draws, seed=2), 0.5 * draws.longest
        here, there = loss(draws), loss_value(draws.moved(by, length))
        inside = [np.linalg.eigvalsh(loss(draws.moved(by, part * length)).hessian)[:, 0] for part in PARTS]
        slope = length * np.einsum("bp,bp->b", here.gradient, by.reshape(count, -1))
        right = here.value + slope + 0.5 * np.min(inside, axis=0) * length**2
        miss = (right - there) if at_least else (there - right)
        worst = max(worst, float((miss / (here.value + there + np.abs(slope))).max()))
    return within(worst, TAYLOR, instances=3 * count, seeds=(2,))


CLAIMS = [
    Claim(
        id="multihead-C-C1",
        title="Gradient and curvature of the loss are bounded by the loss",
        statement="|grad L| <= beta1 L, |hess L| <= beta3 / sqrt(H) + beta1^2 / 4, least eigenvalue of hess L >= "
        "-beta3 L / sqrt(H), with beta1 = sqrt(T) R (2 R^2 m + 1), beta3 = 2 sqrt(T d) R^3 (3 sqrt(d) R^2 m + 1) and m "
        "the longest head, or the longest U (Corollary 1 and Lemma 6); also with the constants of multihead-C-SH.",
        hypotheses=("tokens no longer than R >= 1 (Assumption 1); R is the longest",),
        tolerance=RATIO,
        reason="value over bound on dense Hessians over all heads; 1e-9 for rounding",
        measure=loss_is_bounded,
    ),
    Claim(
        id="multihead-C-C1h",
        title="More heads, less negative curvature",
        statement="As H grows, the least eigenvalue becomes less negative: -least eigenvalue / L is at most "
        "beta3 / sqrt(H) (after Corollary 1).",
        hypotheses=("independent heads of the same norm, so that beta3 does not grow",),
        tolerance=-0.2,
        reason="slope in log H from 16 to 64, mean over draws; that of the bound is -1/2",
        measure=least_eigenvalue_shrinks,
    ),
    Claim(
        id="multihead-C-P4",
        title="Between nearby weights the loss is at most 4/3 of its ends",
        statement="If 2 max(beta3(theta_1), beta3(theta_2)) |theta_1 - theta_2|^2 <= sqrt(H), then the loss on the "
        "segment is at most (4/3) max(L(theta_1), L(theta_2)) (Propositions 4 and 6).",
        hypotheses=("the condition, met with equality up to rounding", "tokens no longer than R >= 1"),
        tolerance=4.0 / 3.0,
        reason="largest loss of 21 points over the larger end; half of the segments follow the most negative curvature",
        measure=loss_is_quasi_convex_nearby,
    ),
    erratum(
        id="multihead-E10",
        title="The loss is not bounded by 1",
        printed="for the logistic loss, mean |loss'| <= L <= 1 (Eq. 24).",
        corrected="mean |loss'| <= min(1, L), which is what the proofs use.",
        hypotheses=("none",),
        tolerance=RATIO,
        reason="left over right side",
        measure_printed=partial(slopes_and_losses, printed=True),
        measure_corrected=partial(slopes_and_losses, printed=False),
    ),
    erratum(
        id="multihead-E10-67",
        title="Which loss bounds the curvature on a segment",
        printed="on the segment between theta_1 and theta_2 the least eigenvalue is at least -max(beta3(theta_1), "
        "beta3(theta_2)) L(theta) / sqrt(H), with one L(theta) outside the minimum (Eq. 67); here the larger loss of "
        "the two ends.",
        corrected="with the largest loss on the segment, as in Eq. (15) of the main text.",
        hypotheses=("tokens no longer than R >= 1",),
        tolerance=RATIO,
        reason="-least eigenvalue over its bound, on a segment whose ends have a small loss",
        measure_printed=partial(curvature_between, printed=True),
        measure_corrected=partial(curvature_between, printed=False),
    ),
    erratum(
        id="multihead-E10-14",
        title="Direction of the second-order bound",
        printed="L(theta) <= L(theta_k) + <grad L(theta_k), theta - theta_k> + (1/2) min(least eigenvalue between) "
        "|theta - theta_k|^2 (Eq. 14 of the review version).",
        corrected="the same with >=, as in the final version.",
        hypotheses=("none",),
        tolerance=TAYLOR,
        reason="by how much it is missed, relative to the terms; the minimum is over 21 points",
        measure_printed=partial(taylor, at_least=False),
        measure_corrected=partial(taylor, at_least=True),
    ),
    erratum(
        id="multihead-E13",
        title="Sign of the least eigenvalue",
        printed="as H increases, the minimum eigenvalue becomes less positive (section 3 of the review version).",
        corrected="it becomes less negative, as in the final version.",
        hypotheses=("independent heads of the same norm",),
        tolerance=1.0,
        reason="printed: -least eigenvalue / L, wanted at most 0; corrected: its mean for 64 heads over that for 16",
        measure_printed=least_eigenvalue_is_positive,
        measure_corrected=least_eigenvalue_rises,
    ),
]
