"""`attnlab demo`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from attnlab import __version__
from attnlab.cli.show import compile_cache, print_rows, progress, say


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
        from attnlab.figures.demo import demo_data, demo_table, draw_demo

        with progress("demo") as show:
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
            print_rows(rows, f"Normalized gradient descent, step 0.1, 2000 steps, seed {self.seed}")
        say(f"figure  {picture}\nnumbers {self.out / 'demo.json'} (arrays in demo.npz)\nin {seconds:.1f} s")
        return 0
