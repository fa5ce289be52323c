"""Tangent kernels and curvature of every model, against differences, dense matrices and each other."""

import jax
import numpy as np
import pytest

import attnlab as al
from attnlab.models import Encoder, FullyConnected, MultiHead
from attnlab.theory.multihead import ntk_gram
from attnlab.theory.tangent import Outputs, hessian_norm, kernel_distance, ntk, ntk_eigenvalues

NETWORKS = {
    "lecun": Encoder(6),
    "ntk, sum": Encoder(6, scaling="linear", init="ntk", pool="sum"),
    "tied": Encoder(6, tied=True, scaling=1.5),
    "relu": Encoder(6, attention_kind="relu", scaling=1.0),
    "uniform": Encoder(6, attention_kind="uniform"),
    "projected": Encoder(6, residual="projected"),
    "identity": Encoder(4, residual="identity"),
    "held": Encoder(6, parameterization="ntk", init="he"),
    "hidden scale": Encoder(6, hidden_scale=0.3, scaling=2.0),
    "deep": Encoder(6, depth=2),
    "dense": FullyConnected(6),
    "dense 3": FullyConnected(6, layers=3, init="ntk"),
}


def differences(model, data, weights, held, step=1e-4):
    """The Jacobian of the outputs by central differences of fourth order, every weight times `held` of its matrix."""
    columns = []
    for name in sorted(weights):
        if not model.shapes(data)[name].trained:
            continue
        for place in np.ndindex(weights[name].shape):
            ends = []
            for s in (-2, -1, 1, 2):
                moved = {k: w.copy() for k, w in weights.items()}
                moved[name][place] += s * step
                ends.append(model.outputs(data, moved))
            slope = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)
            columns.append(held[name] * slope)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("name", NETWORKS)
def test_kernel_is_that_of_the_numerical_jacobian(name):
    model = NETWORKS[name]
    for seed in range(20):
        data = al.data.gaussian_sequences(4, 3, 4, rows="raw", seed=seed)
        weights = model.initial(data, 1)
        jacobian, again = (differences(model, data, weights, model.hold_factors(3, 4), step) for step in (1e-4, 1.3e-4))
        if np.abs(jacobian - again).max() <= 1e-9 * np.abs(again).max():  # no difference crosses a kink of the relu
            break
    else:
        pytest.fail("every draw is at a kink of the relu")
    want = jacobian @ jacobian.T
    assert np.abs(ntk(data, model, weights) - want).max() <= 1e-9 * np.abs(want).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("block", [1, 300, 5000])
def test_kernel_in_blocks_and_across(name, block):
    data, model = al.data.gaussian_sequences(7, 3, 4, seed=2), NETWORKS[name]
    other, weights = al.data.gaussian_sequences(5, 3, 4, seed=3), model.initial(data, 1)
    both = al.Sequences(x=np.concatenate([data.x, other.x]), y=np.zeros(12))
    whole = ntk(both, model, weights)
    np.testing.assert_allclose(ntk(both, model, weights, block=block), whole, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(
        ntk(data, model, weights, other=other, block=block), whole[:7, 7:], rtol=1e-11, atol=1e-13
    )
    np.testing.assert_array_equal(whole, whole.T)


def test_kernel_predicts_a_small_step():
    """df = -step K (f - y) to first order."""
    data, model = al.data.gaussian_sequences(5, 3, 4, seed=2), Encoder(64)
    weights, step = model.initial(data), 1e-6
    run = al.descend(data, al.gd(step), model=model, init=weights, steps=1, record=None)
    before, after = model.outputs(data, weights), model.outputs(data, run.weights)
    want = -step * ntk(data, model, weights) @ (before - data.y)
    np.testing.assert_allclose(after - before, want, rtol=1e-4, atol=1e-12)


def test_multi_head_kernel_is_the_gram_of_all_heads():
    tokens, rng = al.data.sphere(6, 4, 3), np.random.default_rng(0)
    for decoder, shape in (("full", (2, 4, 3)), ("pooling", (2, 3)), ("last", (2, 3))):
        model = MultiHead(7, decoder, counts=(5, 2))
        weights = {"U": rng.standard_normal(shape), "W": rng.standard_normal((2, 3, 3))}
        np.testing.assert_allclose(ntk(tokens, model, weights), ntk_gram(tokens, model, weights), rtol=1e-11)


@pytest.mark.parametrize("kind", ["W", "KQ"])
@pytest.mark.parametrize("queries", [0, "all"])
def test_attention_kernel_by_differences(kind, queries):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 4, 3))
    y = rng.choice([-1.0, 1.0], 3 if queries == 0 else (3, 4))
    mask = None if queries == 0 else "causal"
    tokens = al.Tokens.self_attention(x, y, rng.standard_normal(3), query=queries, mask=mask)
    names = ("W",) if kind == "W" else ("K", "Q")
    weights = {k: rng.standard_normal((3, 3)) for k in names}

    def outputs(weights):
        weights_of = al.models.attention(tokens, weights)
        assert tokens.v is not None
        return np.einsum("n...t,ntd,d->n...", weights_of, x, tokens.v).ravel()

    columns, step = [], 1e-4
    for name in names:
        for place in np.ndindex(3, 3):
            ends = []
            for s in (-2, -1, 1, 2):
                moved = {k: w.copy() for k, w in weights.items()}
                moved[name][place] += s * step
                ends.append(outputs(moved))
            columns.append((ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step))
    jacobian = np.stack(columns, axis=1)
    want = jacobian @ jacobian.T
    for block in (1, 10**6):
        assert np.abs(ntk(tokens, None, weights, block=block) - want).max() <= 1e-9 * np.abs(want).max()


