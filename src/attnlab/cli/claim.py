"""`attnlab claim`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from attnlab import __version__
from attnlab.cli.show import compile_cache, one_blas_thread, print_json, print_rows, print_text, progress, say
from attnlab.papers import TITLES

if TYPE_CHECKING:
    from attnlab.claims import Claim


@dataclass(frozen=True)
class Claims:
    """Check statements of the papers against what is measured: theorems, lemmas, errata; or claims of your own."""

    ids: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which, as svm-T2 rates-K8, or my_claims.py:name for a claim of your own (default: all of the papers)."""
    paper: Annotated[str | None, tyro.conf.arg(help=f"All claims of one paper: {', '.join(TITLES)}.")] = None
    list: bool = False
    """Only say what there is, and what is left out and why."""
    explain: bool = False
    """Say of each: statement, hypotheses, data, what is judged in which units, and what a fault would have done."""
    scale: Literal["smoke", "quick", "paper"] = "quick"
    """smoke: does it run; quick: is it about right; paper: the paper's own trial counts."""
    fresh: bool = False
    """Measure again what is kept in the store."""
    jobs: int = 1
    """Processes to measure in; -1 for all cores."""
    out: Path | None = None
    """Also write claims.json, claims.md and pictures of counterexamples to this folder."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        one_blas_thread()
        from attnlab.claims import check
        from attnlab.data.writing import make_folder
        from attnlab.store import Store

        wanted = self._wanted()
        if self.list:
            self._print_list(wanted)
            return 0
        if not self.ids:  # of all, those that can be measured; one asked for by name is refused with the reason
            for claim in (c for c in wanted if c.status != "ready"):
                say(f"{claim.id}  left out: {claim.status}")
            wanted = [claim for claim in wanted if claim.status == "ready"]
        if self.out is not None:
            make_folder(self.out)
        compile_cache()
        with progress("claims") as show:
            results = check(wanted, self.scale, store=Store(), fresh=self.fresh, jobs=self.jobs, on_part=show)
        news = [r for r in results if not r.as_expected]
        facts = [r.to_json() for r in results]
        if self.out is not None:
            self._write(self.out, facts)
        if self.json:
            print_json(facts)
        elif self.explain:
            from attnlab.claims.explain import explained

            print_text("\n\n".join(explained(fact) for fact in facts))
        else:
            print_rows([_row(fact) for fact in facts], f"Claims at scale {self.scale}")
        for result in news:
            on_record = result.claim.expected_at(result.scale).value
            say(f"{result.claim.id}: {result.outcome.line}; on record: {on_record}. {result.outcome.note}".rstrip())
        seconds = sum(r.seconds for r in results)
        say(f"{len(results) - len(news)} of {len(results)} as on record; measuring took {seconds:.0f} s")
        if not self.json and not self.explain:
            say(f"attnlab claim {wanted[0].id if wanted else 'ID'} --explain says what was measured and judged")
        return 1 if news else 0

    def _wanted(self) -> list[Claim]:
        from attnlab.claims import claims, find

        if not self.ids:
            return claims(self.paper)
        wanted = []
        for name in self.ids:
            wanted += claims_of_file(name) if ".py" in name else find(name)
        return [claim for claim in wanted if self.paper in (None, claim.paper)]

    def _print_list(self, wanted: list[Claim]) -> None:
        from attnlab.claims import left_out

        left = [] if self.ids else left_out(self.paper)
        if self.json:
            print_json([one.about() for one in (*wanted, *left)])
            return
        rows = [{"id": c.id, "claim": c.title, "on record": _on_record(c)} for c in wanted]
        print_rows(rows, "Claims")
        if left:
            rows = [{"id": one.id, "statement": one.title, "where": one.where, "why": one.why} for one in left]
            print_rows(rows, "Left out, and why")

    def _write(self, out: Path, facts: list[dict[str, Any]]) -> None:
        from attnlab.claims import left_out
        from attnlab.claims.page import claims_page
        from attnlab.data.writing import write_json, write_text

        papers = {fact["paper"] for fact in facts}
        left = [] if self.ids else [one.about() for one in left_out() if one.paper in papers]
        write_json(out / "claims.json", facts)
        write_text(out / "claims.md", claims_page(facts, __version__, left))
        say(f"{out / 'claims.md'}, {out / 'claims.json'}")
        for fact in facts:
            if "x" in fact["example"]:
                from attnlab.figures.style import save_figure
                from attnlab.figures.trap import draw_trap

                picture = draw_trap(fact["example"], f"{fact['id']}: {fact['title']}")
                say(str(save_figure(picture, out / f"{fact['id']}.png")))


def claims_of_file(name: str) -> list[Claim]:
    """The claims of a Python file: FILE.py for all of them, FILE.py:name for one, or for a list of them."""
    from attnlab.claims import Claim
    from attnlab.errors import InputError, message

    path, _, attribute = name.partition(":")
    values = vars(_module_of(Path(path)))
    every = {key: value for key, value in values.items() if isinstance(value, Claim)}
    if not attribute:
        if not every:
            raise InputError(message(f"{path} has no Claim.", "mine = attnlab.claims.Claim(id=..., measure=..., ...)"))
        return [*every.values()]
    value = values.get(attribute)
    several = [*value] if isinstance(value, list | tuple) else [value]
    if not several or not all(isinstance(one, Claim) for one in several):
        known = ", ".join(every) or "none"
        there = "nothing of that name" if attribute not in values else f"{type(value).__name__}"
        raise InputError(message(f"{path} has {there} as {attribute!r}; wanted a Claim.", f"its claims: {known}"))
    return several


def _module_of(path: Path) -> Any:
    """A Python file, run as a module of its own; what it imports is looked for beside it too."""
    import importlib.util
    import sys

    from attnlab.errors import InputError, message

    if not path.is_file():
        raise InputError(message(f"There is no file {path}.", "attnlab claim my_claims.py:name"))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(message(f"{path} is not a Python file."))
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(message(f"{path} cannot be run: {_with_line(error, path)}.", f"python {path}")) from error
    return module


def _with_line(error: BaseException, path: Path) -> str:
    """An error of the user's file, with the line of that file."""
    import traceback

    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    place = "" if line is None else f"line {line}: "
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{place}{type(error).__name__}: {words}".rstrip(": ")


def _on_record(claim: Claim) -> str:
    """The verdict, or what is missing before it can be measured."""
    return _with_kind(claim.expected.value, claim.about()) if claim.status == "ready" else claim.status


def _with_kind(verdict: str, fact: dict[str, Any]) -> str:
    return f"{verdict} ({fact['kind']})" if fact.get("kind") and verdict != fact["kind"] else verdict


def _row(fact: dict[str, Any]) -> dict[str, Any]:
    """What it says and, below, what was found and how much of a fault would have been noticed."""
    from rich.text import Text

    line = fact["line"].removeprefix(fact["verdict"]).removeprefix("; ")
    return {
        "id": fact["id"],
        "verdict": _with_kind(fact["verdict"], fact) + ("" if fact["as_expected"] else " (!)"),
        "statement, and what was found": Text.assemble(f"{fact['title']}\n", (line or "-", "dim")),
        "cases": fact["instances"],
    }
