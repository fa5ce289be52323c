"""Norms that are neither Frobenius nor nuclear: Corollary 1, and how far Lemma 1 goes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize

from attnlab.claims.claim import Claim, Outcome, outcome, reading
from attnlab.claims.parts import Bound, Count, Identity, Limit, Mean
from attnlab.claims.scale import Scale
from attnlab.claims.svm.limits import ALIGNED, FAR, GUARD, UNIQUE, every_token_asks, least_leads, promised_deficit
from attnlab.claims.svm.samples import score_gaps
from attnlab.claims.verdict import Kind, Slip
from attnlab.data import Tokens, optimal_tokens, scores, sphere
from attnlab.data.tokens import Array
from attnlab.svm import solve_margin
from attnlab.svm.norms import ENTRYWISE_MAX

MULTIPLES = np.array([1.0, 10.0, 100.0, 1000.0])  # radii, in units of the norm of the max-margin solution


def paths_in_another_norm_tend_to_its_max_margin_direction(scale: Scale) -> Outcome:
    """Paths over the ball of the largest entry, with the exponential loss, where every token is a query."""
    trials = scale.pick(4, 10, 50)
    tokens = every_token_asks(sphere(n=2, T=3, d=4, seed=1, trials=trials), "causal")
    best = optimal_tokens(tokens)
    promised = promised_deficit(tokens, MULTIPLES, loss="exponential")
    aligned = Limit("(distance of W_R / R from the solution set)^2 / 2 at the largest radius", tolerance=ALIGNED)
    power = Mean("power of R in that", at_most=-1.0)
    beaten = Bound("margin of W_R / largest margin", rounding=1e-6)
    deficit = Bound("margin deficit of W_R / the proof's bound", guard=GUARD)
    value = Identity("least norm, solver against a linear program", tolerance=1e-6)
    distances = []
    for i in range(trials):
        solution = solve_margin(tokens[i], best[i], norm=ENTRYWISE_MAX, throw=False)
        if not solution.feasible:
            continue
        A = constraint_matrices(tokens[i], best[i])
        value.add(solution.margin * least_entrywise_norm(A) - 1.0)
        W = _box_path(tokens[i], best[i], MULTIPLES / solution.margin, solution.W * solution.margin, seed=i)
        ratio = least_leads(tokens[i : i + 1], W[None], best[i : i + 1])[0] / MULTIPLES
        beaten.add(ratio, 1.0)
        deficit.add(1.0 - ratio, promised[i], says=promised[i] < 1.0)
        units = W * solution.margin / MULTIPLES[:, None, None]
        off = np.array([distance_to_solutions(U, A, solution.margin) for U in units]) ** 2 / 2.0
        aligned.add(off[-1])
        tells = (off > 1e-12) & (MULTIPLES >= FAR)
        if tells.sum() >= 2:
            power.add(np.polyfit(np.log(MULTIPLES[tells]), np.log(off[tells]), 1)[0])
        distances.append(off)
    table = {f"R = {R:g} margins": np.max(distances, axis=0)[k] for k, R in enumerate(MULTIPLES)} if distances else {}
    return outcome(
        aligned,
        power,
        beaten,
        deficit,
        value,
        tried=trials,
        seeds=(1,),
        slack={"score gap": float(score_gaps(tokens).min())},
        numbers={"norm": ENTRYWISE_MAX.name, "largest (distance)^2 / 2": table},
        note="The solution set of this norm is a face: distances are to the nearest point of it, relative to |W|_F.",
    )


def constraint_matrices(tokens: Tokens, selected: NDArray[np.intp]) -> Array:
    """(x_selected - x_t) z^T for every query and other visible token, written out, (N, d, d)."""
    z = tokens.z if tokens.K is not None else tokens.z[:, None]
    chosen = selected.reshape(tokens.n, -1)
    visible = tokens.visible.reshape(tokens.n, -1, tokens.T)
    rows = []
    for i in range(tokens.n):
        for k in range(z.shape[1]):
            for t in range(tokens.T):
                if visible[i, k, t] and t != chosen[i, k]:
                    rows.append(np.outer(tokens.x[i, chosen[i, k]] - tokens.x[i, t], z[i, k]))
    return np.array(rows)


def least_entrywise_norm(A: Array, basis: Array | None = None) -> float:
    """The least max |W_ij| with <A_j, W> >= 1, by a linear program; `basis` (d, k) keeps the rows of W in its span."""
    N, d, _ = A.shape
    span = np.eye(d) if basis is None else basis
    width = span.shape[1]
    # W = U span^T; unknowns are U, row by row, and then the bound.
    entries = np.kron(np.eye(d), span)  # (d^2, d width), gives the entries of W
    bound = np.ones((d * d, 1))
    margins = np.hstack([-(A @ span).reshape(N, -1), np.zeros((N, 1))])
    box = np.vstack([np.hstack([entries, -bound]), np.hstack([-entries, -bound])])
    found = linprog(
        np.append(np.zeros(d * width), 1.0),
        A_ub=np.vstack([margins, box]),
        b_ub=np.concatenate([-np.ones(N), np.zeros(2 * d * d)]),
        bounds=(None, None),
    )
    return float(found.fun)


def distance_to_solutions(U: Array, A: Array, margin: float) -> float:
    """Relative distance of U from {V : |V_ij| <= 1, <A_j, V> >= margin}, by a generic solver."""
    d = len(U)
    rows = A.reshape(len(A), -1)
    found = minimize(
        lambda flat: (0.5 * np.sum((flat - U.ravel()) ** 2), flat - U.ravel()),
        np.clip(U.ravel(), -1.0, 1.0),
        jac=True,
        method="SLSQP",
        bounds=[(-1.0, 1.0)] * d**2,
        constraints={"type": "ineq", "fun": lambda flat: rows @ flat / margin - 1.0, "jac": lambda _: rows / margin},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    return float(np.linalg.norm(found.x - U.ravel()) / np.linalg.norm(U))


def _box_path(
    tokens: Tokens, best: NDArray[np.intp], radii: Array, toward: Array, seed: int, restarts: int = 4
) -> Array:
    """The least exponential loss over |W_ij| <= R for each R, (radii, d, d); the best of several searches."""
    rng = np.random.default_rng(seed)
    d = tokens.d
    points: list[Array] = []
    for R in radii:
        known = [points[-1] / np.abs(points[-1]).max()] if points else []
        starts = [toward, *known, *rng.uniform(-1.0, 1.0, (restarts, d, d))]
        ends = [_searched(start, tokens, best, R) for start in starts]
        points.append(R * min(ends, key=lambda end: end[0])[1])
    return np.stack(points)


def _searched(start: Array, tokens: Tokens, best: NDArray[np.intp], R: float) -> tuple[float, Array]:
    """The loss where a search over the box ends, and that W over R."""
    end = minimize(
        _log_exponential_excess,
        start.ravel(),
        args=(tokens, best, R),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-1.0, 1.0)] * tokens.d**2,
        options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-10},
    )
    return float(end.fun), end.x.reshape(tokens.d, tokens.d)


def _log_exponential_excess(flat: Array, tokens: Tokens, best: NDArray[np.intp], R: float) -> tuple[float, Array]:
    """log of sum (e^-u - e^-gamma_opt) over the queries at R W, and its gradient by W.

    Each query adds `e^-gamma_opt (e^drop - 1)` with `drop = sum_t s_t (gamma_opt - gamma_t)`, whose logarithm is exact
    however small it is.
    """
    W = R * flat.reshape(tokens.d, tokens.d)
    logits = np.where(tokens.visible, np.einsum("ntd,de,nke->nkt", tokens.x, W, tokens.z), -np.inf)
    log_s = logits - np.logaddexp.reduce(logits, axis=-1)[..., None]
    gamma = scores(tokens)
    top = np.take_along_axis(gamma, best[..., None], axis=-1)
    gap = np.where(tokens.visible, np.maximum(top - gamma, 0.0), 0.0)
    asks = np.asarray((gap > 0).any(-1))  # a query that sees one token adds nothing
    with np.errstate(divide="ignore"):
        log_parts = log_s + np.log(gap)
    log_drop = np.logaddexp.reduce(np.where(asks[..., None], log_parts, 0.0), axis=-1)
    drop = np.where(asks, np.exp(log_drop), 1.0)
    some = np.maximum(drop, 1e-300)  # (e^x - 1) / x is 1 where x underflows
    growth = np.expm1(some) / some
    terms = np.where(asks, log_drop + np.log(growth) - top[..., 0], -np.inf)
    total = np.logaddexp.reduce(terms.ravel())
    weight = np.exp(terms - total) * np.exp(drop) / growth
    pull = weight[..., None] * np.where(asks[..., None], np.exp(log_parts - log_drop[..., None]) - np.exp(log_s), 0.0)
    return float(total), R * np.einsum("nkt,ntd,nke->de", pull, tokens.x, tokens.z).ravel()


class Restricted(NamedTuple):
    """Least entrywise norm over all W, and over those with rows in the span of the queries."""

    free: float
    in_span: float


def spans_of_queries_are_left_in_other_norms(scale: Scale) -> Outcome:
    """Does keeping rows in span{z} cost anything where the norm is the largest entry?"""
    seeds = range(scale.pick(10, 40, 200))
    costs = Count("keeping rows in the span costs nothing (within 1e-6)")
    below = Bound("least norm over all W / least norm with rows in the span", rounding=1e-6)
    excess = []
    for seed in seeds:
        tokens = sphere(n=2, T=4, d=5, seed=seed)
        A = constraint_matrices(tokens, optimal_tokens(tokens))
        basis = np.linalg.qr(tokens.z.T)[0]
        norms = Restricted(least_entrywise_norm(A), least_entrywise_norm(A, basis))
        below.add(norms.free, norms.in_span)
        costs.add(norms.in_span <= norms.free * (1.0 + 1e-6))
        excess.append(norms.in_span / norms.free - 1.0)
    return outcome(
        costs,
        below,
        seeds=seeds,
        numbers={"cost of the span, least, median, largest": np.quantile(excess, [0.0, 0.5, 1.0])},
    )


CLAIMS: list[Claim] = [
    Claim(
        id="svm-Cor1",
        title="Regularization paths in any norm",
        statement="With K queries per sequence and any norm, the argmin of L over |W| <= R tends in direction to the "
        "max-margin solutions of that norm (Corollary 1); measured in the norm of the largest entry.",
        hypotheses=UNIQUE,
        setting="Causal self-attention of random tokens on the sphere, (n, T, d) = (2, 3, 4), every token a query; "
        "exponential loss; balls of the largest entry, 6 searches at each radius from 1 to 1000 margins.",
        reason="the squared distance of W_R / R from the solution set over 2, which for one solution is 1 - cosine, at "
        "1000 margins against 1e-3; its mean power of R, at most -1 (margin deficits fall as 1/R, and distances from a "
        "polytope as the deficits, so -2 is expected); beside them margin deficits over the bound of the proof",
        measure=paths_in_another_norm_tend_to_its_max_margin_direction,
    ),
    reading(
        id="svm-L1n",
        title="The row space of max-margin solutions in other norms",
        statement="Lemma 1 is stated for the Frobenius and the nuclear norm. In the norm of the largest entry, which "
        "Corollary 1 allows, no solution has its rows in the span of the queries: restricting W to it costs.",
        hypotheses=("the best tokens can be separated",),
        setting="Random data on the sphere, (n, T, d) = (2, 4, 5); least largest entry by linear programs, with and "
        "without rows restricted to the span.",
        reason="a count of data sets where the restriction costs nothing, to 1e-6 of the norm",
        slip=Slip(
            kind=Kind.READING,
            where="Lemma 1 and its proof (A.1), beside the general norm of Section 5.3",
            quote="Any optimal solution of (Att-SVM) or ... is at most rank n",
            charitable="Read as it stands, for two norms, Lemma 1 is right (svm-L1). Its proof writes the solution "
            "with the sign of a general norm, which invites a wider reading; that was measured and is not true.",
            correction="Lemma 1 is read for the Frobenius and the nuclear norm only.",
        ),
        measure=spans_of_queries_are_left_in_other_norms,
    ),
]
