"""Claims on the lemmas of the encoder paper: verdicts, oracles, and whether planted faults show."""

import numpy as np
import pytest

from attnlab.claims.check import check
from attnlab.claims.claim import Verdict
from attnlab.claims.encoder import batch, eigenvalues, gradients_bounds, lemma_15, lipschitz
from attnlab.claims.scale import Scale
from attnlab.data.sequences import gaussian_sequences
from attnlab.models.encoder import Encoder
from attnlab.theory.encoder import Constants

SMOKE = Scale.SMOKE
EVERY = [claim for module in (lipschitz, gradients_bounds, eigenvalues, lemma_15) for claim in module.CLAIMS]


@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.id)
def test_verdicts_are_those_on_record(claim):
    (found,) = check([claim], SMOKE)
    assert found.as_expected, found.outcome
    assert all(slack >= 0 for slack in found.outcome.slack.values())


def judged(measure, **options):
    return measure(SMOKE, **options).verdict


def scaled(factor):
    """A bound times a factor, whatever its shape."""

    def by(found):
        if isinstance(found, dict):
            return {key: factor * value for key, value in found.items()}
        return tuple(factor * value for value in found) if isinstance(found, tuple) else factor * found

    return lambda original: lambda *args, **options: by(original(*args, **options))


# The encoder in batches, against loops and differences --------------------------------------------------------------


def slow_output(x, Q, K, V, w_O, tau0, tau1):
    """One sequence, one token after the other."""
    total = 0.0
    for query in x:
        weights = np.exp([tau0 * float((Q @ query) @ (K @ key)) for key in x])
        token = sum(w / weights.sum() * key for w, key in zip(weights, x, strict=True))
        total += tau1 * float(w_O @ np.maximum(V @ token, 0.0))
    return total


def slow_gradient(x, own, tau0, tau1):
    """By central differences, parameter by parameter."""
    found = {}
    for p, w in own.items():
        flat = np.zeros(w.size)
        for i in range(w.size):
            ends = []
            for sign in (1.0, -1.0):
                moved = {**own, p: w + sign * 1e-6 * (np.arange(w.size) == i).reshape(w.shape)}
                ends.append(slow_output(x, moved["Q"], moved["K"], moved["V"], moved["O"], tau0, tau1))
            flat[i] = (ends[0] - ends[1]) / 2e-6
        found[p] = flat.reshape(w.shape)
    return found


@pytest.fixture(scope="module")
def some():
    rng = np.random.default_rng(3)
    B, N, T, d, m = 2, 3, 3, 2, 4
    x, Q, K, V = (rng.standard_normal(shape) for shape in ((B, N, T, d), (B, m, d), (B, m, d), (B, m, d)))
    return batch.Draws(x, Q, K, V, rng.standard_normal((B, m)), np.array([0.7, 0.3]), np.array([0.5, 1.5]))


def test_outputs_and_gradients_against_loops(some):
    found, slopes = batch.evaluate(some), batch.jacobian(some)
    for b in range(2):
        own = {p: getattr(some, p)[b] for p in "QKVO"}
        for n in range(3):
            value = slow_output(some.x[b, n], own["Q"], own["K"], own["V"], own["O"], some.tau0[b], some.tau1[b])
            assert found.outputs[b, n] == pytest.approx(value, rel=1e-12)
            slow = slow_gradient(some.x[b, n], own, some.tau0[b], some.tau1[b])
            for p in "QKVO":
                np.testing.assert_allclose(slopes[p][b, n], slow[p], atol=1e-8)


def test_the_gradient_of_the_loss_is_the_sum_of_those_of_outputs(some):
    errors = np.random.default_rng(0).standard_normal((2, 3))
    found, slopes = batch.loss_gradient(some, batch.evaluate(some), errors), batch.jacobian(some)
    for p in "QKVO":
        np.testing.assert_allclose(found[p], np.einsum("bn,bn...->b...", errors, slopes[p]), atol=1e-13)


