"""Formulas and constants that read differently in print: each as printed, and as it holds."""

from __future__ import annotations

from functools import cache

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, outcome, reading
from attnlab.claims.matrices import inner, length
from attnlab.claims.parts import Bound, Count, Identity, Limit, least
from attnlab.claims.scale import Scale
from attnlab.claims.svm.landscape import ASSUMPTION_B, loss_falls_toward_the_max_margin_direction
from attnlab.claims.svm.limits import ALIGNED, NORMS, Followed, NormName, followed, path_radii
from attnlab.claims.svm.samples import SIZES, TRIALS, all_support, equal_others, slopes
from attnlab.claims.verdict import Kind, Slip
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.data.tokens import Array
from attnlab.models import gradient, loss
from attnlab.svm import distance_to_face, solve_margins
from attnlab.theory import lipschitz_constants

SMALLEST = float(np.log(np.finfo(np.float64).tiny))  # a constant c > 0 below e^SMALLEST is no normal float64


# E1 ---------------------------------------------------------------------------------------------------------------


def rank_is_at_most_the_smaller_of_n_and_d(scale: Scale) -> Outcome:
    """Ranks of max-margin solutions in both norms, for n below, at and above d."""
    trials = scale.pick(3, 20, 100)
    ranks_of: dict[NormName, Bound] = {norm: Bound(f"{norm}: rank / min(n, d)") for norm in NORMS}
    largest = {}
    tried = 0
    for n, T, d in ((3, 5, 6), (5, 5, 5), (8, 3, 5)):
        tokens = sphere(n=n, T=T, d=d, seed=1, trials=trials)
        for norm, tally in ranks_of.items():
            solutions = solve_margins(tokens, optimal_tokens(tokens), norm=norm)
            feasible = [one for one in solutions if one.feasible]
            ranks = [one.rank for one in feasible if one.rank is not None]
            tally.add(ranks, min(n, d))
            tally.leave_unsolved(len(feasible) - len(ranks))
            tried += trials
            largest[f"{norm}, n = {n}, d = {d}"] = {"rank": max(ranks, default=None), "max(n, d)": max(n, d)}
    return outcome(*ranks_of.values(), tried=tried, seeds=(1,), numbers={"largest rank": largest})


# E2 ---------------------------------------------------------------------------------------------------------------


def _factors(seed: int) -> tuple[Tokens, dict[str, Array], np.random.Generator]:
    """Random data, K and Q."""
    rng = np.random.default_rng(seed)
    tokens = sphere(**SIZES, seed=seed, trials=TRIALS)
    K, Q = rng.standard_normal((2, TRIALS, tokens.d, tokens.d))
    return tokens, {"K": K, "Q": Q}, rng


def _off_by(formula: dict[str, Array], tokens: Tokens, weights: dict[str, Array], along: dict[str, Array]) -> Array:
    """Relative error of a gradient formula along a direction, against central differences, (trials,)."""
    unit = {name: part / length(part)[:, None, None] for name, part in along.items()}
    h = 1e-5
    ahead = loss(tokens, {name: w + h * unit[name] for name, w in weights.items()})
    behind = loss(tokens, {name: w - h * unit[name] for name, w in weights.items()})
    measured = (ahead - behind) / (2.0 * h)
    promised = sum(inner(part, unit[name]) for name, part in formula.items())
    size = np.sqrt(sum(inner(part, part) for part in formula.values()))
    return np.abs(measured - promised) / size


def _gradient_formula(scale: Scale, printed: bool) -> Outcome:
    """Along the correct gradient, along the formula, and along a random direction."""
    seeds = range(18, 18 + scale.pick(1, 3, 10))
    error = Identity("gradient formula against central differences", tolerance=1e-6)
    for seed in seeds:
        tokens, weights, rng = _factors(seed)
        K = weights["K"]
        Q = weights["Q"]
        G = slopes(tokens, K @ np.swapaxes(Q, -1, -2))["W"]
        G_t = np.swapaxes(G, -1, -2)
        correct = {"K": G @ Q, "Q": G_t @ K}
        formula = {"K": G_t @ Q, "Q": G @ K} if printed else correct
        random = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
        for along in (correct, formula, random):
            error.add(_off_by(formula, tokens, weights, along))
    return outcome(error, seeds=seeds)


def _exchanged_roles(scale: Scale) -> float:
    """Largest error of the printed formulas where the logits are X Q K^T z, the most charitable reading."""
    tokens, weights, rng = _factors(18)
    K = weights["K"]
    Q = weights["Q"]
    G = slopes(tokens, Q @ np.swapaxes(K, -1, -2))["W"]
    printed = {"K": np.swapaxes(G, -1, -2) @ Q, "Q": G @ K}
    random = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
    # With the names of the factors exchanged the model is that of X Q K^T z.
    renamed = {"K": "Q", "Q": "K"}
    as_model = [{renamed[name]: part for name, part in each.items()} for each in (printed, weights, random)]
    return float(_off_by(as_model[0], tokens, as_model[1], as_model[2]).max())


