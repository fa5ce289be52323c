"""Laws of scale: tokens times 2^k and queries times 2^j give W times 2^-(k + j), to the last bit, where that exists."""

import warnings
from decimal import Decimal
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from exact_verifier import judge_exactly, judge_proof
from svm_cases import cross, problem, scaled

import attnlab as al
from attnlab import InputError, Tokens
from attnlab.svm import MarginStatus, kernel_margin, linear_margin, norms, solve_factored, solve_generalized
from attnlab.svm.linear import SeparationStatus
from attnlab.svm.scales import REACH

NORMS = {
    "frobenius": ("frobenius", norms.FROBENIUS, 1e-10),
    "nuclear": ("nuclear", norms.NUCLEAR, 1e-8),
    "spectral": (norms.SPECTRAL, norms.SPECTRAL, 1e-7),
    "entrywise l1": (norms.ENTRYWISE_L1, norms.ENTRYWISE_L1, 1e-7),
}
DEGREE = {"frobenius": 2}  # multipliers are of order |A|^-2, in other norms |A|^-1
POWERS = [(-400, -400), (-400, 0), (0, -400), (-400, 400), (-101, 7), (-1, 1), (13, 90), (400, -399), (250, 250),
          (400, 0), (0, 400), (400, 400)]  # fmt: skip
EDGES = [(-1000, 1000), (1000, -1000), (500, 0), (-480, 0), (-600, 100), (1010, -530), (-240, -240)]


@pytest.fixture(autouse=True)
def _every_warning_is_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def solved(tokens, selected, norm):
    return al.solve_margin(tokens, selected, norm=NORMS[norm][0], throw=False)


def judged(tokens, solution, norm):
    """What the exact judge says of whatever is claimed."""
    if solution.status is MarginStatus.INFEASIBLE:
        return judge_proof(tokens, solution)
    _, functions, tolerance = NORMS[norm]
    return judge_exactly(tokens, solution, functions.value, functions.dual, tolerance=tolerance)


def has_numbers(near, power):
    """Are W and the margin float64 numbers at this scale, small entries included?"""
    parts = ((near.W, -power), (near.margin, power))
    exponents = [np.frexp(np.abs(part).max())[1] + shift for part, shift in parts]
    assert all(abs(abs(exponent) - 1022) > 15 for exponent in exponents)  # no case on the border
    return max(map(abs, exponents)) < 1022


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("k", "j"), [*POWERS, *EDGES])
def test_powers_of_two_change_exponents_and_nothing_else(norm, k, j):
    tokens, selected = cross(3, n=3, T=3, d=4)
    far, near = scaled(tokens, k, j), solved(tokens, selected, norm)
    if not has_numbers(near, k + j):
        with pytest.raises(InputError, match=r"`x` has .* and `z` .* would be of size"):
            solved(far, selected, norm)
        return
    found = solved(far, selected, norm)
    assert found.status is near.status is MarginStatus.OPTIMAL
    np.testing.assert_array_equal(np.ldexp(found.W, k + j), near.W)
    powers = found.multiplier_exponent + DEGREE.get(norm, 1) * (k + j)
    np.testing.assert_array_equal(np.ldexp(found.multipliers, powers), near.multipliers)
    assert (found.multiplier_exponent != 0) == (DEGREE.get(norm, 1) * abs(k + j) > 1010)
    np.testing.assert_array_equal(found.values, near.values)
    np.testing.assert_array_equal(found.value_error, near.value_error)
    np.testing.assert_array_equal(found.support, near.support)
    assert found.margin == np.ldexp(near.margin, k + j)
    assert (found.gap, found.violation, found.rank, found.unique) == (near.gap, near.violation, near.rank, near.unique)
    assert judged(far, found, norm) == []


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("k", "j"), [*POWERS, *EDGES])
def test_what_cannot_be_separated_cannot_be_at_any_scale(norm, k, j):
    tokens, selected = cross(5, n=5, T=5, d=2)
    far, near = scaled(tokens, k, j), solved(tokens, selected, norm)
    found = solved(far, selected, norm)
    assert found.status is near.status is MarginStatus.INFEASIBLE
    np.testing.assert_array_equal(found.farkas, near.farkas)
    assert found.farkas_residual == pytest.approx(near.farkas_residual, rel=1e-12)
    assert judge_proof(far, found) == []


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_batches_obey_the_same_law(norm):
    tokens = al.data.sphere(n=6, T=4, d=2, seed=1, trials=8)
    selected = np.random.default_rng(0).integers(4, size=(8, 6))
    near = al.solve_margins(tokens, selected, norm=norm)
    assert len(near.counts) == 2  # some can be separated, some cannot
    for k, j in ((-400, 0), (200, 200), (-90, -90), (300, -300)):
        far = Tokens(x=np.ldexp(tokens.x, k), z=np.ldexp(tokens.z, j), y=tokens.y)
        found = al.solve_margins(far, selected, norm=norm)
        assert found.status == near.status
        for i in np.flatnonzero(near.feasible):
            off = np.ldexp(found.W[i], k + j) - near.W[i]
            assert np.linalg.norm(off) <= 1e-9 * np.linalg.norm(near.W[i])
            assert judged(far[int(i)], found[int(i)], norm) == []


