"""Assumptions 1 to 4 of the encoder paper: by loops over pairs, on made and on known tokens."""

import numpy as np
import pytest

from attnlab.errors import InputError
from attnlab.theory import encoder as en
from attnlab.theory.encoder.assumptions import _exponents


def gaussian(n, T, d, seed=0, normalize=None):
    x = np.random.default_rng(seed).standard_normal((n, T, d))
    if normalize == "rows":
        return x / np.linalg.norm(x, axis=2, keepdims=True)
    return x / np.linalg.norm(x, axis=(1, 2), keepdims=True) if normalize == "frobenius" else x


# 1 and 2 ----------------------------------------------------------------------------------------------------------


def test_bound_on_tokens():
    x = gaussian(6, 4, 3)
    found = en.assumption_1(x)
    assert found.C_x == pytest.approx(max(np.sqrt(sum(v * v for v in one.ravel())) for one in x) / 2)
    np.testing.assert_allclose(found.norms, [np.sqrt((one**2).sum()) for one in x])
    assert found.holds
    assert en.assumption_1(gaussian(5, 7, 3, normalize="rows")).C_x == pytest.approx(1.0)
    assert en.assumption_1(np.zeros((1, 2, 3))).C_x == 0.0


@pytest.mark.parametrize(("T", "d"), [(3, 5), (5, 5), (5, 3), (1, 4), (1, 1)])
def test_ranks(T, d):
    x = gaussian(4, T, d, seed=T)
    found = en.assumption_2(x)
    assert found.ranks.tolist() == [min(T, d)] * 4
    assert found.holds == (d >= T)
    least = [np.linalg.eigvalsh(one @ one.T)[0] for one in x] if d >= T else [0.0] * 4
    np.testing.assert_allclose(found.least, least, rtol=1e-7, atol=1e-14)
    assert found.C_lambda == pytest.approx(min(least), rel=1e-7)


def test_dependent_tokens():
    x = gaussian(3, 3, 6)
    x[1, 2] = x[1, 0] - 2 * x[1, 1]
    found = en.assumption_2(x)
    assert found.ranks.tolist() == [3, 2, 3]
    assert (found.holds, found.C_lambda) == (False, 0.0)
    x[1, 2] += 1e-7 * np.ones(6)
    assert en.assumption_2(x).holds
    assert en.assumption_2(x).C_lambda > 0
    assert en.assumption_2(x, tolerance=1e-5).ranks.tolist() == [3, 2, 3]
    zeros = en.assumption_2(np.zeros((2, 2, 3)))
    assert (zeros.ranks.tolist(), zeros.C_lambda, zeros.holds) == ([0, 0], 0.0, False)
    twice = en.assumption_2(np.ones((1, 2, 2)) * [[[1.0], [1.0 + 1e-11]]])
    assert (twice.holds, twice.C_lambda) == (False, 0.0)


# 3 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "T", "d"), [(5, 3, 4), (1, 2, 2), (4, 1, 3), (3, 6, 1), (2, 2, 9)])
def test_similarities_by_loops(n, T, d):
    x = gaussian(n, T, d, seed=n)
    both = [[np.trace((a.T @ a) @ (b.T @ b)) for b in x] for a in x]
    for block in (1, 2 * n * T * T * 2, 10**6):
        got = en.similarities(x, block=block)
        np.testing.assert_allclose(got, both, rtol=1e-11)
        assert (got == got.T).all()
        assert (got >= 0).all()
    np.testing.assert_allclose(en.similarities(3.0 * x), 81.0 * np.array(both), rtol=1e-11)
    np.testing.assert_allclose(en.similarities(x[:, ::-1]), both, rtol=1e-11)


def test_small_similarities_keep_their_digits():
    """|X_n X_m^T|^2 = 1e-20 where the entries of X_n^T X_n are 1: as an inner product of those it would be noise."""
    x = np.array([[[1.0, 1.0]], [[1.0, -1.0 + 1e-10]]])
    assert en.similarities(x)[0, 1] == pytest.approx(1e-20, rel=1e-5)


def test_tails():
    values = np.array([3.0, 1.0, 2.0, 2.0])
    t = np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5])
    np.testing.assert_array_equal(en.tail_probability(values, t), [(values >= s).mean() for s in t])
    assert en.tail_probability([], [1.0]).tolist() == [0.0]


