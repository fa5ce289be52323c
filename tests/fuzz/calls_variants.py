"""Cases of the variants of attention: value matrices, trained queries and heads, single heads as tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab import models
from fuzz.arrays import anything, finite
from fuzz.calls import Call, case
from fuzz.material import Sizes, maybe_tokens, tokens_of
from fuzz.scalars import choice, junk, number, optional, or_junk, small
from fuzz.source import Source
from fuzz.tabled import row

FIXED = Sizes(2, 3, 2)
MANY = Sizes(2, 3, 2, 2)
READY = (
    models.CrossAttention(),
    models.CrossAttention(None, values=None, query="trained"),
    models.CrossAttention(values=None, head=models.TrainedMlp(2)),
)
ASKED = (
    "outputs",
    "attention",
    "loss",
    "gradient",
    "features",
    "hessian",
    "hidden",
    "vectors",
    "tokens_of",
)
EVERY = ("Attention", "Bert", "Encoder", "FullyConnected", "Gpt2", "Model", "MultiHead", "VisionTransformer")

row("models.Along", lambda src: anything(src, (2,)))
row("models.TrainedLinear")
row("models.TrainedMlp", or_junk(small), options={"kink_width": number})
row(
    "models.CrossAttention",
    options={
        "parameterization": choice("W", "KQ", None),
        "width": optional(small),
        "values": lambda src: src.choose(("square", None, 2, 0, "wide", True, -1)),
        "query": choice("data", "first", "trained"),
        "head": lambda src: src.choose(("linear", None, (), models.TrainedLinear(), ("linear", "linear"), 3, "wrong")),
        "frozen": lambda src: src.choose(((), ("V",), "V", (3,), 3, None)),
    },
)


def given(src: Source, model: Any, data: Any) -> Any:
    """Weights of the right shapes, or anything."""
    if src.rarely(6):
        return junk(src)
    return {name: finite(src, weight.shape) for name, weight in model.shapes(data).items()}


@case(
    "models.CrossAttention.outputs",
    weight=0.3,
    covers=(
        *(f"models.CrossAttention.{name}" for name in ASKED),
        *(f"models.{name}.tokens_of" for name in EVERY),
        "models.CrossAttention.hessian_product",
        "models.CrossAttention.initial",
    ),
)
def asked(src: Source) -> Call:
    data, model = tokens_of(src, FIXED, masked=False, v=True), src.choose(READY)
    name = src.choose(ASKED)
    return Call(getattr(model, name), (maybe_tokens(src, data), given(src, model, data)))


@case("theory.assumption_e", weight=0.3, infinite=True)
def assumption_e(src: Source) -> Call:
    from attnlab import theory

    data = tokens_of(src, src.choose((FIXED, MANY)), masked=False, v=True)
    heads = ("linear", "relu-sum", None, models.Concave(0.5), models.Along(np.ones(2)), ("linear", "relu-sum"), 3)
    kwargs = {"head": src.choose(heads), "samples": src.choose((8, 0, -1, None)) if src.rarely(5) else 8}
    return Call(theory.assumption_e, (maybe_tokens(src, data),), kwargs)
