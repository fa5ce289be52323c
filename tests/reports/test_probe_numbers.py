"""Metrics, selections, halves, nulls and shares of `al.probe`, each against a plain loop or another solver."""

import cvxpy as cp
import numpy as np
import pytest

import attnlab as al
from attnlab.reports.probing.best import norm_of
from attnlab.reports.probing.descriptors import describe
from attnlab.reports.probing.layout import Layout, checked_layout
from attnlab.reports.probing.measure import Settings, Task, measured_in
from attnlab.reports.probing.metrics import (
    Metric,
    at_unit_scale,
    canonical,
    hidden_coordinates,
    whitened_coordinates,
)
from attnlab.reports.probing.nulls import chance_weights, haar, rematched
from attnlab.reports.probing.selection import decisive, halves, select
from reports.probe_data import queries_and_keys, untrained

NORMS = {
    "frobenius": lambda W: cp.norm(W, "fro"),
    "nuclear": cp.normNuc,
    "spectral": lambda W: cp.norm(W, 2),
    "max": lambda W: cp.max(cp.abs(W)),
}


def layout_of(shape, **given):
    options = {"grouping": None, "mask": None, "causal": False, "sinks": None, "ids": None}
    return checked_layout(shape, **(options | given))


def task_of(given, head=0, *, layout=None, **settings):
    q, k = queries_and_keys(given)
    usual = {"queries": 6, "draws": 2, "splits": 1, "norm": "frobenius", "tolerance": 1e-3, "seed": 0}
    return Task(
        layer=0,
        head=head,
        q=q[0, head],
        k=k[0, head],
        hidden=given["hidden"][0],
        W_Q=given["W_Q"][0, head],
        W_K=given["W_K"][0, head],
        b_Q=given["b_Q"][0, head],
        layout=layout or layout_of(q.shape[2:4]),
        settings=Settings(**(usual | settings)),
    )


def leads_by_loop(logits, open_to):
    """For each query: the key it selects, and its lead."""
    found = []
    for row, allowed in zip(logits, open_to, strict=True):
        ordered = sorted((value, t) for t, value in enumerate(row) if allowed[t])
        found.append((ordered[-1][1], ordered[-1][0] - ordered[-2][0]))
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("metric", ["hidden", "whitened"])
def test_leads_in_coordinates_are_those_of_queries_and_keys(seed, metric):
    given = untrained(seed)
    q, k = queries_and_keys(given)
    P, T = q.shape[2:4]
    everyone = np.ones((P, T), dtype=bool)
    if metric == "hidden":
        found = hidden_coordinates(given["hidden"][0], given["W_Q"][0, 0], given["W_K"][0, 0], given["b_Q"][0, 0])
    else:
        found = whitened_coordinates(q[0, 0], k[0, 0], everyone, everyone)
    small = at_unit_scale(found, everyone, everyone)
    turned = canonical(small, everyone)
    rng = np.random.default_rng(seed)
    scales = {id(coordinates): [] for coordinates in (found, small, turned)}
    for _ in range(20):
        p, i = rng.integers(P), rng.integers(T)
        logits = k[0, 0, p] @ q[0, 0, p, i] / np.sqrt(q.shape[-1])
        logits -= logits[0]
        for coordinates in (found, small, turned):
            seen = coordinates.x[p] @ coordinates.W @ coordinates.z[p, i]
            seen -= seen[0]
            scales[id(coordinates)].append(np.ptp(seen) / np.ptp(logits))
            np.testing.assert_allclose(seen / np.ptp(seen), logits / np.ptp(logits), atol=1e-9)
    for of_coordinates in scales.values():  # one scale for all queries
        np.testing.assert_allclose(of_coordinates, of_coordinates[0], rtol=1e-7)


def test_whitened_tokens_have_unit_moments():
    given = untrained(3, prompts=30)
    q, k = queries_and_keys(given)
    keys = np.random.default_rng(0).random(q.shape[2:4]) < 0.7
    found = whitened_coordinates(q[0, 0], k[0, 0], keys, ~keys)
    np.testing.assert_allclose(np.cov(found.x[keys].T, bias=True), np.eye(6), atol=1e-9)
    z = found.z[~keys]
    np.testing.assert_allclose(z.T @ z / len(z), np.eye(6), atol=1e-9)


