"""Claims on the kernels of encoders: verdicts, oracles, and whether planted faults show."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, softmax

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import degenerate, kernel_errata, kernel_limits, linear_width
from attnlab.claims.scale import Scale
from attnlab.models.encoder import Encoder
from attnlab.models.encoder_kernel import encoder_kernels
from attnlab.theory.encoder import limiting_ntk

SMOKE = Scale.SMOKE
COMPILED = ("encoder-L1", "encoder-L1-neg", "encoder-E1")
EVERY = [claim for module in (kernel_limits, degenerate, linear_width, kernel_errata) for claim in module.CLAIMS]
EVERY = [pytest.param(c, id=c.id, marks=[pytest.mark.slow] * (c.id in COMPILED)) for c in EVERY]


@pytest.fixture(autouse=True)
def _forget():
    """Planted faults must not stay in caches."""
    cached = (kernel_limits.distances, degenerate.draws, degenerate.few, linear_width.linear_widths)
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.parametrize("claim", EVERY)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome
    assert all(slack >= 0 for slack in found.outcome.slack.values())


# Oracles ----------------------------------------------------------------------------------------------------------


def encoder_output(x, weights, tau0, scale):
    """Eq. (1.2) written out, one sequence at a time."""
    found = []
    for tokens in x:
        queries, keys = tokens @ weights["W_Q"].T, tokens @ weights["W_K"].T
        attention = softmax(tau0 * queries @ keys.T, axis=1)
        hidden = np.maximum(attention @ tokens @ weights["W_V"].T, 0.0)
        found.append(scale * hidden.sum(axis=0) @ weights["w_O"])
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize(("scaling", "pool"), [("linear", "sum"), ("sqrt", "mean")])
def test_kernel_is_that_of_a_numerical_jacobian(scaling, pool):
    x = kernel_limits.sequences(3, 3, 3, 2).x
    network = Encoder(5, scaling=scaling, init="ntk", pool=pool)
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape) for name, shape in network.sizes(3, 2).items()}
    scale = 5**-0.5 / (3 if pool == "mean" else 1)
    tau0 = 1 / 5 if scaling == "linear" else 5**-0.5
    parts = encoder_kernels(network, weights, x)
    for name, w in weights.items():
        rows = []
        for place in np.ndindex(w.shape):

            def moved(by, name=name, place=place):
                other = {k: v.copy() for k, v in weights.items()}
                other[name][place] += by
                return encoder_output(x, other, tau0, scale)

            h = 1e-3  # errors of the order h^4
            rows.append((8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h))
        jacobian = np.array(rows)
        np.testing.assert_allclose(
            parts[name], jacobian.T @ jacobian, rtol=1e-9, atol=1e-9 * np.abs(jacobian).max() ** 2
        )


def test_limits_are_those_of_random_weights():
    x = kernel_limits.sequences(1, 4, 3, 5).x
    rng, count, total, squares = np.random.default_rng(2), 0, 0.0, 0.0
    mean = x.mean(axis=1)
    for _ in range(20):
        w = mean @ rng.standard_normal((5, 20_000))
        on = (w > 0).astype(float)
        relu = w * on
        draws = np.einsum("ik,jk->ijk", relu, relu) + np.einsum("ik,jk->ijk", on, on) * (mean @ mean.T)[..., None]
        total, squares, count = total + draws.sum(-1), squares + (draws**2).sum(-1), count + w.shape[1]
    found = total / count
    error = np.sqrt(squares / count - found**2) / np.sqrt(count)
    assert (np.abs(limiting_ntk(x) - found) < 5 * error).all()
    readings = kernel_errata.readings(x)
    np.testing.assert_allclose(readings["Lemma 1 for the average of Eq. (1.2)"][1], 9 * limiting_ntk(x), rtol=1e-12)
    np.testing.assert_allclose(readings["Eqs. (63), (64), with sums of tokens"][1], 81 * limiting_ntk(x), rtol=1e-12)
    product = readings["Lemma 1 with a product of matrices"][1]
    assert np.abs(product - product.T).max() > 1e-3  # so it cannot be a kernel
    two = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])  # E1 = [[1/2, 1/(2 pi)], ..], E0 = [[1/2, 1/4], ..], gram the identity
    entries = kernel_errata.readings(two)["Lemma 1 with a product of matrices"][1]
    np.testing.assert_allclose(entries, [[1.0, 0.25 + 0.5 / np.pi], [0.25 + 0.5 / np.pi, 1.0]], rtol=1e-12)


def test_products_have_the_law_of_drawn_matrices():
    rng = np.random.default_rng(0)
    m, d, count = 7, 3, 20_000
    direct = np.array([rng.standard_normal((d, m)) @ rng.standard_normal((m, d)) for _ in range(count)])
    short = np.array([kernel_limits.query_key_product(m, d, 1.0, rng) for _ in range(count)])
    for power in (2, 4):
        a, b = (np.abs(p.reshape(count, -1)) ** power for p in (direct, short))
        error = np.sqrt((a.var(0) + b.var(0)) / count)
        assert (np.abs(a.mean(0) - b.mean(0)) < 5 * error).all()
    norms = [np.linalg.norm(p, axis=(1, 2), ord=2) for p in (direct, short)]  # and together
    assert abs(norms[0].mean() - norms[1].mean()) < 5 * np.hypot(*(n.std() for n in norms)) / np.sqrt(count)
    scaled = kernel_limits.query_key_product(1e12, d, 0.25, np.random.default_rng(1)) / 1e6
    assert 0.03 < np.abs(scaled).max() < 1.0  # 0.25 N(0, 1)


def test_first_tokens_by_hand():
    x = kernel_limits.sequences(0, 3, 4, 5).x
    product = np.random.default_rng(0).standard_normal((5, 5))
    found = kernel_limits.first_tokens(x, product, 0.7)
    for row, tokens in zip(found, x, strict=True):
        np.testing.assert_allclose(row, softmax(0.7 * tokens[0] @ product @ tokens.T) @ tokens, rtol=1e-12)


def test_chances_by_closed_form_and_by_counting():
    for t in (0.01, 1.0, 5.0, 200.0):  # the inner product of Gaussians in the plane has a Laplace law
        assert kernel_errata.log_chance(2, t / 2) == pytest.approx(np.log(0.5) - t, rel=1e-9)
    rng, count = np.random.default_rng(0), 400_000
    g = np.einsum("ij,ij->i", *rng.standard_normal((2, count, 6))) / 6
    for least in (0.1, 0.5, 1.0):
        seen = (g > least).mean()
        chance = np.exp(kernel_errata.log_chance(6, least))
        assert abs(seen - chance) < 5 * np.sqrt(chance / count)
    assert kernel_errata.log_chance(1e6, 1e-3) == pytest.approx(np.log(0.15865525), rel=1e-4)  # Gaussian
    for T, error in ((2, 0.1), (5, 0.05), (3, 0.5)):
        away = np.abs(T * expit(g * T - np.log(T - 1)) ** 2 - 1 / T) > error
        chance = np.exp(kernel_errata.log_chance_of_error(T, 6, error))
        assert abs(away.mean() - chance) < 5 * np.sqrt(chance / count)
    assert kernel_errata.log_chance_of_error(3, 6, 3.0) == -np.inf


def test_powers_are_those_of_powers():
    widths = [10, 100, 1000]
    assert kernel_limits.power(widths, [3 * m**-0.7 for m in widths]) == pytest.approx(-0.7)
    values = np.array([[1.0, 2.0], [0.1, 0.4], [0.01, 0.08]])
    found = kernel_limits.powers(widths, values)
    assert found["of single seeds"] == pytest.approx([-1.0, np.log10(0.2)])
    assert found["slope"] == pytest.approx(kernel_limits.power(widths, values.mean(1)))


def test_pooled_tokens_by_hand():
    found = degenerate.Pooled.draw(40, 2, 0)
    x = degenerate.tokens(40, 2, 0)
    mean = x.mean(axis=1)
    assert found.rows == 0.0
    assert found.columns == pytest.approx(np.linalg.svd(mean)[1][-1] ** 2)
    assert found.mean == pytest.approx((mean**2).sum() / 40)  # the diagonal of the kernel
    assert found.kernel == pytest.approx(np.linalg.eigvalsh(limiting_ntk(x))[0])
    assert found.start_top == pytest.approx(0.5 * (x**2).sum(axis=(1, 2)).max())
    assert found.covariance == pytest.approx(np.linalg.eigvalsh(36 * mean.T @ mean / 40)[0])
    few = degenerate.Pooled.draw(2, 12, 0)
    gram = degenerate.tokens(2, 12, 0).mean(axis=1)
    assert few.rows == pytest.approx(np.linalg.eigvalsh(gram @ gram.T)[0])
    assert few.start_bottom == pytest.approx(0.25 * few.rows)
    assert 0 < few.start_bottom < few.start < few.start_top


def test_linear_widths_by_hand():
    found = linear_width.linear_width(12, 0)
    from attnlab.theory.encoder import Constants

    x, m = degenerate.tokens(12, 4, 0), 48
    rng = np.random.default_rng([0, 12, 7])
    weights = {name: rng.standard_normal((m, 4)) for name in ("W_Q", "W_K", "W_V")}
    weights["w_O"] = rng.standard_normal(m)
    one = Constants.of(x, rng.standard_normal(12), weights, tau0=1 / m, tau1=m**-0.5)
    assert found["alpha^2"] == pytest.approx(one.alpha**2, rel=1e-6)
    assert found["margin (2)"] == pytest.approx(one.condition_2.margin, rel=1e-6)
    assert found["margin (3)"] == pytest.approx(one.condition_3.margin, rel=1e-6)
    assert found["alpha^2 d / N"] == pytest.approx(one.alpha**2 * 4 / 12, rel=1e-6)


def test_hermite_series_term_by_term():
    rows = 0.5 * kernel_limits.sequences(0, 4, 1, 6).x[:, 0]
    t = rows @ rows.T
    # mu_s^2 of relu: 1/(2 pi), 1/4, and for even s (s - 3)!!^2 / (2 pi s!)
    total, double = 1 / (2 * np.pi) + t / 4, 1.0
    factorial = 2.0
    for s in range(2, 120, 2):
        total = total + double**2 / (2 * np.pi * factorial) * t**s
        double, factorial = double * (s - 1), factorial * (s + 1) * (s + 2)
    np.testing.assert_allclose(degenerate.hermite_series(rows), total, rtol=1e-12)


# Planted faults ---------------------------------------------------------------------------------------------------


def small_distances(scaling):
    """Distances with the widths and seeds of a test."""
    return kernel_limits.distances.__wrapped__(SMOKE, scaling)


@pytest.mark.slow
def test_wrong_limits_are_noticed(monkeypatch):
    good = small_distances("linear")
    assert good.errors.shape == (3, 4)
    assert (good.through > 0).all()
    for errors, verdict in (
        (good.errors, Verdict.HOLDS),
        (good.errors + 0.05, Verdict.FAILS),  # does not go to 0
        (good.errors * np.array([[1.0], [4.0], [2.5]]), Verdict.FAILS),  # too slow, and not close at the end
    ):
        monkeypatch.setattr(kernel_limits, "distances", lambda *_, e=errors: replace(good, errors=e))
        assert kernel_limits.kernel_converges(SMOKE).verdict is verdict
    monkeypatch.setattr(kernel_limits, "distances", lambda *_: replace(good, pools=1e-9))
    assert kernel_limits.kernel_converges(SMOKE).verdict is Verdict.FAILS
    monkeypatch.setattr(kernel_limits, "distances", lambda *_: replace(good, errors=good.errors * 0.4))
    assert kernel_limits.kernel_converges(SMOKE).verdict is Verdict.HOLDS  # the power counts
    monkeypatch.setattr(kernel_limits, "distances", lambda *_: good)
    assert kernel_limits.kernel_stays_away(SMOKE).verdict is Verdict.FAILS  # this scale has the limit


@pytest.mark.slow
def test_a_kernel_that_is_off_is_noticed(monkeypatch):
    monkeypatch.setattr(kernel_limits, "limiting_ntk", lambda x, pool: 1.04 * limiting_ntk(x, pool=pool))
    assert kernel_limits.kernel_converges(SMOKE).verdict is Verdict.FAILS


def test_attention_that_stays_is_noticed(monkeypatch):
    original = kernel_limits.forward

    def other(x, weights, tau0, tau1):
        return original(x, weights, np.sqrt(tau0), tau1)

    monkeypatch.setattr(kernel_limits, "forward", other)
    assert kernel_limits.attention_becomes_pooling(SMOKE).verdict is Verdict.FAILS


def test_too_small_widths_and_slow_errors_are_noticed(monkeypatch):
    good = kernel_limits.lemma_16(SMOKE)
    assert good.instances == 40
    one = good.numbers["instances"]["ntk, N = 4, T = 3, d = 12"]
    assert 10 < one["width where the mean error is lambda_* / 4"] < 1e4 < one["width asked for"]
    original = kernel_limits.lemma_16_width
    monkeypatch.setattr(kernel_limits, "lemma_16_width", lambda *a, **k: 1e-10 * original(*a, **k) + 20)
    assert kernel_limits.lemma_16(SMOKE).verdict is Verdict.FAILS
    monkeypatch.undo()
    tokens = kernel_limits.first_tokens
    monkeypatch.setattr(kernel_limits, "first_tokens", lambda x, p, t: tokens(x, p, t**0.8))
    outcome = kernel_limits.lemma_16(SMOKE)
    assert outcome.verdict is Verdict.FAILS
    assert [part.verdict for part in outcome.parts if "power" in part.name] == [Verdict.FAILS]


@pytest.mark.parametrize(
    ("measure", "change", "verdict"),
    [
        ("tall_gram", {"rows": 1.0}, Verdict.LOOSE),
        ("tall_gram", {"rows": 1e-12}, Verdict.FAILS),
        ("wide_gram", {"columns": 1e-3}, Verdict.FAILS),
        ("start_between", {"attended": 1e3}, Verdict.FAILS),
        ("start_between", {"start": 1e3}, Verdict.FAILS),
        ("kernel_between", {"mean": 10.0}, Verdict.FAILS),
    ],
)
def test_wrong_eigenvalues_are_noticed(monkeypatch, measure, change, verdict):
    found = degenerate.draws(SMOKE)
    monkeypatch.setattr(degenerate, "draws", lambda scale: [replace(one, **change) for one in found])
    assert getattr(degenerate, measure)(SMOKE).verdict is verdict


def test_hypotheses_are_measured():
    found = degenerate.draws(SMOKE)
    slack = degenerate.hypotheses([replace(one, N=3 * one.d**4, covariance=0.5) for one in found])
    assert slack == pytest.approx({"N / d^4 - 1": 2.0, "C_Sigma": 0.5})
    powers = degenerate.slopes([replace(one, start=float(one.N) ** -2) for one in found], "start")
    assert [*powers.values()] == pytest.approx([-3.0, -3.0])


def test_singular_short_matrices_are_noticed(monkeypatch):
    found = degenerate.few(SMOKE)
    monkeypatch.setattr(degenerate, "few", lambda scale: [replace(one, rows=0.0) for one in found])
    assert degenerate.wide_gram(SMOKE).verdict is Verdict.FAILS


@pytest.mark.parametrize(("measure", "change"), [("start_between", "start_bottom"), ("kernel_between", "rows")])
def test_wrong_lower_bounds_are_noticed(monkeypatch, measure, change):
    pooled = degenerate.few(SMOKE)
    monkeypatch.setattr(degenerate, "few", lambda scale: [replace(one, **{change: 10.0}) for one in pooled])
    assert getattr(degenerate, measure)(SMOKE).verdict is Verdict.FAILS


@pytest.mark.parametrize("name", ["start", "kernel"])
def test_eigenvalues_that_grow_would_uphold_the_lemmas(monkeypatch, name):
    found = degenerate.draws(SMOKE)
    assert degenerate.start_grows(SMOKE, name=name).verdict is Verdict.FAILS
    grown = [replace(one, **{name: 0.01 * one.N / one.d}) for one in found]
    monkeypatch.setattr(degenerate, "draws", lambda scale: grown)
    assert degenerate.start_grows(SMOKE, name=name).verdict is Verdict.HOLDS
    if name == "kernel":
        assert degenerate.kernel_between(SMOKE).verdict is Verdict.FAILS


def test_linear_widths_that_suffice_would_uphold_c8(monkeypatch):
    medians = linear_width.linear_widths(SMOKE)
    assert linear_width.linear_width_is_enough(SMOKE).verdict is Verdict.FAILS
    N = medians["N"]
    grown = {name: 1e-3 * N for name in ("alpha^2 d / N", "margin (2)", "margin (3)")}
    monkeypatch.setattr(linear_width, "linear_widths", lambda scale: {**medians, **grown})
    assert linear_width.linear_width_is_enough(SMOKE).verdict is Verdict.HOLDS
    for fault in ({"mean eigenvalue": 0.1 * N**2}, {"alpha^2": 1e5 * N}):
        monkeypatch.setattr(linear_width, "linear_widths", lambda scale, fault=fault: {**medians, **fault})
        assert linear_width.pooling_limits_alpha(SMOKE).verdict is Verdict.FAILS


def test_wrong_bounds_of_lemma_16_are_noticed(monkeypatch):
    original = kernel_errata.lemma_16_error
    monkeypatch.setattr(kernel_errata, "lemma_16_error", lambda *a, **k: 1e-4 * original(*a, **k))
    assert kernel_errata.first_token_bound(SMOKE, printed=False).verdict is Verdict.FAILS
    monkeypatch.setattr(kernel_errata, "lemma_16_error", lambda *a, **k: 1e3 * original(*a, **k))
    verdicts = [part.verdict for part in kernel_errata.first_token_bound(SMOKE, printed=True).parts]
    assert verdicts == [Verdict.FAILS, Verdict.LOOSE]  # with T^2 the bound would stand
    monkeypatch.undo()
    width = kernel_errata.lemma_16_width
    monkeypatch.setattr(kernel_errata, "lemma_16_width", lambda *a, **k: 1e-4 * width(*a, **k))
    assert kernel_errata.first_token_bound(SMOKE, printed=False).verdict is Verdict.FAILS


def test_cases_of_lemma_16_are_those_of_the_text():
    for case, (constant, log) in zip(kernel_errata.width_cases(printed=True), kernel_errata.CONSTANTS, strict=True):
        assert case.width == pytest.approx(constant * np.sqrt(log + np.log(2)) / 0.5**2)
        assert case.log_delta == -log
    for case, (_, log) in zip(kernel_errata.width_cases(printed=False), kernel_errata.CONSTANTS, strict=True):
        assert case.width == pytest.approx((32 * 2**2) ** 2 * (log + np.log(2)) / 0.5**2)


def test_widths_of_lemma_16_are_in_the_range_of_its_proof():
    for printed, least in ((True, 2 / np.sqrt(3 + np.log(2))), (False, 5000 / (2 * np.log(40)))):
        (slack,) = kernel_errata.first_token_bound(SMOKE, printed=printed).slack.values()
        assert slack == pytest.approx(least - 1)


def test_slips_about_assumptions_are_noticed(monkeypatch):
    original = kernel_errata.assumption_4

    def mean_for_sum(x, token="sum"):
        return original(x, "mean")

    monkeypatch.setattr(kernel_errata, "assumption_4", mean_for_sum)
    assert kernel_errata.exponent_and_token(SMOKE).verdict is Verdict.FAILS
    monkeypatch.undo()
    similar = kernel_errata.similarities
    monkeypatch.setattr(kernel_errata, "similarities", lambda x: similar(x) * (1 + 1e-9))
    assert kernel_errata.exponent_and_token(SMOKE).verdict is Verdict.FAILS
    monkeypatch.undo()
    monkeypatch.setattr(kernel_errata, "bound", lambda t: np.exp(-t[:, None] / kernel_errata.EXPONENTS))
    assert kernel_errata.exponent_and_token(SMOKE).verdict is Verdict.FAILS
    assert kernel_errata.larger_exponent_is_less_separable(SMOKE).verdict is Verdict.HOLDS


def test_a_wrong_part_of_the_kernel_is_noticed(monkeypatch):
    original = degenerate.encoder_kernels

    def other(*args):
        found = original(*args)
        return {**found, "w_O": found["w_O"] + 1e-6 * np.eye(8)}

    monkeypatch.setattr(degenerate, "encoder_kernels", other)
    assert degenerate.last_layer(SMOKE, printed=False).verdict is Verdict.FAILS


def test_distance_from_means_by_eigenvalues():
    rng = np.random.default_rng(4)
    P, star = rng.standard_normal((2, 4, 7))
    error, least = kernel_limits.distance_from_means(P, star)
    assert error == pytest.approx(np.sqrt(np.sum((P @ P.T - star @ star.T) ** 2)), rel=1e-12)
    assert least == pytest.approx(np.linalg.eigvalsh(P @ P.T)[0], rel=1e-9)
