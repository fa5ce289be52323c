"""Small, degenerate, badly scaled and wrong input."""

import json

import numpy as np
import pytest
from svm_cases import cross
from verifier import constraints, judge, judge_farkas

import attnlab as al
from attnlab import InputError, Tokens
from attnlab.svm import MarginStatus

EPS = float(np.finfo(float).eps)


def proved(tokens, selected, **bounds):
    """Solve, and let the judge confirm whatever is claimed."""
    solution = al.solve_margin(tokens, selected, throw=False)
    if solution.status is MarginStatus.INFEASIBLE:
        assert judge_farkas(tokens, selected, solution.farkas)[1] == ()
    else:
        assert solution.status is MarginStatus.OPTIMAL
        assert judge(tokens, solution, **bounds).faults == ()
    return solution


# --- small -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_dimension(sign):
    """Scalars: w z (x_selected - x_t) >= 1. Separable exactly if the selected token is the extreme one."""
    tokens = Tokens(x=[[[3.0], [1.0], [2.0]]], z=[[sign * 0.5]], y=[1])
    assert proved(tokens, [0]).W.item() == pytest.approx(sign * 2.0, rel=1e-14)
    assert proved(tokens, [1]).W.item() == pytest.approx(-sign * 2.0, rel=1e-14)
    middle = proved(tokens, [2])
    assert middle.status is MarginStatus.INFEASIBLE
    assert middle.farkas is not None
    np.testing.assert_allclose(middle.farkas, [[0.5, 0.5, 0.0]], atol=1e-12)


def test_one_token_leaves_nothing_to_separate():
    tokens = Tokens(x=np.ones((3, 1, 2)), z=np.ones((3, 2)), y=[1, 1, -1])
    solution = al.solve_margin(tokens, [0, 0, 0])
    assert solution.status is MarginStatus.UNCONSTRAINED
    assert solution.feasible
    np.testing.assert_array_equal(solution.W, np.zeros((2, 2)))
    assert (solution.margin, solution.gap, solution.violation, solution.rank) == (np.inf, 0.0, 0.0, 0)
    assert solution.multipliers.shape == solution.values.shape == solution.support.shape == (3, 1)
    assert not solution.support.any()
    assert repr(solution) == "MarginSolution(frobenius, margin=inf, support=0 of 0, rank=0, gap=0.0e+00, unconstrained)"
    assert json.loads(json.dumps(solution.summary()))["status"] == "unconstrained"


def test_a_mask_that_leaves_each_query_its_selected_token():
    tokens, selected = cross(0)
    alone = Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=np.arange(tokens.T) == selected[:, None])
    assert al.solve_margin(alone, selected).status is MarginStatus.UNCONSTRAINED


# --- degenerate --------------------------------------------------------------------------------------------------


def test_a_duplicate_of_the_selected_token_is_infeasible():
    tokens, selected = cross(1)
    x = tokens.x.copy()
    other = (selected[2] + 1) % tokens.T
    x[2, other] = x[2, selected[2]]
    solution = proved(Tokens(x=x, z=tokens.z, y=tokens.y), selected)
    assert solution.status is MarginStatus.INFEASIBLE
    assert solution.farkas[2, other] == 1.0
    assert solution.farkas_residual == 0.0


def test_duplicate_other_tokens_change_nothing():
    """Their common multiplier may be shared in any way; W and the sum of the multipliers are what they were."""
    for seed in range(20):
        tokens, selected = cross(seed)
        before = proved(tokens, selected)
        i = seed % tokens.n
        t = (selected[i] + 1) % tokens.T
        x = np.concatenate([tokens.x, tokens.x[:, t : t + 1]], axis=1)
        twice = Tokens(x=x, z=tokens.z, y=tokens.y, mask=_all_but(x, i))
        after = proved(twice, selected)
        np.testing.assert_allclose(after.W, before.W, rtol=0, atol=1e-12 * float(np.linalg.norm(before.W)))
        assert after.multipliers[i, [t, -1]].sum() == pytest.approx(before.multipliers[i, t], abs=1e-10)
        np.testing.assert_array_equal(after.support[i, -1], before.support[i, t])


