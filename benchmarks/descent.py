"""Training one attention layer: attnlab beside what an expert writes, in one run on one machine.

The peers are in `descent_peers`: plain JAX, batched PyTorch and a compiled loop over logits; and the way of the
published scripts, an eager PyTorch loop over trials, which is timed on a few of them and extrapolated. Each measurement
is a fresh process with the first call, which compiles, and the median of later ones apart; peak memory is its own.
Neither side records anything; importing libraries and starting them is counted on neither side.

Beside the time stands what a peer's answer is worth: how far its W, or K Q^T, is from ours after all steps, relative to
the norm of ours, in the median over trials. All start from the same weights. Where attention has saturated, the
textbook gradient is rounding noise, which a normalized step blows up to full length.

    attnlab bench            # or: make bench
    python benchmarks/descent.py '{"side": "plain JAX", "n": 5, "T": 5, "d": 10, "trials": 500, "steps": 2000}'
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

JAX, TORCH, LOOP, EAGER = "plain JAX", "batched PyTorch", "compiled loop", "eager PyTorch"
CASES = (
    {"n": 5, "T": 5, "d": 10, "trials": 500, "steps": 2000, "peers": (JAX, TORCH, LOOP, EAGER)},
    {"n": 5, "T": 5, "d": 10, "trials": 500, "steps": 2000, "peers": (JAX, TORCH), "weights": "KQ"},
    {"n": 6, "T": 8, "d": 10, "trials": 100, "steps": 2000, "peers": (JAX, LOOP)},
    {"n": 6, "T": 8, "d": 10, "trials": 100, "steps": 2000, "peers": (JAX,), "weights": "KQ"},
    {"n": 20, "T": 6, "d": 100, "trials": 1, "steps": 20000, "peers": (JAX, LOOP, EAGER)},
    {"n": 10, "T": 10, "d": 50, "trials": 50, "steps": 2000, "peers": (JAX, LOOP)},
    {"n": 20, "T": 20, "d": 20, "trials": 64, "steps": 2000, "peers": (JAX,)},
    {"n": 3, "T": 3, "d": 2, "trials": 1, "steps": 2000, "peers": (JAX, LOOP)},
)
REPEATS = 3  # processes
LATER = 3  # calls after the first in a process
EAGER_TRIALS = 3
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
    cases = [{**case, "steps": case["steps"] // 10} for case in CASES[:2]] if quick else list(CASES)
    repeats = 1 if quick else REPEATS
    growth = {} if quick else GROWTH
    total = repeats * sum(1 + len(case["peers"]) for case in cases) + sum(map(len, growth.values()))
    done = 0

    def measure(side: str, folder: str, sizes: dict[str, Any]) -> dict[str, Any]:
        nonlocal done
        if on_part is not None:
            on_part(done, total, f"{side:15} {_sizes(sizes)}")
        result = _fresh_process({"side": side, "folder": folder, **sizes})
        done += 1
        return result

    speed = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            sizes = {name: value for name, value in case.items() if name != "peers"}
            sides = ("attnlab", *case["peers"])
            runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
            for _ in range(repeats):  # interleaved, so that a slow moment of the machine hits all sides
                for side in sides:
                    runs[side].append(measure(side, folder, sizes))
            speed.append({"case": case, "runs": runs, "apart": _apart(Path(folder), case["peers"])})
        table = [
            {"varied": name, **sizes, **measure("attnlab", folder, {**sizes, "later": 1})}
            for name, values in growth.items()
            for sizes in ({**BASE, name: value} for value in values)
        ]
    versions = {package: metadata.version(package) for package in ("attnlab", "jax", "numpy", "torch", "numba")}
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return {"quick": quick, "speed": speed, "growth": table, "versions": versions, "machine": machine}


def _apart(folder: Path, peers: tuple[str, ...]) -> dict[str, float]:
    """How far the weights of each peer are from ours, relative to the norm of ours: the median over trials."""
    import numpy as np

    ours = np.load(folder / "attnlab.npy")
    apart = {}
    for peer in peers:
        if peer != EAGER:
            away = np.linalg.norm(np.load(folder / f"{peer}.npy") - ours, axis=(-2, -1))
            apart[peer] = float(np.median(away / np.linalg.norm(ours, axis=(-2, -1))))
    return apart


def tables(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The result as rows to print."""
    count = len(result["speed"][0]["runs"]["attnlab"])
    later, first = [], []
    for entry in result["speed"]:
        ours = entry["runs"]["attnlab"]
        for peer in entry["case"]["peers"]:
            theirs = entry["runs"][peer]
            named = {"(n,T,d) x trials x steps": _sizes(entry["case"]), "peer": peer}
            apart = entry["apart"].get(peer)
            later.append(named | _times("warm", ours, theirs) | {"W apart": "" if apart is None else f"{apart:.0e}"})
            if peer != EAGER:
                memory = f"{_middle(theirs, 'peak_mb'):.0f} / {_middle(ours, 'peak_mb'):.0f}"
                first.append(named | _times("first", ours, theirs) | {"peak MB": memory})
    found = {
        f"Later calls, peer / attnlab, medians of {count}. W apart: how far the peer's is from ours at the end. "
        f"{EAGER}: from at most {EAGER_TRIALS} trials, one at a time": later,
        "First calls, which compile": first,
    }
    if result["growth"]:
        found[
            "Growth of attnlab, each size in turn (exponent: log of the ratio of times over log of the ratio of sizes)"
        ] = [*_growth_rows(result["growth"])]
    return found


