"""Outcomes as Markdown: a table of claims, then each with everything that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A list is spelt out up to this many entries.
SPELT = 12
# A mapping of plain values is put on one line up to this many characters.
LINE = 100


def claims_page(facts: list[dict[str, Any]], version: str) -> str:
    """Checked claims, as `Checked.to_json` gives them, as a page."""
    table = ["| id | claim | verdict | instances | worst | tolerance |", "|---|---|---|---|---|---|"]
    for fact in facts:
        cells = (fact["id"], fact["title"], fact["verdict"] + ("" if fact["as_expected"] else " (!)"),
                 fact["instances"], brief(fact["worst"]), brief(fact["tolerance"]))  # fmt: skip
        table.append("| " + " | ".join(map(str, cells)) + " |")
    scale = facts[0]["scale"] if facts else "-"
    told = (
        f"Written by `attnlab claim --scale {scale} --out DIR`, version {version}. What the verdicts mean is in "
        "docs/guides/claims-and-figures.md. `worst` is the worst case, in the units that each claim names."
    )
    return "\n\n".join([f"# Claims, measured at scale {scale}", told, "\n".join(table), *map(_section, facts)]) + "\n"


def _section(fact: Mapping[str, Any]) -> str:
    judged = f"**{fact['verdict']}** on {fact['instances']} instances of {fact['tried']} drawn"
    judged += f", worst {brief(fact['worst'])}" if fact["worst"] is not None else ""
    judged += f" against {brief(fact['tolerance'])}" if fact["tolerance"] is not None else ""
    lines = {"hypotheses": "; ".join(fact["hypotheses"]) or "none", "verdict": judged, "tolerance": fact["reason"]}
    lines |= fact["numbers"]
    lines |= {"slack": fact["slack"]} if fact["slack"] else {}
    lines |= {"note": fact["note"]} if fact["note"] else {}
    return f"## {fact['id']}: {fact['title']}\n\n{fact['statement']}\n\n{listed(lines)}"


def listed(values: Mapping[str, Any], depth: int = 0) -> str:
    """Names and values as a list; what holds names and values itself is a list within, unless it is short.

    >>> print(listed({"sets": 3, "cosine": {"least": 0.9876, "all": [0.99, 0.9876]}}))
    - sets: 3
    - cosine: least: 0.9876; all: 0.99, 0.9876
    """
    lines = []
    for key, value in values.items():
        name = f"{'  ' * depth}- {key.replace('_', ' ')}:"
        plain = not isinstance(value, Mapping) or not any(isinstance(v, Mapping) for v in value.values())
        if plain and (not isinstance(value, Mapping) or len(short(value)) <= LINE):
            lines.append(f"{name} {short(value)}")
        else:
            lines += [name, listed({k: v for k, v in value.items() if v not in ({}, [], "")}, depth + 1)]
    return "\n".join(lines) or "- none"


def short(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Mapping):
        return "; ".join(f"{k.replace('_', ' ')}: {short(v)}" for k, v in value.items() if v not in ({}, [], ""))
    if isinstance(value, list | tuple):
        shown = ", ".join(short(v) for v in value[:SPELT])
        return shown + (f", ... ({len(value)})" if len(value) > SPELT else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def brief(value: Any) -> str:
    """A number in two digits; empty for none."""
    if value is None:
        return ""
    return f"{value:.2g}" if isinstance(value, float | int) else str(value)