def printed_gradients(scale: Scale) -> Outcome:
    """The printed formulas; beside them those for the other order of the factors."""
    found = _gradient_formula(scale, printed=True)
    numbers = {"largest error of the printed formulas if W = Q K^T": _exchanged_roles(scale)}
    return Outcome(**{**found.__dict__, "numbers": numbers})


# E3 ---------------------------------------------------------------------------------------------------------------


@cache
def _steepest_on_a_line() -> tuple[Array, Array]:
    """|Q|, and the fastest change of grad_K over |Q| L_W, for n = 1, T = 2, d = m = 1, tokens 1 and -1."""
    queries = np.array([0.25, 1.0, 20.0, 40.0, 60.0])
    logits = np.linspace(-2.0, 2.0, 101)  # K Q
    one = Tokens(x=[[[1.0], [-1.0]]], z=[[1.0]], y=[1.0], v=[1.0])
    constant = lipschitz_constants(one)
    K = (logits / queries[:, None]).reshape(-1, 1, 1)
    Q = np.repeat(queries, len(logits)).reshape(-1, 1, 1)
    batch = Tokens(x=np.tile(one.x, (len(K), 1, 1, 1)), z=np.ones((len(K), 1, 1)), y=np.ones((len(K), 1)), v=[1.0])
    slope = slopes(batch, {"K": K, "Q": Q})["K"].reshape(len(queries), -1)
    steepest = np.abs(np.diff(slope) / np.diff(K.reshape(len(queries), -1))).max(-1)
    return queries, steepest / np.array([constant.K_printed([[q]]) for q in queries])


def printed_constant_of_one_factor(scale: Scale) -> Outcome:
    """Neighbours on a grid of K at several Q; beside them those Q that are at most 1."""
    queries, ratio = _steepest_on_a_line()
    change = Bound("|change of grad_K| / (|Q| L_W |change of K|)")
    change.add_ratios(ratio)
    return outcome(
        change,
        numbers={
            "ratio by |Q|": {f"{q:g}": r for q, r in zip(queries, ratio, strict=True)},
            "largest where |Q| <= 1": ratio[queries <= 1.0].max(),
        },
    )


def squared_constant_of_one_factor(scale: Scale) -> Outcome:
    """The same with |Q|^2 L_W; and random data, K and Q of three sizes, one of them moved."""
    queries, ratio = _steepest_on_a_line()
    line = Bound("|change of grad_K| / (|Q|^2 L_W |change of K|), the same data")
    line.add_ratios(ratio / queries)
    random = Bound("either factor, random data")
    tokens, _, rng = _factors(3)
    L_W = np.array([lipschitz_constants(tokens[i]).W for i in range(TRIALS)])
    for spread in (0.1, 1.0, 3.0):
        for _ in range(scale.pick(1, 3, 30)):
            K, Q, step = spread * rng.standard_normal((3, TRIALS, tokens.d, tokens.d))
            start = slopes(tokens, {"K": K, "Q": Q})
            for share in (1e-3, 1.0):
                moved = share * step
                for name, fixed, end in (("K", Q, {"K": K + moved, "Q": Q}), ("Q", K, {"K": K, "Q": Q + moved})):
                    change = length(slopes(tokens, end)[name] - start[name])
                    norm = np.linalg.norm(fixed, ord=2, axis=(-2, -1))
                    random.add(change, norm**2 * L_W * length(moved))
    return outcome(line, random, seeds=(3,))


# E5 ---------------------------------------------------------------------------------------------------------------


def printed_uniform_constant(scale: Scale) -> Outcome:
    """log of -<grad L, W_mm> along R W_mm, on data that meet Assumption B."""
    below = Limit("log of the least normal float64 - log of -<grad L, W_mm> at R W_mm", tolerance=0.0)
    tried = 0
    slack: dict[str, float] = {}
    largest = {}
    for name, sample in (("B.1", all_support(0)), ("B.2", equal_others(0))):
        W_mm = sample.margins.W
        slack = least(slack, sample.slack)
        tried += TRIALS
        for R in (10.0, 100.0, 1000.0):
            mantissa, log_scale = gradient(sample.tokens, R * W_mm)
            logs = (np.log(-inner(mantissa["W"], W_mm)) + log_scale["W"])[sample.meets]
            below.add(SMALLEST - logs)
            largest[f"{name}, R = {R:g}"] = float(logs.max())
    return outcome(below, tried=tried, seeds=(0,), slack=slack, numbers={"largest log": largest})


