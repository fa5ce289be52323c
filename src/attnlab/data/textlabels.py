"""Labels as they stand in files, as classes 0, 1, ... with names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.checks import shown
from attnlab.errors import InputError, message

INFERENCE = ("entailment", "neutral", "contradiction")  # in the order of GLUE
NO_AGREEMENT = "-"  # where raters of MNLI disagree
MOST_FOUND = 100  # classes; more of them are hardly labels

Found = tuple[list[int], NDArray[np.intp], tuple[str, ...]]


def labels_of(given: list[Any], classes: Sequence[str] | None, threshold: float | None, dropped: Counter[str]) -> Found:
    """Which rows have a label, their classes, and the names of these; others are counted in `dropped`.

    >>> labels_of(["1", "-1", "", "1"], None, None, Counter())[1:]
    (array([1, 0, 1]), ('-1', '1'))
    """
    written = [_written(label) for label in given]
    kept = []
    for i, label in enumerate(written):
        if label == "":
            dropped["no label"] += 1
        elif label == NO_AGREEMENT:
            dropped["label -"] += 1
        else:
            kept.append(i)
    if threshold is not None:
        return kept, _above([written[i] for i in kept], threshold), _two(classes)
    names = _found([written[i] for i in kept]) if classes is None else _given(classes)
    number = {name: place for place, name in enumerate(names)}
    known = [i for i in kept if written[i] in number]
    if len(known) < len(kept):
        dropped["label of no class"] += len(kept) - len(known)
    return known, np.array([number[written[i]] for i in known], dtype=np.intp), names


def _written(label: Any) -> str:
    """A label as text, whole numbers without a point: 1.0 in one file is 1 in another."""
    if label is None:
        return ""
    if isinstance(label, bool):
        return str(int(label))
    text = str(label).strip()
    value = _number(text)
    return str(int(value)) if value is not None and value == int(value) and abs(value) < 1e15 else text


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _above(labels: list[str], threshold: float) -> NDArray[np.intp]:
    values = [_number(label) for label in labels]
    wrong = [label for label, value in zip(labels, values, strict=True) if value is None]
    if wrong:
        raise InputError(message(f"`threshold` is for labels that are numbers; one is {shown(wrong[0])}."))
    return np.array([value >= threshold for value in values if value is not None], dtype=np.intp)


def _two(classes: Sequence[str] | None) -> tuple[str, ...]:
    names = ("below", "above") if classes is None else _given(classes)
    if len(names) != 2:
        raise InputError(message(f"`classes` has {len(names)} names; with a threshold there are two classes."))
    return names


def _given(classes: Any) -> tuple[str, ...]:
    names = () if isinstance(classes, str) or not hasattr(classes, "__iter__") else tuple(map(_written, classes))
    if not names or len(set(names)) < len(names) or "" in names:
        raise InputError(message(f"`classes` is {shown(classes)}; wanted names, each once.", "['0', '1']"))
    return names


def _found(labels: list[str]) -> tuple[str, ...]:
    """The names that there are, in an order that does not depend on the rows."""
    there = set(labels)
    if there and there <= set(INFERENCE):
        return INFERENCE
    values = {name: _number(name) for name in there}
    if all(value is not None for value in values.values()):
        if any(value != int(value) for value in values.values() if value is not None):
            fraction = next(name for name, value in values.items() if value is not None and value != int(value))
            problem = f"`label` is a column of numbers that are not whole, as {fraction}; wanted classes."
            raise InputError(message(problem, "threshold=0.5 makes two classes of them"))
        return tuple(sorted(there, key=lambda name: values[name] or 0.0))
    if len(there) > MOST_FOUND:
        example = shown(next(iter(sorted(there))))
        raise InputError(message(f"`label` is a column of {len(there)} different ones, as {example}.", "label="))
    return tuple(sorted(there))
