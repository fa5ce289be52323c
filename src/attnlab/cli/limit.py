"""Work that ends in time, finished or not."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable

from attnlab.cli.ending import OUT_OF_TIME


def finished_within(seconds: float | None, work: Callable[[], None]) -> bool:
    """Do the work; False if it is not done in time.

    It is done in a thread, since a single matrix decomposition may take minutes. What is not done by then goes on
    behind our back, until the process ends.
    """
    if seconds is None:
        work()
        return True
    raised: list[BaseException] = []

    def inside() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    worker = threading.Thread(target=inside, daemon=True)
    worker.start()
    worker.join(min(seconds, threading.TIMEOUT_MAX))
    if worker.is_alive():
        atexit.register(_leave_behind, worker)
        return False
    if raised:
        raise raised[0]
    return True


def _leave_behind(worker: threading.Thread) -> None:
    """Python must not be taken down under a thread that computes: end the process before."""
    if worker.is_alive():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(OUT_OF_TIME)
