"""Texts and pretrained models that claims and figures look at: whether they are at hand, and which files they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.claims.images import digest
from attnlab.claims.scale import Scale
from attnlab.data.hub import EXTRA
from attnlab.data.madeup import made_up_texts
from attnlab.data.sequences import Sequences
from attnlab.data.texts import Texts
from attnlab.data.textsets import TEXT_SETS, WEIGHTS_VARIABLE, TextFiles, find_texts, find_weights, read_set
from attnlab.data.tokenizer import Tokenizer
from attnlab.errors import InputError, message

BERT = ("bert-base-uncased", "minilm")
ROBERTA = ("roberta-base", "minilm")
NEEDS = f"needs the libraries tokenizers and safetensors: {EXTRA}"
MADE_UP = "made-up texts"
TINY = {"dim": 16, "depth": 1, "heads": 2, "mlp": 32}
TINY_POSITIONS = 32
TINY_TITLE = "tiny random Bert"
SEED = 0  # of the choice of texts
# Files of a model that decide what it gives.
OF_A_MODEL = ("config.json", "tokenizer.json", "*.safetensors")
SEEN_BY_MINILM = "The model card of MiniLM lists SNLI and MultiNLI among its training data."


@dataclass(frozen=True)
class Files:
    """Files of the user's own: empty for those that are found.

    Attributes:
        weights: folder of a pretrained model, or its name on the Hugging Face hub.
        data: file of texts, or folder of a text set.
    """

    weights: str = ""
    data: str = ""

    def model(self, names: tuple[str, ...]) -> str | None:
        """The folder of the model."""
        return find_weights(names, self.weights)

    def texts(self, name: str) -> TextFiles | None:
        """The files of the texts."""
        return find_texts(name, self.data)


NONE = Files()


def libraries() -> str:
    """What must be installed; empty if it is."""
    return "" if find_spec("tokenizers") and find_spec("safetensors") else NEEDS


def missing_texts(names: tuple[str, ...], models: tuple[str, ...], files: Files = NONE) -> str:
    """What must be there before these sets can be looked at with one of these models; empty if all is."""
    without = [TEXT_SETS[name].title for name in names if files.texts(name) is None]
    if files.model(models) is None:
        without.append(f"a pretrained model (folder {' or '.join(models)})")
    if not without:
        return libraries()
    folders = " and ".join(names)
    where = f"put the files into folders {folders} of the folder that ATTNLAB_DATA names"
    return f"needs {' and '.join(without)}: {where}; {WEIGHTS_VARIABLE} names a model elsewhere"


def text_inputs(names: tuple[str, ...], models: tuple[str, ...], files: Files = NONE) -> dict[str, str]:
    """The files of sets and model by name, beginning and size; without them what is made up, which never changes."""
    folder = files.model(models)
    found = {name: files.texts(name) for name in names}
    known = {}
    if folder is not None:
        known |= _digests_of_model(folder)
    for name, paths in found.items():
        for path in paths or ():
            if path is not None:
                known[f"{name}/{path.name}"] = digest(path)
    return known or {"texts": MADE_UP}


def _digests_of_model(folder: str) -> dict[str, str]:
    place = Path(folder)
    if not place.is_dir():
        return {"weights": folder}  # a name on the hub
    paths = sorted({path for pattern in OF_A_MODEL for path in place.glob(pattern)})
    return {f"weights/{path.name}": _digest_of_both_ends(path) for path in paths}


def _digest_of_both_ends(path: Path) -> str:
    """Weights of one layout begin alike: a file of tensors is known by its end too."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 65_536))
        end = file.read()
    return f"{digest(path)}, {hashlib.blake2b(end, digest_size=8).hexdigest()}"


