"""Whatever is given to `al.theory`: a number, inf for what is larger than any, or an error that names the argument."""

import inspect
import warnings
from decimal import Decimal
from fractions import Fraction
from random import Random

import numpy as np
import pytest

import attnlab as al
import attnlab.theory as th
from attnlab.errors import AttnlabError, InputError
from attnlab.theory import encoder as en, multihead as mh, rate_bounds
from attnlab.theory.formula import AT_LEAST_ZERO, POSITIVE, formula, numbers
from attnlab.theory.rates import joint

TOKENS = al.Tokens(x=np.arange(12.0).reshape(2, 2, 3) % 5, z=np.eye(3)[:2], y=[1, -1], v=[1.0, 0.5, 0.25])
RATES = th.rate_constants(al.data.two_tokens())
SHAPE = mh.Shape(T=2, d=3, R=2.0)
MIXTURE = mh.Mixture(T=10, M=2, S=2.0, zeta=0.1, Z_mu=0.1, Z_nu=0.1, Z=0.2)
START = mh.GoodStart(B2=2.0, B_phi=1.5, gamma=0.1)
MODEL = th.JointModel(n=10, d=100, alpha=3.0, rho=0.1)
CONSTANTS = en.Constants.of(
    np.ones((1, 2, 2)), [1.0], {"W_Q": np.eye(2), "W_K": np.eye(2), "W_V": np.eye(2), "w_O": [1.0, 1.0]},
    tau0=1.0, tau1=1.0,
)  # fmt: skip
KNOWN = {"shape": SHAPE, "mixture": MIXTURE, "start": START, "model": MODEL}

FORMULAS = [
    *(getattr(rate_bounds, name) for name in (
        "largest_step", "norm_bounds", "radius", "first_time", "rate_constant", "cosine_bound", "softmax_time",
        "softmax_decay", "softmax_bound", "descent_constant", "descent_bound", "polyak_constants",
    )),
    *(getattr(joint, name) for name in (
        "condition_1", "decayed_sum", "head_norm_bound", "attention_norm_bounds", "score_gap_bound",
        "log_segment_bound", "curvature_bound", "output_bounds", "log_loss_bound", "radius", "log_alignment_time",
        "alignment_constant", "margin_bound", "log_margin_time",
    )),
    *(getattr(en, name) for name in (
        "lemma_4", "lemma_5", "lemma_6", "lemma_7", "lemma_8", "lemma_9", "lemma_10", "lemma_12", "lemma_13",
        "lemma_14", "lemma_20", "rate_bound", "rate_follows", "drift_bound", "weight_bounds", "residual_alpha",
        "chernoff_bound", "required_width", "probability", "lemma_16_error", "lemma_16_width",
    )),
    *(getattr(mh, name) for name in (
        "head_requirement", "heads_needed", "smoothness", "growth", "largest_step", "segment_condition", "theorem_1",
        "theorem_2", "lemma_3", "lemma_8", "lemma_9", "lemma_11", "proposition_7", "corollary_2", "realizable_bounds",
        "gamma_lin", "gamma_star", "gamma_attn", "attention_gain", "largest_ordered_signal", "score_bounds",
        "saturation_scale", "attention_scale", "lemma_2_bound", "proposition_2",
    )),
]  # fmt: skip
STRANGE = [
    None, True, "a", b"x", "paper", "gd", 1j, [], [1, 2], [[1], [1, 2]], {}, np.ones((2, 2)), np.nan, np.inf, -np.inf,
    object(), len, Decimal("0.3"), Fraction(1, 2), 10**400, np.array(["1"]), np.ma.masked, slice(3), -1, -0.0, 0,
]  # fmt: skip
SIZES = [5e-324, 1e-300, 1e-154, 1e-20, 0.3, 1, 2.0, 7, 1e20, 1e154, 1e300, 1.7e308, 10**25]


