"""Are all numbers of a result finite, or is it said why not?"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np

# Statuses that promise an answer; any other one says why numbers are missing.
PROMISING = {
    "OPTIMAL",
    "UNCONSTRAINED",
    "FINISHED",
    "INACCURATE",
    "ALIGNED",
    "OUT_OF_TIME",
    "STALLED",
    "RUNNING",
    "UNMOVED",
}
# What a class documents of a field: (class, pattern of the field) -> what else than finite numbers it may hold.
DOCUMENTED = {
    ("MarginSolution", r"values|value_error"): "nan inf",  # NaN at selected and masked tokens; inf: no bound is known
    ("MarginSolution", r"margin"): "inf",  # unconstrained
    ("MarginSolution", r"gap|direction_error"): "inf",  # no bound is known
    ("HardMargin", r"upper|gap"): "inf",  # no bound was found
    ("Combination", r"gamma"): "inf",  # where W^mm alone does best
    ("Combination", r"correlation|misalignment|finite_correlation|margin_correlation"): "nan",  # of parts that are zero
    ("Combination", r"least_squares_correlation"): "nan",
    ("FactoredSolution", r"found(\[.*)?"): "inf",  # starts that found nothing
    ("Check", r"value|wanted|margin"): "inf",  # nothing is compared, or nothing separates
    ("Check", r"evidence\['values'\]"): "nan",  # laid out as the tokens, NaN elsewhere
    ("Check", r"evidence\['.*'\]"): "inf",  # as the margin
    ("BoundedTokens", r"margin"): "inf",  # finite data are bounded
    ("Dissimilarity", r"value|wanted|margin"): "inf",  # as the exponents
    ("LocallyOptimalSelections", r"margins"): "inf",  # of selections that ask for nothing
    ("Tokens", r"info.*"): "inf",  # bounds of noise that has none
    ("Trajectory", r"rule_state.*"): "inf",  # a rule without a cap has an infinite one
    ("LocalOptimality", r"lead|value|margin"): "inf",  # no support tokens
    ("RatesRow", r"misalignment"): "nan",  # of zero weights
    ("RateConstants", r"gaps"): "nan",  # where a query sees one token
    (
        "RateConstants",
        r"Lambda|kappa.*|upsilon.*|zeta.*|head_margin",
    ): "inf",  # nothing separates, equal scores, large gaps
    ("ModelReport", r"loss|log_loss|log_gradient_norm"): "inf",  # a loss beyond floats; the logarithm of zero
    ("Promise", r"heads"): "nan",  # gamma_star is not above zero
    ("InitializationReport", r"step"): "nan",  # no step was given
    ("Trajectory", r"metrics\['(log_.*|margin)'\]"): "inf nan",  # the logarithm of zero, or of a negative excess
    ("Trajectory", r"metrics\['(cosine|misalignment)_.*'\]"): "nan",  # of zero weights
    ("Trajectory", r"metrics\['(normalized_margin|relative_step)'\]"): "nan",  # over a norm of zero
    ("FlowTrajectory", r"metrics\['.*'\]"): "inf nan",  # likewise, and times that were not reached
    ("FlowTrajectory", r"exponent"): "inf nan",  # -inf where masked, NaN where the trial gave up
    ("RegularizationPath", r".*"): "inf nan",  # where nothing was found; `status` is one per radius, judged apart
    ("Part", r"worst|tightness"): "inf nan",  # its verdict says so
    ("Outcome", r"worst|tightness"): "inf nan",
    ("Dissimilarity", r"exponents.*"): "inf",  # no exponent is too large
}


def not_finite(value: Any, *, infinite: bool = False) -> str | None:
    """Where the first number is that is NaN (or infinite) without a word, if any is."""
    return next(_places(value, "result", _Owner("", ""), infinite, 0), None)


@dataclasses.dataclass(frozen=True)
class _Owner:
    """The nearest dataclass around a number, and the way to the number from there."""

    kind: str
    field: str

    def inside(self, key: str) -> _Owner:
        return _Owner(self.kind, self.field + key)

    def allows(self) -> str:
        for (kind, pattern), kinds in DOCUMENTED.items():
            if kind == self.kind and re.fullmatch(pattern, self.field):
                return kinds
        return ""


def _places(value: Any, path: str, owner: _Owner, infinite: bool, depth: int) -> Iterator[str]:
    if depth > 8 or value is None or isinstance(value, str | bytes | bool | int | Enum | type):
        return
    if isinstance(value, float | complex | np.generic | np.ndarray):
        yield from _in_array(value, path, owner, infinite)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            step = f"[{key!r}]"
            yield from _places(entry, path + step, owner.inside(step), infinite, depth + 1)
    elif isinstance(value, list | tuple):
        fields = getattr(value, "_fields", range(len(value)))
        for key, entry in zip(fields, value, strict=True):
            yield from _places(entry, f"{path}[{key}]", owner.inside(f"[{key}]"), infinite, depth + 1)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value) if not _explained(value) else ():
            mine = _Owner(type(value).__name__, field.name)
            entry = getattr(value, field.name)
            if field.name == "metrics" and isinstance(entry, Mapping):
                entry = {name: array for name, array in entry.items() if not _remarked(value, name)}
            yield from _places(entry, f"{path}.{field.name}", mine, infinite, depth + 1)
    elif type(value).__name__ == "MarginSolutions":
        yield from _places(list(value), path, owner, infinite, depth + 1)
    elif hasattr(value, "__array__"):
        yield from _in_array(np.asarray(value), path, owner, infinite)


def _in_array(value: Any, path: str, owner: _Owner, infinite: bool) -> Iterator[str]:
    array = np.asarray(value)
    if array.dtype == object:
        yield from _places(list(array.reshape(-1)), path, owner, infinite, 1)
    if array.dtype.kind not in "fc":
        return
    allowed = owner.allows()
    bad = np.zeros(array.shape, dtype=bool)
    if "nan" not in allowed:
        bad |= np.isnan(array)
    if "inf" not in allowed and not infinite:
        bad |= np.isinf(array)
    if bad.any():
        yield f"{path} holds {array[bad].reshape(-1)[0]}"


def _remarked(run: Any, metric: str) -> bool:
    """Do the remarks of a run say that this metric is not finite?"""
    return any(remark.startswith(f"`{metric}` is not finite") for remark in getattr(run, "remarks", ()))


def _explained(value: Any) -> bool:
    """Does the result itself say why numbers are missing? A status decides; a reason, where there is no status."""
    diverged = getattr(getattr(value, "run", None), "diverged", None)
    if diverged is not None and np.any(diverged):
        return True
    status = getattr(value, "status", None)
    if isinstance(status, Enum):
        return status.name not in PROMISING
    return bool(getattr(value, "reason", None))
