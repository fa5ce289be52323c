"""Claims on lemmas, thresholds and constants of the fast-rates paper: each measure notices a planted fault."""

from dataclasses import replace

import numpy as np
import pytest

import attnlab as al
from attnlab.claims.claim import Verdict
from attnlab.claims.parts import Bound
from attnlab.claims.rates import (
    direction,
    errata_constants,
    example,
    families,
    instances,
    lemmas,
    saturation,
    theorem_5,
    theorem_6,
)
from attnlab.claims.scale import Scale
from attnlab.data import separated_signal, sphere
from attnlab.theory import rate_bounds
from attnlab.train import misalignment

SMOKE = Scale.SMOKE
MODULES = (lemmas, example, direction, theorem_5, saturation, theorem_6, errata_constants)


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
    assert outcome.verdict is claim.expected_at(SMOKE)
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
    assert lemmas.judge_lemma_3([small]).verdict is Verdict.HOLDS
    swapped = np.array(small.logits)
    swapped[:, [0, 3]] = swapped[:, [3, 0]]
    exchanged = replace(small, logits=swapped)
    assert lemmas.lead_lost(exchanged).max() > 0.1
    assert lemmas.judge_lemma_3([exchanged]).verdict is Verdict.FAILS
    # Lemma 4: the direction of another selection is not leaned to.
    wrong = replace(small.family, margins=al.solve_margins(small.family.tokens, (small.family.best + 1) % 3))
    promised = 0.5 / small.family.each("condition")[:, None]
    assert (lemmas.correlation(small.family, small.W) >= promised).all()
    assert (lemmas.correlation(wrong, small.W) < promised).any()
    # Lemma 7: away from W_mm there is a shortfall.
    assert direction.shortfall(small.family, small.W[:, -1:]).max() < 1e-6
    assert direction.shortfall(wrong, small.W[:, -1:]).max() > 0.1


@pytest.mark.parametrize(("factor", "broken"), [(1.0, None), (0.1, "lower"), (3.0, "upper")])
def test_norms_of_a_run_with_another_step_are_noticed(small, factor, broken):
    lower, upper = Bound("lower"), Bound("upper")
    late = small.steps >= 1
    norms = factor * small.norm[:, late]
    lemmas.add_norms(lower, upper, small.family, small.step, small.steps[late], norms)
    for bound in (lower, upper):
        assert (bound.part().verdict is Verdict.FAILS) == (bound.name == broken)


def test_the_longest_start_against_opposite_tokens_attains_lemma_5():
    data = instances.family_of("two", families.pairs(2))
    step = rate_bounds.largest_step(data.constants[1])
    start = -step / (4.0 * data.each("condition"))[:, None, None] * data.unit_target
    first = lemmas.first_norms(data, step, start)
    assert first[1, 0] == pytest.approx(step / (4 * 0.5))  # B^2 Lambda = 1/2
    assert first[0, 0] > step / 4


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
    assert s.scaled == pytest.approx(s.target)
    # Each sequence helped in turn leaves the first set.
    x, z = data.tokens.x[0], data.tokens.z[0]
    own = np.einsum("nd,ne->nde", 3 * x[np.arange(4), data.best[0]] - x.sum(1), z)
    helped = W[0, 0] + 7.0 * own[2] / np.linalg.norm(own[2])
    found = direction.sets(data, np.stack([helped, W[1, 0]])[:, None], nu)
    assert found.third[0, 0, 2] or found.second[0, 0, 2]
    assert found.first[0, 0].any()


def test_rates_notice_a_fault(small):
    slope = theorem_5.slopes(small, first=30, last=300)
    assert slope == pytest.approx([-2, -2], abs=0.05)
    slower = replace(small, misalignment=1.0 / np.maximum(small.steps, 1.0) * np.ones((2, 1)))
    assert theorem_5.slopes(slower, first=30, last=300) == pytest.approx([-1, -1])
    c = replace(small.family.constants[0], Lambda=0.5, n=1)  # t_0 below 300
    at = replace(small, family=replace(small.family, constants=(c, c)))
    misaligned, bound = theorem_5.promise(at, 0, corrected=True)
    assert len(bound) > 3
    assert (misaligned < bound).all()
    # As far from W_mm as the bound, and a little more, from the second record on.
    late = small.steps >= rate_bounds.first_time(c, small.step)
    worse = np.array(small.misalignment)
    worse[0, np.flatnonzero(late)[1:]] = 1.01 * bound[1:]
    misaligned, bound = theorem_5.promise(replace(at, misalignment=worse), 0, corrected=True)
    assert (misaligned > bound).any()


def test_thresholds_notice_a_fault():
    two = instances.family_of("two", al.data.two_tokens(trials=1)).constants[0]
    step = rate_bounds.largest_step(two)
    assert saturation.distance_over_allowed(two, step, corrected=True).max() == pytest.approx(1)
    assert saturation.distance_over_allowed(two, step, corrected=False).max() > 10
    many = instances.family_of("many", saturation.signal_queries()).constants[0]
    step = rate_bounds.largest_step(many)
    needed = [saturation.radius_over_norm(many, step, corrected=corrected).max() for corrected in (True, False)]
    assert needed[0] < 1 < needed[1]
    # The cube in t_0 is what makes eps_t a share.
    t = rate_bounds.first_time(two, rate_bounds.largest_step(two)) * saturation.LATER
    assert theorem_5.proof_eps(two, rate_bounds.largest_step(two), t).max() < 1
    assert theorem_5.proof_eps(two, rate_bounds.largest_step(two), t ** (2 / 3)).max() > 1