def outcome(function, *args, **kwargs):
    """What comes back, or the error; no warning, and no error that is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return function(*args, **kwargs)
        except AttnlabError as error:
            found = error
    assert "`" in str(found), f"no argument is named: {found}"
    return found


def has_nan(found):
    if isinstance(found, float | np.ndarray):
        return bool(np.isnan(found).any())
    if isinstance(found, tuple | list):
        return any(map(has_nan, found))
    if isinstance(found, dict):
        return any(map(has_nan, found.values()))
    if isinstance(found, mh.Promise):
        return has_nan([found.gamma_star, found.B2, found.B_phi]) or (np.isnan(found.heads) != (found.start is None))
    return has_nan(vars(found)) if hasattr(found, "__dataclass_fields__") else False


def arguments_of(function, pick):
    """An argument for every parameter: the right object, or what `pick` makes of it."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "constants":
            found[name] = RATES if function.__module__.endswith("bounds") else CONSTANTS
        elif name in KNOWN and parameter.default is inspect.Parameter.empty:
            found[name] = MODEL if name == "model" else KNOWN[name]
        else:
            found[name] = pick(name)
    return found


WORDS = {
    "rule": ("ngd", "gd"), "init": ("lecun", "he", "ntk"), "form": ("main", "proof"),
    "scaling": ("sqrt", "linear"), "statement": ("T1", "L18"), "corrected": (True, False), "summed": (True, False),
    "halved": (True, False),
}  # fmt: skip


@pytest.mark.parametrize("function", FORMULAS, ids=lambda f: f"{f.__module__.split('.')[-1]}.{f.__name__}")
def test_formulas_of_numbers_of_any_size(function):
    random = Random(function.__name__)
    for _ in range(60):

        def pick(name):
            return random.choice(WORDS.get(name, SIZES))

        found = outcome(function, **arguments_of(function, pick))
        assert not has_nan(found), function
    for _ in range(60):

        def pick(name):
            return (
                random.choice(WORDS.get(name, (*SIZES, 0.5, 0.9, 1.5)))
                if random.random() < 0.7
                else random.choice(STRANGE)
            )

        found = outcome(function, **arguments_of(function, pick))
        assert not has_nan(found), function


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (mh.Shape, ("T", "d", "R")),
        (mh.Mixture, ("T", "M", "S", "zeta")),
        (mh.GoodStart, ("B2", "B_phi", "gamma")),
        (th.JointModel, ("n", "d", "alpha", "rho")),
        (th.LossConstants, ("M0", "M1")),
    ],
)
def test_frozen_numbers_of_anything(kind, fields):
    random = Random(kind.__name__)
    for _ in range(150):
        given = {name: random.choice((*SIZES, *STRANGE, 0.5, 1.5)) for name in fields}
        found = outcome(kind, **given)
        if isinstance(found, AttnlabError):
            continue
        for name, value in inspect.getmembers(kind):
            if isinstance(value, property):
                assert not has_nan(outcome(getattr, found, name))


TOKEN_FUNCTIONS = [
    lambda t: th.is_locally_optimal(t, [0, 1]).lead,
    lambda t: len(th.locally_optimal_selections(t)),
    lambda t: th.support_indices(t, [0, 0]).sum(),
    lambda t: th.assumption_b1(t).margin,
    lambda t: th.assumption_b1_proxy(t).margin,
    lambda t: th.assumption_b2(t).margin,
    lambda t: th.assumption_d(t).margin,
    lambda t: vars(th.local_cone(t, al.optimal_tokens(t, return_ties=True)[0])),
    lambda t: th.barrier(t, [0, 1], np.eye(3)),
    lambda t: th.default_eps(t, [0, 1]),
    lambda t: th.lipschitz_constants(t, "correlation").W,
    lambda t: vars(th.rate_constants(t)),
    lambda t: th.assumption_1(t).margin,
    lambda t: th.assumption_2(t).margin,
    lambda t: th.initialization(t, 0.1, 0.1).margin,
    lambda t: vars(th.JointModel.of(t, planted=[0, 1])),
]
ENTRIES = [0.0, 1.0, -1.0, 0.5, 5e-324, -1e-308, 1e-300, -1e-200, 1e-154, 1e-80, 1e80, -1e154, 1e200, 1e300, 1.7e308]


@pytest.mark.filterwarnings("ignore::attnlab.errors.TiedScoresWarning")
@pytest.mark.parametrize("seed", range(8))
def test_tokens_of_any_size_even_mixed(seed):
    random = Random(seed)

    def entries(*shape):
        few = random.sample(ENTRIES, random.choice((2, 4, len(ENTRIES))))
        return np.array([random.choice(few) * random.random() for _ in range(int(np.prod(shape)))]).reshape(shape)

    for _ in range(6):
        tokens = al.Tokens(x=entries(2, 2, 3), z=entries(2, 3), y=[1, -1], v=entries(3))
        for function in TOKEN_FUNCTIONS:
            assert not has_nan(outcome(function, tokens))


