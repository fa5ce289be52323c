"""Faults planted in the formulas and solvers that claims on convergence check turn their verdicts."""

import pytest
from planting import Fault, verdict_under

TOGETHER = "svm.batch:MarginSolutions.__init__"
SOLVED = "self.W, self.margin, self.gap = together.W, together.margin, together.gap"
CERTIFY = "svm.certificate:certify"
CONE = "theory.svm.cones:local_cone"
BARRIER = "theory.svm.cones:barrier"
BEST_LOW = "best_low = np.where(low, logits, -np.inf).max(-1)"


def turned(claim):
    """The max-margin W of a batch is off by 15 % of its length."""
    off = SOLVED.replace("= together.W,", "= together.W + 0.15 * together.W[:, ::-1],")
    return Fault(claim, TOGETHER, SOLVED, off, "W_mm off by 15 %")


def released(claim):
    """The follower of a trap leads by less than the margin: nothing holds it."""
    return Fault(claim, "data.trap:_drawn", "uniform(1.0, 2.5)", "uniform(-0.9, -0.5)", "the trap does not hold")


def leaning(claim):
    """The max-margin W of one data set is off by 15 % of its length."""
    off = "W, length = (W + 0.15 * W[::-1]) / least"
    return Fault(claim, CERTIFY, "W, length = W / least", off, "W_mm off by 15 %")


def uphill(claim):
    """The gradient has the wrong sign."""
    return Fault(claim, "claims.svm.dynamics:pushes_of", "= np.sign(lead)", "= -np.sign(lead)", "the gradient's sign")


def too_near(claim):
    """The cone begins at R_mu without 1 / delta."""
    return Fault(claim, CONE, "max(2.0, 1.0 / delta)", "2.0", "R_mu without 1/delta")


FAULTS = [
    # Theorems 4 and 5, Lemma 10.
    released("svm-T4"),
    turned("svm-T4"),
    released("svm-T5"),
    turned("svm-T5"),
    released("svm-E17"),
    turned("svm-E17"),
    turned("svm-L10"),
    # The cone of Theorem 7.
    too_near("svm-T7"),
    too_near("svm-L13"),
    too_near("svm-L14"),
    too_near("svm-E16"),
    Fault("svm-T7", CONE, "** 2 / 8.0", "** 0.5 / 8.0", "mu with the square root"),
    Fault("svm-L13", "claims.svm.local_convergence:in_cone_sandwich", "1.0 / 8.0", "10.0 / 8.0", "1/8 -> 10/8"),
    Fault("svm-L13", "claims.svm.local_convergence:in_cone_sandwich", "8.0, 2.0)", "8.0, 0.2)", "2 -> 0.2"),
    turned("svm-E16"),
    uphill("svm-L14-76"),
    uphill("svm-T6-63a"),
    Fault("svm-T7-step", CONE, "** 2 / 8.0", "** 0.5 / 8.0", "mu with the square root"),
    # Local paths.
    leaning("svm-T9"),
    Fault("svm-T9-nuclear", "svm.face:distance_to_face", "face.U.T @ given", "face.U.T @ given.T", "transposed face"),
    # Shields.
    Fault("svm-L5", BARRIER, BEST_LOW, BEST_LOW.replace("-np.inf).max", "np.inf).min"), "max -> min"),
    Fault("svm-L16", BARRIER, BEST_LOW, BEST_LOW.replace("-np.inf).max", "np.inf).min"), "max -> min"),
    Fault("svm-E8", BARRIER, BEST_LOW, BEST_LOW.replace("-np.inf).max", "np.inf).min"), "max -> min"),
    Fault("svm-L5", "theory.svm.geometry:_judged", "support & (lead <= 0)", "support & (lead < 0.5)", "a lead of 0.5"),
    Fault("svm-L16", "theory.svm.geometry:_judged", "support & (lead <= 0)", "support & (lead < 0.5)", "a lead of 0.5"),
    # How many tokens are selected.
    Fault("svm-L6", "claims.svm.selection:best_mixture", "(2.0 * penalty", "(0.5 * penalty", "2 lambda -> lambda / 2"),
    Fault("svm-E6", "claims.svm.selection:kept_by_rule", "2.0 * penalty", "1.0 * penalty", "2 lambda -> lambda"),
    Fault("svm-Convex", "models.heads:ReluSum.apply", "jnp.sum(", "-jnp.sum(", "a concave head"),
    # Section 5.2, and K and Q.
    turned("svm-Conj"),
    Fault("svm-D", "theory.svm.assumptions:_room", "return 1.0 +", "return 2.0 +", "support up to values of 2"),
    turned("svm-Def2"),
    Fault(
        "svm-Def2", "theory.svm.geometry:_judged", "support & (lead <= 0)", "support & (lead < 0.5)", "a lead of 0.5"
    ),
    Fault("svm-KQ", TOGETHER, SOLVED, SOLVED.replace("= ", "= 0.9 * ", 1), "least norm 10 % low"),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_verdict_turns(fault):
    verdict, on_record = verdict_under(fault)
    assert verdict is not on_record
