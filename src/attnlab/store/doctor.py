"""Is this installation sound? Versions, devices, the store, and numbers with a closed form."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from attnlab.store.compiled import compiled_folder, compiled_size
from attnlab.store.folder import LIBRARIES, versions
from attnlab.store.store import Store

# A check returns what it saw, and whether that is right.
Seen = tuple[str, bool]


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was seen, whether it is right, how long it took."""

    name: str
    value: str
    ok: bool
    seconds: float


@dataclass(frozen=True, repr=False)
class Report:
    """All checks, in order."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Is everything right?"""
        return all(check.ok for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that are not right."""
        return tuple(check for check in self.checks if not check.ok)

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict that `json.dumps` takes."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def __repr__(self) -> str:
        failed = ", ".join(check.name for check in self.failed)
        return f"Report({len(self.checks)} checks, {f'failed: {failed}' if failed else 'all ok'})"


def examine(store: Store | None = None) -> Report:
    """Look at the installation, the store and a few numbers that are known exactly; takes a few seconds.

    A check that raises has failed, with the error as its value; the others still run.

    Args:
        store: default `Store()`.

    Returns:
        A `Report`.

    >>> import tempfile
    >>> examine(Store(tempfile.mkdtemp())).ok
    True
    """
    store = Store() if store is None else store
    checks: dict[str, Callable[[], Seen]] = {
        **{name: partial(_version, name) for name in ("python", *LIBRARIES)},
        "devices": _devices,
        "processors": lambda: (str(len(os.sched_getaffinity(0))), True),
        "store": lambda: _store(store),
        "compiled programs": lambda: _compiled(store),
        "store is writable": lambda: _writable(store),
        "64-bit scope": _scope,
        "softmax derivative at margin 100": _softmax_derivative,
        "gradient at e^-3000": _vanishing_gradient,
        "normalized steps on two tokens": _normalized_steps,
        "a trial alone and in a batch": _trial_in_batch,
    }
    return Report(tuple(_checked(name, look) for name, look in checks.items()))


def _checked(name: str, look: Callable[[], Seen]) -> Check:
    began = time.perf_counter()
    try:
        value, ok = look()
    except Exception as error:
        value, ok = f"{type(error).__name__}: {error}", False
    return Check(name, value, bool(ok), time.perf_counter() - began)


def _version(name: str) -> Seen:
    return versions()[name] if name == "python" else metadata.version(name), True


def _devices() -> Seen:
    import jax

    devices = [str(device) for device in jax.devices()]
    return ", ".join(devices), bool(devices)


def _store(store: Store) -> Seen:
    size = store.size()
    return f"{store.path} ({size.count} runs, {size.bytes} bytes)", True


def _compiled(store: Store) -> Seen:
    size = compiled_size(store)
    return f"{compiled_folder(store)} ({size.count} programs, {size.bytes} bytes)", True


def _writable(store: Store) -> Seen:
    existed = store.path.exists()
    store._folder.make_ready()
    if not existed:  # leave no trace of having asked
        for folder in (store._folder.runs, store._folder.partial, store._folder.tmp, store.path):
            with suppress(OSError):
                folder.rmdir()
    return "yes", True


def _scope() -> Seen:
    """float64 inside, the user's own setting outside, before and after."""
    import jax.numpy as jnp

    from attnlab.models import in_float64

    before = jnp.ones(1).dtype
    inside = str(in_float64(lambda: jnp.ones(1).dtype)())
    after = str(jnp.ones(1).dtype)
    return f"{inside} inside, {after} outside", inside == "float64" and after == before


def _softmax_derivative() -> Seen:
    """d softmax(a)_0 / da = s_0 s_1 (1, -1), and s_0 s_1 = e^-100 / (1 + e^-100)^2 at a = (100, 0)."""
    import jax
    import jax.numpy as jnp

    from attnlab import models

    slope = models.in_float64(lambda: np.asarray(jax.grad(lambda a: models.softmax(a)[0])(jnp.array([100.0, 0.0]))))()
    exact = math.exp(-100.0) / (1.0 + math.exp(-100.0)) ** 2
    return _error(slope / exact, np.array([1.0, -1.0]), 1e-12)


def _vanishing_gradient() -> Seen:
    """At W = w E_11 the gradient on two tokens is -s (1 - s) sigmoid(-s) E_11 with s = 1 / (1 + e^-w)."""
    from attnlab import models
    from attnlab.data import two_tokens

    mantissa, log_scale = models.gradient(two_tokens(), 3000.0 * _corner())
    # s = 1 to rounding: log of the norm is -3000 - log(1 + e).
    exact = -_corner() * math.exp(-3000.0 - math.log1p(math.e) - float(log_scale["W"]))
    return _error(mantissa["W"], exact, 1e-12)


def _normalized_steps() -> Seen:
    """The gradient on two tokens is along E_11, so every normalized step adds its length there."""
    from attnlab.data import two_tokens
    from attnlab.optim import ngd
    from attnlab.train import descend

    start, step, steps = 0.5, 0.1, 1000
    run = descend(two_tokens(), ngd(step), steps=steps, init=start * _corner(), record=None)
    return _error(run.W, (start + step * steps) * _corner(), 1e-9)


def _trial_in_batch() -> Seen:
    from attnlab.data import sphere
    from attnlab.optim import ngd
    from attnlab.train import descend

    tokens = sphere(n=4, T=4, d=5, trials=3, seed=0)
    init = np.random.default_rng(0).standard_normal((3, 5, 5))
    together = descend(tokens, ngd(0.1), steps=200, init=init, record=None)
    alone = descend(tokens[1], ngd(0.1), steps=200, init=init[1], record=None)
    return _error(alone.W, together.W[1], 1e-12)


def _corner() -> np.ndarray:
    return np.array([[1.0, 0.0], [0.0, 0.0]])


def _error(seen: np.ndarray, exact: np.ndarray, allowed: float) -> Seen:
    """The largest error; NaN is never right."""
    error = float(np.max(np.abs(seen - exact)))
    return f"error {error:.1e} (allowed {allowed:.0e})", error <= allowed