def test_a_batch_of_many_scales_is_solved_trial_by_trial():
    """Each trial at its own power of two: the others are what they are without it."""
    tokens = al.data.sphere(n=3, T=3, d=4, seed=2, trials=5)
    selected = np.zeros((5, 3), dtype=int)
    near = al.solve_margins(tokens, selected)
    powers = np.array([0, -400, 0, 450, 120])
    far = Tokens(x=np.ldexp(tokens.x, powers[:, None, None, None]), z=tokens.z, y=tokens.y)
    found = al.solve_margins(far, selected)
    assert found.status == near.status
    for i, k in enumerate(powers):
        np.testing.assert_allclose(np.ldexp(found.W[i], k), near.W[i], rtol=0, atol=1e-14 * np.abs(near.W[i]).max())
    np.testing.assert_array_equal(found.W[0], near.W[0])


def test_a_batch_names_the_trial_that_has_no_answer_in_float64():
    tokens = al.data.sphere(n=2, T=3, d=4, seed=2, trials=3)
    powers = np.array([0, 700, 0])[:, None, None]
    far = Tokens(x=np.ldexp(tokens.x, powers[..., None]), z=np.ldexp(tokens.z, powers), y=tokens.y)
    with pytest.raises(InputError, match=r"Trial 1: `x`"):
        al.solve_margins(far, np.zeros((3, 2), dtype=int))


@pytest.mark.parametrize("seed", range(40))
def test_every_kind_of_problem_at_a_random_scale(seed):
    """Masks, several queries, self-attention: one verdict at all scales, and one direction."""
    rng = np.random.default_rng([11, seed])
    tokens, selected = problem(seed)
    k, j = (int(power) for power in rng.integers(-240, 240, 2))
    near, found = solved(tokens, selected, "frobenius"), solved(scaled(tokens, k, j), selected, "frobenius")
    assert found.status is near.status
    if found.status is MarginStatus.OPTIMAL:
        np.testing.assert_array_equal(np.ldexp(found.W, k + j), near.W)


def test_tiny_tokens_and_queries_that_can_be_separated_are_not_called_infeasible():
    """At 1e-170 every product of a token and a query underflows."""
    tokens, selected = cross(0)
    tiny = Tokens(x=1e-170 * tokens.x, z=1e-130 * tokens.z, y=tokens.y)
    found = al.solve_margin(tiny, selected, norm="nuclear")
    assert found.status is MarginStatus.OPTIMAL
    assert judged(tiny, found, "nuclear") == []
    with pytest.raises(InputError, match=r"np\.ldexp\(x, 56\d\) and np\.ldexp\(z, 56\d\)"):
        al.solve_margin(Tokens(x=1e-170 * tokens.x, z=1e-170 * tokens.z, y=tokens.y), selected)


def test_the_hint_leads_to_an_answer():
    tokens, selected = cross(0)
    far = scaled(tokens, -600, -500)
    with pytest.raises(InputError) as caught:
        al.solve_margin(far, selected)
    hint = str(caught.value).split("hint: ")[1]
    powers = [int(part.split(")")[0]) for part in hint.replace("z, ", "x, ").split("x, ")[1:]]
    near = scaled(far, *powers)
    assert al.solve_margin(near, selected).status is MarginStatus.OPTIMAL


def test_differences_beyond_the_largest_number():
    """1.7e308 - (-1.7e308) is no float64 number; one over it is."""
    tokens = Tokens(x=[[[1.7e308, 0.0], [-1.7e308, 0.0]]], z=[[2.0**-10, 0.0]], y=[1])
    found = al.solve_margin(tokens, [0], norm="nuclear")
    assert found.W[0, 0] == pytest.approx(512 / 1.7e308, rel=1e-14, abs=0.0)
    assert judged(tokens, found, "nuclear") == []
    with pytest.raises(InputError, match=r"`x` .*1\.8e308.*\n\nhint: np\.ldexp\(x, -2\)"):
        al.svm.margin_rows(tokens, [0])


