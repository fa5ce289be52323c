"""Cases of transformers on images, and of runs by batches."""

from __future__ import annotations

from typing import Any

import attnlab as al
from attnlab import models
from fuzz.arrays import anything, finite
from fuzz.calls import Call, case
from fuzz.calls_models import EVALUATED, rule
from fuzz.scalars import choice, flag, junk, optional, or_junk, seed, share, small, some_of
from fuzz.source import Source
from fuzz.tabled import row

row(
    "models.VisionTransformer",
    or_junk(lambda src: src.choose((3, None, 2))),
    or_junk(lambda src: src.choose((2, 1, 4))),
    options={
        "channels": small,
        "dim": or_junk(lambda src: src.choose((4, 8))),
        "depth": small,
        "heads": or_junk(lambda src: src.choose((1, 2, 3))),
        "head_dim": optional(small),
        "mlp": or_junk(lambda src: src.choose((0, 4))),
        "pool": choice("cls", "mean"),
        "tokenization": choice("patch", "shifted"),
        "locality": flag,
        "scaling": choice("sqrt", "linear"),
        "position_scale": or_junk(lambda src: src.choose((1.0, 0.0, 0.02, 1e300))),
        "norm": flag,
        "dropout": share,
        "fold": optional(flag),
        "grid": lambda src: src.choose((None, (2, 2), (1, 4), (0, 1), 3, "ab", (2, 2, 2), [2, 2])),
    },
)

SMALL = {"patch": 1, "channels": 2, "dim": 4, "heads": 2, "mlp": 3}
TRANSFORMERS = (
    models.VisionTransformer(classes=3, **SMALL),
    models.VisionTransformer(classes=None, **SMALL, pool="mean", norm=False, position_scale=0.0),
    models.VisionTransformer(classes=3, **SMALL, tokenization="shifted", locality=True, head_dim=6),
)
VISION_METHODS = (*EVALUATED, "initial")


def patches(src: Source, model: Any) -> Any:
    """Four patches of two numbers, of two images; labels of any kind, classes more often."""
    y = anything(src, (2,)) if src.rarely(4) or model.classes is None else src.choose(([0, 1], [2, 2], [0, 3]))
    try:
        return al.Sequences(x=finite(src, (2, 4, 2)), y=y)
    except al.InputError:
        return al.Sequences(x=finite(src, (2, 4, 2)), y=[0, 1])


@case(
    "models.VisionTransformer.outputs",
    weight=0.1,
    covers=tuple(f"models.VisionTransformer.{name}" for name in VISION_METHODS),
)
def vision_methods(src: Source) -> Call:
    model = src.choose(TRANSFORMERS)
    data = patches(src, model)
    name = src.choose(VISION_METHODS)
    given = junk(src) if src.rarely(25) else data
    if name == "initial":
        return Call(model.initial, (given,), {"seed": seed(src)})
    drawn: Any = model.initial(al.Sequences(x=[[[0.0, 0.0]] * 4] * 2, y=[0, 1]), seed=src.index(3))
    if src.rarely(2):
        which = src.choose(tuple(drawn))
        drawn = drawn | {which: anything(src, drawn[which].shape)}
    if src.rarely(20):
        drawn = src.choose((None, {}, 3, drawn | {"x": 1}))
    args = (given, drawn, drawn) if name == "hessian_product" else (given, drawn)
    wants_loss = name in ("loss", "gradient", "hessian", "hessian_product")
    loss = choice("cross_entropy", "half_sum", "logistic")
    return Call(getattr(model, name), args, {"loss": loss(src)} if wants_loss else {})


FEEDING = {
    "batch": or_junk(lambda src: src.choose((1, 2, 3))),
    "epochs": or_junk(lambda src: src.choose((1, 2))),
    "portion": or_junk(lambda src: src.choose((1, 2, 100))),
    "precision": choice("float64", "float32"),
    "record": lambda src: src.choose((None, "epochs", [0, 2], 3, "steps")),
    "seed": seed,
}


@case("train.descend: batches", weight=0.06)
def descend_in_batches(src: Source) -> Call:
    model = src.choose(TRANSFORMERS)
    kwargs: dict[str, Any] = {"model": model, "batch": src.choose((1, 2)), "record": None}
    if model.classes is None:
        kwargs["loss"] = "mse_mean"
    kwargs |= {"epochs": 1} if src.index(2) else {"steps": src.choose((2, 0, 3))}
    return Call(al.descend, (patches(src, model), rule(src)), kwargs | some_of(src, FEEDING, 4))
