"""Many trials through one compiled program, in blocks that fit the cache, over all cores.

XLA runs small programs on one core. Blocks of trials on threads use the others, and a block that stays in cache runs
faster than one that does not (1.4 times here at 5 x 5 x 10).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from attnlab.models.scaled import Tree, Value

# The block size follows from the shapes alone, never from the machine: same configuration, same numbers.
BLOCK_BYTES = 128 * 1024
MAX_BLOCK = 16
MAX_LANES = 64
LANE_BYTES = 1024 * 1024
VECTOR = 8  # float64 numbers in the widest registers
THREADS = "ATTNLAB_THREADS"


def cores() -> int:
    """Threads to run blocks on: $ATTNLAB_THREADS where processes share the cores, else one for each core."""
    given = os.environ.get(THREADS, "")
    return int(given) if given.isdecimal() and int(given) else os.cpu_count() or 1


def block_size(trials: int, bytes_per_trial: int) -> int:
    """How many trials to run together.

    A lone trial that would fit into a block with others runs twice, side by side: XLA sums in another order when an
    axis has length one, and training K and Q magnifies a last digit beyond recognition in some hundred steps.
    """
    fitting = max(1, min(MAX_BLOCK, BLOCK_BYTES // max(bytes_per_trial, 1)))
    return min(fitting, max(trials, 2))


def lane_count(trials: int, bytes_per_trial: int) -> int:
    """How many trials to run together along the last axis, in blocks of about one size.

    Whole vectors of them: what is left over of a vector is computed by other instructions, which round differently.
    """
    most = MAX_LANES
    while most > VECTOR and most * bytes_per_trial > LANE_BYTES:
        most //= 2
    blocks = -(-trials // most)
    share = -(-trials // blocks)
    if share <= VECTOR:
        return max(2, 1 << (share - 1).bit_length())
    return -(-share // VECTOR) * VECTOR


def in_blocks(
    program: Callable[..., Tree],
    per_trial: tuple[Tree, ...],
    *shared: Value | int,
    compiled: bool,
    alone: bool = False,
    at_work: int = 0,
    lanes: bool = False,
) -> Tree:
    """`program(*per_trial, *shared)` with every array of `per_trial` and of the result cut along its trial axis.

    `alone` has one trial in each block, for programs that take one at a time; a single one stays in the hands of JAX,
    as copies of a large network cost as much as half a step of it.

    `lanes` says that the program has the trials along the last axis.

    `at_work` is what the program holds of one trial beside its arrays, in bytes: all of it is to fit the cache.

    All blocks have one size, so that there is one compilation; the last overlaps the one before it if need be.
    Unless the program is `compiled`, the first block goes ahead alone, so that only one thread compiles.
    """
    leaves = jax.tree.leaves(per_trial)
    trials = leaves[0].shape[0]
    bytes_per_trial = at_work + sum(leaf.nbytes for leaf in leaves) // trials
    size = 1 if alone else (lane_count if lanes else block_size)(trials, bytes_per_trial)
    if size > trials:
        again = np.arange(size) % trials
        repeated = jax.tree.map(lambda array: np.asarray(array)[again], per_trial)
        results = in_blocks(program, repeated, *shared, compiled=compiled, at_work=at_work, lanes=lanes)
        return jax.tree.map(lambda array: array[:trials], results)
    starts = [min(start, trials - size) for start in range(0, trials, size)]

    def one(start: int) -> Tree:
        with jax.enable_x64(True):  # the setting is per thread
            # All of them need not be cut, which would copy what JAX holds.
            block = per_trial if size == trials else jax.tree.map(lambda a: a[start : start + size], per_trial)
            results = jax.block_until_ready(program(*block, *shared))
        return results if alone and len(starts) == 1 else jax.tree.map(np.asarray, results)

    if len(starts) == 1:
        return one(0)
    ahead = [] if compiled else [one(starts[0])]
    with ThreadPoolExecutor(min(len(starts), cores())) as pool:
        results = [*ahead, *pool.map(one, starts[len(ahead) :])]
    fresh = trials - (len(starts) - 1) * size  # trials of the last block that are not in the one before
    return jax.tree.map(lambda *parts: np.concatenate([*parts[:-1], parts[-1][size - fresh :]]), *results)
