"""Whatever is given to `al.data`: tokens, or an error that names the argument."""

import inspect
import tracemalloc
import warnings
from fractions import Fraction

import numpy as np
import pytest

import attnlab as al
from attnlab import checks
from attnlab.data import families
from attnlab.data.fingerprint import fingerprint
from attnlab.errors import AttnlabError, InputError, StoreError, TiedScoresWarning

FAMILIES = {
    name: getattr(al.data, name)
    for name in (
        "sphere", "two_clusters", "orthogonal_signal", "antipodal_signal", "gaussian_signal", "two_tokens",
        "bad_direction", "gaussian_signal_in_span", "tokenized_mixture", "planted", "separated_signal", "trap",
        "gaussian_sequences", "gaussian_start",
    )
}  # fmt: skip
SMALL = {
    "sphere": {"n": 2, "T": 2, "d": 3},
    "orthogonal_signal": {"n": 2, "T": 2, "d": 4},
    "antipodal_signal": {"n": 2, "T": 2, "d": 4},
    "gaussian_signal": {"n": 2, "T": 2, "d": 4},
    "gaussian_signal_in_span": {"n": 2, "T": 2},
    "tokenized_mixture": {"n": 2, "T": 2, "d": 5, "sparsity": 0.5},
    "planted": {"n": 2, "T": 2, "d": 3, "margin": 0.0},
    "separated_signal": {"n": 2, "T": 2, "d": 8, "orthogonal": True, "noise": 0.3},
    "gaussian_sequences": {"n": 2, "T": 2, "d": 3},
    "gaussian_start": {"rank": 2, "dimension": 5, "scale": 0.1},
}


class Strange:
    def __repr__(self):
        raise RuntimeError

    def __array__(self, *args, **kwargs):
        raise KeyError


VALUES = [
    None, True, -1, 0, 1, 2, 10**9, 10**25, 10**400, -(10**30), 0.0, -0.0, 0.5, 1.5, 2.0, 1e-320, 5e-324, 1e-200, 1e200,
    1.7e308, -1e300, np.nan, np.inf, -np.inf, np.float32(0.5), np.int8(2), np.array(2), np.array(0.5), np.ones(2), [],
    [1, 2], [[1, 2], [3]], (), {}, {1}, "a", "", b"x", 1j, Fraction(1, 3), "sphere", "gauss", "first", "raw", "T5",
    object, len, Strange(), np.ma.masked, range(3), slice(2),
]  # fmt: skip


