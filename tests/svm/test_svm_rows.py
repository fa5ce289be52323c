"""Constraint rows, kept as products, against the explicit matrices."""

import numpy as np
import pytest
from svm_cases import cross, problem
from verifier import constraints

from attnlab import Tokens
from attnlab.svm import Rows, margin_rows


def uneven():
    """Queries with three, no, one and two constraints, the first and last included."""
    tokens, _ = cross(9)
    mask = np.array([[1, 1, 1, 1], [0, 0, 1, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=bool)
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=mask), np.array([1, 2, 0, 3])


def silent_ends():
    """The first and the last queries have no constraint."""
    tokens, _ = cross(10, n=5)
    mask = np.ones((5, 4), dtype=bool)
    mask[[0, 1, 4]] = np.arange(4) == 2
    mask[2, 3] = False
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=mask), np.array([2, 2, 0, 3, 2])


CASES = {
    "even": lambda: cross(8),
    "uneven": uneven,
    "silent ends": silent_ends,
    "every query": lambda: problem(26),
    "causal": lambda: problem(36),
    "masked": lambda: problem(46),
    "one": lambda: cross(1, n=1, T=2, d=3),
}


@pytest.fixture(params=CASES)
def rows(request):
    tokens, selected = CASES[request.param]()
    found = constraints(tokens, selected)
    A = np.array([matrix.astype(float) for _, matrix in found])
    return margin_rows(tokens, selected), A, [where for where, _ in found], tokens


def test_order_and_places(rows):
    made, A, places, tokens = rows
    assert len(made) == len(A)
    flat = [int(np.ravel_multi_index(place, made.shape)) for place in places]
    assert made.where.tolist() == flat
    assert made.shape == (*tokens.y.shape, tokens.T)
    assert (np.diff(made.query) >= 0).all()


def test_values(rows):
    made, A, _, tokens = rows
    W = np.random.default_rng(0).standard_normal((tokens.d, tokens.d))
    np.testing.assert_allclose(made.values(W), np.einsum("jab,ab->j", A, W), rtol=1e-12, atol=1e-12)


def test_adjoint(rows):
    made, A, _, _ = rows
    weights = np.random.default_rng(1).standard_normal(len(A))
    np.testing.assert_allclose(made.adjoint(weights), np.einsum("j,jab->ab", weights, A), rtol=1e-12, atol=1e-12)


def test_adjointness(rows):
    """<A W, l> = <W, A* l>."""
    made, A, _, tokens = rows
    rng = np.random.default_rng(2)
    W, weights = rng.standard_normal((tokens.d, tokens.d)), rng.standard_normal(len(A))
    assert made.values(W) @ weights == pytest.approx(np.sum(W * made.adjoint(weights)), rel=1e-12, abs=1e-12)


def test_gram_and_its_products(rows):
    made, A, _, _ = rows
    flat = A.reshape(len(A), -1)
    gram = flat @ flat.T
    np.testing.assert_allclose(made.gram(), gram, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(made.norms, np.sqrt(np.diag(gram)), rtol=1e-13)
    for seed in range(3):
        weights = np.random.default_rng(seed).standard_normal(len(A))
        np.testing.assert_allclose(made.gram_times(weights), gram @ weights, rtol=1e-11, atol=1e-11)
    for j in range(len(A)):
        np.testing.assert_allclose(made.gram_times(np.eye(len(A))[j]), gram[j], rtol=1e-11, atol=1e-11)


def test_gathered(rows):
    made, A, _, tokens = rows
    weights = np.random.default_rng(3).standard_normal(len(A))
    want = np.zeros((tokens.y.size, tokens.d))
    for j in range(len(A)):
        want[made.query[j]] += weights[j] * made.p[j]
    np.testing.assert_allclose(made.gathered(weights), want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(made.query_gram, made.queries @ made.queries.T, rtol=1e-13)


def test_sizes(rows):
    """Sums of absolute terms, for the rounding of values."""
    made, A, _, tokens = rows
    W = np.random.default_rng(4).standard_normal((tokens.d, tokens.d))
    p, q = np.abs(made.p), np.abs(made.queries[made.query])
    np.testing.assert_allclose(made.sizes(W), np.einsum("ja,ab,jb->j", p, np.abs(W), q), rtol=1e-12)
    assert (made.sizes(W) >= np.abs(np.einsum("jab,ab->j", A, W)) * (1 - 1e-12)).all()


def test_unit(rows):
    made, A, _, tokens = rows
    unit = made.unit()
    W = np.random.default_rng(5).standard_normal((tokens.d, tokens.d))
    np.testing.assert_allclose(unit.norms, 1.0, rtol=1e-14)
    np.testing.assert_allclose(unit.values(W), np.einsum("jab,ab->j", A, W) / made.norms, rtol=1e-12, atol=1e-13)


def test_scatter(rows):
    made, A, places, _ = rows
    numbers = np.arange(1.0, len(A) + 1)
    full = made.scatter(numbers, np.nan)
    assert full.shape == made.shape
    assert [full[place] for place in places] == numbers.tolist()
    assert np.isfinite(full).sum() == len(A)
    assert made.scatter(numbers).sum() == numbers.sum()


def test_no_constraints_at_all():
    made = margin_rows(Tokens(x=np.ones((2, 1, 3)), z=np.ones((2, 3)), y=[1, 1]), [0, 0])
    assert len(made) == 0
    np.testing.assert_array_equal(made.adjoint(np.zeros(0)), np.zeros((3, 3)))
    assert made.values(np.ones((3, 3))).shape == (0,)
    assert made.gram().shape == (0, 0)
    np.testing.assert_array_equal(made.scatter(np.zeros(0)), np.zeros((2, 1)))


def test_the_two_ways_to_gather_agree():
    """Equal numbers of constraints per query take the blockwise way; one constraint fewer does not."""
    tokens, selected = cross(11)
    whole = margin_rows(tokens, selected)
    fewer = Rows(whole.p[:-1], whole.queries, whole.query[:-1], whole.where[:-1], whole.shape)
    weights = np.random.default_rng(0).standard_normal(len(whole))
    weights[-1] = 0.0
    np.testing.assert_allclose(fewer.gathered(weights[:-1]), whole.gathered(weights), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(fewer.gram_times(weights[:-1]), whole.gram_times(weights)[:-1], rtol=1e-12, atol=1e-13)
