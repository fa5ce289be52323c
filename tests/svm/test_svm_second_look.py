"""The second look, in coordinates of one size: what it finds for rows in any units, against fractions.

Rows of order one are written in units of powers of two, one for each coordinate of the tokens, each of the queries and
each row. Whether a W separates does not depend on the units.
"""

from fractions import Fraction

import numpy as np
import pytest
from exact_verifier import as_floats

from attnlab.svm import MarginStatus, norms
from attnlab.svm.coordinates import _equalized, balanced_solution
from attnlab.svm.proof import CANCELS
from attnlab.svm.rows import Rows

SEEDS = range(8)
EPS = Fraction(2) ** -52
SELECTED = np.zeros(1, dtype=np.intp)


def in_units(p, queries, query, units, *, equal=None, shift=None):
    """The rows with powers of two for tokens' coordinates, queries' coordinates and rows."""
    of_tokens, of_queries, of_rows = units
    return Rows(
        np.ldexp(p, of_rows[:, None] - of_tokens),
        np.ldexp(queries, -of_queries),
        query,
        np.arange(len(p)),
        (1, len(p)),
        equal,
        shift=shift,
    )


def random_units(seed, count, d, reach=200):
    rng = np.random.default_rng([51, seed])
    return [rng.integers(-reach, reach, size) for size in (d, d, count)]


def drawn(seed, count=5, d=3):
    """Rows of order one that a W of order one separates, and that W's values."""
    rng = np.random.default_rng([52, seed])
    p, queries, W = rng.uniform(0.5, 1.0, (count, d)), rng.uniform(0.5, 1.0, (2, d)), rng.standard_normal((d, d))
    p *= rng.choice([-1.0, 1.0], p.shape)
    query = np.sort(rng.integers(0, 2, count))
    values = np.einsum("ja,ab,jb->j", p, W, queries[query])
    return p * np.sign(values)[:, None], queries, query


def exact_values(rows, W):
    """<A_j, W> and the sums of the absolute terms."""
    values, sizes = [], []
    for j in range(len(rows)):
        power = 0 if rows.shift is None else int(rows.shift[j])
        p = [Fraction(float(entry)) * Fraction(2) ** power for entry in rows.p[j]]
        query = [Fraction(float(entry)) for entry in rows.queries[rows.query[j]]]
        terms = [p[a] * Fraction(float(W[a, b])) * query[b] for a in range(len(p)) for b in range(len(query))]
        values.append(sum(terms))
        sizes.append(sum(map(abs, terms)))
    return values, sizes


def faults_of_separation(rows, found, norm=norms.FROBENIUS):
    """What is not true of a W that is said to separate, no more."""
    values, sizes = exact_values(rows, found.W)
    equal = np.zeros(len(rows), dtype=bool) if rows.equal is None else rows.equal
    above = [value for value, level in zip(values, equal, strict=True) if not level]
    level = [(value, size) for value, size, is_level in zip(values, sizes, equal, strict=True) if is_level]
    stated = [Fraction(float(value)) for value in found.values.reshape(-1)[rows.where]]
    W, power = as_floats([[Fraction(float(entry)) for entry in row] for row in found.W])
    margin = float(Fraction(found.margin) * Fraction(norm.value(W)) * Fraction(2) ** power)
    missed = max([float(1 - min(above)), *(float(abs(value)) for value, _ in level)])
    rules = {
        "separates": min(above) > 0,
        "level": all(abs(value) <= 8 * EPS * size for value, size in level),
        "least value is 1": abs(min(above) - 1) <= 16 * EPS * max(sizes),
        "stated values": all(
            abs(told - value) <= 16 * EPS * size for told, value, size in zip(stated, values, sizes, strict=True)
        ),
        "margin": abs(margin - 1) < 1e-12,
        "violation": abs(found.violation - max(0.0, missed)) <= 16 * float(EPS * max(sizes)),
        "no more": found.status is MarginStatus.INACCURATE and found.gap == np.inf and found.support is None,
    }
    return [rule for rule, holds in rules.items() if not holds]


