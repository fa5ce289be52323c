"""Judges of runs: what is called finished has moved, and its numbers follow from its weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.calls import Call


def descended(call: Call, run: Any) -> str | None:
    """Of `descend`: a finished run has finite weights, and moved if it could."""
    if run.status.name != "FINISHED":
        return None
    if not all(np.isfinite(w).all() for w in run.weights.values()):
        return "finished with weights that are not finite"
    if run.last_step != call.kwargs["steps"]:
        return f"finished at step {run.last_step}"
    moved = any((run.weights[name] != run.initial[name]).any() for name in run.weights)
    if not moved and run.last_step > 0 and _pulled(call, run):
        return "finished, and nothing moved although the gradient is not zero"
    return None


def _pulled(call: Call, run: Any) -> bool:
    """Is the gradient at the start not zero, and is the step large enough to be felt?"""
    from attnlab import models

    tokens, rule = call.args
    name = getattr(rule, "name", "")
    if name != "ngd" or tokens.trials is not None:
        return False
    options = {key: call.kwargs[key] for key in ("loss", "head") if call.kwargs.get(key) is not None}
    mantissa, _ = models.gradient(tokens, run.initial, **options)
    largest = max(float(np.abs(w).max(initial=0.0)) for w in run.initial.values())
    felt = rule.settings["step"] > 1e-12 * largest
    return felt and any(np.abs(part).max(initial=0.0) > 0 for part in mantissa.values())


def exceeded(call: Call, found: Any) -> str | None:
    """Of `excess_loss`: NaN is the logarithm of a negative excess, and of nothing else."""
    logarithm = bool(call.kwargs["log"])
    bad = np.isposinf(found) if logarithm else ~np.isfinite(found)
    return "not finite" if np.any(bad) else None


def flowed(call: Call, run: Any) -> str | None:
    """Of `flow`: what is called finished reached its time with finite weights."""
    if run.status.name == "INCOMPLETE":
        return None if run.failures else "not finished, and no failure is named"
    moved = any((run.weights[name] != run.initial[name]).any() for name in run.weights)
    if run.status.name == "UNMOVED" and moved and run.trials is None:
        return "said not to have moved, but did"
    if not all(np.isfinite(w).all() for w in run.weights.values()):
        return "finished with weights that are not finite"
    if not (np.asarray(run.reached) >= call.kwargs["time"]).all():
        return "finished before its time"
    if np.isnan(run.attention).any() or (np.abs(run.attention.sum(-1) - 1) > 1e-9).any():
        return "attention does not add up to 1"
    return None


def walked(call: Call, path: Any) -> str | None:
    """Of `regularization_path`: what is called solved is finite and within its ball."""
    solved = path.solved
    if not np.isfinite(path.W[solved]).all() or not np.isfinite(path.value[solved]).all():
        return "solved without finite weights or value"
    if path.norm == "frobenius":
        with np.errstate(over="ignore"):
            scale = np.abs(path.W[solved]).max((-2, -1), initial=1e-300)
            sizes = np.linalg.norm(path.W[solved] / scale[..., None, None], axis=(-2, -1))
        if (sizes > (1 + 1e-6) * path.radii[solved] / scale).any():
            return "solved outside of the ball"
    return None
