"""Random small problems of every scale at once: a certified answer, a proof, "too close to call", or an InputError."""

import warnings
from collections import Counter

import numpy as np
import pytest
from exact_verifier import judge_exactly, judge_proof

import attnlab as al
from attnlab import InputError, Tokens
from attnlab.svm import (
    MarginStatus,
    combine,
    finite_part,
    kernel_margin,
    linear_margin,
    norms,
    solve_factored,
    solve_generalized,
)

SIZES = np.array([0, 5e-324, 1e-300, 1e-170, 1e-8, 1, 1e8, 1e154, 1e170, 1e300, 1.7e308])
NORMS = {
    "frobenius": ("frobenius", norms.FROBENIUS, 1e-10),
    "nuclear": ("nuclear", norms.NUCLEAR, 1e-8),
    "entrywise max": (norms.ENTRYWISE_MAX, norms.ENTRYWISE_MAX, 1e-7),
    "entrywise l1": (norms.ENTRYWISE_L1, norms.ENTRYWISE_L1, 1e-7),
}


@pytest.fixture(autouse=True)
def _every_warning_is_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def hostile(seed):
    """Tokens with entries of a few sizes, ties, equal and opposite queries, hidden tokens; and a selection."""
    rng = np.random.default_rng([5, seed])
    n, T, d = rng.integers(1, 5, 3)
    sizes = rng.choice(SIZES, size=rng.integers(1, 4)) if rng.random() < 0.7 else SIZES

    def draw(shape):
        entries = rng.choice(sizes, size=shape) * rng.choice([-1.0, 1.0], size=shape)
        return entries * rng.uniform(0.5, 1.0, size=shape) if rng.random() < 0.5 else entries

    x, z = draw((n, T, d)), draw((n, d))
    kind = rng.integers(6)
    if kind == 0:
        x[:, :, 0] = x[0, 0, 0]
    elif kind == 1:
        x[:, -1] = x[:, 0]
    elif kind == 2:
        x[:] = x[:1]
    elif kind == 3:
        z[:] = z[:1]
    elif kind == 4:
        z[-1], x[-1] = -z[0], x[0]
    selected, mask = rng.integers(T, size=n), None
    if rng.random() < 0.15:
        mask = rng.random((n, T)) < 0.7
        mask[np.arange(n), selected] = True
    return Tokens(x=x, z=z, y=np.ones(n), mask=mask), selected


def attempt(call, *arguments, **options):
    """What a call returns, or else the text of its InputError; nothing else may be raised."""
    try:
        return call(*arguments, **options), ""
    except InputError as error:
        return None, str(error)


def faults(tokens, solution, norm, kept=None):
    """What the exact judge holds against it."""
    _, functions, tolerance = NORMS[norm]
    if solution.status is MarginStatus.INFEASIBLE:
        return judge_proof(tokens, solution, kept=kept)
    if solution.status in (MarginStatus.OPTIMAL, MarginStatus.INACCURATE):
        return judge_exactly(tokens, solution, functions.value, functions.dual, tolerance=tolerance, kept=kept)
    return []


@pytest.mark.parametrize("norm", NORMS)
def test_every_claim_about_one_problem_is_proved(norm):
    seen = Counter()
    for seed in range(150):
        tokens, selected = hostile(seed)
        solution, refused = attempt(al.solve_margin, tokens, selected, norm=NORMS[norm][0], throw=False)
        if refused:
            assert "`x`" in refused
            assert "hint:" in refused
            continue
        repr(solution)
        solution.summary()
        seen[solution.status] += 1
        assert faults(tokens, solution, norm) == [], seed
    assert min(seen[status] for status in (MarginStatus.OPTIMAL, MarginStatus.INFEASIBLE)) >= 5


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_every_claim_about_a_batch_is_proved(norm):
    """A hostile trial between two ordinary ones, which it does not disturb."""
    for seed in range(60):
        tokens, selected = hostile(seed)
        rng = np.random.default_rng(seed)
        plain = [rng.standard_normal(tokens.x.shape) for _ in range(2)]
        x = np.stack([plain[0], tokens.x, plain[1]])
        z = np.stack([rng.standard_normal(tokens.z.shape), tokens.z, rng.standard_normal(tokens.z.shape)])
        batch, chosen = Tokens(x=x, z=z, y=np.ones(z.shape[:-1])), np.tile(selected, (3, 1))
        found, refused = attempt(al.solve_margins, batch, chosen, norm=norm)
        if refused:
            assert refused.startswith("Trial 1: ")
            continue
        repr(found)
        found.summary()
        for i, solution in enumerate(found):
            assert faults(batch[i], solution, norm) == [], (seed, i)
            assert solution.status is found.status[i]
            assert solution.feasible == found.feasible[i]
            if i != 1:
                alone = al.solve_margin(batch[i], chosen[i], norm=norm, throw=False)
                assert solution.status is alone.status


def test_every_claim_about_level_tokens_is_proved():
    seen = Counter()
    for seed in range(120):
        tokens, selected = hostile(seed)
        kept = np.random.default_rng(seed).random((tokens.n, tokens.T)) < 0.4
        kept[np.arange(tokens.n), selected] = True
        kept &= tokens.visible
        norm = ("frobenius", "nuclear")[seed % 2]
        solution, refused = attempt(solve_generalized, tokens, kept, norm=norm, throw=False)
        if refused:
            continue
        seen[solution.status] += 1
        others = kept & (np.arange(tokens.T) != solution.selected[:, None])
        assert faults(tokens, solution, norm, kept=others) == [], seed
    assert seen[MarginStatus.INFEASIBLE] >= 20


def test_nothing_else_breaks():
    """Keys and queries, classifiers, the finite part and mixtures: finite results or an InputError."""
    for seed in range(80):
        tokens, selected = hostile(seed)
        rng = np.random.default_rng([6, seed])
        points, labels = tokens.x.reshape(-1, tokens.d), rng.choice([-1.0, 1.0], tokens.n * tokens.T)
        matrices = [rng.choice(SIZES, size=(3, 2)) * rng.choice([-1.0, 1.0], size=(3, 2)) for _ in range(3)]
        logs = rng.standard_normal((tokens.n, tokens.T))
        _check_factors(attempt(solve_factored, tokens, selected, 1, restarts=1, throw=False)[0])
        _check_bounds(attempt(linear_margin, points, labels)[0])
        _check_bounds(attempt(kernel_margin, np.diag(np.abs(points[:, 0])), labels)[0])
        _check_weights(attempt(finite_part, tokens, logs, tokens.visible, logarithmic=True, throw=False)[0])
        _check_weights(attempt(combine, *matrices)[0])


def _check_factors(found):
    if found is not None and found.feasible:
        assert np.isfinite(found.K).all()
        assert np.isfinite(found.Q).all()
        assert np.isfinite(found.W).all()
    repr(found)


def _check_bounds(found):
    if found is not None and found.separable:
        assert np.isfinite(found.multipliers).all()
        assert 0 < found.lower < np.inf
        assert found.upper >= found.lower * (1 - 1e-9)
    repr(found)


def _check_weights(found):
    if found is not None:
        assert np.isfinite(found.W).all()
    repr(found)
