"""A store that was damaged by hand, on a disk that fails, with a clock that jumps: nothing finished is lost."""

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import attnlab as al
from attnlab.data import owners
from attnlab.errors import InputError, StoreError
from attnlab.store import Store, descent, folder as folder_module, keys
from attnlab.store.compiled import compiled_folder, compiled_size, drop_broken
from attnlab.store.folder import NotKept, _sealed

FACTS = {"verdict": "holds", "worst": 0.5, "note": "some words", "nan": float("nan")}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def compute():
    return {"a": np.arange(6.0), "b": np.array(["x"])}, {"verdict": "holds", "worst": 0.5}


def runs(store):
    return sorted(path.name for path in (store.path / "runs").iterdir())


def litter(store):
    return [*(store.path / "tmp").iterdir(), *(store.path / "partial").iterdir()]


# Damage by hand


@pytest.mark.parametrize("file", ["run.json", "arrays.npz"])
def test_no_flipped_bit_changes_a_result(store, file):
    """Of a digit in a fact too, which is still JSON."""
    kept = store.keep("k", {"seed": 1}, compute)
    path = store.path / "runs" / kept.key / file
    content = path.read_bytes()
    noticed = 0
    for place in range(0, len(content), 5):
        harmed = bytearray(content)
        harmed[place] ^= 1 << (place % 8)
        path.write_bytes(harmed)
        again = store.keep("k", {"seed": 1}, compute)
        assert again.facts == kept.facts
        assert [a.tobytes() for a in again.arrays.values()] == [a.tobytes() for a in kept.arrays.values()]
        damaged = [name for name in runs(store) if "damaged" in name]
        noticed += len(damaged)
        for name in damaged:
            shutil.rmtree(store.path / "runs" / name)
        path.write_bytes(content)
    assert noticed > len(content) / 5 / 2


def test_a_changed_fact_is_noticed_and_an_older_run_without_a_seal_is_read(store):
    key = store.keep("k", {}, compute).key
    path = store.path / "runs" / key / "run.json"
    text = path.read_text()
    path.write_text(text.replace('"worst": 0.5', '"worst": 0.7'))
    assert store.keep("k", {}, compute).facts["worst"] == 0.5
    path.write_text("\n".join(line for line in text.splitlines() if '"check"' not in line).replace('",\n}', '"\n}'))
    assert store.keep("k", {}, lambda: pytest.fail("it was sound")).facts["worst"] == 0.5


@pytest.mark.parametrize("text", ["[]", "3", "null", '"k"', "{}", "[" * 100_000, "\x00", '{"kind": "k", "config": {}}'])
def test_wrong_json_is_computed_anew_and_not_listed(store, text):
    key = store.keep("k", {}, compute).key
    (store.path / "runs" / key / "run.json").write_text(text)
    assert list(store.runs()) == []
    assert store.size().count == 0
    assert store.keep("k", {}, compute).facts["worst"] == 0.5
    assert store.size().count == 1


@pytest.mark.parametrize("facts", [3, None, []])
def test_facts_that_are_no_facts_are_computed_anew(store, facts):
    import json

    key = store.keep("k", {}, compute).key
    path = store.path / "runs" / key / "run.json"
    about = {k: v for k, v in json.loads(path.read_text()).items() if k != "check"} | {"facts": facts}
    path.write_text(json.dumps(_sealed(about)))
    assert store.keep("k", {}, compute).facts["worst"] == 0.5


def test_foreign_files_and_folders_are_left_alone_or_moved_aside(store):
    key = store.keep("k", {}, compute).key
    place = store.path / "runs" / key
    for name in ("runs", "partial", "tmp"):
        (store.path / name / "notes.txt").write_text("mine")
        (store.path / name / "folder").mkdir()
        (store.path / name / "link").symlink_to("nowhere")
    (place / "more.txt").write_text("mine")
    assert store.keep("k", {}, lambda: pytest.fail("it was sound")).facts["worst"] == 0.5
    for put in (lambda: place.symlink_to("nowhere"), place.mkdir, lambda: place.write_text("x"), place.touch):
        shutil.rmtree(place)
        put()
        assert store.keep("k", {}, compute).facts["worst"] == 0.5
        assert store.keep("k", {}, lambda: pytest.fail("computed again")).facts["worst"] == 0.5
    (place / "arrays.npz").unlink()
    (place / "arrays.npz").mkdir()
    assert store.keep("k", {}, compute).facts["worst"] == 0.5
    store.clear()
    for name in ("runs", "partial", "tmp"):
        assert sorted(p.name for p in (store.path / name).iterdir()) == ["folder", "link", "notes.txt"]


