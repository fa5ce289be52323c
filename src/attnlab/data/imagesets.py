"""Image sets by name: MNIST, Fashion-MNIST, CIFAR-10, and the digits that come with scikit-learn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnlab.checks import one_of
from attnlab.data.cifar import find_cifar
from attnlab.data.digitpatches import NEEDS, digits_installed
from attnlab.data.idx import NAMES, Split, begin_of_idx, first_of, labelled_images
from attnlab.data.images import Images
from attnlab.data.places import Find, OnDisk, Remote, found_or_fetched, places_of, search
from attnlab.errors import InputError, message

SPLITS: tuple[Split, Split] = ("train", "test")
BRIGHTEST_DIGIT = 16  # of scikit-learn's digits
TEST_SHARE = 5  # of every class, the last one in so many is for the test
# MNIST and Fashion-MNIST have files of the same names. How their labels begin tells them apart.
FIRST_LABELS = {
    "mnist": {"train": bytes((5, 0, 4, 1, 9, 2, 1, 3)), "test": bytes((7, 2, 1, 0, 4, 1, 4, 9))},
    "fashion_mnist": {"train": bytes((9, 0, 0, 3, 0, 2, 7, 2)), "test": bytes((9, 2, 1, 1, 6, 1, 4, 6))},
}


@dataclass(frozen=True)
class ImageSet:
    """What is known of a set before any of its files is opened."""

    name: str
    title: str
    shape: tuple[int, int, int]
    sizes: dict[Split, int]
    labels: tuple[str, ...]
    find: Find
    wanted: dict[Split, str]
    remote: dict[Split, dict[str, Remote]]


def mnist(folder: str | os.PathLike[str] | None = None, split: Literal["train", "test"] = "train") -> Images:
    """MNIST: grey images of handwritten digits, 28 x 28; 60,000 to train on and 10,000 for the test.

    Args:
        folder: one with the IDX files, `train-images-idx3-ubyte` and so on, plain or .gz. None looks in
            $ATTNLAB_DATA/mnist, in $ATTNLAB_DATA, in the cache folder, and else downloads them there (extra `images`).
        split: "train" or "test".

    Returns:
        `al.data.Images`; `info` says the source, the split, the folder, the form of the files and the names of the
        classes, and in `note` if another number of images than was published stands in for them.

    >>> import attnlab as al
    >>> al.data.mnist("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    attnlab.errors.InputError: `mnist`, split `train`, is not there; looked in: nowhere (no such folder); ...
    """
    return _loaded(SETS["mnist"], folder, split)


def fashion_mnist(folder: str | os.PathLike[str] | None = None, split: Literal["train", "test"] = "train") -> Images:
    """Fashion-MNIST: grey images of clothes in ten classes, in files as those of `mnist`, which see.

    Files of MNIST, which have the same names, are told apart by their labels and not taken for it.

    >>> import attnlab as al
    >>> al.data.fashion_mnist("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    attnlab.errors.InputError: `fashion_mnist`, split `train`, is not there; looked in: nowhere (no such folder); ...
    """
    return _loaded(SETS["fashion_mnist"], folder, split)


def cifar10(folder: str | os.PathLike[str] | None = None, split: Literal["train", "test"] = "train") -> Images:
    """CIFAR-10: colour images, 32 x 32 x 3, in ten classes; 50,000 to train on and 10,000 for the test.

    Args:
        folder: one with the official Python or binary batches (or their folder cifar-10-batches-py or -bin), with the
            archive cifar-10-python.tar.gz or cifar-10-binary.tar.gz, or with one npz of x_train, y_train, x_test and
            y_test. None looks in the places that `mnist` names.
        split: "train" or "test".

    Python batches are pickles; they are read without unpickling, so that nothing in them can run.

    >>> import attnlab as al
    >>> al.data.cifar10("nowhere", "test")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    attnlab.errors.InputError: `cifar10`, split `test`, is not there; looked in: nowhere (no such folder); ...
    """
    return _loaded(SETS["cifar10"], folder, split)


def digits(split: Literal["train", "test"] = "train") -> Images:
    """The 1,797 grey digits of 8 x 8 pixels that come with scikit-learn (extra `digits`); nothing is downloaded.

    They are published as one set. Here the last fifth of the images of every class, in the order of the file, are for
    the test, and the others to train on.

    >>> import attnlab as al
    >>> al.data.digits(), al.data.digits("test")
    (Images(n=1442, 8 x 8 x 1, classes=10, digits train), Images(n=355, 8 x 8 x 1, classes=10, digits test))
    """
    one_of("split", split, SPLITS)
    if not digits_installed():
        raise InputError(message(f"`digits` {NEEDS}.", "or al.data.mnist(folder), of MNIST's files"))
    from sklearn.datasets import load_digits  # pyright: ignore

    loaded = load_digits()
    labels = np.asarray(loaded.target)  # pyright: ignore
    chosen = _in_test(labels) == (split == "test")
    info = {
        "source": "digits",
        "split": split,
        "names": [str(k) for k in range(10)],
        "note": "8 x 8 digits of scikit-learn, not MNIST; of every class the last fifth is the test",
    }
    pixels = np.asarray(loaded.images)[chosen] / BRIGHTEST_DIGIT  # pyright: ignore
    return Images(pixels=pixels, y=labels[chosen], classes=10, info=info)


def image_sets() -> list[dict[str, Any]]:
    """Of every set: what it is, where it is looked for, and what is there; nothing is read that takes time.

    >>> [one["name"] for one in image_sets()]
    ['mnist', 'fashion_mnist', 'cifar10', 'digits']
    """
    there = digits_installed()
    splits = {split: {"found": there, "images": size if there else None} for split, size in DIGIT_SIZES.items()}
    of_digits = {
        "name": "digits",
        "title": "digits of scikit-learn",
        "shape": [8, 8, 1],
        "classes": 10,
        "looked_in": ["scikit-learn"],
        "splits": splits,
    }
    return [*(_described(one) for one in SETS.values()), of_digits]


def _described(one: ImageSet) -> dict[str, Any]:
    places = places_of(one.name)
    return {
        "name": one.name,
        "title": one.title,
        "shape": list(one.shape),
        "classes": len(one.labels),
        "looked_in": [str(place) for place in places],
        "splits": {split: _described_split(one, places, split) for split in SPLITS},
    }


def _described_split(one: ImageSet, places: list[Path], split: Split) -> dict[str, Any]:
    found, reasons = search(one.find, places, split)
    if found is None:
        return {"found": False, "images": None, "why": reasons, "wanted": one.wanted[split]}
    try:
        count = found.count()
    except (InputError, OSError) as error:  # a damaged file: loading it says more
        return {"found": False, "images": None, "why": [str(error)], "wanted": one.wanted[split]}
    files = [path.name for path in found.files]
    return {"found": True, "images": count, "folder": str(found.folder), "form": found.form, "files": files}


def _loaded(one: ImageSet, folder: str | os.PathLike[str] | None, split: Any) -> Images:
    """A split of a set, checked against what is known of the set."""
    one_of("split", split, SPLITS)
    where = found_or_fetched(one.name, split, folder, find=one.find, wanted=one.wanted[split], remote=one.remote[split])
    pixels, labels = where.read()
    shape = (*pixels.shape[1:], 1)[:3]
    if shape != one.shape:
        files = ", ".join(path.name for path in where.files)
        problem = f"`{where.folder}` has images of {_by(shape)} in {files}; {one.title} has images of {_by(one.shape)}."
        raise InputError(message(problem, "al.data.Images(pixels=..., y=...) takes images of any size"))
    info = {
        "source": one.name,
        "split": split,
        "folder": str(where.folder),
        "form": where.form,
        "names": list(one.labels),
    }
    if len(labels) != one.sizes[split]:
        info["note"] = f"{len(labels)} images stand in for the {one.sizes[split]} of {one.title}, {split}"
    return Images(pixels=pixels, y=labels, classes=len(one.labels), info=info)


def _find_idx(name: str, place: Path, split: Split) -> OnDisk | str:
    """The two IDX files of a split in a folder, unless they are those of the other set."""
    paths = [first_of(place, names) for names in NAMES[split]]
    missing = [names[0] for names, path in zip(NAMES[split], paths, strict=True) if path is None]
    images, labels = paths
    if images is None or labels is None:
        return f"no {', no '.join(missing)}"
    other = _other_set(name, labels, split)
    if other is not None:
        return f"its labels are those of {other}"
    read = partial(labelled_images, images, labels)
    return OnDisk(place, "IDX", (images, labels), read, lambda: begin_of_idx(images, 3)[0][0])


def _other_set(name: str, labels: Path, split: Split) -> str | None:
    """The set of which these labels are, where that is another one than `name`."""
    try:
        _, first = begin_of_idx(labels, 1, 8)
    except InputError:  # damaged: whoever reads it says so
        return None
    return next((other for other, begin in FIRST_LABELS.items() if other != name and first == begin[split]), None)


def _in_test(labels: np.ndarray) -> np.ndarray:
    """Which images are for the test: the last fifth of every class, rounded down."""
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        chosen[places[len(places) - len(places) // TEST_SHARE :]] = True
    return chosen


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _idx_set(name: str, title: str, labels: tuple[str, ...], url: str, sums: dict[str, str]) -> ImageSet:
    """A set of 28 x 28 grey images in four IDX files, all below one address."""
    wanted, remote = {}, {}
    for split in SPLITS:
        files = [names[0] for names in NAMES[split]]
        wanted[split] = f"{' and '.join(files)}, plain or .gz"
        remote[split] = {f"{file}.gz": Remote(f"{url}/{file}.gz", sums[file]) for file in files}
    sizes: dict[Split, int] = {"train": 60_000, "test": 10_000}
    return ImageSet(name, title, (28, 28, 1), sizes, labels, partial(_find_idx, name), wanted, remote)


MNIST_SUMS = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
FASHION_SUMS = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# The binary archive is what is downloaded: it needs no pickle.
CIFAR_REMOTE = {
    "cifar-10-binary.tar.gz": Remote(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"
    )
}
CIFAR_WANTED = "the batches of CIFAR-10 (cifar-10-batches-py or -bin), the .tar.gz of either, or one npz of arrays"
DIGIT_SIZES: dict[Split, int] = {"train": 1442, "test": 355}
SETS = {
    one.name: one
    for one in (
        _idx_set(
            "mnist",
            "MNIST",
            tuple(str(k) for k in range(10)),
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            MNIST_SUMS,
        ),
        _idx_set(
            "fashion_mnist",
            "Fashion-MNIST",
            CLOTHES,
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            FASHION_SUMS,
        ),
        ImageSet(
            "cifar10",
            "CIFAR-10",
            (32, 32, 3),
            {"train": 50_000, "test": 10_000},
            THINGS,
            find_cifar,
            dict.fromkeys(SPLITS, CIFAR_WANTED),
            dict.fromkeys(SPLITS, CIFAR_REMOTE),
        ),
    )
}
