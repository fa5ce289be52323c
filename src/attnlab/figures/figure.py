"""A figure is data, then drawing: the data are computed once and kept; drawing only draws."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.claims.claim import Verdict
from attnlab.claims.page import listed
from attnlab.claims.scale import Scale
from attnlab.data.files import write_npz
from attnlab.errors import InputError, message
from attnlab.figures.style import save_figure, styled
from attnlab.store import Store
from attnlab.store.sources import NUMBERS, sources

Arrays = Mapping[str, np.ndarray]
Facts = Mapping[str, Any]
Tell = Callable[[int, int, str], None]

# Modules by paper, loaded when asked for; each has a list FIGURES.
PAPERS: dict[str, tuple[str, ...]] = {
    "svm": tuple(
        f"attnlab.figures.svm.{name}"
        for name in ("plane", "selection", "rank", "alignment", "nonlinear", "mixtures", "lemma6")
    ),
    "rates": tuple(f"attnlab.figures.rates.{name}" for name in ("signal", "joint", "start", "digits", "planned")),
    "multihead": tuple(f"attnlab.figures.multihead.{name}" for name in ("mixture", "planted", "planned")),
    "encoder": tuple(f"attnlab.figures.encoder.{name}" for name in ("widths", "vectors", "starts", "planned")),
}
# A CSV file lists every number with its place, up to this many.
LISTED = 300_000


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was seen, beside what the paper says.

    Attributes:
        seen: in a sentence or two, with numbers.
        verdict: holds if the picture shows what the paper says, fails if not.
        numbers: those of the sentence and of comparison, by name; plain JSON.
    """

    seen: str
    verdict: Verdict
    numbers: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Figure:
    """One figure of a paper.

    Attributes:
        id: paper prefix and number, as "svm-5".
        title: a few words.
        says: what the paper says or shows, in our words.
        data: (scale, tell) -> (arrays, facts); facts hold settings, seeds, attempts and drops, as plain JSON.
        draw: (arrays, facts) -> a matplotlib figure.
        judge: (arrays, facts) -> what was seen.
        missing: () -> what must be installed or built before it can be made; empty if nothing.
        inputs: () -> what decides the data beside code and scale, as the user's own files; plain JSON.
    """

    id: str
    title: str
    says: str
    data: Callable[[Scale, Tell], tuple[dict[str, np.ndarray], dict[str, Any]]]
    draw: Callable[[Arrays, Facts], Any]
    judge: Callable[[Arrays, Facts], Finding]
    missing: Callable[[], str] = lambda: ""
    inputs: Callable[[], Any] = lambda: None

    @property
    def paper(self) -> str:
        """The prefix of the id."""
        return self.id.split("-")[0]

    def about(self) -> dict[str, Any]:
        """What it is, as plain JSON."""
        return {"id": self.id, "paper": self.paper, "title": self.title, "status": self.status, "says": self.says}

    @property
    def status(self) -> str:
        """ "ready", or what it needs."""
        return self.missing() or "ready"


def planned(*, id: str, title: str, says: str, needs: str) -> Figure:
    """A figure of a paper that cannot be made yet, and what it needs."""

    def nothing(*_: Any) -> Any:
        raise InputError(message(f"{id} cannot be made: {needs}."))

    return Figure(id=id, title=title, says=says, data=nothing, draw=nothing, judge=nothing, missing=lambda: needs)


@dataclass(frozen=True, eq=False)
class Made:
    """A figure that was drawn: its files, its finding, and how long the data took."""

    figure: Figure
    finding: Finding
    facts: Facts
    scale: Scale
    files: tuple[Path, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            **self.figure.about(), "scale": self.scale.value, "seconds": self.seconds, "seen": self.finding.seen,
            "verdict": self.finding.verdict.value, "numbers": dict(self.finding.numbers), "facts": dict(self.facts),
            "files": [str(path) for path in self.files],
        }  # fmt: skip


def figures(paper: str | None = None) -> list[Figure]:
    """All figures, or those of one paper, in order."""
    if paper is not None and paper not in PAPERS:
        raise InputError(message(f"`paper` is {paper!r}; wanted one of {', '.join(PAPERS)}."))
    modules = [name for key, names in PAPERS.items() if paper in (None, key) for name in names]
    found = [figure for name in modules for figure in import_module(name).FIGURES]
    return sorted(found, key=lambda figure: (figure.paper, int(figure.id.split("-")[1])))


