"""Encoders whose labels are so near that conditions (2) and (3) of Proposition 1 hold, and gradient descent on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from attnlab.claims.encoder.batch import (
    LETTERS,
    Draws,
    Passed,
    evaluate,
    frobenius,
    jacobian,
    loss_gradient,
    opposed_pairs,
    spectral,
    stacked,
    starts,
)
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.encoder import Constants, rate_bound

N, T, D = 4, 2, 16
SHARE = 0.9  # of the distance to the labels that the conditions allow
ZERO = 1e-6  # of the first loss
# Law of the start and tau0.
STARTS = (("lecun", "sqrt"), ("ntk", "linear"), ("lecun", "linear"), ("he", "sqrt"), ("ntk", "sqrt"))
STEPS = ("1 / C", "1 / C as printed", "1 / largest eigenvalue of K")

# Plans ------------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """One run: an encoder, labels so near to its outputs that conditions (2) and (3) hold, and a step size."""

    name: str
    draws: Draws
    y: Array
    constants: Constants
    step: float
    kind: str = STEPS[0]
    residual: Array | None = None  # (1, d, m)


def constants_of(
    draws: Draws, y: Array, radius: float | Mapping[str, float] = 1.0, residual: Array | None = None
) -> Constants:
    """Of the first draw."""
    return Constants.of(
        draws.x[0],
        y,
        draws.weights(0),
        tau0=float(draws.tau0[0]),
        tau1=float(draws.tau1[0]),
        radius=radius,
        residual=None if residual is None else residual[0],
    )


def planned(
    name: str,
    draws: Draws,
    u: Array,
    radius: float | Mapping[str, float] = 1.0,
    residual: Array | None = None,
) -> Plan:
    """Labels f + e u with |u| = 1 and e 0.9 of what the conditions allow, and the step 1 / C."""
    outputs = evaluate(draws, residual).outputs[0]
    at_one = constants_of(draws, outputs + u, radius, residual)
    y = outputs + SHARE * min(at_one.condition_2.margin, at_one.condition_3.margin) * u
    constants = constants_of(draws, y, radius, residual)
    return Plan(name, draws, y, constants, constants.largest_step(), residual=residual)


def direction(seed: int) -> Array:
    """A random direction of the labels."""
    u = np.random.default_rng((seed, 3)).standard_normal(N)
    return u / np.linalg.norm(u)


def plans(m: int, laws: int, seed: int) -> list[Plan]:
    """Some starts, both poolings, all step sizes."""
    chosen = []
    for law, scaling in STARTS[:laws]:
        draws, _ = starts(law, scaling, N, T, D, m, seed=seed)
        for pool in ("sum", "mean"):
            pooled = draws if pool == "sum" else draws._replace(tau1=draws.tau1 / T)
            plan = planned(f"{law}, tau0 {scaling}, {pool}", pooled, direction(seed))
            J = stacked(jacobian(pooled))[0]
            steps = (plan.step, plan.constants.largest_step(corrected=False), 1.0 / np.linalg.norm(J, 2) ** 2)
            for kind, step in zip(STEPS, steps, strict=True):
                chosen.append(plan._replace(name=f"{plan.name}, {kind}", step=float(step), kind=kind))
    return chosen


def close_plans(residual: Array | None = None) -> list[Plan]:
    """One sequence of one token, weights of rank one along it: where little of the conditions is given away.

    |W_V| = 10. With small C_O or C_V condition (2) decides through w_O or W_V; with large C_P condition (3) does.
    Labels above and below the output.
    """
    token = np.array([[[[0.6, 0.8]]]])
    neurons = np.full((1, 4), 0.5)
    cases = {
        "(2) by w_O": (0.0, {"Q": 1.0, "K": 1.0, "V": 1.0, "O": 0.1}),
        "(2) by W_V": (1.0, {"Q": 1.0, "K": 1.0, "V": 0.01, "O": 0.1}),
        "(3)": (10.0, {"Q": 1.0, "K": 1.0, "V": 5.0, "O": 5.0}),
    }
    none = np.zeros((1, 4, 2))
    chosen = []
    for name, (size, radius) in cases.items():
        W_V = 10.0 * neurons[:, :, None] * token[0, 0]
        draws = Draws(token, none, none, W_V, size * neurons, np.full(1, 1e-3), np.ones(1))
        for sign in (1.0, -1.0):
            label = f"one token, {name} decides, {sign:+.0f}"
            chosen.append(planned(label, draws, np.array([sign]), radius, residual))
    return chosen


def opposed_plans(residual: Array | None = None) -> list[Plan]:
    """Two tokens 0.81 and -0.59 and one neuron, with tiny C_Q or C_K: (2) decides through the softmax."""
    chosen = []
    for through, partner in (("Q", "K"), ("K", "Q")):
        pair, _ = opposed_pairs(through, 6, logits=0.4)
        draws = Draws(*(array[4:5] for array in pair))  # an angle of 36 degrees
        weights = {through: getattr(draws, through), partner: 10.0 * getattr(draws, partner)}
        draws = draws._replace(**weights, V=10.0 * draws.V, O=0.1 * draws.O, tau0=0.1 * draws.tau0)
        radius = {"V": 1.0, "O": 0.01, through: 1e-4, partner: 1.0}
        for sign in (1.0, -1.0):
            name = f"two tokens, (2) by W_{through} decides, {sign:+.0f}"
            chosen.append(planned(name, draws, np.array([sign]), radius, residual))
    return chosen


def residual_plans(seed: int) -> list[list[Plan]]:
    """Starts of a residual encoder, by shape: m = d = 16 with the identity, m = 64 with a fixed projection; and two
    equal tokens with W_V = 0 and the identity, where the residual is all of F and meets its bound; and the plans of
    one sequence with a residual."""
    chosen = []
    for name, m in (("identity", D), ("projected", 64)):
        S = np.eye(D) if m == D else np.random.default_rng((seed, 9)).standard_normal((D, m)) / np.sqrt(D)
        group = []
        for law, scaling in (("lecun", "sqrt"), ("lecun", "linear"), ("ntk", "linear")):
            draws, _ = starts(law, scaling, N, T, D, m, seed=seed)
            group.append(planned(f"{name}, {law}, tau0 {scaling}", draws, direction(seed), residual=S[None]))
        chosen.append(group)
    tokens = np.broadcast_to([0.6, 0.8], (1, 1, 2, 2))
    none = np.zeros((1, 2, 2))
    alone = Draws(tokens, none, none, none, np.zeros((1, 2)), np.full(1, 1e-3), np.ones(1))
    radius = {"Q": 1.0, "K": 1.0, "V": 0.1, "O": 0.02}
    plan = planned("identity alone, (2) by w_O decides", alone, np.ones(1), radius, np.eye(2)[None])
    aligned = 0.5 * np.array([[[0.6], [0.8]]]) * np.ones((1, 1, 4))  # (1, 2, 4), along the token
    return [*chosen, [plan], close_plans(aligned), opposed_plans(np.ones((1, 1, 1)))]


def margins_written_out(plan: Plan) -> tuple[float, float]:
    """Left over right side of (2) and (3), from the tokens, weights and C_P alone."""
    draws, S = plan.draws, plan.residual
    n, t = draws.x.shape[1:3]
    at = evaluate(draws, S)
    return conditions_written_out(
        N=n,
        T=t,
        tau0=float(draws.tau0[0]),
        tau1=float(draws.tau1[0]),
        C_x=max(float(np.linalg.norm(x)) for x in draws.x[0]) / t**0.5,
        norms={p: float(spectral(getattr(draws, p))[0]) for p in LETTERS},
        radius=plan.constants.radius,
        alpha=float(np.linalg.svd(at.hidden[0], compute_uv=False)[n - 1]),
        distance=float(np.linalg.norm(at.outputs[0] - plan.y)),
        shortcut=0.0 if S is None else float(spectral(S)[0]),
    )


def conditions_written_out(
    *,
    N: int,
    T: int,
    tau0: float,
    tau1: float,
    C_x: float,
    norms: Mapping[str, float],
    radius: Mapping[str, float],
    alpha: float,
    distance: float,
    shortcut: float = 0.0,
) -> tuple[float, float]:
    """Left over right side of Eqs. (2) and (3) as printed in Proposition 1, apart from `attnlab.theory`.

    A residual adds `shortcut` C_x to the bound on every token, that is, shortcut / sqrt(T) to l_V where F is bounded.
    """
    bar = {p: norms[p] + radius[p] for p in LETTERS}
    rho = N**0.5 * T**1.5 * tau1 * C_x
    through = 2.0 * tau0 * C_x**2 * T * bar["V"] * bar["O"]
    entries = (
        (bar["V"] + shortcut / T**0.5) / radius["O"],
        bar["O"] / radius["V"],
        through * bar["K"] / radius["Q"],
        through * bar["Q"] / radius["K"],
    )
    z = bar["O"] ** 2 * (1.0 + 4.0 * tau0**2 * C_x**4 * T**2 * bar["V"] ** 2 * (bar["Q"] ** 2 + bar["K"] ** 2))
    second = alpha**2 / (8.0 * rho * max(entries) * distance)
    third = alpha**3 / (32.0 * rho**2 * z * distance / bar["O"])
    return second, third


# Runs -------------------------------------------------------------------------------------------------------------


class Runs(NamedTuple):
    """What gradient descent did in each of B runs."""

    plans: list[Plan]
    loss: Array  # (steps + 1, B)
    sigma: Array  # (records, B) least singular value of F_pre
    drift: Array  # |F_pre - F_pre at the start|_F
    moved: dict[str, Array]  # of each parameter, in the Frobenius norm


def joined(draws: list[Draws]) -> Draws:
    """Side by side."""
    return Draws(*(np.concatenate([getattr(one, name) for one in draws]) for name in Draws._fields))


def descend(
    first: Draws, y: Array, step: Array, steps: int, residual: Array | None = None
) -> Iterator[tuple[int, Draws, Passed, Array]]:
    """Gradient descent on half the sum of squares: step, weights, pass and errors f - y, from step 0 on."""
    now, at = first, evaluate(first, residual)
    for t in range(steps + 1):
        errors = at.outputs - y
        yield t, now, at, errors
        if t < steps:
            now = now.moved(loss_gradient(now, at, errors), -step)
            at = evaluate(now, residual)


def follow(made: list[Plan], steps: int) -> Runs:
    """All plans of one shape side by side; weights and F are looked at every ten steps."""
    first = joined([p.draws for p in made])
    residuals = [p.residual for p in made if p.residual is not None]
    residual = np.concatenate(residuals) if residuals else None
    hidden = evaluate(first, residual).hidden
    labels = np.array([p.y for p in made])
    sizes_of_steps = np.array([p.step for p in made])
    losses, sigmas, drifts = [], [], []
    moved: dict[str, list[Array]] = {p: [] for p in LETTERS}
    for t, now, at, errors in descend(first, labels, sizes_of_steps, steps, residual):
        losses.append(0.5 * np.sum(errors**2, axis=-1))
        if t % 10 == 0 or t == steps:
            sigmas.append(np.linalg.svd(at.hidden, compute_uv=False)[:, -1])
            drifts.append(frobenius(at.hidden - hidden))
            for p in LETTERS:
                moved[p].append(frobenius(getattr(now, p) - getattr(first, p)))
    away = {p: np.array(rows) for p, rows in moved.items()}
    return Runs(made, np.array(losses), np.array(sigmas), np.array(drifts), away)


@cache
def runs(m: int, steps: int, laws: int, seed: int) -> Runs:
    """Those of `plans`."""
    return follow(plans(m, laws, seed), steps)


def sizes(scale: Scale) -> list[tuple[int, int, int, int]]:
    """Width, steps, number of starts and seed of the runs."""
    return scale.pick([(64, 30, 4, 0)], [(512, 150, 4, 0)], [(2048, 300, 5, 0), (512, 300, 5, 1), (512, 300, 5, 2)])


@cache
def short_runs() -> tuple[Runs, ...]:
    """Runs of one sequence, as long as Eq. (4) needs for a millionth of the loss."""
    followed = []
    for made in (close_plans(), opposed_plans()):
        rates = [rate_bound(p.step, p.constants.alpha, 1) for p in made]
        followed.append(follow(made, int(np.ceil(np.log(ZERO) / np.log(np.max(rates))))))
    return tuple(followed)


@cache
def long_runs(steps: int) -> Runs:
    """LeCun starts with tau0 = 1/m, m = 64, where steps of 1 / C are the least short: followed far."""
    made = [p for p in plans(64, 3, 0) if p.name.startswith("lecun, tau0 linear") and p.kind != STEPS[2]]
    return follow(made, steps)
