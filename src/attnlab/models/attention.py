"""One attention layer as an optimization problem.

For sequence i and query k: logits `a = x_i W z_ik`, weights `s = softmax(a)` over visible tokens, output
`o = x_i^T s`, margin `u = y_ik h(o)`; the objective is `(1/n) sum_i sum_k loss(u_ik)`. W is either the parameter
itself or the product K Q^T.

The gradient comes as a mantissa and a logarithm of scale per parameter. It is assembled from three pieces: the
pull-back through the head (autodiff, of order one), the pull-back through the softmax together with the slope of
the loss (in the log domain, see `softmax.pull_back`), and the pull-back through the logits (autodiff, linear).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.checks import flag, one_of
from attnlab.data.selection import optimal_tokens, scores
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.frame import Frame
from attnlab.models.heads import Head, Linear
from attnlab.models.losses import Loss
from attnlab.models.powers import Powers
from attnlab.models.softmax import NOISE, Weights, pull_back, weights

Params = dict[str, Any]  # {"W"} or {"K", "Q"}, and {"u"} when the head is trained

# Above this log of the off-token weight a difference of two head values is accurate to 1e-11; below it so is the
# midpoint rule.
SMALL = -12.0


class ScaledGradient(NamedTuple):
    """A gradient `mantissa * e^log_scale`, per parameter; a nonzero mantissa has largest entry 1, to rounding."""

    mantissa: Params
    log_scale: Params

    def value(self) -> Params:
        """The gradient itself, which may underflow."""
        return {name: m * jnp.exp(self.log_scale[name]) for name, m in self.mantissa.items()}


class Problem(NamedTuple):
    """The arrays of one trial (or a batch of trials), ready for JAX. There is always a query axis."""

    x: Any  # (n, T, d) tokens, less what the tokens of a sequence have in common
    common: Any  # (n, d) that common part: softmax does not see it, the head does
    z: Any  # (n, K, d)
    y: Any  # (n, K)
    visible: Any  # (n, K, T), or None when all are
    head: dict[str, Any]
    reference: Any  # (n, K) token against which the excess loss is measured
    reference_score: Any  # (n, K)
    frame: Frame | None = None  # if W is given by its coordinates in this frame
    powers: Powers | None = None  # if powers of two were taken out of the arrays; see `attnlab.models.extremes`


class Evaluation(NamedTuple):
    """Everything the model computes at one point, per query."""

    logits: Array  # (n, K, T), -inf where masked
    weights: Weights
    margins: Array  # (n, K)


@dataclass(frozen=True)
class AttentionModel:
    """What is trained: the parameterization, loss and head. Hashable; equal models share compiled programs."""

    parameterization: Literal["W", "KQ"]
    loss: Loss
    head: Callable[[dict[str, Any], Any], Any]
    linear: bool
    quadratic: bool
    train_head: bool

    @classmethod
    def of(cls, parameterization: str, loss: Loss, head: Head, train_head: bool = False) -> AttentionModel:
        """A model from its parts, checked."""
        one_of("parameterization", parameterization, ("W", "KQ"))
        flag("train_head", train_head)
        linear = isinstance(head, Linear)
        if train_head and not linear:
            raise InputError(message(f"`train_head` needs the linear head; this head is {head.name!r}."))
        return cls(parameterization, loss, head.apply, linear, head.quadratic, train_head)  # type: ignore[arg-type]

    def logits(self, params: Params, problem: Problem) -> Array:
        """x_i W z_ik for visible tokens, -inf for the others; (n, K, T)."""
        if problem.frame is not None:
            logits = problem.frame.logits(params["W"])
        else:
            if self.parameterization == "W":
                keys = jnp.einsum("nke,de->nkd", problem.z, params["W"])
            else:
                keys = jnp.einsum("nke,em,dm->nkd", problem.z, params["Q"], params["K"])
            logits = jnp.einsum("ntd,nkd->nkt", problem.x, keys)
        return logits if problem.visible is None else jnp.where(problem.visible, logits, -jnp.inf)

    def outputs(self, problem: Problem, probs: Array) -> Array:
        """Attention outputs o = x^T s; (n, K, d)."""
        return problem.common[:, None, :] + jnp.einsum("nkt,ntd->nkd", probs, problem.x)

    def margins(self, params: Params, problem: Problem, probs: Array) -> Array:
        """y h(o); (n, K)."""
        if self.linear:
            v = self._head_vector(params, problem)
            shared = jnp.einsum("nd,d->n", problem.common, v)
            return problem.y * (shared[:, None] + jnp.einsum("nkt,nt->nk", probs, problem.x @ v))
        apply = jax.vmap(jax.vmap(self.head, (None, 0)), (None, 0))
        return problem.y * apply(problem.head, self.outputs(problem, probs))

    def _through_head(self, params: Params, problem: Problem, probs: Array) -> tuple[Array, Array, Array]:
        """Margins (n, K), their derivative in the attention weights (n, K, T), and its rounding error (n, K)."""
        if self.linear:
            v = self._head_vector(params, problem)
            cotangent = problem.y[..., None] * (problem.x @ v)[:, None, :]
            terms = jnp.max(jnp.abs(problem.x) @ jnp.abs(v), axis=-1)[:, None]
            return self.margins(params, problem, probs), cotangent, NOISE * jnp.broadcast_to(terms, problem.y.shape)
        both = jax.vmap(jax.vmap(jax.value_and_grad(self.head, argnums=1), (None, 0)), (None, 0))
        value, slope = both(problem.head, self.outputs(problem, probs))
        cotangent = problem.y[..., None] * jnp.einsum("nkd,ntd->nkt", slope, problem.x)
        terms = jnp.einsum("nkd,nd->nk", jnp.abs(slope), jnp.max(jnp.abs(problem.x), axis=1))
        return problem.y * value, cotangent, NOISE * terms

    def evaluate(self, params: Params, problem: Problem) -> Evaluation:
        """Logits, attention weights and margins."""
        logits = self.logits(params, problem)
        w = weights(logits)
        return Evaluation(logits, w, self.margins(params, problem, w.probs))

    def gradient(self, params: Params, problem: Problem) -> tuple[ScaledGradient, Evaluation]:
        """The gradient of the objective in every parameter, and the evaluation it came from."""
        attention = {name: p for name, p in params.items() if name != "u"}
        logits, to_params = jax.vjp(lambda p: self.logits(p, problem), attention)
        w = weights(logits)
        margins, cotangent, rounding = self._through_head(params, problem, w.probs)
        # The objective averages over sequences.
        log_slope = self.loss.log_slope(margins) - jnp.log(float(problem.y.shape[0]))
        sign = self.loss.slope_sign(margins)
        to_logits, scale = pull_back(w, cotangent, rounding, log_slope, sign, problem.visible)
        (mantissa,) = to_params(to_logits)
        log_scale = dict.fromkeys(mantissa, scale)
        if self.train_head:
            scale = finite_scale(jnp.max(log_slope))
            slope = sign * jnp.exp(log_slope - scale)
            mantissa["u"] = jnp.einsum("nk,nkd->d", slope * problem.y, self.outputs(problem, w.probs))
            log_scale["u"] = scale
        return normalized({name: mantissa[name] for name in params}, log_scale), Evaluation(logits, w, margins)

    def objective(self, evaluation: Evaluation) -> Array:
        """Mean over sequences of the summed loss of their queries."""
        return jnp.sum(self.loss.value(evaluation.margins)) / evaluation.margins.shape[0]

    def log_objective(self, evaluation: Evaluation) -> Array:
        """Its logarithm, also where the objective underflows; NaN for losses that can be negative."""
        logs = self.loss.log_value(evaluation.margins)
        return jax.nn.logsumexp(logs) - jnp.log(float(logs.shape[0]))

    def excess(self, problem: Problem, evaluation: Evaluation) -> tuple[Array, Array]:
        """Sign and log magnitude of the objective less its value with every query fixed on its reference token.

        With drop `delta = y h(x_ref) - y h(o)`, found from the weights of the other tokens and never by
        subtracting two nearly equal losses.
        """
        n = evaluation.logits.shape[0]
        # Twins of the reference cost nothing and would hide, by their weight, the tokens that do.
        log_off = jnp.where(self._differs(problem), evaluation.weights.log_probs, -jnp.inf)
        peak = finite_scale(jnp.max(log_off, axis=-1))
        off = jnp.exp(log_off - peak[..., None])
        drop = self._drop(problem, evaluation, off, peak)  # in units of e^peak
        log_drop = self._log_of_drop(problem, drop, peak)
        sign, logs = self.loss.excess(problem.reference_score, log_drop, jnp.sign(drop))
        logs = jnp.where(drop == 0, -jnp.inf, logs)
        top = finite_scale(jnp.max(logs))
        total = jnp.sum(sign * jnp.exp(logs - top))
        return jnp.sign(total), top + jnp.log(jnp.abs(total)) - jnp.log(float(n))

    def log_excess(self, problem: Problem, evaluation: Evaluation) -> Array:
        """log of the objective above its floor: with all attention on the best tokens, or zero if the head is trained.

        NaN below the floor, which a head that prefers mixtures can reach.
        """
        if self.train_head:
            return self.log_objective(evaluation)
        sign, log_size = self.excess(problem, evaluation)
        return jnp.where(sign < 0, jnp.nan, log_size)

    def _log_of_drop(self, problem: Problem, drop: Array, peak: Array) -> Array:
        """log |y h(x_ref) - y h(o)|, of what `_drop` found."""
        return peak + jnp.log(jnp.abs(drop))

    def _drop(self, problem: Problem, evaluation: Evaluation, off: Array, peak: Array) -> Array:
        """(y h(x_ref) - y h(o)) / e^peak, with o - x_ref = e^peak sum_t off_t (x_t - x_ref)."""
        if self.linear:
            return problem.y * jnp.sum(off * self._behind(problem), axis=-1)
        picked = jnp.take_along_axis(problem.x, problem.reference[..., None], axis=1)  # (n, K, d)
        # Not an einsum: XLA fuses this sum and never holds the (n, K, T, d) differences, which a dot would.
        direction = jnp.sum(off[..., None] * (problem.x[:, None] - picked[:, :, None]), axis=2)
        reference = picked + problem.common[:, None, :]
        middle = reference + 0.5 * jnp.exp(peak)[..., None] * direction
        slope = jax.vmap(jax.vmap(jax.grad(self.head, argnums=1), (None, 0)), (None, 0))(problem.head, middle)
        by_slope = -problem.y * jnp.einsum("nkd,nkd->nk", slope, direction)
        if self.quadratic:
            return by_slope
        by_values = (problem.reference_score - evaluation.margins) * jnp.exp(-jnp.maximum(peak, SMALL))
        return jnp.where(peak > SMALL, by_values, by_slope)

    def _behind(self, problem: Problem) -> Array:
        """v.x_ref - v.x_t, (n, K, T), with rounding taken for zero."""
        values = problem.x @ problem.head["v"]  # (n, T)
        behind = jnp.take_along_axis(values, problem.reference, axis=1)[..., None] - values[:, None, :]
        terms = jnp.max(jnp.abs(problem.x) @ jnp.abs(problem.head["v"]), axis=-1)
        return jnp.where(jnp.abs(behind) > NOISE * terms[:, None, None], behind, 0.0)

    def _differs(self, problem: Problem) -> Array:
        """Which tokens, taken for the reference, change the margin; (n, K, T)."""
        if self.linear:
            return self._behind(problem) != 0
        picked = jnp.take_along_axis(problem.x, problem.reference[..., None], axis=1)
        return jnp.any(problem.x[:, None] != picked[:, :, None], axis=-1)

    def _head_vector(self, params: Params, problem: Problem) -> Array:
        return params["u"] if self.train_head else problem.head["v"]


def finite_scale(log_scale: Array) -> Array:
    """A scale that is always a number: nothing to scale means scale 1."""
    return jnp.where(jnp.isneginf(log_scale), 0.0, log_scale)


def normalized(mantissa: Params, log_scale: Params) -> ScaledGradient:
    """A gradient whose mantissas have largest entry 1."""
    parts = {name: unit_scale(m, log_scale[name]) for name, m in mantissa.items()}
    return ScaledGradient({k: m for k, (m, _) in parts.items()}, {k: s for k, (_, s) in parts.items()})


def unit_scale(mantissa: Array, log_scale: Array) -> tuple[Array, Array]:
    """Move the size of the largest entry into the scale, so that squares neither overflow nor underflow."""
    size = jnp.max(jnp.abs(mantissa))
    divisor = jnp.where(size > 0, size, 1.0)
    return mantissa / divisor, log_scale + jnp.log(divisor)


def make_problem(tokens: Tokens, head: Head, valued: Tokens | None = None) -> Problem:
    """The arrays of `tokens` in the form the model works on; the reference is the token of best score.

    The head sees the tokens of `valued`, if these are others.
    """
    lead = tokens.x.ndim - 3
    single = tokens.K is None

    def with_query_axis(a: np.ndarray) -> np.ndarray:
        return np.expand_dims(a, lead + 1) if single else a

    # What a sequence's visible tokens share cannot change a softmax; taking it out keeps the digits of the rest.
    seen = tokens.visible if single else np.any(tokens.visible, axis=-2)
    count = np.sum(seen, axis=-1)[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        common = np.where(seen[..., None], tokens.x, 0.0).sum(-2) / count
        x = np.where(seen[..., None], tokens.x - common[..., None, :], 0.0)
    if not np.isfinite(x).all():
        largest = f"`x` has entries up to {np.abs(tokens.x).max():.1e}"
        raise InputError(message(f"{largest}; sums of them are beyond 1.8e308.", "np.ldexp(x, -20) divides by 2^20"))
    valued = tokens if valued is None else valued
    scorer = None if isinstance(head, Linear) else head
    reference, _ = optimal_tokens(valued, scorer, return_ties=True)
    score = np.take_along_axis(scores(valued, scorer), reference[..., None], axis=-1)[..., 0]
    return Problem(
        x=x,
        common=common,
        z=with_query_axis(tokens.z),
        y=with_query_axis(tokens.y),
        visible=None if tokens.mask is None else with_query_axis(tokens.mask),
        head=head.constants(tokens),
        reference=with_query_axis(reference),
        reference_score=with_query_axis(score),
    )
