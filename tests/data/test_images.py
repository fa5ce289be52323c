"""Images and their patches, against slow loops; choosing some of them."""

import numpy as np
import pytest

import attnlab as al
from attnlab import InputError, checks
from attnlab.data import Images


def pictures(n=12, height=6, width=4, channels=3, classes=4, seed=0, floats=False):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, height, width, channels)).astype(np.uint8)
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    return Images(pixels=pixels / 255.0 if floats else pixels, y=y, info={"source": "noise"})


def slow_patches(images, size, mean, std):
    """One number after the other, as the definition says."""
    _, height, width, channels = images.pixels.shape
    x = []
    for image in images.pixels.astype(float):
        tokens = []
        for top in range(0, height, size):
            for left in range(0, width, size):
                token = []
                for i in range(size):
                    for j in range(size):
                        for c in range(channels):
                            token.append((image[top + i, left + j, c] / 255 - mean[c]) / std[c])
                tokens.append(token)
        x.append(tokens)
    return np.array(x)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("shape", [(6, 4, 3), (2, 8, 1), (4, 4, 2)])
def test_patches_are_those_of_a_slow_loop(size, shape):
    height, width, channels = shape
    images = pictures(height=height, width=width, channels=channels)
    mean, std = np.linspace(0.1, 0.4, channels), np.linspace(0.5, 2.0, channels)
    sequences = images.patches(size, mean=mean, std=std)
    np.testing.assert_allclose(sequences.x, slow_patches(images, size, mean, std), rtol=0, atol=1e-14)
    np.testing.assert_array_equal(sequences.y, images.y)
    plain = images.patches(size)
    np.testing.assert_allclose(plain.x, slow_patches(images, size, [0] * channels, [1] * channels), rtol=0, atol=1e-15)
    assert plain.x.min() >= 0
    assert plain.x.max() <= 1
    same = images.patches(size, mean=0.25, std=0.5)
    np.testing.assert_array_equal(same.x, images.patches(size, mean=[0.25] * channels, std=[0.5] * channels).x)


def test_patches_say_how_they_are_laid_out(tmp_path):
    sequences = pictures().patches(2, mean=0.5)
    layout = {"source": "noise", "height": 6, "width": 4, "channels": 3, "patch": 2, "classes": 4}
    assert {name: sequences.info[name] for name in layout} == layout
    assert sequences.info["mean"] == [0.5] * 3
    assert sequences.info["std"] == [1.0] * 3
    assert (sequences.T, sequences.d) == (6, 12)
    again = al.Sequences.load(sequences.save(tmp_path / "patches.npz"))
    np.testing.assert_array_equal(Images.from_patches(again).pixels, pictures().pixels)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("floats", [False, True])
def test_patches_and_back_is_the_identity(seed, floats):
    images = pictures(seed=seed, floats=floats)
    again = Images.from_patches(images.patches(2, mean=[0.3, -1e6, 1e6], std=[1e-100, 0.7, 1e100]))
    assert again.pixels.dtype == images.pixels.dtype
    if floats:
        np.testing.assert_allclose(again.pixels, images.pixels, rtol=0, atol=1e-9)
    else:
        np.testing.assert_array_equal(again.pixels, images.pixels)
    np.testing.assert_array_equal(again.y, images.y)
    assert again.classes == images.classes
    assert again.info == images.info


def test_every_byte_comes_back():
    images = Images(pixels=np.arange(256, dtype=np.uint8).reshape(1, 16, 16), y=[0])
    for mean, std in ((0.0, 1.0), (0.1307, 0.3081), (-3.0, 1e-7), (1e6, 1e100)):
        again = Images.from_patches(images.patches(8, mean=mean, std=std))
        np.testing.assert_array_equal(again.pixels, images.pixels)


