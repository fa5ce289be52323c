"""The door for arrays and numbers: what is let in, as what, and what is refused in our own words."""

import builtins
import datetime
import io
import sys
from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import attnlab as al
from attnlab import checks
from attnlab.checks import (
    boolean_array,
    enough_memory,
    finite_array,
    free_memory,
    instance,
    number,
    one_of,
    real_array,
    shown,
    whole,
    whole_array,
)
from attnlab.errors import InputError

ARRAYS = (real_array, finite_array, whole_array, boolean_array)
INSIDE_ITSELF: list = []
INSIDE_ITSELF += [INSIDE_ITSELF, INSIDE_ITSELF]


class Raises:
    """An object every part of which fails, each in its own way."""

    def __array__(self, *args, **options):
        raise KeyError("no array")

    def __float__(self):
        raise ZeroDivisionError

    def __repr__(self):
        raise RuntimeError("no text")

    @property
    def shape(self):
        raise OSError("no shape")


class HasNoClass:
    @property
    def __class__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("no class")


class OwnInt(int):
    def __int__(self):
        raise RuntimeError("no int")

    def __repr__(self):
        raise RuntimeError("no text")


class BadFloat:
    def __float__(self):
        raise KeyError("no float")


class OldArray:
    """An `__array__` of before NumPy 2, which NumPy warns of."""

    def __array__(self):
        return np.array([1.0, 2.0])


def objects(*entries):
    """An array of objects, none of which NumPy has looked into."""
    array = np.empty(len(entries), dtype=object)
    for place, entry in enumerate(entries):
        array[place] = entry
    return array


NO_NUMBERS = {
    "ragged": [[1, 2], [3]],
    "text": ["a", "b"],
    "one text": "1.0",
    "bytes": b"1.0",
    "string dtype": np.array(["1"], dtype=np.dtypes.StringDType()),
    "complex": np.array([1.0 + 0j]),
    "complex object": np.array([1j, None], dtype=object),
    "none": None,
    "nones": [None, 1.0],
    "dict": {"a": 1.0},
    "set": {1.0},
    "generator": (i for i in range(3)),
    "sparse": scipy.sparse.eye_array(3),
    "sparse matrix": scipy.sparse.csr_matrix(np.eye(3)),
    "datetime": datetime.datetime(2020, 1, 1),
    "datetimes": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "timedeltas": np.array([3], dtype="timedelta64[s]"),
    "structured": np.zeros(2, dtype=[("float", float)]),
    "inside itself": INSIDE_ITSELF,
    "raises": Raises(),
    "raises in a list": [Raises(), 1.0],
    "raises in an object array": objects(Raises(), 1.0),
    "no class": HasNoClass(),
    "bad float": objects(BadFloat()),
    "array in an array": objects(np.ones(2), None),
    "function": len,
    "class": object,
    "decimal beyond float64": Decimal("1e999"),
    "fraction beyond float64": [Fraction(10**400)],
    "integer beyond float64": 10**400,
    "integer beyond text": [10**5000],
    "masked": np.ma.array([1.0, 2.0], mask=[False, True]),
    "masked in a list": [np.ma.array([1.0, 2.0], mask=[False, True])],
    "masked constant": [np.ma.masked, 1.0],
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
@pytest.mark.parametrize("door", ARRAYS)
def test_what_is_no_array_of_numbers_is_refused_by_name(door, kind):
    with pytest.raises(InputError, match=r"^`x` "):
        door("x", NO_NUMBERS[kind])


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_nor_is_it_a_number_or_a_choice(kind):
    given = NO_NUMBERS[kind]
    for door in (number, lambda name, value: whole(name, value, 1, 9), lambda name, value: one_of(name, value, ("a",))):
        with pytest.raises(InputError, match=r"^`step` is ") as refused:
            door("step", given)
        assert len(str(refused.value)) < 250
    with pytest.raises(InputError, match=r"wanted al.Tokens"):
        instance("step", given, range, "al.Tokens")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([[1, 2], [3]], ["`x` is a ragged list", "pad them", "`mask`"]),
        (["a"], ["<U1", r"astype\(float\)"]),
        ([1j], ["complex128", "value.real"]),
        (np.ma.array([1.0], mask=[True]), ["masked entries", "filled"]),
        ([[0.0, None]], [r"holds None at index \(0, 1\)"]),
        ({"a": 1}, [r"is \{'a': 1\}", "list"]),
        ({1.0}, ["is a set", "list"]),
        ((i for i in ()), ["is a generator", "list"]),
        (scipy.sparse.eye_array(2), [r"shape \(2, 2\)", "toarray"]),
        (np.array(["2020"], dtype="datetime64[Y]"), ["datetime64", "seconds"]),
        (np.array([1], dtype="timedelta64[s]"), ["timedelta64", "seconds"]),
        ([2**53 + 1], [r"beyond 2\^53", r"astype\(float\)"]),
        (np.longdouble("1e4000"), ["1.8e", "scale"]),
    ],
)
def test_the_message_says_what_was_given_and_what_helps(given, words):
    for word in words:
        with pytest.raises(InputError, match=word):
            real_array("x", given)