@pytest.mark.parametrize("law", ["lecun", "he", "ntk"])
@pytest.mark.parametrize("scaling", ["sqrt", "linear"])
def test_starts_are_those_of_the_model(law, scaling):
    model = Encoder(400, scaling, law)
    draws, variance = batch.starts(law, scaling, 3, 2, 5, 400)
    assert (draws.tau0[0], draws.tau1[0]) == pytest.approx((model.tau0, model.tau1))
    wanted = model.variances(2, 5)
    assert variance == wanted["W_V"]
    for name, weights in draws.weights(0).items():
        assert weights.var() == pytest.approx(wanted[name], rel=0.3)
    assert np.linalg.norm(draws.x, axis=-1) == pytest.approx(np.ones((1, 3, 2)))


def test_one_start_computes_what_the_model_does():
    model, data = Encoder(6, "sqrt", "lecun", pool="sum"), gaussian_sequences(3, 2, 4)
    own = model.initial(data)
    Q, K, V, w_O = (own[name][None] for name in ("W_Q", "W_K", "W_V", "w_O"))
    draws = batch.Draws(data.x[None], Q, K, V, w_O, np.array([model.tau0]), np.array([model.tau1]))
    np.testing.assert_allclose(batch.evaluate(draws).hidden[0], model.hidden(data, own), rtol=1e-12)


def test_constants_are_the_least_that_the_lemmas_allow(some):
    other = some.moved({"Q": some.Q}, np.array([1.0, -0.5]))
    for i, found in enumerate(batch.bound_constants(some, other)):
        assert found.lambda_bar["Q"] == pytest.approx(np.linalg.norm(some.Q[i], 2) * (2.0, 1.0)[i])
        assert found.lambda_bar["O"] == pytest.approx(np.linalg.norm(some.O[i]))
        own = Constants.of(some.x[i], np.zeros(3), some.weights(i), tau0=some.tau0[i], tau1=some.tau1[i])
        assert (found.C_x, found.rho) == pytest.approx((own.C_x, own.rho))


# Planted faults: bounds that are too small --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name", "factor", "measure"),
    [
        (lipschitz, "lemma_7", 0.21, lipschitz.attention_moves_little),
        (lipschitz, "lemma_8", 1 - 1e-9, lipschitz.attention_rows_have_bounded_norms),
        (lipschitz, "lemma_8", 1 + 1e-9, lipschitz.attention_rows_have_bounded_norms),
        (lipschitz, "lemma_9", 0.9999, lipschitz.hidden_layer_moves_little),
        (lipschitz, "lemma_10", 0.9999, lipschitz.outputs_move_little),
        (lipschitz, "softmax_jacobian", 1 + 1e-9, lipschitz.jacobian_is_that_of_the_lemma),
        (gradients_bounds, "lemma_12", 0.9999, gradients_bounds.loss_gradients_are_bounded),
        (gradients_bounds, "lemma_13", 0.9999, gradients_bounds.output_gradients_are_bounded),
        (gradients_bounds, "lemma_14", 0.6, gradients_bounds.gradient_is_lipschitz_between_kinks),
        (eigenvalues, "chernoff_bound", 2.0, eigenvalues.hidden_eigenvalue_is_large),
    ],
)
def test_bounds_that_are_too_small_are_noticed(monkeypatch, module, name, factor, measure):
    assert judged(measure) is Verdict.HOLDS
    monkeypatch.setattr(module, name, scaled(factor)(getattr(module, name)))
    assert judged(measure) is Verdict.FAILS


@pytest.mark.parametrize(("letter", "factor"), [("Q", 0.09), ("K", 0.09), ("V", 0.99), ("O", 0.99)])
def test_each_bound_of_lemma_12_is_looked_at(monkeypatch, letter, factor):
    original = gradients_bounds.lemma_12

    def smaller(*args):
        return {p: (factor if p == letter else 1.0) * value for p, value in original(*args).items()}

    monkeypatch.setattr(gradients_bounds, "lemma_12", smaller)
    assert judged(gradients_bounds.loss_gradients_are_bounded) is Verdict.FAILS


