"""Claims on Proposition 1, Theorems 1 and 2 and what they take for granted: verdicts, oracles, wrong ones noticed."""

import numpy as np
import pytest

import attnlab as al
from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import (
    batch,
    conditions,
    data_and_labels,
    proposition_1,
    runs,
    theorem_2,
    wide_starts,
)
from attnlab.claims.scale import Scale
from attnlab.theory.encoder import Constants

SMOKE = Scale.SMOKE
EVERY = [claim for module in (proposition_1, conditions, theorem_2, data_and_labels) for claim in module.CLAIMS]


@pytest.mark.slow
@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.id)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome
    assert all(slack >= 0 for slack in found.outcome.slack.values())


@pytest.fixture
def fresh():
    made = (runs.runs, runs.short_runs, runs.long_runs)
    for cached in made:
        cached.cache_clear()
    yield
    for cached in made:
        cached.cache_clear()


def follows():
    return proposition_1.training_follows_the_proposition(SMOKE)


def part(outcome, words):
    (found,) = [p for p in outcome.parts if words in p.name]
    return found


# Proposition 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("law", "scaling", "pool"), [("lecun", "sqrt", "sum"), ("ntk", "linear", "mean")])
def test_runs_are_those_of_descend(law, scaling, pool):
    wanted = f"{law}, tau0 {scaling}, {pool}, {runs.STEPS[2]}"
    (plan,) = [p for p in runs.plans(64, 2, 0) if p.name == wanted]
    model = al.models.Encoder(64, scaling, law, pool=pool)
    data = al.Sequences(x=plan.draws.x[0], y=plan.y)
    run = al.descend(data, al.gd(plan.step), model=model, init=plan.draws.weights(0), steps=30, record=list(range(31)))
    found = runs.runs(64, 30, 4, 0)
    i = [p.name for p in found.plans].index(plan.name)
    # Outputs of size 1 are rounded to 1e-16, and so are their distances to the labels.
    np.testing.assert_allclose(np.sqrt(found.loss[:, i]), np.sqrt(run.metrics["loss"]), rtol=1e-9, atol=1e-15)
    for step, record in ((0, 0), (10, 1), (30, 3)):
        assert found.drift[record, i] == pytest.approx(run.metrics["hidden_moved"][step], rel=1e-4, abs=1e-15)
        for p, name in zip("QKVO", ("W_Q", "W_K", "W_V", "w_O"), strict=True):
            assert found.moved[p][record, i] == pytest.approx(run.metrics[f"moved_{name}"][step], rel=1e-4, abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1])
def test_residual_runs_are_those_of_descend(kind):
    plan = runs.residual_plans(0)[kind][0]
    data = al.Sequences(x=plan.draws.x[0], y=plan.y)
    width = plan.draws.O.shape[-1]
    if kind == 0:
        model = al.models.Encoder(width, "sqrt", "lecun", pool="sum", residual="identity")
        run = al.descend(data, al.gd(plan.step), model=model, init=plan.draws.weights(0), steps=5, record=[0, 5])
        wanted = run.metrics["loss"]
    else:  # a projection of its own: outputs token by token
        wanted = [0.5 * sum((slow_residual(plan, n) - y) ** 2 for n, y in enumerate(plan.y))]
    found = runs.follow([plan], 5)
    np.testing.assert_allclose(np.sqrt(found.loss[[0, 5][: len(wanted)], 0]), np.sqrt(wanted), rtol=1e-6)


def slow_residual(plan, n):
    """One output of a residual encoder with sum pooling."""
    draws, x, total = plan.draws, plan.draws.x[0, n], 0.0
    for query in x:
        weights = np.exp([draws.tau0[0] * float((draws.Q[0] @ query) @ (draws.K[0] @ key)) for key in x])
        inside = draws.V[0] @ (weights / weights.sum() @ x) + plan.residual[0].T @ query
        total += draws.tau1[0] * float(draws.O[0] @ np.maximum(inside, 0.0))
    return total


def all_plans():
    residual = [plan for group in runs.residual_plans(0) for plan in group]
    return [*runs.plans(64, 5, 0), *runs.close_plans(), *runs.opposed_plans(), *residual]


def test_plans_meet_the_conditions_with_a_margin_of_one_tenth():
    for plan in all_plans():
        least = min(plan.constants.condition_2.margin, plan.constants.condition_3.margin)
        assert least == pytest.approx(1 / 0.9, rel=1e-6)
        assert plan.constants.applies
        assert runs.margins_written_out(plan) == pytest.approx(
            (plan.constants.condition_2.margin, plan.constants.condition_3.margin), rel=1e-6
        )


