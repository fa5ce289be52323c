"""Training under the conditions of the theory: Theorem 1 and Lemmas 7 to 10."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.multihead.conditions import beta_2, beta_3, longest_token, sharp_beta_1, sharp_beta_3
from attnlab.claims.multihead.curvature import SEQUENCES, SIZES
from attnlab.claims.multihead.derivatives import Draws, draw, in_line, loss_value, pieces
from attnlab.claims.multihead.gradients import HEADS, alternating, betas
from attnlab.claims.multihead.theory_runs import (
    Followed,
    Plan,
    Recipe,
    followed,
    largest_between,
    recipes,
    slack_of_theorem_3,
)
from attnlab.claims.parts import Bound, Count, least
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.multihead import Shape, lemma_8, lemma_9, theorem_1

ROUNDING = 1e-9  # of hypotheses that are met with equality
# A decrease smaller than this share of the loss is lost in the rounding of the loss.
LEAST_DECREASE = 1e-6

HEADS_NEEDED = "sqrt(H) >= 36 sqrt(T d) R^3 (3 sqrt(d) R^2 (3 D + g) + 1) D^2, D = |theta - theta_0|"
STEP = "step <= min(1, 1 / rho, D^2 / (K L(theta)), D^2 / L(theta_0))"
DATA = (
    "n = 10 sequences of two tokens in the plane, none longer than 1: both (0.98 y, noise), or one (y, 0) and one "
    "(0, +-1); logistic loss, full batch."
)

Run = tuple[Plan, Followed]


def seeds(scale: Scale) -> range:
    """Of the data sets."""
    return range(scale.pick(2, 3, 5))


def printed_runs(scale: Scale) -> tuple[Run, ...]:
    """At the heads and the largest step size of Theorem 3, targets on the right side and on the wrong side."""
    towards = [Recipe(seed=seed, start="signs" if seed % 2 else "zero") for seed in seeds(scale)]
    away = [Recipe(seed=seed, start="zero" if seed % 2 else "signs", reach=-1.0) for seed in seeds(scale)]
    return followed(recipes(towards, away))


def sharp_runs(scale: Scale) -> tuple[Run, ...]:
    """The same with the constants of multihead-C-SH, which take fewer steps: also nearer and further targets."""
    plain: list[Recipe] = []
    for seed in seeds(scale):
        plain += [Recipe(seed=seed, reach=reach, sharp=True, time=20.0) for reach in (1.0, 1.6, 3.0)]
        plain.append(Recipe(data="signal and noise", seed=seed, start="signs", sharp=True))
    return followed(recipes(plain))


def long_steps(scale: Scale) -> tuple[Run, ...]:
    """At the heads of Theorem 3 and steps as long as the lemmas allow, that is, as long as each step descends."""
    made: list[Recipe] = []
    for seed in seeds(scale):
        for name in ("short", "signal and noise"):
            made += [Recipe(data=name, seed=seed, reach=reach, step=0.3, time=30.0) for reach in (0.5, 1.6, 3.0)]
            made.append(Recipe(data=name, seed=seed, start="signs", reach=-1.0, step=0.05))
    return followed(recipes(made))


def few_heads(scale: Scale) -> tuple[Run, ...]:
    """Two heads, whose segments to the target are curved."""
    time = scale.pick(20.0, 100.0, 500.0)
    made = [
        Recipe(data=name, seed=seed, start="signs", heads=2, step=0.1, time=time)
        for name in ("short", "signal and noise")
        for seed in seeds(scale)
    ]
    return followed(recipes(made))


def running_mean(run: Followed) -> tuple[Array, Array]:
    """Horizons k = 1 to K and the mean loss of the steps 1 to k; what holds for K steps holds for fewer."""
    horizons = np.arange(1.0, len(run.loss))
    return horizons, np.cumsum(run.loss[1:]) / horizons


def descends(plan: Plan, run: Followed) -> float:
    """The least decrease of a step over what Eq. (68) asks for, less 1."""
    return float((-np.diff(run.loss) / (0.5 * plan.step * run.gradient[:-1] ** 2)).min() - 1.0)


# Theorem 1 --------------------------------------------------------------------------------------------------------


def training_loss_is_bounded(scale: Scale) -> Outcome:
    """Last loss over mean, mean over bound, distance over 4 D; the loss also where the bound says something."""
    tallies: list[Bound] = []
    slacks, tried, numbers = [], 0, {}
    for constants, runs in (("", printed_runs(scale)), (", sharp constants", sharp_runs(scale))):
        last = Bound(f"last loss / mean loss{constants}")
        mean = Bound(f"mean loss / bound{constants}")
        telling = Bound(f"mean loss / bound, where that is below the loss at the start{constants}")
        distance = Bound(f"|theta_K - theta_0| / 4 D{constants}")
        for plan, run in runs:
            tried += 1
            slack = slack_of_theorem_3(plan)
            slacks.append(slack)
            if min(slack.values()) < -ROUNDING:
                mean.leave_unsolved(plan.K)
                continue
            horizons, means = running_mean(run)
            bound = np.array([theorem_1(plan.D, plan.step, k, plan.target_loss).value for k in horizons])
            last.add(run.loss[-1], means[-1])
            mean.add(means, bound)
            telling.add(means, bound, says=bound < plan.start_loss)
            distance.add(run.moved, 4.0 * plan.D)
            numbers[plan.recipe.name] = facts(plan, run)
        tallies += [last, mean, telling, distance]
    return outcome(
        *tallies,
        instances=len(numbers),
        tried=tried,
        slack=least(*slacks),
        numbers=numbers,
        seeds=seeds(scale),
        note="Theorem 1 holds for every horizon up to K, as fewer steps only weaken its conditions; so every "
        "horizon is judged.",
    )


def facts(plan: Plan, run: Followed) -> dict[str, float]:
    """Of a run, for tables."""
    return {
        "H": plan.H,
        "step": plan.step,
        "K": plan.K,
        "D": plan.D,
        "loss of the target": plan.target_loss,
        "largest |theta_k - theta| / D": float(run.distance.max() / plan.D),
    }


# Lemma 7 ----------------------------------------------------------------------------------------------------------


def beta2(draws: Draws, sharp: bool) -> Array:
    """beta3 / sqrt(H) + beta1^2 / 4 of each draw: with the longest head, or sharp and with the longest U."""
    beta1, beta3 = betas(draws, draws.longest_U if sharp else draws.longest, sharp=sharp)
    return beta3 / np.sqrt(draws.heads) + beta1**2 / 4.0


def printed_beta2(draws: Draws, sharp: bool) -> Array:
    """The same, written out."""
    T, d = draws.x.shape[-2:]
    H = draws.heads
    values = []
    for x, U, whole in zip(draws.x, draws.longest_U, draws.longest, strict=True):
        R = longest_token(x)
        if sharp:
            values.append(sharp_beta_3(T, R, U) / np.sqrt(H) + sharp_beta_1(T, R, U) ** 2 / 4.0)
        else:
            values.append(beta_2(T, d, R, whole, H))
    return np.array(values)


def largest_descending_step(draws: Draws, gradient: Array, sharp: bool) -> Array:
    """The largest step with `step <= 1 / max(beta2 before, beta2 after)`, by bisection of its logarithm."""
    before = beta2(draws, sharp)
    low, high = np.full(len(before), -60.0), -np.log(before)
    for _ in range(50):
        middle = 0.5 * (low + high)
        after = beta2(draws.moved(gradient, -np.exp(middle)), sharp)
        fits = np.exp(middle) * np.maximum(before, after) <= 1.0
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.exp(low)


def single_steps(scale: Scale) -> Iterator[Draws]:
    """Random weights; and tokens in line, where the gradient follows the largest curvature.

    Tokens of one sign at zero weights: only the square of the gradient curves the loss. Tokens of length 8 near the
    saddle at zero, uphill: only the Hessian of the output does.
    """
    for H in HEADS:
        yield draw(scale.pick(20, 100, 500), SEQUENCES, H, *SIZES[0], seed=3)
    yield in_line(np.ones(16), 1, 1.0, np.zeros((1, 8)), np.zeros((1, 8)))
    small, R = np.array([[1e-4], [1e-3], [1e-2]]), 8.0
    yield in_line(alternating(2), 1, R, -small * R**2, small)


def every_step_descends(scale: Scale) -> Outcome:
    """What Eq. (68) asks for over the decrease: along runs, and for one step as large as the lemma allows."""
    in_runs = Bound("(step / 2) |grad L|^2 / decrease, runs of Theorem 1")
    single = {sharp: Bound(f"the same, largest single steps{', sharp' if sharp else ''}") for sharp in (False, True)}
    slacks, tried = [], 0
    for plan, run in (*printed_runs(scale), *sharp_runs(scale)):
        T, d = plan.tokens.x.shape[1:]
        R = longest_token(plan.tokens.x)
        m = float(run.longest.max())
        smooth = beta_2(T, d, R, m, plan.H)
        slacks.append({"1 / (rho_k step) - 1, runs": 1.0 / (smooth * plan.step) - 1.0})
        asked = 0.5 * plan.step * run.gradient[:-1] ** 2
        tried += len(asked)
        if slacks[-1]["1 / (rho_k step) - 1, runs"] >= -ROUNDING:
            in_runs.add(asked, -np.diff(run.loss), says=asked > LEAST_DECREASE * run.loss[:-1])
    for draws in single_steps(scale):
        before = pieces(draws)
        gradient = before.gradient.reshape(len(draws.x), draws.heads, -1)
        for sharp, bound in single.items():
            step = largest_descending_step(draws, gradient, sharp)
            after = draws.moved(gradient, -step)
            smooth = np.maximum(printed_beta2(draws, sharp), printed_beta2(after, sharp))
            slack = 1.0 / (smooth * step) - 1.0
            slacks.append({"1 / (rho_k step) - 1, single steps": float(slack.min())})
            meets = slack >= -ROUNDING
            asked = 0.5 * step * np.sum(before.gradient**2, -1)
            decrease = before.value - loss_value(after)
            seen = asked > LEAST_DECREASE * before.value
            bound.add(asked[meets], decrease[meets], says=seen[meets])
            bound.leave_unsolved(int(np.count_nonzero(~meets)))
            tried += len(step)
    return outcome(
        in_runs,
        *single.values(),
        tried=tried,
        slack=least(*slacks),
        seeds=(0, 3),
        note="A short step decreases the loss by step |grad L|^2, twice what is asked: 1/2 is the least ratio. Steps "
        "whose decrease is below 1e-6 of the loss are counted and not judged.",
    )


# Lemmas 8 to 10 ---------------------------------------------------------------------------------------------------


def beta3_to_target(plan: Plan, run: Followed) -> Array:
    """max(beta3(theta), beta3(theta_k)) for k < K."""
    return np.array([plan.shape.beta3(float(m)) for m in np.maximum(plan.g, run.longest[:-1])])


def regret_with_curvature(scale: Scale) -> Outcome:
    """Mean loss over the bound of Lemma 8; the largest loss on a segment is that of 11 points, so the bound is low."""
    slacks, tried = [], 0
    tallies: list[Bound] = []
    for heads, runs in (("needed heads", long_steps(scale)), ("two heads", few_heads(scale))):
        mean = Bound(f"mean loss / bound, {heads}")
        for plan, run in runs:
            tried += 1
            slacks.append({"descent (68)": descends(plan, run)})
            if slacks[-1]["descent (68)"] < -ROUNDING:
                continue
            tau = beta3_to_target(plan, run) / np.sqrt(plan.H) * largest_between(plan, run)[:-1]
            curvature = np.cumsum(tau * run.distance[:-1] ** 2)
            horizons, means = running_mean(run)
            bounds = [
                lemma_8(plan.D, plan.step, k, plan.target_loss, float(c)).value
                for k, c in zip(horizons, curvature, strict=True)
            ]
            mean.add(means, bounds)
        tallies.append(mean)
    judged = sum(slack["descent (68)"] >= -ROUNDING for slack in slacks)
    return outcome(
        *tallies, *_stuck_at_a_saddle(), instances=judged, tried=tried, slack=least(*slacks), seeds=seeds(scale)
    )


def _stuck_at_a_saddle() -> tuple[Count, Bound]:
    """Zero weights and tokens 1 and -1: the gradient is zero, the loss stays, and only the curvature explains it."""
    moves = Count("the gradient at the saddle is not zero")
    mean = Bound("mean loss / bound, start at a saddle")
    start = in_line(alternating(2), 1, 1.0, np.zeros((1, 1)), np.zeros((1, 1)))
    at_start = pieces(start)
    moves.add(at_start.gradient != 0.0)
    step, K = 0.1, 10.0**6
    for size in (0.1, 0.3, 1.0):
        target = in_line(alternating(2), 1, 1.0, np.full((1, 1), size), np.full((1, 1), size))
        D = float(np.sqrt(np.sum(target.U**2) + np.sum(target.W**2)))
        tau = Shape(T=2, d=1, R=1.0).beta3(float(target.longest[0])) * float(at_start.value[0])
        bound = lemma_8(D, step, K, float(loss_value(target)[0]), K * tau * D**2).value
        mean.add(at_start.value, bound)
    return moves, mean


def regret(scale: Scale) -> Outcome:
    """Mean loss over the bound of Lemma 9."""
    mean = Bound("mean loss / bound")
    slacks, tried = [], 0
    for plan, run in (*long_steps(scale), *sharp_runs(scale)):
        tried += 1
        T, d = plan.tokens.x.shape[1:]
        R = longest_token(plan.tokens.x)
        m = max(plan.g, float(run.longest.max()))
        curvature = sharp_beta_3(T, R, m) if plan.recipe.sharp else beta_3(T, d, R, m)
        needed = 2.0 * curvature * float(run.distance[:-1].max()) ** 2
        slack = {
            "sqrt(H) / (2 beta3 |theta - theta_k|^2) - 1": float(np.sqrt(plan.H)) / needed - 1.0,
            "descent (68)": descends(plan, run),
        }
        slacks.append(slack)
        if min(slack.values()) < -ROUNDING:
            mean.leave_unsolved(plan.K)
            continue
        horizons, means = running_mean(run)
        bounds = [lemma_9(plan.D, plan.step, k, plan.target_loss, plan.start_loss).value for k in horizons]
        mean.add(means, bounds)
    judged = sum(min(slack.values()) >= -ROUNDING for slack in slacks)
    return outcome(mean, instances=judged, tried=tried, slack=least(*slacks), seeds=seeds(scale))


def iterates_stay_near(scale: Scale) -> Outcome:
    """The largest distance from the target over 3 D."""
    tallies: list[Bound] = []
    slacks, tried = [], 0
    # Eq. (73) asks for a target that is not too near for long steps.
    far = [(plan, run) for plan, run in long_steps(scale) if abs(plan.recipe.reach) >= 1.0]
    for name, runs in (("largest steps of Theorem 1", printed_runs(scale)), ("long steps", far)):
        distance = Bound(f"|theta_k - theta| / 3 D, {name}")
        for plan, run in runs:
            tried += 1
            all_of_theorem_3 = slack_of_theorem_3(plan)
            slack = {
                "sqrt(H) / needed - 1": all_of_theorem_3["sqrt(H) / needed - 1"],
                "D^2 / (step K L(theta)) - 1": all_of_theorem_3["D^2 / (step K L(theta)) - 1"],
                "D^2 / (step L(theta_0)) - 1": all_of_theorem_3["D^2 / (step L(theta_0)) - 1"],
                "descent (68)": descends(plan, run),
            }
            slacks.append(slack)
            if min(slack.values()) < -ROUNDING:
                distance.leave_unsolved(plan.K)
                continue
            distance.add(run.distance, 3.0 * plan.D)
        tallies.append(distance)
    judged = sum(min(slack.values()) >= -ROUNDING for slack in slacks)
    return outcome(*tallies, instances=judged, tried=tried, slack=least(*slacks), seeds=seeds(scale))


CLAIMS = [
    Claim(
        id="multihead-C-L7",
        title="Gradient descent descends",
        statement="If step <= 1 / max(beta2(theta_k), beta2(theta_k+1)), then L(theta_k+1) <= L(theta_k) - (step / 2) "
        "|grad L(theta_k)|^2 (Lemma 7); also for beta2 from multihead-C-SH with the longest U.",
        hypotheses=("tokens no longer than R >= 1", "the step size; single steps meet it with equality"),
        setting="Runs of multihead-C-T1; single steps from random weights (H = 1 to 8, T = 3, d = 2, n = 5), and from "
        "tokens in line where the gradient follows the largest curvature.",
        reason="(step / 2) |grad L|^2 over the decrease, which is 1/2 for short steps; the step size is checked by a "
        "second transcription of beta2",
        measure=every_step_descends,
    ),
    Claim(
        id="multihead-C-L8",
        title="Mean loss with curvature",
        statement="Where each step descends, mean L(theta_k) <= L(theta) + D^2 / (2 step K) + (1 / 2K) sum_k tau_k "
        "|theta - theta_k|^2, tau_k = max(beta3(theta), beta3(theta_k)) / sqrt(H) max L on the segment (Lemma 8).",
        hypotheses=("descent (68) at every step, measured",),
        setting=DATA
        + " Steps of 0.3 and 0.05 at the heads of Theorem 3, of 0.1 with two heads, every horizon; and one "
        "sequence of tokens 1 and -1 at the saddle.",
        reason="mean loss over bound",
        measure=regret_with_curvature,
    ),
    Claim(
        id="multihead-C-L9",
        title="Mean loss with enough heads",
        statement="If also sqrt(H) >= 2 max(beta3(theta), beta3(theta_k)) |theta - theta_k|^2 for all k, mean "
        "L(theta_k) <= 2 L(theta) + 3 D^2 / (4 step K) + L(theta_0) / (2 K) (Lemma 9).",
        hypotheses=("descent (68) at every step, measured", "the condition on H at every step"),
        setting=DATA + " Targets at margins 0.5, 1.6 and 3 and on the wrong side; steps of 0.3, 0.05 and those of "
        "Theorem 1, every horizon.",
        reason="mean loss over bound; the condition is checked by a second transcription of beta3",
        measure=regret,
    ),
    Claim(
        id="multihead-C-L10",
        title="Iterates stay near the target",
        statement="|theta_k - theta| <= 3 |theta - theta_0| for all k <= K (Lemma 10).",
        hypotheses=("descent (68) at every step", HEADS_NEEDED, "D^2 >= step max(K L(theta), L(theta_0)) (Eq. 73)"),
        setting=DATA + " Targets on the right and on the wrong side, from which training moves away.",
        reason="largest distance over 3 D, which is 1/3 at the start; the proof gives sqrt(13/3) D, so 0.69. The 36 "
        "is guarded by a second transcription alone: with 1 it holds as well",
        measure=iterates_stay_near,
    ),
    Claim(
        id="multihead-C-T1",
        title="Training loss of gradient descent",
        statement="L(theta_K) <= mean L(theta_k) <= 2 L(theta) + 5 D^2 / (4 step K), |theta_K - theta_0| <= 4 D "
        "(Theorems 1 and 3), with as many heads as needed; also where heads and step size come from the constants of "
        "multihead-C-SH.",
        hypotheses=(HEADS_NEEDED, STEP, "tokens no longer than R >= 1"),
        setting=DATA + " As many heads as needed, 1e5 to 3e6, and the largest step size; starts at zero and at signs.",
        reason="last over mean loss, mean loss over bound, distance over 4 D; heads and step size are chosen by "
        "attnlab.theory and checked by a second transcription of Theorem 3, which alone guards their constants: with "
        "1 in place of 36 all parts hold as well",
        measure=training_loss_is_bounded,
    ),
]
