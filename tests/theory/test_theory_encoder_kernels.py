"""Arc-cosine kernels, the limiting tangent kernel, lambda_0 and alpha: in 50 digits, by Monte Carlo, by loops."""

import tracemalloc

import mpmath as mp
import numpy as np
import pytest
from encoder_oracle import draw, jacobian

from attnlab.errors import InputError
from attnlab.theory import encoder as en


@pytest.fixture(autouse=True, scope="module")
def _fifty_digits():
    with mp.workdps(50):
        yield


def exact(p, q):
    """E0 and E1 in 50 digits, by the textbook formula."""
    p, q = [mp.mpf(float(v)) for v in p], [mp.mpf(float(v)) for v in q]
    a, b = mp.sqrt(mp.fsum(v * v for v in p)), mp.sqrt(mp.fsum(v * v for v in q))
    if a == 0 or b == 0:
        return mp.mpf(0), mp.mpf(0)
    cosine = max(mp.mpf(-1), min(mp.mpf(1), mp.fdot(p, q) / (a * b)))
    theta = mp.acos(cosine)
    return (mp.pi - theta) / (2 * mp.pi), a * b / (2 * mp.pi) * (mp.sin(theta) + (mp.pi - theta) * cosine)


def check(phi, psi, E0, E1, rel=1e-13):
    for i, p in enumerate(phi):
        for j, q in enumerate(psi):
            e0, e1 = exact(p, q)
            assert E0[i, j] == pytest.approx(float(e0), rel=rel, abs=1e-15)
            assert E1[i, j] == pytest.approx(float(e1), rel=rel, abs=1e-15 * np.linalg.norm(p) * np.linalg.norm(q))


# E0 and E1 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 40])
def test_expectations_in_50_digits(d):
    rng = np.random.default_rng(d)
    phi = rng.standard_normal((5, d)) * 10 ** rng.uniform(-3, 3, (5, 1))
    psi = rng.standard_normal((4, d)) * 10 ** rng.uniform(-3, 3, (4, 1))
    phi[3], psi[2], psi[3] = 0.0, 3.0 * phi[0], -0.1 * phi[1]
    check(phi, psi, en.arc_cosine_0(phi, psi), en.arc_cosine_1(phi, psi))
    check(phi, phi, en.arc_cosine_0(phi), en.arc_cosine_1(phi))


