"""When a run reached an alignment, and how often the cap of its rule bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
from numpy.typing import ArrayLike, NDArray

from attnlab.checks import finite_array, number, real_array
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.train.trajectory import Trajectory


def time_to(steps: ArrayLike, misalignment: ArrayLike, level: float) -> Array:
    """The first step at which the cosine is at least `level`, interpolated between records; inf where it never is.

    Between records log(misalignment) is taken as linear in log t.

    Args:
        steps: recorded steps, (R,).
        misalignment: 1 - cosine, (R,) or (trials, R).
        level: the cosine to reach.

    Returns:
        A time for each trial.

    >>> time_to([1, 10, 100], [1.0, 0.1, 0.01], 0.98).round(9).tolist()
    [50.0]
    """
    t = finite_array("steps", steps)
    distance = np.atleast_2d(real_array("misalignment", misalignment))  # (trials, R)
    if t.ndim != 1 or not t.size or distance.shape[1:] != t.shape:
        given = f"`misalignment` has shape {distance.shape} and `steps` {t.shape}"
        raise InputError(message(f"{given}; wanted (R,) or (trials, R), and (R,)."))
    limit = 1.0 - number("level", level, above=-1, below=1)
    there = distance <= limit
    # The first record that is there, and the one before it; of each trial.
    after = there.argmax(-1)
    before = np.maximum(after - 1, 0)
    recorded = np.where(there.any(-1), t[after], np.inf)
    trial = np.arange(len(distance))
    m0, m1 = distance[trial, before], distance[trial, after]
    t0, t1 = t[before], t[after]
    inside = there.any(-1) & (after > 0) & (t0 > 0) & (m0 > limit) & (m1 > 0)
    with np.errstate(all="ignore"):
        share = (np.log(m0) - np.log(limit)) / (np.log(m0) - np.log(m1))
        between = np.exp(np.log(t0) + share * (np.log(t1) - np.log(t0)))
    return np.where(inside, between, recorded)


def cap_binds(rule: optax.GradientTransformation, run: Trajectory) -> NDArray[np.bool_] | None:
    """At which records the next step is one that the cap of the rule shortens or just reaches, (trials, R).

    None where the records do not tell: a foreign rule, or one norm for each of several parameters.
    """
    settings: dict[str, Any] | None = getattr(rule, "settings", None)
    if settings is None:
        return None
    log_norm = np.atleast_2d(run.metrics["log_gradient_norm"])  # (trials, R)
    cap = settings.get("cap", np.inf)
    if not np.isfinite(cap):
        return np.zeros(log_norm.shape, dtype=bool)
    if "constant" in settings:
        log_step = np.log(settings["constant"]) + _log_excess(settings["floor"], run) - 2.0 * log_norm
    elif "u" not in run.weights or _one_norm(rule, settings):
        log_step = np.log(settings["step"]) - log_norm
    else:
        return None
    return log_step >= np.log(cap)


def _one_norm(rule: optax.GradientTransformation, settings: dict[str, Any]) -> bool:
    """Does the rule divide all parameters by one norm, that of all of them together?"""
    name: str = getattr(rule, "name", "")
    return "total" in (settings.get("norms"), name.removeprefix("joint_"))


def capped_share(rule: optax.GradientTransformation, run: Trajectory) -> float | None:
    """The share of the steps of a run at which the cap of the rule bound, the mean over trials.

    Read at the records, each of which stands for the steps up to the next; None where they do not tell.
    """
    bound = cap_binds(rule, run)
    lengths = np.diff(run.steps)
    if bound is None or not len(lengths):
        return None
    return float((bound[:, :-1] * lengths).sum(-1).mean() / lengths.sum())


def _log_excess(floor: float | str, run: Trajectory) -> Array:
    """log(loss - floor) at the records, (trials, R); -inf where the loss is not above it."""
    if isinstance(floor, str):
        return np.atleast_2d(run.metrics["log_loss" if "u" in run.weights else "log_excess_loss"])
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(np.atleast_2d(run.metrics["loss"]) - floor, 0.0))
