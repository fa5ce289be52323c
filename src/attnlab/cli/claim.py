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
    """Which, as svm-T2 rates-K8 (default: all)."""
    paper: str | None = None
    """All claims of one paper: svm, rates, multihead or encoder."""
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
            from attnlab.claims.page import claims_page

            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / "claims.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            (self.out / "claims.md").write_text(claims_page(facts, __version__), encoding="utf-8")
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
    from attnlab.claims.page import brief

    return {
        "id": fact["id"],
        "claim": fact["title"],
        "verdict": fact["verdict"] + ("" if fact["as_expected"] else " (!)"),
        "instances": fact["instances"],
        "worst": brief(fact["worst"]),
        "tolerance": brief(fact["tolerance"]),
        "s": f"{fact['seconds']:.1f}",
    }
