"""One head, measured: its share of the best margin, that of chance, and that of held-out max-margin weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.data.tokens import Array
from attnlab.reports.probing.best import best_margins, norm_of
from attnlab.reports.probing.descriptors import Descriptors, describe
from attnlab.reports.probing.layout import Layout
from attnlab.reports.probing.metrics import (
    Coordinates,
    Metric,
    at_unit_scale,
    canonical,
    hidden_coordinates,
    whitened_coordinates,
)
from attnlab.reports.probing.nulls import chance_weights
from attnlab.reports.probing.selection import Sample, decisive, halves, select

# Pairs of tokens that are kept of those that hold the margin.
MOST_PAIRS = 24
NOTHING = "weights, keys or queries are zero, or all keys are equal"


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """How heads are probed.

    Attributes:
        queries: n, how many decisive queries are asked on each half of the prompts.
        draws: K, how many rotated heads chance is measured by.
        splits: how often the prompts are split in two.
        norm: of the weights.
        tolerance: relative width at which a bracket of the best margin is narrow enough.
        seed: of splits and rotations.
    """

    queries: int
    draws: int
    splits: int
    norm: str
    tolerance: float
    seed: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """All that decides the numbers of one head."""

    layer: int
    head: int
    q: Array  # (P, T, d_h)
    k: Array
    hidden: Array | None  # (P, T, D)
    W_Q: Array | None  # (d_h, D)
    W_K: Array | None
    b_Q: Array | None
    layout: Layout
    settings: Settings


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One head in one metric, over the halves of all splits.

    Attributes:
        share: (F,) rho, of the best margin for the head's own selections.
        chance: (K, F) the same of rotated weights.
        ceiling: (F,) the same of the max-margin weights of the other half.
        agreement: (F,) queries for which those weights select as the head does.
        chance_agreement: (K, F) likewise, of rotated heads with their own max-margin weights.
        gap: largest relative width of a bracket that went into these.
        stable_rank: |W|_F^2 / |W|_2^2.
        pairs: (pairs, 4) prompt, query, selected key and rival that hold the margin, the first split's.
        multipliers: (pairs,) their shares, falling.
        held_by: how many pairs hold 90 % of the margin.
        reason: why there is too little data, else empty; all arrays are empty then.
    """

    share: Array
    chance: Array
    ceiling: Array
    agreement: Array
    chance_agreement: Array
    gap: float
    stable_rank: float
    pairs: NDArray[np.intp]
    multipliers: Array
    held_by: int
    reason: str = ""


@dataclass(frozen=True, eq=False)
class _Half:
    """Heads on the queries of one half: shares (B,), max-margin weights (B, a, b), selections on the sample (B, m)."""

    share: Array
    best: Array
    selected: NDArray[np.intp]
    queries: NDArray[np.intp]  # (B, n) of the sample
    multipliers: Array  # (n, T) of the first head
    gap: float


class TooLittle(Exception):
    """A head that cannot be judged, with the reason."""


