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
from typing import Annotated, Any, Literal

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
class Solve:
    """The max-margin direction of your own tokens: where gradient descent takes W, with a certificate.

    FILE is an npz (`np.savez("tokens.npz", x=x, z=z, y=y, v=v)`) with arrays x (n,T,d), z (n,d) or (n,K,d), y (n,) or
    (n,K) of +1 and -1, and perhaps v (d,), mask, and selected (n,) or (n,K): the token each query should pick.
    """

    file: tyro.conf.Positional[Path]
    """The tokens."""
    selected: str | None = None
    """Token per query, as 0,2,1,... (default: `selected` in the file, else the tokens of best score)."""
    out: Path | None = None
    """Where W and the certificate go (default: FILE with -margin.npz)."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        import numpy as np

        from attnlab.data import Tokens, optimal_tokens
        from attnlab.data.files import read_npz, write_npz
        from attnlab.errors import InputError, message
        from attnlab.svm import solve_margin
        from attnlab.theory import is_locally_optimal

        tokens = Tokens.load(self.file)
        if tokens.trials is not None:
            raise InputError(message(f"`{self.file}` holds {tokens.trials} trials; wanted one data set.",
                                     "in Python: al.solve_margins(tokens, selected)"))  # fmt: skip
        best = None if tokens.v is None else optimal_tokens(tokens, return_ties=True)
        if self.selected is not None:
            chosen = _token_list(self.selected).reshape(-1)
            chosen = chosen.reshape(tokens.y.shape) if chosen.size == tokens.y.size else chosen
        elif "selected" in (arrays := read_npz(self.file, "tokens")[0]):
            chosen = arrays["selected"]
        elif best is not None:
            chosen = best[0]
        else:
            raise InputError(message(f"`{self.file}` has no `selected`, and no `v` to tell the best tokens by.",
                                     "--selected 0,2,1,..."))  # fmt: skip
        solution = solve_margin(tokens, chosen, throw=False)
        local = is_locally_optimal(tokens, chosen, solution=solution) if best is not None else None
        result = solution.summary() | {
            "file": str(self.file),
            "locally_optimal": None if local is None else bool(local),
            "optimal": None if best is None else bool((chosen == best[0]).all()),
            "tied_best_scores": None if best is None else int((best[1] > 1).sum()),
        }
        out = self.out or self.file.with_name(self.file.stem + "-margin.npz")
        arrays = {"W": solution.W, "multipliers": solution.multipliers, "values": solution.values, "selected": chosen}
        if solution.farkas is not None:
            arrays["farkas"] = solution.farkas
        write_npz(out, arrays, result)
        if self.json:
            print(json.dumps({**result, "out": str(out)}))
        else:
            shown = {
                k: v for k, v in result.items() if k not in ("support", "selected", "status", "file") and v is not None
            }
            _print_rows([{"": k.replace("_", " "), "value": v} for k, v in shown.items()], f"{tokens} from {self.file}")
            if solution.feasible and solution.support is not None:
                _print_rows(
                    _per_query(np, tokens, chosen, best, solution),
                    "Tokens per query (values: lead of the selected token)",
                )
        _say(f"W and the certificate: {out}")
        return 0 if solution.feasible else 1


def _token_list(text: str) -> Any:
    import numpy as np

    from attnlab.errors import InputError, message

    try:
        return np.array([int(part) for part in text.replace(" ", ",").split(",") if part])
    except ValueError:
        raise InputError(message(f"`--selected` is {text!r}; wanted whole numbers.", "--selected 0,2,1")) from None


def _per_query(np: Any, tokens: Any, chosen: Any, best: Any, solution: Any) -> list[dict[str, Any]]:
    """At most 30 rows: which tokens hold the direction in place."""
    rows = []
    for where in list(np.ndindex(chosen.shape))[:30]:
        support = np.flatnonzero(solution.support[where])
        rows.append(
            {
                "query": ",".join(map(str, where)),
                "selected": int(chosen[where]),
                "best score": "" if best is None else int(best[0][where]),
                "support tokens": ", ".join(map(str, support)) or "none",
                "least value": float(np.nanmin(solution.values[where])) if tokens.T > 1 else float("nan"),
            }
        )
    return rows


@dataclass(frozen=True)
class Bench:
    """Time training against a plain PyTorch loop and the solver against cvxpy, side by side, and print ratios."""

    quick: bool = False
    """Fewer steps and no growth table: a look in well under a minute."""
    json: bool = False
    """Print the result as JSON instead of tables."""
    out: Path | None = None
    """Also write the JSON to this file."""

    only: Literal["descent", "margin"] | None = None
    """One of the two benchmarks: training, or the max-margin solver."""

    def run(self) -> int:
        results = {}
        for name in ("descent", "margin"):
            if self.only not in (None, name):
                continue
            module = _benchmark(name)
            with _progress(f"bench {name}") as show:
                results[name] = module.run(quick=self.quick, on_part=show)
            if not self.json:
                for title, rows in module.tables(results[name]).items():
                    _print_rows(rows, title)
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(results, indent=2) + "\n")
        if self.json:
            print(json.dumps(results))
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
    | Annotated[Solve, tyro.conf.subcommand("solve")]
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


def _benchmark(name: str) -> Any:
    """A benchmark module: inside an installed package, or beside the sources."""
    import importlib.util

    here = Path(__file__).parent
    for folder in (here / "benchmarks", here.parents[1] / "benchmarks"):
        file = folder / f"{name}.py"
        if file.exists():
            spec = importlib.util.spec_from_file_location(f"attnlab_benchmarks_{name}", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
    raise AttnlabError("The benchmarks are not installed.\n\nhint: run `make bench` in a source checkout")