def test_a_folder_in_the_place_of_a_checkpoint(store):
    tokens, rule = al.data.two_tokens(), al.ngd(0.1)
    key = keys.descent_identity(tokens, rule, {"steps": 20}).key
    (store.path / "partial" / f"{key}.npz" / "inside").mkdir(parents=True)
    run = store.descend(tokens, rule, steps=20)
    np.testing.assert_array_equal(run.W, al.descend(tokens, rule, steps=20).W)


# Disks


def failing(number, operation, at):
    """The operation of `os`, failing from the `at`-th call on; renaming once, since there is room to rename back."""
    true, calls = getattr(os, operation), []

    def fail(*arguments, **options):
        calls.append(arguments)
        if len(calls) == at or (len(calls) > at and operation != "rename"):
            raise OSError(number, os.strerror(number))
        return true(*arguments, **options)

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("operation", ["mkdir", "fsync", "replace", "rename"])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_disk_that_fails_is_named_and_nothing_finished_is_lost(store, monkeypatch, number, operation, at):
    first = store.keep("k", {"i": 0}, compute)
    before = runs(store)
    monkeypatch.setattr(os, operation, failing(number, operation, at))
    error = None
    try:
        store.keep("k", {"i": 1}, compute)
        store.keep("k", {"i": 0}, compute, fresh=True)
    except StoreError as raised:
        error = raised
    monkeypatch.undo()
    if error is not None:
        assert os.strerror(number) in str(error)
        assert "[Errno" not in str(error)
        assert str(store.path) in str(error)
        assert "hint: " in str(error)
    if isinstance(error, NotKept):
        assert error.computed.facts == first.facts
    assert set(before) <= set(runs(store))
    assert litter(store) == []
    assert not any("damaged" in name for name in runs(store))
    kept = store.keep("k", {"i": 0}, lambda: pytest.fail("lost"))
    assert kept.facts == first.facts


def test_a_full_disk_in_the_middle_of_a_descent(store, monkeypatch):
    """Checkpoints fail and the run goes on; the end fails, and the run is in the error."""
    tokens, rule, options = al.data.two_tokens(), al.ngd(0.1), {"steps": 900, "record": 5}
    expected = al.descend(tokens, rule, **options)
    store._folder.make_ready()

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(descent.Folder, "make_ready", lambda self: None)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="No checkpoint at step") as told, pytest.raises(NotKept) as caught:
        store.descend(tokens, rule, checkpoint_seconds=0, **options)
    assert "No space left" in str(told[0].message)
    assert "hint: free some space" in str(caught.value)
    np.testing.assert_array_equal(caught.value.computed.W, expected.W)
    monkeypatch.undo()
    assert litter(store) == []
    np.testing.assert_array_equal(store.descend(tokens, rule, **options).W, expected.W)


