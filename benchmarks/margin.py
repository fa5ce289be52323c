"""Max-margin problems: attnlab against cvxpy, in one run on one machine.

Each measurement is a fresh process on one thread (the largest problem: on two), so that peak memory is its own.
Importing libraries and a first solve of another problem are counted on neither side; medians over many problems.
cvxpy minimizes `cp.norm(W, "fro")` over W with all constraints in one vectorised expression, with its default solver.
Both sides are judged alike: `excess` is how much longer than the shortest W theirs is once scaled to be feasible.

    python benchmarks/margin.py                # or with --quick
    python benchmarks/margin.py '{"side": "attnlab", "n": 6, "T": 8, "d": 10, "count": 9}'
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
from statistics import median
from typing import Any

CASES = [
    {"n": 6, "T": 8, "d": 10, "count": 200, "peer_count": 15},
    {"n": 10, "T": 10, "d": 50, "count": 200, "peer_count": 5},
]
BATCH = {"n": 5, "T": 5, "d": 10, "count": 500, "peer_count": 20}
LARGE = [
    {"n": 100, "T": 100, "d": 512, "count": 1, "threads": 1},
    {"n": 200, "T": 500, "d": 256, "count": 1, "threads": 2},
]
REPEATS = 3
# N = n (T - 1) constraints, four times as many each time; d large enough that every selection is feasible.
LADDER = [{"n": n, "T": n, "d": 256} for n in (10, 20, 40, 80, 160)]


def run(quick: bool = False, on_part: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
    """Measure everything; returns plain JSON data."""
    repeats = 1 if quick else REPEATS
    large = LARGE[:1] if quick else LARGE
    ladder = LADDER[:4] if quick else LADDER
    total = (len(CASES) + 1) * repeats * 2 + len(large) + len(ladder)
    done = 0

    def measure(**case: Any) -> dict[str, Any]:
        nonlocal done
        if on_part is not None:
            on_part(done, total, f"{case['side']:8} {_sizes(case)}")
        result = _fresh_process(case)
        done += 1
        return result

    def side_by_side(case: dict[str, Any], side: str) -> dict[str, Any]:
        sizes = {k: case[k] for k in ("n", "T", "d")}
        runs = []
        for _ in range(repeats):  # interleaved, so that a slow moment of the machine hits both sides
            ours = measure(side=side, count=case["count"], **sizes)
            peer = measure(side="cvxpy", count=case["peer_count"], **sizes)
            runs.append({"ours": ours, "peer": peer})
        return {"case": case, "runs": runs}

    single = [side_by_side(case, "attnlab") for case in CASES]
    batch = side_by_side(BATCH, "batch")
    big = [{**case, **measure(side="attnlab", **case)} for case in large]
    growth = [{**sizes, **measure(side="attnlab", count=3, **sizes)} for sizes in ladder]
    versions = {p: metadata.version(p) for p in ("attnlab", "cvxpy", "numpy", "scipy")}
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return {
        "quick": quick,
        "single": single,
        "batch": batch,
        "large": big,
        "growth": growth,
        "versions": versions,
        "machine": machine,
    }


def tables(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The result as rows to print."""
    repeats = len(result["batch"]["runs"])
    single = []
    for entry in result["single"]:
        runs = entry["runs"]
        ratios = sorted(median(r["peer"]["seconds"]) / median(r["ours"]["seconds"]) for r in runs)
        single.append(
            {
                "(n,T,d)": _sizes(entry["case"]),
                "N": _constraints(entry["case"]),
                "cvxpy ms": round(1e3 * median(s for r in runs for s in r["peer"]["seconds"]), 1),
                "attnlab ms": round(1e3 * median(s for r in runs for s in r["ours"]["seconds"]), 3),
                "ratio of medians": round(median(ratios), 1),
                "range": f"{ratios[0]:.0f}-{ratios[-1]:.0f}",
                "cvxpy excess": f"{max(r['peer']['excess'] for r in runs):.0e}",
                "attnlab gap": f"{max(r['ours']['gap'] for r in runs):.0e}",
            }
        )
    case, runs = result["batch"]["case"], result["batch"]["runs"]
    totals = [(sum(r["ours"]["seconds"]), sum(r["peer"]["seconds"]) / case["peer_count"] * case["count"]) for r in runs]
    ratios = sorted(peer / ours for ours, peer in totals)
    batch = {
        "(n,T,d) x trials": f"{_sizes(case)} x {case['count']}",
        "cvxpy s": round(median(peer for _, peer in totals), 2),
        "attnlab s": round(median(ours for ours, _ in totals), 4),
        "ratio": round(median(ratios)),
        "range": f"{ratios[0]:.0f}-{ratios[-1]:.0f}",
        "feasible": runs[0]["ours"]["feasible"],
        "largest gap": f"{max(r['ours']['gap'] for r in runs):.0e}",
    }
    large = [
        {
            "(n,T,d)": _sizes(m),
            "N": _constraints(m),
            "threads": m["threads"],
            "seconds": round(m["seconds"][0], 2),
            "gap": f"{m['gap']:.0e}",
            "status": m["status"],
            "peak MB": round(m["peak_mb"]),
            "data MB": round(m["data_mb"]),
        }
        for m in result["large"]
    ]
    return {
        f"One problem, one thread: median over problems, {repeats} interleaved runs": single,
        f"A batch at once, one thread; cvxpy one by one, extrapolated from {case['peer_count']}": [batch],
        "Many constraints; memory of the whole process, the data included": large,
        "Growth with N at d = 256, one thread (exponent: log of the ratio of times over log of the ratio of N)": [
            *_growth_rows(result["growth"])
        ],
    }