# What is read ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts to train on and for the test.

    Attributes:
        train, test: all there are.
        title: what they are.
        wanted: the paper's set.
        stands_in: are these other texts than the paper's?
        split: where the texts for the test came from.
    """

    train: Texts
    test: Texts
    title: str
    wanted: str
    stands_in: bool
    split: str

    def taken(self, train: int, test: int) -> Corpus:
        """So many texts of each, at random; with one number always the same ones."""
        return replace(
            self,
            train=self.train.take(min(train, self.train.n), seed=SEED),
            test=self.test.take(min(test, self.test.n), seed=SEED),
        )

    def facts(self) -> dict[str, Any]:
        """What they are, for the note."""
        words = f"{self.title}, which stand in for {self.wanted}" if self.stands_in else self.title
        return {
            "texts": words,
            "texts for the test": self.split,
            "texts stand in": self.stands_in,
            "rows dropped": {**self.train.dropped},
            "lower case": bool(self.train.info.get("lower", False)),
        }


def read_corpus(name: str, paths: TextFiles, *, test: int) -> Corpus:
    """The texts of a set, from its files."""
    known = TEXT_SETS[name]
    train, held_out = read_set(name, paths, test=test)
    stands_in = not known.is_in(paths.train)
    title = f"texts of {paths.train.name}" if stands_in else f"{known.title} ({paths.train.name})"
    split = f"{held_out.n} of {paths.train.name}, not trained on" if paths.test is None else paths.test.name
    return Corpus(train, held_out, title, known.title, stands_in, split)


def made_up_corpus(name: str, *, train: int = 240, test: int = 80) -> Corpus:
    """Made-up texts in place of a set."""
    kind = "inference" if name == "mnli" else "sentiment"
    texts = made_up_texts(train + test, kind=kind, noise=0.1, seed=SEED)
    kept, held_out = texts.split(test, seed=SEED)
    return Corpus(kept, held_out, MADE_UP, TEXT_SETS[name].title, True, f"{test} made-up ones")


@dataclass(frozen=True, eq=False)
class Reader:
    """A language model and its tokenizer.

    Attributes:
        title: what it is.
        tokenizer: cuts texts into its tokens.
        load: (classes, seed, options) -> model and weights, with a head drawn from the seed.
        pretrained: are its weights pretrained?
    """

    title: str
    tokenizer: Tokenizer
    load: Callable[..., tuple[Any, dict[str, np.ndarray]]]
    pretrained: bool

    def encoded(self, corpus: Corpus, length: int) -> tuple[Sequences, Sequences]:
        """The texts as tokens of this model."""
        return corpus.train.encode(self.tokenizer, length=length), corpus.test.encode(self.tokenizer, length=length)


def pretrained_reader(folder: str) -> Reader:
    """A pretrained model of a folder."""
    from attnlab.models import Bert

    def load(classes: int, seed: int, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
        return Bert.load(folder, classes=classes, seed=seed, **options)

    return Reader(title_of(folder), Tokenizer.load(folder), load, True)


def tiny_reader(texts: Texts) -> Reader:
    """A tiny Bert of random weights that knows the words of these texts."""
    from attnlab.models import Bert

    tokenizer = Tokenizer.of_texts(texts)

    def load(classes: int, seed: int, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
        sizes = {"vocabulary": tokenizer.vocabulary, "positions": TINY_POSITIONS, **TINY}
        model = Bert(classes=classes, **sizes, **options)
        return model, model.initial(texts.encode(tokenizer, length=8), seed)

    return Reader(TINY_TITLE, tokenizer, load, False)


def title_of(folder: str) -> str:
    """A model by its folder, and the name of its layout if that says more.

    >>> title_of("models/bert-base-uncased/")
    'bert-base-uncased'
    """
    place = Path(folder)
    for name in (place.name, place.resolve().name, place.resolve().parent.name):
        if "minilm" in name.lower():
            return "MiniLM (6 layers)" if "l6" in str(place.resolve()).lower() else "MiniLM"
    return place.name or folder


def looked_at(name: str, scale: Scale, models: tuple[str, ...], files: Files, *, test: int) -> tuple[Corpus, Reader]:
    """Texts and model of a scale: made up at smoke, and where either is not at hand.

    Who gives one of the two and has not the other is told so.
    """
    paths, folder = files.texts(name), files.model(models)
    if files != NONE and (paths is None or folder is None):
        raise InputError(message(f"`--weights` or `--data` is given; this {missing_texts((name,), models, files)}."))
    if scale is Scale.SMOKE or paths is None or folder is None:
        corpus = made_up_corpus(name)
        return corpus, tiny_reader(corpus.train)
    return read_corpus(name, paths, test=test), pretrained_reader(folder)


def card_remark(model: str) -> str:
    """What is known of the training data of a model that stands in."""
    return SEEN_BY_MINILM if "minilm" in model.lower() else ""
