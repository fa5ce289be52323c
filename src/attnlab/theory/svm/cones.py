"""Cones around max-margin directions: where descent stays once it is inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import number
from attnlab.data.directions import misalignment
from attnlab.data.scale import is_ordinary, length, lengths, ordinary, rescaled, rows_to_one
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.heads import HeadLike
from attnlab.svm import MarginSolution, solve_margin
from attnlab.theory.arrays import finite
from attnlab.theory.svm.geometry import Leads, belongs, checked, is_locally_optimal


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
        return self.direction * (self.R / length(self.direction))

    def __repr__(self) -> str:
        flag = f", {int(self.empty.sum())} queries without support" if self.empty.any() else ""
        return f"LocalCone(mu={self.mu:.3g}, R={self.R:.4g}, delta={self.delta:.3g}, gap={self.gap:.3g}{flag})"


def in_cone(W: ArrayLike, direction: ArrayLike, *, mu: float, R: float = 0.0) -> bool:
    """Is W in `C_{mu,R} = {corr(W, direction) >= 1 - mu, |W|_F >= R}`? The zero matrix never is.

    Lemma 13 of *Transformers as Support Vector Machines*.

    >>> in_cone([[2.0, 0.1], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], mu=0.01, R=1.0)
    True
    """
    mu, R = number("mu", mu, least=0), number("R", R)
    point, axis = finite("W", W, ("d", "d'")), finite("direction", direction, ("d", "d'"))
    if not axis.any():
        raise InputError(message("`direction` is the zero matrix; a cone needs an axis."))
    if not point.any():
        return False
    return bool(misalignment(point, axis) <= mu and length(point) >= R)


def local_cone(
    tokens: Tokens, selected: ArrayLike, *, solution: MarginSolution | None = None, head: HeadLike | None = None
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
    solution, support = verdict.solution, verdict.solution.support
    assert support is not None
    assert verdict.lead is not None
    if not support.any():
        raise InputError(message("`tokens` give every query a single token; there is no direction to surround."))
    size = length(solution.W)
    beyond = np.isfinite(solution.values) & ~support & support.any(-1, keepdims=True)
    tight = np.where(support, solution.values, -np.inf).max(-1, keepdims=True)
    room = np.where(beyond, solution.values - tight, np.inf)
    delta = 0.5 * float(room.min())
    if not delta > 0:
        problem = "some token lies on the margin to the last digit, and is no support token"
        raise InputError(message(f"`selected` has no cone: {problem}.", "solve again with a smaller tolerance"))
    A = _reach(tokens, size, chosen.ndim)
    leads, T = Leads.of(tokens, head), int(tokens.visible.sum(-1).max())
    spread = leads.largest_spread(tokens.visible)
    ratio = spread / verdict.lead if verdict.lead > 0 else np.inf
    with np.errstate(divide="ignore"):  # an A that underflows is refused below
        if np.isfinite(64.0 * T * spread * A) and np.isfinite(64.0 * T * ratio * A):
            log = float(np.log(64.0 * T * spread * A / verdict.lead))
        else:
            log = float(np.log(64.0 * T * A)) + leads.log_ratio(chosen, tokens.visible, support)
    R = max(2.0, 1.0 / delta) * size * log
    if not np.isfinite(R):
        raise InputError(message(f"`tokens` have a cone of radius beyond float64; |W| = {size:.1e}."))
    return LocalCone(
        direction=solution.W,
        delta=delta,
        A=A,
        mu=(min(0.5, delta) / A) ** 2 / 8.0,
        spread=spread,
        gap=verdict.lead,
        R=R,
        empty=verdict.empty,
    )


def _reach(tokens: Tokens, size: float, axes: int) -> float:
    """Largest |x_t| |z| times |W|: the same for tokens and queries of all sizes, of which W is about one over."""
    (x, of_x), (z, of_z) = ordinary(tokens.x), ordinary(tokens.z)
    across = lengths(x).reshape(tokens.n, *[1] * (axes - 1), tokens.T)
    return float((across * lengths(z)[..., None])[tokens.visible].max()) * float(rescaled(size, of_x + of_z))


def barrier(tokens: Tokens, selected: ArrayLike, W: ArrayLike, *, head: HeadLike | None = None) -> float:
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
    point = finite("W", W, (tokens.d, tokens.d))
    if not point.any():
        raise InputError(message("`W` is the zero matrix; cone_eps is a set of directions."))
    low, high = score_sides(tokens, chosen, head)
    point = point / np.abs(point).max()
    logits, exponents = _logits(tokens, point)
    logits = logits.reshape(low.shape)
    # max over t of min over s of (a_t - a_s) is the best low logit less the best high one.
    best_low = np.where(low, logits, -np.inf).max(-1)
    best_high = np.where(high, logits, -np.inf).max(-1)
    asks = high.any(-1)
    if not asks.any():
        return float("inf")
    leads = best_low[asks] - best_high[asks]  # -inf where nothing shields
    barriers = rescaled(leads, exponents if isinstance(exponents, int) else exponents.reshape(asks.shape)[asks])
    if np.isinf(barriers[np.isfinite(leads)]).any():
        largest = (
            f"`tokens` have entries up to {np.abs(tokens.x).max():.1e}, queries up to {np.abs(tokens.z).max():.1e}"
        )
        raise InputError(message(f"{largest}; differences of their logits are beyond float64.", "divide the tokens"))
    return float(barriers.min() / np.linalg.norm(point))


def _logits(tokens: Tokens, W: Array) -> tuple[Array, Any]:
    """x W z, (n, K, T), over 2^e, and e, (n, K); 0 where all are of ordinary size."""
    x, z = tokens.x, tokens.z.reshape(tokens.n, -1, tokens.d)
    of_sequences: Any = 0
    if not (is_ordinary(x) and is_ordinary(z)):
        flat, of_x = rows_to_one(x.reshape(tokens.n, -1))
        x, (z, of_z) = flat.reshape(x.shape), rows_to_one(z)
        of_sequences = of_x + of_z[..., 0]
    with np.errstate(under="ignore"):
        return np.einsum("ntd,de,nke->nkt", x, W, z, optimize=True), of_sequences


def in_barrier_cone(
    tokens: Tokens, selected: ArrayLike, W: ArrayLike, *, eps: float | None = None, head: HeadLike | None = None
) -> bool:
    """Is W in cone_eps(selected)? `eps` defaults to `default_eps(tokens, selected)`.

    >>> import numpy as np, attnlab as al
    >>> in_barrier_cone(al.data.two_tokens(), [0], np.eye(2), eps=0.1)
    True
    """
    if eps is None:
        eps = default_eps(tokens, selected, head=head)
    elif not (isinstance(eps, float) and eps == np.inf):
        eps = number("eps", eps)
    return barrier(tokens, selected, W, head=head) >= eps


def default_eps(
    tokens: Tokens, selected: ArrayLike, *, solution: MarginSolution | None = None, head: HeadLike | None = None
) -> float:
    """Half of what the max-margin direction of `selected` itself reaches: `barrier(W^mm) / 2`.

    inf if no token scores as high as a selected one (then cone_eps is everything for every eps). Not positive if the
    selection is not locally optimal. Raises `InfeasibleSelection` where no W separates.

    >>> import attnlab as al
    >>> default_eps(al.data.two_tokens(), [0])
    inf
    """
    chosen = checked(tokens, selected)
    solution = solve_margin(tokens, chosen) if solution is None else belongs(tokens, chosen, solution)
    if not solution.feasible:
        raise InputError(message(f"`solution` has no W: {solution.status.value}"))
    if not solution.W.any():
        return float("inf")
    return 0.5 * barrier(tokens, chosen, solution.W, head=head)


def score_sides(
    tokens: Tokens, selected: ArrayLike, head: HeadLike | None = None
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
