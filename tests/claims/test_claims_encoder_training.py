"""Claims on training encoders: verdicts, oracles, and whether planted faults show."""

import numpy as np
import pytest

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import comparisons, training, training_errata
from attnlab.claims.scale import Scale
from attnlab.data.sequences import Sequences, gaussian_sequences
from attnlab.models.encoder import Encoder
from attnlab.theory.encoder import forward

SMOKE = Scale.SMOKE
EVERY = [claim for module in (training, comparisons, training_errata) for claim in module.CLAIMS]


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
    widths = (256.0, 1024.0)
    assert {(one["d"], one["m"]) for one in found} == {(d, m) for d in (8.0, 16.0, 32.0, 64.0) for m in widths}
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
    for third, alpha, promised in training.hidden_layers(SMOKE, data, network, network.initial(data, 0)):
        assert third < 1e-14
        assert alpha == 0.0
        assert not promised
    wide = Sequences(x=rng.standard_normal((2, 7, 5, 3)), y=rng.standard_normal((2, 7)))
    for third, alpha, _ in training.hidden_layers(SMOKE, wide, network, network.initial(wide, 0)):
        assert third > 1e-3
        assert alpha > 0.0


def test_no_weights_do_better_with_numbers_as_tokens():
    """Random weights, with the output layer fitted to the labels: never below the least loss of three numbers."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((9, 6)), rng.standard_normal(9)
    least = training.least_loss(x, y)
    found = []
    for _ in range(200):
        weights = {name: 3.0 * rng.standard_normal((8, 1)) for name in ("W_Q", "W_K", "W_V")} | {"w_O": np.zeros(8)}
        F = forward(x[:, :, None], weights, 1.0 / 8, 1.0 / 6).hidden
        best, *_ = np.linalg.lstsq(F, y, rcond=None)
        found.append(np.mean((F @ best - y) ** 2))
    # A grid of 33 values in place of all: a little above the very least.
    assert least <= 1.02 * min(found)
    assert least >= 0.9 * min(found)


def test_widths_grow_as_in_the_table():
    orders = {"m^(-1/2)": 3.0, "1/m": 2.0, "three layers": 3.0}
    assert comparisons.width_orders() == pytest.approx(orders, abs=1e-6)


def test_times_are_those_of_half_a_decade():
    steps = np.array([0, 1, 5, 20])
    log_loss = np.log([[1.0, 0.5, 0.3, 0.1], [2.0, 1.9, 1.8, 1.7]])
    assert comparisons.half_decade_times(steps, log_loss).tolist() == [5.0, 20.0]


# Planted faults ---------------------------------------------------------------------------------------------------


class Fake:
    """What a run leaves, made up."""

    def __init__(self, weights, **metrics):
        self.weights, self.metrics = weights, metrics
        self.steps = np.arange(2)


def vector_runs(monkeypatch, *, apart=0.0, solved=1e-8, unsolved=0.95, least=0.9):
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
    monkeypatch.setattr(training, "least_loss", lambda x, y: least)
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
    for found in ((0.1, 0.0, False), (0.0, 0.5, False), (0.0, 0.0, True)):
        monkeypatch.setattr(training, "hidden_layers", lambda *args, found=found: [found])
        assert vector_runs(monkeypatch) is Verdict.FAILS
        monkeypatch.undo()


@pytest.mark.parametrize("least", [0.96, 0.2])
def test_a_least_loss_that_a_run_passes_or_that_leaves_nothing_is_noticed(monkeypatch, least):
    assert vector_runs(monkeypatch, least=least) is Verdict.FAILS


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
    assert (verdict is Verdict.HOLDS) == (fault == "none")


def compared(monkeypatch, *, plain=(0.1, 0.3), centred=(0.3, 2.0), trials=12, **starts):
    """Section 4.4 on numbers that are made up: log2 of times at a small and a large width; decades; stable steps."""
    noise = np.linspace(-0.2, 0.2, trials)
    ratios = {
        name: {2: small + noise, 64: large + noise}
        for name, (small, large) in {"plain": plain, "centred": centred}.items()
    }
    decades = {"lecun, step 0.5": 5.0, "he, step 0.5": 6.0, "ntk, step 0.5": 2.0, "ntk, step 5": 7.0}
    stable = {"lecun": 2.0, "he": 1.0, "ntk": 9.0}
    decades = {k: np.full(5, starts.get(k, v)) for k, v in decades.items()}
    stable = {k: np.full(5, starts.get(k, v)) for k, v in stable.items()}
    monkeypatch.setattr(comparisons, "slowdowns", lambda scale: ratios)
    monkeypatch.setattr(
        comparisons, "starts_compared", lambda scale: {"decades": decades, "largest stable step": stable}
    )
    return comparisons.separations(SMOKE)


@pytest.mark.parametrize(
    "fault",
    [
        {"plain": (1.5, 0.3)},  # three times slower at the small width
        {"plain": (-1.5, 0.3)},  # or faster
        {"plain": (0.1, -0.3)},
        {"centred": (0.3, 0.3)},  # no more than at the small width
        {"centred": (1.5, 2.0)},
        {"centred": (0.3, -2.0)},
        {"centred": (0.9, 0.3)},  # faster, but less so than at the small width
        {"lecun, step 0.5": 1.0},
        {"he, step 0.5": 1.0},
        {"ntk, step 5": 1.0},
        {"ntk": 1.5},
    ],
)
def test_other_orderings_are_noticed(monkeypatch, fault):
    assert compared(monkeypatch).verdict is Verdict.HOLDS
    outcome = compared(monkeypatch, **fault)
    assert outcome.verdict is Verdict.FAILS
    assert 1 <= sum(part.verdict is Verdict.FAILS for part in outcome.parts) <= 2


@pytest.mark.parametrize("trials", [12, 40, 4000])
def test_more_trials_do_not_break_it(monkeypatch, trials):
    assert compared(monkeypatch, trials=trials).verdict is Verdict.HOLDS


def test_too_few_trials_are_told(monkeypatch):
    assert compared(monkeypatch, plain=(0.1, 0.1), trials=4).verdict is Verdict.TOO_FEW


def test_other_widths_are_noticed(monkeypatch):
    good = comparisons.width_orders()
    for change in ({"1/m": 3.0}, {"m^(-1/2)": 2.8}, {"three layers": 2.0}):
        monkeypatch.setattr(comparisons, "width_orders", lambda change=change: {**good, **change})
        assert compared(monkeypatch).verdict is Verdict.FAILS


@pytest.mark.slow
def test_slowdowns_are_those_of_runs():
    """The times of three trials, from runs of their own."""
    found = comparisons.slowdowns(SMOKE)["plain"][32]
    data = gaussian_sequences(12, 6, 12, rows="raw", seed=0, trials=12)
    for i in range(3):
        times = {}
        for scaling in ("sqrt", "linear"):
            network = Encoder(32, scaling=scaling)
            weights = training.of_trial(network.initial(data, 0), i)
            losses = []
            for _ in range(301):
                out = forward(data.x[i], weights, network.tau0, 1 / 6).outputs
                losses.append(np.sum((out - data.y[i]) ** 2))
                weights = stepped(data.x[i], data.y[i], weights, network.tau0, 1 / 6, 4 / 32 / 12)
            below = np.array(losses) <= losses[0] / np.sqrt(10)
            times[scaling] = int(below.argmax()) if below.any() else 300
        # Recorded steps are within 5 percent and one step of each other.
        assert found[i] == pytest.approx(np.log2(times["linear"] / times["sqrt"]), abs=0.25)


@pytest.mark.slow
def test_stable_steps_are_those_of_the_kernel():
    found = comparisons.starts_compared(SMOKE)
    data = gaussian_sequences(16, 4, 16, seed=0, trials=5)
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
        assert stable[:3] == pytest.approx(2 / np.array(tops), rel=1e-9)
        assert found["decades"][f"{law}, step 0.5"][:3] == pytest.approx(ends, rel=1e-5)


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
    runs = {
        k: {"free": np.array([v]), "frozen": np.zeros(1), "output layer alone": np.zeros(1), "growth": np.ones(1)}
        for k, v in (("lecun", 0.0), ("ntk", 5.0))
    }
    monkeypatch.setattr(training_errata, "frozen_and_free", lambda scale: runs)
    assert training_errata.ratio_is_width(SMOKE).verdict is Verdict.FAILS
    assert training_errata.ratio_and_ablation(SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(training_errata, "alpha_ratios", lambda scale: [{**f, law: 1.2 * f[law]} for f in found])
    assert training_errata.ratio_and_ablation(SMOKE).verdict is Verdict.FAILS
    # If both were the width itself, the printed line would not be refuted.
    monkeypatch.setattr(
        training_errata, "alpha_ratios", lambda scale: [{**f, "lecun": 0.7 * f["m"], "he": 1.4 * f["m"]} for f in found]
    )
    assert training_errata.ratio_is_width(SMOKE).verdict is Verdict.HOLDS


def figure_2(monkeypatch, *, raw=np.inf, unit=1e9, wide=1e-6, narrow=1e-2, mean=0.9):
    """Readings of figure 2 on losses that are made up: last over first, by reading."""

    def made_up(data, width, steps, loss, record=None):
        norm = float(np.linalg.norm(data.x[0, 0, 0]))
        if loss == "mse_mean":
            return np.cumprod(np.full((5, len(record)), mean), axis=1)
        if norm < 0.5:
            return np.full((5, 2), narrow if width == 10 else wide)
        return np.full((5, 2), raw if norm > 2 else unit)

    monkeypatch.setattr(training_errata, "runs_of", made_up)
    return training_errata.readings_of_figure_2(SMOKE).verdict


@pytest.mark.parametrize("fault", [{"raw": 3.0}, {"unit": 3.0}, {"wide": 1e-3}, {"narrow": 1e-5}, {"mean": 1.1}])
def test_other_readings_are_noticed(monkeypatch, fault):
    assert figure_2(monkeypatch) is Verdict.HOLDS
    assert figure_2(monkeypatch, **fault) is Verdict.FAILS


def test_runs_that_overflow_are_infinite(monkeypatch):
    overflown = Fake({}, loss=np.array([[2.0, np.nan], [1.0, 5.0]]))
    overflown.steps = np.array([0, 1])
    monkeypatch.setattr(training_errata, "descend", lambda *args, **options: overflown)
    data = gaussian_sequences(3, 2, 4, trials=2)
    assert training_errata.runs_of(data, 5, 2, "half_sum", [0, 1, 2]).tolist() == [
        [1.0, np.inf, np.inf],
        [1.0, 5.0, np.inf],
    ]
