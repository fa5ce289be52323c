"""Claims on training encoders: verdicts, oracles, and whether planted faults show."""

import numpy as np
import pytest

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import training, training_errata
from attnlab.claims.scale import Scale
from attnlab.data.sequences import Sequences, gaussian_sequences
from attnlab.models.encoder import Encoder
from attnlab.theory.encoder import forward

SMOKE = Scale.SMOKE
EVERY = [claim for module in (training, training_errata) for claim in module.CLAIMS]


@pytest.fixture(autouse=True)
def _forget():
    """Planted faults must not stay in caches."""
    yield
    for name in ("alpha_ratios", "frozen_and_free"):
        if hasattr(getattr(training_errata, name), "cache_clear"):
            getattr(training_errata, name).cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.id)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome


# Oracles ----------------------------------------------------------------------------------------------------------


def test_linear_training_is_gradient_descent():
    rng = np.random.default_rng(0)
    J, y = rng.standard_normal((5, 8)), rng.standard_normal(5)
    w = rng.standard_normal(8)
    first = J @ w - y
    for _ in range(30):
        w = w - 0.02 * J.T @ (J @ w - y)
    true = 0.5 * np.sum((J @ w - y) ** 2)
    assert training_errata.linear_loss(J @ J.T, first, 0.02, 30) == pytest.approx(true, rel=1e-12)


@pytest.mark.slow
def test_frozen_runs_by_hand():
    """The output layer alone, trained step by step; and the whole run by gradients written out."""
    found = training_errata.frozen_and_free(SMOKE)
    data = gaussian_sequences(20, 6, 20, seed=0, trials=2)
    for law, one in found.items():
        network = Encoder(20, init=law)
        start = training.of_trial(network.initial(data, 0), 0)
        x, y, tau1 = data.x[0], data.y[0], network.tau1 / 6
        F, w_O = forward(x, start, network.tau0, tau1).hidden, start["w_O"]
        first = np.sum((F @ w_O - y) ** 2)
        for _ in range(200):
            w_O = w_O - 2 / 20 * F.T @ (F @ w_O - y)
        assert one["output layer alone"][0] == pytest.approx(np.log10(np.sum((F @ w_O - y) ** 2) / first), abs=1e-9)
        weights = dict(start)
        for _ in range(200):
            weights = stepped(x, y, weights, network.tau0, tau1, 2 / 20)
        last = np.sum((forward(x, weights, network.tau0, tau1).outputs - y) ** 2)
        assert one["free"][0] == pytest.approx(np.log10(last / first), abs=1e-6)


def stepped(x, y, weights, tau0, t, step):
    """One step on half the sum of squares, by the gradients of Lemma 12."""
    found = forward(x, weights, tau0, t)
    errors = found.outputs - y
    G = (found.preactivation > 0) * weights["w_O"] * errors[:, None, None]
    S = (G @ weights["W_V"]) @ np.swapaxes(x, 1, 2)
    B = found.attention
    R = B * (S - (B * S).sum(axis=-1, keepdims=True))
    M = np.einsum("nti,nts,nsj->ij", x, R, x)
    slopes = {
        "w_O": errors @ found.hidden,
        "W_V": t * np.einsum("ntm,ntd->md", G, found.attended),
        "W_Q": tau0 * t * weights["W_K"] @ M.T,
        "W_K": tau0 * t * weights["W_Q"] @ M,
    }
    return {name: w - step * slopes[name] for name, w in weights.items()}


def test_alpha_ratios_without_attention_are_exact():
    """With one token attention is 1, and F_pre for LeCun weights is sqrt(m / d) times that for N(0, 1)."""
    found = training_errata.alpha_ratios(SMOKE)
    assert {(one["d"], one["m"]) for one in found} == {(d, 512.0) for d in (8.0, 16.0, 32.0, 64.0)}
    assert all(one["ntk"] == 1.0 for one in found)
    rng = np.random.default_rng(0)
    x, Z = rng.standard_normal((3, 1, 5)), rng.standard_normal((40, 5))
    other = {name: np.zeros((40, 5)) for name in ("W_Q", "W_K")} | {"w_O": np.zeros(40)}
    lecun = forward(x, {**other, "W_V": Z / np.sqrt(5)}, 0.1, 1.0).hidden
    ntk = forward(x, {**other, "W_V": Z}, 0.1, 40**-0.5).hidden
    np.testing.assert_allclose(lecun, np.sqrt(40 / 5) * ntk, rtol=1e-12)


def test_numbers_as_tokens_have_a_hidden_layer_of_rank_two():
    rng = np.random.default_rng(0)
    data = Sequences(x=rng.standard_normal((2, 7, 5, 1)), y=rng.standard_normal((2, 7)))
    network = Encoder(9, scaling="linear")
    third, alpha, promised = training.narrow_hidden(SMOKE, data, network, network.initial(data, 0))
    assert third < 1e-14
    assert alpha == 0.0
    assert not promised
    wide = Sequences(x=rng.standard_normal((2, 7, 5, 3)), y=rng.standard_normal((2, 7)))
    third, alpha, _ = training.narrow_hidden(SMOKE, wide, network, network.initial(wide, 0))
    assert third > 1e-3
    assert alpha > 0.0


