"""A claim told to a colleague: what it says, on what it was measured, what was judged, what a fault would have done."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from attnlab.claims.page import SPELT, brief, short, tried
from attnlab.claims.verdict import Verdict

# Arrays of an example with more entries are told by their shape.
PRINTED = 60


def explained(fact: Mapping[str, Any], width: int = 100) -> str:
    """What `Checked.to_json` gave, in sentences.

    Args:
        fact: of one claim.
        width: columns.
    """
    lines = [f"{fact['id']}: {fact['title']}", ""]
    for name, text in _paragraphs(fact):
        lines += _wrapped(name, text, width)
    if fact["parts"]:
        lines += ["", "What was judged, part by part, and what a fault would have done", ""]
        for part in fact["parts"]:
            lines += _part(part, width)
    if fact["example"]:
        lines += ["", "An instance to keep", "", *_example(fact["example"])]
    return "\n".join(lines)


def _paragraphs(fact: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Statement", fact["statement"]
    if slip := fact.get("slip"):
        yield "Printed", f'{slip["where"]}: "{slip["quote"]}"'
        yield "Kind", slip["kind"]
        yield "Read kindly", slip["charitable"]
        yield "Right", slip["correction"]
    yield "Assumes", "; ".join(fact["hypotheses"]) or "nothing beyond the statement"
    if fact["slack"]:
        shown = list(fact["slack"].items())[:SPELT]
        yield "Slack", "; ".join(f"{name} {short(value)}" for name, value in shown)
    if fact["setting"]:
        yield "Measured on", fact["setting"]
    yield "Judged", fact["reason"]
    yield "Found", f"{fact['line']}. {tried(fact)} Scale {fact['scale']}, {fact['seconds']:.1f} s."
    yield "Meaning", Verdict(fact["verdict"]).meaning
    if fact["at_scale"]:
        yield "By scale", "; ".join(f"{scale}: {verdict}, {why}" for scale, (verdict, why) in fact["at_scale"].items())
    if fact["note"]:
        yield "Note", fact["note"]
    yield "Code", fact["code"]


def _wrapped(name: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=f"{name:<13}", subsequent_indent=" " * 13) or [name]


def _part(part: Mapping[str, Any], width: int) -> list[str]:
    numbers = []
    if part["worst"] is not None:
        numbers.append(f"{_worst_of(part)} {short(part['worst'])}")
    if part["limit"] is not None:
        numbers.append(f"asked {short(part['limit'])}")
    if part["tightness"] is not None:
        numbers.append(f"tightness {brief(part['tightness'])}")
    text = f"{part['name']} ({part['form']}): {part['verdict']}; {', '.join(numbers)}; {part['instances']} instances"
    text += f", {part['unsolved']} unsolved" if part["unsolved"] else ""
    text += f". {part['notices']}." if part["notices"] else "."
    text += f" The formula itself is guarded by {part['guard']}." if part["guard"] else ""
    return textwrap.wrap(text, width, initial_indent="  - ", subsequent_indent="    ")


def _worst_of(part: Mapping[str, Any]) -> str:
    """What the worst value of a part is."""
    return {
        "bound": "largest measured / promised",
        "identity": "largest relative error",
        "count": "contradictions",
        "share": "share",
        "mean": "mean",
    }.get(part["form"], "worst")


def _example(example: Mapping[str, Any]) -> Iterator[str]:
    """How to make it again, and its arrays, as Python that can be pasted."""
    import numpy as np

    for name, value in example.items():
        if isinstance(value, str):
            yield f"  {name}: {value}"
            continue
        array = np.asarray(value)
        if array.dtype.kind in "fiub" and array.size > PRINTED:
            yield f"  {name}: array of shape {array.shape}; --json has it"
        elif array.dtype.kind in "fiub":
            text = np.array2string(array, separator=", ", floatmode="unique", max_line_width=90)
            yield textwrap.indent(f"{name} = {text}", "  ")
        else:
            yield f"  {name}: {short(value)}"
