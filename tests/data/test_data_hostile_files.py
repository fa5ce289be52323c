"""Whatever lies in the place of an npz file: its arrays to the last bit, or an error that says what is wrong."""

import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

import attnlab as al
from attnlab import checks
from attnlab.data import files
from attnlab.data.files import read_npy, read_npz, write_npz
from attnlab.errors import InputError


def refused(path) -> str:
    """The message; never of another library about its own options."""
    with pytest.raises(InputError) as caught:
        al.Tokens.load(path)
    text = str(caught.value)
    assert str(path) in text
    assert "allow_pickle" not in text
    return text


def npy(array) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.asarray(array))
    return content.getvalue()


def packed(path, entries, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return path


def test_what_is_no_npz_is_told_apart(tmp_path):
    folder, empty, text, pickled, objects, single = (tmp_path / name for name in "abcdef")
    folder.mkdir()
    empty.write_bytes(b"")
    text.write_text("x,z,y\n1,2,3\n")
    pickled.write_bytes(pickle.dumps({"x": [1]}))
    with open(objects, "wb") as file:
        np.savez(file, x=np.array([[1, 2], [3]], dtype=object), z=1, y=1)
    single.write_bytes(npy(np.ones(3)))
    for path, words in [
        (tmp_path / "none", "There is no file"),
        (folder, "is a folder"),
        (empty, "it is empty"),
        (text, "does not begin as one"),
        (pickled, "holds Python objects"),
        (objects, "holds Python objects"),
        (single, "holds a single array"),
    ]:
        assert words in refused(path)


def test_pipes_and_devices_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe or a device" in refused(tmp_path / "pipe")
    assert "is a pipe or a device" in refused("/dev/zero")


@pytest.fixture
def sound(tmp_path):
    arrays = {"x": np.arange(24.0).reshape(1, 4, 6), "mask": np.eye(4, dtype=bool), "none": np.zeros((0, 3))}
    path = write_npz(tmp_path / "sound.npz", arrays, {"n": 1})
    return path, path.read_bytes(), read_npz(path, "")


def same(found, wanted):
    assert found[1] == wanted[1]
    assert list(found[0]) == list(wanted[0])
    for name, array in wanted[0].items():
        np.testing.assert_array_equal(found[0][name], array, strict=True)


def test_a_truncated_file_is_refused_at_every_length(sound):
    path, content, _ = sound
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match="not readable as npz"):
            read_npz(path, "")


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_no_flipped_bit_gives_another_array(sound, bit):
    """In the arrays, in their headers or in the directory: noticed, or of no account."""
    path, content, wanted = sound
    noticed = 0
    for place in range(len(content)):
        harmed = bytearray(content)
        harmed[place] ^= 1 << bit
        path.write_bytes(harmed)
        try:
            found = read_npz(path, "")
        except InputError:
            noticed += 1
        else:
            same(found, wanted)
    assert noticed > len(content) / 2


def test_a_bomb_is_refused_before_anything_is_unpacked(tmp_path, monkeypatch):
    zeros = npy(np.zeros(2**17))  # a megabyte
    path = packed(tmp_path / "bomb.npz", [(f"x{i}.npy", zeros) for i in range(4)], zipfile.ZIP_DEFLATED)
    assert len(read_npz(path, "")[0]) == 4
    monkeypatch.setattr(files, "BOMB_BYTES", 2**21)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_, **__: pytest.fail("unpacked"))
    assert "would unpack to" in refused(path)


def test_a_bomb_that_lies_about_its_packed_size_is_one_too(tmp_path, monkeypatch):
    """The ratio is to the file on the disk, not to what the directory says."""
    path = packed(tmp_path / "bomb.npz", [("x.npy", npy(np.zeros(2**19)))], zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    struct.pack_into("<L", content, directory + 20, 2**22)  # compressed size
    path.write_bytes(content)
    monkeypatch.setattr(files, "BOMB_BYTES", 2**21)
    assert "would unpack to" in refused(path)


def test_data_that_pack_well_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BOMB_BYTES", 2**18)
    noise = np.random.default_rng(0).integers(0, 4, 2**19, dtype=np.int8)
    np.savez_compressed(tmp_path / "a.npz", a=noise)
    np.testing.assert_array_equal(read_npz(tmp_path / "a.npz", "")[0]["a"], noise)


def test_what_does_not_fit_into_memory_is_refused_with_the_numbers(tmp_path, monkeypatch):
    path = write_npz(tmp_path / "large.npz", {"x": np.zeros(10_000)}, {})
    np.save(tmp_path / "large.npy", np.zeros(10_000))
    monkeypatch.setattr(checks, "SMALL", 0)
    monkeypatch.setattr(checks, "free_memory", lambda: 90_000.0)
    assert "90.0 kB" in refused(path)
    with pytest.raises(InputError, match=r"90\.0 kB"):
        read_npy(tmp_path / "large.npy", "a mask")
    monkeypatch.setattr(checks, "free_memory", lambda: 110_000.0)
    assert read_npz(path, "")[0]["x"].size == 10_000


@pytest.mark.parametrize("shape", ["(1000000000000000,)", "(-1,)", "(3, 99999999999999999999)", "((1,),)", "'abc'"])
def test_a_header_that_lies_is_refused(tmp_path, shape):
    honest = npy(np.zeros(3))
    header = honest[10 : 10 + struct.unpack("<H", honest[8:10])[0]].decode()
    lie = header.rstrip().replace("(3,)", shape).encode().ljust(len(header) + 40) + b"\n"
    content = honest[:8] + struct.pack("<H", len(lie)) + lie + honest[10 + len(header) :]
    path = packed(tmp_path / "lie.npz", [("x.npy", content)])
    assert "not readable as npz" in refused(path)
    (tmp_path / "lie.npy").write_bytes(content)
    with pytest.raises(InputError, match="not readable as npy"):
        read_npy(tmp_path / "lie.npy", "a mask")


def test_entries_that_are_longer_than_their_array_or_come_twice_are_refused(tmp_path):
    path = packed(tmp_path / "a.npz", [("x.npy", npy(np.zeros(3)) + b"more")])
    assert "longer than it says" in refused(path)
    with pytest.warns(UserWarning, match="Duplicate"):
        packed(tmp_path / "b.npz", [("x.npy", npy(np.zeros(3))), ("x.npy", npy(np.ones(3)))])
    assert "two arrays of one name" in refused(tmp_path / "b.npz")


def test_other_entries_are_none_of_our_business(tmp_path):
    path = packed(tmp_path / "a.npz", [("readme.txt", "hello"), ("x.npy", npy(np.zeros(3)))])
    assert list(read_npz(path, "")[0]) == ["x"]


@pytest.mark.parametrize("facts", ["[1]", "nonsense", "[" * 100_000])
def test_facts_that_are_none_are_refused(tmp_path, facts):
    path = packed(tmp_path / "a.npz", [("facts.npy", npy(np.array(facts)))])
    assert "not readable as npz" in refused(path)


def test_one_array_is_read_from_npy_and_not_from_npz(tmp_path, sound):
    np.save(tmp_path / "mask.npy", np.eye(2, dtype=bool))
    assert read_npy(tmp_path / "mask.npy", "a mask").tolist() == [[True, False], [False, True]]
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    for path, words in [(sound[0], "holds named arrays"), (tmp_path / "objects.npy", "holds Python objects")]:
        with pytest.raises(InputError, match=words) as caught:
            read_npy(path, "a mask")
        assert "allow_pickle" not in str(caught.value)
