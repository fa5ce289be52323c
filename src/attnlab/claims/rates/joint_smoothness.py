"""Gradients and curvature of the joint objective: Lemma 13 and equations (51) to (53)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.parts import Bound, Count, least
from attnlab.claims.rates.joint_data import CONDITION
from attnlab.claims.rates.joint_dynamics import FOLLOWED, TRAINED, followed
from attnlab.claims.rates.joint_leaps import log_losses
from attnlab.claims.rates.joint_samples import (
    Case,
    condition_case,
    extreme_case,
    leaps_of,
    plain_case,
    run_of,
    with_step,
)
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Verdict
from attnlab.data import Tokens
from attnlab.data.tokens import Array
from attnlab.models import in_float64
from attnlab.theory.rates.joint import (
    JointModel,
    curvature_bound,
    log_segment_bound,
    output_bounds,
)

STEPS = 50  # followed one by one
PARTS = np.linspace(0.0, 1.0, 11)  # of a segment
CAPS = ("1/(18 alpha^2 rho^2 d)", "log(2)/(3 B)")  # on eta, that the second part of Lemma 13 uses


def gradient_is_at_least_the_loss(scale: Scale) -> Outcome:
    """omega_1 L over |grad_u L|, along training."""
    drawn = Bound("omega_1 L / |grad_u L|, drawn sets")
    extreme = Bound("omega_1 L / |grad_u L|, lengths at the ends of Lemma 9's events")
    slack: dict[str, float] = {}
    sets = 0
    for case, leaps in followed(scale):
        tally = extreme if case is extreme_case(case.model.n) else drawn
        tally.add(case.model.omega_1, leaps.gradient)
        slack = least(slack, case.slack())
        sets += case.trials
    return outcome(drawn, extreme, instances=sets, seeds=[0], slack=slack)


def _segments(scale: Scale) -> Iterator[tuple[str, Case, Tokens, Array, Array]]:
    """Cases with consecutive iterates, (trials, t, d) and (trials, t, d, d): Condition 1, and the largest steps of
    which the proof speaks. Sets with a token longer than B are left out."""
    trials = scale.pick(4, 20, 100)
    small = plain_case(2, 10.0, 3.0, 0.3, 0.1, trials)
    at_cap = with_step(small, _largest_step(small.model))
    for name, case in (("Condition 1", condition_case(2, trials)), ("n = 2, d = 10, largest steps", at_cap)):
        run = run_of(case, STEPS)
        fits = np.linalg.norm(case.tokens.x, axis=-1).max((-2, -1)) <= case.model.B
        from_zero = [np.insert(run.metrics[key][fits], 0, 0.0, axis=1) for key in ("u", "W_now")]
        yield name, case, case.tokens[fits], from_zero[0], from_zero[1]


def _largest_step(model: JointModel) -> float:
    """Of which the second part of Lemma 13 speaks."""
    return min(model.step_caps[name] for name in CAPS)


def loss_changes_little_within_a_step(scale: Scale) -> Outcome:
    """Change of log L on segments between iterates over its bound; and that bound over log 8, at the largest steps."""
    changes = Bound("|log L(theta') - log L(theta_t)| / (6 eta^2 B^3 + eta B)")
    eight = Bound("(6 eta^2 B^3 + eta B) / log 8, at the largest steps")
    judged = tried = 0
    steps = {}
    for name, case, tokens, u, W in _segments(scale):
        promised = log_segment_bound(case.model, case.step)
        for t in range(STEPS):
            start = log_losses(tokens, u[:, t], W[:, t])
            for part in PARTS[1:]:
                here = log_losses(tokens, _between(u, t, part), _between(W, t, part))
                changes.add(np.abs(here - start), promised)
        judged += len(u)
        tried += case.trials
        steps[name] = case.step
    for length in np.geomspace(0.01, 100.0, 81):  # B
        model = JointModel(n=2, d=150.0, alpha=6.0, rho=length / (6.0 * 15.0))
        eight.add(log_segment_bound(model, _largest_step(model)), np.log(8.0))
    return outcome(changes, eight, instances=judged, tried=tried, seeds=[0], numbers={"eta": steps})


def curvature_is_bounded_by_the_loss(scale: Scale) -> Outcome:
    """|hess L| on segments between iterates over its bound; and the constants of which the bound is made."""
    guard = "tests/theory/test_theory_joint.py::test_score_gaps_and_curvature_are_as_printed"
    curvature = Bound("|hess L(theta')| / (8 max(omega(theta_t), omega(theta_t+1)) L(theta_t))", guard=guard)
    judged = tried = 0
    slack: dict[str, float] = {}
    for name, case, tokens, u, W in _segments(scale):
        norms = np.linalg.norm(u, axis=-1)
        for t in (0, 1, STEPS // 2, STEPS - 1):
            loss = np.exp(log_losses(tokens, u[:, t], W[:, t]))
            promised = curvature_bound(case.model, norms[:, t], norms[:, t + 1]) * loss
            for part in PARTS[::5]:
                curvature.add(hessian_norms(tokens, _between(u, t, part), _between(W, t, part)), promised)
        if name == "Condition 1":
            end = leaps_of(case)
            promised = curvature_bound(case.model, end.norm_u[:, -1], 0.0) * np.exp(end.log_loss[:, -1])
            curvature.add(hessian_norms(case.tokens, end.u, end.W), promised)
            slack = case.slack()
        judged += len(u)
        tried += case.trials
    return outcome(curvature, _sums_beyond_omega(), instances=judged, tried=tried, seeds=[0], slack=slack)


def _sums_beyond_omega() -> Count:
    """Where |grad_u Phi|^2 + |grad_W Phi|^2 + |hess Phi|, by their bounds, is larger than omega(theta).

    The proof says that it never is. The two are equal at B = d = |u| = 1, so that no smaller constant than 13 would do.
    """
    beyond = Count("B^2 + 4 B^6 |u|^2 + 6 d B^5 |u| + 2 sqrt(d) B^3 above omega(theta)")
    norms = np.geomspace(0.01, 100.0, 9)
    for d in (1, 10, 1000):
        for length in np.geomspace(0.01, 100.0, 9):  # B
            model = JointModel(n=2, d=float(d), alpha=6.0, rho=length / (6.0 * float(np.sqrt(1.5 * d))))
            bounds = output_bounds(model.B, d, norms)
            summed = bounds["head"] ** 2 + bounds["attention"] ** 2 + bounds["curvature"]
            beyond.add(summed > model.omega(norms) * (1 + 1e-12))
    return beyond


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
    """Value over bound for the three bounds, at random weights of all sizes."""
    draws = scale.pick(100, 1000, 10_000)
    change = Bound("|Phi(theta) - Phi(theta')| / (B |u - u'| + 2 B^3 |u'| |W - W'|)")
    gradient = Bound("|grad Phi| / (B + 2 B^3 |u|)")
    curvature = Bound("|hess Phi| / (6 d B^5 |u| + 2 sqrt(d) B^3)")
    for x, theta, moved in (_random_weights(2, draws), _random_weights(4, draws), _opposite_tokens()):
        d = x.shape[-1]
        B = np.linalg.norm(x, axis=-1).max(-1)
        here = output_bounds(B, d, np.linalg.norm(theta[:, :d], axis=-1))
        there = output_bounds(B, d, np.linalg.norm((theta + moved)[:, :d], axis=-1))
        by_u = np.linalg.norm(moved[:, :d], axis=-1)
        by_W = np.linalg.norm(moved[:, d:], axis=-1)
        difference = np.asarray(_outputs(theta, x)) - np.asarray(_outputs(theta + moved, x))
        gradients, hessians = _derivatives(theta, x)
        change.add(np.abs(difference), there["head"] * by_u + there["attention"] * by_W)
        gradient.add(np.linalg.norm(np.asarray(gradients), axis=-1), here["gradient"])
        curvature.add(_largest(np.asarray(hessians)), here["curvature"])
    return outcome(change, gradient, curvature, seeds=[0])


def _random_weights(d: int, draws: int) -> tuple[Array, Array, Array]:
    """Three random tokens (draws, 3, d), weights theta (u, then W row by row), and by how much they are moved."""
    rng = np.random.default_rng([0, d])
    x = rng.standard_normal((draws, 3, d)) * np.exp(rng.uniform(-2, 1, (draws, 1, 1)))
    size, shift = np.exp(rng.uniform(-3, 3, (2, draws, 1)))
    theta = size * rng.standard_normal((draws, d + d * d))
    moved = shift * rng.standard_normal((draws, d + d * d))
    return x, theta, moved


def _opposite_tokens() -> tuple[Array, Array, Array]:
    """Tokens B e_1, B e_1 and -B e_1 with a head along e_1, so long that attention decides; W moves along them."""
    lengths = np.array([0.5, 1.0, 2.0])  # B
    x = lengths[:, None, None] * np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    theta = np.zeros((3, 6))
    theta[:, 0] = 100.0  # u_1
    moved = np.zeros((3, 6))
    moved[:, 2] = -1e-3  # W_11
    return x, theta, moved


CLAIMS = [
    Claim(
        id="rates-K21",
        title="The gradient is at least a multiple of the loss",
        statement="|grad_u L(theta_t)| >= omega_1 L(theta_t), omega_1 = (alpha rho/8) sqrt(d/n) (Lemma 13, first "
        "part).",
        hypotheses=FOLLOWED,
        setting=TRAINED,
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
        setting="Data model DM: n = 2 at the least d of Condition 1, and n = 2, d = 10, alpha = 3, rho = 0.3 at the "
        "largest step of the hypotheses. Exponential loss, 50 steps of Eq. (10) from zero, ten points on each segment.",
        tolerance=1.0,
        reason="changes of log loss over the sharper bound, in both directions; that bound over log 8",
        measure=loss_changes_little_within_a_step,
    ),
    Claim(
        id="rates-K21c",
        title="The curvature is bounded by the loss",
        statement="Between theta_t and theta_t+1, |hess L(theta')| <= 8 max(omega(theta_t), omega(theta_t+1)) "
        "L(theta_t), omega(theta) = 13 (B or 1)^5 (B or d) (|u| or 1)^2 (Lemma 13, third part).",
        hypotheses=("as for the second part", *CONDITION[:1]),
        setting="As for the second part, and at the end of training; Hessians by automatic differentiation.",
        tolerance=1.0,
        reason="value over bound; the Hessian is formed in the span of the tokens, where all of it lives. The bound "
        "has the dimension as a factor, which no training run shows; that omega(theta) is as large as the sum of which "
        "it is made is counted apart, on a grid of B, d and |u| that contains the point where the two are equal",
        measure=curvature_is_bounded_by_the_loss,
        expected=Verdict.LOOSE,
    ),
    Claim(
        id="rates-K22",
        title="The output is smooth in head and attention",
        statement="For tokens of length at most B: |Phi(theta) - Phi(theta')| <= B|u - u'| + 2 B^3 |u'| |W - W'|, "
        "|grad Phi| <= B + 2 B^3 |u|, |hess Phi| <= 6 d B^5 |u| + 2 sqrt(d) B^3 (Eqs. 51-53 and after).",
        hypotheses=("none",),
        setting="Three Gaussian tokens in dimension 2 and 4, of random sizes; head and attention of random sizes from "
        "e^-3 to e^3; 100 to 10000 draws. Also three tokens on one line with a long head along it.",
        tolerance=1.0,
        reason="value over bound at random weights",
        measure=outputs_are_smooth,
    ),
]
