"""One row for every check: what is asked, what there is, what is wanted, and how far the two are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Check:
    """One thing that a theorem asks for, on given data. Use it as a truth value.

    Attributes:
        name: what is asked.
        value: what there is; None where one number does not tell.
        wanted: the border of what is asked for; None likewise.
        margin: how far from that border, in the units that its function names: a difference, at least 0 where it
            holds, or a ratio, at least 1.
        holds: was it shown to hold?
        evidence: what it was decided from, by name.
    """

    name: str
    value: float | None = None
    wanted: float | None = None
    margin: float
    holds: bool
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.holds

    def __repr__(self) -> str:
        verb = "holds" if self.holds else "does not hold"
        return f"{type(self).__name__}({self.name} {verb}, margin={self.margin:.3g}{self._remark()})"

    def _remark(self) -> str:
        """What a reader should know besides, for the end of the line."""
        return ""

    def record(self) -> dict[str, Any]:
        """The row of a table, by column."""
        return {name: getattr(self, name) for name in ("name", "value", "wanted", "margin", "holds")}

    def cells(self) -> dict[str, str]:
        """The same as text, without the name."""
        numbers = {name: shown_number(getattr(self, name)) for name in ("value", "wanted", "margin")}
        return {**numbers, "holds": "yes" if self.holds else "no"}

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON; infinities become text."""
        return plain({**self.record(), "evidence": dict(self.evidence)})


def at_least(name: str, value: float, wanted: float, evidence: Mapping[str, Any] | None = None) -> Check:
    """The check that `value >= wanted`, two numbers at least 0, with their ratio as margin.

    With nothing wanted the ratio is inf, or 1 if both are 0, since then they are equal.

    >>> at_least("width", 300.0, 100.0)
    Check(width holds, margin=3)
    """
    nothing_wanted = np.inf if value > 0 else 1.0
    ratio = value / wanted if wanted > 0 else nothing_wanted
    holds = bool(ratio >= 1.0)
    return Check(name=name, value=value, wanted=wanted, margin=ratio, holds=holds, evidence=evidence or {})


def shown_number(value: float | None) -> str:
    """Four digits of a number, nothing of None.

    >>> shown_number(0.123456), shown_number(None), shown_number(1e6)
    ('0.1235', '', '1e+06')
    """
    return "" if value is None else f"{value:.4g}"


def plain(value: Any) -> Any:
    """Numbers, arrays and containers as JSON knows them; infinities become text, other objects what they print.

    >>> plain({"a": np.array([1.0, np.inf]), "b": (True, None)})
    {'a': [1.0, 'inf'], 'b': [True, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
