"""Pretrained weights from safetensors, in the names and shapes of their makers, as ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.checks import enough_memory, whole
from attnlab.data.hub import EXTRA, model_folder, read_json
from attnlab.errors import InputError, message
from attnlab.models.weight import Weight, Weights

Config = dict[str, Any]
INDEX = "model.safetensors.index.json"
CONVERT = (
    "with torch and transformers: AutoModel.from_pretrained(folder).save_pretrained(folder, safe_serialization=True)"
)
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
ROBERTA_OFFSET = 2  # rows of its table of positions before the first


@dataclass(frozen=True)
class Layout:
    """How the tensors of a kind of checkpoint are called.

    Attributes:
        prefix: what all names may begin with, in files of models with a head.
        embeddings: our name -> theirs.
        layer: how those of layer l begin, with {l} for its number.
        linear: our name -> theirs, of matrices with a bias, in a layer.
        norms: our prefix -> theirs, of layer norms in a layer.
    """

    prefix: str
    embeddings: Mapping[str, str]
    embedding_norm: str
    layer: str
    linear: Mapping[str, str]
    norms: Mapping[str, str]


BERT = Layout(
    prefix="bert.",
    embeddings={
        "tokens": "embeddings.word_embeddings.weight",
        "positions": "embeddings.position_embeddings.weight",
        "segments": "embeddings.token_type_embeddings.weight",
    },
    embedding_norm="embeddings.LayerNorm",
    layer="encoder.layer.{l}.",
    linear={
        "Q": "attention.self.query",
        "K": "attention.self.key",
        "V": "attention.self.value",
        "O": "attention.output.dense",
        "mlp1": "intermediate.dense",
        "mlp2": "output.dense",
    },
    norms={"": "attention.output.LayerNorm", "mlp_": "output.LayerNorm"},
)
ROBERTA = Layout("roberta.", BERT.embeddings, BERT.embedding_norm, BERT.layer, BERT.linear, BERT.norms)
DISTILBERT = Layout(
    prefix="distilbert.",
    embeddings={name: BERT.embeddings[name] for name in ("tokens", "positions")},
    embedding_norm="embeddings.LayerNorm",
    layer="transformer.layer.{l}.",
    linear={
        "Q": "attention.q_lin",
        "K": "attention.k_lin",
        "V": "attention.v_lin",
        "O": "attention.out_lin",
        "mlp1": "ffn.lin1",
        "mlp2": "ffn.lin2",
    },
    norms={"": "sa_layer_norm", "mlp_": "output_layer_norm"},
)
LAYOUTS = {
    "bert": BERT,
    "distilbert": DISTILBERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
}


class Tensors:
    """The tensors of a model on disk, read one at a time from files that are mapped into memory."""

    def __init__(self, folder: Path, files: Mapping[str, Any], prefix: str) -> None:
        self.folder, self._files, self._prefix = folder, files, prefix

    def __contains__(self, name: str) -> bool:
        return self._called(name) is not None

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor of this name and shape, in float32."""
        called = self._called(name)
        if called is None:
            held = ", ".join(sorted(self._files)[:4])
            problem = f"`{self.folder}` lacks the tensor {name}; it holds {len(self._files)}: {held}, ..."
            raise InputError(message(problem, "config.json must be that of the weights"))
        file = self._files[called]
        given = tuple(file.get_slice(called).get_shape())
        if given != shape:
            problem = f"`{self.folder}` has the tensor {called} of shape {given}; its config.json wants {shape}."
            raise InputError(message(problem, "config.json must be that of the weights"))
        try:
            array = np.asarray(file.get_tensor(called), dtype=np.float32)
        except Exception as error:  # of the reader: a kind of number that it does not know, a file cut short
            raise InputError(message(f"`{self.folder}`: the tensor {called} cannot be read ({error}).")) from error
        if not np.isfinite(array).all():
            raise InputError(message(f"`{self.folder}` has the tensor {called} with entries NaN or infinite."))
        return array

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor, if there is one of this name."""
        called = self._called(name)
        return None if called is None else tuple(self._files[called].get_slice(called).get_shape())

    def norm(self, ours: str, theirs: str, size: int) -> Weights:
        """Gain and shift of a layer norm; old files call them gamma and beta."""
        old = f"{theirs}.gamma" in self and f"{theirs}.weight" not in self
        gain, shift = ("gamma", "beta") if old else ("weight", "bias")
        return {
            f"{ours}gain": self.read(f"{theirs}.{gain}", (size,)),
            f"{ours}shift": self.read(f"{theirs}.{shift}", (size,)),
        }

    def _called(self, name: str) -> str | None:
        """As the file has it, with or without the prefix."""
        return next((each for each in (name, self._prefix + name) if each in self._files), None)


def read_bert(folder: str | os.PathLike[str], *, with_pooler: bool) -> tuple[Config, Weights]:
    """Settings of a `Bert` and its weights, less those of the head."""
    place = model_folder(folder)
    given = read_json(place / "config.json", "the settings of a model")
    kind = given.get("model_type")
    if kind not in LAYOUTS:
        raise InputError(
            message(
                f"`{place}` has a model of type {kind!r}; Bert.load reads {', '.join(LAYOUTS)}.",
                "al.models.Gpt2.load reads gpt2",
            )
        )
    config = _distilbert_config(place, given) if kind == "distilbert" else _bert_config(place, given)
    layout = LAYOUTS[kind]
    offset = ROBERTA_OFFSET if layout is ROBERTA else 0
    config["positions"] = whole("max_position_embeddings", config["positions"] - offset)
    with ExitStack() as opened:
        tensors = open_tensors(place, layout.prefix, opened, _size(config))
        weights = _embeddings(tensors, layout, config, offset)
        for layer in range(config["depth"]):
            weights |= _layer(tensors, layout, config, layer)
        config["pooler"] = "pooler.dense.weight" in tensors
        if config["pooler"] and with_pooler:
            weights |= _linear(tensors, "pooler_W", "pooler_b", "pooler.dense", config["dim"], config["dim"])
    return config, weights


def _embeddings(tensors: Tensors, layout: Layout, config: Config, offset: int) -> Weights:
    """The tables, less the rows of positions before the first, and the norm after them."""
    sizes = {"tokens": config["vocabulary"], "positions": config["positions"] + offset, "segments": config["segments"]}
    weights = {}
    for ours, theirs in layout.embeddings.items():
        if sizes[ours]:
            weights[ours] = tensors.read(theirs, (sizes[ours], config["dim"]))
    weights["positions"] = weights["positions"][offset:]
    return weights | tensors.norm("embed_", layout.embedding_norm, config["dim"])


def _layer(tensors: Tensors, layout: Layout, config: Config, layer: int) -> Weights:
    """Matrices, shifts and norms of one layer."""
    ours, theirs = f"layer{layer}_", layout.layer.format(l=layer)
    sizes = {"mlp1": (config["mlp"], config["dim"]), "mlp2": (config["dim"], config["mlp"])}
    weights: Weights = {}
    for name, called in layout.linear.items():
        matrix = f"{ours}{name}_W" if name in sizes else f"{ours}{name}"
        shape = sizes.get(name, (config["dim"], config["dim"]))
        weights |= _linear(tensors, matrix, f"{ours}{name}_b", theirs + called, *shape)
    for name, called in layout.norms.items():
        weights |= tensors.norm(ours + name, theirs + called, config["dim"])
    return weights


def _linear(tensors: Tensors, matrix: str, shift: str, called: str, outputs: int, inputs: int) -> Weights:
    return {
        matrix: tensors.read(f"{called}.weight", (outputs, inputs)),
        shift: tensors.read(f"{called}.bias", (outputs,)),
    }


def read_gpt2(folder: str | os.PathLike[str]) -> tuple[Config, Weights]:
    """Settings of a `Gpt2` and its weights, less those of the head. Its matrices lie with inputs first."""
    place = model_folder(folder)
    given = read_json(place / "config.json", "the settings of a model")
    if given.get("model_type") != "gpt2":
        kind = given.get("model_type")
        raise InputError(
            message(f"`{place}` has a model of type {kind!r}; Gpt2.load reads gpt2.", "al.models.Bert.load reads BERT")
        )
    config = _gpt2_config(place, given)
    dim, mlp = config["dim"], config["mlp"]
    with ExitStack() as opened:
        tensors = open_tensors(place, "transformer.", opened, _size(config))
        weights = {
            "tokens": tensors.read("wte.weight", (config["vocabulary"], dim)),
            "positions": tensors.read("wpe.weight", (config["positions"], dim)),
        }
        for layer in range(config["depth"]):
            ours, theirs = f"layer{layer}_", f"h.{layer}."
            joined = tensors.read(f"{theirs}attn.c_attn.weight", (dim, 3 * dim))
            shifts = tensors.read(f"{theirs}attn.c_attn.bias", (3 * dim,))
            for i, name in enumerate("QKV"):
                weights[f"{ours}{name}"] = np.ascontiguousarray(joined[:, i * dim : (i + 1) * dim].T)
                weights[f"{ours}{name}_b"] = shifts[i * dim : (i + 1) * dim]
            for name, called, inputs, outputs in (
                ("O", "attn.c_proj", dim, dim),
                ("mlp1_W", "mlp.c_fc", dim, mlp),
                ("mlp2_W", "mlp.c_proj", mlp, dim),
            ):
                matrix = tensors.read(f"{theirs}{called}.weight", (inputs, outputs))
                weights[ours + name] = np.ascontiguousarray(matrix.T)
                weights[f"{ours}{name.removesuffix('_W')}_b"] = tensors.read(f"{theirs}{called}.bias", (outputs,))
            weights |= tensors.norm(ours, f"{theirs}ln_1", dim)
            weights |= tensors.norm(f"{ours}mlp_", f"{theirs}ln_2", dim)
        weights |= tensors.norm("last_", "ln_f", dim)
    return config, weights


def open_tensors(place: Path, prefix: str, opened: ExitStack, count: float) -> Tensors:
    """The safetensors of a folder: one file, or several with an index."""
    if find_spec("safetensors") is None:
        raise InputError(message("Reading weights needs safetensors.", EXTRA))
    enough_memory(count, f"The {count:.3g} weights of `{place}`", "a smaller model")
    if (place / INDEX).is_file():
        index = read_json(place / INDEX, "the index of the weights").get("weight_map")
        if not isinstance(index, dict):
            raise InputError(message(f"`{place / INDEX}` has no weight_map."))
        parts = {name: _opened(place / str(name), opened) for name in sorted(set(index.values()))}
        return Tensors(place, {tensor: parts[file] for tensor, file in index.items()}, prefix)
    found = [path for path in (place / "model.safetensors", *sorted(place.glob("*.safetensors"))) if path.is_file()]
    if found:
        file = _opened(found[0], opened)
        return Tensors(place, dict.fromkeys(file.keys(), file), prefix)
    pickles = sorted(path.name for path in [*place.glob("*.bin"), *place.glob("*.pt"), *place.glob("*.ckpt")])
    if pickles:
        problem = f"`{place}` has its weights in {pickles[0]} alone, a pickle, which can run code; wanted safetensors."
        raise InputError(message(problem, CONVERT))
    raise InputError(message(f"`{place}` has no model.safetensors.", "give the folder of the model"))


def _opened(path: Path, opened: ExitStack) -> Any:
    from safetensors import safe_open  # pyright: ignore

    try:
        return opened.enter_context(safe_open(path, framework="numpy"))
    except Exception as error:  # no file, a header that is no header, a file cut short
        why = " ".join(str(error).split())[:200]
        raise InputError(
            message(f"`{path}` is no safetensors file, or damaged ({why}).", "download it again")
        ) from error


def fresh_head(shapes: Mapping[str, Weight], seed: int) -> Weights:
    """Random weights of the head, in float32."""
    rng = np.random.default_rng(whole("seed", seed, 0))
    head = {name: weight for name, weight in shapes.items() if name.startswith("head_")}
    return {name: weight.draw(rng).astype(np.float32) for name, weight in head.items()}


# Settings.


def _bert_config(place: Path, given: Config) -> Config:
    _same(place, given, "position_embedding_type", "absolute")
    _same(place, given, "is_decoder", False)
    return {
        **_sizes(
            place,
            given,
            vocabulary="vocab_size",
            dim="hidden_size",
            depth="num_hidden_layers",
            heads="num_attention_heads",
            mlp="intermediate_size",
            positions="max_position_embeddings",
            segments="type_vocab_size",
        ),
        "activation": _activation(place, given, "hidden_act", "gelu"),
        "eps": given.get("layer_norm_eps", 1e-12),
    }


def _distilbert_config(place: Path, given: Config) -> Config:
    sizes = _sizes(
        place,
        given,
        vocabulary="vocab_size",
        dim="dim",
        depth="n_layers",
        heads="n_heads",
        mlp="hidden_dim",
        positions="max_position_embeddings",
    )
    return {**sizes, "segments": 0, "activation": _activation(place, given, "activation", "gelu"), "eps": 1e-12}


def _gpt2_config(place: Path, given: Config) -> Config:
    _same(place, given, "scale_attn_weights", True)
    _same(place, given, "scale_attn_by_inverse_layer_idx", False)
    sizes = _sizes(
        place,
        given,
        vocabulary="vocab_size",
        dim="n_embd",
        depth="n_layer",
        heads="n_head",
        positions="n_positions",
    )
    inner = given.get("n_inner")
    return {
        **sizes,
        "mlp": 4 * sizes["dim"] if inner is None else whole("n_inner", inner),
        "activation": _activation(place, given, "activation_function", "gelu_new"),
        "eps": given.get("layer_norm_epsilon", 1e-5),
    }


def _sizes(place: Path, given: Config, **names: str) -> dict[str, int]:
    """Whole numbers of config.json under our names."""
    missing = [theirs for theirs in names.values() if theirs not in given]
    if missing:
        raise InputError(message(f"`{place / 'config.json'}` lacks {', '.join(missing)}."))
    return {ours: whole(theirs, given[theirs]) for ours, theirs in names.items()}


def _same(place: Path, given: Config, name: str, wanted: object) -> None:
    """Refuse a setting under which the layers would compute something else."""
    if given.get(name, wanted) != wanted:
        raise InputError(message(f"`{place / 'config.json'}` has {name} = {given[name]!r}; only {wanted!r} is here."))


def _activation(place: Path, given: Config, name: str, usual: str) -> str:
    called = given.get(name, usual)
    if called not in ACTIVATIONS:
        problem = f"`{place / 'config.json'}` has {name} = {called!r}; here are {', '.join(ACTIVATIONS)}."
        raise InputError(message(problem))
    return ACTIVATIONS[called]


def _size(config: Config) -> float:
    """About how many weights there are."""
    dim = float(config["dim"])
    return dim * (config["vocabulary"] + config["positions"]) + config["depth"] * dim * (4 * dim + 2 * config["mlp"])