def _all_but(x, i):
    """Everything visible, the last token in sequence i alone."""
    mask = np.ones(x.shape[:2], dtype=bool)
    mask[:, -1] = np.arange(len(x)) == i
    return mask


def test_a_zero_query_is_infeasible():
    tokens, selected = cross(2)
    z = tokens.z.copy()
    z[1] = 0.0
    solution = proved(Tokens(x=tokens.x, z=z, y=tokens.y), selected)
    assert solution.status is MarginStatus.INFEASIBLE
    assert solution.farkas[1].sum() == pytest.approx(1.0)


def test_a_zero_query_that_sees_one_token_is_no_obstacle():
    tokens, selected = cross(2)
    z, mask = tokens.z.copy(), np.ones((tokens.n, tokens.T), dtype=bool)
    z[1], mask[1] = 0.0, np.arange(tokens.T) == selected[1]
    rest = np.delete(np.arange(tokens.n), 1)
    solution = proved(Tokens(x=tokens.x, z=z, y=tokens.y, mask=mask), selected)
    want = al.solve_margin(Tokens(x=tokens.x[rest], z=z[rest], y=tokens.y[rest]), selected[rest])
    np.testing.assert_allclose(solution.W, want.W, atol=1e-13)


def test_tied_scores_are_no_concern_of_the_margin():
    x = [[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]]
    tokens = Tokens(x=x, z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    first, second = proved(tokens, [0]), proved(tokens, [1])
    np.testing.assert_allclose(first.W, [[0.5, 0.0], [0.5, 0.0]], atol=1e-15)
    np.testing.assert_allclose(second.W, [[0.5, 0.0], [-0.5, 0.0]], atol=1e-15)
    assert first.margin == pytest.approx(second.margin)


def test_collinear_tokens():
    """On a line the nearest other token decides; between two others nothing separates."""
    line = np.array([0.0, 1.0, 3.0, 7.0])[:, None] * np.array([0.6, 0.8])
    tokens = Tokens(x=[line], z=[[0.0, 2.0]], y=[1])
    for k, nearest in ((0, 1.0), (3, 4.0)):
        solution = proved(tokens, [k])
        assert solution.margin == pytest.approx(2 * nearest, rel=1e-12)
        assert solution.support.sum() == 1
    for k in (1, 2):
        assert proved(tokens, [k]).status is MarginStatus.INFEASIBLE


def test_one_sequence_many_times():
    """Equal constraints, a singular Gram matrix: the same W."""
    tokens, selected = cross(4)
    many = Tokens(x=np.tile(tokens.x, (5, 1, 1)), z=np.tile(tokens.z, (5, 1)), y=np.ones(5 * tokens.n))
    once, often = proved(tokens, selected), proved(many, np.tile(selected, 5))
    np.testing.assert_allclose(often.W, once.W, rtol=0, atol=1e-12 * float(np.linalg.norm(once.W)))


# --- scales ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"), [(1e100, 1), (1e-100, 1), (1, 1e100), (1, 1e-100), (1e100, 1e-100), (1e-100, 1e100)]
)
def test_huge_and_tiny_scales(a, b):
    tokens, selected = cross(0)
    before = al.solve_margin(tokens, selected)
    after = proved(Tokens(x=a * tokens.x, z=b * tokens.z, y=tokens.y), selected)
    np.testing.assert_allclose(after.W * a * b, before.W, rtol=0, atol=1e-12 * float(np.linalg.norm(before.W)))


