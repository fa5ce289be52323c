"""Explicit constants of the rates in 40 digits, printed and corrected, and what the corrections repair."""

import math
from dataclasses import replace

import numpy as np
import pytest
import rate_oracle as oracle
from scipy.optimize import brentq

import attnlab as al
from attnlab.errors import InputError
from attnlab.theory import rate_bounds as rb, rate_constants

DATA = [
    al.data.two_tokens(),
    al.data.bad_direction(),
    al.data.orthogonal_signal(n=3, T=4, d=12, seed=1),
    oracle.draw(2, 4, 3, 8, scale=0.5),
]
BOTH = [True, False]


def close(got, wanted, rel=1e-12):
    assert float(got) == pytest.approx(float(wanted), rel=rel)


@pytest.mark.parametrize("corrected", BOTH)
@pytest.mark.parametrize("tokens", DATA, ids=["two", "bad", "signal", "random"])
def test_formulas_in_40_digits(tokens, corrected):
    c = rate_constants(tokens)
    for step in (1e-3, 0.3, 50.0):
        exact = oracle.Formulas(c, step)
        for eps in (1e-6, 0.1, 0.9):
            close(rb.radius(c, eps, corrected=corrected), exact.radius(eps, corrected))
        close(rb.first_time(c, step, corrected=corrected), exact.first_time(corrected))
        for lag in (0.0, 3.7):
            close(rb.rate_constant(c, step, lag=lag), exact.C(lag))
            for beta in (0.6, 0.99):
                got = rb.polyak_constants(c, step, beta, corrected=corrected)
                w1, w2, nu, t0, C = exact.polyak(beta, lag, corrected)
                close(got.omega_1, w1)
                close(got.omega_2, w2)
                close(got.ratio, nu, 1e-11)
                close(got.first_time, t0, 1e-11)
                close(got.C(lag), C, 1e-11)
                close(got.largest_step, w1 * math.log(2 * c.T - 1) / (2 * c.B**2))


@pytest.mark.parametrize("corrected", BOTH)
def test_many_sequences_make_the_other_branches_bind(corrected):
    c = replace(rate_constants(al.data.two_tokens()), n=10**9, T=40)
    exact = oracle.Formulas(c, 1.0)
    close(rb.first_time(c, 1.0, corrected=corrected), exact.first_time(corrected))
    close(rb.radius(c, 0.9, corrected=corrected), exact.radius(0.9, corrected))
    assert (rb.first_time(c, 1.0) > 1e9) == (rb.first_time(c, 1.0, corrected=corrected) > 1e9) or not corrected


@pytest.mark.parametrize("corrected", BOTH)
def test_few_sequences_leave_the_five_in_the_first_time(corrected):
    c = replace(rate_constants(al.data.two_tokens()), Lambda=10.0, upsilon=0.01)
    exact = oracle.Formulas(c, 1e12)  # the cube is tiny at this step
    close(rb.first_time(c, 1e12, corrected=corrected), exact.first_time(corrected))


def test_two_tokens_by_hand():
    c = rate_constants(al.data.two_tokens())
    step = rb.largest_step(c)
    assert step == pytest.approx(math.log(3) / 2)
    assert rb.largest_step(c, "gd") == pytest.approx(math.log(3))
    assert math.ceil(rb.first_time(c, step)) == 2457
    C = float(rb.rate_constant(c, step))
    assert pytest.approx(591, abs=1) == C
    assert rb.cosine_bound(C, [1e5, 1e6]) == pytest.approx([0.217, 0.887], abs=1e-3)
    lower, upper = rb.norm_bounds(c, step, [1, 10])
    assert lower == pytest.approx([step / 4, 10 * step / 4])
    assert upper == pytest.approx([2 * step, 20 * step])


def test_the_printed_zeta_allows_longer_steps():
    c = rate_constants(oracle.draw(2, 4, 3, 8))
    assert rb.largest_step(c, "gd") == pytest.approx(math.log(5) / (c.B**4 * c.zeta))
    assert rb.largest_step(c, "gd", corrected=False) == pytest.approx(math.log(5) / (c.B**4 * c.zeta_printed))
    with pytest.raises(InputError, match="`rule`"):
        rb.largest_step(c, "adam")


def test_a_small_margin_loosens_the_upper_bound_of_the_norm():
    c = replace(rate_constants(al.data.two_tokens()), Lambda=0.1)
    assert rb.norm_bounds(c, 1.0, 3.0)[1] == pytest.approx(2 * 2.5 * 3)


@pytest.mark.parametrize("tokens", DATA[:3], ids=["two", "bad", "signal"])
def test_time_of_lemma_8_solves_its_equation(tokens):
    c = rate_constants(tokens)
    for C in (1.0, 1e3):
        level = 2**11 * c.condition**4 * C
        root = brentq(lambda s, m=level: s - 2 * math.log(s) - math.log(m), 2.0, 200.0)
        assert rb.softmax_time(c, 1e6, C) == pytest.approx(max(math.exp(root), rb.first_time(c, 1e6)), rel=1e-9)
        printed = max(rb.first_time(c, 1e6, corrected=False), 2**11 * c.condition**2 * C)
        assert rb.softmax_time(c, 1e6, C, corrected=False) == pytest.approx(printed)
    assert rb.softmax_time(c, 0.1, 1e-12) == rb.first_time(c, 0.1)


def test_softmax_bound():
    c = rate_constants(DATA[2])
    t = np.array([0.0, 10.0, 1e9])
    wanted = [1 / (1 + 3 * math.exp(-0.2 * s / (8 * c.B**2 * c.Lambda**2))) for s in t]
    assert rb.softmax_bound(c, 0.2, t) == pytest.approx(wanted)
    assert wanted[0] == 0.25


def test_constant_of_gradient_descent():
    c = rate_constants(al.data.two_tokens())
    norm, cosine, loss, eps, step = 3.0, 0.9, 0.5, 0.2, 0.4
    inside = 1 - cosine / (1 - eps) + 2 * step * loss / norm
    got = rb.descent_constant(c, step, eps, norm=norm, cosine=cosine, loss=loss)
    assert got == pytest.approx((1 - eps) * norm * inside)
    printed = 2 / step * (1 - eps) * norm * (1 - cosine / (1 - eps) - 2 * step * loss / norm)
    assert rb.descent_constant(c, step, eps, norm=norm, cosine=cosine, loss=loss, corrected=False) == pytest.approx(
        printed
    )
    assert printed < 0 < got
    assert rb.descent_bound(eps, 0.3, [1.0, 3.0]) == pytest.approx([0.5, 0.7])


def test_bad_input():
    c = rate_constants(al.data.two_tokens())
    for eps in (0.0, 1.0, np.nan, [0.1, 2.0]):
        with pytest.raises(InputError, match="`eps`"):
            rb.radius(c, eps)
    for step in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="`step`"):
            rb.first_time(c, step)
        with pytest.raises(InputError, match="`step`"):
            rb.rate_constant(c, step)
    with pytest.raises(InputError, match="`beta`"):
        rb.polyak_constants(c, 0.1, 1.0)
