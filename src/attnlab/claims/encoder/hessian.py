"""Curvature of the outputs: Theorem 3 with Lemma 20, and the order of the blocks of the Hessian.

*On the Convergence of Encoder-only Shallow Transformers*, Section 4.3 and Appendix D.3. For tokens of dimension 1 every
block is written out and costs nothing, so that widths may be large; for other dimensions there are Hessian products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from scipy.optimize import root_scalar
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.special import softmax
from scipy.stats import chi2

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.encoder.kernel_limits import SLOPE, power
from attnlab.claims.parts import Bound, Count, Identity, Limit
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.sequences import gaussian_sequences
from attnlab.data.tokens import Array
from attnlab.models.encoder import Encoder
from attnlab.models.network import NetworkLaw
from attnlab.theory.encoder import lemma_20
from attnlab.theory.tangent import hessian_norm

T, D = 6, 8
RADII = (1.0, 10.0)
FORMULA = 1e-5
NAMES = ("Q", "K", "V", "O")

# Tokens of dimension 1 --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scalars:
    """A sequence of numbers x (T,), weights w_Q, w_K, w_V, w_O (m,) each, and `f = tau1 sum_i relu(w_V z_i)^T w_O`.

    Here z_i is the attended token x^T b_i with b_i = softmax(tau0 x_i (w_Q^T w_K) x), pooled by the sum; for the mean
    tau1 is divided by T.
    """

    x: Array
    Q: Array
    K: Array
    V: Array
    O: Array  # noqa: E741
    tau0: float
    tau1: float

    @classmethod
    def draw(cls, seed: int, width: int, law: NetworkLaw, *, T: int = T) -> Scalars:
        """Tokens +-1, so that C_x = 1, and weights of a law; mean pooling, tau0 = 1/m."""
        rng = np.random.default_rng([seed, 2])
        x = rng.choice([-1.0, 1.0], T) * (0.5 + rng.random(T))
        network = Encoder(width, scaling="linear", init=law)
        sizes = {k: np.sqrt(v) for k, v in network.variances(T, 1).items()}
        drawn = {k[-1]: sizes[k] * rng.standard_normal(width) for k in ("W_Q", "W_K", "W_V", "w_O")}
        return cls(x / np.sqrt(np.mean(x * x)), **drawn, tau0=network.tau0, tau1=network.tau1 / T)

    @property
    def theta(self) -> Array:
        """All weights, in the order Q, K, V, O."""
        return np.concatenate([self.Q, self.K, self.V, self.O])

    def at(self, theta: Array) -> Scalars:
        """The same with other weights."""
        return Scalars(self.x, *np.split(theta, 4), tau0=self.tau0, tau1=self.tau1)

    @property
    def attention(self) -> Array:
        """Rows b_i, (T, T)."""
        return softmax(self.tau0 * (self.Q @ self.K) * np.multiply.outer(self.x, self.x), axis=1)

    def cumulants(self) -> tuple[Array, Array, Array]:
        """Mean, variance x^T J_i x and third central moment x^T G_i x of the tokens under each b_i, (T,) each.

        G_i = diag(J_i x) - (J_i x) b_i^T - b_i (J_i x)^T is what the printed Gamma_i must be.
        """
        b = self.attention
        mean = b @ self.x
        away = self.x - mean[:, None]
        return mean, (b * away**2).sum(axis=1), (b * away**3).sum(axis=1)

    def output(self) -> float:
        """f."""
        return self.tau1 * float(np.maximum(np.multiply.outer(self.cumulants()[0], self.V), 0.0).sum(axis=0) @ self.O)

    def terms(self) -> tuple[float, float, Array, Array, Array]:
        """f_s and f_ss by s = w_Q^T w_K; d f_s / d w_V and / d w_O; the diagonal of H_OV."""
        mean, variance, third = self.cumulants()
        on = np.multiply.outer(mean, self.V) > 0  # (T, m)
        c = on @ (self.V * self.O)
        by = self.tau0 * self.tau1 * self.x * variance
        first, second = float(by @ c), self.tau0**2 * self.tau1 * float((self.x**2 * third) @ c)
        slope = by @ on
        return first, second, slope * self.O, slope * self.V, self.tau1 * (mean @ on)

    def norms(self) -> dict[str, float]:
        """Spectral norms of the blocks that are not zero; K is to Q as Q is to K."""
        first, second, by_V, by_O, diagonal = self.terms()
        q, k = float(np.linalg.norm(self.Q)), float(np.linalg.norm(self.K))
        # f_ss k q^T + f_s I: outside the span of q and k it is f_s.
        basis, _ = np.linalg.qr(np.stack([self.Q, self.K], axis=1))
        inside = second * np.outer(basis.T @ self.K, basis.T @ self.Q) + first * np.eye(2)
        return {
            "QQ": abs(second) * k * k,
            "KK": abs(second) * q * q,
            "QK": max(abs(first), float(np.linalg.norm(inside, 2))),
            "QV": k * float(np.linalg.norm(by_V)),
            "QO": k * float(np.linalg.norm(by_O)),
            "OV": float(np.abs(diagonal).max()),
        }

    def product(self, direction: Array) -> Array:
        """H times a direction (4 m,)."""
        first, second, by_V, by_O, diagonal = self.terms()
        a, b, c, e = np.split(np.ravel(direction), 4)
        along = self.K @ a + self.Q @ b  # of s
        mixed = second * along + by_V @ c + by_O @ e
        by_query = mixed * self.K + first * b
        by_key = mixed * self.Q + first * a
        return np.concatenate([by_query, by_key, along * by_V + diagonal * e, along * by_O + diagonal * c])

    def top(self) -> tuple[float, Array]:
        """Spectral norm of H, and a unit vector that has it."""
        size = self.theta.size
        operator = LinearOperator((size, size), matvec=self.product, dtype=np.float64)  # type: ignore[call-arg]
        start = np.random.default_rng(0).standard_normal(size)
        values, vectors = eigsh(operator, k=1, which="LM", tol=1e-6, v0=start)  # type: ignore[arg-type]
        return abs(float(values[0])), vectors[:, 0]


@cache
def scalar_norms(scale: Scale) -> tuple[tuple[int, ...], dict[str, Array]]:
    """Widths, and (widths, seeds) of |H| at the start, at distance R along its top vector, and of every block."""
    widths = scale.pick((64, 256, 1024), (64, 256, 1024, 4096, 16384), (64, 256, 1024, 4096, 16384, 65536))
    seeds = scale.pick(3, 6, 20)
    norms: dict[str, Array] = {}
    for i, m in enumerate(widths):
        for seed in range(seeds):
            start = Scalars.draw(seed, m, "ntk")
            norm, vector = start.top()
            values = {"start": norm, **start.norms()}
            for R in RADII:
                values[f"R = {R:g}"] = max(start.at(start.theta + sign * R * vector).top()[0] for sign in (1.0, -1.0))
            for name, value in values.items():
                norms.setdefault(name, np.zeros((len(widths), seeds)))[i, seed] = value
    return widths, norms


# Theorem 3 --------------------------------------------------------------------------------------------------------


def at_distance(start: dict[str, Array], R: float, seed: int) -> dict[str, Array]:
    """Weights at distance R from these, in a random direction; the same for any R."""
    rng = np.random.default_rng([seed, 3])
    drawn = {name: rng.standard_normal(w.shape) for name, w in start.items()}
    length = np.sqrt(sum(np.sum(w * w) for w in drawn.values()))
    return {name: w + R / length * drawn[name] for name, w in start.items()}


@cache
def vector_norms(scale: Scale) -> tuple[tuple[int, ...], dict[str, Array]]:
    """Widths, and (widths, draws) of |H| for unit tokens of dimension 8 and N(0, 1) weights, at the start and at random
    points at distance R; mean pooling, tau0 = 1/m."""
    widths = scale.pick((64, 512), (64, 256, 1024), (64, 256, 1024, 4096))
    seeds = scale.pick(2, 3, 6)
    data = gaussian_sequences(seeds, T, D, seed=0)
    norms: dict[str, Array] = {}
    for i, m in enumerate(widths):
        network = Encoder(m, scaling="linear", init="ntk")
        for seed in range(seeds):
            start = network.initial(data, seed)
            points = {"start": start, **{f"R = {R:g}": at_distance(start, R, seed) for R in RADII}}
            for name, weights in points.items():
                norm = hessian_norm(data, network, weights, sequence=seed).norm
                norms.setdefault(name, np.zeros((len(widths), seeds)))[i, seed] = norm
    return widths, norms


def curvature_falls(scale: Scale) -> Outcome:
    """Fitted powers of the width: at most -1/2 everywhere, and -1/2 itself at the start."""
    ball = Limit("fitted power + 1/2 in the ball: start, R = 1, R = 10", tolerance=SLOPE)
    start = Limit("|fitted power + 1/2| at the start: the order is attained", tolerance=SLOPE)
    rows = {}
    draws = 0
    for d, (widths, norms) in ((D, vector_norms(scale)), (1, scalar_norms(scale))):
        for case in ("start", *(f"R = {R:g}" for R in RADII)):
            means = norms[case].mean(axis=1)
            slope = power(widths, means)
            ball.add(slope + 0.5)
            if case == "start":
                start.add(abs(slope + 0.5))
            rows[f"d = {d}, {case}"] = {
                "fitted power": slope,
                f"mean |H| at the least width, {widths[0]}": means[0],
                "at the largest": means[-1],
                "largest width": widths[-1],
            }
            draws += norms[case].size
    return outcome(
        ball,
        start,
        instances=draws,
        seeds=range(scale.pick(3, 6, 20)),
        numbers={"|H|": rows},
        note="For d = 8 points at distance R are random, for d = 1 along the top vector of H.",
    )


# Lemma 20 ---------------------------------------------------------------------------------------------------------


def norm_in_a_ball(scale: Scale) -> Outcome:
    """The radius that is exceeded with the stated chance, exactly, over 3 sqrt(m); and draws moved outwards by R."""
    widths = (3, 10, 30, 100, 300, 1000)
    radius = Bound("radius that is exceeded with chance 2 exp(-m/2), over the bound at R = 0")
    longer = Count("a draw with m >= 30, moved outwards by R, is longer than the bound")
    rng = np.random.default_rng(0)
    draws = scale.pick(100, 1000, 10_000)
    for m in widths:
        radius.add(np.sqrt(chi2_quantile(m, np.log(2.0) - 0.5 * m)), lemma_20(m, 0.0))
        w = rng.standard_normal((draws, m))
        for R in RADII:
            moved = w * (1.0 + R / np.linalg.norm(w, axis=1, keepdims=True))
            if m >= 30:  # the stated chance is below 1e-6
                longer.add(np.linalg.norm(moved, axis=1) > lemma_20(m, R))
    return outcome(radius, longer, instances=len(widths) + longer.instances, seeds=(0,))


def chi2_quantile(m: int, log_chance: float) -> float:
    """The value that a chi-squared variable of m degrees exceeds with this chance, given by its logarithm."""
    # Beyond 3.5 m + 20 the chance is below 2 exp(-m/2), and far beyond it underflows.
    return float(root_scalar(lambda value: chi2.logsf(value, m) - log_chance, bracket=(1e-3 * m, 3.5 * m + 20.0)).root)


# E10 --------------------------------------------------------------------------------------------------------------

PRINTED_ORDER = ("QV", "QO", "OV")


def block_orders(scale: Scale, *, printed: bool) -> Outcome:
    """Powers of the width of the blocks that are printed as O(1/m), and formulas against differences."""
    widths, norms = scalar_norms(scale)
    slopes = {name: power(widths, norms[name].mean(axis=1)) for name in ("QQ", "QK", *PRINTED_ORDER)}
    parts = []
    for name in PRINTED_ORDER:
        said = "1" if printed else "1/2"
        part = Limit(f"fitted power of |H_{name}| against -{said}", tolerance=SLOPE)
        part.add(slopes[name] + 1.0 if printed else abs(slopes[name] + 0.5))
        parts.append(part)
    if not printed:
        rest = Limit("fitted powers of |H_QQ| and |H_QK| + 1/2", tolerance=SLOPE)
        rest.add([slopes["QQ"] + 0.5, slopes["QK"] + 0.5])
        parts.append(rest)
    errors, tried = formula_errors(scale, printed=printed)
    for name, values in errors.items():
        part = Identity(f"{name} against differences", tolerance=FORMULA)
        part.add(values)
        parts.append(part)
    drawn = norms["QV"].size
    judged = len(next(iter(errors.values())))
    return outcome(
        *parts,
        instances=drawn + judged,
        tried=drawn + tried,
        seeds=range(norms["QV"].shape[1]),
        numbers={"fitted power of the width": slopes},
    )


def formula_errors(scale: Scale, *, printed: bool) -> tuple[dict[str, list[float]], int]:
    """Relative errors, by draw, of x^T Gamma_i x and of H_QK against differences; and how many draws there were.

    Gamma and H_QK are as printed, or corrected. Draws that differences cannot resolve are left out: those within 0.02
    of a kink of relu, and those with saturated attention or all units off, where H_QK is below 1e-3 tau0 tau1.
    """
    errors: dict[str, list[float]] = {"x^T Gamma_i x": [], "H_QK": []}
    tried = scale.pick(6, 20, 100)
    for seed in range(tried):
        one = Scalars.draw(seed, 4, "ntk", T=3)
        one = one.at(1.5 * one.theta)  # attention away from uniform
        if np.abs(one.cumulants()[0]).min() > 0.02 and one.norms()["QK"] > 1e-3 * one.tau0 * one.tau1:
            errors["x^T Gamma_i x"].append(gamma_error(one, printed=printed))
            errors["H_QK"].append(query_key_error(one, printed=printed))
    return errors, tried


def gamma_error(one: Scalars, *, printed: bool) -> float:
    """Of x^T Gamma_i x against the difference quotient of x^T J_i x by the logits t x, over i."""
    b, x, h = one.attention, one.x, 1e-5

    def variance(t: float) -> Array:
        moved = softmax(np.log(b) + t * x, axis=1)
        return (moved * x**2).sum(axis=1) - (moved @ x) ** 2

    true = (variance(h) - variance(-h)) / (2.0 * h)
    found = []
    for row in b:
        J = np.diag(row) - np.outer(row, row)
        last = np.outer(row, x @ J)
        if printed:  # b x^T J x is a vector; the sum with matrices is read as adding it to every column
            last = np.outer(row, np.full(len(x), x @ J @ x))
        found.append(x @ (np.diag(J @ x) - np.outer(J @ x, row) - last) @ x)
    return float(np.abs(np.array(found) - true).max() / np.abs(true).max())


def query_key_error(one: Scalars, *, printed: bool) -> float:
    """Of H_QK against differences of f: f_ss k q^T as printed, plus f_s I corrected."""
    first, second, *_ = one.terms()
    m, theta = len(one.Q), one.theta

    def value(*moves: Array) -> float:
        return one.at(theta + np.sum(moves, axis=0)).output()

    def quotient(h: float) -> Array:
        steps = h * np.eye(theta.size)
        block = np.zeros((m, m))
        for j, p in np.ndindex(m, m):
            a, b = steps[j], steps[m + p]
            block[j, p] = value(a, b) - value(a, -b) - value(-a, b) + value(-a, -b)
        return block / (4.0 * h * h)

    true = (4.0 * quotient(1e-3) - quotient(2e-3)) / 3.0  # errors of the order h^2 cancel
    found = second * np.outer(one.K, one.Q) + (0.0 if printed else first) * np.eye(m)
    return float(np.abs(found - true).max() / np.abs(true).max())


CLAIMS = [
    Claim(
        id="encoder-T3",
        title="The Hessian shrinks with the width",
        statement="Under the NTK start with tau0 = 1/m (Section 4.3) the Hessian of an output satisfies |H| = "
        "O(m^(-1/2)) at the start and within distance R of it (Theorem 3).",
        hypotheses=("N(0, 1) weights, tau1 = m^(-1/2), tau0 = 1/m", "bounded tokens", "R = 1 and R = 10"),
        setting="unit tokens with d = 8 and d = 1, T = 6, mean pooling; widths 64 to 1024 (d = 8) and 16384 (d = 1).",
        reason="fitted powers of the width are at most -1/2 + 0.1 in the ball, and -1/2 to 0.1 at the start",
        measure=curvature_falls,
    ),
    Claim(
        id="encoder-L20",
        title="No point of a ball is long",
        statement="With probability at least 1 - 2 exp(-m/2), all points within R of w ~ N(0, I_m) have norm at most "
        "R + 3 sqrt(m) (Lemma 20).",
        hypotheses=("m >= 3, below which 2 exp(-m/2) says little",),
        setting="m = 3 to 1000; exact quantiles of the chi-squared law, and draws.",
        reason="the radius that is exceeded with the stated chance, exactly, over 3 sqrt(m); a count of longer draws",
        measure=norm_in_a_ball,
    ),
    erratum(
        id="encoder-E10",
        title="Orders of the blocks of the Hessian",
        printed="H_QV, H_QO and H_OV are O(1/m), Gamma_i has the third term b_i x^T J_i x, and H_QK has no diagonal.",
        corrected="the three blocks have order m^(-1/2), which is what the theorem needs. The third term of Gamma_i is "
        "b_i x^T J_i, and H_QK = f_ss w_K w_Q^T + f_s I.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="proof of Theorem 3, Appendix D.3",
            quote="Next, we analyze the Hessian ... where each element is",
            charitable="the orders were measured for the NTK start, which the section is about: they are m^(-1/2), so "
            "the sum of all blocks is still O(m^(-1/2)) and Theorem 3 stands (encoder-T3). Gamma_i adds a vector to "
            "matrices as printed; it was read as adding it to every column.",
            correction="O(1/sqrt(d_m)) in place of O(1/d_m); x^T J_i in place of x^T J_i x; and the diagonal of H_QK.",
        ),
        hypotheses=("d = 1, as in the proof", "NTK start, tau0 = 1/m, C_x = 1"),
        setting="tokens +-1, T = 6, widths 64 to 16384; formulas at m = 4, T = 3.",
        reason="misses of fitted powers against 0.1, and of formulas against 1e-5, the error of differences",
        each=True,
        measure_printed=partial(block_orders, printed=True),
        measure_corrected=partial(block_orders, printed=False),
    ),
]
