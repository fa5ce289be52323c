"""Step rules as a user gives them: by name, checked; and the usual ones where none are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import optax

from attnlab.checks import shown
from attnlab.errors import InputError, message
from attnlab.optim import gd, ngd, ngd_momentum, polyak
from attnlab.theory.rates.constants import RateConstants

Rule = optax.GradientTransformation
Rules = Sequence[Rule] | Mapping[str, Rule]

# Steps of normalized GD to go as far as |W_mm|.
PACE = 300
JOINT = ("joint_decay", "joint_separate", "joint_total")


def named_rules(rules: Rules | None) -> dict[str, Rule]:
    """Rules by name; those of a list are named as they print, shortly, and numbered where that is not enough.

    >>> import attnlab as al
    >>> list(named_rules([al.gd(0.5), al.ngd(0.1, cap=100)]))
    ['gd(0.5)', 'ngd(0.1, cap=100)']
    """
    if rules is None:
        return {}
    if isinstance(rules, Mapping):
        named = {str(name): rule for name, rule in rules.items()}
    elif hasattr(rules, "update") and hasattr(rules, "init"):
        raise InputError(message("`rules` is one rule; wanted a list of them, or name -> rule.", "rules=[al.ngd(0.1)]"))
    elif not isinstance(rules, Sequence) or isinstance(rules, str):
        raise InputError(message(f"`rules` is {shown(rules)}; wanted a list of rules.", "rules=[al.ngd(0.1)]"))
    else:
        named = _numbered(rules)
    if not named:
        raise InputError(message("`rules` is empty; wanted at least one rule.", "rules=None takes the usual ones"))
    for name, rule in named.items():
        if not (hasattr(rule, "init") and hasattr(rule, "update")):
            raise InputError(message(f"`rules` has {shown(rule)} for {name!r}; wanted a step rule.", "al.ngd(0.1)"))
    return named


def any_joint(named: Mapping[str, Rule]) -> bool:
    """Is one of the rules for head and attention together?"""
    return any(getattr(rule, "name", None) in JOINT for rule in named.values())


def usual_rules(constants: Sequence[RateConstants]) -> dict[str, Rule]:
    """GD, normalized GD with and without momentum and with a long step, and Polyak; steps follow from the data."""
    if not constants:
        problem = "`rules` is None, but there are no usual ones for these data and what is trained."
        raise InputError(message(problem, "rules=[al.ngd(0.1)]"))
    room = min(float(np.log(2 * c.T - 1)) for c in constants)
    slow = min(0.1 * room / (c.B**4 * c.zeta) for c in constants)
    step = min(min(c.Lambda / PACE, room / (2 * c.B**2)) for c in constants)
    rules = (gd(slow), ngd(step), ngd_momentum(step), ngd(10 * step), polyak())
    return {_short(rule): rule for rule in rules}


def _numbered(rules: Sequence[Rule]) -> dict[str, Rule]:
    """Each by its short name, with its place in the list where two have the same."""
    short = [_short(rule) for rule in rules]
    named = {}
    for place, (text, rule) in enumerate(zip(short, rules, strict=True)):
        name = text if short.count(text) == 1 else f"{text} #{place}"
        named[name] = rule
    return named


def _short(rule: Rule) -> str:
    """`ngd(0.025, cap=100)`: the step, and a cap if there is one."""
    settings = getattr(rule, "settings", None)
    if not isinstance(settings, Mapping):
        return type(rule).__name__
    parts = [f"{settings['step']:g}"] if "step" in settings else [f"constant={settings.get('constant', 0):g}"]
    if np.isfinite(settings.get("cap", np.inf)):
        parts.append(f"cap={settings['cap']:g}")
    if settings.get("form", "A") != "A":
        parts.append(f"form={settings['form']}")
    return f"{getattr(rule, 'name', '')}({', '.join(parts)})"
