"""The attention layer on data of extreme scale: the same loss and gradient, without overflow or underflow between.

`prepared` decides by the data which of the two models works on them. In the ordinary range that is `Layer`,
on the arrays as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.data.tokens import Array as NumpyArray, Tokens
from attnlab.errors import InputError, message
from attnlab.models.heads import Head, Linear
from attnlab.models.layer import Layer, above_top
from attnlab.models.layer_problem import Evaluation, LayerProblem, make_problem
from attnlab.models.powers import (
    LOG2,
    Powers,
    are_ordinary,
    check_spread,
    exponent,
    is_ordinary,
    lowered,
    times_power,
    unit_power,
)
from attnlab.models.scaled import Params, ScaledGradient, finite_scale, normalized
from attnlab.models.softmax import NOISE, Weights, pull_back, weights

SURELY_FINITE = 1020  # exponent of a sum that does not overflow


def prepared(
    model: Layer, tokens: Tokens, head: Head, params: Mapping[str, NumpyArray] | None = None
) -> tuple[Layer, LayerProblem]:
    """The model for data and weights of this scale, and the data in its form."""
    powers = token_powers(tokens, head)
    ordinary = all(is_ordinary(power) for power in powers)
    if ordinary and are_ordinary(params or {}):
        return model, make_problem(tokens, head)
    for name, weight in (params or {}).items():
        check_spread(name, weight)
    as_they_are = {field.name: getattr(model, field.name) for field in fields(model)}
    return ExtremeLayer(**as_they_are), _small_problem(tokens, head, powers)


def are_extreme(tokens: Tokens, head: Head) -> bool:
    """Are powers of two taken out of such data?"""
    return not all(is_ordinary(power) for power in token_powers(tokens, head))


def token_powers(tokens: Tokens, head: Head) -> Powers:
    """What would be taken out of the tokens that are seen, of the queries and of the vector of a linear head."""
    queries = tokens.z if tokens.K is not None else tokens.z[..., None, :]
    of_v = np.zeros(tokens.x.shape[:-3], dtype=np.int32)
    if isinstance(head, Linear) and tokens.v is not None:
        of_v = exponent(tokens.v, (-1,))
    return Powers(exponent(_seen(tokens), (-2, -1)), exponent(queries, (-1,)), of_v)


def _seen(tokens: Tokens) -> NumpyArray:
    """Tokens, zero where no query sees them."""
    if tokens.mask is None:
        return tokens.x
    seen = tokens.mask if tokens.K is None else np.any(tokens.mask, axis=-2)
    return np.where(np.expand_dims(seen, -1), tokens.x, 0.0)


def _small_problem(tokens: Tokens, head: Head, powers: Powers) -> LayerProblem:
    """The arrays divided by their powers of two."""
    of_z = powers.z if tokens.K is not None else powers.z[..., 0]
    linear = isinstance(head, Linear)
    small = Tokens(
        x=lowered(_seen(tokens), powers.x, 2),
        z=lowered(tokens.z, of_z, 1),
        y=tokens.y,
        v=lowered(tokens.v, powers.v, 1) if linear and tokens.v is not None else tokens.v,
        mask=tokens.mask,
    )
    if not linear:
        return make_problem(small, head, valued=tokens)._replace(powers=powers)
    problem = make_problem(small, head)
    with np.errstate(over="ignore"):
        score = np.ldexp(problem.reference_score, powers.x[..., None] + powers.v[..., None, None])
    if not np.isfinite(score).all():
        raise InputError(
            message("`tokens` have scores y v.x beyond 1.8e308, the largest float64 number.", "divide `x` or `v`")
        )
    return problem._replace(reference_score=score, powers=powers)


def logits_overflow(problem: LayerProblem, params: Mapping[str, NumpyArray]) -> np.ndarray | None:
    """Which trials have logits x W z beyond float64, (trials,) or (); None, by a bound, if surely none."""
    attention = {name: p for name, p in params.items() if name != "u"}
    arrays = [problem.x, problem.z, *attention.values()]
    largest = sum(int(exponent(array, tuple(range(array.ndim)))) for array in arrays)
    if problem.powers is not None:
        largest += int(np.max(problem.powers.x)) + int(np.max(problem.powers.z))
    terms = 2 * int(np.ceil(np.log2(problem.x.shape[-1] + 1)))
    if largest + terms < SURELY_FINITE:
        return None
    overflow = np.asarray(~np.isfinite(_logits(problem, attention)).all((-3, -2, -1)))
    if problem.powers is None and "W" in attention:
        # Tokens that are zero where W z is infinite would give 0 times infinity.
        with np.errstate(over="ignore", invalid="ignore"):
            keys = np.einsum("...de,...nke->...nkd", attention["W"], problem.z)
        overflow = overflow | ~np.isfinite(keys).all((-3, -2, -1))
    return overflow


def _logits(problem: LayerProblem, attention: Mapping[str, NumpyArray]) -> NumpyArray:
    """x W z of every visible token with NumPy, infinite where it overflows; (..., n, K, T)."""
    powers = {name: exponent(w, (-2, -1)) for name, w in attention.items()}
    small = {name: lowered(w, powers[name], 2) for name, w in attention.items()}
    W = small["W"] if "W" in small else small["K"] @ np.swapaxes(small["Q"], -1, -2)
    logits = np.einsum("...ntd,...de,...nke->...nkt", problem.x, W, problem.z, optimize=True)
    taken = np.sum([*powers.values()], axis=0)[..., None, None, None]
    if problem.powers is not None:
        taken = taken + (problem.powers.x[..., None] + problem.powers.z)[..., None]
    with np.errstate(over="ignore", under="ignore"):
        logits = np.ldexp(logits, taken)
    return logits if problem.visible is None else np.where(problem.visible, logits, 0.0)


@dataclass(frozen=True)
class ExtremeLayer(Layer):
    """`Layer` for a problem out of whose arrays powers of two were taken."""

    def logits(self, params: Params, problem: LayerProblem) -> Array:
        """x_i W z_ik for visible tokens, -inf for the others; (n, K, T)."""
        small, exponents = _small_weights(params)
        return self._logits_of(super().logits(small, problem._replace(visible=None)), exponents, problem)

    def _logits_of(self, small: Array, exponents: dict[str, Array], problem: LayerProblem) -> Array:
        """Logits from those of weights and data without their powers of two."""
        of_rows = _of_rows(problem) + sum(exponents.values())
        logits = times_power(small, of_rows[..., None])
        return logits if problem.visible is None else jnp.where(problem.visible, logits, -jnp.inf)

    def attended(self, problem: LayerProblem, probs: Array) -> Array:
        """Attention outputs o = x^T s; (n, K, d)."""
        return times_power(super().attended(problem, probs), _of_tokens(problem)[..., None])

    def margins(self, params: Params, problem: LayerProblem, probs: Array) -> Array:
        """y h(o); (n, K)."""
        if not self.linear:
            return super().margins(params, problem, probs)
        v, of_v = self._small_head_vector(params, problem)
        shared = jnp.einsum("nd,d->n", problem.common, v)
        small = problem.y * (shared[:, None] + jnp.einsum("nkt,nt->nk", probs, problem.x @ v))
        return times_power(small, _of_tokens(problem) + of_v)

    def scaled_gains(
        self, params: Params, problem: LayerProblem, probs: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Margins and their derivative by the attention weights, `mantissa * e^log_size * 2^power`.

        Returns:
            (margins (n, K), mantissa (n, K, T), its rounding error (n, K), log_size (n, K), power (n, K)).
        """
        if self.linear:
            v, of_v = self._small_head_vector(params, problem)
            mantissa = problem.y[..., None] * (problem.x @ v)[:, None, :]
            terms = jnp.max(jnp.abs(problem.x) @ jnp.abs(v), axis=-1)[:, None]
            rounding = NOISE * jnp.broadcast_to(terms, problem.y.shape)
            margins = self.margins(params, problem, probs)
            return margins, mantissa, rounding, jnp.zeros_like(margins), _of_tokens(problem) + of_v
        both = jax.vmap(jax.vmap(jax.value_and_grad(self.head, argnums=1), (None, 0)), (None, 0))
        value, slope = both(problem.head, self.attended(problem, probs))
        size = jnp.max(jnp.abs(slope), axis=-1)
        size = jax.lax.stop_gradient(jnp.where(size > 0, size, 1.0))
        slope = slope / size[..., None]
        mantissa = problem.y[..., None] * jnp.einsum("nkd,ntd->nkt", slope, problem.x)
        terms = jnp.einsum("nkd,nd->nk", jnp.abs(slope), jnp.max(jnp.abs(problem.x), axis=1))
        return problem.y * value, mantissa, NOISE * terms, jnp.log(size), _of_tokens(problem)

    def gains(self, problem: LayerProblem, w: Weights) -> tuple[Array, Array, Array | None]:
        """Margins, what each token adds to them above the top token, and the log-scale of that."""
        margins, gain, rounding, log_size, power = self.scaled_gains({}, problem, w.probs)
        gain = above_top(gain, w)
        if self.linear:
            gain = jnp.where(jnp.abs(gain) > rounding[..., None], gain, 0.0)
        return margins, gain, log_size + LOG2 * power

    def gradient(self, params: Params, problem: LayerProblem) -> tuple[ScaledGradient, Evaluation]:
        """The gradient of the objective in every parameter, and the evaluation it came from.

        What was taken out of the arrays enters as logarithms, row by row.
        """
        small, exponents = _small_weights(params)
        everyone = problem._replace(visible=None)
        raw, to_params = jax.vjp(lambda p: Layer.logits(self, p, everyone), small)
        logits = self._logits_of(raw, exponents, problem)
        w = weights(logits)
        margins, mantissa, rounding, log_gain, power = self.scaled_gains(params, problem, w.probs)
        log_slope = self.loss.log_slope(margins) - jnp.log(float(problem.y.shape[0]))
        sign = self.loss.slope_sign(margins)
        behind, top = _from_the_top(power + _of_rows(problem))
        to_logits, scale = pull_back(w, mantissa, rounding, log_slope + log_gain + behind, sign, problem.visible)
        (gradient,) = to_params(to_logits)
        # By K the logits move as fast as Q is large, and by W as fast whatever W is.
        total = top + sum(exponents.values())
        log_scale = {name: scale + LOG2 * (total - exponents[name]) for name in gradient}
        if self.train_head:
            behind, top = _from_the_top(_of_tokens(problem))
            scale = finite_scale(jnp.max(log_slope + behind))
            slope = sign * jnp.exp(log_slope + behind - scale)
            gradient["u"] = jnp.einsum("nk,nkd->d", slope * problem.y, super().attended(problem, w.probs))
            log_scale["u"] = scale + LOG2 * top
        ordered = {name: gradient[name] for name in params}
        return normalized(ordered, log_scale), Evaluation(logits, w, margins, problem.y * margins)

    def _log_of_drop(self, problem: LayerProblem, drop: Array, peak: Array) -> Array:
        assert problem.powers is not None
        power = _of_tokens(problem) + (problem.powers.v if self.linear else 0)
        return peak + LOG2 * power + jnp.log(jnp.abs(drop))

    def _seen_by_head(self, problem: LayerProblem, outputs: Array) -> Array:
        return times_power(outputs, _of_tokens(problem)[..., None])

    def _to_tokens(self, problem: LayerProblem, values: Array) -> Array:
        return times_power(values, -_of_tokens(problem))

    def _small_head_vector(self, params: Params, problem: LayerProblem) -> tuple[Array, Array]:
        """The vector of the linear head without its power of two, and that exponent."""
        assert problem.powers is not None
        return unit_power(params["u"]) if self.train_head else (problem.head["v"], problem.powers.v)


def _small_weights(params: Params) -> tuple[Params, dict[str, Array]]:
    """Attention weights without their powers of two, and those exponents."""
    parts = {name: unit_power(p) for name, p in params.items() if name != "u"}
    return {name: small for name, (small, _) in parts.items()}, {name: power for name, (_, power) in parts.items()}


def _from_the_top(powers: Array) -> tuple[Array, Array]:
    """Logarithms of 2^power relative to the largest, and that exponent: large logarithms would cost digits."""
    top = jnp.max(powers)
    return LOG2 * (powers - top), top


def _of_tokens(problem: LayerProblem) -> Array:
    """Exponents of the tokens, (n, 1)."""
    assert problem.powers is not None
    return problem.powers.x[:, None]


def _of_rows(problem: LayerProblem) -> Array:
    """Exponents of the products of tokens and queries, (n, K)."""
    assert problem.powers is not None
    return problem.powers.x[:, None] + problem.powers.z
