"""`keep` and `map`: computed once, whole or not at all, whoever else is at work."""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import store_work as w

import attnlab as al
from attnlab.data import owners
from attnlab.errors import InputError, StoreError
from attnlab.store import Kept, Store


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("STORE_WORK", str(tmp_path))
    monkeypatch.setenv("ATTNLAB_STORE", str(tmp_path / "store"))
    return Store()


def litter(store):
    """What should not be there once nobody is at work."""
    return [*(store.path / "tmp").iterdir(), *(store.path / "partial").iterdir()]


def same(a: Kept, b: Kept):
    assert a.facts == b.facts
    assert a.key == b.key
    assert a.seconds == b.seconds
    assert list(a.arrays) == list(b.arrays)
    for name, array in a.arrays.items():
        np.testing.assert_array_equal(array, b.arrays[name], strict=True)


# keep


def test_computes_once_and_reads_the_same_back(store):
    def compute():
        count.append(1)
        arrays = {"a/b": np.arange(6).reshape(2, 3), "none": np.zeros((0, 2)), "text": ["x", "yz"], "one": 1.5}
        return arrays, {
            "verdict": "holds",
            "n": np.int64(3),
            "v": np.arange(2),
            "nan": float("inf"),
            "nested": {1: (2,)},
        }

    count: list[int] = []
    began = time.perf_counter()
    first = store.keep("k", {"a": 1}, compute)
    assert 0 < first.seconds < time.perf_counter() - began
    again = Store(store.path).keep("k", {"a": 1}, compute)
    assert len(count) == 1
    same(first, again)
    assert first.facts == {"verdict": "holds", "n": 3, "v": [0, 1], "nan": float("inf"), "nested": {"1": [2]}}
    assert first.arrays["text"].tolist() == ["x", "yz"]
    for kept in (first, again):
        with pytest.raises(ValueError, match="read-only"):
            kept.arrays["a/b"][0, 0] = 7
    assert "\n" not in repr(first)
    assert first.key[:8] in repr(first)
    assert litter(store) == []
    store.keep("k", {"a": 2}, compute)
    store.keep("other", {"a": 1}, compute)
    assert len(count) == 3


def test_what_is_kept_is_a_copy(store):
    mine = np.ones(3)
    kept = store.keep("k", {}, lambda: {"a": mine})
    mine[0] = 5
    assert kept.arrays["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (None, InputError), ([1, 2], InputError), (({}, 3), InputError), (({}, {}, {}), InputError),
        ({"facts": 1}, InputError), ({"file": 1}, InputError), ({"": 1}, InputError), ({3: 1}, InputError),
        ({"a": object()}, InputError), (({}, {"a": {1, 2}}), StoreError), (({}, {"a": object()}), StoreError),
    ],
)  # fmt: skip
def test_a_wrong_outcome_is_refused_and_not_kept(store, outcome, error):
    with pytest.raises(error, match="`compute`") as caught:
        store.keep("k", {"seed": 5}, lambda: outcome)
    assert "'seed': 5" in caught.value.__notes__[0]
    assert store.size().count == 0
    assert litter(store) == []


def test_an_error_in_compute_passes_through(store):
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.keep("k", {}, fail)
    assert store.keep("k", {}, lambda: {"a": 1}).arrays["a"] == 1


def truncate(path: Path):
    path.write_bytes(path.read_bytes()[:-30])


