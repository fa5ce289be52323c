"""Which of the slow tests run, and what becomes of the programs they compile.

Of the slow ones a fixed sample runs by default, all with `--slow all`, none with `--slow none`. Those marked
`slow(sampled=False)` take minutes each and are in no sample.

Three quarters of the time of a first run are spent compiling. So programs are kept inside the virtual environment, and
the next run finds them. Each file has a folder of its own: one process runs a file, and no other reads what it has half
written.
"""

import gc
import itertools
import os
import sys
import zlib
from pathlib import Path

# Several processes test side by side; small matrices gain nothing from threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest
from jax._src import compiler
from jax.experimental.compilation_cache import compilation_cache
from joblib.externals.loky import reusable_executor

from attnlab.store.compiled import drop_broken
from attnlab.train.program import MOST_MAPS, memory_maps

TESTS = Path(__file__).parent
PROGRAMS = Path(sys.prefix) / "attnlab-tests" if sys.prefix != sys.base_prefix else None
WORTH_KEEPING = 0.1  # seconds of compilation
LONG_RUNS = ("bytes", "descend", "endings", "engine", "laws", "settling")
COMPILED_FULLY = {"store", "claims", *(f"test_train_{name}" for name in LONG_RUNS)}
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
        slow = item.get_closest_marker("slow")
        one_in = PLANTED_ONE_IN if item.path.name.startswith("test_planted") else ONE_IN
        sampled = choice == "sample" and zlib.crc32(item.nodeid.encode()) % one_in == 0
        is_kept = slow is None or (sampled and slow.kwargs.get("sampled", True))
        (kept if is_kept else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(autouse=True)
def _private_store(tmp_path, monkeypatch):
    """No test reads or writes the user's own runs; and none gets processes that know those of another test."""
    monkeypatch.setenv("ATTNLAB_STORE", str(tmp_path / "attnlab-store"))
    yield
    if reusable_executor._executor is not None:
        reusable_executor._executor.shutdown(wait=True, kill_workers=True)


@pytest.fixture(autouse=True, scope="module")
def _programs_of_this_file(request):
    """Kept for the next run, and forgotten by this process when the file is done: together they take gigabytes.

    Long runs, what is compared byte by byte or with processes of its own, and claims need programs as users run them.
    All others are compiled in a third of the time.
    """
    compile_quickly(not {request.path.parent.name, request.path.stem} & COMPILED_FULLY)
    if PROGRAMS is not None:
        folder = PROGRAMS / request.path.relative_to(TESTS).with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        drop_broken(folder)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
        compilation_cache.reset_cache()
    yield
    compile_quickly(False)
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="module")
def compiled_quickly(_programs_of_this_file):
    """For laws of training by large networks, too, which are compiled for long and run for a few steps."""
    compile_quickly(True)


_options_of_jax = compiler.get_compile_options


def compile_quickly(quickly: bool) -> None:
    """Without LLVM's slower passes, and with XLA's older code for fused loops, which no setting of JAX asks for."""
    jax.config.update("jax_disable_most_optimizations", quickly)
    compiler.get_compile_options = _quick_options if quickly else _options_of_jax


def _quick_options(*args, env_options_overrides=None, **options):
    overrides = {"xla_cpu_use_fusion_emitters": False, **(env_options_overrides or {})}
    return _options_of_jax(*args, env_options_overrides=overrides, **options)


_tests = itertools.count(1)


@pytest.fixture(autouse=True)
def _room_for_programs():
    """A process has no room for more memory maps than this, and each program takes some."""
    yield
    if next(_tests) % LOOK_EVERY == 0 and memory_maps() > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
