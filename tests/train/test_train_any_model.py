"""Whatever is asked of one attention layer can be asked of any model: flow, kernels, paths, rules, stored runs."""

import numpy as np
import optax
import pytest
from scipy.optimize import minimize

import attnlab as al
from attnlab.models import Attention, Encoder, MultiHead
from attnlab.store.keys import descent_identity
from attnlab.theory.tangent import hessian_norm, ntk
from attnlab.train.flowtrajectory import FlowStatus


class WithValues(al.Model):
    """Attention with a trained value matrix."""

    factor: float = 1.0

    def shapes(self, data):
        return {"W": al.weights((data.d, data.d)), "V": al.weights((data.d, data.d))}

    def output(self, weights, example):
        attention = al.models.softmax(self.factor * example.x @ weights["W"] @ example.z)
        return example.v @ (weights["V"] @ (attention @ example.x))


class Frozen(WithValues):
    """The same with values that are drawn and stay."""

    def shapes(self, data):
        return super().shapes(data) | {"V": al.weights((data.d, data.d), trained=False)}


MODEL = WithValues()
TOKENS = al.data.sphere(n=4, T=3, d=3, seed=2)
SEQUENCES = al.data.gaussian_sequences(n=3, T=3, d=3, seed=1)
MODELS = {
    "with values": (MODEL, TOKENS),
    "heads": (MultiHead(2, "pooling"), TOKENS),
    "groups": (MultiHead(5, "last", counts=(3, 2)), TOKENS),
    "encoder": (Encoder(4, kink_width=0.3), SEQUENCES),  # without kinks, at which errors are of no order
    "ntk encoder": (Encoder(4, parameterization="ntk", kink_width=0.3), SEQUENCES),
}


def started(model, data):
    """Weights of order one, of which no two are alike."""
    shapes = model.shapes(data)
    rng = np.random.default_rng(8)
    return {name: 0.7 * rng.standard_normal(weight.shape) for name, weight in shapes.items()}


def flat(named):
    return np.concatenate([np.ravel(named[name]) for name in sorted(named)])


def length(named):
    return np.linalg.norm(flat(named))


# --- flow -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [*list(MODELS)[:1], *[pytest.param(k, marks=pytest.mark.slow) for k in list(MODELS)[1:]]]
)
def test_flow_is_the_limit_of_small_steps(name):
    """The error of gradient descent is halved with its step, and what is left beyond that is its square."""
    model, data = MODELS[name]
    init, end = started(model, data), 1.0
    flow = al.flow(data, model=model, time=end, init=init, record=None)
    assert flow.status is FlowStatus.FINISHED
    ends = []
    for steps in (20, 40, 80):
        run = al.descend(data, al.gd(end / steps), model=model, init=init, steps=steps, record=None)
        ends.append(flat(run.weights) - flat(flow.weights))
    first, second, third = (np.linalg.norm(error) for error in ends)
    assert 0.4 < second / first < 0.6
    assert 0.4 < third / second < 0.6
    # Errors c step + d step^2: two extrapolations leave the third power.
    left = np.linalg.norm(8 * ends[2] - 6 * ends[1] + ends[0])
    assert left < 0.05 * third + 3e-5
    assert first > 1e-4


@pytest.mark.slow
def test_flow_of_an_encoder_with_kinks():
    """Its kinks are rounded, and the flow slides along where gradient descent goes back and forth."""
    model, init = Encoder(4), started(Encoder(4), SEQUENCES)
    flow = al.flow(SEQUENCES, model=model, time=1.0, init=init, record=None)
    assert flow.status is FlowStatus.FINISHED
    errors = []
    for steps in (20, 400):
        run = al.descend(SEQUENCES, al.gd(1.0 / steps), model=model, init=init, steps=steps, record=None)
        errors.append(np.linalg.norm(flat(run.weights) - flat(flow.weights)))
    assert errors[1] < 0.1 * errors[0]
    assert errors[1] < 1e-3