def test_a_ragged_mask_is_not_told_to_use_a_mask():
    with pytest.raises(InputError, match="ragged list; wanted True or False") as refused:
        boolean_array("mask", [[1, 0], [1]], "True or False")
    assert "`mask`" not in str(refused.value).split("hint")[1]


def variants(values):
    """The same numbers as every kind of array that is one."""
    base = np.asarray(values, dtype=np.float64)
    read_only = base.copy()
    read_only.flags.writeable = False
    stepped = np.repeat(base, 2, axis=-1)[..., ::2]
    backwards = np.ascontiguousarray(base[::-1])[::-1]
    return {
        "list": base.tolist(),
        "tuple": tuple(map(tuple, base.tolist())),
        "float16": base.astype(np.float16),
        "float32": base.astype(np.float32),
        "longdouble": base.astype(np.longdouble),
        "big endian": base.astype(">f8"),
        "int8": base.astype(np.int8),
        "int64": base.astype(np.int64),
        "objects": base.astype(object),
        "fractions": [[Fraction(v) for v in row] for row in base.tolist()],
        "decimals": [[Decimal(v) for v in row] for row in base.tolist()],
        "matrix": base.view(np.matrix),
        "unmasked": np.ma.array(base),
        "unmasked with a mask": np.ma.array(base, mask=np.zeros(base.shape, dtype=bool)),
        "masked rows in a list": [np.ma.array(row) for row in base],
        "read-only": read_only,
        "Fortran": np.asfortranarray(base),
        "every other": stepped,
        "backwards": backwards,
        "jax": jnp.asarray(base),
        "bfloat16": jnp.asarray(base, dtype=jnp.bfloat16),
        "bfloat16 of numpy": base.astype(jnp.bfloat16),
        "float8": base.astype(jnp.float8_e4m3fn),
        "int4": base.astype(jnp.int4),
        "numpy scalars": [[np.float32(v) for v in row] for row in base.tolist()],
        "jax scalars": [[jnp.float32(v) for v in row] for row in base.tolist()],
    }


NUMBERS = np.array([[1.0, -2.0, 3.0], [0.0, 4.0, -6.0]])


@pytest.mark.parametrize("kind", variants(NUMBERS))
def test_every_kind_of_array_comes_in_as_fresh_float64(kind):
    given = variants(NUMBERS)[kind]
    for door in (real_array, finite_array):
        found = door("x", given)
        assert type(found) is np.ndarray
        assert found.dtype == np.float64
        assert found.flags.writeable
        assert not np.shares_memory(found, np.asarray(given, dtype=object if kind == "fractions" else None))
        np.testing.assert_array_equal(found, NUMBERS)


