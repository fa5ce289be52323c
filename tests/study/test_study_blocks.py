"""A study computes each trial once, whatever its blocks, its order, its failures."""

import numpy as np
import pytest
import study_work as work

import attnlab as al
from attnlab.study.design import Cuts, Task
from attnlab.study.schedule import SECONDS, Schedule

GRID = {"p": [0.2, 0.7], "n": [1, 2]}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDY_WORK", str(tmp_path))
    return tmp_path


def study(folder, function=work.coins, **options):
    options = {"trials": 10, "store": folder / "store", **options}
    return al.Study(function, options.pop("grid", GRID), **options)


def computed(folder):
    """How often each trial was computed."""
    return {path.name: len(path.read_text()) for path in folder.glob("trial-*")}


def test_rows_are_what_a_loop_gives(folder):
    found = study(folder, seed=3)
    found.run()
    rows = found.frame()
    assert list(rows.columns) == ["p", "n", "trial", "seed", "heads", "value", "constant", "error"]
    expected = []
    for p in GRID["p"]:
        for n in GRID["n"]:
            for trial in range(10):
                value = np.random.default_rng(3 * 2**32 + trial).random()
                expected.append((p, n, trial, 3 * 2**32 + trial, value < p, value * n, 3))
    assert [tuple(row)[:-1] for row in rows.itertuples(index=False)] == expected
    assert rows["error"].isna().all()
    kinds = {name: rows[name].dtype.kind for name in rows.columns}
    assert kinds | {"error": "O"} == {
        "p": "f", "n": "i", "trial": "i", "seed": "i", "heads": "b", "value": "f", "constant": "i", "error": "O",
    }  # fmt: skip


def test_nothing_is_computed_twice(folder):
    small = study(folder, work.counted)
    assert small.run().computed == 40
    assert small.run().computed == 0
    more = study(folder, work.counted, trials=25)
    assert (more.run().computed, more.run().kept) == (60, 100)
    wider = study(folder, work.counted, trials=25, grid=GRID | {"n": [1, 2, 3]})
    assert wider.run().computed == 50
    assert set(computed(folder).values()) == {1}
    fewer = study(folder, work.counted, trials=7)
    assert fewer.run().computed == 0
    assert len(fewer.frame()) == 28


