"""Processes of this machine that compute blocks. One that is killed costs its block and nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from attnlab.store import Store
from attnlab.store.compiled import compiled_folder
from attnlab.study.grid import shape_of
from attnlab.study.outcome import Outcome
from attnlab.study.work import Job, perform

Answer = tuple[Job, Outcome]
MOST_SHAPES = 24  # whose compiled programs a process holds before it forgets them all
# One thread each: the processes share the cores.
ONE_THREAD = {
    "ATTNLAB_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NPROC": "1",
}
XLA_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Here:
    """This process, one block at a time."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []

    def idle(self) -> list[int]:
        return [] if self._answers else [0]

    def submit(self, slot: int, job: Job) -> None:
        self._answers.append((job, perform(job)))

    def answers(self) -> Iterator[Answer]:
        yield from self._answers
        self._answers.clear()

    def close(self) -> None:
        pass


class Processes:
    """So many processes, each with one thread; they begin when they are needed."""

    def __init__(self, jobs: int, store: Store) -> None:
        self._workers: list[Worker | None] = [None] * jobs
        self._store = store

    def idle(self) -> list[int]:
        return [slot for slot, worker in enumerate(self._workers) if worker is None or worker.job is None]

    def submit(self, slot: int, job: Job) -> None:
        worker = self._workers[slot]
        if worker is None:
            worker = self._workers[slot] = Worker(self._store)
        worker.give(job)

    def answers(self) -> Iterator[Answer]:
        """Wait for an answer; a process that is gone has answered that it is gone."""
        busy = [(slot, worker) for slot, worker in enumerate(self._workers) if worker and worker.job]
        ready = wait([worker.connection for _, worker in busy])
        for slot, worker in busy:
            if worker.connection not in ready:
                continue
            job, outcome = worker.answer()
            if outcome.facts.get("lost"):
                worker.close()
                self._workers[slot] = None
            yield job, outcome

    def close(self) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.close()


class Worker:
    """One process, started as a program of its own: neither the script nor the threads of this one are copied."""

    def __init__(self, store: Store) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"from attnlab.study.pool import serve; serve({theirs.fileno()})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
                pass_fds=[theirs.fileno()],
                env=environment(store),
                stdin=subprocess.DEVNULL,
                stdout=2,  # results go to stdout, and what functions print is none
                start_new_session=True,  # Ctrl-C is for the process that waits
            )
        self.connection = Connection(ours.detach())
        self.job: Job | None = None

    def give(self, job: Job) -> None:
        self.job = job
        with suppress(OSError):  # one that is gone is noticed when its answer is read
            self.connection.send(job)

    def answer(self) -> Answer:
        job, self.job = self.job, None
        assert job is not None
        try:
            return job, self.connection.recv()
        except (EOFError, OSError):
            self.process.kill()
            code = self.process.wait()
            how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return job, Outcome(None, error=f"The process that computed this block was {how}.", facts={"lost": True})

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


def environment(store: Store) -> dict[str, str]:
    """One thread, and compiled programs kept beside the runs."""
    flags = " ".join(part for part in (os.environ.get("XLA_FLAGS", ""), XLA_ONE_THREAD) if part)
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(compiled_folder(store)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    return {**cache, **os.environ, **ONE_THREAD, "XLA_FLAGS": flags}


def serve(descriptor: int) -> None:
    """The life of a process: blocks come, answers go, until nobody is there any more."""
    connection = Connection(descriptor)
    _end_with(os.getppid())
    shapes: set[tuple[object, ...]] = set()
    while True:
        try:
            job = connection.recv()
            shapes = _forgotten(shapes | {shape_of(job.point)})
            connection.send(perform(job))
        except (EOFError, ConnectionError):
            return


def _forgotten(shapes: set[tuple[object, ...]]) -> set[tuple[object, ...]]:
    """Forget compiled programs now and then, so that memory does not grow with the number of points."""
    if len(shapes) <= MOST_SHAPES:
        return shapes
    if "jax" in sys.modules:
        import jax

        jax.clear_caches()
    return set()


def _end_with(parent: int) -> None:
    """End soon after the process that started us, however it ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
