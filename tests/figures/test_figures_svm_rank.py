"""Figure 4: ranks."""

import numpy as np
import pytest

from attnlab.claims import Scale, Verdict
from attnlab.data import optimal_tokens, sphere
from attnlab.figures import make
from attnlab.figures.svm import rank
from attnlab.svm import solve_margin, solve_margins


@pytest.fixture(scope="module")
def smoke():
    return rank.ranks_data(Scale.SMOKE, lambda done, total, what: None)


def doctored(smoke, key, change):
    arrays = {name: array.copy() for name, array in smoke[0].items()}
    arrays[key] = change(arrays[key])
    return rank.judge_4(arrays, smoke[1]).verdict


def test_verdict(smoke):
    assert rank.judge_4(*smoke).verdict is Verdict.HOLDS
    assert doctored(smoke, "nuclear_rank", lambda r: r + 20) is Verdict.FAILS  # above min(n, d)
    assert doctored(smoke, "frobenius_rank", lambda r: r - 1) is Verdict.FAILS  # not min(n, d)
    bound = np.minimum(smoke[0]["size"][:, :1], smoke[0]["d"])[..., None]
    assert doctored(smoke, "nuclear_rank", lambda r: np.broadcast_to(bound, r.shape)) is Verdict.FAILS
    uncertified = {**smoke[1], "solutions with a duality gap above 1e-8": 1}
    assert rank.judge_4(smoke[0], uncertified).verdict is Verdict.FAILS


def test_ranks_are_the_certified_ones():
    found = rank._separable_ranks(5, 5, 5, 8, 5)
    assert found["drawn"] == 8  # d = 5 = max(T - 1, n): every draw can be separated
    tokens = sphere(n=5, T=5, d=5, seed=rank.SEED, trials=8)
    best = optimal_tokens(tokens)
    for norm in rank.NORMS:
        certified = [solve_margin(tokens[i], best[i], norm=norm).rank for i in range(8)]
        np.testing.assert_array_equal(found[f"{norm}_rank"], certified)


def test_rank_is_lost_with_queries_that_hold_no_margin():
    tokens = sphere(n=5, T=5, d=6, seed=0, trials=60)
    lost = 0
    for solution in solve_margins(tokens, optimal_tokens(tokens)):
        idle = int((solution.multipliers.max(-1) == 0).sum())
        assert solution.rank == 5 - idle
        lost += idle
    assert lost > 0


def test_draws_that_cannot_be_separated_are_counted():
    found = rank._separable_ranks(5, 5, 2, 6, 40)
    drawn = int(found["drawn"])
    assert np.isfinite(found["frobenius_rank"]).sum() == 6 < drawn
    seen = 0
    for round_ in range(40):
        tokens = sphere(n=5, T=5, d=2, seed=rank.SEED + 1000 * round_, trials=6)
        for i in range(6):
            if seen == 6:
                break
            drawn -= 1
            seen += solve_margin(tokens[i], optimal_tokens(tokens[i]), throw=False).feasible
    assert drawn == 0


def test_patience_ends():
    found = rank._separable_ranks(15, 5, 2, 4, 3)
    assert found["drawn"] == 12
    assert np.isfinite(found["nuclear_rank"]).sum() < 4


def test_missing_cells_are_drawn_around(smoke, tmp_path):
    arrays = {name: array.copy() for name, array in smoke[0].items()}
    for norm in rank.NORMS:
        arrays[f"{norm}_rank"][0, 0] = np.nan
        arrays[f"{norm}_rank"][1, 1, 2:] = np.nan
    assert rank.judge_4(arrays, smoke[1]).numbers["cells without any separable set"] == 1
    rank.draw_4(arrays, smoke[1]).savefig(tmp_path / "4.png")


def test_smoke(tmp_path):
    made = make(rank.FIGURES[0], "smoke", out=tmp_path)
    assert made.finding.verdict is Verdict.HOLDS
