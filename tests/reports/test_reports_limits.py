"""`limits` against a loop over starts, and what it prints and refuses."""

import json
import re
from collections import Counter

import numpy as np
import pytest

import attnlab as al
from attnlab.cli import main
from attnlab.theory import locally_optimal_selections
from attnlab.theory.proportion import wilson

TOKENS = al.data.sphere(n=3, T=4, d=3, seed=2)
STARTS = 40


@pytest.fixture(scope="module")
def found():
    return al.limits(TOKENS, STARTS)


def test_shares_are_those_of_a_loop_over_starts(found):
    """Each start alone, far enough for every one of them; other random starts than those of `limits`."""
    rng = np.random.default_rng(7)
    ends = Counter()
    for _ in range(STARTS):
        start = rng.uniform(-1.0, 1.0, (3, 3)) / np.sqrt(3)
        run = al.descend(TOKENS, al.ngd(0.1), steps=3000, record=None, init=start)
        ends[tuple(run.selected.tolist())] += 1
    for limit in found.limits:
        low, high = limit.interval
        other_low, other_high = wilson(ends[tuple(limit.selected.tolist())], STARTS)
        assert low <= other_high
        assert other_low <= high


def test_the_same_starts_end_at_the_same_tokens(found):
    batch = al.Tokens.stack([TOKENS] * STARTS)
    run = al.descend(batch, al.ngd(0.1), steps=3200, record=None)
    assert (run.selected == found.selected).all()
    for last in set(found.settled_at.tolist()):
        run = al.descend(batch, al.ngd(0.1), steps=last, record=None)
        here = found.settled_at == last
        np.testing.assert_allclose(found.weights["W"][here], run.W[here], rtol=1e-9)


def test_looks_are_twice_as_late_each_time():
    told = []
    report = al.limits(TOKENS, STARTS, steps=450, on_step=lambda *news: told.append(news))
    assert [step for step, _ in told] == [100, 200, 400, 450]
    assert report.last_step == 450
    for step, settled in told:
        assert settled == ((report.settled_at >= 0) & (report.settled_at <= step)).sum()


def test_no_run_is_dropped(found):
    assert sum(limit.runs for limit in found.limits) == STARTS
    assert found.unsettled == sum(limit.unsettled for limit in found.limits)
    early = al.limits(TOKENS, STARTS, steps=5)
    assert early.unsettled == STARTS
    assert sum(limit.unsettled for limit in early.limits) == STARTS
    assert "40 not settled" in early.verdict
    assert (early.limit_of >= 0).all()


def test_all_locally_optimal_selections_are_listed(found):
    oracle = locally_optimal_selections(TOKENS)
    listed = {tuple(limit.selected.tolist()) for limit in found.locally_optimal}
    assert listed == {tuple(chosen.tolist()) for chosen in oracle}
    assert len(listed) == 9
    few = al.limits(TOKENS, STARTS, enumerate_up_to=0)
    assert not few.enumerated
    assert all(limit.runs for limit in few.limits)
    assert [limit.runs for limit in few.limits] == [limit.runs for limit in found.limits if limit.runs]


def test_the_most_frequent_limits_come_first(found):
    early = al.limits(TOKENS, STARTS, steps=40)
    assert early.unsettled
    for report in (found, early):
        counts = [(limit.settled, limit.unsettled) for limit in report.limits]
        assert counts == sorted(counts, reverse=True)
        assert len(set(counts)) > 1


def test_hidden_tokens_are_no_limits():
    mask = np.array([[True, True, True, False]] * 3)
    hidden = al.Tokens(x=TOKENS.x, z=TOKENS.z, y=TOKENS.y, v=TOKENS.v, mask=mask)
    report = al.limits(hidden, STARTS)
    fewer = al.limits(al.Tokens(x=TOKENS.x[:, :3], z=TOKENS.z, y=TOKENS.y, v=TOKENS.v), STARTS)
    assert report.total == 27
    assert [limit.selected.tolist() for limit in report.limits] == [limit.selected.tolist() for limit in fewer.limits]
    assert [limit.is_best for limit in report.limits] == [limit.is_best for limit in fewer.limits]
    assert any(limit.is_best for limit in report.limits)