def test_denormal_tokens_differ_as_they_do():
    tiniest = 5e-324
    tokens = Tokens(x=[[[tiniest, 0.0], [0.0, 0.0]]], z=[[2.0**1000, 0.0]], y=[1])
    found = al.solve_margin(tokens, [0])
    assert found.W[0, 0] == 2.0**74
    assert judged(tokens, found, "frobenius") == []


@pytest.mark.parametrize("ratio", [1e20, 1e40, 1e59])
def test_sequences_of_very_different_sizes_are_certified(ratio):
    """Two demands in two directions: W is the sum of the two answers, each right to rounding."""
    tokens = Tokens(x=[[[ratio, 0.0], [0.0, 0.0]], [[0.0, 1 / ratio], [0.0, 0.0]]], z=np.eye(2), y=[1, 1])
    found = al.solve_margin(tokens, [0, 0])
    np.testing.assert_allclose(np.diag(found.W), [1 / ratio, ratio], rtol=1e-13)
    assert judged(tokens, found, "frobenius") == []


def test_rows_beyond_reach_are_met_and_the_gap_is_stated_for_what_they_ask():
    """2^500 apart: the long row is solved as if it were 2^REACH long, which W does not show."""
    long, short = 2.0**250, 2.0**-250
    tokens = Tokens(x=[[[long, 0.0], [0.0, 0.0]], [[0.0, short], [0.0, 0.0]]], z=np.eye(2), y=[1, 1])
    found = al.solve_margin(tokens, [0, 0])
    assert found.status is MarginStatus.OPTIMAL
    assert found.W[1, 1] == pytest.approx(2.0**250)
    assert found.values[0, 1] == pytest.approx(2.0 ** (500 - REACH), rel=1e-9)
    assert found.support is None
    assert "differ in size" in found.reason
    assert judged(tokens, found, "frobenius") == []


def test_coordinates_of_very_different_sizes_are_no_proof():
    """Rows (1, t) and (-1, t) cancel but for t; W = (0, 1 / t) separates them."""
    for small in (1e-12, 1e-20, 1e-100, 1e-160):
        x = [[[1.0, small], [0.0, 0.0]], [[-1.0, small], [0.0, 0.0]]]
        tokens = Tokens(x=x, z=[[1.0, 0.0], [1.0, 0.0]], y=[1, 1])
        for norm in NORMS:
            found = solved(tokens, [0, 0], norm)
            assert found.feasible, (small, norm)
            assert found.W[1, 0] * small == pytest.approx(1.0, rel=1e-9)
            assert judged(tokens, found, norm) == []


def test_identical_tokens_are_infeasible_at_every_scale():
    for size in (5e-324, 1e-300, 1.0, 1e300, 1.7e308):
        tokens = Tokens(x=np.full((2, 3, 2), size), z=np.full((2, 2), size), y=[1, 1])
        found = al.solve_margin(tokens, [0, 1], throw=False)
        assert found.status is MarginStatus.INFEASIBLE
        assert found.farkas_residual == 0.0
        assert judge_proof(tokens, found) == []


# --- the other solvers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "j"), [(-400, 0), (0, 300), (-300, 200), (250, 200), (-101, 0)])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral"])
def test_level_tokens_obey_the_same_law(norm, k, j):
    tokens, _ = cross(1, n=2, T=4, d=4)
    kept = np.array([[True, True, False, False], [False, True, False, True]])
    near = solve_generalized(tokens, kept, norm=NORMS[norm][0])
    found = solve_generalized(scaled(tokens, k, j), kept, norm=NORMS[norm][0])
    assert found.status is near.status is MarginStatus.OPTIMAL
    off = np.ldexp(found.W, k + j) - near.W
    assert np.linalg.norm(off) <= 1e-9 * np.linalg.norm(near.W)


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(("k", "j"), [(-400, 0), (301, 200), (-101, -100)])
def test_keys_and_queries_obey_the_same_law(m, k, j):
    tokens, selected = cross(3, n=3, T=3, d=4)
    near = solve_factored(tokens, selected, m, restarts=2)
    found = solve_factored(scaled(tokens, k, j), selected, m, restarts=2)
    assert found.status is near.status
    assert found.value == pytest.approx(np.ldexp(near.value, -k - j), rel=1e-9, abs=0.0)
    assert found.lower_bound == pytest.approx(np.ldexp(near.lower_bound, -k - j), rel=1e-9, abs=0.0)
    np.testing.assert_allclose(found.K @ found.Q.T, found.W, rtol=0, atol=1e-12 * np.abs(found.W).max())
    chosen = np.arange(tokens.n)
    p = np.ldexp(tokens.x[chosen, selected] - tokens.x[chosen, (selected + 1) % tokens.T], k)
    values = np.einsum("nd,nd->n", p @ found.W, np.ldexp(tokens.z, j))
    assert values.min() >= 1 - 1e-9


