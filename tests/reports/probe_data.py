"""Heads for the tests of `al.probe`: untrained ones, and one trained to its max-margin direction."""

import numpy as np

import attnlab as al
from attnlab.reports.probing.nulls import rotated


def untrained(seed, *, layers=1, heads=3, prompts=14, T=7, D=12, d_h=6, spread=1.0):
    """Gaussian weights on tokens of a few words with noise, whose directions are of unequal widths."""
    rng = np.random.default_rng(seed)
    words = rng.standard_normal((15, D)) * np.exp(-spread * np.arange(D) / D)
    ids = rng.integers(15, size=(prompts, T))
    hidden = words[ids] + 0.3 * rng.standard_normal((layers, prompts, T, D))
    shape = (layers, heads, d_h, D)
    return {
        "hidden": hidden,
        "W_Q": rng.standard_normal(shape),
        "W_K": rng.standard_normal(shape),
        "b_Q": 0.3 * rng.standard_normal(shape[:3]),
        "ids": ids,
    }


def queries_and_keys(given):
    """q and k (layers, heads, prompts, T, d_h) of hidden states and weights."""
    q = np.einsum("lptD,lhdD->lhptd", given["hidden"], given["W_Q"]) + given["b_Q"][:, :, None, None, :]
    return q, np.einsum("lptD,lhdD->lhptd", given["hidden"], given["W_K"])


def trained(seed, *, noise=0.5, d=12, prompts=30, T=6, rotations=5):
    """Tokens in which either sign of query has its key; W as `descend` leaves it, and W rotated, as heads."""
    rng = np.random.default_rng(seed)
    v, u = np.eye(d)[:2]
    x = noise * rng.standard_normal((prompts, T, d))
    x[:, 0] += 2 * v
    x[:, 1] -= 2 * v
    y = rng.choice([-1.0, 1.0], (prompts, T))
    z = noise * rng.standard_normal((prompts, T, d)) + 2 * y[..., None] * u
    tokens = al.Tokens(x=x, z=z, y=y, v=v)
    run = al.descend(tokens, al.ngd(0.1), steps=2000)
    weights = [run.W] + [rotated(run.W, rng) for _ in range(rotations)]
    nothing = np.zeros((d, d))
    arrays = {
        "hidden": np.concatenate([x, z], axis=-1),  # keys are x, queries z
        "W_Q": np.stack([np.hstack([nothing, W]) for W in weights]),
        "W_K": np.stack([np.hstack([np.eye(d), nothing])] * len(weights)),
    }
    return arrays, tokens, run


def tiny_model(folder):
    """A folder with a BERT of two layers and two heads, random weights; and texts in its words."""
    import json
    from pathlib import Path

    from safetensors.numpy import save_file

    texts = al.data.made_up_texts(40, seed=0)
    tokenizer = al.data.Tokenizer.of_texts(texts)
    place = Path(folder)
    place.mkdir()
    tokenizer._inner.save(str(place / "tokenizer.json"))
    width = 16
    settings = {
        "model_type": "bert",
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": width,
        "vocab_size": tokenizer.vocabulary,
        "max_position_embeddings": 32,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    }
    (place / "config.json").write_text(json.dumps(settings))
    rng = np.random.default_rng(0)
    norm = {"weight": np.ones(width), "bias": np.zeros(width)}
    dense = {"weight": rng.standard_normal((width, width)) / 4, "bias": np.zeros(width)}
    parts = {"embeddings.LayerNorm": norm, "pooler.dense": dense}
    for name, rows in (("word", tokenizer.vocabulary), ("position", 32), ("token_type", 2)):
        parts[f"embeddings.{name}_embeddings"] = {"weight": rng.standard_normal((rows, width))}
    for layer in range(2):
        start = f"encoder.layer.{layer}."
        for name in ("query", "key", "value"):
            weight = rng.standard_normal((width, width)) / 4
            parts[f"{start}attention.self.{name}"] = {"weight": weight, "bias": np.zeros(width)}
        for name in ("attention.output.dense", "intermediate.dense", "output.dense"):
            parts[start + name] = dense
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            parts[start + name] = norm
    arrays = {}
    for name, part in parts.items():
        for kind, array in part.items():
            arrays[f"{name}.{kind}"] = np.array(array, dtype=np.float32)
    save_file(arrays, place / "model.safetensors")
    return folder, list(texts.texts)
