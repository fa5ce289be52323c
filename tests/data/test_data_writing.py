"""Files are written whole or not at all, wherever writing fails; and the message says where and what to do."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnlab as al
from attnlab.data import owners, writing
from attnlab.data.files import read_npz, write_npz
from attnlab.data.writing import WriteError, check_writable, make_folder, whole_file, write_json, write_text
from attnlab.errors import AttnlabError, InputError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WRITERS = {
    "text": lambda path: write_text(path, "new"),
    "json": lambda path: write_json(path, {"new": 1}),
    "npz": lambda path: write_npz(path, {"new": np.ones(3)}, {}),
    "tokens": lambda path: al.data.two_tokens().save(path),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_a_failure_anywhere_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, writer, number, step):
    path = tmp_path / "a.npz"
    path.write_bytes(b"old")

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writing if step == "open" else os, step, fail, raising=False)
    with pytest.raises(WriteError, match="Cannot write `") as caught:
        WRITERS[writer](path)
    monkeypatch.undo()
    assert str(path) in str(caught.value)
    assert os.strerror(number) in str(caught.value)
    assert "[Errno" not in str(caught.value)
    assert isinstance(caught.value, AttnlabError)
    assert caught.value.errno == number
    assert number == errno.EIO or "\n\nhint: " in str(caught.value)
    assert (names(tmp_path), path.read_bytes()) == (["a.npz"], b"old")


class FillsUp:
    """A file on a disk that has room for so many bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, content):
        self.room -= len(content)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(content)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 1, 60, 200, 400, 800])
def test_a_disk_that_fills_up_in_the_middle(tmp_path, monkeypatch, room):
    """The whole npz has 1006 bytes or so."""
    path = write_npz(tmp_path / "a.npz", {"a": np.zeros(50)}, {"v": 1})
    before = path.read_bytes()
    monkeypatch.setattr(writing, "open", lambda *given: FillsUp(Path.open(*given), room), raising=False)
    with pytest.raises(WriteError, match="No space left"):
        write_npz(path, {"a": np.ones(50)}, {"v": 2})
    monkeypatch.undo()
    assert (names(tmp_path), path.read_bytes()) == (["a.npz"], before)


def test_where_nothing_can_be_written_it_is_said_what_to_do(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.npz").mkdir()
    for path, words in [
        (tmp_path / "none" / "a.npz", f"there is no folder `{tmp_path}/none`"),
        (tmp_path / "file" / "a.npz", "a file is where a folder should be"),
        (tmp_path / "folder.npz", "it is a folder"),
        (tmp_path / ("n" * 300 + ".npz"), "name too long"),
    ]:
        for write in (al.data.two_tokens().save, check_writable):
            with pytest.raises(WriteError) as caught:
                write(path)
            assert words.lower() in str(caught.value).lower()
            assert str(path) in str(caught.value)
    with pytest.raises(WriteError, match="a file is where a folder should be"):
        make_folder(tmp_path / "file")
    assert names(tmp_path) == ["file", "folder.npz"]
    assert names(tmp_path / "folder.npz") == []


def test_a_folder_is_made_and_left_empty(tmp_path):
    made = make_folder(tmp_path / "a" / "b")
    assert made == tmp_path / "a" / "b"
    assert make_folder(made) == made
    assert names(made) == []


@pytest.mark.parametrize("path", [5, None, 2.5, b"bytes", "", "a\0b", ["a"], True])
def test_what_is_no_path_is_refused(path):
    for use in (al.data.two_tokens().save, al.Tokens.load, check_writable, lambda p: write_text(p, "x")):
        with pytest.raises(InputError, match="`path` is"):
            use(path)


def test_a_link_is_followed_and_a_device_stays_one(tmp_path):
    target = tmp_path / "target.txt"
    target.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    write_text("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    check_writable("/dev/null")


def test_long_names_are_no_hindrance(tmp_path):
    path = tmp_path / ("n" * 250 + ".txt")
    assert write_text(path, "x").read_text() == "x"


def test_an_interruption_leaves_nothing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def interrupted():
        with whole_file(path) as file:
            file.write(b"half")
            assert len(names(tmp_path)) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (names(tmp_path), path.read_text()) == (["a.txt"], "old")


def test_ctrl_c_while_it_tidies_waits_until_that_is_done(tmp_path, monkeypatch):
    true, calls = Path.unlink, []

    def interrupted(path):
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        true(path)

    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_writable(tmp_path / "a.txt")
    assert names(tmp_path) == []


def test_what_a_killed_process_left_is_cleared_by_the_next_that_writes_there(tmp_path):
    program = (
        "import os, signal, sys\nfrom attnlab.data.writing import whole_file\n"
        "with whole_file(sys.argv[1]) as file:\n    file.write(b'half')\n    file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.txt")])
    (left,) = names(tmp_path)
    assert left.startswith(".attnlab-")
    write_text(tmp_path / "b.txt", "x")
    assert names(tmp_path) == ["b.txt"]


