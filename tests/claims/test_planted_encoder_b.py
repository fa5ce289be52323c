"""Faults planted in what claims on kernels, curvature and residuals of encoders check turn their verdicts."""

import pytest
from planting import Fault, verdict_under

KERNELS, ASSUMPTIONS = "theory.encoder.kernels", "theory.encoder.assumptions"
SPECTRUM, WIDTHS = "theory.encoder.spectrum", "theory.encoder.widths"
FAULTS = [
    Fault("encoder-L1", f"{KERNELS}:limiting_ntk", "+ _zero(left, right)", "+ 0.9 * _zero(left, right)", "E0 by .9"),
    Fault("encoder-L1", f"{KERNELS}:limiting_ntk", "** 2 if pool", "** 1 if pool", "T^2 -> T"),
    Fault("encoder-L1-neg", "models.encoder:Encoder.tau0", '"sqrt": -0.5', '"sqrt": -1.0', "m^(-1/2) -> 1/m"),
    Fault("encoder-Rem-1", "models.encoder:Encoder.tau0", '"linear": -1.0', '"linear": -0.8', "1/m -> m^(-0.8)"),
    Fault("encoder-L16", "claims.encoder.kernel_limits:attended_errors", "1.0 / width", "width**-0.8", "tau0"),
    Fault("encoder-E1", f"{KERNELS}:limiting_ntk", "** 2 if pool", "** 1 if pool", "T^2 -> T"),
    Fault("encoder-E13", f"{ASSUMPTIONS}:assumption_4", "tokens.sum(axis=1)", "tokens.mean(axis=1)", "sum -> mean"),
    Fault("encoder-E14", f"{WIDTHS}:lemma_16_error", "* T**2 *", "* T *", "T^2 -> T"),
    Fault("encoder-L17", "claims.encoder.degenerate:wide_gram", "** 2 / T", "** 2", "1/T dropped"),
    Fault("encoder-L18", f"{SPECTRUM}:lambda_0", '"hermite": 0.25 *', '"hermite": 2.5 *', "mu^2 by 10"),
    Fault("encoder-L19", f"{KERNELS}:_one", "(2.0 * np.pi)", "(4.0 * np.pi)", "2 pi -> 4 pi in E1"),
    Fault("encoder-C8", "models.network:Network.tau1", "-0.5", "-0.4", "tau1 = m^(-0.4)"),
    Fault(
        "encoder-E9", "models.encoder_kernel:kernel_blocks", "a.hidden @", "1.1 * a.hidden @", "kernel of w_O by 1.1"
    ),
    Fault("encoder-E9", f"{KERNELS}:_one", "(2.0 * np.pi)", "(4.0 * np.pi)", "2 pi -> 4 pi in E1"),
    Fault("encoder-T3", "models.network:Network.tau1", "-0.5", "-0.25", "tau1 = m^(-1/4)"),
    Fault("encoder-L20", "theory.encoder.lemmas:lemma_6", "return 3.0 *", "return 1.5 *", "3 -> 1.5"),
    Fault("encoder-E10", "claims.encoder.hessian:Scalars.terms", "self.tau0**2", "self.tau0", "tau0^2 -> tau0"),
    Fault("encoder-E3", "theory.encoder.constants:Constants.c1", "factor * bar", "0.0 * bar", "last term dropped"),
    Fault("encoder-E3", "theory.encoder.constants:Constants.c3", "1.0 + 3.0 *", "1.0 + 0.0 *", "3 k zeta dropped"),
    Fault(
        "encoder-E12", "claims.encoder.errata_proofs:residual_constants", "tau1 * T * C", "tau1 * T**0.5 * C", "root"
    ),
]
UNTURNED: dict[str, tuple[float, str]] = {}
COUNTING: dict[str, str] = {}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_verdict_turns(fault):
    verdict, on_record = verdict_under(fault)
    assert verdict is not on_record
