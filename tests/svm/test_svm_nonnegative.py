"""Non-negative least squares: against the conditions that an optimum meets, against SciPy's, and at its edges."""

import numpy as np
import pytest
from scipy.optimize import nnls

from attnlab.svm import nonnegative
from attnlab.svm.nonnegative import non_negative, non_negative_gram

# SciPy 1.17's solver does not survive this one: columns that are each other's opposites, but for rounding.
OPPOSITES = [
    "-0x1.87de2a6aea962p-2 0x1.6612168e5fc9ep-29 0x1.143fa4c95f69bp-27 0x1.87de2a6aea961p-2 -0x1.87de2a6aea961p-2 "
    "-0x1.d906bcf328d44p-1",
    "0x1.acc0c5517412ep-26 -0x1.fffffffffffedp-1 -0x1.ffffffffffff3p-1 0x1.75ea3010faad0p-25 -0x1.4362c21e03606p-25 "
    "0x1.943b7459e07d5p-27",
    "-0x1.d906bcf328d44p-1 -0x1.c225137b1497bp-25 -0x1.aecee6a346703p-25 -0x1.d906bcf328d3ap-1 0x1.d906bcf328d3cp-1 "
    "-0x1.87de2a6aea958p-2",
    "0x1.0p+0 0x1.7ed802519fbbep-401 0x1.7ed802519fbbep-401 0x1.7ed802519fbbap-401 0x1.7ed802519fbbbp-401 "
    "0x1.7ed802519fbbbp-401",
]
FAMILIES = ["plain", "inside", "whole", "positive", "low rank", "repeated", "zero", "nearly", "distance"]


def solved(matrix, target):
    x = non_negative(matrix, target)
    assert x is not None
    return x


def solved_by_gram(gram, slopes):
    x = non_negative_gram(gram, slopes)
    assert x is not None
    return x


