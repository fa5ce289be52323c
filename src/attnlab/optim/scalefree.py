"""Optax rules whose steps do not depend on the size of the gradient, kept going where the gradient underflows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optax

from attnlab.checks import shown
from attnlab.errors import InputError, message
from attnlab.optim.rule import StepRule, Tree, common_scale, scaled


@dataclass(frozen=True)
class _FedMantissas:
    """The update of another rule, given the gradient divided by its largest entry; equal for equal rules."""

    update: Any
    extra: bool  # does it take more than gradients, state and parameters?

    def __call__(
        self, updates: Tree, state: Tree, params: Tree | None = None, *, log_scale: Tree | None = None, **more: Any
    ) -> tuple[Tree, Tree]:
        mantissa, _ = common_scale(*scaled(updates, log_scale))
        given = {"value": more["value"]} if self.extra and "value" in more else {}
        return self.update(mantissa, state, params, **given)


class ScaleFree(StepRule):
    """What `scale_free` makes."""

    def __repr__(self) -> str:
        return f"scale_free({self.settings['rule']['update'].__qualname__})"


def scale_free(rule: optax.GradientTransformation) -> StepRule:
    """An optax rule whose steps stay the same when the gradient is multiplied by a number, fed the gradient so scaled
    that its largest entry is 1.

    A plain optax rule is given plain gradients, which are zero once attention has saturated to a margin of about 700;
    a rule by signs or by normalized gradients then stands still. Wrapped, it goes on.

    Meant for rules without memory, `optax.sign_sgd(step)` or
    `optax.chain(optax.normalize_by_update_norm(eps=0.0), optax.scale(-step))`: they take the same steps as before, and
    more of them. A rule with momentum averages the scaled gradients, which is another rule. A rule whose steps do
    depend on the size of the gradient (`optax.sgd`, `optax.adam`) becomes another rule too.

    >>> import optax, attnlab as al
    >>> run = al.descend(al.data.two_tokens(), al.optim.scale_free(optax.sign_sgd(1.0)), steps=3000, init="zeros")
    >>> float(run.W[0, 0]), run.status.name
    (3000.0, 'FINISHED')
    """
    if isinstance(rule, StepRule):
        raise InputError(message(f"`rule` is {rule!r}, a rule of attnlab, which takes gradients of any size as it is."))
    if isinstance(rule, type) or not (hasattr(rule, "init") and hasattr(rule, "update")):
        raise InputError(message(f"`rule` is {shown(rule)}; wanted an optax optimizer.", "optax.sign_sgd(0.1)"))
    update = _FedMantissas(rule.update, isinstance(rule, optax.GradientTransformationExtraArgs))
    return ScaleFree("scale_free", rule.init, update, {"rule": {"init": rule.init, "update": rule.update}})
