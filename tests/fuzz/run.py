"""Hostile calls on all cores, for a time or a number of calls; a table of what came of them.

make fuzz SECONDS=600
python -m fuzz.run --seconds 600 --only svm.solve_margin --seed 3 --json
python -m fuzz.run --again build/fuzz-faults.json      # every fault of that file once more
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.calls import Case

# Every core has a process of its own, and small matrices gain nothing from threads.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
MEMORY = 8 * 2**30  # bytes of addresses of one process
TOLD_EVERY = 500  # calls
SHOWN_EVERY = 30.0  # seconds
MANY = 10**12  # calls, more than anybody waits for


@dataclass
class Tally:
    """What the calls of one case came to."""

    kinds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def calls(self) -> int:
        return sum(self.kinds.values())


@dataclass
class Fault:
    """One way to fail, and the first call that did."""

    name: str
    kind: str
    what: str
    where: str
    detail: str
    seed: list[int]
    tape: list[int]
    count: int = 1
    call: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.name, self.kind, self.what, self.where


@dataclass
class Work:
    """Of one process, or of all together."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    faults: dict[tuple[str, ...], Fault] = field(default_factory=dict)

    def take(self, other: Work) -> None:
        """Add what another process did."""
        for name, tally in other.tallies.items():
            mine = self.tallies.setdefault(name, Tally())
            mine.kinds.update(tally.kinds)
            mine.seconds += tally.seconds
        for key, fault in other.faults.items():
            if key in self.faults:
                self.faults[key].count += fault.count
            else:
                self.faults[key] = fault

    @property
    def calls(self) -> int:
        return sum(tally.calls for tally in self.tallies.values())


def names(only: str | None) -> list[str]:
    """Of the cases to run: all, or those whose name begins so."""
    from fuzz.calls import table

    found = [name for name in table() if only is None or name == only or name.startswith(f"{only}.")]
    if not found:
        raise SystemExit(f"no case is called {only!r}; cases: {', '.join(table())}")
    return found


def work(seed: int, worker: int, seconds: float, calls: int, only: str | None, now: Any = None) -> Work:
    """Calls one after another, until time or number is up."""
    done = Work()
    for part in worked(seed, worker, seconds, calls, only, now):
        done.take(part)
    return done


def worked(seed: int, worker: int, seconds: float, calls: int, only: str | None, now: Any = None) -> Iterator[Work]:
    """The same, told now and then, so that little is lost with a process. `now` says which call is being made."""
    from fuzz.calls import table

    cases = [table()[name] for name in names(only)]
    weights = [one.weight for one in cases]
    order, end, done = Random(f"{seed} {worker}"), time.monotonic() + seconds, Work()
    for count in range(calls):
        if time.monotonic() > end:
            break
        index = order.choices(range(len(cases)), weights)[0]
        if now is not None:
            now[0], now[1] = index, count
        done.take(_one_call(cases[index], [seed, worker, count]))
        if count % TOLD_EVERY == TOLD_EVERY - 1:
            _forget_programs()
            yield done
            done = Work()
    yield done


def _one_call(chosen: Case, seed: list[int]) -> Work:
    """What one call came to."""
    from fuzz.outcomes import outcome
    from fuzz.source import Seeded

    src, begin = Seeded(*seed), time.process_time()
    found, _ = outcome(chosen, src)
    tally = Tally(Counter({found.kind.name: 1}), time.process_time() - begin)
    if not found.kind.fault:
        return Work({chosen.name: tally})
    fault = Fault(chosen.name, found.kind.name, found.what, found.where, found.detail, seed, src.tape)
    return Work({chosen.name: tally}, {fault.key: fault})


def _forget_programs() -> None:
    """Compiled programs take memory maps, of which a process has so many."""
    import jax

    from attnlab.train.program import MOST_MAPS, memory_maps

    if memory_maps() > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


