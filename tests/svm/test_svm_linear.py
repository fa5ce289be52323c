"""Hard margins for features and kernels: against cvxpy, closed forms, and an independent check of both bounds."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from attnlab import InputError
from attnlab.svm import linear
from attnlab.svm.linear import HardMargin, SeparationStatus, kernel_margin, linear_margin

Wide = np.longdouble


def points(seed, N, d, *, separable=True):
    """Gaussian points with the labels of a random direction, or random ones."""
    rng = np.random.default_rng([40, seed, N, d])
    x = rng.standard_normal((N, d))
    y = np.where(x @ rng.standard_normal(d) >= 0, 1.0, -1.0) if separable else rng.choice([-1.0, 1.0], N)
    return x, y


def faults(x, y, found: HardMargin, gap):
    """What is wrong, from the points alone, in extended precision."""
    signed, a, wrong = (y[:, None] * x).astype(Wide), found.multipliers.astype(Wide), []
    sizes = np.sqrt((signed**2).sum(1))
    image = a @ signed
    if (a < 0).any() or not np.isfinite(a).all():
        wrong.append("multipliers")
    upper = np.sqrt((image**2).sum()) / a.sum()
    if found.weights is None:
        u = image
    else:
        u = found.weights.astype(Wide)
        if abs(float((signed @ u).min()) - 1) > 1e-9:
            wrong.append("least value is not 1")
        distance = float(np.sqrt(((u - image) ** 2).sum()) / np.sqrt((u**2).sum()))
        rounding = 1e-13 * float((a * sizes).sum() / np.sqrt((u**2).sum()))
        if distance > 2 * np.sqrt(2 * gap + 1e-15) + rounding:
            wrong.append(f"u is not the sum of its multipliers: {distance:.1e}")
    lower = (signed @ u).min() / np.sqrt((u**2).sum())
    measured = float(upper / lower - 1)
    if not -1e-10 <= measured <= gap + 1e-12:
        wrong.append(f"gap {measured:.1e}")
    for name, stated, value in (("lower", found.lower, lower), ("upper", found.upper, upper)):
        if abs(stated / float(value) - 1) > 1e-8:
            wrong.append(name)
    return wrong


def proof_faults(x, y, found: HardMargin, cancels):
    """What is wrong with a proof that nothing separates."""
    w = found.farkas
    if w is None or (w < 0).any() or abs(w.sum() - 1) > 1e-12:
        return ["not weights"]
    residual, sizes = np.linalg.norm((w * y) @ x), w @ np.linalg.norm(x, axis=1)
    return [] if residual <= cancels * sizes else [f"residual {residual / sizes:.1e}"]


SIZES = [(1, 1), (2, 1), (3, 2), (5, 3), (10, 20), (30, 5), (60, 60), (100, 20), (40, 200)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_separable_points(size, seed):
    x, y = points(seed, *size)
    found = linear_margin(x, y)
    assert found.status is SeparationStatus.OPTIMAL
    assert faults(x, y, found, 1e-10) == []
    kernel = kernel_margin(x @ x.T, y)
    assert kernel.status is SeparationStatus.OPTIMAL
    assert kernel.weights is None
    assert faults(x, y, kernel, 1e-8) == []
    assert kernel.lower == pytest.approx(found.lower, rel=1e-8)


@pytest.mark.parametrize("size", [(6, 2), (30, 5), (100, 20), (300, 30)])
@pytest.mark.parametrize("seed", range(4))
def test_random_labels_are_separated_or_proved_not_to_be(size, seed):
    """Many more points than dimensions."""
    x, y = points(seed, *size, separable=False)
    found, kernel = linear_margin(x, y), kernel_margin(x @ x.T, y)
    assert found.separable == kernel.separable
    if found.separable:
        assert faults(x, y, found, 1e-10) == []
        return
    for one, cancels in ((found, 1e-11), (kernel, 2e-7)):
        assert one.status is SeparationStatus.NOT_SEPARABLE
        assert proof_faults(x, y, one, cancels) == []
        assert one.lower == 0.0
        assert one.upper <= cancels * np.linalg.norm(x, axis=1).max()
        assert one.gap == np.inf
        assert one.weights is None
        assert one.support is None
        assert np.isnan(one.multipliers).all()
        assert "not_separable" in repr(one)


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_cvxpy(seed):
    x, y = points(seed, 25, 6)
    u = cp.Variable(6)
    want = cp.Problem(cp.Minimize(cp.norm(u)), [cp.multiply(y, x @ u) >= 1]).solve(solver=cp.CLARABEL)
    assert 1 / linear_margin(x, y).margin == pytest.approx(want, rel=1e-7)


def test_two_orthogonal_points_in_closed_form():
    found = linear_margin([[3.0, 0.0], [0.0, 4.0]], [1, -1])
    assert found.weights is not None
    np.testing.assert_allclose(found.weights, [1 / 3, -1 / 4], rtol=1e-14)
    np.testing.assert_allclose(found.multipliers, [1 / 9, 1 / 16], rtol=1e-13)
    assert found.margin == pytest.approx(1 / np.hypot(1 / 3, 1 / 4), rel=1e-14)
    assert found.support.all()
    assert repr(found) == f"HardMargin(margin=2.4, support=2 of 2, gap={found.gap:.1e}, optimal)"


@pytest.mark.parametrize("seed", range(5))
def test_support_points_hold_the_margin(seed):
    """The others are strictly beyond it, and without them nothing changes."""
    x, y = points(seed, 40, 5)
    found = linear_margin(x, y)
    values = y * (x @ found.weights)
    np.testing.assert_allclose(values[found.support], 1.0, rtol=0, atol=1e-9)
    assert (values[~found.support] > 1 + 1e-6).all()
    assert not found.multipliers[~found.support].any()
    alone = linear_margin(x[found.support], y[found.support])
    assert alone.margin == pytest.approx(found.margin, rel=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_any_weights_bound_the_margin_from_above_and_any_direction_from_below(seed):
    """Weak duality: the bracket holds for arbitrary multipliers, so it cannot be passed by chance."""
    x, y = points(seed, 20, 6)
    found = linear_margin(x, y)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        a, u = rng.random(20) ** 8, rng.standard_normal(6)
        assert np.linalg.norm((a * y) @ x) / a.sum() >= found.lower * (1 - 1e-12)
        assert (y * (x @ u)).min() / np.linalg.norm(u) <= found.upper * (1 + 1e-12)


def test_a_perturbed_solution_fails_the_check():
    x, y = points(0, 30, 5)
    found = linear_margin(x, y)
    from dataclasses import replace

    moved = replace(found, multipliers=found.multipliers + 1e-3 * found.multipliers.max())
    assert faults(x, y, moved, 1e-10)
    assert faults(x, y, replace(found, weights=found.weights * 1.001), 1e-10)
    assert faults(x, y, replace(found, lower=found.lower * 1.001), 1e-10)
    assert faults(x, y, replace(found, multipliers=-found.multipliers), 1e-10)


# --- degenerate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solve", [lambda x, y: linear_margin(x, y), lambda x, y: kernel_margin(x @ x.T, y)])
class TestDegenerate:
    def test_a_point_with_both_labels(self, solve):
        x, y = points(0, 6, 10)  # independent but for that pair
        both = solve(np.vstack([x, x[:1]]), np.append(y, -y[0]))
        assert both.status is SeparationStatus.NOT_SEPARABLE
        np.testing.assert_allclose(both.farkas[[0, -1]], 0.5, atol=1e-6)

    def test_opposite_points_with_one_label(self, solve):
        found = solve(np.array([[1.0, 2.0], [-2.0, -4.0]]), np.ones(2))
        assert found.status is SeparationStatus.NOT_SEPARABLE
        np.testing.assert_allclose(found.farkas, [2 / 3, 1 / 3], rtol=1e-7)

    def test_a_zero_point(self, solve):
        found = solve(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), np.ones(3))
        assert found.status is SeparationStatus.NOT_SEPARABLE
        np.testing.assert_array_equal(found.farkas, [0.0, 0.5, 0.5])
        assert (found.upper, found.farkas_residual) == (0.0, 0.0)

    def test_nothing_but_zeros(self, solve):
        found = solve(np.zeros((2, 3)), np.ones(2))
        assert found.status is SeparationStatus.NOT_SEPARABLE
        assert found.farkas.sum() == 1.0

    def test_repeated_points_change_nothing(self, solve):
        x, y = points(1, 12, 4)
        once, often = solve(x, y), solve(np.tile(x, (5, 1)), np.tile(y, 5))
        assert often.status is SeparationStatus.OPTIMAL
        assert often.margin == pytest.approx(once.margin, rel=1e-9)
        shared = often.multipliers.reshape(5, -1).sum(0)
        np.testing.assert_allclose(shared, once.multipliers, atol=1e-7 * once.multipliers.max())

    def test_collinear_points(self, solve):
        """On a line the nearest point decides."""
        x = np.array([1.0, 2.0, 5.0])[:, None] * np.array([0.6, 0.8])
        found = solve(x, np.ones(3))
        assert found.margin == pytest.approx(1.0, rel=1e-12)
        np.testing.assert_array_equal(found.support, [True, False, False])

    def test_one_point(self, solve):
        found = solve(np.array([[0.0, -3.0]]), [-1])
        assert found.margin == pytest.approx(3.0, rel=1e-14)

    @pytest.mark.parametrize("scale", [1e-120, 1e-30, 1e30, 1e120])
    def test_scale(self, solve, scale):
        x, y = points(2, 10, 4)
        want, found = solve(x, y), solve(scale * x, y)
        assert found.status is SeparationStatus.OPTIMAL
        assert found.margin == pytest.approx(scale * want.margin, rel=1e-12, abs=0.0)
        np.testing.assert_allclose(found.multipliers * scale**2, want.multipliers, rtol=1e-9)

    def test_points_of_very_different_sizes(self, solve):
        x, y = points(3, 8, 12)
        x = x * np.geomspace(1e-2, 1e2, 8)[:, None]
        found = solve(x, y)
        assert found.status is SeparationStatus.OPTIMAL
        assert faults(x, y, found, 1e-8) == []


def test_a_margin_close_to_nothing_is_found_from_features():
    """Angles of 1e-6 and 1e-9 to a half turn."""
    for angle in (1e-6, 1e-9):
        x = np.array([[1.0, angle], [-1.0, angle]])
        found = linear_margin(x, [1, 1])
        assert found.status is SeparationStatus.OPTIMAL
        assert found.margin == pytest.approx(angle, rel=1e-9, abs=0.0)


def test_beyond_float64_nothing_is_claimed_wrongly():
    x = np.array([[1.0, 1e-15], [-1.0, 1e-15]])
    found = linear_margin(x, [1, 1])
    assert found.status in (SeparationStatus.NOT_SEPARABLE, SeparationStatus.UNDECIDED)
    assert found.upper >= 1e-15 * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 10**6))
@example(2, 2, 327)  # a multiplier that is zero up to rounding
@example(9, 6, 9)  # a Gram matrix so nearly singular that active sets settle on nonsense
def test_whatever_is_claimed_is_proved(N, d, seed):
    """Small whole numbers: ties, duplicates, zeros, dependent points."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(-2, 3, (N, d)).astype(float), rng.choice([-1.0, 1.0], N)
    found, kernel = linear_margin(x, y), kernel_margin(x @ x.T, y)
    assert found.separable == kernel.separable
    if found.separable:
        assert found.status is kernel.status is SeparationStatus.OPTIMAL
        assert faults(x, y, found, 1e-10) == []
        assert faults(x, y, kernel, 1e-8) == []
    else:
        assert found.status is kernel.status is SeparationStatus.NOT_SEPARABLE
        assert proof_faults(x, y, found, 1e-11) == []
        assert proof_faults(x, y, kernel, 2e-7) == []


