"""Assumption E: exact where the head is linear, convex or concave; else against grids of mixtures."""

import jax.numpy as jnp
import numpy as np
import pytest

import attnlab as al
from attnlab.models import Along, Concave, Mlp
from attnlab.theory import assumption_e

TOKENS = al.data.sphere(n=3, T=4, d=3, seed=1)
POSITIVE = al.Tokens(x=TOKENS.x, z=TOKENS.z, y=np.ones(3), v=TOKENS.v)


def bumpy(o):
    return jnp.sin(3 * o[0]) + o[1] * o[2]


def numpy_bumpy(o):
    return np.sin(3 * o[..., 0]) + o[..., 1] * o[..., 2]


def grid(T, steps=24):
    """All shares of T tokens that are multiples of 1 / steps."""
    every = np.stack(np.meshgrid(*[np.arange(steps + 1)] * T), -1).reshape(-1, T)
    return every[every.sum(1) == steps] / steps


def least_on_grid(tokens, function, selected):
    """c over a grid of mixtures, by loops."""
    gamma = tokens.y[:, None] * function(tokens.x)
    least = np.inf
    for i, alpha in enumerate(selected):
        allowed = gamma[i] < gamma[i, alpha]
        allowed[alpha] = True
        for s in grid(tokens.T):
            if (s[~allowed] > 0).any() or s[alpha] == 1:
                continue
            value = tokens.y[i] * function(s @ tokens.x[i])
            least = min(least, (gamma[i, alpha] - value) / (1 - s[alpha]))
    return least


def test_a_linear_head_has_the_gap_of_scores():
    gamma = al.scores(TOKENS)
    for selected in (al.optimal_tokens(TOKENS), np.argsort(gamma, axis=1)[:, -2]):
        lead = np.take_along_axis(gamma, selected[:, None], 1) - gamma
        found = assumption_e(TOKENS, selected)
        assert found.holds
        assert found.evidence["exact"]
        assert found.value == pytest.approx(lead[lead > 0].min(), rel=1e-12)
        assert found.evidence["slope"] == pytest.approx(np.linalg.norm(TOKENS.v))


def test_a_convex_head_has_the_gap_of_scores_too():
    V = np.random.default_rng(0).standard_normal((3, 5))
    values = np.maximum(POSITIVE.x @ V, 0.0).sum(-1)
    lead = values.max(1, keepdims=True) - values
    found = assumption_e(POSITIVE, head=Mlp(V))
    assert found.evidence["exact"]
    assert found.value == pytest.approx(lead[lead > 1e-12].min(), rel=1e-9)
    assert not assumption_e(TOKENS, head=Mlp(V)).evidence["exact"]  # -h is concave


@pytest.mark.parametrize("strength", [0.05, 0.3, 5.0])
def test_a_concave_head_has_its_slope_at_the_selected_token(strength):
    values = POSITIVE.x @ POSITIVE.v - strength * (POSITIVE.x**2).sum(-1)
    best = values.argmax(1)
    found = assumption_e(POSITIVE, head=Concave(strength))
    top = POSITIVE.x[np.arange(3), best]
    slope = POSITIVE.v - 2 * strength * top
    drops = np.einsum("nd,ntd->nt", slope, top[:, None] - POSITIVE.x)
    assert found.value == pytest.approx(drops[np.arange(4) != best[:, None]].min(), rel=1e-9)
    assert found.holds == (found.value > 0)


@pytest.mark.parametrize("seed", range(3))
def test_any_head_is_searched_as_well_as_a_grid(seed):
    tokens = al.data.sphere(n=3, T=4, d=3, seed=seed)
    selected = (tokens.y[:, None] * numpy_bumpy(tokens.x)).argmax(1)
    found = assumption_e(tokens, head=bumpy)
    wanted = least_on_grid(tokens, numpy_bumpy, selected)
    assert not found.evidence["exact"]
    assert found.value <= wanted + 1e-9
    # What was found is a ratio that its mixture has.
    (i,) = found.evidence["query"]
    s = found.evidence["shares"]
    off = 1 - s[selected[i]]
    if off > 1e-3:
        drop = tokens.y[i] * (numpy_bumpy(tokens.x[i, selected[i]]) - numpy_bumpy(s @ tokens.x[i]))
        assert found.value == pytest.approx(drop / off, rel=1e-6)


def test_a_head_for_each_query():
    rng = np.random.default_rng(2)
    x, z, v = rng.standard_normal((3, 4, 3)), rng.standard_normal((3, 2, 3)), rng.standard_normal((2, 3))
    both = al.Tokens(x=x, z=z, y=np.ones((3, 2)))
    each = [al.Tokens(x=x, z=z[:, k], y=np.ones(3), v=v[k]) for k in range(2)]
    found = assumption_e(both, head=(Along(v[0]), Along(v[1])))
    assert found.value == pytest.approx(min(assumption_e(one).value for one in each), rel=1e-9)
    with pytest.raises(al.InputError, match=r"2 heads.*one query"):
        assumption_e(each[0], head=(Along(v[0]), Along(v[1])))


def test_nothing_to_mix_with():
    """The worst tokens have no lower ones, and a single token no other."""
    worst = al.scores(TOKENS).argmin(1)
    assert assumption_e(TOKENS, worst).value == np.inf
    alone = al.Tokens(x=[[[1.0, 2.0]]], z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    assert assumption_e(alone).holds
    with pytest.raises(al.InputError, match="`samples`"):
        assumption_e(alone, samples=-1)
