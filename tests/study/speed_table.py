"""Time, memory and overhead of many trials at n = T = 5, d = 10: 2000 steps of NGD and the max-margin comparison.

    python tests/study/speed_table.py FOLDER [TRIALS [SLICE]]

A slice (20,000 trials) in one process, then all (100,000) in two. Both compute anew, so FOLDER must be empty. Prints

- time, rate, memory of every process, share of compiling;
- the speed-up of two processes over one: by whole times, and without start and end of processes;
- overhead of a block: the time between the ends of two blocks of a process that is not spent in the function, over
  that which is. The first block of each process is left out, since it starts the process.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import attnlab as al
from attnlab.study.pool import Processes

GRID = {"n": [5], "T": [5], "d": [10], "steps": [2000]}


def main(folder: str, trials: int = 100_000, part: int = 20_000) -> None:
    one = measured(Path(folder) / "one", part, 1)
    two = measured(Path(folder) / "two", trials, 2)
    print(
        f"\nspeed-up of 2 processes over 1: {two[0] / one[0]:.2f} in all, {two[1] / one[1]:.2f} without start and end"
    )


def measured(store: Path, trials: int, processes: int) -> tuple[float, float]:
    """Trials a second: in all, and without start and end of processes."""
    if store.exists():
        raise SystemExit(f"{store} is there: what is kept would not be computed again")
    study = al.Study("direction", GRID, trials=trials, store=store)
    study._executor = lambda jobs, client: (Processes(processes, study.store), processes)  # also one is a process
    ran = study.run()
    print(f"\n{processes} process{'es' * (processes > 1)}: {ran}", flush=True)
    print(f"  {ran.computed / ran.seconds:.0f} trials a second")
    print(f"  compiling: {ran.compile_seconds / ran.busy_seconds:.1%} of the time of functions")
    print("  memory, MB:", {who: round(size / 2**20) for who, size in ran.memory.items()})
    span, busy, blocks, rate = steady(store)
    each = f"{1e3 * (span - busy) / blocks:.0f} ms, {blocks} blocks of {busy / blocks:.1f} s on average"
    print(f"  overhead of a block: {(span - busy) / busy:.2%} ({each})")
    outside = 1 - ran.busy_seconds / (processes * ran.seconds)
    print(f"  start and end of processes, disk and waiting together: {outside:.1%} of the time")
    return ran.computed / ran.seconds, rate


def steady(store: Path) -> tuple[float, float, int, float]:
    """Of all blocks but the first of each process: time from end to end, time in functions, number, trials a second."""
    ends = defaultdict(list)
    for about in store.glob("runs/*/run.json"):
        run = json.loads(about.read_text())
        if run["kind"] == "study":
            facts = run["facts"]
            first = run["config"]["start"]
            ends[facts["where"]].append((about.stat().st_mtime, facts["seconds"], facts["stop"] - first))
    total = busy = rate = 0.0
    blocks = 0
    for of_process in ends.values():
        of_process.sort()
        span = of_process[-1][0] - of_process[0][0]
        total += span
        busy += sum(seconds for _, seconds, _ in of_process[1:])
        rate += sum(trials for *_, trials in of_process[1:]) / span
        blocks += len(of_process) - 1
    return total, busy, blocks, rate


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
