"""What tests of transformers on text share."""

from functools import partial

import numpy as np
from checkpoints import KINDS as KINDS, VOCABULARY, config_of as config_of, tensors_of as tensors_of, write as write
from text_oracle import Oracle as Oracle

import attnlab as al


def load(kind):
    """What loads checkpoints of a kind."""
    return partial(al.models.Gpt2.load if kind == "gpt2" else al.models.Bert.load, classes=3)


def example_texts(kind, lengths, seed=0):
    """Random texts as data with padding, and each as ids and segments without."""
    rng = np.random.default_rng(seed)
    T = max(lengths) + 2
    ids = rng.integers(0, VOCABULARY, (len(lengths), T))
    segments = np.sort(rng.integers(0, 2, (len(lengths), T))) if kind == "bert" else None
    y = np.arange(len(lengths)) % 3
    data = al.Sequences(ids=ids, segments=segments, lengths=lengths, y=y)
    rows = [(ids[i, :n], None if segments is None else segments[i, :n]) for i, n in enumerate(lengths)]
    return data, rows
