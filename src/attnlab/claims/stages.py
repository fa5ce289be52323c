"""Long computations of claims and figures in stages: each is told as it begins, and kept as soon as it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from attnlab.claims.scale import Tell
from attnlab.errors import AttnlabError, message
from attnlab.store import Store

_WHOLE: ContextVar[tuple[Store, Any] | None] = ContextVar("store and configuration of the whole", default=None)


@contextmanager
def kept_in(store: Store | None, config: Any = None) -> Iterator[None]:
    """Keep what is computed in here part by part, as parts of the whole with this configuration; with None nothing."""
    before = _WHOLE.set(None if store is None else (store, config))
    try:
        yield
    finally:
        _WHOLE.reset(before)


def store_of_whole() -> Store | None:
    """Where parts are kept."""
    whole = _WHOLE.get()
    return None if whole is None else whole[0]


class Stages:
    """The stages of one computation. One that was stopped reads those that were finished, and goes on.

    A stage is known by its words, beside the configuration of the whole: code, scale and settings are in that one.
    Stages may run in threads.

    Args:
        tell: told (stages begun, stages in all, words of the next).
        total: how many stages there are.
        note: told with each, as what all of them cost.

    >>> stage = Stages(lambda done, total, words: print(done, total, words), 1)
    >>> stage("squares of 3", lambda: {"squares": np.arange(3) ** 2})["squares"].tolist()
    0 1 squares of 3
    1 1 done
    [0, 1, 4]
    """

    def __init__(self, tell: Tell | None = None, total: int = 0, note: str = "") -> None:
        self._tell = tell or (lambda done, total, words: None)
        self._total, self._note = total, note
        self._whole = _WHOLE.get()
        self._words: set[str] = set()
        self._begun = self._over = 0
        self._lock = threading.Lock()

    def __call__(self, words: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Tell, then compute or read arrays by name."""
        with self._lock:
            self._tell(self._begun, self._total, f"{words} ({self._note})" if self._note else words)
            self._begun += 1
        arrays = self.keep(words, compute)
        with self._lock:
            self._over += 1
            if self._over == self._total:
                self._tell(self._total, self._total, "done")
        return arrays

    def keep(self, words: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """The same, without a word."""
        with self._lock:
            if words in self._words:
                raise AttnlabError(message(f"Two stages of one computation are both {words!r}."))
            self._words.add(words)
        if self._whole is None:
            return {name: np.asarray(array) for name, array in compute().items()}
        store, config = self._whole
        return dict(store.keep("stage", {"of": config, "stage": words}, lambda: (compute(), {})).arrays)
