"""One sequence of orthonormal tokens under a head that prefers to mix them (Lemma 6; Figures 9 and 12)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlab.data.tokens import Tokens
from attnlab.figures.svm.kept import KEPT, UNFINISHED, sort_out
from attnlab.models import Concave, attention
from attnlab.optim import ngd
from attnlab.train import descend, flow

TOKENS = 10
STEPS, STEP_SIZE = 2000, 0.1
TIME = 1e14
MASKED = 1e-8
SETTING = (
    f"n = 1, T = d = {TOKENS}, orthonormal tokens, v and query on the sphere, y = 1, h(o) = v.o - λ|o|^2, correlation "
    f"loss, kept above {KEPT:g}, masked below {MASKED:g}; normalized GD with step {STEP_SIZE} and the published guard, "
    f"{STEPS} iterations; gradient flow to t = {TIME:g} from the same starts"
)


class Mixing(NamedTuple):
    """Data sets h(o) = v . o - strength |o|^2 with their starts."""

    tokens: Tokens
    strength: np.ndarray
    start: np.ndarray

    def pick(self, where: np.ndarray) -> Mixing:
        """Some of them, in this order."""
        t = self.tokens
        assert t.v is not None
        tokens = Tokens(x=t.x[where], z=t.z[where], y=t.y[where], v=t.v[where])
        return Mixing(tokens, self.strength[where], self.start[where])

    @property
    def scores(self) -> np.ndarray:
        """gamma = x v, (trials, T)."""
        assert self.tokens.v is not None
        return np.einsum("itd,id->it", self.tokens.x[:, 0], self.tokens.v)


def with_scores(scores: np.ndarray, strength: np.ndarray, rng: np.random.Generator) -> Mixing:
    """Random orthonormal tokens with these scores (v = x^T gamma), a query on the sphere, a uniform start."""
    trials, T = scores.shape
    x = np.linalg.qr(rng.standard_normal((trials, T, T)))[0]
    v = np.einsum("itd,it->id", x, scores)
    start = rng.uniform(-1.0, 1.0, (trials, T, T)) / np.sqrt(T)
    tokens = Tokens(x=x[:, None], z=on_sphere(rng, trials)[:, None], y=np.ones((trials, 1)), v=v)
    return Mixing(tokens, strength, start)


def on_sphere(rng: np.random.Generator, trials: int) -> np.ndarray:
    """Uniform on the unit sphere, (trials, T). The scores of orthonormal tokens are so if v is."""
    gaussian = rng.standard_normal((trials, TOKENS))
    return gaussian / np.linalg.norm(gaussian, axis=-1, keepdims=True)


def kept_by_formula(scores: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """How many tokens the best mixture holds: with sorted scores, token k iff sum_{j<=k} (g_j - g_k) < 2 strength.

    The first is always held, also at strength 0.

    >>> import numpy as np
    >>> kept_by_formula(np.array([[1.0, 0.5, 0.0]]), np.array([0.3])).tolist()
    [2]
    """
    ranked = -np.sort(-scores, axis=-1)
    places = np.arange(1, scores.shape[-1] + 1)
    price = np.cumsum(ranked, axis=-1) - places * ranked
    return 1 + (price[..., 1:] < 2.0 * strength[..., None]).sum(-1)


def best_mixture(scores: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """The s >= 0 of sum 1 with the largest gamma . s - strength |s|^2, which is gamma / (2 strength) projected."""
    count = kept_by_formula(scores, strength)[..., None]
    ranked = -np.sort(-scores, axis=-1)
    total = np.take_along_axis(np.cumsum(ranked, axis=-1), count - 1, axis=-1)
    last = np.take_along_axis(ranked, count - 1, axis=-1)
    held = scores >= last
    if not (count[..., 0] == held.sum(-1)).all():
        raise ValueError("two tokens have equal scores")
    divisor = np.where(strength > 0, 2.0 * strength, 1.0)[..., None]
    # With one token (always so at strength 0) the bracket is zero.
    return np.where(held, 1.0 / count + (scores - total / count) / divisor, 0.0)


def train(mixing: Mixing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights and attention after normalized GD, as published, and the filter's word on each trial."""
    run = descend(
        mixing.tokens, ngd(STEP_SIZE, guard="paper"), steps=STEPS, head=_head(mixing), loss="correlation",
        init=mixing.start, record=None,
    )  # fmt: skip
    probs = attention(mixing.tokens, run.W)
    return run.W, probs, sort_out(probs, MASKED)


def follow(mixing: Mixing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same at the end of gradient flow."""
    run = flow(mixing.tokens, time=TIME, head=_head(mixing), loss="correlation", init=mixing.start, record=None)
    return run.W, run.attention, np.where(run.success, sort_out(run.attention, MASKED), UNFINISHED)


def _head(mixing: Mixing) -> Concave:
    return Concave(mixing.strength)  # pyright: ignore[reportArgumentType]  # one strength for each trial
