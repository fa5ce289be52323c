"""Support tokens and local optimality against their definitions, by loops."""

import dataclasses

import numpy as np
import pytest
import theory_oracle as oracle

import attnlab as al
from attnlab.errors import InfeasibleSelection, InputError
from attnlab.svm import MarginStatus
from attnlab.theory import is_locally_optimal, locally_optimal_selections, support_indices
from attnlab.theory.svm import selections
from attnlab.theory.svm.geometry import solved_selections

SHAPES = [
    (2, 3, 2, None, False), (3, 3, 4, None, False), (1, 4, 2, None, False), (2, 4, 1, None, False),
    (3, 1, 2, None, False), (2, 4, 3, None, True), (2, 3, 3, 2, False), (1, 3, 2, 2, True), (1, 2, 1, 1, False),
]  # fmt: skip


def as_pairs(failing: np.ndarray) -> list:
    return sorted((tuple(int(i) for i in row[:-1]), int(row[-1])) for row in failing)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_local_optimality_is_its_definition(shape):
    for seed in range(4):
        tokens = oracle.draw(seed, *shape)
        for selected in list(oracle.every_selection(tokens))[::2]:
            wanted = oracle.failing(tokens, selected)
            assert (wanted is not None) == oracle.separating(tokens, selected)
            got = is_locally_optimal(tokens, selected)
            assert got.decided
            assert got.feasible == (wanted is not None)
            assert bool(got) is got.holds is (wanted == [])
            if wanted is None:
                assert got.lead is None
                assert not got.vacuous
                assert "separates" in repr(got)
                with pytest.raises(InfeasibleSelection):
                    support_indices(tokens, selected)
                continue
            assert as_pairs(got.failing) == wanted
            tight = oracle.support(tokens, selected)
            laid = support_indices(tokens, selected)
            assert laid.shape == (*tokens.y.shape, tokens.T)
            assert {(tuple(w[:-1]), w[-1]) for w in np.argwhere(laid).tolist()} == tight
            leads = [oracle.score(tokens, q, selected[q]) - oracle.score(tokens, q, t) for q, t in tight]
            assert got.lead == pytest.approx(min(leads, default=np.inf), rel=1e-12)
            for query in np.ndindex(*tokens.y.shape):
                several = tokens.visible[query].sum() > 1
                assert got.empty[query] == (several and not any(q == query for q, _ in tight))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_enumeration_against_brute_force(shape):
    for seed in range(3):
        tokens = oracle.draw(seed, *shape)
        found = locally_optimal_selections(tokens)
        listed = list(oracle.every_selection(tokens))
        verdicts = [oracle.failing(tokens, s) for s in listed]
        wanted = [s for s, bad in zip(listed, verdicts, strict=True) if bad == []]
        np.testing.assert_array_equal(found.selections, np.array(wanted, dtype=int).reshape(-1, *tokens.y.shape))
        assert found.total == len(listed) == found.feasible + found.infeasible
        assert found.infeasible == sum(bad is None for bad in verdicts)
        assert found.undecided == 0
        assert len(found) == len(wanted) == len(found.margins) == len(found.vacuous)
        for selected, margin, vacuous in zip(found, found.margins, found.vacuous, strict=True):
            length = np.linalg.norm(oracle.max_margin(tokens, selected))
            assert margin == pytest.approx(1 / length if length else np.inf, rel=1e-7)
            assert vacuous == is_locally_optimal(tokens, selected).vacuous
            assert selected in found
        missing = [s for s, bad in zip(listed, verdicts, strict=True) if bad != []]
        assert not any(s in found for s in missing)
        assert f"{len(wanted)} of {len(listed)}, infeasible={found.infeasible})" in repr(found)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_best_tokens_are_locally_optimal(shape):
    feasible = 0
    for seed in range(12):
        tokens = oracle.draw(seed, *shape)
        got = is_locally_optimal(tokens, oracle.best(tokens))
        assert bool(got) == got.feasible
        assert got.lead is None or got.lead > 0
        feasible += got.feasible
    assert feasible or shape[2] == 1


