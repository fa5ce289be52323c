"""Max-margin problems in both norms: attnlab against the solvers an expert would take, in one run on one machine.

Each measurement is a fresh process on one thread, so that peak memory is its own.
Importing libraries and a first solve of another problem are counted on neither side; medians over many problems. Every
side starts from arrays and ends with W; attnlab's time includes its checks and its certificate. All are judged alike:
`excess` is how much longer than the shortest W theirs is once scaled to be feasible, `rank` the mean number of singular
values above a millionth of the largest, beside attnlab's certified one. Peers: `benchmarks/margin_peers.py`.

    python benchmarks/margin.py                # or with --quick
    python benchmarks/margin.py '{"side": "attnlab", "norm": "nuclear", "n": 6, "T": 8, "d": 10, "count": 9}'
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
from statistics import mean, median
from typing import Any

FROBENIUS = [
    {"n": 6, "T": 8, "d": 10, "count": 200, "peers": {"daqp primal": 200, "daqp dual": 200, "cvxpy frobenius": 15}},
    {"n": 10, "T": 10, "d": 50, "count": 200, "peers": {"daqp primal": 60, "daqp dual": 200, "cvxpy frobenius": 5}},
]
NUCLEAR = [
    {"n": 6, "T": 8, "d": 10, "count": 50, "peers": {"clarabel": 20, "scs": 20, "cvxpy nuclear": 10}},
    {"n": 10, "T": 10, "d": 50, "count": 20, "peers": {"clarabel": 3, "scs": 5, "cvxpy nuclear": 3}},
]
BATCHES = [
    {"norm": "frobenius", "n": 5, "T": 5, "d": 10, "count": 500, "peers": {"daqp primal": 500, "daqp dual": 500}},
    {"norm": "nuclear", "n": 5, "T": 5, "d": 10, "count": 200, "peers": {"clarabel": 20, "scs": 20}},
]
LARGE = [
    {"norm": "frobenius", "n": 100, "T": 100, "d": 512, "count": 1, "threads": 1},
    {"norm": "frobenius", "n": 200, "T": 500, "d": 256, "count": 1, "threads": 1},
    {"norm": "frobenius", "n": 320, "T": 320, "d": 64, "count": 1, "threads": 1},
    {"norm": "frobenius", "n": 1000, "T": 1001, "d": 256, "count": 1, "threads": 1, "from_disk": True},
    {"norm": "nuclear", "n": 50, "T": 50, "d": 200, "count": 1, "threads": 1},
    {"norm": "nuclear", "n": 100, "T": 100, "d": 128, "count": 1, "threads": 1},
]
REPEATS = 3
# N = n (T - 1) constraints, about four times as many each time; d large enough that every selection is feasible.
LADDERS = {
    "frobenius": [{"n": n, "T": n, "d": 256} for n in (10, 20, 40, 80, 160, 320)],
    "nuclear": [{"n": n, "T": n, "d": 64} for n in (5, 10, 20, 40, 80)],
}


def run(quick: bool = False, on_part: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
    """Measure everything; returns plain JSON data."""
    repeats = 1 if quick else REPEATS
    cases = [{"norm": "frobenius", **case} for case in FROBENIUS] + [{"norm": "nuclear", **case} for case in NUCLEAR]
    large = LARGE[::4] if quick else LARGE  # the first of each norm
    ladders = {norm: ladder[:-1] if quick else ladder for norm, ladder in LADDERS.items()}
    total = sum(repeats * (1 + len(c["peers"])) for c in cases + BATCHES) + len(large)
    total += sum(len(ladder) for ladder in ladders.values())
    done = 0

    def measure(**case: Any) -> dict[str, Any]:
        nonlocal done
        if on_part is not None:
            on_part(done, total, f"{case['side']:15} {case['norm']} {_sizes(case)}")
        result = _fresh_process(case)
        done += 1
        return result

    def side_by_side(case: dict[str, Any], side: str) -> dict[str, Any]:
        problem = {k: case[k] for k in ("norm", "n", "T", "d")}
        runs = []
        for _ in range(repeats):  # interleaved, so that a slow moment of the machine hits all sides
            ours = measure(side=side, count=case["count"], **problem)
            theirs = {peer: measure(side=peer, count=count, **problem) for peer, count in case["peers"].items()}
            runs.append({"ours": ours, "peers": theirs})
        return {"case": case, "runs": runs}

    return {
        "quick": quick,
        "single": [side_by_side(case, "attnlab") for case in cases],
        "batch": [side_by_side(case, "batch") for case in BATCHES],
        "large": [{**case, **measure(side="attnlab", **case)} for case in large],
        "growth": {
            norm: [{**sizes, **measure(side="attnlab", norm=norm, count=3, **sizes)} for sizes in ladder]
            for norm, ladder in ladders.items()
        },
        "versions": {p: metadata.version(p) for p in ("attnlab", "daqp", "clarabel", "scs", "cvxpy", "numpy", "scipy")},
        "machine": {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()},
    }


def tables(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The result as rows to print."""
    repeats = len(result["batch"][0]["runs"])
    large = [
        {
            "norm": m["norm"],
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
        f"One problem, one thread: median over problems, {repeats} interleaved runs": _single_rows(result["single"]),
        "A batch at once, one thread; peers one by one, extrapolated where fewer": _batch_rows(result["batch"]),
        "Many constraints; memory of the whole process, the data included": large,
        "Growth with N, one thread (exponent: log of the ratio of times over log of the ratio of N)": [
            row for norm, measured in result["growth"].items() for row in _growth_rows(norm, measured)
        ],
    }


def _single_rows(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for entry in entries:
        runs = entry["runs"]
        for peer in entry["case"]["peers"]:
            theirs = [run["peers"][peer] for run in runs]
            ours = [run["ours"] for run in runs]
            ratios = sorted(median(t["seconds"]) / median(o["seconds"]) for t, o in zip(theirs, ours, strict=True))
            rows.append(
                {
                    "norm": entry["case"]["norm"],
                    "(n,T,d)": _sizes(entry["case"]),
                    "peer": peer,
                    "peer ms": round(1e3 * median(s for t in theirs for s in t["seconds"]), 3),
                    "attnlab ms": round(1e3 * median(s for o in ours for s in o["seconds"]), 3),
                    "ratio": round(median(ratios), 2),
                    "range": f"{ratios[0]:.2f}-{ratios[-1]:.2f}",
                    "peer excess": f"{max(t['excess'] for t in theirs):.0e}",
                    "attnlab gap": f"{max(o['gap'] for o in ours):.0e}",
                    "peer rank": f"{theirs[0]['rank']:.1f} for {theirs[0]['best_rank']:.1f}",
                }
            )
    return rows


def _batch_rows(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for entry in entries:
        case, runs = entry["case"], entry["runs"]
        for peer, count in case["peers"].items():
            scale = case["count"] / count
            totals = [(sum(r["ours"]["seconds"]), scale * sum(r["peers"][peer]["seconds"])) for r in runs]
            ratios = sorted(theirs / ours for ours, theirs in totals)
            rows.append(
                {
                    "norm": case["norm"],
                    "(n,T,d) x trials": f"{_sizes(case)} x {case['count']}",
                    "peer": f"{peer}, {count} of them",
                    "peer s": round(median(theirs for _, theirs in totals), 4),
                    "attnlab s": round(median(ours for ours, _ in totals), 4),
                    "ratio": round(median(ratios), 1),
                    "range": f"{ratios[0]:.1f}-{ratios[-1]:.1f}",
                    "feasible": runs[0]["ours"]["feasible"],
                    "peer excess": f"{max(r['peers'][peer]['excess'] for r in runs):.0e}",
                    "largest gap": f"{max(r['ours']['gap'] for r in runs):.0e}",
                }
            )
    return rows


def _growth_rows(norm: str, measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seconds, N = [median(m["seconds"]) for m in measured], [_constraints(m) for m in measured]
    steps = [None] + [log(b / a) / log(q / p) for (a, b), (p, q) in zip(pairwise(seconds), pairwise(N), strict=True)]
    return [
        {
            "norm": norm,
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


def time_attnlab(norm: Any, n: int, T: int, d: int, count: int, from_disk: bool = False) -> dict[str, Any]:
    """Seconds of each of `count` problems, solved one at a time."""
    import attnlab as al

    tokens, selected = _on_disk(n, T, d) if from_disk else _problems(n, T, d, count)
    warm_up = al.data.sphere(6, 8, 10)
    al.solve_margin(warm_up, [0] * 6, norm=norm)
    laps, gaps, names = [], [], set()
    for i in range(count):
        one = tokens[i]
        start = time.perf_counter()
        solution = al.solve_margin(one, selected[i], norm=norm, throw=False)
        laps.append(time.perf_counter() - start)
        gaps.append(solution.gap)
        names.add(solution.status.name.lower())
    data_mb = tokens[0].x.nbytes * count / 2**20
    return {"seconds": laps, "gap": max(gaps), "status": ", ".join(sorted(names)), "data_mb": data_mb}


def _on_disk(n: int, T: int, d: int) -> tuple[list[Any], Any]:
    """Random unit tokens that come from a file of 32-bit numbers, and a random selection."""
    import tempfile

    import numpy as np

    import attnlab as al

    rng = np.random.default_rng(0)
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        x = np.lib.format.open_memmap(file.name, mode="w+", dtype=np.float32, shape=(n, T, d))
        for sequence in x:
            vectors = rng.standard_normal((T, d))
            sequence[:] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        x.flush()
        queries = rng.standard_normal((n, d))
        tokens = al.Tokens(x=np.load(file.name, mmap_mode="r"), z=queries, y=np.ones(n))
    return [tokens], rng.integers(T, size=(1, n))


def time_batch(norm: Any, n: int, T: int, d: int, count: int) -> dict[str, Any]:
    """Seconds of all problems together."""
    import attnlab as al

    tokens, selected = _problems(n, T, d, count)
    al.solve_margins(tokens[:2], selected[:2], norm=norm)  # warm up
    start = time.perf_counter()
    found = al.solve_margins(tokens, selected, norm=norm)
    seconds = time.perf_counter() - start
    return {"seconds": [seconds], "gap": float(found.gap[found.feasible].max()), "feasible": int(found.feasible.sum())}


def time_peer(peer: str, norm: Any, n: int, T: int, d: int, count: int) -> dict[str, Any]:
    """Seconds of each problem, from arrays to W."""
    import numpy as np
    from margin_peers import PEERS

    import attnlab as al

    tokens, selected = _problems(n, T, d, count)
    solve = PEERS[peer]
    warm_up = al.data.sphere(6, 8, 10)
    solve(warm_up.x, warm_up.z, np.zeros(6, dtype=int))
    laps, excess, ranks, best_ranks = [], [], [], []
    for i in range(count):
        x, z, chosen = tokens.x[i], tokens.z[i], selected[i]
        start = time.perf_counter()
        W = solve(x, z, chosen)
        laps.append(time.perf_counter() - start)
        best = al.solve_margin(tokens[i], chosen, norm=norm)
        length = np.linalg.norm(W, {"frobenius": "fro", "nuclear": "nuc"}[norm])
        least = al.svm.margin_rows(tokens[i], chosen).values(W).min()
        excess.append(float(length / least) * best.margin * (1 + best.gap) - 1)
        ranks.append(int(np.linalg.matrix_rank(W, rtol=1e-6)))
        best_ranks.append(best.rank or 0)
    return {"seconds": laps, "excess": max(excess), "rank": mean(ranks), "best_rank": mean(best_ranks)}


def _main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] == "--quick":
        result = run(quick=len(sys.argv) > 1, on_part=lambda i, n, what: print(f"{i}/{n} {what}", file=sys.stderr))
        for title, rows in tables(result).items():
            print(f"\n{title}")
            for row in rows:
                print("  " + "  ".join(f"{k}={v}" for k, v in row.items()))
        return
    case = json.loads(sys.argv[1])
    side = case.pop("side")
    case.pop("threads", None)
    ours = {"attnlab": time_attnlab, "batch": time_batch}
    result = ours[side](**case) if side in ours else time_peer(side, **case)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**result, "peak_mb": peak}))


if __name__ == "__main__":
    _main()
