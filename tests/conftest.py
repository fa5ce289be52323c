"""Which of the slow tests run: a fixed sample by default, all with `--slow all`, none with `--slow none`."""

import gc
import itertools
import os
import zlib

# Several processes test side by side; small matrices gain nothing from threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest

from attnlab.train.program import MOST_MAPS, memory_maps

ONE_IN = 10
PLANTED_ONE_IN = 40  # rows of planted faults, each of which measures a claim anew
LOOK_EVERY = 10  # tests


def pytest_addoption(parser):
    parser.addoption("--slow", choices=("none", "sample", "all"), default="sample", help="slow tests to run")


def pytest_collection_modifyitems(config, items):
    choice = config.getoption("--slow")
    if choice == "all":
        return
    kept, dropped = [], []
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        one_in = PLANTED_ONE_IN if item.path.name.startswith("test_planted") else ONE_IN
        sampled = choice == "sample" and zlib.crc32(item.nodeid.encode()) % one_in == 0
        (kept if not is_slow or sampled else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(autouse=True)
def _private_store(tmp_path, monkeypatch):
    """No test reads or writes the user's own runs."""
    monkeypatch.setenv("ATTNLAB_STORE", str(tmp_path / "attnlab-store"))


_tests = itertools.count(1)


@pytest.fixture(autouse=True)
def _room_for_programs():
    """Thousands of tests compile more programs than a process has room for."""
    yield
    if next(_tests) % LOOK_EVERY == 0 and memory_maps() > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
