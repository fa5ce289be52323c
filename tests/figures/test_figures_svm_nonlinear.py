"""Figures 8 and 11: the filter and the predictions against independent ones, verdicts on doctored data."""

import dataclasses

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.data.tokens import Tokens
from attnlab.figures.svm import attempts, kept, nonlinear
from attnlab.figures.svm.attempts import Attempts, Search, draw
from attnlab.figures.svm.kept import BETWEEN, NOTHING_MASKED, RETAINED, apart, exceeds, predict, sort_out, tally
from attnlab.models import Mlp, RoundedMlp, attention, loss
from attnlab.svm import solve_margin

TINY = Search(dims=(4,), wanted=3, most=32, together=80, flow_dims=(4,), flows=1)


def silent(done, total, what):
    pass


def made_up(rng, d, *, runs=60, shares=(0.003, 0.01, 0.1), masked=1e-15):
    """Arrays as the search leaves them, with these means of 1 - corr."""
    names = ("mixture", "margin", "single")
    noise = rng.uniform(0.9, 1.1, (runs, 21))
    return {
        **{f"{name}_d{d}": share * noise for name, share in zip(names, shares, strict=True)},
        f"masked_d{d}": masked * rng.uniform(0.5, 1.0, runs),
        f"kept_d{d}": rng.integers(1, 5, (runs, 3)),
        f"labels_d{d}": rng.choice([-1.0, 1.0], (runs, 3)),
        f"dead_d{d}": rng.random((runs, 3)) < 0.2,
        f"flow_dead_d{d}": np.zeros((len(noise[:5]), 3), dtype=bool),
        f"norm_d{d}": np.full(runs, 100.0),
        f"gap_d{d}": np.zeros(runs),
        f"residual_d{d}": np.zeros(runs),
        f"reasons_d{d}": np.repeat([RETAINED, BETWEEN], [runs, 3 * runs]),
        f"flow_mixture_d{d}": 0.004 * noise[:5, :15],
        f"flow_reasons_d{d}": np.full(5, RETAINED),
        "dims": np.array([d]),
        "flow_dims": np.array([d]),
        "steps": np.arange(0, 2001, 100),
        "times": np.r_[0.0, 10.0 ** np.arange(14)],
    }


def test_the_filter_names_each_case():
    between = [[0.5, 0.5 - 1e-4, 1e-4], [1.0, 1e-9, 1e-9]]
    nothing = [[0.4, 0.3, 0.3], [0.4, 0.3, 0.3]]
    good = [[0.4, 0.6, 0.0], [1.0, 1e-9, 1e-9]]
    reasons = sort_out(np.array([between, nothing, good]), masked=1e-6)
    assert reasons.tolist() == [BETWEEN, NOTHING_MASKED, RETAINED]
    assert tally(reasons)["attempts"] == sum(v for k, v in tally(reasons).items() if k != "attempts") == 3


def test_predictions_are_in_order_on_weights_that_keep_two_tokens():
    """W with two levels by hand: the mixture does at least as well as W^mm, and one token each does worse."""
    rng = np.random.default_rng(3)
    x, z = rng.standard_normal((2, 2, 3, 6)), rng.standard_normal((2, 2, 6))
    tokens = Tokens(x=x, z=z, y=np.ones((2, 2)))
    W = []
    for i in range(2):
        # Keep tokens 0 and 1 of the first sequence, token 2 of the second.
        level = [np.outer(x[i, 0, 0] - x[i, 0, 1], z[i, 0])]
        above = [np.outer(x[i, 0, 0] - x[i, 0, 2], z[i, 0])] + [
            np.outer(x[i, 1, 2] - x[i, 1, t], z[i, 1]) for t in (0, 1)
        ]
        rows = np.array([row.ravel() for row in level + above])
        grow = np.linalg.pinv(rows) @ np.array([0.0, 1.0, 1.0, 1.0])
        stay = np.linalg.pinv(rows[:1]) @ np.array([0.7])
        W.append((stay + 40.0 * grow).reshape(6, 6))
    W = np.array(W)
    probs = attention(tokens, W)
    found = predict(tokens, W, probs)
    assert found.feasible.all()
    assert (found.residual < 1e-10).all()
    ends = {name: apart(W[:, None], getattr(found, name))[:, 0] for name in ("mixture", "margin", "single")}
    assert (ends["mixture"] <= ends["margin"] + 1e-15).all()
    assert (ends["margin"] < ends["single"]).all()
    for i in range(2):
        oracle = solve_margin(tokens[i], probs[i].argmax(-1)).W
        np.testing.assert_allclose(found.single[i], oracle, atol=1e-9)


