"""What is disturbed: `claim`, `figure`, `Store.map` and `Store.descend`, each in a process of its own."""

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

KILL, INTERRUPT, FULL = "kill", "interrupt", "full"
STOPPED = 130
TOUCHES_FILES = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod")


@dataclass(frozen=True)
class Scenario:
    """Something that is killed: run(folder) in a process of its own; result(folder) reads what it left."""

    run: Callable[[Path], int]  # its exit code
    result: Callable[[Path], dict[str, bytes]]
    share: float  # of the points of a table


# The four things that are killed


CLAIMS = """
import numpy as np
from attnlab.claims import Claim, within

def measured(seed):
    return lambda scale: within(float(np.random.default_rng(seed).uniform()), 1.0, instances=1)

mine = [
    Claim(id=f"mine-{seed}", title="Mine", statement="x is small.", reason="x against 1", measure=measured(seed))
    for seed in range(4)
]
"""


def run_claim(folder: Path) -> int:
    from attnlab.cli import main

    file = folder.parent / "my_claims.py"  # beside the folder, which is watched
    if not file.exists():
        file.write_text(CLAIMS)
    return main(["claim", f"{file}:mine", "--scale", "smoke", "--out", str(folder / "out"), "--json"])


def claim_result(folder: Path) -> dict[str, bytes]:
    facts = json.loads((folder / "out" / "claims.json").read_text())
    for fact in facts:
        fact["seconds"] = 0
    return {"claims": json.dumps(facts, sort_keys=True).encode()}


def run_figure(folder: Path) -> int:
    from attnlab.cli import main
    from attnlab.figures import figure

    figure.figures = lambda paper=None: [a_line()]
    return main(["figure", "svm-99", "--scale", "smoke", "--out", str(folder / "out"), "--json"])


def a_line():
    from attnlab.claims import Verdict
    from attnlab.figures import Figure, Finding
    from attnlab.figures.style import new_figure

    def draw(arrays, facts):
        picture, axes = new_figure(1, 1, width=2.0, height=2.0)
        axes[0, 0].plot(arrays["curve"])
        return picture

    return Figure(
        id="svm-99",
        title="A line",
        says="It rises.",
        data=curve,
        draw=draw,
        judge=lambda arrays, facts: Finding(seen="It rises.", verdict=Verdict.HOLDS, numbers={}),
    )


def curve(scale, tell):
    return {"curve": np.random.default_rng(0).standard_normal(500).cumsum()}, {"attempts": 1}


def figure_result(folder: Path) -> dict[str, bytes]:
    from attnlab.data.files import read_npz

    out = folder / "out"
    arrays, _ = read_npz(out / "svm-99.npz", "the curve")
    assert (out / "svm-99.pdf").read_bytes().startswith(b"%PDF")
    assert "It rises." in (out / "svm-99.md").read_text()
    json.loads((out / "svm-99.json").read_text())
    contents = {name: (out / f"svm-99.{name}").read_bytes() for name in ("png", "csv")}
    return contents | {name: array.tobytes() for name, array in arrays.items()}


CONFIGS = [{"x": x} for x in range(8)]


def walk(config):
    return {"walk": np.random.default_rng(config["x"]).standard_normal(20_000).cumsum()}, {"x": config["x"]}


def run_map(folder: Path) -> int:
    import attnlab as al
    from attnlab.data.files import write_npz
    from attnlab.data.writing import make_folder

    make_folder(folder / "out")
    for kept in al.Store().map("walks", walk, CONFIGS):
        write_npz(folder / "out" / str(kept.facts["x"]), kept.arrays, kept.facts)
    return 0


def map_result(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("*.npz"))}


def run_descend(folder: Path) -> int:
    import jax

    import attnlab as al

    # Compiled once for all kills: beside the folder, which is not watched.
    jax.config.update("jax_compilation_cache_dir", str(folder.parent / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    tokens = al.data.sphere(n=4, T=5, d=6, seed=3)
    run = al.Store().descend(tokens, al.ngd(0.05), steps=1500, record=8, checkpoint_seconds=0)
    run.save(folder / "out.npz")
    return 0


def descend_result(folder: Path) -> dict[str, bytes]:
    from attnlab.train import Trajectory

    run = Trajectory.load(folder / "out.npz")
    arrays = {**run.weights, **run.metrics, "steps": run.steps, "selected": run.selected}
    return {name: np.asarray(array).tobytes() for name, array in arrays.items()} | {"end": str(run.last_step).encode()}


SCENARIOS = {
    "claim": Scenario(run_claim, claim_result, 0.35),
    "figure": Scenario(run_figure, figure_result, 0.25),
    "Store.map": Scenario(run_map, map_result, 0.3),
    "Store.descend": Scenario(run_descend, descend_result, 0.1),
}


# Processes


@dataclass
class Child:
    """A process that runs a scenario, disturbed just before its k-th operation on files.

    Attributes:
        at_file: k, from 1; 0 for never.
        how: KILL; INTERRUPT as Ctrl-C does; or FULL: from then on every write fails, as on a full disk.
        store: the folder of the store; default `store` in the folder.
    """

    scenario: Scenario
    folder: Path
    at_file: int = 0
    how: str = KILL
    store: Path | None = None
    seen: int = 0

    def start(self) -> "Child":
        self.pid = os.fork()
        if self.pid == 0:
            self._live()
        return self

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> int:
        """How it ended, as `os.waitpid` tells."""
        return os.waitpid(self.pid, 0)[1]

    @property
    def operations(self) -> int:
        """How many operations on files it made."""
        return int((self.folder / "operations").read_text())

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def _live(self) -> None:
        """Never returns."""
        os.environ["ATTNLAB_STORE"] = str(self.store or self.folder / "store")
        log = os.open(self.folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.addaudithook(self._watch)
        code = 1
        try:
            code = self.scenario.run(self.folder)
        except KeyboardInterrupt:
            print("stopped")
            code = STOPPED
        except BaseException as error:
            print(f"{type(error).__mro__[:3]}: {error}")
        finally:
            self.at_file = 0
            (self.folder / "operations").write_text(str(self.seen))
            sys.stdout.flush()
            os._exit(code)

    def _watch(self, event: str, arguments: tuple) -> None:
        if event not in TOUCHES_FILES or not str(arguments[0]).startswith(str(self.folder)):
            return
        self.seen += 1
        if self.how == FULL and 0 < self.at_file <= self.seen and _writes(event, arguments):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.how != FULL and self.seen == self.at_file:
            os.kill(os.getpid(), signal.SIGKILL if self.how == KILL else signal.SIGINT)


def _writes(event: str, arguments: tuple) -> bool:
    """Does an operation take space? Removing does not."""
    if event == "open":
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in ("os.rename", "os.mkdir")


def finished_runs(store: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in (store / "runs").glob("*/run.json")}


def damaged(store: Path) -> list[Path]:
    return list(store.rglob("*.damaged-*"))


def litter(folder: Path, store: Path) -> list[Path]:
    """Temporary files."""
    within = [*(store / "tmp").glob("*"), *(store / "partial").glob("*")]
    return [*within, *(folder / "out").glob(".*"), *folder.glob(".*")]


def load_libraries() -> None:
    """Once, before the forks; JAX starts its threads only in the children."""
    names = ("cli.commands", "cli.life", "claims.page", "figures.trap", "train", "svm", "store.compiled")
    for name in names:
        import_module(f"attnlab.{name}")
    for name in ("agg", "pdf"):
        import_module(f"matplotlib.backends.backend_{name}")
