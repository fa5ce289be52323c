"""Kills, crowds, full disks and Ctrl-C, each in processes of their own: a sample of what the tables count."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import store_work as w

from attnlab.errors import StoreError
from attnlab.store import Store

HERE = Path(__file__).parent


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script), *arguments], capture_output=True, text=True, cwd=HERE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_few_kills():
    assert "Store.descend" in run("kill_table.py", "5")


def test_a_few_disturbances():
    assert "Store.map x8" in run("crowd_and_disk_table.py", "60", "claim", "Store.map")


@pytest.mark.slow(sampled=False)
def test_two_hundred_kills():
    run("kill_table.py", "200")


@pytest.mark.slow(sampled=False)
def test_crowds_disks_and_ctrl_c_everywhere():
    run("crowd_and_disk_table.py", "5")


def square_and_vanish(config):
    """The process that comes to x = 2 is killed, once the other results are there.

    A process that was started for an earlier call has the environment of that time: the folder comes with the call.
    """
    os.environ["STORE_WORK"] = config["folder"]
    if config["x"] == 2:
        w.wait_until(lambda: w.finished() == 2)
        os.kill(os.getpid(), signal.SIGKILL)
    return w.square(config)


def test_a_lost_process_is_told_and_what_is_finished_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("STORE_WORK", str(tmp_path))
    monkeypatch.setenv("ATTNLAB_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    store, configs = Store(), [{"x": x, "folder": str(tmp_path)} for x in range(3)]
    with pytest.raises(StoreError, match="process that was computing is gone") as caught:
        store.map("squares", square_and_vanish, configs, jobs=2)
    assert "hint: what was finished is kept" in str(caught.value)
    before = w.calls(tmp_path)
    assert before
    assert [int(k.arrays["square"][0]) for k in store.map("squares", w.square, configs)] == [0, 1, 4]
    assert w.calls(tmp_path) == ["0", "1", "2"]  # none was computed twice


class Stubborn(Exception):
    """Cannot be rebuilt from what it is pickled as."""

    def __init__(self, text, more):
        super().__init__(text)


def fail_stubbornly(config):
    raise Stubborn("mine", config)


def test_an_error_that_cannot_be_sent_back_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    store = Store(tmp_path / "store")
    with pytest.raises(StoreError, match="could not be sent") as caught:
        store.map("stubborn", fail_stubbornly, [{"x": 1}, {"x": 2}], jobs=2)
    assert "jobs=1" in str(caught.value)
    with pytest.raises(Stubborn, match="mine"):
        store.map("stubborn", fail_stubbornly, [{"x": 1}, {"x": 2}])


def test_errors_of_the_store_travel_between_processes():
    import pickle

    from attnlab.data.writing import WriteError
    from attnlab.store import NotKept

    sent = pickle.loads(pickle.dumps(NotKept("full", {"a": 1})))
    assert (str(sent), sent.computed) == ("full", {"a": 1})
    sent = pickle.loads(pickle.dumps(WriteError("Cannot write `a`: full.", "full", 28)))
    assert (str(sent), sent.reason, sent.errno) == ("Cannot write `a`: full.", "full", 28)
