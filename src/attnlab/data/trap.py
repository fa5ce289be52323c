"""Data sets on which gradient descent is trapped although a theorem says that it is not."""

from __future__ import annotations

import numpy as np

from attnlab.checks import number, one_of, whole
from attnlab.data.families import each_trial
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

TRAPS = ("plain", "E17", "T4", "T5")
T, D = 3, 4  # tokens per sequence and dimension of the random ones
# At the start the follower's push is at most this share of the leader's.
SHARE = 0.05
# Length of the random part of the start over that of its limit at margin 1.
NOISE = 0.2
# Redraws of a set after which something is wrong; about one in three is refused where all must be tight.
MAX_ATTEMPTS = 1000
# Spreads up to which products of tokens are float64 numbers.
LARGEST_SPREAD = 1e100


def trap(name: str = "plain", *, seed: int = 0, delta: float = 0.1) -> Tokens:
    """Two sequences, of which one holds the other on a worse token: descent tends to another max-margin direction.

    Sequence 1, the leader, moves W along the max-margin direction of its own best token. Along that direction the
    follower, sequence 0, prefers a worse token by more than the margin, so its wish to leave that token dies out faster
    than the leader's push. The selection (1, 0) is locally optimal, because the follower has no support token at all.

    | name | n, T, d | meets |
    |---|---|---|
    | "plain" | 2, 2, 2 | B.1 and B.2 of *Transformers as Support Vector Machines*; one set, whatever the seed |
    | "E17" | 2, 3, 4 | B.1 and B.2 |
    | "T4" | 2, 3, 4 | B.2, the hypothesis of Theorem 4 |
    | "T5" | 2, 3, 4 | other scores within `delta` of each other, the hypothesis of Theorem 5 |

    Args:
        name: one of the table.
        seed: of the random numbers; sets of different seeds are different traps.
        delta: for "T5", the spread of the scores of the tokens that are not the best.

    Returns:
        Tokens whose best tokens are 0 and 0. `info["start"]` is a W from which descent is trapped, `info["selected"]`
        the tokens that it then selects, `info["attempts"]` how many sets were drawn.

    >>> import attnlab as al
    >>> tokens = al.data.trap("T4", seed=3)
    >>> tokens, al.optimal_tokens(tokens).tolist()
    (Tokens(n=2, T=3, d=4, family=trap), [0, 0])
    >>> al.descend(tokens, al.ngd(0.1), steps=2000, init=tokens.info["start"], record=None).selected.tolist()
    [1, 0]
    >>> al.descend(tokens, al.ngd(0.1), steps=2000, init="zeros", record=None).selected.tolist()
    [0, 0]
    """
    one_of("name", name, TRAPS)
    delta, seed = number("delta", delta, least=0, most=LARGEST_SPREAD), whole("seed", seed, 0)
    if name == "plain":
        return _plain()
    spread = delta if name == "T5" else 0.0
    (tokens,) = each_trial(lambda rng: _drawn(rng, spread, tight=name == "E17"), seed, None)
    info = {"family": "trap", "name": name, "seed": int(seed), **tokens.info}
    if name == "T5":
        info["delta"] = spread
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, info=info)


def _plain() -> Tokens:
    """Both queries are e1. The best token of sequence i is half of D_i, the other one minus that; D_0 = (3, 0) and
    D_1 = (-0.9, sqrt(0.19)): a step for sequence 1 moves sequence 0 back by -<D_0, D_1> = 2.7 > 1 = |D_1|^2."""
    halves = np.array([[3.0, 0.0], [-0.9, np.sqrt(0.19)]]) / 2.0
    info = {"family": "trap", "name": "plain", "start": np.array([[-2.0, 0.0], [0.0, 0.0]]), "selected": [1, 0]}
    x = np.stack([halves, -halves], axis=1)  # (n, T, d)
    return Tokens(x=x, z=[[1.0, 0.0], [1.0, 0.0]], y=[1.0, 1.0], v=[0.3, 1.0], info=info)


