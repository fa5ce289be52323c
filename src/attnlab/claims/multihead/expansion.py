"""How much one step of gradient descent can take two weights apart: Eq. (19)."""

from __future__ import annotations

import numpy as np

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.multihead.population import Population, gradient, losses, noisy_labels, signal_and_noise
from attnlab.claims.parts import Bound
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.multihead.ntk import head_norms, total_norm

Ends = tuple[dict[str, Array], dict[str, Array]]

# Points of the segment on which its largest loss is looked for; a grid can only make the bound smaller.
GRID = np.linspace(0.0, 1.0, 21)


def expansiveness(scale: Scale) -> Outcome:
    """Growth beyond 1 over step beta3 L / sqrt(H), and for steps beyond 2 / beta2 the growth over step beta2."""
    small = Bound("(growth - 1) / (step beta3 L / sqrt(H)), small steps")
    large = Bound("growth / (step beta2), large steps")
    for population, ends, heads, step in (*random_pairs(scale), saddle(), bowl()):
        growth, curved, smooth = one_step(population, ends, heads, step)
        # Below 1 the other branch of the maximum never decides, above 2 it always does.
        first = step * smooth <= 1.0
        small.add(np.maximum(growth - 1.0, 0.0)[first], (step * curved)[first])
        second = step * smooth >= np.maximum(2.0, 1.0 + step * curved)
        large.add(growth[second], (step * smooth)[second])
    return outcome(small, large, seeds=(0,))


def one_step(population: Population, ends: Ends, heads: int, step: Array) -> tuple[Array, Array, Array]:
    """|G(a) - G(b)| / |a - b| for one step G, and the largest beta3 L / sqrt(H) and beta2 on the segment, (draws,)."""
    counts, shape = np.ones(heads), population.shape()
    shares = np.full((len(step), population.m), 1.0 / population.m)
    after = []
    for weights in ends:
        slope = gradient(population, shares, weights, counts)
        after.append({k: w - step.reshape(-1, 1, 1, 1) * slope[k] for k, w in weights.items()})
    before = total_norm({k: ends[0][k] - ends[1][k] for k in ends[0]}, counts)
    moved = total_norm({k: after[0][k] - after[1][k] for k in after[0]}, counts)
    curved = np.zeros(len(step))
    smooth = np.zeros(len(step))
    for share in GRID:
        between = {k: share * ends[0][k] + (1.0 - share) * ends[1][k] for k in ends[0]}
        loss = losses(population, between, counts).mean(-1)
        longest = head_norms(between).max(-1)
        curved = np.maximum(curved, [shape.beta3(m) / np.sqrt(heads) for m in longest] * loss)
        smooth = np.maximum(smooth, [shape.beta2(m, heads) for m in longest])
    return moved / before, curved, smooth


def random_pairs(scale: Scale) -> list[tuple[Population, Ends, int, Array]]:
    """Random weights of any size, near and far from each other."""
    rng, draws = np.random.default_rng(0), scale.pick(50, 300, 2_000)
    population = signal_and_noise()
    T, d = population.x.shape[1:]
    pairs = []
    for heads in (1, 2, 8):
        size = 10.0 ** rng.uniform(-2, 1, (draws, 1, 1, 1))
        near = 10.0 ** rng.uniform(-6, 0, (draws, 1, 1, 1))
        one = {
            "U": size * rng.standard_normal((draws, heads, T, d)),
            "W": size * rng.standard_normal((draws, heads, d, d)),
        }
        other = {k: w + near * size * rng.standard_normal(w.shape) for k, w in one.items()}
        pairs.append((population, (one, other), heads, 10.0 ** rng.uniform(-4, 2, draws)))
    return pairs


def saddle() -> tuple[Population, Ends, int, Array]:
    """Tokens 1 and -1 at zero, a saddle: U and W move together down one side, and apart from the other."""
    population = Population(x=np.array([[[1.0], [-1.0]]]), y=np.ones(1))
    lengths = 10.0 ** np.arange(-6.0, 0.0)
    # d^2 output / dU_t dW is x_t times the variance of the tokens, 1: the direction has U along x, W equal to |U|.
    U = lengths[:, None, None, None] * np.array([1.0, -1.0])[None, None, :, None] / 2.0
    W = lengths[:, None, None, None] / np.sqrt(2.0) * np.ones((1, 1, 1, 1))
    up = {"U": U, "W": W}
    down = {"U": -U, "W": -W}
    return population, (up, down), 1, np.full(lengths.size, 0.05)


def bowl() -> tuple[Population, Ends, int, Array]:
    """One token with either label at zero, where the curvature of the loss is its largest, 1/4; many heads."""
    population = noisy_labels((1.0,))
    heads, lengths = 400, 10.0 ** np.arange(-5.0, 0.0)
    U = lengths[:, None, None, None] * np.ones((1, heads, 1, 1))
    ends = {"U": U, "W": 0.0 * U}, {"U": -U, "W": 0.0 * U}
    return population, ends, heads, np.full(lengths.size, 1e3)


CLAIMS = [
    Claim(
        id="multihead-C-19",
        title="One step takes two weights apart no more than the curvature allows",
        statement="|(a - step grad L(a)) - (b - step grad L(b))| <= max over the segment of {1 + step beta3 L / "
        "sqrt(H), step beta2} |a - b| (Eq. 19).",
        hypotheses=("tokens of norm at most R = 1",),
        setting="Random pairs of weights of any size, H = 1, 2, 8, two tokens (0.98 y, +-0.15); tokens 1 and -1 at the "
        "saddle at zero; one token with either label and 400 heads. Logistic loss, steps from 10^-4 to 10^3.",
        reason="growth beyond 1 over what curvature allows, and for large steps growth over step beta2, apart; the "
        "largest loss of a segment is taken on 21 points, which can only make the bound smaller",
        measure=expansiveness,
    ),
]