def find(ids: Iterable[str]) -> list[Figure]:
    """The figures of these ids, in the order given."""
    known = {figure.id: figure for figure in figures()}
    wanted = list(ids)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(message(f"There is no figure {', '.join(unknown)}; there are {', '.join(known)}.",
                                 "attnlab figure --list"))  # fmt: skip
    return [known[name] for name in wanted]


def make(
    figure: Figure,
    scale: str | Scale = Scale.QUICK,
    *,
    out: Path | str = "figures",
    store: Store | None = None,
    fresh: bool = False,
    on_part: Tell | None = None,
) -> Made:
    """Compute or read the data of a figure, draw it, and write everything about it.

    Args:
        figure: which.
        scale: "smoke", "quick" or "paper" (the paper's own trial counts).
        out: folder for ID.png, ID.pdf, ID.npz, ID.csv, ID.json and ID.md.
        store: where data are kept, so that drawing again does not compute again; None keeps none.
        fresh: compute again what is kept already.
        on_part: told (parts done, parts in all, what comes next).

    Returns:
        A `Made`.
    """
    from attnlab import __version__

    scale, tell = Scale.of(scale), on_part or (lambda done, total, what: None)
    if missing := figure.missing():
        raise InputError(message(f"{figure.id} cannot be made: {missing}.", "attnlab figure --list"))

    def computed() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        began = time.perf_counter()
        arrays, facts = figure.data(scale, tell)
        return arrays, {**facts, "seconds": time.perf_counter() - began}

    config = {"id": figure.id, "scale": scale.value, "version": __version__, "data": figure.data,
              "inputs": figure.inputs(), "sources": sources(*NUMBERS, f"figures/{figure.paper}")}  # fmt: skip
    if store is None:
        arrays, facts = computed()
    else:
        kept = store.keep("figure", config, computed, fresh=fresh)
        arrays, facts = dict(kept.arrays), dict(kept.facts)
    finding = figure.judge(arrays, facts)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    picture = figure.draw(arrays, facts)
    names = {kind: folder / f"{figure.id}.{kind}" for kind in ("png", "pdf", "npz", "csv", "json", "md")}
    for kind in ("png", "pdf"):
        styled(save_figure)(picture, names[kind])
    write_npz(names["npz"], dict(arrays), dict(facts))
    _write_csv(names["csv"], arrays)
    made = Made(figure, finding, facts, scale, tuple(names.values()), float(facts["seconds"]))
    names["json"].write_text(json.dumps(made.to_json(), indent=2) + "\n", encoding="utf-8")
    names["md"].write_text(_note(made), encoding="utf-8")
    return made


def _write_csv(path: Path, arrays: Arrays) -> None:
    """One number per line with its array and place; arrays that would make the file too long are left to the npz."""
    listed, left = {}, LISTED
    for name, array in sorted(arrays.items(), key=lambda item: item[1].size):
        if array.size <= left:
            listed[name], left = array, left - array.size
    width = max((array.ndim for array in listed.values()), default=0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["array", *(f"axis {i}" for i in range(width)), "value"])
        for name in sorted(listed):
            for place, value in np.ndenumerate(listed[name]):
                writer.writerow([name, *place, *[""] * (width - len(place)), value])
        for name in sorted(set(arrays) - set(listed)):
            writer.writerow([name, *[""] * width, f"{arrays[name].shape}: in the npz file"])


def _note(made: Made) -> str:
    """A page about the figure."""
    return f"""# {made.figure.id}: {made.figure.title}

![{made.figure.title}]({made.figure.id}.png)

**The paper says.** {made.figure.says}

**Seen.** {made.finding.seen}

**Verdict: {made.finding.verdict.value}.** {made.finding.verdict.meaning}

## Numbers

{listed(made.finding.numbers)}

## Settings, attempts and drops (scale {made.scale.value}, {made.seconds:.1f} s)

{listed({k: v for k, v in made.facts.items() if k != "seconds"})}
"""