def test_what_is_no_image_does_not_come_back():
    sequences = pictures().patches(2)
    info = sequences.info

    def changed(x=sequences.x, y=sequences.y, **facts):
        return al.Sequences(x=x, y=y, info={**info, **facts})

    for wrong, words in (
        (changed(x=2 * sequences.x), "no image"),
        (changed(x=sequences.x - 0.5), "no image"),
        (changed(height=8), "wants"),
        (changed(height=7), "`info` has patches of 2 in images of 7 x 4"),
        (changed(width=5), "6 x 5"),
        (changed(patch=0), "patch"),
        (changed(channels=1), "wants"),
        (changed(y=sequences.y + 0.5), "no class numbers"),
        (changed(y=sequences.y * 1e20), "no class numbers"),
        (changed(y=sequences.y - 1), "`y` holds -1"),
        (changed(mean="a"), "`mean`"),
        (changed(std=[0.0] * 3), "`std`"),
        (changed(classes=2), "`y` holds"),
        (al.Sequences(x=sequences.x, y=sequences.y), "lack height, width, channels, patch, mean, std"),
        (sequences.repeated(2), "2 trials"),
        (5, "`sequences` is 5"),
    ):
        with pytest.raises(InputError, match=words):
            Images.from_patches(wrong)
    # Rounding alone takes nobody out of range.
    near = Images.from_patches(changed(x=np.clip(sequences.x, 0, 1) * (1 + 1e-12), bytes=False))
    assert near.pixels.max() <= 1


def test_a_size_that_does_not_divide_is_refused_with_those_that_do():
    images = Images(pixels=np.zeros((2, 28, 12), dtype=np.uint8), y=[0, 1])
    for size in (3, 7, 8, 56):
        with pytest.raises(InputError, match=rf"`size` is {size}, .*28 x 12 pixels[\s\S]*sizes that do: 1, 2, 4$"):
            images.patches(size)
    for size in (0, -1, 2.0, "a", None, True):
        with pytest.raises(InputError, match="`size`"):
            images.patches(size)
    assert images.patches(4).T == 21


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mean": [0.1, 0.2]}, r"`mean` has shape \(2,\)"),
        ({"std": [[1.0]]}, r"`std` has shape \(1, 1\)"),
        ({"std": 0.0}, "`std` is 0"),
        ({"std": [1.0, 1.0, -1.0]}, "`std`"),
        ({"std": 1e-101}, r"`std` is 1e-101; wanted numbers from 1e-100 to 1e\+100"),
        ({"std": 1e101}, "`std`"),
        ({"mean": -1.1e6}, "`mean`"),
        ({"mean": 1.1e6}, "`mean`"),
        ({"mean": np.nan}, "`mean`"),
        ({"mean": "a"}, "`mean`"),
    ],
)
def test_wrong_normalisation_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        pictures().patches(2, **options)


def test_patches_that_do_not_fit_into_memory_are_refused(monkeypatch):
    images = Images(pixels=np.zeros((500, 32, 32), dtype=np.uint8), y=np.zeros(500, dtype=int))
    for numbers_a_pixel, fits in ((2.0, False), (2.5, True)):
        free = 8 * numbers_a_pixel * images.pixels.size / checks.SPARE
        monkeypatch.setattr(checks, "free_memory", lambda free=free: free)
        if fits:
            assert images.patches(4).n == 500
        else:
            with pytest.raises(InputError, match="`patches` of 500 images would take"):
                images.patches(4)


def test_types_are_kept_and_arrays_are_frozen_copies():
    given = np.zeros((2, 4, 4, 1), dtype=np.uint8)
    images = Images(pixels=given, y=np.array([0, 1], dtype=np.uint8))
    given[:] = 9
    assert images.pixels.dtype == np.uint8
    assert not images.pixels.any()
    for array in (images.pixels, images.y):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert Images(pixels=np.ones((1, 2, 2), dtype=np.float32), y=[0]).pixels.dtype == np.float32
    assert Images(pixels=np.ones((1, 2, 2), dtype=np.float16), y=[0]).pixels.dtype == np.float64
    assert Images(pixels=[[[0.0, 1.0]]], y=[0]).pixels.shape == (1, 1, 2, 1)


def test_sizes_and_words():
    images = Images(
        pixels=np.zeros((3, 5, 7, 2), dtype=np.uint8), y=[0, 2, 2], classes=4, info={"source": "s", "split": "t"}
    )
    assert (images.n, images.height, images.width, images.channels) == (3, 5, 7, 2)
    assert images.counts.tolist() == [1, 0, 2, 0]
    assert repr(images) == "Images(n=3, 5 x 7 x 2, classes=4, s t)"


