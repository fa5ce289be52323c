"""Constants and inequalities of the fast-rates paper by plain loops and mpmath, written apart."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np

import attnlab as al


def draw(seed: int, n: int, T: int, d: int, masked: bool = False, scale: float = 1.0) -> al.Tokens:
    rng = np.random.default_rng([seed, n, T, d, masked])
    mask = rng.random((n, T)) < 0.7
    mask[:, :2] = True
    x = scale * rng.standard_normal((n, T, d))
    y, v = rng.choice([-1.0, 1.0], n), rng.standard_normal(d)
    return al.Tokens.self_attention(x, y, v, mask=mask if masked else None)


def scores(tokens: al.Tokens, i: int) -> dict[int, float]:
    """By visible token."""
    return {
        t: float(tokens.y[i]) * math.fsum(float(a) * float(b) for a, b in zip(tokens.v, tokens.x[i, t], strict=True))
        for t in range(tokens.T)
        if tokens.visible[i, t]
    }


def best(tokens: al.Tokens) -> list[int]:
    return [max(s, key=lambda t: (s[t], -t)) for s in (scores(tokens, i) for i in range(tokens.n))]


def constants(tokens: al.Tokens) -> dict[str, float]:
    tops, lows = [], []
    for i, top in enumerate(best(tokens)):
        s = scores(tokens, i)
        tops.append(s.pop(top))
        lows.append(min(s.values()))
    gaps = [a - b for a, b in zip(tops, lows, strict=True)]
    kappa = max(gaps) / min(gaps)
    lengths = [math.sqrt(sum(a * a for a in tokens.x[i, t])) for i in range(tokens.n) for t in scores(tokens, i)]
    queries = [math.sqrt(sum(a * a for a in z)) for z in tokens.z]
    return {
        "B": max(lengths + queries),
        "kappa_plus": math.exp(max(gaps)),
        "kappa_minus": math.exp(min(gaps)),
        "upsilon": kappa * math.exp(max(gaps)),
        "upsilon_proof": kappa * max(map(math.exp, tops)) / min(map(math.exp, lows)),
        "upsilon_printed": kappa * min(map(math.exp, tops)) / max(map(math.exp, lows)),
        "zeta": max(gaps) / min(map(math.exp, lows)),
        "zeta_printed": max(gaps) / max(map(math.exp, lows)),
    }


def over(left: float, right: float) -> float:
    if right > 0:
        return left / right
    return math.inf if left >= 0 else -math.inf


def dot(a: np.ndarray, b: np.ndarray) -> float:
    return math.fsum(float(p) * float(q) for p, q in zip(a, b, strict=True))


def ratios(tokens: al.Tokens, top: list[int], f: float) -> dict[str, float]:
    """Every inequality by itself."""
    seen = [(i, t) for i in range(tokens.n) for t in range(tokens.T) if tokens.visible[i, t]]
    x, y, z = tokens.x, tokens.y, tokens.z
    one, two, inside, queries = [], [], [], []
    for (i, t), (j, s) in itertools.product(seen, seen):
        if j != i and s != top[j]:
            one.append(over(dot(x[i, t], x[i, t]), f * abs(dot(x[i, t], x[j, s]))))
        if j == i and s != top[j] and t != s:
            inside.append(over(dot(x[i, top[i]], x[i, top[i]]) / 4, abs(dot(x[i, t], x[i, s]))))
        if y[i] != y[j]:
            for k in range(tokens.n):
                if y[k] == y[i]:
                    two.append(over(dot(x[i, top[i]], x[k, top[k]]), f * abs(dot(x[i, t], x[j, s]))))
    signal = [np.array_equal(z[i], x[i, top[i]]) for i in range(tokens.n)]
    for i, j in itertools.permutations(range(tokens.n), 2):
        if not (signal[i] and signal[j] and y[i] == y[j]):
            queries.append(over(dot(z[j], z[j]), f * abs(dot(z[i], z[j]))))
    return {
        "line_1": min(one, default=math.inf), "line_2": min(two, default=math.inf),
        "within": min(inside, default=math.inf), "queries": min(queries, default=math.inf),
        "pairs": sum(r >= 1 for r in one) / len(one) if one else 1.0,
    }  # fmt: skip


class Formulas:
    """The formulas of Lemma 7 to Theorem 7 in 40 digits."""

    def __init__(self, c, step) -> None:
        mp.mp.dps = max(mp.mp.dps, 40)
        self.L, self.B, self.U = mp.mpf(c.Lambda), mp.mpf(c.B), mp.mpf(c.upsilon)
        self.n, self.T, self.eta = c.n, c.T, mp.mpf(step)
        self.low, self.high = mp.mpf(c.least_gap), mp.mpf(c.largest_gap)
        self.BBL = self.B**2 * self.L

    def radius(self, eps, corrected):
        eps = mp.mpf(eps)
        first = (
            64 * self.n * self.BBL * self.U * self.T**3 / eps
            if corrected
            else 4 * self.n / self.BBL * self.U * self.T**3 / eps
        )
        return 2 * self.L / eps * max(mp.log(first), 5 * mp.log(20 * self.T * self.BBL / eps))

    def first_time(self, corrected):
        cube = (10 * self.B * self.L / mp.sqrt(self.eta)) ** 3
        if corrected:
            return max(cube, self.eta * self.T * max(16 * self.n * self.U * self.T**2, 5) / (20 * self.L))
        return max(cube, mp.log(self.eta * self.T * max(self.n * self.U / self.BBL**2 * self.T**2, 5) / (20 * self.L)))

    def C(self, lag):
        return 4 / self.eta * self.BBL * (mp.mpf(lag) + 2 * self.BBL * (40 * self.L + self.eta))

    def polyak(self, beta, lag, corrected):
        beta = mp.mpf(beta)
        w1 = beta * (1 - beta) / self.L * self.low
        w2 = self.B**2 * self.high / 2
        nu = 1 / (1 - mp.exp(-(1 - beta) * self.low))
        first = 40 * self.L * (w2 * nu if corrected else 1)
        C = 4 / self.eta * self.BBL * w2 * nu * (mp.mpf(lag) + 2 * self.BBL / w1 * (first + self.eta * nu / w1 * w2))
        if corrected:
            cube = (10 * self.B * self.L) ** 3 * (w2 * nu / self.eta) ** mp.mpf("1.5")
            t0 = max(cube, self.eta / (w2 * nu) * self.T * max(16 * self.n * self.U * self.T**2, 5) / (20 * self.L))
        else:
            t0 = w2 * nu * self.first_time(False)
        return w1, w2, nu, t0, C
