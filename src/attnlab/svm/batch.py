"""Hundreds of max-margin problems at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from attnlab.checks import instance
from attnlab.data.frames import data_frame
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.svm.certificate import certify
from attnlab.svm.frobenius_batch import frobenius_together
from attnlab.svm.margin import NormLike, solver
from attnlab.svm.nuclear import certify_nuclear
from attnlab.svm.nuclear_batch import nuclear_together
from attnlab.svm.rows import Rows, check_selections, check_tolerance, selected_rows
from attnlab.svm.solution import MarginSolution, MarginStatus
from attnlab.svm.stacked import Together, stacked


class MarginSolutions(Sequence[MarginSolution]):
    """The solutions of a batch, in order; none is dropped. Index it for one solution with all its evidence.

    Attributes:
        W: (trials, d, d); NaN where infeasible.
        margin, gap, violation: (trials,).
        feasible: (trials,).
    """

    def __init__(
        self, together: Together, alone: dict[int, MarginSolution], evidence: Callable[[int], MarginSolution | None]
    ) -> None:
        self.W, self.margin, self.gap = together.W, together.margin, together.gap
        self.violation = together.violation
        self._known, self._evidence = alone, evidence
        self._alone = frozenset(alone)
        for i, solution in alone.items():
            self.W[i], self.margin[i] = solution.W, solution.margin
            self.gap[i], self.violation[i] = solution.gap, solution.violation
        self.feasible = np.isfinite(self.gap)
        for i, solution in alone.items():
            self.feasible[i] = solution.feasible

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
        if i not in self._known:
            found = self._evidence(i)
            assert found is not None
            self._known[i] = found
        return self._known[i]

    def frame(self) -> Any:
        """A pandas DataFrame with one row for each solution: margin, gap, violation, feasible, status."""
        columns = {
            "trial": np.arange(len(self)),
            "margin": self.margin,
            "gap": self.gap,
            "violation": self.violation,
            "feasible": self.feasible,
            "status": [status.name.lower() for status in self.status],
        }
        return data_frame(columns, "`margin`, `gap` and `status` have the same")

    @property
    def status(self) -> list[MarginStatus]:
        """Of each solution."""
        return [self._known[i].status if i in self._alone else MarginStatus.OPTIMAL for i in range(len(self))]

    @property
    def counts(self) -> dict[MarginStatus, int]:
        """How many solutions have each status; those that occur."""
        found = Counter(self.status)
        return {status: found[status] for status in MarginStatus if found[status]}

    @property
    def largest_gap(self) -> float | None:
        """Of the feasible ones; None if there are none."""
        return float(self.gap[self.feasible].max()) if self.feasible.any() else None

    def __repr__(self) -> str:
        told = ", ".join(f"{count} {status.name.lower()}" for status, count in self.counts.items())
        worst = "none" if self.largest_gap is None else f"{self.largest_gap:.1e}"
        return f"MarginSolutions({len(self)}: {told}; largest gap={worst})"

    def summary(self) -> dict[str, Any]:
        """How many have each status, and the largest gap, as JSON; null where there is none."""
        counts, gap = self.counts, self.largest_gap
        return {
            "trials": len(self),
            **{status.name.lower(): counts.get(status, 0) for status in MarginStatus},
            "largest_gap": gap if gap is not None and np.isfinite(gap) else None,
        }


def solve_margins(
    tokens: Tokens, selected: ArrayLike, *, norm: NormLike = "frobenius", tolerance: float | None = None
) -> MarginSolutions:
    """`solve_margin(..., throw=False)` for every trial of a batch, solved together.

    Args:
        tokens: a batch (x of shape (trials, n, T, d)).
        selected: a token per query, (trials, n) or (trials, n, K); for instance `run.selected`.
        norm, tolerance: as for `solve_margin`.

    Returns:
        `MarginSolutions`: infeasible trials are marked, with their certificates, and never dropped.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=5, T=5, d=10, seed=0, trials=4)
    >>> al.solve_margins(tokens, al.optimal_tokens(tokens)).feasible.all()
    np.True_
    """
    instance("tokens", tokens, Tokens, "al.Tokens")
    if tokens.trials is None:
        raise InputError(message("`tokens` has no trial axis; wanted a batch.", "al.solve_margin solves one data set"))
    solve, usual = solver(norm)
    tolerance = usual if tolerance is None else tolerance
    tolerance = check_tolerance(tolerance)
    chosen = check_selections(tokens, selected)
    d = tokens.d

    def rows(i: int) -> Rows:
        return selected_rows(tokens[i], chosen[i])

    # Trials whose queries see all tokens are alike, so that they stack; the others are solved one by one.
    alike = tokens.mask is None and tokens.T > 1 and norm in ("frobenius", "nuclear")
    if not alike:
        together = Together.empty(tokens.trials, 0, d)
    elif norm == "frobenius":
        together = frobenius_together(stacked(tokens, chosen))
    else:
        together = nuclear_together(stacked(tokens, chosen), tolerance)
    # Computed again for one trial, the gap may come out larger, by rounding: what might then miss is solved alone.
    hard = np.flatnonzero(~(together.gap + together.rounding <= tolerance))
    alone = {}
    for i in hard.tolist():
        try:
            alone[i] = solve(rows(i), chosen[i], d, tolerance)
        except InputError as error:
            raise InputError(f"Trial {i}: {error}") from error

    def evidence(i: int) -> MarginSolution | None:
        if norm == "frobenius":
            return certify(rows(i), together.multipliers[i], chosen[i], d, tolerance)
        return certify_nuclear(
            rows(i), together.W[i], together.multipliers[i], int(together.rank[i]), chosen[i], d, tolerance
        )

    return MarginSolutions(together, alone, evidence)
