"""Training attention: attnlab against a plain PyTorch loop, in one run on one machine.

Each measurement is a fresh process, so that compilation is counted and peak memory is its own. Neither side records
anything; importing libraries is counted on neither side. The PyTorch loop runs one trial at a time on one thread, as
the published experiments do, and is timed on a few trials; the full time is extrapolated from their mean.

    attnlab bench            # or: make bench
    python benchmarks/descent.py '{"side": "attnlab", "n": 5, "T": 5, "d": 10, "trials": 500, "steps": 2000}'
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from math import log
from typing import Any

CASES = [
    {"n": 5, "T": 5, "d": 10, "trials": 500, "steps": 2000, "peer_trials": 3},
    {"n": 20, "T": 6, "d": 100, "trials": 1, "steps": 20000, "peer_trials": 1},
]
REPEATS = 3
# One size at a time is doubled from this one, everything else left alone.
BASE = {"n": 8, "T": 8, "d": 32, "trials": 64, "steps": 1000}
GROWTH = {
    "trials": (64, 256, 1024),
    "steps": (1000, 4000, 16000),
    "n": (8, 32, 128),
    "T": (8, 32, 128),
    "d": (32, 128, 512),
}


def run(quick: bool = False, on_part: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
    """Measure everything; returns plain JSON data."""
    cases = [{**c, "steps": c["steps"] // 10} for c in CASES] if quick else CASES
    repeats = 1 if quick else REPEATS
    growth = {} if quick else GROWTH
    total = len(cases) * repeats * 2 + sum(map(len, growth.values()))
    done = 0

    def measure(**case: Any) -> dict[str, Any]:
        nonlocal done
        if on_part is not None:
            on_part(done, total, f"{case['side']:8} {_sizes(case)}")
        result = _fresh_process(case)
        done += 1
        return result

    speed = []
    for case in cases:
        sizes = {k: case[k] for k in ("n", "T", "d", "steps")}
        pairs = []
        for _ in range(repeats):  # interleaved, so that a slow moment of the machine hits both sides
            ours = measure(side="attnlab", trials=case["trials"], **sizes)
            peer = measure(side="torch", trials=min(case["peer_trials"], case["trials"]), **sizes)
            pairs.append((ours, peer))
        speed.append({"case": case, "runs": [_compare(case, ours, peer) for ours, peer in pairs]})
    table = []
    for name, values in growth.items():
        for value in values:
            sizes = {**BASE, name: value}
            table.append({"varied": name, **sizes, **measure(side="attnlab", **sizes)})
    versions = {p: metadata.version(p) for p in ("attnlab", "jax", "numpy", "torch")}
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return {"quick": quick, "speed": speed, "growth": table, "versions": versions, "machine": machine}


def _compare(case: dict[str, Any], ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    peer_seconds = peer["first"] / peer["trials"] * case["trials"]
    return {
        "peer_seconds": peer_seconds,
        "peer_extrapolated_from": peer["trials"],
        "seconds": ours["first"],
        "seconds_compiled": ours["second"],
        "ratio": peer_seconds / ours["first"],
        "ratio_compiled": peer_seconds / ours["second"],
        "peak_mb": ours["peak_mb"],
        "peer_peak_mb": peer["peak_mb"],
    }


def tables(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The result as rows to print."""
    speed = []
    for entry in result["speed"]:
        case, runs = entry["case"], entry["runs"]
        middle = sorted(runs, key=lambda r: r["ratio"])[len(runs) // 2]
        speed.append(
            {
                "(n,T,d) x trials x steps": _sizes(case),
                "torch s": round(middle["peer_seconds"], 1),
                "attnlab s": round(middle["seconds"], 2),
                "ratio": round(middle["ratio"], 1),
                "range": f"{min(r['ratio'] for r in runs):.0f}-{max(r['ratio'] for r in runs):.0f}",
                "compiled": round(middle["ratio_compiled"], 1),
                "peak MB": round(middle["peak_mb"]),
                "torch MB": round(middle["peer_peak_mb"]),
            }
        )
    trials = {e["runs"][0]["peer_extrapolated_from"] for e in result["speed"]}
    title = (
        f"Normalized GD, W; median of {len(result['speed'][0]['runs'])}; `ratio` counts compilation, `compiled` not; "
        f"torch: one trial at a time, one thread, extrapolated from at most {max(trials)} trials"
    )
    found = {title: speed}
    if result["growth"]:
        found[
            "Growth of attnlab, each size in turn (exponent: log of the ratio of times over log of the ratio of sizes)"
        ] = [*_growth_rows(result["growth"])]
    return found


def _sizes(case: dict[str, Any]) -> str:
    return f"({case['n']},{case['T']},{case['d']}) x {case['trials']} x {case['steps']}"


def _growth_rows(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys(m["varied"] for m in measured):
        group = [m for m in measured if m["varied"] == name]
        slopes = [log(b["second"] / a["second"]) / log(b[name] / a[name]) for a, b in pairwise(group)]
        rows.append(
            {
                "size": name,
                "values": ", ".join(str(m[name]) for m in group),
                "seconds, compiled": ", ".join(f"{m['second']:.2f}" for m in group),
                "exponents": ", ".join(f"{s:.2f}" for s in slopes),
                "peak MB": ", ".join(f"{m['peak_mb']:.0f}" for m in group),
            }
        )
    return rows


def _fresh_process(case: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, json.dumps(case)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"benchmark {case} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def time_attnlab(n: int, T: int, d: int, trials: int, steps: int) -> dict[str, float]:
    """Seconds of a first call (with compilation) and of a second."""
    import attnlab as al

    tokens = al.data.sphere(n, T, d, seed=0, trials=trials)
    run = al.descend  # loads JAX, which is not counted
    al.models.loss(tokens[0], [[0.0] * d] * d)  # starts the JAX runtime, which is not counted either
    laps = []
    for _ in range(2):
        start = time.perf_counter()
        run(tokens, al.ngd(0.1), steps=steps, record=None)
        laps.append(time.perf_counter() - start)
    return {"first": laps[0], "second": laps[1]}


def time_torch(n: int, T: int, d: int, trials: int, steps: int) -> dict[str, float]:
    """Seconds of an eager loop over trials: autograd, the gradient divided by its norm, plain SGD."""
    import torch

    import attnlab as al

    torch.set_num_threads(1)
    tokens = al.data.sphere(n, T, d, seed=0, trials=trials)

    def train(i: int, steps: int) -> None:
        x, z, y, v = (torch.tensor(a[i]) for a in (tokens.x, tokens.z, tokens.y, tokens.v))
        W = torch.nn.Parameter((2 * torch.rand(d, d, dtype=torch.float64) - 1) / d**0.5)
        optimizer = torch.optim.SGD([W], lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            logits = torch.einsum("ntd,nd->nt", x, z @ W.T)
            outputs = torch.einsum("nt,ntd->nd", torch.softmax(logits, -1), x)
            loss = torch.nn.functional.softplus(-y * (outputs @ v)).mean()
            loss.backward()
            with torch.no_grad():
                W.grad /= W.grad.norm() + 2.22e-16
            optimizer.step()

    train(0, 20)  # warm up
    start = time.perf_counter()
    for i in range(trials):
        train(i, steps)
    return {"first": time.perf_counter() - start}


def _main() -> None:
    case = json.loads(sys.argv[1])
    side = {"attnlab": time_attnlab, "torch": time_torch}[case.pop("side")]
    result = side(**case)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**result, "trials": case["trials"], "peak_mb": peak}))


if __name__ == "__main__":
    _main()
