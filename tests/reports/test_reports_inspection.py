"""`inspect`: selections, leads and margins by their definitions; shares and chance against solutions of their own."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.reports.inspection import QueryRow


def layer(seed, n=6, T=5, d=8, K=None, mask=None):
    rng = np.random.default_rng(seed)
    shape = (n,) if K is None else (n, K)
    tokens = al.Tokens(
        x=rng.standard_normal((n, T, d)),
        z=rng.standard_normal((*shape, d)),
        y=np.ones(shape),
        v=rng.standard_normal(d),
        mask=mask,
    )
    return tokens, rng.standard_normal((d, d))


def plain_leads(tokens, W):
    """Selected tokens, attention on them, and their leads, as they are defined."""
    z = tokens.z if tokens.K else tokens.z[:, None]
    scores = np.einsum("ntd,de,nke->nkt", tokens.x, W, z).reshape(*tokens.y.shape, tokens.T)
    scores = np.where(tokens.visible, scores, -np.inf)
    ordered = np.sort(scores, axis=-1)
    weights = np.exp(scores - ordered[..., -1:])
    return scores.argmax(-1), (weights / weights.sum(-1, keepdims=True)).max(-1), ordered[..., -1] - ordered[..., -2]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["plain", "queries", "masked"])
def test_what_is_selected_and_with_which_margin(seed, kind):
    mask = np.random.default_rng(seed).random((6, 5)) < 0.6
    mask[:, :2] = True
    tokens, W = layer(seed, K=2 if kind == "queries" else None, mask=mask if kind == "masked" else None)
    found = al.inspect(tokens, W, draws=0)
    selected, attention, leads = plain_leads(tokens, W)
    assert (found.selected == selected).all()
    np.testing.assert_allclose(found.attention, attention, rtol=1e-12)
    np.testing.assert_allclose(found.leads, leads, rtol=1e-10)
    assert (found.tied == 1).all()
    for row, length in ((found.frobenius, np.linalg.norm(W)), (found.nuclear, np.linalg.norm(W, "nuc"))):
        best = al.solve_margin(tokens, selected, norm=row.name)
        assert row.margin == pytest.approx(leads.min() / length, rel=1e-10, abs=0.0)
        assert row.share == pytest.approx(leads.min() / length / best.margin, rel=1e-6, abs=0.0)
        assert row.cosine == pytest.approx(al.cosine(W, best.W), rel=1e-9, abs=0.0)
        assert 0 < row.share <= 1 + 1e-6
    assert bool(found.local) == bool(al.is_locally_optimal(tokens, selected))
    assert found.chance is None


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_the_max_margin_direction_itself_has_the_whole_margin(norm):
    tokens, _ = layer(0)
    svm = al.solve_margin(tokens, al.optimal_tokens(tokens), norm=norm)
    row = getattr(al.inspect(tokens, svm.W, draws=0), norm)
    np.testing.assert_allclose([row.share, row.cosine], 1.0, rtol=1e-7)
    coarse = getattr(al.inspect(tokens, svm.W, draws=0, tolerance=1e-2), norm)
    assert abs(coarse.share - 1.0) < 1e-2
    assert coarse.lower <= row.lower * (1 + 1e-6)
    assert row.lower <= coarse.upper * (1 + 1e-6)


def test_chance_is_the_same_share_for_rotated_weights():
    tokens, W = layer(1, n=12)
    found = al.inspect(tokens, W, draws=6, seed=3)
    again = al.inspect(tokens, W, draws=6, seed=3)
    other = al.inspect(tokens, W, draws=6, seed=4)
    assert found.chance.shares == again.chance.shares
    assert found.chance.shares != other.chance.shares
    rng = np.random.default_rng(3)
    singular = np.linalg.svd(W, compute_uv=False)
    for share in found.chance.shares:
        sides = []
        for _ in range(2):
            Q, R = np.linalg.qr(rng.standard_normal((8, 8)))
            sides.append(Q * np.sign(np.diagonal(R)))
        rotated = (sides[0] * singular) @ sides[1].T
        exact = al.inspect(tokens, rotated, draws=0).frobenius.share
        assert abs(share - exact) < 0.01 * exact
    shares = np.array(found.chance.shares)
    want = (found.frobenius.share - shares.mean()) / (shares.std(ddof=1) * np.sqrt(1 + 1 / 6))
    assert found.chance.z == pytest.approx(want, rel=1e-7, abs=0.0)


def test_a_trained_layer_is_above_chance_and_its_rotations_are_not():
    tokens = al.data.sphere(n=10, T=6, d=8, seed=1)
    run = al.descend(tokens, al.ngd(0.1), steps=1500)
    trained = al.inspect(tokens, run.W).chance
    assert trained.z > 5
    assert trained.p == 1 / 21
    rng = np.random.default_rng(0)
    p = []
    for _ in range(40):
        left, right = (np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(2))
        p.append(al.inspect(tokens, left @ run.W @ right, draws=9, tolerance=1e-2).chance.p)
    # Their ranks are uniform: p has mean 0.55 and standard deviation 0.29.
    assert abs(np.mean(p) - 0.55) < 4 * 0.29 / np.sqrt(40)
    assert np.mean(np.array(p) <= 0.1) < 0.1 + 4 * np.sqrt(0.09 / 40)


def test_ties_are_told_and_leave_no_margin():
    tokens, W = layer(2)
    zero = al.inspect(tokens, 0 * W)
    assert (zero.tied == tokens.T).all()
    assert zero.frobenius.margin is None
    assert zero.frobenius.share is None
    assert zero.chance is None
    assert "W is zero" in zero.verdict
    np.testing.assert_allclose(zero.attention, 1 / tokens.T)
    x = np.array(tokens.x)
    x[0, 1] = x[0, 0]
    twins = al.Tokens(x=x, z=tokens.z, y=tokens.y, v=tokens.v)
    found = al.inspect(twins, np.outer(x[0, 0], tokens.z[0]))
    assert found.selected[0] == 0
    assert found.tied[0] == 2
    assert found.frobenius.margin == 0.0
    assert not found.separable
    assert "tied" in found.verdict
    assert found.to_json()["norms"]["nuclear"]["solution"]["status"] == "infeasible"


def test_one_token_is_nothing_to_select():
    found = al.inspect(al.Tokens(x=np.ones((3, 1, 2)), z=np.ones((3, 2)), y=np.ones(3)), np.eye(2))
    assert np.isinf(found.leads).all()
    assert found.frobenius.share is None
    assert (found.attention == 1.0).all()
    assert "nothing to select" in found.verdict


def test_causal_self_attention():
    rng = np.random.default_rng(5)
    tokens = al.Tokens.self_attention(rng.standard_normal((2, 4, 9)), np.ones((2, 4)), query="all", mask="causal")
    W = rng.standard_normal((9, 9))
    found = al.inspect(tokens, W, draws=2)
    assert (found.selected <= np.arange(4)).all()
    assert np.isinf(found.leads[:, 0]).all()
    assert found.local is None
    assert found.separable


@pytest.mark.parametrize(("k", "j", "m"), [(300, -200, 100), (-400, 100, -300), (0, 0, 600)])
def test_powers_of_two_change_nothing_but_the_power(k, j, m):
    tokens, W = layer(3)
    scaled = al.Tokens(x=np.ldexp(tokens.x, k), z=np.ldexp(tokens.z, j), y=tokens.y)
    plain, found = al.inspect(tokens, W, draws=3), al.inspect(scaled, np.ldexp(W, m), draws=3)
    assert (plain.selected == found.selected).all()
    assert found.frobenius.share == pytest.approx(plain.frobenius.share, rel=1e-9, abs=0.0)
    assert found.chance.shares == plain.chance.shares
    assert (found.leads == np.ldexp(plain.leads, k + j + m)).all()


def test_tokens_that_share_a_large_part_are_told_apart():
    tokens, W = layer(4)
    far = al.Tokens(x=tokens.x * 2.0**-20 + 1e6, z=tokens.z, y=tokens.y)
    near = al.Tokens(x=far.x - 1e6, z=tokens.z, y=tokens.y)  # exact
    assert (al.inspect(far, W, draws=0).selected == al.inspect(near, W, draws=0).selected).all()
    np.testing.assert_allclose(al.inspect(far, W, draws=0).leads, al.inspect(near, W, draws=0).leads, rtol=1e-9)


def test_a_report_prints_and_is_json():
    tokens, W = layer(6)
    found = al.inspect(tokens, W)
    text = repr(found)
    for words in ("Margins", "frobenius", "nuclear", "Queries of least lead", "chance", "locally optimal"):
        assert words in text
    facts = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert facts["selected"] == found.selected.tolist()
    assert facts["chance"]["z"] == found.chance.z
    weakest = [row for row in found.rows if isinstance(row, QueryRow)]
    assert weakest[0].lead == found.leads.min()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"W": np.eye(3)}, "`W` has shape (3, 3); tokens of dimension 8 need (8, 8)"),
        ({"W": np.full((8, 8), np.inf)}, "`W` has 64 entries"),
        ({"tokens": 3}, "`tokens` is 3"),
        ({"tokens": al.data.sphere(trials=2)}, "batch"),
        ({"draws": -1}, "`draws` is -1"),
        ({"seed": 0.5}, "`seed` is 0.5"),
        ({"tolerance": -1}, "`tolerance` is -1"),
    ],
)
def test_what_is_wrong_is_told(arguments, words):
    tokens, W = layer(0)
    with pytest.raises(InputError) as error:
        al.inspect(**({"tokens": tokens, "W": W} | arguments))
    assert words in str(error.value)
