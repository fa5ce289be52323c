"""Rates of decay: exact curves of every family, planted noise, mixtures, and what cannot be told."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attnlab.errors import InputError
from attnlab.theory.fitting import FAMILIES, compare_families, fit_rate

STEPS = np.unique(np.geomspace(10, 1e6, 120).astype(int)).astype(float)
CURVES = {
    "power": lambda t, rate: rate * -np.log(t),
    "log2_over_t": lambda t, rate: rate * np.log(np.log(t) ** 2 / t),
    "inverse_log": lambda t, rate: rate * np.log(1 / np.log(t)),
    "stretched": lambda t, rate: -rate * t ** (1 / 3),
}


@pytest.mark.parametrize("family", FAMILIES)
@given(rate=st.floats(0.05, 5), level=st.floats(-3000, 3000), first=st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_an_exact_curve_gives_its_rate_and_family(family, rate, level, first):
    t = STEPS[first:]
    logs = level + CURVES[family](t, rate)
    fit = fit_rate(t, log_values=logs, family=family)
    assert fit.rate == pytest.approx(rate, rel=1e-6)
    assert fit.low == pytest.approx(rate, rel=1e-6)
    assert fit.high == pytest.approx(rate, rel=1e-6)
    assert fit.conclusive
    assert compare_families(t, log_values=logs).best == family


@pytest.mark.parametrize("family", FAMILIES)
def test_the_interval_between_trials_covers_the_true_rate(family):
    """Trials whose own rates scatter around 1: the 95 % interval misses the mean in about one set of twenty."""
    rng, missed = np.random.default_rng(0), 0
    for _ in range(300):
        rates = 1.0 + 0.1 * rng.standard_normal(5)
        logs = np.stack([CURVES[family](STEPS, rate) for rate in rates])
        between = fit_rate(STEPS, log_values=logs, family=family).between
        missed += not between[0] <= 1.0 <= between[1]
    assert 5 <= missed <= 27  # 15 expected, deviation 3.8


def test_planted_noise_stays_inside_the_interval():
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        fit = fit_rate(STEPS, log_values=-np.log(STEPS) + 0.05 * rng.standard_normal(STEPS.size))
        inside += fit.low <= 1.0 <= fit.high
    assert inside >= 170  # all four local rates on one side of the truth: one in eight, if independent


def test_records_dense_at_the_end_do_not_pull_the_rate():
    """A bend from t^-1 to t^-3 in the middle of log t; linearly spaced records see almost only the end."""
    grid = np.geomspace(10, 1e5, 400)
    dense = np.unique(np.concatenate([np.geomspace(10, 1e5, 60).astype(int), np.arange(50_000, 100_000, 50)])) * 1.0

    def bent(t):
        return np.where(t < 1e3, -np.log(t), -3 * np.log(t) + 2 * np.log(1e3))

    even, uneven = (fit_rate(t, log_values=bent(t)) for t in (grid, dense))
    assert uneven.rate == pytest.approx(even.rate, rel=0.01)
    assert even.low == pytest.approx(1, abs=1e-6)
    assert even.high == pytest.approx(3, abs=1e-6)
    assert "not steady" in even.reason


def test_a_mixture_is_not_called_a_power():
    mixed = np.logaddexp(-2 * np.log(STEPS), -0.5 * np.log(STEPS) - 8)
    fit = fit_rate(STEPS, log_values=mixed)
    assert not fit.conclusive
    assert fit.low < 0.6
    assert fit.high > 1.2
    assert compare_families(STEPS, log_values=mixed).best is None


def test_noise_that_hides_the_difference_says_so():
    """Over one decade a power and log^2 t / t differ by less than 1 % of noise."""
    t = np.geomspace(1e5, 1e6, 40)
    logs = CURVES["log2_over_t"](t, 1.0) + 0.02 * np.random.default_rng(0).standard_normal((4, 40))
    found = compare_families(t, log_values=logs)
    assert found.best is None
    assert "equally well" in found.reason
    assert "stretched" not in found.reason
    assert {*list(found.fits)[:2]} == {"power", "log2_over_t"}


def test_a_constant_is_of_no_family():
    assert compare_families(STEPS, log_values=np.zeros(len(STEPS))).best is None


def test_short_ranges_say_so():
    t = np.arange(10.0, 90.0)
    assert "shorter than a decade" in fit_rate(t, 1 / t).reason
    assert "shorter than a decade" in compare_families(t, 1 / t).reason
    assert fit_rate(t, 1 / t).rate == pytest.approx(1)
    assert fit_rate(STEPS, 1 / STEPS).decades == pytest.approx(5)


def test_values_and_logarithms_agree_and_underflow_needs_logarithms():
    logs = -(STEPS ** (1 / 3))
    assert fit_rate(STEPS, np.exp(logs)).rate == fit_rate(STEPS, log_values=logs).rate
    deep = 100 * logs
    assert fit_rate(STEPS, log_values=deep, family="stretched").rate == pytest.approx(100)
    with pytest.raises(InputError, match="log_values"):
        fit_rate(STEPS, np.exp(deep))


def test_against_a_proved_rate():
    fit = fit_rate(STEPS, STEPS**-1.5)
    assert [fit.against(proved) for proved in (1, 1.5, 2)] == ["faster", "as proved", "slower"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": None}, "one of `values`"),
        ({"log_values": np.zeros(len(STEPS))}, "one of `values`"),
        ({"values": np.ones(3)}, "shape"),
        ({"steps": STEPS[::-1]}, "increase"),
        ({"values": np.zeros(len(STEPS))}, "no positive, finite value at step 10"),
        ({"family": "line"}, "power"),
        ({"start": 1.0}, "10 <= start"),
        ({"start": 1e3, "stop": 1e2}, "10 <= start"),
        ({"start": 9e5}, "too few"),
    ],
)
def test_bad_input_is_named(change, words):
    given = {"steps": STEPS, "values": 1 / STEPS} | change
    with pytest.raises(InputError, match=words):
        fit_rate(**given)


def test_a_failed_trial_is_not_dropped_in_silence():
    values = np.stack([1 / STEPS, np.full(len(STEPS), np.nan)])
    with pytest.raises(InputError, match="no positive, finite value"):
        fit_rate(STEPS, values)


@pytest.mark.parametrize(("change", "constant"), [(0.009, True), (0.011, False)])
def test_a_constant_curve_has_no_rate(change, constant):
    logs = np.linspace(0.0, -change, STEPS.size)
    fit = fit_rate(STEPS, log_values=np.stack([logs, -np.log(STEPS)]))
    assert fit.constant.tolist() == [constant, False]
    assert fit.reason is not None
    assert ("1 of 2 trials is constant to 1 %" in fit.reason) == constant
    alone = fit_rate(STEPS, log_values=np.zeros(STEPS.size))
    assert alone.reason is not None
    assert alone.reason.startswith("The curve is constant")


@pytest.mark.parametrize(("other", "alike"), [(1.3, True), (2.0, False)])
def test_trials_far_apart_have_no_common_rate(other, alike):
    fit = fit_rate(STEPS, log_values=np.stack([-np.log(STEPS), -other * np.log(STEPS)]))
    assert fit.conclusive == alike
    if not alike:
        assert "no common rate: 1 in one, 2 in another" in str(fit.reason)
