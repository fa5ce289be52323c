"""Errata on constants of Proposition 1: verdicts, oracles, planted faults."""

import numpy as np
import pytest

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import batch, errata_proofs
from attnlab.claims.scale import Scale

SMOKE = Scale.SMOKE


@pytest.mark.parametrize("claim", errata_proofs.CLAIMS, ids=lambda claim: claim.id)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome


def tightness(measure, **options):
    """Of the parts, by name."""
    return {part.name: part.tightness for part in measure(SMOKE, **options).parts}


# E3 -----------------------------------------------------------------------------------------------------------------


def test_every_slip_shows_by_itself():
    printed = errata_proofs.step_constant(SMOKE, corrected=False).parts
    assert len(printed) == 5
    assert all(part.verdict is Verdict.FAILS for part in printed)
    assert all(part.worst > 2 for part in printed if part.form == "bound")


def test_power_of_N_in_the_step():
    assert errata_proofs.step_power(True) == pytest.approx(1.0, abs=1e-9)
    assert 1.0 < errata_proofs.step_power(False) < 1.5


def test_large_outputs_by_hand():
    """With mirrored tokens u, -u and small logits +-l, f = 2 tau1 |w_O| |W_V| |u| tanh(l) / 2 each way."""
    one, other = errata_proofs.large_outputs(SMOKE)
    reach = np.linalg.norm(one.x[:, 0, 0], axis=-1)
    for end in (one, other):
        logit = end.tau0 * batch.spectral(end.Q) * batch.spectral(end.K) * reach**2
        wanted = end.tau1 * batch.spectral(end.O) * batch.spectral(end.V) * reach * np.tanh(logit)
        np.testing.assert_allclose(batch.evaluate(end).outputs, np.repeat(wanted[:, None], 3, 1), rtol=1e-9)
    assert batch.spectral(one.O) == pytest.approx(1e3)
    assert batch.spectral(one.Q) == pytest.approx(1e-3)


def test_output_ratio_by_hand():
    one, other = errata_proofs.large_outputs(SMOKE)
    for corrected in (False, True):
        found = []
        for i, c in enumerate(batch.bound_constants(one, other)):
            change = np.linalg.norm((batch.evaluate(other).outputs - batch.evaluate(one).outputs)[i])
            bar, zeta = c.lambda_bar, 2 * c.tau0 * c.C_x**2 * 2 * (c.lambda_bar["Q"] + c.lambda_bar["K"])
            rho = np.sqrt(3) * 2**1.5 * c.tau1 * c.C_x
            last = bar["V"] * zeta * (bar["O"] if corrected else 1.0)
            found.append(change / (rho * (bar["V"] + bar["O"] + last) * np.linalg.norm(other.Q[i] - one.Q[i])))
        assert errata_proofs.output_ratios(one, other, corrected) == pytest.approx(np.array(found), rel=1e-9)


@pytest.mark.parametrize(("moves", "length"), [("K", 1.0), ("Q", 300.0)])
def test_gradient_ratio_is_about_c3_of_either_mode(moves, length):
    one, other = batch.steep_pairs(8, moves, length)
    paper, corrected = (errata_proofs.gradient_ratios(one, other, mended).max() for mended in (False, True))
    shares = [c.c3() / c.c3(corrected=False) for c in batch.bound_constants(one, other)]
    assert min(shares) <= paper / corrected <= max(shares)
    assert corrected < 1 < paper


def test_a_repair_that_is_too_small_is_noticed(monkeypatch):
    monkeypatch.setattr(errata_proofs, "lemma_14", lambda *a, **options: 1e-3)
    assert errata_proofs.step_constant(SMOKE, corrected=True).verdict is Verdict.FAILS


@pytest.mark.parametrize("fault", ["error_ratios", "step_power", "output_ratios"])
def test_every_part_of_the_repair_is_looked_at(monkeypatch, fault):
    monkeypatch.setattr(errata_proofs, fault, lambda *a: 1.5)
    assert errata_proofs.step_constant(SMOKE, corrected=True).verdict is Verdict.FAILS


def test_errors_along_runs_by_hand():
    losses = [found.loss for found in (errata_proofs.runs(*size) for size in errata_proofs.sizes(SMOKE))]
    least = min(float(np.sqrt(2 * loss[0]).min()) for loss in losses)
    assert max(errata_proofs.error_ratios(SMOKE, True)) == pytest.approx(1 / least, rel=1e-6)
    assert max(errata_proofs.error_ratios(SMOKE, False)) == pytest.approx(1.0)


# E12 ----------------------------------------------------------------------------------------------------------------


def test_equal_tokens_meet_the_bound():
    name, draws, S = errata_proofs.residual_draws(SMOKE)[1]
    plain, at = batch.evaluate(draws), batch.evaluate(draws, S)
    token = draws.x[:, 0, 0]
    assert (draws.x == token[:, None, None]).all()
    # Every relu is active: each of the 3 hidden rows gains 4 tokens.
    np.testing.assert_allclose(at.hidden - plain.hidden, np.repeat(4 * token[:, None], 3, 1), rtol=1e-12)
    assert "equal" in name


def test_residual_against_loops():
    for _, draws, S in errata_proofs.residual_draws(SMOKE):
        at = batch.evaluate(draws, S)
        x, i = draws.x[2, 1], 2
        hidden = 0.0
        for query in x:
            w = np.exp([draws.tau0[i] * (draws.Q[i] @ query) @ (draws.K[i] @ key) for key in x])
            hidden = hidden + draws.tau1[i] * np.maximum(draws.V[i] @ (w @ x / w.sum()) + query @ S[i], 0.0)
        np.testing.assert_allclose(at.hidden[2, 1], hidden, rtol=1e-12)


def test_printed_ratios_are_the_repaired_ones_over_the_extra_factors(monkeypatch):
    _, draws, _ = chosen = errata_proofs.residual_draws(SMOKE)[1]  # equal tokens
    monkeypatch.setattr(errata_proofs, "residual_draws", lambda scale: [chosen])
    printed, repaired = (tightness(errata_proofs.residual_constants, printed=p) for p in (True, False))
    extra = (batch.spectral(draws.O) * batch.spectral(draws.V)).min()
    assert printed["|F - F*|_F / Eq. (62)"] == pytest.approx(1 / extra, rel=1e-9)
    assert repaired["|F - F*|_F / (sqrt(N) tau1 T C_x |S|)"] == pytest.approx(1.0, rel=1e-9)


def test_a_wrong_bound_on_alpha_is_noticed(monkeypatch):
    monkeypatch.setattr(errata_proofs, "residual_alpha", lambda c, s: c.alpha - 1e-6)
    assert errata_proofs.residual_constants(SMOKE, printed=False).verdict is Verdict.FAILS