def test_a_perturbed_prediction_is_noticed(monkeypatch):
    rng = np.random.default_rng(0)
    tokens = Tokens(x=rng.standard_normal((1, 1, 3, 4)), z=rng.standard_normal((1, 1, 4)), y=np.ones((1, 1)))
    W = solve_margin(tokens[0], [0]).W[None] * 40.0
    probs = attention(tokens, W)
    assert apart(W[:, None], predict(tokens, W, probs).mixture)[0, 0] < 1e-12
    right = kept.solve_generalized
    nudged = np.zeros((4, 4))
    nudged[0, 0] = 0.3
    monkeypatch.setattr(kept, "solve_generalized",
                        lambda *a, **k: dataclasses.replace(right(*a, **k), W=right(*a, **k).W + nudged))  # fmt: skip
    assert apart(W[:, None], predict(tokens, W, probs).mixture)[0, 0] > 1e-4


def test_all_kept_has_no_direction():
    tokens = Tokens(x=np.eye(3)[None, None], z=np.ones((1, 1, 3)), y=np.ones((1, 1)))
    found = predict(tokens, np.zeros((1, 3, 3)), np.full((1, 1, 3), 1 / 3))
    assert not found.feasible.any()
    assert np.isnan(found.margin).all()


def test_draws_are_repeatable_and_have_unit_parts():
    few, same = draw(4, 0, 8), draw(4, 0, 8)
    assert np.array_equal(few.tokens.x, same.tokens.x)
    assert not np.array_equal(few.tokens.x, draw(4, 1, 8).tokens.x)
    np.testing.assert_allclose(np.linalg.norm(few.V, axis=(-2, -1)), 1.0)
    np.testing.assert_allclose(np.linalg.norm(few.tokens.z, axis=-1), 1.0)
    picked = few.pick(np.array([2, 5]))
    assert np.array_equal(picked.tokens.y, few.tokens.y[[2, 5]])
    assert np.array_equal(picked.start, few.start[[2, 5]])


def test_a_sequence_is_dead_when_every_unit_is_off():
    drawn = draw(4, 0, 3)
    probs = np.zeros((3, 3, 4))
    probs[..., 0] = 1.0
    x = np.array(drawn.tokens.x)
    # V^T o = -1 in every unit, for the first token of one sequence only.
    x[1, 2, 0] = np.linalg.solve(drawn.V[1].T, -np.ones(4))
    x[0, :, 0] = x[2, :, 0] = np.linalg.solve(drawn.V[0].T, np.array([-1.0, -1.0, -1.0, 1.0]))
    off = attempts.dead(Attempts(Tokens(x=x, z=drawn.tokens.z, y=drawn.tokens.y), drawn.V, drawn.start), probs)
    assert off[1, 2]
    assert not off[0].any()
    assert not attempts.dead(Attempts(Tokens(x=x, z=drawn.tokens.z, y=drawn.tokens.y), drawn.V, drawn.start), probs,
                             below=2.0)[1, 2]  # fmt: skip


@pytest.mark.slow
def test_the_rounded_head_tends_to_the_relu():
    drawn: Attempts = draw(4, 0, 5)
    exact = loss(drawn.tokens, drawn.start, head=Mlp(drawn.V))
    wide, narrow = (
        np.abs(loss(drawn.tokens, drawn.start, head=RoundedMlp(drawn.V, width=width)) - exact) for width in (1e-2, 1e-4)
    )
    assert (narrow < wide).all()
    assert narrow.max() < 1e-4
    assert [RoundedMlp(drawn.V, width=width).describe()["width"] for width in (1e-2, 1e-4)] == [1e-2, 1e-4]


