"""Hundreds of max-margin problems at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.svm.dual import MET, ROUNDS
from attnlab.svm.frobenius import TOLERANCE, certify, solve_rows
from attnlab.svm.rows import Rows, check_scale, check_selected, check_tolerance, margin_rows
from attnlab.svm.solution import MarginSolution, MarginStatus


class MarginSolutions(Sequence[MarginSolution]):
    """The solutions of a batch, in order; none is dropped. Index it for one solution with all its evidence.

    Attributes:
        W: (trials, d, d); NaN where infeasible.
        margin, gap, violation: (trials,).
        feasible: (trials,).
    """

    def __init__(self, rows: Sequence[Rows], chosen: NDArray[np.intp], multipliers: Array, facts: dict[str, Array],
                 alone: dict[int, MarginSolution], tolerance: float) -> None:  # fmt: skip
        self._rows, self._chosen, self._multipliers = rows, chosen, multipliers
        self._alone, self._tolerance = alone, tolerance
        for i, solution in alone.items():
            facts["W"][i] = solution.W
            for name in ("margin", "gap", "violation"):
                facts[name][i] = getattr(solution, name)
        self.W, self.margin, self.gap, self.violation = (facts[k] for k in ("W", "margin", "gap", "violation"))
        self.feasible = np.isfinite(self.gap)

    def __len__(self) -> int:
        return len(self.W)

    @overload
    def __getitem__(self, index: int) -> MarginSolution: ...
    @overload
    def __getitem__(self, index: slice) -> list[MarginSolution]: ...
    def __getitem__(self, index: int | slice) -> MarginSolution | list[MarginSolution]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        if i not in self._alone:
            found = certify(self._rows[i], self._multipliers[i], self._chosen[i], self.W.shape[-1], self._tolerance)
            assert found is not None
            self._alone[i] = found
        return self._alone[i]

    @property
    def status(self) -> list[MarginStatus]:
        """Of each solution."""
        return [self._alone[i].status if i in self._alone else MarginStatus.OPTIMAL for i in range(len(self))]

    def __repr__(self) -> str:
        worst = f"{self.gap[self.feasible].max():.1e}" if self.feasible.any() else "none"
        return f"MarginSolutions({len(self)}, feasible={int(self.feasible.sum())}, largest gap={worst})"


def solve_margins(tokens: Tokens, selected: ArrayLike, *, tolerance: float = TOLERANCE) -> MarginSolutions:
    """`solve_margin(..., throw=False)` for every trial of a batch, solved together.

    Args:
        tokens: a batch (x of shape (trials, n, T, d)).
        selected: a token per query, (trials, n) or (trials, n, K); for instance `run.selected`.
        tolerance: relative duality gap to reach.

    Returns:
        `MarginSolutions`: infeasible trials are marked, with their certificates, and never dropped.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=5, T=5, d=10, seed=0, trials=4)
    >>> al.solve_margins(tokens, al.optimal_tokens(tokens)).feasible.all()
    np.True_
    """
    if not isinstance(tokens, Tokens) or tokens.trials is None:
        raise InputError(message("`tokens` has no trial axis; wanted a batch.", "al.solve_margin solves one data set"))
    check_tolerance(tolerance)
    chosen = np.asarray(selected)
    if chosen.shape != tokens.y.shape:
        raise InputError(message(f"`selected` has shape {chosen.shape}; wanted {tokens.y.shape}."))
    trials, d = tokens.trials, tokens.d
    problems = _Problems(tokens, chosen)
    multipliers, solved = problems.solve() if problems.alike else (np.zeros((trials, 1)), np.zeros(trials, dtype=bool))
    facts = problems.certificates(multipliers) if problems.alike else _nothing(trials, d)
    hard = np.flatnonzero(~(solved & (facts["gap"] <= tolerance)))
    alone = {i: solve_rows(problems[i], problems.chosen[i], d, tolerance) for i in hard.tolist()}
    return MarginSolutions(problems, problems.chosen, multipliers, facts, alone, tolerance)


def _nothing(trials: int, d: int) -> dict[str, Array]:
    return {
        "W": np.full((trials, d, d), np.nan),
        **{k: np.full(trials, np.inf) for k in ("margin", "gap", "violation")},
    }


class _Problems(Sequence[Rows]):
    """The constraints of all trials: stacked arrays if every trial has the same pattern of visible tokens."""

    def __init__(self, tokens: Tokens, chosen: NDArray[np.intp]) -> None:
        self.tokens = tokens
        check = tokens.visible if tokens.mask is not None else None
        first = check_selected(tokens[0], chosen[0])
        if chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= tokens.T:
            raise InputError(message(f"`selected` must hold whole numbers from 0 to {tokens.T - 1}."))
        self.chosen = chosen.astype(np.intp)
        self.alike = check is None
        if check is not None and not np.take_along_axis(check, self.chosen[..., None], axis=-1).all():
            raise InputError(message("`selected` names tokens that the mask hides from their query."))
        if not self.alike:
            return
        trials, n, T, d = tokens.x.shape
        flat = self.chosen.reshape(trials, -1)  # (R, M)
        self.query = np.repeat(np.arange(flat.shape[1]), T - 1)
        sequence = self.query // (flat.shape[1] // n)
        # The other tokens of each query: t, or t + 1 from the selected one on.
        other = np.arange(T - 1) + (np.arange(T - 1) >= flat[..., None])
        token = other.reshape(trials, -1)
        pick = np.arange(trials)[:, None]
        self.p = tokens.x[pick, sequence, flat[:, self.query]] - tokens.x[pick, sequence, token]  # (R, N, d)
        self.q = tokens.z.reshape(trials, -1, d)
        self.norms = np.linalg.norm(self.p, axis=-1) * np.linalg.norm(self.q, axis=-1)[:, self.query]
        check_scale(self.norms)
        self.alike = first.size > 0 and T > 1

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Rows:  # type: ignore[override]
        return margin_rows(self.tokens[int(index)], self.chosen[index])

    def solve(self) -> tuple[Array, NDArray[np.bool_]]:
        """The active-set method on all trials side by side; multipliers, and which of them are settled."""
        trials, N = self.norms.shape
        multipliers, solved = np.zeros((trials, N)), np.zeros(trials, dtype=bool)
        possible = self.norms.min(-1) > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = self.p / np.linalg.norm(self.p, axis=-1, keepdims=True)
            q = self.q / np.linalg.norm(self.q, axis=-1, keepdims=True)
            bound = 1.0 / self.norms
            bound = bound / bound.max(-1, keepdims=True)
        gram = np.matmul(unit, unit.transpose(0, 2, 1))
        gram *= np.matmul(q, q.transpose(0, 2, 1))[:, self.query[:, None], self.query]
        guess = np.ones((trials, N), dtype=bool)
        left = np.flatnonzero(possible)
        for _ in range(ROUNDS):
            if not left.size:
                break
            inside, G, b = guess[left], gram[left], bound[left]
            # Rows outside the guess become rows of the identity, so that all systems have one size.
            system = np.where(inside[:, :, None] & inside[:, None, :], G, 0.0)
            system[:, np.arange(N), np.arange(N)] = 1.0
            try:
                found = np.linalg.solve(system, np.where(inside, b, 0.0)[..., None])[..., 0]
            except np.linalg.LinAlgError:
                break
            slack = np.matmul(G, found[..., None])[..., 0] - b
            better = np.where(inside, found > 0, slack < -MET * b)
            same = (better == inside).all(-1)
            multipliers[left[same]], solved[left[same]] = found[same], True
            guess[left] = better
            left = left[~same & better.any(-1)]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(possible[:, None], multipliers / self.norms, 0.0), solved

    def certificates(self, multipliers: Array) -> dict[str, Array]:
        """W scaled to least value 1, and the certificate, of every trial; see `frobenius.certify`."""
        lifted = np.maximum(multipliers, 0.0)
        raw = np.matmul((lifted[..., None] * self.p).transpose(0, 2, 1), self.q[:, self.query])
        values = self._values(raw)
        least, total = values.min(-1), lifted.sum(-1)
        length = np.linalg.norm(raw, axis=(-2, -1))
        with np.errstate(divide="ignore", invalid="ignore"):
            W = raw / least[:, None, None]
            gap = np.where((least > 0) & (total > 0), np.maximum(length**2 / (least * total) - 1.0, 0.0), np.inf)
            margin = least / length
        W[np.isinf(gap)] = np.nan
        with np.errstate(invalid="ignore"):
            violation = np.maximum(0.0, 1.0 - self._values(W).min(-1))
        return {"W": W, "margin": margin, "gap": gap, "violation": violation}

    def _values(self, W: Array) -> Array:
        seen = np.matmul(self.q, W.transpose(0, 2, 1))  # W q, (R, M, d)
        return np.einsum("rjd,rjd->rj", self.p, seen[:, self.query])
