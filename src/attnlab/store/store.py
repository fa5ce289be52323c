"""`Store`: a folder of runs."""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.checks import flag, instance, number, shown
from attnlab.data.files import read_npz, write_npz
from attnlab.data.owners import DAY
from attnlab.data.tokens import Tokens
from attnlab.data.writing import as_path
from attnlab.errors import InputError, StoreError, message
from attnlab.store.descent import kept_descent
from attnlab.store.folder import Folder, NotKept, bytes_in, changed, default_root, whole
from attnlab.store.keys import Identity, identity
from attnlab.store.pool import checked_jobs, in_processes
from attnlab.store.results import Done, Kept, Size, Summary, checked, frozen

if TYPE_CHECKING:
    from attnlab.train import Progress, Trajectory

Outcome = Mapping[str, Any] | tuple[Mapping[str, Any], Mapping[str, Any]]
FILE = "arrays.npz"


class Store:
    """A folder of runs, each kept under a hash of its configuration and computed once.

    Any number of processes may use one folder. A killed process loses at most what it was computing; what cannot be
    read is moved aside as `<key>.damaged-...` and computed anew. No folder is made before something is written.

    Args:
        root: the folder; default $ATTNLAB_STORE, else $XDG_CACHE_HOME/attnlab, else ~/.cache/attnlab.

    >>> import tempfile, numpy as np, attnlab as al
    >>> store = al.Store(tempfile.mkdtemp())
    >>> squares = lambda: {"squares": np.arange(4) ** 2}
    >>> store.keep("squares", {"n": 4}, squares).arrays["squares"].tolist()
    [0, 1, 4, 9]
    >>> store.size().count
    1
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        given = default_root() if root is None else as_path("root", root, "a folder")
        try:
            self._folder = Folder(Path(os.path.abspath(given.expanduser())))
        except RuntimeError as error:  # "~name" of a user that there is not
            raise InputError(message(f"`root` is {str(given)!r}, and there is no such home folder.")) from error

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.root

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def descend(
        self,
        tokens: Tokens,
        rule: Any,
        *,
        checkpoint_seconds: float = 20.0,
        on_step: Callable[[Progress], None] | None = None,
        **options: Any,
    ) -> Trajectory:
        """`al.descend(tokens, rule, **options)`, kept.

        A finished run is read from disk. An unfinished one (killed, or ended by `stop_seconds`) goes on from its last
        checkpoint, with the same result as if it had never stopped.

        Args:
            tokens, rule, options: as for `al.descend`; without `resume`.
            checkpoint_seconds: write a checkpoint this often; 0 at every look (about twice a second).
            on_step: called as by `al.descend`, after the checkpoint is written.

        Returns:
            A `Trajectory`. One that ran out of `stop_seconds` is not final: the next call goes on from there.

        >>> import tempfile, attnlab as al
        >>> store, tokens = al.Store(tempfile.mkdtemp()), al.data.two_tokens()
        >>> first, again = (store.descend(tokens, al.ngd(0.1), steps=50) for _ in range(2))
        >>> first.seconds == again.seconds  # the second was read
        True
        """
        return kept_descent(self._folder, tokens, rule, options, checkpoint_seconds, on_step)

    def keep(self, kind: str, config: Any, compute: Callable[[], Outcome], *, fresh: bool = False) -> Kept:
        """The arrays and facts of `compute()`, computed only if this kind and configuration are not kept already.

        Args:
            kind: name of the computation. Only `kind` and `config` name the result: when `compute` changes its
                meaning, change one of them.
            config: everything that decides the result: numbers, text, arrays, functions, dataclasses, dicts, lists.
            compute: returns a dict of arrays, or (dict of arrays, dict of JSON facts).
            fresh: compute again, and replace what is kept.

        Returns:
            A `Kept`, the same whether computed now or read.

        >>> import tempfile, attnlab as al
        >>> al.Store(tempfile.mkdtemp()).keep("pi", {}, lambda: ({}, {"pi": 3.14})).facts
        {'pi': 3.14}
        """
        _check_function("compute", compute, "a function without arguments", "lambda: function(config)")
        _check_takes_nothing(compute)
        flag("fresh", fresh)
        return self._keep(identity(kind, config), compute, fresh)

    def find(self, kind: str, config: Any) -> Kept | None:
        """What is kept of this kind and configuration; None if nothing is.

        >>> import tempfile, attnlab as al
        >>> al.Store(tempfile.mkdtemp()).find("pi", {}) is None
        True
        """
        return self._folder.find(identity(kind, config), _load)

    def map(
        self,
        kind: str,
        function: Callable[[Any], Outcome],
        configs: Iterable[Any],
        *,
        jobs: int = 1,
        on_done: Callable[[Done], None] | None = None,
    ) -> list[Kept]:
        """`keep(kind, config, lambda: function(config))` for every configuration, the missing ones in parallel.

        Each result is on disk as soon as it is there: what was finished before a kill or an error stays.

        Args:
            kind: as for `keep`.
            function: computes one configuration; of module level, so that other processes can import it.
            configs: the configurations; equal ones are computed once.
            jobs: processes (joblib; -1 for all cores); 1 computes here.
            on_done: called with a `Done` once at the start and after each result.

        Returns:
            A `Kept` for each configuration, in their order.

        >>> import tempfile, attnlab as al
        >>> double = lambda config: {"twice": 2 * config["x"]}
        >>> kept = al.Store(tempfile.mkdtemp()).map("double", double, [{"x": 1}, {"x": 4}])
        >>> [int(k.arrays["twice"]) for k in kept]
        [2, 8]
        """
        checked_jobs(jobs)
        _check_function("function", function, "a function of one configuration")
        if on_done is not None:
            _check_function("on_done", on_done, "a function of one `Done`, or None")
        instance("configs", configs, Iterable, "a list of configurations")
        began, given = time.monotonic(), list(configs)
        names = [identity(kind, config) for config in given]
        tasks = {name.key: (name, partial(function, config)) for name, config in zip(names, given, strict=True)}
        found = {key: self._folder.find(name, _load) for key, (name, _) in tasks.items()}
        results = {key: kept for key, kept in found.items() if kept is not None}
        missing = [key for key in tasks if key not in results]
        kept = sum(name.key in results for name in names)

        def tell() -> None:
            if on_done is not None:
                done = sum(name.key in results for name in names)
                on_done(Done(done, len(names), time.monotonic() - began, kept))

        tell()
        for key in self._computed([tasks[key] for key in missing], jobs):
            results[key] = self._keep(*tasks[key])
            tell()
        return [results[name.key] for name in names]

    def runs(self) -> Iterator[Summary]:
        """Every finished run, in the order of their keys; what cannot be read is left out."""
        for path, about in self._folder.finished():
            try:
                yield Summary(
                    key=path.name,
                    when=datetime.fromisoformat(about["when"]),
                    seconds=float(about["seconds"]),
                    bytes=bytes_in(path),
                    path=path,
                    **{k: about[k] for k in ("kind", "config", "status", "versions")},
                )
            except (KeyError, TypeError, ValueError):
                continue

    def size(self) -> Size:
        """Number of finished runs, and bytes of all that is kept (checkpoints and damaged runs too)."""
        return Size(sum(1 for _ in self.runs()), sum(bytes_in(path) for path in self._folder.everything()))

    def clear(self, older_than_days: float | None = None) -> Size:
        """Remove runs, damaged runs and checkpoints (all, or the older ones); returns how many and their bytes."""
        oldest = math.inf
        if older_than_days is not None:
            oldest = time.time() - number("older_than_days", older_than_days, least=0) * DAY
        old = [path for path in self._folder.everything() if changed(path) < oldest]
        removed = Size(len(old), sum(bytes_in(path) for path in old))
        for path in old:
            self._folder.remove(path)
        return removed

    def _computed(self, tasks: list[tuple[Identity, Callable[[], Outcome]]], jobs: int) -> Iterator[str]:
        """Keys of `tasks`, each as soon as it is computed. With one job the caller computes it, on being told."""
        if jobs == 1 or len(tasks) < 2:
            yield from (name.key for name, _ in tasks)
            return
        from joblib import delayed

        self._folder.make_ready()
        calls = [delayed(_keep_there)(self.path, name, compute) for name, compute in tasks]
        yield from in_processes(calls, jobs)

    def _keep(self, name: Identity, compute: Callable[[], Outcome], fresh: bool = False) -> Kept:
        kept = None if fresh else self._folder.find(name, _load)
        if kept is not None:
            return kept
        self._folder.make_ready()
        began = time.perf_counter()
        try:
            arrays, facts = checked(compute())
        except Exception as error:
            error.add_note(f"while computing {name.kind!r} with {_short(name.config)}")
            raise
        about = {"seconds": time.perf_counter() - began, "status": "finished", "facts": facts}
        kept = Kept(arrays=arrays, facts=facts, key=name.key, seconds=about["seconds"])
        try:
            theirs = self._folder.place(
                name, about, lambda run: write_npz(run / FILE, arrays, {}), _load, replace=fresh
            )
        except StoreError as error:
            raise NotKept(f"{error}; `computed` of this error holds the result", kept) from error
        return kept if theirs is None else theirs


def _load(path: Path, about: Mapping[str, Any]) -> Kept:
    arrays, _ = read_npz(whole(path / FILE), "arrays of a kept run")
    own = {name: frozen(array) for name, array in arrays.items()}
    if not isinstance(about["facts"], dict) or not isinstance(about["seconds"], int | float):
        raise ValueError("run.json holds no facts")
    return Kept(arrays=own, facts=about["facts"], key=path.name, seconds=about["seconds"])


def _keep_there(root: Path, name: Identity, compute: Callable[[], Outcome]) -> str:
    """In another process: compute, put it on disk, and send back only where."""
    Store(root)._keep(name, compute)
    return name.key


def _check_function(name: str, value: Any, wanted: str, hint: str | None = None) -> None:
    if not callable(value):
        raise InputError(message(f"`{name}` is {shown(value)}; wanted {wanted}.", hint))


def _check_takes_nothing(compute: Callable[..., Any]) -> None:
    """Refuse a function that is known to want arguments."""
    try:
        signature = inspect.signature(compute)
    except Exception:  # of some compiled functions nothing is known
        return
    try:
        signature.bind()
    except TypeError as error:
        problem = f"`compute` is {shown(compute)}, which takes {signature}; wanted a function without arguments."
        raise InputError(message(problem, "lambda: function(config)")) from error


def _short(config: Any) -> str:
    text = repr(config)
    return text if len(text) <= 200 else text[:197] + "..."
