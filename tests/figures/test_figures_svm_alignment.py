"""Figures 7 and 10: all widths in one program, verdicts on doctored data."""

import numpy as np
import pytest

from attnlab.claims import Verdict
from attnlab.data import sphere
from attnlab.figures.svm import alignment
from attnlab.figures.svm.batches import mean_interval, top_attention, train, train_along
from attnlab.models import attention
from attnlab.svm import solve_margins
from attnlab.train import misalignment


def curves(ends, trials=6):
    """Cosines that rise to these ends."""
    steps = np.arange(0, 2001, 500)
    arrays = {"steps": steps, "W_frobenius_rank": np.full(trials, 6.0), "KQ_nuclear_rank": np.full(trials, 3.0)}
    for (name, norm), end in ends.items():
        rise = np.linspace(0.0, end, len(steps))
        arrays[f"{name}_{norm}"] = np.tile(rise, (trials, 1))
        arrays[f"{name}_{norm}_gap"] = np.full(trials, 1e-12)
        arrays[f"{name}_attention"] = np.tile(np.linspace(0.2, 1.0, len(steps)), (trials, 1))
        arrays[f"{name}_margin"] = np.full(trials, 30.0)
    return arrays


FACTS = {"steps": 2000, "trials": 6, "n": 6, "T": 8, "d": 10}
GOOD = {("W", "frobenius"): 0.997, ("W", "nuclear"): 0.86, ("KQ", "frobenius"): 0.85, ("KQ", "nuclear"): 0.996}


def test_each_must_align_with_its_own_only():
    assert alignment.judge_7(curves(GOOD), FACTS).verdict is Verdict.HOLDS
    for pair, value in ((("W", "frobenius"), 0.98), (("KQ", "nuclear"), 0.9), (("W", "nuclear"), 0.97),
                        (("KQ", "frobenius"), 0.7)):  # fmt: skip
        assert alignment.judge_7(curves({**GOOD, pair: value}), FACTS).verdict is Verdict.FAILS
    unsettled = curves(GOOD)
    unsettled["KQ_attention"][:] = 0.5
    assert alignment.judge_7(unsettled, FACTS).verdict is Verdict.FAILS


def widths_arrays(rows):
    values = np.tile(np.array(rows)[:, None], (1, 5, 1))
    return {"m": np.array([1, 5, 10]), "size": np.array([[5, 5], [10, 5], [5, 15]]), "apart": values,
            "rank": np.full((3, 5), 3.0)}  # fmt: skip


def test_curves_must_fall_at_m_equal_n():
    good = [[0.5, 0.003, 0.003], [0.6, 0.05, 0.004], [0.4, 0.005, 0.005]]
    assert alignment.judge_10(widths_arrays(good), {}).verdict is Verdict.HOLDS
    assert alignment._enough(widths_arrays(good)) == [5, 10, 5]
    late = [*good[:2], [0.4, 0.05, 0.005]]
    assert alignment.judge_10(widths_arrays(late), {}).verdict is Verdict.FAILS
    flat = [[0.02, 0.003, 0.003], *good[1:]]
    assert alignment.judge_10(widths_arrays(flat), {}).verdict is Verdict.FAILS


def test_everything_can_be_drawn(tmp_path):
    more = {**GOOD, ("KQ_free", "nuclear"): 0.92, ("KQ_free", "frobenius"): 0.8, ("KQ_exact", "nuclear"): 0.97,
            ("KQ_exact", "frobenius"): 0.8}  # fmt: skip
    assert "regularizer" in alignment.judge_7(curves(more), FACTS).seen
    pictures = (alignment.draw_7(curves(GOOD), FACTS), alignment.draw_7(curves(more), FACTS),
                alignment.draw_10(widths_arrays([[0.5, 0.003, 0.003]] * 3), {}))  # fmt: skip
    for i, picture in enumerate(pictures):
        picture.savefig(tmp_path / f"{i}.png")


def test_each_problem_is_solved_once():
    rng = np.random.default_rng(0)
    selected = rng.integers(2, size=(7, 4, 2))
    problems, where = alignment._distinct(selected)
    assert len(np.unique(problems, axis=0)) == len(problems) < 28
    np.testing.assert_array_equal(problems[where][..., 1:], selected)
    np.testing.assert_array_equal(problems[where][..., 0], np.arange(7)[:, None] * np.ones(4))
    np.testing.assert_array_equal(problems[:7, 0], np.arange(7))


def test_interval_of_a_mean_leaves_out_what_is_missing():
    rng = np.random.default_rng(0)
    values = rng.exponential(size=(400, 1))
    values[3] = np.nan
    mean, low, high = mean_interval(values)
    assert mean == pytest.approx(np.nanmean(values))
    spread = np.nanstd(values) / np.sqrt(399)
    np.testing.assert_allclose((mean - low, high - mean), 1.96 * spread, rtol=0.15)


@pytest.mark.slow
def test_widths_side_by_side_are_the_widths_alone():
    tokens = sphere(n=3, T=4, d=alignment.D, seed=alignment.SEED_10, trials=3)
    apart, solutions, trials = alignment._widths(tokens, (1, 4), 60, slice(0, 3))
    np.testing.assert_array_equal(trials[:3], [0, 1, 2])
    start = np.random.default_rng([alignment.SEED_10, 3, 4]).uniform(-1, 1, (3, 1, 2, alignment.D, alignment.WIDEST))
    start = start[:, 0] / np.sqrt(alignment.D)
    runs = [
        train(tokens, "KQ", steps=60, seed=0, init={"K": start[:, 0, :, :m], "Q": start[:, 1, :, :m]}) for m in (1, 4)
    ]
    for k, run in enumerate(runs):
        svm = solve_margins(tokens, run.selected, norm="nuclear")
        np.testing.assert_allclose(apart[:, k], misalignment(run.W, svm.W), rtol=1e-6)
    np.testing.assert_array_equal(solutions[0].selected, runs[-1].selected[0])


@pytest.mark.slow
@pytest.mark.parametrize("figure", alignment.FIGURES, ids=lambda f: f.id)
def test_smoke(figure, tmp_path):
    from attnlab.figures import make

    assert make(figure, "smoke", out=tmp_path).finding.verdict is Verdict.HOLDS


@pytest.mark.slow
def test_stops_do_not_change_a_run():
    tokens = sphere(n=3, T=4, d=5, seed=0, trials=3)
    run, path = train_along(tokens, "KQ", [0, 7, 40], seed=0)
    np.testing.assert_array_equal(path[:, -1], train(tokens, "KQ", steps=40, seed=0).W)
    np.testing.assert_array_equal(run.W, path[:, -1])
    softmax = np.stack([attention(tokens[i], path[i, 1]) for i in range(3)])
    np.testing.assert_allclose(top_attention(tokens, path)[:, 1], softmax.max(-1).mean(-1), rtol=1e-12)
