"""Lines about curvature that are not right as printed; the results that use them stand."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnlab.claims.claim import Outcome, erratum, outcome
from attnlab.claims.multihead.curvature import (
    PARTS,
    RANDOM_LOSSES,
    SEQUENCES,
    SIZES,
    directions,
    least_eigenvalue_shrinks,
    relative_curvature,
)
from attnlab.claims.multihead.derivatives import Draws, draw, in_line, loss, loss_value, pieces
from attnlab.claims.multihead.gradients import HEADS, alternating, betas
from attnlab.claims.parts import Bound, Count, Limit
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array

TAYLOR = 1e-10


def slopes_and_losses(scale: Scale, *, printed: bool) -> Outcome:
    """mean |loss'| over the loss; also the loss over 1 (printed), or mean |loss'| over 1 (corrected)."""
    slope_by_loss = Bound("mean |loss'| / L")
    by_one = Bound("L / 1" if printed else "mean |loss'| / 1")
    count = scale.pick(20, 100, 500)
    for H in HEADS:
        measured = pieces(draw(count, SEQUENCES, H, *SIZES[0]))
        some = measured.value > 0
        slope_by_loss.add(measured.slope[some], measured.value[some])
        by_one.add((measured.value if printed else measured.slope)[some], 1.0)
    return outcome(slope_by_loss, by_one, tried=count * len(HEADS), seeds=(0,))


def there_and_back(sizes: Array) -> Draws:
    """Two tokens 1 and -1, and weights +-(U, W) at both ends of the segment through zero, of these lengths each.

    Changing both signs chooses the other token and turns U, so both ends have the output sqrt(2) s tanh(s), and all
    between them less.
    """
    return in_line(alternating(2), 1, 1.0, sizes[:, None], sizes[:, None])


def curvature_between(scale: Scale, *, printed: bool) -> Outcome:
    """-least eigenvalue on a segment over beta3 / sqrt(H) times a loss on it.

    Printed, the loss at any point of the segment, so at that of least loss; corrected, at the same point, or the
    largest.
    """
    parts = np.linspace(-1.0, 1.0, scale.pick(21, 41, 201))
    sizes = np.array([0.01, 0.1, 1.0, 4.0, 16.0, 64.0])
    ends = there_and_back(sizes)
    along = [loss(ends._replace(U=part * ends.U, W=part * ends.W)) for part in parts]
    value = np.array([at.value for at in along])  # (parts, sizes)
    negative = np.maximum(-np.array([np.linalg.eigvalsh(at.hessian)[:, 0] for at in along]), 0.0)
    beta3 = betas(ends, ends.longest)[1]
    if printed:
        anywhere = Bound("-least eigenvalue on the segment / (max(beta3) L(theta) / sqrt(H)), any theta on it")
        anywhere.add(negative.max(0), beta3 * value.min(0))
        return outcome(anywhere, numbers={"s": sizes, "least loss": value.min(0), "largest loss": value.max(0)})
    same = Bound("-least eigenvalue at theta / (max(beta3) L(theta) / sqrt(H)), the same theta")
    largest = Bound("-least eigenvalue on the segment / (max(beta3) max L / sqrt(H)), Eq. (15)")
    same.add(negative, beta3 * value)
    largest.add(negative.max(0), beta3 * value.max(0))
    return outcome(same, largest)


def taylor(scale: Scale, *, at_least: bool) -> Outcome:
    """By how much loss(theta) misses its side of the second-order expression, relative to the terms."""
    count = scale.pick(10, 50, 200)
    missed = Limit("(L(theta) - expression) / terms, on the wrong side", tolerance=TAYLOR)
    for H in HEADS[:3]:
        draws = draw(count, SEQUENCES, H, *SIZES[0], seed=2)
        by, length = directions(draws, seed=2), 0.5 * draws.longest
        here, there = loss(draws), loss_value(draws.moved(by, length))
        least = [np.linalg.eigvalsh(loss(draws.moved(by, part * length)).hessian)[:, 0] for part in PARTS]
        slope = length * np.einsum("bp,bp->b", here.gradient, by.reshape(count, -1))
        expression = here.value + slope + 0.5 * np.min(least, axis=0) * length**2
        wrong = (expression - there) if at_least else (there - expression)
        missed.add(wrong / (here.value + there + np.abs(slope)))
    return outcome(missed, seeds=(2,))


def least_eigenvalue_is_positive(scale: Scale) -> Outcome:
    """A least eigenvalue that becomes less positive is positive."""
    _, curved, _ = relative_curvature(scale)
    positive = Count("least eigenvalues that are negative")
    positive.add(curved > 0)
    return outcome(positive, seeds=(0,))


CLAIMS = [
    erratum(
        id="multihead-E10",
        title="The loss is not bounded by 1",
        printed="for the logistic loss, mean |loss'| <= L <= 1 (Eq. 24).",
        corrected="mean |loss'| <= min(1, L), which is what the proofs use.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="Appendix A, Eq. (24)",
            quote="For logistic loss",
            charitable="Read for outputs whose margins are all above -0.54, where the loss is below 1: then it holds. "
            "No such restriction is stated, and the proofs use only that mean |loss'| is at most 1 and at most L, "
            "which was measured and holds.",
            correction="mean |loss'| <= min(1, L).",
        ),
        hypotheses=("none",),
        setting=f"{RANDOM_LOSSES}.",
        reason="left over right side",
        measure_printed=partial(slopes_and_losses, printed=True),
        measure_corrected=partial(slopes_and_losses, printed=False),
    ),
    erratum(
        id="multihead-E10-67",
        title="Which loss bounds the curvature on a segment",
        printed="min over theta in [theta_1, theta_2] of the least eigenvalue >= -max(beta3(theta_1), beta3(theta_2)) "
        "/ sqrt(H) L(theta), where theta is bound on the left and free on the right (Eq. 67).",
        corrected="with the largest loss on the segment, as in Eq. (15) of the main text; or for each theta by itself.",
        slip=Slip(
            kind=Kind.TYPO,
            where="Appendix B.1, Eq. (67)",
            quote="implies the following local self-bounded weak convexity property on the line",
            charitable="Read for each theta on the segment by itself, or as Eq. (15), which has the maximum: both were "
            "measured and hold. Read for any theta on the segment, it fails where the ends have a small loss.",
            correction="L(theta) is to be the maximum of the loss over the segment, as Eq. (15) has it.",
        ),
        hypotheses=("tokens no longer than R >= 1",),
        setting="One sequence of two tokens 1 and -1 (d = 1), one head; segments from -(U, W) to (U, W) through zero "
        "with |U| = |W| from 0.01 to 64, so that the ends of the longer ones have a small loss.",
        reason="-least eigenvalue over its bound",
        measure_printed=partial(curvature_between, printed=True),
        measure_corrected=partial(curvature_between, printed=False),
    ),
    erratum(
        id="multihead-E10-14",
        title="Direction of the second-order bound",
        printed="L(theta) <= L(theta_k) + <grad L(theta_k), theta - theta_k> + (1/2) min(least eigenvalue between) "
        "|theta - theta_k|^2 (Eq. 14 of the review version).",
        corrected="the same with >=, as in the final version.",
        slip=Slip(
            kind=Kind.TYPO,
            where="Eq. (14) of the review version; corrected in the final version",
            quote="using Taylor's theorem we can link",
            charitable="The final version prints >=, which was measured and holds; nothing else in the review version "
            "uses the other direction.",
            correction="L(theta) >= ..., as the final version has it.",
        ),
        hypotheses=("none",),
        setting=f"{RANDOM_LOSSES}, segments of half the length of the longest head.",
        reason="by how much it is missed, relative to the terms; the minimum is over 21 points",
        measure_printed=partial(taylor, at_least=False),
        measure_corrected=partial(taylor, at_least=True),
    ),
    erratum(
        id="multihead-E13",
        title="Sign of the least eigenvalue",
        printed="as H increases, the minimum eigenvalue becomes less positive (section 3 of the review version).",
        corrected="it becomes less negative, as in the final version.",
        slip=Slip(
            kind=Kind.TYPO,
            where="Section 3 of the review version; corrected in the final version",
            quote="the minimum eigenvalue becomes less positive, indicating an approach towards convex-like behavior",
            charitable="The sentence speaks of an approach to convexity, so less negative is meant, as the final "
            "version prints; that was measured and holds.",
            correction="It becomes less negative.",
        ),
        hypotheses=("independent heads of the same norm",),
        setting="As of multihead-C-C1h.",
        reason="printed: eigenvalues that are negative; corrected: as multihead-C-C1h",
        measure_printed=least_eigenvalue_is_positive,
        measure_corrected=least_eigenvalue_shrinks,
    ),
]
