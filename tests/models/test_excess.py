"""The excess loss over the best tokens, from order one down to e^-1000, against hundreds of digits."""

import mpmath
import numpy as np
import oracle
import pytest
from mpmath import mp

import attnlab as al
from attnlab.errors import InputError

N, T, D = 3, 4, 3
HEADS = ("linear", "concave", "mlp", "user")
TOLERANCE = {"linear": 1e-12, "concave": 1e-12, "mlp": 1e-10, "user": 1e-10}


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(750):
        yield


def make_head(name: str, seed: int, v: np.ndarray) -> oracle.OracleHead:
    rng = np.random.default_rng([seed, 99])
    return {
        "linear": lambda: oracle.linear(v),
        "concave": lambda: oracle.concave(v, 0.3),
        "mlp": lambda: oracle.mlp(rng.standard_normal((v.size, 8)), rng.standard_normal(8)),
        "user": lambda: oracle.user(v.size),
    }[name]()


def grid(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (2 * rng.integers(-16, 16, shape) + 1) / 16


def favouring_best(seed: int, margin: float, head: str, shape: tuple[int, ...] = (N,)):
    """Tokens whose best one leads the logits by `margin`, or a little more, in every query.

    W is a whole multiple of the identity and the queries are drawn until they favour those tokens; all on a binary
    grid, so that the logits are exact.
    """
    for attempt in range(4000):
        rng = np.random.default_rng([seed, attempt])
        x, v = grid(rng, N, T, D), rng.standard_normal(D)
        y, z = rng.choice([-1.0, 1.0], shape), grid(rng, *shape, D)
        h = make_head(head, seed, v)
        values = np.array([[float(h.numpy(t)) for t in row] for row in x])
        scores = y[..., None] * (values if len(shape) == 1 else values[:, None, :])
        # Among a query and its negative, take the one that favours the best token, if either does.
        logits = np.einsum("ntd,n...d->n...t", x, z)
        best = scores.argmax(-1)
        sign = np.where(logits.argmax(-1) == best, 1.0, np.where(logits.argmin(-1) == best, -1.0, 0.0))
        if (sign == 0).any():
            continue
        tokens = al.Tokens(x=x, z=sign[..., None] * z, y=y, v=v)
        gap = oracle.logit_gaps(tokens, np.eye(D)).min()
        if gap > 0.05:
            return tokens, np.ceil(margin / gap) * np.eye(D), h
    raise AssertionError("no draw whose queries favour the best tokens")


def check(tokens, params, head, loss, tolerance):
    params = params if isinstance(params, dict) else {"W": params}
    ell = oracle.LOSSES[loss]
    want = oracle.excess(tokens, params, head, ell)
    got = al.models.excess_loss(tokens, params, loss=ell.given, head=head.given)
    log = al.models.excess_loss(tokens, params, loss=ell.given, head=head.given, log=True)
    if want > 0:
        size = float(mpmath.log(want))
        off = abs(float(log - mpmath.log(want)))
        assert off < tolerance * max(1.0, abs(size)), (size, off)
    else:
        assert np.isnan(log)
    if abs(want) > 1e-290:
        error = oracle.relative(got, want)
        assert error < tolerance, error
    return want


@pytest.mark.parametrize("margin", [1, 10, 100, 1000])
@pytest.mark.parametrize("loss", oracle.LOSSES)
@pytest.mark.parametrize("head", HEADS)
def test_excess_at_any_saturation(head, loss, margin):
    tokens, W, h = favouring_best(0, margin, head)
    check(tokens, W, h, loss, TOLERANCE[head] if loss != "user" else 1e-9)


@pytest.mark.parametrize("margin", [8.0, 11.0, 12.5, 15.0, 20.0, 30.0, 33.0])
@pytest.mark.parametrize("head", ["linear", "concave", "user"])
def test_excess_between_the_regimes(head, margin):
    """Margins around which small drops begin to be treated as such."""
    tokens, W, h = favouring_best(2, margin, head)
    check(tokens, W, h, "logistic", TOLERANCE[head])


@pytest.mark.parametrize("loss", oracle.LOSSES)
@pytest.mark.parametrize("head", HEADS)
def test_excess_is_a_difference_of_losses_when_unsaturated(head, loss):
    """Any weights, favouring the best tokens or not: the objective less the mean loss of the best scores."""
    ell = oracle.LOSSES[loss]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        tokens = al.Tokens(
            x=rng.standard_normal((N, T, D)), z=rng.standard_normal((N, D)), y=[1, -1, 1], v=rng.standard_normal(D)
        )
        h = make_head(head, seed, tokens.v)
        W = rng.standard_normal((D, D))
        best = al.scores(tokens, None if head == "linear" else h.given).max(-1)
        want = al.models.loss(tokens, W, loss=ell.given, head=h.given) - ell.numpy(best.astype(np.longdouble)).mean()
        got = al.models.excess_loss(tokens, W, loss=ell.given, head=h.given)
        np.testing.assert_allclose(got, float(want), rtol=1e-12, atol=1e-14)


def test_excess_with_keys_and_queries_and_a_trial_axis():
    tokens, W, h = favouring_best(0, 50, "linear")
    K = W.copy()
    check(tokens, {"K": K, "Q": np.eye(D)}, h, "logistic", 1e-12)
    batch = al.Tokens.stack([tokens, tokens])
    got = al.models.excess_loss(batch, np.stack([W, 2 * W]), log=True)
    assert got.shape == (2,)
    for i in range(2):
        np.testing.assert_allclose(got[i], al.models.excess_loss(tokens, (i + 1) * W, log=True), rtol=1e-14)


def test_masked_tokens_neither_win_nor_weigh():
    """The best token is hidden: the reference is the best of the visible."""
    x = np.array([[[4.0, 0.0], [1.0, 0.5], [0.0, 0.25], [-1.0, 1.0]]])
    for scale in (1.0, 30.0, 900.0):
        tokens = al.Tokens(x=x, z=[[1.0, 0.0]], y=[1.0], v=[1.0, 0.0], mask=[[False, True, True, True]])
        W = scale * np.eye(2)
        want = check(tokens, W, oracle.linear(tokens.v), "logistic", 1e-12)
        seen = al.Tokens(x=x[:, 1:], z=[[1.0, 0.0]], y=[1.0], v=[1.0, 0.0])
        assert abs(oracle.excess(seen, {"W": W}, oracle.linear(tokens.v), oracle.LOSSES["logistic"]) / want - 1) < 1e-30


@pytest.mark.parametrize("factor", [1.0, 40.0, 400.0])
def test_several_queries_add_up(factor):
    """Causal self-attention: the first query sees one token and adds nothing."""
    rng = np.random.default_rng(1)
    x = grid(rng, N, T, D)
    tokens = al.Tokens.self_attention(x, rng.choice([-1.0, 1.0], (N, T)), rng.standard_normal(D), "all", mask="causal")
    check(tokens, factor * np.eye(D), oracle.linear(tokens.v), "logistic", 1e-12 * max(1.0, factor / 40))


def test_concave_heads_can_beat_every_single_token():
    """Tokens +e and -e with a penalty on length: their mean does better than either, so the excess is negative."""
    x = np.array([[[1.0, 0.25], [-1.0, 0.25], [0.5, 0.125], [-0.75, 0.5]]])
    tokens = al.Tokens(x=x, z=[[1.0, 0.5]], y=[1.0], v=[0.0, 1.0])
    h = oracle.concave(tokens.v, 1.0)
    assert check(tokens, np.zeros((2, 2)), h, "logistic", 1e-12) < 0
    assert check(tokens, np.zeros((2, 2)), h, "exponential", 1e-12) < 0
    assert check(tokens, np.zeros((2, 2)), h, "correlation", 1e-12) < 0


@pytest.mark.parametrize("power", [5, 40, 800])
def test_tiny_negative_excess(power):
    """Near the best token a concave head still gains from a trace of another: an excess of -e^-power."""
    x = np.array([[[1.0, 0.0], [-1.0, 0.0]]])
    tokens = al.Tokens(x=x, z=[[1.0, 0.0]], y=[1.0], v=[0.0, 0.0])
    W = np.array([[power / 2.0, 0.0], [0.0, 0.0]])
    want = check(tokens, W, oracle.concave(tokens.v, 0.5), "logistic", 1e-12)
    assert want < 0


@pytest.mark.parametrize("gap", [1, 20, 50, 300, 1000])
@pytest.mark.parametrize("head", HEADS)
def test_duplicate_of_the_best_token(head, gap):
    """A twin of the best token shares its weight and costs nothing; the rest of the excess must not drown in it."""
    v = np.array([1.0, 0.5, 0.25])
    best, other, third = [1.0, 0.5, 0.25], [-0.5, 0.25, 0.125], [0.25, 0.5, -0.5]
    tokens = al.Tokens(x=[[best, other, best, third]], z=[[1.0, 0.0, 0.0]], y=[1.0], v=v)
    W = np.zeros((3, 3))
    W[0, 0] = 2.0 * gap
    h = {
        "linear": lambda: oracle.linear(v),
        "concave": lambda: oracle.concave(v, 0.0625),
        "mlp": lambda: oracle.mlp(np.eye(3)[:, [0, 1, 2, 0]] + 0.25),
        "user": lambda: oracle.user(3),
    }[head]()
    check(tokens, W, h, "logistic", TOLERANCE[head])


@pytest.mark.parametrize("gap", [1, 50, 300, 1000])
def test_another_token_with_the_best_score(gap):
    """(1, 1) and (1, -1) are equally good and equally attended: the excess is that of the third token alone."""
    tokens = al.Tokens(x=[[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]], z=[[1.0, 0.0]], y=[1.0], v=[1.0, 0.0])
    check(tokens, np.array([[float(gap), 0.0], [0.0, 0.0]]), oracle.linear(tokens.v), "logistic", 1e-12)


def test_nothing_to_lose():
    """One token, or equal scores: the excess is exactly zero and its logarithm -inf."""
    rng = np.random.default_rng(0)
    alone = al.Tokens(x=rng.standard_normal((N, 1, D)), z=rng.standard_normal((N, D)), y=np.ones(N), v=np.ones(D))
    x = rng.standard_normal((N, T, D))
    x[..., 0] = 0.7
    equal = al.Tokens(x=x, z=rng.standard_normal((N, D)), y=np.ones(N), v=[2.0, 0.0, 0.0])
    for tokens in (alone, equal):
        for head in ("linear", al.models.Concave(0.0)):
            assert al.models.excess_loss(tokens, np.eye(D), head=head) == 0
            assert al.models.excess_loss(tokens, np.eye(D), head=head, log=True) == -np.inf


def test_a_trained_head_has_no_excess():
    tokens = al.data.two_tokens()
    with pytest.raises(InputError, match="`u`"):
        al.models.excess_loss(tokens, {"W": np.eye(2), "u": np.ones(2)})
