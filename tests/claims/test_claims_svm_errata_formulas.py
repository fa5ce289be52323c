"""Printed formulas fail and corrected ones hold; where the fault is taken away, the verdict changes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict, check
from attnlab.claims.svm import errata_formulas as errata
from attnlab.theory import LipschitzConstants

SMOKE = Scale.SMOKE
BY_ID = {claim.id: claim for claim in errata.CLAIMS}


@pytest.mark.slow
@pytest.mark.parametrize("claim", errata.CLAIMS, ids=lambda claim: claim.id)
def test_as_expected(claim):
    (found,) = check([claim], "smoke")
    assert found.as_expected, found.outcome


def test_machine_epsilon():
    assert BY_ID["svm-E12"].measure(SMOKE).verdict is Verdict.ERRATUM


def test_a_larger_rank_is_noticed(monkeypatch):
    too_large = SimpleNamespace(feasible=True, rank=6)
    monkeypatch.setattr(errata, "solve_margins", lambda tokens, selected, norm: [too_large])
    assert errata.rank_is_at_most_the_smaller_of_n_and_d(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_swapped_gradients_are_noticed_either_way(monkeypatch):
    true = errata.slopes
    swapped = lambda *args: {name: np.swapaxes(part, -1, -2) for name, part in true(*args).items()}  # noqa: E731
    monkeypatch.setattr(errata, "slopes", swapped)
    outcome = BY_ID["svm-E2"].measure(SMOKE)
    # The transpose makes the printed formula right, and the corrected one wrong.
    assert outcome.verdict is Verdict.HOLDS
    assert outcome.numbers["corrected"]["verdict"] == "fails"


@pytest.mark.slow
def test_the_squared_constant_would_not_be_an_erratum(monkeypatch):
    monkeypatch.setattr(LipschitzConstants, "K_printed", LipschitzConstants.K)
    assert errata.printed_constant_of_one_factor(SMOKE).verdict is Verdict.HOLDS


@pytest.mark.slow
def test_a_gradient_that_does_not_vanish_would_have_a_constant(monkeypatch):
    true = errata.gradient
    monkeypatch.setattr(errata, "gradient", lambda *args: (true(*args)[0], {"W": np.zeros(errata.TRIALS)}))
    assert errata.printed_uniform_constant(SMOKE).verdict is Verdict.HOLDS


@pytest.mark.slow
def test_a_gradient_at_zero_would_be_noticed(monkeypatch):
    true = errata.slopes
    monkeypatch.setattr(errata, "slopes", lambda *args: {k: g + 1e-300 for k, g in true(*args).items()})
    monkeypatch.setattr(errata, "length", lambda a: np.abs(a).max((-2, -1)))
    assert errata.printed_no_stationary_point_of_factors(SMOKE).verdict is Verdict.HOLDS


@pytest.mark.slow
def test_symmetric_paths_would_not_tell_the_products_apart(monkeypatch):
    true = errata.followed

    def symmetric(*args):
        case = true(*args)
        return replace(case, path=replace(case.path, W=np.swapaxes(case.path.W, -1, -2)))

    monkeypatch.setattr(errata, "followed", symmetric)
    outcome = BY_ID["svm-E10"].measure(SMOKE)
    assert outcome.numbers["printed"]["verdict"] == "holds"
    assert outcome.numbers["corrected"]["verdict"] == "fails"