def test_flat_directions_are_left_out():
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 9, 5, 4))
    k[..., 3] = k[..., 0] + 1e-9 * rng.standard_normal((9, 5))
    everyone = np.ones((9, 5), dtype=bool)
    found = whitened_coordinates(q, k, everyone, everyone)
    assert found.x.shape[-1] == 3
    assert found.W.shape == (3, 4)
    logits = np.einsum("pid,ptd->pit", q, k - k.mean((0, 1)))
    seen = np.einsum("pta,ab,pib->pit", found.x, found.W, found.z)
    np.testing.assert_allclose(seen / np.ptp(seen), logits / np.ptp(logits), atol=1e-7)


def test_hidden_bases_are_orthonormal_also_of_dependent_rows():
    rng = np.random.default_rng(1)
    W_Q, W_K = rng.standard_normal((2, 4, 9))
    W_K[3] = W_K[0] - 2 * W_K[1]
    h = rng.standard_normal((3, 4, 9))
    found = hidden_coordinates(h, W_Q, W_K, np.zeros(4))
    assert found.W.shape == (3, 5)
    full = np.linalg.svd(W_K.T @ W_Q, compute_uv=False)[:3]
    here = np.linalg.svd(found.W, compute_uv=False)
    np.testing.assert_allclose(here / here[0], full / full[0])
    logits = np.einsum("ptd,pid->pit", h @ W_K.T, h @ W_Q.T)
    seen = np.einsum("pta,ab,pib->pit", found.x, found.W, found.z)
    np.testing.assert_allclose(seen / np.ptp(seen), logits / np.ptp(logits), atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_selections_and_decisive_queries_by_a_loop(seed):
    rng = np.random.default_rng(seed)
    m, T, a, b = 9, 5, 3, 4
    keys, queries, weights = (rng.standard_normal(shape) for shape in [(m, T, a), (m, b), (2, a, b)])
    open_to = rng.random((m, T)) < 0.6
    open_to[:, :2] = True
    found = select(keys, queries, open_to, weights)
    asked = decisive(found.leads, 4)
    for B in range(2):
        logits = np.einsum("mta,ab,mb->mt", keys, weights[B], queries)
        expected = leads_by_loop(logits, open_to)
        assert found.selected[B].tolist() == [key for key, _ in expected]
        np.testing.assert_allclose(found.leads[B], [lead for _, lead in expected], rtol=1e-9, atol=1e-12)
        largest = sorted(range(m), key=lambda i: -expected[i][1])[:4]
        assert asked[B].tolist() == sorted(largest)


def test_equal_keys_tie_whatever_rounding_says():
    rng = np.random.default_rng(0)
    keys = np.repeat(rng.standard_normal((40, 1, 7)), 2, axis=1)
    found = select(
        keys + 1e-15, rng.standard_normal((40, 7)), np.ones((40, 2), dtype=bool), rng.standard_normal((1, 7, 7))
    )
    assert not found.leads.any()


@pytest.mark.parametrize("seed", range(4))
def test_halves_are_whole_prompts_about_as_large_as_each_other(seed):
    rng = np.random.default_rng(seed)
    real = np.arange(12) < rng.integers(1, 12, size=(30, 1))
    layout = Layout(real=real, sinks=np.zeros_like(real), causal=True)
    counts = layout.queries().sum(1)
    for first, second in halves(layout, 400, 3, seed):  # more than there are: all are taken
        assert not set(first.prompt) & set(second.prompt)
        assert len(first.prompt) + len(second.prompt) == counts.sum()
        assert abs(len(first.prompt) - len(second.prompt)) <= 2 * counts.max()
        for sample in (first, second):
            assert (sample.choosable.sum(1) >= 2).all()
            later = np.arange(12) > sample.place[:, None]
            assert not (sample.choosable & later).any()
    few = halves(layout, 5, 1, seed)[0]
    assert all(len(sample.prompt) == 10 for sample in few)
    assert all(len({*zip(sample.prompt, sample.place, strict=True)}) == 10 for sample in few)
    again = halves(layout, 5, 2, seed)
    assert [*few[0].place] == [*again[0][0].place]
    assert {*again[0][0].prompt} != {*again[1][0].prompt}


def test_layouts_say_what_a_query_sees():
    sinks = np.zeros((2, 4), dtype=bool)
    sinks[:, 0] = True
    pattern = np.ones((2, 4, 4), dtype=bool)
    pattern[1, 3, 1] = False
    real = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=bool)
    layout = Layout(real=real, sinks=sinks, pattern=pattern, causal=True)
    for p, i, t in np.ndindex(2, 4, 4):
        sees = real[p, i] and real[p, t] and t <= i and pattern[p, i, t]
        assert layout.seen()[p, i, t] == sees
        assert layout.choosable()[p, i, t] == (sees and t != 0)
    assert layout.queries().tolist() == [[False, False, True, False], [False, False, True, True]]


