"""What every report is: a verdict, rows of what was found, one printer, JSON and a data frame."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attnlab.data.frames import data_frame

# Columns of a row that only says something; such a table needs no heading.
ONLY_TEXT = ["value"]


class Row(Protocol):
    """One line of a report: `attnlab.theory.Check`, a `Fact`, or what a report has for itself."""

    @property
    def name(self) -> str:
        """What the row is about."""
        ...

    def record(self) -> dict[str, Any]:
        """Name, value, wanted, margin and holds, or other columns, for a data frame."""
        ...

    def cells(self) -> dict[str, str]:
        """What is printed in each column after the name."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON."""
        ...


@dataclass(frozen=True)
class Fact:
    """A row that says something and asks for nothing.

    Attributes:
        name: what it is about.
        text: what there is to say.

    >>> Fact("data", "n = 4, T = 2").cells()
    {'value': 'n = 4, T = 2'}
    """

    name: str
    text: str

    def record(self) -> dict[str, Any]:
        """The text as value, and nothing wanted."""
        return {"name": self.name, "value": self.text, "wanted": None, "margin": None, "holds": None}

    def cells(self) -> dict[str, str]:
        """The text."""
        return {"value": self.text}

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return self.record()


@dataclass(frozen=True)
class Section:
    """Rows that belong together, under a title; the first section of a report needs none."""

    title: str
    rows: Sequence[Row]


class Report(ABC):
    """What the data, or the model, of a user come to: print it, or read its attributes.

    A report of your own says its `verdict` and lists its `sections`; printing, `to_json` and `frame` follow.

    >>> from attnlab.theory.check import at_least
    >>> class Width(Report):
    ...     verdict = "Too narrow."
    ...
    ...     def sections(self):
    ...         return (Section("", [at_least("width", 50.0, 100.0)]),)
    >>> Width()
    Too narrow.
    <BLANKLINE>
           value  wanted  margin  holds
    width  50     100     0.5     no
    """

    @property
    @abstractmethod
    def verdict(self) -> str:
        """The answer, in one sentence."""

    @abstractmethod
    def sections(self) -> tuple[Section, ...]:
        """The rows, in the order in which they are printed."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows."""
        rows: list[Row] = []
        for section in self.sections():
            rows += section.rows
        return tuple(rows)

    def to_json(self) -> dict[str, Any]:
        """Verdict and rows, as plain JSON."""
        return {"verdict": self.verdict, "rows": [row.to_json() for row in self.rows]}

    def frame(self) -> Any:
        """The rows as a pandas DataFrame, which needs pandas."""
        return data_frame([row.record() for row in self.rows], "`to_json()` has the same rows")

    def __repr__(self) -> str:
        parts = [self.verdict]
        for section in self.sections():
            if section.rows:
                parts += ["", *_table(section)]
        return "\n".join(parts)


def _table(section: Section) -> list[str]:
    """Title and rows with aligned columns; a heading where there is more than one column."""
    cells = [row.cells() for row in section.rows]
    columns: list[str] = []
    for of_row in cells:
        columns += [column for column in of_row if column not in columns]
    lines = []
    if columns != ONLY_TEXT:
        lines.append(["", *columns])
    for row, of_row in zip(section.rows, cells, strict=True):
        lines.append([row.name, *(of_row.get(column, "") for column in columns)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return [section.title, *table] if section.title else table
