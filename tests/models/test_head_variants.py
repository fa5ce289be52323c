"""Narrow heads and other normalizations of multi-head attention: against slow loops, whole heads and differences."""

from __future__ import annotations

import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.models import MultiHead
from sampling import first_few

DECODERS = ("full", "pooling", "last")
TOKENS = al.data.sphere(n=4, T=3, d=4, seed=0)
NARROW = MultiHead(2, head_width="d/H")


def slow_head(x, weights, group, decoder):
    """<U, softmax(x W_Q W_K^T x^T) x W_V W_O> of one sequence, query by query, as the formula is printed."""
    W_Q, W_K, W_V, W_O = (weights[name][group] for name in ("W_Q", "W_K", "W_V", "W_O"))
    U = weights["U"]
    total = 0.0
    for t in range(len(x)):
        logits = np.array([(x[t] @ W_Q) @ (x[s] @ W_K) for s in range(len(x))])
        share = np.exp(logits - logits.max())
        put_out = (share / share.sum()) @ x @ W_V @ W_O
        if decoder == "full":
            total += U[t] @ put_out
        elif decoder == "pooling" or t == len(x) - 1:
            total += U @ put_out
    return total


def flat(weights):
    return np.concatenate([weights[name].ravel() for name in sorted(weights)])


def plain(model, weights):
    mantissa, log_scale = model.gradient(TOKENS, weights)
    return {name: mantissa[name] * np.exp(log_scale[name]) for name in mantissa}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("c", [0.5, 1.7])
def test_narrow_heads_against_the_printed_formula(decoder, c):
    model = MultiHead(5, decoder, counts=(2, 3), normalization=c, head_width=2)
    weights = model.initial(TOKENS, seed=1)
    assert weights["W_Q"].shape == weights["W_K"].shape == weights["W_V"].shape == (2, 4, 2)
    assert weights["W_O"].shape == (2, 2, 4)
    wanted = []
    for x in TOKENS.x:
        of_group = [slow_head(x, weights, g, decoder) for g in (0, 1)]
        wanted.append((2 * of_group[0] + 3 * of_group[1]) / 5**c)
    np.testing.assert_allclose(model.outputs(TOKENS, weights), wanted, rtol=1e-12)
    whole = {name: np.asarray(value) for name, value in model.whole_heads(weights).items()}
    same = MultiHead(5, decoder, counts=(2, 3), normalization=c)
    np.testing.assert_allclose(same.outputs(TOKENS, whole), wanted, rtol=1e-12)
    assert np.linalg.matrix_rank(whole["W"][0]) == 2


