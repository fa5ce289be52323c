"""Cases of `attnlab.models` and `attnlab.optim`. What is compiled has few fixed shapes, so that programs are reused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import attnlab as al
from attnlab import models
from fuzz import runs
from fuzz.arrays import anything, finite, uniform
from fuzz.calls import Call, case
from fuzz.material import Sizes, maybe_tokens, sequences, tokens_of
from fuzz.scalars import choice, flag, junk, number, optional, or_junk, positive, raising, share, small
from fuzz.source import Source
from fuzz.tabled import attempt, row

FIXED = Sizes(2, 3, 2)
BATCH = Sizes(2, 3, 2, None, 2)
MANY = Sizes(2, 3, 2, 2)


def compiled_tokens(src: Source) -> al.Tokens:
    """Hostile numbers in one of three shapes; always with `v`, without mask."""
    return tokens_of(src, src.choose((FIXED, FIXED, FIXED, MANY, BATCH)), masked=False, v=True)


def wrong_shape(x: Any) -> Any:
    return x


def by_numpy(x: Any) -> Any:
    """What JAX cannot trace: a function of NumPy."""
    return float(np.sum(np.asarray(x)))


def none_at_all(x: Any) -> Any:
    return None


def not_a_number(x: Any) -> Any:
    return jnp.nan * jnp.sum(x)


HEADS = ("linear", "relu-sum", models.Linear(), models.ReluSum())
WRONG_HEADS = ("wrong", 3, None, wrong_shape, by_numpy, none_at_all, raising, not_a_number, object(), models.Linear)
LOSSES = ("logistic", "exponential", "correlation")
WRONG_LOSSES = ("wrong", 3, None, by_numpy, none_at_all, raising, wrong_shape, object(), [])


def head(src: Source) -> Any:
    return src.choose(WRONG_HEADS) if src.rarely(15) else src.choose(HEADS)


def loss(src: Source) -> Any:
    return src.choose(WRONG_LOSSES) if src.rarely(15) else src.choose(LOSSES)


def weights(src: Source, data: al.Tokens) -> Any:
    """W, or K and Q; now and then anything."""
    d = data.d
    kind = src.choose(("W", "W", "bare", "KQ", "u", "wrong"))
    if kind == "bare":
        return anything(src, (d, d))
    if kind == "KQ":
        return {"K": anything(src, (d, 2)), "Q": anything(src, (d, 2))}
    if kind == "u":
        return {"W": anything(src, (d, d)), "u": anything(src, (d,))}
    if kind == "wrong" and src.rarely(3):
        return src.choose((None, {}, {"K": np.eye(d)}, {"W": None}, {1: np.eye(d)}, "W", 3, {"W": np.eye(d), "x": 1}))
    return {"W": anything(src, (d, d))}


def evaluation(name: str, *, needs: tuple[str, ...] = ("loss", "head"), **more: Any) -> None:
    """A function of tokens and weights."""

    @case(f"models.{name}", weight=0.45, **more)
    def make(src: Source) -> Call:
        data = compiled_tokens(src)
        kwargs = {key: draw(src) for key, draw in (("loss", loss), ("head", head)) if key in needs}
        if name == "excess_loss":
            kwargs["log"] = flag(src)
        return Call(getattr(models, name), (maybe_tokens(src, data), weights(src, data)), kwargs)


evaluation("loss")
evaluation("excess_loss", judge=runs.exceeded, nan=True)
evaluation("gradient", infinite=True)
evaluation("attention", needs=())


@case("models.softmax", weight=0.45)
def softmax(src: Source) -> Call:
    def function(logits: Any) -> Any:
        with jax.enable_x64(True):
            return models.softmax(jnp.asarray(logits))

    return Call(function, (finite(src, (3,)),))


@case("models.as_head", weight=1.0, covers=("models.Linear", "models.ReluSum", "models.FunctionHead"))
def as_head(src: Source) -> Call:
    return Call(models.as_head, (junk(src) if src.rarely(3) else head(src),))


@case("models.as_loss", weight=1.0)
def as_loss(src: Source) -> Call:
    return Call(models.as_loss, (junk(src) if src.rarely(3) else loss(src),))


row("models.FunctionHead", or_junk(lambda src: by_numpy, 3), options={"name": or_junk(lambda src: "mine", 3)})
row("models.Concave", number)


@case("models.Mlp", weight=1.0)
def mlp(src: Source) -> Call:
    return Call(models.Mlp, (anything(src, (3, 2)),), {"out": anything(src, (3,)) if src.index(2) else None})


@case("models.RoundedMlp", weight=0.5)
def rounded_mlp(src: Source) -> Call:
    return Call(models.RoundedMlp, (anything(src, (3, 2)),), {"width": anything(src, ())})


@case("models.Linear.token_values", weight=0.45, covers=("models.Concave", "models.Mlp", "models.Head"))
def token_values(src: Source) -> Call:
    """Every head values tokens, at any scale."""
    data = compiled_tokens(src)
    made = src.choose((models.Linear, models.ReluSum, lambda: models.Concave(0.5)))()
    if src.rarely(3):
        V = finite(src, (3, 2))
        kind = src.choose((models.Mlp, models.RoundedMlp))
        made = attempt(lambda: kind(V), models.ReluSum)
    return Call(al.scores, (maybe_tokens(src, data), made))


row(
    "models.MultiHead",
    or_junk(lambda src: src.choose((2, 1, 10**6, 10**12))),
    options={
        "decoder": choice("full", "pooling", "last"),
        "counts": lambda src: src.choose(
            (None, [1, 1], [2], [0, 2], [], "a", 3, [np.nan, 1], [1e300], [[1, 1]], [-1, 3])
        ),
        "normalization": optional(number),
        "head_width": choice(None, 1, 2, "d/H"),
    },
)
row(
    "models.Encoder",
    or_junk(lambda src: src.choose((2, 3, 10))),
    options={
        "scaling": choice("sqrt", "linear", 0.5, 1e-300, 1e300),
        "init": choice("lecun", "he", "ntk"),
        "pool": choice("mean", "sum"),
        "hidden_scale": optional(number),
        "tied": flag,
        "depth": small,
        "attention_kind": choice("softmax", "relu", "uniform"),
        "residual": choice(None, "identity", "projected"),
        "feed_forward": choice("identity", "trained"),
        "parameterization": choice("standard", "ntk"),
    },
)
row(
    "models.FullyConnected",
    or_junk(lambda src: src.choose((2, 3, 10))),
    options={
        "layers": choice(2, 3),
        "init": choice("lecun", "he", "ntk"),
        "parameterization": choice("standard", "ntk"),
    },
)

ONE_PER_SEQUENCE = (FIXED, FIXED, BATCH)
HEADS_MODELS = (
    models.MultiHead(1),
    models.MultiHead(2),
    models.MultiHead(10**6, "pooling"),
    models.MultiHead(2, "last"),
)
EVALUATED = ("outputs", "loss", "gradient", "attention", "features", "hessian", "hessian_product", "hidden")
METHODS = (*EVALUATED, "head_shapes", "initial")


def heads_weights(src: Source, model: models.MultiHead, data: al.Tokens, hostile: bool = True) -> Any:
    draw = anything if hostile else uniform
    groups = model.heads if model.heads < 10 else 1
    shape = (groups, data.T, data.d) if model.decoder == "full" else (groups, data.d)
    found: Any = {"U": draw(src, shape), "W": draw(src, (groups, data.d, data.d))}
    if hostile and src.rarely(20):
        return src.choose((None, {}, {"U": found["U"]}, {"W": found["W"]}, 3, "UW", found | {"x": 1}))
    return found


@case("models.MultiHead.outputs", weight=0.45, covers=tuple(f"models.MultiHead.{name}" for name in METHODS))
def multihead_methods(src: Source) -> Call:
    model = src.choose(HEADS_MODELS)
    data = tokens_of(src, src.choose((FIXED, FIXED, BATCH, MANY) if src.rarely(8) else ONE_PER_SEQUENCE), masked=False)
    name = src.choose(METHODS)
    args: tuple[Any, ...] = (maybe_tokens(src, data),)
    if name not in ("head_shapes", "initial"):
        args += (heads_weights(src, model, data),)
    kwargs: dict[str, Any] = {}
    if name == "hessian_product":
        args += (heads_weights(src, model, data),)
    if name in ("loss", "gradient", "hessian", "hessian_product"):
        kwargs["loss"] = loss(src)
    if name in ("hessian", "hessian_product"):
        kwargs["of"] = choice("loss", "output")(src)
    return Call(getattr(model, name), args, kwargs)


@case("models.MultiHead.grouped", weight=0.3)
def grouped(src: Source) -> Call:
    return Call(src.choose(HEADS_MODELS).grouped, (src.choose((1, 2, 3, 0, -1, None, "a", 1.5, 10**25)),))


@case("models.MultiHead.whole_heads", weight=0.2)
def whole_heads(src: Source) -> Call:
    model = models.MultiHead(2, head_width=2)
    weights = model.initial(al.data.sphere(n=2, T=3, d=4, seed=0), seed=src.choose(range(10)))
    return Call(model.whole_heads, (weights,), {})


NETWORKS = (
    models.Encoder(3),
    models.FullyConnected(3),
    models.Encoder(2, init="ntk", residual="identity"),
    models.FullyConnected(3, layers=3),
)
NETWORK_METHODS = (*EVALUATED, "initial")


def network_weights(src: Source, network: Any, data: al.Sequences) -> Any:
    found: Any = {name: anything(src, shape) for name, shape in network.sizes(data.T, data.d).items()}
    if src.rarely(20):
        return src.choose((None, {}, {"W_Q": 1}, 3, found | {"x": 1}, np.eye(2)))
    return found


@case(
    "models.Encoder.outputs",
    weight=0.45,
    covers=tuple(
        f"models.{kind}.{name}" for kind in ("Encoder", "FullyConnected", "Network") for name in NETWORK_METHODS
    ),
)
def network_methods(src: Source) -> Call:
    network = src.choose(NETWORKS)
    data = sequences(src, src.choose(ONE_PER_SEQUENCE))
    name = src.choose(NETWORK_METHODS)
    given = maybe_tokens(src, data) if not isinstance(data, al.Sequences) else data
    given = junk(src) if src.rarely(25) else given
    if name == "initial":
        return Call(network.initial, (given,), {"seed": or_junk(lambda src: src.choose((0, 1, 2**40)))(src)})
    wants_loss = name in ("loss", "gradient", "hessian", "hessian_product")
    kwargs = {"loss": choice("half_sum", "mse_mean", "half_mean")(src)} if wants_loss else {}
    args = (given, network_weights(src, network, data))
    if name == "hessian_product":
        args += (network_weights(src, network, data),)
    return Call(getattr(network, name), args, kwargs)


class WithValues(models.Model):
    """Attention with a trained value matrix, as a user writes it."""

    bias: float = 0.0

    def shapes(self, data):
        return {"W": models.weights((data.d, data.d)), "V": models.weights((data.d, data.d), "uniform")}

    def output(self, weights, example):
        attention = models.softmax(example.x @ weights["W"] @ example.x[0])
        return jnp.sum(weights["V"] @ (attention @ example.x)) + self.bias


USER_METHODS = (*EVALUATED, "initial")


@case("models.Model.outputs", weight=0.3, covers=tuple(f"models.Model.{name}" for name in USER_METHODS))
def user_model_methods(src: Source) -> Call:
    model = WithValues(src.choose((0.0, 1.0)))
    tokens = src.rarely(2)
    data = tokens_of(src, src.choose(ONE_PER_SEQUENCE), masked=False) if tokens else sequences(src, FIXED)
    given = junk(src) if src.rarely(25) else data
    name = src.choose(USER_METHODS)
    if name == "initial":
        return Call(model.initial, (given,), {"seed": or_junk(lambda src: src.choose((0, 1, 2**40)))(src)})
    drawn: Any = {key: anything(src, (data.d, data.d)) for key in ("W", "V")}
    if src.rarely(20):
        drawn = src.choose((None, {}, {"W": drawn["W"]}, 3, drawn | {"x": 1}, np.eye(2)))
    args = (given, drawn, drawn) if name == "hessian_product" else (given, drawn)
    losses = ("half_sum", "logistic", "hinge", "cross_entropy", "mse_mean", *WRONG_LOSSES[:3])
    wants_loss = name in ("loss", "gradient", "hessian", "hessian_product")
    return Call(getattr(model, name), args, {"loss": src.choose(losses)} if wants_loss else {})


LAYER_METHODS = (*EVALUATED, "initial")


@case("models.Attention.outputs", weight=0.3, covers=tuple(f"models.Attention.{name}" for name in LAYER_METHODS))
def layer_methods(src: Source) -> Call:
    model = src.choose((models.Attention(), models.Attention("KQ", width=2), models.Attention(head="relu-sum")))
    data = tokens_of(src, src.choose((FIXED, FIXED, BATCH, MANY)))
    given = maybe_tokens(src, data)
    name = src.choose(LAYER_METHODS)
    if name == "initial":
        return Call(model.initial, (given,), {"seed": or_junk(lambda src: src.choose((0, 1, 2**40)))(src)})
    shapes = {key: weight.shape for key, weight in model.shapes(data).items()}
    drawn: Any = {key: anything(src, shape) for key, shape in shapes.items()}
    if src.rarely(20):
        drawn = src.choose((None, {}, {"Q": 1}, 3, drawn | {"x": 1}))
    args = (given, drawn, drawn) if name == "hessian_product" else (given, drawn)
    wants_loss = name in ("loss", "gradient", "hessian", "hessian_product")
    return Call(getattr(model, name), args, {"loss": loss(src)} if wants_loss else {})


@case("reports.report", weight=0.2, covers=("report",))
def model_report(src: Source) -> Call:
    data = tokens_of(src, src.choose((FIXED, FIXED, BATCH)), masked=False)
    model: Any = src.choose((None, models.Attention(), models.MultiHead(2), WithValues(), models.Encoder(2)))
    if src.rarely(20):
        model = src.choose((3, "encoder", models.MultiHead, object()))
    names = {models.MultiHead: ("U", "W"), WithValues: ("W", "V"), models.Encoder: ("W_Q", "W_K", "W_V", "w_O")}
    drawn: Any = {key: anything(src, (data.d, data.d)) for key in names.get(type(model), ("W",))}
    if isinstance(model, models.MultiHead):
        drawn = heads_weights(src, model, data)
    if isinstance(model, models.Encoder):
        drawn = {key: anything(src, shape) for key, shape in model.sizes(data.T, data.d).items()}
    return Call(al.report, (maybe_tokens(src, data), model, drawn))


row("models.weights", or_junk(lambda src: src.choose(((2, 2), (3,), 4, (0, 1), (10**9, 10**9)))), weight=0.3)
row(
    "models.Attention",
    choice("W", "KQ"),
    head,
    optional(small),
    weight=0.5,
)
row("models.in_float64", or_junk(lambda src: by_numpy, 3), weight=0.3)

# -- Step rules.

cap = or_junk(lambda src: src.choose((np.inf, 1.0, 1e300, 1e-300)))
norms = choice("separate", "joint")
row("optim.gd", positive)
row(
    "optim.ngd",
    positive,
    options={
        "cap": cap,
        "norms": norms,
        "guard": choice("stable", "paper"),
        "eps": positive,
        "regularizer": positive,
    },
)
row("optim.ngd_momentum", positive, options={"momentum": share, "cap": cap, "norms": norms, "form": choice("A", "B")})
row("optim.polyak", options={"cap": cap, "constant": positive, "floor": choice("auto", 0.0, -1.0, 1e300)})
row("optim.heavy_ball", positive, options={"momentum": share})
row("optim.adam", positive, options={"b1": share, "b2": share, "eps": positive, "decay": number})
row("optim.joint_decay", positive, options={"power": number})
row("optim.joint_separate", positive, options={"cap": cap})
row("optim.joint_total", positive, options={"cap": cap})
row("optim.scale_free", or_junk(lambda src: src.choose(FOREIGN), 3), weight=0.3)

MAKERS = {
    "gd": al.gd,
    "ngd": al.ngd,
    "polyak": lambda step: al.polyak(cap=step),
    "adam": al.adam,
    "heavy_ball": al.heavy_ball,
    "ngd_momentum": al.ngd_momentum,
}
FOREIGN = (optax.sgd(0.1), optax.sign_sgd(0.1), optax.adam(0.1))


def rule(src: Source) -> Any:
    """A step rule with a step of any size; rules of one kind share a program. Optax's own now and then."""
    kind = src.index(20)
    if kind == 19:
        return src.choose((None, "gd", 3, 0.1, al.gd, object(), [], {}))
    if kind >= 17:
        return src.choose(FOREIGN)
    step = src.choose((0.1, 1.0, 1e-300, 1e300, 1e-8, 1e8, 5e-324))
    return MAKERS[src.choose(tuple(MAKERS))](step)


@case("optim.StepRule", weight=0.45, infinite=True)
def one_update(src: Source) -> Call:
    """One update of a rule in a plain optax loop."""
    made = MAKERS[src.choose(tuple(MAKERS))](0.1)
    gradient, params = {"W": finite(src, (2, 2))}, {"W": finite(src, (2, 2))}

    def function(gradient: Any, params: Any) -> Any:
        with jax.enable_x64(True):
            extra = {"value": 1.0, "log_excess": 0.0} if made.name == "polyak" else {}
            return made.update(gradient, made.init(params), params, **extra)[0]

    return Call(function, (gradient, params))
