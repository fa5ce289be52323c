"""`rates`: times, caps and predictions against independent counts and published reference runs."""

import json

import numpy as np
import pytest

import attnlab as al
from attnlab.data.families import _signal_set
from attnlab.errors import InfeasibleSelection, InputError
from attnlab.reports.rates import rates
from attnlab.reports.table import Reached
from attnlab.reports.timing import cap_binds, capped_share, time_to


def figure_2(seeds, directions=2):
    """Figure 2's data (5 with one direction), drawn from `default_rng(seed)`."""
    sizes = {"n": 20, "T": 6, "d": 100, "signal": 1.0, "noise": 0.05, "signal_noise": 0.0, "directions": directions}
    return al.Tokens.stack([_signal_set(np.random.default_rng(seed), **sizes) for seed in seeds])


@pytest.mark.parametrize("per_decade", [10, 40])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_times_are_interpolated(per_decade, power):
    steps = np.unique(np.geomspace(1, 1e6, 6 * per_decade).astype(int))
    apart = 1 / (1 + 0.01 * steps**power)  # 0.9 at step 900^(1/power)
    assert time_to(steps, apart, 0.9)[0] == pytest.approx(900 ** (1 / power), rel=2e-3)


def test_times_that_are_not_reached_and_those_that_are_at_once():
    steps = np.array([0, 1, 10, 100])
    apart = np.array([[np.nan, 0.5, 0.4, 0.3], [np.nan, 0.05, 0.01, 0.0], [0.05, 0.5, 0.1, 0.1], [np.nan] * 4])
    assert time_to(steps, apart, 0.9).tolist() == [np.inf, 1.0, 0.0, np.inf]


def test_the_middle_of_times():
    assert Reached(level=0.9, times=(1.0, np.inf, 3.0)).median == 3.0
    assert Reached(level=0.9, times=(1.0, np.inf)).median == np.inf
    assert str(Reached(level=0.9, times=(1.0, np.inf, 3.0))) == "3 (from 1, 2 of 3)"
    assert str(Reached(level=0.9, times=(np.inf,))) == "not reached"


def test_two_tokens_side_by_side():
    table = rates(al.data.two_tokens(), {"slow": al.gd(0.5), "fast": al.ngd(0.5)}, steps=10_000)
    assert table["fast"].fit.rate == pytest.approx(2, abs=0.01)
    assert table["slow"].fit.rate < 0.5
    assert table["slow"].theory_fit.family == "inverse_log"
    # t_0 of Theorem 5 is (10 / sqrt(1/2))^3 = 2828: all hypotheses hold.
    assert table["fast"].prediction.applies
    assert table["fast"].prediction.margins["length of the run"] == pytest.approx(10_000 / 2828.4, rel=1e-3)
    text = str(table)
    assert "fast" in text
    assert "its hypotheses hold" in text
    json.dumps(table.to_json(), allow_nan=False)


@pytest.mark.slow
def test_a_start_that_is_too_large_for_theory_is_said_so():
    tokens, rules = al.data.two_tokens(), [al.ngd(0.5)]
    room = [
        rates(tokens, rules, steps=20, init=init).rows[0].prediction.margins["small start"]
        for init in ("zeros", {"W": 0.01 * np.eye(2)}, "gaussian")
    ]
    assert room[0] == np.inf
    # Lemma 2 allows a deviation of 0.5 / 16; |0.01 I| / 2 is that of 0.00707.
    assert room[1] == pytest.approx(0.5 / 16 / 0.01 * np.sqrt(2), rel=1e-9)
    assert room[2] < 1


@pytest.mark.parametrize(("cap", "rule"), [(2.0, al.ngd(0.05, cap=2.0)), (10.0, al.polyak(cap=10.0))])
def test_the_share_of_capped_steps_is_that_of_every_step(cap, rule):
    tokens = al.data.sphere(n=3, T=4, d=6, seed=1, trials=2)
    options = {"steps": 400, "loss": "exponential", "init": "zeros"}
    every = al.descend(tokens, rule, record=range(401), **options)
    at_cap = np.exp(every.metrics["log_step_size"][:, :-1]) > cap * (1 - 1e-9)
    share = capped_share(rule, al.descend(tokens, rule, record=40, **options))
    assert 0 < at_cap.mean() < 1
    assert share == pytest.approx(at_cap.mean(), abs=0.03)
    assert (cap_binds(rule, every)[:, :-1] == at_cap).all()


@pytest.mark.slow
def test_joint_training():
    tokens = al.data.gaussian_signal(n=4, d=20, seed=0, trials=2)
    table = rates(tokens, [al.joint_decay(0.1), al.joint_separate(0.01, cap=5.0)], steps=100, levels=(0.5,))
    decayed, separate = table.rows
    assert {"misalignment_svm", "misalignment_head"} <= set(decayed.run.metrics)
    assert decayed.prediction.rate == 1.0
    assert not decayed.prediction.applies
    assert separate.capped is None  # two norms, one record of both
    assert "unknown" in str(table)


