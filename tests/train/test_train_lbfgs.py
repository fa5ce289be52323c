"""The compiled L-BFGS search: minima known in closed form, batches, domains, and where it ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import rosen_der

from attnlab.train.lbfgs import minimise


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def rosenbrock(x):
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))(x)
    return value, gradient, jnp.eye(len(x))[0]


def test_quadratics_in_a_batch():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    A = turn @ np.diag(np.logspace(0, 3, 12)) @ turn.T
    centres, starts = rng.standard_normal((5, 12)), rng.standard_normal((5, 12))

    def lane(centre, start):
        gap = lambda x: x - centre  # noqa: E731
        return minimise(lambda x: (0.5 * gap(x) @ A @ gap(x), A @ gap(x), jnp.eye(12)[0]), start)

    found = jax.jit(jax.vmap(lane))(centres, starts)
    np.testing.assert_allclose(found.point, centres, atol=1e-10)  # |A^-1| = 1
    assert (np.asarray(found.residual) <= 1e-10).all()
    alone = jax.jit(lane)(centres[2], starts[2])
    np.testing.assert_allclose(alone.point, found.point[2], atol=1e-9)


down_the_valley = jax.jit(lambda start, evaluations: minimise(rosenbrock, start, evaluations=evaluations))


def test_a_curved_valley():
    for start in np.random.default_rng(1).standard_normal((6, 4)):
        found = down_the_valley(start, 3000)
        assert np.abs(rosen_der(np.asarray(found.point))).max() <= 1e-10
        assert float(found.residual) <= 1e-10
        assert int(found.evaluations) < 300
        assert not np.isnan(float(found.value))


def test_it_never_goes_up():
    for start in np.random.default_rng(2).standard_normal((3, 4)):
        values = np.array([float(down_the_valley(start, count).value) for count in range(1, 60)])
        assert (np.diff(values) <= 0).all()
        assert values[-1] < 1e-2 * values[0]


def test_it_goes_on_where_values_no_longer_differ():
    """f = 1 + |x|^4 is level to rounding below |x| = 1e-4; the gradient still shows the way."""

    def flat(x):
        return 1.0 + jnp.sum(x**4), 4 * x**3, jnp.ones_like(x)

    found = minimise(flat, jnp.array([1.0, -0.7]), tolerance=1e-20)
    assert np.abs(np.asarray(found.point)).max() < 1e-6


def test_it_stays_in_the_domain():
    """The minimum of (x - 2)^2 over x < 1 is at the edge, which is approached and never crossed."""

    def fenced(x):
        return jnp.where(x[0] < 1.0, (x[0] - 2.0) ** 2, jnp.inf), 2 * (x - 2.0), jnp.ones(1)

    found = minimise(fenced, jnp.array([0.0]))
    assert 0.999 < float(found.point[0]) < 1.0
    assert float(found.residual) > 1.0
    outside = minimise(fenced, jnp.array([1.5]))
    assert not np.isfinite(float(outside.value))
    assert int(outside.evaluations) == 1


def test_where_it_ends():
    at_minimum = down_the_valley(np.ones(4), 3000)
    assert int(at_minimum.evaluations) == 1
    assert float(at_minimum.residual) == 0.0
    cut = down_the_valley(np.zeros(4), 7)
    assert int(cut.evaluations) == 7

    def gentle(x):
        return jnp.sum(x**2), 2 * x, 2 * x  # the residual is 1 everywhere but at 0

    floored = minimise(gentle, jnp.array([3.0, 4.0]), tolerance=1e-3, floor=1.0)
    assert 2 * float(jnp.linalg.norm(floored.point)) <= 1e-3
    assert float(floored.residual) in (0.0, 1.0)