def _drawn(rng: np.random.Generator, spread: float, *, tight: bool) -> Tokens:
    """A random trap, drawn again until all constraints are tight where that is asked; v is e1, so that the first
    coordinate of a token is its score, up to the label."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        labels = rng.choice([-1.0, 1.0], 2)
        z = _queries(rng)
        differences, direction = _leader(rng, labels[1], spread)
        foot = rng.standard_normal(D)
        leader = np.vstack([foot, foot - differences])  # (T, d); the first is the best token
        lead = rng.uniform(1.0, 2.5)
        follower = _follower(rng, labels[0], spread, direction * float(z[0] @ z[1]), 1.0 + lead)
        x = np.stack([follower, leader])
        if tight and not _all_tight(x, z):
            continue
        limit = np.outer(direction, z[1])  # the leader's margin is 1 there, the follower's is 1 + lead
        # Pushes are as |difference|^2 e^-margin: the follower's falls behind by a factor e^lead per unit of margin.
        lengths = np.linalg.norm(x - x[:, :1], axis=-1).max(-1)
        margin = max(2.0, float(np.log((lengths[0] / lengths[1]) ** 2 / SHARE)) / lead)
        sideways = rng.standard_normal((D, D))
        start = margin * limit + NOISE * np.linalg.norm(limit) * sideways / np.linalg.norm(sideways)
        info = {"start": start, "selected": [1, 0], "attempts": attempt}
        return Tokens(x=x, z=z, y=labels, v=np.eye(D)[0], info=info)
    raise InputError(message(f"No trap was found in {MAX_ATTEMPTS} draws.", "another seed"))


def _all_tight(x: Array, z: Array) -> bool:
    """Has the shortest W with all margins 1 positive multipliers, so that it is the max-margin W (B.1)?"""
    rows = np.einsum("ntd,ne->ntde", x[:, :1] - x[:, 1:], z).reshape(-1, z.shape[-1] ** 2)
    return bool((np.linalg.solve(rows @ rows.T, np.ones(len(rows))) > 0).all())


def _queries(rng: np.random.Generator) -> Array:
    """Two unit vectors whose cosine is from 0.5 to 0.95: what moves one logit moves the other."""
    first = rng.standard_normal(D)
    first /= np.linalg.norm(first)
    side = rng.standard_normal(D)
    side -= (side @ first) * first
    side /= np.linalg.norm(side)
    cosine = rng.uniform(0.5, 0.95)
    return np.stack([first, cosine * first + np.sqrt(1.0 - cosine**2) * side])


def _leader(rng: np.random.Generator, label: float, spread: float) -> tuple[Array, Array]:
    """Best token less each other, (T - 1, d), all of which hold the margin at their max-margin direction w, (d,).

    w is the shortest vector with D w = 1; it is the max-margin direction where its multipliers are positive, else the
    differences are drawn again.
    """
    for _ in range(MAX_ATTEMPTS):
        leads = rng.uniform(0.3, 1.0) + spread * np.linspace(0.0, 1.0, T - 1)
        common = rng.standard_normal(D - 1)
        sides = 0.5 * rng.standard_normal((T - 1, D - 1))
        differences = np.column_stack([label * leads, common / np.linalg.norm(common) + sides])
        multipliers = np.linalg.solve(differences @ differences.T, np.ones(T - 1))
        if (multipliers > 0.05 * multipliers.max()).all():
            return differences, multipliers @ differences
    raise InputError(message(f"`delta` is {spread:g}; no such trap was found in {MAX_ATTEMPTS} draws.", "delta = 0.1"))


def _follower(rng: np.random.Generator, label: float, spread: float, pull: Array, lead: float) -> Array:
    """Tokens (T, d) of which the first scores best, and the second leads all others along `pull` by `lead`."""
    along = pull[1:] / np.linalg.norm(pull[1:])
    heights = np.concatenate([[rng.uniform(0.3, 1.0)], -spread * np.linspace(0.0, 1.0, T - 1)])
    sides = 0.5 * rng.standard_normal((T, len(along)))
    sides -= np.outer(sides @ along, along)
    places = rng.uniform(-0.5, 0.5, T)
    tokens = np.column_stack([label * heights, sides + np.outer(places, along)])
    logits = tokens @ pull
    ahead = logits[1] - np.delete(logits, 1).max()
    tokens[1, 1:] += (lead - ahead) / np.linalg.norm(pull[1:]) * along
    return tokens
