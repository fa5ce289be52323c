"""Parametrizations whose cases differ in what is compiled, not in what could go wrong: a few always run."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_few(cases: Iterable[Any], count: int) -> list[Any]:
    """The cases, all but the first few of them marked slow. A case of several arguments is a plain tuple."""
    kept = []
    for number, case in enumerate(cases):
        values = case if type(case) is tuple else (case,)  # step rules are tuples with names
        kept.append(case if number < count else pytest.param(*values, marks=pytest.mark.slow))
    return kept
