"""Figures 2 and 5 of the rates paper: arrivals, crossovers, caps; verdicts on doctored curves."""

import numpy as np
import pytest

from attnlab.claims import Verdict
from attnlab.data import orthogonal_signal
from attnlab.figures import make
from attnlab.figures.rates import curves, signal

STEPS = np.unique(np.geomspace(1, 3000, 60).astype(int))
FACTS = {"sets": 3, "steps": 3000, "n": 20, "T": 6, "d": 100, "NGD step": 0.025, "NGD cap": 100.0, "Polyak cap": 10.0}
# 1 - cos reaches 0.1 at this step, and falls as this power of t.
WAYS = {"gd": (4000, 1.0), "ngd": (500, 2.0), "momentum": (70, 2.0), "control": (65, 2.0), "polyak": (70, 1.3)}


def made_up(**ways):
    t = STEPS.astype(float)
    arrays = {"steps": STEPS, "floor": np.full(3, np.exp(-1.0))}
    for column in signal.COLUMNS:
        for name in signal._names(column):
            start, power = {**WAYS, **ways}[name]
            apart = 0.1 * (t / start) ** -power
            attention = 1 - np.exp(-5 * t / start)
            excess = -1.0 - 5 * t / start
            found = {
                "loss": np.exp(-1.0) + np.exp(excess), "log_excess_loss": excess, "norm": 12 * t / start,
                "attention": attention, "log_off_attention": -t, "misalignment_svm": np.minimum(apart, 1.0),
                "log_gradient_norm": -4.0 - t / 600.0,
            }  # fmt: skip
            arrays |= {f"{column}_{name}_{key}": np.tile(values, (3, 1)) for key, values in found.items()}
    return arrays


def test_the_order_of_the_rules_decides():
    good = signal.judge(made_up(), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen
    for name, way, words in (
        ("polyak", (900, 1.3), "the Polyak step aligns before NGD"),
        ("ngd", (5000, 2.0), "NGD aligns before GD"),
        ("momentum", (600, 2.0), "momentum aligns before NGD"),
        ("ngd", (500, 0.8), "1 - cos of NGD falls at least as 1/t"),
    ):
        bad = signal.judge(made_up(**{name: way}), FACTS)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen


def test_limits_are_looked_at():
    for key, words in (("attention", "attention saturates"), ("norm", "norm of NGD grows linearly")):
        arrays = made_up()
        for column in signal.COLUMNS:
            arrays[f"{column}_ngd_{key}"] = np.full_like(arrays[f"{column}_ngd_{key}"], 0.5)
        assert words in signal.judge(arrays, FACTS).seen
    arrays = made_up()
    arrays["capped_ngd_loss"] = arrays["capped_ngd_loss"] + 0.1
    finding = signal.judge(arrays, FACTS)
    assert finding.verdict is Verdict.FAILS
    assert "not to 0" in finding.seen


def test_the_crossover_is_told():
    late = signal.judge(made_up(), FACTS)
    # 0.1 (t/70)^-1.3 = 0.1 (t/500)^-2 at t = 500^(2/0.7) / 70^(1.3/0.7)
    crossing = 500 ** (2 / 0.7) / 70 ** (1.3 / 0.7)
    assert crossing > 3000
    assert "does not overtake" in late.seen
    early = signal.judge(made_up(polyak=(70, 0.8)), FACTS)
    crossing = 500 ** (2 / 1.2) / 70 ** (0.8 / 1.2)
    told = early.numbers["NGD overtakes the Polyak step at, quartiles"][1]
    assert told == STEPS[crossing <= STEPS][0]
    assert "only at first" in early.seen


def test_where_the_cap_binds():
    arrays = made_up()
    bound = signal._cap_binds(arrays, "ngd", FACTS)
    expected = np.log(0.025) + 4.0 + STEPS / 600.0 >= np.log(100.0)
    np.testing.assert_array_equal(bound[0], expected)
    assert "so it is GD with step 10" not in signal.judge(arrays, FACTS).seen
    arrays["capped_polyak_log_excess_loss"] = 2 * arrays["capped_polyak_log_gradient_norm"] + np.log(20.0) + 0.001
    assert signal._cap_binds(arrays, "polyak", FACTS).all()
    arrays["capped_polyak_log_excess_loss"] -= 0.002
    assert not signal._cap_binds(arrays, "polyak", FACTS).any()


def test_arrivals():
    steps = np.array([0, 1, 10, 100])
    values = np.array([[1.0, 0.05, 0.5, 0.01], [1.0, 0.9, 0.8, 0.7], [np.nan, 0.9, 0.1, 0.2]])
    np.testing.assert_array_equal(curves.arrival(steps, values, 0.1), [1, np.inf, 10])
    np.testing.assert_array_equal(curves.for_good(steps, values <= 0.1), [100, np.inf, np.inf])
    assert curves.middle([3.0, np.inf, np.inf, 1.0]) == 3.0
    np.testing.assert_allclose(curves.slope(np.arange(5.0), np.stack([2 * np.arange(5.0) + 1, np.zeros(5)])), [2, 0])


def test_it_can_be_drawn(tmp_path):
    signal.draw(made_up(), FACTS).savefig(tmp_path / "2.png")


def test_starts_do_not_depend_on_how_many_there_are():
    from attnlab.data import optimal_tokens
    from attnlab.svm import solve_margins

    few, more = (orthogonal_signal(n=4, T=3, d=8, seed=signal.SEED, trials=trials) for trials in (2, 3))
    start, deviation = signal._start(few, solve_margins(few, optimal_tokens(few)))
    longer, _ = signal._start(more, solve_margins(more, optimal_tokens(more)))
    np.testing.assert_allclose(start, longer[:2], rtol=1e-9)
    length = np.linalg.norm(solve_margins(few, optimal_tokens(few)).W, axis=(1, 2))
    np.testing.assert_allclose(deviation, 0.025 / (8 * length * 8), rtol=1e-9)  # the signal, of norm 1, is the largest


@pytest.mark.slow
@pytest.mark.parametrize("figure", signal.FIGURES, ids=lambda f: f.id)
def test_smoke(figure, tmp_path):
    made = make(figure, "smoke", out=tmp_path)
    assert made.finding.verdict is Verdict.HOLDS, made.finding.seen
    assert "100 % of the recorded steps" in made.finding.seen
