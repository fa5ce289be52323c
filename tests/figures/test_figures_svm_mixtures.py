"""Figures 9 and 12: the formula against a solver of its own, trained attention, verdicts on doctored data."""

import numpy as np
import pytest
from scipy.optimize import minimize

from attnlab.claims import Scale, Verdict
from attnlab.figures.svm import concave, lemma6, mixtures
from attnlab.figures.svm.concave import TOKENS, best_mixture, kept_by_formula, on_sphere, train, with_scores
from attnlab.figures.svm.kept import BETWEEN, RETAINED


def silent(done, total, what):
    pass


@pytest.fixture(scope="module")
def twelve():
    """The exact part of the data of Figure 12, with trained parts that agree with it."""
    found = [lemma6.accepted(bound, 60) for bound in lemma6.BOUNDS]
    exact = np.stack([kept_by_formula(scores, strength) for scores, strength, _ in found])
    return {
        "bounds": np.array(lemma6.BOUNDS), "attempts": np.array([drawn for *_, drawn in found]),
        "strengths": np.stack([strength for _, strength, _ in found]), "exact": exact,
        **{f"{m}_count": exact[:, :4] for m in ("gd", "flow")},
        **{f"{m}_error": np.zeros((len(exact), 4)) for m in ("gd", "flow")},
    }  # fmt: skip


def nine(*, share=0.004, trials=20):
    """Arrays of Figure 9 in which everything is as the paper says."""
    x, rng = np.array([0.0, 0.5, 2.5]), np.random.default_rng(0)
    counts = np.array([1, 4, 9])[:, None].repeat(trials, 1)
    data = {"strengths": x}
    for method in ("gd", "flow"):
        data |= {
            f"{method}_count": counts, f"{method}_exact": counts, f"{method}_deviation": np.zeros(counts.shape),
            f"{method}_reasons": np.full(counts.shape, RETAINED if method == "flow" else BETWEEN),
            f"{method}_mixture": share * rng.uniform(0.9, 1.1, counts.shape),
            f"{method}_margin": 2 * share * rng.uniform(0.9, 1.1, counts.shape),
            f"{method}_norm": np.full(counts.shape, 30.0),
        }  # fmt: skip
    return data


@pytest.mark.parametrize("strength", [0.0, 0.05, 0.3, 1.0, 2.5])
def test_the_best_mixture_is_best(strength):
    """Against a general solver, and by its optimality conditions."""
    rng = np.random.default_rng(int(100 * strength))
    scores = on_sphere(rng, 5)
    strengths = np.full(5, strength)
    found = best_mixture(scores, strengths)
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-12)
    assert (found >= 0).all()
    assert np.array_equal((found > 0).sum(-1), kept_by_formula(scores, strengths))
    for g, s in zip(scores, found, strict=True):
        slope = g - 2 * strength * s
        held = s > 0
        np.testing.assert_allclose(slope[held], slope[held][0], atol=1e-12)
        assert (slope[~held] <= slope[held][0] + 1e-12).all()
        whole = {"type": "eq", "fun": lambda p: p.sum() - 1}
        solved = minimize(lambda p, g=g: strength * p @ p - g @ p, np.full(TOKENS, 0.1), method="SLSQP",
                          bounds=[(0, 1)] * TOKENS, constraints=whole)  # fmt: skip
        assert strength * s @ s - g @ s <= solved.fun + 1e-8


def test_scores_are_those_asked_for():
    rng = np.random.default_rng(1)
    scores = on_sphere(rng, 3)
    mixing = with_scores(scores, np.ones(3), rng)
    np.testing.assert_allclose(mixing.scores, scores, atol=1e-14)
    np.testing.assert_allclose(mixing.tokens.x[:, 0] @ mixing.tokens.x[:, 0].swapaxes(1, 2), np.eye(TOKENS)[None]
                               .repeat(3, 0), atol=1e-14)  # fmt: skip
    assert mixing.tokens.v is not None
    np.testing.assert_allclose(np.linalg.norm(mixing.tokens.v, axis=-1), 1.0)
    assert mixing.pick(np.array([2, 0])).strength.tolist() == [1.0, 1.0]
    np.testing.assert_allclose(mixing.pick(np.array([2, 0])).scores, scores[[2, 0]], atol=1e-14)