@pytest.mark.parametrize("normalize", [None, "rows", "frobenius"])
def test_similarity_of_gaussian_tokens(normalize):
    """N = 100, T = 10, d = 100: s has median 9903, 0.991 or 0.0099, and 99 % quantile 13915, 1.333 or 0.0134."""
    x = gaussian(100, 10, 100, normalize=normalize)
    found = en.assumption_3(x)
    middle, high = {None: (9903, 13915), "rows": (0.991, 1.333), "frobenius": (0.0099, 0.0134)}[normalize]
    assert found.quantiles[1] == pytest.approx(middle, rel=0.02)
    assert found.quantiles[2] == pytest.approx(high, rel=0.03)
    s = np.array([np.sum((x[i] @ x[j].T) ** 2) for i in range(100) for j in range(i)])
    assert found.quantiles[0] == pytest.approx(np.quantile(s, 0.01))
    assert found.pairs == 4950 == len(s)
    assert found.thresholds.shape == found.tail.shape == (50,)
    np.testing.assert_allclose(found.thresholds, np.linspace(s.min(), s.max(), 50))
    middle_part = slice(1, -1)  # the ends are s of one pair each, known to rounding only
    np.testing.assert_array_equal(found.tail[middle_part], [(s >= t).mean() for t in found.thresholds[middle_part]])
    assert found.tail[0] == 1.0
    # The printed inequality fails for raw tokens and unit rows, and says nothing for unit norms.
    assert (found.holds, found.trivial) == ((True, True) if normalize == "frobenius" else (False, False))
    assert found.exponential is not None
    assert found.exponential.slope < 0
    assert found.exponential.r2 > 0.9
    assert found.power is not None
    assert found.power.slope > 1.0
    size = np.linalg.norm(x, axis=(1, 2))
    assert found.norms == pytest.approx((size.min(), size.max()))
    lengths = np.linalg.norm(x, axis=2)
    assert found.lengths == pytest.approx((lengths.min(), lengths.max()))


def test_fits_are_least_squares():
    """Against the polynomial fit of NumPy and its correlation, on what they are said to be fitted to."""
    found = en.assumption_3(gaussian(60, 3, 8), within=(0.02, 0.9), points=30)
    t, tail = found.thresholds, found.tail
    assert len(t) == 30
    use = (tail > 0.02) & (tail <= 0.9)
    inner = (tail > 0) & (tail < 1) & (t > 0)
    lower = np.log(-np.log(tail[inner]))
    for line, a, b in ((found.exponential, t[use], np.log(tail[use])), (found.power, np.log(t[inner]), lower)):
        slope, intercept = np.polyfit(a, b, 1)
        assert line.slope == pytest.approx(slope)
        assert line.intercept == pytest.approx(intercept)
        assert line.r2 == pytest.approx(np.corrcoef(a, b)[0, 1] ** 2)
        assert line.points == len(a)
    default = en.assumption_3(gaussian(60, 3, 8)).exponential
    assert default is not None
    whole = en.assumption_3(gaussian(60, 3, 8))
    assert default.points == (whole.tail <= 0.5).sum()


@pytest.mark.parametrize("seed", range(3))
def test_exponents_are_where_the_inequality_begins_to_hold(seed):
    """Check (iii) against a scan over exponents."""
    for scale in (0.2, 1.0, 3.0):
        x = gaussian(40, 1, 2, seed=seed) * scale
        found = en.assumption_3(x, tolerance=0.05)
        t, tail = found.thresholds, found.tail
        low, high = found.exponents
        for exponent in np.linspace(1e-3, 20, 400):
            literal = bool((tail <= np.exp(-(t**exponent)) + 0.05).all())
            assert literal == (low <= exponent <= high)


