"""Several figures at once, in processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attnlab.claims.scale import Scale, Tell
from attnlab.errors import InputError, message
from attnlab.figures.figure import Facts, Figure, Finding, Made, find, make
from attnlab.store import Store
from attnlab.store.pool import checked_jobs, in_processes

Answer = tuple[str, Finding, Facts, tuple[Path, ...], float]


def make_all(
    wanted: Iterable[Figure | str],
    scale: str | Scale = Scale.QUICK,
    *,
    out: Path | str = "figures",
    store: Store | None = None,
    fresh: bool = False,
    jobs: int = -1,
    on_part: Tell | None = None,
    **settings: Any,
) -> list[Made]:
    """Figures in several processes; each as by `make`, with the same numbers.

    Args:
        wanted: figures, or their ids.
        jobs: processes; -1 for all cores.
        scale, out, store, fresh, settings: as of `make`. With a store, what is finished stays when one fails.
        on_part: told (figures done, figures in all, what is done).

    Returns:
        A `Made` for each figure, in order.
    """
    import joblib

    checked_jobs(jobs)
    scale, tell = Scale.of(scale), on_part or (lambda done, total, what: None)
    chosen = [find(figure)[0] if isinstance(figure, str) else figure for figure in wanted]
    for figure in chosen:
        if missing := figure.missing():
            raise InputError(message(f"{figure.id} cannot be made: {missing}.", "attnlab figure --list"))
    tell(0, len(chosen), "starting")
    groups = _by_data(chosen)
    calls = [joblib.delayed(_made)(group, scale, out, store, fresh, settings) for group in groups]
    answers: dict[str, Answer] = {}
    for group in in_processes(calls, jobs):
        answers |= {answer[0]: answer for answer in group}
        tell(len(answers), len(chosen), f"{', '.join(answer[0] for answer in group)} done")
    made = []
    for figure in chosen:
        _, finding, facts, files, seconds = answers[figure.id]
        made.append(Made(figure, finding, facts, scale, files, seconds))
    return made


def _by_data(chosen: Sequence[Figure]) -> list[list[Figure]]:
    """Figures of the same data together, so that these are computed once."""
    groups: dict[str, list[Figure]] = {}
    for figure in chosen:
        groups.setdefault(figure.shares or figure.id, []).append(figure)
    return list(groups.values())


def _made(
    group: list[Figure], scale: Scale, out: Path | str, store: Store | None, fresh: bool, settings: dict[str, Any]
) -> list[Answer]:
    """In a process of its own. Of figures that share data the first computes them, and the others read."""
    answers = []
    for number, figure in enumerate(group):
        made = make(figure, scale, out=out, store=store, fresh=fresh and number == 0, **settings)
        answers.append((figure.id, made.finding, made.facts, made.files, made.seconds))
    return answers