def test_what_decides_is_what_the_plan_says():
    for plan in [*runs.close_plans(), *runs.opposed_plans()]:
        c = plan.constants
        if "(3) decides" in plan.name:
            assert c.condition_3.margin < c.condition_2.margin
        else:
            assert c.condition_2.margin < c.condition_3.margin
            assert f"_{c.condition_2.evidence['largest']} decides" in plan.name


def test_steps_of_plans():
    made = runs.plans(64, 1, 0)
    steps = {plan.kind: plan.step for plan in made[:3]}
    J = np.concatenate([g[0].reshape(4, -1) for g in batch.jacobian(made[0].draws).values()], axis=1)
    assert 1.0 / steps[runs.STEPS[2]] == pytest.approx(np.linalg.eigvalsh(J @ J.T)[-1], rel=1e-10)
    assert steps["1 / C"] == made[0].constants.largest_step()
    assert steps["1 / C as printed"] == made[0].constants.largest_step(corrected=False)


def test_decrease_per_step_is_the_largest_that_fits():
    found = runs.runs(64, 30, 4, 0)
    t = np.arange(31)
    for i in (0, 2, 8):
        least = proposition_1.decrease_per_step(found, i).min()
        shares = found.loss[:, i] / found.loss[0, i]
        visible = slice(0, len(proposition_1.decrease_per_step(found, i)) + 1)
        assert (shares <= (1 - 0.999 * least) ** t * (1 + 1e-9))[visible].all()
        assert (shares > (1 - 1.001 * least) ** t)[1:][: visible.stop - 1].any()


def test_errors_in_the_rounding_of_the_outputs_are_not_judged():
    plan = runs.close_plans()[0]._replace(y=np.array([1000.0]))
    loss = np.array([[1.0], [1e-4], [1e-18], [1e-3]])
    found = runs.Runs([plan], loss, np.ones((1, 1)), np.ones((1, 1)), {})
    np.testing.assert_allclose(proposition_1.decrease_per_step(found, 0), [1 - 1e-4], rtol=1e-9)


def test_the_loss_falls_a_millionfold_where_that_is_promised():
    for found in runs.short_runs():
        assert (found.loss[-1] < 1e-6 * found.loss[0]).all()
    outcome = follows()
    assert part(outcome, "loss at the end").instances == 10
    shares = [row["last loss / first"] for name, row in outcome.numbers.items() if "1500 steps" in name]
    assert len(shares) == 4
    assert max(shares) < 0.02


def test_weights_move_by_a_fair_part_of_what_they_may():
    outcome = follows()
    for letter, tightness in (("Q", 5e-3), ("K", 5e-3), ("V", 0.08), ("O", 0.08)):
        assert part(outcome, f"|W_{letter}^t").tightness > tightness


def test_runs_that_miss_the_conditions_are_not_judged(monkeypatch, fresh):
    monkeypatch.setattr(runs, "SHARE", 1.1)
    outcome = follows()
    assert part(outcome, "Eq. (4) promises / seen").verdict is Verdict.NOT_APPLICABLE
    assert (outcome.instances, outcome.tried) == (0, 24 + 4 + 6 + 4)


def test_runs_that_go_uphill_are_noticed(monkeypatch, fresh):
    original = runs.loss_gradient
    monkeypatch.setattr(runs, "loss_gradient", lambda *a: {p: -1e-3 * g for p, g in original(*a).items()})
    outcome = follows()
    assert part(outcome, "Eq. (4) promises / seen").verdict is Verdict.FAILS
    assert part(outcome, "loss at the end").verdict is Verdict.FAILS


def test_steps_beyond_the_promise_are_not_judged():
    outcome = follows()
    assert (outcome.instances, outcome.tried) == (16 + 4 + 6 + 4, 24 + 4 + 6 + 4)


# E2 -----------------------------------------------------------------------------------------------------------------


def test_decrease_by_hand():
    np.testing.assert_allclose(proposition_1.least_decrease(0.5, 4), 2.0, rtol=1e-9)
    np.testing.assert_allclose(proposition_1.least_decrease(0.875, 4), 32 / 49, rtol=1e-9)


def test_long_sequence_by_hand():
    T = 7
    one, other = proposition_1.long_sequence(T)
    rows = batch.evaluate(one).attention[0, 0]
    np.testing.assert_allclose(rows[1:, 0], 0.5, rtol=1e-12)

    def hidden(draws):
        x, key, total = draws.x[0, 0, :, 0], draws.K[0, 0, 0], 0.0
        for query in x:
            w = np.exp(query * key * x - (query * key * x).max())
            total += w @ x / w.sum()
        return total

    C_x = np.sqrt(np.sum(one.x**2) / T)
    moved = abs(hidden(other) - hidden(one))
    allowed = T**1.5 * C_x * 2 * C_x**2 * abs(other.K - one.K).item()
    assert proposition_1.drift_line(T, with_T=False) == pytest.approx(moved / allowed, rel=1e-6)
    assert proposition_1.drift_line(T, with_T=True) == pytest.approx(moved / allowed / T, rel=1e-6)


