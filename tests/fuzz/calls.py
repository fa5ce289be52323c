"""The table of cases: for every public name how to call it, and how to judge what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fuzz.source import Source


@dataclass(frozen=True)
class Call:
    """A function and its arguments; `facts` for whoever judges the result."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)


Judge = Callable[[Call, Any], str | None]


@dataclass(frozen=True)
class Case:
    """How one public name is called.

    Attributes:
        name: as in the documentation, without `attnlab.`.
        make: a call from a source of choices.
        judge: says what is wrong with a result, or None; raises nothing. Without one, results need only be finite.
        weight: how often it is called, relative to the others.
        covers: further public names that this case calls.
        infinite: results may be infinite, as the documentation says.
        nan: they may be NaN too, and the judge knows where.
    """

    name: str
    make: Callable[[Source], Call]
    judge: Judge | None = None
    weight: float = 1.0
    covers: tuple[str, ...] = ()
    infinite: bool = False
    nan: bool = False

    @property
    def room(self) -> str:
        return self.name.split(".")[0]


CASES: dict[str, Case] = {}


def case(
    name: str,
    *,
    judge: Judge | None = None,
    weight: float = 1.0,
    covers: tuple[str, ...] = (),
    infinite: bool = False,
    nan: bool = False,
) -> Callable[[Callable[[Source], Call]], Callable[[Source], Call]]:
    """Put a maker of calls into the table."""

    def put(make: Callable[[Source], Call]) -> Callable[[Source], Call]:
        assert name not in CASES, name
        CASES[name] = Case(name, make, judge, weight, covers, infinite, nan)
        return make

    return put


def add(name: str, make: Callable[[Source], Call], **more: Any) -> None:
    """The same without a decorator, for tables."""
    case(name, **more)(make)


def table() -> dict[str, Case]:
    """All cases."""
    from fuzz import (  # noqa: F401
        calls_data,
        calls_encoder,
        calls_explore,
        calls_images,
        calls_models,
        calls_multihead,
        calls_probe,
        calls_rates,
        calls_store,
        calls_svm,
        calls_text,
        calls_theory,
        calls_train,
        calls_variants,
        calls_vision,
    )

    return CASES
