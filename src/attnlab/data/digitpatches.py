"""Digit images among noise: the binary MNIST of *Implicit Bias and Fast Convergence Rates for Self-attention*."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from attnlab.checks import enough_memory, number, shown, whole
from attnlab.data.families import EXTREME, _batch, room_for
from attnlab.data.idx import digit_images
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

NEEDS = "needs scikit-learn: pip install 'attnlab[digits]'"
SCIKIT_LEARN = "scikit-learn digits"
# The classifier sees at most this many images; its ridge keeps it finite on classes that can be separated.
SEEN_AT_MOST, RIDGE = 2000, 1e-3
NEWTON_STEPS, SETTLED = 50, 1e-12
# A pixel is a number, twice, once it is scaled.
COPIES = 2
# Deviation of the noise for images of up to so many pixels.
SMALL, SMALL_NOISE, LARGE_NOISE = 100, 0.05, 0.02


def digit_patches(
    n: int = 50,
    T: int = 5,
    *,
    noise: float | None = None,
    source: str | os.PathLike[str] | None = None,
    seed: int = 0,
    trials: int | None = None,
) -> Tokens:
    """Sequences of T patches: one an image of a 0 or 1, the others Gaussian noise; the query is the first patch.

    The head v is a linear classifier of 0 (label -1) against 1 (label +1), trained on half of the images and scaled to
    mean |score| 1 there; the patches show the other half. Pixels are scaled to [0, 1].

    Args:
        n, T: sequences, patches per sequence.
        noise: deviation of the noise; default 0.05 for images of 8 x 8 and 0.02 for 28 x 28.
        source: a folder with MNIST's `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, plain or .gz; None for
            the 8 x 8 digits of scikit-learn (extra `digits`).
        seed, trials: as for every family; the classifier belongs to the seed and is shared by all trials.

    `info` has `planted` (where the image is), `signal_is_best` (share of sequences whose image has the best score),
    `accuracy` (of the classifier on images that it has not seen), `images` and `source`. Draw order per trial:
    images, positions, noise.
    """
    whole("n", n)
    whole("T", T)
    seed = whole("seed", seed, 0)
    images, y = _zeros_and_ones(_folder(source))
    room_for("digit_patches", n, T, images.shape[1], trials)
    if noise is None:
        noise = SMALL_NOISE if images.shape[1] <= SMALL else LARGE_NOISE
    noise = number("noise", noise, least=0, most=EXTREME)
    order = np.random.default_rng([seed, 0, 0]).permutation(len(y))
    half = len(y) // 2
    seen, unseen = order[: min(half, SEEN_AT_MOST)], order[half:]
    if n > len(unseen):
        raise InputError(message(f"`n` is {n}; there are {len(unseen)} images that the classifier has not seen."))
    v = linear_classifier(images[seen], y[seen])
    scored = float(np.abs(images[seen] @ v).mean())
    if not scored:
        raise InputError(message(f"`source` {str(source)!r} has images that all look the same to a linear classifier."))
    v = v / scored
    accuracy = float((np.sign(images[unseen] @ v) == y[unseen]).mean())

    def draw(rng: np.random.Generator) -> Tokens:
        picked = rng.choice(unseen, n, replace=False)
        planted = rng.integers(0, T, n)
        x = noise * rng.standard_normal((n, T, images.shape[1]))
        x[np.arange(n), planted] = images[picked]
        best = (y[picked, None] * (x @ v)).argmax(-1)
        share = np.array(np.mean(best == planted))
        return Tokens.self_attention(x, y[picked], v, info={"planted": planted, "signal_is_best": share})

    tokens = _batch("digit_patches", draw, seed, trials)
    origin = SCIKIT_LEARN if source is None else str(source)
    about = {"accuracy": accuracy, "images": len(y), "noise": noise, "source": origin}
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, info={**tokens.info, **about})


def linear_classifier(x: Array, y: Array) -> Array:
    """Logistic regression without bias by Newton's method: min_v mean log(1 + exp(-y v.x)) + RIDGE / 2 |v|^2.

    >>> v = linear_classifier(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, -1.0]))
    >>> bool(v[0] > 0 > v[1])
    True
    """
    signed, v = y[:, None] * x, np.zeros(x.shape[1])

    def objective(v: Array) -> float:
        return float(np.logaddexp(0.0, -signed @ v).mean() + RIDGE / 2 * v @ v)

    for _ in range(NEWTON_STEPS):
        miss = np.exp(-np.logaddexp(0.0, signed @ v))  # 1 / (1 + e^margin)
        gradient = RIDGE * v - signed.T @ miss / len(y)
        if np.linalg.norm(gradient) <= SETTLED:
            break
        curvature = (signed.T * (miss * (1 - miss))) @ signed / len(y) + RIDGE * np.eye(len(v))
        move = np.linalg.solve(curvature, gradient)
        size = 1.0
        while objective(v - size * move) > objective(v) and size > 1e-6:
            size /= 2
        v = v - size * move
    return v


def _folder(source: str | os.PathLike[str] | None) -> Path | None:
    if source is None:
        return None
    try:
        return Path(source).expanduser().resolve()
    except (TypeError, ValueError, RuntimeError, OSError) as error:  # no path at all, or one that leads nowhere
        raise InputError(message(f"`source` is {shown(source)}; wanted a folder of MNIST's files.")) from error


@cache
def _zeros_and_ones(folder: Path | None) -> tuple[Array, Array]:
    """Images of zeros and ones with pixels in [0, 1], (N, pixels), and labels -1 and +1."""
    if folder is not None:
        images, digits = digit_images(folder)
        enough_memory(COPIES * images.size, f"`{folder}` with {len(images)} images", "a smaller file")
        pixels = images.reshape(len(images), -1) / 255.0
    else:
        if not digits_installed():
            raise InputError(message(f"`digit_patches` {NEEDS}.", "or pass source=, a folder of MNIST's IDX files"))
        from sklearn.datasets import load_digits  # pyright: ignore

        loaded = load_digits()
        pixels, digits = np.asarray(loaded.data, dtype=float) / 16.0, np.asarray(loaded.target)  # pyright: ignore
    wanted = digits <= 1
    y = np.where(digits[wanted] == 1, 1.0, -1.0)
    if not (y > 0).any() or not (y < 0).any():
        raise InputError(message(f"`{folder}` has {len(y)} images of 0 and 1, all of one kind; wanted both."))
    return pixels[wanted], y


def digits_installed() -> bool:
    """Is scikit-learn there?"""
    return find_spec("sklearn") is not None
