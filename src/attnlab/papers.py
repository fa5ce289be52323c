"""The papers, by the prefix of their claims and figures; `contents.py` of each package says what there is of them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

TITLES = {
    "svm": "Transformers as Support Vector Machines",
    "rates": "Implicit Bias and Fast Convergence Rates for Self-attention",
    "multihead": "On the Optimization and Generalization of Multi-head Attention",
    "encoder": "On the Convergence of Encoder-only Shallow Transformers",
}


def parts(room: str, paper: str) -> list[ModuleType]:
    """The modules of "claims" or "figures" that a paper has, in order; loaded now, as they take a while."""
    package = f"attnlab.{room}.{paper}"
    return [import_module(f"{package}.{part}") for part in import_module(f"{package}.contents").PARTS]
