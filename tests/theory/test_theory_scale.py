"""What theory says does not depend on units: laws under powers of two, from 2^-400 to 2^400."""

import numpy as np
import pytest

import attnlab as al
import attnlab.theory as th
from attnlab.theory import encoder as en

POWERS = (-400, -237, -60, 60, 311, 400)
X_AND_Z = [(-400, 0), (0, -400), (-200, -200), (400, 0), (0, 400), (250, 250), (-400, 400), (400, -400), (-30, 17)]


def tokens_at(seed, x=0, z=0, v=0, n=3, T=3, d=4):
    """The same random tokens, queries and head, in units of 2^-x, 2^-z and 2^-v."""
    rng = np.random.default_rng(seed)
    tokens, queries, head = rng.standard_normal((n, T, d)), rng.standard_normal((n, d)), rng.standard_normal(d)
    y = rng.choice([-1.0, 1.0], n)
    return al.Tokens(x=np.ldexp(tokens, x), z=np.ldexp(queries, z), y=y, v=np.ldexp(head, v))


def close(found, wanted, power=0, rtol=1e-9):
    np.testing.assert_allclose(found, np.ldexp(wanted, power), rtol=rtol)


@pytest.mark.parametrize(("x", "z"), X_AND_Z)
@pytest.mark.parametrize("v", [-400, 0, 400])
def test_local_optimality_has_no_units(x, z, v):
    for seed in range(3):
        plain, scaled = tokens_at(seed), tokens_at(seed, x, z, v)
        for selected in (al.optimal_tokens(plain), [0, 1, 2], [2, 2, 2]):
            one, other = th.is_locally_optimal(plain, selected), th.is_locally_optimal(scaled, selected)
            assert (bool(one), one.feasible, one.vacuous) == (bool(other), other.feasible, other.vacuous)
            np.testing.assert_array_equal(one.failing, other.failing)
            if one.lead is not None:
                close(other.lead, one.lead, x + v)


@pytest.mark.parametrize(("x", "z"), [(-700, -400), (-1000, -1000), (900, 900)])
def test_solutions_that_are_no_numbers_are_refused_by_the_names_of_tokens_and_queries(x, z):
    for call in (th.is_locally_optimal, th.local_cone, th.default_eps):
        with pytest.raises(al.InputError, match=r"`x`.*`z`"):
            call(tokens_at(0, x, z), [0, 1, 2])


@pytest.mark.parametrize(("x", "z"), [(-400, 0), (0, 400), (300, -300)])
def test_the_set_of_locally_optimal_selections_has_no_units(x, z):
    plain, scaled = (th.locally_optimal_selections(tokens_at(4, a, b, n=2)) for a, b in ((0, 0), (x, z)))
    np.testing.assert_array_equal(plain.selections, scaled.selections)
    assert (plain.feasible, plain.infeasible, plain.undecided) == (
        scaled.feasible,
        scaled.infeasible,
        scaled.undecided,
    )
    close(scaled.margins, plain.margins, x + z)


@pytest.mark.parametrize(("x", "z"), X_AND_Z)
def test_assumptions_have_no_units(x, z):
    plain, scaled = tokens_at(1), tokens_at(1, x, z, 200)
    for assumption in (th.assumption_b1, th.assumption_b1_proxy):
        one, other = assumption(plain), assumption(scaled)
        assert one.holds == other.holds
        assert other.margin == pytest.approx(one.margin, abs=1e-8)
    # Scores have the unit of the loss, and are left as they are.
    one, other = th.assumption_c(plain), th.assumption_c(tokens_at(1, x, z, -x))
    assert one.holds == other.holds
    assert other.margin == pytest.approx(one.margin, rel=1e-9)
    one, other = th.assumption_b2(plain), th.assumption_b2(scaled)
    assert one.holds == other.holds
    for name in ("deviation", "gap"):
        close(other.evidence[name], one.evidence[name], x + 200)


@pytest.mark.parametrize("v", [-1000, -700, 0, 600])
@pytest.mark.parametrize("x", [-1000, -700, 0, 300])
def test_equal_scores_are_equal_however_faint(x, v):
    """B.2 on tokens of which all but the best score the same; float64 would have zeros for all."""
    tokens = np.array([[[2.0, 0.0], [1.0, 3.0], [1.0, -2.0]]])
    data = al.Tokens(x=np.ldexp(tokens, x), z=[[1.0, 0.0]], y=[1], v=np.ldexp([1.0, 0.0], v))
    assert th.assumption_b2(data).holds
    spread = al.Tokens(x=data.x + np.ldexp([[[0, 0], [0.5, 0], [0, 0]]], x), z=data.z, y=data.y, v=data.v)
    assert not th.assumption_b2(spread).holds


