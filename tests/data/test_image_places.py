"""Where image sets are looked for, in which order; what is said when they are nowhere; how they are downloaded."""

import gzip
import hashlib
import importlib.util
import logging
import os
import sys
import threading
import types
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from image_files import grey, idx, write_idx

import attnlab as al
from attnlab import InputError
from attnlab.data import imagesets, places
from attnlab.data.imagesets import SETS, image_sets
from attnlab.data.places import Remote, cache_folder

SHARED = Path(__file__).parents[3] / "shared" / "data"
REAL = os.environ.get("ATTNLAB_DATA")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """No folder of the user's own, and nothing that downloads."""
    monkeypatch.delenv("ATTNLAB_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "pooch_installed", lambda: False)
    return tmp_path / "cache" / "attnlab" / "data"


def put(folder, label):
    """A training set in which every label is this one."""
    write_idx(folder, "train", grey(4)[0], np.full(4, label))


def test_folders_go_in_order(cache, tmp_path, monkeypatch):
    put(cache / "mnist", 1)
    assert al.data.mnist().y[0] == 1
    root = tmp_path / "own"
    put(root, 2)
    monkeypatch.setenv("ATTNLAB_DATA", str(root))
    assert al.data.mnist().y[0] == 2
    put(root / "mnist", 3)
    read = al.data.mnist()
    assert read.y[0] == 3
    assert read.info["folder"] == str(root / "mnist")
    put(tmp_path / "given" / "mnist", 4)
    assert al.data.mnist(tmp_path / "given").y[0] == 4
    put(tmp_path / "given", 5)
    assert al.data.mnist(tmp_path / "given").y[0] == 5
    # Half of a set does not hide the whole one behind it.
    (root / "mnist" / "train-labels-idx1-ubyte").unlink()
    assert al.data.mnist().y[0] == 2
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path / "nowhere"))
    assert al.data.mnist().y[0] == 1
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ATTNLAB_DATA", "~/own")
    assert al.data.mnist().y[0] == 2


def test_a_given_folder_is_the_only_one(cache, tmp_path):
    put(cache / "mnist", 1)
    (tmp_path / "file").write_text("")
    locked = tmp_path / ("long" * 100)
    for folder, why in ((tmp_path / "no", "no such folder"), (tmp_path / "file", "a file, not"), (locked, "too long")):
        with pytest.raises(InputError, match=rf"`mnist`, split `train`, is not there; looked in: .*{why}"):
            al.data.mnist(folder)
    for folder in (5, "", None.__class__, b"x", "a\0b"):
        with pytest.raises(InputError, match="`folder`"):
            al.data.mnist(folder)
    for split in ("all", None, 3):
        with pytest.raises(InputError, match="`split`"):
            al.data.mnist(tmp_path, split)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_without_files_it_is_said_which_and_where(cache, monkeypatch, tmp_path, name):
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path))
    with pytest.raises(InputError) as error:
        getattr(al.data, name)(split="test")
    text = str(error.value)
    wanted = {"cifar10": "cifar-10-batches-py"}.get(name, "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte")
    for words in (
        f"`{name}`, split `test`",
        f"{tmp_path}/{name} (no such folder)",
        f"{tmp_path} (no ",
        f"{cache}/{name} (no such folder)",
        wanted,
        f"put the files into {cache}/{name}, or set ATTNLAB_DATA",
        "pip install 'attnlab[images]'",
    ):
        assert words in text