# E10, the product of Corollary 2 ----------------------------------------------------------------------------------


def _nuclear_paths(scale: Scale) -> Followed:
    return followed((3, 4, 4), scale.pick(5, 20, 100), "nuclear", None, path_radii(scale))


def _limit_of_product(scale: Scale, printed: bool) -> Outcome:
    """1 - cosine of Q K^T, or of K Q^T, at the last radius with the nearest solution."""
    case = _nuclear_paths(scale)
    aligned = Limit("1 - cosine with the nearest nuclear solution at the largest radius", tolerance=ALIGNED)
    for i, W in enumerate(case.path.W[:, -1]):
        if case.path.solved[i, -1]:
            sine = min(distance_to_face(W.T if printed else W, case.margins[i]), 1.0)
            aligned.add(sine**2 / (1.0 + np.sqrt(1.0 - sine**2)))
        else:
            aligned.leave_unsolved(1)
    return outcome(aligned, tried=case.drawn, seeds=(0,), numbers={"radius, in margins": case.path.multiples[-1]})


# E11, stationary points in K and Q --------------------------------------------------------------------------------


def printed_no_stationary_point_of_factors(scale: Scale) -> Outcome:
    """Gradients by K and Q at K = Q = 0, and at K = 0 with a Q of length 1 that the gradient by W does not see."""
    origin = Count("data set whose gradient at K = Q = 0 is zero")
    elsewhere = Count("data set whose gradient at K = 0 and some Q of length 1 is zero, to 1e-14")
    of_W = np.inf
    tried = 0
    slack: dict[str, float] = {}
    for sample in (all_support(0), equal_others(0)):
        zero = np.zeros((TRIALS, sample.tokens.d, sample.tokens.d))
        both = slopes(sample.tokens, {"K": zero, "Q": zero})
        origin.add(((length(both["K"]) == 0) & (length(both["Q"]) == 0))[sample.meets])
        G = slopes(sample.tokens, zero)["W"]
        unseen = np.linalg.svd(G)[2][:, -1]  # (trials, d): G z = 0
        Q = unseen[:, :, None] * np.eye(sample.tokens.d)[0]
        aside = slopes(sample.tokens, {"K": zero, "Q": Q})
        elsewhere.add((length(aside["K"]) + length(aside["Q"]) <= 1e-14)[sample.meets])
        of_W = min(of_W, float(length(G)[sample.meets].min()))
        slack = least(slack, sample.slack)
        tried += TRIALS
    return outcome(
        origin,
        elsewhere,
        tried=tried,
        seeds=(0,),
        slack=slack,
        numbers={"least |grad L(W)| at W = 0": of_W},
        note="Theorem 3 itself is on W alone, and stands.",
    )


