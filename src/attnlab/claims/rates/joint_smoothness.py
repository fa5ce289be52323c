"""Gradients and curvature of the joint objective: Lemma 13 and equations (51) to (53)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.claims.claim import Claim, Outcome, within
from attnlab.claims.rates.joint_data import CONDITION
from attnlab.claims.rates.joint_dynamics import FOLLOWED
from attnlab.claims.rates.joint_leaps import log_losses
from attnlab.claims.rates.joint_samples import Case, condition_case, leaps_of, plain_case, run_of, with_step
from attnlab.claims.scale import Scale
from attnlab.data import Tokens
from attnlab.data.tokens import Array
from attnlab.models import in_float64
from attnlab.theory.fast_rates.joint import curvature_bound, log_segment_bound, output_bounds

STEPS = 50  # followed one by one
PARTS = np.linspace(0.0, 1.0, 11)  # of a segment
CAPS = ("1/(18 alpha^2 rho^2 d)", "log(2)/(3 B)")  # on eta, that the second part of Lemma 13 uses


def gradient_is_at_least_the_loss(scale: Scale) -> Outcome:
    """omega_1 L over |grad_u L|, along training."""
    worst, count, slack, sizes = 0.0, 0, {}, []
    for n in (2, 10)[: scale.pick(1, 2, 2)]:
        case = condition_case(n, scale.pick(4, 20, 100))
        ratio = leaps_of(case).gradient / case.model.omega_1
        worst, slack, count = max(worst, float(1 / ratio.min())), case.slack(), count + len(ratio)
        sizes.append(float(ratio.min()))
    return within(worst, 1.0, instances=count, seeds=[0], slack=slack, numbers={"least |grad_u L|/(omega_1 L)": sizes})


def _segments(scale: Scale) -> Iterator[tuple[str, Case, Tokens, Array, Array]]:
    """Cases with consecutive iterates, (trials, t, d) and (trials, t, d, d): Condition 1, and the largest steps of
    which the proof speaks. Sets with a token longer than B are left out."""
    trials = scale.pick(4, 20, 100)
    small = plain_case(2, 10.0, 3.0, 0.3, 0.1, trials)
    at_cap = with_step(small, min(small.model.step_caps[name] for name in CAPS))
    for name, case in (("Condition 1", condition_case(2, trials)), ("n = 2, d = 10, largest steps", at_cap)):
        run = run_of(case, STEPS)
        fits = np.linalg.norm(case.tokens.x, axis=-1).max((-2, -1)) <= case.model.B
        u, W = (np.insert(run.metrics[key][fits], 0, 0.0, axis=1) for key in ("u", "W_now"))
        yield name, case, case.tokens[fits], u, W


def loss_changes_little_within_a_step(scale: Scale) -> Outcome:
    """The largest loss on a segment between two iterates, over 8 times the loss at its start."""
    worst, count, tried, facts = 0.0, 0, 0, {}
    for name, case, tokens, u, W in _segments(scale):
        grown = turned = 0.0
        for t in range(STEPS):
            start = log_losses(tokens, u[:, t], W[:, t])
            for part in PARTS[1:]:
                here = log_losses(tokens, _between(u, t, part), _between(W, t, part))
                grown = max(grown, float(np.exp(here - start).max()))
                turned = max(turned, float(np.abs(here - start).max()))
        worst, count, tried = max(worst, grown / 8), count + len(u), tried + len(case.Lambda)
        log_bound = log_segment_bound(case.model, case.step)
        facts[name] = {"loss / loss at the start": grown, "|log ratio|": turned, "6 eta^2 B^3 + eta B": log_bound,
                       "eta": case.step}  # fmt: skip
        if turned > log_bound * (1 + 1e-9):
            worst = np.inf
    return within(worst, 1.0, instances=count, tried=tried, seeds=[0], numbers=facts)


def curvature_is_bounded_by_the_loss(scale: Scale) -> Outcome:
    """|hess L| on segments between iterates, over 8 max(omega(theta_t), omega(theta_t+1)) L(theta_t)."""
    worst, count, tried, facts, slack = 0.0, 0, 0, {}, {}
    for name, case, tokens, u, W in _segments(scale):
        largest = 0.0
        for t in (0, 1, STEPS // 2, STEPS - 1):
            loss = np.exp(log_losses(tokens, u[:, t], W[:, t]))
            bound = curvature_bound(case.model, *(np.linalg.norm(u[:, s], axis=-1) for s in (t, t + 1)))
            for part in PARTS[::5]:
                found = hessian_norms(tokens, _between(u, t, part), _between(W, t, part))
                largest = max(largest, float((found / (bound * loss)).max()))
        if name == "Condition 1":
            end, slack = leaps_of(case), case.slack()
            found = hessian_norms(case.tokens, end.u, end.W) / np.exp(end.log_loss[:, -1])
            largest = max(largest, float((found / curvature_bound(case.model, end.norm_u[:, -1], 0.0)).max()))
        worst, count, facts[name] = max(worst, largest), count + len(u), largest
        tried += len(case.Lambda)
    return within(worst, 1.0, instances=count, tried=tried, seeds=[0], slack=slack, numbers={"norm / bound": facts})


def _between(iterates: Array, t: int, part: float) -> Array:
    return iterates[:, t] + part * (iterates[:, t + 1] - iterates[:, t])


def _output(u: Any, W: Any, x: Any, z: Any) -> Any:
    return jnp.dot(u, x.T @ jax.nn.softmax(x @ W @ z))


def _flat_output(theta: Any, x: Any) -> Any:
    d = x.shape[-1]
    return _output(theta[:d], theta[d:].reshape(d, d), x, x[0])


def _loss(theta: Any, x: Any, y: Any) -> Any:
    return jnp.mean(jnp.exp(-y * jax.vmap(_flat_output, (None, 0))(theta, x)))


_hessians = jax.jit(jax.vmap(jax.hessian(_loss)))
_outputs = jax.jit(jax.vmap(_flat_output))
_derivatives = jax.jit(jax.vmap(lambda p, x: (jax.grad(_flat_output)(p, x), jax.hessian(_flat_output)(p, x))))


@in_float64
def hessian_norms(tokens: Tokens, u: Array, W: Array) -> Array:
    """Largest |eigenvalue| of the Hessian of the loss in (u, W), per trial."""
    theta = np.concatenate([u, W.reshape(len(W), -1)], axis=-1)
    return _largest(np.asarray(_hessians(theta, tokens.x, tokens.y)))


def _largest(symmetric: Array) -> Array:
    return np.abs(np.linalg.eigvalsh(symmetric)).max(-1)


@in_float64
def outputs_are_smooth(scale: Scale) -> Outcome:
    """The largest of value over bound for the three bounds, at random weights of all sizes."""
    draws, ratios = scale.pick(100, 1000, 10_000), {"change": 0.0, "gradient": 0.0, "curvature": 0.0}
    for d in (2, 4):
        rng = np.random.default_rng([0, d])
        x = rng.standard_normal((draws, 3, d)) * np.exp(rng.uniform(-2, 1, (draws, 1, 1)))
        sizes = np.exp(rng.uniform(-3, 3, (2, draws, 1)))
        one, change = (s * rng.standard_normal((draws, d + d * d)) for s in sizes)
        other = one + change
        gradients, hessians = (np.asarray(found) for found in _derivatives(one, x))
        B = np.linalg.norm(x, axis=-1).max(-1)
        here, there = (output_bounds(B, d, np.linalg.norm(p[:, :d], axis=-1)) for p in (one, other))
        by_u, by_W = (np.linalg.norm(part, axis=-1) for part in (change[:, :d], change[:, d:]))
        moved = np.abs(np.asarray(_outputs(one, x)) - np.asarray(_outputs(other, x)))
        found = {
            "change": moved / (there["head"] * by_u + there["attention"] * by_W),
            "gradient": np.linalg.norm(gradients, axis=-1) / here["gradient"],
            "curvature": _largest(hessians) / here["curvature"],
        }
        ratios = {name: max(value, float(found[name].max())) for name, value in ratios.items()}
    return within(max(ratios.values()), 1.0, instances=2 * draws, seeds=[0], numbers={"value / bound": ratios})


CLAIMS = [
    Claim(
        id="rates-K21",
        title="The gradient is at least a multiple of the loss",
        statement="|grad_u L(theta_t)| >= omega_1 L(theta_t), omega_1 = (alpha rho/8) sqrt(d/n) (Lemma 13, first "
        "part).",
        hypotheses=FOLLOWED,
        tolerance=1.0,
        reason="bound over value",
        measure=gradient_is_at_least_the_loss,
    ),
    Claim(
        id="rates-K21b",
        title="Within a step of joint training the loss changes little",
        statement="Between theta_t and theta_t+1, L(theta') <= exp(6 eta^2 B^3 + eta B) L(theta_t) <= 8 L(theta_t) "
        "(Lemma 13, second part).",
        hypotheses=("eta <= log(2)/(3 B) and 1/(18 alpha^2 rho^2 d)", "no token longer than B", "updates of Eq. (10)"),
        tolerance=1.0,
        reason="loss over 8 times the loss at the start; infinite if the sharper bound of the proof is missed",
        measure=loss_changes_little_within_a_step,
    ),
    Claim(
        id="rates-K21c",
        title="The curvature is bounded by the loss",
        statement="Between theta_t and theta_t+1, |hess L(theta')| <= 8 max(omega(theta_t), omega(theta_t+1)) "
        "L(theta_t), omega(theta) = 13 (B or 1)^5 (B or d) (|u| or 1)^2 (Lemma 13, third part).",
        hypotheses=("as for the second part", *CONDITION[:1]),
        tolerance=1.0,
        reason="value over bound; the Hessian is formed in the span of the tokens, where all of it lives",
        measure=curvature_is_bounded_by_the_loss,
    ),
    Claim(
        id="rates-K22",
        title="The output is smooth in head and attention",
        statement="For tokens of length at most B: |Phi(theta) - Phi(theta')| <= B|u - u'| + 2 B^3 |u'| |W - W'|, "
        "|grad Phi| <= B + 2 B^3 |u|, |hess Phi| <= 6 d B^5 |u| + 2 sqrt(d) B^3 (Eqs. 51-53 and after).",
        hypotheses=("none",),
        tolerance=1.0,
        reason="value over bound at random weights",
        measure=outputs_are_smooth,
    ),
]