def flip(path: Path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


def other_run(path: Path):
    path.write_text(path.read_text().replace('"kind": "k"', '"kind": "q"'))


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("arrays.npz", truncate), ("arrays.npz", flip), ("arrays.npz", Path.unlink),
        ("arrays.npz", lambda p: p.write_bytes(b"")), ("arrays.npz", lambda p: p.write_bytes(b"nonsense")),
        ("run.json", truncate), ("run.json", Path.unlink), ("run.json", lambda p: p.write_text("{}")),
        ("run.json", lambda p: p.write_bytes(b"\xff")), ("run.json", other_run),
    ],
)  # fmt: skip
def test_a_damaged_run_is_moved_aside_and_computed_anew(store, file, harm):
    key = store.keep("k", {}, lambda: {"a": np.arange(100.0)}).key
    path = store.path / "runs" / key
    harm(path / file)
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    assert store.keep("k", {}, lambda: {"a": np.ones(2)}).arrays["a"].tolist() == [1, 1]
    (aside,) = (store.path / "runs").glob("*.damaged-*")
    assert {p.name: p.read_bytes() for p in aside.iterdir()} == before
    assert aside.name.startswith(key)
    assert store.keep("k", {}, lambda: pytest.fail("computed again")).arrays["a"].tolist() == [1, 1]
    assert store.size().count == 1
    assert store.clear().count == 2
    assert list((store.path / "runs").iterdir()) == []


def test_a_run_that_may_not_be_read_is_not_damaged(store, monkeypatch):
    store.keep("k", {}, lambda: {"a": 1})

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(np, "load", refuse)
        with pytest.raises(StoreError, match="Permission denied"):
            store.keep("k", {}, lambda: {"a": 2})
    assert store.keep("k", {}, lambda: {"a": 2}).arrays["a"] == 1


def test_a_file_in_the_place_of_a_run_is_moved_aside(store):
    key = store.keep("k", {}, lambda: {"a": 1}).key
    store.clear()
    (store.path / "runs" / key).write_text("in the way")
    assert store.keep("k", {}, lambda: {"a": 2}).arrays["a"] == 2


def test_the_first_to_finish_wins(store):
    def slower():
        Store(store.path).keep("k", {}, lambda: {"a": 1})
        return {"a": 2}

    assert store.keep("k", {}, slower).arrays["a"] == 1
    assert litter(store) == []


def test_a_damaged_rival_does_not_win(store):
    def slower():
        rival = Store(store.path).keep("k", {}, lambda: {"a": 1})
        truncate(store.path / "runs" / rival.key / "arrays.npz")
        return {"a": 2}

    assert store.keep("k", {}, slower).arrays["a"] == 2
    assert store.keep("k", {}, slower).arrays["a"] == 2


def test_two_processes_at_once_agree(tmp_path):
    first, second = (w.spawn("w.keep_together()", tmp_path) for _ in range(2))
    assert w.output(first) == w.output(second)
    store = Store(tmp_path / "store")
    assert len(list((store.path / "runs").iterdir())) == 1
    assert litter(store) == []


# temporary directories


def test_what_killed_processes_leave_is_cleared_and_the_rest_is_not(store):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    here, me = owners.place(), os.getpid()
    start = owners.start(me)
    gone = [f"{here}-{dead.pid}-1-00000000", f"{here}-{me}-{start + 1}-00000000", "ffffffff-1-1-00000001"]
    stay = [f"{here}-{me}-{start}-00000000", "ffffffff-1-1-00000000", "not-ours"]
    for name in gone + stay:
        (store.path / "tmp" / name / "inside").mkdir(parents=True)
    long_ago = (datetime.now() - timedelta(hours=25)).timestamp()
    lately = (datetime.now() - timedelta(hours=23)).timestamp()
    os.utime(store.path / "tmp" / gone[-1], (long_ago, long_ago))
    os.utime(store.path / "tmp" / stay[1], (lately, lately))
    store.keep("k", {}, lambda: {"a": 1})
    assert sorted(p.name for p in (store.path / "tmp").iterdir()) == sorted(stay)


def test_a_process_that_was_killed_and_not_yet_buried_is_dead():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert owners.start(child.pid)
    child.kill()
    w.wait_until(lambda: owners.start(child.pid) is None)
    child.communicate()


