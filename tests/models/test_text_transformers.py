"""The same numbers as Hugging Face transformers, where that is installed: tiny random checkpoints, and MiniLM."""

import os
from pathlib import Path

import numpy as np
import pytest

import attnlab as al

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")
SIZES = {"vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20}
MINILM = os.environ.get("ATTNLAB_MINILM")  # a folder with its weights and tokenizer


def bert():
    return transformers.BertModel(transformers.BertConfig(**SIZES, max_position_embeddings=16))


def roberta():
    return transformers.RobertaModel(
        transformers.RobertaConfig(**SIZES, max_position_embeddings=18, type_vocab_size=1, pad_token_id=1)
    )


def distilbert():
    return transformers.DistilBertModel(
        transformers.DistilBertConfig(
            vocab_size=40, dim=12, n_layers=3, n_heads=3, hidden_dim=20, max_position_embeddings=16
        )
    )


def gpt2():
    return transformers.GPT2Model(
        transformers.GPT2Config(vocab_size=40, n_embd=12, n_layer=3, n_head=3, n_positions=16)
    )


def theirs(module, ids, mask, **more):
    """Hidden states after the embedding and every layer, (n, T, d) each, in float64."""
    with torch.no_grad():
        found = module.double().eval()(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask).long(),
            output_hidden_states=True,
            **{name: torch.tensor(value) for name, value in more.items()},
        )
    return [state.numpy() for state in found.hidden_states], getattr(found, "pooler_output", None)


@pytest.mark.parametrize("make", [bert, roberta, distilbert, gpt2])
def test_checkpoints_that_transformers_wrote(make, tmp_path):
    torch.manual_seed(0)
    module = make()
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    module.save_pretrained(tmp_path, safe_serialization=True)
    rng = np.random.default_rng(0)
    ids = rng.integers(2, 40, (4, 10))
    lengths = np.array([10, 6, 3, 1])
    mask = np.arange(10) < lengths[:, None]
    ids[~mask] = 1 if make is roberta else 0
    segments = np.sort(rng.integers(0, 2, (4, 10)))
    more = {"token_type_ids": segments} if make is bert else {}
    states, pooled = theirs(module, ids, mask, **more)
    kind = al.models.Gpt2 if make is gpt2 else al.models.Bert
    model, weights = kind.load(tmp_path, classes=2)
    data = al.Sequences(ids=ids, mask=mask, segments=segments if make is bert else None, y=[0, 1, 0, 1])
    if make is gpt2:
        wanted = states[-1][np.arange(4), lengths - 1]
    else:
        wanted = states[-1][:, 0] if pooled is None else pooled.numpy()
        for layer, state in zip(model.states(data, weights), states, strict=False):
            np.testing.assert_allclose(layer.h[mask], state[mask], rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.hidden(data, weights), wanted, rtol=0, atol=1e-10)


@pytest.mark.skipif(MINILM is None, reason="ATTNLAB_MINILM names no folder")
def test_minilm_to_1e_5():
    assert MINILM is not None
    folder = Path(MINILM)
    module = transformers.AutoModel.from_pretrained(folder)
    texts = ["A fine film.", "dull, and far too long to sit through twice", "Unhappiness!", "good"]
    pairs = ["It is good.", "it is a film", "who?", "a man sleeps near the river"]
    tokenizer = al.data.Tokenizer.load(folder)
    theirs_tokens = transformers.AutoTokenizer.from_pretrained(folder)(texts, pairs, padding=True, truncation=True)
    data = al.data.Texts(texts=texts, pairs=pairs, y=[1, 0, 0, 1]).encode(tokenizer)
    assert data.ids.tolist() == theirs_tokens["input_ids"]
    assert data.segments.tolist() == theirs_tokens["token_type_ids"]
    model, weights = al.models.Bert.load(folder, classes=2)
    with torch.no_grad():
        found = module.float().eval()(
            input_ids=torch.tensor(data.ids),
            attention_mask=torch.tensor(data.mask).long(),
            token_type_ids=torch.tensor(data.segments),
            output_hidden_states=True,
        )
    for layer, state in zip(model.states(data, weights, precision="float32"), found.hidden_states, strict=False):
        np.testing.assert_allclose(layer.h[data.mask], state.numpy()[data.mask], rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.hidden(data, weights), found.pooler_output.numpy(), rtol=0, atol=1e-5)
