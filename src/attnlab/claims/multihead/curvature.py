"""Curvature of the loss of many heads: Corollary 1 and Proposition 4."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.multihead.conditions import beta_3, sharp_beta_3
from attnlab.claims.multihead.derivatives import Draws, draw, in_line, loss, loss_value, pieces
from attnlab.claims.multihead.gradients import HEADS, LENGTHS, TILTS, alternating, betas, searched
from attnlab.claims.parts import Bound, Count, Mean
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array

SIZES = ((3, 2), (4, 3))  # (T, d)
SEQUENCES = 5
PARTS = np.linspace(0.0, 1.0, 21)  # of a segment
ROUNDING = 1e-9

# Corollary 1 ------------------------------------------------------------------------------------------------------

# Name, what m is, sharp constants.
VARIANTS = (("longest head", "head", False), ("longest U", "U", False), ("longest U, sharp", "U", True))


def two_against_two(length: float = 100.0) -> Draws:
    """Four heads on two tokens in line: two saturated heads fit the label, two pull the other way.

    The loss is then small, so that |loss'| is nearly the loss, while the other two heads have as much negative
    curvature as long heads can.
    """
    tilts = TILTS[TILTS > 0]
    saturated = np.full_like(tilts, 5.0)
    tilt = np.stack([saturated, saturated, tilts, tilts], axis=1)
    signs = np.array([1.0, 1.0, -1.0, -1.0])
    return in_line(alternating(2), 1, 1.0, tilt, np.broadcast_to(length * signs, tilt.shape))


def losses(scale: Scale) -> Iterator[Draws]:
    """Random draws for all numbers of heads; and tokens in line, where each property is nearly attained."""
    for T, d in SIZES:
        for H in HEADS:
            yield draw(scale.pick(6, 30, 80), SEQUENCES, H, T, d)
    yield searched(alternating(2), 1, 1.0, heads=2)
    yield in_line(np.ones(16), 1, 1.0, np.zeros((6, 8)), np.repeat(LENGTHS[:, None], 8, axis=1))
    yield two_against_two()


def loss_is_bounded(scale: Scale) -> Outcome:
    """The three properties with m the longest head and m the longest U, for the constants printed and sharp."""
    gradient = {name: Bound(f"|grad L| / (beta1 L), {name}") for name, _, _ in VARIANTS}
    hessian = {name: Bound(f"|hess L| / beta2, {name}") for name, _, _ in VARIANTS}
    least = {name: Bound(f"-least eigenvalue sqrt(H) / (beta3 L), {name}") for name, _, _ in VARIANTS}
    tried = 0
    for draws in losses(scale):
        measured = loss(draws)
        tried += len(measured.value)
        some = measured.value > 0  # a loss that underflows bounds nothing
        slope = np.linalg.norm(measured.gradient, axis=-1)
        eigenvalues = np.linalg.eigvalsh(measured.hessian)
        root = np.sqrt(draws.heads)
        for name, of, sharp in VARIANTS:
            beta1, beta3 = betas(draws, draws.longest if of == "head" else draws.longest_U, sharp=sharp)
            gradient[name].add(slope[some], (beta1 * measured.value)[some])
            hessian[name].add(np.abs(eigenvalues).max(-1), beta3 / root + beta1**2 / 4)
            negative = np.maximum(-eigenvalues[:, 0], 0.0)
            least[name].add((negative * root)[some], (beta3 * measured.value)[some])
    return outcome(*gradient.values(), *hessian.values(), *least.values(), tried=tried, seeds=(0,))


# How the least eigenvalue goes with H -----------------------------------------------------------------------------

FROM = 16  # heads from which the slope is taken
FEW_HEADS = (
    "With few heads the convex part of the Hessian, of rank n, hides the negative curvature, and more heads are more "
    "chances for a large one; the slope is taken from 16 heads on, all slopes are in the numbers."
)


def unit_heads(count: int, H: int) -> Draws:
    """H heads with U and W uniform on unit spheres, so that beta3 is the same for any number of them."""
    T, d = SIZES[0]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, SEQUENCES, T, d))
    y = rng.choice([-1.0, 1.0], (count, SEQUENCES))
    U = rng.standard_normal((count, H, T, d))
    W = rng.standard_normal((count, H, d, d))
    U /= np.linalg.norm(U, axis=(-2, -1), keepdims=True)
    W /= np.linalg.norm(W, axis=(-2, -1), keepdims=True)
    return Draws(x, y, U, W)


class HessianOfHeads(LinearOperator):
    """`factors^T factors` plus one block for each head, which is never formed."""

    def __init__(self, factors: Array, blocks: Array) -> None:
        super().__init__(np.float64, (factors.shape[-1], factors.shape[-1]))
        self.factors, self.blocks = factors, blocks

    def _matvec(self, x: Array) -> Array:
        by_head = np.einsum("hpq,hq->hp", self.blocks, x.reshape(self.blocks.shape[:2]))
        return self.factors.T @ (self.factors @ x.ravel()) + by_head.ravel()

    @property
    def least_eigenvalue(self) -> float:
        """By Lanczos, from a start that is always the same."""
        begin = np.ones(self.shape[0])
        return float(eigsh(self, k=1, which="SA", v0=begin, return_eigenvectors=False)[0])


@cache
def relative_curvature(scale: Scale) -> tuple[tuple[int, ...], Array, Array]:
    """Numbers of heads; -least eigenvalue / loss with the first H heads, and beta3 / sqrt(H), (H, draws)."""
    numbers = (1, 4, 16, 64, *scale.pick((256,), (256, 1024), (256, 1024)))
    draws = unit_heads(scale.pick(8, 12, 50), numbers[-1])
    curved, allowed = [], []
    for H in numbers:
        first = draws._replace(U=draws.U[:, :H], W=draws.W[:, :H])
        parts = pieces(first)
        hessians = [HessianOfHeads(f, b) for f, b in zip(parts.factors, parts.blocks, strict=True)]
        least = [hessian.least_eigenvalue for hessian in hessians]
        curved.append(-np.array(least) / parts.value)
        allowed.append(betas(first, first.longest)[1] / np.sqrt(H))
    return numbers, np.array(curved), np.array(allowed)


def least_eigenvalue_shrinks(scale: Scale) -> Outcome:
    """Slope of log(-least eigenvalue / loss) in log H, one for each draw; and that over its bound."""
    heads, curved, allowed = relative_curvature(scale)
    within_bound = Bound("-least eigenvalue sqrt(H) / (beta3 L)")
    slope = Mean(f"slope of log(-least eigenvalue / L) in log H, from {FROM} to {heads[-1]} heads", at_most=0.0)
    negative = Count("draws whose least eigenvalue is not negative")
    within_bound.add(curved, allowed)
    negative.add(curved <= 0)
    logs = np.log(np.maximum(curved, 1e-300))
    first = heads.index(FROM)
    slope.add((logs[-1] - logs[first]) / np.log(heads[-1] / FROM))
    numbers = {
        "heads": heads,
        "mean -least eigenvalue / loss": np.exp(logs.mean(1)),
        "the same times sqrt(H)": np.exp(logs.mean(1)) * np.sqrt(heads),
        "slopes between": np.diff(logs.mean(1)) / np.diff(np.log(heads)),
    }
    return outcome(within_bound, slope, negative, seeds=(0,), numbers=numbers, note=FEW_HEADS)


# Proposition 4 ----------------------------------------------------------------------------------------------------


def directions(draws: Draws, *, seed: int = 0) -> Array:
    """Unit directions (B, H, P): most negative curvature of the loss in every other pair of draws, else random."""
    curved = np.linalg.eigh(loss(draws).hessian)[1][..., 0]
    drawn = np.random.default_rng(seed).standard_normal(curved.shape)
    chosen = np.where((np.arange(len(curved)) % 4 < 2)[:, None], curved, drawn)  # labels fit in every other draw
    return (chosen / np.linalg.norm(chosen, axis=-1, keepdims=True)).reshape(len(curved), draws.heads, -1)


def longest_allowed(draws: Draws, by: Array, *, sharp: bool) -> Array:
    """The longest segment through the weights that the condition allows, by bisection of the logarithm."""
    low, high = np.full(len(by), -40.0), np.full(len(by), 10.0)
    for _ in range(40):
        middle = 0.5 * (low + high)
        length = np.exp(middle)
        ends = [betas(draws, draws.moved(by, side * length / 2).longest, sharp=sharp)[1] for side in (-1, 1)]
        fits = 2.0 * np.maximum(*ends) * length**2 <= np.sqrt(draws.heads)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.exp(low)


def slack_of_18(draws: Draws, by: Array, length: Array, *, sharp: bool) -> Array:
    """1 - 2 max(beta3 at the ends) |theta_1 - theta_2|^2 / sqrt(H), written out from Eq. (18)."""
    T, d = draws.x.shape[-2:]
    first, last = draws.moved(by, -length / 2), draws.moved(by, length / 2)
    slacks = []
    for i, R in enumerate(draws.R):
        squares = np.sum((last.U[i] - first.U[i]) ** 2) + np.sum((last.W[i] - first.W[i]) ** 2)
        m = max(float(first.longest[i]), float(last.longest[i]))
        curvature = sharp_beta_3(T, R, m) if sharp else beta_3(T, d, R, m)
        slacks.append(1.0 - 2.0 * curvature * squares / np.sqrt(draws.heads))
    return np.array(slacks)


def middles(scale: Scale) -> Iterator[Draws]:
    """Where segments have their middle: random weights, and zero weights with tokens in line, a saddle."""
    for H in HEADS:
        yield draw(scale.pick(6, 25, 75), SEQUENCES, H, *SIZES[0], seed=1)
    for T in (2, 16, 64):
        yield in_line(alternating(T), 1, 1.0, np.zeros((1, 1)), np.zeros((1, 1)))


def loss_is_quasi_convex_nearby(scale: Scale) -> Outcome:
    """By how much the largest loss on a segment exceeds the larger of its ends, for the longest segments allowed."""
    excess = {
        sharp: Bound(f"excess over the larger end / (1/3){', sharp' if sharp else ''}") for sharp in (False, True)
    }
    slacks, tried = [], 0
    for draws in middles(scale):
        by = directions(draws)
        tried += len(by)
        for sharp, bound in excess.items():
            length = longest_allowed(draws, by, sharp=sharp)
            slack = slack_of_18(draws, by, length, sharp=sharp)
            meets = slack >= -ROUNDING
            values = np.array([loss_value(draws.moved(by, (part - 0.5) * length)) for part in PARTS])  # (21, B)
            over = values.max(0) / np.maximum(values[0], values[-1]) - 1.0
            bound.add(over[meets], 1.0 / 3.0)
            bound.leave_unsolved(int(np.count_nonzero(~meets)))
            slacks.append(float(slack.min()))
    return outcome(
        *excess.values(), tried=tried, seeds=(1,), slack={"1 - 2 beta3 |theta_1 - theta_2|^2 / sqrt(H)": min(slacks)}
    )


RANDOM_LOSSES = "Logistic loss, 5 sequences, H = 1, 2, 4, 8 random heads, (T, d) = (3, 2)"
CLAIMS = [
    Claim(
        id="multihead-C-C1",
        title="Gradient and curvature of the loss are bounded by the loss",
        statement="|grad L| <= beta1 L, |hess L| <= beta3 / sqrt(H) + beta1^2 / 4, least eigenvalue of hess L >= "
        "-beta3 L / sqrt(H), with beta1 = sqrt(T) R (2 R^2 m + 1), beta3 = 2 sqrt(T d) R^3 (3 sqrt(d) R^2 m + 1) and m "
        "the longest head, or the longest U (Corollary 1 and Lemma 6); also with the constants of multihead-C-SH.",
        hypotheses=("tokens no longer than R >= 1 (Assumption 1); R is the longest",),
        setting=f"{RANDOM_LOSSES} and (4, 3); tokens in line with T = 2, H = 2 and T = 16, H = 8, searched over tilt "
        "and length; two heads against two (T = 2, d = 1, |U| = 100).",
        reason="value over bound on dense Hessians over all heads",
        measure=loss_is_bounded,
    ),
    Claim(
        id="multihead-C-C1h",
        title="More heads, less negative curvature",
        statement="As H grows, the least eigenvalue becomes less negative: -least eigenvalue / L is at most "
        "beta3 / sqrt(H) (after Corollary 1).",
        hypotheses=("independent heads of the same norm, so that beta3 does not grow",),
        setting="Gaussian tokens, n = 5, T = 3, d = 2; U and W of every head uniform on unit spheres; 1 to 256 heads, "
        "to 1024 at quick.",
        reason="slope in log H from 16 heads on, mean over draws, against 0; that of the bound is -1/2",
        measure=least_eigenvalue_shrinks,
    ),
    Claim(
        id="multihead-C-P4",
        title="Between nearby weights the loss is at most 4/3 of its ends",
        statement="If 2 max(beta3(theta_1), beta3(theta_2)) |theta_1 - theta_2|^2 <= sqrt(H), then the loss on the "
        "segment is at most (4/3) max(L(theta_1), L(theta_2)) (Propositions 4 and 6).",
        hypotheses=("the condition, met with equality up to rounding", "tokens no longer than R >= 1"),
        setting=f"{RANDOM_LOSSES}; half of the segments follow the most negative curvature. Tokens in line at zero "
        "weights, T = 2, 16, 64, d = 1, H = 1. Each segment is as long as the condition allows.",
        reason="excess of the largest loss at 21 points over the larger end, over 1/3. A loss whose second derivative "
        "is at least -beta3 L / sqrt(H) exceeds by at most 1 / cos(sqrt(1/8)) - 1 = 0.066, a fifth of that. The "
        "condition is checked by a second transcription, which alone guards its constants",
        measure=loss_is_quasi_convex_nearby,
    ),
]