def tails(x):
    return en.tail_probability(x, [0.0, 1.0])


ARRAY_FUNCTIONS = [
    en.arc_cosine_0, en.arc_cosine_1, en.limiting_ntk, en.pooled_expectation, en.assumption_1, en.assumption_2,
    en.assumption_3, en.assumption_4, en.similarities, en.least_singular_value, th.interpolation_room,
    lambda x: en.lambda_0(x, 1.0), lambda x: en.predict_alpha(x, width=3, variance=1.0, tau1=1.0),
    lambda x: en.lemma_15(x, np.ones((2, 2)), 1.0), lambda x: th.kernel_distance(x, np.eye(2)),
    tails, lambda x: th.fit_rate(np.geomspace(10, 1000, 30), x),
    lambda x: en.kernel_regression(np.eye(2), x, [1.0, 2.0], [0.0, 0.0]), mh.Shape.of,
    lambda x: mh.attention_of(x, np.eye(2)), lambda x: mh.token_bounds(x, x), lambda x: mh.oracle_weights(x, 2),
    lambda x: th.in_cone(x, np.eye(2), mu=0.1), lambda x: th.barrier(TOKENS, [0, 1], x),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_arrays_of_any_size_and_shape(seed):
    random = Random(seed)
    for function in ARRAY_FUNCTIONS:
        for shape in ((2, 2), (2, 2, 2), (1, 30), (3, 1, 2)):
            few = random.sample(ENTRIES, 3)
            array = np.array([random.choice(few) for _ in range(int(np.prod(shape)))]).reshape(shape)
            found = outcome(function, array)
            lines = isinstance(found, en.Dissimilarity)  # its exponents and lines are None or numbers by themselves
            assert lines or not has_nan(found), (function, array)
    for function in ARRAY_FUNCTIONS:
        for given in (None, "a", [], [[1], [1, 2]], 1j, {}, np.full((2, 2), np.nan), object()):
            documented = function is tails and isinstance(given, list) and not given  # no values, no tail
            assert documented or isinstance(outcome(function, given), AttnlabError)


@formula(a=AT_LEAST_ZERO, b=POSITIVE, t=numbers(least=0), note=POSITIVE)
def ratio(a, b, t=0.0, note=None):
    """A formula to test with."""
    return (a**2 + t - a**2) / b**2 if note is None else a / b


def test_formulas_check_and_convert():
    assert ratio(2, 1.0, 3.0) == 3.0
    assert ratio(Fraction(1, 2), Decimal(2), note=1.0) == 0.25
    for wrong, name in (({"a": -1, "b": 1}, "a"), ({"a": 1, "b": 0}, "b"), ({"a": 1, "b": 1, "t": [1, -1]}, "t")):
        with pytest.raises(InputError, match=f"`{name}` is"):
            ratio(**wrong)
    with pytest.raises(TypeError):
        ratio(1)  # pyright: ignore[reportCallIssue]
    assert ratio.__doc__ == "A formula to test with."


def test_formulas_end_in_inf_and_not_in_nan():
    assert ratio(1e200, 1e-100, note=1.0) == np.inf or ratio(1e300, 1e-300, note=1.0) == np.inf
    with pytest.raises(InputError, match=r"`ratio` leaves the range of float64.*`a` = 1e\+200, `b` = 1.0"):
        ratio(1e200, 1.0)
    with pytest.raises(InputError, match="`ratio` leaves"):
        ratio(0.0, 1e-200)  # 0 / 0
    assert ratio(0.0, 1e-200, 1.0) == np.inf
    assert type(ratio(0.0, 1e-200, 1.0)) is float or isinstance(ratio(0.0, 1e-200, 1.0), np.floating)


def test_formulas_name_shapes_that_do_not_go_together():
    with pytest.raises(InputError, match=r"`C` \(2,\), `t` \(3,\) do not go together"):
        rate_bounds.cosine_bound([1.0, 2.0], [1.0, 2.0, 3.0])
