"""Long runs side by side: programs compile at once, and cores that one run leaves idle are used by another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Look = Callable[[object], None]  # for `on_step` of `al.descend`

AT_ONCE = 2  # programs of large networks fill more cores than that by themselves, and each takes its memory


class Stopped(Exception):
    """The others were stopped, and so is this one."""


def side_by_side(work: Callable[[Item, Look], Result], items: Iterable[Item], at_once: int = AT_ONCE) -> list[Result]:
    """`work(item, look)` of every item, in their order, so many at a time in threads.

    Work calls `look` now and then: where one item failed, or the user stopped the program, it ends the others.

    >>> side_by_side(lambda item, look: 10 * item, [1, 2, 3])
    [10, 20, 30]
    """
    over = threading.Event()

    def look(_: object = None) -> None:
        if over.is_set():
            raise Stopped

    with ThreadPoolExecutor(at_once) as pool:
        waiting = [pool.submit(work, item, look) for item in items]
        try:
            return [one.result() for one in waiting]
        except BaseException:
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
