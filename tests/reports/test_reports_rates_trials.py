"""`rates`, trial by trial: each beside the limit of its own selection; none is dropped, and none mixed with others."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.reports.exponents import exponents
from attnlab.reports.ownlimit import TrialState
from attnlab.reports.rates import rates
from attnlab.theory.fitting import fit_rate

STEPS = 3000
FIVE = {"n": 4, "T": 5, "d": 8, "seed": 0, "trials": 5}


@pytest.fixture(scope="module")
def five():
    return al.data.sphere(**FIVE)


@pytest.fixture(scope="module")
def table(five):
    return rates(five, {"NGD": al.ngd(1.0), "Polyak": al.polyak()}, steps=STEPS)


def alone(tokens, row, trial, norm="frobenius", **options):
    """Misalignment of one trial beside its own limit, from a run of its own."""
    one = tokens[trial]
    options |= {"steps": STEPS, "loss": "exponential", "record": 40}
    options["init"] = {name: w[trial] for name, w in row.run.initial.items()}
    svm = al.solve_margin(one, al.descend(one, al.ngd(1.0), **options).selected, norm=norm)
    return al.descend(one, al.ngd(1.0), targets={"svm": svm.W}, **options), svm


def test_the_five_trial_example_has_one_exponent(five, table):
    """Beside the best tokens alone, one trial at another limit made t^-1.60 [-2.71, -0.49] of t^-2.00."""
    row = table["NGD"]
    best = al.solve_margins(five, al.optimal_tokens(five))
    old = al.descend(
        five, al.ngd(1.0), steps=STEPS, loss="exponential", init=row.run.initial, record=40, targets={"svm": best.W}
    )
    mixed = fit_rate(old.steps, old.metrics["misalignment_svm"], start=299)
    assert (round(mixed.rate, 2), round(mixed.low, 2), round(mixed.high, 2)) == (1.60, 0.49, 2.71)
    assert mixed.reason is not None
    assert "1 of 5 trials is constant" in mixed.reason
    assert [trial.best for trial in row.trials] == [True, True, True, True, False]
    np.testing.assert_allclose(row.exponents, 2.0, atol=0.05)
    assert row.settled == 5
    assert row.fit.conclusive
    assert 1.9 < row.fit.low < row.fit.high < 2.1


def test_a_trial_is_what_it_is_alone(five, table):
    row, trial = table["NGD"], 4
    run, svm = alone(five, row, trial)
    np.testing.assert_allclose(run.metrics["misalignment_svm"], row.run.metrics["misalignment_svm"][trial], rtol=1e-9)
    late = run.steps >= 299
    slope, _ = np.polyfit(np.log(run.steps[late]), np.log(run.metrics["misalignment_svm"][late]), 1)
    assert row.trials[trial].exponent == pytest.approx(-slope, abs=0.02)
    assert row.trials[trial].Lambda == pytest.approx(np.linalg.norm(svm.W))
    assert row.trials[trial].selected.tolist() == svm.selected.tolist()


def test_trials_that_diverge_are_counted_and_not_mixed_in(table):
    row = table["Polyak"]  # beside a wrong infimum of the loss its steps grow without bound
    assert row.counts == {TrialState.SETTLED: 4, TrialState.DIVERGED: 1}
    assert len(row.fit.rates) == 4
    assert np.isnan(row.exponents[4])
    assert np.isfinite(row.exponents[:4]).all()
    assert row.reached[0].count == 4
    assert "1 of 10 runs not settled" in table.verdict
    assert "4 settled, 1 diverged" in str(table)


def test_everything_is_json(table):
    told = json.loads(json.dumps(table.to_json(), allow_nan=False))
    row = told["rows"][1]
    assert [trial["state"] for trial in row["trials"]] == ["settled"] * 4 + ["diverged"]
    assert row["trials"][4]["exponent"] is None
    assert row["counts"] == {"settled": 4, "diverged": 1}
    assert (told["parameterization"], told["norm"]) == ("W", "frobenius")
    assert table.rows[1].record()["settled"] == 4


def test_given_tokens_are_kept_and_a_constant_curve_is_said_so(five):
    (row,) = rates(five, [al.ngd(1.0)], steps=STEPS, selected=al.optimal_tokens(five)).rows
    assert [trial.state.name for trial in row.trials] == ["SETTLED"] * 4 + ["ELSEWHERE"]
    assert row.trials[4].problem == "constant at 0.269 from step 299 on, so no exponent can be fitted"
    assert np.isnan(row.trials[4].exponent)
    assert len(row.fit.rates) == 4
    assert "no exponent can be fitted" in row.each()


def top_tokens(view):
    return jnp.argmax(view.logits, -1)[:, 0]


@pytest.mark.parametrize("seed", range(3))
def test_states_by_the_records_of_every_step(seed):
    """Settled: locally optimal, and the same tokens at every record of the last half."""
    tokens = al.data.sphere(n=8, T=6, d=3, seed=seed, trials=5)
    (row,) = rates(tokens, [al.ngd(0.1)], steps=300).rows
    run = al.descend(
        tokens,
        al.ngd(0.1),
        steps=300,
        loss="exponential",
        init=row.run.initial,
        record=range(150, 301),
        metrics={"top": top_tokens},
    )
    for i, trial in enumerate(row.trials):
        top = run.metrics["top"][i]  # (records, n)
        stays = (top == top[-1]).all()
        svm = al.solve_margin(tokens[i], top[-1], throw=False)
        assert trial.selected.tolist() == top[-1].tolist()
        if not svm.feasible:
            assert trial.state is TrialState.INFEASIBLE
        elif trial.state is TrialState.SETTLED:
            assert al.is_locally_optimal(tokens[i], top[-1])
        elif stays:
            assert not al.is_locally_optimal(tokens[i], top[-1])
        assert np.isfinite(trial.misalignment) == svm.feasible


@pytest.mark.filterwarnings("ignore::attnlab.errors.TiedScoresWarning")
def test_infeasible_trials_stay_in_place():
    good = al.data.sphere(n=2, T=3, d=4, seed=0)
    x = good.x.copy()
    x[:, 1] = x[:, 0]  # two equal tokens in every sequence: nothing selects one and not the other
    v = x[0, 0] * good.y[0] + x[1, 0] * good.y[1]
    twins = al.Tokens(x=x, z=good.z, y=good.y, v=v)
    assert (al.optimal_tokens(twins) < 2).all()
    tokens = al.Tokens.stack([good, twins, good])
    (row,) = rates(tokens, [al.ngd(0.5)], steps=500).rows
    assert [trial.state.word for trial in row.trials] == ["settled", "infeasible", "settled"]
    assert np.isnan(row.misalignment).tolist() == [False, True, False]
    assert np.isnan(row.run.metrics["misalignment_svm"][1]).all()
    assert row.trials[1].Lambda == np.inf
    assert row.trials[1].problem == "no W separates the selected tokens"
    assert len(row.fit.rates) == 2
    alone = rates(twins, [al.ngd(0.5)], steps=500)
    assert alone.rows[0].fit_problem == "no trial has settled; more steps, or longer ones"
    assert "no rule has a direction" in alone.verdict
    json.dumps(alone.to_json(), allow_nan=False)


def test_an_unsettled_trial_says_so_and_has_no_part_in_the_exponent():
    tokens = al.data.sphere(n=8, T=6, d=3, seed=0, trials=5)
    (row,) = (table := rates(tokens, [al.ngd(0.1)], steps=300)).rows
    assert row.settled == 1
    assert row.counts[TrialState.UNSETTLED] == 4
    assert len(row.fit.rates) == 1
    assert row.fit.rate == row.exponents[1]
    assert "1.28, 0.59 (not settled)" in str(table)
    assert "4 of 5 runs not settled" in table.verdict


def test_keys_and_queries_go_beside_the_nuclear_limit(five):
    pair = five[:2]
    table = rates(pair, [al.ngd(1.0)], steps=STEPS, parameterization="KQ")
    (row,) = table.rows
    assert table.norm == "nuclear"
    assert set(row.run.weights) == {"K", "Q"}
    assert row.prediction.text == "nothing proved for K and Q"
    for trial in range(2):
        run, svm = alone(pair, row, trial, norm="nuclear", parameterization="KQ")
        assert row.misalignment[trial] == pytest.approx(al.misalignment(run.W, svm.W), rel=1e-6)
        assert row.trials[trial].Lambda == pytest.approx(np.linalg.svd(svm.W, compute_uv=False).sum(), rel=1e-6)
    # |K Q^T| at the start is about 1e-5 |W_mm|.
    ratio = np.linalg.norm(row.run.initial["K"] @ np.swapaxes(row.run.initial["Q"], -1, -2), axis=(1, 2))
    assert np.log10(ratio / table.Lambda) == pytest.approx(-5, abs=0.3)


def test_the_norm_is_the_users(five):
    pair = five[:2]
    (row,) = rates(pair, [al.ngd(1.0)], steps=STEPS, norm="nuclear").rows
    svm = al.solve_margins(pair, row.run.selected, norm="nuclear")
    np.testing.assert_allclose(row.misalignment, al.misalignment(row.run.W, svm.W), rtol=1e-6)
    assert row.prediction.text == "nothing proved in the nuclear norm"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm": "spectral"}, "`norm` is 'spectral'"),
        ({"parameterization": "Q"}, "`parameterization` is 'Q'"),
        ({"parameterization": "KQ", "rules": None}, "no usual ones"),
    ],
)
def test_bad_input_is_named(five, change, words):
    with pytest.raises(InputError, match=words):
        rates(**({"tokens": five, "rules": [al.ngd(1.0)], "steps": 5} | change))


def test_one_dimension_is_aligned_at_once():
    tokens = al.Tokens(x=[[[1.0], [-1.0]]], z=[[1.0]], y=[1.0], v=[1.0])
    (row,) = rates(tokens, [al.ngd(0.1)], steps=100).rows
    assert row.fit is None
    assert row.settled == 1
    assert row.fit_problem is not None
    assert "aligned to rounding" in row.fit_problem


def test_joint_training_without_a_separating_head_keeps_the_curve_of_w():
    good = al.data.gaussian_signal(n=4, d=20, seed=0)
    same = al.Tokens(x=good.x, z=good.z, y=good.y, v=good.v)
    x = good.x.copy()
    x[1] = x[0]  # equal sequences with opposite labels: no u separates them
    y = np.array([1.0, -1.0, 1.0, -1.0])
    split = al.Tokens(x=x, z=good.z, y=y, v=good.v)
    tokens = al.Tokens.stack([same, split])
    (row,) = rates(tokens, [al.joint_separate(0.1)], steps=50).rows
    heads = row.run.metrics["misalignment_head"]
    points = [tokens.x[i][np.arange(4), row.trials[i].selected] for i in range(2)]
    for i in range(2):
        separable = al.svm.linear_margin(points[i], tokens.y[i]).separable
        assert np.isfinite(heads[i, 1:]).all() == separable


STEP_RANGE = np.unique(np.geomspace(1, 1e4, 150).astype(int))


def test_curves_are_fitted_together_only_where_they_settled():
    curves = np.stack([STEP_RANGE**-2.0, STEP_RANGE**-1.0, np.full(STEP_RANGE.size, 0.2), STEP_RANGE**-1.8])
    states = [TrialState.SETTLED, TrialState.UNSETTLED, TrialState.SETTLED, TrialState.SETTLED]
    found = exponents(STEP_RANGE, curves, states, start=None, family="log2_over_t")
    assert found.together is not None
    assert found.in_family is not None
    assert found.together.rates == pytest.approx([2.0, 1.8])
    assert found.in_family.family == "log2_over_t"
    assert found.each[1] is not None
    assert found.each[1].rate == pytest.approx(1.0)
    assert found.each[2] is None
    assert "constant at 0.2" in str(found.problems[2])


def test_a_curve_ends_where_rounding_takes_over():
    sharp = np.where(STEP_RANGE < 2000, STEP_RANGE**-2.0, 1e-26)
    both = np.stack([sharp, STEP_RANGE**-2.0])
    found = exponents(STEP_RANGE, both, [TrialState.SETTLED] * 2, start=None, family=None)
    assert found.together is not None
    assert found.together.last < 2000
    assert found.together.rates == pytest.approx([2.0, 2.0])
    assert found.each[1] is not None
    assert found.each[1].last == STEP_RANGE[-1]
    started = exponents(STEP_RANGE, both[1:], [TrialState.SETTLED], start=20.0, family=None)
    assert started.together is not None
    assert started.together.first < 25
