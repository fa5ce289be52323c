"""Cones around max-margin directions: where descent stays once it is inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import real_array
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.svm import MarginSolution, solve_margin
from attnlab.theory.geometry import HeadLike, Leads, belongs, checked, is_locally_optimal


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LocalCone:
    """The set `{W : corr(W, direction) >= 1 - mu, |W| >= R}` that gradient descent does not leave (Theorem 7).

    Attributes:
        direction: the max-margin W of the selection, (d, d).
        delta: half the least amount by which a non-support token lies beyond the margin; inf if there is none.
        A: largest |x_t| |z| times |direction|.
        mu: `(min(1/2, delta) / A)^2 / 8`.
        spread: Gamma, the largest difference of two scores of one query.
        gap: least lead in score of a selected token over its support tokens.
        R: `max(2, 1/delta) |direction| log(64 T spread A / gap)`.
        empty: queries without support tokens, which `delta` and `gap` pass over; laid out as the labels.
    """

    direction: Array
    delta: float
    A: float
    mu: float
    spread: float
    gap: float
    R: float
    empty: NDArray[np.bool_]

    def contains(self, W: ArrayLike, *, R: float | None = None) -> bool:
        """Is W in the cone (beyond radius `R`, or its own)?"""
        return in_cone(W, self.direction, mu=self.mu, R=self.R if R is None else R)

    @property
    def start(self) -> Array:
        """The point of the cone nearest to 0 on its axis, `R direction / |direction|`."""
        return self.direction * (self.R / float(np.linalg.norm(self.direction)))

    def __repr__(self) -> str:
        flag = f", {int(self.empty.sum())} queries without support" if self.empty.any() else ""
        return f"LocalCone(mu={self.mu:.3g}, R={self.R:.4g}, delta={self.delta:.3g}, gap={self.gap:.3g}{flag})"


def in_cone(W: ArrayLike, direction: ArrayLike, *, mu: float, R: float = 0.0) -> bool:
    """Is W in `C_{mu,R} = {corr(W, direction) >= 1 - mu, |W|_F >= R}`? The zero matrix never is.

    Lemma 13 of *Transformers as Support Vector Machines*.

    >>> in_cone([[2.0, 0.1], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], mu=0.01, R=1.0)
    True
    """
    from attnlab.train import misalignment

    if not mu >= 0:
        raise InputError(message(f"`mu` is {mu!r}; wanted a number of at least 0."))
    point, axis = _finite("W", W), _finite("direction", direction)
    if not axis.any():
        raise InputError(message("`direction` is the zero matrix; a cone needs an axis."))
    if not point.any():
        return False
    return bool(misalignment(point, axis) <= mu and np.linalg.norm(point) >= R)


def local_cone(
    tokens: Tokens, selected: ArrayLike, *, solution: MarginSolution | None = None, head: HeadLike = None
) -> LocalCone:
    """The cone of Theorem 7 around the max-margin direction of a locally optimal selection, with all its constants.

    `delta = min over queries, support t, non-support s of (x_t - x_s)^T W z / 2`, and the rest as in `LocalCone`.
    Queries without a support token are passed over in `delta` and `gap`, and flagged in `empty`.

    Args:
        tokens: one data set.
        selected: a locally optimal selection; another one is refused.
        solution: its max-margin solution, if there is one already.
        head: as in `al.scores`.

    Lemma 13 and Theorem 7 of *Transformers as Support Vector Machines*.

    >>> import attnlab as al
    >>> local_cone(al.data.two_tokens(), [0])
    LocalCone(mu=0.0312, R=9.704, delta=inf, gap=1)
    """
    chosen = checked(tokens, selected)
    verdict = is_locally_optimal(tokens, chosen, solution=solution, head=head)
    if not verdict:
        raise InputError(
            message(f"`selected` is not locally optimal: {verdict.reason}.", "al.theory.locally_optimal_selections")
        )
    found, support = verdict.solution, verdict.solution.support
    assert support is not None
    assert verdict.lead is not None
    if not support.any():
        raise InputError(message("`tokens` give every query a single token; there is no direction to surround."))
    size = float(np.linalg.norm(found.W))
    beyond = np.isfinite(found.values) & ~support & support.any(-1, keepdims=True)
    tight = np.where(support, found.values, -np.inf).max(-1, keepdims=True)
    room = np.where(beyond, found.values - tight, np.inf)
    delta = 0.5 * float(room.min())
    lengths = np.linalg.norm(tokens.x, axis=-1).reshape(tokens.n, *[1] * (chosen.ndim - 1), tokens.T)
    A = float((lengths * np.linalg.norm(tokens.z, axis=-1)[..., None])[tokens.visible].max()) * size
    gamma, visible = Leads.of(tokens, head).gamma, tokens.visible
    spreads = np.where(visible, gamma, -np.inf).max(-1) - np.where(visible, gamma, np.inf).min(-1)
    spread, T = float(spreads.max()), int(visible.sum(-1).max())
    return LocalCone(
        direction=found.W,
        delta=delta,
        A=A,
        mu=(min(0.5, delta) / A) ** 2 / 8.0,
        spread=spread,
        gap=verdict.lead,
        R=max(2.0, 1.0 / delta) * size * float(np.log(64.0 * T * spread * A / verdict.lead)),
        empty=verdict.empty,
    )


def barrier(tokens: Tokens, selected: ArrayLike, W: ArrayLike, *, head: HeadLike = None) -> float:
    """How well lower tokens shield a selection from higher ones along W; W is in cone_eps(selected) iff this is >= eps.

    `min over queries, max over low t, min over high s of (x_t - x_s)^T W z / |W|_F`, where low tokens score below the
    selected one and high tokens, other than it, do not. A query without high tokens asks nothing (+inf); one with
    high tokens and no low token cannot be shielded (-inf), and the cone is empty.

    Args:
        tokens: one data set; masked tokens do not count.
        selected: a visible token per query.
        W: (d, d), not zero.
        head: as in `al.scores`.

    Lemma 5 and Theorem 9 of *Transformers as Support Vector Machines* (16 and 10 with K queries).

    >>> import numpy as np, attnlab as al
    >>> tokens = al.data.two_tokens()
    >>> barrier(tokens, [0], np.eye(2)), barrier(tokens, [1], np.eye(2))
    (inf, -inf)
    """
    chosen = checked(tokens, selected)
    point = _finite("W", W)
    if point.shape != (tokens.d, tokens.d):
        raise InputError(message(f"`W` has shape {point.shape}; wanted {(tokens.d, tokens.d)}."))
    if not point.any():
        raise InputError(message("`W` is the zero matrix; cone_eps is a set of directions."))
    low, high = score_sides(tokens, chosen, head)
    point = point / np.abs(point).max()
    z = tokens.z.reshape(tokens.n, -1, tokens.d)
    logits = np.einsum("ntd,de,nke->nkt", tokens.x, point, z, optimize=True).reshape(low.shape)
    # max over t of min over s of (a_t - a_s) is the best low logit less the best high one.
    best_low = np.where(low, logits, -np.inf).max(-1)
    best_high = np.where(high, logits, -np.inf).max(-1)
    asks = high.any(-1)
    if not asks.any():
        return float("inf")
    return float((best_low[asks] - best_high[asks]).min() / np.linalg.norm(point))


def in_barrier_cone(
    tokens: Tokens, selected: ArrayLike, W: ArrayLike, *, eps: float | None = None, head: HeadLike = None
) -> bool:
    """Is W in cone_eps(selected)? `eps` defaults to `default_eps(tokens, selected)`.

    >>> import numpy as np, attnlab as al
    >>> in_barrier_cone(al.data.two_tokens(), [0], np.eye(2), eps=0.1)
    True
    """
    if eps is None:
        eps = default_eps(tokens, selected, head=head)
    return barrier(tokens, selected, W, head=head) >= eps


def default_eps(
    tokens: Tokens, selected: ArrayLike, *, solution: MarginSolution | None = None, head: HeadLike = None
) -> float:
    """Half of what the max-margin direction of `selected` itself reaches: `barrier(W^mm) / 2`.

    inf if no token scores as high as a selected one (then cone_eps is everything for every eps). Not positive if the
    selection is not locally optimal. Raises `InfeasibleSelection` where no W separates.

    >>> import attnlab as al
    >>> default_eps(al.data.two_tokens(), [0])
    inf
    """
    chosen = checked(tokens, selected)
    found = solve_margin(tokens, chosen) if solution is None else belongs(tokens, chosen, solution)
    if not found.feasible:
        raise InputError(message(f"`solution` has no W: {found.status.value}"))
    if not found.W.any():
        return float("inf")
    return 0.5 * barrier(tokens, chosen, found.W, head=head)


def score_sides(
    tokens: Tokens, selected: ArrayLike, head: HeadLike = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Visible tokens that score below the selected one, and the other ones that do not: `low` and `high`.

    Both laid out as the tokens; equal scores (to 1e-12 relative) are high.

    >>> import attnlab as al
    >>> score_sides(al.data.two_tokens(), [0])
    (array([[False,  True]]), array([[False, False]]))
    """
    chosen = checked(tokens, selected)
    lead = Leads.of(tokens, head).over(chosen)
    other = tokens.visible & (np.arange(tokens.T) != chosen[..., None])
    return other & (lead > 0), other & (lead <= 0)


def _finite(name: str, value: ArrayLike) -> Array:
    matrix = real_array(name, value)
    if matrix.ndim != 2 or 0 in matrix.shape or not np.isfinite(matrix).all():
        raise InputError(message(f"`{name}` has shape {matrix.shape}; wanted a finite matrix."))
    return matrix
