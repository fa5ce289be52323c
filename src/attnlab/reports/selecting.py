"""Which tokens the weights of an attention layer select, at any scale of tokens and weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.data.scale import to_one
from attnlab.data.tokens import Array, Tokens
from attnlab.svm.rows import array_rows

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Seen:
    """What weights select, query by query.

    Attributes:
        W: the weights, brought to order one; 2^power times these are those given.
        power: see there.
        selected: the token of largest score, (n,) or (n, K).
        tied: how many visible tokens have that score, up to rounding.
        attention: what it holds of the query's attention.
        leads: its score minus that of the next token, by W and the tokens of order one; inf where there is no other.
    """

    W: Array
    power: int
    selected: NDArray[np.intp]
    tied: NDArray[np.intp]
    attention: Array
    leads: Array

    @property
    def least(self) -> float:
        """The least of the leads."""
        return float(self.leads.min())


class Layer:
    """The tokens with x and z of order one: scores are 2^power times those of these."""

    def __init__(self, tokens: Tokens) -> None:
        self.x, x_power = to_one(tokens.x)
        self.z, z_power = to_one(tokens.z)
        self.mask = tokens.mask
        self.power = x_power + z_power
        self.visible = tokens.visible

    def seen_by(self, W: Array) -> Seen:
        """What these weights select."""
        unit, power = to_one(W)
        looked = self.z @ unit.T  # (n, d) or (n, K, d)
        many = looked if looked.ndim == 3 else looked[:, None]
        # Differences to one token: what all tokens share must not hide what tells them apart.
        scores = np.einsum("ntd,nkd->nkt", self.x - self.x[:, :1], many).reshape(self.visible.shape)
        selected = np.where(self.visible, scores, -np.inf).argmax(-1)
        values, rounding = self._compared(unit, selected)
        better = values < -rounding
        if better.any():  # which rounding of the scores has hidden
            selected = np.where(better.any(-1), values.argmin(-1), selected)
            values, rounding = self._compared(unit, selected)
        values = np.where(values <= rounding, 0.0, values)
        with np.errstate(over="ignore", under="ignore"):
            attention = 1.0 / (1.0 + np.exp(-np.ldexp(values, self.power + power)).sum(-1))
        tied = 1 + (values == 0).sum(-1)
        return Seen(unit, power, selected, tied, attention, values.min(-1))

    def _compared(self, W: Array, selected: NDArray[np.intp]) -> tuple[Array, Array]:
        """Leads over every other visible token, inf elsewhere, and how far rounding may have moved them."""
        rows = array_rows(self.x, self.z, self.mask, selected)
        rounding = (2 * len(W) + 8) * EPS * rows.sizes(W)
        return rows.scatter(rows.values(W), np.inf), rows.scatter(rounding)
