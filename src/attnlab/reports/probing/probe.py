"""`probe`: does a head choose its tokens with as much margin as its norm allows, and is that more than chance?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import number, one_of, shown, whole, whole_array
from attnlab.errors import InputError, message
from attnlab.reports.probing.best import NORMS
from attnlab.reports.probing.judged import Judged, judge, verdict
from attnlab.reports.probing.layout import (
    Heads,
    Layout,
    checked_layout,
    checked_words,
    heads_of_arrays,
    heads_of_hidden,
)
from attnlab.reports.probing.measure import Measured, Settings, Task, measure, read_back
from attnlab.reports.probing.metrics import Metric
from attnlab.reports.probing.report import ProbedHead, ProbeReport, Support

# Relative width of the brackets of best margins: a third of chance's own deviation, and the same for heads and chance.
TOLERANCE = 0.03
MOST_DRAWS, MOST_SPLITS = 10_000, 100
Outcome = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Probe:
    """A probe that is checked and ready: a task for each head, and what makes a report of the results."""

    tasks: tuple[Task, ...]
    layout: Layout
    settings: Settings
    words: NDArray[np.str_] | None

    def report(self, results: Iterable[Outcome]) -> ProbeReport:
        """From what `measure` gave for each task, in their order."""
        found = [read_back(arrays, facts) for arrays, facts in results]
        metrics = tuple(found[0][0])
        judged: dict[Metric, list[Judged | None]] = {}
        deviation = {}
        for metric in metrics:
            judged[metric], deviation[metric] = judge([measured[metric] for measured, _ in found])
        heads = []
        for i, (task, (measured, descriptors)) in enumerate(zip(self.tasks, found, strict=True)):
            own = {metric: judged[metric][i] for metric in metrics}
            heads.append(
                ProbedHead(
                    layer=task.layer,
                    head=task.head,
                    verdict=verdict(own),
                    reason=next((one.reason for one in measured.values() if one.reason), ""),
                    judged=own,
                    stable_rank={metric: one.stable_rank for metric, one in measured.items()},
                    support={metric: _support(one) for metric, one in measured.items()},
                    descriptors=descriptors,
                )
            )
        gaps = [one.gap for measured, _ in found for one in measured.values()]
        return ProbeReport(
            heads=tuple(heads),
            metrics=metrics,
            settings=self.settings,
            deviation=deviation,
            gap=max(gaps),
            real=self.layout.real,
            queries=int(self.layout.queries().sum()),
            words=self.words,
        )


def probe(
    q: ArrayLike | None = None,
    k: ArrayLike | None = None,
    *,
    on_part: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> ProbeReport:
    """What have the heads of a trained model learned: is each a max-margin selector, and is that more than chance?

    A head with logits x^T W z selects a key for each query. Of the best least lead that any W of its norm could give
    those selections it has a share rho. Chance rho_0 is the share of weights with random directions, the ceiling rho_1
    that of the max-margin weights of other prompts; index = (rho - rho_0) / (rho_1 - rho_0). See the guide.

    Args:
        q, k: queries and keys, (layers, heads, prompts, T, d_h), or the last of these axes; after rotary positions and
            norms. `k` may have fewer heads, shared by several of `q`. They suffice for the whitened metric.
        hidden, W_Q, W_K, b_Q: instead of them, hidden states (layers, prompts, T, D) with q = W_Q h + b_Q, weights
            (layers, heads, d_h, D), bias (layers, heads, d_h); both metrics. The bias of keys changes no choice.
        groups: the prompt of each token, where q, k or hidden have one axis over the tokens of all prompts.
        mask: (prompts, T), True for tokens that are there; or (prompts, T, T), True where a query sees a key.
        causal: queries see no later keys.
        sinks: keys that are not to be chosen: positions ([0, -1] are the first and last token of every prompt), or
            (prompts, T) booleans. Their attention is reported.
        ids: (prompts, T) number of the word of each token, for what heads do with words.
        words: (prompts, T) its text, for pictures.
        layers, heads: which to probe; None for all.
        norm: of W: "frobenius", "nuclear", "spectral" or "max" (largest entry, in the head's own axes).
        queries: n, decisive queries on each half of the prompts; None: d_h^2 / 8. Shares grow with n: compare at one n.
        draws: K, weights with random directions, for each head.
        splits: how often the prompts are split into two halves.
        tolerance: relative width of the brackets of best margins.
        seed: of splits and draws.
        on_part: told (heads done, heads in all, which comes next).

    Returns:
        A `ProbeReport`; print it, or read `heads`, `frame()`, `to_json()`.

    >>> import attnlab as al
    >>> rng = np.random.default_rng(0)
    >>> h, W_Q, W_K = (rng.standard_normal(shape) for shape in [(1, 12, 6, 16), (1, 3, 8, 16), (1, 3, 8, 16)])
    >>> al.probe(hidden=h, W_Q=W_Q, W_K=W_K)
    ProbeReport(3 heads: 3 not distinguishable from chance)
    """
    ready = prepare(q, k, **options)
    results = []
    for i, task in enumerate(ready.tasks):
        if on_part is not None:
            on_part(i, len(ready.tasks), f"layer {task.layer}, head {task.head}")
        results.append(measure(task))
    if on_part is not None:
        on_part(len(ready.tasks), len(ready.tasks), "done")
    return ready.report(results)


def prepare(
    q: ArrayLike | None = None,
    k: ArrayLike | None = None,
    *,
    hidden: ArrayLike | None = None,
    W_Q: ArrayLike | None = None,
    W_K: ArrayLike | None = None,
    b_Q: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    causal: bool = False,
    sinks: ArrayLike | Sequence[int] | None = None,
    ids: ArrayLike | None = None,
    words: Any = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    norm: str = "frobenius",
    queries: int | None = None,
    draws: int = 6,
    splits: int = 2,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Probe:
    """Check all that `probe` takes, and say what is to be measured for each head: for stores and several processes."""
    one_of("norm", norm, tuple(NORMS))
    if hidden is None:
        for name, given in (("W_Q", W_Q), ("W_K", W_K), ("b_Q", b_Q)):
            if given is not None:
                raise InputError(
                    message(f"`{name}` is given without `hidden`.", "al.probe(hidden=h, W_Q=..., W_K=...)")
                )
        arrays, grouping = heads_of_arrays(q, k, groups)
    elif q is not None or k is not None:
        problem = "`hidden` is given together with `q` or `k`; wanted one of the two."
        raise InputError(message(problem, "after rotary positions the weights alone do not give q and k: give those"))
    else:
        arrays, grouping = heads_of_hidden(hidden, W_Q, W_K, b_Q, groups)
    shape = (arrays.q.shape[2], arrays.q.shape[3])
    layout = checked_layout(shape, grouping=grouping, mask=mask, causal=causal, sinks=sinks, ids=ids)
    asked = max(1, arrays.q.shape[-1] ** 2 // 8) if queries is None else whole("queries", queries)
    settings = Settings(
        queries=asked,
        draws=whole("draws", draws, 2, MOST_DRAWS),
        splits=whole("splits", splits, 1, MOST_SPLITS),
        norm=str(norm),
        tolerance=number("tolerance", tolerance, least=1e-4, most=0.2),
        seed=whole("seed", seed, 0),
    )
    tasks = []
    for layer in _chosen("layers", layers, arrays.q.shape[0]):
        for head in _chosen("heads", heads, arrays.q.shape[1]):
            tasks.append(_task(arrays, layer, head, layout, settings))
    return Probe(tasks=tuple(tasks), layout=layout, settings=settings, words=checked_words(words, shape, grouping))


def _chosen(name: str, given: Sequence[int] | None, count: int) -> list[int]:
    """Layers or heads, each once, ascending."""
    if given is None:
        return list(range(count))
    numbers = np.unique(whole_array(name, given, "a list of numbers"))
    if not numbers.size or numbers[0] < 0 or numbers[-1] >= count:
        raise InputError(message(f"`{name}` is {shown(given)}; wanted numbers from 0 to {count - 1}."))
    return numbers.tolist()


def _task(arrays: Heads, layer: int, head: int, layout: Layout, settings: Settings) -> Task:
    return Task(
        layer=layer,
        head=head,
        q=arrays.q[layer, head],
        k=arrays.k[layer, head],
        hidden=None if arrays.hidden is None else arrays.hidden[layer],
        W_Q=None if arrays.W_Q is None else arrays.W_Q[layer, head],
        W_K=None if arrays.W_K is None else arrays.W_K[layer, head],
        b_Q=None if arrays.b_Q is None else arrays.b_Q[layer, head],
        layout=layout,
        settings=settings,
    )


def _support(measured: Measured) -> Support:
    return Support(pairs=measured.pairs, multipliers=measured.multipliers, held_by=measured.held_by)