@pytest.fixture
def disk(tmp_path):
    """Mounts a small disk, and again with other options; unmounts it."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = []

    def mount(options):
        again = ["-o", f"remount,{options}"] if mounted else ["-o", options]
        done = subprocess.run(["mount", "-t", "tmpfs", *again, "tmpfs", str(place)], capture_output=True)
        if done.returncode:
            pytest.skip("no disk can be mounted here")
        mounted.append(options)
        return place

    yield mount
    subprocess.run(["umount", str(place)], capture_output=True)


def test_a_full_disk_and_then_space_again(disk):
    store = Store(disk("size=200k") / "store")
    first = store.keep("k", {"i": 0}, compute)
    with pytest.raises(NotKept, match="No space left") as caught:
        store.keep("large", {}, lambda: {"a": np.ones(100_000)})
    assert caught.value.computed.arrays["a"].sum() == 100_000
    assert litter(store) == []
    assert store.keep("k", {"i": 0}, lambda: pytest.fail("lost")).facts == first.facts
    disk("size=2m")
    assert store.keep("large", {}, lambda: {"a": np.ones(100_000)}).arrays["a"].size == 100_000


def test_a_read_only_store_gives_what_it_has(disk, tmp_path):
    store = Store(disk("size=2m") / "store")
    tokens, rule = al.data.two_tokens(), al.ngd(0.1)
    first = store.keep("k", {"i": 0}, compute)
    run = store.descend(tokens, rule, steps=20)
    disk("ro")
    assert store.keep("k", {"i": 0}, lambda: pytest.fail("lost")).facts == first.facts
    np.testing.assert_array_equal(store.descend(tokens, rule, steps=20).W, run.W)
    assert store.size().count == 2
    for use in (
        lambda: store.keep("k", {"i": 1}, lambda: pytest.fail("computed in vain")),
        lambda: store.descend(tokens, rule, steps=21),
        lambda: store.keep("k", {"i": 0}, lambda: pytest.fail("computed in vain"), fresh=True),
        store.clear,
    ):
        with pytest.raises(StoreError, match="Read-only file system") as caught:
            use()
        assert "hint: set ATTNLAB_STORE" in str(caught.value)
    assert store.size().count == 2


# What replaces, and what is killed in between


def test_a_run_that_was_to_be_replaced_is_back_if_it_was_not(store, monkeypatch):
    """Stopped between the two renames."""
    key = store.keep("k", {}, compute).key
    true = os.rename

    def stopped(source, target):
        if Path(target).name == key and Path(source).name == "new":
            raise KeyboardInterrupt
        true(source, target)

    monkeypatch.setattr(os, "rename", stopped)
    with pytest.raises(KeyboardInterrupt):
        store.keep("k", {}, compute, fresh=True)
    monkeypatch.undo()
    assert runs(store) == [key]
    assert litter(store) == []
    assert store.keep("k", {}, lambda: pytest.fail("lost")).facts["worst"] == 0.5


def test_and_also_if_the_process_was_killed(store):
    key = store.keep("k", {}, compute).key
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    work = store.path / "tmp" / f"{owners.place()}-{dead.pid}-1-00000000" / "replaced"
    work.mkdir(parents=True)
    os.rename(store.path / "runs" / key, work / key)
    assert Store(store.path).keep("k", {}, lambda: pytest.fail("lost")).facts["worst"] == 0.5
    assert litter(store) == []


def test_what_cannot_go_back_waits_for_the_next(store, monkeypatch):
    key = store.keep("k", {}, compute).key
    true = os.rename

    def refuse(source, target):
        if Path(target).name == key and Path(target).parent.name == "runs":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        true(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(NotKept):
        store.keep("k", {}, compute, fresh=True)
    monkeypatch.undo()
    (work,) = litter(store)
    assert (work / "replaced" / key / "run.json").exists()
    place, _, start, _ = work.name.split("-")
    work.rename(work.with_name(f"{place}-{2**22 + 1}-{start}-00000000"))  # and then the process ends
    assert Store(store.path).keep("k", {}, lambda: pytest.fail("lost")).facts["worst"] == 0.5


def test_ctrl_c_while_it_tidies_waits_until_that_is_done(store, monkeypatch):
    true, calls = shutil.rmtree, []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        true(*arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.keep("k", {}, compute)
    assert litter(store) == []


def test_a_fresher_run_is_not_undone(store):
    key = store.keep("k", {}, compute).key
    old = store.path / "runs" / key
    work = store.path / "tmp" / f"{owners.place()}-{2**22 + 1}-1-00000000" / "replaced"
    shutil.copytree(old, work / key)
    store.keep("k", {}, lambda: ({}, {"worst": 0.25}), fresh=True)
    assert store.keep("k", {}, compute).facts == {"worst": 0.25}
    assert litter(store) == []


def test_who_is_taken_for_dead_while_writing_writes_again(store, monkeypatch):
    """Another machine, whose clock is wrong, may clear our directory."""
    true, cleared = folder_module.write_json, []

    def clear_first(path, content):
        if not cleared:
            cleared.append(path)
            shutil.rmtree(path.parents[1])
        return true(path, content)

    monkeypatch.setattr(folder_module, "write_json", clear_first)
    assert store.keep("k", {}, compute).facts["worst"] == 0.5
    assert store.keep("k", {}, lambda: pytest.fail("lost")).facts["worst"] == 0.5


# Clocks


@pytest.mark.parametrize("jump", [-1e9, -3600.0, 3600.0, 1e9])
def test_a_clock_that_jumps_changes_nothing(store, monkeypatch, jump):
    first = store.keep("k", {"i": 0}, compute)
    living = store.path / "tmp" / "ffffffff-1-1-00000000"
    living.mkdir()
    true, began = time.time, time.time()
    monkeypatch.setattr(time, "time", lambda: true() + jump * (true() > began))
    again = store.keep("k", {"i": 0}, lambda: pytest.fail("lost"))
    other = store.keep("k", {"i": 1}, compute)
    assert again.facts == first.facts
    assert other.seconds >= 0
    assert living.exists()  # of another machine, and fresh by the clock of the disk
    assert store.size().count == 2
    assert all(summary.seconds >= 0 for summary in store.runs())


def test_runs_from_the_future_are_read_listed_and_cleared(store):
    key = store.keep("k", {}, compute).key
    later = time.time() + 1e9
    os.utime(store.path / "runs" / key, (later, later))
    assert store.keep("k", {}, lambda: pytest.fail("lost")).facts["worst"] == 0.5
    assert store.clear(older_than_days=1).count == 0
    assert store.clear().count == 1


# Arguments


@pytest.mark.parametrize("root", [5, b"x", "", "a\0b", ["a"], 2.5, True])
def test_what_is_no_folder_is_refused(root):
    with pytest.raises(InputError, match="`root` is"):
        Store(root)


def test_a_home_that_there_is_not_is_refused():
    with pytest.raises(InputError, match="no such home"):
        Store("~no-such-user-here/store")


def test_wrong_arguments_are_named(store):
    for use, name in [
        (lambda: store.keep("k", {}, 3), "compute"),
        (lambda: store.map("k", None, []), "function"),
        (lambda: store.map("k", compute, 5), "configs"),
        (lambda: store.clear("old"), "older_than_days"),
        (lambda: store.clear(float("nan")), "older_than_days"),
    ]:
        with pytest.raises(InputError, match=f"`{name}` is"):
            use()
    assert not store.path.exists()


@pytest.mark.parametrize("length", [300, 5000])
def test_a_path_that_is_too_long_is_named(tmp_path, length):
    store = Store(tmp_path / ("n" * length))
    for use in (lambda: store.keep("k", {}, compute), lambda: list(store.runs()), store.size):
        with pytest.raises(StoreError, match="File name too long"):
            use()


# Compiled programs


def test_half_written_programs_are_dropped_and_whole_ones_looked_at_once(store):
    import zlib

    place = compiled_folder(store)
    assert (compiled_size(store).count, drop_broken(compiled_folder(store))) == (0, 0)
    place.mkdir(parents=True)
    content = zlib.compress(b"program" * 100)
    (place / "whole-cache").write_bytes(content)
    (place / "other-cache").write_bytes(b"\x28\xb5\x2f\xfd other packing")
    (place / "notes").write_text("mine")
    for name, harmed in (("cut", content[:-3]), ("none", b""), ("flipped", content[:20] + b"\xff" + content[21:])):
        (place / f"{name}-cache").write_bytes(harmed)
    size = compiled_size(store)
    assert (size.count, size.bytes) == (5, sum(p.stat().st_size for p in place.glob("*-cache")))
    assert drop_broken(compiled_folder(store)) == 3
    assert sorted(p.name for p in place.iterdir()) == ["notes", "other-cache", "whole-cache"]
    assert drop_broken(compiled_folder(store)) == 0


def test_the_doctor_counts_them(store):
    from attnlab.store.doctor import _compiled

    place = compiled_folder(store)
    place.mkdir(parents=True)
    (place / "a-cache").write_bytes(bytes(1234))
    assert _compiled(store) == (f"{place} (1 programs, 1234 bytes)", True)
