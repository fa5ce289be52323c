"""Hostile calls of everything in the rooms of training, and what may come of them.

`python tests/train/hostile_calls.py 2000` tries so many and counts the outcomes.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from decimal import Decimal
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax

import attnlab as al
from attnlab.train import FlowStatus, Status

# One shape for all calls, so that they share compiled programs.
N, T, D = 2, 3, 3
BASE = al.data.sphere(n=N, T=T, d=D, seed=3)
BATCH = al.data.sphere(n=N, T=T, d=D, seed=3, trials=2)
SEQUENCES = al.Sequences(x=BASE.x, y=[0.5, -1.0])
MODEL, HEADS = al.models.Encoder(4), al.models.MultiHead(2)
ENCODED = MODEL.initial(SEQUENCES)
HEADED = {"U": np.ones((2, T, D)), "W": np.zeros((2, D, D))}


class Unreadable:
    """Raises whatever is asked of it."""

    def __repr__(self):
        raise RuntimeError("no")

    def __array__(self, *_, **__):
        raise RuntimeError("no")


def numpy_head(output):
    return float(np.sum(np.asarray(output)))


def vector_head(output):
    return output


def branching(u):
    return u if u > 0 else -u


def whole_loss(u):
    return jnp.round(u).astype(int)


# What no argument of any call may break on.
ANYTHING = [
    None, True, False, 0, -1, 1.5, 7, 10**400, -(10**30), np.nan, np.inf, -np.inf, 5e-324, 1e308, "a", "", b"a", 1j,
    [], {}, (), [[1, 2], [3]], object(), Unreadable(), Decimal("0.1"), np.float32(0.5), np.int8(3), np.array("x"),
    np.zeros((0, 3)), np.full((D, D), np.nan), np.full((D, D), 1e308), np.full((D, D), 5e-324), np.eye(D),
    np.eye(D + 1), np.eye(D)[None], np.eye(D, dtype=complex), np.ma.masked_equal(np.eye(D), 1.0), np.array([object()]),
    np.eye(D) > 0, {"W": np.eye(D)},
    {"K": np.eye(D), "Q": np.eye(D)}, {"K": np.eye(D)}, {"W": "a"}, {5: 6}, {"U": 1, "W": 2},
    lambda: 1, lambda *_: 1.0, lambda *_: "a", numpy_head, vector_head, branching, whole_loss, np.sum, jnp.sum, int,
    al.ngd(0.1), al.ngd, optax.sgd, optax.sgd(0.1), BASE, BATCH, SEQUENCES, MODEL, HEADS, Status.FINISHED, "part.npz",
    range(3), [0, 2], iter([1]), np.arange(3), np.datetime64("2020"), [np.nan], ["W"],
]  # fmt: skip

SCALES = [1e-320, 1e-300, 1e-200, 1e-110, 1e-30, 1.0, 1e30, 1e110, 1e200, 1e300]
RULES = {
    "gd": al.gd(0.1),
    "ngd": al.ngd(0.1),
    "polyak": al.polyak(),
    "adam": al.adam(0.1),
    "joint": al.joint_total(0.1),
    "optax": optax.sign_sgd(0.1),
    "scale_free": al.optim.scale_free(optax.sign_sgd(0.1)),
}
RUN = {"steps": 6, "record": [0, 3, 6]}

# Every public function of training, models and rules, with arguments that are good.
CALLS = {
    "descend": (al.descend, {"tokens": BASE, "rule": RULES["ngd"], **RUN}, (
        "tokens", "rule", "model", "parameterization", "loss", "head", "train_head", "rank", "init", "init_scale",
        "seed", "record", "metrics", "targets", "track", "on_step", "stop_misalignment", "stop_seconds", "resume",
        "engine", "test",
    )),
    "descend KQ": (al.descend, {"tokens": BATCH, "rule": RULES["gd"], "parameterization": "KQ", **RUN}, (
        "rank", "init", "targets", "track", "train_head",
    )),
    "descend heads": (al.descend, {"tokens": BASE, "rule": RULES["gd"], "model": HEADS, "init": "gaussian", **RUN}, (
        "tokens", "init", "init_scale", "seed", "targets", "track", "test", "loss", "rank", "head", "metrics",
    )),
    "descend encoder": (al.descend, {"tokens": SEQUENCES, "rule": RULES["gd"], "model": MODEL, **RUN}, (
        "tokens", "init", "init_scale", "seed", "targets", "track", "test", "loss", "metrics",
    )),
    "steps": (al.descend, {"tokens": BASE, "rule": RULES["ngd"], "record": None}, ("steps",)),
    "flow": (al.flow, {"tokens": BASE, "time": 10.0, "record": [0.0, 10.0]}, (
        "tokens", "time", "parameterization", "loss", "head", "rank", "init", "init_scale", "seed", "record", "metrics",
        "targets", "track", "rtol", "atol", "max_steps", "on_step",
    )),
    "path": (al.regularization_path, {"tokens": BASE, "radii": (1.0, 2.0), "restarts": 1}, (
        "tokens", "toward", "radii", "norm", "loss", "head", "measure", "m", "selected", "cone", "seed", "on_step",
    )),
    "cosine": (al.cosine, {"a": np.eye(D), "b": np.eye(D)}, ("a", "b")),
    "misalignment": (al.misalignment, {"a": np.eye(D), "b": np.eye(D)}, ("a", "b")),
    "loss": (al.models.loss, {"tokens": BASE, "weights": np.eye(D)}, ("tokens", "weights", "loss", "head")),
    "excess": (al.models.excess_loss, {"tokens": BASE, "weights": np.eye(D)}, ("tokens", "weights", "loss", "log")),
    "attention": (al.models.attention, {"tokens": BASE, "weights": np.eye(D)}, ("tokens", "weights")),
    "gradient": (al.models.gradient, {"tokens": BASE, "weights": np.eye(D)}, ("tokens", "weights", "loss", "head")),
    "gd": (al.gd, {"step": 0.1}, ("step",)),
    "ngd": (al.ngd, {"step": 0.1}, ("step", "cap", "norms", "guard", "eps", "regularizer")),
    "ngd_momentum": (al.ngd_momentum, {"step": 0.1}, ("step", "momentum", "cap", "norms", "form")),
    "polyak": (al.polyak, {}, ("cap", "constant", "floor")),
    "heavy_ball": (al.heavy_ball, {"step": 0.1}, ("step", "momentum")),
    "adam": (al.adam, {"step": 0.1}, ("step", "b1", "b2", "eps")),
    "joint_decay": (al.joint_decay, {"step": 0.1}, ("step", "power")),
    "joint_separate": (al.joint_separate, {"step": 0.1}, ("step", "cap")),
    "joint_total": (al.joint_total, {"step": 0.1}, ("step", "cap")),
    "scale_free": (al.optim.scale_free, {"rule": optax.sign_sgd(0.1)}, ("rule",)),
    "MultiHead": (al.models.MultiHead, {"heads": 2}, ("heads", "decoder", "counts", "normalization", "head_width")),
    "MultiHead.outputs": (HEADS.outputs, {"data": BASE, "weights": HEADED}, ("data", "weights")),
    "MultiHead.loss": (HEADS.loss, {"data": BASE, "weights": HEADED}, ("data", "weights", "loss")),
    "MultiHead.gradient": (HEADS.gradient, {"data": BASE, "weights": HEADED}, ("data", "weights", "loss")),
    "MultiHead.features": (HEADS.features, {"data": BASE, "weights": HEADED}, ("data", "weights")),
    "MultiHead.hessian": (HEADS.hessian, {"data": BASE, "weights": HEADED}, ("data", "weights", "of", "loss")),
    "MultiHead.hessian_product": (
        HEADS.hessian_product, {"data": BASE, "weights": HEADED, "direction": HEADED},
        ("data", "weights", "direction", "of"),
    ),
    "Encoder": (al.models.Encoder, {"width": 4}, (
        "width", "scaling", "init", "pool", "hidden_scale", "attention_kind", "residual", "depth", "tied",
        "parameterization", "feed_forward",
    )),
    "FullyConnected": (al.models.FullyConnected, {"width": 4}, ("width", "layers", "init", "parameterization")),
    "Encoder.initial": (MODEL.initial, {"data": SEQUENCES}, ("data", "seed")),
    "Encoder.outputs": (MODEL.outputs, {"data": SEQUENCES, "weights": ENCODED}, ("data", "weights")),
    "Encoder.loss": (MODEL.loss, {"data": SEQUENCES, "weights": ENCODED}, ("data", "weights", "loss")),
    "Encoder.gradient": (MODEL.gradient, {"data": SEQUENCES, "weights": ENCODED}, ("data", "weights", "loss")),
    "as_head": (al.models.as_head, {"head": "linear"}, ("head",)),
    "as_loss": (al.models.as_loss, {"loss": "logistic"}, ("loss",)),
    "Concave": (al.models.Concave, {"strength": 1.0}, ("strength",)),
    "Mlp": (al.models.Mlp, {"V": np.eye(D)}, ("V", "out")),
    "Trajectory.load": (al.Trajectory.load, {"path": "no-such-file.npz"}, ("path",)),
}  # fmt: skip


def any_argument(rng):
    """One argument of one call replaced by anything."""
    name = rng.choice(list(CALLS))
    function, good, arguments = CALLS[name]
    argument = rng.choice(arguments)
    value = ANYTHING[rng.integers(len(ANYTHING))]
    return f"{name}({argument}={type(value).__name__})", partial(function, **(good | {str(argument): value}))


def any_scale(rng):
    """A good call on data of some scale, mixed scales among them."""
    scales = {name: rng.choice(SCALES) for name in "xzvW"}
    tokens = scaled_tokens(rng, scales)
    init = scales["W"] * rng.standard_normal((D, D)) if rng.random() < 0.5 else "zeros"
    what = rng.choice(["descend", "flow", "path", "gradient", "loss"], p=[0.5, 0.2, 0.1, 0.1, 0.1])
    note = f"{what} at {scales}"
    if what == "descend":
        rule = rng.choice(list(RULES))
        joint = {"train_head": True} if rule == "joint" else {}
        return f"{rule} {note}", partial(al.descend, tokens, RULES[rule], init=init, **RUN, **joint)
    if what == "flow":
        return note, partial(al.flow, tokens, init=init, time=float(rng.choice(SCALES[1:])), record=[0.0])
    if what == "path":
        return note, partial(al.regularization_path, tokens, radii=(float(rng.choice(SCALES[1:])),), restarts=1)
    return note, partial(getattr(al.models, what), tokens, np.zeros((D, D)) if isinstance(init, str) else init)


def scaled_tokens(rng, scales):
    """Tokens, queries and head of these scales; in one of three the sequences differ in scale too."""
    factor = np.ones((N, 1, 1))
    if rng.random() < 1 / 3:
        factor[1] = rng.choice(SCALES)
    with np.errstate(over="ignore", under="ignore"):
        x = np.clip(scales["x"] * factor * rng.standard_normal((N, T, D)), -1.7e308, 1.7e308)
    z = scales["z"] * rng.standard_normal((N, D))
    return al.Tokens(x=x, z=z, y=[1, -1], v=scales["v"] * rng.standard_normal(D))


def outcome(call):
    """What came of a call: "error" for a typed one, the status or "result"; anything else is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = call()
        except al.AttnlabError as error:
            return "error" if "`" in str(error) else f"error that names no argument: {error}"
        status = getattr(found, "status", None)
        if isinstance(status, Status):
            check_run(found)
        if isinstance(status, FlowStatus):
            check_flow(found)
        repr(found)
    return status.name if isinstance(status, Status | FlowStatus) else "result"


def check_run(run):
    """A status that promises numbers has them."""
    finite = all(np.isfinite(w).all() for w in run.weights.values())
    if run.status in (Status.FINISHED, Status.ALIGNED, Status.STALLED):
        assert finite, run
    if run.status is Status.FINISHED and run.last_step > 0 and "log_gradient_norm" in run.metrics:
        moved = [np.any(w != run.initial[name]) for name, w in run.weights.items()]
        assert any(moved) or np.isneginf(run.metrics["log_gradient_norm"]).any(), run
    if finite and "loss" in run.metrics and not np.isfinite(run.metrics["loss"]).all():
        assert any("`loss`" in remark for remark in run.remarks), run


def check_flow(run):
    if run.status is not FlowStatus.INCOMPLETE:
        assert all(np.isfinite(w).all() for w in run.weights.values()), run
        assert np.isfinite(run.attention).all(), run


def main(count, seed=0):
    rng, counts = np.random.default_rng(seed), Counter()
    for _ in range(count):
        note, call = (any_argument if rng.random() < 0.6 else any_scale)(rng)
        try:
            found = outcome(call)
            counts[found] += 1
        except Exception as error:
            counts["BAD"] += 1
            print(f"{note}\n    {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