def test_sinks_count_real_tokens_from_both_ends():
    mask = [[0, 1, 1, 1], [1, 1, 1, 0]]
    layout = layout_of((2, 4), mask=mask, sinks=[0, -1])
    assert layout.sinks.tolist() == [[False, True, False, True], [True, False, True, False]]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("metric", Metric)
def test_share_against_cvxpy(norm, metric):
    """The whole way of a share on one half, with loops and another solver."""
    given = untrained(5, prompts=8, T=5, D=7, d_h=3)
    task = task_of(given, queries=5, norm=norm)
    measured = measured_in(task, metric)
    assert measured.gap <= 1e-3
    everyone = task.layout.real
    if metric is Metric.HIDDEN:
        found = hidden_coordinates(task.hidden, task.W_Q, task.W_K, task.b_Q)
    else:
        found = whitened_coordinates(task.q, task.k, everyone, everyone)
    for half, sample in enumerate(halves(task.layout, 5, 1, 0)[0]):
        rows = []
        for p, i in zip(sample.prompt, sample.place, strict=True):
            logits = found.x[p] @ found.W @ found.z[p, i]
            (key, lead) = leads_by_loop([logits], [everyone[p]])[0]
            rows.append(
                (lead, [np.outer(found.x[p, key] - found.x[p, t], found.z[p, i]) for t in range(5) if t != key])
            )
        rows.sort(key=lambda row: -row[0])
        W, margin = cp.Variable(found.W.shape), cp.Variable()
        constraints = [NORMS[norm](W) <= 1]
        constraints += [cp.sum(cp.multiply(A, W)) >= margin for _, pairs in rows[:5] for A in pairs]
        best = cp.Problem(cp.Maximize(margin), constraints).solve(solver=cp.CLARABEL)
        share = rows[4][0] / norm_of(found.W[None], norm)[0] / best
        assert measured.share[half] == pytest.approx(share, rel=2e-3)


def test_ceiling_is_the_other_halfs_max_margin_probed_as_a_head():
    """By hand: solve one half, ask its W on the other."""
    given = untrained(2, prompts=10)
    task = task_of(given, queries=8, tolerance=1e-4)
    measured = measured_in(task, Metric.HIDDEN)
    head = hidden_coordinates(task.hidden, task.W_Q, task.W_K, task.b_Q)

    def asked(sample, W):
        keys, queries = sample.keys(head), sample.queries(head)
        found = select(keys, queries, sample.choosable, W[None])
        places = np.argsort(-found.leads[0])[:8]
        best = al.svm.bracket_margin(keys[places], queries[places], found.selected[0][places], tolerance=1e-4)
        return found, places, best

    first, second = halves(task.layout, 8, 1, 0)[0]
    _, _, best = asked(second, head.W)
    own, places, _ = asked(first, head.W)
    found, held_out, ceiling = asked(first, best.W)
    assert measured.ceiling[0] == pytest.approx(found.leads[0][held_out].min() / ceiling.lower, rel=1e-3)
    agreement = np.mean(own.selected[0][places] == found.selected[0][places])
    assert measured.agreement[0] == pytest.approx(agreement)


