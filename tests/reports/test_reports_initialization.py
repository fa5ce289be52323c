"""The report on a start, and leave-one-out runs, against other ways to the same numbers."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

import attnlab as al
from attnlab.data.mixture import tokenized_mixture
from attnlab.errors import InputError
from attnlab.models.multihead import MultiHead
from attnlab.reports.initialization import good_initialization
from attnlab.reports.stability import leave_one_out, stability
from attnlab.theory.multihead import Shape, phase_one
from attnlab.theory.multihead.guarantees import COIN


def zeros(tokens):
    return {"U": np.zeros((tokens.T, tokens.d)), "W": np.zeros((tokens.d, tokens.d))}


def easy(n=8):
    """Two tokens (0.98 y, small)."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    x = np.stack([np.tile(0.98 * y[:, None], (1, 2)), rng.uniform(-0.15, 0.15, (n, 2))], axis=-1)
    return al.Tokens.self_attention(x, y)


def test_constants_by_hand():
    tokens = tokenized_mixture(n=30)
    rng = np.random.default_rng(0)
    weights = {"U": rng.standard_normal((3, 10, 4)), "W": rng.standard_normal((3, 4, 4))}
    model = MultiHead(3)
    found = good_initialization(tokens, model, weights, steps=50)
    norms = [np.sqrt((weights["U"][h] ** 2).sum() + (weights["W"][h] ** 2).sum()) for h in range(3)]
    assert_allclose(found.B2, max(norms))
    assert_allclose(found.B_phi, np.abs(model.outputs(tokens, weights)).max(), rtol=1e-12)
    assert_allclose(found.start_loss, model.loss(tokens, weights), rtol=1e-12)
    assert_allclose(found.shape.R, np.linalg.norm(tokens.x, axis=-1).max())


@pytest.mark.parametrize("sharp", [False, True])
def test_bounds_by_hand(sharp):
    """Corollary 2 written out, at its own largest step."""
    tokens = easy()
    found = good_initialization(tokens, MultiHead(10**6), zeros(tokens), steps=1000, sharp=sharp)
    gamma, T, d = found.margin.lower, 2, 2
    for promised, factor in ((found.printed, 1.0), (found.corrected, np.sqrt(2.0))):
        assert promised is not None
        g0 = factor * (2 + np.log(1000)) / gamma
        assert_allclose(promised.train.value, 2 / 1000 + 5 * g0**2 / (4 * found.step * 1000), rtol=1e-12)
        assert_allclose(promised.gap.value, 17 * g0**2 / (found.step * tokens.n), rtol=1e-12)
        assert_allclose(promised.test.value, promised.train.value + promised.gap.value)
        if not sharp:
            G = (2 + np.log(1000)) / gamma
            target = 5 * np.sqrt(T * d) * (3 * np.sqrt(d) + 1) * G**2 * max(1, G)
            assert_allclose(promised.heads_target, target**2, rtol=1e-12)
            root = 256 * np.sqrt(T * d) * (3 * np.sqrt(d) * (4 * g0 + 1) + 1) * g0**2
            assert_allclose(promised.heads, root**2, rtol=1e-12)
            alpha = 3 * np.sqrt(d) * (3 * np.sqrt(T) * (4 * g0 + 1) + 2 * np.sqrt(T))
            rho = (2 * np.sqrt(T * d) / root + T / 4) * alpha**2
            assert_allclose(promised.largest_step, min(1.0, 1 / rho), rtol=1e-9)
    assert found.corrected is not None
    assert found.corrected.allowed
    assert found.step == found.corrected.largest_step
    # Twice the printed bounds, at one step size.
    assert found.printed is not None
    assert_allclose(found.corrected.gap.value, 2 * found.printed.gap.value, rtol=1e-12)


