"""Tables of pandas, which is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from attnlab.errors import InputError, message


def data_frame(content: Any, instead: str) -> Any:
    """A pandas DataFrame of columns by name, or of rows.

    Args:
        content: a dict of columns, or a list of dicts.
        instead: where the same numbers are without pandas.
    """
    try:
        pandas = import_module("pandas")
    except ImportError as error:
        problem = "A data frame needs pandas, which is not installed."
        raise InputError(message(problem, f"pip install 'attnlab[study]'; {instead}")) from error
    return pandas.DataFrame(content)
