"""Claims on lemmas, thresholds and constants of the fast-rates paper: each measure notices a planted fault."""

from dataclasses import replace

import numpy as np
import pytest

import attnlab as al
from attnlab.claims.claim import Verdict
from attnlab.claims.rates import direction, errata_constants, example, instances, lemmas, theorem_5
from attnlab.claims.scale import Scale
from attnlab.data import separated_signal, sphere
from attnlab.theory import rate_bounds
from attnlab.train import misalignment

SMOKE = Scale.SMOKE
MODULES = (lemmas, example, direction, theorem_5, errata_constants)


def by_id(name):
    return next(c for module in MODULES for c in module.CLAIMS if c.id == name)


@pytest.fixture(scope="module")
def small():
    """A family with a run that goes straight to W_mm, as normalized GD does on it but for the first steps."""
    data = instances.family_of("small", separated_signal(n=4, T=3, d=16, noise=0.25, orthogonal=True, trials=2))
    step = rate_bounds.largest_step(data.constants[0])
    steps = np.array(sorted({*range(30), *instances.log_grid(300)}))
    W = instances.starts(data, step)[:, None] + step * steps[:, None, None] * data.unit_target[:, None]
    apart = np.stack([misalignment(W[:, k], data.margins.W) for k in range(len(steps))], axis=1)
    return instances.Run(data, step, steps, W, instances.logits_of(data, W), apart, {})


@pytest.mark.slow
def test_the_shared_run_is_normalized_gd(small):
    record = [int(t) for t in small.steps]
    found = instances.followed(small.family, al.ngd(small.step), small.W[:, 0], record)
    assert np.diff(found.metrics["norm"]).min() > 0
    assert found.metrics["W"][:, 0] == pytest.approx(small.W[:, 0])
    assert found.metrics["logits"][:, -1] == pytest.approx(small.logits[:, -1], rel=0.05, abs=1.0)
    assert np.linalg.norm(np.diff(found.metrics["W"][:, :30], axis=1), axis=(-2, -1)) == pytest.approx(small.step)


@pytest.mark.slow
@pytest.mark.parametrize("name", [c.id for module in MODULES for c in module.CLAIMS])
def test_verdicts_at_smoke_are_those_on_record(name):
    claim = by_id(name)
    outcome = claim.measure(SMOKE)
    assert outcome.verdict is claim.expected
    assert outcome.instances > 0


@pytest.mark.slow
def test_measures_notice_a_wrong_run(small):
    # Gradient identity: it is not true without Assumption 2.
    other = instances.family_of("unequal", sphere(n=3, T=4, d=6, trials=2))
    W, along = instances.random_weights(other, 4), instances.random_weights(other, 4, seed=1)
    assert lemmas.identity_error(other, W, along).max() > 1e-3
    W, along = instances.random_weights(small.family, 4), instances.random_weights(small.family, 4, seed=1)
    assert lemmas.identity_error(small.family, W, along).max() < 1e-12
    # Lemma 3: a run with two records exchanged loses attention and leads.
    fall, lost = lemmas.attention_drop(small)
    assert max(fall, lost) <= 1e-12
    swapped = np.array(small.logits)
    swapped[:, [0, 3]] = swapped[:, [3, 0]]
    fall, lost = lemmas.attention_drop(replace(small, logits=swapped))
    assert lost > 0.1
    # Lemma 4: the direction of another selection is not leaned to.
    wrong = replace(small.family, margins=al.solve_margins(small.family.tokens, (small.family.best + 1) % 3))
    assert lemmas.correlation(small.family, small.W).min() >= 1
    assert lemmas.correlation(wrong, small.W).min() < 1
    # Lemma 5: norms of a run with a step a tenth as long, and of one three times as long.
    assert lemmas.norm_excess(small) <= 1
    for factor in (0.1, 3.0):
        assert lemmas.norm_excess(replace(small, step=small.step / factor)) > 1
    # Lemma 7: away from W_mm there is a shortfall.
    assert direction.shortfall(small.family, small.W[:, -1:]).max() < 1e-6
    assert direction.shortfall(wrong, small.W[:, -1:]).max() > 0.1


def test_least_eps_inverts_the_radius(small):
    c = small.family.constants[0]
    norms = np.geomspace(1.0, 1e7, 40)
    for corrected in (True, False):
        eps = direction.least_eps(c, norms, corrected=corrected)
        known = np.isfinite(eps)
        assert known.any()
        assert (~known).any()
        assert rate_bounds.radius(c, eps[known], corrected=corrected) == pytest.approx(norms[known], rel=1e-9)
        assert (norms[~known] < rate_bounds.radius(c, 1 - 1e-9, corrected=corrected) * (1 + 1e-6)).all()