@pytest.mark.parametrize("angle", [1e-3, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_almost_parallel(angle, sign):
    """Far beyond what arccos of a rounded cosine can tell: it is blind below 1e-8."""
    rng = np.random.default_rng(int(-np.log10(angle)))
    base = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    p, q = 1.7 * base[0], sign * 0.6 * (np.cos(angle) * base[0] + np.sin(angle) * base[1])
    (e0,), (e1,) = en.arc_cosine_0([p], [q])[0], en.arc_cosine_1([p], [q])[0]
    w0, w1 = exact(p, q)
    assert abs(e0 - w0) <= 3e-16  # rounding of the unit rows, as an angle over 2 pi
    if sign > 0:
        assert abs(e1 - w1) <= 1e-15 * w1
        assert (mp.mpf("0.5") - w0) * 2 * mp.pi == pytest.approx(angle, rel=1e-3)
    else:  # E1 = |p| |q| t^3 / (6 pi) for t = pi - theta, of which rounding leaves t to about 3e-16
        assert abs(e1 - w1) <= w1 * (1e-12 + 4 * 3e-16 / angle)
        assert float(w1) == pytest.approx(1.7 * 0.6 * angle**3 / (6 * np.pi), rel=1e-2)


def test_the_series_meets_the_sine():
    """E1 across pi - theta = 1, where one formula takes over from the other, and over the whole range."""
    angles = np.concatenate([np.linspace(0, np.pi, 41), np.pi - 1 + np.array([-1e-9, 0.0, 1e-9])])
    phi, psi = np.array([[1.0, 0.0]]), np.stack([np.cos(angles), np.sin(angles)], axis=1)
    got = en.arc_cosine_1(phi, psi)[0]
    for value, q in zip(got, psi, strict=True):
        assert value == pytest.approx(float(exact(phi[0], q)[1]), rel=2e-14, abs=1e-17)


def test_expectations_by_sampling():
    """One million draws of w."""
    rng = np.random.default_rng(0)
    phi = rng.standard_normal((5, 3)) / np.sqrt(3)
    u = phi @ rng.standard_normal((3, 1_000_000))
    on = (u > 0).astype(float)
    np.testing.assert_allclose(en.arc_cosine_0(phi), on @ on.T / 1e6, atol=3e-3)
    np.testing.assert_allclose(en.arc_cosine_1(phi), np.maximum(u, 0) @ np.maximum(u, 0).T / 1e6, atol=6e-3)


def test_laws_of_the_expectations():
    rng = np.random.default_rng(3)
    phi = rng.standard_normal((30, 5))
    E0, E1 = en.arc_cosine_0(phi), en.arc_cosine_1(phi)
    for E in (E0, E1):
        assert (E == E.T).all()
        assert np.linalg.eigvalsh(E)[0] > 0
    np.testing.assert_allclose(np.diag(E0), 0.5)
    np.testing.assert_allclose(np.diag(E1), 0.5 * (phi**2).sum(1))
    scale = 10 ** rng.uniform(-150, 100, 30)
    np.testing.assert_allclose(en.arc_cosine_0(scale[:, None] * phi), E0, rtol=1e-13)
    np.testing.assert_allclose(en.arc_cosine_1(scale[:, None] * phi), E1 * np.outer(scale, scale), rtol=1e-13)
    # relu(u) - relu(-u) = u, so E1(p, q) - E1(-p, q) = p.q / 2; slopes of p and -p share nothing and cover all.
    np.testing.assert_allclose(E1 - en.arc_cosine_1(-phi, phi), 0.5 * phi @ phi.T, atol=1e-14)
    np.testing.assert_allclose(E0 + en.arc_cosine_0(-phi, phi), 0.5, atol=1e-15)
    tiny = np.array([[1e-200, 1e-200], [0.0, 1e-200]])
    assert en.arc_cosine_0(tiny)[0].tolist() == [0.5, 0.375]
    assert (en.arc_cosine_0([[0.0, 0.0], [1.0, 0.0]]) == [[0.0, 0.0], [0.0, 0.5]]).all()


# The limiting kernel ----------------------------------------------------------------------------------------------


def test_limiting_kernel_by_its_formula():
    rng = np.random.default_rng(5)
    x, other = rng.standard_normal((4, 3, 5)), rng.standard_normal((2, 3, 5))
    got, across = en.limiting_ntk(x), en.limiting_ntk(x, other)
    for left, right, K in ((x, x, got), (x, other, across)):
        for i, a in enumerate(left):
            for j, b in enumerate(right):
                p, q = a.mean(0), b.mean(0)
                e0, e1 = exact(p, q)
                assert K[i, j] == pytest.approx(float(e1) + float(e0) * (p @ q), rel=1e-12, abs=1e-15)
    np.testing.assert_allclose(np.diag(got), (x.mean(1) ** 2).sum(1))
    np.testing.assert_allclose(en.limiting_ntk(x, pool="sum"), 9.0 * got, rtol=1e-14)
    np.testing.assert_allclose(en.limiting_ntk(x, other, pool="sum"), 9.0 * across, rtol=1e-14)
    np.testing.assert_allclose(en.limiting_ntk(3.0 * x), 9.0 * got, rtol=1e-13)
    np.testing.assert_allclose(en.limiting_ntk(x[:, [2, 0, 1]]), got, rtol=1e-13)
    np.testing.assert_allclose(en.limiting_ntk(x, x), got, rtol=1e-13)


def test_limiting_kernel_of_one_dimension():
    """d = 1: the product of mean tokens of the same sign, else 0; rank 2."""
    x = np.array([1.0, -2.0, 0.5, -0.25, 3.0])[:, None, None]
    v = x[:, 0, 0]
    np.testing.assert_allclose(en.limiting_ntk(x), np.outer(v, v) * (np.outer(v, v) > 0), atol=1e-15)
    assert np.linalg.matrix_rank(en.limiting_ntk(x)) == 2


@pytest.mark.parametrize("pool", ["mean", "sum"])
def test_kernels_of_wide_models_tend_to_it(pool):
    """Relative error falls as width^(-1/2); measured 0.25 at 64, 0.067 at 1024 for this size."""
    rng = np.random.default_rng(2)
    n, T, d = 6, 4, 8
    x = rng.standard_normal((n, T, d)) / np.sqrt(d)
    wanted, errors = en.limiting_ntk(x, pool=pool), []
    for m in (64, 1024, 16384):
        gaps = []
        for _ in range(4):
            w = {k: rng.standard_normal((m, d)) for k in ("W_Q", "W_K", "W_V")} | {"w_O": rng.standard_normal(m)}
            J = jacobian(x, w, 1.0 / m, m**-0.5 / (T if pool == "mean" else 1))
            gaps.append(np.linalg.norm(J @ J.T - wanted) / np.linalg.norm(wanted))
        errors.append(np.mean(gaps))
    assert errors[2] < 0.03
    slope = np.polyfit(np.log([64, 1024, 16384]), np.log(errors), 1)[0]
    assert -0.7 < slope < -0.35


def test_fewer_dimensions_than_sequences():
    """P* P*^T is singular while K* is not; and its least eigenvalue is far below the mean of its diagonal."""
    x = np.random.default_rng(0).standard_normal((256, 1, 4)) * np.sqrt(0.69 / 4)
    K = en.limiting_ntk(x)
    assert 1e-5 < np.linalg.eigvalsh(K)[0] < 1e-2 < np.diag(K).mean()
    assert en.lambda_0(x[:, 0], 1.0).hermite == 0.0


# Kernel regression ------------------------------------------------------------------------------------------------


def test_kernel_regression_is_where_descent_on_the_kernel_ends():
    rng = np.random.default_rng(1)
    x, test = rng.standard_normal((5, 2, 6)), rng.standard_normal((3, 2, 6))
    y, f0, g0 = rng.standard_normal(5), rng.standard_normal(5), rng.standard_normal(3)
    K, across = en.limiting_ntk(x), en.limiting_ntk(test, x)
    f, g = f0.copy(), g0.copy()
    step = 1.0 / np.linalg.eigvalsh(K)[-1]
    for _ in range(3000):
        f, g = f - step * K @ (f - y), g - step * across @ (f - y)
    np.testing.assert_allclose(f, y, atol=1e-10)
    np.testing.assert_allclose(en.kernel_regression(K, across, y - f0, g0), g, atol=1e-9)
    np.testing.assert_allclose(en.kernel_regression(K, K, y - f0, f0), y, atol=1e-11)
    wanted = g0 + across @ np.linalg.solve(K + 0.3 * np.eye(5), y - f0)
    np.testing.assert_allclose(en.kernel_regression(K, across, y - f0, g0, ridge=0.3), wanted, atol=1e-11)


def test_kernel_regression_refuses_what_it_cannot_solve():
    x = np.random.default_rng(1).standard_normal((3, 2, 6))
    twice = np.concatenate([x, x[:1, ::-1]])
    K, one, ones = en.limiting_ntk(twice), np.ones((1, 4)), np.ones(4)
    with pytest.raises(InputError, match=r"singular to rounding[\s\S]*hint: .*ridge"):
        en.kernel_regression(K, one, ones, [0.0])
    assert np.isfinite(en.kernel_regression(K, one, ones, [0.0], ridge=1e-6)).all()
    # Positive definite, so that Cholesky succeeds, but known to no digit; and one that is known to some.
    for least, fine in ((1e-17, False), (3e-16, False), (1e-12, True)):
        K = np.diag([1.0, 1.0, 1.0, least])
        if fine:
            assert en.kernel_regression(K, one, ones, [0.0])[0] == pytest.approx(3 + 1 / least)
        else:
            with pytest.raises(InputError, match="singular"):
                en.kernel_regression(K, one, ones, [0.0])
    with pytest.raises(InputError, match="singular"):
        en.kernel_regression(-np.eye(4), one, ones, [0.0])
    for bad in ({"kernel": np.triu(np.ones((4, 4)))}, {"kernel": np.ones((3, 4))}, {"across": np.ones((1, 3))},
                {"misfit": np.ones(3)}, {"start": np.ones(2)}, {"ridge": -1.0}):  # fmt: skip
        good = {"kernel": np.eye(4), "across": one, "misfit": ones, "start": [0.0]}
        with pytest.raises(InputError):
            en.kernel_regression(**{**good, **bad})


# lambda_0 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_lambda_0_lies_between_its_bounds(seed):
    rng = np.random.default_rng(seed)
    n, d = rng.integers(1, 7), rng.integers(1, 9)
    phi = rng.standard_normal((n, d)) * 10 ** rng.uniform(-1, 1, (n, 1))
    variance = float(10 ** rng.uniform(-2, 1))
    found = en.lambda_0(phi, variance)
    E = mp.matrix([[exact(p, q)[1] for q in phi] for p in phi])
    least = variance * min(mp.eigsy(E, eigvals_only=True))
    assert found.value == pytest.approx(float(least), rel=1e-9, abs=found.error)
    assert found.error == pytest.approx(n * 2.0**-52 * variance * np.linalg.eigvalsh(en.arc_cosine_1(phi))[-1])
    gram = phi @ phi.T
    by_rows = [gram[k, k] - sum(abs(gram[k, j]) for j in range(n) if j != k) for k in range(n)]
    assert found.gershgorin == pytest.approx(
        variance / 4 * min(by_rows), rel=1e-9, abs=1e-12 * variance * np.trace(gram)
    )
    smallest = np.linalg.eigvalsh(gram)[0] if n <= d else 0.0
    assert found.hermite == pytest.approx(variance / 4 * smallest, rel=1e-6, abs=1e-12 * variance * np.trace(gram))
    assert found.upper == pytest.approx(variance * np.sum(phi**2) / (2 * n))
    slack = found.error + 1e-12 * found.upper
    assert found.gershgorin - slack <= found.hermite <= found.value + slack
    assert found.value <= found.upper + slack


def test_lambda_0_of_orthogonal_and_repeated_rows():
    """Orthogonal rows of norm r: r^2 / 2 on the diagonal, r^2 / (2 pi) off it."""
    found = en.lambda_0(3.0 * np.eye(4), 2.0)
    assert found.value == pytest.approx(2 * 9 * (0.5 - 0.5 / np.pi))
    assert found.hermite == found.gershgorin == pytest.approx(2 * 9 / 4)
    twice = en.lambda_0(np.ones((2, 3)), 1.0)
    assert 0.0 <= twice.value <= twice.error
    assert en.lambda_0(np.zeros((2, 3)), 1.0).value == 0.0
    assert en.lambda_0([[2.0]], 1.0).value == en.lambda_0([[2.0]], 1.0).upper == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(20))
def test_lemma_15_sees_only_tokens_and_attention(seed):
    rng = np.random.default_rng(seed)
    n, T, d = 3, 2, 60
    # Sequences in (almost) their own dimensions: the event of the lemma, or not quite.
    x = rng.standard_normal((n, T, d)) * 10 ** rng.uniform(-3, -1)
    for k in range(n):
        x[k, :, 20 * k : 20 * (k + 1)] += rng.standard_normal((T, 20))
    beta = np.exp(rng.standard_normal((n, T)))
    beta /= beta.sum(1, keepdims=True)
    phi, variance = np.einsum("nt,ntd->nd", beta, x), 0.7
    found, exact_ = en.lemma_15(x, beta, variance), en.lambda_0(phi, variance)
    s = [[np.sum((a @ b.T) ** 2) for b in x] for a in x]
    C = [np.linalg.eigvalsh(a @ a.T)[0] for a in x]
    b = np.linalg.norm(beta, axis=1)
    discs = [C[k] * b[k] ** 2 - b[k] * sum(b[j] * np.sqrt(s[k][j]) for j in range(n) if j != k) for k in range(n)]
    assert found.lower == pytest.approx(variance / 4 * min(discs), rel=1e-9, abs=1e-12)
    assert found.largest == pytest.approx(max(s[k][j] for k in range(n) for j in range(k)))
    assert found.threshold == pytest.approx(min(C) ** 2 / (4 * T * (n - 1) ** 2))
    assert found.upper == pytest.approx(variance * max(np.sum(a**2) for a in x) / 2)
    assert found.promised == pytest.approx(variance * min(C) / (8 * T))
    assert found.promised_pooled == pytest.approx(variance * min(C) * T / 8)
    assert found.event == (found.largest <= found.threshold)
    assert found.lower <= exact_.hermite * (1 + 1e-9)
    assert exact_.value <= found.upper
    attended = np.stack([phi, x.mean(1)], axis=1)
    if found.event:
        assert found.promised <= exact_.hermite
        pooled = en.predict_alpha(attended, width=1, variance=variance, tau1=1.0)
        assert found.promised_pooled <= pooled.hermite


def test_lemma_15_at_its_edges():
    events = [en.lemma_15(s * np.eye(2)[:, None] + 0.4 * e, [[1.0], [1.0]], 1.0).event for s, e in ((1, 1), (1, 0))]
    assert events == [False, True]
    alone = en.lemma_15(np.ones((1, 1, 2)), [[1.0]], 1.0)
    assert (alone.threshold, alone.largest, alone.event) == (np.inf, 0.0, True)
    short = en.lemma_15(np.ones((1, 2, 1)), [[0.5, 0.5]], 1.0)
    assert (short.promised, short.event) == (0.0, False)
    with pytest.raises(InputError, match="`beta` has rows of zeros"):
        en.lemma_15(np.ones((1, 2, 1)), [[0.0, 0.0]], 1.0)


def test_chernoff_bound_holds_for_wide_layers():
    rng = np.random.default_rng(0)
    n, d = 20, 40
    phi = rng.standard_normal((n, d)) / np.sqrt(d)
    l0 = en.lambda_0(phi, 1.0 / d).value
    for m, share in ((800, 0.7), (3200, 0.85)):
        for _ in range(5):
            F = 0.5 * np.maximum(phi @ rng.standard_normal((d, m)) / np.sqrt(d), 0.0)
            ratio = np.linalg.svd(F, compute_uv=False)[-1] ** 2 / (4.0 * en.chernoff_bound(l0, m, 0.5))
            assert share < ratio < 1.2
    assert en.chernoff_bound(3.0, 8, 0.5) == 1.5
    assert en.chernoff_bound(3.0, 8, 0.5, corrected=False) == 6.0


# All tokens -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "T", "d"), [(4, 3, 2), (1, 1, 1), (5, 1, 3), (2, 6, 1)])
def test_pooled_expectation_by_loops(n, T, d):
    x = np.random.default_rng(n).standard_normal((n, T, d))
    wanted = [[sum(float(exact(p, q)[1]) for p in a for q in b) for b in x] for a in x]
    for block in (1, 8 * T * T * n * 2, 10**6):
        got = en.pooled_expectation(x, block=block)
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-15)
        assert (got == got.T).all()
    if T == 1:
        np.testing.assert_allclose(en.pooled_expectation(x), en.arc_cosine_1(x[:, 0]), rtol=1e-14)


