"""MNIST, Fashion-MNIST and CIFAR-10 from files as published; what is damaged or foreign is refused by name."""

import gzip
import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
from image_files import (
    array_of_bytes,
    binary_batch,
    colours,
    grey,
    idx,
    number,
    picture,
    python2_batch,
    short,
    write_idx,
)

import attnlab as al
from attnlab import InputError
from attnlab.data.batchpickle import read_batch
from attnlab.data.cifar import MOST, read_binary

BATCHES = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}


@pytest.fixture(autouse=True)
def _nowhere_else(monkeypatch, tmp_path):
    """No test finds the user's own files."""
    monkeypatch.delenv("ATTNLAB_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("spelling", [0, 1])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_in_every_spelling(tmp_path, name, split, spelling, zipped):
    images, labels = grey()
    write_idx(tmp_path / "here", split, images, labels, spelling=spelling, zipped=zipped)
    for folder in (tmp_path / "here", str(tmp_path / "here")):
        read = getattr(al.data, name)(folder, split)
        np.testing.assert_array_equal(read.pixels[..., 0], images)
        np.testing.assert_array_equal(read.y, labels)
        assert read.pixels.dtype == np.uint8
    assert (read.classes, read.info["source"], read.info["split"], read.info["form"]) == (10, name, split, "IDX")
    assert len(read.info["names"]) == 10
    published = {"train": 60000, "test": 10000}[split]
    assert f"12 images stand in for the {published} of" in read.info["note"]
    other = {"train": "test", "test": "train"}[split]
    with pytest.raises(InputError, match=f"split `{other}`, is not there"):
        getattr(al.data, name)(tmp_path / "here", other)


def test_files_of_the_other_set_are_not_taken_for_it(tmp_path):
    """Both have files of the same names; the labels tell."""
    begins = {
        ("mnist", "train"): [5, 0, 4, 1, 9, 2, 1, 3],
        ("mnist", "test"): [7, 2, 1, 0, 4, 1, 4, 9],
        ("fashion_mnist", "train"): [9, 0, 0, 3, 0, 2, 7, 2],
        ("fashion_mnist", "test"): [9, 2, 1, 1, 6, 1, 4, 6],
    }
    for (name, split), labels in begins.items():
        folder = tmp_path / name
        write_idx(folder, split, grey(8)[0], labels)
        assert getattr(al.data, name)(folder, split).y.tolist() == labels
        other = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}[name]
        with pytest.raises(InputError, match=f"its labels are those of {name}"):
            getattr(al.data, other)(folder, split)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_cut_off_at_any_byte_are_refused(tmp_path, zipped):
    images, labels = grey(2)
    for array, which in ((images, 0), (labels, 1)):
        write_idx(tmp_path, "train", images, labels, zipped=zipped)
        path = sorted(tmp_path.glob("train-*"))[which]
        whole = path.read_bytes()
        assert whole == (gzip.compress(idx(array)) if zipped else idx(array))
        # Every byte of the header and the end; each 7th of the many alike between.
        cuts = [k for k in range(len(whole)) if k < 40 or k > len(whole) - 40 or k % 7 == 0]
        for cut in cuts:
            path.write_bytes(whole[:cut])
            with pytest.raises(InputError, match=path.name):
                al.data.mnist(tmp_path)


def test_wrong_idx_files_are_refused(tmp_path):
    images, labels = grey(3)
    for pixels, digits, words in (
        (images, labels[:2], "3 images and 2 labels"),
        (images, labels + 8, "has a label 10; wanted labels 0 to 9"),
        (images[:0], labels[:0], "wanted at least one pixel"),
        (images[:, :27], labels, "has images of 27 x 28 x 1 in .*MNIST has images of 28 x 28 x 1"),
    ):
        write_idx(tmp_path, "train", pixels, digits)
        with pytest.raises(InputError, match=words):
            al.data.mnist(tmp_path)