def _times(lap: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, str]:
    """Seconds of both sides, and their ratio with its range."""
    ratios = sorted(their[lap] / our[lap] for our, their in zip(ours, theirs, strict=True))
    middle, least, most = (_short(value) for value in (ratios[len(ratios) // 2], ratios[0], ratios[-1]))
    return {
        "seconds": f"{_short(_middle(theirs, lap))} / {_short(_middle(ours, lap))}",
        "ratio": f"{middle} ({least}-{most})",
    }


def _middle(runs: list[dict[str, Any]], key: str) -> float:
    return sorted(run[key] for run in runs)[len(runs) // 2]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def _sizes(case: dict[str, Any]) -> str:
    weights = "K, Q: " if case.get("weights") == "KQ" else ""
    return f"{weights}({case['n']},{case['T']},{case['d']}) x {case['trials']} x {case['steps']}"


def _growth_rows(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys(m["varied"] for m in measured):
        group = [m for m in measured if m["varied"] == name]
        slopes = [log(b["warm"] / a["warm"]) / log(b[name] / a[name]) for a, b in pairwise(group)]
        rows.append(
            {
                "size": name,
                "values": ", ".join(str(m[name]) for m in group),
                "seconds, warm": ", ".join(f"{m['warm']:.2f}" for m in group),
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


def time_side(
    side: str,
    n: int,
    T: int,
    d: int,
    trials: int,
    steps: int,
    weights: str = "W",
    folder: str | None = None,
    later: int = LATER,
) -> dict[str, float]:
    """Seconds of a first call (with compilation) and of later ones; the weights go to `folder`."""
    import numpy as np

    import attnlab as al

    tokens = al.data.sphere(n, T, d, seed=0, trials=trials)
    rng = np.random.default_rng(0)
    start = {name: rng.uniform(-1, 1, (trials, d, d)) / d**0.5 for name in weights}
    if side == EAGER:
        return _time_eager(tokens, start["W"], steps)
    train = _ours(tokens, start) if side == "attnlab" else _peer(side)(tokens, start)
    laps, trained = [], start
    for _ in range(1 + later):
        begin = time.perf_counter()
        trained = train(steps)
        laps.append(time.perf_counter() - begin)
    if folder is not None:
        from descent_peers import product

        np.save(Path(folder) / f"{side}.npy", product(trained))
    return {"first": laps[0], "warm": sorted(laps[1:])[later // 2]}


def _ours(tokens: Any, start: dict[str, Any]) -> Callable[[int], Any]:
    import attnlab as al

    descend = al.descend  # loads JAX, which is not counted
    al.models.loss(tokens[0], [[0.0] * tokens.d] * tokens.d)  # starts the JAX runtime, which is not counted either
    parameterization = "W" if "W" in start else "KQ"

    def train(steps: int) -> Any:
        run = descend(tokens, al.ngd(0.1), steps=steps, record=None, parameterization=parameterization, init=start)
        return dict(run.weights)

    return train


def _peer(side: str) -> Callable[..., Callable[[int], Any]]:
    """Its libraries loaded and started, which is not counted."""
    from descent_peers import batched_torch, compiled_loop, plain_jax

    if side == JAX:
        import jax

        jax.block_until_ready(jax.numpy.zeros(3) + 1)
        return plain_jax
    if side == TORCH:
        import torch

        torch.zeros(3) + 1
        return batched_torch
    import numba

    assert numba
    return compiled_loop


def _time_eager(tokens: Any, start: Any, steps: int) -> dict[str, float]:
    """Seconds of an eager loop over trials: autograd, the gradient divided by its norm, plain SGD."""
    import torch

    torch.set_num_threads(1)

    def train(i: int, steps: int) -> None:
        x, z, y, v = (torch.tensor(a[i]) for a in (tokens.x, tokens.z, tokens.y, tokens.v))
        W = torch.nn.Parameter(torch.tensor(start[i]))
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
    trials = min(len(start), EAGER_TRIALS)
    begin = time.perf_counter()
    for i in range(trials):
        train(i, steps)
    seconds = (time.perf_counter() - begin) / trials * len(start)
    return {"first": seconds, "warm": seconds}


def _main() -> None:
    result = time_side(**json.loads(sys.argv[1]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**result, "peak_mb": peak}))


if __name__ == "__main__":
    _main()
