"""The loss above its floor, of heads whose values hide what small tokens add; against 60 digits."""

from __future__ import annotations

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import attnlab as al

mpmath.mp.dps = 60


def smooth_head(output):
    """With a constant part that is larger than anything small tokens add."""
    return 3.0 + jnp.tanh(jnp.sum(output))


def kinked_head(output):
    """The same with kinks."""
    return 3.0 + jnp.sum(jnp.maximum(output, 0.0))


EXACT = {
    smooth_head: lambda output: 3 + mpmath.tanh(mpmath.fsum(output)),
    kinked_head: lambda output: 3 + mpmath.fsum(max(entry, mpmath.mpf(0)) for entry in output),
}


def log_excess_in_60_digits(tokens, W, head):
    """log of the logistic loss less that with all attention on the best tokens; NaN where it is the smaller one.

    Which tokens are best is what float64 says: those whose scores differ by rounding are equally good.
    """
    total = mpmath.mpf(0)
    references, _ = al.optimal_tokens(tokens, head, return_ties=True)
    for x, z, y, reference in zip(tokens.x, tokens.z, tokens.y, references, strict=True):
        rows = [[mpmath.mpf(float(entry)) for entry in row] for row in x]
        asked = [mpmath.fsum(mpmath.mpf(float(W[i, j])) * float(z[j]) for j in range(len(z))) for i in range(len(z))]
        sizes = [mpmath.exp(mpmath.fdot(row, asked)) for row in rows]
        share = [size / mpmath.fsum(sizes) for size in sizes]
        output = [mpmath.fsum(s * row[i] for s, row in zip(share, rows, strict=True)) for i in range(len(z))]
        best = float(y) * EXACT[head](rows[reference])
        total += mpmath.log1p(mpmath.exp(-float(y) * EXACT[head](output))) - mpmath.log1p(mpmath.exp(-best))
    return float(mpmath.log(total / len(tokens.x))) if total > 0 else np.nan


@pytest.mark.parametrize("power", [0, -20, -30, -40, -60, -120])
@pytest.mark.parametrize("seed", range(3))
def test_a_smooth_head_keeps_its_digits_however_small_the_tokens(power, seed):
    plain = al.data.sphere(n=3, T=4, d=3, seed=seed)
    tokens = al.Tokens(x=np.ldexp(plain.x, power), z=np.ldexp(plain.z, -power), y=plain.y, v=plain.v)
    W = np.random.default_rng(seed).standard_normal((3, 3))
    found = float(al.models.excess_loss(tokens, W, head=smooth_head, log=True))
    assert found == pytest.approx(log_excess_in_60_digits(tokens, W, smooth_head), abs=2e-7, nan_ok=True)


@pytest.mark.parametrize("power", [0, -10, -20])
@pytest.mark.parametrize("seed", range(6))
def test_a_kinked_head_is_not_taken_for_a_smooth_one(power, seed):
    """Slopes at three places between two points say nothing of a kink beside them; values do, to their rounding."""
    plain = al.data.sphere(n=3, T=4, d=3, seed=seed)
    tokens = al.Tokens(x=np.ldexp(plain.x, power), z=np.ldexp(plain.z, -power), y=plain.y, v=plain.v)
    W = np.random.default_rng(seed).standard_normal((3, 3))
    found = float(al.models.excess_loss(tokens, W, head=kinked_head, log=True))
    rounding = 1e-14 * 2.0**-power
    assert found == pytest.approx(
        log_excess_in_60_digits(tokens, W, kinked_head), abs=1e-12 + 100 * rounding, nan_ok=True
    )
