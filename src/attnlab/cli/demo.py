"""`attnlab demo`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from attnlab import __version__
from attnlab.cli.show import compile_cache, print_json, print_rows, progress, say


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
        compile_cache()
        from attnlab.data.files import write_npz
        from attnlab.data.writing import make_folder, write_json
        from attnlab.figures.demo import demo_data, demo_table, draw_demo

        make_folder(self.out)
        with progress("demo") as show:
            data = demo_data(self.seed, on_part=show)
        picture = draw_demo(data, self.out / "demo.png")
        rows = demo_table(data)
        seconds = time.perf_counter() - began
        result = {"seed": self.seed, "seconds": seconds, "rows": rows, "version": __version__}
        write_npz(self.out / "demo.npz", data, {"seed": self.seed})
        write_json(self.out / "demo.json", result)
        if self.json:
            print_json(result)
        else:
            print_rows(rows, f"Normalized gradient descent, step 0.1, 2000 steps, seed {self.seed}")
        say(f"figure  {picture}\nnumbers {self.out / 'demo.json'} (arrays in demo.npz)\nin {seconds:.1f} s")
        return 0
