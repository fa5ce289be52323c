"""How far weighted rows cancel, and when that is a proof: against 60 digits, whose exponents have no end."""

import numpy as np
import pytest
from mpmath import mp, mpf

from attnlab.svm.proof import CANCELS, NEGLIGIBLE, cancellation, proving, proving_vectors, residual
from attnlab.svm.rows import Rows

# Of the differences, the queries and the weights: products from 2^-2700 to 2^1800.
SCALES = [(0, 0, 0), (-600, -600, 0), (-900, -900, -900), (900, 900, 0), (900, -900, 0), (-450, 0, -600), (0, 0, -900)]
SEEDS = range(5)


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


def rows_at(p, queries, query, *, scale=(0, 0), shift=None):
    count = len(p)
    return Rows(
        np.ldexp(np.asarray(p, dtype=float), scale[0]),
        np.ldexp(np.asarray(queries, dtype=float), scale[1]),
        np.asarray(query),
        np.arange(count),
        (1, count),
        shift=shift,
    )


def drawn(seed, scale=(0, 0), shift=None):
    """Six rows over three queries, some of their entries zero; the last row, or a query, may be all zero."""
    rng = np.random.default_rng([41, seed])
    p, queries = rng.standard_normal((6, 3)), rng.standard_normal((3, 3))
    p[rng.random(p.shape) < 0.2] = 0.0
    queries[1, rng.integers(3)] = 0.0
    if seed % 2:
        p[-1] = 0.0
    return rows_at(p, queries, [0, 0, 1, 1, 1, 2], scale=scale, shift=shift)


def exact_sums(rows, weights):
    """sum l A, sum |l| |A| entry by entry, and sum |l| |A| in Frobenius norms."""
    d = rows.p.shape[1]
    total, sizes, lengths = mp.zeros(d), mp.zeros(d), mpf(0)
    for j, weight in enumerate(weights):
        power = 0 if rows.shift is None else int(rows.shift[j])
        p = [mpf(float(entry)) * mpf(2) ** power for entry in rows.p[j]]
        query = [mpf(float(entry)) for entry in rows.queries[rows.query[j]]]
        for a in range(d):
            for b in range(d):
                term = mpf(float(weight)) * p[a] * query[b]
                total[a, b] += term
                sizes[a, b] += abs(term)
        lengths += abs(mpf(float(weight))) * mp.norm(p) * mp.norm(query)
    return total, sizes, lengths


def exact_cancellation(rows, weights):
    total, sizes, _ = exact_sums(rows, weights)
    return max((abs(entry) / size for entry, size in zip(total, sizes, strict=True) if size), default=mpf(0))


def exact_residual(rows, weights):
    total, _, lengths = exact_sums(rows, weights)
    return mp.norm(total) / lengths if lengths else mpf(0)


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_both_shares_are_those_of_exact_sums(seed, scale, shifted):
    rng = np.random.default_rng([42, seed])
    shift = rng.integers(0, 2, 6) if shifted else None
    rows = drawn(seed, scale[:2], shift)
    weights = np.ldexp(rng.uniform(0.1, 1.0, 6), scale[2])
    weights[rng.integers(6)] = 0.0
    assert float(abs(cancellation(rows, weights) - exact_cancellation(rows, weights))) < 1e-14
    assert float(abs(residual(rows, weights) - exact_residual(rows, weights))) < 1e-14


@pytest.mark.parametrize("power", [-1000, 0, 1000])
def test_a_row_without_weight_has_no_part_however_long(power):
    """Rows 1 and -3, and one of 2^1000 or 2^-1000 that weighs nothing."""
    rows = rows_at([[1.0], [-3.0], [2.0**power]], [[0.5]], [0, 0, 0])
    weights = np.array([1.0, 0.5, 0.0])
    assert residual(rows, weights) == pytest.approx(0.5 / 2.5, rel=1e-15)
    assert cancellation(rows, weights) == pytest.approx(0.5 / 2.5, rel=1e-15)


@pytest.mark.parametrize("size", [0.5, 1.0, 2.0**-1074])
def test_one_row_alone_does_not_cancel(size):
    """And what is zero has cancelled."""
    rows = rows_at([[size]], [[1.0]], [0])
    assert residual(rows, np.ones(1)) == cancellation(rows, np.ones(1)) == 1.0
    assert residual(rows, np.zeros(1)) == cancellation(rows, np.zeros(1)) == 0.0
    nothing = rows_at([[0.0]], [[1.0]], [0])
    assert residual(nothing, np.ones(1)) == cancellation(nothing, np.ones(1)) == 0.0


# --- proofs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize(("share", "proves"), [(0.5, True), (2.0, False)])
def test_rows_prove_as_far_as_they_cancel(share, proves, scale):
    """Rows 1 and -1 + 2 s cancel to s, about, with even weights."""
    rows = rows_at([[1.0], [-1.0 + 2 * share * CANCELS]], [[1.0]], [0, 0], scale=scale[:2])
    weights = np.ldexp(np.array([0.5, 0.5]), scale[2])
    assert proving(rows, weights) is (weights if proves else None)
    vectors = np.ldexp(np.array([[1.0, 3.0], [-1.0 + 2 * share * CANCELS, -3.0]]), scale[0])
    assert proving_vectors(vectors, weights) is (weights if proves else None)


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize(("share", "left_out"), [(0.5, True), (2.0, False)])
def test_what_weighs_less_than_rounding_may_be_left_out_at_every_scale(share, left_out, scale):
    """The third row, of another direction, does not cancel; its weight times its length is a share of the largest."""
    for length in (1.0, 2.0**60):
        p = [[1.0, 0.0], [-1.0, 0.0], [0.0, length]]
        rows = rows_at(p, [[1.0, 0.0]], [0, 0, 0], scale=scale[:2])
        weights = np.ldexp(np.array([0.5, 0.5, 0.5 * share * NEGLIGIBLE / length]), scale[2])
        vectors = np.ldexp(np.array(p), scale[0])
        if not left_out:
            assert proving(rows, weights) is None
            assert proving_vectors(vectors, weights) is None
            continue
        np.testing.assert_array_equal(proving(rows, weights), [weights[0], weights[1], 0.0])
        np.testing.assert_array_equal(proving_vectors(vectors, weights), [0.5, 0.5, 0.0])


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_what_is_left_must_weigh_something(scale):
    """A row of no length at all may be the whole proof; weights that are not weights are none."""
    rows = rows_at([[1.0], [0.0]], [[1.0]], [0, 0], scale=scale[:2])
    alone = np.ldexp(np.array([0.0, 1.0]), scale[2])
    assert proving(rows, alone) is alone
    for wrong in ([0.0, 0.0], [-1.0, 2.0], [np.nan, 1.0], [np.inf, 1.0], [1.0, 1.0]):
        assert proving(rows, np.array(wrong)) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_equalities_pull_either_way(seed):
    """An inequality of a and an equality of a: the second takes back the first, with a weight below zero."""
    rng = np.random.default_rng([43, seed])
    a, query = rng.standard_normal(3), rng.standard_normal((1, 3))
    rows = Rows(np.stack([a, 2 * a]), query, np.zeros(2, dtype=int), np.arange(2), (1, 2), np.array([False, True]))
    weights = np.array([1.0, -0.5])
    assert proving(rows, weights) is weights
    assert proving(rows, -weights) is None  # the inequality itself does not
    assert proving(rows, np.array([0.0, 0.0])) is None
