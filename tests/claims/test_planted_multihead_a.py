"""Faults planted in the formulas that claims on derivatives, curvature, training and phase one check: verdicts turn.

Where a faulty formula chooses heads, step sizes or segments, the instances miss the conditions as `conditions` writes
them out a second time, and the verdict is unsolved. There it is the second transcription that notices: the inequality
itself, measured with the instances that were chosen, often still holds.
"""

import pytest
from planting import Fault, verdict_under

from attnlab.claims.multihead import (
    curvature,
    curvature_errata,
    dynamics,
    gradients,
    phase_one_lemmas,
    tangent,
    theorem_1,
)

MODULES = (gradients, curvature, curvature_errata, theorem_1, dynamics, tangent, phase_one_lemmas)

BETA1 = "theory.multihead.bounds:Shape.beta1"
BETA3 = "theory.multihead.bounds:Shape.beta3"
TOKENS = "theory.multihead.bounds:token_bounds"
HEADS = "theory.multihead.bounds:head_requirement"
STEP = "theory.multihead.bounds:smoothness"
GUARANTEES = "theory.multihead.guarantees"
PHASE_ONE = "theory.multihead.phase_one"
PIECES = "claims.multihead.derivatives:pieces"
OUTPUTS = "models.multihead:MultiHead.forward"

TENTH = ("2.0 * self.length * root", "0.2 * self.length * root", "beta3 / 10")
THIRTY_SIX = ("0.5 * c * shape.beta3", "0.5 * shape.beta3", "36 -> 1 in the heads")
NO_ROOT = ("each.hessian) / np.sqrt(H)", "each.hessian)", "Hessian of the output without 1 / sqrt(H)")