def test_rows_carry_margin_direction_score_and_steps(found):
    gamma = al.scores(TOKENS)
    for limit in found.locally_optimal:
        svm = al.solve_margin(TOKENS, limit.selected)
        assert limit.margin == pytest.approx(svm.margin, rel=1e-9)
        assert al.cosine(limit.direction, svm.W) == pytest.approx(1.0)
        assert np.linalg.norm(limit.direction) == pytest.approx(1.0)
        assert limit.score == pytest.approx(np.mean([gamma[i, t] for i, t in enumerate(limit.selected)]))
        times = found.settled_at[(found.selected == limit.selected).all(-1)]
        assert limit.steps == (None if not len(times) else np.sort(times)[(len(times) - 1) // 2])
    best = [limit for limit in found.limits if limit.is_best]
    assert [limit.selected.tolist() for limit in best] == [al.optimal_tokens(TOKENS).tolist()]


def test_k_and_q_go_by_the_nuclear_norm():
    found = al.limits(TOKENS, 10, parameterization="KQ")
    assert set(found.weights) == {"K", "Q"}
    assert sum(limit.runs for limit in found.limits) == 10
    for limit in found.locally_optimal:
        assert limit.solution.norm == "nuclear"


def test_starts_of_ones_own():
    """The median of the looks after which they had settled; of an even number the lower one in the middle."""
    W = al.solve_margin(TOKENS, [3, 0, 2]).W
    found = al.limits(TOKENS, 6, init=np.stack([size * W for size in (0.3, 30.0, 3.0, 0.3, 30.0, 0.3)]))
    assert found.limits[0].selected.tolist() == [3, 0, 2]
    assert found.limits[0].settled == 6
    looks = sorted(found.settled_at.tolist())
    assert looks[1] < looks[2] < looks[3]
    assert found.limits[0].steps == looks[2]


def test_several_queries():
    rng = np.random.default_rng(1)
    y = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])
    tokens = al.Tokens(x=rng.normal(size=(2, 2, 3)), z=rng.normal(size=(2, 3, 3)), y=y, v=rng.normal(size=3))
    report = al.limits(tokens, 10)
    gamma, best = al.scores(tokens), al.optimal_tokens(tokens)
    for limit in report.limits:
        own = [gamma[i, k, limit.selected[i, k]] for i in range(2) for k in range(3)]
        assert limit.score == pytest.approx(np.mean(own))
        assert limit.is_best == (limit.selected == best).all()
    assert any(limit.is_best for limit in report.limits)
    assert report.total == 64


def test_printed_and_as_json(found):
    assert repr(found).startswith("9 of 64 selections are locally optimal; 40 starts settle in")
    facts = json.loads(json.dumps(found.to_json()))
    assert len(facts["rows"]) == len(found.limits)
    assert facts["rows"][0]["certificate"]["status"] == "optimal"
    assert len(facts["settled_at"]) == STARTS
    assert facts["selections"] == 64
    reached = 0
    for limit, line in zip(found.limits, repr(found).split("\n")[3:], strict=True):
        low, high = wilson(limit.settled, STARTS)
        share = f"{100 * limit.settled / STARTS:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        best = limit.selected.tolist() == al.optimal_tokens(TOKENS).tolist()
        steps = [] if limit.steps is None else [str(limit.steps)]
        cells = [limit.name, "best" if best else "yes", f"{limit.margin:.4g}", f"{limit.solution.gap:.0e}"]
        assert re.split(r"  +", line.strip()) == [*cells, f"{limit.score:.4g}", share, *steps]
        assert limit.share == limit.settled / STARTS
        reached += bool(limit.settled)
    best = sum(limit.settled for limit in found.limits if limit.is_best)
    assert f"{STARTS} starts settle in {reached}, {best} of them on the best tokens; all settled." in found.verdict


def test_many_selections():
    """The first rows are printed, all are in JSON; more selections than 2^53 have no number there."""
    tokens = al.data.sphere(n=30, T=4, d=3, seed=0)
    report = al.limits(tokens, 40, steps=5)
    assert report.total == 4**30
    assert not report.enumerated
    assert "locally optimal selections found, of 1.2e+18 selections" in report.verdict
    assert report.unsettled == 40
    facts = report.to_json()
    assert facts["selections"] is None
    hidden = report.limits[20:]
    assert len(facts["rows"]) == 20 + len(hidden) > 20
    runs = sum(limit.runs for limit in hidden)
    assert f"{len(hidden)} selections with {runs} runs, {runs} of them not settled" in str(report)
    assert report.limits[0].name == " ".join(map(str, report.limits[0].selected[:16])) + " ..."


def test_json_where_there_is_nothing_to_separate():
    """The margin is infinite, which JSON has no word for."""
    alone = al.Tokens(x=TOKENS.x[:, :1], z=TOKENS.z, y=TOKENS.y, v=TOKENS.v)
    report = al.limits(alone, 2)
    assert report.limits[0].margin == np.inf
    facts = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert facts["rows"][0]["margin"] is None


def test_command_line(tmp_path, capsys):
    path = TOKENS.save(tmp_path / "tokens.npz")
    assert main(["limits", str(path), "--starts", "40", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["starts"] == 40
    assert facts["locally_optimal"] == 9
    assert main(["limits", str(path), "--starts", "40", "--steps", "5"]) == 1
    assert "not settled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"starts": 0}, "starts"),
        ({"rule": al.adam(0.1)}, "rule"),
        ({"parameterization": "V"}, "parameterization"),
        ({"loss": "hinge"}, "loss"),
        ({"on_step": 3}, "on_step"),
        ({"init": np.zeros((2, 3, 3))}, "W"),
    ],
)
def test_what_is_refused(options, told):
    with pytest.raises(al.InputError, match=f"`{told}`"):
        al.limits(TOKENS, **options)


def test_tokens_without_a_head_are_refused():
    with pytest.raises(al.InputError, match="`v`"):
        al.limits(al.Tokens(x=TOKENS.x, z=TOKENS.z, y=TOKENS.y), 2)