def test_booleans_ranges_and_old_arrays_are_numbers():
    np.testing.assert_array_equal(real_array("x", [True, False]), [1.0, 0.0])
    np.testing.assert_array_equal(real_array("x", range(3)), [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(real_array("x", OldArray()), [1.0, 2.0])
    assert real_array("x", 3).shape == ()


def test_memory_mapped_arrays_come_in_as_copies(tmp_path):
    np.save(tmp_path / "x.npy", NUMBERS)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = finite_array("x", mapped)
    assert type(found) is np.ndarray
    assert not np.shares_memory(found, mapped)
    np.testing.assert_array_equal(found, NUMBERS)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
def test_empty_axes_keep_their_shape(shape):
    for door in (real_array, finite_array):
        assert door("x", np.zeros(shape)).shape == shape
    assert whole_array("x", np.zeros(shape, dtype=int)).shape == shape
    assert boolean_array("x", np.zeros(shape, dtype=bool)).shape == shape
    assert whole_array("x", np.zeros(shape, dtype=object)).shape == shape


def test_data_frames_and_labelled_arrays_come_in():
    pandas = pytest.importorskip("pandas")
    np.testing.assert_array_equal(real_array("x", pandas.DataFrame(NUMBERS)), NUMBERS)
    with pytest.raises(InputError, match="`x`"):
        real_array("x", pandas.DataFrame({"a": [1.0], "b": ["text"]}))
    with pytest.raises(InputError, match="`x`"):  # what is missing is NaN, to some versions an object
        finite_array("x", pandas.array([1, None], dtype="Int64"))


def test_labelled_arrays_come_in():
    xarray = pytest.importorskip("xarray")
    np.testing.assert_array_equal(real_array("x", xarray.DataArray(NUMBERS)), NUMBERS)


def test_tensors_of_torch_come_in_or_are_told_how():
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(real_array("x", torch.tensor(NUMBERS)), NUMBERS)
    with pytest.raises(InputError, match="detach"):
        real_array("x", torch.tensor(NUMBERS, requires_grad=True))
    with pytest.raises(InputError, match="float"):
        real_array("x", torch.tensor(NUMBERS, dtype=torch.bfloat16))


class Tensor:
    """What tensors of other libraries say when NumPy asks for their numbers."""

    def __init__(self, text):
        self.text = text

    def __array__(self, *args, **options):
        raise RuntimeError(self.text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Can't call numpy() on Tensor that requires grad.", r"hint: value.detach\(\)$"),
        ("requires_grad is set", r"hint: value.detach\(\)$"),
        ("Got unsupported ScalarType BFloat16", r"value.detach\(\).float\(\).cpu\(\)"),
        ("can't convert cuda:0 device type tensor to numpy", r"value.detach\(\).float\(\).cpu\(\)"),
        ("something else", "must give an array of numbers"),
    ],
)
def test_tensors_that_refuse_are_told_how(text, hint):
    with pytest.raises(InputError, match=hint):
        real_array("x", Tensor(text))


def test_tracers_have_no_numbers():
    said = []

    def inside(x):
        for door in (*ARRAYS, number, whole):
            with pytest.raises(InputError) as refused:
                door("x", x)
            said.append(str(refused.value))
        return x

    jax.jit(inside)(1.0)
    assert len(said) == len(ARRAYS) + 2
    assert all("outside" in text for text in said[: len(ARRAYS)])


def test_interrupts_pass():
    class Interrupted:
        def __array__(self, *args, **options):
            raise KeyboardInterrupt

        def __float__(self):
            raise KeyboardInterrupt

    for given in (Interrupted(), objects(Interrupted())):
        with pytest.raises(KeyboardInterrupt):
            real_array("x", given)


def test_memory_errors_are_told_as_such():
    class Large:
        def __array__(self, *args, **options):
            raise MemoryError

    with pytest.raises(InputError, match="does not fit into memory"):
        real_array("x", Large())


@pytest.mark.parametrize("kind", [np.int64, np.uint64, object])
def test_whole_numbers_come_in_if_float64_has_them(kind):
    exact = [2**53, 2**53 + 2, 2**60, 2**62 + 2**20]
    np.testing.assert_array_equal(real_array("x", np.array(exact, dtype=kind)), [float(e) for e in exact])
    for rounded in (2**53 + 1, 2**60 + 1, 2**63 - 1):
        with pytest.raises(InputError, match=r"2\^53"):
            real_array("x", np.array([1, rounded], dtype=kind))
        if kind is not np.uint64:
            with pytest.raises(InputError, match=r"2\^53"):
                real_array("x", np.array([1, -rounded], dtype=kind))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted_and_placed(bad):
    given = NUMBERS.copy()
    given[1, 0] = given[1, 2] = bad
    np.testing.assert_array_equal(real_array("x", given), given)
    with pytest.raises(InputError, match=r"`x` has 2 entries that are NaN or infinite, the first at index \(1, 0\)"):
        finite_array("x", given)
    with pytest.raises(InputError, match=r"infinite; all must be finite"):
        finite_array("x", bad)
    np.testing.assert_array_equal(real_array("x", np.array([bad, Decimal(1)], dtype=object)), [bad, 1.0])
    np.testing.assert_array_equal(real_array("x", np.array([bad], dtype=np.longdouble)), [bad])


def test_long_floats_are_let_in_as_far_as_float64_goes():
    largest = np.longdouble(sys.float_info.max)
    np.testing.assert_array_equal(finite_array("x", [largest, -largest]), [float(largest), -float(largest)])
    if np.finfo(np.longdouble).max > largest:
        for beyond in (2 * largest, -2 * largest):
            with pytest.raises(InputError, match="scale them down"):
                real_array("x", [beyond])


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.int64, object])
def test_whole_arrays_are_those_of_integers(kind):
    found = whole_array("selected", np.array([[0, 1], [2, 3]], dtype=kind))
    assert found.dtype == np.intp
    assert found.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("given", [[0.0, 1.0], [True, False], np.array([True, 1], dtype=object), ["0"], []])
