"""Which command, with which options."""

from __future__ import annotations

from typing import Annotated

import tyro

from attnlab import __version__
from attnlab.cli.bench import Bench
from attnlab.cli.claim import Claims
from attnlab.cli.data import DataSets
from attnlab.cli.demo import Demo
from attnlab.cli.doctor import Doctor
from attnlab.cli.explore import Explore
from attnlab.cli.figure import Figures
from attnlab.cli.limits import FindLimits
from attnlab.cli.probe import ProbeHeads
from attnlab.cli.solve import Solve
from attnlab.cli.study import Studies

Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Solve, tyro.conf.subcommand("solve")]
    | Annotated[FindLimits, tyro.conf.subcommand("limits")]
    | Annotated[ProbeHeads, tyro.conf.subcommand("probe")]
    | Annotated[Explore, tyro.conf.subcommand("explore")]
    | Annotated[Studies, tyro.conf.subcommand("study")]
    | Annotated[Figures, tyro.conf.subcommand("figure")]
    | Annotated[Claims, tyro.conf.subcommand("claim")]
    | Annotated[DataSets, tyro.conf.subcommand("data")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def run_command(arguments: list[str]) -> int:
    """Do what the arguments say; wrong ones end with a message and exit code 2."""
    if arguments in (["--version"], ["-V"]):
        print(f"attnlab {__version__}")
        return 0
    command = tyro.cli(
        Command,  # type: ignore[arg-type]
        prog="attnlab",
        description="A laboratory for how attention learns.",
        args=arguments or ["--help"],
    )
    return command.run()
