"""Text sets and pretrained language models of a folder: where each is looked for, and which files it is made of."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attnlab.data.places import VARIABLE, places_of
from attnlab.data.textfiles import read_texts
from attnlab.data.texts import Texts
from attnlab.errors import InputError, message

WEIGHTS_VARIABLE = "ATTNLAB_WEIGHTS"
READ = (".tsv", ".csv", ".jsonl", ".json")
# Words in the name of a file that is for the test, in the order in which they are looked for.
HELD_OUT = ("dev_matched", "validation_matched", "dev", "valid", "test")
# Seed of the split, where one file is all there is.
SPLIT_SEED = 0


@dataclass(frozen=True)
class TextSet:
    """A set of texts that a paper trains on.

    Attributes:
        name: of its folder.
        title: what the paper calls it.
        about: what an example is.
        words: one of them is in the name of its files or of their folder; others stand in for it.
        train: how many texts the paper's set has to train on.
        lower: are its texts put into lower case?
        threshold: class 1 from this on, where labels are shares.
    """

    name: str
    title: str
    about: str
    words: tuple[str, ...]
    train: int
    lower: bool = False
    threshold: float | None = None

    def is_in(self, path: Path) -> bool:
        """Does the name of a file or of its folder say that it is of this set?"""
        names = f"{path.parent.name}/{path.name}".lower()
        return any(word in names for word in self.words)

    def read(self, path: Path, classes: tuple[str, ...] | None = None) -> Texts:
        """The texts of a file, with classes in the order of those that are known."""
        return read_texts(path, lower=self.lower, threshold=self.threshold, classes=classes)

    def read_unlabelled(self, path: Path) -> Texts:
        """The texts of a file, whatever labels it has."""
        return read_texts(path, lower=self.lower, label=False)


TEXT_SETS = {
    one.name: one
    for one in (
        TextSet("mnli", "MultiNLI", "premise and hypothesis, 3 classes", ("mnli", "multinli"), 392_702),
        TextSet("toxic", "CivilComments", "comments, 2 classes", ("civil",), 269_038, lower=True, threshold=0.5),
        TextSet("civil", "CivilComments", "comments, labels not needed", ("civil",), 269_038, lower=True),
        TextSet("sst2", "SST-2", "phrases of film reviews, 2 classes", ("sst",), 67_349),
        TextSet("imdb", "IMDB", "film reviews, 2 classes", ("imdb",), 25_000),
    )
}
MODELS = {
    "bert-base-uncased": "BERT-base, 12 layers of 12 heads, 768 wide",
    "roberta-base": "RoBERTa-base, 12 layers of 12 heads, 768 wide",
    "minilm": "MiniLM, 6 layers of 12 heads, 384 wide",
}


class TextFiles(NamedTuple):
    """The files of a set."""

    train: Path
    test: Path | None  # None where a part of `train` is kept for the test


def files_in(place: Path) -> TextFiles | str:
    """The files of a set in a folder, or in words why there are none; a file is one that is split."""
    try:
        if place.is_file():
            return TextFiles(place, None)
        if not place.is_dir():
            return "no such folder"
        files = sorted(path for path in place.iterdir() if _is_read(path) and path.is_file())
    except OSError as error:  # a name that is too long, a folder that may not be read
        return error.strerror or type(error).__name__
    if not files:
        return f"no {', '.join(READ)} file"
    train = [path for path in files if "train" in path.name.lower()]
    if len(files) == 1:
        return TextFiles(files[0], None)
    if not train:
        return f"{len(files)} files, and none has train in its name"
    others = [path for path in files if path not in train]
    test = next((path for word in HELD_OUT for path in others if word in path.name.lower()), None)
    return TextFiles(train[0], test)


def _is_read(path: Path) -> bool:
    return Path(path.name.lower().removesuffix(".gz")).suffix in READ


def find_texts(name: str, given: str | os.PathLike[str] | None = None) -> TextFiles | None:
    """The files of a text set: of a file or folder that is given, else of the places in which it is looked for.

    What is given and not there is an error; what is in none of the places is None. Nothing is downloaded.
    """
    if given:
        found = files_in(Path(os.path.expanduser(given)))
        if isinstance(found, str):
            hint = "a file of texts with labels; or a folder with train.tsv and dev.tsv, as GLUE has them"
            raise InputError(message(f"`data` is {str(given)!r}: {found}.", hint))
        return found
    for place in text_places(name):
        found = files_in(place)
        if isinstance(found, TextFiles):
            return found
    return None


def text_places(name: str) -> list[Path]:
    """Folders in which a text set or a model is looked for: each has one of its own."""
    return [place for place in places_of(name) if place.name == name]


def read_set(name: str, files: TextFiles, *, test: int) -> tuple[Texts, Texts]:
    """All texts to train on, and all for the test; where there is one file, so many of it (at most a fifth)."""
    known = TEXT_SETS[name]
    train = known.read(files.train)
    if files.test is not None:
        return train, known.read(files.test, train.names)
    return train.split(max(1, min(test, train.n // 5)), seed=SPLIT_SEED)


def find_weights(names: tuple[str, ...], given: str | os.PathLike[str] | None = None) -> str | None:
    """The folder of a pretrained model: one that is given, $ATTNLAB_WEIGHTS, or the first of these that is found.

    What is given may also be a name on the Hugging Face hub.
    """
    named = str(given or os.environ.get(WEIGHTS_VARIABLE, ""))
    if named:
        return os.path.expanduser(named)
    places = [place for name in names for place in text_places(name)]
    return next((str(place) for place in places if _is_model(place)), None)


def _is_model(place: Path) -> bool:
    try:
        return (place / "config.json").is_file()
    except OSError:
        return False


def text_sets() -> list[dict[str, Any]]:
    """Every text set and model, as plain JSON: what it is, where it is looked for, and whether it is there."""
    rows: list[dict[str, Any]] = []
    for one in TEXT_SETS.values():
        found = find_texts(one.name)
        rows.append(_row(one.name, one.title, one.about, None if found is None else found.train.parent))
        if found is not None:
            rows[-1]["files"] = {
                "train": found.train.name,
                "test": f"a part of {found.train.name}" if found.test is None else found.test.name,
            }
    for name, about in MODELS.items():
        found = next((place for place in text_places(name) if _is_model(place)), None)
        title, sizes = about.split(", ", 1)
        rows.append(_row(name, title, f"{sizes}, pretrained", found))
    return rows


def _row(name: str, title: str, about: str, folder: Path | None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "title": title, "about": about, "found": folder is not None}
    if folder is not None:
        row["folder"] = str(folder)
    return {**row, "looked_in": [str(place) for place in text_places(name)], "variable": VARIABLE}