def test_memory_of_pairs_stays_within_blocks():
    """600 tokens: all pairs at once would take 8 arrays of 360000 numbers, or 2 for similarities."""
    x = np.random.default_rng(0).standard_normal((100, 6, 3))
    for function in (en.pooled_expectation, en.similarities):
        peaks = []
        for block in (100_000, 10_000_000):
            tracemalloc.start()
            function(x, block=block)
            peaks.append(tracemalloc.get_traced_memory()[1] / 8)
            tracemalloc.stop()
        assert peaks[0] < 200_000 < 300_000 < peaks[1]


def test_alpha_is_what_the_pooled_expectation_says():
    """Within a few per cent at width 20000; the Hermite bound stays below it."""
    for seed in range(3):
        x, _, _, _, _ = draw(seed, (5, 3, 12, 1), scale=0.1)
        rng = np.random.default_rng(seed)
        m, variance, tau1 = 20_000, 1.0 / 12, 0.4
        w = {k: rng.standard_normal((m, 12)) * np.sqrt(variance) for k in ("W_Q", "W_K", "W_V")}
        got = en.forward(x, {**w, "w_O": np.zeros(m)}, m**-0.5, tau1)
        found = en.predict_alpha(got.attended, width=m, variance=variance, tau1=tau1)
        alpha = en.least_singular_value(got.hidden)
        assert alpha**2 == pytest.approx(found.value, rel=0.06)
        sums = got.attended.sum(1)
        scale = tau1**2 * m * variance
        assert found.hermite == pytest.approx(scale / 4 * np.linalg.eigvalsh(sums @ sums.T)[0], rel=1e-8)
        assert 0 < found.hermite < found.value
        E = en.pooled_expectation(got.attended)
        assert found.error == pytest.approx(scale * 5 * 2.0**-52 * np.linalg.eigvalsh(E)[-1])


