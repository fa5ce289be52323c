"""Cases of `al.probe`."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnlab as al
from fuzz.arrays import anything
from fuzz.calls import Call, case
from fuzz.scalars import choice, flag, junk, small_whole
from fuzz.source import Source


def options(src: Source, prompts: int, T: int) -> dict[str, Any]:
    """Few queries and draws, and whatever else may be given."""
    given: dict[str, Any] = {"queries": src.choose((2, 1, 3)), "draws": 2, "splits": 1}
    if src.rarely(3):
        given["norm"] = choice("frobenius", "max", "spectral", "nuclear")(src)
    if src.rarely(3):
        given["mask"] = np.array(src.indices(2, prompts * T)).reshape(prompts, T)
    if src.rarely(3):
        given["sinks"] = src.choose(([0], [0, -1], [], None, [99], np.ones((prompts, T), dtype=bool)))
    if src.rarely(3):
        given["causal"] = flag(src)
    if src.rarely(4):
        given["ids"] = np.array(src.indices(3, prompts * T)).reshape(prompts, T)
    if src.rarely(6):
        given[src.choose(("queries", "draws", "splits", "seed", "layers", "heads", "tolerance", "words"))] = junk(src)
    return given


def judge_shares(call: Call, report: Any) -> str | None:
    """A share is of the best that there is; JSON has no NaN."""
    reach = 1.0 + report.settings.tolerance + 1e-9
    for head in report.heads:
        for judged in head.judged.values():
            if judged is not None and not 0.0 <= judged.share <= reach:
                return f"{head.name} has a share of {judged.share}"
        if (head.reason == "") == (head.verdict is al.reports.HeadVerdict.TOO_LITTLE):
            return f"{head.name}: {head.verdict} with the reason {head.reason!r}"
    report.to_json()
    return None


@case("reports.probe", weight=0.5, covers=("probe",), judge=judge_shares, infinite=True)
def probe(src: Source) -> Call:
    prompts, T, d = src.choose((4, 6, 2, 1)), src.choose((3, 5, 2, 1)), src.choose((2, 1, 3))
    lead = src.choose(((), (2,), (1, 2)))
    kwargs = options(src, prompts, T)
    if src.rarely(3):
        D = src.choose((3, 1))
        shape = (d, D) if not lead else (*lead, d, D)
        kwargs["hidden"] = anything(src, (*lead[:-1], prompts, T, D))
        kwargs["W_Q"] = anything(src, shape)
        kwargs["W_K"] = anything(src, shape)
        kwargs["b_Q"] = anything(src, shape[:-1]) if src.rarely(2) else None
        return Call(al.probe, (), kwargs)
    if src.rarely(4):
        groups = [int(i) for i in src.indices(3, prompts * T)]
        shape = (*lead, prompts * T, d)
        kwargs = {name: value for name, value in kwargs.items() if name in ("queries", "draws", "splits", "norm")}
        return Call(al.probe, (anything(src, shape), anything(src, shape)), kwargs | {"groups": groups})
    shape = (*lead, prompts, T, d)
    return Call(al.probe, (anything(src, shape), anything(src, shape)), kwargs)


@case("reports.probe_arrays", weight=0.05)
def probe_arrays(src: Source) -> Call:
    texts = al.data.made_up_texts(4 + small_whole(src), seed=0)
    tokenizer = al.data.Tokenizer.of_texts(texts)
    data = texts.encode(tokenizer, length=src.choose((6, 3)))
    model = al.models.Bert(classes=2, vocabulary=tokenizer.vocabulary, dim=4, depth=1, heads=1, mlp=4)
    weights = model.initial(data, seed=0)
    given = [model, weights, data]
    if src.rarely(4):
        given[src.index(3)] = junk(src)
    return Call(al.reports.probe_arrays, tuple(given))