# Wide starts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("law", "scaling"), [("lecun", "sqrt"), ("he", "linear"), ("ntk", "linear")])
@pytest.mark.parametrize("block", [64, 2**20])
def test_constants_in_blocks_are_those_of_the_whole(monkeypatch, law, scaling, block):
    monkeypatch.setattr(wide_starts, "BLOCK", block)
    wide_starts.start_constants.cache_clear()
    case = wide_starts.Case(law, scaling, 3, 2, 8, 50, seed=2, radius=3.0)
    found = wide_starts.start_constants(case)
    wide_starts.start_constants.cache_clear()
    # The same numbers in the same order.
    rng = np.random.default_rng((2, 8, 50, 1))
    inner, outer = np.sqrt(case.variances)
    parts = {name: [] for name in ("W_Q", "W_K", "W_V", "w_O")}
    sizes = list(wide_starts.blocks(50, 8))
    assert sum(sizes) == 50
    for rows in sizes:
        parts["W_Q"].append(inner * rng.standard_normal((rows, 8)))
        parts["W_K"].append(inner * rng.standard_normal((rows, 8)))
    for rows in sizes:
        parts["W_V"].append(inner * rng.standard_normal((rows, 8)))
        parts["w_O"].append(outer * rng.standard_normal(rows))
    weights = {name: np.concatenate(rows) for name, rows in parts.items()}
    y = np.random.default_rng((2, 4)).choice((-1.0, 1.0), 3)
    wanted = Constants.of(case.x, y, weights, tau0=case.tau0, tau1=case.tau1, radius=3.0)
    assert wide_starts.margins(found) == pytest.approx(wide_starts.margins(wanted), rel=1e-9)
    assert wide_starts.margins_again(found) == pytest.approx(wide_starts.margins(wanted), rel=1e-9)
    assert found.start_loss == pytest.approx(wanted.start_loss, rel=1e-9)


def test_drawn_constants_are_those_of_the_theory():
    case = wide_starts.Case("lecun", "sqrt", 2, 2, 8, 40)
    draws, _ = batch.starts("lecun", "sqrt", 2, 2, 8, 40)
    found = wide_starts.drawn_constants(case, draws, np.ones(2))
    wanted = Constants.of(draws.x[0], np.ones(2), draws.weights(0), tau0=draws.tau0[0], tau1=draws.tau1[0])
    assert wide_starts.margins(found) == pytest.approx(wide_starts.margins(wanted), rel=1e-9)


def test_orthonormal_tokens():
    x = wide_starts.Case("lecun", "sqrt", 3, 2, 8, 1, orthonormal=True).x.reshape(6, 8)
    np.testing.assert_array_equal(x @ x.T, np.eye(6))
    x = wide_starts.Case("lecun", "sqrt", 3, 2, 8, 1, orthonormal=True, turned=0.1).x
    np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1.0)
    np.testing.assert_allclose(np.sum(x[:, 0] * x[:, 1], axis=-1), np.cos(0.1))


@pytest.mark.parametrize("law", ["lecun", "he"])
@pytest.mark.parametrize("scaling", ["sqrt", "linear"])
def test_limits_of_norms_and_alpha(law, scaling):
    case = wide_starts.Case(law, scaling, 4, 2, 64, 2**13, orthonormal=True)
    found, limit = wide_starts.start_constants(case), wide_starts.limit_constants(case)
    assert found.alpha == pytest.approx(limit.alpha, rel=0.05)
    for p in "QKVO":
        assert found.norms[p] == pytest.approx(limit.norms[p], rel=0.03)


def test_critical_width_is_where_the_margin_is_1():
    case = wide_starts.Case("lecun", "linear", 8, 2, 256, 1, orthonormal=True)
    for condition in (0, 1):
        m = wide_starts.critical_width(case, condition)
        assert wide_starts.margins(wide_starts.limit_constants(case._replace(m=m)))[condition] == pytest.approx(1.0)


def test_widths_that_are_too_narrow_are_noticed():
    narrow = wide_starts.Case("lecun", "sqrt", 1, 1, 64, 2**12)
    found = conditions.conditions_are_met(SMOKE, [narrow], narrow)
    assert found.verdict is Verdict.FAILS
    assert part(found, "Eq. (4) promises").verdict is Verdict.NOT_APPLICABLE