@pytest.mark.slow
def test_figure_2_misses_the_assumptions_and_the_usual_rules_run():
    told = []
    table = rates(figure_2([0]), steps=200, on_part=lambda *part: told.append(part))
    assert [row.name.split("(")[0] for row in table.rows] == ["gd", "ngd", "ngd_momentum", "ngd", "polyak"]
    assert "Assumption 1" in table.rows[1].prediction.unmet
    assert table.rows[1].prediction.margins["Assumption 1"] < 2e-3
    assert table.rows[1].prediction.margins["small start"] >= 1
    assert told[-1] == (5, 5, "done")


def reference(tokens, rules, levels=(0.9, 0.99)):
    """Beside W_mm of the best tokens, also where GD has not come to select them yet."""
    return rates(tokens, rules, levels=levels, init="zeros", selected=al.optimal_tokens(tokens))


@pytest.mark.slow
def test_reference_runs_of_figure_2():
    """An independent implementation on the same draws: cosines to the printed digits, times to 2 %."""
    table = reference(
        figure_2([0, 1, 2]),
        {
            "gd": al.gd(0.25), "ngd": al.ngd(0.025, cap=100), "free": al.ngd(0.025),
            "mom": al.ngd_momentum(0.025, cap=100), "ps": al.polyak(cap=10),
        },
    )  # fmt: skip
    ends = {
        "gd": (0.9146, 0.8839, 0.9035), "ngd": (0.9978, 0.9962, 0.9971), "free": (0.9982, 0.9971, 0.9976),
        "mom": (0.9987, 0.9977, 0.9981), "ps": (0.9969, 0.9947, 0.9961),
    }  # fmt: skip
    for name, cosines in ends.items():
        np.testing.assert_allclose(1 - table[name].misalignment, cosines, atol=6e-5)
    times = {"ngd": (1399, 1643, 1457), "mom": (157, 181, 163), "ps": (356, 707, 420)}
    for name, steps in times.items():
        np.testing.assert_allclose(table[name].reached[1].times, steps, rtol=0.02)
    np.testing.assert_allclose(table["ngd"].reached[0].times, (503, 640, 545), rtol=0.02)
    assert table["ps"].capped == 1.0
    assert 0.2 < table["ngd"].capped < 0.3  # from about step 2250 on


@pytest.mark.slow
def test_reference_runs_of_figure_5():
    table = reference(
        figure_2([0, 1, 2], directions=1),
        {
            "gd": al.gd(0.25),
            "ngd": al.ngd(0.025, cap=100),
            "mom": al.ngd_momentum(0.025, cap=100),
            "ps": al.polyak(cap=5),
        },
    )
    ends = {
        "gd": (0.899, 0.876, 0.855), "ngd": (0.9972, 0.9930, 0.9970), "mom": (0.9984, 0.9957, 0.9981),
        "ps": (0.9950, 0.9880, 0.9951),
    }  # fmt: skip
    for name, cosines in ends.items():
        np.testing.assert_allclose(1 - table[name].misalignment, cosines, atol=6e-4 if name == "gd" else 6e-5)
    np.testing.assert_allclose(table["ngd"].reached[1].times, (1547, 2133, 1579), rtol=0.02)
    np.testing.assert_allclose(table["mom"].reached[1].times, (174, 235, 177), rtol=0.02)
    assert table["ps"].reached[1].count == 2
    assert table["ps"].capped == 1.0


@pytest.mark.slow
def test_reference_runs_from_bad_directions():
    tokens = al.data.bad_direction()
    svm = al.solve_margin(tokens, al.optimal_tokens(tokens))
    query = tokens.z[1]
    options = {"steps": 1000, "loss": "exponential", "record": [100, 1000], "targets": {"svm": svm.W}}
    for start, cosines in (
        (-0.1 * np.eye(2), (0.913, 0.9977)),
        (-0.1 * np.outer(query, query) / (query @ query), (0.915, 0.9982)),
    ):
        run = al.descend(tokens, al.gd(0.1), init=start, **options)
        np.testing.assert_allclose(run.metrics["cosine_svm"], cosines, atol=6e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rules": []}, "at least one rule"),
        ({"rules": al.ngd(0.1)}, "a list of them"),
        ({"rules": {"x": 3}}, "wanted a step rule"),
        ({"levels": (2.0,)}, "between -1 and 1"),
        ({"levels": ()}, "between -1 and 1"),
        ({"tokens": 3}, "wanted al.Tokens"),
        ({"tokens": al.Tokens(x=np.eye(2)[None], z=[[1.0, 0.0]], y=[1])}, "selected="),
        ({"rules": None, "train_head": True}, "no usual ones"),
    ],
)
def test_bad_input_is_named(change, words):
    given = {"tokens": al.data.two_tokens(), "rules": [al.ngd(0.1)], "steps": 5} | change
    with pytest.raises(InputError, match=words):
        rates(**given)


def test_tokens_that_cannot_be_separated():
    same = al.Tokens(x=np.ones((2, 1, 2, 2)), z=np.ones((2, 1, 2)), y=np.ones((2, 1)), v=np.ones(2))
    with pytest.raises(InfeasibleSelection, match="2 of 2 trials"):
        rates(same, [al.ngd(0.1)], steps=5, selected=np.zeros((2, 1), dtype=int))


def test_one_token_has_no_rate():
    tokens = al.Tokens.self_attention(np.ones((2, 1, 3)), [1.0, -1.0], np.ones(3))
    with pytest.raises(al.InputError, match="one token"):
        al.rates(tokens, [al.ngd(0.1)], steps=20)
