"""Training with a nonlinear head and random labels, where some sequences keep several tokens (Figures 8 and 11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.claims.stages import Stages
from attnlab.data.tokens import Tokens
from attnlab.figures.svm.kept import INFEASIBLE, KEPT, RETAINED, UNFINISHED, apart, predict, sort_out, tally
from attnlab.models import Mlp, RoundedMlp, attention
from attnlab.optim import ngd
from attnlab.train import descend, flow

Tell = Callable[[int, int, str], None]

SEQUENCES, LENGTH = 3, 4
SEED = 800
STEPS, EVERY, STEP_SIZE = 2000, 100, 0.1
MASKED = 1e-6
TIME, MOST_STEPS = 1e14, 6000
# Widths over which the flow rounds the kink of the ReLU: the one shown, and a wider one to compare with.
WIDTHS = (1e-4, 1e-3)
# A rounded unit counts as off this many widths below zero, where its slope is under one percent.
OFF = 5.0


class Attempts(NamedTuple):
    """Data sets with a head V and start W(0) of their own."""

    tokens: Tokens
    V: np.ndarray
    start: np.ndarray

    def pick(self, where: Any) -> Attempts:
        """Some of them."""
        t = self.tokens
        return Attempts(Tokens(x=t.x[where], z=t.z[where], y=t.y[where]), self.V[where], self.start[where])


def draw(d: int, part: int, size: int) -> Attempts:
    """Tokens and queries on the unit sphere, random labels, V Gaussian of norm 1. Draw order: x, y, z, V, W(0)."""
    rng = np.random.default_rng([SEED, d, part])

    def unit(*shape: int) -> np.ndarray:
        gaussian = rng.standard_normal(shape)
        return gaussian / np.linalg.norm(gaussian, axis=-1, keepdims=True)

    x = unit(size, SEQUENCES, LENGTH, d)
    y = rng.choice([-1.0, 1.0], (size, SEQUENCES))
    z = unit(size, SEQUENCES, d)
    V = unit(size, d * d).reshape(size, d, d)
    return Attempts(Tokens(x=x, z=z, y=y), V, rng.uniform(-1.0, 1.0, (size, d, d)) / np.sqrt(d))


def _weights(view: Any) -> Any:
    return view.W


def steps_taken() -> np.ndarray:
    """The recorded iterations."""
    return np.arange(0, STEPS + 1, EVERY)


def train(attempts: Attempts) -> np.ndarray:
    """Normalized GD as published; the weights at every recorded iteration, (trials, records, d, d)."""
    run = descend(
        attempts.tokens, ngd(STEP_SIZE, guard="paper"), steps=STEPS, head=Mlp(attempts.V), init=attempts.start,
        record=steps_taken().tolist(), metrics={"path": _weights},
    )  # fmt: skip
    return run.metrics["path"]


@dataclass(frozen=True)
class Search:
    """How much work to do.

    Attributes:
        dims: the dimensions d.
        wanted: retained instances for each d.
        most: attempts for each d at most.
        together: data sets drawn at a time.
        flow_dims, flows: dimensions and number of attempts that are also followed by gradient flow.
    """

    dims: tuple[int, ...]
    wanted: int
    most: int
    together: int
    flow_dims: tuple[int, ...]
    flows: int

    @classmethod
    def at(cls, scale: Scale) -> Search:
        """500 retained instances for each d are the paper's."""
        return scale.pick(
            cls((4,), 5, 48, 160, (4,), 2),
            cls((4, 6, 8, 10), 40, 420, 250, (4, 10), 3),
            cls((4, 6, 8, 10), 500, 60_000, 1200, (4, 6, 8, 10), 15),
        )


_searched: dict[Scale, tuple[dict[str, np.ndarray], dict[str, Any]]] = {}