def test_whole_arrays_are_of_nothing_else(given):
    with pytest.raises(InputError, match=r"`selected` .*; wanted numbers of tokens"):
        whole_array("selected", given, "numbers of tokens")


@pytest.mark.parametrize("given", [2**63, 2**64 - 1, 10**30, -(10**30)])
def test_whole_arrays_end_where_indices_do(given):
    with pytest.raises(InputError, match=r"beyond 2\^63"):
        whole_array("selected", [given])


def test_the_ends_of_indices_are_indices():
    limits = np.iinfo(np.intp)
    assert whole_array("x", [limits.max, limits.min]).tolist() == [limits.max, limits.min]


@pytest.mark.parametrize(
    "given", [[[True, False]], [[1, 0]], [[1.0, 0.0]], np.array([[1, 0]], np.uint8), jnp.array([[True, False]])]
)
def test_masks_are_booleans_or_zeros_and_ones(given):
    found = boolean_array("mask", given)
    assert found.dtype == bool
    assert found.tolist() == [[True, False]]
    assert not np.shares_memory(found, np.asarray(given))


@pytest.mark.parametrize(("given", "said"), [([0.5, 1.0], "0.5"), ([0, 2], "2"), ([-1, 1], "-1"), ([np.nan], "nan")])
def test_other_numbers_are_no_booleans(given, said):
    with pytest.raises(InputError, match=f"`mask` is not boolean: it holds {said}; wanted booleans"):
        boolean_array("mask", given)


@pytest.mark.parametrize("given", [3, np.int8(3), np.uint64(3), 3 * True])
def test_whole_numbers(given):
    found = whole("steps", given)
    assert type(found) is int
    assert found == 3


@pytest.mark.parametrize("given", [True, np.True_, 3.0, np.float64(3), "3", None, [3], np.array([3])])
def test_no_whole_numbers(given):
    with pytest.raises(InputError, match=r"^`steps` is .*; wanted a whole number at least 1.$"):
        whole("steps", given)


def test_whole_numbers_in_their_range():
    with pytest.raises(InputError, match="OwnInt"):
        whole("steps", OwnInt(3))
    assert whole("steps", 0, 0) == 0
    assert whole("steps", 5, 5, 5) == 5
    assert whole("steps", 10**400) == 10**400
    for given, least, most in ((0, 1, None), (4, 5, 6), (7, 5, 6)):
        with pytest.raises(InputError, match=f"`steps` is {given}; wanted a whole number at least {least}"):
            whole("steps", given, least, most)
    with pytest.raises(InputError, match="at least 5 and at most 6"):
        whole("steps", 7, 5, 6)


@pytest.mark.parametrize(
    "given",
    [0.5, np.float32(0.5), np.float16(0.5), np.longdouble(0.5), np.array(0.5), jnp.float32(0.5), Fraction(1, 2)],
)
def test_numbers(given):
    found = number("step", given)
    assert type(found) is float
    assert found == 0.5
    assert number("step", np.int64(2)) == number("step", 2) == number("step", Decimal(2)) == 2.0
    assert number("step", 10**300) == 1e300


@pytest.mark.parametrize(
    "given", [True, np.True_, np.array(True), [1.0], (1.0,), np.ones(1), 1j, np.nan, np.inf, 10**400]
)
def test_no_numbers(given):
    with pytest.raises(InputError, match=r"^`step` is .*; wanted a finite number.$"):
        number("step", given)


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "words"),
    [
        ({"least": 1}, 1.0, np.nextafter(1.0, 0.0), "at least 1"),
        ({"above": 1}, np.nextafter(1.0, 2.0), 1.0, "above 1"),
        ({"most": 1}, 1.0, np.nextafter(1.0, 2.0), "at most 1"),
        ({"below": 1}, np.nextafter(1.0, 0.0), 1.0, "below 1"),
        ({"above": 0, "below": 1}, 0.5, 2.0, "above 0 and below 1"),
    ],
)
def test_numbers_in_their_range(limits, inside, outside, words):
    assert number("share", inside, **limits) == inside
    with pytest.raises(InputError, match=f"wanted a finite number {words}.$"):
        number("share", outside, **limits)


def test_choices():
    one_of("norm", "nuclear", ("frobenius", "nuclear"))
    one_of("norm", np.str_("nuclear"), ("frobenius", "nuclear"))
    one_of("rank", 1, (1, None))
    for given in ("Nuclear", 1, None, True, ["nuclear"], np.array(["nuclear"])):
        with pytest.raises(InputError, match="wanted one of 'frobenius', 'nuclear'"):
            one_of("norm", given, ("frobenius", "nuclear"))
    with pytest.raises(InputError, match="`rank` is True"):
        one_of("rank", True, (1, None))


