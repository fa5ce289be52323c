"""`attnlab study`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from attnlab.cli.show import print_json, print_rows, print_text, progress, say

if TYPE_CHECKING:
    from attnlab.study import Study

FILE_HELP = "FILE.py with a Study (FILE.py:NAME if it has several), or FILE.toml."


@dataclass(frozen=True)
class RunStudy:
    """Compute what is missing of a study. Stop it at any time; the next call goes on from there.

    Exit code 1 says that some trials failed; `status` has their errors.
    """

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=FILE_HELP)]
    jobs: int = -1
    """Processes; -1 for one on each core."""
    scheduler: str | None = None
    """Address of a dask scheduler, as tcp://host:8786: blocks are computed by its workers."""
    trials: int | None = None
    """More, or fewer, trials than the file says."""
    retries: int = 2
    """How often a failing block is tried again."""
    retry_failed: bool = False
    """Try blocks again whose error is recorded."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        study = _study(self.file, self.trials)
        with progress(study.name) as show:
            ran = study.run(
                jobs=self.jobs,
                client=self.scheduler,
                retries=self.retries,
                retry_failed=self.retry_failed,
                on_progress=lambda seen: show(seen.done, seen.total, f"{study.name}: {seen.failed} failed"),
            )
        for sentence in ran.log:
            say(sentence)
        facts = ran.to_json()
        if self.json:
            print_json({"file": self.file, "name": study.name, **facts})
        else:
            shown = {name: facts[name] for name in ("trials", "computed", "kept", "failed", "blocks", "seconds")}
            print_rows([{"study": study.name, **shown}], f"Study {self.file}")
        return 1 if ran.failed else 0


@dataclass(frozen=True)
class StudyStatusOf:
    """What the store has of a study, and what failed. Computes nothing; exit code 1 if trials failed or are missing."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=FILE_HELP)]
    trials: int | None = None
    """More, or fewer, trials than the file says."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        status = _study(self.file, self.trials).status()
        if self.json:
            print_json({"file": self.file, **status.to_json()})
        else:
            row = {name: value for name, value in status.to_json().items() if name not in ("errors", "nan")}
            print_rows([row], f"Study {self.file}")
            if status.errors:
                print_rows([{"trials": count, "error": error} for error, count in status.errors.items()], "Errors")
        return 1 if status.failed or status.missing else 0


@dataclass(frozen=True)
class ExportStudy:
    """Write the trials of a study as a table, or their summary for a paper."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=FILE_HELP)]
    format: Literal["csv", "latex", "parquet"] = "csv"
    """csv and parquet: one row for each trial; latex: a booktabs table of shares and medians with intervals."""
    out: Path | None = None
    """The file; default FILE with another ending, or stdout for latex."""
    by: tuple[str, ...] = ()
    """latex: settings that make the rows (default: all that vary)."""
    of: tuple[str, ...] = ()
    """latex: results (default: all)."""
    how: Literal["median", "share", "mean"] | None = None
    """latex: default shares of booleans and medians of numbers."""
    across: str | None = None
    """latex: the setting whose values are columns."""
    trials: int | None = None
    """More, or fewer, trials than the file says."""
    json: bool = False
    """Print what was written as JSON."""

    def run(self) -> int:
        from attnlab.data.writing import write_text

        study = _study(self.file, self.trials)
        ending = {"csv": ".csv", "latex": ".tex", "parquet": ".parquet"}[self.format]
        target = self.out or Path(self.file.partition(":")[0]).with_suffix(ending)
        if self.format == "latex":
            text = study.to_latex(self.by or None, self.of or None, self.how, across=self.across)
            if self.out is None and not self.json:
                print_text(text.rstrip("\n"))
                return 0
            write_text(target, text)
        elif self.format == "csv":
            study.to_csv(target)
        else:
            study.to_parquet(target)
        if self.json:
            print_json({"file": self.file, "format": self.format, "out": str(target)})
        else:
            say(f"{study.name}  {target}")
        return 0


Action = (
    Annotated[RunStudy, tyro.conf.subcommand("run")]
    | Annotated[StudyStatusOf, tyro.conf.subcommand("status")]
    | Annotated[ExportStudy, tyro.conf.subcommand("export")]
)


@dataclass(frozen=True)
class Studies:
    """Sweeps of your own: run them, see how far they are, export their tables."""

    action: tyro.conf.OmitSubcommandPrefixes[Action] = field()

    def run(self) -> int:
        return self.action.run()


def _study(file: str, trials: int | None) -> Study:
    from attnlab.study import read_study

    path, _, name = file.partition(":")
    study = read_study(path, name or None)
    return study if trials is None else study.with_trials(trials)
