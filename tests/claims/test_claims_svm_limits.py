"""The claims on regularization paths and on mixtures hold, and notice what is planted against them."""

import math
from dataclasses import replace

import numpy as np
import pytest

import attnlab as al
from attnlab.claims import Scale, Verdict, check
from attnlab.claims.svm import composition, limits, narrow_factors, other_norms
from attnlab.train.pathresult import PathStatus

SMOKE = Scale.SMOKE
CLAIMS = [*limits.CLAIMS, *other_norms.CLAIMS, *narrow_factors.CLAIMS, *composition.CLAIMS]


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


def with_weights(path, **weights):
    """The path with some of its weights changed."""
    return replace(path, weights={**path.weights, **weights})


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_as_expected(claim):
    (found,) = check([claim], "smoke")
    assert found.as_expected, found.outcome


@pytest.mark.slow
def test_theorem_2_notices_another_direction(tampered):
    tampered(lambda path: with_weights(path, W=np.swapaxes(path.W, -1, -2)))
    assert limits.paths_tend_to_the_max_margin_direction(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_a_search_that_did_not_finish_contradicts_nothing(tampered):
    def unfinished(path):
        status = path.status.copy()
        status[0, -1] = PathStatus.INACCURATE
        W = path.W.copy()
        W[0, -1] = np.nan
        return with_weights(replace(path, status=status), W=W)

    tampered(unfinished)
    outcome = limits.paths_tend_to_the_max_margin_direction(SMOKE)
    assert outcome.verdict is Verdict.UNSOLVED
    assert all(part.verdict is not Verdict.FAILS for part in outcome.parts)
    assert {part.unsolved for part in outcome.parts if part.form == "limit"} == {1}


@pytest.mark.slow
def test_a_path_that_stops_turning_has_another_power_of_R(tampered):
    def stuck(path):
        return replace(path, misalignment=np.maximum(path.misalignment, 9e-4))

    tampered(stuck)
    outcome = limits.paths_tend_to_the_max_margin_direction(SMOKE)
    power = next(part for part in outcome.parts if part.name == "Frobenius: power of R in 1 - cosine")
    assert power.verdict is not Verdict.HOLDS


@pytest.mark.slow
def test_lemma_15_notices_unbalanced_factors(tampered):
    tampered(lambda path: with_weights(path, K=1.001 * path.K, Q=path.Q / 1.001))
    assert limits.balls_of_factors_are_nuclear_balls(SMOKE).verdict is Verdict.FAILS


@pytest.mark.slow
def test_lemma_15_notices_a_point_that_is_no_minimum(tampered):
    def turned(path):
        u, s, vt = np.linalg.svd(path.W)
        return with_weights(path, W=(u * s[..., None, :]) @ np.flip(vt, -1))  # of the same nuclear norm

    tampered(turned)
    assert limits.balls_of_factors_are_nuclear_balls(SMOKE).verdict is Verdict.FAILS


@pytest.mark.parametrize("mask", [None, "full"])
def test_promise_against_the_printed_formula(mask):
    """log(4 C T n B / c) / (R Xi), with K for the sum over queries, from the words of the proof of Theorem 10."""
    batch = al.data.sphere(n=2, T=3, d=4, seed=3, trials=1)
    batch = batch if mask is None else limits.every_token_asks(batch, mask)
    tokens = batch[0]
    queries = [(i, k) for i in range(2) for k in range(1 if mask is None else 3)]
    gamma = {}
    for i, k in queries:
        label = tokens.y[i] if mask is None else tokens.y[i, k]
        gamma[i, k] = [float(label * (tokens.v @ x)) for x in tokens.x[i]]
    slopes = [1.0 / (1.0 + math.exp(g)) for row in gamma.values() for g in row]
    distances = [np.linalg.norm(a - b) for x in tokens.x for a in x for b in x]
    B = float(np.linalg.norm(tokens.v)) * max(distances)
    gap = min(sorted(row)[-1] - sorted(row)[-2] for row in gamma.values())
    K = len(queries) // 2
    wanted = math.log(4 * max(slopes) / min(slopes) * 3 * 2 * K * B / gap)
    promised = limits.promised_deficit(batch, np.array([1.0, 50.0]))[0]
    assert promised == pytest.approx([wanted, wanted / 50.0], rel=1e-12)


@pytest.mark.parametrize(("share", "verdict"), [(0.999, Verdict.FAILS), (1.001, Verdict.UNSOLVED)])
def test_lemma_3_notices_factors_below_the_optimum_and_counts_those_above(monkeypatch, share, verdict):
    def off(tokens, best, *_, **__):
        W = al.solve_margin(tokens, best, norm="nuclear").W
        return np.array([share * np.linalg.norm(W, ord="nuc")]), W[None]

    monkeypatch.setattr(narrow_factors, "searched", off)
    monkeypatch.setattr(narrow_factors, "sizes", lambda tokens, best, W: off(tokens, best)[0])
    assert narrow_factors.narrow_factors_reach_the_convex_optimum(SMOKE).verdict is verdict


def test_lemma_3_notices_products_that_are_no_solutions(monkeypatch):
    honest = narrow_factors.searched

    def other(*args):
        values, products = honest(*args)
        return values, np.swapaxes(products, -1, -2)

    monkeypatch.setattr(narrow_factors, "searched", other)
    outcome = narrow_factors.narrow_factors_reach_the_convex_optimum(SMOKE)
    assert [part.verdict for part in outcome.parts if part.form == "limit"] == [Verdict.FAILS]


def test_searches_do_not_know_the_optimum_but_never_beat_it():
    tokens = al.data.sphere(n=3, T=4, d=5, seed=7)
    best = al.optimal_tokens(tokens)
    convex = al.solve_margin(tokens, best, norm="nuclear")
    values, W = narrow_factors.searched(tokens, best, convex.rank, 0)
    assert values.min() >= np.linalg.norm(convex.W, ord="nuc") * (1 - 1e-9)
    assert max(np.linalg.matrix_rank(one) for one in W) <= convex.rank


@pytest.mark.slow
def test_corollary_1_notices_a_search_that_stops_early(monkeypatch):
    monkeypatch.setattr(other_norms, "_box_path", lambda tokens, best, radii, toward, seed: np.ones((4, 4, 4)))
    outcome = other_norms.paths_in_another_norm_tend_to_its_max_margin_direction(SMOKE)
    assert outcome.verdict is Verdict.FAILS


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_exponential_excess_against_the_model(mask):
    tokens = limits.every_token_asks(al.data.sphere(n=2, T=3, d=4, seed=5, trials=1), mask)[0]
    best = al.optimal_tokens(tokens)
    rng = np.random.default_rng(0)
    flat, direction = rng.standard_normal((2, 16))
    value, slope = other_norms._log_exponential_excess(flat, tokens, best, 7.0)
    model = al.models.excess_loss(tokens, 7.0 * flat.reshape(4, 4), loss="exponential", log=True)
    assert value - np.log(tokens.n) == pytest.approx(float(model), abs=1e-12)  # the objective is a mean over sequences
    ends = [other_norms._log_exponential_excess(flat + h * direction, tokens, best, 7.0)[0] for h in (1e-6, -1e-6)]
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(slope @ direction, rel=1e-6)


def test_exponential_excess_far_out_is_its_leading_term():
    """Where the drop underflows, the logarithm still falls by the margin."""
    tokens = limits.every_token_asks(al.data.sphere(n=2, T=3, d=4, seed=5, trials=1), "full")[0]
    best = al.optimal_tokens(tokens)
    solution = al.solve_margin(tokens, best)
    flat = solution.W.ravel()
    near, _ = other_norms._log_exponential_excess(flat, tokens, best, 2000.0)
    far, slope = other_norms._log_exponential_excess(flat, tokens, best, 2001.0)
    assert far - near == pytest.approx(-1.0, abs=1e-6)
    assert np.isfinite(slope).all()


def test_least_leads_against_the_constraints():
    tokens = al.data.sphere(n=3, T=4, d=4, seed=2, trials=4)
    W = np.random.default_rng(0).standard_normal((4, 2, 4, 4))
    best = al.optimal_tokens(tokens)
    rows = [al.svm.margin_rows(tokens[i], best[i]) for i in range(4)]
    wanted = [[row.values(one).min() for one in W[i]] for i, row in enumerate(rows)]
    assert limits.least_leads(tokens, W, best) == pytest.approx(np.array(wanted), rel=1e-12)


def test_constraint_matrices_against_the_rows():
    tokens = limits.every_token_asks(al.data.sphere(n=2, T=3, d=4, seed=5, trials=1), "causal")[0]
    best = al.optimal_tokens(tokens)
    W = np.random.default_rng(0).standard_normal((4, 4))
    values = np.einsum("jde,de->j", other_norms.constraint_matrices(tokens, best), W)
    assert sorted(values) == pytest.approx(sorted(al.svm.margin_rows(tokens, best).values(W)), rel=1e-12)


def test_least_entrywise_norm_of_one_constraint():
    """The least max |W_ij| with <A, W> >= 1 is one over the sum of |A_ij|."""
    A = np.random.default_rng(1).standard_normal((1, 3, 3))
    assert other_norms.least_entrywise_norm(A) == pytest.approx(1.0 / np.abs(A).sum(), rel=1e-9)


def test_distance_to_solutions_of_a_box():
    A = np.array([[[1.0, 0.0], [0.0, 0.0]]])  # solutions of margin 1: W_11 = 1, the rest in [-1, 1]
    inside = np.array([[1.0, 0.3], [-0.5, 1.0]])
    outside = np.array([[0.0, 0.0], [0.0, 1.0]])
    assert other_norms.distance_to_solutions(inside, A, 1.0) == pytest.approx(0.0, abs=1e-9)
    assert other_norms.distance_to_solutions(outside, A, 1.0) == pytest.approx(1.0, rel=1e-6)


def test_best_weights_maximise_over_the_simplex():
    rng = np.random.default_rng(0)
    gamma = rng.standard_normal(6)
    weights, clear = composition.best_weights(gamma, 0.4)
    value = gamma @ weights - 0.4 * weights @ weights
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert clear > 0
    for other in rng.dirichlet(np.ones(6), 2000):
        assert gamma @ other - 0.4 * other @ other <= value + 1e-12


@pytest.mark.slow
def test_local_selections_are_locally_optimal_and_not_the_best():
    found = limits.local_selections(6)
    assert found is not None
    tokens, selected, drawn = found
    assert 0 < len(selected) <= drawn
    for i, chosen in enumerate(selected):
        assert al.theory.is_locally_optimal(tokens[i], chosen)
        assert (chosen != al.optimal_tokens(tokens[i])).any()