def test_instances_come_back():
    assert instance("x", 3, int, "a number") == 3
    with pytest.raises(InputError, match=r"^`x` is 'a'; wanted a number.\n\nhint: try 3$"):
        instance("x", "a", int, "a number", "try 3")


@pytest.fixture
def memory(monkeypatch):
    """A machine with so many bytes free."""

    def machine(free):
        monkeypatch.setattr(checks, "free_memory", lambda: free)

    return machine


def test_what_fits_is_let_through(memory):
    memory(1e9)
    enough_memory(0.99e8, "The tokens")
    with pytest.raises(
        InputError, match=r"^The tokens would take 808.0 MB; 1.0 GB of memory are free.\n\nhint: smaller"
    ):
        enough_memory(1.01e8, "The tokens")
    memory(np.inf)
    enough_memory(1e18, "The tokens")


def test_small_arrays_are_not_asked_for(memory):
    memory(0.0)
    enough_memory(1_000_000, "The tokens")
    with pytest.raises(InputError, match=r"8.0 MB; 0.0 B of memory"):
        enough_memory(1_000_001, "The tokens")


@pytest.mark.parametrize("count", [10**25, 1e300, 10**400, np.inf])
def test_sizes_beyond_all_bounds_are_refused_too(memory, count):
    memory(1e12)
    with pytest.raises(InputError, match="would take"):
        enough_memory(count, "The tokens")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 B"), (999, "999.0 B"), (1e3, "1.0 kB"), (2.5e6, "2.5 MB"), (3e9, "3.0 GB"), (4e12, "4.0 TB"),
     (5e16, "50000.0 TB"), (8e18, "8.0e+06 TB"), (np.inf, "more than any machine has")],
)  # fmt: skip
def test_sizes_for_people(count, text):
    assert checks._bytes(count) == text


def system(monkeypatch, facts, sizes):
    """What `free_memory` says where the file about memory has these lines (None: is not there), and the rest so."""

    def opened(path):
        if facts is None:
            raise FileNotFoundError(path)
        return io.StringIO(facts)

    def size(name):
        if name not in sizes:
            raise ValueError(name)
        return sizes[name]

    with monkeypatch.context() as here:
        here.setattr(builtins, "open", opened)
        here.setattr("os.sysconf", size)
        return free_memory()


def test_free_memory_is_what_the_system_says(monkeypatch):
    assert system(monkeypatch, "MemTotal:  100 kB\nMemAvailable:     64 kB\n", {}) == 64 * 1024


@pytest.mark.parametrize("facts", [None, "", "nothing", "MemAvailable:\n", "MemAvailable: many kB\n"])
def test_free_memory_without_that_file(monkeypatch, facts):
    assert system(monkeypatch, facts, {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": 10}) == 40960.0
    assert system(monkeypatch, facts, {}) == np.inf


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, "3"),
        ("a", "'a'"),
        (None, "None"),
        (np.float64(0.1), "0.1"),
        (np.int8(3), "3"),
        ((1, 2), "(1, 2)"),
        (np.zeros((2, 3)), "an array of shape (2, 3)"),
        (jnp.zeros(4), "an array of shape (4,)"),
        (np.array(3.0), "a ndarray"),
        (object(), "an object"),
        (len, "a builtin_function_or_method"),
    ],
)
def test_values_in_messages(given, text):
    assert shown(given) == text


def test_values_that_cannot_be_told_are_called_by_their_class():
    assert shown(Raises()) == "a Raises"
    assert shown(10**5000) == "an int"
    assert shown(HasNoClass()) == "a HasNoClass"
    assert "OwnInt" in shown(OwnInt(3))


@pytest.mark.parametrize(
    "given", [[0.123456789] * 10**6, "a" * 10**6, {i: i for i in range(1000)}, INSIDE_ITSELF, 10**400]
)
def test_values_in_messages_are_short(given):
    assert len(shown(given)) <= 63
    assert len(shown(given, 20)) <= 23


@pytest.mark.parametrize("value", [np.array([]), np.array([True, False]), 1, 0.0, "True", None, [True]])
def test_flags_are_true_or_false(value):
    with pytest.raises(InputError, match=r"`fresh` is .* True or False"):
        checks.flag("fresh", value)
    assert checks.flag("fresh", np.bool_(True)) is True
    for call in (
        lambda: al.solve_margin(al.data.two_tokens(), [0], throw=value),
        lambda: al.optimal_tokens(al.data.two_tokens(), return_ties=value),
    ):
        with pytest.raises(InputError, match="True or False"):
            call()