FAULTS = [
    Fault("multihead-C-L1", "theory.multihead.ntk:head_gradient", "(A * (Q - each))", "(A * Q)", "scores not centred"),
    Fault("multihead-C-L1", "models.softmax:softmax", "", "lambda logits, axis=-1: logits", "no softmax"),
    Fault("multihead-C-P1", TOKENS, "6.0 * d *", "2.0 *", "6 d -> 2"),
    Fault("multihead-C-P1", TOKENS, "2.0 * np.sqrt(float(T * d))", "0.2 * np.sqrt(float(T * d))", "2 -> 0.2"),
    Fault("multihead-C-P1", TOKENS, "(1.0 if sharp else 2.0)", "(1.0 if sharp else 0.2)", "2 |x|^2 -> 0.2 |x|^2"),
    Fault("multihead-C-P1", BETA3, "3.0 * root", "0.3 * root", "3 sqrt(d) -> 0.3 sqrt(d) in beta3"),
    Fault("multihead-C-P1", BETA1, "1.0 if self.sharp else 2.0", "1.0 if self.sharp else 0.2", "2 -> 0.2 in beta1"),
    Fault(
        "multihead-C-P1b",
        "theory.multihead.bounds:Shape.length",
        '"pooling": float(self.T)',
        '"pooling": float(np.sqrt(self.T))',
        "T -> sqrt(T) for pooling",
    ),
    Fault("multihead-C-P1b", BETA3, *TENTH),
    Fault("multihead-C-SH", TOKENS, "2.0 * longest**4", "0.2 * longest**4", "2 |x|^4 -> 0.2 |x|^4"),
    Fault("multihead-C-SH", BETA3, "(2.0 * self.R**2 * m + 1.0)", "(0.2 * self.R**2 * m + 1.0)", "2 R^2 -> 0.2 R^2"),
    Fault("multihead-C-L5", BETA3, *TENTH),
    Fault(
        "multihead-C-L5",
        OUTPUTS,
        "/ divisor",
        "/ divisor**2",
        "1 / sqrt(H) -> 1 / H in the model",
    ),
    Fault(
        "multihead-E14",
        "claims.multihead.gradients:hessian_is_bounded_by_its_terms",
        "+ np.linalg.norm(mixed, 2",
        "+ 0.1 * np.linalg.norm(mixed, 2",
        "Term 2 / 10",
    ),
    Fault("multihead-C-C1", BETA3, *TENTH),
    Fault("multihead-C-C1", BETA3, "3.0 * root", "0.3 * root", "3 sqrt(d) -> 0.3 sqrt(d) in beta3"),
    Fault("multihead-C-C1", BETA1, "self.length * self.R *", "0.1 * self.length * self.R *", "beta1 / 10"),
    Fault("multihead-C-C1h", PIECES, *NO_ROOT),
    Fault("multihead-C-P4", BETA3, *TENTH),
    Fault("multihead-E10", PIECES, "slope=expit(-margins)", "slope=2.0 * expit(-margins)", "|loss'| doubled"),
    Fault("multihead-E10-67", BETA3, *TENTH),
    Fault("multihead-E10-14", PIECES, "pull = -expit", "pull = expit", "sign of the gradient"),
    Fault("multihead-E13", PIECES, *NO_ROOT),
    Fault("multihead-C-L7", BETA3, *TENTH),
    Fault("multihead-C-L7", BETA1, "self.length * self.R *", "0.1 * self.length * self.R *", "beta1 / 10"),
    Fault("multihead-C-L8", f"{GUARANTEES}:lemma_8", "+ curvature / (2.0 * K)", "", "without the curvature"),
    Fault("multihead-C-L8", f"{GUARANTEES}:lemma_8", "(2.0 * step * K)", "(20.0 * step * K)", "D^2 / 2 -> D^2 / 20"),
    Fault("multihead-C-L8", BETA3, *TENTH),
    Fault("multihead-C-L9", f"{GUARANTEES}:lemma_9", "3.0 * D**2", "0.3 * D**2", "3 D^2 -> 0.3 D^2"),
    Fault("multihead-C-L9", f"{GUARANTEES}:lemma_9", "2.0 * target_loss", "0.2 * target_loss", "2 L -> 0.2 L"),
    Fault("multihead-C-L10", HEADS, *THIRTY_SIX),
    Fault("multihead-C-L10", HEADS, "shape.beta3(3.0 * D + g)", "shape.beta3(g)", "without 3 D"),
    Fault("multihead-C-T1", f"{GUARANTEES}:theorem_1", "5.0 * D**2", "0.5 * D**2", "5 D^2 -> 0.5 D^2"),
    Fault("multihead-C-T1", f"{GUARANTEES}:theorem_1", "2.0 * target_loss + ", "", "without 2 L"),
    Fault("multihead-C-T1", HEADS, *THIRTY_SIX),
    Fault("multihead-C-T1", BETA3, *TENTH),
    Fault(
        "multihead-C-T1", STEP, "front * growth(shape, D, g) ** 2", "front * growth(shape, D, g)", "alpha^2 -> alpha"
    ),
    Fault(
        "multihead-C-RED",
        OUTPUTS,
        "/ divisor",
        "/ divisor**2",
        "1 / sqrt(H) -> 1 / H in the model",
    ),
    Fault(
        "multihead-C-DEC",
        "models.multihead:MultiHead.decoded",
        'jnp.einsum("nsd,gtd->nstg", x, U)',
        'jnp.einsum("nsd,gtd->nstg", x, U + 1e-3)',
        "an offset of U",
    ),
    Fault(
        "multihead-C-TR",
        "models.losses:MarginLoss.slope",
        "self.log_slope(margins) - jnp.log",
        "2.0 * self.log_slope(margins) - jnp.log",
        "slope of the loss squared",
    ),
    Fault("multihead-C-NTK", "theory.multihead.margins:attention_gain", "(4.0 * np.sqrt", "(2.0 * np.sqrt", "4 -> 2"),
    Fault(
        "multihead-C-NTK",
        "theory.multihead.ntk:ntk_gram",
        "gram[rows, rows] += share * (flat @ flat.T)",
        "gram[rows, rows] += share**2 * (flat @ flat.T)",
        "shares of groups squared",
    ),
    Fault("multihead-C-P7", f"{GUARANTEES}:proposition_7", "5.0 * 0.5", "0.5 * 0.5", "5 -> 0.5"),
    Fault("multihead-C-P7", BETA3, *TENTH),
    Fault("multihead-C-P7", f"{GUARANTEES}:GoodStart.move", "2.0 * self.B_phi", "0.2 * self.B_phi", "2 B -> 0.2 B"),
    Fault("multihead-E3", f"{GUARANTEES}:proposition_7", "5.0 * 0.5", "0.5 * 0.5", "5 -> 0.5"),
    Fault("multihead-E3", f"{GUARANTEES}:GoodStart.move", "- float(np.log(eps))", "", "without log(1 / eps)"),
    Fault("multihead-C-Eq6", f"{PHASE_ONE}:lemma_2_bound", "/ np.sqrt(float(n_1))", "/ float(n_1)", "1 / n_1"),
    Fault("multihead-C-Eq6", f"{PHASE_ONE}:lemma_2_bound", "float(C *", "float(0.1 * C *", "C / 10"),
    Fault("multihead-E5-L12", f"{PHASE_ONE}:proposition_2", "m.T * m.R * (m.S + P)", "m.R * (m.S + P)", "without T"),
    Fault("multihead-C-L14", "theory.multihead.margins:attention_gain", "(4.0 * np.sqrt", "(2.0 * np.sqrt", "4 -> 2"),
    Fault("multihead-R4", f"{PHASE_ONE}:proposition_2", "(4.0 * reach", "(8.0 * reach", "4 -> 8 in the heads"),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_verdict_turns(fault):
    verdict, on_record = verdict_under(fault)
    assert verdict is not on_record


def test_every_claim_has_a_fault_that_turns_it():
    ours = {claim.id for module in MODULES for claim in module.CLAIMS}
    assert ours == {fault.claim for fault in FAULTS}