def found(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Retained runs of normalized GD for every d, with what theory predicts for them; computed once in a process."""
    if scale not in _searched:
        _searched[scale] = _search(Search.at(scale), tell)
    arrays, facts = _searched[scale]
    return dict(arrays), dict(facts)


def _search(search: Search, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    keep = Stages().keep
    arrays: dict[str, np.ndarray] = {"dims": np.array(search.dims), "steps": steps_taken()}
    facts: dict[str, Any] = {
        "setting": f"n = {SEQUENCES}, T = {LENGTH}, head 1^T ReLU(V^T o) with |V|_F = 1, logistic loss, labels +-1 "
        f"with a -1 among them, normalized GD with step {STEP_SIZE} and the published guard, {STEPS} iterations, "
        f"kept above {KEPT:g}, masked below {MASKED:g}",
        "seeds": [SEED, "d", "part"],
        "wanted per d": search.wanted,
    }
    for place, d in enumerate(search.dims):
        parts, reasons = [_nothing()], np.zeros(0, dtype=int)
        while (reasons == RETAINED).sum() < search.wanted and len(reasons) < search.most:
            done = place * search.wanted + int((reasons == RETAINED).sum())
            tell(done, len(search.dims) * search.wanted, f"d = {d}: {len(reasons)} attempts so far")
            drawn = draw(d, len(parts) - 1, search.together)
            mixed = (drawn.tokens.y < 0).any(-1)
            if not reasons.size:
                control = keep(f"d = {d}, all labels +1", partial(one_label, drawn.pick(~mixed)))
                facts[f"d = {d}, all labels +1"] = _about(control)
            some = drawn.pick(np.flatnonzero(mixed)[: search.most - len(reasons)])
            part = keep(f"d = {d}, part {len(parts)}", partial(_measured, some))
            reasons = np.concatenate([reasons, part.pop("reasons")])
            parts.append(part)
        retained = np.flatnonzero(reasons == RETAINED)
        if len(retained) >= search.wanted:
            reasons = reasons[: retained[search.wanted - 1] + 1]
        arrays |= {f"{k}_d{d}": np.concatenate([part[k] for part in parts])[: search.wanted] for k in parts[0]}
        arrays[f"reasons_d{d}"] = reasons
        facts[f"d = {d}"] = tally(reasons)
    return arrays, facts


def _nothing() -> dict[str, np.ndarray]:
    """What `_measured` gives if no attempt is retained."""
    curve, one, each = np.zeros((0, len(steps_taken()))), np.zeros(0), np.zeros((0, SEQUENCES))
    return {
        "margin": curve, "mixture": curve, "single": curve, "masked": one, "kept": each.astype(int), "labels": each,
        "dead": each.astype(bool), "norm": one, "gap": one, "residual": one,
    }  # fmt: skip


def _measured(attempts: Attempts) -> dict[str, np.ndarray]:
    """Train; for the retained ones: 1 - corr with each prediction along the way, and how far they are settled.

    `reasons` says of every attempt what became of it.
    """
    path = train(attempts)
    probs = attention(attempts.tokens, path[:, -1])
    reasons = sort_out(probs, MASKED)
    clear = np.flatnonzero(reasons == RETAINED)
    if not clear.size:
        return {**_nothing(), "reasons": reasons}
    path, probs, labels = path[clear], probs[clear], attempts.tokens.y[clear]
    predicted = predict(attempts.pick(clear).tokens, path[:, -1], probs)
    reasons[clear[~predicted.feasible]] = INFEASIBLE
    measured = {
        "margin": apart(path, predicted.margin),
        "mixture": apart(path, predicted.mixture),
        "single": apart(path, predicted.single),
        "masked": most_masked(probs),
        "kept": (probs > KEPT).sum(-1),
        "labels": labels,
        "dead": dead(attempts.pick(clear), probs),
        "norm": np.linalg.norm(path[:, -1], axis=(-2, -1)),
        "gap": predicted.gap,
        "residual": predicted.residual,
    }
    return {**{name: values[predicted.feasible] for name, values in measured.items()}, "reasons": reasons}


def most_masked(probs: np.ndarray) -> np.ndarray:
    """The largest weight of a token that is not kept, for each trial."""
    return np.where(probs > KEPT, 0.0, probs).max((-2, -1))


def dead(attempts: Attempts, probs: np.ndarray, below: float = 0.0) -> np.ndarray:
    """Sequences on which every ReLU is off, (trials, n): they exert no force, which W^SVMeq does not know."""
    units = np.einsum("int,intd,ide->ine", probs, attempts.tokens.x, attempts.V)
    return (units < -below).all(-1)


def one_label(attempts: Attempts) -> dict[str, np.ndarray]:
    """The control: with all labels +1 every input should keep one token, so that nothing is new."""
    probs = attention(attempts.tokens, train(attempts)[:, -1])
    return {"reasons": sort_out(probs, MASKED), "single": ((probs > KEPT).sum(-1) == 1).all(-1)}


def _about(control: Mapping[str, np.ndarray]) -> dict[str, int]:
    single = control["single"] & (control["reasons"] == RETAINED)
    return {**tally(control["reasons"]), "retained with one token per input": int(single.sum())}


def followed(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Gradient flow on the first attempts of normalized GD, from the same starts, at two widths of the kink."""
    search = Search.at(scale)
    stage = Stages(tell, len(WIDTHS) * len(search.flow_dims))
    arrays: dict[str, np.ndarray] = {"flow_dims": np.array(search.flow_dims)}
    facts: dict[str, Any] = {
        "flow": f"the first {search.flows} attempts for each d, same starts, kink rounded over {WIDTHS[0]:g}, "
        f"to t = {TIME:g}"
    }
    for d in search.flow_dims:
        drawn = draw(d, 0, search.together)
        first = drawn.pick(np.flatnonzero((drawn.tokens.y < 0).any(-1))[: search.flows])
        run, wide = (
            stage(f"d = {d}: gradient flow, kink rounded over {width:g}", partial(_flow, first, width))
            for width in WIDTHS
        )
        reasons = np.where(run["success"], sort_out(run["attention"], MASKED), UNFINISHED)
        predicted = predict(first.tokens, run["W"], run["attention"])
        reasons[(reasons == RETAINED) & ~predicted.feasible] = INFEASIBLE
        good, path = reasons == RETAINED, run["path"]
        arrays |= {
            "times": run["times"],
            f"flow_reasons_d{d}": reasons,
            f"flow_mixture_d{d}": apart(path, predicted.mixture)[good],
            f"flow_margin_d{d}": apart(path, predicted.margin)[good],
            f"flow_masked_d{d}": most_masked(run["attention"])[good],
            f"flow_dead_d{d}": dead(first, run["attention"], OFF * WIDTHS[0])[good],
            f"flow_kept_d{d}": (run["attention"] > KEPT).sum(-1)[good],
        }
        both = run["success"] & wide["success"]
        same = both & ((run["attention"] > KEPT) == (wide["attention"] > KEPT)).all((-2, -1))
        facts |= {
            f"flow, d = {d}": tally(reasons),
            f"flow, d = {d}, same tokens kept with the kink rounded over {WIDTHS[1]:g}": [int(same.sum()), "of",
                                                                                         int(both.sum())],
        }  # fmt: skip
    return arrays, facts


def _flow(attempts: Attempts, width: float) -> dict[str, np.ndarray]:
    """Where gradient flow ends with the kink rounded over so much, and its way there."""
    run = flow(
        attempts.tokens,
        head=RoundedMlp(attempts.V, width=width),
        init=attempts.start,
        time=TIME,
        record=1,
        metrics={"path": _weights},
        max_steps=MOST_STEPS,
    )
    found = {name: getattr(run, name) for name in ("success", "attention", "W", "times")}
    return {**found, "path": run.metrics["path"]}