def faults_of_proof(rows, found):
    """What is not true of weights that are to show that there is no W."""
    weights = [Fraction(float(weight)) for weight in found.farkas.reshape(-1)[rows.where]]
    equal = np.zeros(len(rows), dtype=bool) if rows.equal is None else rows.equal
    counted = [weight for weight, level in zip(weights, equal, strict=True) if not level]
    d, faults = rows.p.shape[1], []
    if min(counted) < 0 or abs(sum(counted) - 1) > Fraction(1, 10**12):
        faults.append("not weights of sum 1")
    for a in range(d):
        for b in range(d):
            terms = [
                weights[j] * Fraction(float(rows.p[j, a])) * Fraction(float(rows.queries[rows.query[j], b]))
                for j in range(len(rows))
            ]
            if abs(sum(terms)) > 2 * Fraction(CANCELS) * sum(map(abs, terms)):
                faults.append("does not cancel")
    return faults


# --- a W that separates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [norms.FROBENIUS, norms.NUCLEAR, norms.ENTRYWISE_MAX])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_can_be_separated_is_separated_in_all_units(seed, norm):
    p, queries, query = drawn(seed)
    rows = in_units(p, queries, query, random_units(seed, *p.shape))
    found = balanced_solution(rows, SELECTED, 3, norm.value)
    assert found is not None
    assert faults_of_separation(rows, found, norm) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_differences_beyond_the_largest_number_count_in_full(seed):
    """Rows halved, with a shift of 1, are the same rows."""
    p, queries, query = drawn(seed)
    units = random_units(seed, *p.shape)
    plain = in_units(p, queries, query, units)
    halved = in_units(0.5 * p, queries, query, units, shift=np.ones(len(p), dtype=np.intp))
    one, other = (balanced_solution(rows, SELECTED, 3, norms.FROBENIUS.value) for rows in (plain, halved))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.W, other.W)
    np.testing.assert_array_equal(one.values, other.values)
    assert faults_of_separation(halved, other) == []


def with_a_level_row(seed):
    """The last row but for the sign of one entry must stay level; it is of another size in every entry."""
    p, queries, query = drawn(seed, count=3)
    p = np.concatenate([p, p[-1:]])
    p[-1, 0] *= -1.0
    equal = np.array([False, False, False, True])
    return in_units(p, queries, np.append(query, query[-1]), random_units(seed, 4, 3), equal=equal)


def test_level_rows_stay_level_in_all_units():
    """Where rounding lets W be level to its last digits, which is not always."""
    separated = 0
    for seed in range(24):
        rows = with_a_level_row(seed)
        found = balanced_solution(rows, SELECTED, 3, norms.FROBENIUS.value)
        if found is not None:
            separated += found.status is MarginStatus.INACCURATE
            assert faults_of_separation(rows, found) == [], seed
    assert separated >= 12


@pytest.mark.parametrize("seed", SEEDS)
def test_a_level_row_has_a_closed_form(seed):
    """w_1 + w_2 >= 1 and w_1 - w_2 = 0 in units of their own: both are 1/2."""
    units = random_units(seed, 2, 2)
    units[1] = units[1][:1]
    p, query = np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([[1.0, 0.0]])
    of_tokens, of_query, of_rows = units
    rows = in_units(p, query, np.zeros(2, dtype=int), units, equal=np.array([False, True]))
    found = balanced_solution(rows, SELECTED, 2, norms.FROBENIUS.value)
    assert found is not None
    back = np.ldexp(found.W[:, 0], of_rows[0] - of_tokens - of_query[0])
    np.testing.assert_allclose(back, [0.5, 0.5], rtol=1e-15)
    assert faults_of_separation(rows, found) == []


@pytest.mark.parametrize("power", [-1000, 1000])
def test_a_w_without_float64_numbers_is_not_found(power):
    """One row of 2^power in both factors: W, or the margin, would be 2^(2 power)."""
    rows = Rows(np.array([[2.0**power]]), np.array([[2.0**power]]), np.zeros(1, dtype=int), np.arange(1), (1, 1))
    with np.errstate(over="ignore"):
        assert balanced_solution(rows, SELECTED, 1, norms.FROBENIUS.value) is None