@pytest.mark.parametrize("field", ["hermite", "gershgorin", "upper"])
def test_wrong_bounds_on_lambda_0_are_noticed(monkeypatch, field):
    original = eigenvalues.lambda_0

    def wrong(*args):
        found = original(*args)
        object.__setattr__(found, field, (0.6 if field == "upper" else 1.5) * getattr(found, field))
        return found

    monkeypatch.setattr(eigenvalues, "lambda_0", wrong)
    assert judged(eigenvalues.lambda_0_is_bounded) is Verdict.FAILS


@pytest.mark.parametrize(
    ("field", "factor"), [("promised", 3.0), ("promised_pooled", 3.0), ("lower", 1.1), ("upper", 0.1)]
)
def test_wrong_bounds_of_lemma_15_are_noticed(monkeypatch, field, factor):
    original = eigenvalues.lemma_15

    def wrong(*args):
        found = original(*args)
        object.__setattr__(found, field, factor * getattr(found, field))
        return found

    monkeypatch.setattr(eigenvalues, "lemma_15", wrong)
    assert judged(eigenvalues.lambda_0_is_bounded) is Verdict.FAILS


# Lemma 14 -----------------------------------------------------------------------------------------------------------


def test_softmax_jacobian_against_differences():
    u = np.array([[0.3, -1.0, 2.0]])
    found = lipschitz.softmax_jacobian(u)[0]

    def softmax(v):
        return np.exp(v) / np.exp(v).sum()

    for k in range(3):
        step = 1e-6 * (np.arange(3) == k)
        np.testing.assert_allclose(found[:, k], (softmax(u[0] + step) - softmax(u[0] - step)) / 2e-6, atol=1e-9)


def test_pairs_across_a_kink_change_the_sign_nearest_to_zero():
    draws, _ = batch.random_pairs(6, batch.SHAPES[0], seed=2)
    one, other = gradients_bounds.across_a_kink(draws, 1e-6)
    before, after = (batch.evaluate(end).inside for end in (one, other))
    crossing = (before > 0) != (after > 0)
    assert crossing.any((1, 2, 3)).all()
    np.testing.assert_allclose(before[crossing], 5e-7, rtol=1e-3)
    np.testing.assert_allclose(after[crossing], -5e-7, rtol=1e-3)
    first = np.abs(batch.evaluate(draws).inside).reshape(6, -1).argmin(-1)
    assert crossing.reshape(6, -1)[np.arange(6), first].all()


def test_gradients_jump_by_a_fixed_amount_at_a_kink():
    draws, _ = batch.random_pairs(6, batch.SHAPES[0], seed=2)
    jumps = [
        gradients_bounds.gradient_changes(*gradients_bounds.across_a_kink(draws, step))[0] for step in (1e-7, 1e-9)
    ]
    np.testing.assert_allclose(jumps[0], jumps[1], rtol=1e-3)


def test_second_derivative_of_steep_attention_by_hand():
    """d^2 f / dq^2 = tau1 w v (tau0 k)^2 sum_i x_i^2 times the third cumulant of the tokens, at uniform attention."""
    one, _ = batch.steep_pairs(4, "Q")
    small = 1e-4 / (one.tau0 * one.K[:, 0, 0] * one.x.max((1, 2, 3)) ** 2)
    change, move, same = gradients_bounds.gradient_changes(one, one.moved({"Q": np.ones((4, 1, 1))}, small))
    x = one.x[:, 0, :, 0]
    cumulant = np.mean((x - x.mean(1, keepdims=True)) ** 3, axis=1)
    wanted = one.O[:, 0] * one.V[:, 0, 0] * (one.tau0 * one.K[:, 0, 0]) ** 2 * np.sum(x**2, axis=1) * cumulant
    assert same.all()
    np.testing.assert_allclose(change / move, wanted, rtol=1e-3)


