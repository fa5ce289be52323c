"""Claims on the curvature of encoders: verdicts, oracles, and whether planted faults show."""

import numpy as np
import pytest
from scipy.stats import chi2

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import hessian
from attnlab.claims.encoder.hessian import Scalars
from attnlab.claims.scale import Scale
from attnlab.data.sequences import Sequences
from attnlab.models.encoder import Encoder
from attnlab.models.network import NetworkLaw
from attnlab.theory.tangent import hessian_norm

SMOKE = Scale.SMOKE
EVERY = [pytest.param(c, id=c.id, marks=[pytest.mark.slow] * (c.id != "encoder-L20")) for c in hessian.CLAIMS]


@pytest.fixture(autouse=True)
def _forget():
    """Planted faults must not stay in caches."""
    yield
    if hasattr(hessian.scalar_norms, "cache_clear"):
        hessian.scalar_norms.cache_clear()


@pytest.mark.parametrize("claim", EVERY)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome


# Oracles ----------------------------------------------------------------------------------------------------------


def dense(one):
    """The Hessian by products with unit vectors."""
    return np.stack([one.product(e) for e in np.eye(one.theta.size)], axis=1)


def by_differences(one):
    """The Hessian by second differences of the output, with errors of the order h^4."""
    theta = one.theta

    def value(move):
        return one.at(theta + move).output()

    def quotient(h):
        steps = h * np.eye(theta.size)
        return np.array([
            [(value(a + b) - value(a - b) - value(b - a) + value(-a - b)) / (4 * h * h) for b in steps] for a in steps
        ])  # fmt: skip

    return (4 * quotient(1e-3) - quotient(2e-3)) / 3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("law", ["ntk", "lecun"])
def test_products_are_those_of_the_hessian_of_the_output(seed, law):
    one = Scalars.draw(seed, 4, law, T=3)
    one = one.at(2.0 * one.theta)
    found, true = dense(one), by_differences(one)
    np.testing.assert_allclose(found, true, atol=1e-7 * np.abs(true).max())
    np.testing.assert_allclose(found, found.T, atol=1e-14 * np.abs(found).max())


@pytest.mark.parametrize("seed", range(3))
def test_norms_are_those_of_the_blocks(seed):
    one = Scalars.draw(seed, 6, "ntk", T=4)
    one = one.at(1.5 * one.theta)
    H, m = dense(one), 6
    blocks = {
        a + b: H[i * m : (i + 1) * m, j * m : (j + 1) * m] for i, a in enumerate("QKVO") for j, b in enumerate("QKVO")
    }
    for name, norm in one.norms().items():
        assert norm == pytest.approx(np.linalg.norm(blocks[name], 2), rel=1e-10), name
    assert np.linalg.norm(blocks["VV"]) == np.linalg.norm(blocks["OO"]) == 0.0
    value, vector = one.top()
    assert value == pytest.approx(np.linalg.norm(H, 2), rel=1e-9)
    assert np.linalg.norm(vector) == pytest.approx(1.0)
    assert np.linalg.norm(H @ vector) == pytest.approx(value, rel=1e-5)


@pytest.mark.slow
def test_scalar_tokens_are_an_encoder_of_dimension_one():
    one, network = Scalars.draw(0, 16, "ntk"), Encoder(16, scaling="linear", init="ntk")
    data = Sequences(x=one.x[None, :, None], y=[0.0])
    weights = {"W_Q": one.Q[:, None], "W_K": one.K[:, None], "W_V": one.V[:, None], "w_O": one.O}
    assert float(network.outputs(data, weights)[0]) == pytest.approx(one.output(), rel=1e-12)
    assert hessian_norm(data, network, weights, tolerance=1e-8).norm == pytest.approx(one.top()[0], rel=1e-6)
    assert np.mean(one.x**2) == pytest.approx(1.0)  # C_x = 1


def test_laws_have_their_sizes():
    laws: dict[NetworkLaw, tuple[float, float]] = {"ntk": (1.0, 1.0), "lecun": (1.0, 1000**-0.5)}  # d = 1
    for law, sizes in laws.items():
        one = Scalars.draw(0, 1000, law)
        for w, size in ((one.Q, sizes[0]), (one.K, sizes[0]), (one.V, sizes[0]), (one.O, sizes[1])):
            assert np.std(w) == pytest.approx(size, rel=0.1)
        assert one.tau0 == 1e-3
        assert one.tau1 == pytest.approx((1000**-0.5 if law == "ntk" else 1.0) / 6)


def test_points_are_at_their_distance():
    start = {"a": np.ones((3, 4)), "b": np.zeros(5)}
    near, far = (hessian.at_distance(start, R, 1) for R in (1.0, 10.0))
    move = np.concatenate([np.ravel(near[name] - start[name]) for name in start])
    assert np.linalg.norm(move) == pytest.approx(1.0)
    assert (move != 0).all()
    for name, w in start.items():
        np.testing.assert_allclose(far[name] - w, 10.0 * (near[name] - w))


