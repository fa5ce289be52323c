"""Are the shares of `al.limits` right? Against a count by a NumPy loop that shares no code with it.

For each data set, 500 starts by `al.limits`, and 500 other starts by normalized gradient descent written out in NumPy,
4,000 steps each. Both sample the same shares, so p-values of a chi-square test of homogeneity should be uniform.

    python benchmarks/limits.py             # sphere (3, 4, 3), seeds 0 to 9, and the time of (6, 8, 10)
"""

from __future__ import annotations

import json
import time
from collections import Counter

import numpy as np
from scipy.stats import chi2_contingency

import attnlab as al

STARTS, STEPS, STEP = 500, 4000, 0.1
RARE = 5  # limits with fewer starts in both samples together are counted as one, as the test asks


def counted_by_numpy(tokens: al.Tokens, seed: int) -> Counter[tuple[int, ...]]:
    """Tokens on which the starts end, by normalized descent on the mean logistic loss."""
    rng = np.random.default_rng(seed)
    d = tokens.d
    W = rng.uniform(-1.0, 1.0, (STARTS, d, d)) / np.sqrt(d)
    gamma = tokens.y[:, None] * (tokens.x @ tokens.v)  # (n, T)
    for _ in range(STEPS):
        logits = np.einsum("ntd,rde,ne->rnt", tokens.x, W, tokens.z, optimize=True)
        top = logits.argmax(-1)[..., None]
        weights = np.exp(logits - np.take_along_axis(logits, top, -1))
        weights /= weights.sum(-1, keepdims=True)
        # Scores above that of the top token: their mean is small where attention is nearly one-hot, and exact.
        above = gamma - np.take_along_axis(np.broadcast_to(gamma, logits.shape), top, -1)
        margin = (weights * gamma).sum(-1)
        slope = 1.0 / (1.0 + np.exp(margin))
        force = slope[..., None] * weights * (above - (weights * above).sum(-1, keepdims=True))
        ascent = np.einsum("rnt,ntd,ne->rde", force, tokens.x, tokens.z, optimize=True)
        W += STEP * ascent / np.linalg.norm(ascent, axis=(1, 2), keepdims=True)
    return Counter(tuple(row) for row in logits.argmax(-1).tolist())


def compared(seed: int) -> dict[str, object]:
    """One data set: how many limits there are, both counts, and the p-value of their difference."""
    tokens = al.data.sphere(n=3, T=4, d=3, seed=seed)
    report = al.limits(tokens, STARTS)
    ours = Counter({tuple(limit.selected.tolist()): limit.runs for limit in report.limits if limit.runs})
    theirs = counted_by_numpy(tokens, seed=100 + seed)
    names = sorted(set(ours) | set(theirs), key=lambda name: -(ours[name] + theirs[name]))
    table = np.array([[ours[name], theirs[name]] for name in names])
    rare = table.sum(1) < RARE
    grouped = np.concatenate([table[~rare], table[rare].sum(0, keepdims=True)]) if rare.any() else table
    grouped = grouped[grouped.sum(1) > 0]
    return {
        "seed": seed,
        "locally optimal": len(report.locally_optimal),
        "selections": report.total,
        "limits": ours.most_common(4),
        "by numpy": theirs.most_common(4),
        "not settled": report.unsettled,
        "runs": sum(ours.values()),
        "p": float(chi2_contingency(grouped, correction=False)[1]) if len(grouped) > 1 else 1.0,
    }


def timed() -> dict[str, object]:
    """(6, 8, 10) with 500 starts: the first call and the next."""
    seconds = []
    for seed in (0, 1):
        began = time.perf_counter()
        report = al.limits(al.data.sphere(n=6, T=8, d=10, seed=seed), STARTS)
        seconds.append(round(time.perf_counter() - began, 2))
    return {"(6,8,10) first and next call, seconds": seconds, "not settled": report.unsettled}


if __name__ == "__main__":
    for number in range(10):
        print(json.dumps(compared(number)), flush=True)
    print(json.dumps(timed()), flush=True)