def outcome(function, *args, **kwargs):
    """What comes back, or the error; no warning, and no error that is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", TiedScoresWarning)
        try:
            return function(*args, **kwargs)
        except AttnlabError as error:
            found = error
    assert "`" in str(found), f"no argument is named: {found}"
    assert len(str(found)) < 1500
    return found


def is_finite(found):
    if isinstance(found, AttnlabError):
        return True
    arrays = [found] if isinstance(found, np.ndarray) else [found.x, found.y]
    return all(np.isfinite(array).all() for array in arrays)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_argument_of_every_family_may_be_anything(family):
    function = FAMILIES[family]
    usual = SMALL.get(family, {})
    for name in inspect.signature(function).parameters:
        for value in VALUES:
            if family == "planted" and name == "margin" and isinstance(value, float) and value > 1:
                continue  # drawn a hundred thousand times before it is given up
            if family == "sphere" and name == "gap" and isinstance(value, float) and 1 <= value < 2:
                continue
            found = outcome(function, **{**usual, name: value})
            assert is_finite(found), (family, name, value)


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("count", [10**9, 10**25, 10**400])
def test_sizes_that_do_not_fit_are_refused_at_once(family, count):
    names = {"gaussian_start": ("rank", "trials")}.get(family, ("n", "T", "trials"))
    for name in names:
        options = {**SMALL[family], name: count}
        if family == "gaussian_start":
            options["dimension"] = 10**140
        with pytest.raises(InputError, match=rf"`{name}` = |`{name}` is|`d` is|`sparsity` is"):
            FAMILIES[family](**options)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("trap", "gaussian_start")])
@pytest.mark.parametrize("trials", [None, 40])
def test_the_estimate_is_what_is_taken(family, trials, monkeypatch):
    """Never less than the memory really taken, and not much more than three times that."""
    large = {"sphere", "orthogonal_signal", "antipodal_signal", "gaussian_signal", "gaussian_sequences", "planted"}
    options = {**SMALL.get(family, {}), "trials": trials}
    if family in large:
        options |= {"n": 40, "T": 10, "d": 30}
    if family == "tokenized_mixture":
        options |= {"n": 40, "T": 10, "d": 30, "sparsity": 0.1}
    if family == "gaussian_signal_in_span":
        options |= {"n": 15, "T": 4, "d": 1e6}
    if family == "separated_signal":
        options |= {"n": 10, "T": 8, "d": 200}
    if "n" not in options and trials is None:
        pytest.skip("a few numbers")
    estimates = []
    monkeypatch.setattr(families, "enough_memory", lambda count, what, hint="": estimates.append(8 * count))
    FAMILIES[family](**options)
    tracemalloc.start()
    FAMILIES[family](**options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= estimates[-1] + 100_000
    assert estimates[-1] <= 4 * peak


@pytest.mark.parametrize("name", ["x", "z", "y", "v", "mask", "info"])
def test_tokens_of_anything(name):
    good = {"x": np.ones((2, 3, 4)), "z": np.ones((2, 4)), "y": [1, -1], "v": np.ones(4), "mask": None, "info": None}
    for value in VALUES:
        assert is_finite(outcome(al.Tokens, **{**good, name: value}))
    for value in VALUES:
        assert is_finite(outcome(al.Tokens.self_attention, good["x"], good["y"], query=value))
        assert is_finite(outcome(al.Tokens.self_attention, value, good["y"]))
        assert is_finite(outcome(al.Sequences, x=good["x"], y=value))
        assert is_finite(outcome(al.Sequences.of_vectors, value, [1.0, 2.0]))


@pytest.mark.parametrize("kind", ["tokens", "sequences"])
def test_trials_of_anything(kind):
    batch = al.data.sphere(2, 2, 3, trials=3) if kind == "tokens" else al.data.gaussian_sequences(2, 2, 3, trials=3)
    for value in VALUES:
        assert is_finite(outcome(batch.__getitem__, value))
        assert is_finite(outcome(batch[0].__getitem__, value))
    assert [one.trials for one in batch] == [None] * 3
    np.testing.assert_array_equal(batch[[2, 0]].x, batch.x[[2, 0]])
    np.testing.assert_array_equal(batch[-1].x, batch.x[2])
    np.testing.assert_array_equal(batch[np.array([1])].x, batch.x[1:2])
    for wrong in (3, -4, [0, 3], "a", True, 0.0, (0, 1, 5), slice(3, 5), slice("a"), [], [[0]], [True, False, True]):
        with pytest.raises(InputError, match="a trial from 0 to 2"):
            batch[wrong]
    with pytest.raises(IndexError):
        batch[3]


def test_facts_of_picked_trials_are_theirs():
    batch = al.data.sphere(2, 2, 3, gap=0.1, trials=4)
    np.testing.assert_array_equal(batch[[3, 1]].info["attempts"], batch.info["attempts"][[3, 1]])


def test_stacks_of_anything():
    one = al.data.two_tokens()
    for value in VALUES:
        outcome(al.Tokens.stack, value)
        outcome(al.Tokens.stack, [one, value])
    assert al.Tokens.stack(t for t in (one, one)).trials == 2
    with pytest.raises(InputError, match=r"`trials\[1\]` is 'a'; wanted al.Tokens"):
        al.Tokens.stack([one, "a"])


def test_facts_that_do_not_compare_are_kept_as_lists():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError

    odd = [Odd(), Odd()]
    pair = [al.Tokens(x=np.ones((1, 1, 1)), z=[[1.0]], y=[1], info={"odd": o}) for o in odd]
    assert al.Tokens.stack(pair).info["odd"] == odd or al.Tokens.stack(pair).info["odd"][0] is odd[0]


def test_heads_of_anything():
    tokens = al.data.two_tokens()
    for value in VALUES:
        found = outcome(al.scores, tokens, value)
        assert isinstance(found, AttnlabError) or np.isfinite(found).all()
        outcome(al.optimal_tokens, tokens, value)
        outcome(al.scores, value)


class Valued:
    def __init__(self, values):
        self.values = values

    def token_values(self, tokens):
        return self.values


def test_heads_are_told_what_is_wrong_with_them():
    tokens = al.data.two_tokens()
    for head, words in (
        (lambda x: np.sin(float(x[0])), "use jax.numpy"),
        (lambda x, y: x[0], "`head` fails: TypeError"),
        (lambda x: x, r"to shape \(2,\); wanted one number"),
        (lambda x: 1 / 0, "`head` fails: ZeroDivisionError"),
        (lambda x: "a", "`head`"),
        (Valued(np.ones(3)), r"values of shape \(3,\); wanted \(1, 2\)"),
        (Valued([[1.0, None]]), "head.token_values"),
        (Valued([[1.0, np.nan]]), "NaN or infinite"),
    ):
        with pytest.raises(InputError, match=words):
            al.scores(tokens, head)


def test_batches_of_trials_of_anything():
    sequences = al.data.gaussian_sequences(2, 2, 3)
    for value in VALUES:
        assert is_finite(outcome(sequences.repeated, value))
    with pytest.raises(InputError, match="`trials` = 1000000000"):
        sequences.repeated(10**9)


def test_arrays_that_are_larger_than_memory_are_refused(monkeypatch):
    monkeypatch.setattr(checks, "free_memory", lambda: 1e8)
    wide = np.broadcast_to(np.zeros(()), (2000, 2000, 10))
    with pytest.raises(InputError, match=r"`x` of shape \(2000, 2000, 10\) would take 320.0 MB"):
        al.Tokens(x=wide, z=np.zeros((2000, 10)), y=np.ones(2000))


def test_masked_arrays_do_not_lose_their_masks():
    x = np.ma.array(np.ones((2, 3, 4)), mask=False)
    assert al.Tokens(x=x, z=np.ones((2, 4)), y=[1, 1]).n == 2
    x[0, 0, 0] = np.ma.masked
    for given in (x, list(x)):
        with pytest.raises(InputError, match="`x` has masked entries"):
            al.Tokens(x=given, z=np.ones((2, 4)), y=[1, 1])


@pytest.mark.parametrize("delta", [0.0, 1e3, 1e10, 1e100, 1.7e308])
def test_traps_are_found_or_given_up(delta):
    assert is_finite(outcome(al.data.trap, "T5", delta=delta))


@pytest.mark.parametrize("signal", [1e-300, 1e-200, 1e-101, 1e101, 1e200, 1e300])
@pytest.mark.parametrize("family", ["orthogonal_signal", "antipodal_signal"])
def test_signals_of_every_size_are_scored_one(family, signal):
    tokens = getattr(al.data, family)(3, 3, 5, signal=signal, noise=0.0)
    planted = np.take_along_axis(al.scores(tokens), tokens.info["planted"][:, None], axis=1)
    np.testing.assert_allclose(planted, 1.0, rtol=1e-12)


def test_fingerprints_of_what_breaks_are_store_errors():
    class Broken:
        def describe(self):
            raise ZeroDivisionError("no")

    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (Broken(), [Broken()], Strange(), deep):
        with pytest.raises(StoreError):
            fingerprint(value)
        assert "unknown" in fingerprint(value, strict=False)
    while deep:  # taken apart by hand: to free it at once would be as deep
        deep = deep[0]


def test_trials_are_picked_by_booleans_as_by_numbers():
    tokens = al.data.sphere(n=2, T=3, d=4, seed=0, trials=4)
    some = tokens[np.array([True, False, True, False])]
    assert some.digest() == tokens[[0, 2]].digest()
    for wrong in (np.zeros(4, dtype=bool), np.ones(3, dtype=bool), np.ones((4, 1), dtype=bool), True):
        with pytest.raises(InputError, match="one boolean per trial"):
            tokens[wrong]
