"""The same tokens in fewer coordinates: those of the span of tokens, queries and head."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnlab.checks import enough_memory, instance, number, shown, whole
from attnlab.data.families import EXTREME, trial_count
from attnlab.data.scale import LOW, is_ordinary, rows_to_one
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message

# Up to this dimension its square, the number of entries of W, is a float64 number.
LARGEST_DIMENSION = 1e150


def in_span(tokens: Tokens) -> tuple[Tokens, Array]:
    """The tokens in orthonormal coordinates of the span of tokens, queries and v, and one coordinate more, all zero.

    Every inner product is the same, so is everything that gradient methods do: a W in the new coordinates stands for
    `basis W basis^T`. The zero coordinate is for the part of a start that no token sees; see `gaussian_start`.

    Args:
        tokens: one data set, or a batch; its trials then share the largest rank.

    Returns:
        The tokens, of dimension r + 1, and the basis (d, r), or (trials, d, r) with zero columns where a trial has a
        lower rank. `x_new[..., :r] = x basis`. `info["dimension"]` is the d they had.

    >>> import attnlab as al
    >>> small, basis = in_span(al.data.orthogonal_signal(n=2, T=3, d=1000))
    >>> small.d, basis.shape
    (7, (1000, 6))
    """
    instance("tokens", tokens, Tokens, "al.Tokens")
    parts = [tokens] if tokens.trials is None else [tokens[i] for i in range(tokens.trials)]
    bases = [_basis(part) for part in parts]
    rank = max(basis.shape[1] for basis in bases)
    stacked = np.stack([np.pad(basis, ((0, 0), (0, rank - basis.shape[1]))) for basis in bases])
    basis = stacked[0] if tokens.trials is None else stacked
    padded = np.concatenate([basis, np.zeros((*basis.shape[:-1], 1))], axis=-1)
    info = {**tokens.info, "dimension": tokens.d}
    x, z = _coordinates("x", tokens.x, padded), _coordinates("z", tokens.z, padded)
    v = None if tokens.v is None else _coordinates("v", tokens.v, padded)
    return Tokens(x=x, z=z, y=tokens.y, v=v, mask=tokens.mask, info=info), basis


def gaussian_start(
    rank: int, dimension: int, scale: float, *, seed: int = 0, trials: int | None = None
) -> NDArray[np.float64]:
    """A d x d Gaussian start of deviation `scale`, seen from r + 1 coordinates of `in_span`.

    The r x r block is Gaussian in any orthonormal coordinates. No token sees the other d^2 - r^2 entries; their
    length, the root of a chi-square, stands in the last corner. So logits, norm and cosines have the law of the full
    matrix, which need not fit into memory.

    Args:
        rank: r.
        dimension: d, at least r.
        scale: deviation of an entry.
        seed, trials: trial i is drawn from stream (seed, i); None for no trial axis.

    Returns:
        (r + 1, r + 1), or (trials, r + 1, r + 1).

    >>> gaussian_start(3, 1000, 0.1).shape
    (4, 4)
    """
    number("dimension", dimension, least=1, most=LARGEST_DIMENSION)
    rank = whole("rank", rank)
    if rank > dimension:
        raise InputError(message(f"`rank` is {rank}; wanted from 1 to `dimension` = {shown(dimension)}."))
    scale = number("scale", scale, least=0, most=EXTREME / dimension)
    seed, count = whole("seed", seed, 0), trial_count(trials)
    enough_memory((count + 2) * (rank + 1) ** 2, f"gaussian_start with `rank` = {rank}, `trials` = {shown(trials)}")
    starts = np.zeros((count, rank + 1, rank + 1))
    for i, start in enumerate(starts):
        rng = np.random.default_rng([seed, i])
        start[:rank, :rank] = scale * rng.standard_normal((rank, rank))
        unseen = dimension**2 - rank**2
        start[rank, rank] = scale * np.sqrt(rng.chisquare(unseen)) if unseen else 0.0
    return starts[0] if trials is None else starts


def _basis(tokens: Tokens) -> Array:
    """Orthonormal columns that span tokens, queries and v of one data set, (d, r)."""
    d = tokens.d
    parts = [tokens.x.reshape(-1, d), tokens.z.reshape(-1, d)] + ([] if tokens.v is None else [tokens.v[None]])
    basis = spanning(np.concatenate(parts))
    return basis if basis.shape[1] else np.eye(d)[:, :1]


def spanning(vectors: Array) -> Array:
    """An orthonormal basis of the span of some row vectors, each taken at its own scale, as columns (d, rank)."""
    sizes = np.abs(vectors).max(axis=1, initial=0.0)
    if not sizes.any():
        return np.zeros((vectors.shape[1], 0))
    scaled = vectors[sizes > 0] / sizes[sizes > 0, None]
    _, singular, right = np.linalg.svd(scaled, full_matrices=False)
    return right[singular > 1e-15 * max(scaled.shape) * singular[0]].T


def _coordinates(name: str, array: Array, basis: Array) -> Array:
    """`array` (..., d) in the basis, both with a trial axis or both without."""
    if not is_ordinary(array):
        return _far_coordinates(name, array, basis)
    if basis.ndim == 2:
        return array @ basis
    flat = array.reshape(len(array), -1, array.shape[-1]) @ basis
    return flat.reshape(*array.shape[:-1], basis.shape[-1])


def _far_coordinates(name: str, array: Array, basis: Array) -> Array:
    """The same for vectors so long or short that each is taken at its own scale."""
    scaled, exponents = rows_to_one(array)
    # No row is then longer than sqrt(d), so that this is the ordinary way, but for entries far below the largest.
    inside = np.where(np.abs(scaled) > LOW, scaled, 0.0)
    with np.errstate(over="ignore", under="ignore"):
        found = np.ldexp(_coordinates(name, inside, basis), exponents)
    if not np.isfinite(found).all():
        largest = f"`tokens.{name}` has entries up to {np.abs(array).max():.1e}"
        raise InputError(message(f"{largest}; the length of such a vector is beyond float64.", "divide by 2^10"))
    return found
