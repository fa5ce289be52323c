"""Widths and probabilities of the encoder paper: each width solves the inequality it comes from."""

import numpy as np
import pytest

from attnlab.errors import InputError
from attnlab.theory import encoder as en

SIZES = {"N": 30, "T": 3, "d": 5, "C_x": 1.3, "lambda0": 0.02}
CASES = [(i, s, m) for i, s in (("lecun", "sqrt"), ("lecun", "linear"), ("ntk", "linear")) for m in (False, True)]


def sides(init, scaling, corrected, m, *, N, T, d, C_x, lambda0):
    """Both sides of conditions (2) and (3) at width m, with orders for norms: sqrt(m) or sqrt(m / d), and 1.

    Constants of the conditions are hidden in O in the paper and 1 here, and l_Q^2 + l_K^2 counts as one square.
    """
    ntk = init == "ntk"
    tau0 = m**-0.5 if scaling == "sqrt" else 1.0 / m
    tau1 = m**-0.5 if ntk else 1.0
    inner, outer = (m**0.5, m**0.5) if ntk else ((m / d) ** 0.5, 1.0)
    radius = m**0.5 if ntk and corrected else 1.0
    alpha2 = m * lambda0 / 4 * (tau1**2 if corrected else 1.0)
    rho = N**0.5 * T**1.5 * tau1 * C_x
    softmax = 2 * tau0 * C_x**2 * T * inner * inner * outer
    if (init, corrected) == ("ntk", False):  # (57): the softmax entry, its 2 hidden in O
        worst = softmax / 2
    elif init == "lecun" and (not corrected or scaling == "linear"):  # (45), (51)
        worst = inner
    else:
        worst = max(inner, outer, softmax)
    dist = N**0.5
    z = outer * (1 + (2 * tau0 * C_x**2 * T) ** 2 * inner**4)
    if (init, scaling) == ("lecun", "sqrt"):
        z -= outer  # the part that grows with m is kept
    third = rho**2 * z * dist
    if (init, corrected) == ("ntk", False):
        third *= m**0.5  # (58) has no m^(-1/2)
    return (alpha2, rho * worst / radius * dist), (alpha2**1.5, third)


@pytest.mark.parametrize(("init", "scaling", "corrected"), CASES)
def test_widths_solve_their_inequalities(init, scaling, corrected):
    """At that width both sides are equal; at twice that width the left is larger."""
    found = en.required_width(init, scaling, corrected=corrected, **SIZES)
    for k, m in enumerate((found.condition_2, found.condition_3)):
        left, right = sides(init, scaling, corrected, m, **SIZES)[k]
        assert left == pytest.approx(right, rel=1e-9)
        left, right = sides(init, scaling, corrected, 2 * m, **SIZES)[k]
        assert left > right
    assert found.width == max(found.condition_2, found.condition_3, found.rest)
    assert (found.init, found.scaling, found.corrected) == (init, scaling, corrected)


@pytest.mark.parametrize(
    ("init", "scaling", "corrected", "powers"),
    [("lecun", "sqrt", False, (2, 3)), ("lecun", "sqrt", True, (2, 3)), ("he", "linear", False, (2, 1)),
     ("lecun", "linear", True, (2, 1)), ("ntk", "linear", False, (1, 1)),
     ("ntk", "linear", True, (2, 3))],
)  # fmt: skip
def test_widths_grow_with_the_number_of_sequences(init, scaling, corrected, powers):
    one, ten = (en.required_width(init, scaling, corrected=corrected, **{**SIZES, "N": n}) for n in (30, 300))
    assert ten.condition_2 / one.condition_2 == pytest.approx(10.0 ** powers[0])
    assert ten.condition_3 / one.condition_3 == pytest.approx(10.0 ** powers[1])
    assert one.order == max(powers)


def test_the_entries_left_out_of_eq_45():
    """The max counts where the softmax is steep, 4 C_x^4 T^2 > d, and only there."""
    flat = {**SIZES, "C_x": 0.1}
    for sizes, factor in ((SIZES, 4 * 1.3**4 * 9 / 5), (flat, 1.0)):
        printed, mended = (en.required_width("lecun", "sqrt", corrected=m, **sizes).condition_2 for m in (False, True))
        assert mended / printed == pytest.approx(factor)
    ones = {"N": 1, "T": 1, "d": 1, "C_x": 0.5, "lambda0": 1.0}
    assert en.required_width("ntk", "linear", **ones).condition_2 == pytest.approx(16 * 0.25)
    assert en.required_width("ntk", "linear", **{**ones, "C_x": 1.0}).condition_2 == pytest.approx(64.0)


def test_he_asks_for_what_lecun_does_and_rest_is_the_rest():
    for scaling in ("sqrt", "linear"):
        he, lecun = (en.required_width(i, scaling, **SIZES) for i in ("he", "lecun"))
        assert (he.condition_2, he.condition_3) == (lecun.condition_2, lecun.condition_3)
    for sizes, rest in (({"N": 7, "d": 5, "lambda0": 2.0}, 7.0), ({"N": 3, "d": 5, "lambda0": 1.0}, 5.0),
                        ({"N": 3, "d": 5, "lambda0": 0.1}, 30.0)):  # fmt: skip
        assert en.required_width("lecun", "linear", **{**SIZES, **sizes}).rest == pytest.approx(rest)
    nothing = en.required_width("lecun", "sqrt", **{**SIZES, "lambda0": 0.0})
    assert nothing.width == nothing.condition_2 == nothing.condition_3 == nothing.rest == np.inf
    assert en.required_width("he", "sqrt", **SIZES).corrected