def test_wrong_gradients_are_noticed(monkeypatch):
    original = gradients_bounds.loss_gradient
    monkeypatch.setattr(gradients_bounds, "loss_gradient", lambda *a: scaled(1 + 1e-8)(original)(*a))
    assert judged(gradients_bounds.gradients_with_slopes_are_right) is Verdict.FAILS


def test_printed_gradients_differ_by_the_slope(some):
    """Where every preactivation is c, relu is c times its slope: the printed gradient is then c times the true one."""
    x = some.x.copy()
    x[..., 0] = 1.0
    one = some._replace(x=x, V=np.broadcast_to([3.0, 0.0], some.V.shape))  # first entries of all tokens are 1
    # W_V that also sees the second entries would change preactivations; w_O sees all alike.
    errors = np.random.default_rng(1).standard_normal((2, 3))
    found, true = gradients_bounds.printed_gradients(one, errors), batch.loss_gradient(one, batch.evaluate(one), errors)
    np.testing.assert_allclose(found["V"], 3.0 * true["V"], atol=1e-12)
    # Without second entries in W_V nothing goes through the attention; small ones change preactivations by 1e-7.
    tilted = one._replace(V=one.V + np.array([0.0, 1e-7]))
    found = gradients_bounds.printed_gradients(tilted, errors)
    true = batch.loss_gradient(tilted, batch.evaluate(tilted), errors)
    assert np.abs(true["Q"]).min((1, 2)).max() > 1e-12
    np.testing.assert_allclose(found["Q"], 3.0 * true["Q"], rtol=1e-5)


def test_printed_derivative_of_the_softmax():
    found, true = gradients_bounds.softmax_derivatives(3)
    u = np.random.default_rng(0).standard_normal((3, 4))
    v = np.exp(u) / np.exp(u).sum(-1, keepdims=True)
    np.testing.assert_allclose(true, -v[:, 0] * v[:, 1], rtol=1e-12)
    np.testing.assert_allclose(found["product"], true, rtol=1e-12)
    np.testing.assert_allclose(found["printed"], -(v[:, 0] + v[:, 1]) / np.exp(u).sum(-1), rtol=1e-12)


# Eigenvalues --------------------------------------------------------------------------------------------------------


def test_discs_by_hand():
    phi = np.array([[1.0, 0.0], [-0.5, np.sqrt(0.75)]])
    assert lemma_15.discs(phi, absolute=False) == pytest.approx(1.5)
    assert lemma_15.discs(phi, absolute=True) == pytest.approx(0.5)


def test_permuted_tokens_have_equal_hidden_rows():
    draws, _ = eigenvalues.permuted(3, 20)
    hidden = batch.evaluate(draws).hidden
    np.testing.assert_allclose(hidden[:, 0], hidden[:, 1], rtol=1e-12)
    assert batch.least_singular_values(hidden).tolist() == [0.0] * 3
    assert np.abs(draws.x[:, 0] - draws.x[:, 1]).max((1, 2)).min() > 0.1


def test_predictions_from_first_tokens_alone_are_noticed(monkeypatch):
    original = eigenvalues.predict_alpha
    monkeypatch.setattr(eigenvalues, "predict_alpha", lambda a, **o: original(3**0.5 * a[:, :1], **o))
    assert judged(eigenvalues.all_tokens_are_enough) is Verdict.FAILS


def test_widths_needed_are_of_the_order_of_N_over_lambda_0():
    for tokens, n in (("gaussian", 8), ("opposite", 2)):
        for start in eigenvalues.chernoff_starts("ntk", tokens, 20):
            assert 1.0 < start.width * start.lambda0 / n < 30.0
            assert start.tau1 == start.width**-0.5
    # Two opposite unit tokens: E|relu|^2 = 1 and lambda_0 = 1/2.
    assert eigenvalues.width_needed(np.array([[1.0, 0.0], [-1.0, 0.0]]), 1.0) == np.ceil(64 / 9 * np.log(40.0))


