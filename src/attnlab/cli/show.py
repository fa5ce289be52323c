"""What commands share: tables on stdout, messages and progress on stderr."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager, suppress
from typing import Any

from attnlab.cli.ending import say as say, to_nowhere

WIDTH, LEAST_WIDTH = 100, 40  # columns of a table that goes to a file or a pipe, unless COLUMNS says otherwise


def print_text(text: str) -> None:
    """Text to stdout. A reader who has gone, as with `| head`, does not end the command: files are still written."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        to_nowhere(sys.stdout)


def print_json(content: Any) -> None:
    print_text(json.dumps(content))


def print_rows(rows: list[dict[str, Any]], title: str) -> None:
    """A table of equal-keyed rows: one line per row, or one column per row where the names are long.

    Cells are numbers, words, or `rich.text.Text` with a style.
    """
    from rich.table import Table
    from rich.text import Text

    console = _console()
    if not rows:
        console.print(Text(f"{title}: none"))
        return
    names = list(rows[0])
    wide = sum(max(len(n), 8) + 3 for n in names) > console.width
    table = Table(title=Text(title), title_justify="left", title_style="bold", header_style="")
    if wide:  # turned on its side
        count = _leading_words(rows[0])
        heads = [" ".join(str(row[n]) for n in names[:count]) for row in rows]
        for head in ("", *heads):
            table.add_column(Text(head), justify="left" if not head else "right")
        for name in names[count:]:
            table.add_row(Text(name), *(_cell(row[name]) for row in rows))
    else:
        for name in names:
            table.add_column(Text(name), justify="right" if isinstance(rows[0][name], int | float) else "left")
        for row in rows:
            table.add_row(*(_cell(row[n]) for n in names))
    console.print(table)


def _leading_words(row: dict[str, Any]) -> int:
    """How many of the first cells are words, which tell rows apart; at least one."""
    numbers = [k for k, value in enumerate(row.values()) if isinstance(value, int | float)]
    return max(1, numbers[0]) if numbers else 1


def number_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def progress(name: str) -> AbstractContextManager[Any]:
    """Signs of life on stderr; gives a function of (done, total or None, what is going on)."""
    from attnlab.cli.life import bar, heartbeat

    return bar(name) if sys.stderr.isatty() else heartbeat(name)


def one_blas_thread() -> None:
    """For many small matrices, where more threads only wait for each other. Before NumPy is loaded, or never."""
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def compile_cache() -> None:
    """Keep compiled programs between commands."""
    from attnlab.errors import StoreError
    from attnlab.store import keep_programs

    with suppress(StoreError):  # a slower start, not an error
        keep_programs()


def _console() -> Any:
    from rich.console import Console

    class Patient(Console):
        def on_broken_pipe(self) -> None:
            """As `print_text`; rich itself would end the program."""
            self.quiet = True
            to_nowhere(sys.stdout)

    return Patient() if sys.stdout.isatty() else Patient(width=_width(), height=25)


def _width() -> int:
    given = os.environ.get("COLUMNS", "")
    return max(int(given), LEAST_WIDTH) if given.isascii() and given.isdigit() else WIDTH


def _cell(value: Any) -> Any:
    from rich.text import Text

    return value if isinstance(value, Text) else Text(number_text(value))
