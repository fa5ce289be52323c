"""What a call came to, and whether that is good enough."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
import warnings
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import Any

from attnlab.errors import AttnlabError, InfeasibleSelection, InputError, TiedScoresWarning
from fuzz.calls import Call, Case, Judge
from fuzz.finite import PROMISING, not_finite
from fuzz.margins import proven
from fuzz.scalars import UsersOwn
from fuzz.source import Source

LONGEST = 60.0  # seconds of the processor for one call; all sizes here are small, or to be refused


TRAINED = ("K", "Q", "W", "u")  # of runs that trained them; others say that there is no such attribute


class Kind(Enum):
    """Outcomes; those after `REFUSED` are faults."""

    RIGHT = "right answer, verified"
    FINITE = "finite answer"
    TYPED = "typed error"
    INFEASIBLE = "infeasible, proven"
    UNDECIDED = "undecided or inaccurate"
    REFUSED = "no answer, with a reason"
    UNTYPED = "untyped exception"
    NOT_FINITE = "silent non-finite value"
    UNCERTIFIED = "wrong or uncertified answer"
    WARNING = "warning escaped"
    VAGUE = "error names no argument"
    TOO_LONG = "took too long"

    @property
    def fault(self) -> bool:
        return self in FAULTS


FAULTS = (Kind.UNTYPED, Kind.NOT_FINITE, Kind.UNCERTIFIED, Kind.WARNING, Kind.VAGUE, Kind.TOO_LONG)


@dataclass(frozen=True)
class Outcome:
    """Of one call: its kind, what was wrong, and where in attnlab."""

    kind: Kind
    what: str = ""  # the exception's type, or the fault
    where: str = ""  # the innermost line of attnlab
    detail: str = ""
    seconds: float = 0.0

    def key(self, name: str) -> tuple[str, str, str, str]:
        """Faults with one key are one fault."""
        return name, self.kind.name, self.what, self.where


class TooLong(BaseException):
    """The call took longer than any of its size may."""


def outcome(case: Case, src: Source) -> tuple[Outcome, Call]:
    """Make the call, and judge what comes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call = case.make(src)
        except Exception as error:  # a fault of the table of cases
            return Outcome(Kind.UNTYPED, "no call was made", _line(error), repr(error)[:300]), Call(case.make)
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as escaped:
        warnings.simplefilter("always")
        found = _watched(case, call)
    seconds = time.perf_counter() - begin
    stray = [w for w in escaped if not issubclass(w.category, TiedScoresWarning)]
    if stray and not found.kind.fault:
        found = _warned(stray[0])
    return Outcome(found.kind, found.what, found.where, found.detail, seconds), call


def _watched(case: Case, call: Call) -> Outcome:
    """The outcome, cut off where it takes too long."""
    before = signal.signal(signal.SIGPROF, _cut)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        return _called(case, call)
    except TooLong as error:
        return Outcome(Kind.TOO_LONG, "", _where(error), f"more than {LONGEST:.0f} s of the processor")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _cut(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _called(case: Case, call: Call) -> Outcome:
    try:
        result = call()
        touch(result)
    except UsersOwn:
        return Outcome(Kind.TYPED)
    except InfeasibleSelection as error:
        return _judged(case.judge or proven, call, error.solution)
    except AttnlabError as error:
        return _refused(error)
    except Exception as error:
        return Outcome(Kind.UNTYPED, type(error).__name__, _where(error), f"{type(error).__name__}: {error}"[:600])
    return _answered(case, call, result)


def touch(result: Any) -> None:
    """Look at a result as a user would: print it, read its properties."""
    repr(result)
    kind = type(result)
    if not kind.__module__.startswith("attnlab"):
        return
    for name in dir(kind):
        if not name.startswith("_") and name not in TRAINED and not callable(getattr(kind, name)):
            getattr(result, name)
    for name in ("summary", "to_json", "describe", "about", "record", "cells", "sections"):
        if hasattr(kind, name):
            getattr(result, name)()
    if hasattr(kind, "frame"):
        with contextlib.suppress(InputError):  # without pandas
            result.frame()


def _refused(error: AttnlabError) -> Outcome:
    text = str(error)
    if "`" not in text:
        return Outcome(Kind.VAGUE, type(error).__name__, _where(error), text[:300])
    return Outcome(Kind.TYPED)


def _answered(case: Case, call: Call, result: Any) -> Outcome:
    """Judge the result itself."""
    bad = None if case.nan else not_finite(result, infinite=case.infinite)
    if bad is not None:
        return Outcome(Kind.NOT_FINITE, bad.split(" holds ")[0], "", bad)
    if case.judge is None:
        return Outcome(_said(result) or Kind.FINITE)
    return _judged(case.judge, call, result)


def _judged(judge: Judge, call: Call, result: Any) -> Outcome:
    """What the judge of a case says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fault = judge(call, result)
        except Exception as error:  # a result that cannot even be judged
            fault = f"not to be judged: {type(error).__name__}: {error}"
    if fault is not None:
        return Outcome(Kind.UNCERTIFIED, _digest(fault), "", fault)
    return Outcome(_said(result) or Kind.RIGHT)


def _said(result: Any) -> Kind | None:
    """Where the result says itself that it is no full answer."""
    status = getattr(result, "status", None)
    name = status.name if isinstance(status, Enum) else ""
    if name in ("INFEASIBLE", "NOT_SEPARABLE"):
        return Kind.INFEASIBLE
    if name in ("UNDECIDED", "INACCURATE", "WIDE"):
        return Kind.UNDECIDED
    if name in PROMISING:
        return None
    if getattr(result, "reason", None):
        return Kind.REFUSED
    return None


def _warned(stray: warnings.WarningMessage) -> Outcome:
    place = f"{stray.filename.rpartition('attnlab/')[2]}:{stray.lineno}"
    return Outcome(Kind.WARNING, stray.category.__name__, place, str(stray.message)[:300])


def _where(error: BaseException) -> str:
    """The innermost line of attnlab's own that was running."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/attnlab/" in frame.filename]
    if not own:
        return "outside of attnlab"
    last = own[-1]
    return f"{last.filename.rpartition('/attnlab/')[2]}:{last.lineno} {last.name}"


def _line(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename.rpartition('/')[2]}:{last.lineno}"


def _digest(fault: str) -> str:
    """The fault without its numbers."""
    return "".join("#" if c.isdigit() else c for c in fault).split(" is #")[0][:60]