def test_opposite_tokens_have_diagonal_kernels():
    (start,) = eigenvalues.chernoff_starts("lecun", "opposite", 1)
    rng = np.random.default_rng((1, len("opposite")))
    g = rng.standard_normal((start.width, 2))[:, 0] * np.sqrt(1 / 16)
    wanted = min(np.sum(np.maximum(g, 0) ** 2), np.sum(np.maximum(-g, 0) ** 2))
    assert start.least == pytest.approx(wanted, rel=1e-9)


def test_almost_orthogonal_tokens():
    x = eigenvalues.almost_orthogonal(2, 3, 2, 8, 0.0, 0).reshape(2, 6, 8)
    np.testing.assert_allclose(x @ np.swapaxes(x, -1, -2), np.broadcast_to(np.eye(6), (2, 6, 6)), atol=1e-13)


def test_first_and_pooled_eigenvalues_token_by_token():
    for draws in (eigenvalues.permuted(5, 256)[0], eigenvalues.centred(20, 256)[0]):
        found = np.array(eigenvalues.eigenvalues_of_first_and_all(draws)).T
        for pair, x, Q, K, V in zip(found, draws.x, draws.Q, draws.K, draws.V, strict=True):
            logits = 256**-0.5 * x @ (Q.T @ K) @ np.swapaxes(x, -1, -2)
            weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            layers = np.maximum(np.einsum("nts,nsd,md->ntm", weights, x, V), 0.0)
            first, pooled = layers[:, 0], layers.sum(1)
            wanted = [np.linalg.eigvalsh(first @ first.T)[0], np.linalg.eigvalsh(pooled @ pooled.T)[0]]
            np.testing.assert_allclose(pair, wanted, rtol=1e-6, atol=1e-9)


def test_pairs_of_unit_tokens():
    cases = (
        (lemma_15.similar_tokens(), 10.0 ** -np.arange(1, 7)),
        (lemma_15.opposite_tokens(3), np.deg2rad([100, 135, 170])),
    )
    for made, angles in cases:
        assert made.shape[1:] == (2, 1, 2)
        np.testing.assert_allclose(np.linalg.norm(made, axis=-1), 1.0, rtol=1e-14)
        apart = np.linalg.norm(made[:, 0, 0] - made[:, 1, 0], axis=-1)
        np.testing.assert_allclose(apart, 2 * np.sin(angles / 2), rtol=1e-9)


def test_the_threshold_keeps_some_pairs_and_drops_others():
    printed = lemma_15.threshold_leaves_something(SMOKE, share=1.0, left=1e-3)
    repaired = lemma_15.threshold_leaves_something(SMOKE, share=0.25, left=0.125)
    assert printed.instances == printed.tried == 11
    assert 0 < repaired.instances < 11
    # Tokens at angle 1e-6: lambda_0 is about a^2 / 4.
    assert float(printed.worst or 0.0) == pytest.approx(1e-3 * 4e12, rel=0.01)


def test_the_closest_pair_on_a_circle():
    """By hand for two opposite tokens, and above lambda_0 of any tokens."""
    assert lemma_15.closest_pair_bound(2) == pytest.approx(0.5)
    for N in (3, 9, 51):
        assert lemma_15.closest_pair_bound(N) <= np.pi**2 / N**2
        for seed in range(5):
            value = lemma_15.lambda_0(lemma_15.on_a_circle(N, seed), 1.0).value
            assert value <= lemma_15.closest_pair_bound(N)


def test_similarities_on_a_circle_have_the_tail_that_is_said():
    x = lemma_15.on_a_circle(2000, 0)
    s = (x @ x.T)[np.triu_indices(2000, 1)] ** 2
    for t in (0.1, 0.5, 0.9):
        assert np.mean(s >= t) == pytest.approx(2 / np.pi * np.arccos(np.sqrt(t)), abs=0.01)
    assert lemma_15.circle_is_dissimilar().part().verdict is Verdict.HOLDS


def test_shares_below_the_threshold():
    assert lemma_15.share_below_threshold(4, 0.5, 400_000) == pytest.approx(1 - np.exp(-0.25), abs=0.004)


