"""Same seed, same bytes: alone and in batches of any size, on any number of threads, in another process."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import optax
import pytest

import attnlab as al

SHAPES = [
    (5, 5, 10),
    pytest.param((3, 4, 5), marks=pytest.mark.slow),
    pytest.param((1, 2, 1), marks=pytest.mark.slow),
    pytest.param((2, 7, 3), marks=pytest.mark.slow),
]
SIZES = [1, 3, 16, 21]


def digest(run, trial=None):
    """A hash of all numbers of a run, or of one of its trials."""
    arrays = [*run.weights.values(), *run.metrics.values(), run.selected]
    parts = [np.ascontiguousarray(a if trial is None else a[trial]).tobytes() for a in arrays]
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


def test_families_do_not_depend_on_the_batch():
    many = al.data.sphere(n=3, T=4, d=5, seed=7, trials=12)
    few = al.data.sphere(n=3, T=4, d=5, seed=7, trials=2)
    alone = al.data.sphere(n=3, T=4, d=5, seed=7)
    assert few[1].digest() == many[1].digest()
    assert alone.digest() == many[0].digest()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_trial_gives_the_same_bytes_alone_and_in_any_batch(shape):
    n, T, d = shape
    tokens = al.data.sphere(n=n, T=T, d=d, seed=7, trials=21)
    options = {"steps": 40, "record": [0, 40], "init": "gaussian"}
    runs = {size: al.descend(tokens[:size], al.ngd(0.1), **options) for size in SIZES}
    alone = al.descend(tokens[0], al.ngd(0.1), **options)
    assert {digest(run, 0) for run in runs.values()} == {digest(alone)}
    for size in (3, 16, 21):
        np.testing.assert_array_equal(runs[size].W[2], runs[21].W[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"rule": al.gd(0.5), "parameterization": "KQ"},
        {"rule": al.adam(0.05)},
        {"rule": al.polyak(cap=5.0), "loss": "exponential"},
        {"rule": al.joint_total(0.05), "train_head": True},
        {"rule": optax.rmsprop(0.01)},
        {"rule": al.gd(0.5), "model": al.models.MultiHead(3), "init": "gaussian"},
        {"rule": al.gd(0.1), "model": al.models.Encoder(6)},
        {"rule": al.ngd(0.1), "head": "relu-sum"},
    ],
    ids=lambda options: repr(sorted(options)),
)
def test_so_does_every_rule_and_model(options):
    tokens = al.data.sphere(n=3, T=4, d=5, seed=7, trials=9)
    rest = {"steps": 40, "record": [0, 40], **options}
    rule = rest.pop("rule")
    found = {digest(al.descend(tokens[:size], rule, **rest), 0) for size in (1, 2, 3, 9)}
    assert found == {digest(al.descend(tokens[0], rule, **rest))}


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import attnlab as al
from test_train_bytes import digest
tokens = al.data.sphere(n=5, T=5, d=10, seed=7, trials=20)
print(digest(al.descend(tokens, al.ngd(0.1), steps=50, record=[0, 50])))
"""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@pytest.mark.slow
def test_processes_and_threads():
    """One core and one thread, and as many as there are."""
    program = PROGRAM.format(folder=os.path.dirname(__file__))
    settings = [{}, {"XLA_FLAGS": ONE_THREAD, "OPENBLAS_NUM_THREADS": "1"}, {"OPENBLAS_NUM_THREADS": "4"}]
    found = set()
    for more in settings:
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **more}, capture_output=True, text=True, check=True
        )
        found.add(done.stdout.strip())
    core = {next(iter(os.sched_getaffinity(0)))}
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {core})\n{program}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found.add(done.stdout.strip())
    assert len(found) == 1
