"""Where the regularization path goes: Theorem 2, Lemmas 3 and 15, Corollaries 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from attnlab.claims.claim import Claim, Outcome, within
from attnlab.claims.matrices import inner
from attnlab.claims.scale import Scale
from attnlab.claims.svm.samples import score_gaps
from attnlab.data import Tokens, optimal_tokens, scores, sphere
from attnlab.data.tokens import Array
from attnlab.models import gradient
from attnlab.svm import MarginSolutions, distance_to_face, margin_rows, solve_factored, solve_margin, solve_margins
from attnlab.svm.factors import Factors, local_solutions, random_starts
from attnlab.svm.norms import ENTRYWISE_MAX
from attnlab.train import RegularizationPath, regularization_path
from attnlab.train.pathresult import PathStatus

Norm = Literal["frobenius", "nuclear"]
NORMS: tuple[Norm, Norm] = ("frobenius", "nuclear")
ROUNDING = 1e-12
FACTORED = 1e-4  # relative; what a search over factors is asked to reach


@dataclass(frozen=True, eq=False)
class Followed:
    """Regularization paths of a batch in one norm, with the max-margin solutions that they should tend to."""

    tokens: Tokens
    margins: MarginSolutions
    path: RegularizationPath
    drawn: int

    @property
    def deficit(self) -> Array:
        """1 - margin of W_R over the largest margin of a W of that norm, (trials, radii)."""
        ord_ = "fro" if self.path.norm == "frobenius" else "nuc"
        best = np.array([np.linalg.norm(found.W, ord=ord_) for found in self.margins])
        sizes = np.linalg.norm(self.path.W, ord=ord_, axis=(-2, -1))
        return 1.0 - least_leads(self.tokens, self.path.W) * best[:, None] / sizes

    @property
    def off(self) -> Array:
        """Distance of the last W from the set of solutions, as 1 - cosine, (trials,)."""
        if self.path.norm == "frobenius":
            assert self.path.misalignment is not None
            return self.path.misalignment[:, -1]
        sines = np.array(
            [distance_to_face(W, found) for W, found in zip(self.path.W[:, -1], self.margins, strict=True)]
        )
        return sines**2 / (1.0 + np.sqrt(1.0 - np.minimum(sines, 1.0) ** 2))


def least_leads(tokens: Tokens, W: Array) -> Array:
    """The least of `(x_opt - x_t)^T W z` over queries and other visible tokens; W is (trials, radii, d, d)."""
    z = tokens.z if tokens.K is not None else tokens.z[:, :, None, :]
    logits = np.einsum("rntd,rmde,rnke->rmnkt", tokens.x, W, z, optimize=True)
    best = optimal_tokens(tokens).reshape(len(W), 1, tokens.n, -1, 1)
    lead = np.take_along_axis(logits, best, axis=-1) - logits
    compared = tokens.visible.reshape(len(W), 1, tokens.n, -1, tokens.T) & (np.arange(tokens.T) != best)
    return np.where(compared, lead, np.inf).min((-3, -2, -1))


def promised_deficit(tokens: Tokens, multiples: Array) -> Array:
    """What the proof of Theorem 10 promises: a deficit of at most log(8 c T n K B / c_a) / (R margin).

    c is the ratio of the largest to the least slope of the logistic loss, B the largest distance of two tokens of a
    sequence times |v|, c_a the least score gap. (trials, radii)
    """
    gamma = np.where(tokens.visible, scores(tokens), np.nan).reshape(len(tokens.x), -1)
    steepness = (1.0 + np.exp(np.nanmax(gamma, -1))) / (1.0 + np.exp(np.nanmin(gamma, -1)))
    apart = np.linalg.norm(tokens.x[:, :, :, None] - tokens.x[:, :, None], axis=-1).max((1, 2, 3))
    assert tokens.v is not None
    reach = np.linalg.norm(tokens.v, axis=-1) * apart
    count = 8.0 * tokens.T * tokens.n * (tokens.K or 1)
    return np.log(count * steepness * reach / score_gaps(tokens))[:, None] / multiples


@cache
def followed(
    sizes: tuple[int, int, int], trials: int, norm: Norm, mask: str | None, radii: tuple[float, ...]
) -> Followed:
    """Paths on random data; `mask` None: one query per sequence, else "full" or "causal": every token is a query."""
    n, T, d = sizes
    drawn = sphere(n=n, T=T, d=d, seed=0, trials=trials)
    if mask is not None:
        drawn = every_token_asks(drawn, mask)
    found = solve_margins(drawn, optimal_tokens(drawn), norm=norm)
    kept = np.flatnonzero(found.feasible)
    tokens = Tokens.stack([drawn[int(i)] for i in kept])
    margins = solve_margins(tokens, optimal_tokens(tokens), norm=norm)
    path = regularization_path(tokens, margins.W, radii=radii, norm=norm)
    return Followed(tokens, margins, path, trials)


def every_token_asks(drawn: Tokens, mask: str) -> Tokens:
    """Self-attention of every token on the sequence, or on what came before it; labels at random."""
    assert drawn.trials is not None
    y = np.random.default_rng(0).choice([-1.0, 1.0], (drawn.trials, drawn.n, drawn.T))
    seen = np.tril(np.ones((drawn.T, drawn.T), dtype=bool))
    # The full mask is written out, so that one compiled program serves both.
    return Tokens.self_attention(drawn.x, y, drawn.v, query="all", mask=seen if mask == "causal" else seen | True)


def path_radii(scale: Scale) -> tuple[float, ...]:
    """In units of the norm of the max-margin solution."""
    return scale.pick((1.0, 10.0, 100.0), (1.0, 3.0, 10.0, 30.0, 100.0, 1000.0), (1.0, 3.0, 10.0, 30.0, 100.0, 1000.0))


def _judged(cases: Sequence[Followed]) -> Outcome:
    """The largest ratio of measured to promised deficit over all cases and all radii where the promise is below 1."""
    worst, unsolved, judged, tried, facts = 0.0, 0, 0, 0, {}
    gap = np.inf
    for case in cases:
        promised, deficit = promised_deficit(case.tokens, case.path.multiples), case.deficit
        says = promised < 1.0
        worst = max(worst, float((deficit / promised)[says].max(initial=0.0)))
        unsolved += int((~case.path.solved[:, -1]).sum())
        judged, tried = judged + len(deficit), tried + case.drawn
        gap = min(gap, float(score_gaps(case.tokens).min()))
        off = case.path.misalignment
        assert off is not None
        n, T, d = case.tokens.n, case.tokens.T, case.tokens.d
        name = f"{case.path.norm} n={n} T={T} d={d}" + ("" if case.tokens.K is None else f" K={case.tokens.K}")
        name += " causal" if case.tokens.K is not None and not case.tokens.visible.all() else ""
        facts[name] = {
            "1 - cosine": {f"{R:g}": {"median": np.median(off[:, k]), "largest": off[:, k].max()}
                           for k, R in enumerate(case.path.multiples)},
            "largest 1 - cosine with the set of solutions, last radius": case.off.max(),
            "fall per decade of R, median": _rate(case),
            "within 1e-2 at 10 margins": _share(case, 10.0, 1e-2),
            "within 1e-3 at 100 margins": _share(case, 100.0, 1e-3),
            "solutions not unique": sum(found.unique is not True for found in case.margins)
            if case.path.norm == "nuclear" else 0,
        }  # fmt: skip
    return within(
        worst if not unsolved else np.inf, 1.0, instances=judged, tried=tried, seeds=(0,), slack={"score gap": gap},
        numbers={"unsolved at the last radius": unsolved, "paths": facts},
    )  # fmt: skip


def _rate(case: Followed) -> float:
    """Decades that 1 - cosine falls per decade of the radius, over the last two radii; rounding left out."""
    off, R = case.path.misalignment, case.path.multiples
    assert off is not None
    seen = (off[:, -1] > ROUNDING) & (off[:, -2] > ROUNDING)
    if not seen.any():
        return np.nan
    return float(np.median(np.log10(off[seen, -2] / off[seen, -1])) / np.log10(R[-1] / R[-2]))


def _share(case: Followed, multiple: float, limit: float) -> str:
    assert case.path.misalignment is not None
    at = int(np.searchsorted(case.path.multiples, multiple))
    return f"{int((case.path.misalignment[:, at] <= limit).sum())} of {len(case.path.W)}"


def paths_tend_to_the_max_margin_direction(scale: Scale) -> Outcome:
    """Paths of one query per sequence in both norms."""
    shapes = scale.pick(((3, 4, 4),), ((2, 3, 2), (3, 4, 4)), ((2, 3, 2), (3, 4, 4), (5, 5, 5)))
    trials = scale.pick(5, 20, 100)
    return _judged([followed(sizes, trials, norm, None, path_radii(scale)) for sizes in shapes for norm in NORMS])


def paths_of_sequences_tend_to_the_max_margin_direction(scale: Scale) -> Outcome:
    """Paths where every token is a query, with and without the causal mask, in both norms."""
    trials = scale.pick(3, 10, 50)
    masks = ("full", "causal")
    return _judged([followed((2, 3, 4), trials, norm, mask, path_radii(scale)) for norm in NORMS for mask in masks])


def balls_of_factors_are_nuclear_balls(scale: Scale) -> Outcome:
    """At every solution over K and Q: balance, nuclear norm R, and the first-order condition over the nuclear ball."""
    case = followed((3, 4, 4), scale.pick(5, 20, 100), "nuclear", None, path_radii(scale))
    path = case.path
    assert path.K is not None
    assert path.Q is not None
    kept = path.status == PathStatus.SPHERE
    K, Q, W, R = path.K[kept], path.Q[kept], path.W[kept], path.radii[kept]
    unbalanced = np.abs(np.swapaxes(K, -1, -2) @ K - np.swapaxes(Q, -1, -2) @ Q).max((-2, -1)) / R
    spent = np.abs(np.linalg.norm(W, ord="nuc", axis=(-2, -1)) / R - 1.0)
    # <-grad, W> <= R |grad| in the spectral norm over the nuclear ball, with equality at its stationary points.
    stationary = []
    for k in range(len(path.multiples)):
        slope = gradient(case.tokens, path.W[:, k])[0]["W"]
        reach = np.linalg.norm(slope, ord=2, axis=(-2, -1)) * path.radii[:, k]
        stationary.append(1.0 - inner(-slope, path.W[:, k]) / reach)
    uphill = np.abs(np.stack(stationary, axis=1)[kept])
    return within(
        float(max(unbalanced.max(), spent.max(), uphill.max())), 1e-6, instances=int(kept.sum()), tried=kept.size,
        seeds=(0,), numbers={"largest |K^T K - Q^T Q| / R": unbalanced.max(), "largest ||W|_* / R - 1|": spent.max(),
                             "largest 1 - <-grad, W> / (R |grad|)": uphill.max()},
    )  # fmt: skip


def narrow_factors_reach_the_convex_optimum(scale: Scale) -> Outcome:
    """Keys and queries exactly as wide as the rank of the convex optimum: none below it, and some that reach it.

    The convex problem bounds them from below, with a certificate. Searches from random factors, which do not know the
    optimum, try to go below. The least known value is then compared with the bound.
    """
    seeds = range(scale.pick(2, 10, 100))
    worst, judged, reached, searches, narrower = 0.0, 0, 0, [], []
    for seed in seeds:
        tokens = sphere(n=3, T=4, d=5, seed=seed)
        best = optimal_tokens(tokens)
        convex = solve_margin(tokens, best, norm="nuclear")
        if convex.rank is None:
            continue
        judged += 1
        optimum = float(np.linalg.norm(convex.W, ord="nuc"))
        found = solve_factored(tokens, best, convex.rank, convex=convex).value / optimum - 1.0
        searched = _from_random_starts(tokens, best, convex.rank, seed) / optimum - 1.0
        worst = max(worst, abs(min(found, searched)), -searched)
        reached += searched <= FACTORED
        searches.append(searched)
        if convex.rank > 1:
            narrower.append(
                solve_factored(tokens, best, convex.rank - 1, convex=convex, restarts=2).value / optimum - 1.0
            )
    return within(
        worst, FACTORED, instances=judged, tried=len(seeds), seeds=seeds,
        numbers={"searches that reach the optimum": f"{reached} of {judged}",
                 "relative excess of the searches": [min(searches, default=None), max(searches, default=None)],
                 "relative excess with one column less": [min(narrower, default=None), max(narrower, default=None)]},
        note="Over factors the problem is not convex: a search that ends above the optimum, perhaps where a column is "
        "zero, contradicts nothing. With fewer columns than the rank the values are upper bounds.",
    )  # fmt: skip


def _from_random_starts(tokens: Tokens, best: NDArray[np.intp], width: int, seed: int, starts: int = 3) -> float:
    """The least (|K|^2 + |Q|^2) / 2 that searches from random factors find."""
    factors = Factors.of(margin_rows(tokens, best))
    guess = np.full(len(factors.f), 1.0 / len(factors.f))
    guess /= np.linalg.norm(factors.adjoint(guess), 2)
    drawn = random_starts(factors, width, starts, seed, float(guess.sum()))
    return min(point.value for point in local_solutions(factors, drawn, guess)) / factors.size


def paths_in_another_norm_tend_to_its_max_margin_direction(scale: Scale) -> Outcome:
    """Paths over the ball of the largest entry, with the exponential loss, where every token is a query."""
    trials = scale.pick(2, 10, 50)
    multiples = np.array([1.0, 10.0, 100.0])
    tokens = every_token_asks(sphere(n=2, T=3, d=4, seed=1, trials=trials), "causal")
    best = optimal_tokens(tokens)
    deficits, judged = [], []
    for i in range(trials):
        found = solve_margin(tokens[i], best[i], norm=ENTRYWISE_MAX, throw=False)
        if not found.feasible:
            continue
        judged.append(i)
        W = _box_path(tokens[i], best[i], multiples / found.margin, found.W * found.margin, seed=i)
        leads = least_leads(tokens[i : i + 1], W[None])[0]
        deficits.append(1.0 - leads / multiples)
    measured = np.array(deficits).reshape(-1, len(multiples))
    promised = _promised_exponential(tokens)[judged][:, None] / multiples
    says = promised < 1.0
    return within(
        float((measured / promised)[says].max(initial=0.0)), 1.0, instances=len(judged), tried=trials, seeds=(1,),
        slack={"score gap": float(score_gaps(tokens).min())},
        numbers={"norm": ENTRYWISE_MAX.name, "largest margin deficit": {f"{R:g}": measured[:, k].max()
                                                                       for k, R in enumerate(multiples)}},
        note="The solution set of this norm is a face; a margin deficit of 0 is to be in it.",
    )  # fmt: skip


def _promised_exponential(tokens: Tokens) -> Array:
    """The logarithm in `promised_deficit` for the exponential loss."""
    gamma = np.where(tokens.visible, scores(tokens), np.nan).reshape(len(tokens.x), -1)
    apart = np.linalg.norm(tokens.x[:, :, :, None] - tokens.x[:, :, None], axis=-1).max((1, 2, 3))
    assert tokens.v is not None
    count = 8.0 * tokens.T * tokens.n * (tokens.K or 1) * np.linalg.norm(tokens.v, axis=-1)
    return np.nanmax(gamma, -1) - np.nanmin(gamma, -1) + np.log(count * apart / score_gaps(tokens))


def _box_path(
    tokens: Tokens, best: NDArray[np.intp], radii: Array, toward: Array, seed: int, restarts: int = 4
) -> Array:
    """The least exponential loss over |W_ij| <= R for each R, (radii, d, d); the best of several searches."""
    rng, d = np.random.default_rng(seed), tokens.d
    points: list[Array] = []
    for R in radii:
        known = [points[-1] / np.abs(points[-1]).max()] if points else []
        starts = [toward, *known, *rng.uniform(-1.0, 1.0, (restarts, d, d))]
        ends = [
            minimize(
                _log_exponential_excess, start.ravel(), args=(tokens, best, R), jac=True, method="L-BFGS-B",
                bounds=[(-1.0, 1.0)] * d**2, options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-10},
            )
            for start in starts
        ]  # fmt: skip
        points.append(R * min(ends, key=lambda end: end.fun).x.reshape(d, d))
    return np.stack(points)


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
    growth = np.expm1(drop) / drop
    terms = np.where(asks, log_drop + np.log(growth) - top[..., 0], -np.inf)
    total = np.logaddexp.reduce(terms.ravel())
    weight = np.exp(terms - total) * np.exp(drop) / growth
    pull = weight[..., None] * np.where(asks[..., None], np.exp(log_parts - log_drop[..., None]) - np.exp(log_s), 0.0)
    return float(total), R * np.einsum("nkt,ntd,nke->de", pull, tokens.x, tokens.z).ravel()


PROMISE = (
    "measured over promised deficit `1 - margin of W_R / largest margin`, where the proof promises at most "
    "log(8 c T n K B / c_a) / (R margin), with constants of each data set"
)

CLAIMS = [
    Claim(
        id="svm-T2",
        title="Regularization paths tend to the max-margin directions",
        statement="As R grows, argmin of L over |W|_F <= R tends in direction to W^mm, and K Q^T of the argmin over "
        "|K|^2 + |Q|^2 <= 2R to the solution set of the nuclear problem (Theorem 2).",
        hypotheses=("the best token of each query is unique", "it can be separated from the others"),
        tolerance=1.0,
        reason=PROMISE,
        measure=paths_tend_to_the_max_margin_direction,
    ),
    Claim(
        id="svm-L3",
        title="A rank bound that the convex optimum meets changes nothing",
        statement="If the nuclear problem without rank bound has its solutions of rank at most m, keys and queries of "
        "width m reach the same value, min (|K|^2 + |Q|^2) / 2 = min |W|_* (Lemma 3).",
        hypotheses=("the rank of the convex optimum is certified and equals m",),
        tolerance=FACTORED,
        reason="relative difference of the least value found from the certified bound, and how far any is below it",
        measure=narrow_factors_reach_the_convex_optimum,
    ),
    Claim(
        id="svm-L15",
        title="The ball of K and Q is the nuclear ball of K Q^T",
        statement="The minimisers of L over |K|^2 + |Q|^2 <= 2R have K^T K = Q^T Q, |K Q^T|_* = R, and their products "
        "are stationary over |W|_* <= R: <-grad L, W> = R |grad L| (Lemma 15).",
        hypotheses=("the search reached a minimum on the sphere",),
        tolerance=1e-6,
        reason="the largest of three relative residuals; the searches end at a relative gradient of 1e-10",
        measure=balls_of_factors_are_nuclear_balls,
    ),
    Claim(
        id="svm-Cor1",
        title="Regularization paths in any norm",
        statement="With K queries per sequence and any norm, the argmin of L over |W| <= R tends in direction to the "
        "max-margin solutions of that norm (Corollary 1); measured in the norm of the largest entry.",
        hypotheses=("the best token of each query is unique", "it can be separated from the others"),
        tolerance=1.0,
        reason=PROMISE,
        measure=paths_in_another_norm_tend_to_its_max_margin_direction,
    ),
    Claim(
        id="svm-Cor2",
        title="Regularization paths of sequence-to-sequence attention",
        statement="With K queries per sequence, also under the causal mask, the paths over |W|_F <= R and over "
        "|K|^2 + |Q|^2 <= 2R tend to the Frobenius and nuclear max-margin solutions (Corollary 2).",
        hypotheses=("the best token of each query is unique", "it can be separated from the others"),
        tolerance=1.0,
        reason=PROMISE,
        measure=paths_of_sequences_tend_to_the_max_margin_direction,
    ),
]  # fmt: skip
