"""Every step rule against its printed formula, at every scale of gradient, and inside ordinary optax loops."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rule_oracles as oracle
from hypothesis import given, settings, strategies as st

import attnlab as al
from attnlab.optim import StepRule
from attnlab.optim.rule import common_scale, log_norm, norm, scaled, total_log_norm

LD = np.longdouble
FLOOR = 0.3125
few = settings(deadline=None, max_examples=25, database=None, derandomize=True)

# id: (rule, a fresh oracle). Caps and the paper's guard are sized so that they bind on some steps and not on others.
RULES = {
    "gd": (lambda: al.gd(0.3), lambda: oracle.gd(0.3)),
    "ngd": (lambda: al.ngd(0.3), lambda: oracle.ngd(0.3)),
    "ngd cap": (lambda: al.ngd(0.3, cap=0.2), lambda: oracle.ngd(0.3, cap=0.2)),
    "ngd total": (lambda: al.ngd(0.3, norms="total"), lambda: oracle.ngd(0.3, norms="total")),
    "ngd total cap": (
        lambda: al.ngd(0.3, norms="total", cap=0.2),
        lambda: oracle.ngd(0.3, norms="total", cap=0.2),
    ),
    "ngd paper": (
        lambda: al.ngd(0.3, guard="paper", eps=0.5, regularizer=0.07),
        lambda: oracle.ngd(0.3, eps=0.5, regularizer=0.07),
    ),
    "ngd paper total cap": (
        lambda: al.ngd(0.3, guard="paper", eps=0.5, regularizer=0.07, norms="total", cap=0.15),
        lambda: oracle.ngd(0.3, eps=0.5, regularizer=0.07, norms="total", cap=0.15),
    ),
    "momentum A": (lambda: al.ngd_momentum(0.3), lambda: oracle.momentum_a(0.3)),
    "momentum A total cap": (
        lambda: al.ngd_momentum(0.3, momentum=0.6, norms="total", cap=0.2),
        lambda: oracle.momentum_a(0.3, 0.6, 0.2, "total"),
    ),
    "momentum B": (lambda: al.ngd_momentum(0.3, form="B"), lambda: oracle.momentum_b(0.3)),
    "momentum B cap": (
        lambda: al.ngd_momentum(0.3, form="B", momentum=0.6, cap=0.2),
        lambda: oracle.momentum_b(0.3, 0.6, 0.2),
    ),
    "momentum B total": (
        lambda: al.ngd_momentum(0.3, form="B", norms="total"),
        lambda: oracle.momentum_b(0.3, norms="total"),
    ),
    "polyak": (lambda: al.polyak(floor=FLOOR), lambda: oracle.polyak()),
    "polyak cap": (
        lambda: al.polyak(floor=FLOOR, cap=0.05, constant=0.7),
        lambda: oracle.polyak(cap=0.05, constant=0.7),
    ),
    "polyak auto": (lambda: al.polyak(constant=2.0), lambda: oracle.polyak(constant=2.0)),
    "adam": (lambda: al.adam(0.3), lambda: oracle.adam(0.3)),
    "adam own": (lambda: al.adam(0.3, b1=0.5, b2=0.8, eps=0.1), lambda: oracle.adam(0.3, 0.5, 0.8, 0.1)),
    "joint decay": (lambda: al.joint_decay(0.3), lambda: oracle.joint_decay(0.3)),
    "joint decay power": (lambda: al.joint_decay(0.3, power=0.9), lambda: oracle.joint_decay(0.3, 0.9)),
    "joint separate": (lambda: al.joint_separate(0.3), lambda: oracle.ngd(0.3)),
    "joint separate cap": (lambda: al.joint_separate(0.3, cap=0.2), lambda: oracle.ngd(0.3, cap=0.2)),
    "joint total": (lambda: al.joint_total(0.3), lambda: oracle.ngd(0.3, norms="total")),
    "joint total cap": (
        lambda: al.joint_total(0.3, cap=0.2),
        lambda: oracle.ngd(0.3, norms="total", cap=0.2),
    ),
}
# Rules whose step keeps its length however small the gradient is: there the scale may be anything.
ANY_SCALE = ["ngd", "ngd total", "momentum A", "joint decay", "joint separate", "joint total"]
# Rules that turn a zero gradient into no step at all (the paper's guard adds the gradient of its regularizer).
STILL_AT_ZERO = [k for k in RULES if "paper" not in k]


def draw_gradient(rng, log_sizes=(0.0, 0.0)):
    """Mantissas of largest entry one, with their log-scales."""
    shapes = {"W": (3, 4), "u": (3,)}
    mantissa = {k: rng.standard_normal(s) for k, s in shapes.items()}
    mantissa = {k: m / np.abs(m).max() for k, m in mantissa.items()}
    return mantissa, dict(zip(shapes, log_sizes, strict=True))


def true_value(mantissa, log_scale):
    return {k: np.asarray(m, LD) * np.exp(LD(log_scale[k])) for k, m in mantissa.items()}


def facts_for(excess):
    """What `descend` hands to a rule about the loss."""
    with np.errstate(divide="ignore"):
        return {"value": float(FLOOR + excess), "log_excess": float(np.log(LD(excess)))}


def relative_error(got, want):
    """Largest error of any parameter, relative to the length of the whole update of that parameter."""
    worst = 0.0
    for k, w in want.items():
        size = float(np.abs(np.asarray(w)).max())
        error = float(np.abs(np.asarray(got[k], LD) - w).max())
        worst = max(worst, error / size if size else (0.0 if error == 0 else np.inf))
    return worst


def zeros_like(tree):
    return {k: np.zeros_like(a) for k, a in tree.items()}


# --- formulas ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["scaled", "plain"])
@pytest.mark.parametrize("name", RULES)
def test_several_steps_follow_the_printed_formula(name, form):
    """Five steps with gradients from e^-3 to e^3, so that caps and guards bind on some of them only."""
    make, make_oracle = RULES[name]
    worst = 0.0
    for seed in range(2):
        rng = np.random.default_rng([seed, 1])
        rule, follow = make(), make_oracle()
        params = {"W": rng.standard_normal((3, 4)), "u": rng.standard_normal(3)}
        with jax.enable_x64(True):
            state = rule.init(params)
            for _ in range(5):
                mantissa, log_scale = draw_gradient(rng, rng.uniform(-3, 3, 2))
                excess = rng.uniform(0.1, 2.0)
                known = facts_for(excess)
                if form == "scaled":
                    got, state = rule.update(mantissa, state, params, log_scale=log_scale, **known)
                    g = true_value(mantissa, log_scale)
                else:
                    plain = {k: m * np.exp(log_scale[k]) for k, m in mantissa.items()}
                    got, state = rule.update(plain, state, params, **known)
                    g = {k: a.astype(LD) for k, a in plain.items()}
                want = follow(g, params, {"excess": LD(excess)})
                worst = max(worst, relative_error(got, want))
                params = {k: p + np.asarray(got[k]) for k, p in params.items()}
    assert worst < 1e-13


@pytest.mark.parametrize("name", RULES)
def test_one_log_scale_for_all_parameters_is_accepted(name):
    rng = np.random.default_rng(5)
    mantissa, _ = draw_gradient(rng)
    params, rule = zeros_like(mantissa), RULES[name][0]()
    with jax.enable_x64(True):
        state = rule.init(params)
        one, _ = rule.update(mantissa, state, params, log_scale=-1.5, **facts_for(0.5))
        each, _ = rule.update(mantissa, state, params, log_scale={"W": -1.5, "u": -1.5}, **facts_for(0.5))
    for k in mantissa:
        np.testing.assert_array_equal(one[k], each[k])


def test_the_papers_regularizer_needs_several_parameters_and_their_values():
    g = {"W": np.array([[3.0, 4.0]])}
    with jax.enable_x64(True):
        rule = al.ngd(0.1, guard="paper", eps=1.0, regularizer=1.0)
        alone, _ = rule.update(g, rule.init(g), {"W": np.array([[100.0, 100.0]])})
        np.testing.assert_allclose(np.asarray(alone["W"]), [[-0.05, -0.1 * 4 / 6]], rtol=1e-14)
        two = g | {"Q": np.array([[0.0, 2.0]])}
        blind, _ = rule.update(two, rule.init(two))
        np.testing.assert_allclose(np.asarray(blind["Q"]), [[0.0, -0.1 * 2 / 3]], rtol=1e-14)
        seen, _ = rule.update(two, rule.init(two), {"W": np.zeros((1, 2)), "Q": np.array([[0.0, 1.0]])})
        np.testing.assert_allclose(np.asarray(seen["Q"]), [[0.0, -0.1 * 4 / 5]], rtol=1e-14)


def test_the_papers_guard_freezes_once_the_gradient_is_as_small_as_eps():
    """Step |g| / (|g| + eps) * 0.1 at |g| = e^-40, with the published eps = 2^-52."""
    g = {"W": np.array([[1.0, 0.0]])}
    rule = al.ngd(0.1, guard="paper")
    with jax.enable_x64(True):
        move, _ = rule.update(g, rule.init(g), log_scale=-40.0)
    size = np.exp(-40.0)
    assert float(move["W"][0, 0]) == pytest.approx(-0.1 * size / (size + 2.0**-52), rel=1e-13)
    assert abs(float(move["W"][0, 0])) < 0.002


def test_joint_decay_counts_from_zero():
    """At t = 0 both blocks take the full step; at t = 7 the head takes 8^-2/3 = 1/4 of it, the attention 1/8."""
    g = {"W": np.array([[2.0, 0.0]]), "u": np.array([0.0, -5.0])}
    rule = al.joint_decay(0.5)
    with jax.enable_x64(True):
        state, moves = rule.init(g), []
        for _ in range(8):
            move, state = rule.update(g, state)
            moves.append((float(move["W"][0, 0]), float(move["u"][1])))
    assert moves[0] == (-0.5, 0.5)
    assert moves[7] == pytest.approx((-0.5 / 8, 0.5 / 4), rel=1e-14)


def test_joint_decay_treats_keys_and_queries_as_attention():
    g = {"K": np.array([[3.0]]), "Q": np.array([[-4.0]]), "u": np.array([7.0])}
    rule = al.joint_decay(1.0)
    with jax.enable_x64(True):
        state = rule.init(g)
        _, state = rule.update(g, state)
        move, _ = rule.update(g, state)
    got = [float(np.asarray(move[k]).ravel()[0]) for k in "KQu"]
    assert got == pytest.approx([-0.5, 0.5, -(2 ** (-2 / 3))], rel=1e-14)


# --- scale -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_moving_scale_between_mantissa_and_logarithm_changes_nothing(name):
    """32 gradients at once; e^c with |c| up to 300 keeps the squares of the mantissa in range."""
    rng = np.random.default_rng(17)
    c = np.concatenate([[-300.0, 300.0], rng.uniform(-300, 300, 30)])
    draws = [draw_gradient(rng, rng.uniform(-3, 3, 2)) for _ in c]
    mantissa = {k: np.stack([m[k] for m, _ in draws]) for k in ("W", "u")}
    log_scale = {k: np.stack([s[k] for _, s in draws]) for k in ("W", "u")}
    moved = {k: m * np.exp(-c).reshape(-1, *[1] * (m.ndim - 1)) for k, m in mantissa.items()}
    other = {k: s + c for k, s in log_scale.items()}
    params, rule = {k: rng.standard_normal(m.shape) for k, m in mantissa.items()}, RULES[name][0]()

    def update(mantissa, log_scale, params):
        return rule.update(mantissa, rule.init(params), params, log_scale=log_scale, **facts_for(0.5))[0]

    with jax.enable_x64(True):
        run = jax.jit(jax.vmap(update))
        want, got = run(mantissa, log_scale, params), run(moved, other, params)
    for k in mantissa:
        size = np.abs(want[k]).reshape(32, -1).max(1)
        error = np.abs(np.asarray(got[k]) - np.asarray(want[k])).reshape(32, -1).max(1)
        assert np.max(error / size) < 1e-12


@pytest.mark.parametrize("c", [-2000.0, -700.0, 700.0, 2000.0])
@pytest.mark.parametrize("name", ANY_SCALE)
def test_normalized_rules_do_not_see_a_common_scale(name, c):
    """Three steps with gradients times e^c: the very same updates, far outside the range of floats."""
    rule = RULES[name][0]()
    updates = []
    for shift in (0.0, c):
        rng = np.random.default_rng(11)
        with jax.enable_x64(True):
            move, state = {}, rule.init(zeros_like(draw_gradient(rng)[0]))
            for _ in range(3):
                mantissa, log_scale = draw_gradient(rng, rng.integers(-4, 4, 2).astype(float))
                far = {k: s + shift for k, s in log_scale.items()}
                move, state = rule.update(mantissa, state, log_scale=far)
        updates.append(move)
    for k, a in updates[0].items():
        np.testing.assert_array_equal(updates[1][k], a)


@pytest.mark.parametrize("c", [-2000.0, 2000.0])
@pytest.mark.parametrize("name", ["momentum B", "momentum B total"])
def test_momentum_of_gradients_keeps_its_scale_apart(name, c):
    """Form B remembers gradients, which no float holds here; compared with long double over six shrinking ones."""
    make, make_oracle = RULES[name]
    rule, follow = make(), make_oracle()
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        state = rule.init(zeros_like(draw_gradient(rng)[0]))
        for i in range(6):
            mantissa, log_scale = draw_gradient(rng, (c - 2.0 * i, c + rng.uniform(-1, 1)))
            got, state = rule.update(mantissa, state, log_scale=log_scale)
            want = follow(true_value(mantissa, log_scale), None, {})
            assert relative_error(got, want) < 1e-11


@pytest.mark.parametrize("c", [-2000.0, -700.0, 700.0, 2000.0])
def test_polyak_step_is_exact_where_loss_and_gradient_both_underflow(c):
    """Excess e^c and gradient e^c: the step is about 1 / e^c, the update of order one."""
    rng = np.random.default_rng(8)
    mantissa, log_scale = draw_gradient(rng, (c, c + 1.0))
    rule = al.polyak()
    with jax.enable_x64(True):
        got, _ = rule.update(mantissa, rule.init(mantissa), log_scale=log_scale, log_excess=c)
    want = oracle.polyak()(true_value(mantissa, log_scale), None, {"excess": np.exp(LD(c))})
    assert relative_error(got, want) < 1e-11


@pytest.mark.parametrize(("step", "c"), [(1e300, -700.0), (1e-300, 700.0)])
def test_gradient_descent_with_extreme_steps(step, c):
    mantissa, log_scale = draw_gradient(np.random.default_rng(2), (c, c))
    rule = al.gd(step)
    with jax.enable_x64(True):
        got, _ = rule.update(mantissa, rule.init(mantissa), log_scale=log_scale)
    assert relative_error(got, oracle.gd(step)(true_value(mantissa, log_scale), None, {})) < 1e-12


@few
@given(
    entries=st.lists(st.floats(-1, 1), min_size=3, max_size=6),
    scales=st.tuples(st.floats(-2000, 2000), st.floats(-2000, 2000)),
)
def test_norms_of_scaled_gradients_match_long_double(entries, scales):
    half = len(entries) // 2
    mantissa = {"W": np.array(entries[:half]), "u": np.array(entries[half:])}
    mantissa = {k: m / np.abs(m).max() if np.abs(m).max() > 1e-9 else 0 * m for k, m in mantissa.items()}
    log_scale = dict(zip(mantissa, scales, strict=True))
    g = true_value(mantissa, log_scale)
    with jax.enable_x64(True):
        got = float(total_log_norm(mantissa, log_scale))
        shared, top = common_scale(mantissa, log_scale)
        single = {k: float(log_norm(m, log_scale[k])) for k, m in mantissa.items()}
    with np.errstate(divide="ignore"):
        assert got == pytest.approx(float(np.log(oracle.total_norm(g))), rel=1e-14, abs=1e-13)
        for k, a in g.items():
            assert single[k] == pytest.approx(float(np.log(oracle.norm(a))), rel=1e-14, abs=1e-13)
    nonzero = [log_scale[k] for k, m in mantissa.items() if m.any()]
    assert float(top) == (max(nonzero) if nonzero else 0.0)
    for k, a in g.items():
        assert np.all(np.isfinite(shared[k]))
        np.testing.assert_allclose(np.asarray(shared[k], LD), a * np.exp(-LD(float(top))), rtol=1e-12, atol=1e-300)


def test_a_plain_gradient_is_brought_to_unit_scale():
    g = {"W": np.array([[3e-200, -4e-200]]), "u": np.zeros(2)}
    with jax.enable_x64(True):
        mantissa, log_scale = scaled(g, None)
        assert float(norm(mantissa["W"])) == pytest.approx(1.25, rel=1e-15)
        assert float(np.abs(mantissa["W"]).max()) == 1.0
        assert float(log_scale["W"]) == pytest.approx(np.log(4e-200), rel=1e-15)
        assert not np.asarray(mantissa["u"]).any()
        assert float(log_scale["u"]) == 0.0


# --- zeros -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["scaled", "plain"])
@pytest.mark.parametrize("name", STILL_AT_ZERO)
def test_a_zero_gradient_gives_no_step(name, form):
    g = {"W": np.zeros((2, 2)), "u": np.zeros(2)}
    rule = RULES[name][0]()
    with jax.enable_x64(True):
        state = rule.init(g)
        for _ in range(2):
            extra = {"log_scale": {"W": 0.0, "u": 0.0}} if form == "scaled" else {}
            move, state = rule.update(g, state, g, **extra, **facts_for(0.5))
            assert not any(np.asarray(a).any() for a in jax.tree.leaves(move))
    assert all(np.isfinite(a).all() or np.isposinf(a).all() for a in jax.tree.leaves(state))


@pytest.mark.parametrize("zero", ["W", "u"])
@pytest.mark.parametrize("name", STILL_AT_ZERO)
def test_a_zero_parameter_among_others_stays_and_the_others_move(name, zero):
    make, make_oracle = RULES[name]
    rule, follow = make(), make_oracle()
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        state = rule.init(zeros_like(draw_gradient(rng)[0]))
        for _ in range(3):
            mantissa, log_scale = draw_gradient(rng, (-2.0, 1.0))
            mantissa[zero], log_scale[zero] = 0 * mantissa[zero], 0.0
            params = zeros_like(mantissa)
            got, state = rule.update(mantissa, state, params, log_scale=log_scale, **facts_for(0.5))
            want = follow(true_value(mantissa, log_scale), params, {"excess": LD(0.5)})
            assert relative_error(got, want) < 1e-13
            assert not np.asarray(got[zero]).any()


CASES = [(k, c) for k in [*ANY_SCALE, "polyak auto", "momentum B", "momentum B total"] for c in (-2000.0, 2000.0)]


@pytest.mark.parametrize(("name", "c"), CASES)
def test_a_zero_parameter_stays_still_beside_a_gradient_of_any_scale(name, c):
    """The zero one has scale e^0 and the other e^c: nothing may become 0 times infinity."""
    make, make_oracle = RULES[name]
    rule, follow = make(), make_oracle()
    mantissa, log_scale = draw_gradient(np.random.default_rng(6), (0.0, c))
    mantissa["W"] = np.zeros_like(mantissa["W"])
    with jax.enable_x64(True):
        got, _ = rule.update(
            mantissa, rule.init(zeros_like(mantissa)), zeros_like(mantissa), log_scale=log_scale, log_excess=c
        )
    want = follow(true_value(mantissa, log_scale), zeros_like(mantissa), {"excess": np.exp(LD(c))})
    assert relative_error(got, want) < 1e-11


def test_momentum_of_steps_rolls_on_over_a_zero_gradient():
    """Form A averages steps, so it coasts: v <- 0.9 v. Form B scales by step / |grad|, which is no step at zero."""
    g, zero = {"W": np.array([[0.0, 2.0]])}, {"W": np.zeros((1, 2))}
    with jax.enable_x64(True):
        for form, want in (("A", -0.09), ("B", 0.0)):
            rule = al.ngd_momentum(0.1, form=form)
            _, state = rule.update(g, rule.init(g))
            move, state = rule.update(zero, state)
            assert float(move["W"][0, 1]) == pytest.approx(want, rel=1e-14)
            move, _ = rule.update(g, state)
            again = {"A": -(0.081 + 0.1), "B": -0.1 * (0.81 * 2 + 2) / 2}[form]
            assert float(move["W"][0, 1]) == pytest.approx(again, rel=1e-14)


@pytest.mark.parametrize("c", [-2000.0, 0.0, 2000.0])
def test_a_zero_gradient_does_not_wipe_out_a_velocity_of_another_scale(c):
    """Form B: gradient, nothing, gradient, at e^c; a zero gradient comes with scale e^0."""
    rule, follow = al.ngd_momentum(0.1, form="B"), oracle.momentum_b(0.1)
    zero = {"W": np.zeros((1, 2))}
    with jax.enable_x64(True):
        state = rule.init(zero)
        for g, scale in (([[3.0, 1.0]], c), ([[0.0, 0.0]], 0.0), ([[-1.0, 2.0]], c)):
            mantissa, log_scale = {"W": np.array(g)}, {"W": scale}
            got, state = rule.update(mantissa, state, zero, log_scale=log_scale)
            want = follow(true_value(mantissa, log_scale), zero, {})
            assert relative_error(got, want) < 1e-11


# --- polyak ------------------------------------------------------------------------------------------------------


@few
@given(cap=st.floats(1e-3, 10), seed=st.integers(0, 2**32 - 1), c=st.floats(-30, 30))
def test_a_binding_cap_makes_polyak_gradient_descent_bit_for_bit(cap, seed, c):
    mantissa, log_scale = draw_gradient(np.random.default_rng(seed), (c, c - 1.0))
    capped, plain = al.polyak(cap=cap), al.gd(cap)
    with jax.enable_x64(True):
        got, _ = capped.update(mantissa, capped.init(mantissa), log_scale=log_scale, log_excess=200.0)
        want, _ = plain.update(mantissa, plain.init(mantissa), log_scale=log_scale)
    for k in mantissa:
        assert np.asarray(got[k]).tobytes() == np.asarray(want[k]).tobytes()


@pytest.mark.parametrize("value", [0.3, 0.2, -5.0])
def test_no_step_at_or_below_the_floor(value):
    rule = al.polyak(floor=0.3)
    g = {"W": np.array([[1.0, -2.0]])}
    with jax.enable_x64(True):
        move, _ = rule.update(g, rule.init(g), value=value)
    np.testing.assert_array_equal(move["W"], np.zeros((1, 2)))


def test_no_step_where_the_excess_is_negative():
    """`descend` reports an excess below zero as a logarithm that is not a number."""
    rule = al.polyak()
    g = {"W": np.array([[1.0, -2.0]])}
    with jax.enable_x64(True):
        move, _ = rule.update(g, rule.init(g), log_scale=0.0, log_excess=np.nan)
    np.testing.assert_array_equal(move["W"], np.zeros((1, 2)))


def test_polyak_says_what_it_needs():
    g = {"W": np.ones((1, 1))}
    with pytest.raises(al.InputError, match="`log_excess`"):
        al.polyak().update(g, al.polyak().init(g))
    with pytest.raises(al.InputError, match="`value=`"):
        al.polyak(floor=0.0).update(g, al.polyak(floor=0.0).init(g))


# --- optax -------------------------------------------------------------------------------------------------------


def quadratic(params):
    return sum(jnp.sum((p - 1.0) ** 2) for p in jax.tree.leaves(params))


PLAIN = [k for k in RULES if k != "polyak auto"]


@pytest.mark.parametrize("name", PLAIN)
def test_runs_in_a_plain_float32_loop_under_jit(name):
    """Ordinary optax code with no 64-bit switch: float32 in, float32 out, and the formula to float32 accuracy."""
    make, make_oracle = RULES[name]
    rule, follow = make(), make_oracle()
    assert isinstance(rule, optax.GradientTransformationExtraArgs)
    params = {"W": jnp.arange(6.0).reshape(2, 3) / 3, "u": jnp.array([2.0, -1.0])}
    state = rule.init(params)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(quadratic)(params)
        moves, state = rule.update(grads, state, params, value=value + FLOOR)
        return optax.apply_updates(params, moves), state

    exact = {k: np.asarray(p, LD) for k, p in params.items()}
    for _ in range(4):
        params, state = step(params, state)
        value = sum(((p - 1) ** 2).sum() for p in exact.values())
        moves = follow({k: 2 * (p - 1) for k, p in exact.items()}, exact, {"excess": value})
        exact = {k: p + moves[k] for k, p in exact.items()}
    for k, p in params.items():
        assert p.dtype == jnp.float32
        np.testing.assert_allclose(np.asarray(p), exact[k].astype(float), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PLAIN)
def test_carries_through_a_compiled_loop_in_either_precision(name):
    """The state keeps its types, so a rule can be the carry of `lax.fori_loop`."""
    rule = RULES[name][0]()
    for wide in (False, True):
        with jax.enable_x64(wide):
            params = {"W": jnp.ones((2, 2)) * 3, "u": jnp.ones(2)}

            def body(_, carry, rule=rule):
                params, state = carry
                value, grads = jax.value_and_grad(quadratic)(params)
                moves, state = rule.update(grads, state, params, value=value)
                return optax.apply_updates(params, moves), state

            end, _ = jax.lax.fori_loop(0, 3, body, (params, rule.init(params)))
            assert end["W"].dtype == (jnp.float64 if wide else jnp.float32)
            assert np.isfinite(np.asarray(end["W"])).all()


@pytest.mark.parametrize("name", PLAIN)
def test_chains_with_other_transformations(name):
    """Behind a scaling by 1/2 the rule sees half the gradient; in front of one its update is halved."""
    rule = RULES[name][0]()
    g = {"W": np.array([[3.0, -1.0]]), "u": np.array([0.5])}
    with jax.enable_x64(True):
        before, after = optax.chain(optax.scale(0.5), rule), optax.chain(rule, optax.scale(0.5))
        got, _ = before.update(g, before.init(g), g, value=2.0)
        half = {k: a / 2 for k, a in g.items()}
        want, _ = rule.update(half, rule.init(g), g, value=2.0)
        halved, _ = after.update(g, after.init(g), g, value=2.0)
        full, _ = rule.update(g, rule.init(g), g, value=2.0)
    for k in g:
        np.testing.assert_allclose(np.asarray(got[k]), np.asarray(want[k]), rtol=1e-15)
        np.testing.assert_allclose(np.asarray(halved[k]), np.asarray(full[k]) / 2, rtol=1e-15)


def test_adam_is_optax_adam_and_gd_is_optax_sgd():
    rng = np.random.default_rng(0)
    params = {"W": rng.standard_normal((3, 3))}
    pairs = [
        (al.adam(0.05, b1=0.8, b2=0.99, eps=1e-6), optax.adam(0.05, b1=0.8, b2=0.99, eps=1e-6)),
        (al.gd(0.05), optax.sgd(0.05)),
    ]
    with jax.enable_x64(True):
        for ours, theirs in pairs:
            mine, other = ours.init(params), theirs.init(params)
            for _ in range(5):
                g = {"W": rng.standard_normal((3, 3))}
                a, mine = ours.update(g, mine, params)
                b, other = theirs.update(g, other, params)
                np.testing.assert_allclose(np.asarray(a["W"]), np.asarray(b["W"]), rtol=1e-13)


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: al.gd(0.0), "step"),
        (lambda: al.gd(-1.0), "step"),
        (lambda: al.gd(float("nan")), "step"),
        (lambda: al.gd("0.1"), "step"),
        (lambda: al.gd(None), "step"),
        (lambda: al.gd([0.1, 0.2]), "step"),
        (lambda: al.ngd(0), "step"),
        (lambda: al.ngd(0.1, cap=0), "cap"),
        (lambda: al.ngd(0.1, cap=-1), "cap"),
        (lambda: al.ngd(0.1, norms="both"), "norms"),
        (lambda: al.ngd(0.1, guard="none"), "guard"),
        (lambda: al.ngd(0.1, guard="paper", eps=0), "eps"),
        (lambda: al.ngd(0.1, guard="paper", regularizer=-1e-9), "regularizer"),
        (lambda: al.ngd_momentum(-0.1), "step"),
        (lambda: al.ngd_momentum(0.1, momentum=1.0), "momentum"),
        (lambda: al.ngd_momentum(0.1, momentum=-0.1), "momentum"),
        (lambda: al.ngd_momentum(0.1, momentum=float("nan")), "momentum"),
        (lambda: al.ngd_momentum(0.1, cap=0), "cap"),
        (lambda: al.ngd_momentum(0.1, norms="none"), "norms"),
        (lambda: al.ngd_momentum(0.1, form="C"), "form"),
        (lambda: al.polyak(cap=0), "cap"),
        (lambda: al.polyak(constant=0), "constant"),
        (lambda: al.polyak(floor="zero"), "floor"),
        (lambda: al.adam(0), "step"),
        (lambda: al.adam(0.1, eps=0), "eps"),
        (lambda: al.joint_decay(0), "step"),
        (lambda: al.joint_decay(0.1, power=0), "power"),
        (lambda: al.joint_decay(0.1, power=1.1), "power"),
        (lambda: al.joint_separate(0), "step"),
        (lambda: al.joint_separate(0.1, cap=0), "cap"),
        (lambda: al.joint_total(0), "step"),
        (lambda: al.joint_total(0.1, cap=-2), "cap"),
    ],
)
def test_bad_settings_are_refused_by_name(call, argument):
    with pytest.raises(al.InputError, match=f"`{argument}` is"):
        call()


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: al.gd(float("inf")), "step"),
        (lambda: al.gd(np.array([0.1, 0.2])), "step"),
        (lambda: al.ngd_momentum(0.1, momentum="0.9"), "momentum"),
        (lambda: al.polyak(floor=None), "floor"),
        (lambda: al.polyak(floor=float("nan")), "floor"),
        (lambda: al.adam(0.1, b1=1.0), "b1"),
        (lambda: al.adam(0.1, b2=-0.5), "b2"),
        (lambda: al.joint_decay(0.1, power="2/3"), "power"),
    ],
)
def test_other_bad_settings_are_refused_by_name(call, argument):
    with pytest.raises(al.InputError, match=f"`{argument}` is"):
        call()


def test_the_edges_of_the_settings_are_allowed():
    assert al.joint_decay(0.1, power=1).settings["power"] == 1.0
    assert al.ngd_momentum(0.1, momentum=0).settings["momentum"] == 0.0
    assert al.ngd(0.1, guard="paper", regularizer=0).settings["regularizer"] == 0.0
    assert al.polyak(floor=-2).settings["floor"] == -2.0


def test_joint_decay_needs_a_head():
    for params in ({"W": np.zeros((2, 2))}, [np.zeros(2)]):
        with pytest.raises(al.InputError, match="'u'"):
            al.joint_decay(0.1).init(params)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda: al.gd(0.1), "gd(step=0.1)"),
        (lambda: al.ngd(0.1), "ngd(step=0.1, cap=inf, norms='separate', guard='stable')"),
        (
            lambda: al.ngd(1, guard="paper", cap=2),
            f"ngd(step=1.0, cap=2.0, norms='separate', guard='paper', eps={2.0**-52!r}, regularizer={2.0**-52!r})",
        ),
        (
            lambda: al.ngd_momentum(0.1),
            "ngd_momentum(step=0.1, momentum=0.9, cap=inf, norms='separate', form='A')",
        ),
        (lambda: al.polyak(), "polyak(cap=inf, constant=0.5, floor='auto')"),
        (lambda: al.polyak(floor=1), "polyak(cap=inf, constant=0.5, floor=1.0)"),
        (lambda: al.adam(0.1), "adam(step=0.1, b1=0.9, b2=0.999, eps=1e-08)"),
        (lambda: al.joint_decay(0.1, power=0.75), "joint_decay(step=0.1, power=0.75)"),
        (lambda: al.joint_separate(0.1), "joint_separate(step=0.1, cap=inf)"),
        (lambda: al.joint_total(0.1, cap=3), "joint_total(step=0.1, cap=3.0)"),
    ],
)
def test_rules_print_their_settings(rule, text):
    made = rule()
    assert repr(made) == text
    assert isinstance(made, StepRule)
    assert made.describe() == {"name": made.name, **made.settings}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (al.gd(0.1), al.gd(0.2)),
        (al.ngd(0.1), al.ngd(0.2, cap=3.0)),
        (al.ngd(0.1, guard="paper"), al.ngd(0.2, guard="paper", eps=1e-3)),
        (al.ngd_momentum(0.1), al.ngd_momentum(0.2, momentum=0.5)),
        (al.ngd_momentum(0.1, form="B"), al.ngd_momentum(0.2, form="B", cap=1.0)),
        (al.polyak(), al.polyak(cap=2.0, constant=1.0)),
        (al.polyak(floor=0.0), al.polyak(floor=1.0)),
        (al.adam(0.1), al.adam(0.2)),
        (al.adam(0.1, b1=0.5), al.adam(0.2, b1=0.5)),
        (al.joint_decay(0.1), al.joint_decay(0.2, power=1.0)),
        (al.joint_separate(0.1), al.ngd(0.2)),
        (al.joint_total(0.1), al.ngd(0.2, norms="total")),
    ],
)
def test_rules_of_one_kind_share_their_program(a, b):
    """Numbers live in the state: the update is the same object, and states have the same types."""
    assert a.update is b.update
    params = {"W": jnp.zeros((2, 2)), "u": jnp.zeros(2)}
    kinds = [jax.tree.map(lambda x: (x.shape, str(x.dtype)), r.init(params)) for r in (a, b)]
    assert kinds[0] == kinds[1]


def test_rules_of_different_kinds_do_not_share():
    updates = [al.ngd(1, norms=n, guard=g).update for n in ("separate", "total") for g in ("stable", "paper")]
    updates += [al.ngd_momentum(1, norms=n, form=f).update for n in ("separate", "total") for f in "AB"]
    updates += [al.polyak().update, al.polyak(floor=0).update, al.adam(1).update, al.adam(1, b1=0.5).update]
    assert len({id(u) for u in updates}) == len(updates)