def written_batches(folder, make, split="train", ending=""):
    """Batches of 2, 3, ... images; all of their rows and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, labels = [], []
    for k, name in enumerate(BATCHES[split]):
        more, their = colours(2 + k, seed=k)
        (folder / f"{name}{ending}").write_bytes(make(more, their))
        rows.extend(more)
        labels.extend(their)
    return rows, labels


def python3_batch(protocol):
    def make(rows, labels):
        return pickle.dumps({b"data": rows, b"labels": labels.tolist(), b"filenames": [b"a"] * len(rows)}, protocol)

    return make


def text_keys(rows, labels):
    return pickle.dumps({"data": np.asfortranarray(rows), "labels": labels.tolist()}, 4)


FORMS = {
    "Python 2": (python2_batch, "cifar-10-batches-py", ""),
    "protocol 2": (python3_batch(2), "cifar-10-batches-py", ""),
    "protocol 3": (python3_batch(3), ".", ""),
    "protocol 4": (python3_batch(4), ".", ""),
    "text, columns first": (text_keys, ".", ""),
    "binary": (binary_batch, "cifar-10-batches-bin", ".bin"),
    "binary here": (binary_batch, ".", ".bin"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_batches_of_cifar(tmp_path, form, split):
    make, folder, ending = FORMS[form]
    rows, labels = written_batches(tmp_path / folder, make, split, ending)
    read = al.data.cifar10(tmp_path, split)
    assert read.pixels.shape == (len(rows), 32, 32, 3)
    np.testing.assert_array_equal(read.pixels, np.stack([picture(row) for row in rows]))
    assert read.y.tolist() == labels
    assert read.info["names"][3] == "cat"
    for missing in (tmp_path / folder).glob("*batch*"):
        missing.unlink()
        with pytest.raises(InputError, match="`cifar10`"):
            al.data.cifar10(tmp_path, split)


def test_the_batch_of_the_tests_is_what_python_2_wrote():
    """Python's own unpickler reads our bytes as the dict that the publishers describe."""
    rows, labels = colours(4)
    held = pickle.loads(python2_batch(rows, labels), encoding="bytes")
    assert set(held) == {b"data", b"labels", b"batch_label", b"filenames"}
    np.testing.assert_array_equal(held[b"data"], rows)
    assert held[b"labels"] == labels.tolist()
    assert held[b"filenames"][3] == b"image_3.png"


def test_every_label_from_0_to_9_is_one():
    rows, _ = colours(10)
    for make in (python2_batch, python3_batch(4)):
        assert read_batch(make(rows, np.arange(10)), "batch")[1].tolist() == list(range(10))
    assert read_binary(binary_batch(rows, range(10)), "batch")[1].tolist() == list(range(10))


def archive(path, contents):
    with tarfile.open(path, "w:gz") as file:
        for name, content in contents.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            file.addfile(about, io.BytesIO(content))