@pytest.mark.parametrize("k", [-500, -300, -101, 101, 300, 490])
def test_classifiers_obey_the_same_law(k):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 8)), rng.choice([-1.0, 1.0], 6)
    near, found = linear_margin(x, y), linear_margin(np.ldexp(x, k), y)
    assert found.status is near.status is SeparationStatus.OPTIMAL
    assert found.weights is not None
    assert near.weights is not None
    np.testing.assert_allclose(np.ldexp(found.weights, k), near.weights, rtol=1e-12)
    np.testing.assert_allclose(np.ldexp(found.multipliers, 2 * k), near.multipliers, rtol=1e-11)
    assert found.lower == pytest.approx(np.ldexp(near.lower, k), rel=1e-12, abs=0.0)
    assert found.upper == pytest.approx(np.ldexp(near.upper, k), rel=1e-12, abs=0.0)
    gram = kernel_margin(np.ldexp(x @ x.T, k), y)
    assert gram.status is SeparationStatus.OPTIMAL
    assert gram.lower**2 == pytest.approx(np.ldexp(near.lower**2, k), rel=1e-7, abs=0.0)
    np.testing.assert_allclose(np.ldexp(gram.multipliers, k), near.multipliers, rtol=1e-6)


def test_classifiers_of_points_of_very_different_lengths():
    """Each point in its own direction: u is the sum of the points over their squared lengths."""
    lengths = np.array([1e-50, 1.0, 1e9])
    found = linear_margin(np.diag(lengths), np.ones(3))
    assert found.weights is not None
    np.testing.assert_allclose(found.weights, 1 / lengths, rtol=1e-12)
    assert found.status is SeparationStatus.OPTIMAL
    gram = kernel_margin(np.diag(lengths**2), np.ones(3))
    assert gram.status is SeparationStatus.OPTIMAL
    np.testing.assert_allclose(gram.multipliers, lengths**-2.0, rtol=1e-7)
    assert linear_margin([[1.0, 1e-30], [-1.0, 1e-30]], [1, 1]).status is not SeparationStatus.NOT_SEPARABLE
    with pytest.raises(InputError, match="`features` has points of length"):
        linear_margin(np.full((1, 2), 1e-200), [1])


# --- never more certain than known -------------------------------------------------------------------------------


def test_uniqueness_is_claimed_where_it_is_proved():
    tokens = al.data.two_tokens()
    assert al.solve_margin(tokens, [0]).unique is True
    assert al.solve_margin(tokens, [0], norm="nuclear").unique is True
    for norm in (norms.ENTRYWISE_MAX, norms.SPECTRAL, norms.ENTRYWISE_L1, norms.NUCLEAR):
        assert al.solve_margin(tokens, [0], norm=norm).unique is None
    assert al.solve_margin(tokens, [0], norm=norms.FROBENIUS).unique is True


@pytest.mark.parametrize("norm", [norms.ENTRYWISE_MAX, norms.SPECTRAL])
def test_the_second_optimum_that_was_denied(norm):
    """With tokens e1 and -e1 only W_11 counts: any entry or direction beside it is free."""
    tokens = al.data.two_tokens()
    found = al.solve_margin(tokens, [0], norm=norm)
    other = found.W + np.diag([0.0, 0.5 * norm.value(found.W)])
    assert norm.value(other) == pytest.approx(norm.value(found.W))
    rows = al.svm.margin_rows(tokens, [0])
    np.testing.assert_allclose(rows.values(other), rows.values(found.W))