def test_exponent_of_attention_is_what_lemma_8_promises():
    logits = np.array([[[[3.0, 1.0, 0.5]]]])
    phi = np.exp(3.0) / np.exp([3.0, 1.0, 0.5]).sum()
    assert saturation.exponent(logits, np.array([[0]])) == pytest.approx(np.log(2 * phi / (1 - phi)))


@pytest.mark.slow
def test_on_the_planes_the_bound_of_lemma_8_fails_at_first():
    found = saturation.planes_run()
    data = found.family
    assert data.meets_all[0] == (data.besides[0] >= 1)
    assert data.meets.all()
    assert min(found.start.values()) >= 0  # what Lemma 2 concludes holds at the start
    promised = rate_bounds.softmax_decay(data.constants[0], found.step, found.steps)
    misses = (saturation.exponent(found.logits, data.best)[0] < promised[:, None]).any(-1)
    assert misses[1]
    time = saturation.lemma_8_time(found, 0, corrected=False)
    assert 1 < time < found.steps[-1]
    assert not misses[found.steps >= time].any()


def test_no_two_data_sets_of_a_family_are_the_same():
    for name in ("two tokens", "crowded", "orthogonal"):
        data = instances.family(name, 6)
        x = data.tokens.x.reshape(6, -1)
        gaps = np.stack([c.gaps for c in data.constants]).reshape(6, -1)
        seen = np.concatenate([x, gaps], axis=1)
        distances = np.abs(seen[:, None] - seen).max(-1) + np.eye(6)
        assert distances.min() > 1e-3, name
        assert data.meets.all(), name


def test_special_data_meet_the_printed_assumptions():
    for tokens in (
        saturation.signal_queries(),
        errata_constants.opposite_noise(),
        errata_constants.opposite_noise(n=1),
        errata_constants.noise_query(),
        errata_constants.heavy_sequence(),
        saturation.planes(),
    ):
        found = al.theory.assumption_1(tokens[0])
        assert found.margin >= 1
        assert al.theory.assumption_2(tokens[0])
        assert al.theory.rate_constants(tokens[0]).feasible
    assert al.theory.assumption_1(errata_constants.opposite_noise()[0]).evidence["within"] < 1
    query = al.theory.assumption_1(errata_constants.noise_query()[0]).evidence
    assert query["queries"] < 1 <= query["within"]
    # The heavy sequence meets all but the assumption with the Upsilon of the proof.
    heavy = al.theory.assumption_1(errata_constants.heavy_sequence()[0]).evidence
    assert heavy["margin_proof"] < 1 <= min(heavy["within"], heavy["queries"])


def test_closed_form_of_the_margin_is_not_always_right():
    tokens = example.grown(8, seed=3)
    assert al.theory.rate_constants(tokens).Lambda == pytest.approx(example.exact_norm(tokens), rel=1e-9)
    moved = al.Tokens.self_attention(1.1 * tokens.x, tokens.y, tokens.v, info=tokens.info)
    assert al.theory.rate_constants(moved).Lambda != pytest.approx(example.exact_norm(moved), rel=1e-3)


def test_wrong_constants_turn_the_verdicts(monkeypatch):
    whole = rate_bounds.first_time
    early = lambda c, step, corrected=True: whole(c, step, corrected=corrected) / 1e3  # noqa: E731
    monkeypatch.setattr(rate_bounds, "first_time", early)
    many = instances.family_of("many", saturation.signal_queries()).constants[0]
    assert saturation.radius_over_norm(many, rate_bounds.largest_step(many), corrected=True).max() > 1


def test_high_dimension_is_needed():
    low = [example.slack_of(example.drawn(3, 2, 1e-4, 0.0, seed)) for seed in range(5)]
    assert min(low) < 1


@pytest.mark.slow
def test_theorem_6_needs_its_constant(monkeypatch):
    assert theorem_6.theorem_6(SMOKE, corrected=True).verdict is Verdict.HOLDS
    printed = theorem_6.theorem_6(SMOKE, corrected=False)
    assert printed.verdict is Verdict.FAILS
    assert printed.numbers["bounds on the cosine above 1"] > 0
    assert min(printed.numbers["bounds that fail under other readings of C_eps"].values()) > 0
    right = rate_bounds.descent_constant

    def smaller(*args, norm, **options):
        return right(*args, norm=norm, **options) - 1e-3 * norm

    monkeypatch.setattr(rate_bounds, "descent_constant", smaller)
    assert theorem_6.theorem_6(SMOKE, corrected=True).verdict is Verdict.FAILS


@pytest.mark.slow
def test_hypotheses_of_theorem_6_are_met():
    found = theorem_6.theorem_6(SMOKE, corrected=True)
    assert found.slack["largest / used step"] >= 1
    assert found.slack["1 / (smoothness step)"] >= 1
    assert found.slack["|W_t| / R_eps"] >= 1 - 1e-12