@pytest.mark.parametrize(
    ("name", "make", "ending", "inner"),
    [
        ("cifar-10-python.tar.gz", python2_batch, "", "cifar-10-batches-py"),
        ("cifar-10-binary.tar.gz", binary_batch, ".bin", "cifar-10-batches-bin"),
    ],
)
def test_archives_of_cifar(tmp_path, name, make, ending, inner):
    rows, labels = written_batches(tmp_path / "loose", make, "train", ending)
    contents = {f"{inner}/{path.name}": path.read_bytes() for path in sorted((tmp_path / "loose").iterdir())}
    contents = {f"{inner}/readme.html": b"<p>", **contents}
    archive(tmp_path / name, contents)
    read = al.data.cifar10(tmp_path)
    np.testing.assert_array_equal(read.pixels, np.stack([picture(row) for row in rows]))
    assert read.y.tolist() == labels
    assert [path.name for path in tmp_path.iterdir() if path.name != "loose"] == [name]  # nothing was unpacked
    with pytest.raises(InputError, match="lacks test_batch"):
        al.data.cifar10(tmp_path, "test")
    whole = (tmp_path / name).read_bytes()
    for cut in [0, 1, 5, 20, len(whole) // 3, len(whole) // 2, len(whole) - 2000]:
        (tmp_path / name).write_bytes(whole[:cut])
        with pytest.raises(InputError, match=name):
            al.data.cifar10(tmp_path)
    for place in (300, len(whole) // 2, len(whole) - 9, len(whole) - 2):
        (tmp_path / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError, match=name):
            al.data.cifar10(tmp_path)


def test_npz_of_cifar(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    y = np.array([0, 9, 3, 3, 1])
    np.savez_compressed(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2, None])
    np.savez(tmp_path / "another.npz", x=x)
    read = al.data.cifar10(tmp_path)
    np.testing.assert_array_equal(read.pixels, x)
    np.testing.assert_array_equal(read.y, y)
    assert al.data.cifar10(tmp_path, "test").y.tolist() == [0, 9]
    np.savez(tmp_path / "again.npz", x_train=x, y_train=y)
    with pytest.raises(InputError, match=r"several npz files: again\.npz, own\.npz"):
        al.data.cifar10(tmp_path)
    (tmp_path / "again.npz").unlink()
    for wrong, words in (
        ({"x_train": x / 255.0, "y_train": y}, "x_train of type float64"),
        ({"x_train": x[:, :31], "y_train": y}, r"shape \(5, 31, 32, 3\)"),
        ({"x_train": x[:0], "y_train": y[:0]}, r"shape \(0, 32, 32, 3\)"),
        ({"x_train": np.uint8(3), "y_train": y}, r"shape \(\)"),
        ({"x_train": x, "y_train": y[:4]}, r"y_train of type int64 and shape \(4,\) for 5 images"),
        ({"x_train": x, "y_train": y / 2}, "y_train of type float64"),
        ({"x_train": x, "y_train": y + 1}, "has a label 10"),
        ({"x_train": x, "y_train": y - 1}, "has a label -1"),
        ({"x_train": x, "labels": y}, "no npz of x_train and y_train"),
        ({"x_train": np.array([None]), "y_train": y}, "Python objects"),
    ):
        np.savez(tmp_path / "own.npz", **wrong)
        with pytest.raises(InputError, match=words):
            al.data.cifar10(tmp_path)
    (tmp_path / "own.npz").write_bytes(b"PK not really")
    with pytest.raises(InputError, match="no npz of x_train"):
        al.data.cifar10(tmp_path)


def test_binary_batches_of_no_whole_number_of_images_are_refused():
    rows, labels = colours(2)
    whole = binary_batch(rows, labels)
    assert len(whole) == 2 * 3073
    for cut in range(len(whole)):
        if cut == 3073:
            assert read_binary(whole[:cut], "batch")[1].tolist() == labels[:1].tolist()
            continue
        with pytest.raises(InputError, match=f"`batch` has {cut} bytes; wanted a binary batch"):
            read_binary(whole[:cut], "batch")
    with pytest.raises(InputError, match="has a label 10"):
        read_binary(b"\x0a" + whole[1:], "batch")


def test_python_batches_cut_off_at_any_byte_are_refused():
    rows, labels = colours(1)
    for whole in (python2_batch(rows, labels), python3_batch(2)(rows, labels), python3_batch(4)(rows, labels)):
        read_batch(whole, "batch")
        for cut in range(len(whole)):
            with pytest.raises(InputError, match="`batch` is no Python batch of CIFAR-10"):
                read_batch(whole[:cut], "batch")


class Call:
    """Pickled, it says: call this."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_foreign_pickle_is_refused_and_does_not_run(tmp_path, protocol):
    flag = tmp_path / "it-ran"
    rows, labels = colours(1)
    payloads = (
        Call(os.system, f"touch {flag}"),
        {b"data": rows, b"labels": labels.tolist(), b"batch_label": Call(os.system, f"touch {flag}")},
        {b"data": Call(eval, f"open({str(flag)!r}, 'w')"), b"labels": [1]},
        [Call(getattr, flag, "touch")],
    )
    for payload in payloads:
        content = pickle.dumps(payload, protocol)
        (tmp_path / "test_batch").write_bytes(content)
        words = "which loading would run" if protocol >= 2 else "does not begin as a pickle"
        with pytest.raises(InputError, match=rf"test_batch. is no Python batch of CIFAR-10 \(.*{words}"):
            al.data.cifar10(tmp_path, "test")
        assert not flag.exists()
    pickle.loads(pickle.dumps(payloads[0], protocol))  # and so it would have
    assert flag.exists()


def test_pickles_of_something_else_are_refused():
    rows, labels = colours(2)
    listed = labels.tolist()

    def packed(value):
        return pickle.dumps(value, 4)

    begin = b"\x80\x02"
    for content, words in (
        (packed([1, 2]), "it holds list, and no dict"),
        (packed({}), "lacks data and labels; it holds nothing"),
        (packed({"data": rows, "fine_labels": listed}), "lacks labels; it holds data, fine_labels"),
        (packed({"data": rows[:, :100].copy(), "labels": listed}), r"its data has shape \(2, 100\)"),
        (packed({"data": rows[0].copy(), "labels": listed}), r"its data has shape \(3072,\)"),
        (packed({"data": rows[:0], "labels": []}), r"its data has shape \(0, 3072\)"),
        (packed({"data": "text", "labels": listed}), "its data is no array"),
        (packed({"data": rows, "labels": [1, 10]}), "labels are no list of numbers from 0 to 9"),
        (packed({"data": rows, "labels": [-1, 1]}), "labels are no list of numbers from 0 to 9"),
        (packed({"data": rows, "labels": [True, 1]}), "labels are no list"),
        (packed({"data": rows, "labels": (1, 2)}), "labels are no list"),
        (packed({"data": rows, "labels": [1]}), "2 images and 1 labels"),
        (packed({"data": rows.astype(float), "labels": listed}), "array of type f8"),
        (packed({1: rows}), "int where str is wanted"),
        (packed({"data": rows, "labels": listed}) + b"x", "goes on after its end"),
        (packed({"data": rows, "labels": [1.5, 2]}), "it says BINFLOAT"),
        (packed({"data": rows, "labels": {1, 2}}), "it says EMPTY_SET"),
        (begin + b"cos\nsystem\n.", "it names `os.system`"),
        (begin + b"c_codecs\nencode\n" + short(b"a") + short(b"zip") + b"\x86R.", "calls `_codecs.encode`"),
        (begin + b"cnumpy\nndarray\n)R.", "calls `numpy.ndarray`"),
        (begin + b"}(K\x01e.", "dict where list is wanted"),
        (begin + b"](K\x01K\x01u.", "list where dict is wanted"),
        (begin + b"]K\x01\x86.", "it holds tuple, and no dict"),
        (begin + b"K\x01\x86.", "takes more from its stack"),
        (begin + b"K\x01)b.", "int where Bytes is wanted"),
        (begin + b"K\x01)R.", "int where Name is wanted"),
        (begin + b"}(K\x01u.", "cut off or damaged"),
        (begin + b"h\x05.", "cut off or damaged"),
        (begin + b"(K\x01.", "leaves other than one value"),
        (begin + b"K\x01K\x02.", "leaves other than one value"),
        (begin + b"t.", "cut off or damaged"),
        (begin + array_of_bytes(rows).replace(number(3072), number(9999)) + b".", "cut off or damaged"),
        (begin + b"r\xff\xff\xff\xff.", "cut off or damaged"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**60) + b".", "cut off or damaged"),
        (b"", "does not begin as a pickle"),
        (b"text", "does not begin as a pickle"),
    ):
        with pytest.raises(InputError) as error:
            read_batch(content, "batch")
        assert words.replace("\\", "") in str(error.value), content[:80]


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_give_images_or_a_typed_error(seed):
    """Whatever is damaged: an image of other pixels, or a refusal."""
    rows, labels = colours(1)
    whole = (python2_batch(rows, labels), python3_batch(4)(rows, labels))[seed % 2]
    rng = np.random.default_rng(seed)
    structure = [k for k in range(len(whole)) if k < 400 or k > len(whole) - 200]
    refused = 0
    for _ in range(500):
        damaged = bytearray(whole)
        for place in rng.choice(structure, rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        try:
            read, digits = read_batch(bytes(damaged), "batch")
        except InputError:
            refused += 1
        else:
            assert read.shape == (1, 3072)
            assert 0 <= digits[0] <= 9
    assert refused > 100


def test_a_file_too_large_for_a_batch_is_not_read(tmp_path):
    for name in ("test_batch", "test_batch.bin"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(MOST + 1)
        with pytest.raises(InputError, match=rf"{name}` has {MOST + 1} bytes; a batch of CIFAR-10 has about"):
            al.data.cifar10(tmp_path, "test")
        (tmp_path / name).unlink()
    contents = {"cifar-10-batches-bin/test_batch.bin": bytes(MOST + 1)}
    archive(tmp_path / "cifar-10-binary.tar.gz", contents)
    with pytest.raises(InputError, match=rf"test_batch\.bin` has {MOST + 1} bytes; a batch"):
        al.data.cifar10(tmp_path, "test")


def test_digits_of_scikit_learn():
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    train, test = al.data.digits(), al.data.digits("test")
    loaded = load_digits()
    assert train.n + test.n == 1797
    order = np.concatenate([train.y, test.y])
    np.testing.assert_array_equal(np.bincount(order), np.bincount(loaded.target))
    for digit in range(10):
        theirs = loaded.images[loaded.target == digit] / 16
        ours = np.concatenate([part.pixels[part.y == digit, :, :, 0] for part in (train, test)])
        np.testing.assert_array_equal(ours, theirs)
        assert test.counts[digit] == len(theirs) // 5
    assert train.pixels.max() == 1
    assert "not MNIST" in train.info["note"]
    with pytest.raises(InputError, match="`split`"):
        al.data.digits("all")
