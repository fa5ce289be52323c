"""Files that are whole or not there; fingerprints that change exactly when a meaning does."""

import functools
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attnlab.data import files
from attnlab.data.files import read_npz, write_npz
from attnlab.data.fingerprint import digest, fingerprint
from attnlab.errors import InputError, StoreError


def text(value) -> str:
    return json.dumps(fingerprint(value), sort_keys=True)


def scaled_by(c):
    def function(x):
        return c * x

    return function


def with_default(c):
    def function(x, c=c):
        return c * x

    return function


def with_keyword(c):
    def function(x, *, c=c):
        return c * x

    return function


def doubled(function):
    @functools.wraps(function)
    def wrapper(x):
        return 2 * function(x)

    return wrapper


def square(x):
    return x * x


def cube(x):
    return x * x * x


@dataclass(frozen=True)
class Small:
    lr: float


@dataclass(frozen=True)
class Large:
    lr: float


class Affine:
    def __init__(self, c):
        self.c = c

    def apply(self, x):
        return self.c * x

    def describe(self):
        return {"c": self.c}


class Opaque:
    def __init__(self, c):
        self.c = c

    def apply(self, x):
        return self.c * x


# --- fingerprints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, np.nextafter(1.0, 2.0)),
        (1, 1.0),
        (1, True),
        (0, None),
        ("1", 1),
        (math.inf, -math.inf),
        (math.inf, "inf"),
        (math.nan, "nan"),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2), np.zeros(2, dtype=np.float32)),
        (np.array([1.0, 2.0]), np.array([1.0, np.nextafter(2.0, 3.0)])),
        (scaled_by(1.0), scaled_by(2.0)),
        (scaled_by(np.zeros(2)), scaled_by(np.ones(2))),
        (scaled_by(scaled_by(1.0)), scaled_by(scaled_by(2.0))),
        (with_default(1.0), with_default(2.0)),
        (with_keyword(1.0), with_keyword(2.0)),
        (with_keyword(1.0), with_default(1.0)),
        (square, cube),
        (square, doubled(square)),
        (square, jax.grad(square)),
        (functools.partial(square, 1), functools.partial(square, 2)),
        (functools.partial(max, 1), functools.partial(min, 1)),
        (functools.partial(square, x=1), functools.partial(square, x=2)),
        (functools.partial(square, 1), square),
        (jnp.tanh, jnp.sin),
        (np.exp, np.log),
        (Small(0.1), Small(0.2)),
        (Small(0.1), Large(0.1)),
        (Affine(1.0), Affine(2.0)),
        (Affine(1.0).apply, Affine(2.0).apply),
        ((lambda x: x + 1), (lambda x: x + 2)),
        ((lambda x: lambda z: x + z)(1), (lambda x: lambda z: x - z)(1)),
    ],
)  # fmt: skip
def test_different_meanings_differ(one, other):
    assert text(one) != text(other)


def test_two_functions_on_one_line_differ():
    one, other = (lambda x: x + 1), (lambda x: x + 2)
    assert text(one) != text(other)


def test_functions_without_source_differ_by_their_code():
    def compiled(source):
        space: dict = {}
        exec(source, space)
        return space["f"]

    sources = ["def f(x): return x + 1", "def f(x): return x + 2", "def f(x): return x - 1", "def f(x): return abs(x)",
               "def f(x): return (lambda u: u + 1)(x)", "def f(x): return (lambda u: u + 2)(x)"]  # fmt: skip
    assert len({text(compiled(s)) for s in sources}) == len(sources)
    assert text(compiled(sources[0])) == text(compiled(sources[0]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.float64(0.1), 0.1),
        (np.int32(3), 3),
        (np.bool_(True), True),
        ((1, 2), [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.array([1.0, 2.0]), np.array([1.0, 9.0, 2.0])[::2]),
        (scaled_by(1.5), scaled_by(1.5)),
        (scaled_by(np.ones(2)), scaled_by(np.ones(2))),
        (functools.partial(square, x=1), functools.partial(square, x=1)),
        (jax.jit(square), square),
        (Affine(1.0), Affine(1.0)),
        (Affine(1.0).apply, Affine(1.0).apply),
    ],
)
def test_equal_meanings_agree(one, other):
    assert text(one) == text(other)


def test_jax_and_numpy_arrays_agree():
    with jax.enable_x64(True):
        assert text(jnp.arange(3.0)) == text(np.arange(3.0))


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j, Opaque(1.0), Opaque(1.0).apply])
def test_what_cannot_be_known_is_refused(value):
    with pytest.raises(StoreError):
        fingerprint(value)


