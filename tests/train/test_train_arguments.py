"""What new users get wrong, and the sentence they get for it."""

import jax.numpy as jnp
import numpy as np
import pytest

import attnlab as al

TOKENS = al.data.sphere(n=2, T=3, d=3, seed=3)
BATCH = al.data.sphere(n=2, T=3, d=3, seed=3, trials=2)
RULE = al.ngd(0.1)


def descend(**options):
    return al.descend(TOKENS, RULE, **({"steps": 3} | options))


def with_numpy(value):
    return np.sum(np.asarray(value)) * 1.0


def with_if(value):
    return value if value > 0 else -value


def with_float(value):
    return float(jnp.sum(value))


@pytest.mark.parametrize("function", [with_numpy, with_float])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda f: descend(head=f), "`head`"),
        (lambda f: descend(loss=f), "`loss`"),
        (lambda f: descend(metrics={"mine": lambda view: f(view.W)}), r"`metrics\['mine'\]`"),
        (lambda f: al.flow(TOKENS, head=f), "`head`"),
        (lambda f: al.flow(TOKENS, metrics={"mine": lambda view: f(view.W)}, time=1.0), r"`metrics\['mine'\]`"),
        (lambda f: al.regularization_path(TOKENS, loss=f), "`loss`"),
        (lambda f: al.models.loss(TOKENS, np.eye(3), loss=f), "`loss`"),
        (lambda f: al.models.gradient(TOKENS, np.eye(3), head=f), "`head`"),
    ],
)
def test_numpy_in_a_function_of_the_user(call, name, function):
    with pytest.raises(al.InputError, match=f"(?s){name} asks for numbers.*jax.numpy"):
        call(function)


def test_a_branch_in_a_loss():
    with pytest.raises(al.InputError, match=r"(?s)`loss` asks for numbers.*jnp\.where"):
        descend(loss=with_if)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"resume": "part.npz"}, r"(?s)`resume` is 'part.npz'; wanted an al.Trajectory.*Trajectory\.load"),
        ({"stop_seconds": -1}, "`stop_seconds` is -1; wanted a finite number at least 0"),
        ({"stop_seconds": "soon"}, "`stop_seconds` is 'soon'"),
        ({"stop_misalignment": -0.1}, "`stop_misalignment` is -0.1"),
        ({"steps": 2.0}, "`steps` is 2.0"),
        ({"steps": 10**30}, "`steps` is 10+"),
        ({"steps": True}, "`steps` is True"),
        ({"record": "all"}, "`record` is 'all'"),
        ({"record": True}, "`record` is True"),
        ({"record": [0.5]}, "`record` has type float64"),
        ({"record": [5]}, "`record` asks for step 5; the run goes from 0 to 3"),
        ({"metrics": [1]}, r"`metrics` is \[1\]"),
        ({"metrics": {"mine": 3}}, "`metrics` has 'mine': 3"),
        ({"metrics": {"mine": lambda view: view.Z}}, r"`metrics\['mine'\]` raises AttributeError"),
        ({"metrics": {"mine": lambda view: view.W * 1j}}, r"`metrics\['mine'\]` gives numbers of type complex128"),
        ({"on_step": 3}, "`on_step` is 3"),
        ({"model": "encoder"}, "`model` is 'encoder'"),
        ({"train_head": "yes"}, "`train_head` is 'yes'"),
        ({"head": lambda o: o}, r"`head` gives an array of shape \(3,\); wanted one number"),
        ({"head": lambda o: jnp.sum(o > 0)}, "`head` gives a number of type int64"),
        ({"loss": lambda: 1.0}, "`loss` raises TypeError"),
        ({"init": np.eye(4)}, r"`W` has shape \(4, 4\); wanted \(3, 3\)\.$"),
        ({"init": {"W": np.eye(3), "x": 1}}, "`init` are named"),
        ({"targets": np.eye(4)}, r"wanted \(3, 3\)\.$"),
        ({"init_scale": 1e308, "init": "gaussian", "seed": 1}, "`init`"),
    ],
    ids=lambda value: "" if isinstance(value, str) else repr(list(value)),
)
def test_descend_says_what_is_wrong(options, says):
    with pytest.raises(al.InputError, match=says):
        descend(**options)


def test_shapes_are_listed_once():
    with pytest.raises(al.InputError, match=r"wanted \(3, 3\), or \(2, 3, 3\)"):
        al.descend(BATCH, RULE, init=np.eye(4), steps=1)


@pytest.mark.parametrize("other", ["a", [[1, 2], [3]], None, 1j * np.eye(2), np.ones(2), [["a", "b"]], np.eye(3)])
def test_directions_of_something_else(other):
    for function in (al.cosine, al.misalignment):
        with pytest.raises(al.InputError, match=r"`a`|`b`"):
            function(other, np.eye(2))


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-200, 1e200, 1e308])
def test_directions_at_any_scale(scale):
    with np.errstate(under="ignore"):
        a = scale * np.array([[1.0, 1.0], [0.0, 0.0]])
    assert al.cosine(a, [[1.0, 0.0], [0.0, 0.0]]) == pytest.approx(np.sqrt(0.5), rel=1e-15)
    assert al.misalignment(a, a) < 1e-60


def test_directions_that_are_none():
    assert np.isnan(al.cosine(np.zeros((2, 2)), np.eye(2)))
    assert np.isnan(al.misalignment(np.full((2, 2), np.nan), np.eye(2)))
    assert np.isnan(al.cosine(np.full((2, 2), np.inf), np.eye(2)))


def test_what_would_not_fit_is_refused_with_its_size():
    for call in (
        lambda: descend(steps=10**14, record=range(10**14)),
        lambda: descend(steps=10**14, record=10**13),
        lambda: al.flow(TOKENS, record=10**13),
        lambda: descend(parameterization="KQ", rank=10**13),
        lambda: al.descend(TOKENS, RULE, model=al.models.MultiHead(10**14), init="gaussian", steps=1),
        lambda: al.models.Encoder(10**9).initial(al.data.gaussian_sequences(n=2, T=2, d=10**4)),
        lambda: al.regularization_path(TOKENS, restarts=10**12),
    ):
        with pytest.raises(al.InputError, match=r"would take .* of memory are free"):
            call()


@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_models_that_take_ordinary_tokens_say_so(scale):
    tokens = al.Tokens(x=scale * TOKENS.x, z=TOKENS.z, y=TOKENS.y, v=TOKENS.v)
    with pytest.raises(al.InputError, match="`tokens` has entries of about"):
        al.descend(tokens, al.gd(0.1), model=al.models.MultiHead(2), init="zeros", steps=1)
    with pytest.raises(al.InputError, match="`tokens` has entries of about"):
        al.descend(tokens, al.gd(0.1), model=al.models.Encoder(4), steps=1)
    with pytest.raises(al.InputError, match="engine='kernel'"):
        al.descend(tokens, al.gd(0.1), engine="kernel", steps=1)


def test_a_loss_beyond_floats_has_a_logarithm():
    tokens = al.Tokens(x=np.array([[[1.0, 0.0], [0.9, 0.0]]]), z=[[1.0, 0.0]], y=[-1], v=[800.0, 0.0])
    with pytest.raises(al.InputError, match=r"(?s)loss at `weights` is not finite.*log=True"):
        al.models.loss(tokens, np.zeros((2, 2)), loss="exponential")
    assert al.models.loss(tokens, np.zeros((2, 2)), loss="exponential", log=True) == pytest.approx(0.95 * 800.0)
