"""Value matrices, trained queries, heads of their own for queries, trained heads: each against its definition."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import variants_oracle as oracle
from mpmath import mp, mpf

import attnlab as al
from attnlab.models import Along, Attention, CrossAttention, TrainedLinear, TrainedMlp
from attnlab.train.flowtrajectory import FlowStatus

RNG = np.random.default_rng(3)
ONE = al.data.sphere(n=3, T=3, d=3, seed=1)
MASK = np.array([[True, True, False], [False, True, True]])
MANY = al.Tokens(
    x=RNG.standard_normal((3, 3, 3)),
    z=RNG.standard_normal((3, 2, 3)),
    y=RNG.choice([-1.0, 1.0], (3, 2)),
    v=RNG.standard_normal(3),
    mask=MASK,
)
DIRECTIONS = RNG.standard_normal((2, 3))


def dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


def by_v(tokens):
    return lambda k, weights, o: dot(tokens.v.tolist(), o)


def by_u(k, weights, o):
    return dot(weights["u"], o)


def by_mlp(k, weights, o):
    return dot(weights["a"], [max(inner, 0 * inner) for inner in oracle.matvec(weights["A"], o)])


def by_own(k, weights, o):
    """The first query has a trained head, the second a fixed direction."""
    return dot(weights["u0"], o) if k == 0 else dot(DIRECTIONS[1].tolist(), o)


VARIANTS = {
    "values": (CrossAttention(), ONE, by_v(ONE)),
    "frozen values": (CrossAttention(frozen=("V",)), ONE, by_v(ONE)),
    "narrow values": (CrossAttention(values=2, head=TrainedLinear()), MANY, by_u),
    "keys and queries": (CrossAttention("KQ", width=2), MANY, by_v(MANY)),
    "prompt": (CrossAttention(None, values=None, query="trained"), ONE, by_v(ONE)),
    "prompts and W": (CrossAttention(values=None, query="trained"), MANY, by_v(MANY)),
    "separate heads": (
        CrossAttention(values=None, head=(TrainedLinear(), Along(DIRECTIONS[1]))),
        MANY,
        by_own,
    ),
    "trained mlp": (CrossAttention(values=None, head=TrainedMlp(8)), ONE, by_mlp),
}
NAMES = list(VARIANTS)
BILINEAR = ("keys and queries", "prompts and W")


def mostly_slow(names, *, but):
    """Each variant is a program of its own, whose compiling takes seconds."""
    return [name if name in but else pytest.param(name, marks=pytest.mark.slow) for name in names]


def drawn(model, data, seed=0):
    return model.initial(data, seed)


def value(gradient, name):
    mantissa, log_scale = gradient
    return mantissa[name] * np.exp(log_scale[name])


@pytest.mark.parametrize("name", NAMES)
def test_outputs_loss_and_gradient_are_those_of_the_definition(name):
    model, data, head = VARIANTS[name]
    weights = drawn(model, data)
    lists = {key: w.tolist() for key, w in weights.items()}
    wanted = np.array(oracle.outputs(data, lists, head)).reshape(data.y.shape)
    np.testing.assert_allclose(model.outputs(data, weights), wanted, rtol=1e-12, atol=1e-14)
    assert model.loss(data, weights) == pytest.approx(oracle.loss(data, lists, head), rel=1e-12)
    gradient = model.gradient(data, weights)
    for key, w in weights.items():
        slopes = np.zeros(w.shape)
        for place in np.ndindex(w.shape):
            ends = []
            for sign in (1, -1):
                moved = {one: array.copy() for one, array in weights.items()}
                moved[key][place] += sign * 1e-5
                ends.append(model.loss(data, moved))
            slopes[place] = (ends[0] - ends[1]) / 2e-5
        wanted = np.zeros(w.shape) if key in model.frozen else slopes
        np.testing.assert_allclose(value(gradient, key), wanted, atol=2e-9)


@pytest.mark.parametrize("name", mostly_slow(NAMES, but=("values",)))
def test_gradients_after_thousands_of_normalized_steps_are_exact(name):
    """By hundreds of digits, also where a gradient is e^-1000."""
    model, data, head = VARIANTS[name]
    step = 0.05 if name in BILINEAR else 0.5  # logits grow like its square: the oracle has to hold their exponentials
    run = al.descend(data, al.joint_separate(step), model=model, steps=3000, record=None, seed=1)
    assert run.status.name == "FINISHED"
    mantissa, log_scale = model.gradient(data, run.weights)
    for key in run.weights:
        if key in model.frozen:
            np.testing.assert_array_equal(run.weights[key], run.initial[key])
            continue
        assert np.linalg.norm(run.weights[key] - run.initial[key]) > 5
        truth = oracle.exact_gradient(data, run.weights, head, key, 3500)
        with mp.workdps(60):
            size = mp.sqrt(sum(one * one for one in truth))
            assert size > 0
            assert float(log_scale[key] + np.log(np.linalg.norm(mantissa[key]))) == pytest.approx(
                float(mpmath.log(size)), rel=1e-10, abs=1e-9
            )
            unit = mantissa[key].ravel() / np.linalg.norm(mantissa[key])
            away = [mpf(float(a)) - b / size for a, b in zip(unit, truth, strict=True)]
            assert float(max(map(abs, away))) < 1e-9


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "rule",
    [
        al.ngd(0.1),
        pytest.param(al.gd(0.5), marks=pytest.mark.slow),
        pytest.param(al.joint_separate(0.1), marks=pytest.mark.slow),
    ],
    ids=lambda rule: rule.name,
)
def test_training_values_is_training_the_head_they_make(rule, seed):
    """With |u| = 1 a step in V moves V u as a step in the head vector moves that, however far attention saturates."""
    tokens = al.data.sphere(n=4, T=4, d=5, seed=seed)
    tokens = replace(tokens, v=tokens.v / np.linalg.norm(tokens.v))
    start = CrossAttention().initial(tokens, seed)
    of_head = {"W": start["W"], "u": start["V"] @ tokens.v}
    settings = {"steps": 3000, "record": [0, 10, 3000]}
    values = al.descend(tokens, rule, model=CrossAttention(), init=start, **settings)
    head = al.descend(tokens, rule, train_head=True, init=of_head, **settings)
    assert tokens.v is not None
    made = values.weights["V"] @ tokens.v
    assert np.linalg.norm(values.weights["W"] - head.W) <= 1e-12 * np.linalg.norm(head.W)
    assert np.linalg.norm(made - head.weights["u"]) <= 1e-12 * np.linalg.norm(made)
    np.testing.assert_allclose(values.metrics["log_loss"], head.metrics["log_loss"], rtol=1e-12)
    across = np.eye(5) - np.outer(tokens.v, tokens.v)
    np.testing.assert_allclose(values.weights["V"] @ across, start["V"] @ across, atol=1e-10)


@pytest.mark.slow
def test_frozen_values_are_the_fixed_head_they_make():
    start = CrossAttention().initial(ONE)
    fixed = replace(ONE, v=start["V"] @ ONE.v)
    run = al.descend(ONE, al.ngd(0.1), model=CrossAttention(frozen=("V",)), init=start, steps=2000)
    layer = al.descend(fixed, al.ngd(0.1), init=start["W"], steps=2000)
    assert np.linalg.norm(run.W - layer.W) <= 1e-12 * np.linalg.norm(layer.W)
    np.testing.assert_array_equal(run.selected, layer.selected)


def test_vectors_are_what_the_head_sees():
    model = CrossAttention(values=2, head=TrainedLinear())
    weights = model.initial(MANY, 2)
    vectors = model.vectors(MANY, weights)
    assert vectors.shape == (3, 2, 2)
    np.testing.assert_allclose(vectors @ weights["u"], model.outputs(MANY, weights), rtol=1e-13)
    attention = Attention().attention(MANY, weights["W"])
    np.testing.assert_allclose(vectors, attention @ MANY.x @ weights["V"], rtol=1e-12)


@pytest.mark.parametrize("query", ["trained", pytest.param("first", marks=pytest.mark.slow)])
def test_classes_by_a_vector_output(query):
    data = al.Sequences(x=RNG.standard_normal((6, 3, 3)), y=np.arange(6) % 3, lengths=[3, 2, 3, 1, 3, 2])
    model = CrossAttention(values=3, query=query, head=None)
    run = al.descend(data, al.ngd(0.1), model=model, steps=500)
    np.testing.assert_allclose(model.vectors(data, run.weights), model.outputs(data, run.weights), rtol=1e-13)
    assert run.metrics["accuracy"][-1] == 1.0
    assert run.metrics["loss"][-1] < 0.01 * run.metrics["loss"][0]


# --- laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", mostly_slow(NAMES, but=("separate heads",)))
def test_a_trial_is_the_same_alone_and_in_a_batch(name):
    model, data, _ = VARIANTS[name]
    batch = al.Tokens.stack([data, replace(data, x=data.x[:, ::-1])])
    runs = al.descend(batch, al.ngd(0.3), model=model, steps=40, seed=5)
    for trial in range(2):
        own = {key: w[trial] for key, w in runs.initial.items()}
        alone = al.descend(batch[trial], al.ngd(0.3), model=model, steps=40, init=own)
        for key, w in runs.weights.items():
            np.testing.assert_allclose(alone.weights[key], w[trial], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", mostly_slow(NAMES, but=("prompt",)))
def test_flow_is_the_limit_of_small_steps(name):
    model, data, _ = VARIANTS[name]
    # Descent follows what flow follows: with rounded kinks.
    smooth = model.for_flow() if name != "trained mlp" else replace(model, head=TrainedMlp(8, kink_width=0.3))
    start = smooth.initial(data, 2)
    flow = al.flow(data, model=smooth, time=1.0, init=start, record=None)
    assert flow.status is FlowStatus.FINISHED
    ends = []
    for steps in (20, 40):
        run = al.descend(data, al.gd(1.0 / steps), model=smooth, init=start, steps=steps, record=None)
        ends.append({key: w - flow.weights[key] for key, w in run.weights.items()})
    coarse, fine = (np.sqrt(sum(np.sum(w**2) for w in end.values())) for end in ends)
    left = np.sqrt(sum(np.sum((2 * ends[1][key] - ends[0][key]) ** 2) for key in start))
    assert 0.4 < fine / coarse < 0.6
    assert left < 0.1 * fine


@pytest.mark.slow
def test_flow_of_values_to_the_end_of_time():
    run = al.flow(ONE, model=CrossAttention(), time=1e14, record=1)
    assert run.status is FlowStatus.FINISHED
    assert (np.diff(run.metrics["log_loss"]) < 0).all()
    assert run.metrics["log_loss"][-1] < -25


@pytest.mark.parametrize("seed", range(2))
def test_a_prompt_goes_to_its_max_margin_direction(seed):
    """Of min |p| with (x_selected - x_t) . p >= 1, the distance shrinking like one over the steps."""
    tokens = al.data.sphere(n=3, T=3, d=6, seed=seed)
    model = CrossAttention(None, values=None, query="trained")
    angles = []
    for steps in (2000, 8000):
        run = al.descend(tokens, al.ngd(0.1), model=model, steps=steps, record=None, seed=seed)
        head = model.tokens_of(tokens, run.weights)
        np.testing.assert_array_equal(head.selected, run.selected)
        svm = al.solve_margin(head.tokens, head.selected)
        assert not svm.W[:, 1:].any()
        angles.append(np.sqrt(2 * al.misalignment(run.weights["p"][:, None], svm.W[:, :1])))
    assert angles[1] < 0.02
    assert angles[1] == pytest.approx(angles[0] / 4, rel=0.3)


def test_a_head_of_the_users_own_is_trained():
    @dataclass(frozen=True)
    class Squares(al.models.TrainedHead):
        def shapes(self, columns):
            return {"b": al.weights((columns,), "ones")}

        def apply(self, weights, output):
            return jnp.dot(jnp.asarray(weights["b"]), output**2)

    model = CrossAttention(values=None, head=Squares())
    run = al.descend(ONE, al.gd(0.1), model=model, steps=200)
    attended = Attention().attention(ONE, run.W)[:, None, :] @ ONE.x
    np.testing.assert_allclose(model.outputs(ONE, run.weights), attended[:, 0] ** 2 @ run.weights["b"], rtol=1e-12)
    assert run.metrics["loss"][-1] < run.metrics["loss"][0]


@pytest.mark.slow
def test_a_head_that_is_dead_on_a_sequence_stands_still():
    """Its loss stays at log 2; what others still pull is e^-700 of its slope, and is no NaN."""
    model = CrossAttention(values=None, head=TrainedMlp(4))
    run = al.descend(ONE, al.joint_separate(0.5), model=model, steps=300, record=None, seed=1)
    assert run.status.name == "FINISHED"
    assert model.outputs(ONE, run.weights)[2] == 0.0
    assert float(model.loss(ONE, run.weights)) == pytest.approx(np.log(2) / 3, rel=1e-12)


# --- what does not fit ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnHead(al.models.TrainedHead):
    """A head whose output is no number."""

    named: Any

    def shapes(self, columns) -> Any:
        return self.named

    def apply(self, weights, output) -> Any:
        return weights["b"] * output

    def trained(self):
        return CrossAttention(head=self).initial(ONE)


SEQUENCES = al.Sequences(x=RNG.standard_normal((4, 3, 3)), y=[0, 1, 0, 1])
LOUD = al.Tokens(x=ONE.x, z=1e200 * ONE.z, y=ONE.y, v=ONE.v)
WRONG = [
    (lambda: CrossAttention("V"), "`parameterization`"),
    (lambda: CrossAttention(None), "query='trained'"),
    (lambda: CrossAttention(width=2), "`width`"),
    (lambda: CrossAttention().outputs(LOUD, CrossAttention().initial(ONE)), "`data.z`"),
    (lambda: CrossAttention(values=0), "`values`"),
    (lambda: CrossAttention(values="wide"), "`values`"),
    (lambda: CrossAttention(query="last"), "`query`"),
    (lambda: CrossAttention(head=()), "`head`"),
    (lambda: CrossAttention(head="quadratic"), "`head`"),
    (lambda: CrossAttention(frozen="V"), "`frozen`"),
    (lambda: TrainedMlp(0), "`hidden`"),
    (lambda: CrossAttention(head=TrainedLinear), "`head` is the class TrainedLinear"),
    (lambda: OwnHead([1.0]).trained(), "`shapes` of `head` gives"),
    (lambda: OwnHead({1: al.weights((3,))}).trained(), "`shapes` of `head` gives"),
    (lambda: OwnHead({"W": al.weights((3, 3))}).trained(), "`head` has a weight 'W'"),
    (lambda: OwnHead({"K": al.weights((3,))}).trained(), "`head` has a weight 'K'"),
    (lambda: OwnHead({"b": al.weights((3,))}).trained(), "`head` gives an array of shape"),
    (lambda: OwnHead({"c": al.weights((3,))}).trained(), "`head` raises KeyError"),
    (lambda: CrossAttention(head=np.cumsum).initial(ONE), "`head`"),
    (lambda: CrossAttention().initial(SEQUENCES), "`query='data'`"),
    (lambda: CrossAttention(query="first").initial(SEQUENCES), "`head` is fixed"),
    (lambda: CrossAttention(query="first", head=(TrainedLinear(),)).initial(SEQUENCES), "`head` is a tuple"),
    (lambda: CrossAttention(head=None).initial(ONE), "`head=None`"),
    (lambda: CrossAttention(query="first").initial(MANY), "`query='first'`"),
    (lambda: CrossAttention(head=(TrainedLinear(),) * 3).initial(MANY), "3 heads.*2 queries"),
    (lambda: CrossAttention(head=(TrainedLinear(),)).initial(ONE), "one query without an axis"),
    (lambda: CrossAttention(values=2).initial(ONE), "`values` gives 2"),
    (lambda: CrossAttention().initial(replace(ONE, v=None)), "needs `v`"),
    (lambda: CrossAttention(frozen=("U",)).initial(ONE), "`frozen` names 'U'"),
    (lambda: CrossAttention(frozen=("W", "V")).initial(ONE), "nothing would be trained"),
    (lambda: al.descend(ONE, al.gd(0.1), model=CrossAttention(), init={"U": np.eye(3)}), "`init` gives 'U'"),
    (lambda: al.descend(ONE, al.gd(0.1), model=CrossAttention(), init={"V": np.eye(2)}), "init.*shape"),
]


@pytest.mark.parametrize(("call", "told"), WRONG, ids=[told for _, told in WRONG])
def test_what_does_not_fit_is_told(call, told):
    with pytest.raises(al.InputError, match=told):
        call()


def test_weights_that_are_left_out_of_a_start_are_drawn():
    run = al.descend(ONE, al.gd(0.1), model=CrossAttention(), init={"V": np.eye(3)}, steps=0, seed=4)
    np.testing.assert_array_equal(run.initial["V"], np.eye(3))
    np.testing.assert_array_equal(run.initial["W"], CrossAttention().initial(ONE, 4)["W"])