def drawn(family, seed):
    """A matrix, wide or tall, and a target."""
    rng = np.random.default_rng([31, seed, FAMILIES.index(family)])
    m, n = rng.integers(1, 20), rng.integers(1, 35)
    matrix, target = rng.standard_normal((m, n)), rng.standard_normal(m)
    if family == "inside":  # the cone of the columns
        target = matrix @ np.maximum(rng.standard_normal(n), 0.0)
    elif family == "whole":  # numbers, with many ties
        matrix = rng.integers(-2, 3, (m, n)).astype(float)
        target = rng.integers(-2, 3, m).astype(float)
    elif family == "positive":
        matrix = np.abs(matrix)
    elif family == "low rank":
        matrix = rng.standard_normal((m, 1 + m // 3)) @ rng.standard_normal((1 + m // 3, n))
    elif family == "repeated":
        matrix[:, rng.integers(0, n, n // 2)] = matrix[:, rng.integers(0, n, n // 2)]
    elif family == "zero":
        matrix[:, rng.random(n) < 0.4] = 0.0
    elif family == "nearly":  # each column twice, but for rounding
        matrix[:, n - n // 2 :] = matrix[:, : n // 2] * (1.0 + 1e-14 * rng.standard_normal(n // 2))
    elif family == "distance":  # as the margin solvers ask
        matrix = np.vstack([matrix / np.linalg.norm(matrix, axis=0), rng.uniform(0.1, 1.0, n)])
        target = np.append(np.zeros(m), 1.0)
    return matrix, target


def faults(matrix, target, x, accuracy=1e-12):
    """What an optimum must not have: a negative entry, a column along which the residual falls, or one it left half."""
    wrong = []
    if x is None or not np.isfinite(x).all() or (x < 0).any():
        return ["no entries >= 0"]
    sizes = np.linalg.norm(matrix, axis=0)
    slopes = matrix.T @ (target - matrix @ x)
    allowed = accuracy * (np.linalg.norm(target) + sizes @ x) * np.maximum(sizes, 1e-300)
    if (slopes > allowed).any():
        wrong.append("the residual falls along a column")
    if (np.abs(slopes) > allowed)[x > 0].any():
        wrong.append("a member is not at its least squares")
    return wrong


def unit(matrix):
    """The columns at length one."""
    sizes = np.linalg.norm(matrix, axis=0)
    return matrix / np.where(sizes > 0, sizes, 1.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_optimum_is_found(family):
    for seed in range(150):
        matrix, target = drawn(family, seed)
        assert faults(matrix, target, solved(matrix, target)) == [], seed


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "nearly"])
def test_an_optimum_is_found_from_the_gram_matrix(family):
    for seed in range(150):
        matrix, target = drawn(family, seed)
        matrix = unit(matrix)
        assert faults(matrix, target, solved_by_gram(matrix.T @ matrix, matrix.T @ target), 1e-9) == [], seed


@pytest.mark.parametrize("family", ["plain", "inside", "positive", "distance"])
def test_the_residual_is_scipys(family):
    for seed in range(100):
        matrix, target = drawn(family, seed)
        found = solved(matrix, target)
        wanted = nnls(matrix, target, maxiter=10_000)[1]
        assert np.linalg.norm(matrix @ found - target) == pytest.approx(wanted, rel=1e-10, abs=1e-12)


def test_where_the_optimum_is_unique_it_is_found():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        matrix, target = rng.standard_normal((30, 12)), rng.standard_normal(30)
        wanted = nnls(matrix, target)[0]
        np.testing.assert_allclose(solved(matrix, target), wanted, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(solved_by_gram(matrix.T @ matrix, matrix.T @ target), wanted, rtol=1e-9, atol=1e-13)


def test_opposite_columns_end_no_process():
    matrix = np.array([[float.fromhex(entry) for entry in row.split()] for row in OPPOSITES])
    target = np.array([0.0, 0.0, 0.0, 1.0])
    found = solved(matrix, target)
    assert faults(matrix, target, found, 1e-7) == []
    assert np.linalg.norm(matrix @ found - target) == pytest.approx(1 / np.sqrt(3), rel=1e-9)
    assert faults(matrix, target, solved_by_gram(matrix.T @ matrix, matrix.T @ target), 1e-7) == []


def test_members_leave_one_by_one_as_they_do_together(monkeypatch):
    """Updating the factorization for each and starting it anew are one."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        directions = rng.standard_normal((60, 25))
        directions[:, 0] = np.abs(directions[:, 0])
        matrix, target = np.vstack([unit(directions.T), np.ones(60)]), np.append(np.zeros(25), 1.0)
        found = []
        for few in (0, 10, 10**6):
            monkeypatch.setattr(nonnegative, "FEW", few)
            found.append(solved(matrix, target))
            assert faults(matrix, target, found[-1]) == []
        np.testing.assert_allclose(found[0], found[2], rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(found[1], found[2], rtol=1e-10, atol=1e-14)


def test_hundreds_of_columns():
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((300, 100))
    directions[:, 0] = np.abs(directions[:, 0])
    matrix, target = np.vstack([unit(directions.T), np.ones(300)]), np.append(np.zeros(100), 1.0)
    wanted = nnls(matrix, target, maxiter=10_000)[0]
    assert (wanted > 0).sum() > 80
    np.testing.assert_allclose(solved(matrix, target), wanted, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(solved_by_gram(matrix.T @ matrix, matrix[-1]), wanted, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("family", ["plain", "inside", "distance"])
def test_powers_of_two_change_no_digit(family):
    """Columns from 1e-260 to 1e260."""
    for seed in range(30):
        matrix, target = drawn(family, seed)
        rng = np.random.default_rng(seed)
        powers, power = rng.integers(-860, 860, matrix.shape[1]), int(rng.integers(-100, 100))
        with np.errstate(under="ignore"):
            wanted = np.ldexp(solved(matrix, target), power - powers)
        given = np.ldexp(matrix, powers)
        found = solved(given, np.ldexp(target, power))
        np.testing.assert_array_equal(found, wanted)


def test_what_has_no_numbers_is_none():
    assert non_negative(np.array([[1.0], [np.nan]]), np.array([1.0, 1.0])) is None
    assert non_negative(np.array([[1.0]]), np.array([np.inf])) is None
    assert non_negative(np.array([[1e-300]]), np.array([1e300])) is None  # x would be 1e600
    assert non_negative_gram(np.full((2, 2), np.nan), np.ones(2)) is None
    assert solved(np.array([[1e300, 1e-300]]), np.array([1e-20])).tolist() in ([0.0, 1e280], [1e-320, 0.0])


def test_nothing_in_nothing_out():
    assert solved(np.zeros((0, 3)), np.zeros(0)).tolist() == [0.0, 0.0, 0.0]
    assert solved(np.zeros((3, 0)), np.ones(3)).tolist() == []
    assert solved(np.ones((3, 2)), np.zeros(3)).tolist() == [0.0, 0.0]
    assert solved_by_gram(np.zeros((0, 0)), np.zeros(0)).tolist() == []
    assert solved_by_gram(np.eye(2), -np.ones(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("members", ["columns", "gram"])
def test_all_members_may_leave(members):
    matrix, target = np.array([[3.0, 1.0], [1.0, 3.0]]), np.array([1.0, 1.0])
    kept = nonnegative._Columns(matrix, target)
    if members == "gram":
        kept = nonnegative._Gram(matrix @ matrix.T, matrix @ target)
    start = kept.slopes()
    assert kept.join(0) == pytest.approx([0.4])
    assert kept.join(1) == pytest.approx([0.25, 0.25])
    assert kept.index.tolist() == [0, 1]
    assert kept.stay([1]) == pytest.approx([0.4])
    assert kept.index.tolist() == [1]
    assert kept.stay([]) == []
    np.testing.assert_allclose(kept.slopes(), start)


@pytest.mark.parametrize("members", ["columns", "gram"])
def test_what_depends_on_the_members_is_refused(members):
    columns = np.array([[1.0, 0.0, 0.0], [1.0, 1e-17, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    target = np.array([2.0, 1.0, 5.0])
    kept = nonnegative._Columns(columns, target)
    if members == "gram":
        kept = nonnegative._Gram(columns @ columns.T, columns @ target)
    assert kept.join(0) == [2.0]
    assert kept.join(1) is None
    assert kept.join(4) is None
    assert kept.join(2) == [2.0, 1.0]
    assert kept.join(3) is None
    assert kept.index.tolist() == [0, 2]


@pytest.mark.parametrize("members", ["columns", "gram"])
def test_what_would_raise_the_residual_is_refused(members):
    columns, target = np.array([[1.0, 0.0], [1.0, -1.0]]), np.array([2.0, 1.0])
    kept = nonnegative._Columns(columns, target)
    if members == "gram":
        kept = nonnegative._Gram(columns @ columns.T, columns @ target)
    assert kept.join(0) == [2.0]
    assert kept.join(1) is None
    assert kept.join(1) is None
    assert kept.index.tolist() == [0]


def test_rounds_are_bounded(monkeypatch):
    """A search that rounding leads astray ends; what it found is non-negative all the same."""
    matrix, target = drawn("distance", 3)
    for rounds in (0, 1):
        monkeypatch.setattr(nonnegative, "ROUNDS", rounds)
        found = solved(matrix, target)
        assert (found >= 0).all()
        assert (found > 0).sum() <= rounds * matrix.shape[1]


def test_columns_that_nearly_depend_keep_their_digits():
    """b = 2 a1 + 3 a2 with a2 = a1 + 1e-9 e: a Gram matrix, which knows squares, cannot tell them apart."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        first, more = rng.standard_normal((2, 6))
        matrix = np.stack([first, first + 1e-9 * more], axis=1)
        found = solved(matrix, matrix @ [2.0, 3.0])
        np.testing.assert_allclose(found, [2.0, 3.0], rtol=1e-5)


def test_a_gram_matrix_knows_squares():
    """Pivots of 1e-14 of the diagonal are rounding, those of 1e-10 are none."""
    for diagonal in (1.0, 16.0):
        for share, refused in ((1e-15, True), (1e-14, True), (2e-14, False), (1e-10, False)):
            gram = diagonal * np.array([[1.0, 1.0 - share / 2], [1.0 - share / 2, 1.0]])
            kept = nonnegative._Gram(gram, np.array([1.0, 1.1]))
            kept.join(0)
            assert (kept.join(1) is None) == refused, (diagonal, share)


def test_small_slopes_are_no_rounding_of_smaller_ones():
    assert solved_by_gram(np.eye(2), np.array([1e-20, 3e-21])).tolist() == [1e-20, 3e-21]
    large = solved_by_gram(np.array([[1.0, -1.0 + 1e-8], [-1.0 + 1e-8, 1.0]]), np.ones(2))
    np.testing.assert_allclose(large, [1e8, 1e8], rtol=1e-6)


def test_what_a_small_row_asks_for_is_no_rounding():
    """x = (1/2, 1e-110 / 2): the second slope is that small, and exact."""
    matrix, target = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1e-110]]), np.array([0.0, 0.0, 1.0])
    np.testing.assert_allclose(solved(matrix, target), [0.5, 0.5e-110], rtol=1e-15)
    np.testing.assert_allclose(solved_by_gram(matrix.T @ matrix, matrix[-1]), [0.5, 0.5e-110], rtol=1e-15)


def test_rounding_of_a_slope_is_relative_to_its_own_terms():
    gram, slopes = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 1.0]]), np.array([2.0, -1e-30, 0.0])
    kept = nonnegative._Gram(gram, slopes)
    kept.join(0)
    np.testing.assert_allclose(kept.rounding(), nonnegative.ROUNDING * np.array([4.0, 1e-30, 1.0]), rtol=1e-15)
    kept = nonnegative._Columns(np.array([[1.0, 0.0], [-0.5, 1e-30]]), np.array([2.0, -1.0]))
    kept.join(0)
    np.testing.assert_allclose(kept.rounding(), nonnegative.ROUNDING * np.array([4.0, 2.0 + 1e-30]), rtol=1e-15)


