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
from attnlab.svm.rows import Rows, check_scale, check_selections, check_tolerance, margin_rows
from attnlab.svm.solution import MarginSolution, MarginStatus

# Numbers in the Gram matrices that are worked on at a time.
GRAMS = 50_000


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
    chosen = check_selections(tokens, selected)
    problems = _Problems(tokens, chosen)
    multipliers, facts = problems.solve() if problems.alike else _nothing(tokens.trials, tokens.d)
    hard = np.flatnonzero(~(facts["gap"] <= tolerance))
    alone = {i: solve_rows(problems[i], chosen[i], tokens.d, tolerance) for i in hard.tolist()}
    return MarginSolutions(problems, chosen, multipliers, facts, alone, tolerance)


def _nothing(trials: int, d: int) -> tuple[Array, dict[str, Array]]:
    """No multipliers and no certificates: every trial is still to be solved."""
    unknown = {k: np.full(trials, np.inf) for k in ("margin", "gap", "violation")}
    return np.zeros((trials, 1)), {"W": np.full((trials, d, d), np.nan), **unknown}


class _Problems(Sequence[Rows]):
    """The constraints of all trials: stacked arrays if every query sees every token, so that trials are alike."""

    def __init__(self, tokens: Tokens, chosen: NDArray[np.intp]) -> None:
        self.tokens, self.chosen = tokens, chosen
        self.alike = tokens.mask is None and tokens.T > 1
        if not self.alike:
            return
        trials, n, T, d = tokens.x.shape
        flat = chosen.reshape(trials, -1)  # (R, M)
        self.query = np.repeat(np.arange(flat.shape[1]), T - 1)
        sequence = self.query // (flat.shape[1] // n)
        # The other tokens of each query: t, or t + 1 from the selected one on.
        other = np.arange(T - 1) + (np.arange(T - 1) >= flat[..., None])
        first = (np.arange(trials)[:, None] * n + sequence) * T
        x = tokens.x.reshape(-1, d)
        self.p = x.take(first + flat[:, self.query], axis=0)  # (R, N, d)
        self.p -= x.take(first + other.reshape(trials, -1), axis=0)
        self.q = tokens.z.reshape(trials, -1, d)
        lengths = [np.sqrt(np.einsum("rjd,rjd->rj", a, a)) for a in (self.p, self.q)]
        self.p_lengths, self.q_lengths = lengths
        self.norms = lengths[0] * lengths[1][:, self.query]
        check_scale(self.norms)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Rows:  # type: ignore[override]
        return margin_rows(self.tokens[int(index)], self.chosen[index])

    def solve(self) -> tuple[Array, dict[str, Array]]:
        """Multipliers and certificates of all trials; an infinite gap where a trial did not settle.

        Some at a time, so that the Gram matrices stay in the processor's cache and memory does not grow with trials.
        """
        trials, N = self.norms.shape
        step = max(1, GRAMS // N**2)
        multipliers, facts = np.zeros((trials, N)), _nothing(trials, self.p.shape[-1])[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            for start in range(0, trials, step):
                some = slice(start, start + step)
                multipliers[some], settled = self._multipliers(some)
                for name, value in self._certificates(some, multipliers[some]).items():
                    facts[name][some] = value
                facts["gap"][some][~settled] = np.inf
        return multipliers, facts

    def _multipliers(self, some: slice) -> tuple[Array, NDArray[np.bool_]]:
        """The active-set method on some trials side by side; multipliers, and which of them are settled."""
        norms = self.norms[some]
        trials, N = norms.shape
        unit = self.p[some] / self.p_lengths[some, :, None]
        q = self.q[some] / self.q_lengths[some, :, None]
        bound = 1.0 / norms
        bound /= bound.max(-1, keepdims=True)
        gram = np.matmul(q, q.transpose(0, 2, 1)).take(self.query, axis=1).take(self.query, axis=2)
        gram *= np.matmul(unit, unit.transpose(0, 2, 1))
        found, settled = np.zeros((trials, N)), np.zeros(trials, dtype=bool)
        guess = np.ones((trials, N), dtype=bool)
        left = np.flatnonzero(norms.min(-1) > 0)
        diagonal = np.arange(N)
        for _ in range(ROUNDS):
            if not left.size:
                break
            inside, G, b = guess[left], gram[left], bound[left]
            # Rows outside the guess become rows of the identity, so that all systems have one size.
            system = G * (inside[:, :, None] & inside[:, None, :])
            system[:, diagonal, diagonal] = 1.0
            try:
                solved = np.linalg.solve(system, (b * inside)[..., None])
            except np.linalg.LinAlgError:
                break
            values, solved = np.matmul(G, solved)[..., 0], solved[..., 0]
            better = np.where(inside, solved > 0, values < (1.0 - MET) * b)
            same = (better == inside).all(-1)
            found[left[same]], settled[left[same]] = solved[same], True
            guess[left] = better
            left = left[~same & better.any(-1)]
        return np.where(settled[:, None], found / norms, 0.0), settled

    def _certificates(self, some: slice, multipliers: Array) -> dict[str, Array]:
        """W scaled to least value 1, and the certificate, of some trials; see `frobenius.certify`."""
        p, q = self.p[some], self.q[some]
        trials, N, d = p.shape
        by_query = (trials, q.shape[1], -1, d)
        lifted = np.maximum(multipliers, 0.0)
        gathered = np.matmul(lifted.reshape(trials, q.shape[1], 1, -1), p.reshape(by_query))[:, :, 0]
        raw = np.matmul(gathered.transpose(0, 2, 1), q)

        def least_value(W: Array) -> Array:
            seen = np.matmul(q, W.transpose(0, 2, 1))  # W q, (R, M, d)
            return np.matmul(p.reshape(by_query), seen[..., None]).reshape(trials, N).min(-1)

        least, total = least_value(raw), lifted.sum(-1)
        length = np.sqrt(np.einsum("rde,rde->r", raw, raw))
        W = raw / least[:, None, None]
        gap = np.where((least > 0) & (total > 0), np.maximum(length**2 / (least * total) - 1.0, 0.0), np.inf)
        W[np.isinf(gap)] = np.nan
        return {"W": W, "margin": least / length, "gap": gap, "violation": np.maximum(0.0, 1.0 - least_value(W))}
