"""Compiled programs that one process keeps for the next."""

import os
import subprocess
import sys

import pytest

import attnlab as al

TRAINING = """
import jax, attnlab as al
from jax import monitoring
hits = []
monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("cache_hits")))
jax.jit(lambda x: x + 1)(1.0)  # JAX has looked for programs already
al.store.keep_programs(al.Store({folder!r}))
run = al.descend(al.data.sphere(3, 4, 5, seed=0, trials=4), al.ngd(0.1), steps=40, record=None)
print(sum(hits), run.W.tobytes().hex()[:64])
"""


def trained(folder):
    done = subprocess.run([sys.executable, "-c", TRAINING.format(folder=str(folder))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hits, weights = done.stdout.split()
    return int(hits), weights


def test_the_next_process_finds_them_and_computes_the_same(tmp_path):
    hits, weights = trained(tmp_path)
    assert hits == 0
    assert any(name.endswith("-cache") for name in os.listdir(tmp_path / "compiled"))
    again, same_weights = trained(tmp_path)
    assert again > 0
    assert same_weights == weights


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "compiled").write_text("not a folder")
    with pytest.raises(al.StoreError, match="cannot be made"):
        al.store.keep_programs(al.Store(tmp_path))


def test_what_is_no_store(tmp_path):
    with pytest.raises(al.InputError, match="`store`"):
        al.store.keep_programs(str(tmp_path))
