"""Checkpoints as they come: every layout, files in parts, other precisions, and all that can be wrong with them."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoints import PREFIX, config_of, shapes_of
from models_text import KINDS, load, tensors_of, write
from safetensors.numpy import save_file

import attnlab as al


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_of_a_layout_is_read_once_and_whole(kind, tmp_path):
    """With and without the prefix of models with a head; numbers are neither lost nor invented."""
    tensors = write(tmp_path / "bare", kind, seed=1)
    write(tmp_path / "headed", kind, seed=1, prefix=PREFIX[kind])
    model, weights = load(kind)(tmp_path / "bare")
    _, again = load(kind)(tmp_path / "headed")
    assert set(weights) == set(model.all_shapes())
    for name, weight in model.all_shapes().items():
        assert weights[name].shape == weight.shape
        assert weights[name].dtype == np.float32
        np.testing.assert_array_equal(weights[name], again[name])
    ours = np.sort(np.concatenate([w.ravel() for name, w in weights.items() if not name.startswith("head_")]))
    if kind == "roberta":  # two rows of its positions are never read
        table = "embeddings.position_embeddings.weight"
        tensors = tensors | {table: tensors[table][2:]}
    np.testing.assert_array_equal(ours, np.sort(np.concatenate([t.ravel() for t in tensors.values()])))


def test_the_head_is_fresh_and_seeded(tmp_path):
    write(tmp_path, "bert")
    heads = [load("bert")(tmp_path, seed=seed)[1] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(heads[0]["head_W"], heads[1]["head_W"])
    assert (heads[0]["head_W"] != heads[2]["head_W"]).any()
    assert np.abs(heads[0]["head_W"]).max() < 0.1
    assert not heads[0]["head_b"].any()


def test_norms_of_old_files_are_called_gamma_and_beta(tmp_path):
    tensors = write(tmp_path / "new", "bert")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    write(tmp_path / "old", "bert", tensors=old)
    (_, new), (_, same) = load("bert")(tmp_path / "new"), load("bert")(tmp_path / "old")
    assert all((new[name] == same[name]).all() for name in new)


def test_files_in_parts_with_an_index(tmp_path):
    tensors = write(tmp_path, "distilbert")
    (tmp_path / "model.safetensors").unlink()
    names, index = sorted(tensors), {}
    for part in range(2):
        chosen = {name: tensors[name] for name in names[part::2]}
        save_file(chosen, tmp_path / f"part{part}.safetensors")
        index |= dict.fromkeys(chosen, f"part{part}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    _, weights = load("distilbert")(tmp_path)
    np.testing.assert_array_equal(weights["tokens"], tensors["embeddings.word_embeddings.weight"])
    (tmp_path / "part1.safetensors").unlink()
    with pytest.raises(al.InputError, match=r"part1\.safetensors"):
        load("distilbert")(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(al.InputError, match="weight_map"):
        load("distilbert")(tmp_path)


def test_numbers_of_half_precision_become_float32(tmp_path):
    import ml_dtypes

    tensors = tensors_of("bert")
    for kind in (np.float16, ml_dtypes.bfloat16):
        write(tmp_path, "bert", tensors={name: tensor.astype(kind) for name, tensor in tensors.items()})
        _, weights = load("bert")(tmp_path)
        assert weights["layer0_Q"].dtype == np.float32
        wanted = tensors["encoder.layer.0.attention.self.query.weight"].astype(kind).astype(np.float32)
        np.testing.assert_array_equal(weights["layer0_Q"], wanted)


def test_a_pooler_is_there_or_not_and_is_left_out_where_the_mean_is_pooled(tmp_path):
    tensors = {name: tensor for name, tensor in tensors_of("bert").items() if not name.startswith("pooler")}
    write(tmp_path / "none", "bert", tensors=tensors)
    model, weights = load("bert")(tmp_path / "none")
    assert not model.pooler
    assert "pooler_W" not in weights
    write(tmp_path / "some", "bert")
    model, weights = load("bert")(tmp_path / "some", pool="mean")
    assert "pooler_W" not in weights
    assert set(weights) == set(model.all_shapes())


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_tensor_and_one_of_another_shape_are_named(kind, tmp_path):
    tensors = tensors_of(kind)
    for name in shapes_of(kind):
        wrong = tensors | {name: np.zeros((3, *tensors[name].shape), dtype=np.float32)}
        write(tmp_path, kind, tensors=wrong)
        with pytest.raises(al.InputError, match=rf"{name} of shape \(3, "):
            load(kind)(tmp_path)
        if name == "pooler.dense.weight":  # without which there is no pooler
            continue
        write(tmp_path, kind, tensors={one: tensor for one, tensor in tensors.items() if one != name})
        with pytest.raises(al.InputError, match=f"lacks the tensor {name}"):
            load(kind)(tmp_path)


def test_tensors_that_are_not_finite_are_refused(tmp_path):
    tensors = tensors_of("gpt2")
    tensors["wte.weight"][3, 2] = np.nan
    write(tmp_path, "gpt2", tensors=tensors)
    with pytest.raises(al.InputError, match=r"wte\.weight with entries NaN"):
        load("gpt2")(tmp_path)


def test_pickles_are_refused_with_a_way_to_convert_them(tmp_path):
    write(tmp_path, "bert")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(al.InputError, match=r"no model.safetensors"):
        load("bert")(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(al.InputError, match=r"pytorch_model.bin alone[\s\S]*hint: .*safe_serialization"):
        load("bert")(tmp_path)


@pytest.mark.parametrize("damage", ["header", "short", "empty", "text"])
def test_damaged_files_are_refused(damage, tmp_path):
    write(tmp_path, "bert")
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    damaged = {
        "header": content[:8] + b"#" * 20 + content[28:],
        "short": content[: len(content) // 2],
        "empty": b"",
        "text": b"version https://git-lfs.example/spec/v1",
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(al.InputError, match="no safetensors file, or damaged"):
        load("bert")(tmp_path)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("bert", {"model_type": "t5"}, "type 't5'"),
        ("bert", {"model_type": "gpt2"}, "Gpt2.load"),
        ("bert", {"model_type": None}, "type None"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"hidden_act": "swish"}, "hidden_act"),
        ("bert", {"hidden_size": 8.5}, "hidden_size"),
        ("bert", {"num_attention_heads": 3}, "does not divide"),
        ("bert", {"num_hidden_layers": 3}, "lacks the tensor encoder.layer.2"),
        ("bert", {"vocab_size": 31}, "word_embeddings.weight of shape"),
        ("bert", {"layer_norm_eps": "small"}, "`eps`"),
        ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings"),
        ("gpt2", {"model_type": "bert"}, "Bert.load"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ],
)
def test_settings_that_do_not_fit_are_told(kind, change, words, tmp_path):
    write(tmp_path, kind, config=config_of(kind) | change)
    with pytest.raises(al.InputError, match=words):
        load(kind)(tmp_path)


def test_a_config_that_is_none_is_told(tmp_path):
    write(tmp_path, "bert")
    path = tmp_path / "config.json"
    lacking = {name: value for name, value in config_of("bert").items() if name != "hidden_size"}
    for content, words in (("{", "cannot be read"), ("[]", "JSON object"), (json.dumps(lacking), "lacks hidden_size")):
        path.write_text(content)
        with pytest.raises(al.InputError, match=words):
            load("bert")(tmp_path)
    path.unlink()
    with pytest.raises(al.InputError, match=r"no config\.json"):
        load("bert")(tmp_path)


def test_names_on_the_hub(tmp_path, monkeypatch):
    """A name is looked up where there is no such folder; what goes wrong there is told in one line."""
    write(tmp_path / "cache", "bert")
    asked = []

    def download(name, allow_patterns):
        asked.append((name, allow_patterns))
        if name == "nobody/nothing":
            raise OSError("no\nnetwork")
        return str(tmp_path / "cache")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    monkeypatch.setattr("attnlab.data.hub.find_spec", lambda _: True)
    monkeypatch.chdir(tmp_path)
    model, _ = load("bert")("somebody/something")
    assert model.dim == 8
    assert asked[0][0] == "somebody/something"
    assert not any("bin" in pattern for pattern in asked[0][1])
    with pytest.raises(al.InputError, match=r"could not be had from the hub \(OSError: no network\)"):
        load("bert")("nobody/nothing")
    with pytest.raises(al.InputError, match="no name on the hub"):
        load("bert")("../not/a/name")
    (tmp_path / "file").write_text("")
    with pytest.raises(al.InputError, match="which is a file"):
        load("bert")("file")
    for name, needs in (("safetensors", "cache"), ("huggingface_hub", "a/b")):
        with monkeypatch.context() as without:
            for module in ("attnlab.models.checkpoint.find_spec", "attnlab.data.hub.find_spec"):
                without.setattr(module, lambda asked, name=name: None if asked == name else True)
            with pytest.raises(al.InputError, match=rf"needs {name}[\s\S]*attnlab\[text\]"):
                load("bert")(needs)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    write(tmp_path, "bert")
    model, weights = load("bert")(tmp_path)
    texts = al.data.made_up_texts(10)
    data = texts.encode(al.data.Tokenizer.of_words([f"word{i}" for i in range(60)]))
    with pytest.raises(al.InputError, match=r"tokenizer of 64 tokens; the weights are of 30: they do not match"):
        al.descend(data, al.adam(0.01), model=model, init=weights, batch=2, steps=1)