def test_tokens_in_another_order_make_alpha_zero():
    """The first tokens differ, and lambda_0 > 0; but hidden layers are equal. Appendix C.3 needs more than it says."""
    x = np.random.default_rng(0).standard_normal((1, 3, 8))
    x = np.concatenate([x, x[:, [1, 2, 0]]])
    w = {k: np.random.default_rng(1).standard_normal((50, 8)) for k in ("W_Q", "W_K", "W_V")} | {"w_O": np.ones(50)}
    got = en.forward(x, w, 50**-0.5, 1.0)
    assert en.lambda_0(got.attended[:, 0], 1.0).value > 0.01
    found = en.predict_alpha(got.attended, width=50, variance=1.0, tau1=1.0)
    assert found.value <= found.error
    assert found.hermite <= 1e-20
    assert en.least_singular_value(got.hidden) == 0.0
    assert en.least_singular_value(got.hidden[:, :1]) == 0.0
    assert en.least_singular_value(np.array([[3.0, 4.0]])) == 5.0


def test_arguments_are_checked():
    for call in (
        lambda: en.arc_cosine_0(np.ones(3)), lambda: en.arc_cosine_1(np.ones((2, 3)), np.ones((2, 4))),
        lambda: en.arc_cosine_1([[np.nan]]), lambda: en.limiting_ntk(np.ones((1, 1, 1)), pool="max"),
        lambda: en.limiting_ntk(np.ones((1, 2, 3, 4))), lambda: en.limiting_ntk(np.ones((1, 2, 3)), np.ones((1, 1, 3))),
        lambda: en.lambda_0(np.eye(2), 0.0), lambda: en.lambda_0(np.zeros((0, 2)), 1.0),
        lambda: en.chernoff_bound(-1.0, 2, 1.0), lambda: en.chernoff_bound(1.0, 0, 1.0),
        lambda: en.chernoff_bound(1.0, 2, 1.0, "printed"),  # pyright: ignore[reportCallIssue]
        lambda: en.pooled_expectation(np.eye(2)),
        lambda: en.pooled_expectation(np.ones((1, 1, 1)), block=0),
        lambda: en.predict_alpha(np.ones((1, 1, 1)), width=0, variance=1.0, tau1=1.0),
        lambda: en.predict_alpha(np.ones((1, 1, 1)), width=1, variance=-1.0, tau1=1.0),
        lambda: en.lemma_15(np.ones((2, 1, 1)), [[1.0]], 1.0), lambda: en.lemma_15(np.ones((1, 1, 1)), [[1.0]], 0.0),
        lambda: en.chernoff_bound(1.0, 2, 0.0),
    ):  # fmt: skip
        with pytest.raises(InputError):
            call()