@pytest.mark.parametrize("scale", [1e100, 1e-100])
def test_scales_whose_multipliers_overflow_are_solved_or_refused(scale):
    """W is about scale^-2, its multipliers scale^-4: the former is a float64, the latter is not."""
    tokens, selected = cross(0)
    scaled = Tokens(x=scale * tokens.x, z=scale * tokens.z, y=tokens.y)
    try:
        solution = al.solve_margin(scaled, selected)
    except InputError:
        return
    want = al.solve_margin(tokens, selected).W
    np.testing.assert_allclose(solution.W * scale * scale, want, rtol=0, atol=1e-12 * float(np.linalg.norm(want)))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("decades", [2, 4])
def test_sequences_of_different_scales(seed, decades):
    """The gap is as good as rounding W to float64 leaves the smallest constraint."""
    tokens, selected = cross(seed)
    factor = 10.0 ** np.random.default_rng(seed).uniform(-decades, decades, tokens.n)
    scaled = Tokens(x=factor[:, None, None] * tokens.x, z=tokens.z, y=tokens.y)
    solution = al.solve_margin(scaled, selected)
    spread = float(max(np.linalg.norm(m.astype(float)) for _, m in constraints(scaled, selected)) / solution.margin)
    assert judge(scaled, solution, gap=1e-10 + 100 * EPS * spread).faults == ()


@pytest.mark.parametrize("seed", range(100))
def test_a_spread_of_sixteen_decades_is_never_called_infeasible(seed):
    """Tokens of 1e-8 to 1e8 and queries likewise: solved or inaccurate; gap and rounding are within what is stated.

    |W - W*| is at most direction_error |W|, so |W| / |W*| - 1 is at most 1 / sqrt(1 - direction_error^2) - 1.
    """
    rng = np.random.default_rng(seed)
    tokens, selected = cross(seed)
    x = 10.0 ** rng.uniform(-8, 8, (tokens.n, 1, 1)) * tokens.x
    z = 10.0 ** rng.uniform(-8, 8, (tokens.n, 1)) * tokens.z
    solution = al.solve_margin(Tokens(x=x, z=z, y=tokens.y), selected, throw=False)
    assert solution.status is not MarginStatus.INFEASIBLE
    if solution.status is MarginStatus.OPTIMAL:
        stated = 1.0 / np.sqrt(1.0 - solution.direction_error**2) - 1.0
        assert judge(Tokens(x=x, z=z, y=tokens.y), solution, gap=1e-9).gap <= stated + 1e-15


# --- masks and several queries -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_hidden_tokens_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    tokens, selected = cross(seed)
    mask = rng.random((tokens.n, tokens.T)) < 0.6
    mask[np.arange(tokens.n), selected] = True
    masked = Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=mask)
    noise = np.where(mask[..., None], 0.0, 1e6 * rng.standard_normal(tokens.x.shape))
    other = Tokens(x=tokens.x + noise, z=tokens.z, y=tokens.y, mask=mask)
    if mask.sum() == tokens.n:
        return
    a, b = proved(masked, selected), proved(other, selected)
    np.testing.assert_array_equal(a.W, b.W)
    assert np.isnan(a.values[~mask]).all()
    assert not a.multipliers[~mask].any()
    assert not a.support[~mask].any()


def test_causal_attention_of_every_query():
    tokens = Tokens.self_attention(np.random.default_rng(0).standard_normal((2, 4, 9)), np.ones((2, 4)),
                                   query="all", mask="causal")  # fmt: skip
    selected = np.array([[0, 1, 0, 2], [0, 0, 2, 3]])
    solution = proved(tokens, selected)
    assert solution.values.shape == solution.multipliers.shape == (2, 4, 4)
    assert np.isfinite(solution.values).sum() == 2 * (0 + 1 + 2 + 3)


