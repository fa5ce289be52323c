"""Faults planted in the formulas that claims check turn their verdicts: training of encoders."""

import pytest
from planting import Fault, verdict_under

FAULTS = [
    Fault(
        "encoder-Cor1",
        "models.dense:FullyConnected.forward",
        "hidden = self.tau1 * self.relu(problem.x.reshape(n, -1)",
        "hidden = 1.01 * self.relu(problem.x.reshape(n, -1)",
        "two-layer network, hidden layer times 1.01",
    ),
    Fault(
        "encoder-B1",
        "theory.encoder.kernels:kernel_regression",
        "predictions = began + np.ldexp",
        "predictions = np.ldexp",
        "predictor without f_0",
    ),
    Fault(
        "encoder-B1",
        "theory.encoder.kernels:limiting_ntk",
        "_one(left, right) + _zero(left, right)",
        "_one(left, right) + 0.1 * _zero(left, right)",
        "E0 times 0.1",
    ),
    Fault(
        "encoder-S4.4",
        "models.encoder:Encoder.tau0",
        '"linear": -1.0',
        '"linear": -0.5',
        "tau0 = 1/m -> m^(-1/2)",
    ),
    Fault("encoder-S4.4", "theory.encoder.widths:_asked", "1024.0 * N**3", "1024.0 * N**2", "N^3 -> N^2"),
    Fault(
        "encoder-E15",
        "models.network:Network.variances",
        "gain / shape[-1]",
        "gain",
        "eta_V = 1/d -> 1",
    ),
    Fault("encoder-E15", "models.network:Network.tau1", "self.width**-0.5", "self.width**-1.0", "tau1 = 1/m"),
    Fault("encoder-E16", "models.encoder:Encoder.pooling", "1.0 / T if", "1.0 if", "mean pooling -> sum"),
    Fault(
        "encoder-E16",
        "models.losses:REDUCTIONS",
        "",
        '{**REDUCTIONS, "half_sum": lambda n: 0.5 / n}',
        "half the sum -> half the mean",
    ),
]


# Claims of real images, which are not at hand everywhere.
COUNTING = {
    id: "needs MNIST; that each order turns its verdict is shown on made-up runs in test_claims_images.py"
    for id in ("encoder-F4", "encoder-F7", "encoder-F8")
} | {"encoder-F1": "needs reviews and a model; made-up similarities turn its verdict in test_claims_texts.py"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_verdict_turns(fault):
    verdict, on_record = verdict_under(fault)
    assert verdict is not on_record