def test_without_a_home_folder(cache, monkeypatch):
    def homeless():
        raise RuntimeError

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None
    with pytest.raises(InputError, match=r"looked in: no folder[\s\S]*set ATTNLAB_DATA to a folder"):
        al.data.mnist()


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "attnlab"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("", "somewhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert cache_folder() == tmp_path / "home" / ".cache" / "attnlab"


def test_without_scikit_learn_the_digits_name_the_extra(monkeypatch):
    monkeypatch.setattr(imagesets, "digits_installed", lambda: False)
    with pytest.raises(InputError, match=r"attnlab\[digits\]"):
        al.data.digits()
    assert image_sets()[-1]["splits"]["train"] == {"found": False, "images": None}


def test_what_is_there_is_listed(cache, tmp_path, monkeypatch):
    put(cache / "mnist", 1)
    (cache / "fashion_mnist").mkdir(parents=True)
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (cache / "fashion_mnist" / name).write_bytes(b"damaged")
    (cache / "cifar10").mkdir()
    (cache / "cifar10" / "test_batch.bin").write_bytes(bytes(4 * 3073))
    np.savez(cache / "cifar10" / "own.npz", x_train=np.zeros((7, 32, 32, 3), np.uint8), y_train=np.zeros(7, int))
    listed = {one["name"]: one for one in image_sets()}
    found = listed["mnist"]["splits"]["train"]
    assert (found["found"], found["images"], found["folder"]) == (True, 4, str(cache / "mnist"))
    assert found["files"] == ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]
    missing = listed["mnist"]["splits"]["test"]
    assert not missing["found"]
    assert "no t10k-images-idx3-ubyte, no t10k-labels-idx1-ubyte" in missing["why"][0]
    assert listed["mnist"]["looked_in"] == [str(cache / "mnist")]
    assert "begins with" in listed["fashion_mnist"]["splits"]["test"]["why"][0]
    assert listed["cifar10"]["splits"]["test"]["images"] == 4
    assert listed["cifar10"]["splits"]["test"]["form"] == "binary batches"
    assert listed["cifar10"]["splits"]["train"]["images"] == 7
    assert listed["cifar10"]["shape"] == [32, 32, 3]


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder in place of MNIST's address: both files of the test split, and their sums."""
    site = tmp_path / "site"
    images, labels = grey(5)
    write_idx(site, "test", images, labels, zipped=True)
    remote = {}
    for path in site.iterdir():
        remote[path.name] = Remote(f"http://nowhere.invalid/{path.name}", hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setitem(SETS["mnist"].remote, "test", remote)
    return site


def stand_in(site, asked):
    """A pooch that copies from a folder, and checks as the real one does."""

    def retrieve(url, known_hash, fname, path, progressbar):
        asked.append(url)
        content = (site / url.rpartition("/")[2]).read_bytes()
        assert not progressbar
        if known_hash != f"md5:{hashlib.md5(content).hexdigest()}":
            raise ValueError(f"MD5 hash of downloaded file ({fname}) does not match")
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / fname).write_bytes(content)

    logger = logging.getLogger("a pooch of the tests")
    return types.SimpleNamespace(retrieve=retrieve, get_logger=lambda: logger)


def test_what_is_missing_is_downloaded_once(cache, published, monkeypatch):
    asked = []
    monkeypatch.setattr(places, "pooch_installed", lambda: True)
    monkeypatch.setitem(sys.modules, "pooch", stand_in(published, asked))
    read = al.data.mnist(split="test")
    np.testing.assert_array_equal(read.pixels[..., 0], grey(5)[0])
    assert read.info["folder"] == str(cache / "mnist")
    assert len(asked) == 2
    again = al.data.mnist(split="test")
    np.testing.assert_array_equal(again.pixels, read.pixels)
    assert len(asked) == 2
    with pytest.raises(InputError, match="is not there"):
        al.data.mnist(cache / "nowhere", "test")  # a folder that is given is never filled
    assert len(asked) == 2


def test_a_download_that_fails_says_why(cache, published, monkeypatch):
    monkeypatch.setattr(places, "pooch_installed", lambda: True)
    monkeypatch.setitem(sys.modules, "pooch", stand_in(published, []))
    path = next(published.glob("*labels*"))
    path.write_bytes(gzip.compress(idx([1, 2])))
    with pytest.raises(InputError, match=r"downloading failed \(ValueError: MD5 hash .* does not match\)"):
        al.data.mnist(split="test")
    path.unlink()
    with pytest.raises(InputError, match=r"downloading failed \(FileNotFoundError[\s\S]*put the files into"):
        al.data.mnist(split="test")