@pytest.mark.parametrize("power", [-500, -100, 100, 500])
def test_one_row_has_a_closed_form(power):
    """3 2^power W 2 2^power >= 1: W = 2^(-2 power) / 6, to the last bit but one."""
    p, query = np.array([[np.ldexp(3.0, power)]]), np.array([[np.ldexp(2.0, power)]])
    rows = Rows(p, query, np.zeros(1, dtype=int), np.arange(1), (1, 1))
    found = balanced_solution(rows, SELECTED, 1, norms.FROBENIUS.value)
    assert found is not None
    assert abs(np.ldexp(found.W[0, 0], 2 * power) - 1 / 6) < 1e-16
    assert abs(np.ldexp(found.margin, -2 * power) - 6) < 1e-14
    assert faults_of_separation(rows, found) == []


# --- or a proof that there is none ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_what_cannot_be_separated_is_proved_in_all_units(seed):
    """The last row is minus a positive combination of others of its query, which fractions of 2^-20 keep exact."""
    rng = np.random.default_rng([53, seed])
    p = rng.integers(-(2**20), 2**20, (4, 3)) / 2.0**20
    p = np.concatenate([p, -(p[:1] + 2.0 * p[1:2] + 0.5 * p[2:3])])
    query = np.zeros(5, dtype=int)
    units = random_units(seed, 5, 3)
    rows = in_units(p, rng.uniform(0.5, 1.0, (1, 3)), query, units)
    found = balanced_solution(rows, SELECTED, 3, norms.FROBENIUS.value)
    assert found is not None
    assert found.status is MarginStatus.INFEASIBLE
    assert faults_of_proof(rows, found) == []


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_equality_along_an_inequality_is_proved_to_leave_no_w(seed, sign):
    """a W >= 1 and s a W = 0: the weight of the equality has the sign that takes the inequality back."""
    rng = np.random.default_rng([54, seed])
    a = rng.uniform(0.5, 1.0, 3)
    equal = np.array([False, True])
    units = random_units(seed, 2, 3)
    rows = in_units(np.stack([a, sign * a]), rng.uniform(0.5, 1.0, (1, 3)), np.zeros(2, dtype=int), units, equal=equal)
    found = balanced_solution(rows, SELECTED, 3, norms.FROBENIUS.value)
    assert found is not None
    assert found.status is MarginStatus.INFEASIBLE
    assert np.sign(found.farkas[0, 1]) == -sign
    assert faults_of_proof(rows, found) == []


def test_more_numbers_than_are_written_out_are_not_looked_at():
    for count in (200, 201):
        p = np.zeros((count, 100))
        p[:, 0] = 1.0
        rows = Rows(p, p[:1], np.zeros(count, dtype=int), np.arange(count), (1, count))
        found = balanced_solution(rows, SELECTED, 100, norms.FROBENIUS.value)
        assert (found is None) == (count * 100 * 100 > 2_000_000)


# --- coordinates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_equalized_vectors_are_the_vectors_in_other_units(seed):
    """Exactly; with a largest entry of order one in each row and, as the units allow it here, in each column."""
    rng = np.random.default_rng([55, seed])
    plain = rng.uniform(0.5, 1.0, (5, 4)) * rng.choice([-1.0, 1.0], (5, 4))
    plain[rng.random(plain.shape) < 0.2] = 0.0
    plain[:, 0] = 0.75
    plain[2], plain[:, 3] = 0.0, 0.0
    of_rows, of_columns = rng.integers(-400, 400, 5), rng.integers(-400, 400, 4)
    vectors = np.ldexp(plain, of_rows[:, None] + of_columns)
    scaled, row, column = _equalized(vectors)
    np.testing.assert_array_equal(np.ldexp(scaled, row[:, None] - column), vectors)
    sizes = np.abs(scaled)
    rows_there, columns_there = plain.any(axis=1), plain.any(axis=0)
    for largest in (sizes.max(axis=1)[rows_there], sizes.max(axis=0)[columns_there]):
        assert (largest >= 0.5).all()
        assert (largest < 1.0).all()
    assert (row[~rows_there] == 0).all()
    assert (column[~columns_there] == 0).all()
