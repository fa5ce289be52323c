"""Cases of `attnlab.theory.rate_bounds`, and of the joint model."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnlab as al
from attnlab import theory
from fuzz.arrays import anything
from fuzz.calls import Call, case
from fuzz.material import any_sizes, maybe_tokens, tokens_of
from fuzz.scalars import (
    choice,
    flag,
    junk,
    number,
    optional,
    or_junk,
    positive,
    positive_number,
    share,
    share_number,
    small_whole,
)
from fuzz.source import Source
from fuzz.tabled import attempt, method, row

BOUND = {"weight": 0.6, "infinite": True}
RATE = "theory.rate_bounds."
times = or_junk(lambda src: anything(src, (3,)), 8)


def good_constants(src: Source) -> Any:
    """Rate constants of hostile tokens; of plain ones where those have none."""
    data = tokens_of(src, any_sizes(src, queries=False), masked=False, v=True)
    return attempt(lambda: theory.rate_constants(data), lambda: theory.rate_constants(al.data.two_tokens()))


def constants(src: Source) -> Any:
    found = good_constants(src)
    return junk(src) if src.rarely(20) else found


corrected = {"corrected": flag}
row(RATE + "largest_step", constants, options={"rule": choice("ngd", "gd")} | corrected, **BOUND)
row(RATE + "norm_bounds", constants, positive, times, **BOUND)
row(RATE + "radius", constants, times, options=corrected, **BOUND)
row(RATE + "first_time", constants, positive, options=corrected, **BOUND)
row(RATE + "rate_constant", constants, positive, options={"lag": times}, **BOUND)
row(RATE + "cosine_bound", times, times, **BOUND)
row(RATE + "softmax_time", constants, positive, number, options=corrected, **BOUND)
row(RATE + "softmax_decay", constants, positive, times, **BOUND)
row(RATE + "softmax_bound", constants, positive, times, **BOUND)
row(
    RATE + "descent_constant",
    constants,
    positive,
    share,
    needed={"norm": times, "cosine": times, "loss": times},
    options=corrected,
    **BOUND,
)
row(RATE + "descent_bound", share, times, times, **BOUND)
row(RATE + "polyak_constants", constants, positive, positive, options=corrected, **BOUND)


def polyak(src: Source) -> Any:
    return attempt(
        lambda: theory.rate_bounds.polyak_constants(good_constants(src), 0.1, 0.5),
        lambda: theory.rate_bounds.polyak_constants(theory.rate_constants(al.data.two_tokens()), 0.1, 0.5),
    )


method(RATE + "PolyakConstants.C", polyak, options={"lag": times}, **BOUND)

JOINT = "theory.JointModel."


def joint(src: Source) -> Any:
    n, delta = small_whole(src), share_number(src)
    d, alpha, rho = (positive_number(src) for _ in range(3))
    make = theory.JointModel
    return attempt(
        lambda: make(n=n, d=d, alpha=alpha, rho=rho, delta=delta), lambda: make(n=4, d=1e6, alpha=1, rho=0.01)
    )


row(
    "theory.JointModel",
    needed={"n": or_junk(small_whole), "d": positive, "alpha": positive, "rho": positive},
    options={"delta": share},
    **BOUND,
)
method(JOINT + "least_dimension", joint, options={"constant": number}, **BOUND)
method(JOINT + "proof_dimension", joint, options={"loss_ratio": number}, **BOUND)
method(JOINT + "omega", joint, times, **BOUND)


@case(JOINT + "of", weight=1, infinite=True)
def joint_of(src: Source) -> Call:
    data = tokens_of(src, any_sizes(src, queries=src.rarely(6)))
    planted = np.array(src.indices(data.T, data.n))
    planted = anything(src, (data.n,)) if src.rarely(6) else planted
    kwargs = {"planted": planted, "d": optional(positive)(src)}
    return Call(theory.JointModel.of, (maybe_tokens(src, data),), kwargs)


@case("theory.condition_1", weight=1, infinite=True)
def condition_1(src: Source) -> Call:
    model = junk(src) if src.rarely(20) else joint(src)
    kwargs: dict[str, Any] = {"form": choice("complete", "main", "proof")(src), "constant": positive(src)}
    if src.rarely(3):
        kwargs["start"] = number(src)
    return Call(theory.condition_1, (model, positive(src)), kwargs)


@case("theory.LipschitzConstants.K", weight=1, covers=("theory.LipschitzConstants",), infinite=True)
def lipschitz_of_factors(src: Source) -> Call:
    data = tokens_of(src, any_sizes(src))
    found = attempt(lambda: theory.lipschitz_constants(data), lambda: theory.lipschitz_constants(al.data.two_tokens()))
    name = src.choose(("K", "Q", "K_printed", "Q_printed"))
    return Call(getattr(found, name), (anything(src, (data.d, src.choose((2, 1, 3)))),))


@case("theory.LocalCone.contains", weight=1)
def cone_contains(src: Source) -> Call:
    def make() -> Any:
        tokens = al.data.sphere(n=3, T=3, d=3, seed=src.index(4))
        return theory.local_cone(tokens, al.optimal_tokens(tokens))

    cone = attempt(make, lambda: theory.local_cone(al.data.two_tokens(), [0]))
    return Call(cone.contains, (anything(src, (3, 3)),), {"R": optional(number)(src)})


@case("theory.RateFit.against", weight=0.6, covers=("theory.RateFit",))
def fit_against(src: Source) -> Call:
    steps = np.arange(1.0, 40.0)
    return Call(theory.fit_rate(steps, 1.0 / steps).against, (number(src),))