@pytest.mark.parametrize("model", [Encoder(3), Encoder(24, scaling="linear", init="ntk"), FullyConnected(30)], ids=str)
def test_hessian_norm_is_that_of_the_dense_hessian(model):
    data = al.data.gaussian_sequences(2, 3, 4, seed=4)
    weights = model.initial(data, 2)
    with jax.enable_x64(True):
        maps = Outputs.of(data, model, weights)
    names = sorted(weights)

    def slope(flat):
        place, moved = 0, {}
        for k in names:
            moved[k] = flat[place : place + weights[k].size].reshape(weights[k].shape)
            place += weights[k].size
        with jax.enable_x64(True):
            return Outputs.of(data, model, moved).jacobian(slice(1, 2))[0]

    flat, step = np.concatenate([weights[k].ravel() for k in names]), 1e-5
    hessian = np.stack([(slope(flat + step * e) - slope(flat - step * e)) / (2 * step) for e in np.eye(len(flat))])
    values = np.linalg.eigvalsh(0.5 * (hessian + hessian.T))
    found = hessian_norm(data, model, weights, sequence=1, tolerance=1e-10)
    assert maps.size == len(flat)
    assert found.norm == pytest.approx(np.abs(values).max(), rel=1e-6)
    assert found.residual <= 1e-6 * found.norm


def test_hessian_of_two_numbers():
    """f = relu(v x) w with v x > 0: the Hessian is [[0, x], [x, 0]]."""
    data = al.Sequences.of_vectors([[3.0]], [0.0])
    found = hessian_norm(data, FullyConnected(1), {"W_V": [[2.0]], "w_O": [1.0]})
    assert found.norm == pytest.approx(3.0, rel=1e-12)
    dead = hessian_norm(data, FullyConnected(1), {"W_V": [[-2.0]], "w_O": [1.0]})
    assert dead.norm == 0.0


def test_hessian_without_curvature_in_many_weights():
    data = al.Sequences.of_vectors(np.zeros((1, 80)), [0.0])
    model = FullyConnected(2)
    assert hessian_norm(data, model, model.initial(data)).norm == 0.0


def test_power_iteration_tells_signs_apart():
    from attnlab.theory.tangent import _by_powers

    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((30, 30)))
    for top in ((5.0, -5.0), (-5.0, 4.0), (5.0, -4.9)):
        values = np.concatenate([top, rng.uniform(-3, 3, 28)])
        matrix = (basis * values) @ basis.T
        value, vector = _by_powers(lambda v, m=matrix: m @ v, rng.standard_normal(30))
        assert abs(value) == pytest.approx(5.0, rel=1e-6)
        np.testing.assert_allclose(matrix @ vector, value * vector, atol=1e-5 if top[1] == -5.0 else 2e-2)


def test_eigenvalues_are_squared_singular_values_of_the_jacobian():
    import jax

    data, model = al.data.gaussian_sequences(5, 3, 4, seed=2), Encoder(16)
    weights = model.initial(data)
    with jax.enable_x64(True):
        singular = np.linalg.svd(Outputs.of(data, model, weights).jacobian(), compute_uv=False)
    np.testing.assert_allclose(ntk_eigenvalues(data, model, weights), singular[::-1] ** 2, rtol=1e-10)
    turned = al.Sequences(x=np.concatenate([data.x, data.x[:1, ::-1]]), y=np.zeros(6))  # tokens in another order
    values = ntk_eigenvalues(turned, model, weights)
    assert values[0] == 0.0 < values[1]


def test_kernel_distance():
    a = np.diag([1.0, 2.0])
    assert kernel_distance(a, 7 * a) == pytest.approx(0.0, abs=1e-30)
    assert kernel_distance(np.diag([1.0, 0.0]), np.diag([0.0, 1.0])) == 1.0
    assert kernel_distance(a, np.diag([1.0, 2.0 + 1e-10])) == pytest.approx(0.5 * (1e-10 / 5) ** 2, rel=1e-4)


def test_memory_does_not_hold_the_jacobian():
    """At n = 60, T = 4, d = 30 and width 2000 the Jacobian has 11 million numbers; the largest array here a tenth."""
    import tracemalloc

    data, model = al.data.gaussian_sequences(60, 4, 30), Encoder(2000)
    weights = model.initial(data)
    tracemalloc.start()
    kernel = ntk(data, model, weights, block=10**6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kernel.shape == (60, 60)
    assert peak < 60 * 2000 * 91 * 8 / 10


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda d, m, w: ntk(d, m, w, block=0), "`block` is 0"),
        (lambda d, m, w: ntk(d.repeated(2), m, w), "batch of 2 trials"),
        (lambda d, m, w: ntk(d, m, w, other=al.data.gaussian_sequences(2, 5, 4)), "with the T and d"),
        (lambda d, m, w: ntk(d, "encoder", w), "`model` is 'encoder'"),
        (lambda d, m, w: ntk(d, None, w), "`data` is a Sequences; wanted al.Tokens"),
        (lambda d, m, w: hessian_norm(d, m, w, sequence=9), "`sequence` is 9; wanted a whole number"),
        (lambda d, m, w: hessian_norm(d, m, w, query=1), "`query` is 1"),
    ],
)
def test_what_is_refused(call, says):
    data, model = al.data.gaussian_sequences(4, 3, 4), Encoder(3)
    with pytest.raises(al.InputError) as caught:
        call(data, model, model.initial(data))
    assert says in str(caught.value)