def test_widths_grow_as_in_the_table():
    assert training.width_orders() == pytest.approx({"m^(-1/2)": 3.0, "1/m": 2.0, "three layers": 3.0}, abs=1e-6)


# Planted faults ---------------------------------------------------------------------------------------------------


class Fake:
    """What a run leaves, made up."""

    def __init__(self, weights, **metrics):
        self.weights, self.metrics = weights, metrics


def vector_runs(monkeypatch, *, apart=0.0, solved=1e-8, unsolved=0.95):
    """Corollary 1 on runs that are made up."""

    def other(data, rule, *, model, init=None, steps=0, **options):
        trials = data.trials
        weights = model.initial(data, 0) if init is None else init
        end = unsolved if data.d == 1 else solved
        shift = apart if type(model).__name__ == "FullyConnected" else 0.0
        return Fake(weights, loss=np.array([[1.0, end]] * trials), f=np.ones((trials, 2, data.n)) + shift)

    monkeypatch.setattr(training, "descend", other)
    x, y = training.vectors(SMOKE)
    monkeypatch.setattr(training, "vectors", lambda scale: (x[:, :12, :10], y[:, :12]))
    return training.vector_input(SMOKE).verdict


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({}, Verdict.HOLDS),
        ({"apart": 1e-12}, Verdict.FAILS),
        ({"solved": 1e-4}, Verdict.FAILS),
        ({"unsolved": 0.5}, Verdict.FAILS),
    ],
)
def test_wrong_runs_on_vectors_are_noticed(monkeypatch, fault, verdict):
    assert vector_runs(monkeypatch, **fault) is verdict


def test_a_full_hidden_layer_is_noticed(monkeypatch):
    for found in ((0.1, 0.5, False), (0.0, 0.0, True)):
        monkeypatch.setattr(training, "narrow_hidden", lambda *args, found=found: found)
        assert vector_runs(monkeypatch) is Verdict.FAILS
        monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", "no start", "scaled kernel", "unfinished"])
def test_wrong_predictions_are_noticed(monkeypatch, fault):
    original = training.kernel_regression
    if fault == "no start":
        monkeypatch.setattr(training, "kernel_regression", lambda K, A, r, s: original(K, A, r, 0.0 * s))
    if fault == "scaled kernel":
        monkeypatch.setattr(training, "kernel_regression", lambda K, A, r, s: original(K, 1.5 * A, r, s))
    if fault == "unfinished":
        monkeypatch.setattr(training, "STEPS", 20)
    verdict = training.kernel_predicts(SMOKE).verdict
    assert verdict is (Verdict.HOLDS if fault == "none" else Verdict.FAILS)


def compared(monkeypatch, scales=None, **starts):
    """Section 4.4 on numbers that are made up."""
    lead = {"small": 0.5, "large": 4.0} | (scales or {})
    found = {k: {"in standard errors": v, "large": k == "large"} for k, v in lead.items()}
    decades = {"lecun, step 0.5": 5.0, "he, step 0.5": 6.0, "ntk, step 0.5": 2.0, "ntk, step 5": 7.0}
    stable = {"lecun": 2.0, "he": 1.0, "ntk": 9.0}
    decades |= {k: v for k, v in starts.items() if k in decades}
    stable |= {k: v for k, v in starts.items() if k in stable}
    monkeypatch.setattr(training, "scales_compared", lambda scale: found)
    monkeypatch.setattr(
        training, "starts_compared", lambda scale: {"decades": decades, "largest stable step": stable}
    )  # fmt: skip
    return training.separations(SMOKE)


@pytest.mark.parametrize(
    "fault",
    [
        {"scales": {"small": 3.0}},
        {"scales": {"small": -3.0}},
        {"scales": {"large": 1.0}},
        {"scales": {"large": -4.0}},
        {"lecun, step 0.5": 1.0},
        {"he, step 0.5": 1.0},
        {"ntk, step 5": 1.0},
        {"ntk": 1.5},
    ],
)
def test_other_orderings_are_noticed(monkeypatch, fault):
    assert compared(monkeypatch).worst == 0
    outcome = compared(monkeypatch, **fault)
    assert outcome.worst == 1
    assert outcome.verdict is Verdict.FAILS


def test_other_widths_are_noticed(monkeypatch):
    good = training.width_orders()
    for change in ({"1/m": 3.0}, {"m^(-1/2)": 2.8}, {"three layers": 2.0}):
        monkeypatch.setattr(training, "width_orders", lambda change=change: {**good, **change})
        assert compared(monkeypatch).verdict is Verdict.FAILS