def test_flow_of_heads_to_the_end_of_time():
    run = al.flow(TOKENS, model=MultiHead(2, "pooling"), init="gaussian", time=1e14, record=1)
    assert run.status is FlowStatus.FINISHED
    assert run.reached == 1e14
    log_loss = run.metrics["log_loss"]
    assert (np.diff(log_loss) < 0).all()
    # The margin of a fitted model grows like log t: the logistic loss falls as a power of t.
    assert log_loss[-1] < -25
    np.testing.assert_allclose(run.attention.sum(-1), 1.0, rtol=1e-12)


def test_flow_leaves_frozen_weights():
    run = al.flow(TOKENS, model=Frozen(), time=10.0, record=None)
    np.testing.assert_array_equal(run.weights["V"], run.initial["V"])
    assert np.abs(run.weights["W"] - run.initial["W"]).max() > 1e-2


# --- kernels and curvature ------------------------------------------------------------------------------------------


def test_kernel_is_that_of_the_numerical_jacobian():
    weights = started(MODEL, TOKENS)

    def outputs(name, place, step):
        moved = {k: w.copy() for k, w in weights.items()}
        moved[name][place] += step
        e = np.exp(np.einsum("ntd,de,ne->nt", TOKENS.x, moved["W"], TOKENS.z))
        attended = np.einsum("nt,ntd->nd", e / e.sum(-1, keepdims=True), TOKENS.x)
        return attended @ moved["V"].T @ TOKENS.v

    h = 1e-3
    by_V, by_W = (
        np.stack(
            [
                sum(c * outputs(name, p, k * h) for k, c in ((-2, 1), (-1, -8), (1, 8), (2, -1)))
                for p in np.ndindex(3, 3)
            ],
            axis=1,
        )
        / (12 * h)
        for name in "VW"
    )
    for block in (1, 10**6):
        kernel = ntk(TOKENS, MODEL, weights, block=block)
        np.testing.assert_allclose(kernel, by_V @ by_V.T + by_W @ by_W.T, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(ntk(TOKENS, Frozen(), weights), by_W @ by_W.T, rtol=1e-9, atol=1e-11)


def test_kernel_predicts_a_small_step():
    """df = step K l'(u) y / n, to first order: the error falls with the square of the step."""
    weights, errors = started(MODEL, TOKENS), []
    before = MODEL.outputs(TOKENS, weights)
    slope = -TOKENS.y / (1 + np.exp(TOKENS.y * before)) / TOKENS.n
    kernel = ntk(TOKENS, MODEL, weights)
    for step in (1e-2, 1e-3):
        run = al.descend(TOKENS, al.gd(step), model=MODEL, init=weights, steps=1, record=None)
        change = MODEL.outputs(TOKENS, run.weights) - before
        errors.append(np.linalg.norm(change + step * kernel @ slope) / np.linalg.norm(change))
    assert errors[1] < 1e-3
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.2)


@pytest.mark.parametrize("d", [3, 6])
def test_curvature_is_that_of_the_dense_hessian(d):
    """Of 18 weights in full, of 72 by Lanczos iterations."""
    tokens = al.data.sphere(n=3, T=3, d=d, seed=4)
    weights = started(MODEL, tokens)
    for place in (0, 2):
        alone = al.Tokens(x=tokens.x[[place]], z=tokens.z[[place]], y=tokens.y[[place]], v=tokens.v)
        values = np.linalg.eigvalsh(MODEL.hessian(alone, weights, of="output"))
        found = hessian_norm(tokens, MODEL, weights, sequence=place, tolerance=1e-10)
        assert found.norm == pytest.approx(np.abs(values).max(), rel=1e-8)
        assert found.residual <= 1e-7 * found.norm


# --- regularization paths -------------------------------------------------------------------------------------------


