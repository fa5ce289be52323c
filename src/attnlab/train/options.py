"""The keywords that are short for an object, resolved in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, cast

from attnlab.checks import instance, number
from attnlab.errors import InputError, message
from attnlab.models.attention import Attention
from attnlab.models.engine import Engine
from attnlab.models.heads import HeadLike
from attnlab.models.model import Model
from attnlab.train.feeding import Feeding, Precision


class LayerOptions(TypedDict, total=False):
    """Short for `model=al.models.Attention(...)`."""

    parameterization: Literal["W", "KQ"]
    head: HeadLike
    train_head: bool
    rank: int | None


class Options(LayerOptions, total=False):
    """The same with what `descend` alone takes."""

    engine: Engine
    init_scale: float
    stop_misalignment: float | None
    stop_seconds: float | None
    batch: int | None
    epochs: int | None
    portion: int | None
    precision: Precision


@dataclass(frozen=True)
class Stops:
    """When a run ends before its last step."""

    misalignment: float | None = None
    seconds: float | None = None


def the_model(model: object, options: LayerOptions) -> Model:
    """`model`, or the layer that the options are short for."""
    fields = {name: "width" if name == "rank" else name for name in options}
    if model is None:
        return Attention(**cast(Any, {fields[name]: value for name, value in options.items()}))
    hint = "al.models.MultiHead(heads=8), or your own subclass of al.Model"
    chosen = instance("model", model, Model, "an al.Model, or None", hint)
    # Where it stands as it is by default it may be said, as a caller that passes options on does.
    given = [name for name, value in options.items() if value != getattr(Attention, fields[name])]
    if given:
        raise InputError(message(f"`{given[0]}` is not for a `model`, which says itself what is trained."))
    return chosen


def split(options: dict[str, Any]) -> tuple[LayerOptions, float, Stops, Feeding]:
    """What belongs to the layer, the scale of the start, when to stop, and how the run is fed."""
    unknown = [
        name for name in options if name not in Options.__annotations__ and name not in LayerOptions.__annotations__
    ]
    if unknown:
        raise TypeError(f"descend() got an unexpected keyword argument {unknown[0]!r}")
    rest = dict(options)
    scale = rest.pop("init_scale", 1.0)
    stops = Stops(rest.pop("stop_misalignment", None), rest.pop("stop_seconds", None))
    for name, value in (("stop_misalignment", stops.misalignment), ("stop_seconds", stops.seconds)):
        if value is not None:
            number(name, value, least=0)
    named = [name for name in ("batch", "epochs", "portion", "precision") if name in rest]
    feeding = Feeding(**{name: rest.pop(name) for name in named})
    return cast(LayerOptions, rest), scale, stops, feeding
