"""A scene: the tokens and settings on the screen, read from a message and checked by the doors of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from attnlab.checks import finite_array, instance, number, one_of, shown, whole, whole_array
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

Facts: TypeAlias = dict[str, Any]

# What is computed for one message is bounded. The page adds sequences up to PLANE_SEQUENCES.
MOST_SEQUENCES, MOST_TOKENS, MOST_DIMENSIONS, MOST_QUERIES = 64, 128, 128, 256
MOST_LOGITS = 4096  # over all queries
MOST_STEPS = 20_000
PLANE_SEQUENCES = 6
ORTHONORMAL = 1e-6
LARGEST = 1e6  # of a number that is dragged about on a screen

LOSSES = ("logistic", "exponential", "correlation")
RULES = ("ngd", "gd", "heavy_ball", "polyak", "adam")
HEADS = ("linear", "concave")
SHAPES = ("grid", "circle")
FIELDS = (
    "x",
    "z",
    "y",
    "v",
    "mask",
    "head",
    "strength",
    "rule",
    "step",
    "loss",
    "steps",
    "start",
    "pull",
    "plane",
    "chosen",
)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What one message asks about.

    Attributes:
        tokens: the data; sequences of fewer tokens than others are padded, and the padding is hidden by the mask.
        lengths: how many tokens of each sequence are no padding.
        head, strength: "linear", or "concave" with its strength.
        rule, step: a step rule of `attnlab.optim` by name, with its step (the cap of "polyak").
        loss, steps: of the descent.
        start: W at step 0, (d, d); K and Q start at its balanced factors.
        plane: rows onto which everything is projected for the eye, (2, d).
        chosen: a selection made by hand, or None.
    """

    tokens: Tokens
    lengths: tuple[int, ...]
    head: Literal["linear", "concave"]
    strength: float
    rule: str
    step: float
    loss: str
    steps: int
    start: Array
    plane: Array
    chosen: npt.NDArray[np.intp] | None

    @property
    def queries(self) -> Array:
        """All queries, one below the other, (rows, d)."""
        return self.tokens.z.reshape(-1, self.tokens.d)

    @property
    def rows(self) -> int:
        """Queries of all sequences."""
        return self.tokens.y.size

    def step_rule(self) -> Any:
        """The step rule as an object."""
        from attnlab import optim

        made: dict[str, Callable[[float], Any]] = {
            "ngd": optim.ngd,
            "gd": optim.gd,
            "heavy_ball": optim.heavy_ball,
            "polyak": lambda cap: optim.polyak(cap=cap),
            "adam": optim.adam,
        }
        return made[self.rule](self.step)

    def head_object(self) -> Any:
        """The head as `descend` takes it."""
        from attnlab.models import Concave

        return Concave(self.strength) if self.head == "concave" else "linear"

    def starts(self) -> dict[str, dict[str, Array]]:
        """Weights at step 0 of both parameterizations."""
        keys, queries = balanced_factors(self.start)
        return {"W": {"W": self.start}, "KQ": {"K": keys, "Q": queries}}


def balanced_factors(start: Array) -> tuple[Array, Array]:
    """K and Q with K Q^T = start and K^T K = Q^T Q, for one matrix or a batch.

    >>> import numpy as np
    >>> K, Q = balanced_factors(np.array([[0.0, 2.0], [1.0, 0.0]]))
    >>> (K @ Q.T).round(12).tolist()
    [[0.0, 2.0], [1.0, 0.0]]
    """
    left, singular, right = np.linalg.svd(start)
    root = np.sqrt(singular)[..., None, :]
    return left * root, np.swapaxes(right, -1, -2) * root


def pulled(start: Array, query: Array, target: Array) -> Array:
    """The W nearest to `start` that takes the query to the target; for a batch of targets (..., d), a batch of W.

    >>> import numpy as np
    >>> pulled(np.eye(2), np.array([2.0, 0.0]), np.array([1.0, 3.0])).tolist()
    [[0.5, 0.0], [1.5, 1.0]]
    """
    length = float(query @ query)
    if length == 0.0:
        raise InputError(message("`pull` is for a query that is zero, which every W takes to zero."))
    return start + (target - start @ query)[..., :, None] * query / length


