"""Processes that are killed: workers, and the one that waits for them."""

import os
import signal

import pytest
import study_work as work

import attnlab as al

GRID = {"p": [0.2, 0.7], "n": [1, 2]}

SWEEP = """
import attnlab as al, study_work
study = al.Study(study_work.{function}, {{"p": [0.2, 0.7], "n": [1, 2]}}, trials=40, block=4)
print(study.run(jobs={jobs}).kept)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDY_WORK", str(tmp_path))
    return tmp_path


def test_a_killed_worker_costs_its_block(folder):
    study = al.Study(work.kills_its_process_once, GRID, trials=6, block=3, store=folder / "store")
    ran = study.run(jobs=2)
    assert (ran.computed, ran.failed) == (24, 0)
    assert any("killed by signal 9" in sentence for sentence in ran.log)
    other = al.Study(work.coins, GRID, trials=6, store=folder / "other")
    other.run()
    assert study.frame().equals(other.frame())


def test_a_block_that_kills_every_worker_is_recorded(folder):
    study = al.Study(work.kills_its_process, {"p": [0.5], "n": [1, 2]}, trials=2, store=folder / "store")
    ran = study.run(jobs=2, retries=1)
    assert (ran.computed, ran.failed) == (2, 2)
    assert "killed by signal 9" in study.frame()["error"].iloc[-1]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_study_goes_on(folder, jobs):
    runs = folder / "store" / "runs"
    process = work.spawn(SWEEP.format(function="slow", jobs=jobs), folder)
    work.wait_until(lambda: runs.is_dir() and len(list(runs.iterdir())) >= 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    study = al.Study(work.slow, GRID, trials=40, block=4, store=folder / "store")
    done = study.status().done
    assert 0 < done < 160
    ran = study.run()
    assert ran.kept >= done
    assert ran.computed + ran.kept == 160
    undisturbed = al.Study(work.coins, GRID, trials=40, store=folder / "other")
    undisturbed.run()
    assert study.frame().equals(undisturbed.frame())


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(folder):
    process = work.spawn(SWEEP.format(function="slow", jobs=2), folder)
    runs = folder / "store" / "runs"
    work.wait_until(lambda: runs.is_dir() and len(list(runs.iterdir())) >= 1)
    children = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == process.pid]
    assert len(children) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    work.wait_until(lambda: not any(_parent(pid) is not None for pid in children))


def _parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[1])
