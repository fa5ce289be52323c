"""Cases of `attnlab.data`."""

from __future__ import annotations

import numpy as np

import attnlab as al
from fuzz import directions
from fuzz.arrays import anything
from fuzz.calls import Call, add, case
from fuzz.material import any_sizes, labels, mask, maybe_tokens, tokens
from fuzz.scalars import (
    choice,
    flag,
    number,
    optional,
    or_junk,
    positive,
    raising,
    seed,
    share,
    small,
    some_of,
    whole,
)
from fuzz.source import Source


@case("data.Tokens", weight=25)
def make_tokens(src: Source) -> Call:
    sizes = any_sizes(src, trials=src.rarely(4))
    kwargs = {
        "x": anything(src, (*sizes.lead, sizes.n, sizes.T, sizes.d)),
        "z": anything(src, (*sizes.rows, sizes.d)),
        "y": labels(src, sizes.rows) if src.index(5) else anything(src, sizes.rows),
        "v": anything(src, (sizes.d,)) if src.index(3) else None,
        "mask": mask(src, sizes) if src.index(3) else anything(src, (*sizes.rows, sizes.T)),
    }
    if src.rarely(8):
        kwargs["info"] = src.choose((None, {}, {"a": 1}, [], 3, "ab", {1: 2}, object(), [("a", 1)]))
    if src.rarely(10):
        kwargs["mask"] = src.choose(("causal", "wrong", [[1, 2], [3]], [0.5], 2))
    return Call(al.Tokens, (), kwargs)


@case("data.Tokens.self_attention", weight=8)
def self_attention(src: Source) -> Call:
    sizes = any_sizes(src, trials=src.rarely(4), queries=False)
    query = src.choose((0, "all", -1, sizes.T - 1, sizes.T, "first", None, True, 1.0, 10**25, [0]))
    rows = (*sizes.lead, sizes.n, sizes.T) if query == "all" else (*sizes.lead, sizes.n)
    x = anything(src, (*sizes.lead, sizes.n, sizes.T, sizes.d))
    v = anything(src, (sizes.d,)) if src.index(2) else None
    return Call(al.Tokens.self_attention, (x, labels(src, rows), v, query), {"mask": src.choose((None, "causal", "x"))})


@case("data.Tokens.__getitem__", weight=3)
def one_trial(src: Source) -> Call:
    data = tokens(src, trials=src.index(4) > 0)
    which = src.choose((0, -1, 5, slice(0, 1), slice(5, 9), "a", None, 1.0, True, [0], (0, 0), ..., 10**25, slice("a")))
    return Call(data.__getitem__, (which,))


@case("data.Tokens.stack", weight=3)
def stack(src: Source) -> Call:
    many = [tokens(src) for _ in range(src.choose((2, 1, 0)))]
    if src.rarely(3):
        many = src.choose((None, [None], [*many, 1], "ab", tuple(many), iter(many), {}, 3, tokens(src, trials=True)))
    elif many:
        many = [many[0], many[0]]
    return Call(al.Tokens.stack, (many,))


@case("data.Tokens.digest", weight=2)
def digest(src: Source) -> Call:
    return Call(tokens(src).digest)


@case("data.Sequences", weight=8)
def make_sequences(src: Source) -> Call:
    sizes = any_sizes(src, trials=src.rarely(4), queries=False)
    tokens_shape = (*sizes.lead, sizes.n, sizes.T)
    kwargs = {"x": anything(src, (*tokens_shape, sizes.d)), "y": anything(src, tokens_shape[:-1])}
    if src.rarely(3):
        kwargs["mask"] = mask(src, sizes) if src.index(2) else anything(src, tokens_shape)
    if src.rarely(4):
        kwargs["lengths"] = src.choose((np.ones(tokens_shape[:-1], dtype=int), [1], [0], "ab", 2.5, np.full(2, 10**9)))
    if src.rarely(4):
        kwargs["ids"] = src.choose((np.zeros(tokens_shape, dtype=int), [[1, 2], [3]], [[0.5]], [[-1]], "ab", 7))
        kwargs["x"] = src.choose((None, kwargs["x"]))
    return Call(al.Sequences, (), kwargs)


@case("data.Sequences.rows", weight=2)
def some_sequences(src: Source) -> Call:
    from fuzz.material import sequences

    which = src.choose(
        ([0], slice(0, 1), slice(5, 9), [-1, 0], [9], [], "a", None, 1, 1.0, [[0]], [10**25], slice("a"))
    )
    return Call(sequences(src).rows, (which,))


@case("data.Sequences.of_vectors", weight=3)
def of_vectors(src: Source) -> Call:
    sizes = any_sizes(src, queries=False)
    x, y = anything(src, (sizes.n, sizes.d)), anything(src, (sizes.n,))
    return Call(al.Sequences.of_vectors, (x, y, choice("embedding", "sequence")(src)))


