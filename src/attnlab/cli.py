"""The command line: thin, quick to start, results to stdout, messages to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from attnlab import __version__
from attnlab.errors import AttnlabError


@dataclass(frozen=True)
class Demo:
    """Train attention on two seeded data sets, print one table, draw one figure."""

    out: Path = Path("attnlab-demo")
    """Folder for demo.png, demo.json and demo.npz."""
    seed: int = 6
    """Of the data and of the starts."""
    json: bool = False
    """Print the result as JSON instead of a table."""

    def run(self) -> int:
        began = time.perf_counter()
        _compile_cache()
        from attnlab.data.files import write_npz
        from attnlab.figures.demo import demo_data, demo_table, draw_demo

        with _progress("demo") as show:
            data = demo_data(self.seed, on_part=show)
        self.out.mkdir(parents=True, exist_ok=True)
        picture = draw_demo(data, self.out / "demo.png")
        rows = demo_table(data)
        seconds = time.perf_counter() - began
        result = {"seed": self.seed, "seconds": seconds, "rows": rows, "version": __version__}
        write_npz(self.out / "demo.npz", data, {"seed": self.seed})
        (self.out / "demo.json").write_text(json.dumps(result, indent=2) + "\n")
        if self.json:
            print(json.dumps(result))
        else:
            _print_rows(rows, f"Normalized gradient descent, step 0.1, 2000 steps, seed {self.seed}")
        _say(f"figure  {picture}\nnumbers {self.out / 'demo.json'} (arrays in demo.npz)\nin {seconds:.1f} s")
        return 0


@dataclass(frozen=True)
class Bench:
    """Time attnlab against a plain PyTorch loop, side by side, and print ratios."""

    quick: bool = False
    """Fewer steps and no growth table: a look in well under a minute."""
    json: bool = False
    """Print the result as JSON instead of tables."""
    out: Path | None = None
    """Also write the JSON to this file."""

    def run(self) -> int:
        module = _benchmarks()
        with _progress("bench") as show:
            result = module.run(quick=self.quick, on_part=show)
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(result, indent=2) + "\n")
        if self.json:
            print(json.dumps(result))
        else:
            for title, rows in module.tables(result).items():
                _print_rows(rows, title)
        return 0


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices and the store, and check the numerics in a few seconds."""

    out: Path | None = None
    """The store to look at (default: ATTNLAB_STORE, or the user's cache folder)."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from attnlab.store import Store
        from attnlab.store.doctor import examine

        report = examine(Store(self.out))
        if self.json:
            print(json.dumps(report.to_dict()))
        else:
            rows = [{"check": c.name, "value": c.value, "": "ok" if c.ok else "FAILED"} for c in report.checks]
            _print_rows(rows, "attnlab doctor")
        return 0 if report.ok else 1


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 as stated, 1 a check failed, 2 wrong usage or bad input."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) in (["--version"], ["-V"]):
        print(f"attnlab {__version__}")
        return 0
    command = tyro.cli(
        Command,  # type: ignore[arg-type]
        prog="attnlab",
        description="A laboratory for how attention learns.",
        args=list(arguments) or ["--help"],
    )
    try:
        return command.run()
    except AttnlabError as error:
        _say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _say("stopped; what was finished is kept")
        return 130
    except BrokenPipeError:  # the reader went away, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _print_rows(rows: list[dict[str, Any]], title: str) -> None:
    """A table of equal-keyed rows: one line per row, or one column per row where the names are long."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)
    names = list(rows[0])
    wide = sum(max(len(n), 8) + 3 for n in names) > console.width
    table = Table(title=title, title_justify="left", title_style="bold", header_style="")
    if wide:  # turned on its side
        heads = [" ".join(str(row[n]) for n in names[:2]) for row in rows]
        for head in ("", *heads):
            table.add_column(head, justify="left" if not head else "right")
        for name in names[2:]:
            table.add_row(name, *(_number(row[name]) for row in rows))
    else:
        for name in names:
            table.add_column(name, justify="right" if isinstance(rows[0][name], int | float) else "left")
        for row in rows:
            table.add_row(*(_number(row[n]) for n in names))
    console.print(table)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def _progress(name: str) -> Any:
    """A bar on stderr that takes (done, total, what is going on)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _compile_cache() -> None:
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


def _benchmarks() -> Any:
    """The benchmark module: inside an installed package, or beside the sources."""
    import importlib.util

    here = Path(__file__).parent
    for folder in (here / "benchmarks", here.parents[1] / "benchmarks"):
        if (folder / "descent.py").exists():
            spec = importlib.util.spec_from_file_location("attnlab_benchmarks_descent", folder / "descent.py")
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
    raise AttnlabError("The benchmarks are not installed.\n\nhint: run `make bench` in a source checkout")
