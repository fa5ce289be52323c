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
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from attnlab.data.directions import misalignment_of_units, unit
from attnlab.models.lanes import Lanes, fit_lanes
from attnlab.models.layer_problem import Evaluation, LayerProblem, View
from attnlab.models.losses import MarginLoss
from attnlab.models.motion import Motion, layer_motion
from attnlab.models.problem import Seen
from attnlab.models.reduction import Combined, Factored
from attnlab.models.scaled import Params, ScaledGradient, finite_scale, norm_of, normalized, scaled, total_log_norm
from attnlab.models.softmax import NOISE, Weights, pull_back, softmax, weights

# Above this log of the off-token weight a difference of two head values is accurate to 1e-11; below it so is the
# midpoint rule.
SMALL = -12.0


@dataclass(frozen=True)
class Layer:
    """One attention layer as an objective: the parameterization, loss and head. Hashable; JAX, on one trial.

    It is to `attnlab.models.problem.Objective` what a model with mathematics of its own is to one without.
    """

    parameterization: Literal["W", "KQ"]
    loss: MarginLoss
    head: Callable[[Params, Array], Array]
    linear: bool
    quadratic: bool
    train_head: bool
    frozen: tuple[str, ...] = ()  # no weight is left out of training

    def weights(self, params: Params, problem: LayerProblem) -> Params:
        """The weights at these parameters."""
        if problem.frame is None:
            return dict(params)
        return {**params, "W": problem.frame.matrix(params["W"])}

    def logits(self, params: Params, problem: LayerProblem) -> Array:
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

    def attended(self, problem: LayerProblem, probs: Array) -> Array:
        """Attention outputs o = x^T s; (n, K, d)."""
        return problem.common[:, None, :] + jnp.einsum("nkt,ntd->nkd", probs, problem.x)

    def margins(self, params: Params, problem: LayerProblem, probs: Array) -> Array:
        """y h(o); (n, K)."""
        if self.linear:
            v = self._head_vector(params, problem)
            shared = jnp.einsum("nd,d->n", problem.common, v)
            return problem.y * (shared[:, None] + jnp.einsum("nkt,nt->nk", probs, problem.x @ v))
        apply = jax.vmap(jax.vmap(self.head, (None, 0)), (None, 0))
        return problem.y * apply(problem.head, self.attended(problem, probs))

    def _through_head(self, params: Params, problem: LayerProblem, probs: Array) -> tuple[Array, Array, Array]:
        """Margins (n, K), their derivative in the attention weights (n, K, T), and its rounding error (n, K)."""
        if self.linear:
            v = self._head_vector(params, problem)
            cotangent = problem.y[..., None] * (problem.x @ v)[:, None, :]
            terms = jnp.max(jnp.abs(problem.x) @ jnp.abs(v), axis=-1)[:, None]
            return self.margins(params, problem, probs), cotangent, NOISE * jnp.broadcast_to(terms, problem.y.shape)
        both = jax.vmap(jax.vmap(jax.value_and_grad(self.head, argnums=1), (None, 0)), (None, 0))
        value, slope = both(problem.head, self.attended(problem, probs))
        cotangent = problem.y[..., None] * jnp.einsum("nkd,ntd->nkt", slope, problem.x)
        terms = jnp.einsum("nkd,nd->nk", jnp.abs(slope), jnp.max(jnp.abs(problem.x), axis=1))
        return problem.y * value, cotangent, NOISE * terms

    def evaluate(self, params: Params, problem: LayerProblem) -> Evaluation:
        """Logits, attention weights and margins."""
        logits = self.logits(params, problem)
        w = weights(logits)
        margins = self.margins(params, problem, w.probs)
        return Evaluation(logits, w, margins, problem.y * margins)

    def outputs(self, params: Params, problem: LayerProblem) -> Array:
        """h(o) alone, (n, K), differentiable by JAX."""
        margins = self.margins(params, problem, softmax(self.logits(params, problem)))
        return problem.y * margins

    def gradient(self, params: Params, problem: LayerProblem) -> tuple[ScaledGradient, Evaluation]:
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
            mantissa["u"] = jnp.einsum("nk,nkd->d", slope * problem.y, self.attended(problem, w.probs))
            log_scale["u"] = scale
        ordered = {name: mantissa[name] for name in params}
        return normalized(ordered, log_scale), Evaluation(logits, w, margins, problem.y * margins)

    def has_lanes(self, problem: LayerProblem, params: Params) -> bool:
        """Can `lanes` take these trials?"""
        return self.linear and not self.train_head and problem.powers is None and fit_lanes(problem, params)

    def lanes(self, problem: LayerProblem) -> Lanes:
        """The steps of a block of trials, given with trials first, by `Lanes.gradient`."""
        return Lanes.of(problem)

    def value(self, problem: LayerProblem, evaluation: Evaluation) -> Array:
        """Mean over sequences of the summed loss of their queries."""
        return self.loss.mean(evaluation.margins)

    def log_value(self, problem: LayerProblem, evaluation: Evaluation) -> Array:
        """Its logarithm, also where the objective underflows; NaN for losses that can be negative."""
        return self.loss.log_mean(evaluation.margins)

    def largest_attention(self, params: Params, problem: LayerProblem) -> Array:
        """The token with the largest logit, for every query."""
        return jnp.argmax(self.logits(params, problem), axis=-1)

    def log_attention(self, params: Params, problem: LayerProblem) -> Array:
        """Logarithms of the attention weights, (n, K, T)."""
        return self.evaluate(params, problem).weights.log_probs

    def excess(self, problem: LayerProblem, evaluation: Evaluation) -> tuple[Array, Array]:
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

    def log_excess(self, problem: LayerProblem, evaluation: Evaluation) -> Array:
        """log of the objective above its floor: with all attention on the best tokens, or zero if the head is trained.

        NaN below the floor, which a head that prefers mixtures can reach.
        """
        if self.train_head:
            return self.log_value(problem, evaluation)
        sign, log_size = self.excess(problem, evaluation)
        return jnp.where(sign < 0, jnp.nan, log_size)

    def _log_of_drop(self, problem: LayerProblem, drop: Array, peak: Array) -> Array:
        """log |y h(x_ref) - y h(o)|, of what `_drop` found."""
        return peak + jnp.log(jnp.abs(drop))

    def _drop(self, problem: LayerProblem, evaluation: Evaluation, off: Array, peak: Array) -> Array:
        """(y h(x_ref) - y h(o)) / e^peak, with o - x_ref = e^peak sum_t off_t (x_t - x_ref).

        By the slope of the head between both, where they are close; else by a difference of its values, unless that
        is rounding and slopes agree with it: a head with a large constant part hides what small tokens add.
        """
        if self.linear:
            return problem.y * jnp.sum(off * self._behind(problem), axis=-1)
        picked = jnp.take_along_axis(problem.x, problem.reference[..., None], axis=1)  # (n, K, d)
        # Not an einsum: XLA fuses this sum and never holds the (n, K, T, d) differences, which a dot would.
        direction = jnp.sum(off[..., None] * (problem.x[:, None] - picked[:, :, None]), axis=2)
        reference = picked + problem.common[:, None, :]
        slope_of = jax.vmap(jax.vmap(jax.grad(self.head, argnums=1), (None, 0)), (None, 0))

        def slope_at(share: float) -> Array:
            """Of y h at this share of the way, along it, (n, K)."""
            there = reference + share * jnp.exp(peak)[..., None] * direction
            slope = slope_of(problem.head, self._seen_by_head(problem, there))
            return -problem.y * jnp.einsum("nkd,nkd->nk", slope, direction)

        by_slope = slope_at(0.5)
        if self.quadratic:
            return by_slope
        shrink = jnp.exp(-jnp.maximum(peak, SMALL))
        by_values = self._to_tokens(problem, (problem.reference_score - evaluation.margins) * shrink)
        terms = jnp.abs(problem.reference_score) + jnp.abs(evaluation.margins)
        rounding = self._to_tokens(problem, NOISE * terms * shrink)
        by_slopes = 0.5 * (slope_at(0.25) + slope_at(0.75))
        smooth = (jnp.abs(by_slopes - by_slope) <= rounding) & (jnp.abs(by_slopes - by_values) <= rounding)
        return jnp.where(peak > SMALL, jnp.where(smooth, by_slopes, by_values), by_slope)

    def _seen_by_head(self, problem: LayerProblem, outputs: Array) -> Array:
        """Attention outputs (n, K, d), in units of the problem, as the head sees them."""
        return outputs

    def _to_tokens(self, problem: LayerProblem, values: Array) -> Array:
        """What the head gives (n, K), in units of the tokens of the problem."""
        return values

    def _behind(self, problem: LayerProblem) -> Array:
        """v.x_ref - v.x_t, (n, K, T), with rounding taken for zero."""
        values = problem.x @ problem.head["v"]  # (n, T)
        behind = jnp.take_along_axis(values, problem.reference, axis=1)[..., None] - values[:, None, :]
        terms = jnp.max(jnp.abs(problem.x) @ jnp.abs(problem.head["v"]), axis=-1)
        return jnp.where(jnp.abs(behind) > NOISE * terms[:, None, None], behind, 0.0)

    def _differs(self, problem: LayerProblem) -> Array:
        """Which tokens, taken for the reference, change the margin; (n, K, T)."""
        if self.linear:
            return self._behind(problem) != 0
        picked = jnp.take_along_axis(problem.x, problem.reference[..., None], axis=1)
        return jnp.any(problem.x[:, None] != picked[:, :, None], axis=-1)

    def gains(self, problem: LayerProblem, w: Weights) -> tuple[Array, Array, Array | None]:
        """Margins, what each token adds to them above the top token, and the log-scale of that if it is not 1."""
        margins, to_weights = jax.vjp(lambda s: self.margins({}, problem, s), w.probs)
        (gain,) = to_weights(jnp.ones_like(margins))
        gain = above_top(gain, w)
        if self.linear:
            # Gains are constants, and a tie stays one: its rounding error times t = 1e30 would break it.
            terms = jnp.max(jnp.abs(problem.x) @ jnp.abs(problem.head["v"]), axis=-1)
            gain = jnp.where(jnp.abs(gain) > NOISE * terms[:, None, None], gain, 0.0)
        return margins, gain, None

    def test_records(self, weights: Params, problem: LayerProblem, portion: int | None) -> Params:
        """`test_loss`; and, for losses that have one, `test_accuracy`: test queries with a margin above 0."""
        evaluation = self.evaluate(weights, problem)
        records: Params = {"test_loss": self.value(problem, evaluation)}
        accuracy = self.loss.accuracy(evaluation.outputs, problem.y)
        return records if accuracy is None else {**records, "test_accuracy": accuracy}

    def motion(self, params: Params, problem: LayerProblem) -> Motion:
        """How gradient flow begins at these weights."""
        return layer_motion(self, params, problem)

    def velocity(
        self, y: Array, u: Array, log_unit: Array, system: Combined | Factored, problem: LayerProblem
    ) -> Array:
        """dy/du of gradient flow at log-time u; `log_unit` is log of the time unit plus twice the log-scale of y.

        Each term is one exponential of a sum of logarithms, which neither underflows nor overflows where the product
        is of order one.
        """
        logits, to_y = jax.vjp(system.logits, y)
        w = weights(logits)
        margins, gain, log_gain = self.gains(problem, w)
        log_slope = self.loss.log_slope(margins) - jnp.log(float(margins.shape[0]))
        log_size = (log_slope + (u + log_unit))[..., None] + w.log_probs
        if log_gain is not None:
            log_size = log_size + log_gain[..., None]
        # What has nothing to gain is pulled by the others only; after saturation its own size may be beyond floats.
        idle = w.top | (gain == 0.0) if self.linear else w.top
        pull = jnp.exp(jnp.where(idle, -jnp.inf, log_size)) * gain
        force = pull - w.probs * jnp.sum(pull, axis=-1, keepdims=True)
        (slope,) = to_y(self.loss.slope_sign(margins)[..., None] * force)
        return -slope

    def records(self, seen: Seen) -> Params:
        """Metrics of one trial beside `loss`, `log_loss`, `log_gradient_norm` and `step_length`.

        | name | meaning |
        |---|---|
        | `excess_loss`, `log_excess_loss` | less the loss with all attention on the best tokens (fixed head only) |
        | `norm`, `norm_K`, `norm_Q`, `norm_u` | Frobenius norms; `norm` is that of W or K Q^T |
        | `log_step_size` | log of the ratio of the next step to the gradient norm |
        | `attention`, `attention_min` | weight of the tracked tokens: mean and least over queries |
        | `top_attention`, `log_off_attention` | mean largest weight; log of the most a query gives to its others |
        | `margin` | least logit lead of a tracked token over a visible other one |
        | `cosine_NAME`, `misalignment_NAME` | direction of W (or of u, for a vector) against each target |
        """
        params, problem, evaluation = seen.params, seen.problem, seen.forward
        w, frame = evaluation.weights, problem.frame
        W = product(params) if frame is None else frame.row(params["W"])
        is_tracked = jnp.arange(w.probs.shape[-1]) == seen.compared[..., None]
        at_tracked = jnp.sum(jnp.where(is_tracked, w.probs, 0.0), axis=-1)
        lead = jnp.sum(jnp.where(is_tracked, evaluation.logits, 0.0), axis=-1, keepdims=True) - evaluation.logits
        log_off = jax.nn.logsumexp(jnp.where(w.top, -jnp.inf, w.log_probs), axis=-1)
        gradient_norm = total_log_norm(seen.gradient.mantissa, seen.gradient.log_scale)
        length = total_log_norm(*scaled(seen.update, None))
        metrics = {
            "norm": norm_of(W),
            **{f"norm_{name}": norm_of(p) for name, p in params.items() if name != "W"},
            "log_step_size": jnp.where(jnp.isneginf(gradient_norm), -jnp.inf, length - gradient_norm),
            "attention": jnp.mean(at_tracked),
            "attention_min": jnp.min(at_tracked),
            "top_attention": jnp.mean(jnp.max(w.probs, axis=-1)),
            "log_off_attention": jnp.max(log_off),
            "margin": jnp.min(jnp.where(is_tracked, jnp.inf, lead)),
        }
        if not self.train_head:
            sign, log_size = self.excess(problem, evaluation)
            metrics["excess_loss"] = sign * jnp.exp(log_size)
            metrics["log_excess_loss"] = jnp.where(sign < 0, jnp.nan, log_size)
        for name, target in seen.targets.items():
            subject = W if target.ndim == 2 else params["u"]
            angle = misalignment_of_units(jnp, unit(jnp, jnp.atleast_2d(subject)), jnp.atleast_2d(target))
            metrics[f"misalignment_{name}"] = angle
            metrics[f"cosine_{name}"] = 1.0 - angle
        return metrics

    def view(self, seen: Seen) -> View:
        """What a user's own metrics see."""
        params = self.weights(seen.params, seen.problem)
        evaluation = seen.forward
        return View(params, product(params), evaluation.logits, evaluation.weights.probs, evaluation.margins)

    def _head_vector(self, params: Params, problem: LayerProblem) -> Array:
        return jnp.asarray(params["u"]) if self.train_head else problem.head["v"]


def product(params: Params) -> Array:
    """W, or K Q^T."""
    return jnp.asarray(params["W"] if "W" in params else params["K"] @ params["Q"].T)


def above_top(gain: Array, w: Weights) -> Array:
    """What each token gains less what the top one does."""
    return gain - jnp.sum(jnp.where(w.top, gain, 0.0), axis=-1, keepdims=True)