def read_scene(given: Any) -> Scene:
    """A scene from the JSON of a message; whatever is wrong with it is an InputError that names the field."""
    facts = instance("scene", given, dict, "an object with fields `x`, `z`, `y`")
    unknown = [name for name in facts if name not in FIELDS]
    if unknown:
        raise InputError(message(f"`scene` has a field {shown(unknown[0])}; wanted {', '.join(FIELDS)}."))
    tokens, lengths = _tokens(facts)
    head = facts.get("head", "linear")
    one_of("head", head, HEADS)
    rule, loss = facts.get("rule", "ngd"), facts.get("loss", "logistic")
    one_of("rule", rule, RULES)
    one_of("loss", loss, LOSSES)
    return Scene(
        tokens=tokens,
        lengths=lengths,
        head=cast(Literal["linear", "concave"], head),
        strength=number("strength", facts.get("strength", 0.5), least=0, most=100),
        rule=rule,
        step=number("step", facts.get("step", 0.1), above=0, most=1e6),
        loss=loss,
        steps=whole("steps", facts.get("steps", 2000), 1, MOST_STEPS),
        start=_start(facts, tokens),
        plane=_plane(facts.get("plane"), tokens.d),
        chosen=_chosen(facts.get("chosen"), tokens),
    )


def written(scene: Scene) -> Facts:
    """The scene as the JSON of a message: `read_scene` gives it back."""
    tokens = scene.tokens
    ragged = len(set(scene.lengths)) > 1
    facts: Facts = {
        "x": [tokens.x[i, :length].tolist() for i, length in enumerate(scene.lengths)],
        "z": tokens.z.tolist(),
        "y": tokens.y.tolist(),
        "v": None if tokens.v is None else tokens.v.tolist(),
        "start": scene.start.tolist(),
        "plane": scene.plane.tolist(),
        "chosen": None if scene.chosen is None else scene.chosen.tolist(),
    }
    if tokens.mask is not None and not ragged:
        facts["mask"] = tokens.mask.tolist()
    return facts | {name: getattr(scene, name) for name in ("head", "strength", "rule", "step", "loss", "steps")}


def scene_of_tokens(tokens: Tokens, seed: int = 0) -> Scene:
    """A scene of a user's own tokens, seen along their two principal coordinates, with a small random start."""
    instance("tokens", tokens, Tokens, "al.Tokens", "al.Tokens(x=, z=, y=, v=)")
    if tokens.trials is not None:
        raise InputError(message(f"`tokens` holds {tokens.trials} trials; wanted one data set.", "tokens[0]"))
    if tokens.v is None:
        problem = "`tokens` have no `v`: without scores there is nothing to descend on."
        raise InputError(message(problem, "al.Tokens(x=, z=, y=, v=)"))
    _check_sizes(tokens.n, tokens.T, tokens.d, tokens.y.size)
    _check_range(x=tokens.x, z=tokens.z, v=tokens.v)
    start = 0.1 * np.random.default_rng(seed).uniform(-1.0, 1.0, (tokens.d, tokens.d)) / np.sqrt(tokens.d)
    return Scene(
        tokens=tokens,
        lengths=(tokens.T,) * tokens.n,
        head="linear",
        strength=0.5,
        rule="ngd",
        step=0.1,
        loss="logistic",
        steps=2000,
        start=start.round(4),
        plane=principal_plane(tokens),
        chosen=None,
    )


def principal_plane(tokens: Tokens) -> Array:
    """The first two principal coordinates of all visible tokens, as orthonormal rows (2, d); in the plane its axes."""
    if tokens.d <= 2:
        return np.eye(2, tokens.d)
    seen = tokens.visible if tokens.K is None else tokens.visible.any(-2)
    flat = tokens.x[seen]
    _, _, directions = np.linalg.svd(flat - flat.mean(0), full_matrices=True)
    # Of either sign, the one whose largest entry is positive: the picture is the same every time.
    signs = np.sign(directions[np.arange(2), np.abs(directions[:2]).argmax(-1)])
    return directions[:2] * signs[:, None]


