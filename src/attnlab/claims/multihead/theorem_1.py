"""Training under the conditions of the theory: Theorem 1 and Lemmas 7 to 10."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attnlab.claims.claim import Claim, Outcome, Verdict, within
from attnlab.claims.multihead.curvature import HEADS, SEQUENCES, SIZES
from attnlab.claims.multihead.derivatives import Draws, draw, loss, loss_value
from attnlab.claims.multihead.gradients import betas
from attnlab.claims.multihead.theory_runs import Followed, Plan, follow, followed, longest
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.multihead import head_requirement, largest_step, lemma_8, lemma_9, theorem_1

DESCENT = 1e-14
ROUNDING = 1e-12
# Start, sharp constants for the heads, sharp constants for the step size.
AS_PRINTED = (("zero", False, False), ("signs", False, False), ("zero", True, False))
ALL_SHARP = (("zero", True, True), ("signs", True, True))

HEADS_NEEDED = "sqrt(H) >= 36 sqrt(T d) R^3 (3 sqrt(d) R^2 (3 D + g) + 1) D^2, D = |theta - theta_0|"
STEP = "step <= min(1, 1 / rho, D^2 / (K L(theta)), D^2 / L(theta_0))"


def seeds(scale: Scale) -> int:
    """Data sets."""
    return scale.pick(1, 1, 3)


def runs(scale: Scale) -> Iterator[tuple[str, Plan, Followed]]:
    """Runs at the heads that are needed, rounded up, and at the largest step size."""
    for seed in range(seeds(scale)):
        for start, sharp_heads, sharp_step in scale.pick(ALL_SHARP, AS_PRINTED + ALL_SHARP, AS_PRINTED + ALL_SHARP):
            constants = "printed" if not sharp_heads else "sharp" if sharp_step else "sharp for heads"
            yield f"start {start}, constants {constants}, seed {seed}", *followed(seed, start, sharp_heads, sharp_step)


def room(plan: Plan) -> dict[str, float]:
    """By how much heads and step size meet the theorem, relatively."""
    top = largest_step(
        plan.step_shape, plan.D, plan.g, plan.H, K=plan.K, target_loss=plan.target_loss, start_loss=plan.start_loss
    )
    return {"H / needed - 1": plan.H / head_requirement(plan.shape, plan.D, plan.g) - 1.0,
            "largest step / step - 1": top / plan.step - 1.0}  # fmt: skip


def judged(scale: Scale, ratios: list[float], slacks: list[dict[str, float]], numbers: dict[str, object]) -> Outcome:
    """The largest ratio of the runs that meet every hypothesis, which must be at most 1."""
    slack = {name: min(each[name] for each in slacks) for name in slacks[0]}
    meets = [ratio for ratio, each in zip(ratios, slacks, strict=True) if min(each.values()) >= -ROUNDING]
    return within(max(meets, default=np.nan), 1.0, instances=len(meets), tried=len(ratios), slack=slack,
                  numbers=numbers, seeds=range(seeds(scale)))  # fmt: skip


def facts(plan: Plan, run: Followed) -> dict[str, float]:
    """Of a run, for tables."""
    return {
        "H": plan.H, "step": plan.step, "K": plan.K, "D": plan.D, "loss of the target": plan.target_loss,
        "mean loss": float(run.loss[1:].mean()), "last loss": float(run.loss[-1]),
        "largest |theta_k - theta| / D": float(run.distance.max() / plan.D),
        "|theta_K - theta_0|": float(run.moved[-1]),
    }  # fmt: skip


# Theorem 1 --------------------------------------------------------------------------------------------------------


def training_loss_is_bounded(scale: Scale) -> Outcome:
    """Last loss over mean, mean over bound, distance over 4 D; vacuous if a bound is not below the loss at start."""
    ratios, numbers, slacks, vacuous = [], {}, [], False
    for name, plan, run in runs(scale):
        bound = theorem_1(plan.D, plan.step, plan.K, plan.target_loss, start_loss=plan.start_loss)
        mean = float(run.loss[1:].mean())
        found = {"last / mean": run.loss[-1] / mean, "mean / bound": mean / bound.value,
                 "distance / 4 D": run.moved[-1] / (4 * plan.D)}  # fmt: skip
        ratios.append(max(found.values()))
        numbers[name] = {**facts(plan, run), "bound": bound.value, "loss at the start": plan.start_loss, **found}
        slacks.append(room(plan))
        vacuous |= bound.vacuous
    outcome = judged(scale, ratios, slacks, numbers)
    return replace(outcome, verdict=Verdict.VACUOUS) if vacuous and outcome.verdict is Verdict.HOLDS else outcome


# Lemma 7 ----------------------------------------------------------------------------------------------------------


def beta2(draws: Draws, tight: bool) -> Array:
    """beta3 / sqrt(H) + beta1^2 / 4 of each draw: with the longest head, or sharp and with the longest U."""
    beta1, beta3 = betas(draws, draws.longest_U if tight else draws.longest, sharp=tight)
    return beta3 / np.sqrt(draws.heads) + beta1**2 / 4.0


def largest_descending_step(draws: Draws, gradient: Array, tight: bool) -> Array:
    """The largest step with `step <= 1 / max(beta2 before, beta2 after)`, by bisection of its logarithm."""
    before = beta2(draws, tight)
    low, high = np.full(len(before), -60.0), -np.log(before)
    for _ in range(50):
        middle = 0.5 * (low + high)
        after = beta2(draws.moved(gradient, -np.exp(middle)), tight)
        fits = np.exp(middle) * np.maximum(before, after) <= 1.0
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.exp(low)


def every_step_descends(scale: Scale) -> Outcome:
    """loss after - loss before + (step / 2) |grad|^2: along runs, and for one step as large as the lemma allows."""
    gaps, room_in_runs, tried = {}, np.inf, 0
    for name, plan, run in runs(scale):
        m = np.maximum(run.longest[1:], run.longest[:-1])
        rho = np.array([plan.shape.beta2(float(v), plan.H) for v in m[:: scale.pick(10, 10, 1)]])
        room_in_runs = min(room_in_runs, float((1.0 / rho).min() / plan.step - 1.0))
        gaps[name] = float((np.diff(run.loss) + 0.5 * plan.step * run.gradient[:-1] ** 2).max())
        tried += plan.K
    count, slack = scale.pick(20, 100, 500), np.inf
    for H in HEADS:
        draws = draw(count, SEQUENCES, H, *SIZES[0], seed=3)
        before = loss(draws)
        gradient = before.gradient.reshape(count, H, -1)
        for tight in (False, True):
            step = largest_descending_step(draws, gradient, tight)
            after = draws.moved(gradient, -step)
            rho = np.maximum(beta2(draws, tight), beta2(after, tight))
            slack = min(slack, float((1.0 / (rho * step) - 1.0).min()))
            gap = loss_value(after) - before.value + 0.5 * step * np.sum(before.gradient**2, -1)
            key = f"single steps, H = {H}{', sharp' if tight else ''}"
            gaps[key] = float((gap / np.maximum(1.0, before.value)).max())
            tried += count
    return within(
        max(gaps.values()), DESCENT, instances=tried, seeds=(0, 3), numbers={"largest gap": gaps},
        slack={"1 / (rho_k step) - 1, runs": room_in_runs, "1 / (rho_k step) - 1, single steps": slack},
    )  # fmt: skip


# Lemmas 8 to 10 ---------------------------------------------------------------------------------------------------


def few_heads(scale: Scale) -> tuple[str, Plan, Followed]:
    """The same data and target with two heads and a larger step; the segments to the target are curved here."""
    base, _ = followed(0, "signs", True, True)
    shift = np.sqrt(base.H / 2.0)
    target = {k: base.start[k] + shift * (base.target[k] - base.start[k]) for k in base.start}
    model = type(base.model)(2, counts=(1.0, 1.0))
    losses = [float(model.loss(base.tokens, weights)) for weights in (base.start, target)]
    small = replace(base, model=model, target=target, g=float(longest(target)), step=0.1, K=scale.pick(200, 1000, 5000),
                    start_loss=losses[0], target_loss=losses[1])  # fmt: skip
    return "two heads, step 0.1", small, follow(small)


def descends(plan: Plan, run: Followed) -> float:
    """By how much Eq. (68) holds at its tightest step."""
    return float((-np.diff(run.loss) - 0.5 * plan.step * run.gradient[:-1] ** 2).min())


def beta3_to_target(plan: Plan, run: Followed) -> Array:
    """max(beta3(theta), beta3(theta_k)) for k < K."""
    return np.array([plan.shape.beta3(float(m)) for m in np.maximum(plan.g, run.longest[:-1])])


def regret_with_curvature(scale: Scale) -> Outcome:
    """Mean loss over the bound of Lemma 8; the largest loss on a segment is that of 21 points, so the bound is low."""
    ratios, numbers, slacks = [], {}, []
    for name, plan, run in (*runs(scale), few_heads(scale)):
        tau = beta3_to_target(plan, run) / np.sqrt(plan.H) * run.between[:-1]
        curvature = float(np.sum(tau * run.distance[:-1] ** 2))
        bound = lemma_8(plan.D, plan.step, plan.K, plan.target_loss, curvature).value
        ratios.append(float(run.loss[1:].mean()) / bound)
        slacks.append({"descent (68)": descends(plan, run)})
        numbers[name] = {"mean loss": float(run.loss[1:].mean()), "bound": bound,
                         "share of the curvature": curvature / (2 * plan.K * bound)}  # fmt: skip
    return judged(scale, ratios, slacks, numbers)


def regret(scale: Scale) -> Outcome:
    """Mean loss over the bound of Lemma 9."""
    ratios, numbers, slacks = [], {}, []
    for name, plan, run in runs(scale):
        bound = lemma_9(plan.D, plan.step, plan.K, plan.target_loss, plan.start_loss).value
        ratios.append(float(run.loss[1:].mean()) / bound)
        needed = 2.0 * beta3_to_target(plan, run) * run.distance[:-1] ** 2
        slacks.append({"sqrt(H) / (2 beta3 |theta - theta_k|^2) - 1": float(np.sqrt(plan.H) / needed.max() - 1.0),
                       "descent (68)": descends(plan, run)})  # fmt: skip
        numbers[name] = {"mean loss": float(run.loss[1:].mean()), "bound": bound}
    return judged(scale, ratios, slacks, numbers)


def iterates_stay_near(scale: Scale) -> Outcome:
    """The largest distance from the target over 3 D."""
    ratios, numbers, slacks = [], {}, []
    for name, plan, run in runs(scale):
        ratios.append(float(run.distance.max() / (3 * plan.D)))
        reach = plan.step * max(plan.K * plan.target_loss, plan.start_loss)
        slacks.append({"H / needed - 1": room(plan)["H / needed - 1"], "D^2 / (73) - 1": plan.D**2 / reach - 1.0,
                       "descent (68)": descends(plan, run)})  # fmt: skip
        numbers[name] = facts(plan, run)
    return judged(scale, ratios, slacks, numbers)


CLAIMS = [
    Claim(
        id="multihead-C-L7",
        title="Gradient descent descends",
        statement="If step <= 1 / max(beta2(theta_k), beta2(theta_k+1)), then L(theta_k+1) <= L(theta_k) - (step / 2) "
        "|grad L(theta_k)|^2 (Lemma 7); also for beta2 from multihead-C-SH with the longest U.",
        hypotheses=("tokens no longer than R >= 1", "the step size; single random steps meet it up to rounding"),
        tolerance=DESCENT,
        reason="how far it is missed, relative to max(1, L); rounding of the loss",
        measure=every_step_descends,
    ),
    Claim(
        id="multihead-C-L8",
        title="Mean loss with curvature",
        statement="Where each step descends, mean L(theta_k) <= L(theta) + D^2 / (2 step K) + (1 / 2K) sum_k tau_k "
        "|theta - theta_k|^2, tau_k = max(beta3(theta), beta3(theta_k)) / sqrt(H) max L on the segment (Lemma 8).",
        hypotheses=("descent (68) at every step",),
        tolerance=1.0,
        reason="mean loss over bound",
        measure=regret_with_curvature,
    ),
    Claim(
        id="multihead-C-L9",
        title="Mean loss with enough heads",
        statement="If also sqrt(H) >= 2 max(beta3(theta), beta3(theta_k)) |theta - theta_k|^2 for all k, mean "
        "L(theta_k) <= 2 L(theta) + 3 D^2 / (4 step K) + L(theta_0) / (2 K) (Lemma 9).",
        hypotheses=("descent (68) at every step", "the condition on H at every step"),
        tolerance=1.0,
        reason="mean loss over bound",
        measure=regret,
    ),
    Claim(
        id="multihead-C-L10",
        title="Iterates stay near the target",
        statement="|theta_k - theta| <= 3 |theta - theta_0| for all k <= K (Lemma 10).",
        hypotheses=("descent (68) at every step", HEADS_NEEDED, "D^2 >= step max(K L(theta), L(theta_0)) (Eq. 73)"),
        tolerance=1.0,
        reason="largest distance over 3 D",
        measure=iterates_stay_near,
    ),
    Claim(
        id="multihead-C-T1",
        title="Training loss of gradient descent",
        statement="L(theta_K) <= mean L(theta_k) <= 2 L(theta) + 5 D^2 / (4 step K), |theta_K - theta_0| <= 4 D "
        "(Theorems 1 and 3), with as many heads as needed; also where heads, or heads and step size, come from the "
        "constants of multihead-C-SH.",
        hypotheses=(HEADS_NEEDED, STEP, "tokens no longer than R >= 1"),
        tolerance=1.0,
        reason="last over mean loss, mean loss over bound, distance over 4 D; the bound must be below the loss at the "
        "start",
        measure=training_loss_is_bounded,
    ),
]  # fmt: skip
