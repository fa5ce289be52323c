"""Claims on step rules notice planted faults; two tokens agree with a scalar recurrence."""

from types import SimpleNamespace

import numpy as np
import pytest

from attnlab.claims.claim import Verdict
from attnlab.claims.rates import polyak, starts, step_rules, two_tokens
from attnlab.claims.scale import Scale
from attnlab.optim import gd, ngd
from attnlab.theory import rate_bounds

SMOKE = Scale.SMOKE
GRID = np.unique(np.geomspace(1, 3000, 200).astype(int))


def curves(falls):
    """A stand-in for `trained`: 1 - cos as `falls(rule, t, loss)` says, for three trials."""

    def trained(tokens, rule, steps, *, loss="exponential", **_):
        apart = np.stack([factor * falls(rule, GRID.astype(float), loss) for factor in (0.9, 1.0, 1.1)])
        return SimpleNamespace(
            steps=GRID, metrics={"misalignment_svm": apart, "log_excess_loss": np.log(apart)}, last_step=steps
        )

    return trained


@pytest.mark.parametrize("step", two_tokens.STEPS)
def test_gradient_descent_on_two_tokens_is_a_scalar_recurrence(step):
    start = two_tokens.starts(step, 2)
    run = two_tokens.trained(gd(step), start, 3000)
    w = start[:, 0, 0].copy()
    for _ in range(3000):
        phi = 1 / (1 + np.exp(-w))
        w += step * np.exp(-phi) * phi * (1 - phi)
    np.testing.assert_allclose(run.W[:, 0, 0], w, rtol=1e-12)
    h = np.sqrt(w**2 + two_tokens.off_axis(start))
    apart = two_tokens.off_axis(start) / (h * (h + w))
    np.testing.assert_allclose(run.metrics["misalignment_svm"][:, -1], apart, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wrong"), [("gd", ngd), ("ngd", gd)])
def test_the_sharp_rates_tell_the_rules_apart(monkeypatch, name, wrong):
    measure = {"gd": two_tokens.descent_is_logarithmic, "ngd": two_tokens.normalized_is_quadratic}[name]
    assert measure(SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(two_tokens, name, wrong)
    assert measure(SMOKE).verdict is Verdict.FAILS


def test_theorem_6_needs_its_constant(monkeypatch):
    assert two_tokens.theorem_6_corrected(SMOKE).verdict is Verdict.HOLDS
    printed = two_tokens.theorem_6_printed(SMOKE)
    assert printed.verdict is Verdict.FAILS
    assert printed.numbers["bounds above 1"] > 0
    assert all(value >= 1 for value in printed.slack.values())

    def smaller(*args, norm, **options):
        return rate_bounds.descent_constant(*args, norm=norm, **options) - 1e-3 * norm[0]

    monkeypatch.setattr(two_tokens, "descent_constant", smaller)
    assert two_tokens.theorem_6_corrected(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_a_step_other_than_the_cap_is_noticed(monkeypatch):
    assert step_rules.polyak_at_its_cap(SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(step_rules, "gd", lambda step: gd(step * (1 + 1e-12)))
    assert step_rules.polyak_at_its_cap(SMOKE).verdict is Verdict.FAILS


def test_from_when_the_cap_binds():
    bound = np.array([[0, 1, 0, 1, 1], [0, 0, 1, 1, 1]], dtype=bool)
    assert step_rules._bound_from(bound) == 3
    assert step_rules._bound_from(np.ones((2, 3), dtype=bool)) == 0
    assert step_rules._bound_from(~bound[:, :1]) == 0
    assert step_rules._bound_from(bound[:, :1]) is None


@pytest.mark.parametrize(("gain", "verdict"), [(5.0, Verdict.HOLDS), (0.5, Verdict.FAILS)])
def test_momentum_that_slows_down_is_noticed(monkeypatch, gain, verdict):
    def falls(rule, t, loss):
        return 1 / (1 + 0.1 * t * (gain if rule.name == "ngd_momentum" else 1.0))

    monkeypatch.setattr(step_rules, "trained", curves(falls))
    assert step_rules.momentum_is_faster(SMOKE).verdict is verdict


@pytest.mark.parametrize(("power", "verdict"), [(1.5, Verdict.HOLDS), (0.8, Verdict.FAILS)])
def test_a_slower_logistic_loss_is_noticed(monkeypatch, power, verdict):
    def falls(rule, t, loss):
        return 1e-2 * t ** -(power if loss == "logistic" else 1.5)

    monkeypatch.setattr(step_rules, "trained", curves(falls))
    assert step_rules.logistic_is_as_fast(SMOKE).verdict is verdict


@pytest.mark.parametrize(
    ("falls", "to_the_end", "at_first"),
    [
        (lambda rule, t, loss: 1 / t if rule.name == "polyak" else 1000 * t**-2.0, Verdict.FAILS, Verdict.HOLDS),
        (lambda rule, t, loss: 1 / t if rule.name == "polyak" else 2 / t, Verdict.HOLDS, Verdict.FAILS),
        (lambda rule, t, loss: 2 / t if rule.name == "polyak" else 1 / t, Verdict.FAILS, Verdict.FAILS),
    ],
    ids=["crossing", "ahead", "behind"],
)
def test_who_is_ahead(monkeypatch, falls, to_the_end, at_first):
    monkeypatch.setattr(step_rules, "trained", curves(falls))
    step_rules._raced.cache_clear()
    assert step_rules.polyak_ahead_to_the_end(SMOKE).verdict is to_the_end
    found = step_rules.polyak_ahead_at_first(SMOKE)
    assert found.verdict is at_first
    step_rules._raced.cache_clear()
    if at_first is Verdict.HOLDS:  # 1/t and 1000/t^2 cross at 1000
        last = found.numbers["last step at which PS is ahead"]["figure 2"]
        assert all(900 < step <= 1000 for step in last)


@pytest.mark.slow
def test_a_trapped_start_is_noticed(monkeypatch):
    found = starts.bad_directions_recover(SMOKE)
    assert found.verdict is Verdict.HOLDS
    assert 0.35 <= found.numbers["largest c that is not"] < found.numbers["least c that is trapped"] <= 0.4
    monkeypatch.setattr(starts, "SMALL", (0.5,))
    assert starts.bad_directions_recover(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_a_wrong_bound_on_the_gradient_is_noticed(monkeypatch):
    """Exactly orthogonal tokens meet the lower bound with equality."""
    assert polyak.gradient_between_bounds(SMOKE).verdict is Verdict.HOLDS
    right = polyak.best_and_rest
    monkeypatch.setattr(polyak, "best_and_rest", lambda *args: (1.001 * right(*args)[0], right(*args)[1]))
    assert polyak.gradient_between_bounds(SMOKE).verdict is Verdict.FAILS


def test_the_polyak_theorem_applies_as_soon_as_a_run_reaches_it(monkeypatch):
    monkeypatch.setattr(polyak, "_last_below", lambda beta, step: 10**12)
    assert polyak.explicit_rate(SMOKE).verdict is not Verdict.NOT_APPLICABLE
    monkeypatch.setattr(polyak, "_last_below", lambda beta, step: 10)
    found = polyak.explicit_rate(SMOKE)
    assert found.verdict is Verdict.NOT_APPLICABLE
    assert max(found.slack.values()) < 1


@pytest.mark.parametrize("module", [two_tokens, step_rules, starts, polyak])
def test_ids_are_of_this_paper(module):
    assert all(claim.id.startswith("rates-") and claim.reason for claim in module.CLAIMS)
