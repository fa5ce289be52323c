"""The claims on regularization paths hold, and notice what is planted against them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import attnlab as al
from attnlab.claims import Scale, Verdict, check
from attnlab.claims.svm import limits

SMOKE = Scale.SMOKE


@pytest.fixture
def tampered(monkeypatch):
    """Hands a changed path to the claims."""

    def tamper(change):
        followed = limits.followed.__wrapped__

        def changed(*args):
            case = followed(*args)
            return replace(case, path=change(case.path))

        monkeypatch.setattr(limits, "followed", changed)

    return tamper


@pytest.mark.slow
@pytest.mark.parametrize("claim", limits.CLAIMS, ids=lambda claim: claim.id)
def test_as_expected(claim):
    (found,) = check([claim], "smoke")
    assert found.as_expected, found.outcome


@pytest.mark.slow
def test_theorem_2_notices_another_direction(tampered):
    tampered(lambda path: replace(path, W=np.swapaxes(path.W, -1, -2)))
    assert limits.paths_tend_to_the_max_margin_direction(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_lemma_15_notices_unbalanced_factors(tampered):
    tampered(lambda path: replace(path, K=1.001 * path.K, Q=path.Q / 1.001))
    assert limits.balls_of_factors_are_nuclear_balls(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_lemma_15_notices_a_point_that_is_no_minimum(tampered):
    def turned(path):
        u, s, vt = np.linalg.svd(path.W)
        return replace(path, W=(u * s[..., None, :]) @ np.flip(vt, -1))  # of the same nuclear norm

    tampered(turned)
    assert limits.balls_of_factors_are_nuclear_balls(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.999, 1.001])
def test_lemma_3_notices_factors_below_and_above_the_optimum(monkeypatch, share):
    def off(tokens, best, width, *_, **__):
        return share * np.linalg.norm(al.solve_margin(tokens, best, norm="nuclear").W, ord="nuc")

    monkeypatch.setattr(limits, "_from_random_starts", off)
    monkeypatch.setattr(limits, "solve_factored", lambda *args, **_: SimpleNamespace(value=off(*args[:3])))
    assert limits.narrow_factors_reach_the_convex_optimum(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_corollary_1_notices_a_search_that_stops_early(monkeypatch):
    monkeypatch.setattr(limits, "_box_path", lambda tokens, best, radii, toward, seed: np.ones((3, 4, 4)))
    assert limits.paths_in_another_norm_tend_to_its_max_margin_direction(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_exponential_excess_against_the_model(mask):
    tokens = limits.every_token_asks(al.data.sphere(n=2, T=3, d=4, seed=5, trials=1), mask)[0]
    best = al.optimal_tokens(tokens)
    rng = np.random.default_rng(0)
    flat, direction = rng.standard_normal((2, 16))
    value, slope = limits._log_exponential_excess(flat, tokens, best, 7.0)
    model = al.models.excess_loss(tokens, 7.0 * flat.reshape(4, 4), loss="exponential", log=True)
    assert value - np.log(tokens.n) == pytest.approx(float(model), abs=1e-12)  # the objective is a mean over sequences
    ends = [limits._log_exponential_excess(flat + h * direction, tokens, best, 7.0)[0] for h in (1e-6, -1e-6)]
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(slope @ direction, rel=1e-6)


def test_least_leads_against_the_constraints():
    tokens = al.data.sphere(n=3, T=4, d=4, seed=2, trials=4)
    W = np.random.default_rng(0).standard_normal((4, 2, 4, 4))
    best = al.optimal_tokens(tokens)
    rows = [al.svm.margin_rows(tokens[i], best[i]) for i in range(4)]
    wanted = [[row.values(one).min() for one in W[i]] for i, row in enumerate(rows)]
    assert limits.least_leads(tokens, W) == pytest.approx(np.array(wanted), rel=1e-12)


def test_random_starts_do_not_know_the_optimum_but_never_beat_it():
    tokens = al.data.sphere(n=3, T=4, d=5, seed=7)
    best = al.optimal_tokens(tokens)
    convex = al.solve_margin(tokens, best, norm="nuclear")
    value = limits._from_random_starts(tokens, best, convex.rank, seed=0, starts=1)
    assert value >= np.linalg.norm(convex.W, ord="nuc") * (1 - 1e-9)
