"""`descend` with a memory: kept when finished, taken up again when not."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.checks import number, shown
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, StoreError, message
from attnlab.store.folder import Folder, NotKept, whole
from attnlab.store.keys import FREE, Identity, descent_identity

if TYPE_CHECKING:
    from attnlab.train import Progress, Trajectory

FILE = "trajectory.npz"


def kept_descent(
    folder: Folder,
    tokens: Tokens,
    rule: Any,
    options: Mapping[str, Any],
    checkpoint_seconds: float,
    on_step: Callable[[Progress], None] | None,
) -> Trajectory:
    """The kept run, or the run from its checkpoint or from the start; see `Store.descend`."""
    from attnlab.train import Status, descend

    _check(options, checkpoint_seconds, on_step)
    identity = descent_identity(tokens, rule, options)
    kept = folder.find(identity, _load)
    if kept is not None:
        _forget(folder.checkpoint(identity.key))  # left by a process that was overtaken and then killed
        return kept
    folder.make_ready()
    writer = _Writer(folder, identity.key, checkpoint_seconds, on_step)
    earlier = _checkpoint(folder, identity)
    try:
        run = descend(tokens, rule, on_step=writer, resume=earlier, **options)
    except InputError:
        if earlier is None or writer.called:
            raise
        # The checkpoint does not fit (the state of the rule has changed shape), or the settings are wrong.
        folder.set_aside(folder.checkpoint(identity.key))
        run = descend(tokens, rule, on_step=writer, **options)
    try:
        if run.status is Status.OUT_OF_TIME:
            folder.replace_checkpoint(identity.key, run.save)
            return run
        about = {"seconds": run.seconds, "status": run.status.name.lower(), "last_step": run.last_step}
        theirs = folder.place(identity, about, lambda work: run.save(work / FILE), _load)
    except StoreError as error:
        raise NotKept(f"{error}; `computed` of this error holds the run", run) from error
    _forget(folder.checkpoint(identity.key))
    return run if theirs is None else theirs


class _Writer:
    """Called at every look of a run: writes a checkpoint when it is time, then tells the user's callback."""

    def __init__(self, folder: Folder, key: str, every: float, on_step: Callable[[Progress], None] | None) -> None:
        self.folder, self.key, self.every, self.on_step = folder, key, every, on_step
        self.last = time.monotonic()
        self.called = False

    def __call__(self, progress: Progress) -> None:
        self.called = True
        if progress.step < progress.steps and time.monotonic() - self.last >= self.every:
            self._write(progress)
            self.last = time.monotonic()
        if self.on_step is not None:
            self.on_step(progress)

    def _write(self, progress: Progress) -> None:
        """A checkpoint. A disk that is full for a while is no reason to give up the run."""
        try:
            self.folder.replace_checkpoint(self.key, progress.snapshot().save)
        except StoreError as error:
            problem = str(error).split("\n")[0]
            warnings.warn(f"No checkpoint at step {progress.step}; the run goes on. {problem}", stacklevel=3)


def _forget(path: Path) -> None:
    """Remove a checkpoint that is not needed any more; one that cannot be removed does no harm."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _check(options: Mapping[str, Any], checkpoint_seconds: float, on_step: Any) -> None:
    if "resume" in options:
        raise InputError(
            message(
                "`resume` is not for the store, which takes up an unfinished run by itself.",
                "al.descend(..., resume=run) continues a run of your own",
            )
        )
    if on_step is not None and not callable(on_step):
        raise InputError(message(f"`on_step` is {shown(on_step)}; wanted a function of one `Progress`, or None."))
    never = isinstance(checkpoint_seconds, float) and checkpoint_seconds == math.inf
    if not never:
        number("checkpoint_seconds", checkpoint_seconds, least=0)


def _load(path: Path, about: Mapping[str, Any]) -> Trajectory:
    from attnlab.train import Trajectory

    return Trajectory.load(whole(path / FILE))


def _checkpoint(folder: Folder, identity: Identity) -> Trajectory | None:
    """The unfinished run of an earlier call, if it can be read and is of this configuration."""
    from attnlab.train import Trajectory

    path = folder.checkpoint(identity.key)
    if not path.exists():
        return None
    try:
        run = Trajectory.load(whole(path))
        if {k: v for k, v in run.config.items() if k != FREE} == identity.config:
            return run
    except Exception:  # whatever can be wrong with a file; it is still there to be looked at
        pass
    folder.set_aside(path)
    return None