def test_path_is_below_a_random_search():
    radii = (1.0, 10.0)
    path = al.regularization_path(TOKENS, model=MODEL, radii=radii, restarts=3)
    rng, tries = np.random.default_rng(0), 400
    points = rng.standard_normal((tries, 18))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    many = al.Tokens(**{k: np.broadcast_to(getattr(TOKENS, k), (tries, *getattr(TOKENS, k).shape)) for k in "xzyv"})
    for k, radius in enumerate(radii):
        at = {name: weight[k] for name, weight in path.weights.items()}
        assert length(at) == pytest.approx(radius, rel=1e-9)
        assert float(MODEL.loss(TOKENS, at, log=True)) == pytest.approx(path.value[k], rel=1e-10)
        drawn = {name: radius * points[:, i : i + 9].reshape(-1, 3, 3) for name, i in (("W", 0), ("V", 9))}
        assert path.value[k] <= MODEL.loss(many, drawn, log=True).min()
        assert path.residual[k] < 1e-6
        near = {name: weight + 1e-3 * radius * rng.standard_normal((tries, 3, 3)) for name, weight in at.items()}
        size = np.sqrt(sum((w**2).sum((1, 2)) for w in near.values()))[:, None, None]
        near = {name: radius * w / size for name, w in near.items()}
        assert path.value[k] <= MODEL.loss(many, near, log=True).min() + 1e-12
    assert path.value[1] < path.value[0]


@pytest.mark.parametrize("name", ["groups", "encoder", pytest.param("ntk encoder", marks=pytest.mark.slow)])
def test_path_of_other_models_gives_their_weights(name):
    """The value at each radius is the loss at the weights that are reported; groups count with all their heads."""
    model, data = MODELS[name]
    loss = "logistic" if isinstance(model, MultiHead) else "half_sum"
    path = al.regularization_path(data, model=model, radii=(2.0,), restarts=1, loss=loss, measure="loss")
    at = {key: weight[0] for key, weight in path.weights.items()}
    assert float(model.loss(data, at, loss=loss)) == pytest.approx(float(path.value[0]), rel=1e-9)


@pytest.mark.parametrize(("heads", "counts"), [(2, (1, 1)), pytest.param(5, (3, 2), marks=pytest.mark.slow)])
def test_path_of_heads_toward_given_weights(heads, counts):
    """Radii count in the length of `toward` over all heads; the least loss and the angle are those of scipy."""
    model = MultiHead(heads, "pooling", counts=counts)
    toward = started(model, TOKENS)
    many = np.sqrt(np.repeat(counts, 12))  # u and W of a group, as often as there are heads

    def vector(weights):
        return many * np.concatenate([np.append(u, W) for u, W in zip(weights["U"], weights["W"], strict=True)])

    def log_loss(point, radius):
        point = radius * point / np.linalg.norm(point) / many
        outputs = 0.0
        for count, group in zip(counts, point.reshape(2, 12), strict=True):
            logits = np.einsum("ntd,de,nse->nts", TOKENS.x, group[3:].reshape(3, 3), TOKENS.x)
            attention = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            outputs += count / np.sqrt(heads) * (attention @ TOKENS.x @ group[:3]).sum(-1)
        return np.log(np.mean(np.log1p(np.exp(-TOKENS.y * outputs))))

    path = al.regularization_path(TOKENS, toward, model=model, radii=(0.5, 1.0), restarts=2)
    radii = np.linalg.norm(vector(toward)) * np.array([0.5, 1.0])
    starts = [vector(toward), *np.random.default_rng(1).standard_normal((2, 24))]
    np.testing.assert_allclose(path.radii, radii, rtol=1e-12)
    for k, radius in enumerate(radii):
        at = vector({name: weight[k] for name, weight in path.weights.items()})
        assert log_loss(at, np.linalg.norm(at)) == pytest.approx(path.value[k], rel=1e-9)
        least = min(minimize(log_loss, start, args=(radius,), tol=1e-10).fun for start in starts)
        assert path.value[k] == pytest.approx(least, rel=1e-6)
        cosine = at @ vector(toward) / np.linalg.norm(at) / radii[1]
        assert path.misalignment[k] == pytest.approx(1 - cosine, rel=1e-9)


def test_path_refuses_weights_of_other_groups():
    alone = {name: weight[:1] for name, weight in started(MultiHead(2), TOKENS).items()}
    with pytest.raises(al.InputError, match="`toward` has weights of shapes"):
        al.regularization_path(TOKENS, alone, model=MultiHead(2))


