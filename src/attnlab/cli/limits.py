"""`attnlab limits`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from attnlab.cli.show import print_json, progress


@dataclass(frozen=True)
class FindLimits:
    """Where gradient descent can go on your own tokens: locally optimal selections, and the share of starts of each.

    FILE is an npz as for `attnlab solve`, with a head v. Exit code 1 says that some runs have not settled.
    """

    file: tyro.conf.Positional[Path]
    """The tokens."""
    starts: int = 500
    """Random starts."""
    steps: int = 12_800
    """The longest run."""
    parameterization: Literal["W", "KQ"] = "W"
    """What is trained: W, or K and Q."""
    seed: int = 0
    """Of the starts."""
    mask: str | None = None
    """What each query sees: as for `attnlab solve`."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from attnlab.cli.solve import read_tokens
        from attnlab.reports.limits import limits

        tokens = read_tokens(self)
        with progress("limits") as show:
            found = limits(
                tokens,
                self.starts,
                steps=self.steps,
                parameterization=self.parameterization,
                seed=self.seed,
                on_step=lambda step, settled: show(settled, self.starts, f"step {step}"),
            )
        if self.json:
            print_json({"file": str(self.file), **found.to_json()})
        else:
            print(found)
        return 1 if found.unsettled else 0
