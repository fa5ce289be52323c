"""`attnlab bench`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attnlab.cli.show import print_json, print_rows, progress
from attnlab.errors import AttnlabError


@dataclass(frozen=True)
class Bench:
    """Time training against plain JAX, PyTorch and a compiled loop, the solver against DAQP, Clarabel and SCS, tangent
    kernels against the product of Jacobians, transformers against PyTorch's and layers of several heads against plain
    JAX, side by side, and print ratios."""

    quick: bool = False
    """Fewer steps and no growth table: a look in well under a minute."""
    json: bool = False
    """Print the result as JSON instead of tables."""
    out: Path | None = None
    """Also write the JSON to this file."""

    only: Literal["descent", "margin", "kernel", "vision", "layers"] | None = None
    """One of the benchmarks: training, the max-margin solver, the tangent kernel, transformers on images, or layers of
    several heads and encoders."""

    def run(self) -> int:
        from attnlab.data.writing import check_writable, make_folder, write_json

        if self.out is not None:
            make_folder(self.out.parent)
            check_writable(self.out)
        results = {}
        for name in ("descent", "margin", "kernel", "vision", "layers"):
            if self.only not in (None, name):
                continue
            module = _benchmark(name)
            with progress(f"bench {name}") as show:
                results[name] = module.run(quick=self.quick, on_part=show)
            if not self.json:
                for title, rows in module.tables(results[name]).items():
                    print_rows(rows, title)
        if self.out is not None:
            write_json(self.out, results)
        if self.json:
            print_json(results)
        return 0


def _benchmark(name: str) -> Any:
    """A benchmark module: inside an installed package, or beside the sources."""
    import importlib.util

    here = Path(__file__).parents[1]
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
