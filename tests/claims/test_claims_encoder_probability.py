"""Claims on sub-exponential variables and Gaussian matrices: oracles, and whether wrong ones show."""

from functools import partial

import numpy as np
import pytest

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import probability
from attnlab.claims.scale import Scale

SMOKE = Scale.SMOKE
DRAWS = {
    "product of two N(0, 1)": lambda rng, n: rng.standard_normal(n) * rng.standard_normal(n),
    "product of two N(0, 0.01)": lambda rng, n: 0.01 * rng.standard_normal(n) * rng.standard_normal(n),
    "N(0, 4)": lambda rng, n: 2.0 * rng.standard_normal(n),
    "square of N(0, 1), less 1": lambda rng, n: rng.standard_normal(n) ** 2 - 1.0,
    "exponential, less 1": lambda rng, n: rng.standard_exponential(n) - 1.0,
}


def judged(measure, **options):
    return measure(SMOKE, **options).verdict


def part(outcome, words):
    (found,) = [p for p in outcome.parts if words in p.name]
    return found


@pytest.mark.parametrize("claim", probability.CLAIMS, ids=lambda claim: claim.id)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome


@pytest.mark.parametrize("name", list(probability.LAWS))
def test_moments_and_tails_against_draws(name):
    law, tail = probability.LAWS[name]
    values = DRAWS[name](np.random.default_rng(0), 400_000)
    for s in np.array([-0.2, 0.2]) / max(law.nu, law.a):
        weights = np.exp(s * values)
        error = weights.std() / np.sqrt(len(values)) / weights.mean()
        assert law.log_moment(np.array(s)) == pytest.approx(np.log(weights.mean()), abs=5 * error)
    assert abs(values.mean()) < 5 * values.std() / np.sqrt(len(values))
    for t in (0.3 * law.nu, law.nu, 3.0 * law.nu):
        share = float(np.mean(np.abs(values) >= t))
        assert tail(t) == pytest.approx(share, abs=5 * np.sqrt(share / len(values)) + 1e-5)


def test_variables_that_are_not_sub_exponential_are_noticed(monkeypatch):
    law, tail = probability.LAWS["N(0, 4)"]
    wrong = probability.Tailed(law._replace(nu=0.99 * law.nu), tail)
    monkeypatch.setitem(probability.LAWS, "N(0, 4)", wrong)
    assert judged(probability.multiples_are_sub_exponential) is Verdict.FAILS
    assert judged(probability.sums_are_sub_exponential) is Verdict.FAILS


def test_infinite_moments_are_noticed():
    law = probability.LAWS["exponential, less 1"].law
    assert probability.moment_ratios(law).max() <= 1.0
    assert probability.moment_ratios(law._replace(a=0.5)).max() == np.inf


def test_moment_ratios_reach_the_ends_of_their_range():
    def law(log_moment):
        return probability.Law(1.0, 0.5, log_moment)

    assert probability.moment_ratios(law(lambda s: s**2)) == pytest.approx(2.0)
    assert probability.moment_ratios(law(lambda s: np.where(s > 1.99, 1e3, 0.0))).max() > 1.0
    assert probability.moment_ratios(law(lambda s: np.where(s < -1.99, 1e3, 0.0))).max() > 1.0


def test_both_terms_of_lemma_4_are_looked_at():
    found = probability.deviations_are_rare(SMOKE)
    assert part(found, "where nu decides").instances == len(probability.DELTAS)  # the normal variable
    assert part(found, "where a decides").instances == 4 * len(probability.DELTAS)
    assert part(found, "where nu decides").tightness > 0.2
    assert part(found, "where a decides").tightness > 0.05


def test_singular_values_outside_are_noticed(monkeypatch):
    """All of them outside the least interval on one side, against a probability of 2 exp(-1.125)."""

    def made(rows, columns, count, above, below):
        far = np.sqrt(columns) + 1.7
        return np.tile([np.sqrt(rows) + above * far, np.sqrt(rows) - below * far], (count, 1))

    for sides in ((1, 0), (0, 1)):
        monkeypatch.setattr(probability, "singular_values", lambda *sizes, sides=sides: made(*sizes, *sides))
        found = probability.singular_values_concentrate(SMOKE)
        assert part(found, "outside, u = 1.5").verdict is Verdict.FAILS
        assert part(found, "outside, u = 2.0").verdict is Verdict.HOLDS
        assert found.verdict is Verdict.FAILS
    monkeypatch.setattr(probability, "singular_values", lambda r, c, n: np.full((n, 1), 3.1 * np.sqrt(r)))
    assert probability.start_norms_are_bounded(SMOKE).verdict is Verdict.FAILS


def test_the_quantile_is_the_stated_one(monkeypatch):
    """With u = 2 at most 27 % may be outside: singular values of which 30 % are too large break it, 20 % do not."""

    def made(rows, columns, count, share):
        values = np.full((count, 2), np.sqrt(rows))
        values[: int(share * count), 0] = np.sqrt(rows) + np.sqrt(columns) + 2.2
        return values

    for share, wanted in ((0.2, Verdict.HOLDS), (0.3, Verdict.FAILS)):
        monkeypatch.setattr(probability, "LEVELS", (2.0,))
        monkeypatch.setattr(probability, "singular_values", partial(made, share=share))
        assert part(probability.singular_values_concentrate(SMOKE), "quantile of s_max").verdict is wanted