@pytest.mark.parametrize(("x", "z"), X_AND_Z)
def test_cones_have_no_units(x, z):
    plain, scaled = tokens_at(2), tokens_at(2, x, z, -300)
    best = al.optimal_tokens(plain)
    one, other = th.local_cone(plain, best), th.local_cone(scaled, best)
    for name in ("mu", "A", "delta"):
        close(getattr(other, name), getattr(one, name))
    close(other.R, one.R, -x - z)
    close(other.gap, one.gap, x - 300)
    assert other.contains(2.0 * other.start) == one.contains(2.0 * one.start)


@pytest.mark.parametrize(("x", "z"), X_AND_Z)
def test_barriers_scale(x, z):
    W = np.random.default_rng(5).standard_normal((4, 4))
    for seed in range(4):
        plain, scaled = tokens_at(seed), tokens_at(seed, x, z)
        for selected in ([0, 0, 0], [1, 2, 0]):
            close(th.barrier(scaled, selected, np.ldexp(W, 300)), th.barrier(plain, selected, W), x + z)


@pytest.mark.parametrize("power", [-500, -400, 400, 500])
def test_membership_in_a_cone_has_no_units(power):
    W, axis = [[1.0, 0.1], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]
    for mu in (0.001, 0.01):
        assert th.in_cone(np.ldexp(W, power), np.ldexp(axis, -power), mu=mu) == th.in_cone(W, axis, mu=mu)
    assert th.in_cone(np.ldexp(W, power), axis, mu=0.1, R=float(np.ldexp(1.0, power)))
    assert not th.in_cone(np.ldexp(W, power), axis, mu=0.1, R=float(np.ldexp(1.1, power)))


@pytest.mark.parametrize(("x", "z", "v"), [(100, 50, 30), (-90, 60, -200), (-200, 300, 100), (250, -300, 40)])
def test_lipschitz_constants_scale(x, z, v):
    """L_W is v z^2 X^3 times a bracket that has no units where the loss is linear."""
    one = th.lipschitz_constants(tokens_at(0), "correlation")
    other = th.lipschitz_constants(tokens_at(0, x, z, v), "correlation")
    close(other.W, one.W, v + 2 * z + 3 * x)
    close(other.K(np.ldexp(np.eye(4), 50)), one.K(np.eye(4)), v + 2 * z + 3 * x + 100)


def test_lipschitz_constants_beyond_float64_are_infinite_or_zero():
    assert np.inf == th.lipschitz_constants(tokens_at(0, 400, 400), "correlation").W
    assert th.lipschitz_constants(tokens_at(0, -400, 0), "correlation").W == 0.0
    still = al.Tokens(x=np.full((1, 2, 2), 1e200), z=[[0.0, 0.0]], y=[1], v=[1.0, 0.0])
    assert th.lipschitz_constants(still).W == 0.0


@pytest.mark.parametrize(("x", "z"), X_AND_Z)
def test_rate_constants_scale(x, z):
    one, other = th.rate_constants(tokens_at(3)), th.rate_constants(tokens_at(3, x, z, -x))
    for name in ("kappa_plus", "kappa_minus", "upsilon", "upsilon_proof", "upsilon_printed", "zeta", "zeta_printed"):
        close(getattr(other, name), getattr(one, name))
    close(other.Lambda, one.Lambda, -x - z)
    close(other.head_margin, one.head_margin, x)
    assert th.assumption_1(tokens_at(3, x, z, -x)).margin == pytest.approx(
        th.assumption_1(tokens_at(3)).margin, rel=1e-8
    )


def test_faint_scores_have_ratios():
    """Gaps of 2 and 1 units, where a unit is 1e-400."""
    x = np.array([[[3.0], [1.0]], [[2.0], [1.0]]])
    faint = al.Tokens(x=1e-200 * x, z=[[1e200], [2e200]], y=[1, 1], v=[1e-200])
    found = th.rate_constants(faint)
    assert found.upsilon == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("power", POWERS)
