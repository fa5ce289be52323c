"""Claims on step rules notice planted faults; two tokens agree with a scalar recurrence."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import attnlab as al
from attnlab.claims.claim import Verdict
from attnlab.claims.matrices import inner
from attnlab.claims.parts import Bound
from attnlab.claims.rates import polyak, starts, step_rules, two_tokens
from attnlab.claims.rates.families import rays
from attnlab.claims.rates.instances import family_of, followed
from attnlab.claims.scale import Scale
from attnlab.optim import gd, ngd

SMOKE = Scale.SMOKE
GRID = np.unique(np.geomspace(1, 3000, 200).astype(int))


def curves(falls):
    """A stand-in for `trained`: 1 - cos as `falls(rule, t, loss)` says, for three trials."""

    def trained(tokens, rule, steps, *, loss="exponential", **_):
        apart = np.stack([factor * falls(rule, GRID.astype(float), loss) for factor in (0.9, 1.0, 1.1)])
        return SimpleNamespace(
            steps=GRID,
            metrics={
                "misalignment_svm": apart,
                "log_excess_loss": np.log(apart),
                "norm": 1 / apart,
                "attention": 1 - apart,
            },
            last_step=steps,
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
    ("falls", "verdict"),
    [
        (lambda rule, t, loss: 1 / t if rule.name == "polyak" else 1500 * t**-2.0, Verdict.HOLDS),
        (lambda rule, t, loss: 1 / t if rule.name == "polyak" else 2 / t, Verdict.FAILS),
        (lambda rule, t, loss: 2 / t if rule.name == "polyak" else 1 / t, Verdict.FAILS),
        (lambda rule, t, loss: 1 / t if rule.name == "polyak" else 500 * t**-2.0, Verdict.FAILS),
    ],
    ids=["crossing", "ahead to the end", "behind", "crossing too early"],
)
def test_who_is_ahead(monkeypatch, falls, verdict):
    monkeypatch.setattr(step_rules, "trained", curves(falls))
    step_rules._raced.cache_clear()
    found = step_rules.polyak_ahead_at_first(SMOKE)
    step_rules._raced.cache_clear()
    assert found.verdict is verdict
    if verdict is Verdict.HOLDS:  # 1/t and 1500/t^2 cross at 1500
        last = found.numbers["last step ahead in direction, figure 2"]
        assert all(1400 < step <= 1500 for step in last)


@pytest.mark.slow
def test_a_trapped_start_is_noticed(monkeypatch):
    found = starts.bad_directions_recover(SMOKE)
    assert found.verdict is Verdict.HOLDS
    assert 0.35 <= found.numbers["largest c that is not"] < found.numbers["least c that is trapped"] <= 0.4
    monkeypatch.setattr(starts, "SMALL", (0.5,))
    assert starts.bad_directions_recover(SMOKE).verdict is Verdict.FAILS


def test_a_wrong_bound_on_the_gradient_is_noticed():
    """Two tokens meet the lower bound with equality, opposite ones the upper bound at W = 0."""
    data = family_of("rays", rays())
    lower, upper = Bound("lower"), Bound("upper")
    polyak.add_gradients(lower, upper, data, polyak.ray_and_random_weights(data, 12))
    assert lower.part().tightness == pytest.approx(1)
    assert upper.part().tightness == pytest.approx(1)
    wrong = replace(data, constants=tuple(replace(c, Lambda=c.Lambda / 1.01) for c in data.constants))
    lower = Bound("lower")
    polyak.add_gradients(lower, Bound("upper"), wrong, polyak.ray_and_random_weights(data, 12))
    assert lower.part().verdict is Verdict.FAILS


def test_the_polyak_recurrence_on_a_ray_is_the_run():
    data = family_of("rays", rays((3.0,)))
    step = 0.05
    start = np.zeros((data.trials, data.tokens.d, data.tokens.d))
    run = followed(data, al.polyak(constant=step), start, list(range(20)))
    along = inner(run.metrics["W"], data.unit_target[:, None])
    for trial, known in enumerate(data.constants):
        ray = polyak.ray_run(known, step, 0.999).along
        length = min(len(ray), along.shape[1])
        assert length > 5
        np.testing.assert_allclose(along[trial, :length], ray[:length], rtol=1e-9, atol=1e-12)


def test_the_polyak_theorem_is_judged_as_soon_as_a_run_reaches_it(monkeypatch):
    found = polyak.explicit_rate(SMOKE)
    assert found.verdict is Verdict.NOT_APPLICABLE
    assert max(found.slack["T_0 / t_0, as printed"], found.slack["T_0 / t_0, corrected"]) < 1
    # A run that crawls is still below beta at t_0, and aligned as the bound asks or not.
    slow = polyak.RayRun(np.linspace(0.0, 1e4, 100_000), finished=True)
    monkeypatch.setattr(polyak, "ray_run", lambda known, step, beta: slow)
    assert polyak.explicit_rate(SMOKE).verdict is not Verdict.NOT_APPLICABLE
    monkeypatch.setattr(polyak, "ray_run", lambda known, step, beta: replace(slow, finished=False))
    assert polyak.explicit_rate(SMOKE).verdict is Verdict.UNSOLVED


@pytest.mark.parametrize("module", [two_tokens, step_rules, starts, polyak])
def test_ids_are_of_this_paper(module):
    assert all(claim.id.startswith("rates-") and claim.reason for claim in module.CLAIMS)