def test_where_bounds_begin_to_speak():
    tokens = easy()
    found = good_initialization(tokens, MultiHead(10**6), zeros(tokens), sharp=True)
    assert found.corrected is not None
    assert found.corrected.train.vacuous
    assert found.corrected.test.vacuous
    K = int(found.corrected.steps_needed)
    for steps, vacuous in ((K, False), (K // 2, True)):
        there = good_initialization(tokens, MultiHead(10**6), zeros(tokens), sharp=True, steps=steps).corrected
        assert there is not None
        assert there.train.vacuous is vacuous
    n = found.corrected.sequences_needed
    for k, speaks in ((n, True), (n / 2, False)):
        there = good_initialization(tokens, MultiHead(10**6), zeros(tokens), sharp=True, steps=int(k)).corrected
        assert there is not None
        assert (there.train.value + there.gap.value * tokens.n / k < COIN) is speaks


def test_saying_zero_costs_log_2():
    tokens = easy()
    found = good_initialization(tokens, MultiHead(10), zeros(tokens))
    assert found.corrected is not None
    assert_allclose([found.start_loss, found.corrected.test.trivial, found.corrected.gap.trivial, COIN], np.log(2))


def test_enough_heads_and_step_size():
    tokens = easy()
    few = good_initialization(tokens, MultiHead(10), zeros(tokens)).corrected
    assert few is not None
    assert not few.enough
    assert not few.applies
    assert few.allowed
    heads = int(np.ceil(max(few.heads, few.heads_target)))
    many = good_initialization(tokens, MultiHead(heads), zeros(tokens)).corrected
    assert many is not None
    assert many.enough
    assert many.applies
    hasty = good_initialization(tokens, MultiHead(heads), zeros(tokens), step=2.0).corrected
    assert hasty is not None
    assert not hasty.allowed
    assert not hasty.applies


@pytest.mark.slow
def test_bounds_hold_in_training():
    tokens = easy()
    found = good_initialization(tokens, MultiHead(10**12), zeros(tokens), steps=500, sharp=True)
    assert found.corrected is not None
    assert found.corrected.applies
    run = al.descend(tokens, al.gd(found.step), model=MultiHead(10**12), init="zeros", steps=500)
    assert run.metrics["loss"][-1] <= found.corrected.train.value


def test_no_good_start():
    x = np.array([[[1.0, 0.0]], [[1.0, 0.0]]])
    tokens = al.Tokens.self_attention(x, [1.0, -1.0])
    found = good_initialization(tokens, MultiHead(2), zeros(tokens))
    assert not found.good
    assert found.start is None
    assert found.corrected is None
    assert "P3 fails" in repr(found)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["corrected"] is None


def test_prints_and_writes():
    first, tokens = tokenized_mixture(n=100, seed=1), tokenized_mixture(n=20)
    phase = phase_one(first, 10**6)
    model = MultiHead(10**6, counts=phase.counts.tolist())
    found = good_initialization(tokens, model, phase.weights)
    text, facts = repr(found), json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert "says nothing" in text
    assert "ask for more heads" in text
    (heads,) = {line.split()[-1] for line in text.splitlines() if line.startswith("heads for the bounds")}
    assert heads == "no"
    assert "P3" in text
    assert facts["corrected"]["heads"] > facts["printed"]["heads"]
    assert facts["gamma"][0] <= facts["gamma"][1]


def test_report_refuses():
    tokens = easy()
    with pytest.raises(InputError, match="`R` is 0"):
        good_initialization(tokens, MultiHead(2), zeros(tokens), R=0.5)
    with pytest.raises(InputError, match="`steps` is 0"):
        good_initialization(tokens, MultiHead(2), zeros(tokens), steps=0)
    wide = good_initialization(tokens, MultiHead(2), zeros(tokens), R=2.0)
    assert wide.shape == Shape(T=2, d=2, R=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [al.gd, al.ngd])
def test_zeros_in_place_of_a_sequence_leave_it_out(rule):
    """Against a run on n - 1 sequences, with the step scaled by (n - 1) / n for gradient descent."""
    tokens, model = easy(6), MultiHead(8)
    found = stability(tokens, model, rule(0.3), steps=25, record=None)
    whole = al.descend(tokens, rule(0.3), model=model, init="zeros", steps=25, record=None)
    kept = np.arange(6) != 2
    scale = 5 / 6 if rule is al.gd else 1.0
    less = al.Tokens.self_attention(tokens.x[kept], tokens.y[kept])
    without = al.descend(less, rule(0.3 * scale), model=model, init="zeros", steps=25, record=None)
    apart = np.sqrt(8 * sum(((whole.weights[k] - without.weights[k]) ** 2).sum() for k in ("U", "W")))
    assert_allclose(found.distances[2], apart, rtol=1e-9)
    assert_allclose(found.moved, np.sqrt(8 * sum((whole.weights[k] ** 2).sum() for k in ("U", "W"))), rtol=1e-12)
    assert_allclose(found.mean, found.distances.mean())


@pytest.mark.slow
def test_stability_of_a_batch_is_that_of_each():
    batch = al.data.sphere(n=4, T=2, d=3, seed=0, trials=3)
    rng = np.random.default_rng(0)
    init = {"U": rng.standard_normal((2, 2, 3)), "W": rng.standard_normal((2, 3, 3))}
    model = MultiHead(5, counts=(3, 2))
    found = stability(batch, model, al.gd(0.5), steps=10, init=init, record=None)
    alone = stability(batch[1], model, al.gd(0.5), steps=10, init=init, record=None)
    assert found.distances.shape == (3, 4)
    assert found.moved.shape == (3,)
    assert_allclose(found.distances[1], alone.distances, rtol=1e-10)
    assert_allclose(found.moved[1], alone.moved, rtol=1e-10)
    assert leave_one_out(batch).trials == 15


def test_stability_refuses():
    tokens = easy()
    with pytest.raises(InputError, match="reads the loss"):
        stability(tokens, MultiHead(2), al.polyak(), steps=2)
    with pytest.raises(InputError, match="one start"):
        stability(tokens, MultiHead(2), al.gd(0.1), steps=2, init="gaussian")


def test_masks_and_single_queries_are_refused():
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    causal = al.Tokens(x=x, z=x, y=np.ones((2, 3)), v=np.ones(4), mask="causal")
    with pytest.raises(al.InputError, match="every token asks"):
        phase_one(causal, heads=4)
    with pytest.raises(al.InputError, match="every token asks"):
        stability(causal, al.models.MultiHead(2), al.gd(0.1), steps=2)