def test_a_batch_tells_how_many_are_what():
    rng = np.random.default_rng(4)
    x, z = rng.standard_normal((4, 2, 3, 3)), rng.standard_normal((4, 2, 3))
    x[1, 0, 1] = x[1, 0, 0]  # infeasible
    x[2, :, :, 1] *= 1e-160  # separable, but not with a gap that certifies it
    x[2, 0, :, [0, 2]], x[2, 1, :, [0, 2]] = 0.0, 0.0
    x[2, :, :, 0] = [[1.0, 0.0, 0.5], [-1.0, 0.0, -0.5]]
    x[2, :, :, 1] = 1e-160 * np.array([[1.0, 0.0, 0.5], [1.0, 0.0, 0.5]])
    z[2] = [1.0, 0.0, 0.0]
    found = al.solve_margins(Tokens(x=x, z=z, y=np.ones((4, 2))), np.zeros((4, 2), dtype=int))
    counts = {status.name: count for status, count in found.counts.items()}
    assert counts == {"OPTIMAL": 2, "INACCURATE": 1, "INFEASIBLE": 1}
    assert repr(found) == "MarginSolutions(4: 2 optimal, 1 inaccurate, 1 infeasible; largest gap=inf)"
    told = found.summary()
    assert (told["trials"], told["optimal"], told["inaccurate"], told["infeasible"], told["undecided"]) == (
        4,
        2,
        1,
        1,
        0,
    )
    assert told["largest_gap"] is None
    assert [s.feasible for s in found] == found.feasible.tolist()


def test_undecided_is_told_without_a_proof():
    """1e300 against -1e-300: the weights of a proof would be 1 and 1e-600."""
    tokens = Tokens(x=[[[1e300], [0.0]], [[-1e-300], [0.0]]], z=[[1.0], [1.0]], y=[1, 1])
    found = al.solve_margin(tokens, [0, 0], throw=False)
    assert found.status is MarginStatus.UNDECIDED
    with pytest.raises(al.InfeasibleSelection, match="Too close to call") as caught:
        al.solve_margin(tokens, [0, 0])
    assert "proof:" not in str(caught.value)


@pytest.mark.parametrize(("k", "norm"), list(product((0, -300, 300), ("frobenius", "nuclear"))))
def test_faces_and_ranks_at_any_scale(k, norm):
    """Two orthogonal demands: the nuclear problem has many optima, and the distance to them has no scale."""
    tokens = Tokens(x=np.ldexp([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]], k), z=np.eye(2), y=[1, 1])
    found = al.solve_margin(tokens, [0, 0], norm=norm)
    if norm == "frobenius":
        assert found.rank == 2
        return
    assert found.unique is False
    W, turned = np.array([[1.0, 0.9], [0.9, 1.0]]), np.array([[1.0, 0.9], [-0.9, 1.0]])
    for size in (1.0, 1e-300, 1e300):
        assert al.svm.distance_to_face(size * W, found) == pytest.approx(0.0, abs=1e-7)
        assert al.svm.distance_to_face(size * turned, found) == pytest.approx(0.669, abs=1e-3)


@pytest.mark.parametrize("tolerance", [Decimal("1e-6"), Fraction(1, 10**6), np.float32(1e-6), 1])
def test_a_tolerance_may_be_any_number(tolerance):
    tokens, selected = cross(0)
    assert al.solve_margin(tokens, selected, tolerance=tolerance).status is MarginStatus.OPTIMAL
    assert al.solve_margin(tokens, selected, tolerance=tolerance, norm="nuclear").status is MarginStatus.OPTIMAL
    assert linear_margin(np.eye(2), [1, 1], tolerance=tolerance).status is SeparationStatus.OPTIMAL
    assert kernel_margin(np.eye(2), [1, 1], tolerance=tolerance).status is SeparationStatus.OPTIMAL


def test_rows_of_ordinary_length_may_overflow_on_the_way_without_a_warning():
    """Differences of 1e-8 and opposite sign, but for entries of 1e-170: multipliers are beyond floats in between."""
    x = np.full((2, 4, 3), 1e-170)
    x[..., 0] = 1e-8
    x[1, :3, 0] = [1e-8, -5.591011047363281e-10, -2.4147415161132814e-09]
    x[1, 0, 1], x[1, 1, 2] = 8.996315002441406e-171, 6.314430236816406e-171
    z = [[1.0, 1.0, 1.0], [-0.17078018188476562, -0.6683940887451172, 1.0]]
    mask = [[True, False, False, False], [True, True, True, False]]
    solution = al.solve_margin(Tokens(x=x, z=z, y=[1, 1], mask=mask), [0, 1], throw=False)
    assert solution.status is not MarginStatus.OPTIMAL


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_rows_say_whether_they_are_ordinary_without_a_warning(size):
    tokens = Tokens(x=size * np.eye(3)[None], z=np.ones((1, 3)), y=[1.0])
    assert al.svm.margin_rows(tokens, [0]).ordinary == (size == 1.0)
    tokens = Tokens(x=np.eye(3)[None], z=np.full((1, 3), size), y=[1.0])
    assert al.svm.margin_rows(tokens, [0]).ordinary == (size == 1.0)
