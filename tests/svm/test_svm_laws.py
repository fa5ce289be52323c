"""What must hold between the solutions of related problems."""

import numpy as np
import scipy.linalg
from hypothesis import given, settings, strategies as st
from svm_cases import SIZES, cross, problem
from verifier import constraints

import attnlab as al
from attnlab import Tokens
from attnlab.svm import MarginStatus

few = settings(deadline=None, max_examples=60, database=None, derandomize=True)
seeds = st.integers(0, 10_000)
small = [size for size in SIZES if size[0] * size[1] <= 25]


def close(got, want, error=1e-10):
    """Equal up to `error` of the largest size."""
    scale = max(np.linalg.norm(want), np.linalg.norm(got))
    assert np.linalg.norm(np.asarray(got) - np.asarray(want)) <= error * scale


def like(tokens, **changes):
    return Tokens(**{"x": tokens.x, "z": tokens.z, "y": tokens.y, "mask": tokens.mask, **changes})


def orthogonal(rng, d):
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


@few
@given(seeds)
def test_order_of_sequences_does_not_matter(seed):
    tokens, selected = problem(seed, small)
    order = np.random.default_rng(seed).permutation(tokens.n)
    mask = None if tokens.mask is None else tokens.mask[order]
    before = al.solve_margin(tokens, selected)
    after = al.solve_margin(like(tokens, x=tokens.x[order], z=tokens.z[order], y=tokens.y[order], mask=mask),
                            selected[order])  # fmt: skip
    close(after.W, before.W)
    close(after.multipliers, before.multipliers[order], 1e-8)
    np.testing.assert_array_equal(after.support, before.support[order])


@few
@given(seeds)
def test_order_of_tokens_does_not_matter(seed):
    """Each sequence is shuffled in its own way; the selection and mask follow."""
    rng = np.random.default_rng(seed)
    tokens, selected = problem(seed, small)
    order = np.array([rng.permutation(tokens.T) for _ in range(tokens.n)])
    x = np.take_along_axis(tokens.x, order[..., None], axis=1)
    spread = order if tokens.K is None else np.broadcast_to(order[:, None], (*selected.shape, tokens.T))
    mask = None if tokens.mask is None else np.take_along_axis(tokens.mask, spread, axis=-1)
    moved = np.argmax(spread == selected[..., None], axis=-1)
    before = al.solve_margin(tokens, selected)
    after = al.solve_margin(like(tokens, x=x, mask=mask), moved)
    close(after.W, before.W)
    close(after.multipliers, np.take_along_axis(before.multipliers, spread, axis=-1), 1e-8)
    np.testing.assert_array_equal(after.support, np.take_along_axis(before.support, spread, axis=-1))


@few
@given(seeds, st.floats(-6, 6), st.floats(-6, 6))
def test_scaling_tokens_and_queries_divides_the_solution(seed, log_a, log_b):
    a, b = 10.0**log_a, 10.0**log_b
    tokens, selected = problem(seed, small)
    before = al.solve_margin(tokens, selected)
    after = al.solve_margin(like(tokens, x=a * tokens.x, z=b * tokens.z), selected)
    close(after.W * (a * b), before.W)
    close(after.multipliers * (a * b) ** 2, before.multipliers, 1e-8)
    if before.status is not MarginStatus.UNCONSTRAINED:
        assert abs(after.margin / (a * b) / before.margin - 1) <= 1e-10


@few
@given(seeds)
def test_each_sequence_may_trade_scale_with_its_query(seed):
    """x_i by a_i and z_i by 1 / a_i leaves every constraint as it is."""
    tokens, selected = cross(seed)
    a = 10.0 ** np.random.default_rng(seed).uniform(-6, 6, tokens.n)
    before = al.solve_margin(tokens, selected)
    after = al.solve_margin(like(tokens, x=a[:, None, None] * tokens.x, z=tokens.z / a[:, None]), selected)
    close(after.W, before.W)
    close(after.multipliers, before.multipliers, 1e-8)


@few
@given(seeds)
def test_shifting_a_sequence_changes_nothing(seed):
    tokens, selected = cross(seed)
    shift = 10 * np.random.default_rng(seed).standard_normal((tokens.n, 1, tokens.d))
    before = al.solve_margin(tokens, selected)
    close(al.solve_margin(like(tokens, x=tokens.x + shift), selected).W, before.W)


