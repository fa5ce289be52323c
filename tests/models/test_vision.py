"""Transformers on images: against arithmetic written out with NumPy, differences, and the lab's other models."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab as al
from attnlab.models.problem import Example
from attnlab.models.vision import VisionTransformer, layer_norm, shifted_patches
from sampling import first_few

KINDS = {
    "usual": VisionTransformer(classes=3, patch=2, dim=6, heads=2, mlp=5),
    "small images": VisionTransformer(classes=3, patch=2, dim=6, heads=2, mlp=5, tokenization="shifted", locality=True),
    "mean": VisionTransformer(classes=3, patch=2, dim=6, heads=3, head_dim=4, mlp=0, pool="mean"),
    "deep": VisionTransformer(classes=3, patch=2, dim=4, depth=3, heads=1, mlp=3, scaling="linear"),
    "wide": VisionTransformer(classes=None, patch=2, dim=3, heads=1, head_dim=40, mlp=4, scaling="linear"),
    "bare": VisionTransformer(classes=3, patch=2, dim=4, mlp=0, norm=False, position_scale=0.0, pool="mean"),
}


def images(n=3, T=4, d=4, seed=0):
    rng = np.random.default_rng(seed)
    return al.Sequences(x=rng.standard_normal((n, T, d)), y=rng.integers(0, 3, n))


def started(model, data, seed=0):
    """Weights at the start, with gains and shifts that are not 1 and 0."""
    rng = np.random.default_rng(seed + 100)
    weights = model.initial(data, seed=seed)
    return {name: w + 0.3 * rng.standard_normal(w.shape) for name, w in weights.items()}


def by_hand(model, weights, patches):
    """The output of one image, written out with loops over tokens and heads."""

    def norm(rows, gain, shift):
        mean, deviation = rows.mean(-1, keepdims=True), np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
        return gain * (rows - mean) / deviation + shift

    def gelu(value):
        return 0.5 * value * (1 + math.erf(value / math.sqrt(2)))

    if model.tokenization == "shifted":
        patches = norm(shifted_by_hand(patches, model.patch), weights["embed_gain"], weights["embed_shift"])
    tokens = patches @ weights["embed_W"].T + weights["embed_b"]
    if model.pool == "cls":
        tokens = np.concatenate([weights["cls"][None], tokens])
    if "positions" in weights:
        tokens = tokens + weights["positions"]
    width = model.width
    for block in range(1, model.depth + 1):
        w = {name.split("_", 1)[1]: value for name, value in weights.items() if name.startswith(f"block{block}_")}
        seen = norm(tokens, w["gain"], w["shift"]) if model.norm else tokens
        added = np.tile(w["O_b"], (len(tokens), 1))
        tau = np.exp(w["log_tau"]) if model.locality else width ** (-0.5 if model.scaling == "sqrt" else -1.0)
        for head, t in itertools.product(range(model.heads), range(len(tokens))):
            rows = slice(head * width, (head + 1) * width)
            query = w["Q"][rows] @ seen[t]
            others = [s for s in range(len(tokens)) if not (model.locality and s == t)]
            sizes = np.array([np.exp(tau * (query @ (w["K"][rows] @ seen[s]))) for s in others])
            mixed = sum(a * (w["V"][rows] @ seen[s]) for a, s in zip(sizes / sizes.sum(), others, strict=True))
            added[t] += w["O"][:, rows] @ mixed
        tokens = tokens + added
        if model.mlp:
            seen = norm(tokens, w["mlp_gain"], w["mlp_shift"]) if model.norm else tokens
            hidden = np.vectorize(gelu)(seen @ w["mlp1_W"].T + w["mlp1_b"])
            tokens = tokens + hidden @ w["mlp2_W"].T + w["mlp2_b"]
    last = tokens[0] if model.pool == "cls" else tokens.mean(0)
    if model.norm:
        last = norm(last, weights["head_gain"], weights["head_shift"])
    return weights["head_W"] @ last + weights["head_b"]


def shifted_by_hand(patches, side):
    """Of a square image of one channel: pixel by pixel."""
    grid = math.isqrt(len(patches))
    size, half = grid * side, max(side // 2, 1)
    image = np.zeros((size, size))
    for t, patch in enumerate(patches):
        row, column = divmod(t, grid)
        image[row * side : (row + 1) * side, column * side : (column + 1) * side] = patch.reshape(side, side)
    channels = []
    for down, right in ((0, 0), (-half, -half), (-half, half), (half, -half), (half, half)):
        moved = np.zeros((size, size))
        for row, column in itertools.product(range(size), range(size)):
            if 0 <= row + down < size and 0 <= column + right < size:
                moved[row, column] = image[row + down, column + right]
        channels.append(moved)
    tokens = []
    for row, column in itertools.product(range(grid), range(grid)):
        cut = [c[row * side : (row + 1) * side, column * side : (column + 1) * side] for c in channels]
        tokens.append(np.stack(cut, axis=-1).reshape(-1))
    return np.array(tokens)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", first_few([0, 1], 1))
def test_outputs_are_those_written_out(kind, seed):
    model, data = KINDS[kind], images(seed=seed)
    weights = started(model, data, seed)
    wanted = [by_hand(model, weights, patches) for patches in data.x]
    np.testing.assert_allclose(model.outputs(data, weights), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", first_few(KINDS, 3))
def test_gradients_are_those_of_differences(kind):
    model, data = KINDS[kind], images()
    weights, loss = started(model, data), "mse_mean" if KINDS[kind].classes is None else "cross_entropy"
    mantissa, scale = model.gradient(data, weights, loss=loss)
    rng = np.random.default_rng(1)
    for name, weight in weights.items():
        way = rng.standard_normal(weight.shape)

        def along(size, name=name, way=way):
            return float(model.loss(data, weights | {name: weights[name] + size * way}, loss=loss))

        h = 1e-3
        difference = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
        slope = float(np.sum(way * mantissa[name]) * np.exp(scale[name]))
        assert slope == pytest.approx(difference, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("heads", first_few([3, 1], 1))
def test_folded_products_give_the_same_outputs_and_gradients(heads):
    settings = {"classes": 3, "patch": 2, "dim": 6, "heads": heads, "head_dim": 9, "mlp": 4, "depth": 2}
    folded, plain = VisionTransformer(**settings, fold=True), VisionTransformer(**settings, fold=False)
    data = images()
    weights = started(folded, data)
    np.testing.assert_allclose(folded.outputs(data, weights), plain.outputs(data, weights), rtol=1e-12, atol=1e-13)
    one, other = folded.gradient(data, weights), plain.gradient(data, weights)
    for name in weights:
        by_fold, by_plain = (g[name] * np.exp(s[name]) for g, s in (one, other))
        np.testing.assert_allclose(by_fold, by_plain, rtol=1e-12, atol=1e-12 * np.abs(by_plain).max())


def test_models_that_differ_in_scales_alone_share_a_program():
    settings = {"classes": 3, "patch": 2, "dim": 4, "mlp": 3}
    root, linear = (VisionTransformer(**settings, scaling=scaling) for scaling in ("sqrt", "linear"))
    assert root.compiled_as() == linear.compiled_as()
    assert root.compiled_as() == VisionTransformer(**settings, position_scale=0.02).compiled_as()
    assert root.compiled_as() != VisionTransformer(**settings, position_scale=0.0).compiled_as()
    assert root.describe() != linear.describe()  # in the store they are two


@pytest.mark.parametrize("precision", first_few(["float32", "float64"], 1))
def test_runs_by_batches_know_their_scaling(precision):
    """A head of width 4 with tau0 = 1/4 is one with tau0 = 1/2 and queries half as large."""
    data = images(n=5)
    settings = {"classes": 3, "patch": 2, "dim": 4, "mlp": 3, "heads": 1}
    root, linear = (VisionTransformer(**settings, scaling=scaling) for scaling in ("sqrt", "linear"))
    start = root.initial(data, 0)
    halved = {**start, "block1_Q": start["block1_Q"] / 2}
    first = [
        al.descend(data, al.gd(0.1), model=model, init=init, batch=5, steps=1, precision=precision, record=[0, 1])
        for model, init in ((linear, start), (root, halved))
    ]
    np.testing.assert_allclose(first[0].metrics["loss"][0], first[1].metrics["loss"][0], rtol=1e-6)
    same = al.descend(data, al.gd(0.1), model=root, init=start, batch=5, steps=1, precision=precision, record=[0, 1])
    assert same.metrics["loss"][0] != first[0].metrics["loss"][0]


def test_products_are_folded_where_heads_are_wide():
    assert VisionTransformer(classes=3, patch=2, dim=8, head_dim=9).folded
    assert not VisionTransformer(classes=3, patch=2, dim=8, head_dim=8).folded
    assert not VisionTransformer(classes=3, patch=2, dim=8, head_dim=9, fold=False).folded


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("locality", first_few([True, False], 1))
def test_padding_never_changes_a_result(pool, locality):
    model = VisionTransformer(
        classes=3, patch=2, dim=6, heads=2, mlp=5, pool=pool, locality=locality, position_scale=0.0
    )
    data, rng = images(T=3), np.random.default_rng(5)
    weights = started(model, data)
    filled = np.concatenate([data.x, 50 * rng.standard_normal((3, 2, 4))], axis=1)
    padded = al.Sequences(x=filled, y=data.y, lengths=[3, 3, 3])
    np.testing.assert_allclose(model.outputs(padded, weights), model.outputs(data, weights), rtol=1e-12)
    one, other = model.gradient(padded, weights), model.gradient(data, weights)
    for name in weights:
        np.testing.assert_allclose(one[0][name], other[0][name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("seed", first_few(range(3), 1))
def test_one_layer_without_mlp_is_the_shallow_encoder(seed):
    """Where relu does not bend: tokens, values and projections are positive. The encoder has X + B X W_V^T inside."""
    rng, d = np.random.default_rng(seed), 4
    data = al.Sequences(x=rng.uniform(0.1, 1.0, (5, 3, d)), y=rng.standard_normal(5))
    encoder = al.models.Encoder(d, residual="identity", scaling="linear", pool="mean")
    transformer = VisionTransformer(
        classes=None, patch=2, dim=d, mlp=0, pool="mean", norm=False, position_scale=0.0, scaling="linear"
    )
    own = encoder.initial(data, seed=seed) | {"W_V": rng.uniform(0.0, 1.0, (d, d))}
    weights = {
        "embed_W": np.eye(d),
        "embed_b": np.zeros(d),
        "block1_Q": own["W_Q"],
        "block1_K": own["W_K"],
        "block1_V": own["W_V"],
        "block1_O": np.eye(d),
        "block1_O_b": np.zeros(d),
        "head_W": own["w_O"],
        "head_b": np.zeros(()),
    }
    np.testing.assert_allclose(transformer.outputs(data, weights), encoder.outputs(data, own), rtol=1e-12)
    ours, theirs = transformer.gradient(data, weights, loss="half_sum"), encoder.gradient(data, own, loss="half_sum")
    for name, other in (("block1_Q", "W_Q"), ("block1_K", "W_K"), ("block1_V", "W_V"), ("head_W", "w_O")):
        slope, wanted = ours[0][name] * np.exp(ours[1][name]), theirs[0][other] * np.exp(theirs[1][other])
        np.testing.assert_allclose(slope, wanted, rtol=1e-10, atol=1e-13)


def test_dropout_leaves_out_its_share_in_training_alone():
    model = VisionTransformer(classes=3, patch=2, dim=6, heads=2, mlp=5, dropout=0.4)
    plain = VisionTransformer(classes=3, patch=2, dim=6, heads=2, mlp=5)
    data = images()
    weights = started(model, data)
    np.testing.assert_array_equal(model.outputs(data, weights), plain.outputs(data, weights))
    with jax.enable_x64(True):
        values = jnp.ones((200, 300))
        dropped = np.asarray(model._dropped(values, jax.random.key(0), 1))
        other = np.asarray(model._dropped(values, jax.random.key(0), 2))
        example = Example(x=jnp.asarray(data.x[0]), key=jax.random.key(1))
        trained = np.asarray(model.output(weights, example))
    assert set(np.unique(dropped).round(12)) == {0.0, round(1 / 0.6, 12)}
    assert np.mean(dropped == 0) == pytest.approx(0.4, abs=0.01)  # 60 000 draws: standard deviation 0.002
    assert (dropped != other).any()
    assert not np.allclose(trained, plain.outputs(data, weights)[0])


@pytest.mark.parametrize("side", [1, 2, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_shifted_patches_are_those_of_pixels_moved_one_by_one(side, seed):
    rng, grid = np.random.default_rng(seed), 3
    patches = rng.standard_normal((grid * grid, side * side))
    moved = shifted_patches(jnp.asarray(patches), (grid, grid), side, 1)
    np.testing.assert_allclose(moved, shifted_by_hand(patches, side), rtol=1e-6)


def test_layer_norm_of_a_constant_row_is_its_shift():
    np.testing.assert_allclose(layer_norm(jnp.full((2, 5), 3.0), jnp.ones(5), jnp.arange(5.0)), [[0, 1, 2, 3, 4]] * 2)


def test_a_small_one_flows_and_has_a_kernel_and_a_curvature():
    model = VisionTransformer(classes=None, patch=1, dim=2, mlp=2)
    data = al.Sequences(x=np.random.default_rng(0).standard_normal((3, 2, 1)), y=[1.0, -1.0, 0.5])
    weights = started(model, data)
    features = model.features(data, weights)
    rows = np.concatenate([features[name].reshape(3, -1) for name in features], axis=1)
    np.testing.assert_allclose(al.theory.ntk(data, model, weights), rows @ rows.T, rtol=1e-9)
    hessian = model.hessian(data, weights, loss="half_sum")
    np.testing.assert_allclose(hessian, hessian.T, rtol=1e-8, atol=1e-10)
    flowed = al.flow(data, model=model, loss="half_sum", time=0.5, init=weights)
    small = al.descend(data, al.gd(1e-3), model=model, loss="half_sum", steps=500, init=weights)
    assert flowed.metrics["loss"][-1] == pytest.approx(small.metrics["loss"][-1], rel=1e-2)


@pytest.mark.slow
def test_it_learns_with_every_precision():
    data = images(n=12)
    for precision in ("float32", "float64"):
        run = al.descend(data, al.adam(0.02), model=KINDS["usual"], batch=4, epochs=60, precision=precision)
        assert run.metrics["loss"][-1] < 0.2 * run.metrics["loss"][0]
        assert run.metrics["accuracy"][-1] == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 5}, "does not divide `dim`"),
        ({"classes": 1}, "`classes` is 1"),
        ({"patch": 0}, "`patch` is 0"),
        ({"dropout": 1.0}, "`dropout` is 1"),
        ({"pool": "max"}, "`pool` is 'max'"),
        ({"grid": (2,)}, "`grid` is"),
        ({"mlp": -1}, "`mlp` is -1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, words):
    with pytest.raises(al.InputError, match=words):
        VisionTransformer(**({"classes": 3, "patch": 2, "dim": 6} | options))


def test_data_that_do_not_fit_are_refused_by_name():
    data = images()
    with pytest.raises(al.InputError, match="patches of 3 x 3 pixels of 1 channels have 9"):
        VisionTransformer(classes=3, patch=3).initial(data)
    with pytest.raises(al.InputError, match="no square"):
        VisionTransformer(classes=3, patch=2, tokenization="shifted").initial(images(T=6))
    VisionTransformer(classes=3, patch=2, tokenization="shifted", grid=(2, 3)).initial(images(T=6))
    with pytest.raises(al.InputError, match="with `locality` no token sees itself"):
        VisionTransformer(classes=3, patch=2, locality=True, pool="mean").initial(images(T=1))
    classes = al.Sequences(x=data.x, y=[0, 1, 2])
    with pytest.raises(al.InputError, match="wants classes 0 to 1"):
        al.descend(classes, al.gd(0.1), model=VisionTransformer(classes=2, patch=2, dim=4), batch=1, steps=1)
    masked = al.Sequences(x=data.x, y=data.y, lengths=[4, 4, 3])
    with pytest.raises(al.InputError, match="shifted patches need the whole image"):
        VisionTransformer(classes=3, patch=2, tokenization="shifted").initial(masked)
    with pytest.raises(al.InputError, match=r"wanted al\.Sequences of patches"):
        VisionTransformer(classes=3, patch=2).initial(al.data.sphere(n=2, T=2, d=4))


def test_a_run_of_many_weights_prints_in_one_short_line():
    run = al.descend(images(), al.gd(0.1), model=KINDS["usual"], batch=3, steps=0, record=None)
    assert f"gd on {len(run.weights)} weights" in repr(run)
    assert len(repr(run)) < 100
