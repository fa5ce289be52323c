"""What a user's model is given beside tokens: masks, constants, test data, a loss of the user's own."""

import jax.numpy as jnp
import numpy as np
import pytest
from own_models import WithValues

import attnlab as al
from attnlab.train import program
from compiled import programs


class Unmasked(WithValues):
    def output(self, weights, example):
        attention = al.models.softmax(example.x @ weights["W"] @ example.z)
        return example.v @ (weights["V"] @ (attention @ example.x))


@pytest.mark.parametrize("trials", [None, 3])
def test_a_mask_that_is_not_read_is_refused(trials):
    whole = al.data.sphere(n=3, T=4, d=5, seed=0, trials=trials)
    mask = np.ones(whole.x.shape[:-1], dtype=bool)
    mask[..., -1] = False
    hidden = al.Tokens(x=whole.x, z=whole.z, y=whole.y, v=whole.v, mask=mask)
    shorter = al.Tokens(x=whole.x[..., :-1, :], z=whole.z, y=whole.y, v=whole.v)
    start = WithValues().initial(whole)
    for call in (
        lambda: al.descend(hidden, al.gd(0.1), model=Unmasked(), steps=2),
        lambda: Unmasked().outputs(hidden, start),
        lambda: al.flow(hidden, model=Unmasked(), time=1.0),
    ):
        with pytest.raises(al.InputError, match="mask that `output` of `model` does not read"):
            call()
    np.testing.assert_allclose(WithValues().outputs(hidden, start), Unmasked().outputs(shorter, start), rtol=1e-12)
    np.testing.assert_allclose(WithValues().outputs(whole, start), Unmasked().outputs(whole, start), rtol=1e-12)
    all_visible = al.Tokens(x=whole.x, z=whole.z, y=whole.y, v=whole.v, mask=np.ones_like(mask))
    np.testing.assert_array_equal(Unmasked().outputs(all_visible, start), Unmasked().outputs(whole, start))


def test_labels_of_test_data_must_go_with_the_loss():
    x = np.random.default_rng(0).standard_normal((3, 2, 4))
    data = al.Sequences(x=x, y=[1.0, -1.0, 1.0])

    def trained(labels):
        test = al.Sequences(x=x[:2], y=labels)
        return al.descend(data, al.gd(0.1), model=al.models.Encoder(4), loss="logistic", steps=2, test=test)

    assert np.isfinite(trained([-1.0, 1.0]).metrics["test_loss"]).all()
    with pytest.raises(al.InputError, match=r"Of `test`: .*y"):
        trained([0.5, 1.0])


def test_test_data_whose_mask_is_not_read_are_refused():
    tokens = al.data.sphere(n=3, T=4, d=5, seed=0)
    hidden = al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, mask=np.arange(4) < np.full((3, 1), 3))
    with pytest.raises(al.InputError, match=r"Of `test`: The data hide tokens by a mask"):
        al.descend(tokens, al.gd(0.1), model=Unmasked(), steps=2, test=hidden)


class Tilted(al.Model):
    """Attention whose logits are tilted by an array that is not trained."""

    tilt: tuple[float, ...] = (0.0, 1.0, 2.0)

    def shapes(self, data):
        return {"W": al.weights((data.d, data.d))}

    def constants(self, data, weights):
        lead = () if data.trials is None else (data.trials,)
        return {"tilt": np.broadcast_to(self.tilt, (*lead, len(self.tilt)))}

    def compiled_as(self):
        return Tilted(())

    def output(self, weights, example):
        return example.v @ (
            al.models.softmax(example.x @ weights["W"] @ example.z + example.constants["tilt"]) @ example.x
        )


def test_models_that_differ_in_constants_share_a_program():
    tokens = al.data.sphere(n=3, T=3, d=4, seed=0, trials=2)
    assert tokens.v is not None
    start = Tilted().initial(tokens)
    seen = []
    for tilt in ((0.0, 1.0, 2.0), (3.0, -1.0, 0.5)):
        model = Tilted(tilt)
        logits = np.einsum("bntd,bde,bne->bnt", tokens.x, start["W"], tokens.z) + tilt
        attention = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        by_hand = np.einsum("bd,bnt,bntd->bn", tokens.v, attention, tokens.x)
        np.testing.assert_allclose(model.outputs(tokens, start), by_hand, rtol=1e-13)
        al.descend(tokens, al.gd(0.1), model=model, steps=3, record=[3])
        seen.append(programs(program.advance))
    assert seen[0] == seen[1]


def test_constants_without_the_trials_of_a_batch_are_refused():
    class One(Tilted):
        def constants(self, data, weights):
            return {"tilt": np.asarray(self.tilt)}

        def compiled_as(self):
            return One(())

    tokens = al.data.sphere(n=3, T=3, d=4, seed=0, trials=2)
    assert np.isfinite(One().outputs(tokens[0], One().initial(tokens[0]))).all()
    with pytest.raises(al.InputError, match=r"`constants` of `model` gives 'tilt' of shape \(3,\) for 2 trials"):
        al.descend(tokens, al.gd(0.1), model=One(), steps=3)


def test_a_loss_of_ones_own_that_underflows_is_remarked():
    tokens = al.data.sphere(n=3, T=4, d=5, seed=0, trials=2)

    def steep(u):
        return jnp.exp(-3000 * u)

    run = al.descend(tokens, al.ngd(5.0), steps=300, loss=steep)
    lost = np.isneginf(run.metrics["log_gradient_norm"][:, -1])
    assert lost.any()
    assert any(f"In {lost.sum()} of 2 trials the gradient is exactly zero" in remark for remark in run.remarks)
    assert al.descend(tokens, al.ngd(5.0), steps=300).remarks == ()


def test_a_loss_of_the_vocabulary_is_not_remarked_as_a_function():
    """A zero gradient of a loss that knows its slope says nothing of underflow: here it is zero, as all tokens are."""
    tokens = al.Tokens(x=np.ones((2, 3, 4)), z=np.ones((2, 4)), y=[1.0, -1.0], v=np.ones(4))
    flat = al.descend(tokens, al.gd(1.0), steps=3, loss=al.models.LOSSES["logistic"])
    assert np.isneginf(flat.metrics["log_gradient_norm"]).all()
    assert not any("loss given as a function" in remark for remark in flat.remarks)


def test_a_report_where_the_loss_is_beyond_floats():
    """exp(1e4): infinite as a number, and its logarithm is told."""
    tokens = al.Tokens(x=[[[1e4], [0.0]]], z=[[1.0]], y=[-1.0], v=[1.0])
    told = al.report(tokens, None, np.array([[1.0]]), loss="exponential")
    assert told.loss == np.inf
    assert told.log_loss == pytest.approx(1e4, rel=1e-12)
    assert "e^10000.0" in str(told)
