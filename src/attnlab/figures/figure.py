"""A figure is data, then drawing: the data are computed once and kept; drawing only draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.checks import flag, one_of
from attnlab.claims.claim import Verdict
from attnlab.claims.names import named
from attnlab.claims.page import listed, short
from attnlab.claims.scale import Scale, Tell as Tell
from attnlab.claims.seen import Check as Check, verdict_of
from attnlab.claims.stages import kept_in
from attnlab.data.files import write_npz
from attnlab.data.writing import make_folder, write_json, write_text
from attnlab.errors import InputError, message
from attnlab.figures.settings import changed_settings
from attnlab.figures.style import save_figure, styled
from attnlab.figures.tidy import tidy_csv
from attnlab.papers import TITLES, parts
from attnlab.store import Store
from attnlab.store.reach import reach

Arrays = Mapping[str, np.ndarray]
Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was seen, beside what the paper says.

    Attributes:
        seen: in a few sentences, with numbers.
        verdict: holds if the picture shows what the paper says, fails if not.
        numbers: those of the sentence and of comparison, by name; plain JSON.
        checks: what was judged, if the verdict follows from checks.
        table: rows of numbers by column, by name of the row; plain JSON.
    """

    seen: str
    verdict: Verdict
    numbers: Mapping[str, Any]
    checks: tuple[Check, ...] = ()
    table: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *checks: Check,
        table: Mapping[str, Mapping[str, Any]] | None = None,
        remarks: Iterable[str] = (),
        numbers: Mapping[str, Any] | None = None,
        brief: str = "",
        stand_in: str = "",
    ) -> Finding:
        """The finding that follows from checks.

        Args:
            checks: all that the paper says; one that fails is enough to fail.
            table: rows of numbers by column, printed as a table.
            remarks: sentences on what else is seen.
            numbers: anything else worth keeping, plain JSON.
            brief: why these runs are too short to decide, if they are; then nothing fails.
            stand_in: what the data stand in for, if they are not the paper's; then nothing is decided either way.

        >>> Finding.of(Check("it falls", [True] * 5), Check("it ends low", [False] * 5)).seen
        'Seen: it falls (5 of 5). Not seen: it ends low (0 of 5).'
        """
        verdict = verdict_of(checks, brief=brief, stand_in=stand_in)
        told = [_told(checks), stand_in, brief, *remarks]
        return cls(
            seen=" ".join(sentence for sentence in told if sentence),
            verdict=verdict,
            numbers=dict(numbers or {}),
            checks=checks,
            table=dict(table or {}),
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        facts: dict[str, Any] = {"seen": self.seen, "verdict": self.verdict.value, "numbers": dict(self.numbers)}
        if self.checks:
            facts["checks"] = [
                {"check": check.name, "seen": check.measured, "verdict": check.part.verdict.value}
                for check in self.checks
            ]
        if self.table:
            facts["table"] = {name: dict(row) for name, row in self.table.items()}
        return facts


def _told(checks: Iterable[Check]) -> str:
    """Which checks were seen, which were not, and which too few sets leave open."""
    kinds: dict[str, list[str]] = {}
    openings = {Verdict.HOLDS: "Seen", Verdict.LOOSE: "Seen", Verdict.FAILS: "Not seen"}
    for check in checks:
        opening = openings.get(check.part.verdict, check.part.verdict.value.capitalize())
        kinds.setdefault(opening, []).append(f"{check.name} ({check.measured})")
    return " ".join(f"{opening}: {'; '.join(names)}." for opening, names in kinds.items())


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
        shares: id of the figure whose data these are, if they are another's: runs that were kept for it serve both.
        on_files: files of the user's own -> the same figure of them; None for a figure that takes none.
        settings: scale -> settings that can be changed, with the paper's values or those of the scale; `data` takes
            them as keywords.
        axes: pattern of names -> axes of these arrays in words, as {"*_loss": "trial step"}, for the CSV file; see
            `figures.tidy`.
    """

    id: str
    title: str
    says: str
    data: Callable[..., tuple[dict[str, np.ndarray], dict[str, Any]]]
    draw: Callable[[Arrays, Facts], Any]
    judge: Callable[[Arrays, Facts], Finding]
    missing: Callable[[], str] = lambda: ""
    inputs: Callable[[], Any] = lambda: None
    shares: str = ""
    on_files: Callable[[Any], Figure] | None = None
    settings: Callable[[Scale], dict[str, Any]] = lambda scale: {}
    axes: Mapping[str, str] = field(default_factory=dict)

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
            **self.figure.about(),
            "scale": self.scale.value,
            "seconds": self.seconds,
            **self.finding.to_json(),
            "facts": dict(self.facts),
            "files": [str(path) for path in self.files],
        }


def figures(paper: str | None = None) -> list[Figure]:
    """All figures, or those of one paper, in order."""
    if paper is not None:
        one_of("paper", paper, tuple(TITLES))
    modules = [module for key in TITLES if paper in (None, key) for module in parts("figures", key)]
    every = [figure for module in modules for figure in module.FIGURES]
    return sorted(every, key=lambda figure: (figure.paper, int(figure.id.split("-")[1])))


def find(ids: str | Iterable[str]) -> list[Figure]:
    """The figures of these ids, or of this one, in the order given."""
    return named({figure.id: figure for figure in figures()}, ids, "figure")


def make(
    figure: Figure | str,
    scale: str | Scale = Scale.QUICK,
    *,
    out: Path | str = "figures",
    store: Store | None = None,
    fresh: bool = False,
    on_part: Tell | None = None,
    **settings: Any,
) -> Made:
    """Compute or read the data of a figure, draw it, and write everything about it.

    Args:
        figure: which, or its id.
        scale: "smoke", "quick" or "paper" (the paper's own trial counts).
        out: folder for ID.png, ID.pdf, ID.npz, ID.csv, ID.json and ID.md.
        store: where data are kept, so that drawing again does not compute again; None keeps none.
        fresh: compute again what is kept already.
        on_part: told (parts done, parts in all, what comes next).
        settings: other values for what `figure.settings(scale)` lists, as n=3, trials=30. The note then says that they
            are not the paper's, and nothing is decided about the paper.

    Returns:
        A `Made`.
    """
    from attnlab import __version__

    figure = find(figure)[0] if isinstance(figure, str) else figure
    scale, tell = Scale.of(scale), on_part or (lambda done, total, what: None)
    flag("fresh", fresh)
    usual = figure.settings(scale)
    changed = changed_settings(figure.id, usual, settings)
    if missing := figure.missing():
        raise InputError(message(f"{figure.id} cannot be made: {missing}.", "attnlab figure --list"))

    folder = make_folder(out)

    config = {
        "id": figure.shares or figure.id,
        "scale": scale.value,
        "version": __version__,
        "inputs": figure.inputs(),
        "reach": reach(figure.data),
        **({"settings": changed} if changed else {}),
    }

    def computed() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        began = time.perf_counter()
        with kept_in(None if fresh else store, config):
            arrays, facts = figure.data(scale, tell, **{**usual, **changed})
        return arrays, {**facts, "seconds": time.perf_counter() - began}

    if store is None:
        arrays, facts = computed()
    else:
        kept = store.keep("figure", config, computed, fresh=fresh)
        arrays, facts = dict(kept.arrays), dict(kept.facts)
    finding = _about_other_settings(figure.judge(arrays, facts), changed)
    picture = figure.draw(arrays, facts)
    names = {kind: folder / f"{figure.id}.{kind}" for kind in ("png", "pdf", "npz", "csv", "json", "md")}
    for kind in ("png", "pdf"):
        styled(save_figure)(picture, names[kind])
    write_npz(names["npz"], dict(arrays), dict(facts))
    write_text(names["csv"], tidy_csv(arrays, facts, figure.axes))
    made = Made(figure, finding, facts, scale, tuple(names.values()), float(facts["seconds"]))
    write_json(names["json"], made.to_json())
    write_text(names["md"], _note(made))
    return made


def _about_other_settings(finding: Finding, changed: Mapping[str, Any]) -> Finding:
    """What was seen, without a verdict on the paper, if its settings were changed."""
    if not changed:
        return finding
    told = ", ".join(f"{name} = {value}" for name, value in changed.items())
    sentence = f"These are not the paper's settings ({told}): nothing is decided about the paper."
    return replace(finding, seen=f"{sentence} {finding.seen}", verdict=Verdict.NOT_APPLICABLE)


def _note(made: Made) -> str:
    """A page about the figure."""
    source = "The paper says." if made.figure.paper in TITLES else "What is expected."
    finding, figure = made.finding, made.figure
    settings = {name: value for name, value in made.facts.items() if name != "seconds"}
    blocks = [
        f"# {figure.id}: {figure.title}",
        f"![{figure.title}]({figure.id}.png)",
        f"**{source}** {figure.says}",
        f"**Seen.** {finding.seen}",
        f"**Verdict: {finding.verdict.value}.** {finding.verdict.meaning}",
    ]
    if finding.checks:
        judged = [(check.name, check.measured, check.part.verdict.value) for check in finding.checks]
        blocks += ["## Checks", markdown_table(("what is said", "seen in", "verdict"), judged)]
    if finding.table:
        columns = list(dict.fromkeys(name for row in finding.table.values() for name in row))
        rows = [(name, *(short(row.get(column, "")) for column in columns)) for name, row in finding.table.items()]
        blocks += ["## Table", markdown_table(("", *columns), rows)]
    if finding.numbers:
        blocks += ["## Numbers", listed(finding.numbers)]
    blocks += [f"## Settings, attempts and drops (scale {made.scale.value}, {made.seconds:.1f} s)", listed(settings)]
    return "\n\n".join(blocks) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of words under columns.

    >>> print(markdown_table(("H", "loss"), [("1", "0.5")]))
    | H | loss |
    |---|---|
    | 1 | 0.5 |
    """
    lines = [columns, *rows]
    spelt = ["| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines]
    return "\n".join([spelt[0], "|" + "---|" * len(columns), *spelt[1:]])