def test_what_others_are_writing_is_left_alone(tmp_path):
    """Ours, a living one's, another machine's; whatever the clocks say. Only what is a day old is nobody's."""
    here, me = owners.place(), os.getpid()
    start = owners.start(me)
    living = f".attnlab-{here}-{me}-{start}-00000000.tmp"
    far, ahead, old = (f".attnlab-ffffffff-1-1-0000000{i}.tmp" for i in range(3))
    foreign = ".attnlab-notes.tmp"
    for name in (living, far, ahead, old, foreign):
        (tmp_path / name).write_text("x")
    now = (tmp_path / far).stat().st_mtime
    for name, age in ((far, 23 * 3600.0), (ahead, -1e9), (old, 25 * 3600.0), (living, 1e9)):
        os.utime(tmp_path / name, (now - age, now - age))
    write_text(tmp_path / "a.txt", "x")
    assert names(tmp_path) == sorted(["a.txt", living, far, ahead, foreign])


def test_names_tell_their_process():
    assert not owners.abandoned(owners.owned_name(), age=1e9)
    assert not owners.abandoned("notes", age=1e9)
    assert owners.abandoned(f"{owners.place()}-99999999999999999999-1-00000000", age=0.0)


def mounted(folder: Path, options: str) -> bool:
    """A small disk of its own, where that is allowed."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    return done.returncode == 0


@pytest.fixture
def disk(tmp_path):
    """Mounts a disk of so many bytes; unmounts it."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        if os.geteuid() != 0 or not mounted(folder, options):
            pytest.skip("no disk can be mounted here")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True)


def test_a_full_disk_leaves_what_was_there(disk):
    folder = disk("size=64k")
    tokens = al.data.sphere(n=4, T=5, d=8, seed=0)
    path = tokens.save(folder / "tokens.npz")
    with pytest.raises(WriteError, match="No space left"):
        write_npz(path, {"a": np.ones(20_000)}, {})
    assert names(folder) == ["tokens.npz"]
    np.testing.assert_array_equal(al.Tokens.load(path).x, tokens.x)


def test_a_read_only_disk_is_named(disk):
    folder = disk("size=64k,ro")
    for write in (al.data.two_tokens().save, check_writable, lambda path: make_folder(path.parent)):
        with pytest.raises(WriteError, match="Read-only file system") as caught:
            write(folder / "a.npz")
        assert "hint: choose a folder that you can write to" in str(caught.value)


def test_facts_and_objects_that_cannot_be_written_are_named(tmp_path):
    for facts in ({1: "a", "b": 2}, {"a": {("x", 1): 2}}):
        with pytest.raises(InputError, match="JSON"):
            write_npz(tmp_path / "a.npz", {}, facts)
    loop: dict = {}
    loop["loop"] = loop
    with pytest.raises(InputError, match="JSON"):
        write_npz(tmp_path / "a.npz", {}, loop)
    with pytest.raises(InputError, match="`x` holds Python objects") as caught:
        write_npz(tmp_path / "a.npz", {"x": np.array([object()])}, {})
    assert "pickle" not in str(caught.value)
    assert names(tmp_path) == []
    assert read_npz(write_npz(tmp_path / "a", {}, {}), "") == ({}, {})
