"""The command line: thin, quick to start, results to stdout, messages to stderr. One file per command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from attnlab import __version__
from attnlab.cli.bench import Bench
from attnlab.cli.claim import Claims
from attnlab.cli.demo import Demo
from attnlab.cli.doctor import Doctor
from attnlab.cli.figure import Figures
from attnlab.cli.show import say
from attnlab.cli.solve import Solve
from attnlab.errors import AttnlabError

Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Solve, tyro.conf.subcommand("solve")]
    | Annotated[Figures, tyro.conf.subcommand("figure")]
    | Annotated[Claims, tyro.conf.subcommand("claim")]
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
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped; what was finished is kept")
        return 130
    except BrokenPipeError:  # the reader went away, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