def test_split_in_the_log_domain_against_softmax():
    rng = np.random.default_rng(0)
    logits, best = rng.standard_normal((2, 5, 3, 4)), rng.integers(4, size=(2, 3))
    parts = instances.split(logits, best)
    for r, m, i in np.ndindex(2, 5, 3):
        p = np.exp(logits[r, m, i]) / np.exp(logits[r, m, i]).sum()
        b = best[r, i]
        others = [t for t in range(4) if t != b]
        assert np.exp(parts.log_on[r, m, i]) == pytest.approx(p[b])
        assert np.exp(parts.log_off[r, m, i]) == pytest.approx(1 - p[b])
        assert parts.share[r, m, i] == pytest.approx(p[others] / (1 - p[b]))
        assert parts.lead[r, m, i] == pytest.approx(logits[r, m, i, b] - logits[r, m, i, others])
    # Where attention underflows the logarithm does not.
    far = instances.split(np.array([[[[5000.0, 0.0]]]]), np.array([[0]]))
    assert far.log_off.item() == pytest.approx(-5000)
    assert far.log_on.item() == 0


def test_sets_of_the_proof(small):
    data = small.family
    W = data.margins.W[:, None] * 7.0
    nu = np.full((data.trials, 1), 0.1)
    s = direction.sets(data, W, nu)
    assert s.first.all()  # at W_mm every constraint is met, none by more
    assert s.own == pytest.approx(s.target)
    # Each sequence helped in turn leaves the first set.
    x, z = data.tokens.x[0], data.tokens.z[0]
    own = np.einsum("nd,ne->nde", 3 * x[np.arange(4), data.best[0]] - x.sum(1), z)
    helped = W[0, 0] + 7.0 * own[2] / np.linalg.norm(own[2])
    found = direction.sets(data, np.stack([helped, W[1, 0]])[:, None], nu)
    assert found.third[0, 0, 2] or found.second[0, 0, 2]
    assert found.first[0, 0].any()


def test_rates_and_thresholds_notice_a_fault(small):
    slope = theorem_5.slopes(small, first=30, last=300)
    assert slope == pytest.approx([-2, -2], abs=0.05)
    slower = replace(small, misalignment=1.0 / np.maximum(small.steps, 1.0) * np.ones((2, 1)))
    assert theorem_5.slopes(slower, first=30, last=300) == pytest.approx([-1, -1])
    c = replace(small.family.constants[0], Lambda=0.5, n=1)  # t_0 below 300
    at = replace(small, family=replace(small.family, constants=(c, c)))
    good, bound = theorem_5.promise(at, 0, corrected=True)
    assert len(good) > 3
    assert good.max() < 1
    # As far from W_mm as the bound, and a little more, from the second record on.
    late = small.steps >= rate_bounds.first_time(c, small.step)
    worse = np.array(small.misalignment)
    worse[0, np.flatnonzero(late)[1:]] = 1.01 * bound[1:]
    assert theorem_5.promise(replace(at, misalignment=worse), 0, corrected=True)[0].max() > 1
    two = instances.family_of("two", al.data.two_tokens(trials=1)).constants[0]
    step = rate_bounds.largest_step(two)
    assert theorem_5.distance_is_small(two, step, corrected=True) == pytest.approx(1)
    assert theorem_5.distance_is_small(two, step, corrected=False) > 10
    many = instances.family_of("many", theorem_5.signal_queries()).constants[0]
    step = rate_bounds.largest_step(many)
    needed = [theorem_5.radius_is_reached(many, step, corrected=corrected) for corrected in (True, False)]
    assert needed[0] < 1 < needed[1]


def test_signal_queries_and_opposite_noise_meet_the_printed_assumptions():
    for tokens in (theorem_5.signal_queries(), errata_constants.opposite_noise(), errata_constants.opposite_noise(n=1)):
        found = al.theory.assumption_1(tokens[0])
        assert found.slack >= 1
        assert al.theory.assumption_2(tokens[0])
        assert al.theory.rate_constants(tokens[0]).feasible
    assert al.theory.assumption_1(errata_constants.opposite_noise()[0]).evidence["within"] < 1


def test_closed_form_of_the_margin_is_not_always_right():
    tokens = example.grown(8, seed=3)
    assert al.theory.rate_constants(tokens).Lambda == pytest.approx(example.exact_norm(tokens), rel=1e-9)
    moved = al.Tokens.self_attention(1.1 * tokens.x, tokens.y, tokens.v, info=tokens.info)
    assert al.theory.rate_constants(moved).Lambda != pytest.approx(example.exact_norm(moved), rel=1e-3)


def test_wrong_constants_turn_the_verdicts(monkeypatch):
    whole = rate_bounds.first_time
    early = lambda c, step, corrected=True: whole(c, step, corrected=corrected) / 1e3  # noqa: E731
    monkeypatch.setattr(rate_bounds, "first_time", early)
    assert theorem_5.thresholds_do_what_the_proofs_need(SMOKE, corrected=True).verdict is Verdict.FAILS
    monkeypatch.undo()
    outcome = errata_constants.constants_bound_what_they_must(SMOKE, ("upsilon", "zeta"))
    assert outcome.verdict is Verdict.FAILS  # the form of the main text


def test_high_dimension_is_needed():
    low = [example.slack_of(example.drawn(3, 2, 1e-4, 0.0, seed)) for seed in range(5)]
    assert min(low) < 1