def test_a_verdict_is_a_truth_value():
    tokens = al.data.two_tokens()
    good, bad = al.is_locally_optimal(tokens, [0]), al.is_locally_optimal(tokens, [1])
    assert good
    assert not bad
    assert good == True  # noqa: E712
    assert bad == False  # noqa: E712
    assert good != bad
    assert good == good
    assert good != al.is_locally_optimal(tokens, [0])
    assert hash(good) == hash(True)
    assert good.reason is None
    assert bad.reason == "1 support tokens score no less, the first is token 0 of query 0"
    assert repr(good) == "LocalOptimality(Definition 2 holds, margin=1)"
    assert repr(bad) == f"LocalOptimality(Definition 2 does not hold, margin={bad.margin:.3g}: {bad.reason})"
    with pytest.raises(dataclasses.FrozenInstanceError):
        good.holds = False  # pyright: ignore[reportAttributeAccessIssue]


def test_ties_are_told_and_do_not_count_as_leads():
    """Two best tokens of one score, either of them a neighbour of the other: neither is strictly better."""
    for gap in (0.0, 1e-14, 1e-9, -1e-9):
        x = np.array([[[1.0, 1.0], [1.0 - gap, -1.0]]])
        tokens = al.Tokens(x=x, z=[[0.0, 1.0]], y=[1], v=[1.0, 0.0])
        got = is_locally_optimal(tokens, [0])
        tied = abs(gap) < 1e-12
        assert got.ties.tolist() == [[False, tied]]
        assert bool(got) == (gap > 1e-12)
        assert (got.lead == 0) == tied
        assert as_pairs(got.failing) == ([] if gap > 1e-12 else [((0,), 1)])


def test_a_tie_outside_the_support_does_no_harm():
    # Token 2 lies far beyond the margin and scores as much as the selected token.
    x = np.array([[[1.0, 1.0], [0.0, 0.0], [1.0, -9.0]]])
    got = is_locally_optimal(al.Tokens(x=x, z=[[0.0, 1.0]], y=[1], v=[1.0, 0.0]), [0])
    assert got
    assert not got.ties.any()
    assert got.lead == 1.0


def test_a_query_without_support_tokens_is_flagged():
    """The second query repeats the first with its tokens ten times as far apart, so its constraint is never tight."""
    x = np.array([[[1.0], [0.0]], [[0.0], [-10.0]]])
    for y, holds in (([1, 1], True), ([1, -1], True), ([-1, 1], False)):
        tokens = al.Tokens(x=x, z=[[1.0], [1.0]], y=y, v=[1.0])
        got = is_locally_optimal(tokens, [0, 0])
        assert bool(got) == holds, "an empty support set asks for nothing"
        assert got.empty.tolist() == [False, True]
        assert got.vacuous
        if holds:
            assert repr(got) == "LocalOptimality(Definition 2 holds, margin=1, 1 queries without support)"
    single = al.Tokens(x=x[:, :1], z=[[1.0], [1.0]], y=[1, 1], v=[1.0])
    alone = is_locally_optimal(single, [0, 0])
    assert alone
    assert not alone.vacuous
    assert alone.lead == np.inf


def test_a_given_solution_is_used():
    tokens = oracle.draw(0, 3, 4, 6)
    selected = oracle.best(tokens)
    solution = al.solve_margin(tokens, selected)
    assert is_locally_optimal(tokens, selected, solution=solution).solution is solution
    assert support_indices(tokens, selected, solution) is solution.support
    unsure = dataclasses.replace(solution, support=None, reason="the gap is wide")
    got = is_locally_optimal(tokens, selected, solution=unsure)
    assert not got
    assert not got.decided
    assert got.feasible
    assert got.failing.shape == (0, 2)
    assert "the gap is wide" in repr(got)
    with pytest.raises(InputError, match="the gap is wide"):
        support_indices(tokens, selected, unsure)
    open_case = dataclasses.replace(unsure, status=MarginStatus.UNDECIDED, reason="too close")
    assert not is_locally_optimal(tokens, selected, solution=open_case).decided


