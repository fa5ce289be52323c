"""What commands share: tables on stdout, messages and progress on stderr."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import Any


def say(text: str) -> None:
    print(text, file=sys.stderr)


def print_rows(rows: list[dict[str, Any]], title: str) -> None:
    """A table of equal-keyed rows: one line per row, or one column per row where the names are long."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100)
    if not rows:
        console.print(f"{title}: none")
        return
    names = list(rows[0])
    wide = sum(max(len(n), 8) + 3 for n in names) > console.width
    table = Table(title=title, title_justify="left", title_style="bold", header_style="")
    if wide:  # turned on its side
        heads = [" ".join(str(row[n]) for n in names[:2]) for row in rows]
        for head in ("", *heads):
            table.add_column(head, justify="left" if not head else "right")
        for name in names[2:]:
            table.add_row(name, *(number_text(row[name]) for row in rows))
    else:
        for name in names:
            table.add_column(name, justify="right" if isinstance(rows[0][name], int | float) else "left")
        for row in rows:
            table.add_row(*(number_text(row[n]) for n in names))
    console.print(table)


def number_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def progress(name: str) -> Any:
    """A bar on stderr that takes (done, total, what is going on)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def one_blas_thread() -> None:
    """For many small matrices, where more threads only wait for each other. Before NumPy is loaded, or never."""
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def compile_cache() -> None:
    """Keep compiled programs between commands. Only here: a library does not change its user's JAX settings."""
    import jax

    from attnlab.store import Store

    folder = Store().path / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # no cache is a slower start, not an error
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
