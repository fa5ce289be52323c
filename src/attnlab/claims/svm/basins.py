"""Locally optimal selections with the cones that descent does not leave: of random data, and of data built so that the
constants of the cone matter."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.matrices import inner, unit
from attnlab.claims.scale import Scale
from attnlab.claims.svm.dynamics import downhill, with_unit_radius
from attnlab.data import Tokens, optimal_tokens, sphere
from attnlab.data.tokens import Array
from attnlab.optim import ngd
from attnlab.theory import is_locally_optimal, local_cone
from attnlab.theory.svm.geometry import solved_selections
from attnlab.train import descend

SIZE = (2, 4, 3)
FINE = 1e-3  # length of a normalized step over the radius at which the cone begins
ON_THE_BORDER = 1.0 - 1e-9  # share of mu
# Half the room of the high token beyond the margin, and lead over the support token, of data built by hand.
TIGHT_SETS = ((0.3, 0.1), (0.1, 0.1), (0.1, 0.01), (0.03, 0.01), (0.01, 0.01), (0.01, 0.001))


class Basins(NamedTuple):
    """Locally optimal selections, one trial each, with their cones.

    Attributes:
        tokens: a batch; the data of a seed are repeated for each of its selections.
        passed_over: selections whose support is empty for some query, which the definition says nothing about.
        selected: (trials, n).
        best: is it the selection of the best tokens? (trials,)
        support: tokens that hold the margin, (trials, n, T).
        axis: the max-margin matrix of the selection, (trials, d, d).
        mu, radius: of the cone, (trials,).
        seed: of the data, (trials,); below 0 for data built by hand.
    """

    tokens: Tokens
    passed_over: int
    selected: NDArray[np.intp]
    best: NDArray[np.bool_]
    support: NDArray[np.bool_]
    axis: Array
    mu: Array
    radius: Array
    seed: NDArray[np.intp]

    @property
    def multiple(self) -> Array:
        """The radius in units of the norm of the max-margin matrix."""
        return self.radius / np.linalg.norm(self.axis, axis=(-2, -1))

    @property
    def slack(self) -> dict[str, float]:
        """Of the hypotheses."""
        return {"least mu": float(self.mu.min()), "least R_mu / |W_mm|": float(self.multiple.min())}

    def pick(self, index: Any) -> Basins:
        """Some of them."""
        chosen = np.flatnonzero(index).tolist()
        picked = {name: getattr(self, name)[chosen] for name in self._fields[2:]}
        return self._replace(tokens=Tokens.stack([self.tokens[i] for i in chosen]), **picked)


@cache
def basins(seeds: int) -> Basins:
    """Every locally optimal selection of this many random data sets, and the first tokens of those built by hand."""
    rows: list[tuple[Any, ...]] = []
    passed_over = 0
    for seed in range(seeds):
        tokens = sphere(*SIZE, seed=seed)
        best = optimal_tokens(tokens)
        for chosen, solution in solved_selections(tokens, limit=1000):
            verdict = is_locally_optimal(tokens, chosen, solution=solution)
            passed_over += verdict.holds and verdict.vacuous
            if not verdict or verdict.vacuous:
                continue
            cone = local_cone(tokens, chosen, solution=solution)
            is_best = bool((chosen == best).all())
            rows.append((tokens, chosen, is_best, solution.support, solution.W, cone.mu, cone.R, seed))
    for number, (room, lead) in enumerate(TIGHT_SETS):
        tokens = close_to_the_border(room, lead, number)
        chosen = np.zeros(tokens.n, dtype=np.intp)
        verdict = is_locally_optimal(tokens, chosen)
        if not verdict or verdict.vacuous:
            continue
        cone = local_cone(tokens, chosen, solution=verdict.solution)
        support, axis = verdict.solution.support, verdict.solution.W
        rows.append((tokens, chosen, False, support, axis, cone.mu, cone.R, -1 - number))
    data, *arrays = zip(*rows, strict=True)
    return Basins(Tokens.stack(data), passed_over, *(np.array(part) for part in arrays))


def close_to_the_border(room: float, lead: float, seed: int) -> Tokens:
    """Two sequences with queries e1 and e2 and tokens 0 (selected), -e1 (support), and two others beyond the margin.

    The support token scores `lead` less than the selected one. The next token has room 2 `room` beyond the margin and
    scores about 1 more than the selected one: it takes over unless |W| is of the order log(1 / lead) / room. All is
    turned at random.
    """
    x = np.array([[0.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [-1.0 - 2.0 * room, 1.0, 0.0], [-1.0 - 4.0 * room, 0.0, 1.0]])
    v = np.array([lead, 1.0, -1.0])
    turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))
    return Tokens(x=np.stack([x, x]) @ turn.T, z=np.eye(3)[:2], y=np.ones(2), v=turn @ v)


def near(axis: Array, mu: Array, rng: np.random.Generator, share: float | None = None) -> Array:
    """Random unit matrices with 1 - cosine to the axis `share` times mu, or anything from 0 to mu."""
    axis = unit(axis)
    side = rng.standard_normal(axis.shape)
    side = unit(side - inner(side, axis)[:, None, None] * axis)
    return tilted(axis, side, mu * (rng.uniform(0.0, 1.0, len(axis)) if share is None else share))


def tilted(axis: Array, side: Array, lost: Array) -> Array:
    """Unit matrices with 1 - cosine `lost` to the axis, on the side of `side`; both are unit and orthogonal."""
    lost = lost[:, None, None]
    return (1.0 - lost) * axis + np.sqrt(lost * (2.0 - lost)) * side


def border_points(found: Basins, rng: np.random.Generator) -> list[Array]:
    """Unit matrices on the border of each cone: at random, and tilted to favour each sequence over the others."""
    points = [near(found.axis, found.mu, rng, ON_THE_BORDER) for _ in range(4)]
    axis = unit(found.axis)
    for sequence in range(found.tokens.n):
        side = margin_gradient(found, sequence)
        side = side - inner(side, axis)[:, None, None] * axis
        points.append(tilted(axis, unit(side), ON_THE_BORDER * found.mu))
    return points


def margin_gradient(found: Basins, sequence: int) -> Array:
    """Sum of (x_selected - x_t) z^T over the support tokens of one sequence, (trials, d, d)."""
    x = found.tokens.x[:, sequence]
    selected = np.take_along_axis(x, found.selected[:, sequence, None, None], axis=1)
    gathered = np.einsum("rtd,rt->rd", selected - x, found.support[:, sequence].astype(float))
    return np.einsum("rd,re->rde", gathered, found.tokens.z[:, sequence])


def ratio_of_lemma_14(found: Basins, W: Array) -> Array:
    """<grad L(W), W/|W|> / <grad L(W), W_mm(a)/|W_mm(a)>; inf where the second is not descent."""
    direction, _ = downhill(found.tokens, W)
    along = inner(direction, unit(found.axis))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(along > 0, inner(direction, unit(W)) / along, np.inf)


def runs_from_the_border(
    found: Basins, steps: int, fine: float = FINE, seed: int = 0, which: NDArray[np.bool_] | None = None
) -> tuple[Array, Array, NDArray[np.intp]]:
    """Normalized descent from random points of the border of each cone at its radius, or of some cones only.

    Returns: the first and the last W, and the tokens that the last one selects.
    """
    start = near(found.axis, found.mu, np.random.default_rng(seed), ON_THE_BORDER)
    if which is not None:
        start = start[which]
        found = found.pick(which)
    scaled = with_unit_radius(found.tokens, found.radius)
    run = descend(scaled, ngd(fine), steps=steps, record=None, init=start)
    size = found.radius[:, None, None]
    return start * size, run.W * size, run.selected


def at_scale(scale: Scale) -> Basins:
    """As many as a scale asks for."""
    return basins(scale.pick(12, 40, 200))
