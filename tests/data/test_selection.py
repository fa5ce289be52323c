"""Scores and best tokens against plain loops."""

import math
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.errors import InputError, TiedScoresWarning

HEADS = {
    "linear": (None, lambda x, v: math.fsum(a * b for a, b in zip(x, v, strict=True))),
    "linear-object": (al.models.Linear(), lambda x, v: math.fsum(a * b for a, b in zip(x, v, strict=True))),
    "concave": (
        al.models.Concave(0.3),
        lambda x, v: math.fsum(a * b for a, b in zip(x, v, strict=True)) - 0.3 * math.fsum(a * a for a in x),
    ),
    "relu-sum": (al.models.ReluSum(), lambda x, v: math.fsum(max(a, 0.0) for a in x)),
    "user": (lambda o: jnp.sum(jnp.tanh(o)) + o[0], lambda x, v: math.fsum(math.tanh(a) for a in x) + x[0]),
}


def draw(seed: int, n: int, T: int, d: int, K: int | None, masked: bool, trials: int | None = None) -> al.Tokens:
    rng = np.random.default_rng(seed)
    lead = () if trials is None else (trials,)
    rows = (*lead, n) if K is None else (*lead, n, K)
    mask = rng.random((*rows, T)) < 0.5
    mask[..., rng.integers(T)] = True
    return al.Tokens(
        x=rng.standard_normal((*lead, n, T, d)),
        z=rng.standard_normal((*rows, d)),
        y=rng.choice([-1.0, 1.0], rows),
        v=rng.standard_normal((*lead, d)),
        mask=mask if masked else None,
    )


def by_loop(tokens: al.Tokens, head) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and the best visible token, of unbatched tokens."""
    gamma = np.zeros((*tokens.y.shape, tokens.T))
    best = np.zeros(tokens.y.shape, dtype=int)
    for index in np.ndindex(*tokens.y.shape):
        leader = -math.inf
        for t in range(tokens.T):
            score = tokens.y[index] * head(tokens.x[index[0], t].tolist(), tokens.v.tolist())
            gamma[(*index, t)] = score
            if tokens.visible[(*index, t)] and score > leader:
                leader, best[index] = score, t
    return gamma, best


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("n", "T", "d", "K"), [(3, 4, 3, None), (2, 3, 2, 2), (1, 5, 1, None), (4, 1, 2, None), (1, 1, 1, 1)]
)
def test_against_a_loop(n, T, d, K, masked, name):
    head, value = HEADS[name]
    for seed in range(4):
        tokens = draw(seed, n, T, d, K, masked)
        gamma, best = by_loop(tokens, value)
        got = al.scores(tokens, head)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, gamma, rtol=1e-13, atol=1e-14)
        chosen, ties = al.optimal_tokens(tokens, head, return_ties=True)
        assert chosen.shape == ties.shape == tokens.y.shape
        unique = ties == 1
        np.testing.assert_array_equal(chosen[unique], best[unique])
        visible = np.take_along_axis(tokens.visible, chosen[..., None], -1)
        assert visible.all(), "a hidden token is never chosen"


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("K", [None, 2])
def test_trials_are_scored_one_by_one(K, name):
    head, _ = HEADS[name]
    tokens = draw(0, 3, 4, 2, K, True, trials=3)
    together, best = al.scores(tokens, head), al.optimal_tokens(tokens, head, return_ties=True)[0]
    for i in range(3):
        np.testing.assert_allclose(together[i], al.scores(tokens[i], head), rtol=1e-14, atol=1e-15)
        np.testing.assert_array_equal(best[i], al.optimal_tokens(tokens[i], head, return_ties=True)[0])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-2, 2), min_size=1, max_size=6), st.sampled_from([-1, 1]), st.data())
def test_ties_are_counted_and_the_first_is_taken(values, label, data):
    seen = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)).filter(any))
    x = np.array(values, dtype=float)[None, :, None]
    tokens = al.Tokens(x=x, z=[[1.0]], y=[label], v=[1.0], mask=[seen])
    scores = [label * u if s else -math.inf for u, s in zip(values, seen, strict=True)]
    chosen, ties = al.optimal_tokens(tokens, return_ties=True)
    assert chosen[0] == scores.index(max(scores))
    assert ties[0] == scores.count(max(scores))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert al.optimal_tokens(tokens)[0] == chosen[0]
    assert [w.category for w in caught] == ([TiedScoresWarning] if ties[0] > 1 else [])


def test_warning_counts_the_tied_queries():
    x = np.array([[[1.0], [1.0]], [[1.0], [0.0]], [[2.0], [2.0]]])
    tokens = al.Tokens(x=x, z=np.ones((3, 1)), y=np.ones(3), v=[1.0])
    with pytest.warns(TiedScoresWarning, match="2 of 3 queries") as caught:
        al.optimal_tokens(tokens)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
@pytest.mark.parametrize(("lead", "ties"), [(0.0, 2), (4e-16, 2), (1e-13, 2), (1e-11, 1), (1e-6, 1)])
def test_a_tie_is_relative_to_the_largest_score(lead, ties, scale):
    x = scale * np.array([[[1.0 - lead], [1.0], [-0.5]]])
    tokens = al.Tokens(x=x, z=[[1.0]], y=[1.0], v=[1.0])
    chosen, count = al.optimal_tokens(tokens, return_ties=True)
    assert count[0] == ties
    assert chosen[0] == (0 if ties == 2 else 1)


def test_a_large_negative_score_widens_the_tie_but_a_hidden_one_does_not():
    x = np.array([[[1.0], [1.0 + 1e-9], [-1e6]]])
    seen = al.Tokens(x=x, z=[[1.0]], y=[1.0], v=[1.0])
    hidden = al.Tokens(x=x, z=[[1.0]], y=[1.0], v=[1.0], mask=[[True, True, False]])
    assert al.optimal_tokens(seen, return_ties=True)[1][0] == 2
    assert al.optimal_tokens(hidden, return_ties=True)[1][0] == 1
    assert al.optimal_tokens(hidden)[0] == 1


def test_heads_that_give_no_number_per_token():
    tokens = draw(0, 2, 3, 4, None, False)
    with pytest.raises(InputError, match=r"`head` maps a token of shape \(4,\) to shape \(4,\); wanted one number"):
        al.scores(tokens, lambda o: o)
    with pytest.raises(InputError, match="wanted one number"):
        al.scores(tokens, al.models.FunctionHead(lambda o: o))


def test_scores_that_are_not_numbers_are_refused():
    """A head undefined at some token has no best token there."""
    tokens = draw(0, 2, 3, 4, None, False)
    with pytest.raises(InputError, match="`head`"):
        al.optimal_tokens(tokens, lambda o: jnp.log(o[0]) + 0.0 * o[1])


@pytest.mark.parametrize("head", ["relu-sum", 3.0])
def test_an_unknown_head_is_not_taken_for_the_linear_one(head):
    """A name is either understood or refused."""
    tokens = draw(0, 2, 3, 4, None, False)
    try:
        got = al.scores(tokens, head)
    except InputError:
        return
    np.testing.assert_array_equal(got, al.scores(tokens, al.models.as_head(head)))


def test_linear_scores_need_v():
    tokens = draw(0, 2, 3, 4, None, False)
    bare = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y)
    for head in (None, al.models.Linear(), al.models.Concave(0.1)):
        with pytest.raises(InputError, match="no `v`"):
            al.scores(bare, head)
    assert al.scores(bare, al.models.ReluSum()).shape == (2, 3)
