"""Why the gradient comes to point along W_mm: Lemma 7 and the three sets of its proof."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.matrices import inner
from attnlab.claims.rates.instances import (
    FIGURE_2,
    Family,
    Run,
    downhill,
    families,
    family_of,
    leads,
    logits_of,
    run,
    split,
    weights_of,
)
from attnlab.claims.rates.lemmas import A1, A2, SMALL_START
from attnlab.claims.scale import Scale
from attnlab.data import separated_signal
from attnlab.data.tokens import Array
from attnlab.theory import RateConstants, rate_bounds

ROUNDING = 1e-9


# K7 ---------------------------------------------------------------------------------------------------------------


def least_eps(constants: RateConstants, norm: Array, *, corrected: bool) -> Array:
    """The least eps with R_eps <= norm, by bisection of a falling function; NaN where there is none below 1."""
    low, high = np.full(norm.shape, -40.0), np.full(norm.shape, np.log1p(-1e-12))  # log eps
    open_ = rate_bounds.radius(constants, np.exp(high), corrected=corrected) <= norm
    for _ in range(80):
        middle = 0.5 * (low + high)
        met = rate_bounds.radius(constants, np.exp(middle), corrected=corrected) <= norm
        low, high = np.where(met, low, middle), np.where(met, middle, high)
    return np.where(open_, np.exp(high), np.nan)


def shortfall(data: Family, W: Array) -> Array:
    """1 - <-grad, W_mm/|W_mm|> / <-grad, W/|W|>, (trials, m): what eps must cover."""
    g, _ = downhill(data, W)
    size = np.linalg.norm(g, axis=(-2, -1))
    ahead = inner(g, data.unit_target[:, None]) / size
    own = inner(g, W) / np.linalg.norm(W, axis=(-2, -1)) / size
    # Where the gradient does not even point outward, the bound asks nothing.
    return np.where(own > 0, 1.0 - ahead / np.where(own > 0, own, 1.0), -np.inf)


def lean(found: Run, *, corrected: bool) -> tuple[Array, Array]:
    """Shortfall, and the least eps that the norm allows, along a run, each (trials, m)."""
    late = found.steps > 0
    eps = np.stack(
        [least_eps(c, n, corrected=corrected) for c, n in zip(found.family.constants, found.norm[:, late], strict=True)]
    )
    return shortfall(found.family, found.W[:, late]), eps


def about_the_target(data: Family, scale: Scale) -> tuple[Array, Array]:
    """Shortfall and eps at random W about W_mm, one to ten times R_eps long (corrected), each (trials, m).

    The proof asks for no more than that and phi_opt >= 1/(4T); where the last is missed eps is NaN.
    """
    W, eps = wide_weights(data, scale.pick(50, 100, 1000))
    on = np.exp(split(logits_of(data, W), data.best).log_on).min(-1)
    return shortfall(data, W), np.where(on >= 0.25 / data.tokens.T, eps, np.nan)


def wide_weights(data: Family, count: int) -> tuple[Array, Array]:
    """Random W about W_mm, and eps with R_eps between a tenth of |W| and all of it, (trials, count)."""
    rng = np.random.default_rng(1)
    eps = np.exp(rng.uniform(np.log(0.01), np.log(0.95), (data.trials, count)))
    needed = np.stack([rate_bounds.radius(c, e) for c, e in zip(data.constants, eps, strict=True)])
    return around(data, needed * 10.0 ** rng.uniform(0.0, 1.0, eps.shape)), eps


def gradient_leans_as_far_as_the_norm_allows(scale: Scale) -> Outcome:
    """Along runs, at the least eps that |W_t| allows, for R_eps as printed and corrected."""
    runs = [run(data.name, scale) for data in families(scale)]
    worst, judged, numbers = -np.inf, 0, {}
    for found in runs:
        for corrected in (True, False):
            need, eps = lean(found, corrected=corrected)
            known = np.isfinite(eps)
            ratio = float((need[known] / eps[known]).max()) if known.any() else -np.inf
            worst, judged = max(worst, ratio), judged + int(known.sum())
            label = f"{found.family.name}, {'corrected' if corrected else 'printed'} R_eps"
            numbers[label] = {"records judged": int(known.sum()), "largest shortfall / eps": ratio,
                              "least eps": float(np.nanmin(eps)) if known.any() else None}  # fmt: skip
        need, eps = about_the_target(found.family, scale)
        numbers[f"{found.family.name}, random W about W_mm"] = {
            "judged": int(np.isfinite(eps).sum()), "largest shortfall / eps": float(np.nanmax(need / eps)),
        }  # fmt: skip
    paper = run(FIGURE_2, scale)
    at = [int(np.searchsorted(paper.steps, t)) for t in (10, 100, 1000) if t <= paper.steps[-1]]
    numbers["figure 2 (misses Assumption 1): shortfall at 10, 100, 1000"] = shortfall(paper.family, paper.W[:, at]).T
    return within(
        worst, 1.0, instances=judged, numbers=numbers, slack={k: v for r in runs for k, v in r.slack().items()},
        note="Printed and corrected R_eps agree wherever the second logarithm is the larger, as on all of these.",
    )  # fmt: skip


# K7b --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sets:
    """The quantities of the proof of Lemma 7 at W and nu, per sequence, (trials, m, n).

    Attributes:
        first, second, third: membership of I_1, I_2, I_3.
        log_w: log of the weight of the sequence in the gradient.
        log_loss: log of its loss times its gap.
        on: attention on its best token.
        own, target: h~ and h*, the mean lead of the best token under W (scaled to |W_mm|) and under W_mm.
    """

    first: NDArray[np.bool_]
    second: NDArray[np.bool_]
    third: NDArray[np.bool_]
    log_w: Array
    log_loss: Array
    on: Array
    own: Array
    target: Array

    def share(self, members: NDArray[np.bool_]) -> Array:
        """sum of w over members, as a multiple of the largest w, (trials, m)."""
        top = self.log_w.max(-1, keepdims=True)
        return np.where(members, np.exp(self.log_w - top), 0.0).sum(-1)


def sets(data: Family, W: Array, nu: Array) -> Sets:
    """At W of shape (trials, m, d, d) and nu of shape (trials, m)."""
    size = data.each("Lambda")[:, None, None, None] / np.linalg.norm(W, axis=(-2, -1), keepdims=True)
    logits = logits_of(data, W)
    parts = split(logits, data.best)
    own = leads(logits * size, data.best)
    target = leads(logits_of(data, data.margins.W[:, None]), data.best)
    least = own.min(-1) - 1.0
    log_w, nu_ = weights_of(data, parts), nu[..., None]
    return Sets(
        first=least <= 0.3 * nu_, second=(least > 0.3 * nu_) & (least <= 0.8 * nu_), third=least >= 0.8 * nu_,
        log_w=log_w, log_loss=log_w - parts.log_on - parts.log_off, on=np.exp(parts.log_on),
        own=(parts.share * own).sum(-1), target=(parts.share * target).sum(-1),
    )  # fmt: skip


def around(data: Family, lengths: Array, *, seed: int = 0) -> Array:
    """Random W about W_mm, near and far, of these lengths (trials, m): each sequence is helped or hurt at random, by
    its own matrix sum_t (x_opt - x_t) z^T, and a tenth of that is added in any direction."""
    rng = np.random.default_rng(seed)
    t = data.tokens
    apart = np.take_along_axis(t.x, data.best[..., None, None], axis=2) * t.T - t.x.sum(2, keepdims=True)
    own = np.einsum("rnd,rne->rnde", apart[:, :, 0], t.z)
    push = np.einsum("rmn,rnde->rmde", rng.standard_normal((*lengths.shape, t.n)), own)
    push /= np.linalg.norm(push, axis=(-2, -1), keepdims=True)
    push += 0.1 / t.d * rng.standard_normal(push.shape)
    far = 10.0 ** rng.uniform(-3.0, 0.3, lengths.shape)
    W = data.unit_target[:, None] + push * far[..., None, None]
    return W * (lengths / np.linalg.norm(W, axis=(-2, -1)))[..., None, None]


def proof_errors(data: Family, W: Array, eps: Array) -> tuple[dict[str, float], NDArray[np.int64]]:
    """By how much each inequality of the proof is missed where |W| >= R_eps and phi_opt >= 1/(4T); at most 0 where it
    holds. NaN in eps is left out. And how many sequences were in I_1, I_2, I_3."""
    nu = eps / (1.0 - eps)
    s = sets(data, W, np.where(np.isfinite(nu), nu, 1.0))
    judged = np.isfinite(nu) & (s.on.min(-1) >= 0.25 / data.tokens.T)
    each, nu_ = judged[..., None], np.where(judged, nu, 1.0)[..., None]
    size = 2.0 * data.each("condition")[:, None, None]
    left, right = s.share(s.third), (0.5 * nu_ / size)[..., 0] * s.share(s.first)
    missed = {
        "I_1 is not empty": (1.0 - s.first.any(-1), judged),
        "h~ <= (1 + nu/2) h* on I_1": (s.own - (1.0 + 0.5 * nu_) * s.target, s.first & each),
        "h~ <= (1 + nu) h* on I_2": (s.own - (1.0 + nu_) * s.target, s.second & each),
        "w(I_3) <= nu/(4 B^2 Lambda) w(I_1), relative": (left / right - 1.0, judged),
        "1 <= h*": (1.0 - s.target, each),
        "h~ <= 2 B^2 Lambda": (s.own - size, each),
    }
    counts = np.array([(part & each).sum() for part in (s.first, s.second, s.third)])
    return {name: float(np.where(where, values, -np.inf).max()) for name, (values, where) in missed.items()}, counts


def three_sets_behave_as_in_the_proof(scale: Scale) -> Outcome:
    """Along runs at the least eps that |W_t| allows, and at random W about W_mm of one to ten times R_eps."""
    runs = [run(data.name, scale) for data in families(scale)]
    count = scale.pick(100, 300, 3000)
    errors: dict[str, float] = {}
    judged, sizes = 0, {}
    for found in runs:
        data = found.family
        along = (found.W[:, found.steps > 0], lean(found, corrected=True)[1])
        for label, (W, at) in {"along the run": along, "about W_mm": wide_weights(data, count)}.items():
            missed, counts = proof_errors(data, W, at)
            judged += int(np.isfinite(at).sum())
            errors = {name: max(errors.get(name, -np.inf), error) for name, error in missed.items()}
            sizes[f"{data.name}, {label}"] = counts
    return within(
        max(errors.values()), ROUNDING, instances=judged, slack={k: v for r in runs for k, v in r.slack().items()},
        seeds=(0, 1), numbers={"by how much each is missed": errors, "sequences in I_1, I_2, I_3": sizes,
                 "figure 2 at nu = 0.1, I_1/I_2/I_3": _figure_2_sizes(scale)},
    )  # fmt: skip


def _figure_2_sizes(scale: Scale) -> dict[str, list[int]]:
    """Of the first trial."""
    found = run(FIGURE_2, scale)
    at = [int(np.searchsorted(found.steps, t)) for t in (100, 1000, 3000) if t <= found.steps[-1]]
    W = found.W[:, at]
    s = sets(found.family, W, np.full(W.shape[:2], 0.1))
    counts = np.stack([part[0].sum(-1) for part in (s.first, s.second, s.third)], axis=-1)
    return {f"t = {int(found.steps[k])}": row.tolist() for k, row in zip(at, counts, strict=True)}


# E4 ---------------------------------------------------------------------------------------------------------------


def equation_33_under_equation_36(scale: Scale, *, corrected: bool) -> Outcome:
    """Random W about W_mm, R' = |W|/|W_mm| from 0.1 to 1e4, that meet Eq. (36): left over right side of Eq. (33)."""
    count = scale.pick(300, 1000, 10_000)
    data = family_of("pair", separated_signal(n=2, T=2, d=8, noise=0.3, orthogonal=True, trials=scale.pick(2, 3, 10)))
    n, T = data.tokens.n, data.tokens.T
    size = 2.0 * data.each("condition")[:, None]
    stretch = 10.0 ** np.random.default_rng(1).uniform(-1.0, 4.0, (data.trials, count))  # R'
    W = around(data, stretch * data.each("Lambda")[:, None])
    worst, judged, broken = -np.inf, 0, 0
    for nu in (0.01, 0.1, 1.0):
        s = sets(data, W, np.full(stretch.shape, nu))
        losses = np.where(s.third, s.log_loss, -np.inf).max(-1) - np.where(s.first, s.log_loss, np.inf).min(-1)
        factor = size / (0.5 * nu) if corrected else 0.5 * nu / size
        meets = 0.5 * nu * stretch >= np.log(factor * (n - 1) * (T - 1) * (4 * T) ** 2) + losses
        # Eq. (34) rests on phi_opt >= 1/(4T), and this case of the proof on sequences in I_1 and I_3.
        meets &= (s.on.min(-1) >= 0.25 / T) & s.first.any(-1) & s.third.any(-1)
        top = s.log_w.max(-1, keepdims=True)
        left = np.where(s.third, np.exp(s.log_w - top) * (s.own - 1.0 - nu), 0.0).sum(-1)
        ratio = (left / (0.5 * nu * np.where(meets, s.share(s.first), 1.0)))[meets]
        judged, broken = judged + int(meets.sum()), broken + int((ratio > 1.0 + ROUNDING).sum())
        worst = max(worst, float(ratio.max(initial=-np.inf)))
    return within(worst, 1.0 + ROUNDING, instances=judged, tried=3 * stretch.size, seeds=(0, 1), slack=data.slack(),
                  numbers={"W that break Eq. (33)": broken})  # fmt: skip


