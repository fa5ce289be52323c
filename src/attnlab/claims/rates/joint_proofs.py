"""Lines in the proofs of Lemmas 11 and 12 that are not right as printed; the lemmas stand.

Every line is judged on an instance: weights and tokens that meet what the line assumes, from which both of its sides
are computed. Tokens with given inner products come from the Cholesky factor of their Gram matrix; that they meet the
events of Lemma 9 is checked on the tokens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.parts import Bound, Count, least
from attnlab.claims.rates.joint_data import EXTREME_SETS
from attnlab.claims.rates.joint_dynamics import FOLLOWED, TRAINED, followed
from attnlab.claims.rates.joint_samples import EDGE, LONG, SHORT, edge_model
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data import Tokens
from attnlab.data.tokens import Array
from attnlab.theory.rates.joint import (
    LOSS_RATIO,
    LOSS_RATIO_NEEDED,
    JointModel,
    decayed_sum,
    near_orthogonality,
    separation,
)

# E10: Lemma 12 ----------------------------------------------------------------------------------------------------


def tokens_of(gram: Array, y: Array) -> Tokens:
    """Tokens with this Gram matrix of (planted tokens, others), (2 n, 2 n); the planted token comes first."""
    n = len(y)
    rows = np.linalg.cholesky(gram)
    x = np.stack([rows[:n], rows[n:]], axis=1)
    return Tokens.self_attention(x, y, y @ x[:, 0], info={"planted": np.zeros(n, dtype=int)})


def adverse_tokens(model: JointModel) -> Tokens:
    """Planted tokens as short, and all products y_i y_j x.x' with planted ones as negative, as Lemma 9 allows."""
    n = model.n
    mean = model.rho**2 * model.d
    most = 2 * model.rho**2 * np.sqrt(model.d * model.log_term) / (1 + 1e-9)
    gram = np.zeros((2 * n, 2 * n))
    gram[:n, :n] = -(model.alpha**2) * most
    gram[:n, n:] = gram[n:, :n] = -model.alpha * most
    gram[np.diag_indices(2 * n)] = 0.5 * (1 + 1e-9) * mean * np.repeat([model.alpha**2, 1.0], n)
    return tokens_of(gram, np.ones(n))


def lemma_12_adds_up(scale: Scale, *, times: float) -> Outcome:
    """(alpha^2 rho^2 d/3) over y_j (x_opt + x_t).u~, u~ = sum_i y_i x_opt, at d = (times n)^2 log(10 n^2/delta)."""
    line = Bound("(alpha^2 rho^2 d/3) / least y_j (x_opt + x_t).(sum_i y_i x_opt)")
    events = []
    short = {}
    for n in range(2, scale.pick(15, 40, 100)):
        log_term = JointModel(n=n, d=1.0, alpha=6.0, rho=1.0).log_term
        model = JointModel(n=n, d=(times * n) ** 2 * log_term, alpha=6.0, rho=0.1)
        tokens = adverse_tokens(model)
        planted, others = tokens.x[:, 0], tokens.x[:, 1]
        u = tokens.y @ planted
        products = tokens.y * ((planted + others) @ u)
        line.add_at_least(products.min(), (model.alpha * model.rho) ** 2 * model.d / 3)
        events += [float(event) for event in near_orthogonality(tokens, model, within_samples=True).values()]
        short[n] = float(separation(tokens, model))
    numbers = {"least value / bound of Lemma 12 itself": min(short.values())}
    return outcome(line, slack={"events of Lemma 9": min(events)}, numbers=numbers)


# E10b, E10d: by how much attention that moves changes a margin ---------------------------------------------------


def _attention_terms(scale: Scale) -> tuple[Array, Array]:
    """R_t+1 = -y u^T X^T (phi_t+1 - phi_t) over eta^2 (t+1)^-2/3, for several times and lengths; and the lengths B.

    Two tokens of length B that point apart, the head along them and as long as Lemma 10 allows, attention at one half
    in the middle of a step of W of length eta/(t+1) in the direction that moves it most.
    """
    times = np.geomspace(1e6, 1e12, scale.pick(3, 7, 13))
    B, t = (grid.ravel() for grid in np.meshgrid((1.0, 1.5, 3.0), times))
    step = np.log(2) / (3 * B) / 100  # well below the caps of Condition 2
    norm_u = step * decayed_sum(t + 1)
    # W = w E_11 and tokens +-B e_1, the first of which is the query: its logit lead is 2 w B^2.
    lead = B**2 * step / (t + 1)  # after the step; before it is the opposite
    moved = np.tanh(lead / 2)  # expit(lead) - expit(-lead), the gain of attention on the first token
    change = norm_u * 2 * B * moved  # u.(x_1 - x_2) times what moves
    return change / (step**2 * (t + 1) ** (-2 / 3)), B