def test_kernels_of_rows_scale(power):
    rows = np.random.default_rng(0).standard_normal((4, 6))
    tokens = np.random.default_rng(1).standard_normal((4, 3, 6))
    close(en.arc_cosine_0(np.ldexp(rows, power)), en.arc_cosine_0(rows), rtol=1e-12)
    close(en.arc_cosine_1(np.ldexp(rows, power)), en.arc_cosine_1(rows), 2 * power, rtol=1e-12)
    close(en.limiting_ntk(np.ldexp(tokens, power)), en.limiting_ntk(tokens), 2 * power, rtol=1e-12)
    close(en.pooled_expectation(np.ldexp(tokens, power)), en.pooled_expectation(tokens), 2 * power, rtol=1e-12)
    one, other = en.lambda_0(rows, 2.0), en.lambda_0(np.ldexp(rows, power), 2.0)
    for name in ("value", "error", "hermite", "gershgorin", "upper"):
        close(getattr(other, name), getattr(one, name), 2 * power)
    one, other = (en.predict_alpha(np.ldexp(tokens, p), width=9, variance=2.0, tau1=0.5) for p in (0, power))
    close(other.value, one.value, 2 * power)
    close(other.hermite, one.hermite, 2 * power)


@pytest.mark.parametrize("power", POWERS)
def test_assumptions_on_encoder_data_scale(power):
    x = np.random.default_rng(2).standard_normal((5, 3, 4))
    scaled = np.ldexp(x, power)
    close(en.assumption_1(scaled).C_x, en.assumption_1(x).C_x, power)
    close(en.assumption_2(scaled).least, en.assumption_2(x).least, 2 * power)
    np.testing.assert_array_equal(en.assumption_2(scaled).ranks, en.assumption_2(x).ranks)
    close(en.assumption_4(scaled).C_Sigma, en.assumption_4(x).C_Sigma, 2 * power)


@pytest.mark.parametrize("power", [-250, -70, 60, 200])
def test_similarities_scale(power):
    x = np.random.default_rng(3).standard_normal((4, 2, 3))
    close(en.similarities(np.ldexp(x, power)), en.similarities(x), 4 * power, rtol=1e-12)
    one, other = en.assumption_3(x), en.assumption_3(np.ldexp(x, power))
    np.testing.assert_array_equal(one.tail, other.tail)
    close(other.quantiles, one.quantiles, 4 * power)


@pytest.mark.parametrize("power", [-900, -401, 333, 900])
def test_predictions_do_not_depend_on_the_unit_of_a_kernel(power):
    rng = np.random.default_rng(4)
    root = rng.standard_normal((5, 5))
    kernel, across, misfit = root @ root.T, rng.standard_normal((2, 5)), rng.standard_normal(5)
    plain = en.kernel_regression(kernel, across, misfit, [0.0, 1.0], ridge=0.25)
    scaled = en.kernel_regression(
        np.ldexp(kernel, power), np.ldexp(across, power), misfit, [0.0, 1.0], ridge=float(np.ldexp(0.25, power))
    )
    close(scaled, plain)


@pytest.mark.parametrize("power", [-1000, -400, 400, 900])
def test_room_of_interpolation_has_no_units(power):
    root = np.random.default_rng(6).standard_normal((4, 6))
    gram = root @ root.T
    assert th.interpolation_room(np.ldexp(gram, power)) == pytest.approx(th.interpolation_room(gram), rel=1e-9)
    assert th.interpolation_room(np.zeros((2, 2))) == -np.inf


@pytest.mark.parametrize("power", [-600, -400, 400, 600])
def test_rates_of_scaled_logarithms(power):
    steps = np.geomspace(10, 1e5, 80)
    logs = -1.5 * np.log(steps) + 0.1 * np.sin(np.log(steps))
    one, other = (th.fit_rate(steps, log_values=np.ldexp(logs, p)) for p in (0, power))
    close([other.rate, other.low, other.high, other.misfit], [one.rate, one.low, one.high, one.misfit], power)


@pytest.mark.parametrize("power", [-300, 300])
def test_distances_of_kernels_have_no_units(power):
    a, b = np.diag([1.0, 2.0]), np.array([[2.0, 1.0], [1.0, 3.0]])
    close(th.kernel_distance(np.ldexp(a, power), np.ldexp(b, -power)), th.kernel_distance(a, b))
