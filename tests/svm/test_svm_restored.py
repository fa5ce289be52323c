"""Answers taken back from the scale they were solved at: every number stated of them, against fractions.

The answers are made up, and poor on purpose: what is stated of a poor answer has to be as true as that of a good one.
"""

from dataclasses import replace
from fractions import Fraction
from math import isclose

import numpy as np
import pytest
from exact_verifier import as_floats, judge_proof
from svm_cases import cross, scaled

import attnlab as al
from attnlab import InputError, Tokens
from attnlab.svm import MarginStatus, norms, solve_generalized
from attnlab.svm.certificate import MET, infeasible
from attnlab.svm.rows import Rows
from attnlab.svm.scales import REACH, Measure, normalized, restored

FROBENIUS = Measure(norms.FROBENIUS.value, norms.FROBENIUS.dual, degree=2)
NUCLEAR = Measure(norms.NUCLEAR.value, norms.NUCLEAR.dual, degree=1)
MEASURES = [FROBENIUS, NUCLEAR]
SEEDS = range(6)
D = 3
TOO_MUCH = 1e300  # a tolerance that no gap is above


def rows_of_lengths(seed, powers, coordinates=(0, 1, 2), equal=None):
    """Differences 2^power along these coordinates, times numbers of order one, each with a query of its own."""
    rng = np.random.default_rng([31, seed])
    count = len(powers)
    p = np.zeros((count, D))
    p[np.arange(count), coordinates] = np.ldexp(rng.uniform(1.0, 3.0, count), powers)
    level = None if equal is None else np.array(equal)
    return Rows(p, rng.standard_normal((count, D)), np.arange(count), np.arange(count), (count, 1), level)


def made_up(seed, small, wanted, *, by_length=True):
    """A W that gives the normalized rows these values, and multipliers under which they pull, or ask, alike."""
    rng = np.random.default_rng([32, seed])
    W = np.zeros((D, D))
    for coordinate in range(D):  # rows of one coordinate ask for the same row of W
        of_it = np.flatnonzero(small.p[:, coordinate])
        queries = small.queries[small.query[of_it]]
        W[coordinate] = np.linalg.pinv(queries) @ (wanted[of_it] / small.p[of_it, coordinate])
    multipliers = rng.uniform(0.5, 1.0, len(small))
    if by_length:
        multipliers /= np.abs(small.p).max(axis=1)
    nothing = infeasible(small, np.ones(len(small)), np.zeros(len(small), dtype=np.intp), D)
    return replace(
        nothing,
        W=W,
        margin=1.0,
        multipliers=small.scatter(multipliers),
        values=small.scatter(small.values(W)),
        gap=0.0,
        violation=0.0,
        direction_error=0.0,
        status=MarginStatus.OPTIMAL,
        farkas=None,
    )


def exactly(array):
    return [[Fraction(float(entry)) for entry in row] for row in array]


def exact_values(rows, W):
    """<A_j, W> and the sums of the absolute terms, in fractions."""
    matrix, p, queries = exactly(W), exactly(rows.p), exactly(rows.queries)
    values, sizes = [], []
    for j in range(len(rows)):
        query = queries[rows.query[j]]
        terms = [p[j][a] * matrix[a][b] * query[b] for a in range(len(W)) for b in range(len(W))]
        values.append(sum(terms))
        sizes.append(sum(map(abs, terms)))
    return values, sizes


def exact_pull(rows, weights):
    """sum l A, in fractions."""
    p, queries, d = exactly(rows.p), exactly(rows.queries), rows.p.shape[1]
    total = [[Fraction(0)] * d for _ in range(d)]
    for j, weight in enumerate(weights):
        for a in range(d):
            for b in range(d):
                total[a][b] += Fraction(float(weight)) * p[j][a] * queries[rows.query[j]][b]
    return total


def exact_gap(rows, solution, measure):
    """(|W| / least value) (|sum l A| / sum l) - 1 for the W and the multipliers that are given."""
    least = min(rows.inequalities(np.array(exact_values(rows, solution.W)[0])))
    multipliers = solution.multipliers.reshape(-1)[rows.where]
    asked = sum(Fraction(float(weight)) for weight in rows.inequalities(multipliers))
    (W, W_power), (pull, pull_power) = as_floats(exactly(solution.W)), as_floats(exact_pull(rows, multipliers))
    lengths = Fraction(measure.value(W)) * Fraction(measure.dual(pull)) * Fraction(2) ** (W_power + pull_power)
    return float(lengths / (least * asked) - 1)


# --- rows of very different lengths ---------------------------------------------------------------------------------

SPREADS = [(300, -170, -200), (-100, 420, -60), (-250, 250, 249), (REACH + 20, -1, 0)]


