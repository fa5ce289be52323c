"""Cases of `attnlab.theory.multihead` that compile nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnlab as al
from attnlab.theory import multihead
from fuzz.arrays import anything
from fuzz.calls import Call, case
from fuzz.material import any_sizes, maybe_tokens, tokens_of
from fuzz.scalars import (
    choice,
    flag,
    junk,
    number,
    or_junk,
    or_modest_junk,
    positive,
    positive_number,
    seed,
    share,
    share_number,
    small_whole,
)
from fuzz.source import Source
from fuzz.tabled import attempt, method, row

MULTIHEAD = "theory.multihead."
SOME = 0.6
size = or_junk(lambda src: src.choose((2, 1, 3, 10, 10**6, 10**15, 10**25)))
decoder = choice("full", "pooling", "last")


row(
    MULTIHEAD + "Shape",
    needed={"T": size, "d": size, "R": positive},
    options={"decoder": decoder, "sharp": flag},
    weight=SOME,
)
row(
    MULTIHEAD + "Mixture",
    needed={"T": size, "M": size, "S": positive, "zeta": share},
    options={"Z_mu": number, "Z_nu": number, "Z": number},
    weight=SOME,
    infinite=True,
)
row(MULTIHEAD + "GoodStart", needed={"B2": positive, "B_phi": positive, "gamma": positive}, weight=SOME)
row(MULTIHEAD + "Bound", needed={"value": positive, "trivial": positive}, weight=SOME, infinite=True)


def shape(src: Source) -> Any:
    """A model that was accepted, now and then something else."""
    found = good_shape(src)
    return junk(src) if src.rarely(20) else found


def good_shape(src: Source) -> Any:
    T, d, R = small_whole(src), small_whole(src), positive_number(src)
    kind, sharp = src.choose(("full", "pooling", "last")), bool(src.index(2))
    make = multihead.Shape
    return attempt(lambda: make(T=T, d=d, R=max(R, 1.0), decoder=kind, sharp=sharp), lambda: make(T=2, d=2, R=1.0))


def mixture(src: Source) -> Any:
    found = good_mixture(src)
    return junk(src) if src.rarely(20) else found


def good_mixture(src: Source) -> Any:
    T, M, S, zeta = small_whole(src), small_whole(src), positive_number(src), share_number(src)
    noise = [src.choose((0.0, 0.1, 1e300, 1e-300)) for _ in range(3)]
    make = multihead.Mixture
    return attempt(
        lambda: make(T=T, M=M, S=S, zeta=zeta, Z_mu=noise[0], Z_nu=noise[1], Z=noise[2]),
        lambda: make(T=10, M=2, S=2.0, zeta=0.1),
    )


def start(src: Source) -> Any:
    found = good_start(src)
    return junk(src) if src.rarely(20) else found


def good_start(src: Source) -> Any:
    B2, B_phi, gamma = positive_number(src), positive_number(src), positive_number(src)
    make = multihead.GoodStart
    return attempt(
        lambda: make(B2=max(B2, 1.0), B_phi=max(B_phi, 1.0), gamma=gamma), lambda: make(B2=1, B_phi=1, gamma=1)
    )


BOUND = {"weight": SOME, "infinite": True}
row(MULTIHEAD + "segment_condition", shape, number, number, number, **BOUND)
row(MULTIHEAD + "head_requirement", shape, number, number, options={"c": number}, **BOUND)
row(
    MULTIHEAD + "heads_needed",
    shape,
    number,
    **BOUND,
    options={"start": number, "c": number, "rounds": or_modest_junk(lambda src: src.choose((5, 1, 2)))},
)
row(MULTIHEAD + "smoothness", shape, number, number, number, **BOUND)
row(MULTIHEAD + "growth", shape, number, number, **BOUND)
row(
    MULTIHEAD + "largest_step",
    shape,
    number,
    number,
    number,
    needed={"K": number, "target_loss": number, "start_loss": number},
    **BOUND,
)
row(MULTIHEAD + "theorem_1", number, positive, positive, number, options={"start_loss": number}, **BOUND)
row(MULTIHEAD + "theorem_2", number, positive, positive, size, number, options={"trivial": number}, **BOUND)
row(MULTIHEAD + "lemma_3", number, number, **BOUND)
row(MULTIHEAD + "lemma_8", number, positive, positive, number, number, **BOUND)
row(MULTIHEAD + "lemma_9", number, positive, positive, number, number, **BOUND)
row(MULTIHEAD + "lemma_11", shape, number, number, positive, positive, size, number, **BOUND)
row(MULTIHEAD + "proposition_7", shape, start, share, **BOUND)
row(
    MULTIHEAD + "realizable_bounds",
    shape,
    **BOUND,
    needed={
        "D": number,
        "g": number,
        "D_one": number,
        "H": positive,
        "step": positive,
        "K": positive,
        "n": size,
        "start_loss": number,
    },
)
row(
    MULTIHEAD + "corollary_2",
    shape,
    start,
    needed={"K": positive, "n": size, "step": positive},
    options={"H": positive, "corrected": flag},
    **BOUND,
)
for _name in ("move", "distance", "longest"):
    _options = {} if _name == "move" else {"corrected": flag}
    method(MULTIHEAD + "GoodStart." + _name, good_start, share, options=_options, **BOUND)
for _name in ("beta1", "beta3"):
    method(MULTIHEAD + "Shape." + _name, good_shape, number, **BOUND)
method(MULTIHEAD + "Shape.beta2", good_shape, number, positive, **BOUND)


def bound(src: Source) -> Any:
    value = positive_number(src)
    return attempt(lambda: multihead.Bound(value=value), lambda: multihead.Bound(value=1.0))


method(MULTIHEAD + "Bound.margin", bound, number, **BOUND)

numbers = or_junk(lambda src: anything(src, (3,)), 8)
row(MULTIHEAD + "gamma_lin", mixture, **BOUND)
row(MULTIHEAD + "attention_gain", mixture, **BOUND)
row(MULTIHEAD + "gamma_star", mixture, number, options={"power": number}, **BOUND)
row(MULTIHEAD + "gamma_attn", mixture, options={"eps": numbers}, **BOUND)
row(MULTIHEAD + "score_bounds", mixture, **BOUND)
row(MULTIHEAD + "attention_scale", mixture, numbers, **BOUND)
row(MULTIHEAD + "saturation_scale", numbers, numbers, numbers, **BOUND)
row(MULTIHEAD + "largest_ordered_signal", size, size, share, **BOUND)
row(MULTIHEAD + "lemma_2_bound", mixture, size, size, share, number, **BOUND)
row(MULTIHEAD + "proposition_2", mixture, number, size, share, options={"corrected": flag}, **BOUND)
row(MULTIHEAD + "centre", mixture, lambda src: anything(src, (3,)), options={"corrected": flag}, weight=SOME)


def patterns(src: Source) -> Any:
    return anything(src, (2, 3))


row(MULTIHEAD + "oracle_weights", patterns, size_small := or_junk(small_whole), weight=SOME)
row(MULTIHEAD + "theta_opt", patterns, size_small, options={"scale": number}, weight=SOME)
row(
    MULTIHEAD + "theta_star",
    patterns,
    size_small,
    lambda src: anything(src, (2,)),
    lambda src: anything(src, (2,)),
    weight=SOME,
)


def heads_arrays(src: Source) -> tuple[Any, Any, Any]:
    """Tokens (n, T, d), decoders (T, d), attention (d, d)."""
    n, T, d = src.choose((2, 1)), src.choose((2, 1, 3)), src.choose((2, 1, 3))
    return anything(src, (n, T, d)), anything(src, (T, d)), anything(src, (d, d))


@case(MULTIHEAD + "token_bounds", weight=1, infinite=True)
def token_bounds(src: Source) -> Call:
    x, U, _ = heads_arrays(src)
    return Call(multihead.token_bounds, (x, U), {"sharp": flag(src)})


@case(MULTIHEAD + "Shape.of", weight=1, infinite=True)
def shape_of(src: Source) -> Call:
    return Call(multihead.Shape.of, (heads_arrays(src)[0],), {"decoder": decoder(src), "sharp": flag(src)})


@case(MULTIHEAD + "attention_of", weight=1)
def attention_of(src: Source) -> Call:
    x, _, W = heads_arrays(src)
    return Call(multihead.attention_of, (x, W))


def drawn_mixture(src: Source) -> Any:
    """Tokens of the family that some functions ask for, or other tokens."""
    if src.rarely(4):
        return maybe_tokens(src, tokens_of(src, any_sizes(src)))
    return al.data.tokenized_mixture(n=src.choose((3, 1, 2)), T=10, d=4, seed=src.index(5))


row(MULTIHEAD + "Mixture.of", drawn_mixture, weight=SOME, infinite=True)
row(MULTIHEAD + "parts", drawn_mixture, weight=SOME)
row(MULTIHEAD + "mean_row", drawn_mixture, weight=SOME)


@case(MULTIHEAD + "phase_one", weight=1)
def phase_one(src: Source) -> Call:
    data = tokens_of(src, any_sizes(src, queries=src.rarely(6)))
    heads = src.choose((1, 2, 1e12, 1e18, 1e19, 0, -1, 1.5, None, "a", np.nan, 10**25, True, np.int64(4)))
    kwargs = {"decoder": decoder(src), "alpha_law": choice("sign", "uniform")(src), "seed": seed(src)}
    if kwargs["alpha_law"] == "uniform" and isinstance(heads, float | int) and not isinstance(heads, bool):
        heads = min(heads, 1000) if heads == heads else heads
    return Call(multihead.phase_one, (maybe_tokens(src, data), heads), kwargs)
