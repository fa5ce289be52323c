"""Faults planted in the formulas and solvers that claims on landscape, paths and formulas check turn their verdicts."""

import pytest
from planting import Fault, verdict_under

TOGETHER = "svm.batch:MarginSolutions.__init__"
SOLVED = "self.W, self.margin, self.gap = together.W, together.margin, together.gap"
ALONE = "self.W[i], self.margin[i] = solution.W, solution.margin"


def scaled(claim, factor):
    """The max-margin W of a batch is too long by a factor."""
    return Fault(claim, TOGETHER, SOLVED, SOLVED.replace("= ", f"= {factor} * ", 1), f"W_mm times {factor}")


def turned(claim):
    """The max-margin W of a batch is off by 15 % of its length."""
    off = SOLVED.replace("= together.W,", "= together.W + 0.15 * together.W[:, ::-1],")
    return Fault(claim, TOGETHER, SOLVED, off, "W_mm off by 15 %")


def transposed(claim):
    """The max-margin W of a batch is transposed."""
    off = SOLVED.replace("= together.W,", "= together.W.transpose(0, 2, 1),")
    return Fault(claim, TOGETHER, SOLVED, off, "W_mm transposed")


LIPSCHITZ = "theory.svm.lipschitz:lipschitz_constants"
CERTIFY = "svm.certificate:certify"
NUCLEAR = "svm.nuclear:certify_nuclear"
DESCENT = "optim.rule:scaled_by"
RADIUS = "claims.svm.first_step:radius_of_the_cone"

