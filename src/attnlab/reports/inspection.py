"""`inspect`: what one attention layer of your own selects, with how much margin, and is that more than chance?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import finite_array, instance, no_batch, number, whole
from attnlab.data.directions import cosine
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.reports.probing.nulls import haar
from attnlab.reports.report import Fact, Report, Section
from attnlab.reports.selecting import Layer, Seen
from attnlab.svm import Bracket, MarginSolution, bracket_margin, solve_margin
from attnlab.svm.norms import FROBENIUS, NUCLEAR, Norm
from attnlab.theory import LocalOptimality, is_locally_optimal
from attnlab.theory.check import plain

NORMS = (FROBENIUS, NUCLEAR)
MOST_DRAWS = 10_000
# The queries of least lead that are printed; `leads` has all.
WEAKEST = 5
# To how much the best margins of rotated weights are known, relatively.
COARSE = 1e-2


@dataclass(frozen=True, eq=False)
class NormRow:
    """The margin of W in one norm, beside the best.

    Attributes:
        name: the norm.
        length: |W|.
        margin: least lead / |W|; None if W is zero.
        lower, upper: bounds of the best margin for the tokens that W selects; both 0 where nothing separates them.
        share: margin over the best; None where there is no best margin, or W is zero.
        cosine: of W with the max-margin solution; None likewise.
        solution: that solution, or its bracket, with its certificate.
    """

    name: str
    length: float
    margin: float | None
    lower: float
    upper: float
    share: float | None
    cosine: float | None
    solution: MarginSolution | Bracket

    @property
    def separable(self) -> bool:
        """Does some W separate the selected tokens? Certified."""
        return self.solution.feasible if isinstance(self.solution, MarginSolution) else self.solution.separable

    def record(self) -> dict[str, Any]:
        """The row of a table, by column."""
        return {
            "name": self.name,
            "length of W": self.length,
            "margin": self.margin,
            "best margin": self.lower,
            "share": self.share,
            "cosine": self.cosine,
        }

    def cells(self) -> dict[str, str]:
        """The same as text, without the name."""
        best = (
            f"{self.lower:.4g}" if self.upper <= self.lower * (1.0 + 1e-4) else f"{self.lower:.4g} to {self.upper:.4g}"
        )
        return {
            "|W|": f"{self.length:.4g}",
            "margin": "" if self.margin is None else f"{self.margin:.4g}",
            "best margin": best if self.separable else "none",
            "share": "" if self.share is None else f"{self.share:.1%}",
            "cosine": "" if self.cosine is None else f"{self.cosine:.4f}",
        }

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return plain(self.record() | {"separable": self.separable, "solution": self.solution.summary()})


@dataclass(frozen=True, eq=False)
class QueryRow:
    """One query: the token it selects, what that holds of the attention, and its lead over the next."""

    name: str
    selected: int
    attention: float
    lead: float
    tied: int

    def record(self) -> dict[str, Any]:
        """The row of a table, by column."""
        return {
            "name": self.name,
            "selected": self.selected,
            "attention": self.attention,
            "lead": self.lead,
            "tied": self.tied,
        }

    def cells(self) -> dict[str, str]:
        """The same as text, without the name."""
        tied = f", {self.tied} tied" if self.tied > 1 else ""
        return {
            "token": f"{self.selected}{tied}",
            "attention": f"{self.attention:.3f}",
            "lead": "" if np.isinf(self.lead) else f"{self.lead:.4g}",
        }

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return plain(self.record())


@dataclass(frozen=True, kw_only=True)
class Chance:
    """The share of the best margin that W has with its singular directions rotated at random.

    Attributes:
        shares: of each draw that has one.
        draws: how many there were.
        share: that of W.
    """

    shares: tuple[float, ...]
    draws: int
    share: float

    @property
    def mean(self) -> float:
        """Of the shares."""
        return float(np.mean(self.shares))

    @property
    def sd(self) -> float | None:
        """Standard deviation of the shares; None for fewer than two."""
        return float(np.std(self.shares, ddof=1)) if len(self.shares) > 1 else None

    @property
    def z(self) -> float | None:
        """(share - mean) / (sd sqrt(1 + 1/K)) for K shares; None where they do not vary.

        Shares are those of a least lead, and skewed: z is not that of a normal distribution. `p` needs no distribution.
        """
        if not self.sd:
            return None
        return (self.share - self.mean) / (self.sd * float(np.sqrt(1.0 + 1.0 / len(self.shares))))

    @property
    def p(self) -> float:
        """How often rotated weights reach the share of W: (1 + draws that do) / (1 + K), an exact p-value."""
        above = sum(share >= self.share for share in self.shares)
        return (1 + above) / (1 + len(self.shares))

    def __str__(self) -> str:
        spread = "" if self.sd is None else f" +- {self.sd:.1%}"
        z = "" if self.z is None else f", z = {self.z:.1f}"
        counted = f"{len(self.shares)} of {self.draws} draws"
        return f"{self.mean:.1%}{spread} for rotated weights{z}, p = {self.p:.2g} ({counted})"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        facts = {"mean": self.mean, "sd": self.sd, "z": self.z, "p": self.p, "shares": self.shares, "draws": self.draws}
        return plain(facts)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Inspection(Report):
    """What one attention layer has learned to select; print it.

    Attributes:
        data: what the tokens print as.
        W: the weights.
        selected: the token of largest score per query, (n,) or (n, K); the first of those that are tied.
        tied: how many visible tokens have the largest score, up to rounding, likewise.
        attention: what the selected token holds of the query's attention, likewise.
        leads: its score minus that of the next token, likewise; inf where a query sees one token.
        norms: margin, best margin and cosine in the Frobenius and the nuclear norm.
        local: is the selection locally optimal? None without scores (`tokens.v`), or where it was not asked.
        chance: the same share for rotated weights; None where there is no share.
    """

    data: str
    W: Array
    selected: NDArray[np.intp]
    tied: NDArray[np.intp]
    attention: Array
    leads: Array
    norms: tuple[NormRow, NormRow]
    local: LocalOptimality | None
    chance: Chance | None

    @property
    def frobenius(self) -> NormRow:
        """Where gradient descent on W goes."""
        return self.norms[0]

    @property
    def nuclear(self) -> NormRow:
        """Where gradient descent on (K, Q) goes."""
        return self.norms[1]

    @property
    def separable(self) -> bool:
        """Does some W separate the selected tokens from the others?"""
        return self.frobenius.separable

    @property
    def verdict(self) -> str:
        """Whether W selects, with how much margin, and whether that is more than chance."""
        if np.isinf(self.leads).all():
            return "Every query sees one token: there is nothing to select."
        if not self.W.any():
            return "W is zero: every query attends to its tokens alike, and selects none."
        held = f"The selected tokens hold {float(self.attention.mean()):.3f} of the attention on average"
        tied = int((self.tied > 1).sum())
        if tied:
            parted = "some other W separates them" if self.separable else "no W separates them"
            return f"{held}; {tied} of {self.tied.size} queries have tied tokens, so W has no margin, and {parted}."
        if self.frobenius.share is None:
            return f"{held}; whether a W separates them was too close to call."
        beside = "" if self.chance is None else f"; {self.chance.mean:.0%} is chance"
        if self.chance is not None and self.chance.z is not None:
            beside += f" (z = {self.chance.z:.1f}, p = {self.chance.p:.2g})"
        return f"{held}, with {self.frobenius.share:.0%} of the margin that the best W of that length has{beside}."

    def sections(self) -> tuple[Section, ...]:
        """Facts, the margins in both norms, and the queries of least lead."""
        facts = [Fact("data", self.data), Fact("attention", self._attention())]
        ties = int((self.tied > 1).sum())
        if ties:
            facts.append(Fact("ties", f"{ties} of {self.tied.size} queries"))
        facts.append(Fact("separable", f"{'yes' if self.separable else 'no'}. {self.frobenius.solution.status.value}"))
        if self.local is not None:
            facts.append(Fact("locally optimal", "yes" if self.local else "no"))
        if self.chance is not None:
            facts.append(Fact("chance", str(self.chance)))
        return Section("", facts), Section("Margins", self.norms), Section("Queries of least lead", self._weakest())

    def _attention(self) -> str:
        mean, least = float(self.attention.mean()), float(self.attention.min())
        return f"{mean:.3f} on the selected token on average, {least:.3f} at least"

    def _weakest(self) -> list[QueryRow]:
        order = np.argsort(self.leads, axis=None, kind="stable")[:WEAKEST]
        places = [tuple(map(int, np.unravel_index(place, self.leads.shape))) for place in order]
        return [
            QueryRow(
                name=",".join(map(str, place)),
                selected=int(self.selected[place]),
                attention=float(self.attention[place]),
                lead=float(self.leads[place]),
                tied=int(self.tied[place]),
            )
            for place in places
        ]

    def to_json(self) -> dict[str, Any]:
        """Verdict, rows and all queries, as plain JSON."""
        arrays = {name: getattr(self, name) for name in ("selected", "tied", "attention", "leads")}
        return super().to_json() | plain(
            {
                "separable": self.separable,
                "norms": {row.name: row.to_json() for row in self.norms},
                "locally_optimal": None if self.local is None else bool(self.local),
                "chance": None if self.chance is None else self.chance.to_json(),
                **arrays,
            }
        )


def inspect(
    tokens: Tokens, W: ArrayLike, *, draws: int = 20, seed: int = 0, tolerance: float | None = None
) -> Inspection:
    """What the weights W of one attention layer select on these tokens, and how efficiently.

    A query z gives its token x_t the score x_t^T W z, and softmax(scores) as attention. The margin of W is the least
    lead of a largest score over the next, divided by |W|; beside it stands the best margin that any W has for the same
    selected tokens, in the norms of Theorems 2, 7 and 9 of *Transformers as Support Vector Machines*. Their quotient is
    W's share. It is large for wide tokens and few queries whatever W is, so it is compared with that of W with its
    singular directions rotated at random (Haar measure), each draw with its own selection.

    Args:
        tokens: one data set; masks and several queries are respected.
        W: (d, d), for instance W_K^T W_Q / sqrt(d_h); the guide "my trained model" has more.
        draws: how many rotations; 0 for none.
        seed: of the rotations.
        tolerance: None solves for the best margins, with cosines to all digits. A number brackets them to that, which
            is faster where there are many queries; local optimality is then not asked.

    Returns:
        An `Inspection`; print it, or read its attributes, `to_json()`, `frame()`.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=6, T=8, d=10, seed=0)
    >>> run = al.descend(tokens, al.ngd(0.1), steps=2000)
    >>> found = inspect(tokens, run.W)
    >>> found.frobenius.share > 0.95, found.frobenius.cosine > 0.99, bool(found.local), found.chance.z > 3
    (True, True, True, True)
    """
    instance("tokens", tokens, Tokens, "al.Tokens")
    no_batch("tokens", tokens)
    weights = finite_array("W", W)
    if weights.shape != (tokens.d, tokens.d):
        wanted = (tokens.d, tokens.d)
        raise InputError(message(f"`W` has shape {weights.shape}; tokens of dimension {tokens.d} need {wanted}."))
    count, start = whole("draws", draws, 0, MOST_DRAWS), whole("seed", seed, 0)
    reach = None if tolerance is None else number("tolerance", tolerance, least=0.0)
    layer = Layer(tokens)
    seen = layer.seen_by(weights)
    with np.errstate(over="ignore"):
        leads = np.ldexp(seen.leads, layer.power + seen.power)
    norms = tuple(_in_norm(norm, tokens, layer, seen, reach) for norm in NORMS)
    assert len(norms) == 2
    share = norms[0].share
    chance = None
    if count and share is not None and seen.least > 0:
        chance = _chance(layer, seen, share, count, np.random.default_rng(start))
    return Inspection(
        data=repr(tokens),
        W=weights,
        selected=seen.selected,
        tied=seen.tied,
        attention=seen.attention,
        leads=leads,
        norms=norms,
        local=_local(tokens, seen.selected, norms[0].solution),
        chance=chance,
    )


def _in_norm(norm: Norm, tokens: Tokens, layer: Layer, seen: Seen, tolerance: float | None) -> NormRow:
    """The margin of W beside the best, in one norm."""
    unit_length = norm.value(seen.W)
    solution: MarginSolution | Bracket
    if tolerance is None:
        solution = solve_margin(tokens, seen.selected, norm=norm.name, throw=False)  # type: ignore[arg-type]
        lower, upper = solution.margin, solution.margin * (1.0 + solution.gap) if solution.feasible else 0.0
    else:
        solution = bracket_margin(
            tokens.x, tokens.z, seen.selected, mask=tokens.mask, norm=norm.name, tolerance=tolerance
        )
        lower, upper = max(solution.lower, 0.0), solution.upper
    margin = share = angle = None
    with np.errstate(over="ignore"):
        length = float(np.ldexp(unit_length, seen.power))
        if unit_length > 0 and np.isfinite(seen.least):
            margin = float(np.ldexp(seen.least / unit_length, layer.power))
    if margin is not None and np.isfinite(upper) and lower > 0:
        share = margin / (0.5 * (lower + upper))
        angle = float(cosine(seen.W, solution.W))
    return NormRow(norm.name, length, margin, lower, upper, share, angle, solution)


def _local(tokens: Tokens, selected: NDArray[np.intp], solution: MarginSolution | Bracket) -> LocalOptimality | None:
    """Local optimality, where there are scores and a solution."""
    if tokens.v is None or isinstance(solution, Bracket):
        return None
    try:
        return is_locally_optimal(tokens, selected, solution=solution)
    except InputError:  # scores beyond the largest number
        return None


def _chance(layer: Layer, seen: Seen, share: float, draws: int, rng: np.random.Generator) -> Chance | None:
    """Shares of W with both its singular bases rotated; a draw whose own selection has ties has none."""
    singular = np.linalg.svd(seen.W, compute_uv=False)
    length = FROBENIUS.value(seen.W)
    shares = []
    for _ in range(draws):
        rotated = layer.seen_by((haar(len(singular), rng) * singular) @ haar(len(singular), rng).T)
        if not rotated.least > 0:
            continue
        best = bracket_margin(layer.x, layer.z, rotated.selected, mask=layer.mask, tolerance=COARSE)
        if best.separable:
            margin = float(np.ldexp(rotated.least, rotated.power)) / length
            shares.append(margin / (0.5 * (best.lower + best.upper)))
    return Chance(shares=tuple(shares), draws=draws, share=share) if shares else None
