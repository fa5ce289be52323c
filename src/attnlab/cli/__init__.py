"""The command line: thin, quick to start, results to stdout, messages to stderr. One file per command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from attnlab.cli.ending import guarded


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code, see `attnlab.cli.ending`."""
    given = list(sys.argv[1:] if arguments is None else arguments)

    def run() -> int:
        from attnlab.cli.commands import run_command  # in here, so that Ctrl-C is minded while it loads

        return run_command(given)

    return guarded(run, last=arguments is None)