def test_judge_eight_wants_the_order_and_the_alignment():
    rng = np.random.default_rng(1)
    good = made_up(rng, 8)
    assert nonlinear.judge_eight(good, {}).verdict is Verdict.HOLDS
    swapped = nonlinear.judge_eight(made_up(rng, 8, shares=(0.003, 0.1, 0.01)), {})
    assert swapped.verdict is Verdict.FAILS
    assert "Not seen: W^mm is nearer than W^1token at d = 8" in swapped.seen
    misfit = nonlinear.judge_eight(made_up(rng, 8, shares=(0.008, 0.003, 0.1)), {})
    assert "W^SVMeq is no farther than W^mm in any run at d = 8 (0 of" in misfit.seen
    assert nonlinear.judge_eight(made_up(rng, 8, shares=(0.02, 0.03, 0.1)), {}).verdict is Verdict.FAILS
    few = made_up(rng, 8, shares=(0.008, 0.03, 0.1), runs=3)
    few["mixture_d8"][:, -1] = [0.001, 0.001, 0.025]
    assert nonlinear.judge_eight(few, {}).verdict is Verdict.TOO_FEW
    assert nonlinear.judge_eight(made_up(rng, 4, runs=0), {}).verdict is Verdict.NOT_APPLICABLE


def test_judge_eleven_wants_settled_runs_aligned():
    rng = np.random.default_rng(2)
    assert nonlinear.judge_eleven(made_up(rng, 4), {}).verdict is Verdict.HOLDS
    assert nonlinear.judge_eleven(made_up(rng, 4, shares=(0.02, 0.03, 0.1)), {}).verdict is Verdict.FAILS
    # The same misalignment is no contradiction at d = 4 while masked weights are large, but it is at d = 8.
    loose = {"shares": (0.02, 0.03, 0.1), "masked": 1e-7}
    assert nonlinear.judge_eleven(made_up(rng, 8, **loose), {}).verdict is Verdict.FAILS
    assert nonlinear.judge_eleven(made_up(rng, 4, **loose), {}).verdict is Verdict.NOT_APPLICABLE


def test_few_values_never_exceed_and_many_do():
    assert not exceeds(np.array([0.5]), 0.01)
    assert not exceeds(np.array([0.0, 0.5]), 0.01)
    assert exceeds(np.full(30, 0.02) + 1e-4 * np.arange(30), 0.01)


@pytest.mark.parametrize("draw_it", [nonlinear.draw_eight, nonlinear.draw_eleven])
@pytest.mark.parametrize("runs", [0, 1, 30])
def test_drawing_works_with_any_number_of_runs(draw_it, runs, tmp_path):
    data = made_up(np.random.default_rng(4), 6, runs=runs)
    data["reasons_d6"] = np.r_[data["reasons_d6"], BETWEEN]
    draw_it(data, {}).savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.slow
def test_search_counts_and_shares(monkeypatch):
    monkeypatch.setattr(Search, "at", classmethod(lambda cls, scale: TINY))
    monkeypatch.setattr(attempts, "_searched", {})
    arrays, facts = nonlinear.eight_data(Scale.SMOKE, silent)
    counted, retained = facts["d = 4"], len(arrays["mixture_d4"])
    assert counted["attempts"] == len(arrays["reasons_d4"]) <= TINY.most
    assert retained == (arrays["reasons_d4"] == RETAINED).sum() == counted["retained"] <= TINY.wanted
    assert arrays["reasons_d4"][-1] == RETAINED or counted["attempts"] == TINY.most
    assert (arrays["labels_d4"] < 0).any(-1).all()
    assert (arrays["masked_d4"] < attempts.MASKED).all()
    assert (arrays["mixture_d4"][:, -1] <= arrays["margin_d4"][:, -1] + 1e-15).all()
    # The second figure finds the runs of the first: nothing is trained again.
    monkeypatch.setattr(attempts, "train", None)
    again, about = nonlinear.eleven_data(Scale.SMOKE, silent)
    assert np.array_equal(again["mixture_d4"], arrays["mixture_d4"])
    assert about["flow, d = 4"]["attempts"] == len(again["flow_reasons_d4"]) == 1
    assert nonlinear.judge_eleven(again, about).verdict in (Verdict.HOLDS, Verdict.NOT_APPLICABLE, Verdict.TOO_FEW)
