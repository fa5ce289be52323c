"""Phase one: Lemmas 2, 16 and 17, and what is printed of them and of the derivative of softmax."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.multihead.mixtures import A3, QUIET, Setting, assumption_3
from attnlab.claims.parts import Bound, Identity, Limit, least
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.mixture import head_output
from attnlab.data.tokens import Array, Tokens
from attnlab.theory.multihead import Mixture, PhaseOne, centre, mean_row, parts, phase_one

FIGURE = Setting(zeta=0.1, S=2.0, noise=0.2)
# Bounded differences (McDiarmid) give Lemma 17 with this constant.
CONSTANT = float(np.sqrt(2.0))


# Lemma 2 ------------------------------------------------------------------------------------------------------------


def step_from_zero(tokens: Tokens, phase: PhaseOne) -> float:
    """Largest difference of the weights after phase one from a numerical step, over the largest weight.

    One head moves away from zero, the others stay: the loss is that of `F / sqrt(H)` for its output F.
    """
    root = np.sqrt(phase.heads)
    reach = 1e-3 * root
    worst = 0.0
    for name, shape in (("U", (tokens.T, tokens.d)), ("W", (tokens.d, tokens.d))):
        for index in np.ndindex(*shape):
            loss = []
            for sign in (1.0, -1.0):
                moved = {"U": np.zeros((tokens.T, tokens.d)), "W": np.zeros((tokens.d, tokens.d))}
                moved[name][index] = sign * reach
                output = head_output(tokens.x, moved["U"], moved["W"])
                loss.append(np.logaddexp(0.0, -tokens.y * output / root).mean())
            step = -phase.alpha * root * (loss[0] - loss[1]) / (2.0 * reach)
            worst = max(worst, float(np.abs(step - phase.weights[name][(slice(None), *index)]).max()))
    return worst / float(np.abs(phase.weights["U"]).max())


def distances(setting: Setting, sizes: list[int], trials: int, *, corrected: bool) -> Array:
    """Root mean square over trials of |c - its centre| for each n_1, all with seeds of their own."""
    roots = []
    for k, n_1 in enumerate(sizes):
        squares = []
        for trial in range(trials):
            tokens = setting.draw(n_1, seed=k * trials + trial)
            gap = mean_row(tokens) - centre(Mixture.of(tokens), tokens.info["oracle"], corrected=corrected)
            squares.append(float(gap @ gap))
        roots.append(np.sqrt(np.mean(squares)))
    return np.array(roots)


def rate_of_phase_one(scale: Scale, *, corrected: bool) -> tuple[Limit, dict[str, object]]:
    """|slope + 1/2| of log |c - centre| by log n_1, and the distances."""
    sizes = [10**k for k in range(2, scale.pick(4, 4, 5) + 1)]
    trials = scale.pick(16, 48, 100)
    name = "(zeta/4) u*" if corrected else "(zeta/2) u*"
    roots = distances(FIGURE, sizes, trials, corrected=corrected)
    slope = float(np.polyfit(np.log(sizes), np.log(roots), 1)[0])
    limit = Limit(f"|slope + 1/2| of log |c - {name}| by log n_1", tolerance=0.15)
    limit.add(abs(slope + 0.5))
    numbers = {f"|c - {name}| by n_1": dict(zip(sizes, roots.tolist(), strict=True)), "slope": slope}
    return limit, numbers


def centre_of_phase_one(scale: Scale, *, corrected: bool = True) -> Outcome:
    """Whether c tends to (zeta/4) u*, or as printed to (zeta/2) u*."""
    limit, numbers = rate_of_phase_one(scale, corrected=corrected)
    tokens = FIGURE.draw(100)
    return outcome(limit, numbers=numbers, slack=assumption_3(Mixture.of(tokens), tokens), seeds=(0,))


def phase_one_is_a_step(scale: Scale) -> Outcome:
    """W = 0 and U = alpha 1 c^T against a step along the numerical gradient; c against its parts; c to (zeta/4) u*."""
    step = Identity("weights against a step along the numerical gradient", tolerance=1e-8)
    split = Identity("c against (zeta/4) u* + (zeta/2) p_1 + ((1 - zeta)/2) p_2 (Lemma 16)", tolerance=1e-12)
    slacks = []
    for seed, setting in enumerate(QUIET):
        tokens = setting.draw(20, seed=seed)
        slacks.append(assumption_3(Mixture.of(tokens), tokens))
        for heads in (1, 5, 10**6):
            step.add(step_from_zero(tokens, phase_one(tokens, heads, seed=seed)))
        p_1, p_2 = parts(tokens)
        spread = setting.zeta / 2.0 * p_1 + (1.0 - setting.zeta) / 2.0 * p_2
        whole = centre(Mixture.of(tokens), tokens.info["oracle"]) + spread
        row = mean_row(tokens)
        split.add(np.linalg.norm(whole - row) / np.linalg.norm(row))
    limit, numbers = rate_of_phase_one(scale, corrected=True)
    return outcome(step, split, limit, slack=least(*slacks), numbers=numbers, seeds=(0, 1, 2))


# Lemma 17 -----------------------------------------------------------------------------------------------------------


def parts_are_small(scale: Scale) -> Outcome:
    """Quantiles of |p_1| and |p_2| over their bounds with C = sqrt(2)."""
    first = Bound("(1 - delta)-quantile of |p_1| / sqrt(2) S r (121)")
    second = Bound("(1 - delta)-quantile of |p_2| / sqrt(2) (S + Z) r (122)")
    trials = scale.pick(60, 200, 1_000)
    slacks = []
    for setting in (FIGURE, Setting(zeta=0.5, S=2.0, noise=0.0), Setting(zeta=0.5, S=0.5, noise=1.0, T=2)):
        for n_1 in (5, 50, *scale.pick((), (500,), (500, 5_000))):
            mixture = Mixture.of(setting.draw(n_1, kind="extreme"))
            lengths = np.empty((trials, 2))
            for trial in range(trials):
                tokens = setting.draw(n_1, kind="extreme", seed=trial)
                p_1, p_2 = parts(tokens)
                lengths[trial] = np.linalg.norm(p_1), np.linalg.norm(p_2)
                slacks.append(assumption_3(mixture, tokens))
            for delta in (0.4, 0.2, 0.05):
                r = (np.sqrt(setting.d) + np.sqrt(np.log(1.0 / delta))) / np.sqrt(n_1)
                first.add(np.quantile(lengths[:, 0], 1.0 - delta), CONSTANT * mixture.S * r)
                second.add(np.quantile(lengths[:, 1], 1.0 - delta), CONSTANT * (mixture.S + mixture.Z) * r)
    return outcome(first, second, slack=least(*slacks), seeds=range(trials))


# E1 -----------------------------------------------------------------------------------------------------------------


def softmax(v: Array) -> Array:
    """Of one vector."""
    e = np.exp(v - v.max())
    return e / e.sum()


def numerical_jacobian(v: Array, h: float = 1e-5) -> Array:
    """Of softmax, by central differences."""
    columns = [(softmax(v + h * e) - softmax(v - h * e)) / (2 * h) for e in np.eye(len(v))]
    return np.stack(columns, axis=1)


def jacobian_formula(scale: Scale, *, printed: bool) -> Outcome:
    """Both formulas against central differences, at random points and at zero."""
    anywhere = Identity("derivative of softmax at v", tolerance=1e-8)
    at_zero = Identity("derivative of softmax at 0", tolerance=1e-8)
    rng = np.random.default_rng(0)
    for T in (2, 5, 10):
        for _ in range(scale.pick(3, 20, 200)):
            v = rng.standard_normal(T)
            a = v if printed else softmax(v)
            anywhere.add(np.diag(softmax(v)) - np.outer(a, a) - numerical_jacobian(v))
        formula = (np.eye(T) - np.ones((T, T)) / T) / (1.0 if printed else T)
        at_zero.add(formula - numerical_jacobian(np.zeros(T)))
    return outcome(anywhere, at_zero, seeds=(0,))


CLAIMS = [
    Claim(
        id="multihead-C-L2",
        title="Where phase one ends",
        statement="After one step of size alpha_h sqrt(H) from zero, W_h = 0 and U_h = alpha_h 1 c^T with c = (1 / (2 "
        "n_1)) sum_i y_i mean_t x_it, and c tends to (zeta / 4) u* as n_1^(-1/2) (Lemmas 2 and 16, centre corrected).",
        hypotheses=(A3,),
        setting="Tokenized mixtures of ten tokens, uniform noise; 20 sequences and 1 to 10^6 heads for the step, n_1 "
        "from 10^2 to 10^5 for the rate.",
        reason="weights against a numerical step to 1e-8; c against its parts to rounding; the slope against -1/2, "
        "within 0.15 because it is from three or four sizes of 16 trials each",
        measure=phase_one_is_a_step,
    ),
    erratum(
        id="multihead-E2",
        title="The centre of phase one",
        printed="U_h = alpha_h 1 ((zeta / 2) u* + p)^T with |p| = O(n_1^(-1/2)) (Lemma 2).",
        corrected="U_h = alpha_h 1 ((zeta / 4) u* + p)^T: the mean of y mu_y is u* / 2, not u*. The probability is "
        "then 1 - 2 delta, since two events are joined.",
        slip=Slip(
            kind=Kind.CONSTANT,
            where="Lemma 2, from the proof of Lemma 17",
            quote="Note that E[Xv]=⟨v,u⋆⟩",
            charitable="with a first step twice as long, or a loss twice the logistic one, the centre would be as "
            "printed; the text has neither. The distance to (zeta / 2) u* stays at zeta |u*| / 4 as n_1 grows. Later "
            "results hold with zeta / 4, see multihead-C-PR2c.",
            correction="zeta / 4.",
        ),
        hypotheses=(A3,),
        setting="zeta = 0.1, S = 2, uniform noise; n_1 from 10^2 to 10^5, 16 trials of each or more.",
        tolerance=0.15,
        reason="|slope + 1/2| of log |c - centre| by log n_1",
        measure_printed=partial(centre_of_phase_one, corrected=False),
        measure_corrected=partial(centre_of_phase_one, corrected=True),
    ),
    Claim(
        id="multihead-C-L17",
        title="Phase one comes close to its centre",
        statement="With probability 1 - delta each, |p_1| <= C S r and |p_2| <= C (S + Z) r, r = sqrt(d / n_1) + "
        "sqrt(log(1 / delta) / n_1) (Lemma 17); for their sum see multihead-C-Eq6.",
        hypotheses=(A3, "C = sqrt(2), which bounded differences give; the paper leaves it open"),
        setting="Tokenized mixtures, d = 4, noise at its bounds; n_1 from 5 to 5000, delta 0.05 to 0.4, 60 to 1000 "
        "trials of each.",
        reason="quantiles over bounds, each by itself; p_1 about its true mean u* / 2, see multihead-E2",
        measure=parts_are_small,
    ),
    erratum(
        id="multihead-E1",
        title="The derivative of softmax",
        printed="diag(softmax(v)) - v v^T (review version); at zero I - 11^T / T (section 5.2).",
        corrected="diag(a) - a a^T with a = softmax(v); at zero I / T - 11^T / T^2.",
        slip=Slip(
            kind=Kind.TYPO,
            where="notation of the review version; section 5.2 of both",
            quote="φ′(0)=I−1 T1T1⊺ T. To simplify the exposition here",
            charitable="the published version has the first right, and the second stands in a sketch that follows "
            "orders only. The factor 1 / T would turn T^(5/2) of Eq. (7) into T^(3/2): what is printed is the weaker.",
            correction="softmax softmax^T, and I / T - 11^T / T^2.",
        ),
        setting="Random v of 2, 5 and 10 entries, and zero.",
        reason="largest difference from central differences, which are right to 1e-10",
        measure_printed=partial(jacobian_formula, printed=True),
        measure_corrected=partial(jacobian_formula, printed=False),
    ),
]