# --- kernels -----------------------------------------------------------------------------------------------------


def gaussian_kernel(seed, N, width):
    rng = np.random.default_rng([41, seed])
    x = rng.standard_normal((N, 4))
    return np.exp(-((x[:, None] - x) ** 2).sum(-1) / (2 * width**2)), rng.choice([-1.0, 1.0], N)


def bracket(K, y, found):
    """The two bounds as the definition has them: K_y = y y^T * K, l = a / sum a."""
    signed, a = np.outer(y, y) * K, found.multipliers
    weights = a / a.sum()
    return (signed @ a).min() / np.sqrt(a @ signed @ a), np.sqrt(weights @ signed @ weights)


@pytest.mark.parametrize("N", [5, 50, 200])
@pytest.mark.parametrize("seed", range(3))
def test_any_labels_are_separable_with_a_narrow_kernel(N, seed):
    K, y = gaussian_kernel(seed, N, 0.7)
    found = kernel_margin(K, y)
    assert found.status is SeparationStatus.OPTIMAL
    lower, upper = bracket(K, y, found)
    assert found.lower == pytest.approx(lower, rel=1e-9)
    assert found.upper == pytest.approx(upper, rel=1e-9)
    assert (upper - lower) / upper <= 1e-8


def test_the_identity_kernel_in_closed_form():
    found = kernel_margin(np.eye(9), np.ones(9))
    assert found.margin == pytest.approx(1 / 3, rel=1e-14)
    np.testing.assert_allclose(found.multipliers, 1.0, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_points(seed):
    K, y = gaussian_kernel(seed, 1000, 0.3)
    found = kernel_margin(K, y, tolerance=1e-10)
    assert found.status is SeparationStatus.OPTIMAL
    lower, upper = bracket(K, y, found)
    assert (upper - lower) / upper <= 1e-10 + 1e-13
    x, y = points(seed, 1000, 40)
    assert linear_margin(x, y).status is SeparationStatus.OPTIMAL
    assert kernel_margin(x @ x.T, y).status is SeparationStatus.OPTIMAL


@pytest.mark.slow
@pytest.mark.parametrize("size", [(4000, 20), (3000, 60)])
def test_thousands_of_points(size):
    x, y = points(0, *size)
    found = linear_margin(x, y)
    assert found.status is SeparationStatus.OPTIMAL
    assert faults(x, y, found, 1e-10) == []
    x, y = points(0, *size, separable=False)
    assert proof_faults(x, y, linear_margin(x, y), 1e-11) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_working_set_gives_what_all_points_give(seed, monkeypatch):
    x, y = points(seed, 150, 8)
    random = np.random.default_rng(seed).choice([-1.0, 1.0], 150)
    want = linear_margin(x, y)
    for name, value in (("WHOLE", 10), ("DENSE", 10), ("JOIN", 6)):
        monkeypatch.setattr(linear, name, value)
    for found in (linear_margin(x, y), kernel_margin(x @ x.T, y)):
        assert found.status is SeparationStatus.OPTIMAL
        assert found.margin == pytest.approx(want.margin, rel=1e-8)
        assert faults(x, y, found, 1e-8) == []
    assert linear_margin(x, random).status is SeparationStatus.NOT_SEPARABLE
    assert proof_faults(x, random, linear_margin(x, random), 1e-11) == []
    assert kernel_margin(x @ x.T, random).status is SeparationStatus.NOT_SEPARABLE


def test_an_unreachable_tolerance_is_stated():
    """Hard points: the gap that float64 reaches is above 0, and the status says so."""
    x, y = points(1, 60, 20)
    found = linear_margin(x, y, tolerance=0.0)
    assert found.status is (SeparationStatus.OPTIMAL if found.gap == 0 else SeparationStatus.INACCURATE)
    assert found.separable
    assert found.gap <= 1e-10


# --- wrong input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "labels", "told"),
    [
        ([[1.0]], [0], "labels"),
        ([[1.0]], [1, 1], "features"),
        ([1.0], [1], "features"),
        (np.zeros((2, 0)), [1, 1], "features"),
        ([[np.nan]], [1], "NaN"),
        ([[1.0]], [], "labels"),
        ([["a"]], [1], "features"),
    ],
)
def test_wrong_features_are_refused(features, labels, told):
    with pytest.raises(InputError, match=told):
        linear_margin(features, labels)


