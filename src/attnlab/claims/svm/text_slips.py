"""Sentences and lines of proofs that are not right as printed, where a number can tell; results are not touched."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, outcome, reading
from attnlab.claims.parts import Bound, Count, Identity, least
from attnlab.claims.scale import Scale
from attnlab.claims.svm.limits import every_token_asks
from attnlab.claims.svm.other_norms import constraint_matrices
from attnlab.claims.svm.samples import Sample, all_support, with_unit_constant
from attnlab.claims.verdict import Kind, Slip
from attnlab.data import optimal_tokens, scores, sphere
from attnlab.data.tokens import Array
from attnlab.models import attention
from attnlab.optim import gd, ngd
from attnlab.svm import solve_margins
from attnlab.train import descend

EPS = 2.22e-16  # as printed

# The sum over queries in (100) --------------------------------------------------------------------------------------


def excess_by_query(scale: Scale) -> tuple[Array, Array]:
    """l(score of the output) - l(best score) of every query at R W_mm, and n; R from 0 to 3 margins."""
    tokens = every_token_asks(sphere(n=2, T=3, d=4, seed=6, trials=scale.pick(20, 50, 200)), "full")
    W = solve_margins(tokens, optimal_tokens(tokens)).W
    found = []
    for R in (0.0, 1.0, 3.0):
        gamma = scores(tokens)  # (trials, n, K, T)
        output = (attention(tokens, R * W) * gamma).sum(-1)
        found.append(np.log1p(np.exp(-output)) - np.log1p(np.exp(-gamma.max(-1))))
    return np.concatenate(found), np.array(tokens.n)


def loss_against_the_worst_query(scale: Scale, factor: float) -> Outcome:
    """L(W) - L* = (1/n) sum_i sum_k excess over the largest of them, times a factor."""
    excess, n = excess_by_query(scale)
    ratio = Bound("(L(W) - L*) / bound")
    ratio.add(excess.sum((-2, -1)) / n, factor * excess.max((-2, -1)))
    return outcome(ratio, seeds=(6,))


# "gradient norm diverges" --------------------------------------------------------------------------------------------


@cache
def _long_run(scale: Scale) -> tuple[Sample, Mapping[str, Array], int]:
    """Plain descent under B.1 with step 1 / L_W: the metrics, and the record at a tenth of the way."""
    sample = all_support(0)
    steps = scale.pick(1000, 10_000, 100_000)
    run = descend(with_unit_constant(sample.tokens), gd(1.0), steps=steps)
    return sample, run.metrics, int(np.searchsorted(run.steps, steps // 10))


def gradient_grows(scale: Scale) -> Outcome:
    """|grad L| at the end is at least that at a tenth of the way."""
    sample, metrics, tenth = _long_run(scale)
    log_slope = metrics["log_gradient_norm"][sample.meets]
    grows = Bound("|grad L| at a tenth of the way / at the end")
    grows.add_logs(log_slope[:, tenth], log_slope[:, -1])
    return outcome(grows, tried=len(sample.meets), seeds=(0,), slack=sample.slack)


def parameters_grow(scale: Scale) -> Outcome:
    """|W| grows while |grad L| and the loss fall."""
    sample, metrics, tenth = _long_run(scale)
    size = metrics["norm"][sample.meets]
    log_slope = metrics["log_gradient_norm"][sample.meets]
    grows = Bound("|W| at a tenth of the way / at the end")
    grows.add(size[:, tenth], size[:, -1])
    falls = Bound("|grad L| at the end / at a tenth of the way")
    falls.add_logs(log_slope[:, -1], log_slope[:, tenth])
    excess = metrics["excess_loss"][sample.meets]
    descends = Bound("L - L* at the end / at a tenth of the way")
    descends.add(excess[:, -1], excess[:, tenth])
    return outcome(grows, falls, descends, tried=len(sample.meets), seeds=(0,), slack=sample.slack)


# What W_mm coincides with under B.1 ----------------------------------------------------------------------------------


def interpolation_is_max_margin(scale: Scale) -> Outcome:
    """W_mm against the least W with every constraint value 1, by a pseudo-inverse, with B.1 and without."""
    same = Identity("|W_mm - min-norm interpolator| / |W_mm| under B.1", tolerance=1e-6)
    differ = Count("without B.1 the two agree to 1e-6")
    slack: dict[str, float] = {}
    for seed in range(scale.pick(1, 3, 10)):
        sample = all_support(seed)
        slack = least(slack, sample.slack)
        for i, meets in enumerate(sample.meets.tolist()):
            A = constraint_matrices(sample.tokens[i], sample.best[i])
            rows = A.reshape(len(A), -1)
            W = np.linalg.pinv(rows) @ np.ones(len(rows))
            W_mm = sample.margins.W[i].ravel()
            distance = np.linalg.norm(W - W_mm) / np.linalg.norm(W_mm)
            if meets:
                same.add(distance)
            else:
                differ.add(distance <= 1e-6)
    return outcome(same, differ, slack=slack)


# The subspace in the proof of Theorem 8 ------------------------------------------------------------------------------


def subspace_in_the_null_space(scale: Scale, rows: bool) -> Outcome:
    """<a z_i^T, A> for A of row space, or of column space, orthogonal to z_1 .. z_{n-1}, relative."""
    rng = np.random.default_rng(11)
    draws = scale.pick(200, 1000, 5000)
    n, d = 4, 6
    z = rng.standard_normal((draws, n - 1, d))
    complement = np.linalg.svd(z)[2][:, n - 1 :]  # orthonormal rows, (draws, d - n + 1, d)
    free = rng.standard_normal((draws, d, d - n + 1)) @ complement  # rows in the complement
    A = free if rows else np.swapaxes(free, -1, -2)
    a = rng.standard_normal((draws, d))
    values = np.einsum("rd,rde,rie->ri", a, A, z)
    sizes = np.linalg.norm(a, axis=-1) * np.linalg.norm(A, axis=(-2, -1)) * np.linalg.norm(z, axis=-1).max(-1)
    inside = Identity("<a z_i^T, A> / (|a| |A| |z|)", tolerance=1e-12)
    inside.add(values / sizes[:, None])
    return outcome(inside, seeds=(11,))


# 2.22e-16 ------------------------------------------------------------------------------------------------------------


def printed_smallest_number(scale: Scale) -> Outcome:
    """Is there no positive float64 below 2.22e-16, and is 1 + 2.22e-16 = 1?"""
    wrong = Count("what is said of 2.22e-16 and is not so")
    wrong.add(0.0 < float(np.nextafter(0.0, 1.0)) < EPS)
    wrong.add(np.float64(1.0) + np.float64(EPS) != 1.0)
    return outcome(wrong, numbers={"smallest positive float64": float(np.nextafter(0.0, 1.0))})


def spacing_at_one(scale: Scale) -> Outcome:
    """2.22e-16 against the distance from 1 to the next float64; and where adding it to |grad| stops a run."""
    spacing = Identity("2.22e-16 / spacing of float64 at 1 - 1", tolerance=1e-3)
    spacing.add(EPS / float(np.spacing(1.0)) - 1.0)
    absorbed = Count("1 + half of the spacing is not 1")
    absorbed.add(1.0 + float(np.spacing(1.0)) / 2.0 != 1.0)
    margins = {}
    if scale is not Scale.SMOKE:
        tokens = sphere(n=2, T=3, d=4, seed=0)
        for guard in ("paper", "stable"):
            run = descend(tokens, ngd(0.1, guard=guard), steps=6000, init="zeros")
            margins[f"guard {guard!r}"] = float(run.metrics["margin"][-1])
    return outcome(spacing, absorbed, numbers={"margin after 6000 steps": margins} if margins else {})


CLAIMS: list[Claim] = [
    erratum(
        id="svm-E10b",
        title="The sum over queries in (100)",
        printed="L(W) - L* is at most the largest of l(gamma_ik) - l(gamma_opt); L is a mean over n and a sum over K.",
        corrected="it is at most K times that, so that the last logarithm has a factor K (and 2).",
        setting="Self-attention of random tokens on the sphere, (n, T, d) = (2, 3, 4), K = 3; W = R W_mm, R = 0, 1, 3.",
        reason="the ratio of the two sides",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="Line (100), proof of Theorem 10",
            quote="we upper bound the difference between",
            charitable="With K = 1, the case of Theorem 2, the line is right. Theorem 10 with more queries stands: the "
            "factor K moves only the radius from which its contradiction holds.",
            correction="K times the largest; the radius becomes log(8 C T n K B / c_a) / (delta Xi).",
        ),
        measure_printed=lambda scale: loss_against_the_worst_query(scale, factor=1.0),
        measure_corrected=lambda scale: loss_against_the_worst_query(scale, factor=3.0),
    ),
    erratum(
        id="svm-E11b",
        title="What diverges under B.1",
        printed="the norm of the gradient diverges.",
        corrected="the norm of W diverges, and that of the gradient vanishes (Theorem 3).",
        hypotheses=("B.1",),
        setting="Random data on the sphere that meet B.1, (n, T, d) = (3, 3, 12); plain descent with step 1 / L_W.",
        reason="both norms at a tenth of the way over those at the end",
        slip=Slip(
            kind=Kind.TYPO,
            where="Section 5.2, before the conjecture",
            quote="we have concluded that gradient norm diverges",
            charitable="Theorem 3, which it refers to, says the parameter norm; read so it is right, and was measured.",
            correction="The parameter norm diverges.",
        ),
        measure_printed=gradient_grows,
        measure_corrected=parameters_grow,
    ),
    reading(
        id="svm-E11c",
        title="What the max-margin solution coincides with under B.1",
        statement="Where all tokens are support tokens, W_mm is the least W with every constraint value 1. The text "
        "prints that it coincides with (Att-SVM), whose solution it is by definition.",
        hypotheses=("B.1, certified",),
        setting="Random data on the sphere, (n, T, d) = (3, 3, 12); the interpolator by a pseudo-inverse.",
        reason="relative distance of the two, as far as B.1 is certified; a count of data without B.1 where they agree",
        slip=Slip(
            kind=Kind.TYPO,
            where="Section 4.1, on Assumption B.1",
            quote="to coincide with (Att-SVM)",
            charitable="The sentence before it speaks of minimum-norm interpolation; read so it is right: measured.",
            correction="W_mm coincides with the least-norm interpolator.",
        ),
        measure=interpolation_is_max_margin,
    ),
    erratum(
        id="svm-E11d",
        title="The subspace in the proof of Theorem 8",
        printed="matrices whose column space is orthogonal to z_1 .. z_{n-1} annihilate every a z_i^T.",
        corrected="matrices whose row space is orthogonal to them do.",
        setting="Random z, a and A, n = 4, d = 6.",
        reason="inner products over the lengths, exact to rounding",
        slip=Slip(
            kind=Kind.TYPO,
            where="Claim 2, proof of Theorem 8 (Appendix E)",
            quote="whose column space lies in",
            charitable="The next lines use A z_i = 0, which is the row space; read so the proof is right.",
            correction="Row space in place of column space.",
        ),
        measure_printed=lambda scale: subspace_in_the_null_space(scale, rows=False),
        measure_corrected=lambda scale: subspace_in_the_null_space(scale, rows=True),
    ),
    erratum(
        id="svm-E12",
        title="What 2.22e-16 is",
        printed="2.22e-16 is the smallest representable number, 1 + 2.22e-16 = 1.",
        corrected="it is the distance from 1 to the next float64; numbers down to 5e-324 are representable.",
        setting="float64; at quick also 6000 normalized steps with 2.22e-16 added to |grad L|, and without.",
        reason="relative difference of the printed three digits from the spacing at 1",
        slip=Slip(
            kind=Kind.TYPO,
            where="Appendix F, on the penalty",
            quote=r"the smallest representable number, e.g. computed as $1 + \lambda = 1$ in Python",
            charitable="Read as machine epsilon, which the number is, nothing is wrong; half of it is the largest that "
            "1 absorbs.",
            correction="Machine epsilon, the distance from 1 to the next float64.",
        ),
        measure_printed=printed_smallest_number,
        measure_corrected=spacing_at_one,
    ),
]
