"""Checking claims: measured once, kept in the store, judged against what is on record."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from attnlab.checks import flag, one_of
from attnlab.claims.claim import Claim, Outcome
from attnlab.claims.given import id_list
from attnlab.claims.leftout import LeftOut
from attnlab.claims.names import named
from attnlab.claims.scale import Scale, Tell
from attnlab.claims.stages import kept_in
from attnlab.errors import InputError, message
from attnlab.papers import TITLES, parts
from attnlab.store import Store
from attnlab.store.pool import checked_jobs, in_processes
from attnlab.store.reach import reach


@dataclass(frozen=True, eq=False)
class Checked:
    """A claim with its outcome."""

    claim: Claim
    outcome: Outcome
    scale: Scale
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Is the verdict the one on record?"""
        return self.outcome.verdict is self.claim.expected_at(self.scale)

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain JSON."""
        return {
            **self.claim.about(),
            **self.outcome.to_json(),
            "scale": self.scale.value,
            "seconds": self.seconds,
            "as_expected": self.as_expected,
        }


def claims(paper: str | None = None) -> list[Claim]:
    """All claims, or those of one paper, in the order of the paper."""
    modules = [module for key in _papers(paper) for module in parts("claims", key)]
    return [claim for module in modules for claim in module.CLAIMS]


def left_out(paper: str | None = None) -> list[LeftOut]:
    """Statements of the papers, or of one of them, that are not measured, and why."""
    modules = [import_module(f"attnlab.claims.{key}.left_out") for key in _papers(paper)]
    return [statement for module in modules for statement in module.LEFT_OUT]


def _papers(paper: str | None) -> list[str]:
    if paper is not None:
        one_of("paper", paper, tuple(TITLES))
    return [key for key in TITLES if paper in (None, key)]


def find(ids: str | Iterable[str]) -> list[Claim]:
    """The claims of these ids, or of this one, in the order given."""
    wanted = id_list(ids, "claim")
    # Only the papers that are asked for are loaded, unless a name is wrong.
    known = {claim.id: claim for paper in TITLES if _asked(paper, wanted) for claim in claims(paper)}
    if any(name not in known for name in wanted):
        known = {claim.id: claim for claim in claims()}
    return named(known, wanted, "claim", left={statement.id: statement.why for statement in left_out()})


def _asked(paper: str, ids: list[str]) -> bool:
    return any(isinstance(name, str) and name.startswith(f"{paper}-") for name in ids)


def check(
    wanted: Iterable[Claim],
    scale: str | Scale = Scale.QUICK,
    *,
    store: Store | None = None,
    fresh: bool = False,
    jobs: int = 1,
    on_part: Tell | None = None,
) -> list[Checked]:
    """Measure claims, or read what was measured before.

    Args:
        wanted: the claims.
        scale: "smoke", "quick" or "paper".
        store: where outcomes are kept, so that a stopped run goes on where it was; None keeps none. What is kept is
            found again as long as the code that it reaches is the same: attnlab's modules, and of a claim of your own
            also the helpers and globals that its function names.
        fresh: measure again what is kept already.
        jobs: processes (joblib; -1 for all cores); 1 measures here.
        on_part: told (claims done, claims in all, what comes next).

    Returns:
        A `Checked` for each claim, in order.
    """
    scale = Scale.of(scale)
    flag("fresh", fresh)
    wanted = list(wanted)
    for claim in wanted:
        if missing := claim.missing():
            raise InputError(message(f"{claim.id} cannot be measured: {missing}.", "attnlab claim --list"))
    checked_jobs(jobs)
    tell = on_part or (lambda done, total, what: None)
    if jobs != 1 and len(wanted) > 1:
        return _side_by_side(wanted, scale, store, fresh, jobs, tell)
    results = []
    for i, claim in enumerate(wanted):
        tell(i, len(wanted), f"{claim.id}  {claim.title}")
        results.append(_checked(claim, scale, store, fresh))
    tell(len(wanted), len(wanted), "done")
    return results


def _side_by_side(
    wanted: list[Claim],
    scale: Scale,
    store: Store | None,
    fresh: bool,
    jobs: int,
    tell: Tell,
) -> list[Checked]:
    """Claims of the papers in processes, by their ids; claims of the user's own here, since they may not travel."""
    import joblib

    ours = {claim.id for claim in claims()}
    tell(0, len(wanted), "starting")
    calls = [joblib.delayed(_facts)(claim.id, scale, store, fresh) for claim in wanted if claim.id in ours]
    measured: dict[str, dict[str, Any]] = {}
    for name, facts in in_processes(calls, jobs):
        measured[name] = facts
        tell(len(measured), len(wanted), f"{name} done")
    results = []
    for claim in wanted:
        if claim.id in measured:
            facts = measured[claim.id]
            results.append(Checked(claim, Outcome.from_json(facts["outcome"]), scale, facts["seconds"]))
        else:
            results.append(_checked(claim, scale, store, fresh))
    tell(len(wanted), len(wanted), "done")
    return results


def _facts(id: str, scale: Scale, store: Store | None, fresh: bool) -> tuple[str, dict[str, Any]]:
    """One claim, measured in a process of its own."""
    (claim,) = find([id])
    checked = _checked(claim, scale, store, fresh)
    return id, {"outcome": checked.outcome.to_json(), "seconds": checked.seconds}


def _checked(claim: Claim, scale: Scale, store: Store | None, fresh: bool) -> Checked:
    from attnlab import __version__

    def measured() -> tuple[dict[str, Any], dict[str, Any]]:
        began = time.perf_counter()
        with kept_in(None if fresh else store, config):
            outcome = claim.measure(scale)
        return {}, {"outcome": outcome.to_json(), "seconds": time.perf_counter() - began}

    config: dict[str, Any] = {}
    if store is None:
        facts = measured()[1]
    else:
        config = {"id": claim.id, "scale": scale.value, "version": __version__, "reach": reach(claim.measure)}
        given = claim.inputs()
        if given is not None:
            config["inputs"] = given
        facts = store.keep("claim", config, measured, fresh=fresh).facts
    return Checked(claim, Outcome.from_json(facts["outcome"]), scale, facts["seconds"])