@pytest.mark.parametrize(
    ("t", "tail", "tolerance", "wanted"),
    [
        ([0.5], [np.exp(-0.25)], 0.0, (2.0, np.inf)),  # 0.5^c <= 0.25
        ([4.0], [np.exp(-2.0)], 0.0, (0.0, 0.5)),  # 4^c <= 2
        ([0.5, 4.0], [np.exp(-0.25), np.exp(-2.0)], 0.0, (2.0, 0.5)),  # both: none
        ([0.5, 4.0], [np.exp(-0.9), np.exp(-2.0)], 0.0, (np.log(0.9) / np.log(0.5), 0.5)),
        ([1.0], [0.3], 0.0, (0.0, np.inf)),  # exp(-1) = 0.37
        ([1.0], [0.4], 0.0, (np.inf, 0.0)),
        ([1.0], [0.4], 0.05, (0.0, np.inf)),
        ([4.0], [0.4], 0.0, (np.inf, 0.0)),  # even t^0 = 1 is too much
        ([1.5], [0.4], 0.0, (np.inf, 0.0)),
        ([4.0], [np.exp(-1.5)], 0.0, (0.0, np.log(1.5) / np.log(4.0))),
        ([0.5], [1.0], 0.0, (np.inf, 0.0)),  # P = 1 is never below exp(-t^c)
        ([0.5], [1.0], 0.01, (np.log(-np.log(0.99)) / np.log(0.5), np.inf)),
        ([0.0], [1.0], 0.0, (0.0, np.inf)),  # exp(-0) = 1
        ([0.5, 4.0], [0.01, 0.01], 0.01, (0.0, np.inf)),
        ([], [], 0.0, (0.0, np.inf)),
    ],
)
def test_exponents_in_closed_form(t, tail, tolerance, wanted):
    assert _exponents(np.array(t), np.array(tail), tolerance) == pytest.approx(wanted)


def test_pairs_that_tell_nothing():
    alone = en.assumption_3(gaussian(1, 2, 3))
    assert (alone.pairs, alone.exponential, alone.power, alone.holds, alone.trivial) == (0, None, None, True, True)
    assert alone.quantiles == (0.0, 0.0, 0.0)
    pair = en.assumption_3(gaussian(2, 2, 3))
    assert (pair.pairs, pair.exponential, pair.power) == (1, None, None)
    same = en.assumption_3(np.ones((5, 1, 1)))
    assert (same.exponential, same.power, same.tail.min(), same.holds) == (None, None, 1.0, False)
    apart = en.assumption_3(np.eye(4)[:, None])
    assert (apart.quantiles, apart.exponential, apart.power, apart.holds) == ((0.0, 0.0, 0.0), None, None, True)
    # Six pairs with s = 1, four with s = 16: the tail is 0.4 in between, and a constant has no slope.
    two = en.assumption_3(np.array([1.0, 1.0, 1.0, 1.0, 4.0])[:, None, None])
    assert (two.tail[0], two.tail[1], two.tail[-1]) == (1.0, 0.4, 0.4)
    assert (two.exponential, two.power) == (None, None)
    for found in (alone, pair, same, apart, two):
        assert not np.isnan([*found.quantiles, *found.tail, *found.exponents]).any()


# 4 ----------------------------------------------------------------------------------------------------------------


def test_covariance_of_pooled_tokens():
    x = gaussian(50, 3, 4)
    for token, pooled in (("sum", x.sum(1)), ("mean", x.mean(1))):
        found = en.assumption_4(x, token)
        Sigma = sum(np.outer(v, v) for v in pooled) / 50
        np.testing.assert_allclose(found.Sigma, Sigma)
        assert found.C_Sigma == pytest.approx(np.linalg.eigvalsh(Sigma)[0])
        assert found.token == token
        assert found.holds
    assert en.assumption_4(x).token == "sum"
    assert en.assumption_4(x).C_Sigma == pytest.approx(9 * en.assumption_4(x, "mean").C_Sigma)


def test_covariances_that_are_singular():
    assert en.assumption_4(gaussian(3, 2, 4)).C_Sigma == 0.0
    assert en.assumption_4(gaussian(4, 2, 4)).holds
    flat = gaussian(20, 2, 3)
    flat[..., 2] = flat[..., 0] + flat[..., 1]
    assert not en.assumption_4(flat).holds
    assert not en.assumption_4(np.zeros((3, 1, 2))).holds


def test_arguments_are_checked():
    x = gaussian(3, 2, 2)
    for call in (
        lambda: en.assumption_1(x[None]), lambda: en.assumption_1(x[0]), lambda: en.assumption_2(x, tolerance=0.0),
        lambda: en.assumption_3(x, points=0), lambda: en.assumption_3(x, tolerance=-1.0),
        lambda: en.assumption_3(x, within=(0.5, 0.5)), lambda: en.assumption_3(x, within=(-0.1, 0.5)),
        lambda: en.assumption_3(x, within=(0.1, 1.5)), lambda: en.assumption_3(x, block=0),
        lambda: en.assumption_4(x, "first"), lambda: en.similarities(x * np.nan),
    ):  # fmt: skip
        with pytest.raises(InputError):
            call()