def test_path_toward_weights_of_which_some_are_frozen():
    toward = started(Frozen(), TOKENS)
    path = al.regularization_path(TOKENS, toward, model=Frozen(), radii=(1.0, 20.0), restarts=1)
    np.testing.assert_allclose(path.radii, np.linalg.norm(toward["W"]) * np.array([1.0, 20.0]), rtol=1e-12)
    assert path.misalignment is not None
    np.testing.assert_allclose(path.misalignment, al.misalignment(path.weights["W"], toward["W"]), rtol=1e-9)


def test_path_leaves_frozen_weights():
    model = Frozen()
    path = al.regularization_path(TOKENS, model=model, radii=(1.0, 20.0), restarts=1)
    np.testing.assert_allclose(path.weights["V"][0], path.weights["V"][1], rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(path.weights["W"], axis=(1, 2)), [1.0, 20.0], rtol=1e-9)


# --- rules ----------------------------------------------------------------------------------------------------------


def of_signs(g):
    return {name: np.sign(slope) for name, slope in g.items()}


def by_own_length(g):
    return {name: slope / np.linalg.norm(slope) for name, slope in g.items()}


RULES = {
    "gd": (al.gd(0.3), lambda g, loss: {k: 0.3 * s for k, s in g.items()}),
    "heavy_ball": (al.heavy_ball(0.3), lambda g, loss: {k: 0.3 * s for k, s in g.items()}),
    "ngd": (al.ngd(0.3), lambda g, loss: {k: 0.3 * s for k, s in by_own_length(g).items()}),
    "ngd_momentum": (al.ngd_momentum(0.3), None),
    "joint_separate": (al.joint_separate(0.3), lambda g, loss: {k: 0.3 * s for k, s in by_own_length(g).items()}),
    "joint_total": (al.joint_total(0.3), lambda g, loss: {k: 0.3 * s / length(g) for k, s in g.items()}),
    "polyak": (al.polyak(), lambda g, loss: {k: 0.5 * loss * s / length(g) ** 2 for k, s in g.items()}),
    "adam": (al.adam(0.3), lambda g, loss: {k: 0.3 * s for k, s in of_signs(g).items()}),
    "optax.adam": (optax.adam(0.3), lambda g, loss: {k: 0.3 * s for k, s in of_signs(g).items()}),
    "sign": (al.optim.scale_free(optax.sign_sgd(0.3)), lambda g, loss: {k: 0.3 * s for k, s in of_signs(g).items()}),
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_takes_its_first_step(name):
    rule, first = RULES[name]
    init = started(MODEL, TOKENS)
    mantissa, log_scale = MODEL.gradient(TOKENS, init)
    slope = {key: m * np.exp(log_scale[key]) for key, m in mantissa.items()}
    run = al.descend(TOKENS, rule, model=MODEL, init=init, steps=1, record=None)
    if first is not None:
        for key, step in first(slope, float(MODEL.loss(TOKENS, init))).items():
            exact = 1e-9 if "adam" not in name else 1e-4  # which divides by |g| + 1e-8
            np.testing.assert_allclose(init[key] - run.weights[key], step, rtol=exact)
    later = al.descend(TOKENS, rule, model=MODEL, init=init, steps=30, record=None)
    assert MODEL.loss(TOKENS, later.weights) < MODEL.loss(TOKENS, init)


def test_a_rule_of_head_and_attention_wants_a_head():
    with pytest.raises(al.InputError, match="no parameter 'u'"):
        al.descend(TOKENS, al.joint_decay(0.3), model=MODEL, steps=1)


# --- keywords and models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "kernel"},
        pytest.param({"parameterization": "KQ", "rank": 2}, marks=pytest.mark.slow),
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"engine": "direct"}, marks=pytest.mark.slow),
        pytest.param({"head": "relu-sum"}, marks=pytest.mark.slow),
        pytest.param({"train_head": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_keywords_are_short_for_the_layer(options):
    """The same bytes, the same record of the run, and so the same place in a store."""
    named = {"width" if key == "rank" else key: value for key, value in options.items()}
    settings = {"steps": 40, "record": [0, 40], "seed": 3}
    short = al.descend(TOKENS, al.ngd(0.2), **options, **settings)
    model = al.descend(TOKENS, al.ngd(0.2), model=Attention(**named), **settings)
    for name, weight in short.weights.items():
        np.testing.assert_array_equal(model.weights[name], weight)
    for name, values in short.metrics.items():
        np.testing.assert_array_equal(model.metrics[name], values)
    assert model.config == short.config


@pytest.mark.parametrize(
    ("name", "value"),
    [("parameterization", "KQ"), ("head", "relu-sum"), ("train_head", True), ("rank", 2), ("engine", "kernel")],
)
def test_keywords_of_the_layer_are_not_for_a_model(name, value):
    for model in (MODEL, Attention()):
        with pytest.raises(al.InputError, match=f"`{name}` is not for a `model`"):
            al.descend(TOKENS, al.gd(0.1), model=model, **{name: value})
    if name in ("parameterization", "head"):
        with pytest.raises(al.InputError, match=f"`{name}` is not for a `model`"):
            al.flow(TOKENS, model=MODEL, **{name: value})


@pytest.mark.parametrize("wrong", [{"head": "relu-sum"}, {"norm": "nuclear"}, {"m": 2}, {"selected": [0, 0, 0, 0]}])
def test_what_a_path_of_a_model_does_not_take(wrong):
    with pytest.raises(al.InputError, match=f"`{next(iter(wrong))}`"):
        al.regularization_path(TOKENS, model=MODEL, **wrong)


# --- stored runs ----------------------------------------------------------------------------------------------------


SOURCE = """
class Parent(al.Model):
    factor: float = 1.0
    CONSTANT = 1.0

    def shapes(self, data):
        return {"W": al.weights((data.d, data.d))}

    @property
    def doubled(self):
        return 2.0 * self.factor

    def output(self, weights, example):
        attention = al.models.softmax(self.CONSTANT * example.x @ weights["W"] @ example.z)
        return self.doubled * (example.v @ (attention @ example.x))

class Child(Parent):
    pass
"""


def defined(name="Parent", change=("", "")):
    names = {"al": al, "__name__": "mine"}
    exec(SOURCE.replace(*change), names)
    return names[name]


def key(model, **options):
    return descent_identity(TOKENS, al.gd(0.1), {"model": model, "steps": 3} | options).key


@pytest.mark.parametrize("name", ["Parent", "Child"])
@pytest.mark.parametrize(
    "change", [("self.doubled *", "3.0 *"), ("(data.d, data.d)", '(data.d, data.d), "he"'), ("2.0 *", "4.0 *"),
               ("CONSTANT = 1.0", "CONSTANT = 5.0"), ("factor: float = 1.0", "factor: float = 2.0")],
    ids=["output", "shapes", "property", "constant", "field"],
)  # fmt: skip
def test_the_key_of_a_run_changes_with_the_model(name, change):
    assert key(defined(name)()) == key(defined(name)())
    assert key(defined(name)()) != key(defined(name, change)())


def test_the_key_of_a_run_changes_with_the_settings_alone():
    model = defined()
    assert key(model(factor=2.0)) == key(model(2.0)) != key(model())
    assert key(model()) != key(MODEL) != key(WithValues(3.0))
    assert len({key(model()), key(model(), loss="hinge"), key(model(), seed=1), key(model(), init="zeros")}) == 4


def test_a_stored_run_is_found_again_until_the_model_changes(tmp_path):
    store, steps = al.Store(tmp_path / "runs"), []
    settings = {"steps": 8, "record": [0, 8], "on_step": lambda progress: steps.append(progress.step)}
    runs = []
    for model, anew in ((MODEL, True), (WithValues(), False), (WithValues(2.0), True), (MODEL, False)):
        steps.clear()
        runs.append(store.descend(TOKENS, al.ngd(0.2), model=model, **settings))
        assert bool(steps) == anew
    np.testing.assert_array_equal(runs[0].weights["V"], runs[3].weights["V"])
    assert np.abs(runs[0].weights["V"] - runs[2].weights["V"]).max() > 1e-3
