"""When is every other token a support vector (Assumption B.1), against the posited d >= (T + n) log(T + n)?

attnlab study run examples/assumption_b1.py
"""

import math

import numpy as np

import attnlab as al


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


grid = {"n": [2, 4, 8], "T": [2, 4, 8], "d": [4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]}
study = al.Study(block, grid, trials=200, name="assumption B.1")


def half(d, share):
    """Where a share that rises with d passes 1/2, between two neighbours on a logarithmic axis; NaN if it does not."""
    after = int(np.argmax(share >= 0.5))
    if share[after] < 0.5 or after == 0:
        return math.nan
    part = (0.5 - share[after - 1]) / (share[after] - share[after - 1])
    return d[after - 1] * (d[after] / d[after - 1]) ** part


def thresholds(summary):
    """For each n and T: half of the sets have B.1 from this d on, beside (T + n) log(T + n)."""
    for (n, T), rows in summary.groupby(["n", "T"], sort=False):
        found = half(rows["d"].to_numpy(), rows["value"].to_numpy())
        print(
            f"n = {n}  T = {T}  half at d = {found:5.1f}  posited {enough(n, T):5.1f}  ratio {found / enough(n, T):.2f}"
        )


if __name__ == "__main__":
    print(study.run(jobs=-1))
    thresholds(study.summary(by=["n", "T", "d"], of="tight"))
    study.plot("d", "tight", "T").savefig("assumption_b1.png")
