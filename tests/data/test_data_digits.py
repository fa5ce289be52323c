"""IDX files are read strictly; digit patches are what they say."""

import gzip
import struct

import numpy as np
import pytest

from attnlab import InputError, optimal_tokens
from attnlab.data import digitpatches as module
from attnlab.data.digitpatches import digit_patches, linear_classifier
from attnlab.data.idx import digit_images, read_idx


def idx(array, kind=0x08):
    array = np.asarray(array, dtype=np.uint8)
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + array.tobytes()


def strokes(many=120, size=8, seed=0):
    """Rings for 0, bars for 1, and some other digits; a little noise in the pixels."""
    rng = np.random.default_rng(seed)
    digits = rng.integers(0, 3, many)
    i, j = np.mgrid[:size, :size]
    radius = np.hypot(i - (size - 1) / 2, j - (size - 1) / 2)
    shapes = np.stack([np.abs(radius - size / 3) < 1, np.abs(j - size / 2) < 1, (i + j) % 2 == 0])
    images = 200.0 * shapes[digits] + rng.integers(0, 56, (many, size, size))
    return images.astype(np.uint8), digits.astype(np.uint8)


@pytest.fixture
def folder(tmp_path):
    images, digits = strokes()
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(digits)))
    return tmp_path


def test_plain_and_zipped_files_are_read(folder):
    images, digits = digit_images(folder)
    wanted = strokes()
    np.testing.assert_array_equal(images, wanted[0])
    np.testing.assert_array_equal(digits, wanted[1])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with nothing"),
        (idx(np.zeros((2, 3, 3)))[:9], "ends within its header"),
        (idx(np.zeros((2, 3, 3)))[:-1], "says 2 x 3 x 3 = 18 numbers; it holds 17"),
        (idx(np.zeros((2, 3, 3))) + b"x", "it holds more"),
        (idx(np.zeros(5)), "begins with 00 00 08 01"),
        (idx(np.zeros((2, 3, 3)), kind=0x0D), "wanted 00 00 08 03"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, words):
    for name, stored in (("plain", content), ("zipped.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(stored)
        with pytest.raises(InputError, match=words):
            read_idx(tmp_path / name, 3)


def test_damaged_zips_and_wrong_folders_are_refused(folder, tmp_path):
    whole = gzip.compress(idx(np.zeros((2, 3, 3))))
    for content in (b"not gzip", whole[:-9], whole[:20] + b"\x00\x01\x02" + whole[23:]):
        (tmp_path / "bad.gz").write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.gz"):
            read_idx(tmp_path / "bad.gz", 3)
    with pytest.raises(InputError, match="is no folder"):
        digit_patches(source=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has none of train-images-idx3-ubyte"):
        digit_patches(source=tmp_path / "empty")
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(7))))
    with pytest.raises(InputError, match="120 images and 7 labels"):
        digit_images(folder)


def test_patches_show_unseen_images_and_their_label(folder):
    tokens = digit_patches(n=10, T=4, noise=0.01, source=folder, seed=3, trials=3)
    images, digits = strokes()
    shown = np.take_along_axis(tokens.x, tokens.info["planted"][..., None, None], axis=-2)[..., 0, :]
    for trial in range(3):
        for patch, label in zip(shown[trial], tokens.y[trial], strict=True):
            match = np.flatnonzero((images.reshape(120, -1) / 255.0 == patch).all(-1))
            assert digits[match].tolist() == [1 if label > 0 else 0]
    others = np.arange(4) != tokens.info["planted"][..., None]
    assert np.std(tokens.x[others]) == pytest.approx(0.01, rel=0.05)
    np.testing.assert_array_equal(tokens.z, tokens.x[..., 0, :])
    assert tokens.info["accuracy"] == 1.0
    best = optimal_tokens(tokens)
    np.testing.assert_allclose(tokens.info["signal_is_best"], (best == tokens.info["planted"]).mean(-1))
    alone = digit_patches(n=10, T=4, noise=0.01, source=folder, seed=3)
    np.testing.assert_array_equal(alone.x, tokens.x[0])
    few = digit_patches(n=10, T=4, noise=0.01, source=folder, seed=3, trials=2)
    np.testing.assert_array_equal(few.x, tokens.x[:2])


def test_wrong_arguments_are_refused(folder):
    for options, words in (({"n": 1000}, "has not seen"), ({"noise": -1.0}, "`noise`"), ({"seed": -1}, "`seed`")):
        with pytest.raises(InputError, match=words):
            digit_patches(source=folder, **options)


def test_the_classifier_is_stationary_and_separates():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 6))
    y = np.where(x @ np.arange(1.0, 7.0) + rng.standard_normal(200) > 0, 1.0, -1.0)
    v = linear_classifier(x, y)
    gradient = module.RIDGE * v - (y / (1 + np.exp(y * (x @ v)))) @ x / 200
    assert np.linalg.norm(gradient) < 1e-10
    wide = linear_classifier(rng.standard_normal((5, 9)), np.array([1.0, 1.0, -1.0, -1.0, 1.0]))
    assert np.isfinite(wide).all()


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(module, "digits_installed", lambda: False)
    module._zeros_and_ones.cache_clear()
    with pytest.raises(InputError, match=r"attnlab\[digits\]"):
        digit_patches()


def test_scikit_learn_digits():
    pytest.importorskip("sklearn")
    module._zeros_and_ones.cache_clear()
    tokens = digit_patches()
    assert (tokens.n, tokens.T, tokens.d) == (50, 5, 64)
    assert tokens.info["accuracy"] > 0.97
    assert tokens.x[np.arange(50), tokens.info["planted"]].max() == 1.0
