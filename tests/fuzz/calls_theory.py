"""Cases of `attnlab.theory`: geometry, assumptions, cones, constants, fits."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnlab as al
from attnlab import theory
from fuzz import directions
from fuzz.arrays import anything, finite
from fuzz.calls import Call, add, case
from fuzz.material import Sizes, matrix, maybe_tokens, selection, solution, tokens, tokens_of
from fuzz.scalars import choice, number, optional, positive, some_of
from fuzz.source import Source


def head(src: Source) -> Any:
    """Mostly None, the linear head: others are compiled."""
    return src.choose((None, "linear", "wrong", 3, object())) if src.rarely(10) else None


@case("theory.is_locally_optimal", weight=25)
def is_locally_optimal(src: Source) -> Call:
    data = tokens(src)
    chosen = selection(src, data)
    kwargs = {"solution": solution(src, data, chosen), "head": head(src)}
    return Call(al.is_locally_optimal, (maybe_tokens(src, data), chosen), kwargs)


@case("theory.locally_optimal_selections", weight=1.5)
def locally_optimal_selections(src: Source) -> Call:
    data = tokens(src)
    kwargs = some_of(src, {"head": head, "limit": lambda src: src.choose((100, 0, -1, None, 1.5, 2000, "a"))})
    kwargs.setdefault("limit", 30)
    return Call(theory.locally_optimal_selections, (maybe_tokens(src, data),), kwargs)


def on_selection(name: str, weight: float = 5.0, **more: Any) -> None:
    """A function of tokens, a selection and its solution."""

    def make(src: Source) -> Call:
        data = tokens(src)
        chosen = selection(src, data)
        options = {"solution": solution(src, data, chosen)} if name != "score_sides" else {}
        if name != "support_indices":
            options["head"] = head(src)
        return Call(getattr(theory, name), (maybe_tokens(src, data), chosen), options)

    add(f"theory.{name}", make, weight=weight, **more)


for _name in ("support_indices", "local_cone", "default_eps", "score_sides"):
    on_selection(_name, infinite=_name in ("local_cone", "default_eps"))


@case("theory.barrier", weight=5, covers=("theory.in_barrier_cone",), infinite=True)
def barrier(src: Source) -> Call:
    data = tokens(src)
    chosen = selection(src, data)
    args = (maybe_tokens(src, data), chosen, matrix(src, data.d, data.d))
    if src.index(2):
        return Call(theory.barrier, args, {"head": head(src)})
    return Call(theory.in_barrier_cone, args, {"head": head(src), "eps": optional(positive)(src)})


@case("theory.in_cone", weight=5)
def in_cone(src: Source) -> Call:
    shape = (src.choose((2, 1, 3)), src.choose((2, 1, 3)))
    args = (matrix(src, *shape), matrix(src, *shape))
    return Call(theory.in_cone, args, {"mu": number(src), "R": number(src)})


def on_tokens(name: str, options: dict[str, Any], weight: float = 5.0, *, solved: bool = False, **more: Any) -> None:
    """A function of tokens alone."""

    def make(src: Source) -> Call:
        data = tokens(src, queries=bool(src.index(2)))
        kwargs = some_of(src, options)
        if solved and src.rarely(3):
            kwargs["solution"] = solution(src, data, selection(src, data))
        return Call(getattr(theory, name), (maybe_tokens(src, data),), kwargs)

    add(f"theory.{name}", make, weight=weight, **more)


on_tokens("assumption_b1", {"head": head}, solved=True)
on_tokens("assumption_b1_proxy", {"head": head, "threshold": number}, solved=True)
on_tokens("assumption_b2", {"head": head, "tolerance": positive})
on_tokens("assumption_d", {"head": head, "limit": lambda src: src.choose((30, 0, None, -1, 2000))}, 0.7)
on_tokens("assumption_1", {"constants": lambda src: src.choose((None, 3, "a"))})
on_tokens("assumption_2", {"tolerance": positive})
on_tokens("rate_constants", {}, solved=True)
on_tokens("loss_constants", {"loss": choice("logistic", "exponential", "correlation", "squared")}, infinite=True)
on_tokens("lipschitz_constants", {"loss": choice("logistic", "exponential", "correlation")}, infinite=True)


@case("theory.assumption_c", weight=0.4)
def assumption_c(src: Source) -> Call:
    """Compiled for every shape, of which there are three."""
    data = tokens_of(src, src.choose((Sizes(2, 3, 2), Sizes(1, 2, 1), Sizes(2, 3, 2, 2))), v=True)
    kwargs = some_of(src, {"head": head, "loss": choice("logistic", "exponential", "correlation")})
    return Call(theory.assumption_c, (maybe_tokens(src, data),), kwargs)


@case("theory.initialization", weight=3)
def initialization(src: Source) -> Call:
    data = tokens(src, queries=False)
    kwargs = some_of(src, {"k": number})
    return Call(theory.initialization, (maybe_tokens(src, data), positive(src), positive(src)), kwargs)


@case("theory.interpolation_room", weight=2, infinite=True)
def interpolation_room(src: Source) -> Call:
    n = src.choose((2, 1, 3))
    return Call(theory.interpolation_room, (anything(src, (n, n)),))


def curve(src: Source) -> tuple[Any, Any]:
    """Steps and values of a falling curve, or anything of one length."""
    count = src.choose((30, 8, 3, 1, 0, 40))
    steps = np.arange(1.0, count + 1) * src.choose((1.0, 10.0, 0.5, 1e300, -1.0))
    kind = src.choose(("power", "exponential", "constant", "any", "log"))
    with np.errstate(all="ignore"):
        values = {
            "power": np.abs(steps) ** -src.choose((1.0, 0.5, 2.0, 300.0)),
            "exponential": np.exp(-src.choose((0.1, 1.0, 50.0)) * steps),
            "constant": np.full(count, src.choose((1.0, 0.0, -1.0, 1e300, 5e-324))),
            "log": 1.0 / np.log(np.abs(steps) + 1.5),
        }.get(kind)
    if values is None:
        values = finite(src, (count,))
    if src.rarely(8):
        steps = anything(src, (count,))
    if src.rarely(8):
        values = anything(src, (count,))
    return steps, values


FAMILIES = ("power", "log2_over_t", "inverse_log", "stretched", "exponential")


@case("theory.fit_rate", weight=5, infinite=True)
def fit_rate(src: Source) -> Call:
    steps, values = curve(src)
    kwargs = some_of(src, {"family": choice(*FAMILIES), "start": number, "stop": number})
    if src.rarely(4):
        return Call(theory.fit_rate, (steps,), kwargs | {"log_values": values})
    return Call(theory.fit_rate, (steps, values), kwargs)


@case("theory.compare_families", weight=2, infinite=True)
def compare_families(src: Source) -> Call:
    steps, values = curve(src)
    options = {
        "start": number,
        "stop": number,
        "families": lambda src: src.choose((("power",), (), "power", None, 3, ("x",))),
    }
    return Call(theory.compare_families, (steps, values), some_of(src, options))


@case("theory.kernel_distance", weight=5, judge=directions.compared, nan=True)
def kernel_distance(src: Source) -> Call:
    n = src.choose((2, 1, 3))
    lead = (2,) if src.rarely(4) else ()
    return Call(theory.kernel_distance, (anything(src, (*lead, n, n)), anything(src, (*lead, n, n))))


@case("train.cosine", weight=10, covers=("train.misalignment",), judge=directions.compared, nan=True)
def cosine(src: Source) -> Call:
    shape = src.choose(((2, 2), (1, 1), (3, 2), (2, 2, 2), (2,), ()))
    return Call(src.choose((al.cosine, al.misalignment)), (anything(src, shape), anything(src, shape)))
