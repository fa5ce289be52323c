"""Regularization paths: reference numbers, independent oracles, laws, local paths, other heads, hard inputs."""

import numpy as np
import pytest
from path_cases import log_excess, nuclear_margin, reference_tokens
from scipy.optimize import minimize

from attnlab import InputError, Tokens, misalignment, optimal_tokens, solve_margin
from attnlab.models import Concave
from attnlab.theory import default_eps
from attnlab.theory.svm.cones import barrier, score_sides
from attnlab.train.path import PathStatus, regularization_path

SMALL = (0, 2, 3, 2)


def margin(tokens, selected=None):
    return solve_margin(tokens, optimal_tokens(tokens) if selected is None else selected).W


# --- the reference numbers -----------------------------------------------------------------------------------------

# 1 - cosine at 10, 30, 100 times the norm of the max-margin matrix, to two digits.
REFERENCE = {
    (SMALL, "frobenius"): [3.5e-4, 4.0e-5, 3.6e-6],
    (SMALL, "nuclear"): [7.3e-4, 1.6e-4, 1.4e-5],
    ((1, 3, 4, 4), "frobenius"): [5.5e-3, 1.6e-3, 2.4e-4],
    ((1, 3, 4, 4), "nuclear"): [8.7e-3, 8.8e-4, 3.4e-6],
}


