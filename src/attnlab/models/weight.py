"""Weights of a model: their shapes, and the laws of their start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from attnlab.checks import flag, number, one_of, shown, whole, whole_array
from attnlab.errors import InputError, message

Weights: TypeAlias = dict[str, np.ndarray]
Law = Literal["lecun", "he", "ntk", "gaussian", "uniform", "zeros", "ones"]
LAWS: tuple[Law, ...] = ("lecun", "he", "ntk", "gaussian", "uniform", "zeros", "ones")
COPIES = 6  # of the weights that a run holds: start, weights, gradient, update, state of the rule
MOST_SCALE = 1e90  # of random weights, whose squares are summed


@dataclass(frozen=True)
class Weight:
    """One array of weights: its shape, the law of its start, and whether it is trained. Made by `al.weights`."""

    shape: tuple[int, ...]
    law: Law = "lecun"
    scale: float = 1.0
    trained: bool = True

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Random entries by the law, times the scale."""
        columns = self.shape[-1] if self.shape else 1
        if self.law == "zeros":
            return np.zeros(self.shape)
        if self.law == "ones":
            return np.full(self.shape, self.scale)
        if self.law == "uniform":
            return self.scale * rng.uniform(-1.0, 1.0, self.shape) / np.sqrt(columns)
        variance = {"lecun": 1.0 / columns, "he": 2.0 / columns}.get(self.law, 1.0)
        return self.scale * np.sqrt(variance) * rng.standard_normal(self.shape)


def weights(shape: tuple[int, ...], law: Law = "lecun", *, scale: float = 1.0, trained: bool = True) -> Weight:
    """One array of weights of a model.

    Args:
        shape: of the array.
        law: of its entries at the start: "lecun" and "he" are Gaussian with variance 1 and 2 over the number of
            columns, "gaussian" and "ntk" with variance 1; "uniform" lies between -1 and 1 over the root of the number
            of columns; "zeros" and "ones".
        scale: what they are multiplied by.
        trained: False keeps them as they are drawn.

    >>> weights((3, 4), "he").draw(np.random.default_rng(0)).shape
    (3, 4)
    """
    none = isinstance(shape, tuple | list) and not shape  # of axes: one number
    sizes = np.zeros(0, dtype=np.intp) if none else whole_array("shape", shape, "the length of each axis")
    if sizes.ndim > 1:
        raise InputError(message(f"`shape` is {shown(shape)}; wanted the length of each axis.", "(d, d)"))
    one_of("law", law, LAWS)
    return Weight(
        shape=tuple(whole("shape", size) for size in sizes.reshape(-1)),
        law=law,
        scale=number("scale", scale, most=MOST_SCALE),
        trained=flag("trained", trained),
    )


def are_weights(given: object) -> bool:
    """Is it a dict of weights by name?"""
    if not isinstance(given, Mapping):
        return False
    return all(isinstance(name, str) and isinstance(one, Weight) for name, one in given.items())


def stacked(drawn: list[Weights], trials: int | None) -> Weights:
    """Weights of all trials, with a trial axis if there are trials."""
    if trials is None:
        return drawn[0]
    return {name: np.stack([one[name] for one in drawn]) for name in drawn[0]}