@pytest.mark.parametrize("seed", range(5))
def test_k_queries_are_k_sequences(seed):
    """Asking one sequence K questions is the same as K copies of it, each asked one."""
    rng = np.random.default_rng(seed)
    n, K, T, d = 2, 3, 4, 8
    x, z, selected = rng.standard_normal((n, T, d)), rng.standard_normal((n, K, d)), rng.integers(T, size=(n, K))
    many = proved(Tokens(x=x, z=z, y=np.ones((n, K))), selected)
    flat = proved(Tokens(x=np.repeat(x, K, axis=0), z=z.reshape(-1, d), y=np.ones(n * K)), selected.ravel())
    np.testing.assert_allclose(many.W, flat.W, atol=1e-13)
    np.testing.assert_allclose(many.multipliers.reshape(-1, T), flat.multipliers, atol=1e-12)
    assert many.multipliers.shape == many.support.shape == (n, K, T)


# --- wrong input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selected", "told"),
    [
        ([0, 0, 0], r"`selected` has shape \(3,\); wanted one token per query, \(4,\)"),
        ([[0, 0, 0, 0]], r"shape \(1, 4\)"),
        (0, r"shape \(\)"),
        ([0.0, 1.0, 2.0, 3.0], "type float64; wanted whole numbers"),
        ([True, False, True, False], "type bool"),
        (["a", "b", "c", "d"], "wanted whole numbers"),
        ([0, 1, 2, 4], "names token 4; sequences of 4 tokens have 0 to 3"),
        ([0, -1, 2, 3], "names token -1"),
    ],
)
def test_wrong_selections_are_refused(selected, told):
    with pytest.raises(InputError, match=told):
        al.solve_margin(cross(0)[0], selected)


def test_a_masked_selection_is_refused():
    tokens, selected = cross(0)
    mask = np.ones((tokens.n, tokens.T), dtype=bool)
    mask[1, selected[1]] = False
    with pytest.raises(InputError, match="the mask hides"):
        al.solve_margin(Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=mask), selected)


def test_batches_and_other_things_are_refused():
    batch = al.data.sphere(n=2, T=3, d=4, trials=2)
    with pytest.raises(InputError, match=r"batch of trials.*\n\nhint: al\.solve_margins"):
        al.solve_margin(batch, [[0, 0], [0, 0]])
    with pytest.raises(InputError, match=r"an array of shape .*; wanted al\.Tokens"):
        al.solve_margin(batch.x, [0, 0])
    with pytest.raises(InputError, match="`norm` is 'taxicab'"):
        al.solve_margin(batch[0], [0, 0], norm="taxicab")


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64])
def test_any_whole_number_type_will_do(kind):
    tokens, selected = cross(0)
    got = al.solve_margin(tokens, selected.astype(kind))
    np.testing.assert_array_equal(got.W, al.solve_margin(tokens, selected.tolist()).W)
    assert got.selected.dtype == np.intp


def test_solving_twice_gives_the_same_bits():
    tokens, selected = cross(0)
    a, b = al.solve_margin(tokens, selected), al.solve_margin(tokens, selected)
    np.testing.assert_array_equal(a.W, b.W)
    np.testing.assert_array_equal(a.multipliers, b.multipliers)


def test_summary_is_json_with_the_numbers():
    solution = al.solve_margin(al.data.bad_direction(), [1, 0])
    facts = json.loads(json.dumps(solution.summary()))
    assert facts["status"] == "optimal"
    assert facts["message"] == MarginStatus.OPTIMAL.value
    assert facts["margin"] == solution.margin
    assert facts["support"] == [[0, 0], [1, 1]]
    assert facts["selected"] == [1, 0]
    assert facts["rank"] == 2
    assert facts["farkas_residual"] is None


@pytest.mark.parametrize("tolerance", [-1e-10, float("nan"), "tight", [1e-10]])
def test_a_tolerance_that_means_nothing_is_refused(tolerance):
    tokens = al.data.sphere(n=2, T=3, d=4, seed=0, trials=2)
    for solve, data, selected in ((al.solve_margin, tokens[0], [0, 1]), (al.solve_margins, tokens, [[0, 1], [0, 1]])):
        with pytest.raises(InputError, match="`tolerance`"):
            solve(data, selected, tolerance=tolerance)
