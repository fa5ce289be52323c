"""Traps: made again from their seed, what they meet, and clear words for what does not exist."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import attnlab as al
from attnlab.data.trap import TRAPS
from attnlab.errors import InputError
from attnlab.theory import assumption_b1, assumption_b2, assumption_d, is_locally_optimal


@pytest.mark.parametrize("name", TRAPS)
def test_the_same_seed_makes_the_same_set(name):
    first, again = al.data.trap(name, seed=2), al.data.trap(name, seed=2)
    for part in ("x", "z", "y", "v"):
        assert_allclose(getattr(first, part), getattr(again, part), rtol=0, atol=0)
    other = al.data.trap(name, seed=3)
    assert (name == "plain") == np.array_equal(first.x, other.x)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", TRAPS)
def test_what_they_meet(name, seed):
    tokens = al.data.trap(name, seed=seed, delta=0.03)
    facts = assumption_b2(tokens)
    assert facts.evidence["tied"] == 0
    assert facts.evidence["deviation"] <= (0.03 + 1e-12 if name == "T5" else 1e-12)
    assert facts.evidence["gap"] > 0.1
    if name in ("plain", "E17"):
        assert assumption_b1(tokens)
    assert not assumption_d(tokens)
    assert al.solve_margin(tokens, al.optimal_tokens(tokens)).feasible
    held = is_locally_optimal(tokens, tokens.info["selected"])
    assert held
    assert held.empty.tolist() == [True, False]


def test_delta_is_the_spread_of_the_other_scores():
    for delta in (0.0, 0.01, 0.2):
        deviation = assumption_b2(al.data.trap("T5", seed=1, delta=delta)).evidence["deviation"]
        assert_allclose(deviation, delta, atol=1e-12)


def test_nothing_changes_by_jumps_as_scores_become_equal():
    near, equal = (al.data.trap("T5", seed=4, delta=delta) for delta in (1e-9, 0.0))
    assert_allclose(near.x, equal.x, atol=1e-7)
    assert_allclose(near.info["start"], equal.info["start"], atol=1e-7)


def test_unknown_names_are_refused_with_those_that_exist():
    with pytest.raises(InputError, match="'plain', 'E17', 'T4', 'T5'"):
        al.data.trap("T6")
    for delta in (-0.1, np.nan, np.inf):
        with pytest.raises(InputError, match="delta"):
            al.data.trap("T5", delta=delta)
    with pytest.raises(InputError, match="seed"):
        al.data.trap("T4", seed=-1)
