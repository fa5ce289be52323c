"""What is measured at a recorded step."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from attnlab.errors import InputError, message
from attnlab.models.functions import UserFunctions as UserFunctions, UserMetrics as UserMetrics, call_metrics
from attnlab.models.problem import Objective, Seen
from attnlab.models.scaled import scaled, total_log_norm

OF_STEPS = ("step_length", "log_step_size", "relative_step")


def measure(objective: Objective, seen: Seen, user: UserFunctions, tester: Objective | None = None) -> dict[str, Array]:
    """All metrics of one trial: what every model has, what this one records, and the user's own.

    `tester` is the objective of the test examples, if there are any.

    | name | meaning |
    |---|---|
    | `loss`, `log_loss` | the objective, and its logarithm (also where it underflows) |
    | `log_gradient_norm` | over all parameters |
    | `step_length` | length of the next step |
    | `test_loss`, `test_accuracy` | on the test examples, if there are any; accuracy of losses that know classes |

    In a run by batches the next step is that on the next batch; losses are of all examples, as ever. There are also
    `last_gradient_norm` and `last_step_length`, of the step before the record, and `capped_share` of rules with a cap:
    the share of all steps so far at which the cap decided. Networks whose examples are evaluated in portions have these
    only, and nothing of the next step.

    The rest is listed at `records` of each model: `attnlab.models.layer.Layer` for one attention layer.
    """
    metrics = {
        "loss": objective.value(seen.problem, seen.forward),
        "log_loss": objective.log_value(seen.problem, seen.forward),
        **_of_next_step(seen),
        **objective.records(seen),
    }
    if tester is not None:
        weights = objective.weights(seen.params, seen.problem)
        metrics |= tester.test_records(weights, seen.test, seen.portion)
    if not user:
        return metrics
    taken = [name for name, _ in user if name in metrics]
    if taken:
        raise InputError(message(f"`metrics` names {taken[0]!r}, which is recorded already.", "choose another name"))
    return metrics | call_metrics(user, objective.view(seen))


def _of_next_step(seen: Seen) -> dict[str, Array]:
    if seen.portion is not None:
        return {}
    return {
        "log_gradient_norm": total_log_norm(seen.gradient.mantissa, seen.gradient.log_scale),
        "step_length": jnp.exp(total_log_norm(*scaled(seen.update, None))),
    }
