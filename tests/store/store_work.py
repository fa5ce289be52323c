"""Work for other processes: what the tests compute, count, and kill."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
PATIENCE = 60.0  # seconds until a wait for another process is a failure


def spawn(code, folder, **environment):
    """A Python process that can import this file, in a process group of its own."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "STORE_WORK": str(folder), "ATTNLAB_STORE": str(folder / "store")}
    return subprocess.Popen(
        [sys.executable, "-c", f"import store_work as w\n{code}"],
        env=env | environment, start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def output(process):
    out, err = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, err
    return out.strip()


def work_folder():
    return Path(os.environ["STORE_WORK"])


def wait_until(true):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def finished():
    return len(list((work_folder() / "store" / "runs").glob("*/run.json")))


def square(config):
    """x squared; leaves one file per call."""
    (work_folder() / f"call-{config['x']}-{uuid.uuid4().hex}").touch()
    return {"square": np.array([config["x"] ** 2])}, {"x": config["x"]}


def square_and_kill(config):
    """The same, but the first process group to come to x = 2 is killed once all else is finished."""
    mark = work_folder() / "killed"
    if config["x"] == 2 and not mark.exists():
        wait_until(lambda: finished() == 4)
        mark.touch()
        os.killpg(0, signal.SIGKILL)
    return square(config)


def calls(folder):
    return sorted(path.name.split("-")[1] for path in folder.glob("call-*"))


def meet(name):
    """Wait for the other of two processes, so that both are at work at once."""
    (work_folder() / f"{name}-{os.getpid()}").touch()
    wait_until(lambda: len(list(work_folder().glob(f"{name}-*"))) == 2)


def keep_together():
    import attnlab as al

    def compute():
        meet("keep")
        return {"who": np.array([os.getpid()])}

    print(int(al.Store().keep("together", {}, compute).arrays["who"][0]))


# Descent


def tokens():
    import attnlab as al

    return al.data.sphere(n=5, T=6, d=7, seed=3, trials=2)


def rule():
    import attnlab as al

    return al.ngd_momentum(0.05)


OPTIONS = {"steps": 3000, "seed": 1, "record": 15}


def descend_and_die():
    import attnlab as al

    looks = []

    def on_step(progress):
        looks.append(progress.step)
        if len(looks) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    al.Store().descend(tokens(), rule(), checkpoint_seconds=0, on_step=on_step, **OPTIONS)


def descend_together():
    import attnlab as al

    met = []

    def on_step(progress):
        if not met:
            meet("descend")
            met.append(True)

    run = al.Store().descend(tokens(), rule(), checkpoint_seconds=0, on_step=on_step, **OPTIONS)
    print(run.W.tobytes().hex(), run.seconds)


# Things to know by name


@dataclass(frozen=True)
class Circle:
    size: float = 1.0


@dataclass(frozen=True)
class Square:
    size: float = 1.0


def times(factor):
    def function(x):
        return factor * x

    return function


def scaled(factor):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(x):
            return factor * function(x)

        return wrapper

    return decorate


def plain(x):
    return x


def other(x):
    return x + 1


def add(x, y=1):
    return x + y


ONE_LINE = [lambda x: x + 1, lambda x: x + 2, lambda x: x in {"a", "b", "c", "d"}]


class Holder:
    def __init__(self, factor):
        self.factor = factor

    def method(self, x):
        return self.factor * x


# Each entry: values that mean different things.
DIFFERENT = {
    "numbers": [1, 2, 1.5, -1],
    "seeds": [{"seed": 0}, {"seed": 1}, {"Seed": 0}],
    "text and numbers": ["1", 1, None, [1], {"1": 1}],
    "truth and numbers": [True, 1, False, 0],
    "arrays": [np.zeros(3), np.array([0.0, 0.0, 1e-300]), np.zeros((3, 1)), np.zeros(3, np.float32)],
    "functions": [plain, other, scaled(1)(plain), scaled(2)(plain), scaled(2)(other)],
    "closures": [times(1), times(2), times(np.ones(2)), times(np.zeros(2)), times(times(1)), times(times(2))],
    "decorated closures": [times(scaled(1)(plain)), times(scaled(2)(plain))],
    "partial": [functools.partial(add, y=1), functools.partial(add, y=2), functools.partial(add, 1), add],
    "partial of lambdas": [functools.partial(ONE_LINE[0]), functools.partial(ONE_LINE[1])],
    "lambdas on one line": ONE_LINE,
    "dataclasses": [Circle(), Square(), Circle(2.0)],
}


def print_keys():
    """Keys of everything above and of some descents, as JSON."""
    import optax

    from attnlab.store.keys import descent_identity, identity

    keys = {name: [identity("test", value).key for value in values] for name, values in DIFFERENT.items()}
    rules = [rule(), optax.sgd(0.1), optax.adam(0.1), optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)]
    options = OPTIONS | {"metrics": {"a": ONE_LINE[2], "b": ONE_LINE[1]}, "init": np.ones((2, 7, 7))}
    keys["descents"] = [descent_identity(tokens(), one, options).key for one in rules]
    print(json.dumps(keys))
