"""A summary as a LaTeX table, in the style of booktabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_ESCAPED = {"\\": r"\textbackslash{}", **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "~": r"\textasciitilde{}"}
_ESCAPED["^"] = r"\textasciicircum{}"


def latex(summary: Any, by: Sequence[str], across: str | None, caption: str, label: str, digits: int) -> str:
    """One line for each group, or a column for each value of `across`; cells are value [low, high]."""
    down = [name for name in by if name != across]
    over = list(dict.fromkeys(summary[across])) if across else [None]
    of = list(dict.fromkeys(summary["of"]))
    heads = [*down, *(_head(name, across, value, len(of)) for value in over for name in of)]
    lines = ["  " + " & ".join(escaped(head) for head in heads) + r" \\", r"  \midrule"]
    for key, group in summary.groupby(down, sort=False, dropna=False) if down else [((), summary)]:
        settings = key if isinstance(key, tuple) else (key,)
        cells = [_cell(group, across, value, name, digits) for value in over for name in of]
        lines.append("  " + " & ".join([*(escaped(_number(s, digits)) for s in settings), *cells]) + r" \\")
    columns = "l" * len(down) + "r" * (len(over) * len(of))
    table = [rf"\begin{{tabular}}{{{columns}}}", r"  \toprule", *lines, r"  \bottomrule", r"\end{tabular}"]
    if not caption and not label:
        return "\n".join(table) + "\n"
    about = [rf"\caption{{{escaped(caption)}}}"] * bool(caption) + [rf"\label{{{label}}}"] * bool(label)
    return "\n".join([r"\begin{table}", r"\centering", *about, *table, r"\end{table}"]) + "\n"


def escaped(text: Any) -> str:
    r"""Text as LaTeX prints it.

    >>> escaped("init_scale")
    'init\\_scale'
    """
    return "".join(_ESCAPED.get(sign, sign) for sign in str(text))


def _head(name: str, across: str | None, value: Any, count: int) -> str:
    if across is None:
        return name
    return f"{across} = {value}" if count == 1 else f"{name}, {across} = {value}"


def _cell(group: Any, across: str | None, value: Any, name: str, digits: int) -> str:
    rows = group[group["of"] == name]
    if across is not None:
        rows = rows[rows[across] == value]
    if not len(rows):
        return "--"
    row = rows.iloc[0]
    middle = _number(row["value"], digits)
    if np.isnan(row["value"]):
        return middle
    if np.isnan(row["low"]):
        return f"${middle}$"
    return f"${middle}\\ [{_number(row['low'], digits)}, {_number(row['high'], digits)}]$"


def _number(value: Any, digits: int) -> str:
    if isinstance(value, float | np.floating):
        if np.isnan(value):
            return "--"
        if np.isinf(value):
            return r"\infty" if value > 0 else r"-\infty"
        text = f"{value:.{digits}g}"
        mantissa, _, power = text.partition("e")
        return rf"{mantissa} \cdot 10^{{{int(power)}}}" if power else text
    return str(value)
