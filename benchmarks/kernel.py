"""The tangent kernel of an encoder: attnlab against the product of its Jacobian, in one run on one machine.

The peer is what one writes first: all gradients by `jax.jacrev`, then J J^T. Each measurement is a fresh process; both
sides are compiled before they are timed, and memory is what the process took at its peak beyond what it had before.

    attnlab bench --only kernel
    python benchmarks/kernel.py '{"side": "attnlab", "n": 100, "T": 10, "d": 100, "width": 1000}'
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
from typing import Any

SIZES = {"n": 100, "T": 10, "d": 100}
# The Jacobian of width 4000 and what jacrev needs to make it do not fit into the memory of a small machine.
WIDTHS = {100: True, 1000: True, 4000: False}
REPEATS = 3  # processes
LAPS = 3  # calls in a process, of which the middle one counts


def run(quick: bool = False, on_part: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
    """Measure everything; returns plain JSON data."""
    widths = {100: True} if quick else WIDTHS
    repeats = 1 if quick else REPEATS
    total, done = repeats * sum(1 + peer for peer in widths.values()), 0
    rows = []
    for width, with_peer in widths.items():
        found: dict[str, list[dict[str, Any]]] = {"attnlab": [], "jacrev": []}
        for _ in range(repeats):  # interleaved, so that a slow moment of the machine hits both sides
            for side in ("attnlab", "jacrev")[: 1 + with_peer]:
                if on_part is not None:
                    on_part(done, total, f"{side:8} width {width}")
                found[side].append(_fresh_process({"side": side, "width": width, **SIZES}))
                done += 1
        rows.append({"width": width, **SIZES, **found})
    versions = {p: metadata.version(p) for p in ("attnlab", "jax", "numpy")}
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return {"quick": quick, "kernel": rows, "versions": versions, "machine": machine}


def tables(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The result as rows to print."""
    rows = []
    for case in result["kernel"]:
        ours, peer = case["attnlab"], case["jacrev"]
        row = {"(n,T,d), width": f"({case['n']},{case['T']},{case['d']}), {case['width']}"}
        seconds, memory = _middle(ours, "seconds"), _middle(ours, "megabytes")
        if peer:
            ratios = sorted(p["seconds"] / o["seconds"] for o, p in zip(ours, peer, strict=True))
            apart = abs(ours[0]["norm"] / peer[0]["norm"] - 1.0)
            row |= {"jacrev s": round(_middle(peer, "seconds"), 3), "attnlab s": round(seconds, 4),
                    "ratio": round(ratios[len(ratios) // 2], 1), "range": f"{ratios[0]:.0f}-{ratios[-1]:.0f}",
                    "jacrev MB": round(_middle(peer, "megabytes")), "attnlab MB": round(memory),
                    "memory ratio": round(_middle(peer, "megabytes") / max(memory, 1.0), 1),
                    "norms differ by": f"{apart:.0e}"}  # fmt: skip
        else:
            row |= {"jacrev s": "not run", "attnlab s": round(seconds, 4), "ratio": "", "range": "", "jacrev MB": "",
                    "attnlab MB": round(memory), "memory ratio": "", "norms differ by": ""}  # fmt: skip
        rows.append(row)
    return {f"Tangent kernel of an encoder; median of {len(result['kernel'][0]['attnlab'])}, compiled": rows}


def _middle(runs: list[dict[str, Any]], key: str) -> float:
    return sorted(run[key] for run in runs)[len(runs) // 2]


def _fresh_process(case: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, json.dumps(case)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"benchmark {case} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(side: str, n: int, T: int, d: int, width: int) -> dict[str, float]:
    """Seconds of a compiled call, megabytes beyond what the process had before, and the norm of the kernel."""
    import jax
    import numpy as np

    import attnlab as al

    data, model = al.data.gaussian_sequences(n, T, d), al.models.Encoder(width)
    weights = model.initial(data)
    model.outputs(data, weights)  # starts the runtime, which is not counted
    kernel = _kernel(side, jax, al, data, model, weights)
    before = _peak()
    found = kernel()
    laps = []
    for _ in range(LAPS):
        start = time.perf_counter()
        kernel()
        laps.append(time.perf_counter() - start)
    return {"seconds": sorted(laps)[LAPS // 2], "megabytes": _peak() - before, "norm": float(np.linalg.norm(found))}


def _kernel(side: str, jax: Any, al: Any, data: Any, model: Any, weights: Any) -> Callable[[], Any]:
    import numpy as np

    if side == "attnlab":
        return lambda: al.theory.ntk(data, model, weights)
    tokens = al.models.Problem.of(x=data.x, y=data.y)

    @jax.jit
    def product(weights: Any) -> Any:
        jacobian = jax.jacrev(lambda w: model.forward(w, tokens).outputs)(weights)
        flat = [j.reshape(data.n, -1) for j in jax.tree.leaves(jacobian)]
        return sum(j @ j.T for j in flat)

    def naive() -> Any:
        with jax.enable_x64(True):
            return np.asarray(product(weights))

    return naive


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