def test_a_solution_for_something_else_is_refused():
    tokens = oracle.draw(0, 3, 4, 6)
    selected = oracle.best(tokens)
    solution = al.solve_margin(tokens, selected)
    other = (selected + 1) % 4
    with pytest.raises(InputError, match=r"`solution` is for selection"):
        is_locally_optimal(tokens, other, solution=solution)
    with pytest.raises(
        InputError, match=r"`solution` is for tokens laid out as \(3, 4\), d = 6; wanted \(3, 4\), d = 5"
    ):
        is_locally_optimal(oracle.draw(0, 3, 4, 5), selected, solution=solution)
    with pytest.raises(InputError, match=r"wanted \(3, 5\), d = 6"):
        support_indices(oracle.draw(0, 3, 5, 6), selected, solution)
    with pytest.raises(InputError, match="`solution` is an array of shape"):
        support_indices(tokens, selected, solution.W)


def test_arguments_are_refused_by_name():
    tokens = oracle.draw(0, 3, 4, 6)
    with pytest.raises(InputError, match="`tokens` is 'tokens'; wanted"):
        is_locally_optimal("tokens", [0])
    with pytest.raises(InputError, match="`tokens` is a batch of 2 trials"):
        is_locally_optimal(al.Tokens.stack([tokens, tokens]), [[0, 0, 0]] * 2)
    with pytest.raises(InputError, match="`selected` has shape"):
        is_locally_optimal(tokens, [0])
    with pytest.raises(InputError, match="have no `v`"):
        is_locally_optimal(al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y), [0, 0, 0])
    with pytest.raises(InputError, match=r"have 64 selections; wanted at most `limit` = 63.\n\nhint: "):
        locally_optimal_selections(tokens, limit=63)
    assert locally_optimal_selections(tokens, limit=64).total == 64


def test_other_heads_score_differently():
    tokens = oracle.draw(3, 2, 3, 4)
    head = al.models.Concave(2.0)
    best = al.optimal_tokens(tokens, head)
    assert is_locally_optimal(tokens, best, head=head)
    found = locally_optimal_selections(tokens, head=head)
    assert best in found
    bare = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y)
    assert len(locally_optimal_selections(bare, head=al.models.ReluSum())) > 0


def test_heads_by_name_are_the_heads_they_name():
    tokens = al.data.sphere(n=3, T=4, d=5, seed=2)
    best = al.optimal_tokens(tokens)
    for name, head in (("linear", None), ("relu-sum", al.models.ReluSum())):
        for check in (al.theory.assumption_b2, al.theory.assumption_c, al.theory.assumption_b1_proxy):
            assert check(tokens, head=name).margin == check(tokens, head=head).margin
        by_name = is_locally_optimal(tokens, best, head=name)
        given = is_locally_optimal(tokens, best, head=head)
        assert (by_name.holds, by_name.margin) == (given.holds, given.margin)
    with pytest.raises(InputError, match="`head` is 'cubic'"):
        is_locally_optimal(tokens, best, head="cubic")


def test_what_counts_as_a_tie_is_a_matter_of_the_query_alone():
    """Neither larger scores of another query nor those of hidden tokens make two scores the same."""
    for size in (1.0, 1e-6):
        lead = 1e-9 * size
        x = np.array([[[size, 1.0], [size - lead, -1.0], [1e6, 0.0]], [[1e6, 1.0], [0.0, -1.0], [0.0, -1.0]]])
        mask = [[True, True, False], [True, True, True]]
        tokens = al.Tokens(x=x, z=[[0.0, 1.0]] * 2, y=[1, 1], v=[1.0, 0.0], mask=mask)
        got = is_locally_optimal(tokens, [0, 0])
        assert got
        assert not got.ties.any()
        assert got.lead == pytest.approx(lead, rel=1e-6)


# --- all selections ----------------------------------------------------------------------------------------------