def test_probabilities_as_stated():
    sizes = {"width": 9, "N": 4, "T": 2, "d": 3, "delta": 0.01, "c_hat": 0.5, "factor": 20.0}
    start, unlike = np.exp(-4.5), np.exp(-20.0 * 3**-0.5 / 2)
    lost = {"T1": 8 * start + 0.01 + unlike, "T2": 8 * start + 0.01 + unlike, "T3": 8 * start, "L15": unlike,
            "L16": 0.01, "L17": np.exp(-3), "L18": 0.01 + np.exp(-3), "L19": np.exp(-3), "L20": 2 * start}  # fmt: skip
    for statement, wanted in lost.items():
        assert en.probability(statement, **sizes) == pytest.approx(1 - wanted, rel=1e-12)
    assert en.probability("T1", width=1, N=4, T=2, d=3) == 0.0
    plain = {"width": 100, "T": 2, "d": 3}
    assert en.probability("L15", N=1, **plain) == 1.0
    assert en.probability("L15", N=5, **plain) == pytest.approx(1 - np.exp(-1 / 8))
    assert en.probability("L16", N=5, **plain) == pytest.approx(0.95)
    # Many sequences: the larger N, the less is left, and the more the larger c_hat.
    chances = [en.probability("L15", N=n, c_hat=c, **plain) for c in (0.1, 1.0) for n in (10, 1000)]
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] < 1e-3


def test_lemma_16_width_gives_its_error():
    sizes = {"N": 4, "T": 3, "d": 6, "C_x": 0.9, "variance": 0.5, "delta": 0.1}
    log = np.log(2 * 36 * 16 / 0.1)
    assert en.lemma_16_error(100, **sizes) == pytest.approx(8 * 4 * 0.5 * 0.9**4 * 9 * 6 * np.sqrt(log / 100))
    assert en.lemma_16_width(0.3, **sizes) == pytest.approx((32 * 4 * 0.5 * 0.9**4 * 9 * 6) ** 2 * log / 0.09)
    assert en.lemma_16_error(en.lemma_16_width(0.3, **sizes), **sizes) == pytest.approx(0.3 / 4)
    assert en.lemma_16_width(0.0, **sizes) == np.inf
    del sizes["variance"], sizes["delta"]
    assert en.lemma_16_error(100, **sizes) == en.lemma_16_error(100, variance=1.0, delta=0.05, **sizes)
    assert en.lemma_16_width(2.0, **sizes) == en.lemma_16_width(2.0, variance=1.0, delta=0.05, **sizes)


def test_lemma_16_covers_what_is_measured():
    rng = np.random.default_rng(0)
    n, T, d = 3, 2, 5
    x = rng.standard_normal((n, T, d)) / np.sqrt(d)
    mean = x.mean(1)
    for m in (64, 1024):
        w = {k: rng.standard_normal((m, d)) for k in ("W_Q", "W_K", "W_V")} | {"w_O": np.zeros(m)}
        phi = en.forward(x, w, 1.0 / m, 1.0).attended[:, 0]
        error = np.linalg.norm(phi @ phi.T - mean @ mean.T)
        assert 0 < error <= en.lemma_16_error(m, N=n, T=T, d=d, C_x=en.assumption_1(x).C_x)


def test_table_3():
    assert len(en.LITERATURE) == 13
    assert en.LITERATURE[0].width == "N^24 L^12"
    assert [row.width for row in en.LITERATURE if row.init == "LeCun"] == ["N^3"]
    assert en.LITERATURE[-1].model == "Transformer"


def test_arguments_are_checked():
    for bad in ({"init": "xavier"}, {"scaling": "root"}, {"init": "ntk", "scaling": "sqrt"}, {"N": 0}, {"C_x": 0.0},
                {"lambda0": -1.0}, {"corrected": "printed"}):  # fmt: skip
        with pytest.raises(InputError):
            en.required_width(**{"init": "lecun", "scaling": "sqrt", **SIZES, **bad})
    good = {"statement": "T1", "width": 1, "N": 1, "T": 1, "d": 1}
    for bad in ({"statement": "T4"}, {"width": 0}, {"delta": 0.0}, {"delta": 1.0}, {"c_hat": 0.0}, {"factor": -1.0}):
        with pytest.raises(InputError):
            en.probability(**{**good, **bad})
    for bad in ({"delta": 1.0}, {"variance": 0.0}, {"N": 0}, {"C_x": -1.0}):
        with pytest.raises(InputError):
            en.lemma_16_error(**{"width": 1, "N": 1, "T": 1, "d": 1, "C_x": 1.0, **bad})
    with pytest.raises(InputError):
        en.lemma_16_width(-1.0, N=1, T=1, d=1, C_x=1.0)


@pytest.mark.parametrize("init", ["lecun", "ntk"])
@pytest.mark.parametrize("size", [1e-100, 1e-20, 1e20])
def test_widths_of_small_and_large_tokens(init, size):
    """With tokens times s, lambda_0 goes with s^2; where attention adds nothing, so does 1 / condition (2)."""
    sizes = {"N": 5, "T": 2, "d": 3}
    base = en.required_width(init, "linear", C_x=1e-10, lambda0=1e-20, **sizes).condition_2
    other = en.required_width(init, "linear", C_x=1e-10 * size, lambda0=1e-20 * size * size, **sizes).condition_2
    if init == "lecun" or size < 1:
        assert other == pytest.approx(base / size / size, rel=1e-9)
    else:
        assert other > base / size / size
