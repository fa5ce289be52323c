"""Is `settled` right? Runs of four families (one of them in two sizes), each continued by gradient flow to t = 1e20.

A settled run that ends at other tokens would be an error of the proof; how many runs are not settled, and say so, tells
what it costs to be sure.

    python benchmarks/settled.py            # 1,000 runs
    python benchmarks/settled.py 20 KQ      # 20 of each family and rule, trained as K and Q
    python benchmarks/settled.py 20 KQ 2    # of other data: the seed is 1 otherwise
"""

from __future__ import annotations

import json
import sys
from typing import Any, Literal, cast

import attnlab as al

FAMILIES = {
    "sphere 8,6,8": lambda trials, seed: al.data.sphere(n=8, T=6, d=8, seed=seed, trials=trials),
    "sphere 3,4,3": lambda trials, seed: al.data.sphere(n=3, T=4, d=3, seed=seed, trials=trials),
    "gaussian_signal": lambda trials, seed: al.data.gaussian_signal(n=4, T=5, d=6, seed=seed, trials=trials),
    "two_clusters": lambda trials, seed: al.data.two_clusters(seed=seed, trials=trials),
    "antipodal_signal": lambda trials, seed: al.data.antipodal_signal(
        n=4, T=5, d=6, noise=0.5, seed=seed, trials=trials
    ),
}
RULES = {"gd 5000": (al.gd(1.0), 5000), "ngd 200": (al.ngd(0.1), 200)}


def measured(trials: int, parameterization: Literal["W", "KQ"], seed: int) -> list[dict[str, Any]]:
    """A row for each family and rule."""
    rows = []
    for family, make in FAMILIES.items():
        tokens = make(trials, seed)
        for name, (rule, steps) in RULES.items():
            run = al.descend(tokens, rule, steps=steps, record=None, parameterization=parameterization)
            far = al.flow(tokens, time=1e20, record=None, init=run.weights, parameterization=parameterization)
            assert run.settled is not None
            assert far.settled is not None
            elsewhere = (far.selected != run.selected).any(-1)
            row = {
                "family": family,
                "rule": name,
                "runs": trials,
                "settled": int(run.settled.sum()),
                "settled and elsewhere at 1e20": int((run.settled & elsewhere).sum()),
                "not settled": int((~run.settled).sum()),
                "not settled and elsewhere at 1e20": int((~run.settled & elsewhere).sum()),
                "settled at 1e20": int(far.settled.sum()),
                "not followed to 1e20": int((~far.success).sum()),
            }
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    trained = cast(Literal["W", "KQ"], sys.argv[2] if len(sys.argv) > 2 else "W")
    measured(count, trained, int(sys.argv[3]) if len(sys.argv) > 3 else 1)