ZEROS = np.zeros((2, 4, 4), dtype=np.uint8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pixels": ZEROS.astype(int)}, "`pixels` have type int64; wanted uint8"),
        ({"pixels": ZEROS > 0}, "`pixels` have type bool"),
        ({"pixels": ZEROS + 1.5}, "`pixels` go from 1.5 to 1.5"),
        ({"pixels": ZEROS - 0.5}, "`pixels` go from -0.5 to -0.5"),
        ({"pixels": np.full((2, 4, 4), np.nan)}, "NaN"),
        ({"pixels": ZEROS[0]}, r"`pixels` have shape \(4, 4\)"),
        ({"pixels": ZEROS[..., None, None]}, r"shape \(2, 4, 4, 1, 1\)"),
        ({"pixels": ZEROS[:, :0]}, r"shape \(2, 0, 4, 1\)"),
        ({"pixels": np.ma.masked_equal(ZEROS, 0)}, "masked"),
        ({"pixels": "a"}, "`pixels`"),
        ({"pixels": None}, "`pixels`"),
        ({"y": [0, -1]}, "`y` holds -1"),
        ({"y": [0, 3], "classes": 3}, "`y` holds 3; labels of 3 classes go from 0 to 2"),
        ({"y": [0.0, 1.0]}, "`y` has type float64"),
        ({"y": [0]}, r"`y` has shape \(1,\); 2 images need labels of shape \(2,\)"),
        ({"y": [[0], [1]]}, r"`y` has shape \(2, 1\)"),
        ({"classes": 0}, "`classes`"),
        ({"classes": 10**25}, "`classes`"),
        ({"y": [0, 2**62]}, "`classes`"),
        ({"info": 3}, "`info`"),
    ],
)
def test_wrong_images_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        Images(**({"pixels": ZEROS, "y": [0, 1]} | options))


def test_take_the_first_or_those_of_given_numbers():
    images = pictures()
    for which, places in (
        (3, [0, 1, 2]),
        (12, list(range(12))),
        ([5, 0, 5, -1], [5, 0, 5, 11]),
        (np.arange(12) % 5 == 0, [0, 5, 10]),
        (np.array([7], dtype=np.uint8), [7]),
    ):
        taken = images.take(which)
        np.testing.assert_array_equal(taken.pixels, images.pixels[places])
        np.testing.assert_array_equal(taken.y, images.y[places])
        assert taken.classes == images.classes
        assert taken.info == images.info


