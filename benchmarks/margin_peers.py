"""Max-margin problems as an expert would solve them without attnlab: each peer from plain arrays to W.

| peer | problem |
|---|---|
| `daqp_primal` | the dense quadratic program over the d^2 entries of W, by DAQP |
| `daqp_dual` | the one over a multiplier per constraint, by DAQP |
| `clarabel`, `scs` | the nuclear norm as a semidefinite program in coordinates of the spans, handed over as cones |
| `cvxpy` | either norm as one would write it in cvxpy, with its default solver |
"""

from __future__ import annotations

from typing import Any

import numpy as np

INFINITE = 1e30
# SCS stops at residuals of 1e-4 by itself, which leaves neither margin nor rank.
SCS_ACCURACY = 1e-9


def differences(x: Any, z: Any, chosen: Any) -> tuple[Any, Any]:
    """Token differences and their queries, both (N, d)."""
    n, T, _ = x.shape
    others = np.arange(T) != chosen[:, None]
    p = (x[np.arange(n), chosen][:, None] - x)[others]
    return p, np.repeat(z, T - 1, axis=0)


def daqp_primal(x: Any, z: Any, chosen: Any) -> Any:
    import daqp

    p, q = differences(x, z, chosen)
    N, d = p.shape
    rows = (p[:, :, None] * q[:, None, :]).reshape(N, d * d)
    kinds = np.zeros(N, dtype=np.int32)
    W = daqp.solve(np.eye(d * d), np.zeros(d * d), rows, np.full(N, INFINITE), np.ones(N), kinds)[0]
    return np.asarray(W).reshape(d, d)


def daqp_dual(x: Any, z: Any, chosen: Any) -> Any:
    import daqp

    p, q = differences(x, z, chosen)
    N = len(p)
    gram = (p @ p.T) * (q @ q.T)
    none = np.zeros((0, N))
    kinds = np.zeros(N, dtype=np.int32)
    multipliers = daqp.solve(gram, -np.ones(N), none, np.full(N, INFINITE), np.zeros(N), kinds)[0]
    return (np.asarray(multipliers)[:, None] * p).T @ q


def clarabel(x: Any, z: Any, chosen: Any) -> Any:
    import clarabel as solver
    from scipy import sparse

    cones = _Cones(x, z, chosen, lower=False)
    settings = solver.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    size = len(cones.cost)
    kinds = [solver.NonnegativeConeT(cones.count), solver.PSDTriangleConeT(cones.order)]
    no_squares = sparse.csc_matrix((size, size))
    found = solver.DefaultSolver(no_squares, cones.cost, cones.matrix, cones.bound, kinds, settings).solve()
    return cones.W(np.array(found.x))


def scs(x: Any, z: Any, chosen: Any) -> Any:
    import scs as solver

    cones = _Cones(x, z, chosen, lower=True)
    data = {"A": cones.matrix, "b": cones.bound, "c": cones.cost}
    kinds = {"l": cones.count, "s": [cones.order]}
    program = solver.SCS(data, kinds, verbose=False, eps_abs=SCS_ACCURACY, eps_rel=SCS_ACCURACY, max_iters=100_000)
    return cones.W(program.solve()["x"])


class _Cones:
    """min tr X / 2 over X = [[P, W], [W^T, R]] >= 0 with f^T W z >= 1, in the triangle that the solver wants."""

    def __init__(self, x: Any, z: Any, chosen: Any, lower: bool) -> None:
        from scipy import sparse

        p, q = differences(x, z, chosen)
        self.left, self.right = np.linalg.qr(p.T)[0], np.linalg.qr(z.T)[0]
        f, g = p @ self.left, q @ self.right
        self.a, self.order = f.shape[1], f.shape[1] + g.shape[1]
        # Column by column of the lower triangle, or of the upper one.
        self.i, self.j = np.triu_indices(self.order) if lower else np.tril_indices(self.order)[::-1]
        on_diagonal = self.i == self.j
        self.scale = np.where(on_diagonal, 1.0, np.sqrt(2.0))
        self.cost = np.where(on_diagonal, 0.5, 0.0)
        self.count, size = len(f), len(self.cost)
        mixed = (self.i < self.a) & (self.j >= self.a)
        rows = np.zeros((self.count, size))
        rows[:, mixed] = f[:, self.i[mixed]] * g[:, self.j[mixed] - self.a] / np.sqrt(2.0)
        self.matrix = sparse.vstack([sparse.csc_matrix(-rows), -sparse.identity(size)], format="csc")
        self.bound = np.concatenate([-np.ones(self.count), np.zeros(size)])

    def W(self, triangle: Any) -> Any:
        X = np.zeros((self.order, self.order))
        X[self.i, self.j] = triangle / self.scale
        return self.left @ X[: self.a, self.a :] @ self.right.T


def cvxpy_frobenius(x: Any, z: Any, chosen: Any) -> Any:
    import cvxpy as cp

    return _cvxpy(lambda W: cp.norm(W, "fro"), x, z, chosen)


def cvxpy_nuclear(x: Any, z: Any, chosen: Any) -> Any:
    import cvxpy as cp

    return _cvxpy(cp.normNuc, x, z, chosen)


def _cvxpy(size: Any, x: Any, z: Any, chosen: Any) -> Any:
    import cvxpy as cp

    p, q = differences(x, z, chosen)
    W = cp.Variable((p.shape[1], q.shape[1]))
    cp.Problem(cp.Minimize(size(W)), [cp.sum(cp.multiply(p @ W, q), axis=1) >= 1]).solve()
    return W.value


PEERS = {
    "daqp primal": daqp_primal,
    "daqp dual": daqp_dual,
    "clarabel": clarabel,
    "scs": scs,
    "cvxpy frobenius": cvxpy_frobenius,
    "cvxpy nuclear": cvxpy_nuclear,
}
