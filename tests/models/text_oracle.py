"""Transformers on text written out in NumPy, one token and one head at a time, from tensors as they are published.

They know nothing of attnlab's names and see only the tokens that are there: padding is not their concern.
"""

import math

import numpy as np


def gelu(x):
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])


def gelu_tanh(x):
    return np.array([0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x])


def norm(x, gain, shift, eps):
    return gain * (x - x.mean()) / math.sqrt(((x - x.mean()) ** 2).mean() + eps) + shift


def softmax(logits):
    powers = [math.exp(one - max(logits)) for one in logits]
    return [one / sum(powers) for one in powers]


def attended(q, k, v, heads, *, causal, off=()):
    """Mixed values (T, d) of all heads side by side; the heads in `off` give zeros. q, k, v are (T, d)."""
    T, d = q.shape
    width = d // heads
    mixed = np.zeros((T, d))
    for head in range(heads):
        if head in off:
            continue
        part = slice(head * width, (head + 1) * width)
        for t in range(T):
            seen = range(t + 1) if causal else range(T)
            weights = softmax([float(q[t, part] @ k[s, part]) / math.sqrt(width) for s in seen])
            for s, weight in zip(seen, weights, strict=True):
                mixed[t, part] += weight * v[s, part]
    return mixed


class Oracle:
    """A checkpoint, run on one text without padding."""

    def __init__(self, kind, config, tensors, off=()):
        self.kind, self.config, self.off = kind, config, off
        self.t = {name: np.asarray(array, dtype=np.float64) for name, array in tensors.items()}

    def run(self, ids, segments=None):
        """What enters each attention layer, its queries and keys, all (T, d); and the last hidden states (T, d)."""
        return self._gpt2(ids) if self.kind == "gpt2" else self._bert(ids, segments)

    def dense(self, name, x):
        return np.array([self.t[f"{name}.weight"] @ one + self.t[f"{name}.bias"] for one in x])

    def conv(self, name, x):
        return np.array([one @ self.t[f"{name}.weight"] + self.t[f"{name}.bias"] for one in x])

    def normed(self, name, x, eps):
        return np.array([norm(one, self.t[f"{name}.weight"], self.t[f"{name}.bias"], eps) for one in x])

    def _bert(self, ids, segments):
        distil = self.kind == "distilbert"
        eps = 1e-12 if distil else self.config["layer_norm_eps"]
        heads = self.config["n_heads" if distil else "num_attention_heads"]
        first = 2 if self.kind == "roberta" else 0
        x = []
        for t, one in enumerate(ids):
            row = self.t["embeddings.word_embeddings.weight"][one]
            row = row + self.t["embeddings.position_embeddings.weight"][first + t]
            if not distil:
                row = row + self.t["embeddings.token_type_embeddings.weight"][0 if segments is None else segments[t]]
            x.append(row)
        x = self.normed("embeddings.LayerNorm", np.array(x), eps)
        seen = []
        for layer in range(self.config["n_layers" if distil else "num_hidden_layers"]):
            if distil:
                at = f"transformer.layer.{layer}."
                names = [f"{at}attention.{one}" for one in ("q_lin", "k_lin", "v_lin", "out_lin")]
                names += [f"{at}sa_layer_norm", f"{at}ffn.lin1", f"{at}ffn.lin2", f"{at}output_layer_norm"]
            else:
                at = f"encoder.layer.{layer}."
                names = [f"{at}attention.self.{one}" for one in ("query", "key", "value")]
                names += [f"{at}attention.output.dense", f"{at}attention.output.LayerNorm"]
                names += [f"{at}intermediate.dense", f"{at}output.dense", f"{at}output.LayerNorm"]
            q, k, v = (self.dense(one, x) for one in names[:3])
            seen.append((x, q, k))
            mixed = attended(q, k, v, heads, causal=False, off=self.off)
            x = self.normed(names[4], x + self.dense(names[3], mixed), eps)
            hidden = np.array([gelu(one) for one in self.dense(names[5], x)])
            x = self.normed(names[7], x + self.dense(names[6], hidden), eps)
        return seen, x

    def _gpt2(self, ids):
        eps, d = self.config["layer_norm_epsilon"], self.config["n_embd"]
        x = np.array([self.t["wte.weight"][one] + self.t["wpe.weight"][t] for t, one in enumerate(ids)])
        seen = []
        for layer in range(self.config["n_layer"]):
            at = f"h.{layer}."
            h = self.normed(f"{at}ln_1", x, eps)
            joined = self.conv(f"{at}attn.c_attn", h)
            q, k, v = joined[:, :d], joined[:, d : 2 * d], joined[:, 2 * d :]
            seen.append((h, q, k))
            mixed = attended(q, k, v, self.config["n_head"], causal=True, off=self.off)
            x = x + self.conv(f"{at}attn.c_proj", mixed)
            hidden = self.conv(f"{at}mlp.c_fc", self.normed(f"{at}ln_2", x, eps))
            x = x + self.conv(f"{at}mlp.c_proj", np.array([gelu_tanh(one) for one in hidden]))
        return seen, self.normed("ln_f", x, eps)

    def features(self, ids, segments=None, pool=None):
        """What a head sees, (d,)."""
        _, last = self.run(ids, segments)
        if pool == "mean":
            return last.mean(axis=0)
        if self.kind == "gpt2":
            return last[-1]
        if self.kind == "distilbert":
            return last[0]
        return np.tanh(self.t["pooler.dense.weight"] @ last[0] + self.t["pooler.dense.bias"])
