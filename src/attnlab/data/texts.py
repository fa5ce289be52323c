"""`Texts`: texts, or pairs of texts, with class labels, and the tokens of them that a language model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import instance, shown, whole, whole_array
from attnlab.data.sequences import Sequences
from attnlab.data.taking import in_turns, taken
from attnlab.data.tokenizer import Tokenizer
from attnlab.data.tokens import facts_about
from attnlab.errors import InputError, message

MOST_CLASSES = 10_000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Texts:
    """Texts, or pairs of texts, with class labels, checked once and then frozen.

    Args:
        texts: text of each example.
        pairs: the second text of each, where a label is of two: premise and hypothesis, say.
        y: class labels, whole numbers from 0, shape (n,); None where there are none.
        names: what the classes are called, from class 0 on; default: their numbers.
        info: where the texts came from (source, rows that were dropped, ...); never used in computing.

    >>> import attnlab as al
    >>> al.data.Texts(texts=["fine", "dull"], y=[1, 0], names=["bad", "good"])
    Texts(n=2, classes=2)
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    y: NDArray[np.intp] | None
    names: tuple[str, ...]
    info: Mapping[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        *,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        y: ArrayLike | None = None,
        names: Sequence[str] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        texts_ = _strings("texts", texts)
        pairs_ = None if pairs is None else _strings("pairs", pairs)
        if pairs_ is not None and len(pairs_) != len(texts_):
            raise InputError(message(f"`pairs` has {len(pairs_)} texts; `texts` has {len(texts_)}."))
        y_, names_ = _labels(y, names, len(texts_))
        for name, value in (("texts", texts_), ("pairs", pairs_), ("y", y_), ("names", names_)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "info", facts_about(info))

    @property
    def n(self) -> int:
        """Number of texts, or of pairs."""
        return len(self.texts)

    @property
    def classes(self) -> int:
        """Number of classes; 0 without labels."""
        return len(self.names)

    @property
    def counts(self) -> NDArray[np.intp]:
        """Texts of each class, shape (classes,)."""
        return np.bincount(self._labels(), minlength=self.classes)[: self.classes]

    @property
    def dropped(self) -> dict[str, int]:
        """Rows of the file that were left out, by reason."""
        return dict(self.info.get("dropped", {}))

    def take(self, which: int | ArrayLike, *, seed: int | None = None, balanced: bool = False) -> Texts:
        """Some of the texts: so many of them, or those of given numbers.

        Args:
            which: how many; or the numbers of texts, in the order wanted, or one boolean per text.
            seed: with a count: texts at random, without any twice; None for the first ones.
            balanced: with a count: classes take turns, so that the number of texts of any two differs by at most 1.

        With one seed (or none) the fewer are the beginning of the more. The number of classes stays.

        >>> import attnlab as al
        >>> al.data.Texts(texts=list("abcdef"), y=[0, 0, 0, 0, 1, 1]).take(4, balanced=True).texts
        ('a', 'e', 'b', 'f')
        """
        return self._picked(taken(self._labels(), max(self.classes, 1), which, seed, balanced, "texts"))

    def split(self, test: int | float, *, seed: int = 0) -> tuple[Texts, Texts]:
        """Two parts without a row in common: one to train on, and one of `test` texts, or that share of all.

        Classes are in the test as they are in all, to one text. The parts depend on the seed alone. A text that is
        there twice may be in both.

        >>> import attnlab as al
        >>> train, test = al.data.made_up_texts(100, seed=0).split(0.2)
        >>> train.n, test.n
        (80, 20)
        """
        share = isinstance(test, float) and 0 < test < 1
        if not share and (isinstance(test, float) or self.n < 2):
            raise InputError(
                message(f"`test` is {shown(test)}; wanted a number of texts from 1 to {self.n - 1}, or a share.", "0.1")
            )
        count = max(1, min(self.n - 1, round(test * self.n))) if share else whole("test", test, 1, self.n - 1)
        order = np.random.default_rng(whole("seed", seed, 0)).permutation(self.n)
        order = _evenly(order, self._labels())
        chosen = np.zeros(self.n, dtype=bool)
        chosen[order[:count]] = True
        return self._picked(np.sort(order[count:])), self._picked(np.sort(order[:count]))

    def encode(self, tokenizer: Tokenizer, *, length: int | None = None) -> Sequences:
        """The texts as numbers of tokens, filled up to one length.

        Args:
            tokenizer: that of the model that reads them.
            length: tokens of every sequence, special ones with them; longer texts are cut, of a pair the longer first.
                None for the longest text.

        Returns:
            `al.Sequences` with `ids`, `mask`, `segments` where there are pairs, and the labels as `y` (zeros without
            labels). To `info` come `vocabulary`, `tokenizer`, `names` and `truncated`, the number of texts that were
            cut.

        >>> import attnlab as al
        >>> texts = al.data.made_up_texts(30, kind="inference", seed=0)
        >>> texts.encode(al.data.Tokenizer.of_texts(texts), length=16)
        Sequences(n=30, T=16, d=0, masked, ids, segments)
        """
        known = instance("tokenizer", tokenizer, Tokenizer, "an al.data.Tokenizer", "al.data.Tokenizer.load(folder)")
        encoded = known.encode(self.texts, self.pairs, length=length)
        facts = {
            "vocabulary": known.vocabulary,
            "tokenizer": known.source,
            "names": list(self.names),
            "truncated": encoded.truncated,
        }
        return Sequences(
            ids=encoded.ids,
            lengths=encoded.lengths,
            segments=None if self.pairs is None else encoded.segments,
            y=self._labels(),
            info={**self.info, **facts},
        )

    def _labels(self) -> NDArray[np.intp]:
        return np.zeros(self.n, dtype=np.intp) if self.y is None else self.y

    def _picked(self, places: NDArray[np.intp]) -> Texts:
        return Texts(
            texts=[self.texts[i] for i in places],
            pairs=None if self.pairs is None else [self.pairs[i] for i in places],
            y=None if self.y is None else self.y[places],
            names=self.names,
            info=self.info,
        )

    def __repr__(self) -> str:
        parts = [f"n={self.n}", f"classes={self.classes}"]
        if self.pairs is not None:
            parts.append("pairs")
        if "source" in self.info:
            parts.append(str(self.info["source"]))
        lost = sum(self.dropped.values())
        if lost:
            parts.append(f"{lost} of {self.info.get('rows', '?')} rows dropped")
        return f"Texts({', '.join(parts)})"


def _evenly(order: NDArray[np.intp], y: NDArray[np.intp]) -> NDArray[np.intp]:
    """Places in an order in which each class is spread evenly: any beginning has its share of every class."""
    turns = in_turns(order, y)
    sizes = np.bincount(y)
    seen = np.zeros(len(sizes))
    place = np.empty(len(y))
    for i in turns:  # of each class the first, then the second, ...
        place[i] = (seen[y[i]] + 0.5) / sizes[y[i]]
        seen[y[i]] += 1
    return turns[np.argsort(place[turns], kind="stable")]


def _strings(name: str, texts: Any) -> tuple[str, ...]:
    """Texts, at least one."""
    if isinstance(texts, str | bytes | Mapping) or not hasattr(texts, "__iter__"):
        raise InputError(message(f"`{name}` is {shown(texts)}; wanted a list of texts.", "['a text', 'another']"))
    given = tuple(texts)
    wrong = [i for i, one in enumerate(given) if not isinstance(one, str)]
    if wrong:
        raise InputError(message(f"`{name}[{wrong[0]}]` is {shown(given[wrong[0]])}; wanted text."))
    if not given:
        raise InputError(message(f"`{name}` is empty; wanted at least one text."))
    return tuple(str(one) for one in given)


def _labels(y: Any, names: Any, n: int) -> tuple[NDArray[np.intp] | None, tuple[str, ...]]:
    """Labels (n,) and the names of the classes."""
    if y is None:
        if names:
            raise InputError(message("`names` are of classes; there are no labels `y`."))
        return None, ()
    array = whole_array("y", y, "class labels: whole numbers from 0")
    if array.shape != (n,):
        raise InputError(message(f"`y` has shape {array.shape}; {n} texts need labels of shape ({n},)."))
    given = None if names is None else _strings("names", names)
    count = int(array.max()) + 1 if given is None else len(given)
    if array.min() < 0 or array.max() >= min(count, MOST_CLASSES):
        worst = array.min() if array.min() < 0 else array.max()
        most = min(count, MOST_CLASSES) - 1
        raise InputError(message(f"`y` holds {worst}; wanted whole numbers from 0 to {most}."))
    array.flags.writeable = False
    return array, tuple(map(str, range(count))) if given is None else given
