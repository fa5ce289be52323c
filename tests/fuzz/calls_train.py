"""Cases of `attnlab.train` and of what trains, compiles or reports: small shapes, few steps, a small weight."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import attnlab as al
from attnlab import models, theory, train
from attnlab.theory import multihead
from fuzz import runs
from fuzz.arrays import anything, finite
from fuzz.calls import Call, case
from fuzz.calls_models import (
    BATCH,
    FIXED,
    HEADS_MODELS,
    NETWORKS,
    compiled_tokens,
    head,
    heads_weights,
    loss,
    network_weights,
    rule,
    weights,
)
from fuzz.material import maybe_tokens, plain_tokens, selection, sequences, tokens, tokens_of
from fuzz.scalars import (
    choice,
    flag,
    junk,
    number,
    optional,
    or_junk,
    or_modest_junk,
    positive,
    raising,
    seed,
    share,
    small,
    some_of,
)
from fuzz.source import Source
from fuzz.tabled import row

row("train.log_spaced", or_junk(lambda src: src.choose((30, 0, 1, 10**6, -5, 10**15))), options={"per_decade": small})

steps = or_modest_junk(lambda src: src.choose((3, 0, 1, 2)), 10)
records = or_junk(lambda src: src.choose((3, [0, 3], None, [], [1], range(2), np.array([0, 1]), (0,))), 8)
init_names = choice("uniform", "gaussian", "zeros")


def init(src: Source) -> Any:
    if src.rarely(3):
        return anything(src, (2, 2))
    return init_names(src)


def targets(src: Source) -> Any:
    if src.rarely(3):
        return src.choose(
            (3, "a", {}, {"a": np.eye(2)}, {1: np.eye(2)}, [np.eye(2)], np.zeros((2, 2)), {"u": np.ones(2)})
        )
    return anything(src, (2, 2))


def metric_that_sums(view: Any) -> Any:
    return view.W.sum()


def metrics(src: Source) -> Any:
    return src.choose(
        (
            None,
            {"sum": metric_that_sums},
            {},
            {"bad": raising},
            {"bad": np.linalg.norm},
            3,
            [metric_that_sums],
            {1: metric_that_sums},
            {"loss": metric_that_sums},
            {"none": len},
        )
    )


def on_step(src: Source) -> Any:
    return src.choose((None, quiet, raising, 3))


def quiet(progress: Any) -> None:
    """A callback that does nothing."""


DESCENT = {
    "parameterization": choice("W", "KQ"),
    "init": init,
    "init_scale": or_junk(lambda src: src.choose((1.0, 0.0, 1e-300, 1e300))),
    "seed": seed,
    "record": records,
    "targets": targets,
    "track": lambda src: src.choose((None, [0, 0], [5, 5], "a", 3, [0.5, 1])),
    "on_step": on_step,
    "stop_misalignment": optional(number, 4),
    "stop_seconds": optional(number, 4),
    "train_head": flag,
    "rank": optional(small),
    "engine": choice("auto", "direct", "kernel"),
    "metrics": metrics,
    "resume": lambda src: src.choose((nothing, nothing, lambda: "part.npz", lambda: 3, finished_run))(),
    "test": lambda src: src.choose((None, None, 3)),
    "batch": or_junk(lambda src: src.choose((1, 2, 3, 100))),
    "portion": optional(small),
    "precision": choice("float64", "float32"),
}


def nothing() -> None:
    """Nothing to go on from."""


@cache
def finished_run() -> Any:
    return al.descend(al.data.sphere(n=2, T=3, d=2, seed=1), al.gd(0.1), steps=3, record=[0, 3])


@case("train.descend", judge=runs.descended, weight=0.2, covers=("train.Trajectory", "train.Status"))
def descend(src: Source) -> Call:
    data = compiled_tokens(src)
    kwargs = {"steps": steps(src), "record": src.choose(([0, 3], None))}
    if not (isinstance(kwargs["steps"], int) and kwargs["steps"] == 3):
        kwargs["record"] = src.choose((None, 3))
    kwargs |= some_of(src, DESCENT, 8)
    if src.rarely(3):
        kwargs |= {"loss": loss(src), "head": head(src)}
    return Call(al.descend, (maybe_tokens(src, data), rule(src)), kwargs)


@case("train.descend: models", weight=0.1)
def descend_models(src: Source) -> Call:
    """Several heads, and networks."""
    if src.index(2):
        data: Any = tokens_of(src, src.choose((FIXED, BATCH)), masked=False)
        kwargs: dict[str, Any] = {"model": src.choose(HEADS_MODELS), "init": choice("zeros", "gaussian")(src)}
    else:
        data, kwargs = sequences(src, src.choose((FIXED, BATCH))), {"model": src.choose(NETWORKS)}
    if src.rarely(12):
        kwargs["model"] = src.choose((3, "encoder", models.MultiHead, object()))
    kwargs |= {"steps": 3, "record": [0, 3]} | some_of(src, {"seed": seed, "on_step": on_step, "record": records}, 6)
    return Call(al.descend, (maybe_tokens(src, data), rule(src)), kwargs)


@case("train.run_config", weight=0.5)
def run_config(src: Source) -> Call:
    data = tokens_of(src, FIXED, masked=False)
    options = {"steps": steps, "seed": seed, "loss": loss, "head": head, "strict": flag, "record": records}
    return Call(train.run_config, (maybe_tokens(src, data), rule(src)), some_of(src, options))


FLOW = {
    "parameterization": choice("W", "KQ"),
    "loss": loss,
    "head": head,
    "init": init,
    "seed": seed,
    "init_scale": or_junk(lambda src: src.choose((1.0, 0.0, 1e-300, 1e300))),
    "rtol": share,
    "atol": share,
    "record": or_junk(lambda src: src.choose((2, [1.0], None, [], [0.0, 1.0], 10))),
    "targets": targets,
    "on_step": on_step,
    "rank": optional(small),
    "metrics": metrics,
}


@case("train.flow", judge=runs.flowed, weight=0.1, covers=("train.FlowTrajectory", "train.FlowStatus"), infinite=True)
def flow(src: Source) -> Call:
    data = tokens_of(src, src.choose((FIXED, FIXED, BATCH)), masked=False, v=True)
    kwargs: dict[str, Any] = {
        "time": positive(src),
        "max_steps": src.choose((100, 20, 1, 0, -1, None, 1.5)),
        "record": None,
    }
    return Call(al.flow, (maybe_tokens(src, data),), kwargs | some_of(src, FLOW, 8))


PATH = {
    "radii": lambda src: src.choose(((1,), (1, 3), (0,), (), (3, 1), (np.nan,), "ab", 3, (1e300,), (1e-300,), None)),
    "norm": choice("frobenius", "nuclear"),
    "loss": loss,
    "head": head,
    "measure": choice("log excess", "loss"),
    "m": optional(small),
    "selected": optional(lambda src: src.choose(([0, 0], [1, 2], [9, 9], "a"))),
    "cone": optional(number, 5),
    "seed": seed,
    "on_step": on_step,
    "toward": lambda src: anything(src, (2, 2)),
}


@case(
    "train.regularization_path", weight=0.06, covers=("train.RegularizationPath", "train.PathStatus"), judge=runs.walked
)
def regularization_path(src: Source) -> Call:
    data = tokens_of(src, FIXED, masked=False, v=True)
    kwargs = {"radii": (1,), "restarts": src.choose((1, 0, -1, None)) if src.rarely(5) else 1} | some_of(src, PATH, 5)
    return Call(al.regularization_path, (maybe_tokens(src, data),), kwargs)


# -- Tangent kernels, curvature, reports.


def model_data_weights(src: Source) -> tuple[Any, Any, Any]:
    """A model (None: one layer), data it takes, weights it has."""
    kind = src.index(3)
    if kind == 0:
        data = tokens_of(src, FIXED, masked=False, v=True)
        return None, data, weights(src, data)
    if kind == 1:
        data, model = tokens_of(src, FIXED, masked=False), src.choose(HEADS_MODELS)
        return model, data, heads_weights(src, model, data)
    network, data = src.choose(NETWORKS), sequences(src, FIXED)
    return network, data, network_weights(src, network, data)


block = or_junk(lambda src: src.choose((8_000_000, 1, 100)), 8)


@case("theory.ntk", weight=0.5, covers=("theory.ntk_eigenvalues",))
def ntk(src: Source) -> Call:
    model, data, given = model_data_weights(src)
    function = src.choose((theory.ntk, theory.ntk_eigenvalues))
    return Call(function, (maybe_tokens(src, data), given, model), some_of(src, {"block": block, "head": head}, 6))


@case("theory.hessian_norm", weight=0.3, covers=("theory.Curvature",))
def hessian_norm(src: Source) -> Call:
    model, data, given = model_data_weights(src)
    index = or_junk(lambda src: src.choose((0, 1)), 4)
    options = {"sequence": index, "query": index, "tolerance": positive, "seed": seed, "head": head}
    return Call(theory.hessian_norm, (maybe_tokens(src, data), given, model), some_of(src, options, 6))


@case("theory.multihead.ntk_gram", weight=0.3, covers=("theory.multihead.ntk_margin",))
def ntk_gram(src: Source) -> Call:
    data, model = tokens_of(src, FIXED, masked=False), src.choose(HEADS_MODELS)
    given = (maybe_tokens(src, data), junk(src) if src.rarely(25) else model, heads_weights(src, model, data))
    if src.index(2):
        return Call(multihead.ntk_gram, given, some_of(src, {"block": block}, 6))
    return Call(multihead.ntk_margin, given, some_of(src, {"block": block, "tolerance": positive}, 6))


@case("good_initialization", weight=0.2, infinite=True)
def good_initialization(src: Source) -> Call:
    data, model = tokens_of(src, FIXED, masked=False), src.choose(HEADS_MODELS)
    options = {"steps": small, "step": positive, "R": positive, "sharp": flag}
    return Call(
        al.good_initialization,
        (maybe_tokens(src, data), model, heads_weights(src, model, data)),
        some_of(src, options),
    )


@case("reports.inspect", weight=2, covers=("inspect",), infinite=True)
def inspect(src: Source) -> Call:
    data = tokens(src)
    options = {"draws": or_junk(lambda src: src.choose((2, 0, 1, 5))), "seed": seed, "tolerance": optional(positive)}
    return Call(al.inspect, (maybe_tokens(src, data), anything(src, (data.d, data.d))), some_of(src, options))


@case("reports.stability", weight=0.1)
def stability(src: Source) -> Call:
    data, model = tokens_of(src, FIXED, masked=False), src.choose(HEADS_MODELS)
    kwargs = {"steps": src.choose((2, 0, -1, None)), "init": choice("zeros", "gaussian")(src), "record": None}
    return Call(al.reports.stability, (maybe_tokens(src, data), model, rule(src)), kwargs)


@case("encoder_report", weight=0.2, infinite=True)
def encoder_report(src: Source) -> Call:
    network, data = src.choose(NETWORKS), sequences(src, FIXED)
    options = {
        "loss": choice("half_sum", "mse_mean"),
        "step": optional(positive),
        "seed": seed,
        "radius": or_junk(lambda src: src.choose((1.0, {"Q": 1.0}, 1e300))),
    }
    given = network_weights(src, network, data) if src.index(2) else None
    return Call(al.encoder_report, (maybe_tokens(src, data), network, given), some_of(src, options))


@case("rates", weight=0.01, infinite=True)
def rates(src: Source) -> Call:
    data = tokens_of(src, FIXED, masked=False, v=True) if src.index(2) else plain_tokens(src, FIXED)
    rules = src.choose(([al.ngd(0.1)], {"ngd": al.ngd(0.1)}, [], {}, 3, "ngd", [3], {"a": None}))
    options = {
        "loss": loss,
        "levels": lambda src: src.choose(((0.9,), (), (2.0,), "a", 3, (np.nan,))),
        "seed": seed,
        "train_head": choice(None, True, False),
        "parameterization": choice("W", "KQ"),
        "norm": choice(None, "frobenius", "nuclear"),
        "record": records,
        "fit_start": optional(number),
        "selected": optional(lambda src: selection(src, data)),
    }
    return Call(
        al.rates,
        (maybe_tokens(src, data), rules),
        {"steps": src.choose((20, 1, 0, -1, None))} | some_of(src, options, 6),
    )


@case("limits", weight=0.01, infinite=True)
def limits(src: Source) -> Call:
    data = tokens_of(src, FIXED, masked=False, v=True) if src.index(2) else plain_tokens(src, FIXED)
    options = {
        "rule": choice(None, al.ngd(0.1), al.adam(0.1), 3),
        "parameterization": choice("W", "KQ", "V", 3),
        "loss": loss,
        "seed": seed,
        "init_scale": or_junk(lambda src: src.choose((1.0, 0.0, 1e3))),
        "enumerate_up_to": choice(0, 100, -1, "a"),
    }
    starts = src.choose((3, 1, 0, -1, "a"))
    return Call(
        al.limits, (maybe_tokens(src, data), starts), {"steps": src.choose((20, 1, 0))} | some_of(src, options, 4)
    )


# -- Files.


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="attnlab-fuzz-"))


@cache
def plain_flow() -> Any:
    return al.flow(al.data.two_tokens(), time=10.0, record=[1.0])


def path(src: Source) -> Any:
    """A place for a file: a good one, or none at all."""
    good = folder() / f"file{src.index(3)}.npz"
    return (
        src.choose(
            (good, str(good), folder(), "", None, 3, "/nowhere/at/all.npz", "/proc/x.npz", "\0", b"x", [], "x" * 5000)
        )
        if (src.rarely(3))
        else good
    )


def saved(name: str, owner: Any) -> None:
    @case(f"{name}.save", weight=0.7 if name.startswith("data") else 0.2)
    def make(src: Source) -> Call:
        return Call(owner(src).save, (path(src),))


saved("data.Tokens", lambda src: tokens_of(src, FIXED))
saved("data.Sequences", sequences)
saved("train.Trajectory", lambda src: finished_run())
saved("train.FlowTrajectory", lambda src: plain_flow())


def damaged(src: Source) -> Any:
    """A file as it should be, of another kind, cut short, or with a byte changed."""
    target = folder() / f"damaged{src.index(3)}.npz"
    makers = (
        lambda: tokens_of(src, FIXED).save(target),
        lambda: sequences(src, FIXED).save(target),
        lambda: finished_run().save(target),
        lambda: plain_flow().save(target),
        lambda: np.savez(target, x=finite(src, (2, 3, 2)), y=np.ones(2), z=finite(src, (2, 2))),
        lambda: np.savez(target, x=np.array([object()], dtype=object)),
        lambda: target.write_bytes(b""),
        lambda: target.write_bytes(b"PK\x03\x04 not a zip"),
        lambda: np.save(target.open("wb"), np.ones(3)),
        lambda: target.write_text("x,y\n1,2\n"),
    )
    src.choose(makers)()
    content = target.read_bytes()
    change = src.choose(("none", "none", "cut", "byte"))
    if content and change == "cut":
        target.write_bytes(content[: src.index(len(content))])
    if content and change == "byte":
        at = src.index(len(content))
        target.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
    return path(src) if src.rarely(8) else target


for _name, _owner in (
    ("data.Tokens", al.Tokens),
    ("data.Sequences", al.Sequences),
    ("train.Trajectory", train.Trajectory),
    ("train.FlowTrajectory", train.FlowTrajectory),
):
    row(f"{_name}.load", damaged, weight=0.4)
