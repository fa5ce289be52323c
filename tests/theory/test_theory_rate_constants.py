"""Constants of the rates against loops, and on data where they are known."""

import math

import numpy as np
import pytest
import rate_oracle as oracle
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.errors import InputError
from attnlab.theory import rate_constants

SHAPES = [(1, 2, 2, False), (3, 2, 5, False), (4, 3, 6, False), (4, 5, 7, True)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_loops(shape, seed):
    n, T, d, masked = shape
    tokens = oracle.draw(seed, n, T, d, masked)
    got = rate_constants(tokens)
    for name, value in oracle.constants(tokens).items():
        assert getattr(got, name) == pytest.approx(value, rel=1e-12), name
    assert (got.n, got.T, got.d, got.tied) == (n, T, d, 0)
    best = oracle.best(tokens)
    assert got.Lambda == pytest.approx(1 / al.solve_margin(tokens, best).margin, rel=1e-9)
    assert got.head_margin == pytest.approx(al.svm.linear_margin(tokens.x[np.arange(n), best], tokens.y).margin)
    assert got.condition == pytest.approx(got.B**2 * got.Lambda)
    assert got.condition >= 0.5
    assert got.feasible


def test_a_query_longer_than_every_token_counts():
    tokens = oracle.draw(0, 2, 2, 3)
    longer = al.Tokens(x=tokens.x, z=9 * tokens.z, y=tokens.y, v=tokens.v)
    assert pytest.approx(9 * np.linalg.norm(tokens.z, axis=-1).max()) == rate_constants(longer).B


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 4), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_order_of_the_three_upsilons_and_two_zetas(seed, n, T, d):
    got = rate_constants(oracle.draw(seed, n, T, d))
    assert got.upsilon_printed <= got.upsilon * (1 + 1e-12)
    assert got.upsilon <= got.upsilon_proof * (1 + 1e-12)
    assert got.zeta_printed <= got.zeta * (1 + 1e-12)
    assert got.kappa_minus <= got.kappa_plus
    assert got.least_gap >= 0


def test_example_1_has_upsilon_e_and_figure_2_its_margin():
    for seed in range(3):
        got = rate_constants(al.data.orthogonal_signal(seed=seed))
        for name in ("upsilon", "upsilon_proof", "upsilon_printed"):
            assert getattr(got, name) == pytest.approx(math.e, rel=1e-12)
        assert got.zeta == pytest.approx(1, rel=1e-12)
        assert 7.7 < got.Lambda < 8.7
        assert pytest.approx(1) == got.B


def test_two_tokens_and_the_bad_direction():
    two = rate_constants(al.data.two_tokens())
    assert pytest.approx(1) == two.Lambda == two.B == two.head_margin
    assert two.gaps.tolist() == [1.0]
    bad = rate_constants(al.data.bad_direction())
    assert bad.Lambda == pytest.approx(1.0465560, rel=1e-6)
    assert bad.gaps == pytest.approx([0.4, 1.0])


def test_what_is_known_already_is_used_and_checked():
    tokens = oracle.draw(1, 3, 3, 6)
    svm = al.solve_margin(tokens, oracle.best(tokens))
    assert rate_constants(tokens, solution=svm).Lambda == 1 / svm.margin
    with pytest.raises(InputError, match="nuclear"):
        rate_constants(tokens, solution=al.solve_margin(tokens, oracle.best(tokens), norm="nuclear"))
    with pytest.raises(InputError, match="selection"):
        rate_constants(tokens, solution=al.solve_margin(tokens, [(b + 1) % 3 for b in oracle.best(tokens)]))


def test_bad_input_says_what_is_wrong():
    with pytest.raises(InputError, match="one token"):
        rate_constants(al.Tokens.self_attention(np.ones((2, 1, 3)), [1, -1], np.ones(3)))
    with pytest.raises(InputError, match="batch of 2"):
        rate_constants(al.data.two_tokens(trials=2))
    with pytest.raises(InputError, match="K = 2"):
        rate_constants(al.Tokens.self_attention(np.eye(2)[None], [[1, 1]], [1.0, 0.0], "all"))


def test_ties_and_what_cannot_be_separated_are_told_without_nan():
    # Sequence 1 has two best tokens and a third; sequence 2 scores all alike.
    x = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
    got = rate_constants(al.Tokens.self_attention(x, [1.0, 1.0], [1.0, 0.0]))
    assert got.tied == 2
    assert got.upsilon == got.upsilon_proof == math.inf
    assert got.Lambda == math.inf
    assert not got.feasible
    assert not np.isnan(got.zeta)
    # Opposite labels and best tokens that coincide: no u separates them.
    x = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [3.0, 1.0]]])
    got = rate_constants(al.Tokens.self_attention(x, [1.0, -1.0], [1.0, 0.0]))
    assert got.head_margin == 0.0
    assert got.feasible


def test_a_query_that_sees_one_token_has_no_gap():
    tokens = oracle.draw(0, 3, 3, 5)
    mask = np.ones((3, 3), dtype=bool)
    mask[0] = [True, False, False]
    got = rate_constants(al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, mask=mask))
    assert np.isnan(got.gaps[0])
    assert got.largest_gap == np.nanmax(got.gaps)
    assert np.isfinite(got.upsilon_proof)


def test_same_constants_in_the_coordinates_of_the_span():
    tokens = al.data.orthogonal_signal(n=3, T=3, d=400, seed=2)
    wide, small = rate_constants(tokens), rate_constants(al.data.in_span(tokens)[0])
    assert small.d == wide.d == 400
    for name in ("Lambda", "B", "upsilon", "zeta", "head_margin"):
        assert getattr(small, name) == pytest.approx(getattr(wide, name), rel=1e-9)