def test_without_a_process_file_system_a_process_is_asked_and_not_harmed(monkeypatch):
    def absent(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    child = subprocess.Popen([sys.executable, "-c", "print(input())"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owners.start(child.pid) == 0
    assert child.communicate(b"alive")[0] == b"alive\n"
    assert owners.start(child.pid) is None


# map


@pytest.mark.parametrize("jobs", [1, 2])
def test_map_keeps_order_and_computes_what_is_missing(store, tmp_path, jobs):
    told = []
    store.map("squares", w.square, [{"x": 3}, {"x": 1}])
    configs = [{"x": x} for x in (5, 3, 4, 5, 1)]
    results = store.map("squares", w.square, configs, jobs=jobs, on_done=told.append)
    assert [int(k.arrays["square"][0]) for k in results] == [25, 9, 16, 25, 1]
    assert [k.facts["x"] for k in results] == [5, 3, 4, 5, 1]
    assert w.calls(tmp_path) == ["1", "3", "4", "5"]
    assert told[0].done == told[0].kept == 2
    assert [t.done for t in told] == sorted(t.done for t in told)
    assert (told[-1].done, told[-1].total, told[-1].kept, len(told)) == (5, 5, 2, 3)
    assert 0 <= told[0].seconds <= told[-1].seconds
    same(results[0], store.keep("squares", {"x": 5}, lambda: pytest.fail("not kept")))
    assert litter(store) == []


@pytest.mark.parametrize("jobs", [0, 1.5, "2"])
def test_map_names_wrong_jobs(store, jobs):
    with pytest.raises(InputError, match="`jobs`"):
        store.map("squares", w.square, [], jobs=jobs)


def test_map_of_nothing(store):
    told = []
    assert store.map("squares", w.square, [], jobs=2, on_done=told.append) == []
    assert (told[0].done, told[0].total) == (0, 0)
    assert not store.path.exists()


def test_a_killed_map_loses_nothing_finished(tmp_path, monkeypatch):
    process = w.spawn(
        "import attnlab as al\n"
        "al.Store().map('squares', w.square_and_kill, [{'x': x} for x in range(5)], jobs=2)",
        tmp_path,
    )  # fmt: skip
    process.communicate(timeout=2 * w.PATIENCE)
    assert process.returncode < 0
    assert w.calls(tmp_path) == ["0", "1", "3", "4"]
    monkeypatch.setenv("STORE_WORK", str(tmp_path))
    store, told = Store(tmp_path / "store"), []
    configs = [{"x": x} for x in range(5)]
    results = store.map("squares", w.square_and_kill, configs, on_done=told.append)
    assert [int(k.arrays["square"][0]) for k in results] == [0, 1, 4, 9, 16]
    assert w.calls(tmp_path) == ["0", "1", "2", "3", "4"]
    assert told[0].kept == 4
    assert litter(store) == []


# the folder


def test_where_the_store_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ATTNLAB_STORE", str(tmp_path / "mine"))
    assert Store().path == tmp_path / "mine"
    assert Store(tmp_path / "other").path == tmp_path / "other"
    assert Store("~/x").path == tmp_path / "home" / "x"
    monkeypatch.setenv("ATTNLAB_STORE", "")
    assert Store().path == tmp_path / "cache" / "attnlab"
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert Store().path == tmp_path / "home" / ".cache" / "attnlab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Store().path == tmp_path / "home" / ".cache" / "attnlab"
    monkeypatch.chdir(tmp_path)
    relative = Store("here")
    monkeypatch.chdir("/")
    assert relative.path == tmp_path / "here"
    assert repr(relative) == f"Store('{tmp_path}/here')"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_before_computing(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        store = Store(root)
        with pytest.raises(StoreError, match="ATTNLAB_STORE") as caught:
            store.keep("k", {}, lambda: pytest.fail("computed in vain"))
        assert str(root) in str(caught.value)
        assert "\n\nhint: " in str(caught.value)
        with pytest.raises(StoreError, match="ATTNLAB_STORE"):
            store.map("k", w.square, [{"x": 1}, {"x": 2}], jobs=2)
        with pytest.raises(StoreError, match="ATTNLAB_STORE"):
            store.descend(al.data.two_tokens(), al.ngd(0.1))
        assert list(store.runs()) == []
        assert store.size().bytes == 0
    assert (tmp_path / "file").read_text() == "not a folder"


def test_runs_size_and_clear(store):
    assert list(store.runs()) == []
    assert (store.size().count, store.size().bytes, store.clear().count) == (0, 0, 0)
    assert not store.path.exists()
    kept = [store.keep("k", {"i": i}, lambda: ({"a": np.zeros(1000)}, {"fact": 1})) for i in range(3)]
    summaries = list(store.runs())
    assert [s.key for s in summaries] == sorted(k.key for k in kept)
    assert sorted(s.config["i"] for s in summaries) == [0, 1, 2]
    one = summaries[0]
    assert (one.kind, one.status, one.path) == ("k", "finished", store.path / "runs" / one.key)
    assert one.versions["attnlab"] == al.__version__
    assert abs(one.when - datetime.now(UTC)) < timedelta(minutes=5)
    assert one.seconds in [k.seconds for k in kept]
    assert one.bytes == sum(p.stat().st_size for p in one.path.iterdir()) > 8000
    assert "\n" not in repr(one)
    assert store.size().count == 3
    assert store.size().bytes == sum(s.bytes for s in summaries)

    (store.path / "runs" / "notes.txt").write_text("mine")
    for run, days in zip(kept, (11, 9, 0), strict=True):
        then = (datetime.now() - timedelta(days=days)).timestamp()
        os.utime(store.path / "runs" / run.key, (then, then))
    removed = store.clear(older_than_days=10)
    assert (removed.count, removed.bytes) == (1, {s.key: s.bytes for s in summaries}[kept[0].key])
    assert {s.key for s in store.runs()} == {kept[1].key, kept[2].key}
    assert store.clear(older_than_days=0.5).count == 1
    assert store.clear().count == 1
    assert store.size().count == 0
    assert (store.path / "runs" / "notes.txt").exists()
    assert litter(store) == []
    with pytest.raises(InputError, match="`older_than_days`"):
        store.clear(older_than_days=-1)


def test_a_run_without_a_whole_description_is_not_listed(store):
    key = store.keep("k", {}, lambda: {"a": 1}).key
    (store.path / "runs" / key / "run.json").write_text('{"when": "2026-01-01"}')
    assert list(store.runs()) == []
    assert store.size().count == 0
    assert store.size().bytes > 0


def test_importing_the_store_is_light():
    program = "import sys, attnlab.store; print([m for m in ('jax', 'joblib', 'optax', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_fresh_result_replaces_the_old_one_only_once_it_is_there(tmp_path):
    store = al.Store(tmp_path)
    store.keep("number", {}, lambda: ({}, {"value": 1}))

    def fails():
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        store.keep("number", {}, fails, fresh=True)
    assert store.keep("number", {}, fails).facts == {"value": 1}
    assert store.keep("number", {}, lambda: ({}, {"value": 2}), fresh=True).facts == {"value": 2}
    assert store.keep("number", {}, fails).facts == {"value": 2}


@pytest.mark.parametrize(
    ("compute", "options", "words"),
    [
        (len, {}, "`compute` is .* without arguments"),
        (lambda config: {}, {}, "`compute` is .* without arguments"),
        (lambda: {"a": [[1.0], [1.0, 2.0]]}, {}, "`compute` returned `a`, which is no array"),
        (lambda: {"a": 1}, {"fresh": np.array([])}, "`fresh` is .* True or False"),
    ],
)
def test_what_cannot_be_kept_is_told(store, compute, options, words):
    with pytest.raises(InputError, match=words):
        store.keep("k", {}, compute, **options)
    assert list(store.runs()) == []