@pytest.mark.slow
def test_leads_are_those_of_runs():
    """The lead of one trial, from runs of its own; He together with LeCun is He alone."""
    found = training.scales_compared(SMOKE)["plain, m = 64"]
    data = gaussian_sequences(12, 6, 12, rows="raw", seed=0, trials=12)
    fell = []
    for scaling in ("sqrt", "linear"):
        network = Encoder(64, scaling=scaling)
        start, ends = network.initial(data, 0), []
        for i in range(12):
            weights, tau1 = training.of_trial(start, i), 1 / 6
            first = np.sum((forward(data.x[i], weights, network.tau0, tau1).outputs - data.y[i]) ** 2)
            for _ in range(300):
                weights = stepped(data.x[i], data.y[i], weights, network.tau0, tau1, 4 / 64 / 12)
            last = np.sum((forward(data.x[i], weights, network.tau0, tau1).outputs - data.y[i]) ** 2)
            ends.append(np.log10(first / last))
        fell.append(np.array(ends))
    lead = fell[0] - fell[1]
    assert found["lead"] == pytest.approx(lead.mean(), rel=1e-6)
    assert found["in standard errors"] == pytest.approx(lead.mean() / (lead.std(ddof=1) / np.sqrt(12)), rel=1e-6)
    assert found["decades, m^(-1/2) and 1/m"] == pytest.approx([fell[0].mean(), fell[1].mean()], rel=1e-6)


@pytest.mark.slow
def test_stable_steps_are_those_of_the_kernel():
    found = training.starts_compared(SMOKE)
    data = gaussian_sequences(16, 4, 16, seed=0, trials=3)
    for law, stable in found["largest stable step"].items():
        network = Encoder(128, init=law)
        start, tops, ends = network.initial(data, 0), [], []
        for i in range(3):
            weights = training.of_trial(start, i)
            kernel = training.kernel_of(network, weights, data.x[i])
            tops.append(np.linalg.eigvalsh(2 / 16 * kernel)[-1])
            first = float(network.loss(data[i], weights, loss="mse_mean"))
            for _ in range(200):
                weights = stepped(data.x[i], data.y[i], weights, network.tau0, network.tau1 / 4, 0.5 * 2 / 16)
            ends.append(np.log10(first / float(network.loss(data[i], weights, loss="mse_mean"))))
        assert stable == pytest.approx(2 / np.median(tops), rel=1e-9)
        assert found["decades"][f"{law}, step 0.5"] == pytest.approx(np.median(ends), rel=1e-5)


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ({}, Verdict.HOLDS),
        ({"free": 0.5}, Verdict.FAILS),
        ({"frozen": 0.9}, Verdict.FAILS),
        ({"output layer alone": 0.9}, Verdict.FAILS),
    ],
)
def test_a_lead_that_stays_is_noticed(monkeypatch, fault, verdict):
    lead = {"free": 6.0, "frozen": 0.1, "output layer alone": -0.2} | fault
    runs = {"lecun": {k: np.array([0.0, 0.0]) for k in lead}, "ntk": {k: np.array([v, v]) for k, v in lead.items()}}
    for one in runs.values():
        one["growth"] = np.ones(2)
    monkeypatch.setattr(training_errata, "frozen_and_free", lambda scale: runs)
    assert training_errata.ratio_and_ablation(SMOKE).verdict is verdict


@pytest.mark.parametrize("law", ["lecun", "he"])
def test_other_ratios_of_alpha_are_noticed(monkeypatch, law):
    found = training_errata.alpha_ratios(SMOKE)
    runs = {k: {"free": np.array([v]), "frozen": np.zeros(1), "output layer alone": np.zeros(1), "growth": np.ones(1)}
            for k, v in (("lecun", 0.0), ("ntk", 5.0))}  # fmt: skip
    monkeypatch.setattr(training_errata, "frozen_and_free", lambda scale: runs)
    assert training_errata.ratio_is_width(SMOKE).verdict is Verdict.FAILS
    monkeypatch.setattr(training_errata, "alpha_ratios", lambda scale: [{**f, law: 1.2 * f[law]} for f in found])
    assert training_errata.ratio_and_ablation(SMOKE).verdict is Verdict.FAILS
    # If one of the two were the width itself, the printed statement would not be refuted.
    monkeypatch.setattr(training_errata, "alpha_ratios", lambda scale: [{**f, law: 0.7 * f["m"]} for f in found])
    assert training_errata.ratio_is_width(SMOKE).verdict is Verdict.HOLDS


@pytest.mark.parametrize("loss", [[1.0, np.inf, np.nan], [1.0, 1e7, 0.9], [1.0, 1.5, 1.2], [1.0, 0.9, 0.8]])
def test_divergence_is_told_from_convergence(monkeypatch, loss):
    monkeypatch.setattr(
        training_errata, "descend", lambda data, rule, *, init, **options: Fake(init, loss=np.array([loss]))
    )
    monkeypatch.setattr(training_errata, "kernel_of", lambda *args: np.eye(2))
    expected = Verdict.HOLDS if loss[-1] == 0.8 else Verdict.FAILS
    assert training_errata.as_written(SMOKE).verdict is expected
    monkeypatch.setattr(
        training_errata,
        "descend",
        lambda data, rule, *, model, **o: Fake(model.initial(data, 0), loss=np.array([loss])),
    )
    assert training_errata.as_adopted(SMOKE).verdict is expected