def _tokens(facts: Mapping[str, Any]) -> tuple[Tokens, tuple[int, ...]]:
    """The data, with short sequences padded, and the lengths."""
    for name in ("x", "z", "y", "v"):
        if facts.get(name) is None:
            raise InputError(message(f"`scene` lacks `{name}`.", "x (n,T,d), z (n,d), y (n,), v (d,)"))
    sequences = [_sequence(f"x[{i}]", one) for i, one in enumerate(_list("x", facts["x"], MOST_SEQUENCES))]
    lengths = tuple(len(one) for one in sequences)
    dimensions = {one.shape[1] for one in sequences}
    if len(dimensions) > 1:
        raise InputError(message("`x` has tokens of different dimensions; wanted one."))
    d, longest = dimensions.pop(), max(lengths)
    x = np.zeros((len(sequences), longest, d))
    for i, one in enumerate(sequences):
        x[i, : len(one)] = one
    z, y, v = (finite_array(name, _list(name, facts[name])) for name in ("z", "y", "v"))
    _check_sizes(len(x), longest, d, y.size)
    _check_range(x=x, z=z, v=v)
    mask = facts.get("mask")
    if len(set(lengths)) > 1:
        if mask is not None:
            raise InputError(message("`mask` is for sequences of one length.", "leave it out"))
        if y.ndim != 1:
            raise InputError(message("`x` has sequences of different lengths; with several queries wanted one length."))
        mask = np.arange(longest) < np.array(lengths)[:, None]
    elif mask is not None:
        mask = _list("mask", mask)
    return Tokens(x=x, z=z, y=y, v=v, mask=mask), lengths


def _list(name: str, given: Any, most: int = MOST_LOGITS) -> Sequence[Any]:
    """A list that is not empty and not too long."""
    if not isinstance(given, list) or not 0 < len(given) <= most:
        raise InputError(message(f"`{name}` is {shown(given)}; wanted a list of 1 to {most}."))
    return given


def _sequence(name: str, given: Any) -> Array:
    rows = _list(name, given, MOST_TOKENS)
    array = finite_array(name, cast(Any, rows))
    if array.ndim != 2 or not 1 <= array.shape[1] <= MOST_DIMENSIONS:
        wanted = f"tokens of 1 to {MOST_DIMENSIONS} numbers"
        raise InputError(message(f"`{name}` has shape {array.shape}; wanted {wanted}."))
    return array


def _check_sizes(n: int, T: int, d: int, queries: int) -> None:
    """Refuse what would not be answered while a mouse moves."""
    sizes = {"sequences": (n, MOST_SEQUENCES), "tokens in a sequence": (T, MOST_TOKENS)}
    sizes |= {"dimensions": (d, MOST_DIMENSIONS), "queries": (queries, MOST_QUERIES)}
    sizes |= {"logits": (queries * T, MOST_LOGITS)}
    for name, (size, most) in sizes.items():
        if size > most:
            problem = f"`tokens` have {size} {name}; the explorer takes up to {most}."
            raise InputError(message(problem, "al.limits and al.solve_margin take any size"))


def _check_range(**arrays: Array) -> None:
    for name, array in arrays.items():
        if np.abs(array).max(initial=0.0) > LARGEST:
            raise InputError(message(f"`{name}` has entries beyond {LARGEST:g}.", "divide by their scale"))


def _start(facts: Mapping[str, Any], tokens: Tokens) -> Array:
    """W at step 0, after what is pulled at it."""
    d = tokens.d
    start = _matrix("start", facts.get("start"), (d, d), np.zeros((d, d)))
    pull = facts.get("pull")
    if pull is None:
        return start
    instance("pull", pull, dict, "an object with `query` and `to`")
    if set(pull) != {"query", "to"}:
        raise InputError(message(f"`pull` has fields {shown(sorted(map(str, pull)))}; wanted `query` and `to`."))
    query = whole("pull.query", pull["query"], 0, tokens.y.size - 1)
    target = _matrix("pull.to", pull["to"], (d,), np.zeros(d))
    return pulled(start, tokens.z.reshape(-1, d)[query], target)


def _matrix(name: str, given: Any, shape: tuple[int, ...], default: Array) -> Array:
    if given is None:
        return default
    array = finite_array(name, cast(Any, _list(name, given)))
    if array.shape != shape:
        raise InputError(message(f"`{name}` has shape {array.shape}; wanted {shape}."))
    _check_range(**{name: array})
    return array


def _plane(given: Any, d: int) -> Array:
    """Two orthonormal rows; of numbers, which have no plane, the one axis and nothing."""
    usual = np.eye(2, d)
    plane = _matrix("plane", given, (2, d), usual)
    if np.abs(plane @ plane.T - usual @ usual.T).max() > ORTHONORMAL:
        raise InputError(message("`plane` has rows that are not orthonormal.", "two rows of a rotation"))
    return plane


def _chosen(given: Any, tokens: Tokens) -> npt.NDArray[np.intp] | None:
    if given is None:
        return None
    chosen = whole_array("chosen", cast(Any, _list("chosen", given)), "a token number for each query")
    from attnlab.svm.rows import check_selected

    return check_selected(tokens, chosen)
