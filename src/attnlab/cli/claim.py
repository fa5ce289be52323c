"""`attnlab claim`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from attnlab import __version__
from attnlab.cli.show import compile_cache, one_blas_thread, print_rows, progress, say


@dataclass(frozen=True)
class Claims:
    """Check statements of the papers against what is measured: theorems, lemmas, errata."""

    ids: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which, as svm-T2 svm-L4 (default: all)."""
    paper: str | None = None
    """All claims of one paper: svm."""
    list: bool = False
    """Only say what there is."""
    scale: Literal["smoke", "quick", "paper"] = "quick"
    """smoke: does it run; quick: is it about right; paper: the paper's own trial counts."""
    fresh: bool = False
    """Measure again what is kept in the store."""
    out: Path | None = None
    """Also write claims.json and claims.md to this folder."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        one_blas_thread()
        from attnlab.claims import check, claims, find
        from attnlab.store import Store

        wanted = find(self.ids) if self.ids else claims(self.paper)
        if self.paper is not None:
            wanted = [claim for claim in wanted if claim.paper == self.paper]
        if self.list:
            if self.json:
                print(json.dumps([claim.about() for claim in wanted]))
            else:
                print_rows([{"id": c.id, "claim": c.title, "on record": c.expected.value} for c in wanted], "Claims")
            return 0
        compile_cache()
        with progress("claims") as show:
            results = check(wanted, self.scale, store=Store(), fresh=self.fresh, on_part=show)
        news = [r for r in results if not r.as_expected]
        facts = [r.to_json() for r in results]
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / "claims.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            (self.out / "claims.md").write_text(claims_page(facts), encoding="utf-8")
            say(f"{self.out / 'claims.md'}, {self.out / 'claims.json'}")
        if self.json:
            print(json.dumps(facts))
        else:
            print_rows([_row(fact) for fact in facts], f"Claims at scale {self.scale}")
        for result in news:
            say(f"{result.claim.id} {result.outcome.verdict.value}, on record: {result.claim.expected.value}. "
                f"{result.claim.statement} {result.outcome.note}")  # fmt: skip
        seconds = sum(r.seconds for r in results)
        say(f"{len(results) - len(news)} of {len(results)} as on record; measuring took {seconds:.0f} s")
        return 1 if news else 0


def _row(fact: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": fact["id"],
        "claim": fact["title"],
        "verdict": fact["verdict"] + ("" if fact["as_expected"] else " (!)"),
        "instances": fact["instances"],
        "worst": "" if fact["worst"] is None else _number(fact["worst"]),
        "tolerance": "" if fact["tolerance"] is None else _number(fact["tolerance"]),
        "s": f"{fact['seconds']:.1f}",
    }


def _number(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float | int) else str(value)


def claims_page(facts: list[dict[str, Any]]) -> str:
    """The outcomes as a Markdown page."""
    table = ["| id | claim | verdict | instances | worst | tolerance |", "|---|---|---|---|---|---|"]
    for fact in facts:
        row = _row(fact)
        cells = (row["id"], row["claim"], row["verdict"], row["instances"], row["worst"], row["tolerance"])
        table.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    scale = facts[0]["scale"] if facts else "-"
    told = (
        f"Written by `attnlab claim --scale {scale} --out DIR`, version {__version__}. What the verdicts mean is in "
        "docs/guides/claims-and-figures.md. `worst` is the worst case, in the units that each claim names."
    )
    parts = [f"# Claims, measured at scale {scale}", told, "\n".join(table)]
    for fact in facts:
        hypotheses = "; ".join(fact["hypotheses"]) or "none"
        parts.append(
            f"## {fact['id']}: {fact['title']}\n\n{fact['statement']}\n\n"
            f"- hypotheses: {hypotheses}\n"
            f"- verdict: **{fact['verdict']}** on {fact['instances']} instances of {fact['tried']} drawn"
            + (f", worst {_number(fact['worst'])}" if fact["worst"] is not None else "")
            + (f" against {_number(fact['tolerance'])}" if fact["tolerance"] is not None else "")
            + f"\n- tolerance: {fact['reason']}"
            + "".join(f"\n- {key.replace('_', ' ')}: {_short(value)}" for key, value in fact["numbers"].items())
            + "".join(f"\n- slack of {key.replace('_', ' ')}: {_short(value)}" for key, value in fact["slack"].items())
            + (f"\n- {fact['note']}" if fact["note"] else "")
        )
    return "\n\n".join(parts) + "\n"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key.replace('_', ' ')}: {_short(v)}" for key, v in value.items() if v not in ({}, [], ""))
    if isinstance(value, list):
        shown = ", ".join(_short(v) for v in value[:12])
        return shown + (f", ... ({len(value)})" if len(value) > 12 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
