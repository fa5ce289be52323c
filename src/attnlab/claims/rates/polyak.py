"""Theorem 7, the Polyak step: its bounds on the gradient, its rate, and where its explicit constants reach."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.claims.claim import Claim, Outcome, Verdict, erratum, within
from attnlab.claims.rates.step_rules import data_slack, trained, trials
from attnlab.claims.scale import Scale
from attnlab.data import Tokens, optimal_tokens, orthogonal_signal, two_tokens
from attnlab.data.separated import separated_signal
from attnlab.data.tokens import Array
from attnlab.optim import polyak
from attnlab.theory.fast_rates.bounds import PolyakConstants, polyak_constants
from attnlab.theory.fast_rates.constants import rate_constants
from attnlab.theory.fast_rates.orthogonality import initialization
from attnlab.theory.fitting import fit_rate
from attnlab.train import Trajectory, descend

SEED = 7
BETAS = (0.6, 0.9, 0.99, 0.999)
START = 1e-4  # deviation of the entries of W(0); from zero, exactly orthogonal tokens are aligned at once
HALF = 0.5  # the constant of the Polyak step in the experiments
SIZES = (3, 5, 10)  # tokens per sequence in the example of the erratum
PROBS = {"probs": lambda view: view.probs[:, 0, :]}


def best_and_rest(run: Trajectory, tokens: Tokens) -> tuple[Array, Array]:
    """phi and 1 - phi of every best token at every record, (trials, R, n); the second is summed, not subtracted."""
    probs = run.metrics["probs"]
    is_best = np.arange(tokens.T) == optimal_tokens(tokens)[..., None]
    return np.where(is_best[:, None], probs, 0.0).sum(-1), np.where(is_best[:, None], 0.0, probs).sum(-1)


def gradient_between_bounds(scale: Scale) -> Outcome:
    """|gradient| over its two bounds along runs, and the exponent of 1 - cos, without a cap.

    At each record beta is the least that `1 - beta <= phi <= beta` allows; then beta (1 - beta) = min phi (1 - phi).
    """
    count, worst, rates, slack = trials(scale), {}, {}, {}
    sets = {
        "figure 2": orthogonal_signal(seed=SEED, trials=count),
        "Assumption 1 met": separated_signal(n=4, T=3, d=16, noise=0.25, orthogonal=True, seed=SEED, trials=count),
    }
    for name, tokens in sets.items():
        run = trained(
            tokens, polyak(constant=HALF), scale.pick(200, 500, 1000), metrics=PROBS, init="gaussian", init_scale=START
        )
        phi, rest = best_and_rest(run, tokens)
        known = [rate_constants(tokens[i]) for i in range(count)]
        share = np.log((phi * rest).min(-1))
        low = share + np.log([[c.least_gap / c.Lambda] for c in known])
        high = np.log([[0.5 * c.B**2 * c.largest_gap] for c in known])
        log_ratio = run.metrics["log_gradient_norm"] - run.metrics["log_loss"]
        worst[name] = {
            "largest lower bound / |gradient|": float(np.exp((low - log_ratio).max())),
            "largest |gradient| / upper bound": float(np.exp((log_ratio - high).max())),
        }
        rates[name] = fit_rate(run.steps, run.metrics["misalignment_svm"], start=10)
        slack |= {f"{key} ({name})": value for key, value in data_slack(tokens).items()}
    bounds = max(max(each.values()) for each in worst.values())
    return within(
        bounds if min(fit.rate for fit in rates.values()) >= 0.9 else np.inf, 1.0 + 1e-9, instances=2 * count,
        seeds=[SEED], slack=slack,
        numbers={
            **worst, "exponent of 1 - cos from step 10 on": {k: [-f.high, -f.rate, -f.low] for k, f in rates.items()},
        },
    )  # fmt: skip


def explicit_rate(scale: Scale) -> Outcome:
    """T_0 over t_0 for each beta, on two tokens: the theorem speaks of t_0 <= t <= T_0, if there are such t."""
    tokens = two_tokens()
    known = rate_constants(tokens)
    found = {}
    for beta in BETAS[: scale.pick(2, 4, 4)]:
        constants = {False: _with_largest_step(known, beta, False), True: _with_largest_step(known, beta, True)}
        step = constants[True].largest_step
        last = _last_below(beta, step)
        found[f"beta = {beta:g}"] = {
            "step": step, "T_0": last, "t_0 as printed": constants[False].first_time, "t_0": constants[True].first_time,
        }  # fmt: skip
    reach = {form: max(f["T_0"] / f[form] for f in found.values()) for form in ("t_0 as printed", "t_0")}
    facts: dict[str, Any] = {
        "tried": len(found), "numbers": found,
        "slack": {"T_0 / t_0, as printed": reach["t_0 as printed"], "T_0 / t_0": reach["t_0"]},
        "note": "On two tokens no beta leaves a time between t_0 and T_0; larger Lambda and B only raise t_0.",
    }  # fmt: skip
    if max(reach.values()) < 1:
        return within(np.inf, 0.0, instances=0, **facts)
    return Outcome(verdict=Verdict.FAILS, instances=len(found), **{**facts, "note": "A run reaches t_0; measure it."})


def _with_largest_step(known: Any, beta: float, corrected: bool) -> PolyakConstants:
    """The constants at the largest step that the theorem allows: t_0 falls as the step grows."""
    step = polyak_constants(known, 1.0, beta, corrected=corrected).largest_step
    return polyak_constants(known, step, beta, corrected=corrected)


def _last_below(beta: float, step: float) -> int:
    """T_0: the last step at which the best of two tokens has attention at most beta."""
    scale = initialization(two_tokens(), 0.0, step).evidence["largest_scale"]
    start = scale * np.random.default_rng(SEED).standard_normal((2, 2))
    steps = int(50 * np.log(1 / (1 - beta)) / step) + 100
    run = descend(two_tokens(), polyak(constant=step), steps=steps, loss="exponential", init=start, record=40)
    above = run.metrics["attention_min"] > beta
    # The first record above is no earlier than T_0 + 1; if none is, the run was too short to know.
    return int(run.steps[above][0]) - 1 if above.any() else np.iinfo(np.int64).max


def _ends_of_attention(scale: Scale, *, corrected: bool) -> Outcome:
    """omega_1 L / |gradient| on one sequence with tokens (1, 0) and T - 1 times 0, while phi <= 1/2 = beta."""
    found, room, slack = [], np.inf, {}
    for T in SIZES[: scale.pick(1, 3, 3)]:
        x = np.zeros((1, T, 2))
        x[0, 0, 0] = 1.0
        tokens = Tokens.self_attention(x, [1.0], [1.0, 0.0])
        both = Tokens.stack([tokens] * 2)
        slack |= {f"{name} (T = {T})": value for name, value in data_slack(both).items()}
        known = rate_constants(tokens)
        constants = polyak_constants(known, 1.0, 0.5)
        run = trained(both, polyak(constant=constants.largest_step), scale.pick(20, 100, 1000), metrics=PROBS)
        phi, rest = (part[..., 0] for part in best_and_rest(run, both))
        beta = np.maximum(phi, rest) if corrected else np.full(phi.shape, 0.5)
        omega = beta * (1 - beta) * known.least_gap / known.Lambda
        ratio = np.exp(run.metrics["log_gradient_norm"] - run.metrics["log_loss"])
        found.append((omega / ratio)[phi <= 0.5])
        room = min(room, float((0.5 - phi[phi <= 0.5]).min()))
    values = np.concatenate(found)
    return within(
        float(values.max()), 1.0 + 1e-9, instances=len(values), slack={"beta - phi": room, **slack},
        numbers={"T": list(SIZES[: len(found)]), "omega_1 L / |gradient|": [float(values.min()), float(values.max())]},
    )  # fmt: skip


def lower_bound_printed(scale: Scale) -> Outcome:
    """With omega_1 = beta (1 - beta) min gap / Lambda and phi <= beta only."""
    return _ends_of_attention(scale, corrected=False)


def lower_bound_corrected(scale: Scale) -> Outcome:
    """With a beta that has 1 - beta <= phi <= beta."""
    return _ends_of_attention(scale, corrected=True)


def _constants_on_figure_2(scale: Scale) -> list[PolyakConstants]:
    tokens = orthogonal_signal(seed=SEED, trials=trials(scale))
    return [_with_largest_step(rate_constants(tokens[i]), 0.5, True) for i in range(trials(scale))]


def omega_2_above_one(scale: Scale) -> Outcome:
    """1 less omega_2."""
    values = [c.omega_2 for c in _constants_on_figure_2(scale)]
    return within(1.0 - min(values), 0.0, instances=len(values), seeds=[SEED], numbers={"omega_2": values})


def start_is_outgrown(scale: Scale) -> Outcome:
    """`omega_2 upsilon / t_0`: with |W_0| <= eta/(4 B^2 Lambda) the line holds for t >= omega_2 upsilon."""
    found = [c.omega_2 * c.ratio / c.first_time for c in _constants_on_figure_2(scale)]
    return within(max(found), 1.0, instances=len(found), seeds=[SEED])


OF_THEOREM_7 = ("Assumptions 1 and 2", "small start (Lemma 2)", "eta at most omega_1 log(2T-1)/(2 B^2)", "no cap")

CLAIMS = [
    Claim(
        id="rates-K11",
        title="Rate of the Polyak step, with its explicit constants (Theorem 7)",
        statement="For T_0 >= t >= t_0, where T_0 is the last time at which every phi_i,opt <= beta: <W_t, W_mm> >= "
        "1 - C (log t)^2/t, directions normalized (Theorem 7).",
        hypotheses=(*OF_THEOREM_7, "t_0 <= t <= T_0"),
        reason="T_0 / t_0 on two tokens for several beta, at the largest step; below 1 there is no time to speak of",
        measure=explicit_rate,
        expected=Verdict.NOT_APPLICABLE,
    ),
    Claim(
        id="rates-K11b",
        title="The gradient between two multiples of the loss, and the rate of the Polyak step",
        statement="While 1 - beta <= phi_i,opt <= beta: omega_1 L <= |grad L| <= omega_2 L with omega_1 = "
        "beta (1 - beta) min gap / Lambda, omega_2 = B^2 max gap / 2 (proof of Theorem 7); and without a cap 1 - cos "
        "falls at least as t^-1.",
        hypotheses=("Assumption 2",),
        tolerance=1.0 + 1e-9,
        reason="the larger of lower bound / |gradient| and |gradient| / upper bound; and a fitted exponent of at "
        "most -0.9",
        measure=gradient_between_bounds,
    ),
    erratum(
        id="rates-E7b",
        title="The lower bound on the gradient needs attention away from 0, too",
        printed="With phi_i,opt <= beta: |grad L| >= beta (1 - beta) Lambda^-1 min_i (gamma_i,opt - gamma_i) L = "
        "omega_1 L (Theorem 7 and its proof).",
        corrected="With 1 - beta <= phi_i,opt <= beta; phi <= beta alone does not give phi (1 - phi) >= "
        "beta (1 - beta): attention starts at about 1/T.",
        hypotheses=("Assumptions 1 and 2", "zero start", "phi <= beta = 1/2"),
        tolerance=1.0 + 1e-9,
        reason="omega_1 L / |gradient|, at most 1 up to rounding",
        measure_printed=lower_bound_printed,
        measure_corrected=lower_bound_corrected,
    ),
    erratum(
        id="rates-E7c",
        title="omega_2 is not above 1",
        printed='"eta (2 B^2 Lambda omega_2 upsilon)^-1 t - |<W_0, W_mm>| >= eta (4 B^2 Lambda omega_2 upsilon)^-1 t, '
        'since omega_2 > 1" (proof of Theorem 7).',
        corrected="omega_2 = B^2 max gap / 2 is 1/2 on the data of Example 1; the line holds since t >= t_0 >= omega_2 "
        "upsilon.",
        hypotheses=("data of Figure 2",),
        tolerance=1.0,
        reason="printed: 1 - omega_2, at most 0. Corrected: omega_2 upsilon / t_0, at most 1",
        measure_printed=omega_2_above_one,
        measure_corrected=start_is_outgrown,
    ),
]