@pytest.mark.parametrize("by_length", [True, False], ids=["pull alike", "ask alike"])
@pytest.mark.parametrize("measure", MEASURES, ids=["frobenius", "nuclear"])
@pytest.mark.parametrize("powers", SPREADS, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_stated_of_shortened_rows_is_true_of_the_rows_as_they_were(seed, powers, measure, by_length):
    rows = rows_of_lengths(seed, powers)
    small, scale = normalized(rows)
    assert not scale.even
    wanted = np.random.default_rng(seed).uniform(1.2, 2.5, 3)  # more than is asked
    poor = made_up(seed, small, wanted, by_length=by_length)
    found = restored(poor, small, rows, scale, TOO_MUCH, measure)
    values, sizes = exact_values(rows, found.W)
    assert abs(float(min(values)) - 1) < 1e-14  # no more than is asked
    stated = found.values.reshape(-1)[rows.where]
    for value, truth, size in zip(stated, values, sizes, strict=True):
        assert abs(Fraction(float(value)) - truth) <= 16 * Fraction(2) ** -52 * size
    assert isclose(found.gap, exact_gap(rows, found, measure), rel_tol=1e-9)
    assert found.gap > 1e-3
    W, power = as_floats(exactly(found.W))
    assert float(Fraction(found.margin) * Fraction(measure.value(W)) * Fraction(2) ** power) == pytest.approx(1.0)
    assert 0 <= found.violation < 1e-12
    assert found.violation >= float(1 - min(values))


@pytest.mark.parametrize("measure", MEASURES, ids=["frobenius", "nuclear"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_gap_decides_and_so_does_what_was_found(seed, measure):
    rows = rows_of_lengths(seed, (300, -170, -200))
    small, scale = normalized(rows)
    poor = made_up(seed, small, np.array([1.0, 1.5, 2.0]))
    gap = restored(poor, small, rows, scale, TOO_MUCH, measure).gap
    for tolerance, status in ((1.01 * gap, MarginStatus.OPTIMAL), (0.99 * gap, MarginStatus.INACCURATE)):
        assert restored(poor, small, rows, scale, tolerance, measure).status is status
    doubted = replace(poor, status=MarginStatus.INACCURATE)
    assert restored(doubted, small, rows, scale, TOO_MUCH, measure).status is MarginStatus.INACCURATE


@pytest.mark.parametrize("seed", SEEDS)
def test_without_multipliers_there_is_no_bound(seed):
    rows = rows_of_lengths(seed, (300, -170, -200))
    small, scale = normalized(rows)
    poor = made_up(seed, small, np.array([1.0, 1.5, 2.0]))
    alone = replace(poor, multipliers=np.zeros_like(poor.multipliers))
    found = restored(alone, small, rows, scale, TOO_MUCH, FROBENIUS)
    assert found.gap == np.inf
    assert found.status is MarginStatus.INACCURATE


@pytest.mark.parametrize(("share", "met"), [(0.5, True), (2.0, False)])
@pytest.mark.parametrize("seed", SEEDS)
def test_equalities_may_be_missed_by_rounding_and_no_more(seed, share, met):
    """What counts is the miss relative to the terms of the equality: of order 2^8 here, beside values of order one."""
    powers = (300, -170, -200, -192)
    rows = rows_of_lengths(seed, powers, (0, 1, 2, 2), equal=[False, False, False, True])
    small, scale = normalized(rows)
    level = made_up(seed, small, np.array([2.0, 1.0, 1.0, 0.0]))
    size = float(exact_values(rows, np.ldexp(level.W, -scale.exponent))[1][3])
    assert size > 8  # both terms of the bound can be told apart
    missed = share * MET * (1 + size)
    off = made_up(seed, small, np.array([2.0, 1.0, 1.0, missed]))
    if not met:
        with pytest.raises(InputError, match="differ so much in size"):
            restored(off, small, rows, scale, TOO_MUCH, FROBENIUS)
        return
    found = restored(off, small, rows, scale, TOO_MUCH, FROBENIUS)
    exact = [abs(float(value)) for value in exact_values(rows, found.W)[0]]
    assert found.violation == pytest.approx(exact[3], rel=1e-5)


# --- entries that float64 has no numbers for --------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("size", [1.001, 1.3, 1.7])
def test_values_are_those_of_the_w_that_is_left_after_rounding(norm, size):
    """W = diag(2^-1010, 2^-1070 / size): the second entry has five digits, and its constraint is off by as much."""
    x = [[[2.0**500, 0.0], [0.0, 0.0]], [[0.0, size * 2.0**560], [0.0, 0.0]]]
    tokens = Tokens(x=x, z=2.0**510 * np.eye(2), y=[1, 1])
    found = al.solve_margin(tokens, [0, 0], norm=norm)
    assert found.W[0, 0] == 2.0**-1010
    value = Fraction(size * 2.0**560) * Fraction(2) ** 510 * Fraction(float(found.W[1, 1]))
    assert abs(value - 1) > Fraction(1, 10**5)
    assert found.values[1, 1] == pytest.approx(float(value), rel=1e-14)
    assert found.violation == pytest.approx(max(0.0, float(1 - value)), abs=1e-14)


@pytest.mark.parametrize(("k", "j"), [(900, 200), (-800, -300), (600, 600), (-530, -530)])
def test_the_refusal_says_how_large_w_would_be(k, j):
    tokens, selected = cross(0)
    near = al.solve_margin(tokens, selected)
    with pytest.raises(InputError) as caught:
        al.solve_margin(scaled(tokens, k, j), selected)
    text = str(caught.value)
    exponent = int(text.split("; W would be of size 1e")[1].split(",")[0])
    assert abs(exponent - (np.log10(np.abs(near.W).max()) - (k + j) * np.log10(2.0))) < 1
    hint = text.split("hint: ")[1]
    a, b = (int(part.split(")")[0]) for part in hint.replace("z, ", "x, ").split("x, ")[1:])
    times = int(hint.split("2^")[1].split(" ")[0])
    assert times == -(a + b)  # W is one over tokens times queries


@pytest.mark.parametrize(("x", "z"), [(2.0**1000, 2.0**200), (2.0**-1000, 2.0**-300), (1.7e308, 1.0)])
def test_the_refusal_says_how_large_tokens_and_queries_are(x, z):
    """Tokens x e_1 and -x e_1, query z e_1: the difference 2 x may itself be beyond the largest number."""
    tokens = Tokens(x=[[[x, 0.0], [-x, 0.0]]], z=[[z, 0.0]], y=[1])
    with pytest.raises(InputError) as caught:
        al.solve_margin(tokens, [0])
    difference, query = (
        int(part.split("1e")[1].split(" ")[0].rstrip(";")) for part in str(caught.value).split("up to")[1:]
    )
    assert abs(difference - np.log10(2.0) - np.log10(x)) < 1
    assert abs(query - np.log10(z)) < 1


# --- what cannot be separated -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("power", [300, 420, 500])
def test_long_rows_that_oppose_each_other_beside_a_short_one(norm, power):
    """The short row has no part in it; the long ones weigh 2^(REACH - 2 power) and less of it, and prove it alike."""
    long, short = 2.0**power, 2.0**-power
    x = [[[long, 0.0], [0.0, 0.0]], [[-3 * long, 0.0], [0.0, 0.0]], [[0.0, short], [0.0, 0.0]]]
    tokens = Tokens(x=x, z=[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], y=[1, 1, 1])
    found = al.solve_margin(tokens, [0, 0, 0], norm=norm, throw=False)
    assert found.status is MarginStatus.INFEASIBLE
    np.testing.assert_allclose(found.farkas[:, 1], [0.75, 0.25, 0.0], rtol=1e-12)
    assert judge_proof(tokens, found) == []


@pytest.mark.parametrize("powers", [(200, -250), (-300, 300), (450, 449), (600, 598), (REACH + 1, 0)], ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_weights_are_taken_back_with_the_lengths_of_their_rows(seed, powers):
    """Opposite rows, so long and -ratio times as long: weights 1 and 1 / ratio cancel, at any length."""
    rng = np.random.default_rng(seed)
    p, query = rng.standard_normal(3), rng.standard_normal((1, 3))
    rows = Rows(
        np.stack([np.ldexp(p, powers[0]), -np.ldexp(p, powers[1]), np.ldexp(p, -450)]),
        query,
        np.zeros(3, dtype=np.intp),
        np.arange(3),
        (1, 3),
    )
    small, scale = normalized(rows)
    lengths = np.abs(small.p).max(axis=1)
    weights = np.array([lengths[1], lengths[0], 0.0]) / lengths[:2].sum()
    found = infeasible(small, weights, np.zeros(1, dtype=np.intp), 3)
    again = restored(found, small, rows, scale, 1e-9, FROBENIUS)
    assert again.status is MarginStatus.INFEASIBLE
    truth = np.ldexp(1.0, -np.abs(powers[0] - powers[1]))  # of the longer, beside 1 for the shorter
    ratio = again.farkas[0, :2].min() / again.farkas[0, :2].max()
    assert isclose(ratio, truth, rel_tol=1e-14)
    assert again.farkas_residual < 1e-15


@pytest.mark.parametrize("power", [-300, 300])
def test_tokens_that_are_equal_and_stay_level_do_not_count_as_rows_of_another_size(power):
    """Two tokens that are the same are level under every W; what is known at scale 1 is known at every other."""
    x = np.array([[[1.0, 2.0], [1.0, 2.0], [0.0, 0.5]]])
    kept = np.array([[True, True, False]])
    near, far = (solve_generalized(Tokens(x=np.ldexp(x, k), z=[[1.0, 0.5]], y=[1]), kept) for k in (0, power))
    assert far.status is near.status is MarginStatus.OPTIMAL
    assert far.reason is near.reason is None
    np.testing.assert_array_equal(far.support, near.support)
    np.testing.assert_allclose(np.ldexp(far.W, power), near.W, rtol=1e-14)