@pytest.mark.parametrize(
    ("instance", "norm"),
    [pytest.param(*key, marks=() if key == (SMALL, "frobenius") else pytest.mark.slow) for key in REFERENCE],
)
def test_misalignment_is_that_of_the_reference_runs(instance, norm):
    tokens = reference_tokens(*instance)
    toward = margin(tokens) if norm == "frobenius" else nuclear_margin(tokens, optimal_tokens(tokens))
    path = regularization_path(tokens, toward, norm=norm)
    assert path.solved.all()
    assert (path.status == PathStatus.SPHERE).all()
    # Half a unit of the last printed digit, which is at most 1/26 of the number.
    np.testing.assert_allclose(path.misalignment[2:], REFERENCE[instance, norm], rtol=0.04)
    assert path.misalignment is not None
    np.testing.assert_allclose(path.misalignment, misalignment(path.W, toward), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_the_direction_tends_to_the_max_margin_one(seed, norm):
    """Theorem 2: ever closer, and within 1e-3 at 100 times the norm."""
    tokens = reference_tokens(seed, 5, 5, 5)
    toward = margin(tokens) if norm == "frobenius" else nuclear_margin(tokens, optimal_tokens(tokens))
    path = regularization_path(tokens, toward, norm=norm)
    assert path.solved.all()
    assert path.misalignment[-1] <= 1e-3
    assert (np.diff(path.misalignment[1:]) < 0).all()


# --- is it the minimum? ---------------------------------------------------------------------------------------------


def test_value_and_minimum_agree_with_the_textbook_and_scipy():
    tokens = reference_tokens(*SMALL)
    path = regularization_path(tokens, margin(tokens))
    for W, R, value in zip(path.W[:3], path.radii[:3], path.value[:3], strict=True):
        assert np.linalg.norm(W) == pytest.approx(R, rel=1e-12)
        assert log_excess(tokens, W) == pytest.approx(value, rel=1e-9)
        starts = np.random.default_rng(0).standard_normal((8, 4))
        found = [
            minimize(lambda u, R=R: log_excess(tokens, R * u.reshape(2, 2) / np.linalg.norm(u)), u).fun for u in starts
        ]
        assert value <= min(found) + 1e-9
        assert value == pytest.approx(min(found), abs=1e-6)


def test_the_residual_is_that_of_finite_differences():
    tokens = reference_tokens(*SMALL)
    path = regularization_path(tokens, margin(tokens), radii=(1, 3))
    for W, R, radial in zip(path.W, path.radii, path.radial, strict=True):
        steps = 1e-6 * R * np.eye(4).reshape(4, 2, 2)
        slope = np.array([log_excess(tokens, W + s) - log_excess(tokens, W - s) for s in steps]) / 2e-6
        unit = W.ravel() / R
        assert slope @ unit == pytest.approx(radial, rel=1e-6)
        assert np.linalg.norm(slope - (slope @ unit) * unit) < 1e-6 * np.linalg.norm(slope)
    assert (path.radial < 0).all()
    assert (path.residual <= 1e-10).all()


@pytest.mark.slow
def test_nuclear_path_spends_its_norm_in_balance():
    """Lemma 15: |K Q^T|_* = R and K^T K = Q^T Q."""
    tokens = reference_tokens(*SMALL)
    path = regularization_path(tokens, nuclear_margin(tokens, optimal_tokens(tokens)), norm="nuclear")
    np.testing.assert_allclose(np.linalg.norm(path.W, ord="nuc", axis=(-2, -1)), path.radii, rtol=1e-6)
    np.testing.assert_allclose(path.W, path.K @ path.Q.swapaxes(-1, -2), atol=1e-12)
    grams = [a.swapaxes(-1, -2) @ a for a in (path.K, path.Q)]
    assert np.abs(grams[0] - grams[1]).max() <= 1e-6 * path.radii.max()
    frobenius = regularization_path(tokens, radii=path.radii, restarts=7)
    assert (frobenius.value <= path.value + 1e-9).all()  # the Frobenius ball is larger


def test_the_log_excess_falls_by_one_per_unit_of_margin_however_far():
    """Lemma 2: slope -1, at radii where the excess itself is far below the smallest float."""
    tokens = reference_tokens(*SMALL)
    path = regularization_path(tokens, margin(tokens), radii=(100, 1000, 10_000))
    np.testing.assert_allclose(np.diff(path.value), [-900, -9000], rtol=1e-3)
    assert path.solved.all()
    # Asymptotically the misalignment falls as R^-2.
    np.testing.assert_allclose(path.misalignment[1:] / path.misalignment[:-1], 1e-2, rtol=0.1)


def test_two_tokens_point_at_their_difference_at_every_radius():
    one = Tokens(x=[[[1.0, 2.0], [0.0, -1.0], [0.0, -1.0]]], z=[[2.0, -1.0]], y=[1.0], v=[1.0, 0.0])
    tokens = Tokens(x=one.x.repeat(2, 0), z=one.z.repeat(2, 0), y=np.ones(2), v=one.v)
    path = regularization_path(tokens, np.outer([1.0, 3.0], [2.0, -1.0]), radii=(0.1, 1, 10))
    assert (path.misalignment < 1e-15).all()
    assert (path.residual < 1e-9).all()


# --- laws -----------------------------------------------------------------------------------------------------------


def test_searches_are_reported_and_the_lowest_is_kept():
    tokens = reference_tokens(*SMALL)
    told = []
    path = regularization_path(tokens, margin(tokens), on_step=told.append)
    assert path.starts == ("continuation", "toward", *(f"restart {k}" for k in range(1, 7)))
    assert path.found.shape == (5, 8)
    np.testing.assert_array_equal(path.found.min(-1), np.take_along_axis(path.found, path.winner[:, None], -1)[:, 0])
    np.testing.assert_allclose(path.value, path.found.min(-1), rtol=1e-9)
    np.testing.assert_allclose(path.spread, path.found.max(-1) - path.value)
    assert (path.evaluations >= 8).all()
    assert [(p.done, p.total) for p in told] == [(k, 5) for k in range(1, 6)]
    assert (np.diff(path.value) < 0).all()
    np.testing.assert_allclose(np.linalg.norm(path.directions, axis=(-2, -1)), 1.0)
    assert "misalignment" in repr(path)
    again = regularization_path(tokens, margin(tokens))
    np.testing.assert_array_equal(path.W, again.W)
    other = regularization_path(tokens, margin(tokens), seed=1)
    np.testing.assert_allclose(path.value, other.value, rtol=1e-9)


@pytest.mark.parametrize(("a", "b"), [(1e100, 1e50), (1e-100, 1e-50)])
def test_scaling_tokens_and_queries(a, b):
    tokens = reference_tokens(*SMALL)
    other = Tokens(x=a * tokens.x, z=b * tokens.z, y=tokens.y, v=tokens.v / a)
    W = margin(tokens)
    one, two = regularization_path(tokens, W), regularization_path(other, W / a / b)
    np.testing.assert_allclose(two.value, one.value, rtol=1e-9)
    assert one.misalignment is not None
    assert two.misalignment is not None
    np.testing.assert_allclose(two.misalignment, one.misalignment, rtol=1e-4)


def test_a_batch_gives_what_its_trials_give():
    trials = [reference_tokens(seed, 2, 3, 2) for seed in (0, 3, 5)]
    W = [margin(t) for t in trials]
    batch = regularization_path(Tokens.stack(trials), np.stack(W), radii=(1, 10))
    assert batch.W.shape == (3, 2, 2, 2)
    assert batch.found.shape == (3, 2, 8)
    for i, (tokens, toward) in enumerate(zip(trials, W, strict=True)):
        alone = regularization_path(tokens, toward, radii=(1, 10))
        np.testing.assert_allclose(batch.value[i], alone.value, rtol=1e-9)
        assert alone.misalignment is not None
        np.testing.assert_allclose(batch.misalignment[i], alone.misalignment, rtol=1e-4, atol=1e-15)
        np.testing.assert_allclose(batch.radii[i], alone.radii)
        assert (batch.status[i] == alone.status).all()
    shared = regularization_path(Tokens.stack(trials), W[0], radii=(1, 10))
    np.testing.assert_allclose(shared.value[0], batch.value[0], rtol=1e-9)


def test_without_a_direction_radii_are_radii():
    tokens = reference_tokens(*SMALL)
    path = regularization_path(tokens, radii=(0.5, 20.0), restarts=7)
    np.testing.assert_array_equal(path.radii, [0.5, 20.0])
    assert path.misalignment is None
    assert path.toward is None
    guided = regularization_path(tokens, margin(tokens), radii=np.array([0.5, 20.0]) / np.linalg.norm(margin(tokens)))
    np.testing.assert_allclose(path.value, guided.value, rtol=1e-9)


@pytest.mark.slow
def test_queries_and_masks():
    """Corollary 1: with several queries and a causal mask the path tends to the max-margin matrix of theirs."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 6))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    tokens = Tokens.self_attention(x, np.ones((2, 3)), rng.standard_normal(6), query="all", mask="causal")
    path = regularization_path(tokens, margin(tokens), radii=(10, 100))
    assert path.solved.all()
    assert path.misalignment[1] < 1e-3
    assert path.misalignment[1] < path.misalignment[0]


@pytest.mark.slow
def test_narrow_keys_have_narrow_rank():
    tokens = reference_tokens(2, 5, 5, 5)
    toward = nuclear_margin(tokens, optimal_tokens(tokens))
    one = regularization_path(tokens, toward, norm="nuclear", m=1, radii=(1, 3))
    two = regularization_path(tokens, toward, norm="nuclear", m=5, radii=(1, 3))
    assert one.K.shape == (2, 5, 1)
    assert (np.linalg.matrix_rank(one.W) == 1).all()
    assert (one.value >= two.value - 1e-9).all()


# --- local paths -----------------------------------------------------------------------------------------------------

# 1 - cosine at R0, 3 R0, 10 R0 for the selections of the reference run that are locally but not globally optimal.
LOCAL = {(2, 2): [1.9e-3, 2.3e-4, 2.1e-5], (3, 1): [4.7e-6, 5.4e-7, 4.9e-8], (3, 2): [1.1e-4, 1.2e-5, 1.1e-6]}


def least_radius(tokens, selected, eps):
    """R0 = log(4 B T / c) / eps, with B = |v| max |x_t - x_s| and c the least lead over lower tokens."""
    gamma = tokens.y[:, None] * (tokens.x @ tokens.v)
    low, _ = score_sides(tokens, selected)
    lead = min(gamma[i, selected[i]] - gamma[i][low[i]].max() for i in range(tokens.n))
    B = np.linalg.norm(tokens.v) * max(np.linalg.norm(x[:, None] - x[None], axis=-1).max() for x in tokens.x)
    return np.log(4 * B * tokens.T / lead) / eps


@pytest.mark.parametrize("selected", LOCAL)
def test_local_paths_tend_to_their_own_max_margin_matrix(selected):
    """Theorem 9."""
    tokens = reference_tokens(1, 2, 4, 3)
    W = margin(tokens, selected)
    eps = default_eps(tokens, selected)
    radii = np.array([1, 3, 10]) * least_radius(tokens, selected, eps) / np.linalg.norm(W)
    path = regularization_path(tokens, W, selected=selected, radii=radii)
    assert path.eps == pytest.approx(eps)
    assert (path.status == PathStatus.SPHERE).all()
    assert path.misalignment is not None
    np.testing.assert_allclose(path.misalignment, LOCAL[selected], rtol=0.04)
    for point, slack in zip(path.W, path.slack, strict=True):
        assert barrier(tokens, selected, point) - eps == pytest.approx(slack)
        assert slack >= 0
    assert log_excess(tokens, path.W[0], selected) == pytest.approx(path.value[0], rel=1e-9)
    given = regularization_path(tokens, W, selected=selected, radii=radii, cone=eps)
    np.testing.assert_array_equal(given.W, path.W)


@pytest.mark.slow
def test_a_local_nuclear_path():
    """Theorem 10, with the nuclear norm: over cone_eps the direction tends to the nuclear max-margin one."""
    tokens, selected = reference_tokens(1, 2, 4, 3), (2, 2)
    W = nuclear_margin(tokens, selected)
    eps = 0.5 * barrier(tokens, selected, W)
    radii = np.array([1, 3, 10]) * least_radius(tokens, selected, eps / np.sqrt(3)) / np.linalg.norm(W, "nuc")
    path = regularization_path(tokens, W, norm="nuclear", selected=selected, radii=radii)
    assert path.eps == pytest.approx(eps)
    assert path.solved.all()
    assert path.misalignment is not None
    assert (np.diff(path.misalignment) < 0).all()
    assert path.misalignment[-1] < 1e-3
    np.testing.assert_allclose(np.linalg.norm(path.W, ord="nuc", axis=(-2, -1)), path.radii, rtol=1e-6)


@pytest.mark.slow
def test_the_cone_of_the_best_tokens_is_everything():
    tokens = reference_tokens(1, 2, 4, 3)
    W = margin(tokens)
    path = regularization_path(tokens, W, selected=optimal_tokens(tokens), radii=(10, 100))
    free = regularization_path(tokens, W, radii=(10, 100))
    np.testing.assert_allclose(path.value, free.value, rtol=1e-9)
    assert path.slack is not None
    assert np.isinf(path.slack).all()


@pytest.mark.slow
def test_a_search_that_ends_at_the_edge_of_its_cone_says_so():
    tokens = reference_tokens(1, 2, 4, 3)
    W = margin(tokens, (2, 2))
    radii = [20, 60]
    reached = barrier(tokens, (2, 2), regularization_path(tokens, W, selected=(2, 2), radii=radii).W[0])
    axis = barrier(tokens, (2, 2), W)
    assert axis < reached  # so a cone between the two cuts nothing off
    wide = regularization_path(tokens, W, selected=(2, 2), radii=radii, cone=0.999 * axis)
    assert wide.status[0] is PathStatus.SPHERE
    # A direction pushed inwards, and a cone that ends just outside of it.
    high = barrier(tokens, (2, 2), pushed := W + 0.5 * np.linalg.norm(W) * inner(tokens, (2, 2)))
    assert high > reached
    path = regularization_path(tokens, pushed, selected=(2, 2), radii=radii, cone=0.999 * high)
    assert (path.slack >= 0).all()
    assert not path.solved.any()
    assert set(path.status) <= {PathStatus.EDGE, PathStatus.INACCURATE}
    assert path.status[0] is PathStatus.EDGE


def inner(tokens, selected):
    """A unit direction along which the low tokens gain on the high ones."""
    low, high = score_sides(tokens, selected)
    total = np.zeros((tokens.d, tokens.d))
    for i in range(tokens.n):
        if high[i].any():
            best = np.flatnonzero(low[i])[0]
            total += sum(np.outer(tokens.x[i, best] - tokens.x[i, s], tokens.z[i]) for s in np.flatnonzero(high[i]))
    return total / np.linalg.norm(total)


# --- other heads ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_head_that_mixes_has_its_minimum_inside(norm):
    """h = v.o - s|o|^2 over orthonormal tokens: the best weights are the projection of v.x / 2s on the simplex."""
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    v = rng.standard_normal(4)
    tokens = Tokens(x=x[None], z=[[1.0, 0, 0, 0]], y=[1.0], v=v / np.linalg.norm(v))
    score, strength = x @ tokens.v, 2.5
    best = score / (2 * strength)
    best = best + (1 - best.sum()) / 4
    assert (best > 0).all()
    size = np.linalg.norm(np.log(best) - np.log(best).mean())  # of the least W with these weights
    path = regularization_path(
        tokens, radii=size * np.array([0.2, 0.9, 1.5, 50]), head=Concave(strength), loss="correlation", norm=norm
    )
    assert path.measure == "loss"
    assert list(path.status) == [PathStatus.SPHERE] * 2 + [PathStatus.INTERIOR] * 2
    np.testing.assert_allclose(path.value[2:], strength * best @ best - score @ best, rtol=1e-12)
    assert (path.value[:2] > path.value[2] + 1e-6).all()
    np.testing.assert_allclose(np.linalg.norm(path.W, axis=(-2, -1))[2:], size, rtol=1e-6)
    assert (path.residual <= 1e-6).all()


@pytest.mark.slow
def test_a_nonlinear_head_may_be_measured_by_its_excess():
    tokens = reference_tokens(*SMALL)
    path = regularization_path(tokens, radii=(1.0,), head=lambda o: tokens.v @ o, measure="log excess", restarts=7)
    linear = regularization_path(tokens, radii=(1.0,), restarts=7)
    np.testing.assert_allclose(path.value, linear.value, rtol=1e-8)
    assert linear.measure == path.measure == "log excess"


# --- hard inputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [
        Tokens(x=np.ones((2, 3, 2)), z=np.ones((2, 2)), y=np.ones(2), v=np.ones(2)),  # all tokens equal
        Tokens(x=np.eye(3)[None, :, :2].repeat(2, 0), z=np.zeros((2, 2)), y=np.ones(2), v=np.ones(2)),  # zero queries
        Tokens(x=np.eye(3)[None, :, :2].repeat(2, 0), z=np.ones((2, 2)), y=np.ones(2), v=np.zeros(2)),  # equal scores
    ],
)
def test_where_no_weights_matter_the_status_says_so(tokens):
    path = regularization_path(tokens, radii=(1, 10), restarts=7)
    assert (path.status == PathStatus.UNDEFINED).all()
    assert np.isnan(path.W).all()
    assert np.isinf(path.value).all()
    assert not path.solved.any()
    assert np.isnan(path.spread).all()
    assert "solved=0 of 2" in repr(path)


@pytest.mark.slow
def test_one_sequence_of_a_batch_with_nothing_to_do_does_not_disturb_the_other():
    good = reference_tokens(*SMALL)
    idle = Tokens(x=np.ones((2, 3, 2)), z=np.ones((2, 2)), y=np.ones(2), v=np.ones(2))
    path = regularization_path(Tokens.stack([idle, good]), radii=(1, 10), restarts=7)
    assert (path.status[0] == PathStatus.UNDEFINED).all()
    np.testing.assert_allclose(path.value[1], regularization_path(good, radii=(1, 10), restarts=7).value, rtol=1e-9)


def test_a_query_that_cannot_be_moved_leaves_a_floor():
    tokens = reference_tokens(*SMALL)
    stuck = Tokens(x=tokens.x, z=tokens.z * [[1.0], [0.0]], y=tokens.y, v=tokens.v)
    path = regularization_path(stuck, radii=(1, 10, 100, 1000), restarts=7)
    assert path.solved.all()
    gamma = tokens.y[:, None] * (tokens.x @ tokens.v)
    left = np.logaddexp(0, -gamma[1].mean()) - np.logaddexp(0, -gamma[1].max())
    assert path.value[-1] == pytest.approx(np.log(left / 2), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tokens": 3}, "`tokens`"),
        ({"norm": "spectral"}, "`norm`"),
        ({"radii": ()}, "`radii`"),
        ({"radii": (3, 1)}, "`radii`"),
        ({"radii": (0, 1)}, "`radii`"),
        ({"radii": (1, np.inf)}, "`radii`"),
        ({"radii": "all"}, "`radii`"),
        ({"m": 2}, "`m` is the width"),
        ({"m": 0, "norm": "nuclear"}, "`m`"),
        ({"restarts": -1}, "`restarts`"),
        ({"restarts": True}, "`restarts`"),
        ({"seed": 1.5}, "`seed`"),
        ({"measure": "excess"}, "`measure`"),
        ({"toward": np.ones((3, 3))}, "`toward` has shape"),
        ({"toward": np.zeros((2, 2))}, "`toward` is zero"),
        ({"toward": np.full((2, 2), np.nan)}, "`toward` has 4 entries that are NaN"),
        ({"cone": 0.1}, "`cone` is given without"),
        ({"selected": [0, 0]}, "`selected` without `toward`"),
        ({"selected": [0, 3], "toward": np.eye(2)}, "from 0 to 2"),
        ({"selected": [0, -1], "toward": np.eye(2)}, "from 0 to 2"),
        ({"selected": [0], "toward": np.eye(2)}, "`selected` has shape"),
        ({"selected": [0.0, 1.0], "toward": np.eye(2)}, "`selected` has type"),
    ],
)
def test_wrong_arguments_are_refused_by_name(options, match):
    arguments = {"tokens": reference_tokens(*SMALL)} | options
    with pytest.raises(InputError, match=match):
        regularization_path(**arguments)


def test_wrong_cones_are_refused():
    tokens = reference_tokens(1, 2, 4, 3)
    W = margin(tokens, (2, 2))
    with pytest.raises(InputError, match="outside the cone"):
        regularization_path(tokens, -W, selected=(2, 2))
    with pytest.raises(InputError, match="outside the cone"):
        regularization_path(tokens, W, selected=(2, 2), cone=10.0)
    with pytest.raises(InputError, match="`cone` is"):
        regularization_path(tokens, W, selected=(2, 2), cone=-1.0)
    worst = (tokens.y[:, None] * (tokens.x @ tokens.v)).argmin(1)  # no lower token can shield it
    with pytest.raises(InputError, match="outside the cone"):
        regularization_path(tokens, W, selected=worst)
    masked = Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, mask=[[True] * 4, [False, True, True, True]])
    with pytest.raises(InputError, match="mask hides"):
        regularization_path(masked, W, selected=(2, 0))
