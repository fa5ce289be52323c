"""Ready measures and lists of seeds, against the calls that they stand for."""

import numpy as np
import pytest

import attnlab as al
from attnlab.study.measures import MEASURES

SEEDS = np.array([3, 2**32 + 1])
POINT = {"n": 2, "T": 3, "d": 4, "steps": 50}


def alone(seed, **options):
    tokens = al.data.sphere(n=2, T=3, d=4, seed=seed)
    return tokens, al.descend(tokens, al.ngd(0.1), steps=50, seed=seed, record=None, **options)


def test_a_list_of_seeds_is_each_of_them_alone():
    tokens = al.data.sphere(n=2, T=3, d=4, seed=SEEDS)
    run = al.descend(tokens, al.ngd(0.1), steps=50, seed=SEEDS, record=None)
    for i, seed in enumerate(SEEDS.tolist()):
        own, single = alone(seed)
        np.testing.assert_array_equal(tokens.x[i], own.x)
        np.testing.assert_array_equal(run.W[i], single.W)
    batch = al.data.sphere(n=2, T=3, d=4, seed=7, trials=2)
    np.testing.assert_array_equal(batch.x[0], al.data.sphere(n=2, T=3, d=4, seed=[7]).x[0])


@pytest.mark.parametrize("seed", [[], [1.5], [-1], [[1]], ["a"], [True]])
def test_seeds_that_are_none(seed):
    with pytest.raises(al.InputError, match="`seed"):
        al.data.sphere(n=2, T=3, d=4, seed=seed)


def test_seeds_that_do_not_fit_the_trials():
    with pytest.raises(al.InputError, match="2 seeds for 3 trials"):
        al.data.sphere(n=2, T=3, d=4, seed=[1, 2], trials=3)
    tokens = al.data.sphere(n=2, T=3, d=4)
    with pytest.raises(al.InputError, match="`seed`"):
        al.descend(tokens, al.ngd(0.1), steps=5, seed=[1])


def test_direction():
    found = MEASURES["direction"].block(POINT, SEEDS)
    for i, seed in enumerate(SEEDS.tolist()):
        tokens, run = alone(seed)
        svm = al.solve_margin(tokens, run.selected, throw=False)
        assert found["best"][i] == (run.selected == al.optimal_tokens(tokens)).all()
        assert found["feasible"][i] == svm.feasible
        if svm.feasible:
            assert found["misalignment"][i] == pytest.approx(al.misalignment(run.W, svm.W), rel=1e-9)
            assert found["margin"][i] == pytest.approx(svm.margin, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MEASURES))
def test_every_measure_gives_a_number_for_each_trial(name, tmp_path):
    point = {key: [value] for key, value in POINT.items()}
    study = al.Study(name, point, trials=2, store=tmp_path)
    ran = study.run(retries=0)
    assert (ran.computed, ran.failed) == (2, 0), study.status().errors
    assert study.frame().notna().drop(columns="error").any().any()


def test_selection_and_report_agree():
    selection = MEASURES["selection"].block(POINT, SEEDS)
    report = MEASURES["report"].block(POINT, SEEDS)
    direction = MEASURES["direction"].block(POINT, SEEDS)
    np.testing.assert_array_equal(selection["best"], direction["best"])
    np.testing.assert_array_equal(report["feasible"], direction["feasible"])
    np.testing.assert_allclose(report["misalignment"], direction["misalignment"], rtol=1e-9)
    for i, seed in enumerate(SEEDS.tolist()):
        tokens, run = alone(seed)
        assert selection["local"][i] == bool(al.is_locally_optimal(tokens, run.selected))


def test_frames_of_runs_and_solutions():
    tokens = al.data.sphere(n=2, T=3, d=4, seed=SEEDS)
    run = al.descend(tokens, al.ngd(0.1), steps=50, seed=SEEDS, record=[0, 50])
    rows = run.frame()
    assert rows["trial"].tolist() == [0, 0, 1, 1]
    assert rows["step"].tolist() == [0, 50, 0, 50]
    assert rows["loss"].tolist() == run.metrics["loss"].ravel().tolist()
    solved = al.solve_margins(tokens, run.selected)
    table = solved.frame()
    assert table["margin"].tolist() == solved.margin.tolist()
    assert set(table["status"]) <= {"optimal", "infeasible", "inaccurate"}
    one = solved[0].frame()
    assert len(one) == 2 * 2
    assert one["value"].min() == pytest.approx(1.0, abs=1e-9)
    assert one["support"].sum() == solved[0].support.sum()
