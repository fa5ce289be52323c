"""Where regularization paths go: Theorem 2 and Corollary 2, Theorem 10 with several queries, Lemma 15.

Judged is the direction. A W that separates by 1 has <W, W_mm> >= |W_mm|^2 (W_mm is the projection of 0 on the convex
set of such W), so 1 - cosine is at most the margin deficit `1 - margin of W_R / largest margin`, and that the proof of
Theorem 10 bounds by log(4 C T n K B / c_a) / (R margin). The direction therefore comes at least as fast as 1/R. Where
every multiplier is positive, W_R = R W_mm / |W_mm| + p with bounded p orthogonal to W_mm: 1 - cosine falls as 1/R^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.matrices import inner
from attnlab.claims.parts import Bound, Identity, Limit, Mean, least
from attnlab.claims.scale import Scale
from attnlab.claims.svm.samples import score_gaps
from attnlab.data import Tokens, optimal_tokens, scores, sphere
from attnlab.data.tokens import Array
from attnlab.models import gradient
from attnlab.svm import MarginSolutions, distance_to_face, solve_margins
from attnlab.theory import default_eps, locally_optimal_selections
from attnlab.train import RegularizationPath, regularization_path
from attnlab.train.pathresult import PathStatus

NormName = Literal["frobenius", "nuclear"]
NORMS: tuple[NormName, NormName] = ("frobenius", "nuclear")
ROUNDING = 1e-12  # a misalignment below this is 0 to rounding, and says nothing about a power of R
ALIGNED = 1e-3  # what 1 - cosine must reach at the largest radius
FAR = 10.0  # powers of R are fitted from so many margins on
GUARD = "tests/claims/test_claims_svm_limits.py::test_promise_against_the_printed_formula"


@dataclass(frozen=True, eq=False)
class Followed:
    """Regularization paths of a batch in one norm, with the max-margin solutions that they should tend to.

    Attributes:
        tokens: the data sets, a batch.
        selected: the tokens to be selected, laid out as the labels.
        margins: the max-margin solutions of those.
        path: the minimisers W_R.
        drawn: how many data sets were drawn.
    """

    tokens: Tokens
    selected: NDArray[np.intp]
    margins: MarginSolutions
    path: RegularizationPath
    drawn: int

    @property
    def name(self) -> str:
        """Norm, sizes, queries and mask."""
        tokens = self.tokens
        sizes = f"{self.path.norm} n={tokens.n} T={tokens.T} d={tokens.d}"
        queries = "" if tokens.K is None else f" K={tokens.K}"
        return sizes + queries + ("" if tokens.visible.all() else " causal")

    @cached_property
    def margin_ratio(self) -> Array:
        """Margin of W_R over the largest margin of a W of its norm, (trials, radii); any number where not solved."""
        order = "fro" if self.path.norm == "frobenius" else "nuc"
        best = np.array([np.linalg.norm(solution.W, ord=order) for solution in self.margins])
        # Where nothing was found W is NaN, which no norm takes; those radii are left out by whoever asks.
        W = np.where(self.path.solved[..., None, None], self.path.W, np.eye(self.tokens.d))
        sizes = np.linalg.norm(W, ord=order, axis=(-2, -1))
        return least_leads(self.tokens, W, self.selected) * best[:, None] / sizes

    @cached_property
    def misalignment(self) -> Array:
        """1 - cosine of W_R with the nearest max-margin solution, (trials, radii)."""
        if self.path.norm == "frobenius":
            assert self.path.misalignment is not None
            return self.path.misalignment
        found = np.full(self.path.solved.shape, np.nan)
        for i, k in np.argwhere(self.path.solved):
            sine = min(distance_to_face(self.path.W[i, k], self.margins[int(i)]), 1.0)
            found[i, k] = sine**2 / (1.0 + np.sqrt(1.0 - sine**2))
        return found

    def powers(self) -> Array:
        """The power of R that fits 1 - cosine best, from FAR margins on; one per data set where two radii tell."""
        tells = self.path.solved & (self.misalignment > ROUNDING) & (self.path.multiples >= FAR)
        found = []
        for misalignment, told in zip(self.misalignment, tells, strict=True):
            if told.sum() >= 2:
                log_R = np.log(self.path.multiples[told])
                found.append(np.polyfit(log_R, np.log(misalignment[told]), 1)[0])
        return np.array(found)

    def table(self) -> dict[str, Any]:
        """1 - cosine by radius."""
        rows: dict[str, Any] = {}
        for k, R in enumerate(self.path.multiples):
            solved = self.misalignment[self.path.solved[:, k], k]
            if solved.size:
                rows[f"R = {R:g} margins"] = {"median": np.median(solved), "largest": solved.max()}
        return rows


def least_leads(tokens: Tokens, W: Array, selected: NDArray[np.intp]) -> Array:
    """The least of `(x_selected - x_t)^T W z` over queries and other visible tokens; W is (trials, radii, d, d)."""
    z = tokens.z if tokens.K is not None else tokens.z[:, :, None, :]
    logits = np.einsum("rntd,rmde,rnke->rmnkt", tokens.x, W, z, optimize=True)
    chosen = selected.reshape(len(W), 1, tokens.n, -1, 1)
    lead = np.take_along_axis(logits, chosen, axis=-1) - logits
    compared = tokens.visible.reshape(len(W), 1, tokens.n, -1, tokens.T) & (np.arange(tokens.T) != chosen)
    return np.where(compared, lead, np.inf).min((-3, -2, -1))


def promised_deficit(tokens: Tokens, multiples: Array, loss: str = "logistic") -> Array:
    """What the proof of Theorem 10 promises for the best tokens: log(4 C T n K B / c_a) / (R margin), (trials, radii).

    C is the largest over the least slope of the loss on the scores, B the largest distance of two tokens of a sequence
    times |v|, c_a the least score gap. The paper prints 4 C T n B; its line (100) drops the sum over the K queries.
    """
    gamma = np.where(tokens.visible, scores(tokens), np.nan).reshape(len(tokens.x), -1)
    high = np.nanmax(gamma, axis=-1)
    low = np.nanmin(gamma, axis=-1)
    steepness = (1.0 + np.exp(high)) / (1.0 + np.exp(low)) if loss == "logistic" else np.exp(high - low)
    differences = tokens.x[:, :, :, None] - tokens.x[:, :, None]
    assert tokens.v is not None
    reach = np.linalg.norm(tokens.v, axis=-1) * np.linalg.norm(differences, axis=-1).max((1, 2, 3))
    count = 4.0 * tokens.T * tokens.n * (tokens.K or 1)
    return np.log(count * steepness * reach / score_gaps(tokens))[:, None] / multiples


@cache
def followed(
    sizes: tuple[int, int, int], trials: int, norm: NormName, mask: str | None, radii: tuple[float, ...]
) -> Followed:
    """Paths on random data; `mask` None: one query per sequence, else "full" or "causal": every token is a query."""
    n, T, d = sizes
    drawn = sphere(n=n, T=T, d=d, seed=0, trials=trials)
    if mask is not None:
        drawn = every_token_asks(drawn, mask)
    feasible = np.flatnonzero(solve_margins(drawn, optimal_tokens(drawn), norm=norm).feasible)
    tokens = Tokens.stack([drawn[int(i)] for i in feasible])
    best = optimal_tokens(tokens)
    margins = solve_margins(tokens, best, norm=norm)
    path = regularization_path(tokens, margins.W, radii=radii, norm=norm)
    return Followed(tokens, best, margins, path, trials)


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


def judged(cases: Sequence[Followed], slack: Mapping[str, float] | None = None, **facts: Any) -> Outcome:
    """Direction, its power of R, and the margins of W_R, for each norm by itself."""
    tallies = []
    for norm in dict.fromkeys(case.path.norm for case in cases):
        of_norm = [case for case in cases if case.path.norm == norm]
        tallies.extend(_tallies(norm.capitalize(), of_norm))
    gaps = {"score gap": min(float(score_gaps(case.tokens).min()) for case in cases)}
    return outcome(
        *tallies,
        instances=sum(len(case.path.W) for case in cases),
        tried=sum(case.drawn for case in cases),
        slack=least(gaps, slack or {}),
        numbers={"1 - cosine": {case.name: case.table() for case in cases}},
        **facts,
    )


def _tallies(norm: str, cases: Sequence[Followed]) -> list[Any]:
    aligned = Limit(f"{norm}: 1 - cosine at the largest radius", tolerance=ALIGNED)
    power = Mean(f"{norm}: power of R in 1 - cosine", at_most=-1.0)
    beaten = Bound(f"{norm}: margin of W_R / largest margin", rounding=1e-6)
    deficit = Bound(f"{norm}: margin deficit of W_R / the proof's bound", guard=GUARD)
    direction = Bound(f"{norm}: 1 - cosine / the proof's bound", guard=GUARD)
    for case in cases:
        solved = case.path.solved
        promised = promised_deficit(case.tokens, case.path.multiples)
        says = promised[solved] < 1.0
        aligned.add(case.misalignment[solved[:, -1], -1])
        power.add(case.powers())
        beaten.add(case.margin_ratio[solved], 1.0)
        deficit.add(1.0 - case.margin_ratio[solved], promised[solved], says=says)
        direction.add(case.misalignment[solved], promised[solved], says=says)
        aligned.leave_unsolved(int((~solved[:, -1]).sum()))
        for tally in (beaten, deficit, direction):
            tally.leave_unsolved(int((~solved).sum()))
    # In the nuclear norm the deficit bounds no cosine: the set of solutions may be a face.
    return [aligned, power, beaten, deficit] + ([direction] if norm == "Frobenius" else [])


def paths_tend_to_the_max_margin_direction(scale: Scale) -> Outcome:
    """Paths of one query per sequence in both norms."""
    shapes = scale.pick(((3, 4, 4),), ((2, 3, 2), (3, 4, 4)), ((2, 3, 2), (3, 4, 4), (5, 5, 5)))
    trials = scale.pick(5, 20, 100)
    cases = [followed(sizes, trials, norm, None, path_radii(scale)) for sizes in shapes for norm in NORMS]
    return judged(cases, seeds=(0,))


def paths_of_sequences_tend_to_the_max_margin_direction(scale: Scale) -> Outcome:
    """Paths where every token is a query, with and without the causal mask, in both norms."""
    trials = scale.pick(3, 10, 50)
    cases = [
        followed((2, 3, 4), trials, norm, mask, path_radii(scale)) for norm in NORMS for mask in ("full", "causal")
    ]
    return judged(cases, seeds=(0,))


def local_paths_of_several_queries(scale: Scale) -> Outcome:
    """Paths in the cone of a locally optimal selection that is not the best one, every token a query."""
    cases = local_selections(scale.pick(6, 30, 150))
    aligned = Limit("1 - cosine with W_mm of the selection at the largest radius", tolerance=ALIGNED)
    power = Mean("power of R in 1 - cosine", at_most=-1.0)
    if cases is None:
        return outcome(aligned, power, tried=scale.pick(6, 30, 150))
    tokens, selected, drawn = cases
    margins = solve_margins(tokens, selected)
    radii = scale.pick((10.0, 100.0), (10.0, 30.0, 100.0, 1000.0), (10.0, 30.0, 100.0, 1000.0))
    eps = np.array([default_eps(tokens[i], selected[i], solution=margins[i]) for i in range(len(selected))])
    path = regularization_path(tokens, margins.W, radii=radii, selected=selected, cone=eps)
    case = Followed(tokens, selected, margins, path, drawn)
    solved = path.solved
    aligned.add(case.misalignment[solved[:, -1], -1])
    aligned.leave_unsolved(int((~solved[:, -1]).sum()))
    power.add(case.powers())
    return outcome(
        aligned,
        power,
        tried=drawn,
        seeds=range(drawn),
        slack={"eps of the cone": float(eps.min())},
        numbers={"1 - cosine": case.table(), "data sets with such a selection": len(selected)},
    )


def local_selections(drawn: int) -> tuple[Tokens, NDArray[np.intp], int] | None:
    """Data sets of two queries with a locally optimal selection besides the best, and one such selection of each.

    Every query of it has a support token, so that Definition 4 says something of each.
    """
    kept: list[Tokens] = []
    chosen: list[NDArray[np.intp]] = []
    for seed in range(drawn):
        tokens = two_queries(seed)
        best = optimal_tokens(tokens)
        found = locally_optimal_selections(tokens)
        other = (found.selections != best).any((-2, -1)) & ~found.vacuous
        if other.any():
            kept.append(tokens)
            chosen.append(found.selections[int(other.argmax())])
    return (Tokens.stack(kept), np.stack(chosen), drawn) if kept else None


def two_queries(seed: int) -> Tokens:
    """Cross-attention of two queries per sequence on the sphere, with labels at random."""
    drawn = sphere(n=2, T=3, d=3, seed=seed)
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((2, 2, 3))
    z = z / np.linalg.norm(z, axis=-1, keepdims=True)
    return Tokens(x=drawn.x, z=z, y=rng.choice([-1.0, 1.0], (2, 2)), v=drawn.v)


def balls_of_factors_are_nuclear_balls(scale: Scale) -> Outcome:
    """At every solution over K and Q: balance, nuclear norm R, and the first-order condition over the nuclear ball."""
    case = followed((3, 4, 4), scale.pick(5, 20, 100), "nuclear", None, path_radii(scale))
    path = case.path
    assert path.K is not None
    assert path.Q is not None
    on_sphere = path.status == PathStatus.SPHERE
    K = path.K[on_sphere]
    Q = path.Q[on_sphere]
    R = path.radii[on_sphere]
    balance = Identity("|K^T K - Q^T Q| / R", tolerance=1e-6)
    balance.add(np.abs(np.swapaxes(K, -1, -2) @ K - np.swapaxes(Q, -1, -2) @ Q).max((-2, -1)) / R)
    spent = Identity("|K Q^T|_* / R - 1", tolerance=1e-6)
    spent.add(np.linalg.norm(K @ np.swapaxes(Q, -1, -2), ord="nuc", axis=(-2, -1)) / R - 1.0)
    # <-grad, W> <= R |grad| in the spectral norm over the nuclear ball, with equality at its stationary points.
    stationary = Identity("<-grad L, W> / (R |grad L|) - 1", tolerance=1e-6)
    for k in range(len(path.multiples)):
        W = np.where(on_sphere[:, k, None, None], path.W[:, k], np.eye(case.tokens.d))
        slope = gradient(case.tokens, W)[0]["W"]
        reach = np.linalg.norm(slope, ord=2, axis=(-2, -1)) * path.radii[:, k]
        stationary.add((inner(-slope, W) / reach - 1.0)[on_sphere[:, k]])
    for tally in (balance, spent, stationary):
        tally.leave_unsolved(int((~path.solved).sum()))
    return outcome(balance, spent, stationary, tried=path.status.size, seeds=(0,))


UNIQUE = ("the best token of each query is unique", "it can be separated from the others")
REASON = (
    "the direction: 1 - cosine with the nearest max-margin solution at 100 margins (1000 above smoke) against 1e-3, "
    "and the mean power of R from 10 margins on, at most -1 (the proof's bound falls as 1/R; 1/R^2 is expected); "
    "beside them margin deficits over the bound of the proof, with constants of each data set"
)

CLAIMS: list[Claim] = [
    Claim(
        id="svm-T2",
        title="Regularization paths tend to the max-margin directions",
        statement="As R grows, argmin of L over |W|_F <= R tends in direction to W_mm, and K Q^T of the argmin over "
        "|K|^2 + |Q|^2 <= 2R to the solution set of the nuclear problem (Theorem 2). The proof gives a margin deficit "
        "of at most log(4 C T n K B / c_a) / (R margin).",
        hypotheses=UNIQUE,
        setting="Random tokens, queries and head on the sphere, (n, T, d) = (3, 4, 4) and others, logistic loss; 8 "
        "searches at each radius from 1 to 1000 margins.",
        reason=REASON,
        measure=paths_tend_to_the_max_margin_direction,
    ),
    Claim(
        id="svm-Cor2",
        title="Regularization paths of sequence-to-sequence attention",
        statement="With K queries per sequence, also under the causal mask, the paths over |W|_F <= R and over "
        "|K|^2 + |Q|^2 <= 2R tend to the Frobenius and nuclear max-margin solutions (Corollary 2).",
        hypotheses=UNIQUE,
        setting="Self-attention of random tokens on the sphere, (n, T, d) = (2, 3, 4), every token a query, random "
        "labels, full and causal mask; logistic loss, summed over queries.",
        reason=REASON,
        measure=paths_of_sequences_tend_to_the_max_margin_direction,
    ),
    Claim(
        id="svm-T10",
        title="Local regularization paths with several queries",
        statement="For a locally optimal selection a of K queries per sequence, the argmin of L over cone_eps(a) and "
        "|W|_F <= R tends in direction to W_mm(a) (Theorem 10).",
        hypotheses=("a is locally optimal, with a support token for every query", "a is not the best selection"),
        setting="Random tokens on the sphere, (n, T, d) = (2, 3, 3), two random queries per sequence; all selections "
        "tried for one that is locally optimal; logistic loss; half the largest eps.",
        reason="1 - cosine with W_mm(a) at the largest radius against 1e-3, and the mean power of R, at most -1",
        measure=local_paths_of_several_queries,
    ),
    Claim(
        id="svm-L15",
        title="The ball of K and Q is the nuclear ball of K Q^T",
        statement="The minimisers of L over |K|^2 + |Q|^2 <= 2R have K^T K = Q^T Q, |K Q^T|_* = R, and their products "
        "are stationary over |W|_* <= R: <-grad L, W> = R |grad L| (Lemma 15).",
        hypotheses=("the search reached a minimum on the sphere",),
        setting="Nuclear paths of svm-T2 at (n, T, d) = (3, 4, 4), all radii.",
        reason="three relative residuals; the searches end at a relative gradient of 1e-10, so 1e-6 leaves rounding",
        measure=balls_of_factors_are_nuclear_balls,
    ),
]
