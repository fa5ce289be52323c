"""Whose a temporary name is: the process that writes under it, so that what a killed process left can be cleared."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import uuid
from contextlib import suppress
from pathlib import Path

DAY = 86400.0
PATTERN = r"(?P<place>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}"
_OWNER = re.compile(PATTERN)


def owned_name() -> str:
    """A fresh name that tells this process: place, number, start, chance."""
    pid = os.getpid()
    return f"{place()}-{pid}-{start(pid)}-{uuid.uuid4().hex[:8]}"


def abandoned(name: str, age: float) -> bool:
    """Has the process that made this name gone? Of other machines we know only that a day is long enough.

    Args:
        name: made by `owned_name`.
        age: seconds since what has this name was changed; negative where a clock was set back.
    """
    owner = _OWNER.fullmatch(name)
    if owner is None:
        return False
    if owner["place"] == place():
        return start(int(owner["pid"])) != int(owner["start"])
    return age > DAY


def place() -> str:
    """This machine and this space of process numbers (containers may share a host name)."""
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return hashlib.blake2b(f"{socket.gethostname()} {space}".encode(), digest_size=4).hexdigest()


def start(pid: int) -> int | None:
    """When a process started, in ticks; 0 if that cannot be known, None if there is no such process."""
    try:
        # The name of the program, in brackets, may hold anything.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(rest[18])
    except (OSError, ValueError):
        pass
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:
        pass
    return 0
