"""Claims on sub-exponential variables and Gaussian matrices: oracles, and whether planted faults show."""

import numpy as np
import pytest

from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import probability
from attnlab.claims.scale import Scale

SMOKE = Scale.SMOKE


def judged(measure, **options):
    return measure(SMOKE, **options).verdict


@pytest.mark.parametrize("name", list(probability.LAWS))
def test_log_moments_against_draws(name):
    law = probability.LAWS[name]
    values = law.draw(np.random.default_rng(0), 400_000)
    for s in np.array([-0.2, 0.2]) / max(law.nu, law.a):
        weights = np.exp(s * values)
        error = weights.std() / np.sqrt(len(values)) / weights.mean()
        assert law.log_moment(np.array(s)) == pytest.approx(np.log(weights.mean()), abs=5 * error)
    assert abs(values.mean()) < 5 * values.std() / np.sqrt(len(values))


def test_variables_that_are_not_sub_exponential_are_noticed(monkeypatch):
    law = probability.LAWS["N(0, 4)"]
    monkeypatch.setitem(probability.LAWS, "N(0, 4)", law._replace(nu=0.99 * law.nu))
    assert judged(probability.multiples_are_sub_exponential) is Verdict.FAILS
    assert judged(probability.sums_are_sub_exponential) is Verdict.FAILS


def test_shares_are_compared_with_what_is_allowed(monkeypatch):
    """Singular values that leave the least interval alone: always, against a probability of 2 exp(-1.125)."""

    def made(rows, columns, count, above, below):
        far = np.sqrt(columns) + 1.7
        return np.tile([np.sqrt(rows) + above * far, np.sqrt(rows) - below * far], (count, 1))

    for sides in ((1, 0), (0, 1)):
        monkeypatch.setattr(probability, "singular_values", lambda *sizes, sides=sides: made(*sizes, *sides))
        found = probability.singular_values_concentrate(SMOKE)
        assert found.verdict is Verdict.FAILS
        assert found.worst == pytest.approx(0.5 * np.exp(1.125))
    monkeypatch.setattr(probability, "singular_values", lambda r, c, n: np.full((n, 1), 3.1 * np.sqrt(r)))
    assert probability.start_norms_are_bounded(SMOKE).worst == pytest.approx(0.5 * np.exp(32.0))


def test_moment_ratios_reach_the_ends_of_their_range():
    assert probability.moment_ratio(lambda s: s**2, 1.0, 0.5) == pytest.approx(2.0)
    assert probability.moment_ratio(lambda s: np.where(s > 1.99, 1e3, 0.0), 1.0, 0.5) > 1.0
    assert probability.moment_ratio(lambda s: np.where(s < -1.99, 1e3, 0.0), 1.0, 0.5) > 1.0
