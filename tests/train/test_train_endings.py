"""How runs end: never "finished" with NaN, or with nothing moved although the gradient is not zero."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnlab as al
from attnlab.train import FlowStatus, Status, Trajectory

TOKENS = al.data.two_tokens()  # max-margin direction E_11
FAR = 3000.0 * np.eye(2)  # the gradient is e^-3000


def signs(tokens=TOKENS, **options):
    return al.descend(tokens, optax.sign_sgd(1.0), init="zeros", **options)


def test_a_rule_by_signs_stalls_where_plain_gradients_underflow():
    """W_11 grows by 1 a step; float64 ends at e^-708.4, where W_11 - 2 log(1 + e^-1) ... is 707 or 708."""
    short, long = signs(steps=900), signs(steps=5000)
    for run in (short, long):
        assert run.status is Status.STALLED
        assert 705 <= run.stalled_at <= 710
        assert run.underflow_at == run.stalled_at
        assert run.W[0, 0] == run.stalled_at
        assert np.isfinite(run.metrics["log_gradient_norm"][-1])
        assert "scale_free" in " ".join(run.remarks)
    assert short.last_step == long.last_step < 900
    assert short.W.tobytes() == long.W.tobytes()
    assert "stalled" in repr(short)


def test_wrapped_it_goes_on():
    run = al.descend(TOKENS, al.optim.scale_free(optax.sign_sgd(1.0)), init="zeros", steps=2000, record=None)
    assert run.status is Status.FINISHED
    assert run.W[0, 0] == 2000.0
    assert run.remarks == ()


def test_stalled_at_the_end_is_said_too():
    run = signs(steps=720)
    assert run.status is Status.STALLED
    assert run.last_step == 720


def test_without_records(tmp_path):
    run = signs(steps=5000, record=None)
    assert run.status is Status.STALLED
    run.save(tmp_path / "run.npz")
    again = Trajectory.load(tmp_path / "run.npz")
    assert (again.status, int(again.stalled_at), int(again.underflow_at)) == (
        run.status, int(run.stalled_at), int(run.underflow_at),
    )  # fmt: skip


def test_a_stalled_run_taken_up_again_is_where_it_was():
    run = signs(steps=5000)
    again = signs(steps=9000, resume=run)
    assert (again.status, again.last_step, again.W.tobytes()) == (Status.STALLED, run.last_step, run.W.tobytes())


def test_parts_of_a_run_that_stalls_add_up():
    part = signs(steps=708)
    whole, rest = signs(steps=3000), signs(steps=3000, resume=part)
    assert (rest.last_step, int(rest.stalled_at)) == (whole.last_step, int(whole.stalled_at))
    assert rest.W.tobytes() == whole.W.tobytes()
    assert rest.steps.tolist() == whole.steps.tolist()


def test_rules_that_wait_are_not_taken_for_stalled():
    """Gradients are gathered over seven steps: six updates of seven are zero."""
    run = al.descend(TOKENS, optax.MultiSteps(optax.sgd(0.5), 7).gradient_transformation(), steps=150)
    assert run.status is Status.FINISHED
    warm = optax.sgd(lambda count: jnp.where(count < 120, 0.0, 0.1))
    assert al.descend(TOKENS, warm, steps=150).status is Status.FINISHED


@pytest.mark.parametrize("record", [20, None])
@pytest.mark.parametrize("rule", [al.gd(0.1), al.adam(0.1), al.heavy_ball(0.1)], ids=repr)
def test_our_rules_say_when_their_steps_underflow(rule, record):
    run = al.descend(TOKENS, rule, init=FAR, steps=300, record=record)
    assert run.status is Status.STALLED
    assert run.stalled_at == 0
    np.testing.assert_array_equal(run.W, FAR)


def test_steps_that_are_lost_to_rounding():
    run = al.descend(TOKENS, al.gd(1e-300), init=np.eye(2), steps=30)
    assert run.status is Status.STALLED
    assert run.stalled_at == 0


def test_a_gradient_of_zero_is_no_stall():
    """One token: attention has no choice, and nothing to learn."""
    tokens = al.Tokens(x=np.ones((1, 1, 2)), z=[[1.0, 0.0]], y=[1], v=[1.0, 0.0])
    for rule in (al.gd(0.1), optax.sgd(0.1)):
        run = al.descend(tokens, rule, steps=10)
        assert run.status is Status.FINISHED
        assert run.stalled_at == -1


def test_no_steps_are_no_stall():
    assert al.descend(TOKENS, al.gd(0.1), init=FAR, steps=0, record=None).status is Status.FINISHED


def test_one_trial_that_stands_still_leaves_the_others_alone():
    both = al.Tokens.stack([TOKENS, TOKENS])
    run = al.descend(both, al.gd(0.1), init=np.stack([FAR, 0.1 * np.eye(2)]), steps=200)
    alone = al.descend(both[1], al.gd(0.1), init=0.1 * np.eye(2), steps=200)
    assert run.status is Status.STALLED
    assert run.stalled_at.tolist() == [0, -1]
    assert run.last_step == 200
    assert run.W[1].tobytes() == alone.W.tobytes()


def test_some_trials_overflow():
    both = al.Tokens.stack([TOKENS, TOKENS])
    run = al.descend(both, al.gd(1.0), init=np.stack([1.7e308 * np.sign(np.ones((2, 2))), np.eye(2)]), steps=5)
    assert run.status in (Status.PARTLY_FINITE, Status.FINISHED, Status.STALLED)
    assert (run.status is Status.PARTLY_FINITE) == bool(run.diverged.any())


def grow(factor):
    """A rule that multiplies the weights."""
    return optax.GradientTransformation(
        lambda _: optax.EmptyState(),
        lambda updates, state, params=None: (jax.tree.map(lambda p: (factor - 1.0) * p, params), state),
    )


@pytest.mark.parametrize("record", [20, None])
def test_where_a_run_overflows_does_not_depend_on_the_clock(record, monkeypatch):
    from attnlab.train import loop

    found = []
    for first_look in (1, 7, 64, 1000):
        monkeypatch.setattr(loop, "FIRST_LOOK", first_look)
        run = al.descend(TOKENS, grow(4.0), steps=3000, record=record)
        found.append((run.status, run.last_step, len(run.steps), run.weights["W"].tobytes()))
    assert found[0][0] is Status.NOT_FINITE
    assert len(set(found)) == 1


def test_a_loss_that_overflows_is_told():
    tokens = al.Tokens(x=np.array([[[1.0, 0.0], [0.9, 0.0]]]), z=[[1.0, 0.0]], y=[-1], v=[800.0, 0.0])
    run = al.descend(tokens, al.ngd(0.1), loss="exponential", steps=20)
    assert run.status is Status.FINISHED
    assert np.isinf(run.metrics["loss"]).all()
    assert np.isfinite(run.metrics["log_loss"]).all()
    assert any(remark.startswith("`loss` is not finite") and "log_loss" in remark for remark in run.remarks)


def test_a_metric_of_your_own_that_is_not_finite_is_told():
    run = al.descend(TOKENS, al.ngd(0.1), steps=5, metrics={"mine": lambda view: jnp.log(-jnp.ones(()))})
    assert run.remarks == ("`mine` is not finite, first at step 0.",)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-110])
def test_a_flow_too_slow_to_be_seen(scale):
    data = al.data.sphere(n=3, T=4, d=5, seed=0)
    slow = al.Tokens(x=scale * data.x, z=scale * data.z, y=data.y, v=data.v)
    run = al.flow(slow, record=[0.0, 1e14])
    assert run.status is FlowStatus.UNMOVED
    assert not run.moved
    assert np.isfinite(run.W).all()
    assert np.isfinite(run.metrics["loss"]).all()


def test_a_flow_from_zero_shows_its_first_direction():
    """Of length 1e-286, and in the direction of the gradient."""
    data = al.data.sphere(n=3, T=4, d=5, seed=0)
    slow = al.Tokens(x=1e-100 * data.x, z=1e-100 * data.z, y=data.y, v=data.v)
    run = al.flow(slow, init="zeros", record=None)
    assert run.status is FlowStatus.FINISHED
    mantissa, log_scale = al.models.gradient(slow, np.zeros((5, 5)))
    np.testing.assert_allclose(run.W, -1e14 * np.exp(log_scale["W"]) * mantissa["W"], rtol=1e-9)


def test_a_flow_that_cannot_start():
    data = al.data.sphere(n=3, T=4, d=5, seed=0)
    with pytest.raises(al.InputError, match="`tokens` at `init` overflow"):
        al.flow(al.Tokens(x=1e200 * data.x, z=1e200 * data.z, y=data.y, v=data.v))