def test_rounding_grows_with_what_is_summed():
    kept = nonnegative._Gram(np.array([[1.0, -0.5], [-0.5, 1.0]]), np.array([1.0, 2.0]))
    assert kept.level == 2.0 * nonnegative.ROUNDING
    kept.join(1)
    assert kept.level == 4.0 * nonnegative.ROUNDING


class Recorded:
    """Members whose least squares are given."""

    def __init__(self, *goals):
        self.goals, self.stays = list(goals), []

    def stay(self, places):
        self.stays.append(places)
        return self.goals.pop(0)


def test_x_goes_as_far_as_it_stays_positive():
    """First half of the way, to (0, 2, 2.5, 0.5); from the rest a third, where the first of them reaches zero."""
    members = Recorded([-4.0, 1.0, 2.0], [1.0, 3.0])
    found = nonnegative._inside(members, [1.0, 1.0, 3.0, 0.0], [-1.0, 3.0, 2.0, 1.0])
    assert found == [1.0, 3.0]
    assert members.stays == [[1, 2, 3], [1, 2]]
    members = Recorded([-2.0, -3.0, 1.0], [1.0, 3.0])  # from 2 to -2 and from 2.5 to -3: the latter is first
    nonnegative._inside(members, [1.0, 1.0, 3.0, 0.0], [-1.0, 3.0, 2.0, 1.0])
    assert members.stays == [[1, 2, 3], [0, 2]]
    members = Recorded([1.0, 1.0])
    nonnegative._inside(members, [1.0, 1e-4, 0.0], [-1.0, 1e-4, 1.0])  # small is not zero
    assert members.stays == [[1, 2]]
    members = Recorded([1.0])
    nonnegative._inside(members, [0.1, 0.0], [-2.8, 1.0])  # what reaches zero leaves, even if rounding says 1e-17
    assert members.stays == [[1]]
    members = Recorded([])
    assert nonnegative._inside(members, [1.0, 1.0], [-1.0, -1.0]) == []
    assert members.stays == [[]]


