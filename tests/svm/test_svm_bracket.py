"""`bracket_margin`: both bounds hold in exact arithmetic, enclose the optimum, and close where they can."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.svm import BracketStatus, bracket_margin, bracket_margins, norms

NORMS = ("frobenius", "nuclear", "spectral", "entrywise max")


def exact_norm(name, matrix):
    """A norm, in 60 digits."""
    if name == "frobenius":
        return mpmath.sqrt(mpmath.fsum(entry**2 for entry in matrix))
    if name == "entrywise max":
        return max(abs(entry) for entry in matrix)
    if name == "entrywise l1":
        return mpmath.fsum(abs(entry) for entry in matrix)
    singular = mpmath.svd_r(matrix, compute_uv=False)
    return singular[0] if name == "spectral" else mpmath.fsum(singular)


DUAL = {"frobenius": "frobenius", "nuclear": "spectral", "spectral": "nuclear", "entrywise max": "entrywise l1"}


def assert_certified(bracket, x, z, selected, mask=None):
    """lower <= what W attains, and what the multipliers bound <= upper, in 60 digits."""
    x, z, selected = np.asarray(x), np.asarray(z), np.asarray(selected)
    seen = (
        np.ones((*selected.shape, x.shape[1]), dtype=bool)
        if mask is None
        else np.broadcast_to(mask, (*selected.shape, x.shape[1]))
    )
    with mpmath.workdps(60):
        W = mpmath.matrix(bracket.W.tolist())
        least, total, weight = mpmath.inf, mpmath.zeros(x.shape[2], z.shape[-1]), mpmath.mpf(0)
        assert (bracket.multipliers >= 0).all()
        for at in np.ndindex(selected.shape):
            query = mpmath.matrix(z[at].tolist())
            chosen = mpmath.matrix(x[at[0], selected[at]].tolist())
            looked = W * query
            for t in range(x.shape[1]):
                if t == selected[at] or not seen[(*at, t)]:
                    assert bracket.multipliers[(*at, t)] == 0
                    continue
                row = chosen - mpmath.matrix(x[at[0], t].tolist())
                least = min(least, (row.T * looked)[0])
                multiplier = mpmath.mpf(float(bracket.multipliers[(*at, t)]))
                weight += multiplier
                total += multiplier * row * query.T
        assert abs(weight - 1) < 1e-12
        length = exact_norm(bracket.norm, W)
        assert abs(length - 1) < 1e-12
        assert bracket.lower <= least / length
        assert exact_norm(DUAL[bracket.norm], total) / weight <= bracket.upper
        assert bracket.lower <= bracket.upper


def drawn(seed, n=4, T=4, a=3, b=5):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, T, a)), rng.standard_normal((n, b)), rng.integers(T, size=n)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(4))
def test_both_bounds_hold_in_exact_arithmetic(norm, seed):
    x, z, selected = drawn(seed)
    bracket = bracket_margin(x, z, selected, norm=norm)
    assert_certified(bracket, x, z, selected)
    assert bracket.status is not BracketStatus.WIDE


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("seed", range(10))
def test_the_optimum_is_between_the_bounds(norm, seed):
    tokens = al.data.sphere(n=8, T=6, d=8, seed=seed)
    selected = np.random.default_rng(seed).integers(6, size=8)
    exact = al.solve_margin(tokens, selected, norm=norm, throw=False)
    bracket = bracket_margin(tokens.x, tokens.z, selected, norm=norm)
    assert bracket.lower <= exact.margin * (1 + 1e-6)
    assert exact.margin <= bracket.upper * (1 + 1e-6)
    assert bracket.separable == exact.feasible
    assert bracket.status is (BracketStatus.CLOSED if exact.feasible else BracketStatus.NOT_SEPARABLE)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(3))
def test_cvxpy_agrees_in_every_norm_on_rectangular_problems(norm, seed):
    cvxpy = pytest.importorskip("cvxpy")
    x, z, selected = drawn(seed, n=5, T=4, a=6, b=4)
    W = cvxpy.Variable((6, 4))
    leads = [(x[i, selected[i]] - x[i, t]) @ W @ z[i] for i in range(5) for t in range(4) if t != selected[i]]
    value = {
        "frobenius": cvxpy.norm(W, "fro"),
        "nuclear": cvxpy.normNuc(W),
        "spectral": cvxpy.sigma_max(W),
        "entrywise max": cvxpy.max(cvxpy.abs(W)),
    }[norm]
    problem = cvxpy.Problem(cvxpy.Maximize(cvxpy.min(cvxpy.hstack(leads))), [value <= 1])
    optimum = problem.solve(solver="CLARABEL")
    bracket = bracket_margin(x, z, selected, norm=norm)
    assert optimum > 0.05
    assert bracket.lower <= optimum * (1 + 1e-6)
    assert optimum <= bracket.upper * (1 + 1e-6)
    assert bracket.gap <= 1e-2
    assert_certified(bracket, x, z, selected)


@pytest.mark.parametrize("norm", NORMS)
def test_constraints_that_are_zero_leave_no_margin_and_both_bounds_say_so_exactly(norm):
    x, z, selected = drawn(0, n=3, a=4)
    x[1, (selected[1] + 1) % 4] = x[1, selected[1]]
    bracket = bracket_margin(x, z, selected, norm=norm)
    assert (bracket.lower, bracket.upper) == (0.0, 0.0)
    assert bracket.status is BracketStatus.NOT_SEPARABLE
    assert_certified(bracket, x, z, selected)
    everything_equal = bracket_margin(np.ones((2, 3, 2)), np.ones((2, 2)), [0, 1], norm=norm)
    assert (everything_equal.lower, everything_equal.upper) == (0.0, 0.0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(3))
def test_an_inseparable_selection_has_an_upper_bound_of_nothing(norm, seed):
    x, z, selected = drawn(seed, n=30, T=5, a=2, b=2)
    bracket = bracket_margin(x, z, selected, norm=norm)
    assert bracket.status is BracketStatus.NOT_SEPARABLE
    assert not bracket.separable
    assert 0 < bracket.upper < 1e-5
    assert_certified(bracket, x, z, selected)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("k", "j"), [(300, 300), (-300, -300), (900, -900), (-500, 0)])
def test_powers_of_two_change_nothing_but_the_power(norm, k, j):
    x, z, selected = drawn(1, n=2)
    plain, scaled = (bracket_margin(np.ldexp(x, a), np.ldexp(z, b), selected, norm=norm) for a, b in ((0, 0), (k, j)))
    assert (plain.W == scaled.W).all()
    assert (plain.multipliers == scaled.multipliers).all()
    assert scaled.lower == np.ldexp(plain.lower, k + j)
    assert scaled.upper == np.ldexp(plain.upper, k + j)


@pytest.mark.parametrize("norm", NORMS)
def test_one_sequence_one_other_token_one_dimension(norm):
    x, z, selected = drawn(2, n=1, T=2, a=1, b=1)
    bracket = bracket_margin(x, z, selected, norm=norm)
    want = abs((x[0, 0] - x[0, 1])[0] * z[0, 0])
    assert bracket.lower <= want <= bracket.upper
    assert bracket.upper - bracket.lower <= 1e-12 * want


def test_nothing_to_separate_is_an_infinite_margin():
    bracket = bracket_margin(np.ones((2, 1, 3)), np.ones((2, 2)), [0, 0])
    assert bracket.lower == bracket.upper == np.inf
    assert bracket.status is BracketStatus.UNCONSTRAINED
    assert bracket.W.tolist() == np.zeros((3, 2)).tolist()
    assert bracket.gap == 0.0
    assert bracket.steps == 0
    hidden = bracket_margin(np.ones((1, 3, 2)), np.ones((1, 2)), [1], mask=[[False, True, False]])
    assert hidden.status is BracketStatus.UNCONSTRAINED
    assert hidden.summary()["upper"] is None


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rank", [1, 2])
def test_dependent_tokens_and_queries_are_certified_too(norm, rank):
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((4, 3, rank)) @ rng.standard_normal((rank, 5))
    z = rng.standard_normal((4, rank)) @ rng.standard_normal((rank, 4))
    W = rng.standard_normal((5, 4))
    selected = np.einsum("nta,ab,nb->nt", x, W, z).argmax(1)
    bracket = bracket_margin(x, z, selected, norm=norm)
    assert_certified(bracket, x, z, selected)
    assert bracket.separable
    assert bracket.status is BracketStatus.CLOSED


def test_masks_and_several_queries_are_respected():
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 2, 6))
    mask = rng.random((3, 2, 4)) < 0.6
    mask[..., 1] = True
    selected = np.ones((3, 2), dtype=int)
    bracket = bracket_margin(x, z, selected, mask=mask)
    assert_certified(bracket, x, z, selected, mask)
    repeated = bracket_margin(np.repeat(x, 2, axis=0), z.reshape(6, 6), selected.reshape(6), mask=mask.reshape(6, 4))
    assert bracket.lower == repeated.lower
    assert (bracket.W == repeated.W).all()


def test_many_problems_are_each_as_if_alone():
    rng = np.random.default_rng(1)
    x, z, selected = rng.standard_normal((3, 5, 4, 6)), rng.standard_normal((3, 5, 7)), rng.integers(4, size=(3, 5))
    mask = np.ones((3, 5, 4), dtype=bool)
    mask[:, 0, (selected[:, 0].max() + 1) % 4] = selected[:, 0] == (selected[:, 0].max() + 1) % 4
    start = rng.standard_normal((3, 6, 7))
    for k, one in enumerate(bracket_margins(x, z, selected, mask=mask, start=start)):
        alone = bracket_margin(x[k], z[k], selected[k], mask=mask[k], start=start[k])
        assert (one.W == alone.W).all()
        assert (one.lower, one.upper) == (alone.lower, alone.upper)


@pytest.mark.parametrize("n", [40, 300])
def test_more_constraints_than_entries_of_w_or_fewer_close_alike(n):
    """Newton steps by the entries of W where these are fewer."""
    rng = np.random.default_rng(n)
    x, z, W = rng.standard_normal((n, 6, 5)), rng.standard_normal((n, 4)), rng.standard_normal((5, 4))
    scores = np.einsum("nta,ab,nb->nt", x, W, z)
    lead = np.sort(scores, axis=1)
    decisive = np.argsort(lead[:, -2] - lead[:, -1])[: n // 2]
    x, z, selected = x[decisive], z[decisive], scores.argmax(1)[decisive]
    bracket = bracket_margin(x, z, selected, tolerance=1e-4)
    assert bracket.status is BracketStatus.CLOSED
    assert bracket.steps < 60
    tokens = al.Tokens(x=x, z=np.pad(z, ((0, 0), (0, 1))), y=np.ones(len(x)))
    exact = al.solve_margin(tokens, selected).margin
    assert bracket.lower <= exact * (1 + 1e-9)
    assert exact <= bracket.upper * (1 + 1e-9)


def test_a_finer_tolerance_gives_a_finer_bracket_and_zero_ends_with_both_bounds_certified():
    x, z, selected = drawn(3, n=8, T=6, a=8, b=8)
    gaps = [bracket_margin(x, z, selected, tolerance=tolerance).gap for tolerance in (1e-1, 1e-3, 1e-6)]
    assert gaps[0] <= 1e-1
    assert gaps[1] <= 1e-3
    assert gaps[2] <= 1e-6
    finest = bracket_margin(x, z, selected, tolerance=0.0)
    assert finest.status is BracketStatus.WIDE
    assert finest.gap < 1e-9
    assert_certified(finest, x, z, selected)


def test_rows_next_to_nothing_beside_the_others_bound_the_margin_alone():
    x, z, selected = drawn(4, n=2)
    x[0] *= 1e-200
    bracket = bracket_margin(x, z, selected)
    assert_certified(bracket, x, z, selected)
    length = np.linalg.norm((x[0] - x[0, selected[0]]) * 1e200, axis=1) * np.linalg.norm(z[0])
    np.testing.assert_allclose(bracket.upper * 1e200, np.sort(length)[1], rtol=1e-11)
    assert bracket.status is BracketStatus.WIDE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": np.ones((2, 3))}, "`x` has shape (2, 3); wanted (n, T, a)"),
        ({"x": np.ones((1, 2, 3, 4))}, "bracket_margins"),
        ({"x": np.full((2, 3, 2), np.nan)}, "`x` has 12 entries"),
        ({"z": np.ones((3, 2))}, "`z` has shape (3, 2); wanted queries (2, b)"),
        ({"selected": [0]}, "`selected` has shape (1,)"),
        ({"selected": [0, 3]}, "`selected` names token 3"),
        ({"selected": [0, -1]}, "`selected` names token -1"),
        ({"mask": [[False, True, True]] * 2}, "the mask hides"),
        ({"mask": np.ones((2, 2))}, "`mask` has shape (2, 2)"),
        ({"norm": "l2"}, "`norm` is 'l2'"),
        ({"norm": norms.ENTRYWISE_L1}, "`norm` is"),
        ({"tolerance": -1.0}, "`tolerance` is -1.0"),
        ({"start": np.ones((2, 2))}, "`start` has shape (2, 2); wanted (2, 3)"),
        ({"x": np.ldexp(np.random.default_rng(0).standard_normal((2, 3, 2)), 1000), "z": np.full((2, 3), 1e300)}, "1e"),
    ],
)
def test_what_is_wrong_is_told(arguments, words):
    rng = np.random.default_rng(0)
    good = {"x": rng.standard_normal((2, 3, 2)), "z": rng.standard_normal((2, 3)), "selected": [0, 0]}
    with pytest.raises(InputError) as error:
        bracket_margin(**(good | arguments))
    assert words in str(error.value)


def test_norms_are_given_by_name_or_as_they_are():
    x, z, selected = drawn(5)
    assert bracket_margin(x, z, selected, norm=norms.NUCLEAR).norm == "nuclear"
    double = al.svm.Norm(name="frobenius", value=np.size, dual=np.size, prox=lambda W, t: W)
    with pytest.raises(InputError, match="`norm` is"):
        bracket_margin(x, z, selected, norm=double)
    assert repr(bracket_margin(x, z, selected)).startswith("Bracket(frobenius, margin in [")