@few
@given(seeds)
def test_rotations_rotate_the_solution(seed):
    """x -> x R^T and z -> z S^T give R W S^T, with the same multipliers."""
    rng = np.random.default_rng(seed)
    tokens, selected = problem(seed, small)
    R, S = orthogonal(rng, tokens.d), orthogonal(rng, tokens.d)
    before = al.solve_margin(tokens, selected)
    after = al.solve_margin(like(tokens, x=tokens.x @ R.T, z=tokens.z @ S.T), selected)
    close(after.W, R @ before.W @ S.T)
    close(after.multipliers, before.multipliers, 1e-8)


@few
@given(seeds)
def test_tokens_embedded_in_more_dimensions(seed):
    tokens, selected = cross(seed)
    more = ((0, 0), (0, 0), (0, 3))
    before = al.solve_margin(tokens, selected)
    after = al.solve_margin(like(tokens, x=np.pad(tokens.x, more), z=np.pad(tokens.z, more[1:])), selected)
    close(after.W, np.pad(before.W, ((0, 3), (0, 3))))


@few
@given(seeds, st.floats(1.01, 10.0))
def test_a_satisfied_token_changes_nothing(seed, value):
    """A further token in each sequence, placed where the old solution already gives `value` > 1."""
    rng = np.random.default_rng(seed)
    tokens, selected = cross(seed)
    before = al.solve_margin(tokens, selected)
    p = rng.standard_normal((tokens.n, tokens.d))
    seen = tokens.z @ before.W.T  # W z
    p += ((value - (p * seen).sum(-1)) / (seen * seen).sum(-1))[:, None] * seen
    further = tokens.x[np.arange(tokens.n), selected] - p
    after = al.solve_margin(like(tokens, x=np.concatenate([tokens.x, further[:, None]], axis=1)), selected)
    close(after.W, before.W)
    close(after.multipliers[:, :-1], before.multipliers, 1e-8)
    assert not after.support[:, -1].any()
    assert np.abs(after.values[:, -1] - value).max() <= 1e-8 * value


@few
@given(seeds)
def test_removing_tokens_off_the_support_changes_nothing(seed):
    tokens, selected = problem(seed, small)
    before = al.solve_margin(tokens, selected)
    keep = before.support | (np.arange(tokens.T) == selected[..., None])
    after = al.solve_margin(like(tokens, mask=keep), selected)
    close(after.W, before.W)
    close(after.multipliers, before.multipliers, 1e-8)


@few
@given(seeds)
def test_removing_a_support_token_raises_the_margin(seed):
    tokens, selected = cross(seed)
    before = al.solve_margin(tokens, selected)
    heaviest = np.unravel_index(np.argmax(before.multipliers), before.multipliers.shape)
    mask = np.ones((tokens.n, tokens.T), dtype=bool)
    mask[heaviest] = False
    assert al.solve_margin(like(tokens, mask=mask), selected).margin > before.margin * (1 + 1e-12)


@few
@given(seeds)
def test_row_and_column_space(seed):
    """Lemma 1: rows of W lie in the span of the queries, columns in that of the differences; rank at most both."""
    n = 1 + seed % 3
    tokens, selected = cross(seed, n=n, T=3, d=10)
    W = al.solve_margin(tokens, selected).W
    p = np.array([tokens.x[i, selected[i]] - tokens.x[i, t] for (i, t), _ in constraints(tokens, selected)])
    for basis, matrix in ((scipy.linalg.orth(tokens.z.T), W.T), (scipy.linalg.orth(p.T), W)):
        assert np.linalg.norm(matrix - basis @ (basis.T @ matrix)) <= 1e-12 * np.linalg.norm(W)
    assert al.solve_margin(tokens, selected).rank <= n


@few
@given(seeds)
def test_stated_rank_is_the_rank(seed):
    tokens, selected = problem(seed, small)
    solution = al.solve_margin(tokens, selected)
    if solution.rank is not None and solution.status is MarginStatus.OPTIMAL:
        assert solution.rank == np.linalg.matrix_rank(solution.W, tol=1e-7 * np.linalg.norm(solution.W))


@few
@given(seeds)
def test_margin_is_the_least_value_of_the_unit_direction_and_no_direction_beats_it(seed):
    rng = np.random.default_rng(seed)
    tokens, selected = cross(seed)
    solution = al.solve_margin(tokens, selected)
    A = np.array([matrix.astype(float).ravel() for _, matrix in constraints(tokens, selected)])
    unit = solution.W.ravel() / np.linalg.norm(solution.W)
    assert abs((A @ unit).min() / solution.margin - 1) <= 1e-12
    for size in (1e-4, 1e-2, 1.0):
        other = unit + size * rng.standard_normal((20, unit.size))
        other /= np.linalg.norm(other, axis=1, keepdims=True)
        assert (A @ other.T).min() < solution.margin
        assert (A @ other.T).min(axis=0).max() < solution.margin