def perturbation_is_as_printed(scale: Scale, *, constant: float) -> Outcome:
    """Eq. (47): R_t+1 over constant eta^2 B^3 (t+1)^-2/3."""
    terms, B = _attention_terms(scale)
    tally = Bound(f"R_t+1 / ({constant:g} eta^2 B^3 (t+1)^-2/3)")
    tally.add(terms, constant * B**3)
    return outcome(tally)


def loss_ratio_line_has_the_term(scale: Scale, *, corrected: bool) -> Outcome:
    """R_t+1,i - R_t+1,j, for two samples that attention moves against each other, over the term of the last line."""
    terms, B = _attention_terms(scale)
    both = 2 * terms  # sample j has the labels and tokens of i, and the other label
    if not corrected:
        tally = Bound("(R_t+1,i - R_t+1,j) / (4 eta^2 (t+1)^-2/3)")
        tally.add(both, 4.0)
        return outcome(tally)
    tally = Bound("(R_t+1,i - R_t+1,j) / (12 eta^2 B^3 (t+1)^-2/3)")
    tally.add(both, 12 * B**3)
    missed = Count("data models at whose largest step of Condition 2 eta > alpha rho/(480 n B^3)")
    for n in (2, 10, 100):
        for length in (1.0, 3.0, 10.0):  # B
            base = edge_model(n, "complete")
            model = JointModel(n=n, d=base.d, alpha=base.alpha, rho=base.rho * length / base.B)
            eta = min(model.step_caps.values())
            missed.add(12 * eta**2 * model.B**3 > eta * model.alpha * model.rho / (40 * n))
    return outcome(tally, missed)


# E10c: Eq. (40) ---------------------------------------------------------------------------------------------------


def gaps_grow_per_step(scale: Scale, *, power: float) -> Outcome:
    """Eq. (40): eta omega_2 (t+1)^-power over the growth of the score gap, summed between records."""
    growth = Bound(f"eta omega_2 sum (s+1)^-{power:.3g} / growth of the least score gap")
    slack: dict[str, float] = {}
    sets = 0
    for case, leaps in followed(scale):
        promised = case.step * case.model.omega_2 * np.diff(decayed_sum(leaps.t, power))
        gained = np.diff(leaps.gap, axis=1)
        growth.add_ratios(np.where(gained > 0, promised / gained, np.inf))
        slack = least(slack, case.slack())
        sets += case.trials
    return outcome(growth, instances=sets, seeds=[0], slack=slack)


# E10e: the loss ratio, case 2 -------------------------------------------------------------------------------------


def loss_ratio_falls_from_half_its_bound(scale: Scale, *, constant: float) -> Outcome:
    """Case 2 of Lemma 11: (alpha rho/40n) over the fall of the log loss ratio at A_t = C/2, both over eta (t+1)^-2/3.

    Sample i has a short planted token and attends by halves, sample j a long one to which it attends fully; their
    products favour j as much as Lemma 9 allows. Losses are C/2 and 1.
    """
    fall = Bound(f"(alpha rho/40n) / fall of log A_t, A_t = {constant:g}/2")
    events = []
    least_model = edge_model(2, "complete")
    for factor in np.geomspace(1.0, 4.0, scale.pick(2, 5, 9)):
        model = replace(least_model, d=factor * least_model.d)
        tokens = _unequal_tokens(model)
        fall.add_ratios(_promised_over_drop(model, tokens, constant))
        events += [float(event) for event in near_orthogonality(tokens, model, within_samples=True).values()]
    large = edge_model(2, "proof")
    beyond = _promised_over_drop(large, _unequal_tokens(large), constant)
    numbers = {"the same at the d that the proof of attention asks for (not judged)": beyond}
    return outcome(fall, slack={"events of Lemma 9": min(events)}, numbers=numbers)