def test_accepted_pairs_meet_the_hypothesis_and_attempts_are_counted():
    for bound in (2, 9):
        scores, strength, drawn = lemma6.accepted(bound, 30)
        assert len(scores) == 30
        assert lemma6.meets(scores, strength, bound).all()
        assert 30 / drawn == pytest.approx({2: 0.017, 9: 0.245}[bound], rel=0.6)


def test_lemma_6_holds_on_accepted_pairs_and_a_wrong_formula_is_noticed(twelve):
    assert lemma6.judge_twelve(twelve, {}).verdict is Verdict.HOLDS
    # Four times the strength, as if the formula had 8 strength for 2 strength.
    found = [lemma6.accepted(bound, 60) for bound in lemma6.BOUNDS]
    wrong = np.stack([kept_by_formula(scores, 4.0 * strength) for scores, strength, _ in found])
    assert lemma6.judge_twelve({**twelve, "exact": wrong}, {}).verdict is Verdict.FAILS
    too_many = twelve["exact"].copy()
    too_many[0, 0] = 3
    seen = lemma6.judge_twelve({**twelve, "exact": too_many}, {})
    assert seen.verdict is Verdict.FAILS
    assert seen.numbers["outside [2, τ], exact"] == 1


def test_judge_nine_notices_each_departure():
    assert mixtures.judge_nine(nine(), {}).verdict is Verdict.HOLDS
    two = nine()
    two["gd_count"] = np.where(np.arange(3)[:, None] == 0, 2, two["gd_count"])
    assert mixtures.judge_nine(two, {}).verdict is Verdict.FAILS
    falling = nine()
    falling["flow_count"] = falling["flow_count"][[0, 2, 1]]
    assert "more tokens" in mixtures.judge_nine(falling, {}).seen
    assert mixtures.judge_nine(nine(share=0.06), {}).verdict is Verdict.FAILS


def test_trials_that_the_filter_drops_do_not_count_for_the_flow():
    data = nine()
    data["flow_mixture"] = np.where(np.arange(20) == 0, 0.9, data["flow_mixture"])
    data["flow_reasons"] = np.where(np.arange(20) == 0, BETWEEN, data["flow_reasons"])
    assert mixtures.judge_nine(data, {}).verdict is Verdict.HOLDS
    data["flow_reasons"] = np.full((3, 20), RETAINED)
    assert mixtures.settled(data, "flow", "mixture").max() == 0.9


def test_drawings(twelve, tmp_path):
    for name, picture in (("nine", mixtures.draw_nine(nine(), {})), ("twelve", lemma6.draw_twelve(twelve, {}))):
        picture.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_flow_ends_in_the_best_mixture_and_constant_steps_swing_around_it():
    rng = np.random.default_rng(5)
    mixing = with_scores(on_sphere(rng, 3), np.array([0.1, 0.5, 1.0]), rng)
    exact = best_mixture(mixing.scores, mixing.strength)
    _, probs, reasons = concave.follow(mixing)
    np.testing.assert_allclose(probs[:, 0], exact, atol=1e-8)
    assert (reasons == RETAINED).all()
    _, steps, dropped = train(mixing)
    several = kept_by_formula(mixing.scores, mixing.strength) > 1
    assert np.abs(steps[:, 0] - exact).max(-1)[several].min() > 1e-6
    assert (dropped[several] == BETWEEN).all()


@pytest.mark.slow
@pytest.mark.parametrize("module", [mixtures, lemma6])
def test_smoke_data_hold_together(module):
    (figure,) = module.FIGURES
    arrays, facts = figure.data(Scale.SMOKE, silent)
    finding = figure.judge(arrays, facts)
    assert finding.verdict is Verdict.HOLDS
    assert arrays.get("flow_deviation", arrays.get("flow_error")).max() < 1e-8
    counts = [v["attempts"] for v in facts.values() if isinstance(v, dict) and "attempts" in v]
    assert sum(counts) == arrays["gd_reasons"].size + arrays["flow_reasons"].size
