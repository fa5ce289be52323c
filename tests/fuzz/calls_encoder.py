"""Cases of `attnlab.theory.encoder`."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.theory import encoder
from attnlab.theory.encoder.widths import STATEMENTS
from fuzz.arrays import anything, finite
from fuzz.calls import Call, case
from fuzz.scalars import (
    choice,
    flag,
    junk,
    number,
    optional,
    or_junk,
    or_modest_junk,
    positive,
    positive_number,
    share,
    small_whole,
)
from fuzz.source import Source
from fuzz.tabled import attempt, method, row

SOME = 0.6  # weight of functions of a few numbers
pool = choice("mean", "sum")
block = or_junk(lambda src: src.choose((8_000_000, 1, 100)), 8)
size = or_junk(lambda src: src.choose((2, 1, 3, 10, 10**6, 10**15, 10**25)))


def settings(src: Source, draw_number: Any = positive, draw_size: Any = size) -> dict[str, Any]:
    """Arguments of `Constants`."""
    by_name = {key: draw_number(src) for key in "QKVO"}
    reach = {key: draw_number(src) for key in "QKVO"}
    if src.rarely(12):
        by_name = src.choose(({}, None, {"Q": 1.0}, 3, "QKVO", {1: 2}))
    sizes = {name: draw_size(src) for name in ("N", "T", "d", "width")}
    numbers = {name: draw_number(src) for name in ("tau0", "tau1", "C_x", "alpha", "start_loss", "shortcut")}
    return sizes | numbers | {"norms": by_name, "radius": reach}


@case("theory.encoder.Constants", infinite=True)
def make_constants(src: Source) -> Call:
    return Call(encoder.Constants, (), settings(src))


def plain() -> Any:
    ones = dict.fromkeys("QKVO", 1.0)
    return encoder.Constants(
        N=2, T=2, d=2, width=3, tau0=1.0, tau1=1.0, C_x=1.0, norms=ones, radius=ones, alpha=1.0, start_loss=1.0
    )


def valid(src: Source) -> Any:
    """Constants that were accepted, of any size; now and then something else."""
    given = settings(src, positive_number, small_whole)
    found = attempt(lambda: encoder.Constants(**given), plain)
    return junk(src) if src.rarely(20) else found


def accepted(src: Source) -> Any:
    given = settings(src, positive_number, small_whole)
    return attempt(lambda: encoder.Constants(**given), plain)


ENCODER = "theory.encoder."
row(ENCODER + "lemma_4", positive, positive, share, weight=SOME, infinite=True)
row(ENCODER + "lemma_5", size, size, number, weight=SOME, infinite=True)
row(ENCODER + "lemma_6", size, options={"variance": positive}, weight=SOME, infinite=True)
row(ENCODER + "lemma_7", valid, needed={"dQ": number, "dK": number}, weight=SOME, infinite=True)
row(ENCODER + "lemma_8", size, weight=SOME, infinite=True)
row(ENCODER + "lemma_9", valid, needed={"dQ": number, "dK": number, "dV": number}, weight=SOME, infinite=True)
row(ENCODER + "lemma_10", valid, needed={"dO": number, "dF": number}, weight=SOME, infinite=True)
row(ENCODER + "lemma_12", valid, number, weight=SOME, infinite=True)
row(ENCODER + "lemma_13", valid, weight=SOME, infinite=True)
row(ENCODER + "lemma_14", valid, number, options={"corrected": flag}, weight=SOME, infinite=True)
row(ENCODER + "lemma_20", size, positive, weight=SOME, infinite=True)
row(ENCODER + "weight_bounds", valid, weight=SOME, infinite=True)
row(ENCODER + "residual_alpha", valid, options={"norm": number, "corrected": flag}, weight=SOME, infinite=True)
row(ENCODER + "rate_follows", number, weight=SOME)
row(ENCODER + "drift_bound", positive, options={"c": positive, "corrected": flag}, weight=SOME, infinite=True)
row(
    ENCODER + "rate_bound",
    positive,
    positive,
    lambda src: anything(src, (3,)),
    options={"c": positive},
    weight=SOME,
    infinite=True,
)
row(ENCODER + "chernoff_bound", number, size, positive, options={"corrected": flag}, weight=SOME, infinite=True)
row(
    ENCODER + "lemma_16_error",
    positive,
    needed={"N": size, "T": size, "d": size, "C_x": positive},
    options={"variance": positive, "delta": share},
    weight=SOME,
    infinite=True,
)
row(
    ENCODER + "lemma_16_width",
    number,
    needed={"N": size, "T": size, "d": size, "C_x": positive},
    options={"variance": positive, "delta": share},
    weight=SOME,
    infinite=True,
)
row(
    ENCODER + "required_width",
    choice("lecun", "he", "ntk"),
    choice("sqrt", "linear"),
    needed={"N": size, "T": size, "d": size, "C_x": positive, "lambda0": number},
    options={"corrected": flag},
    weight=SOME,
    infinite=True,
)
row(
    ENCODER + "probability",
    choice(*STATEMENTS),
    needed={"width": size, "N": size, "T": size, "d": size},
    options={"delta": share, "c_hat": positive, "factor": positive},
    weight=SOME,
    infinite=True,
)

for _name in ("c1", "c3", "largest_step", "smoothness"):
    method(ENCODER + "Constants." + _name, accepted, options={"corrected": flag}, weight=0.4, infinite=True)
method(ENCODER + "Constants.c2", accepted, weight=0.4, infinite=True)


def tokens_array(src: Source) -> Any:
    """(n, T, d), of any scale, or anything."""
    return anything(src, (src.choose((2, 1, 3)), src.choose((2, 1, 3)), src.choose((2, 1, 3))))


row(ENCODER + "assumption_1", tokens_array, weight=2)
row(ENCODER + "assumption_2", tokens_array, options={"tolerance": positive}, weight=2)
row(
    ENCODER + "assumption_3",
    tokens_array,
    weight=2,
    infinite=True,
    options={
        "points": or_modest_junk(lambda src: src.choose((50, 2, 1, 3))),
        "tolerance": positive,
        "block": block,
        "within": lambda src: src.choose(((0.0, 0.5), (0.5, 0.0), (0.0, 1.0), None, 3, (0.1,), "ab", (np.nan, 1.0))),
    },
)
row(ENCODER + "assumption_4", tokens_array, options={"token": choice("mean", "sum")}, weight=2)
row(ENCODER + "similarities", tokens_array, options={"block": block}, weight=2)
row(ENCODER + "pooled_expectation", tokens_array, options={"block": block}, weight=2)
row(ENCODER + "limiting_ntk", tokens_array, options={"other": optional(tokens_array, 2), "pool": pool}, weight=2)
row(
    ENCODER + "predict_alpha",
    tokens_array,
    needed={"width": size, "variance": positive, "tau1": positive},
    options={"block": block},
    weight=2,
)
row(ENCODER + "tail_probability", lambda src: anything(src, (4,)), lambda src: anything(src, (3,)), weight=2)


def rows_of_numbers(src: Source) -> Any:
    return anything(src, (src.choose((2, 1, 3)), src.choose((2, 1, 3))))


row(ENCODER + "arc_cosine_0", rows_of_numbers, options={"psi": rows_of_numbers}, weight=2)
row(ENCODER + "arc_cosine_1", rows_of_numbers, options={"psi": rows_of_numbers}, weight=2)
row(ENCODER + "lambda_0", rows_of_numbers, positive, weight=2)
row(ENCODER + "least_singular_value", rows_of_numbers, weight=2)


@case(ENCODER + "lemma_15", weight=2, infinite=True)
def lemma_15(src: Source) -> Call:
    n, T, d = src.choose((2, 1, 3)), src.choose((2, 1, 3)), src.choose((2, 1, 3))
    beta = np.full((n, T), 1.0 / T) if src.index(2) else anything(src, (n, T))
    return Call(encoder.lemma_15, (anything(src, (n, T, d)), beta, positive(src)))


@case(ENCODER + "kernel_regression", weight=2)
def kernel_regression(src: Source) -> Call:
    n, m = src.choose((2, 1, 3)), src.choose((2, 1))
    root = finite(src, (n, n))
    with np.errstate(all="ignore"):
        kernel = np.nan_to_num(root @ root.T, nan=1.0, posinf=1.7e308, neginf=-1.7e308)
    kernel = kernel if src.index(5) else anything(src, (n, n))
    args = (kernel, anything(src, (m, n)), anything(src, (n,)), anything(src, (m,)))
    return Call(encoder.kernel_regression, args, {"ridge": number(src)} if src.rarely(3) else {})


def weights(src: Source, d: int, m: int) -> Any:
    """Of a shallow encoder."""
    found = {name: anything(src, (m, d)) for name in ("W_Q", "W_K", "W_V")} | {"w_O": anything(src, (m,))}
    if src.rarely(15):
        return src.choose((None, {}, {"W_Q": found["W_Q"]}, 3, found["W_Q"], found | {"more": 1}))
    return found


residual = optional(lambda src: src.choose(("identity", "wrong", 3, None, np.eye(2))), 4)


@case(ENCODER + "forward", weight=2)
def forward(src: Source) -> Call:
    d, m = src.choose((2, 1, 3)), src.choose((2, 1, 3))
    x = anything(src, (src.choose((2, 1)), src.choose((2, 1, 3)), d))
    return Call(encoder.forward, (x, weights(src, d, m), number(src), positive(src), residual(src)))


@case(ENCODER + "Constants.of", weight=2, infinite=True)
def constants_of(src: Source) -> Call:
    n, d, m = src.choose((2, 1)), src.choose((2, 1, 3)), src.choose((2, 1, 3))
    x = anything(src, (n, src.choose((2, 1, 3)), d))
    kwargs = {"tau0": number(src), "tau1": positive(src), "residual": residual(src)}
    if src.rarely(3):
        kwargs["radius"] = src.choose((1.0, 0.0, {"Q": 1.0}, dict.fromkeys("QKVO", 2.0), None, "a", 1e300))
    return Call(encoder.Constants.of, (x, anything(src, (n,)), weights(src, d, m)), kwargs)
