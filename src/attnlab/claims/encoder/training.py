"""Training: vectors as input (Corollary 1), and kernel regression.

*On the Convergence of Encoder-only Shallow Transformers*, Sections 4.3 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.encoder.kernel_limits import power
from attnlab.claims.parts import Bound, Count, Identity, Limit, Mean
from attnlab.claims.scale import Scale
from attnlab.data.sequences import Sequences, gaussian_sequences
from attnlab.data.tokens import Array
from attnlab.models.dense import FullyConnected
from attnlab.models.encoder import Encoder
from attnlab.models.encoder_kernel import encoder_kernels
from attnlab.optim import gd
from attnlab.theory.encoder import Constants, forward, kernel_regression, limiting_ntk
from attnlab.theory.tangent import kernel_distance
from attnlab.train import descend

Weights = Mapping[str, Array]


def outputs(view: Any) -> Any:
    """Outputs at a recorded step."""
    return view.outputs


def of_trial(weights: Weights, trial: int) -> dict[str, Array]:
    """The weights of one trial."""
    return {name: w[trial] for name, w in weights.items()}


def outputs_of(network: Encoder, data: Sequences, weights: Weights) -> Array:
    """Outputs of all trials, (trials, n), without compiling."""
    tau1 = network.tau1 * network.pooling(data.T)
    return np.array([forward(x, of_trial(weights, i), network.tau0, tau1).outputs for i, x in enumerate(data.x)])


def kernel_of(network: Encoder, weights: dict[str, Array], x: Array) -> Array:
    """The tangent kernel, (n, n)."""
    return np.sum([*encoder_kernels(network, weights, x).values()], axis=0)


# Corollary 1 ------------------------------------------------------------------------------------------------------

SAME = 1e-14  # outputs of the encoder with one token and of the two-layer network, over the largest label
SOLVED = 1e-6  # last over first loss of a run that converges
REMOVED = 0.5  # part of the first loss that the best weights remove, where training cannot converge
RANK_TWO = 1e-12  # third singular value of the hidden layer over the first
# Values of tau0 <W_Q, W_K> that are tried for the least loss with numbers as tokens.
SLOPES = np.concatenate([-np.geomspace(1e2, 1e-3, 16), [0.0], np.geomspace(1e-3, 1e2, 16)])


def vectors(scale: Scale) -> tuple[Array, Array]:
    """Gaussian vectors (trials, N, D) and labels with N = D = 100, as in figure 3."""
    trials, rng = scale.pick(1, 2, 5), np.random.default_rng(0)
    return rng.standard_normal((trials, 100, 100)), rng.standard_normal((trials, 100))


def vector_input(scale: Scale) -> Outcome:
    """One token: outputs are those of the two-layer network at all recorded steps, and the loss falls.

    Numbers as tokens: no weights at all bring the loss far down, and conditions (2) and (3) hold nowhere.
    """
    same = Identity("one token: outputs less those of the two-layer network, over the largest label", tolerance=SAME)
    solved = Limit("one token: last over first loss", tolerance=SOLVED)
    floor = Bound("numbers as tokens: least loss of any weights / loss after training")
    removed = Limit("numbers as tokens: part of the first loss that the best weights remove", tolerance=REMOVED)
    rank = Limit("numbers as tokens: third singular value of the hidden layer over the first", tolerance=RANK_TWO)
    met = Count("numbers as tokens: alpha > 0, or condition (2) or (3) holds")

    x, y = vectors(scale)
    width, steps = 100, scale.pick(120, 200, 400)
    record = sorted({0, 1, 10, 50, steps // 2, steps})
    options: dict[str, Any] = {"loss": "mse_mean", "steps": steps, "record": record, "metrics": {"f": outputs}}
    token = Sequences.of_vectors(x / np.linalg.norm(x, axis=-1, keepdims=True), y)
    network = Encoder(width, scaling="linear")
    start = network.initial(token, 0)
    encoder = descend(token, gd(1.0), model=network, init=start, **options)
    dense_start = {name: start[name] for name in ("W_V", "w_O")}
    dense = descend(token, gd(1.0), model=FullyConnected(width), init=dense_start, **options)
    same.add((encoder.metrics["f"] - dense.metrics["f"]) / np.abs(y).max())
    solved.add(encoder.metrics["loss"][:, -1] / encoder.metrics["loss"][:, 0])

    numbers = Sequences.of_vectors(x, y, "sequence")
    few = scale.pick(10, 40, 400)
    run = descend(numbers, gd(1.0), model=network, loss="mse_mean", steps=few, record=[0, few])
    least = np.array([least_loss(one, labels) for one, labels in zip(x, y, strict=True)])
    floor.add_at_least(run.metrics["loss"][:, -1], least)
    removed.add(1.0 - least / run.metrics["loss"][:, 0])
    for third, alpha, promised in hidden_layers(scale, numbers, network, run.weights):
        rank.add(third)
        met.add(alpha > 0.0 or promised)
    return outcome(
        same,
        solved,
        floor,
        removed,
        rank,
        met,
        instances=3 * len(x),
        seeds=(0,),
        numbers={
            "numbers as tokens: last over first loss": run.metrics["loss"][:, -1] / run.metrics["loss"][:, 0],
            "numbers as tokens: least loss over the first": least / run.metrics["loss"][:, 0],
            "steps": [steps, few],
        },
    )


def least_loss(x: Array, y: Array) -> float:
    """The least mean squared error of any encoder on vectors x (N, D), fed as D tokens of dimension 1.

    Outputs are p A+ + q A-, with A+ and A- the means over tokens of the positive and negative parts of what attention
    gives, which depends on the weights through tau0 <W_Q, W_K> alone: two numbers are fitted, one is searched.
    """
    products = x[:, :, None] * x[:, None, :]  # (N, D, D)

    def error(slope: float) -> float:
        attended = np.einsum("nij,nj->ni", softmax(slope * products, axis=-1), x)
        features = np.stack([np.maximum(attended, 0).mean(1), np.maximum(-attended, 0).mean(1)], axis=1)
        best, *_ = np.linalg.lstsq(features, y, rcond=None)
        return float(np.mean((features @ best - y) ** 2))

    errors = np.array([error(slope) for slope in SLOPES])
    # Every low point of the grid, and the least between its neighbours.
    padded = np.concatenate([[np.inf], errors, [np.inf]])
    low = np.flatnonzero((errors <= padded[:-2]) & (errors <= padded[2:]))
    least = float(errors.min())
    for at in low:
        ends = SLOPES[max(at - 1, 0)], SLOPES[min(at + 1, len(SLOPES) - 1)]
        between: Any = minimize_scalar(error, bounds=ends, method="bounded")
        least = min(least, float(between.fun))
    return least


def hidden_layers(scale: Scale, data: Sequences, network: Encoder, trained: Weights) -> list[tuple[float, float, bool]]:
    """Third singular value of F_pre over the first, alpha, and whether (2) or (3) holds: trained, and other starts."""
    widths = scale.pick((40,), (40, 200), (100, 1000))
    others = [Encoder(m, scaling=scaling) for m in widths for scaling in ("linear", "sqrt")]
    found = []
    for trial in range(data.trials or 1):
        one = data[trial]
        cases = [(network, of_trial(trained, trial))]
        cases += [(other, other.initial(one, trial)) for other in others]
        for net, weights in cases:
            tau1 = net.tau1 * net.pooling(one.T)
            values = np.linalg.svd(forward(one.x, weights, net.tau0, tau1).hidden, compute_uv=False)
            constants = Constants.of(one.x, one.y, weights, tau0=net.tau0, tau1=tau1)
            promised = constants.condition_2.holds or constants.condition_3.holds
            found.append((float(values[2] / values[0]), constants.alpha, promised))
    return found


# Kernel regression ------------------------------------------------------------------------------------------------

TRAIN, TEST, STEPS = 12, 32, 300
TRAINED = 1e-10  # last over first loss of a run to the end
FALLS = -0.25  # fitted power of the width of the error, which is -1/2 in theory


def kernel_predicts(scale: Scale) -> Outcome:
    """Errors of the kernel predictor on other sequences: they fall with the width, and f_0 belongs in it."""
    widths, trials = scale.pick((64, 512), (64, 256, 1024), (64, 256, 1024, 4096)), scale.pick(6, 6, 16)
    every = gaussian_sequences(TRAIN + TEST, 4, 16, seed=0, trials=trials)
    data = Sequences(x=every.x[:, :TRAIN], y=every.y[:, :TRAIN])
    test = Sequences(x=every.x[:, TRAIN:], y=every.y[:, TRAIN:])
    kernels = [limiting_ntk(x) for x in every.x]
    step = 1.0 / max(float(np.linalg.eigvalsh(K[:TRAIN, :TRAIN])[-1]) for K in kernels)
    steps = STEPS * scale.pick(1, 1, 2)
    ended = Limit("last over first loss", tolerance=TRAINED)
    belongs = Mean("log2 of the error without f_0 over that with it", at_least=0.0)
    errors = []  # (widths, trials)
    moved = {}
    for m in widths:
        network = Encoder(m, scaling="linear", init="ntk")
        start = network.initial(data, 0)
        run = descend(data, gd(step), model=network, init=start, steps=steps, record=[0, steps])
        ended.add(run.metrics["loss"][:, -1] / run.metrics["loss"][:, 0])
        on_train, on_test = outputs_of(network, data, start), outputs_of(network, test, start)
        learnt = outputs_of(network, test, run.weights)
        with_start, without = [], []
        for i, K in enumerate(kernels):
            among, across = K[:TRAIN, :TRAIN], K[TRAIN:, :TRAIN]
            predicted = kernel_regression(among, across, data.y[i] - on_train[i], on_test[i])
            with_start.append(np.abs(learnt[i] - predicted).mean())
            plain = kernel_regression(among, across, data.y[i], np.zeros(TEST))
            without.append(np.abs(learnt[i] - plain).mean())
        errors.append(with_start)
        belongs.add(np.log2(np.array(without) / np.array(with_start)))
        if scale is not Scale.SMOKE:
            before, after = (kernel_of(network, of_trial(w, 0), data.x[0]) for w in (start, run.weights))
            moved[f"m = {m}"] = float(kernel_distance(before, after))
    falls = Mean("power of the width of the error, by trial", at_most=FALLS)
    falls.add([power(widths, one) for one in np.array(errors).T])
    return outcome(
        ended,
        belongs,
        falls,
        instances=trials * len(widths),
        seeds=range(trials),
        numbers={
            "mean error by width": {f"m = {m}": float(np.mean(one)) for m, one in zip(widths, errors, strict=True)},
            "kernel moved by": moved,
        },
    )


CLAIMS = [
    Claim(
        id="encoder-Cor1",
        title="Vectors as one token, and as a sequence of numbers",
        statement="With LeCun weights and tau0 = 1/m, vectors fed as one token (T = 1) make the encoder a two-layer "
        "network, and training converges; fed as T numbers (d = 1), conditions (2) and (3) fail and training does not "
        "(Corollary 1 and figure 3). For d = 1 the hidden layer has rank at most 2, so alpha = 0 for N >= 3, at any "
        "width.",
        hypotheses=("LeCun weights, tau0 = 1/m",),
        setting="N = 100 Gaussian vectors in dimension 100 with N(0, 1) labels, of norm 1 where they are one token; "
        "m = 100, step 1, mean squared error.",
        reason="outputs of both networks at all recorded steps, over the largest label, to rounding; last over first "
        "loss; for numbers as tokens the least loss of any weights, by least squares in two numbers and a search in "
        "one, which no run may pass and which must leave half of the first loss; rank, alpha and conditions exactly",
        measure=vector_input,
    ),
    Claim(
        id="encoder-B1",
        title="A wide network learns what its kernel predicts",
        statement="With N(0, 1) weights and tau0 = 1/m, gradient descent to the end gives f = f_0 + K*(., X) K*^(-1) "
        "(y - f_0) on other sequences, the better the wider the network (Section 4.3, after Theorem 2; the paper "
        "leaves out f_0).",
        hypotheses=("N(0, 1) weights, tau0 = 1/m, mean pooling",),
        setting="12 unit-token Gaussian sequences with T = 4, d = 16, and 32 others to predict; step "
        "1 / lambda_max(K*), half the sum of squares, to the end.",
        reason="power of the width of the mean error by trial, whose mean is at most -1/4 by two standard errors "
        "(theory: -1/2); the error without f_0 over that with it; last over first loss below 1e-10",
        measure=kernel_predicts,
    ),
]
