"""Fewer coordinates change no product; the separated family is what it says."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.data import gaussian_start, in_span, separated_signal
from attnlab.errors import InputError
from attnlab.theory import assumption_1, assumption_2


def rows(tokens: al.Tokens) -> np.ndarray:
    d = tokens.d
    parts = [tokens.x.reshape(-1, d), tokens.z.reshape(-1, d)] + ([] if tokens.v is None else [tokens.v.reshape(-1, d)])
    return np.concatenate(parts)


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_products_are_kept(seed, n, T, d):
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-6, 6, (n, T, 1))
    x, y = scale * rng.standard_normal((n, T, d)), rng.choice([-1.0, 1.0], n)
    tokens = al.Tokens.self_attention(x, y, rng.standard_normal(d))
    small, basis = in_span(tokens)
    a, b = rows(tokens), rows(small)
    sizes = np.linalg.norm(a, axis=1)
    assert np.abs(a @ a.T - b @ b.T).max() <= 1e-13 * sizes.max() ** 2 * d
    assert (np.abs(a @ a.T - b @ b.T) <= 1e-12 * d * np.outer(sizes, sizes)).all()
    assert small.d == basis.shape[1] + 1 <= min(d, n * T + 1) + 1
    assert (rows(small)[:, -1] == 0).all()
    assert basis.T @ basis == pytest.approx(np.eye(basis.shape[1]), abs=1e-12)
    assert small.info["dimension"] == d


def test_batches_share_the_largest_rank_and_lift_back():
    tokens = al.Tokens.stack([al.data.two_tokens(), al.data.two_tokens()])
    x = np.array(tokens.x)
    x[1, 0, 1] = [0.0, 2.0]
    small, basis = in_span(al.Tokens.self_attention(x, tokens.y, tokens.v))
    assert basis.shape == (2, 2, 2)
    assert small.d == 3
    assert (basis[0, :, 1] == 0).all()
    for i in range(2):
        assert small.x[i, ..., :2] @ basis[i].T == pytest.approx(x[i])


@pytest.mark.slow
def test_a_run_in_few_coordinates_is_the_same_run():
    tokens = al.data.orthogonal_signal(n=2, T=2, d=30)
    small, basis = in_span(tokens)
    rng = np.random.default_rng(0)
    W = 0.1 * rng.standard_normal((30, 30))
    inside = basis.T @ W @ basis
    start = np.zeros((small.d, small.d))
    start[:-1, :-1] = inside
    start[-1, -1] = math.sqrt(np.sum(W**2) - np.sum(inside**2))
    options = {"steps": 50, "loss": "exponential", "record": [50]}
    a = al.descend(tokens, al.ngd(0.1), init=W, **options)
    b = al.descend(small, al.ngd(0.1), init=start, **options)
    for name in ("loss", "norm", "attention_min", "margin"):
        assert a.metrics[name] == pytest.approx(b.metrics[name], rel=1e-9)


def test_starts_have_the_law_of_the_full_matrix():
    starts = gaussian_start(2, 40, 0.5, trials=400)
    sizes = (starts**2).sum((-2, -1))
    assert sizes.mean() == pytest.approx(0.25 * 1600, rel=0.01)
    assert sizes.std() == pytest.approx(0.25 * math.sqrt(2 * 1600), rel=0.15)
    assert starts[:, :2, :2].std() == pytest.approx(0.5, rel=0.05)
    assert (starts[:, 2, :2] == 0).all()
    assert (starts[:, :2, 2] == 0).all()
    assert np.array_equal(gaussian_start(2, 40, 0.5), starts[0])
    assert gaussian_start(3, 3, 1.0)[3, 3] == 0
    assert (gaussian_start(3, 9, 0.0) == 0).all()
    for bad in ((0, 3, 1.0), (4, 3, 1.0), (2, 3, -1.0), (2, 3, np.nan)):
        with pytest.raises(InputError):
            gaussian_start(*bad)
    with pytest.raises(InputError, match="wanted al"):
        in_span(np.eye(2))


@pytest.mark.parametrize(("n", "T", "d"), [(2, 2, 4), (4, 3, 16), (5, 2, 7)])
def test_orthogonal_noise_meets_everything_exactly(n, T, d):
    tokens = separated_signal(n=n, T=T, d=d, noise=0.3, orthogonal=True, trials=3)
    for i in range(3):
        one = tokens[i]
        x, planted = one.x.reshape(n * T, d), one.info["planted"]
        is_noise = (np.arange(T) != planted[:, None]).reshape(-1)
        gram = x @ x.T
        noise = gram[np.ix_(is_noise, is_noise)]
        assert noise == pytest.approx(0.09 * d * np.eye(len(noise)), abs=1e-12)
        assert np.abs(gram[np.ix_(is_noise, ~is_noise)]).max() < 1e-12
        assert set(one.y) == {-1.0, 1.0}
        found = assumption_1(one)
        assert min(found.margin, found.evidence["extra"]) > 1e9
        assert assumption_2(one)
        assert al.optimal_tokens(one).tolist() == planted.tolist()


def test_the_free_family_is_drawn_until_it_holds():
    tokens = separated_signal(trials=4)
    assert tokens.info["attempts"].min() >= 1
    assert tokens.info["attempts"].max() > 1  # one label only, at first, in half of the draws
    for i in range(4):
        assert len(set(tokens.y[i])) == 2
        assert assumption_1(tokens[i]).margin >= 1
    assert np.array_equal(separated_signal().x, tokens.x[0])


def test_what_cannot_be_met_says_what_would_be():
    with pytest.raises(InputError, match=r"not met in 200 draws(.|\n)*d = 182082248"):
        separated_signal(n=20, T=6, d=100, noise=0.05)
    with pytest.raises(InputError, match="at least 2 of each"):
        separated_signal(n=1)
    with pytest.raises(InputError, match="at least 9"):
        separated_signal(n=7, T=2, d=8, orthogonal=True)
    with pytest.raises(InputError, match="`noise`"):
        separated_signal(noise=0.0)
