"""The name of a run: a hash of everything that decides its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnlab.data.fingerprint import fingerprint
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message

# Raise it when the meaning of stored files changes: older runs are then not found any more.
FORMAT = 2
FREE = "stop_seconds"  # the one setting of `descend` that decides when it pauses, not what it computes


@dataclass(frozen=True)
class Identity:
    """What a run is: its kind and its configuration as JSON."""

    kind: str
    config: Any

    @property
    def key(self) -> str:
        """32 hexadecimal digits; the same in every process and on every machine."""
        text = json.dumps([FORMAT, self.kind, self.config], sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def identity(kind: str, config: Any) -> Identity:
    """The identity of a computation of some kind with `config`: numbers, text, arrays, functions, dataclasses.

    >>> identity("demo", {"seed": 0}).key == identity("demo", {"seed": 1}).key
    False
    """
    if not isinstance(kind, str) or not kind:
        raise InputError(message(f"`kind` is {kind!r}; wanted a name for this kind of computation.", "kind='svm-1'"))
    return Identity(kind, fingerprint(config))


def descent_identity(tokens: Tokens, rule: Any, options: Mapping[str, Any]) -> Identity:
    """The identity of `descend(tokens, rule, **options)`; `stop_seconds` has no part in it."""
    from attnlab.train import run_config

    config = run_config(tokens, rule, **options)
    return Identity("descend", {k: v for k, v in config.items() if k != FREE})
