"""How long JAX compiles."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)
_running: list[Stopwatch] = []
_lock = threading.Lock()
_listening = False


class Stopwatch:
    """Seconds that JAX takes to trace, lower and compile programs inside of a `with` block, in all threads.

    Nothing is measured of a block in which JAX is loaded for the first time before it is asked to listen; `listen`
    loads it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Stopwatch:
        if "jax" in sys.modules:
            listen()
        with _lock:
            _running.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        with _lock:
            _running.remove(self)


def listen() -> None:
    """Ask JAX to tell how long it compiles; once in a process."""
    global _listening
    if _listening:
        return
    from jax import monitoring

    monitoring.register_event_duration_secs_listener(_heard)
    _listening = True


def _heard(event: str, duration_secs: float, **_: Any) -> None:
    if event in _EVENTS:
        with _lock:
            for watch in _running:
                watch.seconds += duration_secs