def _promised_over_drop(model: JointModel, tokens: Tokens, constant: float) -> float:
    """Promised over actual fall of the log loss ratio of samples 0 and 1 in a step of u; inf where it rises."""
    attention = np.array([[0.5, 0.5], [1.0, 0.0]])  # (sample, token)
    attended = np.einsum("nt,ntd->nd", attention, tokens.x) * tokens.y[:, None]
    losses = np.array([constant / 2, 1.0])
    descent = losses @ attended / model.n  # -grad_u L
    growth = attended @ descent / np.linalg.norm(descent)  # of each margin, per eta (t+1)^-2/3
    drop = float(growth[0] - growth[1])
    promised = model.alpha * model.rho / (40 * model.n)
    return promised / drop if drop > 0 else np.inf


def _unequal_tokens(model: JointModel) -> Tokens:
    """Sample 0 with short tokens, sample 1 with long ones, all products between them as large as Lemma 9 allows."""
    mean = model.rho**2 * model.d
    most = 2 * model.rho**2 * np.sqrt(model.d * model.log_term) / EDGE
    lengths = mean * np.array([SHORT * model.alpha**2, LONG * model.alpha**2, SHORT, LONG])
    gram = np.diag(lengths)
    gram[0, 1] = gram[1, 0] = model.alpha**2 * most  # planted with planted
    gram[1, 2] = gram[2, 1] = model.alpha * most  # planted token of sample 1 with the other of sample 0
    gram[0, 2] = gram[2, 0] = -model.alpha * most  # within sample 0: the attended token is shorter
    return tokens_of(gram, np.ones(2))


