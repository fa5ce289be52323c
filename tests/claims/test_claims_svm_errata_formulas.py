"""Printed formulas fail and corrected ones hold; where the fault is taken away, the verdict changes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import attnlab as al
from attnlab.claims import Kind, Scale, Verdict, check
from attnlab.claims.svm import errata_convergence, errata_formulas as errata, first_step, text_slips
from attnlab.theory import LipschitzConstants

SMOKE = Scale.SMOKE
CLAIMS = [*errata.CLAIMS, *text_slips.CLAIMS]
BY_ID = {claim.id: claim for claim in [*CLAIMS, *first_step.CLAIMS, *errata_convergence.CLAIMS]}


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_as_expected(claim):
    (found,) = check([claim], "smoke")
    assert found.as_expected, found.outcome


def test_only_a_statement_and_a_constant_count_as_errata():
    errors = {id for id, claim in BY_ID.items() if claim.expected is Verdict.ERRATUM}
    assert errors == {"svm-E3", "svm-E5"}
    assert BY_ID["svm-E3"].slip.kind is Kind.CONSTANT
    assert BY_ID["svm-E5"].slip.kind is Kind.STATEMENT


def test_machine_epsilon():
    assert BY_ID["svm-E12"].measure(SMOKE).verdict is Verdict.SLIP


def test_a_larger_rank_is_noticed(monkeypatch):
    too_large = SimpleNamespace(feasible=True, rank=6)
    monkeypatch.setattr(errata, "solve_margins", lambda tokens, selected, norm: [too_large])
    assert errata.rank_is_at_most_the_smaller_of_n_and_d(SMOKE).verdict is Verdict.FAILS


def test_ranks_that_are_not_certified_are_unsolved(monkeypatch):
    unknown = SimpleNamespace(feasible=True, rank=None)
    monkeypatch.setattr(errata, "solve_margins", lambda tokens, selected, norm: [unknown])
    assert errata.rank_is_at_most_the_smaller_of_n_and_d(SMOKE).verdict is Verdict.UNSOLVED


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
def test_printed_gradients_are_those_of_the_exchanged_product():
    assert errata._exchanged_roles(SMOKE) < 1e-6


@pytest.mark.slow
def test_the_squared_constant_would_not_be_an_erratum(monkeypatch):
    monkeypatch.setattr(LipschitzConstants, "K_printed", LipschitzConstants.K)
    errata._steepest_on_a_line.cache_clear()
    assert errata.printed_constant_of_one_factor(SMOKE).verdict is Verdict.HOLDS
    errata._steepest_on_a_line.cache_clear()


@pytest.mark.slow
def test_a_gradient_that_does_not_vanish_would_have_a_constant(monkeypatch):
    true = errata.gradient
    monkeypatch.setattr(errata, "gradient", lambda *args: (true(*args)[0], {"W": np.zeros(errata.TRIALS)}))
    assert errata.printed_uniform_constant(SMOKE).verdict is Verdict.HOLDS


@pytest.mark.slow
def test_a_gradient_at_zero_would_be_noticed(monkeypatch):
    true = errata.slopes
    monkeypatch.setattr(errata, "slopes", lambda *args: {k: g + 1e-13 for k, g in true(*args).items()})
    assert errata.printed_no_stationary_point_of_factors(SMOKE).verdict is Verdict.HOLDS


@pytest.mark.slow
def test_transposed_paths_would_exchange_the_products(monkeypatch):
    true = errata.followed

    def transposed(*args):
        case = true(*args)
        weights = case.path.weights
        exchanged = replace(case.path, weights={"K": weights["Q"], "Q": weights["K"]})
        return replace(case, path=exchanged)

    monkeypatch.setattr(errata, "followed", transposed)
    outcome = BY_ID["svm-E10"].measure(SMOKE)
    assert outcome.numbers["printed"]["verdict"] == "holds"
    assert outcome.numbers["corrected"]["verdict"] == "fails"


def test_one_query_makes_line_100_right(monkeypatch):
    true = text_slips.excess_by_query
    monkeypatch.setattr(text_slips, "excess_by_query", lambda scale: (true(scale)[0][:, :, :1], np.array(2)))
    assert text_slips.loss_against_the_worst_query(SMOKE, factor=1.0).verdict is Verdict.HOLDS


def test_the_least_gap_makes_the_radius_right():
    assert first_step.cone_radius_with(SMOKE, printed=True).verdict is Verdict.FAILS
    corrected = first_step.cone_radius_with(SMOKE, printed=False)
    assert corrected.verdict is Verdict.HOLDS
    assert corrected.tightness == pytest.approx(1.0, rel=1e-9)


def test_the_rule_of_counting_does_not_matter_but_the_gap_does():
    parts = errata_convergence.rank_counts(SMOKE).parts
    wrong = {part.name: part.worst for part in parts}
    assert len(wrong) == 4
    assert all(share > 0.9 for name, share in wrong.items() if "1e-06," in name)
    assert all(share < 0.2 for name, share in wrong.items() if "1e-08," in name)


def test_interpolation_needs_every_token_to_be_a_support_token(monkeypatch):
    honest = text_slips.all_support

    def careless(seed):
        sample = honest(seed)
        return replace(sample, meets=np.ones_like(sample.meets))

    monkeypatch.setattr(text_slips, "all_support", careless)
    assert text_slips.interpolation_is_max_margin(SMOKE).verdict is Verdict.FAILS


def test_exact_tests_of_b1_agree_with_the_largest_value():
    tested = errata_convergence.tests_of_b1(SMOKE)
    tokens = al.data.sphere(5, 5, 20, gap=0.1, seed=120, trials=20)
    largest = [np.nanmax(one.values) for one in al.solve_margins(tokens, al.optimal_tokens(tokens))]
    assert tested.exact[tested.d == 20].tolist() == [value < 1 + 1e-6 for value in largest]
