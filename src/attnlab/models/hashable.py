"""Functions by which compiled programs are kept must be told from each other."""

from __future__ import annotations

from attnlab.checks import shown
from attnlab.errors import InputError, message


def check_hashable(name: str, function: object) -> None:
    """Refuse a function that cannot be told from others, as compiled programs are kept by their functions."""
    try:
        hash(function)
    except TypeError as error:
        raise InputError(
            message(f"`{name}` is {shown(function)}, which has no hash.", "a plain function, or a frozen dataclass")
        ) from error
