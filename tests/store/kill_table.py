"""Kill -9 at many points of `claim`, `figure`, `Store.map` and `Store.descend`; is anything lost?

    python tests/store/kill_table.py 200

Half of the points are moments, half are operations on files: just before the k-th file is opened, renamed or removed.
After each kill the same command runs again. Counted are

    mid         kills that came before the command had ended
    differ      results that are not bit for bit those of an undisturbed run
    lost        runs that were finished before the kill and were computed again
    damaged     runs that had to be moved aside, that is, were half-written
    litter      temporary files that are still there after the next run
    failed      second runs that ended with an error

Exit code 1 if any of the last five is not 0.
"""

import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from scenarios import SCENARIOS, Child, Scenario, damaged, finished_runs, litter, load_libraries

FAULTS = ("differ", "lost", "damaged", "litter", "failed")


def one_point(scenario: Scenario, usual: dict[str, bytes], base: Path, at_file: int, after: float) -> Counter:
    """Kill, before an operation on files (0: after some seconds), run again, compare."""
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name)
        first = Child(scenario, folder, at_file).start()
        if not at_file:
            time.sleep(after)
            first.kill()
        status = first.ended()
        found = Counter(mid=os.WIFSIGNALED(status)) + compared(scenario, folder, usual)
        if any(found[fault] for fault in FAULTS):
            print(f"  at_file={at_file} after={after}: {dict(found)}\n{first.log[-2000:]}", file=sys.stderr)
        return found


def compared(scenario: Scenario, folder: Path, usual: dict[str, bytes]) -> Counter:
    """Run again in a folder where a run was disturbed: what is not as it should be?"""
    store = folder / "store"
    before = finished_runs(store)
    if Child(scenario, folder).start().ended() != 0:
        return Counter(failed=1)
    after = finished_runs(store)
    return Counter(
        differ=scenario.result(folder) != usual,
        lost=sum(after.get(key) != about for key, about in before.items()),
        damaged=len(damaged(store)),
        litter=len(litter(folder, store)),
    )


def undisturbed(scenario: Scenario, base: Path) -> tuple[dict[str, bytes], int, float]:
    """Result, operations on files, and seconds."""
    calm = base / "calm"
    calm.mkdir()
    began = time.monotonic()
    child = Child(scenario, calm).start()
    assert child.ended() == 0, child.log
    return scenario.result(calm), child.operations, time.monotonic() - began


def kill_many(name: str, points: int, seed: int = 0) -> Counter:
    """One line of the table."""
    scenario = SCENARIOS[name]
    dice = random.Random(f"{name} {seed}")
    total = Counter(points=points)
    with tempfile.TemporaryDirectory(prefix="kills") as base:
        usual, operations, seconds = undisturbed(scenario, Path(base))
        for i in range(points):
            at_file = 0 if i % 2 else dice.randint(1, operations)
            total += one_point(scenario, usual, Path(base), at_file, dice.uniform(0, seconds))
    return total


def print_table(lines: dict[str, Counter], heads: tuple[str, ...]) -> None:
    print(f"{'':26}" + "".join(f"{head:>9}" for head in heads))
    for name, counts in lines.items():
        print(f"{name:26}" + "".join(f"{counts[head]:9}" for head in heads))


def main() -> int:
    load_libraries()
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    lines = {name: kill_many(name, max(2, round(points * one.share))) for name, one in SCENARIOS.items()}
    print_table(lines, ("points", "mid", *FAULTS))
    return int(any(counts[fault] for counts in lines.values() for fault in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