# Where bounds are close -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moves", "QK")
def test_opposed_tokens_move_attention_by_hand(moves):
    """Uniform attention, d b = v1 v2 (e1 - e2) (1, -1) with e = (cos^2, -cos sin)."""
    one, other = batch.opposed_pairs(moves, 401, logits=0.0)
    ratios = lipschitz.attention_ratios(one, other)
    angle = np.linspace(0.0, np.pi / 4, 401)
    wanted = np.sqrt(2) / 4 * (np.cos(angle) ** 2 + np.cos(angle) * np.sin(angle)) / 2
    np.testing.assert_allclose(ratios, wanted, rtol=1e-4)
    assert ratios.max() == pytest.approx((1 + np.sqrt(2)) / (8 * np.sqrt(2)), rel=1e-4)


def test_a_lone_token_has_half_its_own_attention():
    one, other = batch.lone_pairs("Q")
    assert batch.evaluate(one).attention[0, 0, 0, 0] == pytest.approx(0.5)
    assert lipschitz.attention_ratios(one, other)[0] == pytest.approx(np.sqrt(1 + 1 / 19) / 8, rel=1e-4)


def test_parameters_move_one_at_a_time():
    for letter in "QKVO":
        for one, other in lipschitz.moves_of(SMOKE, letter):
            moved = {p for p in "QKVO" if (getattr(one, p) != getattr(other, p)).any()}
            assert moved == {letter}


@pytest.mark.parametrize(("through", "partner"), [("Q", "K"), ("K", "Q")])
def test_logits_stay_where_one_gradient_decides(through, partner):
    plain, steep = (gradients_bounds.opposed(SMOKE, through, factor) for factor in (1.0, 1e4))
    np.testing.assert_allclose(batch.evaluate(plain).attention, batch.evaluate(steep).attention, rtol=1e-12)
    sizes = [{p: batch.frobenius(g) for p, g in batch.jacobian(draws).items()} for draws in (plain, steep)]
    np.testing.assert_allclose(sizes[1][through], 1e4 * sizes[0][through], rtol=1e-9)
    np.testing.assert_allclose(sizes[1][partner], 1e-4 * sizes[0][partner], rtol=1e-9)


def test_nan_is_never_passed_over(monkeypatch):
    original = lipschitz.evaluate
    monkeypatch.setattr(lipschitz, "evaluate", lambda d: original(d)._replace(outputs=np.full(d.x.shape[:2], np.nan)))
    assert judged(lipschitz.outputs_move_little) is Verdict.FAILS


def test_pairs_that_cross_kinks_are_dropped_and_counted():
    found = gradients_bounds.gradient_is_lipschitz_between_kinks(SMOKE)
    assert 0 < found.instances < (found.tried or 0)
    kept = [gradients_bounds.gradient_changes(one, other)[2] for _, one, other in lipschitz.pairs(SMOKE)]
    (together,) = [p for p in found.parts if p.name.endswith(": all move")]
    assert together.instances == sum(int(same.sum()) for same in kept) < sum(map(len, kept))


@pytest.mark.parametrize("length", [1.0, 300.0])
def test_steep_pairs_are_as_said(length):
    one, other = batch.steep_pairs(50, "K", length)
    assert (one.K == 0).all()
    x = one.x.max((1, 2, 3))
    logits = other.tau0 * other.Q[:, 0, 0] * other.K[:, 0, 0] * x**2
    assert 0.01 <= logits.min() < 0.02
    assert 0.5 < logits.max() <= 1.0
    assert ((x > 0.4 * length) & (x < 2.1 * length)).all()
    assert (one.x.min((1, 2, 3)) >= 0).all()
    assert (one.x[:, 0, 0, 0] <= 0.05 * x).all()
    for p in "VO":
        assert ((batch.spectral(getattr(one, p)) > 4e-7) & (batch.spectral(getattr(one, p)) < 2.1e-6)).all()