STANDS = "The lemma stands"
APART = "Two tokens of length B = 1, 1.5 and 3 that point apart, attention near one half; t from 10^6 to 10^12."
CLAIMS: list[Claim] = [
    erratum(
        id="rates-E10",
        title="The dimension that the proof of Lemma 12 asks for",
        printed="y_j (x_opt + x_t).(sum_i y_i x_opt) >= alpha^2 rho^2 d/3 under the events of Lemma 9, for alpha >= 6 "
        "and d >= (12 n)^2 log(10 n^2/delta) (proof of Lemma 12).",
        corrected="for d >= (14 n)^2 log(10 n^2/delta): a factor n was lost in the line before.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="Appendix B.2, proof of Lemma 12",
            quote="since d ≥ (12n)^2 log(10n^2/δ) Similarly, we also have",
            charitable="Condition 1 asks for d of the order of alpha^4 n^4, more than either; the line with (14 n)^2 "
            "held on all sets, and Lemma 12 itself on all of both kinds.",
            correction=f"d >= (14 n)^2 log(10 n^2/delta). {STANDS}, as Condition 1 asks for more.",
        ),
        reason="right over left side, on tokens with the least lengths and most adverse products of Lemma 9",
        tolerance=1.0,
        hypotheses=("the events of Lemma 9, those within a sample included", "alpha = 6", "the least d"),
        setting="n = 2 to 14 or more, T = 2, rho = 0.1; tokens by the Cholesky factor of an adverse Gram matrix.",
        measure_printed=partial(lemma_12_adds_up, times=12.0),
        measure_corrected=partial(lemma_12_adds_up, times=14.0),
    ),
    erratum(
        id="rates-E10b",
        title="The term of Eq. (48) in the last line of Lemma 11",
        printed="the loss ratio grows, through the change of attention, by no more than exp(4 eta^2 (t+1)^-2/3) in a "
        "step (last line of the proof of Lemma 11).",
        corrected="Eq. (48) has exp(12 eta^2 B^3 (t+1)^-2/3); the line then needs eta <= alpha rho/(480 n B^3) rather "
        "than alpha rho/(160 n), and the last cap of Condition 2 is smaller than either.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="Appendix B.2, last line of the proof of Lemma 11, against Eq. (48)",
            quote="Further, since η ≤ αρ/160n, we have exp(4η^2 (t + 1)^-2/3)",
            charitable="The line is consistent in itself, 4 eta^2 <= eta alpha rho/(40 n) up to eta = alpha rho/(160 "
            "n); only its first term is not that of Eq. (48). With the term of Eq. (48) it held at every largest step "
            "of Condition 2.",
            correction=f"12 eta^2 B^3 in place of 4 eta^2. {STANDS} under Condition 2.",
        ),
        reason="change of the log loss ratio over what the line allows, on two samples that attention moves against "
        "each other; a count of data models whose largest step is too large",
        hypotheses=("B >= 1", "|u_t| as long as Lemma 10 allows", "a step of W of length eta/(t+1)"),
        setting=APART,
        measure_printed=partial(loss_ratio_line_has_the_term, corrected=False),
        measure_corrected=partial(loss_ratio_line_has_the_term, corrected=True),
    ),
    erratum(
        id="rates-E10c",
        title="The exponent in Eq. (40)",
        printed="in a step every score gap grows by at least eta (t+1)^-1/3 omega_2 (Eq. 40).",
        corrected="by at least eta (t+1)^-2/3 omega_2, which is what the next lines use.",
        slip=Slip(
            kind=Kind.TYPO,
            where="Eq. (40), proof of Lemma 11",
            quote="≥ η(t + 1)^-1/3 ω_2. (40)",
            charitable="The sum that follows has the exponent -2/3, so that -1/3 is a misprint; with -2/3 the line "
            "held at every step.",
            correction="(t+1)^-2/3 in place of (t+1)^-1/3 in Eq. (40).",
        ),
        reason="promised over measured growth of the least score gap, summed between records",
        tolerance=1.0,
        hypotheses=FOLLOWED,
        setting=TRAINED,
        measure_printed=partial(gaps_grow_per_step, power=1 / 3),
        measure_corrected=partial(gaps_grow_per_step, power=2 / 3),
    ),
    erratum(
        id="rates-E10d",
        title="The constant in Eq. (47)",
        printed="R_t+1 <= 2 eta^2 B^3 (t+1)^-2/3, B = alpha rho sqrt(1.5 d) (last expression of Eq. 47).",
        corrected="R_t+1 <= 6 eta^2 B^3 (t+1)^-2/3, which is the expression before it.",
        slip=Slip(
            kind=Kind.TYPO,
            where="Eq. (47), proof of Lemma 11",
            quote="6η(αρ √1.5d)^3 (t + 1)^1/3 η(t + 1)^-1 = 2η^2 (αρ √1.5d)^3 (t + 1)^-2/3. (47)",
            charitable="Eq. (48) goes on with 12 = 2 times 6, so that the 2 is a misprint; 6 held on every instance.",
            correction="6 eta^2 in place of 2 eta^2 in Eq. (47).",
        ),
        reason="R_t+1 over its bound, where attention moves most",
        tolerance=1.0,
        hypotheses=("|u_t+1| as long as Lemma 10 allows", "a step of W of length eta/(t+1)"),
        setting=APART,
        measure_printed=partial(perturbation_is_as_printed, constant=2.0),
        measure_corrected=partial(perturbation_is_as_printed, constant=6.0),
    ),
    erratum(
        id="rates-E10e",
        title="The constant C of the loss ratio in Lemma 11",
        printed=f"with C = {LOSS_RATIO:g}, a loss ratio A_t >= C/2 falls by at least exp(-(eta alpha rho/40n) "
        "(t+1)^-2/3) in a step of u (proof of Lemma 11, case 2).",
        corrected=f"with C = {LOSS_RATIO_NEEDED:g}: the second line puts C where A_t >= C/2 only gives C/2, and d C/16 "
        "- 3 d/2 is positive enough from 48 on.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="Appendix B.2, proof of Lemma 11, case 2",
            quote="C ≥ 24 is a universal constant",
            charitable="The lemma asks for some C >= 24, so that 48 is allowed; with C = 48 the line held. So it did "
            "with C = 24 at the far larger d of the proof on attention, thanks to the other token, which the bound "
            "leaves out. In training no ratio came near 24 (rates-K19).",
            correction="C >= 48 in Lemma 11, and in what uses it.",
        ),
        reason="(alpha rho/40n) over the fall of the log ratio per eta (t+1)^-2/3, at A_t = C/2",
        tolerance=1.0,
        hypotheses=("the events of Lemma 9, those within a sample included", "Condition 2 with its constant at 1 to 4"),
        setting="n = 2, T = 2, alpha = 6; one sample with short tokens, attended by halves, one with long ones, to the "
        f"planted of which it attends fully; like {EXTREME_SETS}, with adverse products.",
        measure_printed=partial(loss_ratio_falls_from_half_its_bound, constant=LOSS_RATIO),
        measure_corrected=partial(loss_ratio_falls_from_half_its_bound, constant=LOSS_RATIO_NEEDED),
    ),
]
