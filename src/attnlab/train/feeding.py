"""How a run is fed: all examples at every step or batches of them, so many at a time, in float64 or float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from attnlab.checks import one_of, shown, whole
from attnlab.data.fingerprint import fingerprint
from attnlab.errors import InputError, message
from attnlab.models.model import Data, Model
from attnlab.models.scaled import Tree
from attnlab.train.batches import Batches
from attnlab.train.schedule import MOST_STEPS

Precision = Literal["float64", "float32"]
USUAL_STEPS = 2000


@dataclass(frozen=True)
class Feeding:
    """What `batch`, `epochs`, `portion` and `precision` of `descend` say.

    Attributes:
        batch: examples that a step sees; None for all.
        epochs: how often every example is seen, in place of `steps`.
        portion: examples whose gradient and outputs are computed at a time, in runs by batches; None for what the model
            says, and for a whole batch.
        precision: of weights, data and state of the rule.
    """

    batch: int | None = None
    epochs: int | None = None
    portion: int | None = None
    precision: Precision = "float64"

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "portion"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(name, value))
        one_of("precision", self.precision, ("float64", "float32"))
        for name in ("epochs", "portion"):
            if self.batch is None and getattr(self, name) is not None:
                raise InputError(message(f"`{name}` is for runs by batches.", "batch=100"))

    def batches(self, data: Data, model: Model) -> Batches | None:
        """How the data are cut; None for steps that see all of them."""
        if self.precision == "float32" and not model.single:
            problem = f"`precision` is 'float32'; {model!r} is trained in float64, where theory judges it."
            raise InputError(message(problem, "precision='float64'"))
        if self.batch is None:
            if model.draws:
                hint = f"batch={data.n} sees all examples at every step"
                raise InputError(message(f"{model!r} draws random numbers in training, which needs `batch`.", hint))
            return None
        if self.batch > data.n:
            raise InputError(message(f"`batch` is {self.batch}; there are {data.n} examples.", f"at most {data.n}"))
        if self.portion is not None and model.portion is None:
            raise InputError(message(f"`portion` is not for {model!r}, which is evaluated as a whole."))
        within = self.portion is not None and self.portion < self.batch
        return Batches(data.n, self.batch, self.portion if within else None, model.draws)

    def portion_of(self, model: Model, batches: Batches | None) -> int | None:
        """Examples that records evaluate at a time; None for all at once."""
        if batches is None:
            return None
        return model.portion if self.portion is None else self.portion

    def steps(self, steps: int | None, data: Data) -> int:
        """The last step: as given, or after so many epochs."""
        if self.epochs is None:
            return whole("steps", USUAL_STEPS if steps is None else steps, 0, MOST_STEPS)
        if steps is not None:
            raise InputError(message(f"`steps` is {shown(steps)} and `epochs` {self.epochs}; wanted one of them."))
        assert self.batch is not None
        return whole("epochs", self.epochs * -(-data.n // self.batch), 0, MOST_STEPS)

    def typed(self, tree: Tree) -> Tree:
        """Real arrays in the precision of the run."""
        return tree if self.precision == "float64" else jax.tree.map(_in_single, tree)

    def on_device(self, tree: Tree, batches: Batches | None) -> Tree:
        """The same, and where steps see few of many examples handed to JAX once and not at every call."""
        typed = self.typed(tree)
        return typed if batches is None else jax.tree.map(jnp.asarray, typed)

    def about(self) -> dict[str, Any]:
        """What differs from usual, for the record of a run."""
        given = {"batch": self.batch, "portion": self.portion, "precision": self.precision}
        usual = {"batch": None, "portion": None, "precision": "float64"}
        return fingerprint({name: value for name, value in given.items() if value != usual[name]})


WHOLE = Feeding()


def _in_single(array: Any) -> Any:
    values = np.asarray(array)
    if values.dtype != np.float64:
        return array
    if np.abs(values, where=np.isfinite(values), out=np.zeros_like(values)).max(initial=0.0) > np.finfo("float32").max:
        raise InputError(message("`precision` is 'float32'; the data or weights hold numbers beyond 3.4e38."))
    return values.astype(np.float32)