@pytest.mark.parametrize(
    "model", first_few([NARROW, MultiHead(2, "last", head_width=1), MultiHead(2, normalization=1.3)], 2)
)
def test_gradient_hessian_and_kernel_against_differences(model):
    rng = np.random.default_rng(5)
    weights = model.start(TOKENS, "gaussian", 0.7, 3)
    towards = {name: rng.standard_normal(w.shape) for name, w in weights.items()}
    h = 1e-5

    def moved(by):
        return {name: w + by * towards[name] for name, w in weights.items()}

    slope = (model.loss(TOKENS, moved(h)) - model.loss(TOKENS, moved(-h))) / (2 * h)
    assert flat(plain(model, weights)) @ flat(towards) == pytest.approx(float(slope), rel=1e-7)
    product = flat(model.hessian_product(TOKENS, weights, towards))
    change = (flat(plain(model, moved(h))) - flat(plain(model, moved(-h)))) / (2 * h)
    np.testing.assert_allclose(product, change, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(model.hessian(TOKENS, weights) @ flat(towards), product, rtol=1e-9, atol=1e-12)
    # The kernel by differences of the outputs along every weight.
    rows = []
    for name in sorted(weights):
        for at in np.ndindex(weights[name].shape):
            ends = []
            for sign in (1, -1):
                changed = {key: w.copy() for key, w in weights.items()}
                changed[name][at] += sign * h
                ends.append(model.outputs(TOKENS, changed))
            rows.append((ends[0] - ends[1]) / (2 * h))
    by_differences = np.array(rows).T @ np.array(rows)
    np.testing.assert_allclose(al.theory.ntk(TOKENS, model, weights), by_differences, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rule", first_few([al.gd(0.3), al.ngd(0.05), al.adam(0.02)], 1), ids=lambda rule: rule.name)
def test_narrow_groups_train_as_their_heads_do(rule):
    groups = MultiHead(5, counts=(2, 3), normalization=0.8, head_width=2)
    heads = MultiHead(5, normalization=0.8, head_width=2)
    start = groups.initial(TOKENS, seed=2)
    each = {name: w if name == "U" else w[[0, 0, 1, 1, 1]] for name, w in start.items()}
    target = groups.initial(TOKENS, seed=7)
    of_each = {name: w if name == "U" else w[[0, 0, 1, 1, 1]] for name, w in target.items()}
    one = al.descend(TOKENS, rule, model=groups, init=start, steps=60, targets=target)
    other = al.descend(TOKENS, rule, model=heads, init=each, steps=60, targets=of_each)
    np.testing.assert_allclose(one.weights["U"], other.weights["U"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(one.weights["W_O"][[0, 0, 1, 1, 1]], other.weights["W_O"], rtol=1e-9, atol=1e-12)
    for name in set(one.metrics) - {"log_gradient_norm", "step_length"}:
        np.testing.assert_allclose(one.metrics[name], other.metrics[name], rtol=1e-8, err_msg=name)


def test_records_of_narrow_heads():
    run = al.descend(TOKENS, al.gd(0.1), model=NARROW, steps=5, record=[5], seed=4)
    weights, last = run.weights, {name: values[-1] for name, values in run.metrics.items()}
    whole = NARROW.whole_heads(weights)
    lengths = np.linalg.norm(np.asarray(whole["U"]), axis=(1, 2))
    assert last["norm"] == pytest.approx(np.linalg.norm(flat(weights)), rel=1e-12)
    assert last["norm_U"] == pytest.approx(lengths.sum() / np.sqrt(2), rel=1e-12)
    assert last["norm_W"] == pytest.approx(np.linalg.norm(np.asarray(whole["W"]), axis=(1, 2)).mean(), rel=1e-12)
    own = [np.concatenate([weights[name][g].ravel() for name in weights if name != "U"]) for g in range(2)]
    assert last["largest_norm"] == pytest.approx(max(map(np.linalg.norm, own)), rel=1e-12)
    assert last["margin"] == pytest.approx((TOKENS.y * NARROW.outputs(TOKENS, weights)).min(), rel=1e-12)
    heads = NARROW.heads_as_tokens(TOKENS, weights)
    np.testing.assert_allclose(heads[1].W, (weights["W_Q"][1] @ weights["W_K"][1].T).T, rtol=1e-14)


@pytest.mark.parametrize("c", [0.0, 1.0, 2.0])
def test_another_normalization_is_another_step(c):
    """From zero the first step of each of H heads is H^(-c) times that of one alone."""
    heads = 9
    run = al.descend(TOKENS, al.gd(0.5), model=MultiHead(heads, normalization=c), init="zeros", steps=1, record=None)
    one = al.descend(TOKENS, al.gd(0.5), model=MultiHead(1), init="zeros", steps=1, record=None)
    np.testing.assert_allclose(run.weights["U"], one.weights["U"] / heads**c, rtol=1e-12)


@pytest.mark.parametrize(("model", "step"), [(NARROW, 0.1), (MultiHead(2, normalization=1.0), 1.0)])
def test_training_goes_on_under_saturation_and_along_the_flow(model, step):
    start = model.start(TOKENS, "gaussian", 0.5, 0)
    run = al.descend(TOKENS, al.ngd(step), model=model, init=start, steps=1500, record=[0, 750, 1500])
    log_loss, slopes = run.metrics["log_loss"], run.metrics["log_gradient_norm"]
    assert log_loss[-1] < 1.5 * log_loss[1] < -745  # below the least float64, and still falling
    assert slopes[-1] < -700
    assert np.isfinite(slopes).all()
    assert run.status is al.train.Status.FINISHED
    far = al.flow(TOKENS, model=model, init=start, time=1e6)
    near = al.flow(TOKENS, model=model, init=start, time=0.05)
    small = al.descend(TOKENS, al.gd(0.05 / 4000), model=model, init=start, steps=4000, record=None)
    np.testing.assert_allclose(near.weights["U"], small.weights["U"], rtol=0, atol=2e-5)
    assert model.loss(TOKENS, far.weights, log=True) < -8


def test_trials_are_as_each_alone():
    batch = al.data.sphere(n=4, T=3, d=4, seed=0, trials=2)
    model = MultiHead(4, counts=(1, 3), normalization=0.7, head_width=2)
    run = al.descend(batch, al.ngd(0.1), model=model, steps=20, record=[20])
    start = {name: w[1] for name, w in run.initial.items()}
    alone = al.descend(batch[1], al.ngd(0.1), model=model, steps=20, record=[20], init=start)
    np.testing.assert_allclose(run.weights["W_V"][1], alone.weights["W_V"], rtol=1e-10)


def test_what_does_not_fit_says_which_option():
    with pytest.raises(InputError, match="`head_width` is 'd/H', and 3 heads do not divide d = 4"):
        MultiHead(3, head_width="d/H").initial(TOKENS)
    with pytest.raises(InputError, match="`init='zeros'` with `head_width`"):
        al.descend(TOKENS, al.gd(0.1), model=NARROW, init="zeros", steps=1)
    with pytest.raises(InputError, match="`normalization` is 2 with"):
        MultiHead(10**90, normalization=2.0)
    for wrong in ({"normalization": -1.0}, {"normalization": np.nan}, {"head_width": 0}, {"head_width": "d"}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            MultiHead(2, **wrong)
    weights = NARROW.initial(TOKENS)
    with pytest.raises(InputError, match="W_Q and W_K and W_V and W_O of"):
        NARROW.outputs(TOKENS, weights | {"W_O": weights["W_O"][:1]})
    with pytest.raises(InputError, match=r"`weights\['U'\]` has shape"):
        NARROW.outputs(TOKENS, weights | {"U": weights["U"][None]})
    whole = {"U": np.zeros((3, 4)), "W": np.zeros((4, 4))}
    with pytest.raises(InputError, match=r"wanted {'U': \.\., 'W_Q'"):
        NARROW.outputs(TOKENS, whole)


@pytest.mark.parametrize("model", [NARROW, MultiHead(2, normalization=1.0)], ids=["narrow", "1/H"])
def test_no_theorem_is_told_of_models_it_is_not_about(model):
    weights = model.start(TOKENS, "gaussian", 1.0, 0)
    for ask in (al.good_initialization, al.theory.multihead.ntk_gram, al.theory.multihead.ntk_margin):
        with pytest.raises(InputError, match=r"the theory is about (head_width = None|normalization = 0.5)"):
            ask(TOKENS, model, weights)
    with pytest.raises(InputError, match="head_width"):
        al.reports.stability(TOKENS, NARROW, al.gd(0.1), steps=2)