@pytest.mark.parametrize("metric", Metric)
def test_support_pairs_are_the_queries_and_rivals_of_least_lead(metric):
    measured = measured_in(task_of(untrained(4), queries=8), metric)
    assert measured.multipliers.sum() <= 1 + 1e-12
    assert (np.diff(measured.multipliers) <= 0).all()
    assert len(measured.pairs) == len(measured.multipliers)
    q, k = (part[0, 0] for part in queries_and_keys(untrained(4)))
    for prompt, query, selected, rival in measured.pairs:
        logits = k[prompt] @ q[prompt, query]
        assert logits.argmax() == selected
        assert rival != selected
    assert measured.held_by >= 1


def test_nulls_are_what_they_are_called():
    W = np.zeros((4, 5))
    np.fill_diagonal(W, [5.0, 3.0, 2.0, 1.0])
    drawn = chance_weights(W, Metric.HIDDEN, 3, [1, 2])
    np.testing.assert_allclose(np.linalg.svd(drawn, compute_uv=False), [[5, 3, 2, 1]] * 3)
    assert not np.allclose(drawn[0], drawn[1])
    np.testing.assert_array_equal(chance_weights(W, Metric.HIDDEN, 1, [1, 2])[0], drawn[0])
    for other in ([1, 3], [2, 2]):
        assert not np.allclose(chance_weights(W, Metric.HIDDEN, 1, other)[0], drawn[0])
    turned = rematched(W, np.random.default_rng(0))
    roots = np.sqrt([5.0, 3.0, 2.0, 1.0])
    B = turned[:, :4] / roots / roots[:, None]
    np.testing.assert_allclose(B @ B.T, np.eye(4), atol=1e-12)
    assert not turned[:, 4:].any()


def test_haar_has_no_preferred_direction():
    rng = np.random.default_rng(0)
    draws = np.stack([haar(3, rng) for _ in range(4000)])
    np.testing.assert_allclose(draws.mean(0), 0, atol=5 / np.sqrt(3 * 4000))
    np.testing.assert_allclose((draws**2).mean(0), 1 / 3, atol=0.03)
    np.testing.assert_allclose(draws[0] @ draws[0].T, np.eye(3), atol=1e-12)


def test_descriptors_by_a_loop():
    given = untrained(1, prompts=6, T=6)
    q, k = (part[0, 0] for part in queries_and_keys(given))
    mask = np.arange(6) < np.array([6, 5, 4, 6, 3, 6])[:, None]
    layout = layout_of((6, 6), mask=mask, sinks=[0], causal=True, ids=given["ids"])
    found = describe(q, k, layout)
    offsets, words, same, sink, entropy, logits = [], [], [], [], [], []
    for p in range(6):
        for i in range(mask[p].sum()):
            row = np.array([q[p, i] @ k[p, t] / np.sqrt(6) for t in range(i + 1)])
            logits += [*row]
            weights = np.exp(row) / np.exp(row).sum()
            sink.append(weights[0])
            if i >= 1:
                entropy.append(-(weights * np.log(weights)).sum() / np.log(i + 1))
            if i >= 2:
                key = 1 + int(row[1:].argmax())
                offsets.append(key - i)
                words.append(given["ids"][p, key])
                same.append(key != i and given["ids"][p, key] == given["ids"][p, i])
    assert found.offset_share == pytest.approx(max(np.mean(np.array(offsets) == o) for o in set(offsets)))
    assert np.mean(np.array(offsets) == found.offset) == pytest.approx(found.offset_share)
    assert np.mean(np.array(words) == found.word) == pytest.approx(found.word_share)
    assert found.word_share == pytest.approx(max(np.mean(np.array(words) == w) for w in set(words)))
    assert found.same_word_share == pytest.approx(np.mean(same))
    assert found.sink_mass == pytest.approx(np.mean(sink))
    assert found.entropy == pytest.approx(np.mean(entropy))
    assert found.largest_logit == pytest.approx(max(logits))
