"""Heavy-ball momentum: against optax, under any scale, over several heads, and its border."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnlab as al
from attnlab.optim.momentum import heavy_ball


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def path(rule, gradients, **extra):
    params = jnp.zeros(3)
    state = rule.init(params)
    for g in gradients:
        moves, state = rule.update(g, state, params, **extra)
        params = params + moves
    return np.asarray(params)


def test_is_that_of_optax():
    gradients = jnp.asarray(np.random.default_rng(0).standard_normal((8, 3)))
    np.testing.assert_allclose(
        path(heavy_ball(0.3, momentum=0.8), gradients), path(optax.sgd(0.3, momentum=0.8), gradients), rtol=1e-13
    )


def test_steps_grow_to_the_long_run_factor():
    same = jnp.broadcast_to(jnp.array([1.0, -2.0, 0.0]), (30, 3))
    rule = heavy_ball(0.08, momentum=0.2)
    np.testing.assert_allclose(path(rule, same) - path(rule, same[:-1]), [-0.1, 0.2, 0.0], rtol=1e-12)


def test_reads_scaled_gradients():
    mantissas = jnp.asarray(np.random.default_rng(1).standard_normal((5, 3)))
    np.testing.assert_allclose(
        path(heavy_ball(2.0), mantissas, log_scale=jnp.asarray(-7.0)), path(heavy_ball(2.0), mantissas * np.exp(-7.0)),
        rtol=1e-13,
    )  # fmt: skip


@pytest.mark.parametrize("bad", [{"step": 0.0}, {"step": 0.1, "momentum": 1.0}, {"step": 0.1, "momentum": -0.1}])
def test_border(bad):
    with pytest.raises(al.InputError):
        heavy_ball(**bad)


@pytest.mark.slow
def test_groups_of_heads_move_as_all_heads():
    tokens = al.data.sphere(n=5, T=3, d=4, seed=0)
    start = {"U": np.zeros((1, 3, 4)), "W": np.zeros((1, 4, 4))}
    every = {k: np.repeat(v, 4, axis=0) for k, v in start.items()}
    run, full = (
        al.descend(tokens, heavy_ball(0.5), model=al.models.MultiHead(4), init=init, steps=60)
        for init in (start, every)
    )
    for key in ("U", "W"):
        np.testing.assert_allclose(full.weights[key], np.repeat(run.weights[key], 4, axis=0), atol=1e-11)
