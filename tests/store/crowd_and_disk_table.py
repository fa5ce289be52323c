"""Many processes on one store, disks that are full, and Ctrl-C: is anything lost?

    python tests/store/crowd_and_disk_table.py 10               # every 10th operation on files is disturbed
    python tests/store/crowd_and_disk_table.py 10 claim figure  # of these alone

In a crowd, processes run the same command on one store at the same time. On a full disk every write from the k-th
operation on fails; Ctrl-C comes at the k-th. Then all is well again and the same command runs again. Counted are the
faults of `kill_table`, and

    stopped     commands that were ended by it
    untyped     of those, the ones that ended with something else than a message, and its exit code
    at once     temporary files that were there after the message

Exit code 1 if there is any fault.
"""

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from kill_table import FAULTS, compared, print_table, undisturbed
from scenarios import (
    FULL,
    INTERRUPT,
    SCENARIOS,
    STOPPED,
    Child,
    Scenario,
    damaged,
    finished_runs,
    litter,
    load_libraries,
)


def crowd(name: str, processes: int) -> Counter:
    """Processes at once on one store."""
    scenario = SCENARIOS[name]
    with tempfile.TemporaryDirectory(prefix="crowd") as base:
        usual, _, _ = undisturbed(scenario, Path(base))
        wanted = len(finished_runs(Path(base) / "calm" / "store"))
        store = Path(base) / "store"
        folders = [Path(base) / str(i) for i in range(processes)]
        for folder in folders:
            folder.mkdir()
        children = [Child(scenario, folder, store=store).start() for folder in folders]
        good = [child.ended() == 0 for child in children]
        return Counter(
            points=processes,
            failed=good.count(False),
            differ=sum(scenario.result(folder) != usual for folder, ok in zip(folders, good, strict=True) if ok),
            lost=abs(len(finished_runs(store)) - wanted),
            damaged=len(damaged(store)),
            litter=sum(len(litter(folder, store)) for folder in folders),
        )


def disturb(name: str, how: str, every: int) -> Counter:
    """A disturbance from the k-th operation on, for every `every`-th k."""
    scenario = SCENARIOS[name]
    total: Counter = Counter()
    with tempfile.TemporaryDirectory(prefix="disturbed") as base:
        usual, operations, _ = undisturbed(scenario, Path(base))
        for at_file in range(1, operations + 1, every):
            total += one_point(scenario, usual, Path(base), how, at_file)
    return total


def one_point(scenario: Scenario, usual: dict[str, bytes], base: Path, how: str, at_file: int) -> Counter:
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name)
        child = Child(scenario, folder, at_file, how).start()
        status = child.ended()
        found = Counter(points=1, stopped=status != 0)
        if status != 0:
            found["untyped"] = not told(child.log, os.waitstatus_to_exitcode(status), how)
            found["at once"] = len([path for path in litter(folder, folder / "store") if path.suffix != ".npz"])
        found += compared(scenario, folder, usual)
        if any(found[fault] for fault in (*FAULTS, "untyped", "at once")):
            print(f"  {how} at_file={at_file}: {dict(found)}\n{child.log[-2000:]}", file=sys.stderr)
        return found


def told(log: str, code: int, how: str) -> bool:
    """Was there a message that says what happened, and what to do?"""
    if "Traceback" in log:
        return False
    if how == INTERRUPT:
        return "stopped" in log and code == STOPPED
    return "No space left" in log and "hint: " in log


def main() -> int:
    load_libraries()
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    names = sys.argv[2:] or list(SCENARIOS)
    crowds = {f"{name} x{n}": crowd(name, n) for name in names for n in (2, 8)}
    print_table(crowds, ("points", *FAULTS))
    disturbed = {f"{name}, {how}": disturb(name, how, every) for how in (FULL, INTERRUPT) for name in names}
    print_table(disturbed, ("points", "stopped", "untyped", "at once", *FAULTS))
    faults = (*FAULTS, "untyped", "at once")
    return int(any(counts[fault] for counts in (*crowds.values(), *disturbed.values()) for fault in faults))


if __name__ == "__main__":
    sys.exit(main())