def _growth_rows(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seconds, N = [median(m["seconds"]) for m in measured], [_constraints(m) for m in measured]
    steps = [None] + [log(b / a) / log(q / p) for (a, b), (p, q) in zip(pairwise(seconds), pairwise(N), strict=True)]
    return [
        {
            "(n,T,d)": _sizes(m),
            "N": N[i],
            "seconds": f"{seconds[i]:.4f}",
            "exponent": "" if steps[i] is None else f"{steps[i]:.2f}",
            "largest gap": f"{m['gap']:.0e}",
            "peak MB": round(m["peak_mb"]),
        }
        for i, m in enumerate(measured)
    ]


def _sizes(case: dict[str, Any]) -> str:
    return f"({case['n']},{case['T']},{case['d']})"


def _constraints(case: dict[str, Any]) -> int:
    return case["n"] * (case["T"] - 1)


def _fresh_process(case: dict[str, Any]) -> dict[str, Any]:
    threads = str(case.get("threads", 1))
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, threads)}
    done = subprocess.run([sys.executable, __file__, json.dumps(case)], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"benchmark {case} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _problems(n: int, T: int, d: int, count: int) -> tuple[Any, Any]:
    """A batch of random unit tokens, and random selections."""
    import numpy as np

    import attnlab as al

    return al.data.sphere(n, T, d, seed=0, trials=count), np.random.default_rng(0).integers(T, size=(count, n))


def time_attnlab(n: int, T: int, d: int, count: int) -> dict[str, Any]:
    """Seconds of each of `count` problems, solved one at a time."""
    import attnlab as al

    tokens, selected = _problems(n, T, d, count)
    warm_up = al.data.sphere(6, 8, 10)
    al.solve_margin(warm_up, [0] * 6)
    laps, gaps, names = [], [], set()
    for i in range(count):
        one = tokens[i]
        start = time.perf_counter()
        solution = al.solve_margin(one, selected[i], throw=False)
        laps.append(time.perf_counter() - start)
        gaps.append(solution.gap)
        names.add(solution.status.name.lower())
    return {"seconds": laps, "gap": max(gaps), "status": ", ".join(sorted(names)), "data_mb": tokens.x.nbytes / 2**20}


def time_batch(n: int, T: int, d: int, count: int) -> dict[str, Any]:
    """Seconds of all problems together."""
    import attnlab as al

    tokens, selected = _problems(n, T, d, count)
    al.solve_margins(tokens[:2], selected[:2])  # warm up
    start = time.perf_counter()
    found = al.solve_margins(tokens, selected)
    seconds = time.perf_counter() - start
    return {"seconds": [seconds], "gap": float(found.gap[found.feasible].max()), "feasible": int(found.feasible.sum())}


def time_cvxpy(n: int, T: int, d: int, count: int) -> dict[str, Any]:
    """Seconds of each problem as one would write it in cvxpy."""
    import cvxpy as cp
    import numpy as np

    import attnlab as al

    tokens, selected = _problems(n, T, d, count)

    def solve(x: Any, z: Any, chosen: Any) -> tuple[Any, float]:
        p = np.concatenate([x[i, k] - np.delete(x[i], k, axis=0) for i, k in enumerate(chosen)])
        q = np.repeat(z, x.shape[1] - 1, axis=0)
        W = cp.Variable((x.shape[2], x.shape[2]))
        cp.Problem(cp.Minimize(cp.norm(W, "fro")), [cp.sum(cp.multiply(p @ W, q), axis=1) >= 1]).solve()
        return W.value, float(np.einsum("jd,jd->j", p @ W.value, q).min())

    warm_up = al.data.sphere(6, 8, 10)
    solve(warm_up.x, warm_up.z, [0] * 6)
    laps, excess = [], []
    for i in range(count):
        start = time.perf_counter()
        W, least = solve(tokens.x[i], tokens.z[i], selected[i])
        laps.append(time.perf_counter() - start)
        best = al.solve_margin(tokens[i], selected[i])
        excess.append(float(np.linalg.norm(W)) / least * best.margin * (1 + best.gap) - 1)
    return {"seconds": laps, "excess": max(excess)}


def _main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] == "--quick":
        result = run(quick=len(sys.argv) > 1, on_part=lambda i, n, what: print(f"{i}/{n} {what}", file=sys.stderr))
        for title, rows in tables(result).items():
            print(f"\n{title}")
            for row in rows:
                print("  " + "  ".join(f"{k}={v}" for k, v in row.items()))
        return
    case = json.loads(sys.argv[1])
    side = {"attnlab": time_attnlab, "batch": time_batch, "cvxpy": time_cvxpy}[case.pop("side")]
    case.pop("threads", None)
    result = side(**case)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**result, "peak_mb": peak}))


if __name__ == "__main__":
    _main()