@pytest.mark.parametrize("block", [1, 3, 10, 1000])
def test_blocks_of_any_size_give_the_same_table(folder, block):
    reference = study(folder)
    reference.run()
    other = study(folder, store=folder / f"other-{block}", block=block)
    ran = other.run()
    assert ran.blocks == 4 * -(-10 // block)
    assert other.frame().equals(reference.frame())


def test_sizes_that_change_compute_at_most_what_is_missing(folder):
    study(folder, work.counted, trials=8, block=4).run()
    other = study(folder, work.counted, trials=20, block=5)
    assert other.run().computed == 48
    assert set(computed(folder).values()) == {1}
    assert other.frame()["trial"].tolist() == 4 * [*range(20)]


def test_points_in_another_order_are_the_same_points(folder):
    study(folder, work.counted).run()
    points = [{"n": n, "p": p} for n in (2, 1) for p in (0.7, 0.2)]
    assert study(folder, work.counted, grid=points).run().computed == 0


def test_a_failing_block_is_tried_again_and_recorded(folder):
    found = study(folder, work.partly_bad, block=4, trials=10)
    ran = found.run(retries=1)
    assert (ran.computed, ran.failed, len(ran.log)) == (32, 8, 4)
    assert "no luck with 4" in ran.log[0]
    rows = found.frame()
    bad = rows[rows["error"].notna()]
    assert set(bad["n"]) == {2}
    assert bad["trial"].tolist() == [4, 5, 6, 7] * 2
    assert (bad["error"] == "ValueError: no luck with 4").all()
    assert bad["value"].isna().all()
    assert str(rows["heads"].dtype) == "boolean"
    assert str(rows["constant"].dtype) == "Int64"
    status = found.status()
    assert (status.done, status.failed, status.missing) == (32, 8, 0)
    assert status.errors == {"ValueError: no luck with 4": 8}
    assert found.run().computed == 0
    again = found.run(retry_failed=True, retries=0)
    assert (again.computed, again.failed, again.kept) == (0, 8, 32)
    summary = found.summary(by="n", of="value")
    assert summary[["n", "trials", "failed"]].values.tolist() == [[1, 20, 0], [2, 12, 8]]


def test_a_repaired_function_computes_anew_and_says_so(folder):
    def broken(point, seeds):
        return {"value": work.uniform(seeds)}

    def repaired(point, seeds):
        return {"value": 2 * work.uniform(seeds)}

    options = {"trials": 3, "store": folder / "store", "name": "mine"}
    al.Study(broken, {"n": [1]}, **options).run()
    ran = al.Study(repaired, {"n": [1]}, **options).run()
    assert ran.computed == 3
    assert "earlier run are not used" in ran.log[0]


def test_progress_counts_to_the_end(folder):
    seen = []
    study(folder, block=4).run(on_progress=seen.append)
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert (seen[0].done, seen[-1].done, seen[-1].total, seen[-1].left) == (0, 40, 40, 0.0)
    again = []
    study(folder, block=4).run(on_progress=again.append)
    assert [(one.done, one.kept) for one in again] == [(40, 40)]


def test_ctrl_c_keeps_what_is_finished(folder):
    def interrupted(progress):
        if progress.done >= 8:
            raise KeyboardInterrupt

    found = study(folder, work.counted, block=4)
    with pytest.raises(KeyboardInterrupt) as stopped:
        found.run(on_progress=interrupted)
    assert "goes on from there" in stopped.value.__notes__[0]
    assert found.status().done == 8
    found.run()
    assert set(computed(folder).values()) == {1}


class Plan:
    """A schedule of a study whose blocks are finished by hand."""

    def __init__(self, folder, grid, trials, slots):
        self.design = al.Study(work.coins, grid, trials=trials, store=folder / "store")._design
        self.schedule = Schedule(self.design, slots, False)

    def everything(self, slots, seconds_per_trial):
        """All tasks in the order in which they are handed out, by slot."""
        handed = {slot: [] for slot in range(slots)}
        while self.schedule.waiting:
            given = {slot: self.schedule.next(slot) for slot in range(slots)}
            for slot, task in given.items():
                if task is not None:
                    handed[slot].append(task)
                    self.schedule.learn(task, seconds_per_trial * task.trials)
        return handed


def test_blocks_take_about_ten_seconds(folder):
    handed = Plan(folder, {"p": [0.5], "n": [1, 2]}, 5000, 1).everything(1, 0.02)[0]
    assert handed[:2] == [Task(0, 0, 16), Task(0, 16, 80)]  # nothing was known
    sizes = {task.trials for task in handed[2:] if task.stop < 5000}
    assert sizes == {496}
    assert abs(496 * 0.02 - SECONDS) < 0.4
    for point in (0, 1):
        ends = [(task.start, task.stop) for task in handed if task.point == point]
        assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]
        assert ends[-1][1] == 5000


@pytest.mark.parametrize("cost", [0.011, 0.02, 0.003])
def test_no_process_waits_for_the_last_block_of_another(folder, cost):
    handed = Plan(folder, {"p": [0.5], "n": [1]}, 20_000, 2).everything(2, cost)
    large = [[task.trials for task in tasks if task.start >= 80] for tasks in handed.values()]
    assert abs(sum(large[0]) - sum(large[1])) <= 0.5 * max(large[0])  # sizes are multiples of 16
    assert max(large[0]) * cost <= SECONDS
    assert max(large[0]) * cost > 0.7 * SECONDS


def test_no_process_is_left_without_work(folder):
    handed = Plan(folder, {"p": [0.5], "n": [1]}, 1000, 2).everything(2, 1e-4)
    assert all(len(tasks) >= 4 for tasks in handed.values())


def test_equal_shapes_come_one_after_the_other(folder):
    plan = Plan(folder, {"p": [0.1, 0.2, 0.3], "n": [1, 2]}, 64, 2)
    for tasks in plan.everything(2, 0.5).values():
        shapes = [plan.design.points[task.point]["n"] for task in tasks]
        assert shapes == sorted(shapes) or shapes == sorted(shapes, reverse=True)


def test_measured_sizes_are_found_again(folder):
    Plan(folder, {"p": [0.5], "n": [1]}, 5000, 1).everything(1, 0.02)
    again = Plan(folder, {"p": [0.5], "n": [1]}, 5000, 1)  # nothing was finished: same blocks, whatever is measured
    assert again.design.cuts(0) == Cuts((16, 80), 496)
    assert again.everything(1, 5.0)[0][2].trials == 496