def limit_memory() -> None:
    """What wants more than this is to be refused; the machine is not to suffer where it is not."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


class Worker:
    """A process that makes calls, and another in its place when it dies."""

    def __init__(self, seed: int, worker: int, seconds: float, calls: int, only: str | None) -> None:
        self.given = (seed, worker, seconds, calls, only)
        context = multiprocessing.get_context("spawn")
        self.now, self.results = context.Array("q", 2), context.SimpleQueue()
        self.process = context.Process(target=_process, args=(*self.given, self.now, self.results))
        self.process.start()

    def told(self) -> Work:
        """What it did since it was last asked."""
        done = Work()
        while not self.results.empty():
            done.take(self.results.get())
        return done

    def death(self) -> Work:
        """The fault that ended it, if one did."""
        if not self.process.exitcode:
            return Work()
        seed, worker, _, _, only = self.given
        what = f"the process died ({self.process.exitcode})"
        fault = Fault(names(only)[self.now[0]], "UNTYPED", what, "", "", [seed, worker, int(self.now[1])], [])
        return Work({}, {fault.key: fault})


def _process(seed: int, worker: int, seconds: float, calls: int, only: str | None, now: Any, results: Any) -> None:
    limit_memory()
    for part in worked(seed, worker, seconds, calls, only, now):
        results.put(part)


def together(seed: int, processes: int, seconds: float, calls: int, only: str | None) -> Work:
    """Calls by several processes."""
    end, total = time.monotonic() + seconds, Work()
    shares = [calls // processes + (worker < calls % processes) for worker in range(processes)]
    running = [Worker(seed, worker, seconds, share, only) for worker, share in enumerate(shares)]
    started, known, show_at = processes, set[tuple[str, ...]](), time.monotonic() + SHOWN_EVERY
    while running:
        time.sleep(0.2)
        if time.monotonic() > show_at:
            _show_progress(total, known)
            show_at += SHOWN_EVERY
        for one in list(running):
            alive = one.process.is_alive()
            total.take(one.told())
            if alive:
                continue
            running.remove(one)
            died = one.death()
            total.take(died)
            left = end - time.monotonic()
            if died.faults and left > 1.0 and total.calls < calls:
                running.append(Worker(seed, started, left, calls - total.calls, only))
                started += 1
    return total


def _show_progress(total: Work, known: set[tuple[str, ...]]) -> None:
    """How far it is, and the faults that were not known the last time."""
    print(f"{total.calls} calls, {len(total.faults)} kinds of fault", file=sys.stderr, flush=True)
    for key in sorted(set(total.faults) - known):
        fault = total.faults[key]
        print(f"  {fault.name}: {fault.kind} {fault.what} at {fault.where or '-'}, seed {fault.seed}", file=sys.stderr)
    known |= set(total.faults)


def explain(faults: dict[tuple[str, ...], Fault], seconds: float) -> None:
    """Find the least call of every fault, and write it down."""
    from fuzz.calls import table
    from fuzz.outcomes import outcome
    from fuzz.smaller import shrunk
    from fuzz.source import Replay
    from fuzz.written import written

    each = seconds / max(1, len(faults))
    for fault in faults.values():
        if not fault.tape:
            continue
        chosen = table()[fault.name]
        fault.tape = shrunk(chosen, fault.tape, fault.key, min(each, 20.0))
        found, call = outcome(chosen, Replay(fault.tape))
        fault.detail = found.detail or fault.detail
        fault.call = written(call)


def printed(done: Work, seconds: float) -> str:
    """Tables for people."""
    from fuzz.outcomes import Kind

    kinds = Counter[str]()
    for tally in done.tallies.values():
        kinds.update(tally.kinds)
    lines = [f"{done.calls} calls in {seconds:.0f} s", ""]
    for kind in Kind:
        lines.append(f"{kind.value:32}{kinds[kind.name]:>10}{'  <- fault' if kind.fault and kinds[kind.name] else ''}")
    short = [kind for kind in Kind if not kind.fault]
    lines += [
        "",
        f"{'function':42}{'calls':>8}{'s/1000':>8}  " + "".join(f"{k.name.lower():>11}" for k in short) + "   faults",
    ]
    for name in sorted(done.tallies):
        tally = done.tallies[name]
        cells = "".join(f"{tally.kinds[kind.name]:>11}" for kind in short)
        wrong = tally.calls - sum(tally.kinds[kind.name] for kind in short)
        lines.append(f"{name:42}{tally.calls:>8}{1000 * tally.seconds / tally.calls:>8.2f}  {cells}{wrong:>9}")
    if done.faults:
        lines += ["", f"{len(done.faults)} faults:"]
    for fault in sorted(done.faults.values(), key=lambda one: one.key):
        lines += ["", f"{fault.name}: {fault.kind} {fault.what} at {fault.where or '-'} ({fault.count} times)"]
        lines += [f"    {fault.detail}", f"    {fault.call}", f"    seed {fault.seed}, tape {fault.tape}"]
    return "\n".join(lines)


def as_json(done: Work, seconds: float) -> str:
    """The same for programs."""
    facts = {
        "calls": done.calls,
        "seconds": seconds,
        "functions": {
            name: {"calls": tally.calls, "seconds": tally.seconds, "kinds": dict(tally.kinds)}
            for name, tally in sorted(done.tallies.items())
        },
        "faults": [vars(fault) for fault in done.faults.values()],
    }
    return json.dumps(facts, indent=1)


def again(path: Path) -> Work:
    """Every fault of a file once more: those that are still there."""
    from fuzz.calls import table
    from fuzz.outcomes import outcome
    from fuzz.source import Replay

    done = Work()
    for facts in json.loads(path.read_text())["faults"]:
        chosen = table()[facts["name"]]
        found, _ = outcome(chosen, Replay(facts["tape"]))
        done.tallies.setdefault(chosen.name, Tally()).kinds[found.kind.name] += 1
        if found.kind.fault:
            told = {"kind": found.kind.name, "what": found.what, "where": found.where, "detail": found.detail}
            fault = Fault(**(facts | told))
            done.take(Work({}, {fault.key: fault}))
    return done


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, help="how long (default 60, or until `--calls` are made)")
    parser.add_argument("--calls", type=int, help="how many calls at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one case, or one room")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--faults", type=Path, default=Path("build/fuzz-faults.json"), help="file for faults, if there are any"
    )
    parser.add_argument("--again", type=Path, help="repeat the faults of such a file")
    options = parser.parse_args(arguments)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    begin = time.monotonic()
    if options.again:
        done = again(options.again)
    else:
        endless = 60.0 if options.calls is None else float("inf")
        limit = endless if options.seconds is None else options.seconds
        done = together(options.seed, options.processes, limit, options.calls or MANY, options.only)
    seconds = time.monotonic() - begin
    if not options.again:
        explain(done.faults, 120.0)
    if done.faults and not options.again:
        options.faults.parent.mkdir(parents=True, exist_ok=True)
        options.faults.write_text(as_json(done, seconds))
        print(f"faults are in {options.faults}", file=sys.stderr)
    print(as_json(done, seconds) if options.json else printed(done, seconds))
    return 1 if done.faults else 0


if __name__ == "__main__":
    limit_memory()
    sys.exit(main())