CLAIMS = [
    Claim(
        id="rates-K7",
        title="Far out, the gradient leans to W_mm as much as to W_t",
        statement="For eps in (0,1) and |W_t| >= R_eps, <-grad, W_mm/|W_mm|> >= (1 - eps) <-grad, W_t/|W_t|>, with "
        "R_eps = 2 Lambda/eps max(log(4 n Upsilon T^3 / (B^2 Lambda eps)), 5 log(20 T B^2 Lambda/eps)) (Lemma 7, Eq. "
        "4); corrected, the first logarithm is log(64 n B^2 Lambda Upsilon T^3 / eps). Both are judged.",
        hypotheses=(SMALL_START, A1, A2, "normalized GD", "|W_t| >= R_eps"),
        tolerance=1.0,
        reason="largest shortfall 1 - ratio, over the least eps that |W_t| allows",
        measure=gradient_leans_as_far_as_the_norm_allows,
    ),
    Claim(
        id="rates-K7b",
        title="Three kinds of sequences in the proof of Lemma 7",
        statement="With nu = eps/(1-eps), W~ = Lambda W/|W| and delta_i the least lead under W~ less 1: I_1 = {delta "
        "<= 0.3 nu} is not empty; h~ <= (1 + nu/2) h* on it, <= (1 + nu) h* on I_2 = {0.3 nu < delta <= 0.8 nu}; the "
        "weight of I_3 = {delta >= 0.8 nu} is at most nu/(4 B^2 Lambda) of that of I_1; 1 <= h* and h~ <= 2 B^2 Lambda "
        "(Eqs. 30 to 36).",
        hypotheses=(A1, A2, "phi_opt >= 1/(4T)", "|W| >= R_eps (corrected)"),
        tolerance=ROUNDING,
        reason="by how much the worst of the six inequalities is missed; rounding of logits up to 1e6",
        measure=three_sets_behave_as_in_the_proof,
    ),
    erratum(
        id="rates-E4",
        title="A factor of Eq. (36) is upside down",
        printed="Eqs. (34) and (35) give Eq. (33) when exp(0.5 nu R') >= 0.5 nu (2 B^2 Lambda)^-1 (n-1)(T-1)(4T)^2 "
        "max_I3 loss gap / min_I1 loss gap (Eq. 36).",
        corrected="the factor is (2 B^2 Lambda) / (0.5 nu), as in Eq. (8) of the main text; R_eps then has log(64 n "
        "B^2 Lambda Upsilon T^3/eps). R_eps itself keeps its value unless n is in the thousands: its other logarithm "
        "is larger.",
        hypotheses=(A1, A2, "phi_opt >= 1/(4T)", "I_1 and I_3 not empty", "Eq. (36)"),
        tolerance=1.0 + ROUNDING,
        reason="left over right side of Eq. (33); random W about W_mm, lengths 0.1 to 1e4 times |W_mm|",
        measure_printed=lambda scale: equation_33_under_equation_36(scale, corrected=False),
        measure_corrected=lambda scale: equation_33_under_equation_36(scale, corrected=True),
    ),
]
