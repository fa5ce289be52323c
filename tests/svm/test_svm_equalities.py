"""Problems some of whose constraints say `= 0`: against elimination with explicit matrices."""

import numpy as np
import pytest
import scipy.linalg
from svm_cases import cross

from attnlab.svm import MarginStatus, Rows, margin_rows
from attnlab.svm.frobenius import solve_rows


def with_equalities(seed, share=0.3, **sizes):
    """Rows of which some say = 0, with at least one of each kind; and all as explicit matrices."""
    rng = np.random.default_rng(seed)
    tokens, selected = cross(seed, **sizes)
    rows = margin_rows(tokens, selected)
    equal = rng.random(len(rows)) < share
    equal[0], equal[-1] = True, False
    rows = Rows(rows.p, rows.queries, rows.query, rows.where, rows.shape, equal)
    A = np.array([np.outer(rows.p[j], rows.queries[rows.query[j]]).ravel() for j in range(len(rows))])
    return rows, A, equal, selected, tokens.d


@pytest.mark.parametrize("seed", range(20))
def test_equalities_hold_and_the_rest_is_max_margin(seed):
    rows, A, equal, selected, d = with_equalities(seed)
    solution = solve_rows(rows, selected, d)
    assert solution.status is MarginStatus.OPTIMAL
    W, scale = solution.W.ravel(), np.linalg.norm(solution.W)
    multipliers = solution.multipliers.ravel()[rows.where]
    norms = np.linalg.norm(A, axis=1)
    assert np.abs(A[equal] @ W).max() <= 1e-12 * scale * norms.max()
    assert (A[~equal] @ W).min() >= 1 - 1e-11
    assert (multipliers[~equal] >= 0).all()
    assert np.linalg.norm(multipliers @ A - W) <= 1e-12 * (np.abs(multipliers) @ norms)
    basis = scipy.linalg.null_space(A[equal])
    inside = A[~equal] @ basis @ basis.T  # rows projected onto the W that meet the equalities
    image, total = multipliers[~equal] @ inside, multipliers[~equal].sum()
    gap = (scale / (A[~equal] @ W).min()) * (np.linalg.norm(image) / total) - 1
    assert -1e-12 <= gap <= 1e-10


@pytest.mark.parametrize("seed", range(5))
def test_equalities_can_only_lower_the_margin(seed):
    rows, _, equal, selected, d = with_equalities(seed)
    alone = solve_rows(rows.part(np.flatnonzero(~equal)), selected, d)
    assert solve_rows(rows, selected, d).margin <= alone.margin * (1 + 1e-12)


def test_equalities_alone_leave_nothing_to_separate():
    rows, _, _, selected, d = with_equalities(0)
    level = Rows(rows.p, rows.queries, rows.query, rows.where, rows.shape, np.ones(len(rows), dtype=bool))
    solution = solve_rows(level, selected, d)
    assert solution.status is MarginStatus.UNCONSTRAINED
    assert not solution.W.any()


def test_an_inequality_that_an_equality_forbids_is_infeasible():
    rows, _, equal, selected, d = with_equalities(1)
    p, query = rows.p.copy(), rows.query.copy()
    equal = np.zeros_like(equal)
    first, second = np.flatnonzero(query == query[0])[:2]
    p[second], equal[first] = 2.0 * p[first], True
    solution = solve_rows(Rows(p, rows.queries, query, rows.where, rows.shape, equal), selected, d)
    assert solution.status is MarginStatus.INFEASIBLE
    weights = solution.farkas.ravel()[rows.where]
    A = np.array([np.outer(p[j], rows.queries[query[j]]).ravel() for j in range(len(p))])
    assert (weights[~equal] >= 0).all()
    assert weights[~equal].sum() > 0
    assert np.linalg.norm(weights @ A) <= 1e-10 * (np.abs(weights) @ np.linalg.norm(A, axis=1))


def test_no_equalities_marked_is_the_plain_problem():
    tokens, selected = cross(2)
    rows = margin_rows(tokens, selected)
    marked = Rows(rows.p, rows.queries, rows.query, rows.where, rows.shape, np.zeros(len(rows), dtype=bool))
    found, want = solve_rows(marked, selected, tokens.d), solve_rows(rows, selected, tokens.d)
    np.testing.assert_allclose(found.W, want.W, rtol=0, atol=1e-13 * np.abs(want.W).max())


@pytest.mark.parametrize("seed", range(5))
def test_repeated_rows_change_nothing(seed):
    """Dependent tight rows, and every equality three times."""
    rows, _, equal, selected, d = with_equalities(seed)
    order = np.argsort(np.tile(rows.query, 3), kind="stable")
    index = np.tile(np.arange(len(rows)), 3)[order]
    where = np.arange(len(index))
    often = Rows(rows.p[index], rows.queries, rows.query[index], where, (len(index),), equal[index])
    once, thrice = solve_rows(rows, selected, d), solve_rows(often, selected, d)
    assert thrice.status is MarginStatus.OPTIMAL
    np.testing.assert_allclose(thrice.W, once.W, rtol=0, atol=1e-10 * float(np.linalg.norm(once.W)))


def test_opposite_demands_within_the_equalities_are_infeasible():
    """Two inequalities that differ by an equality and a sign: p and c e - p, with e = 0 demanded."""
    rng = np.random.default_rng(0)
    e, p, q = rng.standard_normal((3, 4))
    rows = Rows(np.array([e, p, 3 * e - p]), q[None], np.zeros(3, dtype=int), np.arange(3), (1, 3),
                np.array([True, False, False]))  # fmt: skip
    solution = solve_rows(rows, np.zeros(1, dtype=int), 4)
    assert solution.status is MarginStatus.INFEASIBLE
    weights = solution.farkas.ravel()
    assert weights[1] == pytest.approx(weights[2], rel=1e-9)
    assert weights[0] == pytest.approx(-3 * weights[1], rel=1e-9)
