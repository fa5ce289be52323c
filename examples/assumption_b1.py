"""When is every other token a support vector (Assumption B.1), against the posited d >= (T + n) log(T + n)?

attnlab study run examples/assumption_b1.py
"""

import math

import numpy as np

import attnlab as al

SIZES = [(2, 4), (4, 4), (8, 4), (4, 8), (8, 8), (4, 16), (16, 8)]
RATIOS = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0]


def enough(n, T):
    return (T + n) * math.log(T + n)


def block(point, seeds):
    tokens = al.data.sphere(n=point["n"], T=point["T"], d=point["d"], seed=seeds)
    best = al.optimal_tokens(tokens)
    solved = al.solve_margins(tokens, best)
    chosen = np.take_along_axis(tokens.x, best[..., None, None], axis=-2)
    values = np.einsum("rntd,rde,rne->rnt", chosen - tokens.x, solved.W, tokens.z)
    others = np.arange(point["T"]) != best[..., None]
    largest = np.where(others, values, 1.0).max((-2, -1))  # NaN where no W separates
    return {"tight": largest <= 1 + 1e-6, "largest": largest, "feasible": solved.feasible}


def point(n, T, ratio):
    return {"n": n, "T": T, "d": round(ratio * enough(n, T)), "ratio": ratio}


grid = [point(n, T, ratio) for n, T in SIZES for ratio in RATIOS]
study = al.Study(block, grid, trials=200, name="assumption B.1")


def thresholds(summary):
    """The d at which half of the sets have it, by linear interpolation between the points around it; NaN beyond."""
    found = []
    for (n, T), rows in summary.groupby(["n", "T"], sort=False):
        half = np.interp(0.5, rows["value"], rows["d"], left=np.nan, right=np.nan)
        found.append({"n": n, "T": T, "half at d": half, "(T+n) log(T+n)": enough(n, T), "ratio": half / enough(n, T)})
    return found


if __name__ == "__main__":
    print(study.run(jobs=-1))
    for row in thresholds(study.summary(by=["n", "T", "d"], of="tight")):
        print(row)
