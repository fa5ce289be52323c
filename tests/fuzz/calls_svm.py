"""Cases of `attnlab.svm`."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnlab as al
from attnlab.svm import norms
from fuzz import brackets, margins
from fuzz.arrays import anything, finite
from fuzz.calls import Call, case
from fuzz.material import any_sizes, kept, labels, matrix, maybe_tokens, selection, solution, tokens, tokens_of
from fuzz.scalars import flag, junk, seed, small, some_of, tolerance
from fuzz.source import Source


def norm(src: Source) -> Any:
    """Mostly the Frobenius norm, which is fast."""
    kind = src.index(20)
    if kind < 15:
        return "frobenius"
    if kind < 18:
        return "nuclear"
    if kind < 19:
        return src.choose((norms.ENTRYWISE_L1, norms.SPECTRAL, norms.ENTRYWISE_MAX, norms.FROBENIUS, norms.NUCLEAR))
    return junk(src)


@case("svm.solve_margin", judge=margins.certified, weight=60)
def solve_margin(src: Source) -> Call:
    data = tokens(src)
    chosen = selection(src, data)
    kwargs = {"norm": norm(src), "tolerance": tolerance(src), "throw": src.choose((True, False))}
    return Call(al.solve_margin, (maybe_tokens(src, data), chosen), kwargs, {"tokens": data})


@case("svm.solve_margins", judge=margins.all_certified, weight=15)
def solve_margins(src: Source) -> Call:
    data = tokens(src, trials=True)
    chosen = selection(src, data)
    kwargs = {"norm": norm(src), "tolerance": tolerance(src)}
    return Call(al.solve_margins, (maybe_tokens(src, data), chosen), kwargs, {"tokens": data})


def bracket_call(src: Source, function: Any, *, trials: bool) -> Call:
    """Tokens with queries of perhaps another dimension."""
    data = tokens(src, trials=trials)
    x, z = np.array(data.x), np.array(data.z)
    if src.rarely(2):
        z = finite(src, (*z.shape[:-1], src.choose((1, 2, 3))))
    chosen = selection(src, data)
    kwargs: dict[str, Any] = {"norm": src.choose(("frobenius", "frobenius", "nuclear", "spectral", "entrywise max"))}
    if data.mask is not None:
        kwargs["mask"] = data.mask
    kwargs |= some_of(src, {"tolerance": lambda src: given_tolerance(src, 1e-2)}, 4)
    if src.rarely(6):
        kwargs["start"] = matrix(src, x.shape[-1], z.shape[-1])
    if src.rarely(12):
        kwargs["norm"] = norm(src)
    given = (anything(src, x.shape), z, chosen) if src.rarely(10) else (x, z, chosen)
    return Call(function, given, kwargs, {"mask": data.mask})


@case("svm.bracket_margin", judge=brackets.bracketed, weight=15, infinite=True)
def bracket_margin(src: Source) -> Call:
    return bracket_call(src, al.svm.bracket_margin, trials=False)


@case("svm.bracket_margins", judge=brackets.all_bracketed, weight=5, infinite=True)
def bracket_margins(src: Source) -> Call:
    return bracket_call(src, al.svm.bracket_margins, trials=True)


@case("svm.solve_generalized", judge=margins.level_certified, weight=10)
def solve_generalized(src: Source) -> Call:
    data = tokens(src)
    kwargs = {"norm": norm(src), "tolerance": tolerance(src), "throw": src.choose((True, False))}
    held = kept(src, data)
    return Call(al.svm.solve_generalized, (maybe_tokens(src, data), held), kwargs, {"tokens": data, "kept": held})


@case("svm.solve_factored", judge=margins.factored, weight=0.3)
def solve_factored(src: Source) -> Call:
    data = tokens(src)
    chosen = selection(src, data)
    kwargs = some_of(src, {"seed": seed, "tolerance": lambda src: src.choose((1e-8, 1e-4, None, -1.0, "a"))})
    kwargs |= {"restarts": src.choose((1, 2, 0, -1, None)), "throw": src.choose((True, False))}
    if src.rarely(6):
        kwargs["convex"] = solution(src, data, chosen)
    return Call(al.svm.solve_factored, (maybe_tokens(src, data), chosen, small(src)), kwargs, {"tokens": data})


@case("svm.linear_margin", judge=margins.separated, weight=15)
def linear_margin(src: Source) -> Call:
    N, d = src.choose((2, 1, 3, 4, 6)), src.choose((2, 1, 3, 4))
    x, y = anything(src, (N, d)), labels(src, (N,))
    kwargs = {"tolerance": given_tolerance(src, 1e-10)}
    return Call(al.svm.linear_margin, (x, wrong_labels(src, y)), kwargs)


@case("svm.kernel_margin", judge=margins.kernel_separated, weight=15)
def kernel_margin(src: Source) -> Call:
    N, d = src.choose((2, 1, 3, 4, 6)), src.choose((2, 1, 3, 4))
    x = finite(src, (N, d))
    with np.errstate(all="ignore"):
        gram = np.clip(x @ x.T, -1.7e308, 1.7e308)
    if not np.isfinite(gram).all() or src.rarely(5):
        gram = anything(src, (N, N))
    return Call(
        al.svm.kernel_margin, (gram, wrong_labels(src, labels(src, (N,)))), {"tolerance": given_tolerance(src, 1e-8)}
    )


def given_tolerance(src: Source, usual: float) -> Any:
    """Never left out."""
    found = tolerance(src)
    return usual if found is None else found


def wrong_labels(src: Source, y: np.ndarray) -> Any:
    """Labels, now and then wrong ones."""
    if src.rarely(12):
        return src.choose(
            (
                y * 2,
                y.astype(int),
                y.tolist(),
                y[:-1],
                y[:, None],
                y > 0,
                y.astype(str),
                None,
                "a",
                1.0,
                y * np.nan,
                y.astype(object),
                y * 0,
                y + 0j,
                [],
                {},
            )
        )
    return y


@case("svm.margin_rows", weight=10, covers=("svm.Rows",))
def margin_rows(src: Source) -> Call:
    data = tokens(src)
    return Call(al.svm.margin_rows, (maybe_tokens(src, data), selection(src, data)))


@case("svm.finite_part", weight=5)
def finite_part(src: Source) -> Call:
    data = tokens(src)
    held = kept(src, data)
    attention = np.abs(finite(src, (*data.y.shape, data.T)))
    attention = attention if src.index(5) < 4 else anything(src, attention.shape)
    kwargs = {"logarithmic": flag(src), "throw": src.choose((True, False))}
    return Call(al.svm.finite_part, (maybe_tokens(src, data), attention, held), kwargs)


@case("svm.combine", weight=8, infinite=True)
def combine(src: Source) -> Call:
    shape = (src.choose((2, 1, 3)), src.choose((2, 1, 3)))
    return Call(al.svm.combine, tuple(matrix(src, *shape) for _ in range(3)))


@case("svm.distance_to_face", weight=2)
def distance_to_face(src: Source) -> Call:
    data = tokens_of(src, any_sizes(src))
    chosen = selection(src, data)
    try:
        found = al.solve_margin(data, chosen, norm=src.choose(("nuclear", "frobenius")), throw=False)
    except Exception:  # judged where it is called for its own sake
        found = junk(src)
    return Call(al.distance_to_face, (matrix(src, data.d, data.d), found))


@case("svm.check_norm", weight=0.5, covers=("svm.Norm",))
def check_norm(src: Source) -> Call:
    ready = (norms.FROBENIUS, norms.NUCLEAR, norms.SPECTRAL, norms.ENTRYWISE_L1, norms.ENTRYWISE_MAX)
    given = junk(src) if src.rarely(8) else own_norm(src) if src.rarely(3) else src.choose(ready)
    options = {"shape": shapes, "seed": seed, "tolerance": lambda src: src.choose((1e-9, 1.0, None, -1.0, "a", np.nan))}
    return Call(al.svm.check_norm, (given,), some_of(src, options))


def shapes(src: Source) -> Any:
    return src.choose(((4, 3), (1, 1), (2, 2), (0, 3), (2,), 3, None, "ab", (-1, 2), (2.5, 1), (10**6, 10**6)))


def own_norm(src: Source) -> Any:
    """A norm of the user's own, right or wrong."""
    from fuzz.scalars import raising

    functions: tuple[Any, ...] = (
        raising,
        lambda W: np.nan,
        lambda W: W,
        lambda W: "a",
        lambda W: -1.0,
        lambda W: 0.0,
        lambda W: None,
    )
    prox: tuple[Any, ...] = (raising, lambda W, t: W * np.nan, lambda W, t: W[:1], lambda W, t: None, lambda W, t: W)
    return al.svm.Norm(name="own", value=src.choose(functions), dual=src.choose(functions), prox=src.choose(prox))