class Scripted(Recorded):
    """Members that join in order, each with the least squares that are given for it."""

    level = 0.0

    def __init__(self, joins, goals):
        super().__init__(*goals)
        self.joins, self.index = list(joins), np.zeros(0, dtype=np.intp)

    def slopes(self):
        return np.where(np.arange(3) == len(self.index), 1.0, 0.0) * bool(self.joins)

    def rounding(self):
        return np.ones(3)

    def join(self, column):
        self.index = np.append(self.index, column)
        return self.joins.pop(0)

    def stay(self, places):
        self.index = self.index[places]
        return super().stay(places)


@pytest.mark.parametrize(("last", "stays"), [(0.4998, [[1, 2], [1]]), (0.5002, [[1, 2], [0]])])
def test_a_new_member_starts_at_zero(last, stays):
    """From (1, 1, 0) half of the way to (-1, 3, 1), to (0, 2, 1/2); from (2, 1/2) towards (-2, -last) the one reaches
    zero after 1/2, the other after 1 / (1 + 2 last)."""
    members = Scripted([[1.0], [1.0, 1.0], [-1.0, 3.0, 1.0]], [[-2.0, -last], [1.0]])
    nonnegative._search(members, 3)
    assert members.stays == stays


def test_a_small_residual_is_as_orthogonal_to_the_members_as_a_large_one():
    """1e-9 of the target is left, when a member joins and when one leaves."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        columns = rng.standard_normal((2, 8))
        kept = nonnegative._Columns(columns, columns[0] + 1e-9 * rng.standard_normal(8))
        for change, given in ((kept.join, 0), (kept.join, 1), (kept.stay, [0])):
            change(given)
            length = np.linalg.norm(kept.residual)
            assert length < 1e-8
            assert np.abs(columns[kept.index] @ kept.residual).max() <= 1e-14 * length


def test_members_that_nearly_depend_have_an_orthonormal_basis():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        first, more = rng.standard_normal((2, 8))
        columns = np.stack([first, first + 1e-9 * more])
        kept = nonnegative._Columns(columns, columns.sum(0))
        kept.join(0)
        kept.join(1)
        np.testing.assert_allclose(kept.basis @ kept.basis.T, np.eye(2), rtol=0, atol=1e-14)
        np.testing.assert_allclose(kept.lower @ kept.basis, columns, rtol=0, atol=1e-14)
