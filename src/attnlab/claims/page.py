"""Outcomes as Markdown: what the letters mean, a table of claims, then a short block for each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from attnlab.papers import TITLES

# Rows of a table of numbers; what is beyond stands in claims.json.
ROWS = 6
# Single numbers that are listed after tables, however long these are.
FEW = 2
# Columns of a table of numbers beside its names.
COLUMNS = 6
# Entries of a list that are spelt out.
SPELT = 6
# Parts that are listed.
PARTS = 6
# Letters that Markdown takes for marks.
MARKS = re.compile(r"[*<`]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def claims_page(facts: list[dict[str, Any]], version: str, left: Sequence[Mapping[str, Any]] = ()) -> str:
    """Checked claims, as `Checked.to_json` gives them, as a page.

    Args:
        facts: of the claims.
        version: of attnlab.
        left: what is left out, as `LeftOut.about` gives it.
    """
    papers = list(dict.fromkeys(fact["paper"] for fact in facts))
    scale = facts[0]["scale"] if facts else "-"
    title = TITLES[papers[0]] if len(papers) == 1 and papers[0] in TITLES else "Claims"
    introduction = (
        f"Measured at scale {scale} by `attnlab claim --scale {scale} --out DIR`, version {version}. What the verdicts "
        "mean is in [the guide](../guides/claims-and-figures.md). Tightness is measured over promised at the instance "
        "closest to the promise: 1 is attained, 0.01 means that a constant a hundred times smaller would still hold; "
        "it is empty where a statement promises no number."
    )
    sections = [f"# {title}", introduction, counts(facts)]
    sections += [legend(paper) for paper in papers if paper in TITLES]
    sections += ["## Verdicts", overview(facts)]
    if left:
        sections += ["## Left out", left_out_table(left)]
    sections += [block(fact) for fact in facts]
    return "\n\n".join(sections) + "\n"


def counts(facts: Sequence[Mapping[str, Any]]) -> str:
    """How many claims have which verdict, and how many slips are of which kind."""
    verdicts = Counter(fact["verdict"] for fact in facts)
    kinds = Counter(fact["kind"] for fact in facts if fact.get("kind"))
    said = f"{len(facts)} claims: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()) + "."
    if kinds:
        said += (
            " Errata, slips and readings by kind: "
            + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
            + "."
        )
    return said


def legend(paper: str) -> str:
    """The letters of a paper."""
    symbols = import_module(f"attnlab.claims.{paper}.contents").SYMBOLS
    return "## Symbols\n\n" + table(("in the paper", "here", "meaning"), symbols)


def overview(facts: Sequence[Mapping[str, Any]]) -> str:
    """One line per claim."""
    rows = []
    for fact in facts:
        news = "" if fact["as_expected"] else " (!)"
        name = f"[{fact['id']}](#{anchor(fact)})"
        rows.append(
            (
                name,
                fact["title"],
                fact["verdict"] + news,
                fact.get("kind") or "",
                brief(fact["tightness"]),
                fact["instances"],
            )
        )
    return table(("id", "statement", "verdict", "kind", "tightness", "instances"), rows, plain=(0,))


def left_out_table(left: Sequence[Mapping[str, Any]]) -> str:
    """What is not measured, and why."""
    rows = [(one["id"], one["title"], one["where"], one["status"].removeprefix("left out: ")) for one in left]
    return table(("id", "statement", "where", "why"), rows)


def heading(fact: Mapping[str, Any]) -> str:
    return f"{fact['id']}: {fact['title']}"


def anchor(fact: Mapping[str, Any]) -> str:
    """Where a heading is found on the page."""
    letters = (c for c in heading(fact).lower() if c.isalnum() or c in " -_")
    return "".join(letters).replace(" ", "-")


def block(fact: Mapping[str, Any]) -> str:
    """Everything about one claim that a reader needs, in about thirty lines."""
    lines = [f"### {heading(fact)}", "", escaped(fact["statement"]), ""]
    if fact.get("slip"):
        lines += slip_lines(fact["slip"])
    if fact["hypotheses"]:
        lines.append(f"- **Assumes** {escaped('; '.join(fact['hypotheses']))}{slack_of(fact)}")
    if fact.get("setting"):
        lines.append(f"- **Measured on** {escaped(fact['setting'])}")
    lines.append(f"- **Judged** {escaped(fact['reason'])}")
    lines.append(f"- **Found** {escaped(fact['line'])}. {tried(fact)}")
    if fact["note"]:
        lines.append(f"- **Note** {escaped(fact['note'])}")
    again = f"`attnlab claim {fact['id']} --scale {fact['scale']} --fresh`"
    lines.append(f"- **Code** `{fact.get('code', '')}`, again: {again}")
    tables = [parts_table(fact["parts"])] if fact["parts"] else []
    numbers = numbers_table(numbers_of(fact))
    tables += [numbers] if numbers else []
    return "\n".join(lines) + "".join(f"\n\n{one}" for one in tables)


def slip_lines(slip: Mapping[str, Any]) -> list[str]:
    """What is printed, where, how it was read, and what is right."""
    return [
        f'- **Printed** ({escaped(slip["where"])}; {slip["kind"]}): "{escaped(slip["quote"])}"',
        f"- **Read kindly** {escaped(slip['charitable'])}",
        f"- **Right** {escaped(slip['correction'])}",
    ]


def slack_of(fact: Mapping[str, Any]) -> str:
    """By how much the hypotheses held."""
    shown = list(fact["slack"].items())[:SPELT]
    return (
        "" if not shown else escaped(" (slack: " + "; ".join(f"{name} {short(value)}" for name, value in shown) + ")")
    )


def tried(fact: Mapping[str, Any]) -> str:
    """How many were judged of how many, from which seeds."""
    seeds = fact["seeds"]
    told = f"{fact['instances']} instances of {fact['tried']} drawn"
    if not seeds:
        return told + "."
    if len(seeds) > 3:
        return told + f", {len(seeds)} seeds from {min(seeds)}."
    return told + f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}."


def parts_table(parts: Sequence[Mapping[str, Any]]) -> str:
    """What was judged, part by part."""
    rows = []
    for part in parts[:PARTS]:
        unsolved = f" ({part['unsolved']} unsolved)" if part["unsolved"] else ""
        guard = f"; the formula is guarded by {part['guard']}" if part["guard"] else ""
        cells = (part["name"], part["verdict"], short(part["worst"]), short(part["limit"]), brief(part["tightness"]))
        rows.append((*cells, f"{part['instances']}{unsolved}", part["notices"] + guard))
    if len(parts) > PARTS:
        rows.append((f"... {len(parts) - PARTS} more in claims.json", "", "", "", "", "", ""))
    return table(("part", "verdict", "worst", "asked", "tightness", "instances", "how much it notices"), rows)


def numbers_of(fact: Mapping[str, Any]) -> dict[str, Any]:
    """Of an erratum, the numbers of its two halves; else its numbers."""
    numbers = fact["numbers"]
    if set(numbers) != {"printed", "corrected"} or not all("numbers" in half for half in numbers.values()):
        return dict(numbers)
    halves = {f"{half}, {name}": value for half in numbers for name, value in numbers[half]["numbers"].items()}
    same = {name for name in numbers["printed"]["numbers"]}
    for name, value in numbers["corrected"]["numbers"].items():
        if name in same and numbers["printed"]["numbers"][name] == value:  # the same in both halves: once
            halves.pop(f"corrected, {name}")
            halves[name] = halves.pop(f"printed, {name}")
    return halves


def numbers_table(numbers: Mapping[str, Any]) -> str:
    """Numbers by name: tables first, then single ones, as many as a short block takes."""
    grouped = dict(tables_in(numbers))
    single = flat(without_tables(numbers))
    tables = []
    budget = ROWS
    for name, rows in grouped.items():
        if budget <= 0:
            tables.append(f"{len(grouped) - len(tables)} more tables in claims.json.")
            break
        tables.append(rows_table(name, rows, budget))
        budget -= len(rows)
    budget = max(budget, FEW)
    rows = [(name, short(value)) for name, value in single.items()]
    if rows:
        more = [(f"... {len(rows) - budget} more in claims.json", "")] if len(rows) > budget else []
        tables.append(table(("number", "value"), rows[:budget] + more))
    return "\n\n".join(tables)


def tables_in(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and rows of the tables within, however deep."""
    for key, value in values.items():
        name = f"{above}, {key}" if above else str(key)
        if is_table(value):
            yield name, value
        elif isinstance(value, Mapping):
            yield from tables_in(value, name)