def test_a_download_of_other_files_is_noticed(cache, published, monkeypatch):
    monkeypatch.setattr(places, "pooch_installed", lambda: True)
    monkeypatch.setitem(sys.modules, "pooch", stand_in(published, []))
    remote = dict(list(SETS["mnist"].remote["test"].items())[:1])
    monkeypatch.setitem(SETS["mnist"].remote, "test", remote)
    with pytest.raises(InputError, match="`mnist` was downloaded, but is not whole"):
        al.data.mnist(split="test")


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        """Say nothing."""


def test_the_real_pooch_downloads_and_says_nothing(cache, published, monkeypatch, capfd):
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(places, "pooch_installed", lambda: True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(published)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        local = {file: Remote(f"{address}/{file}", source.md5) for file, source in SETS["mnist"].remote["test"].items()}
        monkeypatch.setitem(SETS["mnist"].remote, "test", local)
        level = pooch.get_logger().level
        read = al.data.mnist(split="test")
        assert pooch.get_logger().level == level
        wrong = {file: Remote(source.url, "0" * 32) for file, source in local.items()}
        monkeypatch.setitem(SETS["mnist"].remote, "test", wrong)
        next((cache / "mnist").glob("*labels*")).unlink()
        with pytest.raises(InputError, match="downloading failed"):
            al.data.mnist(split="test")
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(InputError, match="downloading failed"):  # nobody answers any more
        al.data.mnist(split="test")
    np.testing.assert_array_equal(read.pixels[..., 0], grey(5)[0])
    assert capfd.readouterr() == ("", "")


def test_is_pooch_there():
    assert places.pooch_installed() == (importlib.util.find_spec("pooch") is not None)


def test_addresses_and_sums():
    for one in SETS.values():
        for split in ("train", "test"):
            for file, source in one.remote[split].items():
                assert source.url.endswith(f"/{file}")
                assert len(bytes.fromhex(source.md5)) == 16


REAL_COUNTS = {
    ("mnist", "train"): [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    ("mnist", "test"): [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ("fashion_mnist", "train"): [6000] * 10,
    ("fashion_mnist", "test"): [1000] * 10,
}


@pytest.mark.parametrize(("name", "split"), REAL_COUNTS)
def test_real_grey_images(name, split):
    if REAL is None or not (Path(REAL) / name).is_dir():
        pytest.skip(f"no {name} in ATTNLAB_DATA")
    read = getattr(al.data, name)(Path(REAL) / name, split)
    assert read.counts.tolist() == REAL_COUNTS[name, split]
    assert "note" not in read.info
    few = read.take(100, seed=0, balanced=True)
    again = al.data.Images.from_patches(few.patches(4, mean=0.1307, std=0.3081))
    np.testing.assert_array_equal(again.pixels, few.pixels)
    if (name, split) == ("mnist", "train"):
        assert read.only((0, 1)).n == 12665
        scaled = read.pixels / 255.0
        assert scaled.mean() == pytest.approx(0.1307, abs=5e-5)
        assert scaled.std() == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.parametrize("split", ["train", "test"])
def test_real_colour_images(split):
    folders = [Path(REAL) / "cifar10"] if REAL else []
    folder = next((one for one in [*folders, SHARED / "cifar10"] if one.is_dir()), None)
    if folder is None:
        pytest.skip("no cifar10 in ATTNLAB_DATA")
    read = al.data.cifar10(folder, split)
    assert len(set(read.counts.tolist())) == 1  # the whole set and the usual parts of it are balanced
    # Ships and aeroplanes are bluer than frogs and deer, whatever the compression.
    blueness = (read.pixels[..., 2].astype(float) - read.pixels[..., 0]).mean((1, 2))
    assert min(blueness[read.y == k].mean() for k in (0, 8)) > max(blueness[read.y == k].mean() for k in (4, 6))
