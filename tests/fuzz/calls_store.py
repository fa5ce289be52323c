"""Cases of `attnlab.store`, `attnlab.claims` and `attnlab.figures`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import attnlab as al
from attnlab import claims, figures
from fuzz.arrays import anything, finite
from fuzz.calls import Call, case
from fuzz.calls_train import folder
from fuzz.scalars import choice, flag, junk, number, optional, or_junk, raising
from fuzz.source import Source
from fuzz.tabled import row


@cache
def store() -> Any:
    return al.Store(folder() / "store")


row(
    "store.Store",
    lambda src: src.choose(
        (None, folder(), "", 5, b"x", "\0", [], "~nobody-at-all/x", "/dev/null/x", "x" * 5000, {}, 1.5)
    ),
)

row("store.keep_programs", lambda src: src.choose((store(), folder(), 5, "x", [], {}, al.Store)))


def config(src: Source) -> Any:
    plain = ({"n": 1}, {}, [1, 2], "a", 3, None, {"x": np.arange(3)}, {"f": len}, al.data.two_tokens(), {"a": {"b": 1}})
    odd = (
        object(),
        {1: 2},
        {"x": np.nan},
        raising,
        {"x": object()},
        {(1, 2): 3},
        {"x": {1, 2}},
        lambda: 3,
        1j,
        {"x": 10**25},
    )
    return src.choose(plain + odd)


def kind(src: Source) -> Any:
    return src.choose(("fuzz", "a", "", "a/b", "..", None, 3, "\0", "x" * 300, "ü", b"x", []))


def result(src: Source) -> Any:
    array = anything(src, (2,))
    return src.choose(
        (
            {"x": finite(src, (2,))},
            {"x": array},
            {},
            ({}, {"a": 1}),
            ({"x": 1}, {"y": object()}),
            None,
            3,
            [1],
            {1: 2},
            {"": 1},
            {"facts": 1},
            {"x": "text"},
            ({}, {1: 2}),
            ({}, {}, {}),
            {"a/b": 1},
            {"x": np.nan},
            ({}, {"y": np.nan}),
            {"../x": 1},
        )
    )


def computing(src: Source) -> Any:
    found = result(src)

    def compute(*given: Any) -> Any:
        return found

    return junk(src) if src.rarely(10) else raising if src.rarely(10) else compute


@case("store.Store.keep", weight=0.5, covers=("store.Kept",))
def keep(src: Source) -> Call:
    def function(*args: Any, **kwargs: Any) -> str:
        return repr(store().keep(*args, **kwargs))

    return Call(function, (kind(src), config(src), computing(src)), {"fresh": flag(src)})


@case("store.Store.map", weight=0.3)
def map_configs(src: Source) -> Call:
    def function(*args: Any, **kwargs: Any) -> str:
        return repr(store().map(*args, **kwargs))

    configs = src.choose(([{"n": 1}], [], None, 3, [config(src), config(src)], "ab", {"a": 1}))
    jobs = src.choose((1, 1, 1, 0, None, "a", 1.5, 10**25))
    kwargs = {"jobs": jobs, "on_done": src.choose((None, raising, 3, len))}
    if kwargs["on_done"] is len:
        kwargs["on_done"] = None
    return Call(function, (kind(src), computing(src), configs), kwargs)


@case("store.Store.descend", weight=0.05)
def kept_descent(src: Source) -> Call:
    tokens = al.data.sphere(n=2, T=3, d=2, seed=src.index(2))
    kwargs: dict[str, Any] = {"steps": src.choose((3, 0, -1, None, "a")), "record": [0]}
    if src.rarely(4):
        kwargs["checkpoint_seconds"] = junk(src)
    if src.rarely(6):
        kwargs["on_step"] = src.choose((raising, 3))
    if src.rarely(6):
        kwargs["resume"] = "x"
    return Call(
        store().descend, (junk(src) if src.rarely(8) else tokens, junk(src) if src.rarely(8) else al.gd(0.1)), kwargs
    )


@case("store.Store.clear", weight=0.1, covers=("store.Store.runs", "store.Store.size"))
def clear(src: Source) -> Call:
    def function(days: Any) -> Any:
        return store().size(), len(list(store().runs())), store().clear(days)

    return Call(function, (src.choose((None, 1.0, 0, -1, np.nan, "a", 1e300, True, 10**25)),))


# -- Claims and figures: what is cheap of them. Measuring and drawing are tested in their own rooms.

paper = choice("svm", "rates", "multihead", "encoder", None)
row("claims.claims", paper, weight=0.1)
row("claims.left_out", paper, weight=0.1)
row("figures.figures", paper, weight=0.1)
ids = or_junk(
    lambda src: src.choose(("svm-T2", "svm", ["svm-T2"], "svm-T999", "", [], ["a", 3], "svm-", "rates-K8")), 4
)
row("claims.find", ids, weight=0.1)
row("figures.find", or_junk(lambda src: src.choose(("svm-5", "svm", ["svm-5"], "svm-999", "", [], [3])), 4), weight=0.1)

level = optional(number, 2)
word = or_junk(lambda src: "a part", 6)
values = or_junk(
    lambda src: src.choose(([True, False], [1.0, 2.0], [], [np.nan], [np.inf, 1.0], 0.5, np.zeros((2, 2)), ["a"])), 5
)


def tally(name: str, make: Any, *added: Any) -> None:
    """A tally that is made, added to, and read."""

    @case(
        f"claims.{name}", weight=0.4, covers=("claims.Part", f"claims.{name}.add", f"claims.{name}.part"), infinite=True
    )
    def makes(src: Source) -> Call:
        def function(kwargs: dict[str, Any], title: Any, parts: tuple[Any, ...]) -> Any:
            made = getattr(claims, name)(title, **kwargs)
            made.add(*parts)
            return made.part()

        return Call(function, (make(src), word(src), tuple(draw(src) for draw in added)))


tally("Bound", lambda src: {}, values, values)
tally("Count", lambda src: {}, values)
tally("Identity", lambda src: {"tolerance": number(src)}, values)
tally("Limit", lambda src: {"tolerance": number(src)}, values)
tally("Mean", lambda src: {"at_least": level(src), "at_most": level(src)}, values)
tally("Share", lambda src: {"at_least": level(src), "at_most": level(src)}, values)

row(
    "claims.within",
    number,
    number,
    needed={"instances": or_junk(lambda src: src.choose((1, 0, 100)))},
    weight=0.3,
    infinite=True,
)


@case("figures.Check", weight=0.3, infinite=True)
def figure_check(src: Source) -> Call:
    def function(*args: Any) -> Any:
        made = figures.Check(*args)
        return made.part, made.measured

    return Call(function, (word(src), values(src), level(src), level(src)))


# -- Studies, of a function without JAX.


def study_grid(src: Source) -> Any:
    good = ({"n": [1, 2]}, [{"n": 1}, {"n": 2}], {"n": [1], "p": [0.5]}, {"word": ["a", None]})
    bad = ({}, [], {"n": []}, {"n": [1, 1]}, {"n": 3}, {"seed": [1]}, [{"n": 1}, {"m": 1}], {"n": [np.nan]}, {1: [2]})
    return junk(src) if src.rarely(8) else src.choose(good + bad)


def study_block(src: Source) -> Any:
    found = src.choose(({"x": 1.0}, {"x": np.nan}, {"x": [1]}, {}, None, {"x": object()}, {"x": "text"}, {"n": 1}))

    def block(point: Any, seeds: Any) -> Any:
        return found

    return src.choose((block, block, block, raising, 3, "direction", "nothing", lambda one: one))


def study_arguments(src: Source) -> tuple[tuple[Any, ...], dict[str, Any]]:
    trials, seed = src.choose((1, 3, 0, None, "a", 2.5)), src.choose((0, 5, -1, 10**25, "a"))
    return (study_block(src), study_grid(src)), {"trials": trials, "seed": seed, "store": folder() / "study"}


@case("study.Study", weight=0.3, covers=("Study", "study.Study.with_trials"))
def make_study(src: Source) -> Call:
    def function(*args: Any, **kwargs: Any) -> str:
        return repr(al.Study(*args, **kwargs).with_trials(2))

    return Call(function, *study_arguments(src))


STUDY_METHODS = ("frame", "status", "summary", "to_latex", "dataset", "arrays", "to_csv", "to_parquet", "plot")


@case("study.Study.run", weight=0.1, covers=tuple(f"study.Study.{name}" for name in STUDY_METHODS))
def run_study(src: Source) -> Call:
    what, retries = src.choose(STUDY_METHODS), src.choose((0, 1, -1, "a"))
    places = {"to_csv": (folder() / "t.csv",), "to_parquet": (folder() / "t.parquet",)}
    asked = {"summary": (src.choose((None, "n", "m", 3)),), "plot": (src.choose(("n", "x", "m", 3)), "x")} | places

    def function(*args: Any, **kwargs: Any) -> str:
        if args[0] == "direction":  # trains, which cases of `descend` do
            return repr(al.Study(*args, **kwargs))
        study = al.Study(*args, **kwargs)
        study.run(retries=retries)
        return repr(getattr(study, what)(*asked.get(what, ())))

    return Call(function, *study_arguments(src))


@case("study.read_study", weight=0.1)
def study_file(src: Source) -> Call:
    file = folder() / src.choose(("a.toml", "b.toml", "c.txt", "nowhere.toml"))
    content = (
        "measure = 'direction'\n[grid]\nn = [1]\n",
        "measure = 3\n",
        "",
        "grid = 3\nmeasure = 'rates'\n",
        "x = [",
    )
    if "nowhere" not in file.name:
        file.write_text(src.choose(content))
    return Call(lambda path: repr(al.study.read_study(path)), (junk(src) if src.rarely(8) else file,))


def found_in_store(kind_: Any, config_: Any) -> str:
    return repr(store().find(kind_, config_))


@case("store.Store.find", weight=0.2)
def find_kept(src: Source) -> Call:
    return Call(found_in_store, (kind(src), config(src)))
