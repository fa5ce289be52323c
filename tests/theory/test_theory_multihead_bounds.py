"""Constants, heads, steps and bounds of the multi-head paper: in 40 digits, and against true derivatives."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attnlab.errors import InputError
from attnlab.models.precision import in_float64
from attnlab.theory import multihead as mh

MODELS = [
    mh.Shape(T=T, d=d, R=R, decoder=decoder, sharp=sharp)
    for T, d, R in ((2, 3, 1.0), (7, 2, 2.5))
    for decoder in ("full", "pooling", "last")
    for sharp in (False, True)
]


@pytest.fixture(autouse=True, scope="module")
def _forty_digits():
    with mp.workdps(40):
        yield


def close(got, wanted, rel=1e-12):
    assert float(got) == pytest.approx(float(wanted), rel=rel)


def exact(model):
    """R, sqrt(d) and the factor of the decoder, in 40 digits."""
    length = {"full": mp.sqrt(model.T), "pooling": mp.mpf(model.T), "last": mp.mpf(1)}[model.decoder]
    return mp.mpf(model.R), mp.sqrt(model.d), length


def beta1(model, m):
    R, _, length = exact(model)
    return length * (m * R**3 + R) if model.sharp else length * (2 * m * R**3 + R)


def beta3(model, m):
    R, root, length = exact(model)
    return length * (2 * m * R**5 + R**3) if model.sharp else length * (6 * root**2 * m * R**5 + 2 * root * R**3)


def growth(model, D, g):
    R, root, length = exact(model)
    return 9 * root * length * R**5 * (3 * D + g) + 6 * root * length * R**3


def rho(model, D, g, H):
    R, root, length = exact(model)
    if model.sharp:
        m = 3 * D + g + beta1(model, 3 * D + g)
        return beta3(model, m) / mp.sqrt(H) + beta1(model, m) ** 2 / 4
    return (2 * root * length * R**3 / mp.sqrt(H) + (length * R) ** 2 / 4) * growth(model, D, g) ** 2


# Constants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_constants_in_40_digits(model):
    for m, H in ((0.0, 1.0), (0.7, 5.0), (30.0, 1e12)):
        b1, b3 = beta1(model, mp.mpf(m)), beta3(model, mp.mpf(m))
        close(model.beta1(m), b1)
        close(model.beta3(m), b3)
        close(model.beta2(m, H), b3 / mp.sqrt(H) + b1**2 / 4)
    for D, g, c in ((0.3, 0.1, 36), (2.0, 0.0, 256)):
        D_, g_ = mp.mpf(D), mp.mpf(g)
        needed = mp.mpf(c) / 2 * beta3(model, 3 * D_ + g_) * D_**2
        close(mh.head_requirement(model, D, g, c), max(mp.mpf(1), needed**2))
        for H in (1.0, 1e9):
            close(mh.growth(model, D, g), growth(model, D_, g_))
            close(mh.smoothness(model, D, g, H), rho(model, D_, g_, H))
    between = 2 * max(beta3(model, mp.mpf(2)), beta3(model, mp.mpf(1))) * mp.mpf(0.3) ** 2
    close(mh.segment_condition(model, 2.0, 1.0, 0.3), between**2)
    close(mh.segment_condition(model, 1.0, 2.0, 0.3), between**2)


def test_a_shape_reads_its_sizes_and_norms_off_tokens():
    x = np.zeros((2, 3, 4))
    x[1, 2] = [3.0, 0.0, 4.0, 0.0]
    assert mh.Shape.of(x, decoder="last", sharp=True) == mh.Shape(T=3, d=4, R=5.0, decoder="last", sharp=True)
    assert mh.Shape.of(x / 4.0).R == 1.25
    assert mh.Shape.of(x / 100.0) == mh.Shape(T=3, d=4, R=1.0)


def test_head_requirement_is_the_printed_one():
    D, g, T, d, R = 1.3, 0.4, 5, 3, 1.7
    printed = 36 * np.sqrt(T * d) * R**3 * (3 * np.sqrt(d) * R**2 * (3 * D + g) + 1) * D**2
    close(mh.head_requirement(mh.Shape(T=T, d=d, R=R), D, g), printed**2)
    assert mh.head_requirement(mh.Shape(T=T, d=d, R=R), 0.0, g) == 1.0


@given(st.sampled_from(MODELS), st.floats(0, 100), st.floats(0, 10), st.sampled_from([36.0, 256.0]), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_heads_needed_meet_their_own_requirement(model, D, start, c, rounds):
    H, g = mh.heads_needed(model, D, start=start, c=c, rounds=rounds)
    assert H == np.ceil(H) >= 1
    assert g == start + D / np.sqrt(H)
    assert mh.head_requirement(model, D, g, c) <= H * (1 + 1e-12)


def test_heads_needed_are_not_many_more_than_that():
    model = mh.Shape(T=2, d=2, R=1.0)
    H, _ = mh.heads_needed(model, 0.2, c=36)
    less = H - 2.0
    assert mh.head_requirement(model, 0.2, 0.2 / np.sqrt(less), 36) > less


def test_the_small_instance_of_theorem_1():
    """T = d = 2, R = 1, D = 1.155: heads 2.28e6, rho 2781; bound 0.597 and stability 7.3 at step 3.6e-4."""
    model, D = mh.Shape(T=2, d=2, R=1.0), 1.155
    H, g = mh.heads_needed(model, D)
    assert pytest.approx(2.275e6, rel=1e-3) == H
    assert mh.smoothness(model, D, g, H) == pytest.approx(2781, rel=1e-3)
    assert mh.heads_needed(mh.Shape(T=2, d=2, R=1.0, sharp=True), D)[0] == pytest.approx(7.27e4, rel=1e-2)
    assert mh.theorem_1(D, 3.6e-4, 20202, 0.184).value == pytest.approx(0.597, abs=1e-3)
    assert mh.lemma_11(model, D, 0.0, 3.6e-4, 2000, 10, 0.184).value == pytest.approx(7.33, abs=1e-2)


def test_each_part_of_the_step_size_can_be_the_least():
    model, D, g = mh.Shape(T=2, d=2, R=1.0), 1.0, 0.5
    room = 1 / mh.smoothness(model, D, g, 1e9)
    # Far from the target, where rho is large, and with a loss that is small, large late, large at the start.
    assert mh.largest_step(model, D, g, 1e9, K=1, target_loss=0.0, start_loss=0.0) == room
    assert mh.largest_step(model, D, g, 1e9, K=1e6, target_loss=0.5, start_loss=0.7) == pytest.approx(2e-6)
    assert mh.largest_step(model, D, g, 1e9, K=1, target_loss=0.5, start_loss=1e7) == pytest.approx(1e-7)
    assert mh.largest_step(model, 1e-3, 0.0, 1e9, K=1, target_loss=0.0, start_loss=0.5) == pytest.approx(2e-6)
    tiny = mh.Shape(T=1, d=1, R=1.0, decoder="last", sharp=True)
    assert mh.smoothness(tiny, 0.0, 0.0, 1e9) == pytest.approx(1.0, abs=1e-3)
    assert mh.largest_step(tiny, 1e-4, 0.0, 1e30, K=1, target_loss=0.0, start_loss=0.0) < 1.0


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_rho_covers_the_smoothness_one_step_further(model):
    """rho bounds beta2 wherever one step of size at most 1 can lead from m = 3 D + g."""
    for D, g, H in ((0.1, 0.0, 1.0), (3.0, 2.0, 100.0)):
        m = 3 * D + g
        assert mh.smoothness(model, D, g, H) >= model.beta2(m + model.beta1(m), H) * (1 - 1e-12)


# True derivatives -------------------------------------------------------------------------------------------------

T, D_ = 3, 2


def output(theta, x, decoder):
    W = theta[-D_ * D_ :].reshape(D_, D_)
    u = theta[: -D_ * D_]
    attended = jax.nn.softmax(x @ W @ x.T, axis=-1) @ x
    if decoder == "full":
        return jnp.sum(u.reshape(T, D_) * attended)
    return jnp.sum(attended.sum(0) * u) if decoder == "pooling" else jnp.sum(attended[-1] * u)


@in_float64
def draws(decoder, count=150, seed=0):
    """Tokens, parameters, and true norms of gradient and Hessian."""
    rng = np.random.default_rng(seed)
    size = D_ * D_ + (T * D_ if decoder == "full" else D_)
    x = rng.standard_normal((count, T, D_)) * 10 ** rng.uniform(-1, 1, (count, 1, 1))
    theta = rng.standard_normal((count, size))
    theta[:, : -D_ * D_] *= 10 ** rng.uniform(-2, 2, (count, 1))
    theta[:, -D_ * D_ :] *= 10 ** rng.uniform(-2, 1, (count, 1))
    grad = jax.jit(jax.vmap(jax.grad(lambda t, y: output(t, y, decoder))))(theta, x)
    hess = jax.jit(jax.vmap(jax.hessian(lambda t, y: output(t, y, decoder))))(theta, x)
    return x, theta, np.linalg.norm(grad, axis=-1), np.abs(np.linalg.eigvalsh(hess)).max(-1), np.asarray(grad)


@pytest.mark.parametrize("decoder", ["full", "pooling", "last"])
def test_shapes_bound_true_gradients_and_hessians(decoder):
    x, theta, grad, hess, _ = draws(decoder)
    for sharp in (False, True):
        ratios = []
        for i in range(len(x)):
            model = mh.Shape.of(x[i], decoder=decoder, sharp=sharp)
            m = float(np.linalg.norm(theta[i, : -D_ * D_]))
            ratios.append((grad[i] / model.beta1(m), hess[i] / model.beta3(m)))
        worst = np.max(ratios, axis=0)
        assert (worst <= 1 + 1e-9).all()
        assert worst[0] > 0.5
        assert worst[1] > 0.01


@pytest.mark.parametrize("sharp", [False, True])
def test_token_bounds_hold_and_are_what_proposition_1_says(sharp):
    x, theta, grad, hess, parts = draws("full", seed=1)
    U = theta[:, : -D_ * D_].reshape(-1, T, D_)
    found = mh.token_bounds(x, U, sharp=sharp)
    assert (grad <= found.gradient * (1 + 1e-9)).all()
    assert (hess <= found.hessian * (1 + 1e-9)).all()
    assert (np.linalg.norm(parts[:, : -D_ * D_], axis=1) <= found.by_U * (1 + 1e-9)).all()
    assert (np.linalg.norm(parts[:, -D_ * D_ :], axis=1) <= found.by_W * (1 + 1e-9)).all()
    for i in range(5):
        a, b = max(np.linalg.norm(row) for row in x[i]), max(abs(v) for v in x[i].ravel())
        s = sum(max(abs(u @ row) for row in x[i]) for u in U[i])
        if sharp:
            gradient, hessian = a**2 * s + np.sqrt(T) * a, 2 * a**4 * s + np.sqrt(T) * a**3
        else:
            gradient = 2 * a**2 * s + np.sqrt(T) * a
            hessian = 6 * D_ * a**2 * b**2 * s + 2 * np.sqrt(T * D_) * a**2 * b
        close(found.gradient[i], gradient)
        close(found.hessian[i], hessian)


# Guarantees -------------------------------------------------------------------------------------------------------


def test_bounds_in_40_digits():
    D, step, K, n, loss, first = (mp.mpf(v) for v in (1.3, 0.01, 500, 40, 0.02, 0.69))
    args = {"D": float(D), "step": float(step), "K": 500.0}
    close(mh.theorem_1(**args, target_loss=0.02).value, 2 * loss + 5 * D**2 / (4 * step * K))
    close(mh.theorem_2(**args, n=40, target_loss=0.02).value, (8 * K * loss + 9 * D**2 / step) / n)
    close(mh.lemma_8(**args, target_loss=0.02, curvature=3.0).value, loss + D**2 / (2 * step * K) + 3 / (2 * K))
    close(mh.lemma_9(**args, target_loss=0.02, start_loss=0.69).value,
          2 * loss + 3 * D**2 / (4 * step * K) + first / (2 * K))  # fmt: skip
    for model in MODELS:
        slope = beta1(model, 3 * D + mp.mpf(0.2))
        close(mh.lemma_11(model, g=0.2, n=40, target_loss=0.02, **args).value,
              2 * step / n * slope * (2 * K * loss + 9 * D**2 / (4 * step)))  # fmt: skip
    assert mh.lemma_3(3.0, 0.25).value == 1.5


def test_theorem_2_follows_from_lemmas_3_and_11():
    """Where step beta1^2 <= 1, as the step size of the theorem gives, the lemmas promise no more than the theorem."""
    for model in MODELS:
        D, g, H = 0.7, 0.2, 1e9
        step = 1.0 / mh.smoothness(model, D, g, H)
        assert step * model.beta1(3 * D + g) ** 2 <= 1
        stable = mh.lemma_11(model, D, g, step, 100, 10, 0.1).value
        assert (
            mh.lemma_3(model.beta1(3 * D + g), stable).value <= mh.theorem_2(D, step, 100, 10, 0.1).value * 1.000000001
        )


def test_a_bound_that_says_nothing_says_so():
    assert mh.theorem_1(1.0, 1.0, 1.0, 0.0, start_loss=0.69).vacuous
    assert not mh.theorem_1(1.0, 1.0, 100.0, 0.0, start_loss=0.69).vacuous
    assert mh.Bound(value=2.0, trivial=2.0).vacuous
    with pytest.raises(InputError, match="`value` is NaN"):
        mh.Bound(value=np.nan, trivial=2.0)
    assert mh.Bound(value=2.0).margin(0.5) == 1.5


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("eps", [1.0, 0.01])
def test_proposition_7(model, eps):
    start = mh.GoodStart(B2=1.5, B_phi=2.0, gamma=0.5)
    R, root, length = exact(model)
    G = (4 + mp.log(1 / mp.mpf(eps))) / mp.mpf(0.5)
    close(start.move(eps), G)
    close(start.distance(eps), mp.sqrt(2) * G)
    close(start.distance(eps, corrected=False), G)
    close(start.longest(eps), mp.mpf(1.5) + mp.sqrt(2) * G)
    close(start.longest(eps, corrected=False), mp.mpf(1.5) + G)
    if not model.sharp:
        front = 5 * length * root * R**3 * mp.mpf(0.75) * (3 * root * R**2 + 1)
        close(mh.proposition_7(model, start, eps), (front * G**2 * max(1, G)) ** 2)
    # What the proof needs: half the Hessian times the squared distance is at most B_phi.
    H = mh.proposition_7(model, start, eps)
    hessian = model.beta3(1.5 + np.sqrt(2) * start.move(eps)) / np.sqrt(H)
    assert 0.5 * hessian * start.distance(eps) ** 2 <= 2.0
    strong = mh.GoodStart(B2=1.0, B_phi=1.0, gamma=50.0)
    hessian = model.beta3(1.0 + np.sqrt(2) * strong.move(1.0)) / np.sqrt(mh.proposition_7(model, strong, 1.0))
    assert 0.5 * hessian * strong.distance(1.0) ** 2 <= 1.0


@pytest.mark.parametrize("corrected", [True, False])
def test_corollary_2(corrected):
    model, start = mh.Shape(T=5, d=3, R=1.5), mh.GoodStart(B2=1.2, B_phi=1.1, gamma=0.7)
    K, n, step = mp.mpf(50), mp.mpf(30), mp.mpf(0.01)
    R, root, length = exact(model)
    G = (2 * mp.mpf(1.1) + mp.log(K)) / mp.mpf(0.7)
    g0 = mp.sqrt(2) * G if corrected else G
    B2 = mp.mpf(1.2)
    found = mh.corollary_2(model, start, K=50, n=30, step=0.01, corrected=corrected)
    need = 256 * length * root * R**3 * B2 * (3 * root * R**2 * (4 * g0 + B2) + 1) * g0**2
    close(found.heads, need**2)
    close(found.D, g0)
    close(found.train.value, 2 / K + (mp.mpf(5) / (2 if corrected else 4)) * G**2 / (step * K))
    close(found.generalization.value, (34 if corrected else 17) * G**2 / (step * n))
    alpha = 3 * root * R**2 * (3 * length * R**3 * (4 * g0 + B2) + 2 * length * R)
    for H in (None, 10.0):
        smooth = (2 * length * root * R**3 / mp.sqrt(need**2 if H is None else H) + 5 * R**2 / 4) * alpha**2
        got = mh.corollary_2(model, start, K=50, n=30, step=0.01, H=H, corrected=corrected).largest_step
        close(got, min(1, 1 / smooth))
    # A large margin makes the third part of the step size the least.
    wide = mh.GoodStart(B2=1.0, B_phi=1.1, gamma=1e4)
    room = (8 if corrected else 4) * mp.mpf(1.1) ** 2 / (mp.mpf(1e4) ** 2 * mp.log(1 + mp.exp(mp.mpf(1.1))))
    close(mh.corollary_2(model, wide, K=50, n=30, step=0.01, corrected=corrected).largest_step, room)
    close(found.train.trivial, mp.log(1 + mp.exp(mp.mpf(1.1))))


def test_corollaries_3_and_4():
    model = mh.Shape(T=5, d=3, R=1.5)
    args = {"g": 1.0, "H": 1e9, "step": 0.01, "K": 20.0, "n": 10, "start_loss": 0.7}
    found = mh.realizable_bounds(model, D=2.0, D_one=0.5, **args)
    assert found.heads == mh.head_requirement(model, 2.0, 1.0, 36)
    assert found.heads_generalization == mh.head_requirement(model, 2.0, 1.0, 256)
    assert found.train.value == pytest.approx(2 / 20 + 5 * 4 / (4 * 0.01 * 20))
    assert found.train.trivial == 0.7
    assert found.generalization.value == pytest.approx(17 * 4 / (0.01 * 10))
    assert found.distance == 8.0
    assert found.largest_step == 1 / mh.smoothness(model, 2.0, 1.0, 1e9)
    assert mh.realizable_bounds(model, D=2.0, D_one=1e-5, **args).largest_step == pytest.approx(1e-10)
    late = {**args, "start_loss": 100.0}
    assert mh.realizable_bounds(model, D=2.0, D_one=1e-5, **late).largest_step == pytest.approx(1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mh.Shape(T=0, d=1, R=1.0),
        lambda: mh.Shape(T=1, d=0, R=1.0),
        lambda: mh.Shape(T=1, d=1, R=0.5),
        lambda: mh.Shape(T=1, d=1, R=np.inf),
        lambda: mh.Shape(T=1, d=1, R=1.0, decoder="mean"),
        lambda: mh.Shape(T=1, d=1, R=1.0).beta2(1.0, 0.5),
        lambda: mh.head_requirement(mh.Shape(T=1, d=1, R=1.0), -1.0, 0.0),
        lambda: mh.head_requirement(mh.Shape(T=1, d=1, R=1.0), 1.0, np.nan),
        lambda: mh.theorem_1(1.0, 0.0, 1.0, 0.1),
        lambda: mh.theorem_2(1.0, 1.0, 1.0, 0, 0.1),
        lambda: mh.GoodStart(B2=0.5, B_phi=1.0, gamma=1.0),
        lambda: mh.GoodStart(B2=1.0, B_phi=np.inf, gamma=1.0),
        lambda: mh.GoodStart(B2=1.0, B_phi=1.0, gamma=0.0),
        lambda: mh.GoodStart(B2=1.0, B_phi=1.0, gamma=1.0).move(0.0),
        lambda: mh.GoodStart(B2=1.0, B_phi=1.0, gamma=1.0).move(1.5),
    ],
)
def test_wrong_inputs_are_named(call):
    with pytest.raises(InputError, match="`"):
        call()
