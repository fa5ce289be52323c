"""Judge of brackets of margins: both bounds once more in extended precision, by nothing of the solver."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.calls import Call

Wide = np.longdouble
ROUNDING = 1e-13


def bracketed(call: Call, result: Any) -> str | None:
    """Of `bracket_margin`."""
    x, z, selected = call.args
    return _judged(result, x, z, selected, call.facts["mask"])


def all_bracketed(call: Call, results: Any) -> str | None:
    """Of `bracket_margins`."""
    x, z, selected = (np.asarray(given) for given in call.args)
    mask = call.facts["mask"]
    for place, one in enumerate(results):
        fault = _judged(one, x[place], z[place], selected[place], None if mask is None else mask[place])
        if fault is not None:
            return fault
    return None if len(results) == len(x) else f"{len(results)} brackets of {len(x)} problems"


def _judged(bracket: Any, x: np.ndarray, z: np.ndarray, selected: Any, mask: np.ndarray | None) -> str | None:
    selected = np.asarray(selected).astype(int)
    x, z = np.asarray(x).astype(Wide), np.asarray(z).astype(Wide)
    W, multipliers = bracket.W.astype(Wide), bracket.multipliers.astype(Wide)
    least, total, sizes = Wide(np.inf), np.zeros(W.shape, dtype=Wide), Wide(0)
    for at in np.ndindex(selected.shape):
        seen = np.ones(x.shape[1], dtype=bool) if mask is None else mask[at].copy()
        seen[selected[at]] = False
        p = x[at[0], selected[at]] - x[at[0], seen]
        least = min([least, *(p @ W @ z[at])])
        sizes = max([sizes, *(np.abs(p) @ np.abs(W) @ np.abs(z[at]))])
        total += np.outer(multipliers[(*at, seen)] @ p, z[at])
        if multipliers[(*at, ~seen)].any():
            return "a multiplier of a selected or hidden token is not zero"
    if np.isinf(least):
        return None if bracket.status.name == "UNCONSTRAINED" else "nothing to separate, and it is not said"
    if (multipliers < 0).any() or abs(multipliers.sum() - 1) > ROUNDING:
        return "multipliers are not shares"
    if abs(_norm(bracket.norm, W) - 1) > ROUNDING:
        return f"W is {float(_norm(bracket.norm, W))} long"
    if bracket.lower > least + ROUNDING * sizes:
        return f"lower is {bracket.lower}, W attains {least}"
    bound = _norm({"nuclear": "spectral", "spectral": "nuclear", "entrywise max": "l1"}.get(bracket.norm, ""), total)
    if bracket.upper < bound * (1 - ROUNDING):
        return f"upper is {bracket.upper}, the multipliers give {bound}"
    return None if bracket.lower <= bracket.upper else f"lower is {bracket.lower}, upper {bracket.upper}"


def _norm(name: str, M: np.ndarray) -> Any:
    largest = np.abs(M).max()
    if name == "entrywise max" or largest == 0:
        return largest
    if name == "l1":
        return np.abs(M).sum()
    if name in ("nuclear", "spectral"):
        singular = np.linalg.svd((M / largest).astype(float), compute_uv=False)
        return largest * Wide(singular.sum() if name == "nuclear" else singular[0])
    return largest * np.sqrt(((M / largest) ** 2).sum())
