"""What Proposition 1 of the encoder paper promises: rates in 40 digits, and the induction they come from."""

import mpmath as mp
import numpy as np
import pytest
from encoder_oracle import draw

from attnlab.errors import InputError
from attnlab.theory import encoder as en


@pytest.fixture(autouse=True, scope="module")
def _forty_digits():
    with mp.workdps(40):
        yield


@pytest.mark.parametrize(("gamma", "alpha", "c"), [(1e-3, 3.0, 0.5), (1e-5, 1e-7, 0.25), (0.1, 3.0, 0.85)])
def test_rates_in_40_digits(gamma, alpha, c):
    t = np.array([0.0, 1.0, 10.0, 1e6])
    got = en.rate_bound(gamma, alpha, t, c)
    for value, steps in zip(got, t, strict=True):
        wanted = (1 - mp.mpf(c) * mp.mpf(gamma) * mp.mpf(alpha) ** 2) ** int(steps)
        assert value == pytest.approx(float(wanted), rel=1e-9)
    assert (1.0 - got[2] > 0) == (gamma > 1e-5)  # what is lost below 1e-16 per step is kept over many steps
    assert en.rate_bound(1e-5, 1e-7, 1e20) == pytest.approx(np.exp(-5.0))
    assert en.rate_bound(gamma, alpha, 7.0) == en.rate_bound(gamma, alpha, 7.0, 0.5)


def test_rates_of_steps_too_large_and_of_nothing():
    assert en.rate_bound(1.0, 2.0, [0, 1]).tolist() == [1.0, np.inf]
    assert en.rate_bound(1.0, 0.0, [0, 5]).tolist() == [1.0, 1.0]
    assert en.rate_bound(2.0, 1.0, 3) == 0.0


def test_the_induction_closes():
    """Summing the rate gives the drift: alpha less drift, squared, must give the rate back."""
    for c in np.linspace(0.05, 1.0, 96):
        drift = 32.0**-1 * 2.0 / c  # of (3), with gamma sum_s sqrt(loss_s) <= 2 / (c alpha^2)
        assert en.drift_bound(1.0, c) == pytest.approx(drift)
        assert en.rate_follows(c) == (8.0**-1 * 2.0 / c <= 1.0 and (1.0 - drift) ** 2 >= c)
    assert en.drift_bound(2.0) == 0.25
    assert en.drift_bound(2.0, 0.25, corrected=False) == 1.0


def test_the_sum_behind_the_drift():
    """gamma sum_s (1 - c gamma alpha^2)^(s/2) <= 2 / (c alpha^2), the 4 / alpha^2 of c = 1/2, and close to it."""
    for c in (0.25, 0.5, 0.85):
        for gamma, alpha in ((1e-3, 1.0), (0.3, 1.5)):
            total = gamma * np.sqrt(en.rate_bound(gamma, alpha, np.arange(200_000), c)).sum()
            assert total <= 2.0 / (c * alpha**2)
            assert total >= 1.0 / (c * alpha**2)


@pytest.mark.parametrize("seed", range(40))
def test_alpha_with_a_residual_is_bounded(seed):
    """Eq. (62) without w_O and W_V; with them it can promise too much."""
    x, y, weights, tau0, tau1 = draw(seed, (3, 2, 4, 8))
    S = np.random.default_rng(seed).standard_normal((4, 8)) * 10 ** np.random.default_rng(seed).uniform(-4, 0)
    plain = en.Constants.of(x, y, weights, tau0=tau0, tau1=tau1)
    with_S = en.Constants.of(x, y, weights, tau0=tau0, tau1=tau1, residual=S)
    floor = en.residual_alpha(plain, with_S.shortcut)
    assert with_S.alpha >= floor - 1e-12 * plain.rho * plain.norms["V"]
    moved = np.sqrt(3) * tau1 * 2 * plain.C_x * with_S.shortcut
    rounding = 1e-12 * plain.alpha
    assert plain.alpha - floor == pytest.approx(moved, abs=rounding)
    printed = plain.alpha - en.residual_alpha(plain, with_S.shortcut, corrected=False)
    assert printed == pytest.approx(moved * plain.norms["O"] * plain.norms["V"], abs=rounding)
    assert en.weight_bounds(plain) == plain.radius
    with pytest.raises(InputError, match="already have a residual"):
        en.residual_alpha(with_S)


def test_arguments_are_checked():
    with pytest.raises(InputError, match="`corrected` is 'printed'"):
        en.drift_bound(1.0, corrected="printed")
    for call in (lambda: en.rate_bound(0.0, 1.0, 1), lambda: en.rate_bound(1.0, -1.0, 1), lambda: en.rate_follows(0.0),
                 lambda: en.rate_bound(1.0, 1.0, -1), lambda: en.drift_bound(-1.0)):  # fmt: skip
        with pytest.raises(InputError):
            call()
