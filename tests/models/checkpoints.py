"""Tiny random checkpoints in the layouts in which pretrained models are published, and files of them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

DIM, DEPTH, HEADS, MLP, VOCABULARY, POSITIONS = 8, 2, 2, 12, 30, 16
KINDS = ("bert", "roberta", "distilbert", "gpt2")
PREFIX = {"bert": "bert.", "roberta": "roberta.", "distilbert": "distilbert.", "gpt2": "transformer."}


def bert_config(kind="bert"):
    return {
        "model_type": kind,
        "vocab_size": VOCABULARY,
        "hidden_size": DIM,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "intermediate_size": MLP,
        "max_position_embeddings": POSITIONS + (2 if kind == "roberta" else 0),
        "type_vocab_size": 1 if kind == "roberta" else 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5 if kind == "roberta" else 1e-12,
        "pad_token_id": 1 if kind == "roberta" else 0,
    }


def config_of(kind):
    if kind in ("bert", "roberta"):
        return bert_config(kind)
    if kind == "distilbert":
        return {
            "model_type": kind,
            "vocab_size": VOCABULARY,
            "dim": DIM,
            "n_layers": DEPTH,
            "n_heads": HEADS,
            "hidden_dim": MLP,
            "max_position_embeddings": POSITIONS,
            "activation": "gelu",
        }
    return {
        "model_type": kind,
        "vocab_size": VOCABULARY,
        "n_embd": DIM,
        "n_layer": DEPTH,
        "n_head": HEADS,
        "n_inner": MLP,
        "n_positions": POSITIONS,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    }


def shapes_of(kind):
    """Names and shapes of the tensors of a checkpoint without a head."""
    config = config_of(kind)
    if kind == "gpt2":
        shapes = {"wte.weight": (VOCABULARY, DIM), "wpe.weight": (POSITIONS, DIM), **_norm("ln_f")}
        for layer in range(DEPTH):
            at = f"h.{layer}."
            shapes |= _norm(at + "ln_1") | _norm(at + "ln_2")
            for name, inputs, outputs in (
                ("attn.c_attn", DIM, 3 * DIM),
                ("attn.c_proj", DIM, DIM),
                ("mlp.c_fc", DIM, MLP),
                ("mlp.c_proj", MLP, DIM),
            ):
                shapes |= {f"{at}{name}.weight": (inputs, outputs), f"{at}{name}.bias": (outputs,)}
        return shapes
    shapes = {
        "embeddings.word_embeddings.weight": (VOCABULARY, DIM),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], DIM),
        **_norm("embeddings.LayerNorm"),
    }
    if kind != "distilbert":
        shapes["embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], DIM)
        shapes |= _dense("pooler.dense", DIM, DIM)
    for layer in range(DEPTH):
        shapes |= _distilbert_layer(layer) if kind == "distilbert" else _bert_layer(layer)
    return shapes


def _bert_layer(layer):
    at = f"encoder.layer.{layer}."
    shapes = {}
    for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        shapes |= _dense(at + name, DIM, DIM)
    shapes |= _dense(f"{at}intermediate.dense", MLP, DIM) | _dense(f"{at}output.dense", DIM, MLP)
    return shapes | _norm(f"{at}attention.output.LayerNorm") | _norm(f"{at}output.LayerNorm")


def _distilbert_layer(layer):
    at = f"transformer.layer.{layer}."
    shapes = {}
    for name in ("q_lin", "k_lin", "v_lin", "out_lin"):
        shapes |= _dense(f"{at}attention.{name}", DIM, DIM)
    shapes |= _dense(f"{at}ffn.lin1", MLP, DIM) | _dense(f"{at}ffn.lin2", DIM, MLP)
    return shapes | _norm(f"{at}sa_layer_norm") | _norm(f"{at}output_layer_norm")


def _dense(name, outputs, inputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name):
    return {f"{name}.weight": (DIM,), f"{name}.bias": (DIM,)}


def tensors_of(kind, seed=0):
    """Random tensors large enough that every part of a model matters."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in sorted(shapes_of(kind).items())}


def write(folder, kind, seed=0, *, prefix="", tensors=None, config=None):
    """A folder with config.json and model.safetensors; its tensors."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    made = tensors_of(kind, seed) if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps(config_of(kind) if config is None else config))
    save_file({prefix + name: array for name, array in made.items()}, folder / "model.safetensors")
    return made
