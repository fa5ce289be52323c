"""Block functions without JAX, and processes that can import them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
PATIENCE = 120.0


def uniform(seeds):
    return np.array([np.random.default_rng(seed).random() for seed in seeds.tolist()])


def coins(point, seeds):
    """Heads with probability p, `n` numbers, and a constant."""
    values = uniform(seeds)
    return {"heads": values < point["p"], "value": values * point["n"], "constant": 3}


def counted(point, seeds):
    """The same; leaves a file for every trial that was computed."""
    folder = Path(os.environ["STUDY_WORK"])
    for seed in seeds.tolist():
        with open(folder / f"trial-{point['p']}-{point['n']}-{seed}", "a") as file:
            file.write("x")
    return coins(point, seeds)


def slow(point, seeds):
    """The same, a tenth of a second for every block."""
    time.sleep(0.1)
    return coins(point, seeds)


def partly_bad(point, seeds):
    """Raises in the block that begins at trial 4 of n = 2."""
    if point["n"] == 2 and 4 in seeds:
        raise ValueError("no luck with 4")
    return coins(point, seeds)


def kills_its_process_once(point, seeds):
    mark = Path(os.environ["STUDY_WORK"]) / "killed"
    if point["n"] == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    return coins(point, seeds)


def kills_its_process(point, seeds):
    if point["n"] == 2:
        os.kill(os.getpid(), 9)
    return coins(point, seeds)


def spawn(code, folder, **environment):
    """A Python process that can import this file, in a process group of its own."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "STUDY_WORK": str(folder), "ATTNLAB_STORE": str(folder / "store")}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=env | environment,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def output(process):
    out, err = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, err
    return out.strip()


def wait_until(true):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