def counted(monkeypatch):
    """Every selection that is solved, in a list that grows."""
    solved = []

    def solve(tokens, chosen, **options):
        solved.append(chosen)
        return al.solve_margin(tokens, chosen, **options)

    monkeypatch.setattr(selections, "solve_margin", solve)
    return solved


@pytest.mark.parametrize("shape", [(4, 3, 2, None, False), (2, 3, 2, 2, False), (4, 4, 2, None, True)], ids=str)
@pytest.mark.parametrize("block", [1, 10, 10**6])
def test_a_proof_serves_every_selection_that_agrees_with_it(shape, block, monkeypatch):
    """Each comes with what solving it alone finds; proofs are judged as if they had been found for it."""
    monkeypatch.setattr(selections, "BLOCK", block)
    for seed in range(3):
        tokens = oracle.draw(seed, *shape)
        solved = counted(monkeypatch)
        found = list(solved_selections(tokens, 1000))
        assert [c.tolist() for c, _ in found] == [c.tolist() for c in oracle.every_selection(tokens)]
        for chosen, solution in found:
            alone = al.solve_margin(tokens, chosen, throw=False)
            assert solution.status is alone.status
            np.testing.assert_array_equal(solution.selected, chosen)
            np.testing.assert_array_equal(solution.W, alone.W)
            if not solution.feasible:
                assert judged_proof(tokens, solution) <= 1e-10
        infeasible = sum(not solution.feasible for _, solution in found)
        assert len(solved) <= len(found)
        assert block < 10**6 or len(solved) < len(found) or infeasible < 2


def judged_proof(tokens, solution):
    """|sum l (x_chosen - x_t) z^T| over sum l |x_chosen - x_t| |z|, by a loop."""
    total, sizes = np.zeros((tokens.d, tokens.d)), 0.0
    for index, i in oracle.queries(tokens):
        for t in np.flatnonzero(solution.farkas[index]):
            p = tokens.x[i, solution.selected[index]] - tokens.x[i, t]
            total += solution.farkas[(*index, t)] * np.outer(p, tokens.z[index])
            sizes += solution.farkas[(*index, t)] * np.linalg.norm(p) * np.linalg.norm(tokens.z[index])
    assert (solution.farkas >= 0).all()
    assert solution.farkas.sum() == pytest.approx(1.0)
    return float(np.linalg.norm(total)) / sizes


def test_many_queries_that_see_one_token_need_no_table():
    """NumPy has no arrays of so many axes."""
    T, many = 2, 70
    mask = np.ones((many, T), dtype=bool)
    mask[2:, 1] = False
    rng = np.random.default_rng(0)
    tokens = al.Tokens(
        x=rng.standard_normal((many, T, 2)), z=rng.standard_normal((many, 2)), y=np.ones(many), v=[1.0, 0.0], mask=mask
    )
    assert locally_optimal_selections(tokens).total == 4


def test_assumption_d_solves_few_of_many_selections_that_nothing_separates(monkeypatch):
    """Queries that agree: hardly any of the 3^9 selections is feasible, and few proofs show it."""
    rng = np.random.default_rng(5)
    x, z = rng.standard_normal((3, 3, 2)), np.repeat(rng.standard_normal((3, 1, 2)), 3, axis=1)
    tokens = al.Tokens(x=x, z=z, y=np.ones((3, 3)), v=rng.standard_normal(2))
    solved = counted(monkeypatch)
    check = al.theory.assumption_d(tokens)
    assert check.evidence["total"] == 3**9
    assert check.evidence["feasible"] >= 1
    assert len(solved) <= 500


@pytest.mark.parametrize(
    ("block", "axes", "first"), [(60, 9, 0), (59, 9, 1), (20, 9, 1), (19, 9, 2), (4, 9, 3), (60, 2, 1)]
)
def test_a_table_holds_as_many_of_the_last_queries_as_it_may(block, axes, first, monkeypatch):
    monkeypatch.setattr(selections, "BLOCK", block)
    monkeypatch.setattr(selections, "AXES", axes)
    assert selections._first_of_table([np.arange(3), np.arange(4), np.arange(5)]) == first