# Planted faults ---------------------------------------------------------------------------------------------------

WIDTHS = (64, 256, 1024)


def planted(power, **others):
    """Norms that follow powers of the width."""
    m = np.array(WIDTHS, float)[:, None] * np.ones((1, 3))
    powers = {"start": power, "R = 1": power, "R = 10": power} | others
    powers |= {name: others.get(name, -0.5) for name in ("QQ", "QK", "QV", "QO", "OV")}
    return WIDTHS, {name: m**p for name, p in powers.items()}


def with_norms(monkeypatch, norms):
    monkeypatch.setattr(hessian, "vector_norms", lambda scale: norms)
    monkeypatch.setattr(hessian, "scalar_norms", lambda scale: norms)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.HOLDS),
        ({"start": -0.35}, Verdict.FAILS),
        ({"start": -0.65}, Verdict.FAILS),
        ({"R = 1": -0.35}, Verdict.FAILS),
        ({"R = 10": -0.35}, Verdict.FAILS),
        ({"R = 10": -0.8}, Verdict.HOLDS),  # smaller than the theorem says
    ],
)
def test_other_powers_are_noticed(monkeypatch, changes, verdict):
    with_norms(monkeypatch, planted(-0.5, **changes))
    outcome = hessian.curvature_falls(SMOKE)
    assert outcome.verdict is verdict
    assert outcome.instances == 2 * 3 * 9


E10 = next(claim for claim in hessian.CLAIMS if claim.id == "encoder-E10")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.SLIP),
        ({"OV": -1.0}, Verdict.HOLDS),
        ({"QV": -1.0}, Verdict.HOLDS),
        ({"QO": -0.95}, Verdict.HOLDS),
        ({"QQ": -0.3}, Verdict.FAILS),
        ({"QK": -0.3}, Verdict.FAILS),
        ({"QK": -0.9}, Verdict.SLIP),
        ({"QV": -0.3}, Verdict.FAILS),
    ],
)
def test_other_orders_of_blocks_are_noticed(monkeypatch, changes, verdict):
    with_norms(monkeypatch, planted(-0.5, **changes))
    assert E10.measure(SMOKE).verdict is verdict


@pytest.mark.parametrize("name", ["gamma_error", "query_key_error"])
def test_wrong_formulas_are_noticed(monkeypatch, name):
    with_norms(monkeypatch, planted(-0.5))
    original = getattr(hessian, name)
    monkeypatch.setattr(hessian, name, lambda one, printed: original(one, printed=not printed))
    assert E10.measure(SMOKE).verdict is Verdict.HOLDS  # the printed formula would stand
    monkeypatch.setattr(hessian, name, lambda one, printed: original(one, printed=True))
    assert E10.measure(SMOKE).verdict is Verdict.FAILS


def test_formulas_of_the_third_moment():
    one = Scalars.draw(1, 3, "ntk", T=5)
    one = one.at(2.0 * one.theta)
    mean, variance, third = one.cumulants()
    for i, b in enumerate(one.attention):
        J = np.diag(b) - np.outer(b, b)
        G = np.diag(J @ one.x) - np.outer(J @ one.x, b) - np.outer(b, J @ one.x)
        assert (mean[i], variance[i], third[i]) == pytest.approx((b @ one.x, one.x @ J @ one.x, one.x @ G @ one.x))


def test_shorter_balls_are_noticed(monkeypatch):
    monkeypatch.setattr(hessian, "lemma_20", lambda m, R: 0.9 * R + 3 * np.sqrt(m))
    assert hessian.norm_in_a_ball(SMOKE).verdict is Verdict.HOLDS  # there is room
    monkeypatch.setattr(hessian, "lemma_20", lambda m, R: R + np.sqrt(m))
    assert hessian.norm_in_a_ball(SMOKE).verdict is Verdict.FAILS


def test_quantiles_by_closed_form():
    for m in (2, 50):  # two degrees: exp(-value / 2); many: against the chance itself
        for chance in (-1.0, -10.0):
            value = hessian.chi2_quantile(m, chance)
            assert chi2.logsf(value, m) == pytest.approx(chance, rel=1e-9)
    assert hessian.chi2_quantile(2, -3.0) == pytest.approx(6.0)


@pytest.mark.slow
def test_norms_are_those_of_the_network():
    widths, norms = hessian.vector_norms.__wrapped__(SMOKE)
    network = Encoder(64, scaling="linear", init="ntk")
    data = hessian.gaussian_sequences(2, hessian.T, hessian.D, seed=0)
    norm = hessian_norm(data, network, network.initial(data, 0), sequence=0).norm
    assert widths[0] == 64
    assert norms["start"][0, 0] == pytest.approx(norm, rel=1e-3)
    assert np.abs(norms["R = 10"] / norms["start"] - 1).max() < 0.2
    assert (norms["R = 10"] != norms["R = 1"]).all()