def without_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rest."""
    rest: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and not is_table(value):
            rest[key] = without_tables(value)
        elif not isinstance(value, Mapping):
            rest[key] = value
    return rest


def is_table(value: Any) -> bool:
    """Is it a mapping of mappings of plain values with the same few keys?"""
    if not isinstance(value, Mapping) or not value:
        return False
    rows = list(value.values())
    if not all(isinstance(row, Mapping) and row for row in rows):
        return False
    keys = list(rows[0])
    plain = all(list(row) == keys and not any(isinstance(v, Mapping) for v in row.values()) for row in rows)
    return plain and len(keys) <= COLUMNS


def rows_table(name: str, value: Mapping[str, Mapping[str, Any]], budget: int) -> str:
    columns = list(next(iter(value.values())))
    rows = [(key, *(short(row[c]) for c in columns)) for key, row in list(value.items())[:budget]]
    if len(value) > budget:
        rows.append((f"... {len(value) - budget} more in claims.json", *[""] * len(columns)))
    return table((name, *columns), rows)


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested names as one: "cosine, least"."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{above}, {key}" if above else str(key)
        if isinstance(value, Mapping):
            leaves |= flat(value, name)
        elif value not in ([], ""):
            leaves[name] = value
    return leaves


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], plain: Sequence[int] = ()) -> str:
    """A Markdown table; cells are escaped, but for the columns `plain`."""
    lines = ["| " + " | ".join(cell(name) for name in head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(str(c) if i in plain else cell(c) for i, c in enumerate(row)) + " |")
    return "\n".join(lines)


def cell(value: Any) -> str:
    return escaped(str(value)).replace("|", "\\|").replace("\n", " ")


def escaped(text: str) -> str:
    """Text whose letters Markdown would take for marks; an underscore within a word is none.

    >>> escaped("<W_t, W^mm> >= |W|_*")
    '\\\\<W_t, W^mm> >= |W|\\\\_\\\\*'
    """
    return MARKS.sub(r"\\\g<0>", text)


def listed(values: Mapping[str, Any], depth: int = 0) -> str:
    """Names and values as a list; what holds names and values itself is a list within.

    >>> print(listed({"sets": 3, "cosine": {"least": 0.9876, "all": [0.99, 0.9876]}}))
    - sets: 3
    - cosine:
      - least: 0.9876
      - all: (0.99, 0.9876)
    """
    lines = []
    for key, value in values.items():
        name = f"{'  ' * depth}- {escaped(str(key))}:"
        if isinstance(value, Mapping) and value:
            lines += [name, listed(value, depth + 1)]
        else:
            lines.append(f"{name} {escaped(short(value))}")
    return "\n".join(lines) or "- none"


def short(value: Any) -> str:
    """A value in a few words; lists keep their brackets.

    >>> short([[5, 5], [3, 8]])
    '((5, 5), (3, 8))'
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "; ".join(f"{k} {short(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        shown = ", ".join(short(v) for v in value[:SPELT])
        return f"({shown}, ... {len(value)} in all)" if len(value) > SPELT else f"({shown})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def brief(value: Any) -> str:
    """A number in two digits; empty for none."""
    if value is None:
        return ""
    return f"{value:.2g}" if isinstance(value, float | int) else str(value)
