"""Signs of life: a bar in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from attnlab.cli.ending import say, to_nowhere

Show = Callable[[int, int | None, str], None]
EVERY = 30.0  # seconds between lines in a log


class _Times(ProgressColumn):
    """0:00:12 elapsed, about 0:00:19 left."""

    def render(self, task: Task) -> Text:
        return Text(times(task.elapsed or 0.0, task.time_remaining))


class _Patient(Console):
    def on_broken_pipe(self) -> None:
        """Nobody looks any more; rich itself would end the program."""
        self.quiet = True
        to_nowhere(sys.stderr)


def times(elapsed: float, left: float | None) -> str:
    """How long it took, and where that can be told, how long it will.

    >>> times(12.3, 18.2), times(3.0, None)
    ('0:00:12 elapsed, about 0:00:19 left', '0:00:03 elapsed')
    """
    told = f"{timedelta(seconds=int(elapsed))} elapsed"
    return told if left is None else f"{told}, about {timedelta(seconds=ceil(left))} left"


@contextmanager
def bar(name: str) -> Iterator[Show]:
    """A bar that moves."""
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=20),
        _Times(table_column=Column(no_wrap=True, min_width=len(times(0.0, 0.0)))),
    )
    with Progress(*columns, console=_Patient(stderr=True), transient=True) as shown:
        task = shown.add_task(name, total=None)
        yield lambda done, total, what: shown.update(task, completed=done, total=total, description=what)


@contextmanager
def heartbeat(name: str) -> Iterator[Show]:
    """A line every half minute."""
    began = time.monotonic()
    over = threading.Event()
    state = [name]

    def beat() -> None:
        while not over.wait(EVERY):
            say(f"{state[0]}: {times(time.monotonic() - began, None)}")

    def show(done: int, total: int | None, what: str) -> None:
        state[0] = what if total is None else f"{what} ({done} of {total})"

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield show
    finally:
        over.set()
