"""Formulas and constants that read differently in print: each as printed, and as it holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnlab.claims.claim import Claim, Outcome, Verdict, erratum, within
from attnlab.claims.matrices import inner, length
from attnlab.claims.scale import Scale
from attnlab.claims.svm.landscape import (
    ASSUMPTION_B,
    each_step_lowers_the_loss,
    loss_falls_toward_the_max_margin_direction,
)
from attnlab.claims.svm.limits import Followed, followed, least_leads, path_radii, promised_deficit
from attnlab.claims.svm.samples import SIZES, TRIALS, all_support, equal_others, slopes
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.data.tokens import Array
from attnlab.models import gradient, loss
from attnlab.optim import ngd
from attnlab.svm import solve_margins
from attnlab.theory import lipschitz_constants
from attnlab.train import descend, misalignment

EPS = 2.22e-16  # as printed
SMALLEST = float(np.log(np.finfo(np.float64).tiny))


# E1 ---------------------------------------------------------------------------------------------------------------


def rank_is_at_most_the_smaller_of_n_and_d(scale: Scale) -> Outcome:
    """Ranks of max-margin solutions in both norms, for n below, at and above d."""
    trials = scale.pick(3, 20, 100)
    excess, judged, tried, found = -np.inf, 0, 0, {}
    for n, T, d in ((3, 5, 6), (5, 5, 5), (8, 3, 5)):
        tokens = sphere(n=n, T=T, d=d, seed=1, trials=trials)
        for norm in ("frobenius", "nuclear"):
            solved = solve_margins(tokens, optimal_tokens(tokens), norm=norm)
            ranks = [one.rank for one in solved if one.feasible and one.rank is not None]
            excess = max(excess, max(ranks, default=-np.inf) - min(n, d))
            judged, tried = judged + len(ranks), tried + trials
            found[f"{norm} n={n} d={d}"] = {"largest": max(ranks, default=None), "solved": len(ranks)}
    outcome = within(excess, 0, instances=judged, tried=tried, seeds=(1,), numbers={"ranks": found})
    if outcome.verdict is not Verdict.HOLDS:
        return outcome
    note = "A d x d matrix has rank at most d, so max(n, d) bounds every matrix; min(n, d) is what Lemma 1 gives."
    return replace(outcome, verdict=Verdict.VACUOUS, note=note)


# E2 ---------------------------------------------------------------------------------------------------------------


def _factors(seed: int, spread: float = 1.0) -> tuple[Tokens, dict[str, Array], np.random.Generator]:
    rng = np.random.default_rng(seed)
    tokens = sphere(**SIZES, seed=seed, trials=TRIALS)
    K, Q = spread * rng.standard_normal((2, TRIALS, tokens.d, tokens.d))
    return tokens, {"K": K, "Q": Q}, rng


def _off_by(formula: dict[str, Array], tokens: Tokens, weights: dict[str, Array], along: dict[str, Array]) -> Array:
    """Relative error of a gradient formula along a direction, against central differences, (trials,)."""
    unit = {name: part / length(part)[:, None, None] for name, part in along.items()}
    h = 1e-5
    ends = [loss(tokens, {name: w + side * h * unit[name] for name, w in weights.items()}) for side in (1.0, -1.0)]
    measured = (ends[0] - ends[1]) / (2.0 * h)
    told = sum(inner(part, unit[name]) for name, part in formula.items())
    size = np.sqrt(sum(inner(part, part) for part in formula.values()))
    return np.abs(measured - told) / size


def _gradient_formula(scale: Scale, printed: bool) -> Outcome:
    """Along the correct gradient, along the formula, and along a random direction."""
    seeds = range(18, 18 + scale.pick(1, 3, 10))
    errors = []
    for seed in seeds:
        tokens, weights, rng = _factors(seed)
        K, Q = weights["K"], weights["Q"]
        G = slopes(tokens, K @ np.swapaxes(Q, -1, -2))["W"]
        G_t = np.swapaxes(G, -1, -2)
        correct = {"K": G @ Q, "Q": G_t @ K}
        formula = {"K": G_t @ Q, "Q": G @ K} if printed else correct
        random = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
        errors.append(
            np.max([_off_by(formula, tokens, weights, along) for along in (correct, formula, random)], axis=0)
        )
    found = np.concatenate(errors)
    return within(float(found.max()), 1e-6, instances=len(found), seeds=seeds,
                  numbers={"least error": found.min(), "largest error": found.max()})  # fmt: skip


# E3 ---------------------------------------------------------------------------------------------------------------


def printed_constant_of_one_factor(scale: Scale) -> Outcome:
    """n = 1, T = 2, d = m = 1, tokens 1 and -1, query and head 1, Q from 20 to 60: neighbours on a grid of K."""
    queries = np.array([1.0, 20.0, 40.0, 60.0])
    logits = np.linspace(-2.0, 2.0, 101)  # K Q
    one = Tokens(x=[[[1.0], [-1.0]]], z=[[1.0]], y=[1.0], v=[1.0])
    constant = lipschitz_constants(one)
    K = (logits / queries[:, None]).reshape(-1, 1, 1)
    Q = np.repeat(queries, len(logits)).reshape(-1, 1, 1)
    batch = Tokens(x=np.tile(one.x, (len(K), 1, 1, 1)), z=np.ones((len(K), 1, 1)), y=np.ones((len(K), 1)), v=[1.0])
    slope = slopes(batch, {"K": K, "Q": Q})["K"].reshape(len(queries), -1)
    steepest = np.abs(np.diff(slope) / np.diff(K.reshape(len(queries), -1))).max(-1)
    ratio = steepest / np.array([constant.K_printed([[q]]) for q in queries])
    return within(float(ratio.max()), 1.0, instances=len(queries), tried=len(K),
                  numbers={f"ratio at Q = {q:g}": r for q, r in zip(queries, ratio, strict=True)})  # fmt: skip


def squared_constant_of_one_factor(scale: Scale) -> Outcome:
    """Random data, K and Q of three sizes, one of them moved; and the one-dimensional case."""
    tokens, _, rng = _factors(3)
    L_W = np.array([lipschitz_constants(tokens[i]).W for i in range(TRIALS)])
    worst, judged = 0.0, 0
    for spread in (0.1, 1.0, 3.0):
        for _ in range(scale.pick(1, 3, 30)):
            K, Q, step = spread * rng.standard_normal((3, TRIALS, tokens.d, tokens.d))
            start = slopes(tokens, {"K": K, "Q": Q})
            for apart in (1e-3, 1.0):
                moved = apart * step
                for name, fixed, end in (("K", Q, {"K": K + moved, "Q": Q}), ("Q", K, {"K": K, "Q": Q + moved})):
                    change = length(slopes(tokens, end)[name] - start[name])
                    bound = np.linalg.norm(fixed, ord=2, axis=(-2, -1)) ** 2 * L_W * length(moved)
                    worst = max(worst, float((change / bound).max()))
                    judged += TRIALS
    printed = printed_constant_of_one_factor(scale)
    # One dimension: the corrected constant is Q times the printed one.
    line = max(printed.numbers[f"ratio at Q = {q:g}"] / q for q in (1.0, 20.0, 40.0, 60.0))
    return within(max(worst, line), 1.0, instances=judged + printed.instances, seeds=(3,),
                  numbers={"random data": worst, "the case above": line})  # fmt: skip


# E4 ---------------------------------------------------------------------------------------------------------------


def printed_step_still_lowers_the_loss(scale: Scale) -> Outcome:
    """Descent with step 2 / L_W, the printed limit."""
    outcome = each_step_lowers_the_loss(scale, step=2.0)
    note = (
        "The statement stands with its printed step. A gradient that is L-Lipschitz and nothing more gives this drop "
        "only up to 1 / L: at 2 / L the function L w^2 / 2 stays level. Here |S'| <= 1/2 and third moments of softmax "
        "are small, so that L_W is at least four times the true constant."
    )
    return replace(outcome, slack={"2 - eta L_W": 0.0}, note=note)


# E5 ---------------------------------------------------------------------------------------------------------------


def printed_uniform_constant(scale: Scale) -> Outcome:
    """log of -<grad L, W^mm> along R W^mm, on data that meet Assumption B."""
    lowest, judged, tried, slack, facts = np.inf, 0, 0, {}, {}
    for name, sample in (("B.1", all_support(0)), ("B.2", equal_others(0))):
        W_mm = sample.margins.W
        slack |= sample.slack
        for R in (10.0, 100.0, 1000.0):
            mantissa, log_scale = gradient(sample.tokens, R * W_mm)
            logs = (np.log(-inner(mantissa["W"], W_mm)) + log_scale["W"])[sample.meets]
            lowest = min(lowest, float(logs.max()))
            facts[f"{name}, R = {R:g}: largest log"] = float(logs.max())
        judged, tried = judged + int(sample.meets.sum()), tried + TRIALS
    # A constant c > 0 with -<grad L, W^mm> >= c is a float64 only if its log is above SMALLEST.
    return within(SMALLEST - lowest, 0.0, instances=judged, tried=tried, seeds=(0,), slack=slack, numbers=facts)


# E10 --------------------------------------------------------------------------------------------------------------


def _nuclear_paths(scale: Scale) -> Followed:
    return followed((3, 4, 4), scale.pick(5, 20, 100), "nuclear", None, path_radii(scale))


def _limit_of_product(scale: Scale, printed: bool) -> Outcome:
    """The deficit of Q K^T, or of K Q^T, at the last radius against what the proof promises."""
    case = _nuclear_paths(scale)
    W = np.swapaxes(case.path.W, -1, -2) if printed else case.path.W
    size = np.array([np.linalg.norm(found.W, ord="nuc") for found in case.margins])
    R = case.path.multiples[-1]
    deficit = 1.0 - least_leads(case.tokens, W[:, -1:])[:, 0] * size / case.path.radii[:, -1]
    promised = promised_deficit(case.tokens, case.path.multiples[-1:])[:, 0]
    cosine = 1.0 - misalignment(W[:, -1], case.margins.W)
    return within(float((deficit / promised).max()), 1.0, instances=len(deficit), tried=case.drawn, seeds=(0,),
                  numbers={"radius, in margins": R, "cosine with a solution: least": cosine.min(),
                           "largest": cosine.max()})  # fmt: skip


# E11 --------------------------------------------------------------------------------------------------------------


def printed_no_stationary_point_of_factors(scale: Scale) -> Outcome:
    """Least gradient norm of K and Q at K = Q = 0 on data that meet Assumption B; beside it that of W at 0."""
    stationary, judged, tried, slack, of_W = 0, 0, 0, {}, np.inf
    for sample in (all_support(0), equal_others(0)):
        zero = np.zeros((TRIALS, sample.tokens.d, sample.tokens.d))
        both = slopes(sample.tokens, {"K": zero, "Q": zero})
        vanishes = (length(both["K"]) == 0) & (length(both["Q"]) == 0)
        stationary += int((sample.meets & vanishes).sum())
        of_W = min(of_W, float(length(slopes(sample.tokens, zero)["W"])[sample.meets].min()))
        slack |= sample.slack
        judged, tried = judged + int(sample.meets.sum()), tried + TRIALS
    return within(
        stationary, 0, instances=judged, tried=tried, seeds=(0,), slack=slack,
        numbers={"data sets with a zero gradient at K = Q = 0": stationary, "least |grad L(W)| at W = 0": of_W},
        note="Theorem 3 itself is on W alone, and stands.",
    )  # fmt: skip


# E12 --------------------------------------------------------------------------------------------------------------


def printed_smallest_number(scale: Scale) -> Outcome:
    """Is there no positive float64 below 2.22e-16, and is 1 + 2.22e-16 = 1?"""
    smaller = float(np.nextafter(0.0, 1.0))
    wrong = int(0.0 < smaller < EPS) + int(np.float64(1.0) + np.float64(EPS) != 1.0)
    return within(wrong, 0, instances=2, numbers={"smallest positive float64": smaller,
                                                  "1 + 2.22e-16 - 1": float(np.float64(1.0) + EPS - 1.0)})  # fmt: skip


def spacing_at_one(scale: Scale) -> Outcome:
    """2.22e-16 against the distance from 1 to the next float64; and where adding it to |grad| stops a run."""
    spacing = float(np.spacing(1.0))
    off = abs(EPS / spacing - 1.0) if 1.0 + spacing / 2 == 1.0 else np.inf
    numbers: dict[str, object] = {"spacing of float64 at 1": spacing}
    if scale is not Scale.SMOKE:
        tokens = sphere(n=2, T=3, d=4, seed=0)
        for guard in ("paper", "stable"):
            run = descend(tokens, ngd(0.1, guard=guard), steps=6000, init="zeros")
            numbers[f"margin after 6000 steps, guard {guard!r}"] = float(run.metrics["margin"][-1])
    return within(off, 1e-3, instances=1, numbers=numbers)


CLAIMS = [
    Claim(
        id="svm-E1",
        title="Rank of the max-margin solutions",
        statement="Printed: rank W^mm and rank W*^mm are at most max(n, d) (text and captions of Figures 4 and 10). "
        "That holds for every d x d matrix; Lemma 1 gives min(n, d), which is what is measured.",
        hypotheses=("the best tokens can be separated",),
        tolerance=0,
        reason="the largest rank less min(n, d); ranks count singular values that are certainly not zero",
        measure=rank_is_at_most_the_smaller_of_n_and_d,
        expected=Verdict.VACUOUS,
    ),
    erratum(
        id="svm-E2",
        title="Gradients in K and Q, equation (18)",
        printed="grad_K = (1/n) sum l'_i z_i gamma_i^T S' X_i Q = (grad_W)^T Q and grad_Q = (grad_W) K.",
        corrected="grad_K = (grad_W) Q and grad_Q = (grad_W)^T K, at W = K Q^T.",
        tolerance=1e-6,
        reason="largest error over |gradient| against central differences of step 1e-5, exact to about 1e-8",
        measure_printed=lambda scale: _gradient_formula(scale, printed=True),
        measure_corrected=lambda scale: _gradient_formula(scale, printed=False),
    ),
    erratum(
        id="svm-E3",
        title="Lipschitz constants in K and Q, Lemma 4",
        printed="grad_K is |Q| L_W-Lipschitz in K, and grad_Q is |K| L_W-Lipschitz in Q.",
        corrected="the constants are |Q|^2 L_W and |K|^2 L_W: the chain rule gives a factor for each derivative. The "
        "printed ones hold where |Q|, |K| <= 1.",
        hypotheses=("the logistic loss, M0 = 1/4 and M1 = 1",),
        tolerance=1.0,
        reason="the ratio of the two sides",
        measure_printed=printed_constant_of_one_factor,
        measure_corrected=squared_constant_of_one_factor,
    ),
    Claim(
        id="svm-E4",
        title="The printed step of the descent lemma",
        statement="Printed: with eta <= 2 / L_W, L(W(k+1)) - L(W(k)) <= -(eta / 2) |grad L(W(k))|^2 (Lemma 8). The "
        "usual argument gives it up to 1 / L_W; it holds up to 2 / L_W as L_W is at least 4 times the true constant.",
        hypotheses=("eta = 2 / L_W, with the constant of Lemma 4 of each data set",),
        tolerance=1.0,
        reason="promised over measured drop of a step; the promised drops must also add up to no more than L(0) - L*",
        measure=printed_step_still_lowers_the_loss,
    ),
    erratum(
        id="svm-E5",
        title="The constant of Lemma 9",
        printed="there is a constant c > 0 with <grad L(W), W^mm> <= -c for all W.",
        corrected="<grad L(W), W^mm> < 0 for all W; c has the factor s_opt (1 - s_opt), which depends on W and "
        "vanishes along R W^mm.",
        hypotheses=(ASSUMPTION_B,),
        tolerance=1e-10,
        reason="printed: log of -<grad L, W^mm> at R W^mm, below that of every normal float64; corrected: as svm-L9",
        measure_printed=printed_uniform_constant,
        measure_corrected=loss_falls_toward_the_max_margin_direction,
    ),
    erratum(
        id="svm-E10",
        title="The product in Corollary 2",
        printed="Q_R K_R^T / R tends to the nuclear max-margin solutions.",
        corrected="K_R Q_R^T / R does; the logits are x^T K Q^T z.",
        hypotheses=("the best token of each query is unique", "it can be separated from the others"),
        tolerance=1.0,
        reason="measured over promised margin deficit at the largest radius, as svm-T2",
        measure_printed=lambda scale: _limit_of_product(scale, printed=True),
        measure_corrected=lambda scale: _limit_of_product(scale, printed=False),
    ),
    erratum(
        id="svm-E11",
        title="Stationary points of the objective in K and Q",
        printed="under Assumption B the objectives in W and in (K, Q) lack stationary points (Section 4.1).",
        corrected="the objective in W lacks them (Theorem 3); K = Q = 0 is one of the objective in (K, Q).",
        hypotheses=(ASSUMPTION_B,),
        tolerance=1e-10,
        reason="printed: a count of data sets whose gradient at K = Q = 0 is exactly zero; corrected: as svm-L9",
        measure_printed=printed_no_stationary_point_of_factors,
        measure_corrected=loss_falls_toward_the_max_margin_direction,
    ),
    erratum(
        id="svm-E12",
        title="What 2.22e-16 is",
        printed="2.22e-16 is the smallest representable number, 1 + 2.22e-16 = 1 (Appendix F).",
        corrected="it is the distance from 1 to the next float64; numbers down to 5e-324 are representable.",
        tolerance=1e-3,
        reason="relative difference of the printed three digits from the spacing at 1",
        measure_printed=printed_smallest_number,
        measure_corrected=spacing_at_one,
    ),
]  # fmt: skip
