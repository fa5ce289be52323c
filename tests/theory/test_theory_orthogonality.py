"""Assumptions 1 and 2 and the small start: every inequality by loops, and planted cases."""

import math
from dataclasses import replace

import numpy as np
import pytest
import rate_oracle as oracle
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.data.products import orthogonality_ratios, sufficient_dimension, sufficient_signal
from attnlab.errors import InputError
from attnlab.theory import assumption_1, assumption_2, initialization, rate_constants


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 4), st.integers(1, 5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_inequality_against_loops(seed, n, T, d, masked):
    tokens = oracle.draw(seed, n, T, d, masked)
    top = oracle.best(tokens)
    got = orthogonality_ratios(tokens, top, 3.5)
    for name, value in oracle.ratios(tokens, top, 3.5).items():
        assert getattr(got, name) == pytest.approx(value, rel=1e-9), name
    assert got.printed == min(got.line_1, got.line_2)
    assert got.extra == min(got.within, got.queries)


def test_queries_that_are_best_tokens_of_one_label_are_left_out():
    # All queries are best tokens: those of one label are equal, which is what Example 1 wants.
    x = np.zeros((3, 2, 4))
    x[:, 0, 0], x[2, 0] = 1.0, [0, 1, 0, 0]
    x[:, 1, 2] = [0.1, 0.0, 0.0]
    tokens = al.Tokens.self_attention(x, [1, 1, -1], [1.0, -1.0, 0.0, 0.0])
    got = orthogonality_ratios(tokens, [0, 0, 0], 10.0)
    assert got.queries == math.inf
    other = al.Tokens(x=x, z=tokens.z + 1e-3, y=tokens.y, v=tokens.v)  # no longer best tokens
    assert orthogonality_ratios(other, [0, 0, 0], 10.0).queries < 1


def test_a_negative_product_of_best_tokens_fails_line_2():
    x = np.zeros((3, 2, 3))
    x[0, 0], x[1, 0], x[2, 0] = [1, 0, 0], [-1, 0, 0], [0, 1, 0]
    tokens = al.Tokens.self_attention(x, [1, 1, -1], [0.0, -1.0, 0.0])
    assert orthogonality_ratios(tokens, [0, 0, 0], 1.0).line_2 == -math.inf


def test_figure_2_misses_assumption_1_and_the_separated_set_meets_it():
    for seed in range(3):
        found = assumption_1(al.data.orthogonal_signal(seed=seed))
        assert not found
        assert 1e-3 < found.margin < 3e-3
        assert 5e-3 < found.evidence["line_2"] < 1e-2
        assert 0.15 < found.evidence["pairs"] < 0.2
        tokens = al.data.separated_signal(seed=seed)
        held = assumption_1(tokens)
        assert held.margin > 1
        assert held.evidence["extra"] > 1
        assert held.evidence["factor"] == pytest.approx(16 * math.e)
        assert assumption_2(tokens)


def test_margin_with_the_upsilon_of_the_proof():
    tokens = oracle.draw(6, 4, 3, 6)
    c = rate_constants(tokens)
    found = assumption_1(tokens, constants=c)
    assert found.evidence["margin_proof"] == pytest.approx(found.margin * c.upsilon / c.upsilon_proof)
    assert c.upsilon < c.upsilon_proof
    louder = assumption_1(tokens, constants=replace(c, upsilon=2 * c.upsilon))
    assert louder.evidence["line_1"] == pytest.approx(found.evidence["line_1"] / 2)


def test_equal_scores_leave_no_margin():
    # Sequence 2 scores all alike: Upsilon is infinite, and its best token is a choice.
    x = np.array([[[1.0, 0.1], [0.0, 1.0]], [[1.0, 0.0], [1.0, 2.0]], [[1.0, 0.3], [0.0, 3.0]]])
    found = assumption_1(al.Tokens.self_attention(x, [1.0, 1.0, 1.0], [1.0, 0.0]))
    assert not found
    assert found.margin == found.evidence["margin_proof"] == 0
    assert found.evidence["tied"] == 1
    assert found.evidence["factor"] == math.inf


def test_one_sequence_meets_assumption_1_trivially():
    found = assumption_1(al.data.two_tokens())
    assert found.holds
    assert found.margin == found.evidence["margin_proof"] == math.inf


def test_assumption_2_is_measured():
    tokens = al.data.orthogonal_signal(n=2, T=3, d=10)
    assert assumption_2(tokens)
    x = np.array(tokens.x)
    planted = tokens.info["planted"]
    x[0, (planted[0] + 1) % 3] += 0.1 * tokens.v * tokens.y[0]
    found = assumption_2(al.Tokens.self_attention(x, tokens.y, tokens.v))
    assert not found
    assert found.evidence["deviation"] == pytest.approx(0.1 * tokens.v @ tokens.v)


@pytest.mark.parametrize("k", [1.5, 2.0])
def test_small_start_by_its_formula(k):
    tokens = oracle.draw(3, 4, 3, 20, scale=0.7)
    c = rate_constants(tokens)
    assert abs(c.B - 1) > 0.5
    for step in (1e-3, 1e3):
        found = initialization(tokens, 1e-4, step, k=k)
        attention = math.log((k * 3 - 1) / 2) / (6 * math.sqrt(2)) / c.B**2 / math.sqrt(20)
        norm = step / 20 / (8 * c.Lambda) / c.B**2
        assert found.evidence["by_attention"] == pytest.approx(attention)
        assert found.evidence["by_norm"] == pytest.approx(norm)
        assert found.margin == pytest.approx(min(attention, norm) / 1e-4)
        assert found.holds == (min(attention, norm) >= 1e-4)
    assert initialization(tokens, 0.0, 0.1).margin == math.inf


def test_bad_input_of_the_small_start():
    tokens = al.data.two_tokens()
    with pytest.raises(InputError, match="`scale`"):
        initialization(tokens, -1.0, 0.1)
    with pytest.raises(InputError, match="`step`"):
        initialization(tokens, 0.1, np.inf)
    with pytest.raises(InputError, match="`k`"):
        initialization(tokens, 0.1, 0.1, k=1.0)


def test_sufficient_sizes():
    assert sufficient_dimension(20, 6) == pytest.approx(256 * math.e**2 * 400 * 36 * math.log(800))
    U = sufficient_signal(2, 3, 500, 0.1, signal_noise=-0.2, delta=0.05)
    assert pytest.approx((8 * 2 * math.e * 3 + 2) * 0.04 * math.sqrt(500 * math.log(160))) == U**2