@case("data.Sequences.of", weight=2)
def of(src: Source) -> Call:
    return Call(al.Sequences.of, (maybe_tokens(src, tokens(src)),))


@case("data.Sequences.repeated", weight=2)
def repeated(src: Source) -> Call:
    from fuzz.material import sequences

    return Call(sequences(src).repeated, (src.choose((2, 1, 3, 0, -1, None, 1.5, "a", 10**25, True)),))


@case("data.Sequences.__getitem__", weight=1)
def one_trial_of_sequences(src: Source) -> Call:
    from fuzz.material import sequences

    which = src.choose((0, -1, 5, slice(0, 1), slice(5, 9), "a", None, 1.0, True, [0], (0, 0), 10**25))
    data = sequences(src, any_sizes(src, trials=src.index(3) > 0, queries=False))
    return Call(data.__getitem__, (which,))


@case("data.Sequences.digest")
def digest_of_sequences(src: Source) -> Call:
    from fuzz.material import sequences

    return Call(sequences(src).digest)


@case("data.scores", weight=20, covers=("data.optimal_tokens",), judge=directions.scored)
def scores(src: Source) -> Call:
    data = tokens(src, trials=src.rarely(5))
    function = src.choose((al.scores, al.optimal_tokens))
    given = (maybe_tokens(src, data),)
    if src.rarely(10):
        given += (src.choose(("linear", "relu_sum", 3, [], raising, lambda x: x, object())),)
    kwargs = {"return_ties": src.choose((True, False, None))} if function is al.optimal_tokens else {}
    return Call(function, given, kwargs)


@case("data.in_span", weight=8, judge=directions.spanned)
def in_span(src: Source) -> Call:
    return Call(al.data.in_span, (maybe_tokens(src, tokens(src, trials=src.rarely(4))),))


@case("data.gaussian_start", weight=3)
def gaussian_start(src: Source) -> Call:
    args = (small(src), whole(src), positive(src))
    return Call(al.data.gaussian_start, args, some_of(src, {"seed": seed, "trials": trials}))


def trials(src: Source) -> object:
    return src.choose((None, 1, 2, 3, 0, -1, 10**12, 10**25, 1.0, "a", True))


def size(src: Source) -> object:
    """A small size, or one that must be refused."""
    return (
        src.choose((2, 1, 3, 4, 5, 10**12, 10**15, 10**25, 0, -1, 2.0, "a", None, True, 2**63, [2]))
        if src.rarely(5)
        else src.choose((2, 1, 3, 4, 5))
    )


SIZES = {"n": size, "T": size, "d": size}
AGAIN = {"seed": seed, "trials": trials}
FAMILIES = {
    "sphere": SIZES | AGAIN | {"gap": or_junk(lambda src: src.choose((0.0, 0.01, 0.1, 1e-300, 3.0, 1e300)))},
    "two_clusters": AGAIN,
    "orthogonal_signal": SIZES | AGAIN | {"signal": positive, "noise": number, "signal_noise": number},
    "antipodal_signal": SIZES | AGAIN | {"signal": positive, "noise": number, "signal_noise": number},
    "gaussian_signal": SIZES | AGAIN | {"strength": number, "noise": number},
    "gaussian_signal_in_span": SIZES | AGAIN | {"strength": number, "noise": number, "d": positive},
    "two_tokens": {"trials": trials},
    "bad_direction": {"trials": trials},
    "separated_signal": SIZES | AGAIN | {"signal": positive, "noise": number, "orthogonal": flag},
    "tokenized_mixture": SIZES
    | AGAIN
    | {
        "sparsity": share,
        "patterns": small,
        "signal": number,
        "sigma": number,
        "Z_mu": number,
        "Z_nu": number,
        "noise": choice("gauss", "rademacher", "none", "uniform"),
        "relevant": choice("random", "first"),
    },
    "planted": SIZES
    | AGAIN
    | {"margin": number, "norm_U": positive, "norm_W": positive, "teacher": optional(lambda src: tokens(src))},
    "gaussian_sequences": SIZES | AGAIN | {"rows": choice("unit", "raw")},
    "trap": {"name": choice("plain"), "seed": seed, "delta": share},
    "digit_patches": {
        "n": size,
        "T": size,
        "noise": optional(number),
        "seed": seed,
        "trials": trials,
        "source": optional(lambda src: src.choose(("/nowhere", 5, "", ".", "/dev/null"))),
    },
}


def _family(name: str, options: dict) -> None:
    def make(src: Source) -> Call:
        given = {key: draw(src) for key, draw in options.items() if key in ("n", "T", "d")}
        return Call(
            getattr(al.data, name), (), given | some_of(src, {k: v for k, v in options.items() if k not in given})
        )

    add(f"data.{name}", make, weight={"digit_patches": 0.2, "planted": 0.7}.get(name, 2.0))


for _name, _options in FAMILIES.items():
    _family(_name, _options)
