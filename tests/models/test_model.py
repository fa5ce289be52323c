"""A model of the user's own: two methods, and everything else follows, at weights of 1000 as at weights of 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from mpmath import mp, mpf
from own_models import WithValues

import attnlab as al
from compiled import programs


class Frozen(WithValues):
    """The same with values that are drawn and stay."""

    def shapes(self, data):
        shapes = super().shapes(data)
        return shapes | {"V": al.weights((data.d, data.d), "gaussian", scale=3.0, trained=False)}


class Classes(al.Model):
    """Three outputs of a sequence, for labels 0, 1 and 2; it sees tokens alone."""

    def shapes(self, data):
        return {"W": al.weights((data.d, data.d)), "U": al.weights((3, data.d), "zeros")}

    def output(self, weights: Mapping[str, Any], example):
        assert example.z is None
        assert example.v is None
        assert example.mask is None
        attention = al.models.softmax(example.x @ weights["W"] @ example.x[0])
        return weights["U"] @ (attention @ example.x)


MODEL = WithValues()
TOKENS = al.data.sphere(n=4, T=3, d=4, seed=3)
SEQUENCES = al.Sequences(x=np.random.default_rng(5).standard_normal((5, 3, 4)), y=[0, 2, 1, 1, 0])


def queried(seed=0, n=3, K=2):
    """Several queries, of which each sees tokens of its own."""
    rng = np.random.default_rng(seed)
    mask = np.array([[True, True, False, True], [False, True, True, True]])[:K]
    return al.Tokens(
        x=rng.standard_normal((n, 4, 3)),
        z=rng.standard_normal((n, K, 3)),
        y=rng.choice([-1.0, 1.0], (n, K)),
        v=rng.standard_normal(3),
        mask=np.broadcast_to(mask, (n, K, 4)),
    )


# --- in mpmath ------------------------------------------------------------------------------------------------------


def dot(a, b):
    return mp.fsum(p * q for p, q in zip(a, b, strict=True))


def exact_gradient(tokens, weights):
    """Of the mean logistic loss by W and V; softmax and its derivative by their definitions."""
    W, V, v, d = oracle.exact(weights["W"]), oracle.exact(weights["V"]), oracle.exact(tokens.v), tokens.d
    scored = [dot([row[j] for row in V], v) for j in range(d)]  # V^T v
    by_W, by_V = ([[mpf(0)] * d for _ in range(d)] for _ in range(2))
    for x, z, y in zip(oracle.exact(tokens.x), oracle.exact(tokens.z), tokens.y, strict=True):
        key = [dot(row, z) for row in W]
        s = oracle.softmax([dot(token, key) for token in x])
        g = [dot(token, scored) for token in x]
        margin = int(y) * dot(s, g)
        slope = -int(y) / (1 + mp.exp(margin)) / tokens.n
        h = [p * mp.fsum(q * (a - b) for q, b in zip(s, g, strict=True)) for p, a in zip(s, g, strict=True)]
        for i in range(d):
            column = [token[i] for token in x]
            left, out = slope * dot(h, column), slope * dot(s, column)
            for j in range(d):
                by_W[i][j] += left * z[j]
                by_V[j][i] += v[j] * out
    return {"W": by_W, "V": by_V}


def separate_step(tokens, weights, step):
    """Weights after one step of length `step` in each matrix against its gradient."""
    slopes, moved = exact_gradient(tokens, weights), {}
    for name, slope in slopes.items():
        size = oracle.norm(oracle.flat(slope))
        rows = zip(oracle.exact(weights[name]), slope, strict=True)
        moved[name] = [[w - mpf(step) * g / size for w, g in zip(*row, strict=True)] for row in rows]
    return moved


def apart(weights, truth):
    """Largest difference of weights from exact ones."""
    pairs = zip(oracle.flat(oracle.exact(weights)), oracle.flat(truth), strict=True)
    return float(max(abs(a - b) for a, b in pairs))


@pytest.mark.parametrize("seed", range(2))
def test_normalized_steps_are_exact_out_to_weights_of_a_thousand(seed):
    """Gradients by W fall to e^-1000, and the next step is still the one that fifty digits give."""
    tokens = al.data.sphere(n=3, T=3, d=3, seed=seed)
    with mp.workdps(60):
        for steps in (30, 2000):
            run = al.descend(tokens, al.joint_separate(0.5), model=MODEL, steps=steps, record=None, seed=seed)
            mantissa, log_scale = MODEL.gradient(tokens, run.weights)
            truth = exact_gradient(tokens, run.weights)
            for name in ("W", "V"):
                assert oracle.direction_error(mantissa[name], truth[name]) < 1e-10
                assert oracle.log_norm_error(mantissa[name], log_scale[name], truth[name]) < 1e-10
            further = al.descend(
                tokens, al.joint_separate(0.5), model=MODEL, steps=steps + 1, record=None, seed=seed, resume=run
            )
            step = separate_step(tokens, run.weights, 0.5)
            for name in ("W", "V"):
                assert apart(further.weights[name], step[name]) < 1e-10
                moved = further.weights[name] - run.weights[name]
                assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-9)
    assert np.linalg.norm(run.weights["W"]) > 600
    assert log_scale["W"] < -745  # beyond the smallest float
    ahead = al.descend(tokens, al.joint_separate(0.5), model=MODEL, steps=2002, record=None, seed=seed, resume=further)
    first, second = (b.weights["W"] - a.weights["W"] for a, b in ((run, further), (further, ahead)))
    assert np.sum(first * second) > (1 - 1e-6) * np.linalg.norm(first) * np.linalg.norm(second)


# --- laws of training -----------------------------------------------------------------------------------------------


def test_a_trial_is_the_same_alone_and_in_a_batch():
    batch = al.data.sphere(n=4, T=3, d=4, trials=2, seed=7)
    start = MODEL.initial(batch, 5)
    settings = {"model": MODEL, "steps": 40, "record": [0, 7, 40]}
    runs = al.descend(batch, al.ngd(0.3), seed=5, **settings)
    for name, weight in runs.initial.items():
        np.testing.assert_array_equal(weight, start[name])
    outputs, (mantissa, log_scale) = MODEL.outputs(batch, runs.weights), MODEL.gradient(batch, runs.weights)
    for i in range(2):
        own = {name: weight[i] for name, weight in start.items()}
        alone = al.descend(batch[i], al.ngd(0.3), init=own, **settings)
        last = {name: weight[i] for name, weight in runs.weights.items()}
        for name in ("W", "V"):
            np.testing.assert_array_equal(alone.weights[name], last[name])
            np.testing.assert_allclose(MODEL.gradient(batch[i], last)[0][name], mantissa[name][i], rtol=1e-13)
            np.testing.assert_allclose(MODEL.gradient(batch[i], last)[1][name], log_scale[name][i], rtol=1e-13)
        np.testing.assert_allclose(MODEL.outputs(batch[i], last), outputs[i], rtol=1e-14)
        np.testing.assert_array_equal(alone.metrics["log_loss"], runs.metrics["log_loss"][i])


def test_resumed_is_one_long_run_bit_for_bit(tmp_path):
    rule, settings = al.ngd_momentum(0.3, momentum=0.7), {"model": MODEL, "record": 5}
    long = al.descend(TOKENS, rule, steps=60, **settings)
    part = al.descend(TOKENS, rule, steps=25, **settings)
    part = al.Trajectory.load(part.save(tmp_path / "part.npz"))
    again = al.descend(TOKENS, rule, steps=60, resume=part, **settings)
    for name in ("W", "V"):
        np.testing.assert_array_equal(again.weights[name], long.weights[name])
    assert again.steps.tolist() == long.steps.tolist()
    np.testing.assert_array_equal(again.metrics["log_loss"], long.metrics["log_loss"])
    with pytest.raises(al.InputError, match="another factor"):
        al.descend(TOKENS, rule, steps=60, resume=part, **(settings | {"model": WithValues(factor=2.0)}))


def test_what_is_recorded_is_what_the_weights_say():
    run = al.descend(
        TOKENS, al.ngd(0.3), model=MODEL, steps=20, record=[0, 20], targets={"V": np.eye(4), "W": np.eye(4)}
    )
    size = {name: np.linalg.norm(weight) for name, weight in run.weights.items()}
    way = {name: np.linalg.norm(weight - run.initial[name]) for name, weight in run.weights.items()}
    last = {name: values[-1] for name, values in run.metrics.items()}
    assert last["norm"] == pytest.approx(np.hypot(size["W"], size["V"]), rel=1e-12)
    assert last["moved"] == pytest.approx(np.hypot(way["W"], way["V"]), rel=1e-12)
    for name in ("W", "V"):
        assert last[f"norm_{name}"] == pytest.approx(size[name], rel=1e-12)
        assert last[f"moved_{name}"] == pytest.approx(way[name], rel=1e-12)
        assert last[f"cosine_{name}_target"] == pytest.approx(np.trace(run.weights[name]) / size[name] / 2, rel=1e-12)
    assert last["loss"] == pytest.approx(float(MODEL.loss(TOKENS, run.weights)), rel=1e-13)
    attention = MODEL.attention(TOKENS, run.weights)
    assert last["top_attention"] == pytest.approx(attention.max(-1).mean(), rel=1e-13)
    np.testing.assert_array_equal(run.selected, attention.argmax(-1))


def test_frozen_weights_stay_and_have_no_derivative():
    model = Frozen()
    run = al.descend(TOKENS, al.adam(0.1), model=model, steps=15, record=[0, 15], init_scale=2.0)
    np.testing.assert_array_equal(run.weights["V"], run.initial["V"])
    assert np.linalg.norm(run.weights["W"] - run.initial["W"]) > 0.1
    assert "norm_V" not in run.metrics
    np.testing.assert_allclose(run.metrics["norm"], run.metrics["norm_W"], rtol=1e-15)
    mantissa, _ = model.gradient(TOKENS, run.weights)
    np.testing.assert_array_equal(mantissa["V"], 0.0)
    np.testing.assert_array_equal(model.features(TOKENS, run.weights)["V"], 0.0)
    assert np.abs(run.initial["V"]).max() > 3.0  # neither `init` nor `init_scale` is for what is not trained
    zeros = model.start(TOKENS, "zeros", 1.0, 0)
    np.testing.assert_array_equal(zeros["W"], 0.0)
    assert np.abs(zeros["V"]).max() > 3.0


def test_frozen_weights_can_be_compared_with_a_target():
    model = Frozen()
    target = model.initial(TOKENS, 3)
    run = al.descend(TOKENS, al.ngd(0.3), model=model, steps=5, record=[0, 5], targets=target)
    cosine = np.sum(run.weights["W"] * target["W"]) / np.linalg.norm(run.weights["W"]) / np.linalg.norm(target["W"])
    assert run.metrics["cosine_W_target"][-1] == pytest.approx(cosine, rel=1e-12)


@pytest.mark.parametrize(
    ("law", "variance"),
    [("lecun", 1 / 50), ("he", 2 / 50), ("gaussian", 1.0), ("ntk", 1.0), ("uniform", 1 / 150), ("zeros", 0.0)],
)
def test_laws_have_their_variances(law, variance):
    weight = al.weights((400, 50), law, scale=3.0)
    entries = weight.draw(np.random.default_rng(0))
    assert entries.shape == (400, 50)
    assert entries.var() == pytest.approx(9 * variance, rel=0.05)
    assert abs(entries.mean()) <= 0.05 * np.sqrt(9 * variance)
    if law == "uniform":
        assert 0.99 < np.abs(entries).max() * np.sqrt(50) / 3 <= 1
    assert al.weights(7).shape == (7,)


@pytest.mark.parametrize(
    "wrong", [{"law": "normal"}, {"shape": (2, 0)}, {"shape": (2.5, 1)}, {"scale": np.nan}, {"scale": 1e200}]
)
def test_weights_that_are_none(wrong):
    with pytest.raises(al.InputError, match=f"`{next(iter(wrong))}`"):
        al.weights(**({"shape": (2, 3)} | wrong))


# --- what a model is known by ---------------------------------------------------------------------------------------


def test_equal_models_are_equal_and_share_programs():
    from attnlab.models.evaluate import _values

    assert WithValues() == WithValues(factor=1.0) != WithValues(factor=2.0)
    assert hash(WithValues()) == hash(WithValues(factor=1.0))
    assert WithValues() != Frozen()
    weights = MODEL.initial(TOKENS)
    WithValues(factor=1.25).loss(TOKENS, weights)
    before = programs(_values)
    WithValues(factor=1.25).loss(TOKENS, weights)
    assert programs(_values) == before
    assert WithValues(factor=1.5).loss(TOKENS, weights) != WithValues(factor=1.25).loss(TOKENS, weights)
    assert programs(_values) == before + 1
    with pytest.raises(AttributeError):
        MODEL.factor = 3.0  # pyright: ignore[reportAttributeAccessIssue]


# --- what every model can be asked ----------------------------------------------------------------------------------


CASES = {
    "one query": (MODEL, TOKENS, None),
    "queries and masks": (MODEL, queried(), None),
    "classes": (Classes(), SEQUENCES, "cross_entropy"),
    "layer": (al.models.Attention(), queried(), None),
    "keys and queries": (al.models.Attention("KQ"), TOKENS, "exponential"),
}


def by_hand(tokens, weights):
    """Attention and outputs of `WithValues`, query by query."""
    attention = np.zeros(tokens.visible.shape)
    outputs = np.zeros(tokens.y.shape)
    for place in np.ndindex(tokens.y.shape):
        x, seen = tokens.x[place[0]], tokens.visible[place]
        e = np.where(seen, np.exp(x @ weights["W"] @ tokens.z[place]), 0.0)
        attention[place] = e / e.sum()
        outputs[place] = tokens.v @ weights["V"] @ (attention[place] @ x)
    return attention, outputs


@pytest.mark.parametrize("tokens", [TOKENS, queried(), queried(1, n=2)], ids=["one", "three", "as many as queries"])
def test_outputs_attention_and_loss_by_hand(tokens):
    """Also with K queries and masks."""
    weights = MODEL.initial(tokens, 1)
    attention, outputs = by_hand(tokens, weights)
    np.testing.assert_allclose(MODEL.outputs(tokens, weights), outputs, rtol=1e-13)
    np.testing.assert_allclose(MODEL.attention(tokens, weights), attention, rtol=1e-13)
    for name, loss in (("logistic", lambda u: np.log1p(np.exp(-u))), ("hinge", lambda u: np.maximum(0, 1 - u))):
        want = loss(tokens.y * outputs).sum() / tokens.n
        assert float(MODEL.loss(tokens, weights, loss=name)) == pytest.approx(want, rel=1e-13)
        assert float(MODEL.loss(tokens, weights, loss=name, log=True)) == pytest.approx(np.log(want), rel=1e-12)


def along(function, weights, direction, step=1e-3):
    """Derivative of a function of weights along a direction; a central difference of sixth order."""

    def at(k):
        return function({name: w + k * step * direction[name] for name, w in weights.items()})

    return sum(c * (at(k) - at(-k)) / step for k, c in oracle.STENCIL.items())


def flat(named, lead=()):
    return np.concatenate([named[name].reshape(*lead, -1) for name in sorted(named)], axis=-1)


def random_like(weights, seed):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(w.shape) for name, w in weights.items()}


@pytest.mark.parametrize(
    "name",
    ["queries and masks", "classes", "layer", "keys and queries", pytest.param("one query", marks=pytest.mark.slow)],
)
def test_derivatives_are_those_of_differences(name):
    model, data, loss = CASES[name]
    weights = {key: 0.7 * w for key, w in random_like(model.initial(data), 0).items()}

    def gradient(weights):
        mantissa, log_scale = model.gradient(data, weights, loss=loss)
        assert all(np.abs(m).max() == pytest.approx(1.0, rel=1e-14) for m in mantissa.values())
        return flat({key: m * np.exp(log_scale[key]) for key, m in mantissa.items()})

    def features(weights):
        slopes, outputs = model.features(data, weights), model.outputs(data, weights)
        assert all(slope.shape == outputs.shape + weights[key].shape for key, slope in slopes.items())
        return flat(slopes, outputs.shape)

    slope, slopes = gradient(weights), features(weights)
    hessian, curved = (model.hessian(data, weights, of=of, loss=loss) for of in ("loss", "output"))
    for seed in range(1, 3):
        direction = random_like(weights, seed)
        way = flat(direction)
        change = along(lambda w: float(model.loss(data, w, loss=loss)), weights, direction)
        assert slope @ way == pytest.approx(change, rel=1e-8)
        changes = along(lambda w: model.outputs(data, w), weights, direction)
        np.testing.assert_allclose(slopes @ way, changes, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(hessian @ way, along(gradient, weights, direction), rtol=1e-7, atol=1e-9)
        product = model.hessian_product(data, weights, direction, loss=loss)
        np.testing.assert_allclose(flat(product), hessian @ way, rtol=1e-11, atol=1e-13)
        product = model.hessian_product(data, weights, direction, of="output", loss=loss)
        np.testing.assert_allclose(flat(product), curved @ way, rtol=1e-11, atol=1e-13)
        total = along(lambda w: features(w).reshape(-1, len(slope)).sum(0), weights, direction)
        np.testing.assert_allclose(curved @ way, total, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-12, atol=1e-15)


def test_attention_has_the_examples_first_however_logits_are_made():
    """Queries that are weights of the model stand before the tokens of an example in the product."""

    class Asking(al.Model):
        def shapes(self, data):
            return {"Q": al.weights((2, data.d))}

        def output(self, weights, example):
            return jnp.sum(al.models.softmax(weights["Q"] @ example.x.T) @ example.x @ example.v)

    model = Asking()
    weights = model.initial(TOKENS)
    e = np.exp(np.einsum("kd,ntd->nkt", weights["Q"], TOKENS.x))
    np.testing.assert_allclose(model.attention(TOKENS, weights), e / e.sum(-1, keepdims=True), rtol=1e-13)
    run = al.descend(TOKENS, al.gd(0.1), model=model, steps=2, record=None)
    assert run.selected.shape == (TOKENS.n, 2)


def test_a_weight_may_be_one_number():
    class Scaled(al.Model):
        def shapes(self, data):
            return {"b": al.weights(()), "w": al.weights(data.d)}

        def output(self, weights: Mapping[str, Any], example):
            return weights["b"] * (example.x[0] @ weights["w"])

    model = Scaled()
    start = model.initial(TOKENS)
    run = al.descend(TOKENS, al.gd(0.01), model=model, init=start, steps=100, record=None)
    flow = al.flow(TOKENS, model=model, init=start, time=1.0, record=None)
    for name, weight in run.weights.items():
        assert weight.shape == flow.weights[name].shape == start[name].shape
        np.testing.assert_allclose(flow.weights[name], weight, atol=3e-3)
        assert np.abs(flow.weights[name] - start[name]).max() > 1e-2


def test_a_model_may_be_called_a_dataclass():
    """As the documentation says that it is one."""

    @dataclass(frozen=True)
    class Called(WithValues):
        more: float = 2.0

    assert Called() == Called(1.0, 2.0) != Called(more=3.0)
    assert hash(Called()) == hash(Called(1.0, 2.0))