@pytest.mark.parametrize(
    ("gram", "told"),
    [
        ([[1.0, 0.0]], "shape"),
        ([[1.0, 0.5], [0.4, 1.0]], "symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "negative eigenvalue"),
        ([[1.0, 1.0 + 1e-8], [1.0 + 1e-8, 1.0]], "negative eigenvalue"),
        ([[-1.0, 0.0], [0.0, 1.0]], "negative eigenvalue"),
        ([[np.inf, 0.0], [0.0, 1.0]], "NaN or infinite"),
    ],
)
def test_what_is_no_gram_matrix_is_refused(gram, told):
    with pytest.raises(InputError, match=told):
        kernel_margin(gram, [1, 1])


def test_wrong_tolerances_are_refused():
    for solve in (linear_margin, kernel_margin):
        with pytest.raises(InputError, match="tolerance"):
            solve([[1.0]], [1], tolerance=-1.0)


def test_points_whose_multipliers_have_no_numbers_are_refused():
    x = [[0.0, -1.7e308, 0.0, 0.0], [1e300, 0.0, 0.0, 1e170], [0.0, 1e200, 0.0, -1.0]]
    with pytest.raises(InputError, match="the multipliers would be of size 1e-400"):
        linear_margin(x, [-1.0, -1.0, 1.0], tolerance=1e-10)


def test_points_that_differ_by_hundreds_of_orders_of_magnitude_are_classified(monkeypatch):
    x, y = np.array([[6e-17, 5.88e-317, 1e-8], [0.0, 3.05e-121, 0.0]]), np.ones(2)
    result = linear_margin(x, y)
    assert result.status is SeparationStatus.OPTIMAL
    np.testing.assert_allclose(x @ result.weights, 1.0, rtol=1e-12)
    # A direction that is far from the best, with weights of 1e316, is none.
    monkeypatch.setattr(linear, "_search", lambda points, bound, tolerance: (np.array([0.0, 1.0]), False))
    result = linear_margin(x, y)
    assert result.status is SeparationStatus.UNDECIDED
    assert result.weights is None


def test_a_bound_below_the_root_of_the_least_number_is_no_zero():
    result = linear_margin([[1.0, 1e-310], [-1.0, 1e-310]], [1.0, 1.0])
    assert result.upper == pytest.approx(1e-310, rel=1e-9, abs=0.0)