def test_a_seed_chooses_without_repeating_and_fewer_begin_more():
    images = Images(pixels=np.arange(240, dtype=np.uint8).reshape(60, 2, 2), y=np.arange(60) % 3)
    for balanced in (False, True):
        more = images.take(40, seed=7, balanced=balanced)
        firsts = more.pixels[:, 0, 0, 0]
        assert len(set(firsts.tolist())) == 40
        np.testing.assert_array_equal(images.take(40, seed=7, balanced=balanced).pixels, more.pixels)
        np.testing.assert_array_equal(images.take(11, seed=7, balanced=balanced).pixels, more.pixels[:11])
        assert (images.take(40, seed=8, balanced=balanced).pixels != more.pixels).any()
        np.testing.assert_array_equal(more.y, images.y[firsts // 4])
    # Every image has the same chance: 60 images, 400 seeds, half of them taken.
    seen = np.zeros(60)
    for seed in range(400):
        seen[images.take(30, seed=seed, balanced=True).pixels[:, 0, 0, 0] // 4] += 1
    assert np.abs(seen - 200).max() < 6 * np.sqrt(400 / 4)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_balanced_classes_differ_by_at_most_one(seed):
    rng = np.random.default_rng(5)
    y = np.concatenate([np.repeat(np.arange(4), 6), rng.choice(4, 30, p=[0.7, 0.1, 0.1, 0.1])])
    images = Images(pixels=np.zeros((54, 2, 2), dtype=np.uint8), y=rng.permutation(y))
    for count in range(1, 4 * int(images.counts.min()) + 1):
        counts = images.take(count, seed=seed, balanced=True).counts
        assert counts.sum() == count
        assert counts.max() - counts.min() <= 1
    with pytest.raises(InputError, match="`which` is 54, balanced over 4 classes; class"):
        images.take(54, seed=seed, balanced=True)


def test_without_a_seed_balanced_takes_the_first_of_each_class():
    images = Images(pixels=np.arange(24, dtype=np.uint8).reshape(6, 2, 2), y=[1, 1, 0, 0, 1, 0])
    taken = images.take(4, balanced=True)
    assert taken.y.tolist() == [1, 0, 1, 0]
    assert (taken.pixels[:, 0, 0, 0] // 4).tolist() == [0, 2, 1, 3]
    # As many more as another class has images beyond the smallest.
    lone = Images(pixels=np.zeros((4, 2, 2), dtype=np.uint8), y=[0, 1, 1, 1])
    assert lone.take(3, balanced=True).counts.tolist() == [1, 2]
    with pytest.raises(InputError, match=r"class 0 has 1 images[\s\S]*at most 2"):
        lone.take(4, balanced=True)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((0,), {}, "`which` is 0"),
        ((13,), {}, "`which` is 13; wanted a whole number at least 1 and at most 12"),
        ((2.0,), {}, "`which`"),
        ((True,), {}, "`which`"),
        (("ab",), {}, "`which`"),
        ((None,), {}, "`which`"),
        (([],), {}, "`which`"),
        (([12],), {}, "`which`"),
        (([-13],), {}, "`which`"),
        (([[1]],), {}, "`which`"),
        (([0.5],), {}, "`which`"),
        (([True, False],), {}, "`which`"),
        ((np.zeros(12, dtype=bool),), {}, "at least one"),
        (([1, 2],), {"seed": 0}, "`seed` goes with a number of images"),
        (([1, 2],), {"balanced": True}, "`balanced` goes with a number of images"),
        ((3,), {"seed": -1}, "`seed`"),
        ((3,), {"balanced": 2}, "`balanced`"),
    ],
)
def test_what_cannot_be_taken_is_refused(arguments, options, words):
    with pytest.raises(InputError, match=words):
        pictures().take(*arguments, **options)


def test_only_some_classes_renumbered():
    y = np.array([3, 1, 0, 3, 2, 1, 3])
    names = ["a", "b", "c", "d"]
    images = Images(pixels=np.arange(28, dtype=np.uint8).reshape(7, 2, 2), y=y, info={"names": names})
    some = images.only((3, 1))
    assert some.y.tolist() == [0, 1, 0, 1, 0]
    assert (some.pixels[:, 0, 0, 0] // 4).tolist() == [0, 1, 3, 5, 6]
    assert some.classes == 2
    assert some.info == {"names": ["d", "b"], "only": [3, 1]}
    again = some.only([1])
    assert again.info == {"names": ["b"], "only": [1]}
    assert again.counts.tolist() == [2]
    assert Images(pixels=images.pixels, y=y, info={"only": 5, "names": ["a"]}).only((0,)).info["names"] == ["a"]
    for classes, words in (
        ((0, 0), "one twice"),
        ((4,), "from 0 to 3"),
        ((-1,), "from 0 to 3"),
        ((), "`classes`"),
        (3, "`classes`"),
        ((0.5,), "`classes`"),
        ("ab", "`classes`"),
    ):
        with pytest.raises(InputError, match=words):
            images.only(classes)
    with pytest.raises(InputError, match=r"`classes` has 2, of which there is no image[\s\S]*there are: 0, 1, 3"):
        images.take(y != 2).only((0, 2))


def test_patches_train_an_encoder():
    """Through to a run: patches of two digits are sequences like any others."""
    images = pictures(n=12, height=4, width=4, channels=1, classes=2)
    data = images.patches(2, mean=0.5, std=0.5)
    assert al.Sequences.of(data) is data
    run = al.descend(data, al.gd(0.01), model=al.models.Encoder(width=4), steps=3)
    assert np.isfinite(run.metrics["loss"]).all()


def test_facts_that_are_not_of_patches_do_not_break_the_way_back():
    pictures = al.data.Images(pixels=np.zeros((2, 4, 4), dtype=np.uint8), y=[0, 1]).patches(2)
    odd = al.Sequences(x=pictures.x, y=pictures.y, info={**pictures.info, "bytes": np.zeros(0)})
    assert al.data.Images.from_patches(odd).pixels.dtype == np.float64
