"""`scale_free`: the same steps as the plain rule while that can see its gradient, and the same for any size of it."""

import jax
import numpy as np
import optax
import pytest

import attnlab as al
from attnlab.data.fingerprint import fingerprint

GRADIENT = {"K": np.array([[3.0, -1e-3], [0.0, 2.0]]), "Q": np.array([[-5.0, 0.25]])}
RULES = {
    "signs": lambda: optax.sign_sgd(0.1),
    "normalized": lambda: optax.chain(optax.normalize_by_update_norm(eps=0.0), optax.scale(-0.1)),
}


def moved(rule, gradient, **extra):
    params = jax.tree.map(np.zeros_like, gradient)
    return rule.update(gradient, rule.init(params), params, **extra)[0]


@pytest.mark.parametrize("name", RULES)
def test_steps_are_those_of_the_rule(name):
    with jax.enable_x64(True):
        for scale in (1e-200, 1e-3, 1.0, 1e200):
            gradient = jax.tree.map(lambda g, s=scale: s * g, GRADIENT)
            plain = moved(RULES[name](), GRADIENT)
            wrapped = moved(al.optim.scale_free(RULES[name]()), gradient)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), wrapped, plain)


@pytest.mark.parametrize("name", RULES)
def test_scaled_gradients_beyond_floats(name):
    with jax.enable_x64(True):
        plain = moved(RULES[name](), GRADIENT)
        scales = {key: np.float64(-5000.0) for key in GRADIENT}
        wrapped = moved(al.optim.scale_free(RULES[name]()), GRADIENT, log_scale=scales)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), wrapped, plain)


def test_what_it_refuses():
    with pytest.raises(al.InputError, match=r"`rule`.*any size"):
        al.optim.scale_free(al.ngd(0.1))
    with pytest.raises(al.InputError, match="`rule` is 'sgd'"):
        al.optim.scale_free("sgd")


def test_it_can_be_kept():
    """The store knows it by the rule inside."""
    one, same, other = (al.optim.scale_free(optax.sign_sgd(step)) for step in (0.1, 0.1, 0.2))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    assert repr(one).startswith("scale_free(")