# Powers -------------------------------------------------------------------------------------------------------------


def test_printed_powers_by_hand():
    assert conditions.printed_powers("sqrt") == pytest.approx([2.0, 3.0], abs=1e-9)
    assert conditions.printed_powers("linear") == pytest.approx([2.0, 1.0], abs=1e-9)


@pytest.mark.parametrize("wrong", [(0.3, 0.5), (0.5, 0.3), (0.7, 0.5), (0.5, 0.7)])
def test_wrong_powers_of_m_are_noticed(monkeypatch, wrong):
    monkeypatch.setattr(conditions, "GROWTH", {"sqrt": wrong})
    assert part(conditions.margins_and_widths_grow(SMOKE), "power of m").verdict is Verdict.FAILS


@pytest.mark.parametrize("wrong", [(2.0, 2.0), (3.0, 3.0)])
def test_wrong_powers_of_N_are_noticed(monkeypatch, wrong):
    monkeypatch.setattr(conditions, "NEEDED", {**conditions.NEEDED, "sqrt": wrong})
    assert part(conditions.margins_and_widths_grow(SMOKE), "of Theorem 1").verdict is Verdict.FAILS


# Theorem 2 ----------------------------------------------------------------------------------------------------------


def test_margins_with_fixed_radius_do_not_grow_for_normal_weights():
    found = conditions.grown(SMOKE, "ntk", "linear")
    assert abs(found["slopes"][0]) < 0.1
    limit = theorem_2.limit_of_margin_2()
    assert (0.85 * limit < found["margins"][:, 0]).all()
    assert (found["margins"][:, 0] < 1.02 * limit).all()


def test_descent_that_is_too_slow_for_theorem_2_is_noticed(monkeypatch):
    original = theorem_2.rate_bound
    monkeypatch.setattr(theorem_2, "rate_bound", lambda gamma, alpha, t: original(50.0 * gamma, alpha, t))
    assert part(theorem_2.theorem_2_with_wider_radius(SMOKE), "m = 8 N").verdict is Verdict.FAILS


def test_swapped_scalings_are_noticed(monkeypatch):
    original = theorem_2.evaluate
    monkeypatch.setattr(theorem_2, "evaluate", lambda d: original(d._replace(tau0=d.O.shape[-1] ** -1.5 / d.tau0)))
    assert theorem_2.attention_by_scaling(SMOKE).verdict is Verdict.FAILS


def test_a_law_with_the_wrong_scale_is_noticed(monkeypatch):
    original = theorem_2.alphas
    monkeypatch.setattr(theorem_2, "alphas", lambda law, *a: original(law, *a) * (1.2 if law == "he" else 1.0))
    assert theorem_2.alpha_by_law(SMOKE).verdict is Verdict.FAILS


def test_eigenvalue_without_tau1_is_off_by_the_width():
    printed, corrected = (theorem_2.hidden_eigenvalue(SMOKE, printed=p) for p in (True, False))
    assert printed.verdict is Verdict.FAILS
    assert 0.25 < float(corrected.worst or np.inf) < 0.5
    assert float(printed.worst or 0.0) > 0.2 * min(printed.numbers["widths"])


# Data and labels ----------------------------------------------------------------------------------------------------


def test_shares_of_similar_pairs():
    x = np.array([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]])
    assert data_and_labels.share_at_least_1(x) == pytest.approx(1 / 3)


def test_distances_and_their_bound():
    far, bound = data_and_labels.distances("lecun", "sqrt", 4, 32, 50)
    draws, _ = batch.starts("lecun", "sqrt", 4, 2, 16, 32, seed=36, count=50)
    at = batch.evaluate(draws)
    y = np.random.default_rng((4, 32)).choice((-1.0, 1.0), (50, 4))
    np.testing.assert_allclose(far**2, np.sum((at.outputs - y) ** 2, axis=-1), rtol=1e-12)
    spread = np.sqrt(1 / 32) * np.linalg.norm(at.hidden, axis=-1).max(-1)
    np.testing.assert_allclose(bound, 2.0 * (1.0 + np.sqrt(2 * np.log(160.0)) * spread), rtol=1e-12)


def test_a_loss_that_grows_faster_is_noticed(monkeypatch):
    original = data_and_labels.distances

    def grown(law, scaling, N, m, count):
        far, bound = original(law, scaling, N, m, count)
        return far * N**0.2, bound

    monkeypatch.setattr(data_and_labels, "distances", grown)
    assert data_and_labels.first_loss_is_of_order_N(SMOKE).verdict is Verdict.FAILS