def test_a_function_may_close_over_a_module_or_itself():
    import math as m

    def uses_module(x):
        return m.exp(x)

    def factorial(k):
        return 1 if k == 0 else k * factorial(k - 1)

    assert text(uses_module) == text(uses_module)
    assert text(factorial) == text(factorial)


@settings(deadline=None, max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=3), s, max_size=3),
        max_leaves=6,
    )
)
def test_plain_values_become_strict_json(value):
    json.loads(json.dumps(fingerprint(value), allow_nan=False))
    assert text(value) == text(value)


CHILD = """
import functools, json, sys
sys.path.insert(0, {folder!r})
import numpy as np, jax.numpy as jnp
import test_files as t
values = [t.scaled_by(2.0), t.with_default(3.0), t.square, functools.partial(t.square, x=1), jnp.tanh, np.arange(3.0),
          {{"b": 1, "a": [1.5, None]}}, t.Affine(2.0), t.Small(0.5)]
space = {{}}
exec("def f(x): return x in {{'a', 'b', 'c', 'd'}}", space)
values.append(space["f"])
print(json.dumps([t.fingerprint(v) for v in values]))
"""


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_process():
    code = CHILD.format(folder=os.path.dirname(__file__))
    found = set()
    for hash_seed in ("0", "77"):
        environment = dict(os.environ, PYTHONHASHSEED=hash_seed)
        found.add(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
            ).stdout
        )
    assert len(found) == 1


def test_digest_separates_its_arrays():
    a, b = np.arange(4.0), np.arange(2.0)
    assert digest(a, b) != digest(b, a)
    assert digest(a) != digest(a, np.zeros(0))
    assert digest(a[:2], a[2:]) != digest(a)
    assert digest(np.arange(6.0).reshape(2, 3).T) == digest(np.ascontiguousarray(np.arange(6.0).reshape(2, 3).T))
    assert len(digest(a)) == 32


# --- npz files -----------------------------------------------------------------------------------------------------


def test_write_then_read(tmp_path):
    arrays = {"a": np.arange(3), "b": np.eye(2, dtype=bool), "c": np.array("word")}
    facts = {"n": np.int64(3), "list": np.arange(2), "nested": {"x": [1.5, None, "s"]}}
    path = write_npz(tmp_path / "run", arrays, facts)
    assert path == tmp_path / "run.npz"
    back, known = read_npz(path, "anything")
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
    assert known == {"n": 3, "list": [0, 1], "nested": {"x": [1.5, None, "s"]}}
    assert read_npz(write_npz(tmp_path / "empty", {}, {}), "anything") == ({}, {})


@pytest.mark.parametrize("step", ["savez", "fsync", "replace"])
def test_a_failure_at_any_step_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = write_npz(tmp_path / "a.npz", {"a": np.zeros(3)}, {"v": 1})
    before = path.read_bytes()

    def fail(*args, **_):
        if step == "savez":
            args[0].write(b"PK half")
        raise OSError("no space")

    monkeypatch.setattr(files.np if step == "savez" else files.os, step, fail)
    with pytest.raises(OSError, match="no space"):
        write_npz(path, {"a": np.ones(3)}, {"v": 2})
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"], "nothing is left behind"
    write_npz(path, {"a": np.ones(3)}, {"v": 2})
    assert read_npz(path, "")[1] == {"v": 2}


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = write_npz(tmp_path / "a.npz", {"a": np.zeros(3)}, {})
    seen = []
    replace = os.replace

    def watch(source, target):
        np.testing.assert_array_equal(read_npz(path, "")[0]["a"], 0.0)
        np.testing.assert_array_equal(read_npz(source, "")[0]["a"], 1.0)
        seen.append(os.path.dirname(source) == os.path.dirname(target))
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", watch)
    write_npz(path, {"a": np.ones(3)}, {})
    assert seen == [True]


def test_interrupted_by_the_user(tmp_path, monkeypatch):
    path = write_npz(tmp_path / "a.npz", {"a": np.zeros(3)}, {})

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.np, "savez", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_npz(path, {"a": np.ones(3)}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("facts", [{"a": object()}, {"a": {1, 2}}, {"a": 1j}])
def test_facts_that_json_cannot_hold(tmp_path, facts):
    with pytest.raises(TypeError, match="cannot be stored as JSON"):
        write_npz(tmp_path / "a.npz", {}, facts)
    assert list(tmp_path.iterdir()) == []


def test_reading_says_what_was_wanted(tmp_path):
    with pytest.raises(InputError, match=r"There is no file .*; wanted a run"):
        read_npz(tmp_path / "none.npz", "a run")
    (tmp_path / "t.npz").write_text("plain text")
    with pytest.raises(InputError, match=r"not readable as npz .*; wanted a run"):
        read_npz(tmp_path / "t.npz", "a run")