def measure(task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and facts of one head, as a store keeps them."""
    arrays: dict[str, Any] = {}
    facts: dict[str, Any] = {"layer": task.layer, "head": task.head}
    for metric in (Metric.HIDDEN, Metric.WHITENED):
        if metric is Metric.HIDDEN and task.hidden is None:
            continue
        measured = measured_in(task, metric)
        numbers = {}
        for name, value in vars(measured).items():
            if isinstance(value, np.ndarray):
                arrays[f"{metric.value}_{name}"] = value
            else:
                numbers[name] = value
        facts[metric.value] = numbers
    facts["descriptors"] = asdict(describe(task.q, task.k, task.layout))
    return arrays, facts


def read_back(arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[dict[Metric, Measured], Descriptors]:
    """What `measure` put into arrays and facts."""
    found = {}
    for metric in Metric:
        if metric.value not in facts:
            continue
        start = f"{metric.value}_"
        own = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
        found[metric] = Measured(**own, **facts[metric.value])
    return found, Descriptors(**facts["descriptors"])


def measured_in(task: Task, metric: Metric) -> Measured:
    """One head in one metric."""
    try:
        return _measured(task, metric)
    except TooLittle as reason:
        none = np.zeros(0)
        return Measured(
            share=none,
            chance=np.zeros((task.settings.draws, 0)),
            ceiling=none,
            agreement=none,
            chance_agreement=np.zeros((task.settings.draws, 0)),
            gap=0.0,
            stable_rank=0.0,
            pairs=np.zeros((0, 4), dtype=np.intp),
            multipliers=none,
            held_by=0,
            reason=str(reason),
        )


def too_little(layout: Layout, settings: Settings) -> str:
    """Why these tokens are too few for any head; empty where they are enough."""
    if not layout.real.any():
        return "the mask hides every token"
    if layout.real[~layout.sinks].sum() == 0:
        return "all keys are sinks"
    asking = layout.queries()
    if not asking.any():
        return "no query has two keys to choose from"
    if asking.sum() == 1:
        return "there is one query"
    if (asking.any(1)).sum() == 1:
        return "there is one prompt, and halves are made of whole prompts"
    wanted = 2 * settings.queries
    for samples in halves(layout, settings.queries, settings.splits, settings.seed):
        fewest = min(len(sample.prompt) for sample in samples)
        if fewest < wanted:
            return f"half of the prompts has {fewest} queries; {wanted} are wanted, for n = {settings.queries}"
    return ""


def _measured(task: Task, metric: Metric) -> Measured:
    settings = task.settings
    reason = too_little(task.layout, settings)
    if reason:
        raise TooLittle(reason)
    head = _coordinates(task, metric)
    if not (np.any(head.W) and np.any(head.x) and np.any(head.z)):
        raise TooLittle(NOTHING)
    nulls = chance_weights(head.W, metric, settings.draws, [settings.seed, task.layer, task.head])
    weights = np.concatenate([head.W[None], nulls])
    shares, ceilings, agreements, gaps = [], [], [], []
    pairs: list[Any] = []
    for split, samples in enumerate(halves(task.layout, settings.queries, settings.splits, settings.seed)):
        measured = [_half(head, sample, weights, settings) for sample in samples]
        for one, other, sample in zip(measured, reversed(measured), samples, strict=True):
            ceiling, agreement, gap = _held_out(head, sample, one, other, settings)
            shares.append(one.share)
            ceilings.append(ceiling)
            agreements.append(agreement)
            gaps += [one.gap, gap]
            if split == 0:
                pairs.append(_pairs(sample, one))
    own = np.stack(shares, axis=-1)  # (B, F)
    agreed = np.stack(agreements, axis=-1)
    where, held = _strongest(pairs)
    singular = np.linalg.svd(head.W, compute_uv=False)
    return Measured(
        share=own[0],
        chance=own[1:],
        ceiling=np.array(ceilings),
        agreement=agreed[0],
        chance_agreement=agreed[1:],
        gap=max(gaps),
        stable_rank=float(np.sum((singular / singular[0]) ** 2)),
        pairs=where[:MOST_PAIRS],
        multipliers=held[:MOST_PAIRS],
        held_by=int(np.searchsorted(np.cumsum(held), 0.9) + 1),
    )


def _coordinates(task: Task, metric: Metric) -> Coordinates:
    choosable = task.layout.choosable()
    keys = np.asarray(choosable.any(1))  # (P, T): ever chosen from
    if metric is Metric.HIDDEN:
        given: Any = (task.hidden, task.W_Q, task.W_K, task.b_Q)
        head = hidden_coordinates(*given)
    else:
        head = whitened_coordinates(task.q, task.k, keys, task.layout.queries())
    head = at_unit_scale(head, keys, task.layout.queries())
    # The largest entry, unlike singular values, depends on the axes: there the head's own are kept.
    return head if task.settings.norm == "max" else canonical(head, keys)


def _half(head: Coordinates, sample: Sample, weights: Array, settings: Settings) -> _Half:
    """Weights (B, a, b), the head's own first, on one half."""
    keys, queries = sample.keys(head), sample.queries(head)
    found = select(keys, queries, sample.choosable, weights)
    asked = decisive(found.leads, settings.queries)
    least = np.take_along_axis(found.leads, asked, axis=1).min(1)  # (B,)
    if least[0] <= 0:
        count = int((found.leads[0] > 0).sum())
        problem = "no query is decisive" if not count else f"{count} queries are decisive"
        raise TooLittle(f"{problem} of {len(sample.prompt)} (the others have ties); n = {settings.queries} are wanted")
    share, best, multipliers, gap = _shares(sample, keys, queries, found.selected, asked, least, weights, settings)
    return _Half(share, best, found.selected, asked, multipliers, gap)


def _held_out(
    head: Coordinates, sample: Sample, one: _Half, other: _Half, settings: Settings
) -> tuple[float, Array, float]:
    """Share of the other half's max-margin weights here, agreement with each head (B,), a bracket's width."""
    keys, queries = sample.keys(head), sample.queries(head)
    found = select(keys, queries, sample.choosable, other.best)
    same = np.take_along_axis(found.selected == one.selected, one.queries, axis=1).mean(1)
    asked = decisive(found.leads[:1], settings.queries)
    least = np.take_along_axis(found.leads[:1], asked, axis=1).min(1)
    share, _, _, gap = _shares(sample, keys, queries, found.selected[:1], asked, least, other.best[:1], settings)
    return float(share[0]), same, gap


def _shares(
    sample: Sample,
    keys: Array,
    queries: Array,
    selected: NDArray[np.intp],
    asked: NDArray[np.intp],
    least: Array,
    weights: Array,
    settings: Settings,
) -> tuple[Array, Array, Array, float]:
    """Shares (B,), max-margin weights (B, a, b), multipliers (n, T) of the first, and the widest bracket.

    Weights whose least lead is a tie have no share of anything: 0, and their own direction.
    """
    share = np.zeros(len(weights))
    best = weights.copy()
    good = np.flatnonzero(least > 0)
    chosen = np.take_along_axis(selected, asked, axis=1)
    if not len(good):
        return share, best, np.zeros((asked.shape[1], keys.shape[1])), 0.0
    found = best_margins(
        keys[asked[good]],
        queries[asked[good]],
        chosen[good],
        sample.choosable[asked[good]],
        norm=settings.norm,
        tolerance=settings.tolerance,
        start=weights[good],
    )
    attained = least[good] / norm_of(weights[good], settings.norm)  # by the weights themselves
    lower = np.maximum(found.lower, attained)
    upper = np.maximum(found.upper, lower)
    known = lower > 0  # else the least lead has underflown
    middle = np.sqrt(np.where(known, lower, 1.0)) * np.sqrt(np.where(known, upper, 1.0))
    share[good] = np.where(known, attained / middle, 0.0)
    best[good] = np.where((found.lower > 0)[:, None, None], found.W, weights[good])
    gap = float((1.0 - np.where(known, lower / np.where(known, upper, 1.0), 1.0)).max())
    return share, best, found.multipliers[0], gap


def _pairs(sample: Sample, half: _Half) -> tuple[NDArray[np.intp], Array]:
    """Prompt, query, selected key and rival, and the multiplier of each."""
    row, rival = np.nonzero(half.multipliers > 0)
    asked = half.queries[0][row]
    places = np.stack([sample.prompt[asked], sample.place[asked], half.selected[0][asked], rival], axis=-1)
    return places, half.multipliers[row, rival]


def _strongest(pairs: list[tuple[NDArray[np.intp], Array]]) -> tuple[NDArray[np.intp], Array]:
    """Pairs of both halves by falling multiplier; the multipliers sum to 1."""
    places = np.concatenate([where for where, _ in pairs])
    held = np.concatenate([values for _, values in pairs])
    order = np.argsort(-held, kind="stable")
    return places[order], held[order] / held.sum()