CLAIMS: list[Claim] = [
    reading(
        id="svm-E1",
        title="Rank of the max-margin solutions",
        statement="Printed: ranks are at most max(n, d), which holds for every d x d matrix and says nothing. Lemma 1 "
        "gives min(n, d), which holds, and is attained in the Frobenius norm.",
        hypotheses=("the best tokens can be separated",),
        setting="Random data on the sphere, (n, T, d) = (3, 5, 6), (5, 5, 5), (8, 3, 5), best tokens.",
        reason="certified ranks over min(n, d)",
        slip=Slip(
            kind=Kind.TYPO,
            where="Section 2, text and caption of Figure 4; again in Appendix F, on Figure 10",
            quote="bounded by max(n, d), validating Lemma 1",
            charitable="Taken literally it is true of every d x d matrix; as what Lemma 1 says it must be min(n, d), "
            "which was measured.",
            correction="The ranks are at most min(n, d).",
        ),
        measure=rank_is_at_most_the_smaller_of_n_and_d,
    ),
    erratum(
        id="svm-E2",
        title="Gradients in K and Q, equation (18)",
        printed="grad_K = (1/n) sum l'_i z_i gamma_i^T S' X_i Q = (grad_W)^T Q and grad_Q = (grad_W) K.",
        corrected="grad_K = (grad_W) Q and grad_Q = (grad_W)^T K, at W = K Q^T.",
        setting="Random data on the sphere, (n, T, d) = (3, 3, 12), logistic loss, normal K and Q.",
        reason="largest error over |gradient| against central differences of step 1e-5, exact to about 1e-8",
        slip=Slip(
            kind=Kind.TYPO,
            where="Equation (18), in the proof of Lemma 4",
            quote="By the similar argument as in (17)",
            charitable="The printed lines are the gradients for logits X Q K^T z, the roles of K and Q exchanged: "
            "measured, exact to 1e-8. The paper's logits are X K Q^T z.",
            correction="grad_K = (grad_W) Q and grad_Q = (grad_W)^T K; the argument that follows is not touched.",
        ),
        measure_printed=printed_gradients,
        measure_corrected=lambda scale: _gradient_formula(scale, printed=False),
    ),
    erratum(
        id="svm-E3",
        title="Lipschitz constants in K and Q, Lemma 4",
        printed="grad_K is |Q| L_W-Lipschitz in K, and grad_Q is |K| L_W-Lipschitz in Q.",
        corrected="the constants are |Q|^2 L_W and |K|^2 L_W: the chain rule gives a factor for each derivative.",
        hypotheses=("the logistic loss, M0 = 1/4 and M1 = 1",),
        setting="One sequence of the tokens 1 and -1 on a line, Q from 1/4 to 60; and random data, (n, T, d) = (3, 3, "
        "12), K and Q of three sizes.",
        reason="the ratio of the two sides",
        slip=Slip(
            kind=Kind.CONSTANT,
            where="Lemma 4, equation (3)",
            quote="L_K := |Q| L_W",
            charitable="Read for |Q|, |K| <= 1 the printed constants are larger than the corrected ones, and hold: "
            "measured. Nothing in the lemma bounds the factors, and descent makes them grow.",
            correction="L_K = |Q|^2 L_W and L_Q = |K|^2 L_W.",
        ),
        measure_printed=printed_constant_of_one_factor,
        measure_corrected=squared_constant_of_one_factor,
    ),
    erratum(
        id="svm-E5",
        title="The constant of Lemma 9",
        printed="there is a constant c > 0 with <grad L(W), W_mm> <= -c for all W.",
        corrected="<grad L(W), W_mm> < 0 for all W; c has the factor s_opt (1 - s_opt), which depends on W and "
        "vanishes along R W_mm.",
        hypotheses=(ASSUMPTION_B,),
        setting="Random data on the sphere that meet B.1 or B.2, (n, T, d) = (3, 3, 12); W = R W_mm, R to 1000.",
        reason="printed: log of -<grad L, W_mm> at R W_mm, below that of every normal float64; corrected: as svm-L9",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="Lemma 9; its proof, equation (27)",
            quote="for some constant c > 0 depending on the data, the head v, and a loss derivative bound",
            charitable="If c may depend on W, as c_0 of (27) does, the lemma is the sign, which was measured and "
            "holds; Theorem 3 uses no more than that.",
            correction="<grad L(W), W_mm> < 0 for every W, without a constant for all of them.",
        ),
        measure_printed=printed_uniform_constant,
        measure_corrected=loss_falls_toward_the_max_margin_direction,
    ),
    erratum(
        id="svm-E10",
        title="The product in Corollary 2",
        printed="Q_R K_R^T / R tends to the nuclear max-margin solutions.",
        corrected="K_R Q_R^T / R does; the logits are x^T K Q^T z.",
        hypotheses=("the best token of each query is unique", "it can be separated from the others"),
        setting="Nuclear paths of svm-T2 at (n, T, d) = (3, 4, 4), at the largest radius.",
        reason="1 - cosine with the nearest solution, as svm-T2",
        slip=Slip(
            kind=Kind.TYPO,
            where="Corollary 2 and its proof",
            quote=r"\bar{Q}_R\bar{K}_R^{\top}",
            charitable="Theorem 2, of which this is the general form, prints the product the other way round, and that "
            "one holds; exchanging the names of K and Q makes this one hold too.",
            correction="K_R Q_R^T / R tends to the solutions.",
        ),
        measure_printed=lambda scale: _limit_of_product(scale, printed=True),
        measure_corrected=lambda scale: _limit_of_product(scale, printed=False),
    ),
    erratum(
        id="svm-E11",
        title="Stationary points of the objective in K and Q",
        printed="under Assumption B the objectives in W and in (K, Q) lack stationary points.",
        corrected="the objective in W lacks them (Theorem 3); K = Q = 0 is one of the objective in (K, Q).",
        hypotheses=(ASSUMPTION_B,),
        setting="Random data on the sphere that meet B.1 or B.2, (n, T, d) = (3, 3, 12).",
        reason="printed: a count of data sets whose gradient at K = Q = 0, or at K = 0 and Q of length 1, is zero; "
        "corrected: as svm-L9",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="Section 4.1, the sentence before Theorem 3",
            quote="we establish that optimization problems (W-ERM) and (KQ-ERM) lack stationary points",
            charitable="Leaving out K = Q = 0 is not enough: K = 0 with any Q that grad_W at 0 does not see is one "
            "too, measured. Theorem 3 is stated for W alone, and is right.",
            correction="The objective in W lacks stationary points; that in (K, Q) has them, K = Q = 0 among them.",
        ),
        measure_printed=printed_no_stationary_point_of_factors,
        measure_corrected=loss_falls_toward_the_max_margin_direction,
    ),
]