FAULTS = [
    # Feasibility and row space.
    Fault("svm-T1", CERTIFY, "W, length = W / least", "W, length = 0.9 * W / least", "W separates by 0.9"),
    Fault("svm-L1", CERTIFY, "W, length = W / least", "W, length = 1.01 * W / least", "Frobenius W 1 % too long"),
    Fault(
        "svm-L1",
        NUCLEAR,
        "W, values, nuclear = W / least",
        "W, values, nuclear = 1.01 * W / least",
        "nuclear W 1 % too long",
    ),
    Fault("svm-B1d", "theory.svm.assumptions:_room", "return 1.0 +", "return 2.0 +", "B.1 allows values up to 2"),
    # Landscape.
    Fault(
        "svm-L2",
        "models.losses:MarginLoss.excess",
        "log_rise(start, drop)",
        "log_rise(start, 2.0 * drop)",
        "drop doubled",
    ),
    Fault("svm-L7", "claims.svm.landscape:LEADING", "", "1.99", "2 -> 1.99"),
    scaled("svm-L9", 1.1),
    Fault("svm-T3", DESCENT, "-m * jnp", "m * jnp", "the sign of a step"),
    Fault("svm-L17", "claims.svm.landscape:_stack", "[2][:, n:]", "[2][:, : p - n]", "P in the row space of A"),
    # Smoothness.
    Fault("svm-L4", LIPSCHITZ, "sizes**3", "sizes**0", "without |X|^3"),
    Fault("svm-L4", LIPSCHITZ, "sizes**3", "sizes**2", "|X|^3 -> |X|^2"),
    Fault("svm-L4", LIPSCHITZ, "/ tokens.n\n", "* 0.05 / tokens.n\n", "L_W times 0.05"),
    Fault("svm-L4", LIPSCHITZ, "used.M0 * v", "0.1 * used.M0 * v", "M0 / 10"),
    Fault("svm-L4", LIPSCHITZ, "z**2", "z**2 * 0.1", "L_W / 10"),
    Fault("svm-L8", LIPSCHITZ, "sizes**3", "sizes**0", "without |X|^3"),
    Fault("svm-L8", LIPSCHITZ, "/ tokens.n\n", "* 0.05 / tokens.n\n", "L_W times 0.05"),
    Fault("svm-E4", LIPSCHITZ, "/ tokens.n\n", "* 0.1 / tokens.n\n", "L_W / 10"),
    # Paths.
    turned("svm-T2"),
    Fault("svm-T2", NUCLEAR, "W, values, nuclear = W / least", "W, values, nuclear = 0.85 * W / least", "15 % short"),
    Fault("svm-T2", "svm.face:distance_to_face", "face.U.T @ given", "face.U.T @ given.T", "transposed face"),
    Fault(
        "svm-Cor2", TOGETHER, ALONE, ALONE.replace("solution.W,", "solution.W + 0.15 * solution.W[::-1],"), "15 % off"
    ),
    turned("svm-T10"),
    Fault(
        "svm-L15", "train.pathwalk:Walk.stage", "np.sqrt(2.0 * radius)", "np.sqrt(radius)", "the ball of K and Q halved"
    ),
    Fault("svm-Cor1", "svm.generic:_certified", "W = W / least if", "W = 1.15 * W / least if", "W_mm 15 % too long"),
    Fault("svm-L1n", "claims.svm.other_norms:least_entrywise_norm", "else basis", "else np.eye(d)", "no restriction"),
    Fault(
        "svm-L3", NUCLEAR, "W, values, nuclear = W / least", "W, values, nuclear = 1.01 * W / least", "C_cvx 1 % high"
    ),
    Fault(
        "svm-L3", NUCLEAR, "W, values, nuclear = W / least", "W, values, nuclear = 0.99 * W / least", "C_cvx 1 % low"
    ),
    # The first step.
    transposed("svm-T6"),
    transposed("svm-L11"),
    Fault("svm-L12", "claims.svm.first_step:cone_sandwich", "MU / 2.0", "MU * 2.0", "mu/2 -> 2 mu"),
    Fault("svm-L12", "claims.svm.first_step:cone_sandwich", "2.0 * size_of", "0.2 * size_of", "2A -> A/5"),
    transposed("svm-E7"),
    Fault("svm-E59", RADIUS, "4.0 * tokens.T", "0.4 * tokens.T", "4 T -> 0.4 T"),
    Fault("svm-E7b", "theory.svm.assumptions:_room", "return 1.0 +", "return 10.0 +", "B.1 allows values up to 10"),
    # Compositions.
    Fault("svm-Eq7", "svm.finite:finite_part", "target = (logs", "target = 2.0 * (logs", "log-ratios doubled"),
    Fault("svm-Gen", CERTIFY, "W, length = W / least", "W, length = 1.1 * W / least", "W_mm 10 % too long"),
    Fault("svm-Eq6", "svm.finite:combine", "parts[0] + gamma * m", "parts[0] - gamma * m", "sign of gamma"),
    # Formulas in print.
    Fault("svm-E1", CERTIFY, "W = raw\n", "W = raw + 0.01 * np.eye(d)\n", "W of full rank"),
    Fault("svm-E2", "claims.svm.samples:slopes", "part * np.exp(", "0.5 * part * np.exp(", "gradient halved"),
    Fault(
        "svm-E3", "theory.svm.lipschitz:LipschitzConstants.K_printed", "Q) * self.W", "Q) ** 2 * self.W", "|Q| squared"
    ),
    scaled("svm-E5", 1.1),
    Fault("svm-E10", "svm.face:distance_to_face", "face.U.T @ given", "face.U.T @ given.T", "transposed face"),
    scaled("svm-E11", 1.1),
    Fault("svm-E9", "claims.svm.first_step:cone_sandwich", "MU / 2.0", "MU * 2.0", "mu/2 -> 2 mu"),
    Fault("svm-E13", "theory.svm.assumptions:_room", "return 1.0 +", "return 1.5 +", "B.1 allows values up to 1.5"),
    Fault("svm-E14", NUCLEAR, "rank=rank,", "rank=rank + 1,", "certified rank too large"),
    Fault("svm-E15", "models.heads:Mlp.apply", "output @", "1.0 + output @", "ReLU shifted by 1"),
    Fault(
        "svm-E10b", "claims.svm.text_slips:loss_against_the_worst_query", ".sum((-2, -1))", ".mean((-2, -1))", "mean"
    ),
    Fault("svm-E11b", DESCENT, "-m * jnp", "m * jnp", "the sign of a step"),
    scaled("svm-E11c", 1.1),
    Fault(
        "svm-E11d", "claims.svm.text_slips:subspace_in_the_null_space", "free if rows", "free if not rows", "exchanged"
    ),
    Fault("svm-E12", "claims.svm.text_slips:EPS", "", "1.11e-16", "half of the spacing"),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_verdict_turns(fault):
    verdict, on_record = verdict_under(fault)
    assert verdict is not on_record
