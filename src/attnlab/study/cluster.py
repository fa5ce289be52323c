"""Blocks as futures of a dask.distributed cluster."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from attnlab.errors import InputError, StoreError, message
from attnlab.study.outcome import Outcome
from attnlab.study.table import library
from attnlab.study.work import Job, perform

PATIENCE = 60.0  # seconds to wait for a scheduler that is gone to come back
LOOK = 0.5  # seconds between looks at the connection
EACH = 2  # blocks for every thread of the cluster: one is computed, one waits


class Cluster:
    """A dask client, or a client of our own to the address of a scheduler.

    dask computes a block again when its worker dies; what began twice is told in the log of the run. If the scheduler
    dies and one is at its address again within a minute, all that is not in the store is sent there.
    """

    def __init__(self, client: Any) -> None:
        self._distributed = library("distributed", "A cluster")
        self._own = isinstance(client, str)
        if not self._own and not hasattr(client, "submit"):
            wanted = "a dask.distributed.Client, or the address of a scheduler"
            raise InputError(
                message(f"`client` is {type(client).__name__}; wanted {wanted}.", "client='tcp://host:8786'")
            )
        self._client = self._connected(client, 10.0) if self._own else client
        self._address = client if self._own else client.scheduler.address
        self._topic = f"attnlab-study-{uuid.uuid4().hex}"
        self._running: dict[Any, tuple[int, Job]] = {}
        self._began: dict[str, list[str]] = {}  # key of a future -> workers on which it began
        self._news = threading.Event()  # some future is done
        self._threads = 1
        self._unsent: list[Job] = []  # blocks that a client without a scheduler did not take
        self._listen()

    @property
    def slots(self) -> int:
        """How many blocks are out at a time."""
        with suppress(OSError, RuntimeError):  # of a scheduler that is gone: as many as there were
            self._threads = max(1, sum(self._client.nthreads().values()))
        return EACH * self._threads

    def idle(self) -> list[int]:
        taken = {slot for slot, _ in self._running.values()}
        return [slot for slot in range(self.slots) if slot not in taken]

    def submit(self, slot: int, job: Job) -> None:
        key = f"attnlab-{job.task.point}-{job.task.start}-{uuid.uuid4().hex[:8]}"
        try:
            future = self._client.submit(perform_there, job, self._topic, key, key=key, pure=False, retries=0)
        except Exception:  # dask raises a bare one where the scheduler was given up
            self._unsent.append(job)
            return
        self._running[future] = (slot, job)
        future.add_done_callback(lambda _: self._news.set())

    def answers(self) -> Iterator[tuple[Job, Outcome]]:
        """Wait for some block; blocks that a lost scheduler knew of are lost with it."""
        if self._unsent:
            yield from self._reconnected()
            return
        while True:
            finished = [future for future in self._running if future.status != "pending"]
            if finished:
                break
            if self._client.status != "running":
                yield from self._reconnected()
                return
            self._news.wait(LOOK)
            self._news.clear()
        if self._client.status != "running":
            yield from self._reconnected()
            return
        for future in finished:
            _, job = self._running.pop(future)
            yield job, self._with_log(future.key, self._outcome(future))
            future.release()

    def close(self) -> None:
        with suppress(Exception):  # a connection that is gone cannot be told
            for future in self._running:
                future.cancel(force=True)
        with suppress(Exception):
            self._client.unsubscribe_topic(self._topic)
        if self._own:
            with suppress(Exception):
                self._client.close(timeout=2)

    def _outcome(self, future: Any) -> Outcome:
        status = future.status
        if status == "finished":
            try:
                return future.result(timeout=PATIENCE)
            except Exception as error:  # its worker went between telling and sending
                return _lost(
                    f"The worker that had computed this block is gone ({type(error).__name__}).", blameless=True
                )
        if status == "error":
            error = future.exception()
            if isinstance(error, ModuleNotFoundError):
                problem = f"A worker cannot import `{error.name}`."
                hint = "install attnlab and what the block function imports on the workers"
                return Outcome(None, error=message(problem, hint), facts={"fatal": True})
            return _lost(f"dask gave this block up ({type(error).__name__}: {str(error).splitlines()[0]}).")
        return _lost(f"dask has lost this block ({status}).", blameless=True)

    def _with_log(self, key: str, outcome: Outcome) -> Outcome:
        """Tell that it began more than once."""
        begun = self._began.pop(key, [])
        if len(begun) < 2:
            return outcome
        sentence = f"computed again. It began on {' and then on '.join(begun)}: a worker was lost."
        return replace(outcome, facts={**outcome.facts, "log": sentence})

    def _listen(self) -> None:
        def heard(event: Any) -> None:
            _, what = event
            self._began.setdefault(what["key"], []).append(what["worker"])

        with suppress(Exception):  # without it only the log knows less
            self._client.subscribe_topic(self._topic, heard)

    def _reconnected(self) -> Iterator[tuple[Job, Outcome]]:
        lost = [*self._unsent, *(job for _, job in self._running.values())]
        self._running.clear()
        self._unsent.clear()
        with suppress(Exception):
            self._client.close(timeout=2)
        self._client, self._own = self._connected(self._address, PATIENCE), True
        self._listen()
        for job in lost:
            yield job, _lost("The scheduler was lost, and is back.", blameless=True)

    def _connected(self, address: str, patience: float) -> Any:
        end = time.monotonic() + patience
        while True:
            try:
                return self._distributed.Client(address, timeout=5, set_as_default=False)
            except (OSError, TimeoutError, ValueError) as error:
                if time.monotonic() > end or isinstance(error, ValueError):
                    problem = f"There is no dask scheduler at {address}."
                    hint = "what was finished is kept: start the scheduler, and run again"
                    raise StoreError(message(problem, hint)) from error
                time.sleep(1.0)


def perform_there(job: Job, topic: str, key: str) -> Outcome:
    """On a worker: say that it begins, then compute."""
    from distributed import get_worker

    os.environ.setdefault("ATTNLAB_THREADS", "1")  # the other cores are those of other workers
    worker = get_worker()
    worker.log_event(topic, {"key": key, "worker": f"{worker.address}"})
    return perform(job)


def _lost(text: str, *, blameless: bool = False) -> Outcome:
    """No answer; `blameless` if the block has no part in that."""
    return Outcome(None, error=text, facts={"lost": True, "blameless": blameless})
