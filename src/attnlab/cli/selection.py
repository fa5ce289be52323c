"""What `attnlab solve` is told in words: tokens per query, and masks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from attnlab.errors import InputError, message

_TOKEN = re.compile(r"-?[0-9]{1,30}")
_BETWEEN = re.compile(r"\s*,\s*|\s+")  # one comma, or blanks
_SELECTED_HINT = "--selected 0,2,1 or 0,2+3,1"
_MASK_HINT = "--mask causal, --mask mask.npy or --mask 1110,1011"


def token_sets(text: str) -> list[list[int]]:
    """0,2+3,1 as [[0], [2, 3], [1]].

    >>> token_sets("0, 2+3, 1")
    [[0], [2, 3], [1]]
    """
    sets = []
    for position, part in enumerate(_BETWEEN.split(text.strip())):
        names = part.split("+")
        if not all(_TOKEN.fullmatch(name) for name in names):
            what = "nothing" if not part else repr(part)
            raise InputError(
                message(
                    f"`--selected` is {_short(text)!r}, with {what} for query {position}; wanted whole numbers.",
                    _SELECTED_HINT,
                )
            )
        tokens = [int(name) for name in names]
        if len(set(tokens)) < len(tokens):
            raise InputError(
                message(f"`--selected` names a token twice for query {position}: {part!r}.", _SELECTED_HINT)
            )
        sets.append(tokens)
    return sets


def chosen_and_kept(sets: list[list[int]], tokens: Any) -> tuple[Any, Any]:
    """A token per query, and where queries keep several: which, as booleans (else None)."""
    import numpy as np

    shape = tokens.y.shape if len(sets) == tokens.y.size else (len(sets),)
    chosen = np.array([tokens_of[0] for tokens_of in sets]).reshape(shape)
    if all(len(tokens_of) == 1 for tokens_of in sets):
        return chosen, None
    named = [token for tokens_of in sets for token in tokens_of]
    if shape != tokens.y.shape or min(named) < 0 or max(named) >= tokens.T:
        raise InputError(
            message(
                f"`--selected` names {len(sets)} sets of tokens from {min(named)} to {max(named)}; "
                f"wanted {tokens.y.size}, of tokens 0 to {tokens.T - 1}."
            )
        )
    kept = np.zeros((len(sets), tokens.T), dtype=bool)
    for row, tokens_of in zip(kept, sets, strict=True):
        row[tokens_of] = True
    return chosen, kept.reshape(*tokens.y.shape, tokens.T)


def mask_array(text: str) -> Any:
    """A mask from an npy file, or from rows of 0 and 1."""
    import numpy as np

    from attnlab.data.files import read_npy

    if Path(text).suffix == ".npy":
        try:
            return read_npy(text, "an npy file of booleans")
        except InputError as error:
            problem = str(error).split("\n")[0]
            raise InputError(message(f"`--mask` names a file that cannot be read. {problem}", _MASK_HINT)) from error
    rows = _BETWEEN.split(text.strip())
    if any(not row or set(row) - set("01") for row in rows) or len({len(row) for row in rows}) > 1:
        problem = f"`--mask` is {_short(text)!r}; wanted rows of 0 and 1, all as long as a sequence."
        raise InputError(message(problem, _MASK_HINT))
    mask = np.array([[char == "1" for char in row] for row in rows])
    return mask[0] if len(mask) == 1 else mask


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."
