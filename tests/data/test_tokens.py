"""The container: what it refuses, that it is frozen, and that files give back what was saved."""

import io
import json
import zipfile
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

import attnlab as al
from attnlab.data import files
from attnlab.errors import InputError

N, T, D, K = 2, 3, 4, 2
X, Z, Y, V = np.ones((N, T, D)), np.ones((N, D)), np.ones(N), np.ones(D)


def build(**changes) -> al.Tokens:
    return al.Tokens(**({"x": X, "z": Z, "y": Y, "v": V} | changes))


def with_bad(array: np.ndarray, value) -> np.ndarray:
    array = array.copy()
    array.flat[-1] = value
    return array


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.ones((T, D))}, [r"`x` has shape \(3, 4\)", r"wanted \(n, T, d\)", r"x\[None\]"]),
        ({"x": np.ones(D)}, [r"`x` has shape \(4,\)", "wanted"]),
        ({"x": np.ones((1, 1, N, T, D))}, [r"`x` has shape \(1, 1, 2, 3, 4\)", "wanted"]),
        ({"x": 3.0}, [r"`x` has shape \(\)", "wanted"]),
        ({"x": np.ones((N, 0, D))}, [r"`x` has shape \(2, 0, 4\)", "no empty axis"]),
        ({"x": np.ones((0, T, D))}, [r"`x` has shape \(0, 3, 4\)", "no empty axis"]),
        ({"x": np.ones((N, T, 0))}, [r"`x` has shape \(2, 3, 0\)", "no empty axis"]),
        ({"z": np.ones((N, D + 1))}, [r"`z` has shape \(2, 5\)", r"`x` of shape \(2, 3, 4\)", "self_attention"]),
        ({"z": np.ones((N + 1, D))}, [r"`z` has shape \(3, 4\)", r"\(2, 4\)"]),
        ({"z": np.ones(D)}, [r"`z` has shape \(4,\)"]),
        ({"z": np.ones((N, 0, D))}, [r"`z` has shape \(2, 0, 4\)", r"\(2, K, 4\) for K queries"]),
        ({"z": np.ones((N, K, D + 1))}, [r"`z` has shape \(2, 2, 5\)"]),
        ({"z": np.ones((N + 1, K, D))}, [r"`z` has shape \(3, 2, 4\)"]),
        ({"z": np.ones((1, N, K, D))}, [r"`z` has shape \(1, 2, 2, 4\)"]),
        ({"y": np.ones(N + 1)}, [r"`y` has shape \(3,\)", r"labels of shape \(2,\)"]),
        ({"y": np.ones((N, 1))}, [r"`y` has shape \(2, 1\)", r"labels of shape \(2,\)"]),
        ({"z": np.ones((N, K, D))}, [r"`y` has shape \(2,\)", r"labels of shape \(2, 2\)"]),
        ({"y": [0, 1]}, ["`y` holds 0;", r"\+1 or -1", "2 \\* y - 1"]),
        ({"y": [1, 2]}, ["`y` holds 2;", r"\+1 or -1"]),
        ({"y": [0.5, -3]}, ["`y` holds -3, 0.5;", r"\+1 or -1"]),
        ({"v": np.ones(D + 1)}, [r"`v` has shape \(5,\)", r"\(4,\)"]),
        ({"v": np.ones((N, D))}, [r"`v` has shape \(2, 4\)", r"\(4,\)"]),
        ({"v": 1.0}, [r"`v` has shape \(\)"]),
        ({"mask": np.ones((N, T + 1), bool)}, [r"`mask` has shape \(2, 4\)", r"\(3,\) or \(2, 3\)"]),
        ({"mask": np.ones((N, K, T), bool)}, [r"`mask` has shape \(2, 2, 3\)", "wanted"]),
        ({"mask": np.ones((N, T)) * 0.5}, ["`mask` is not boolean", "True = visible"]),
        ({"mask": [["a"] * T] * N}, ["`mask` is not boolean"]),
        ({"mask": np.full((N, T), np.nan)}, ["`mask` is not boolean"]),
        ({"mask": "padding"}, ["`mask` is 'padding'", "'causal'"]),
        ({"mask": "causal"}, [r"K = T = 3", "one query per sequence", "query='all'"]),
        ({"z": np.ones((N, K, D)), "y": np.ones((N, K)), "mask": "causal"}, [r"K = T = 3", r"K = 2"]),
        ({"mask": [[True] * T, [False] * T]}, ["`mask` hides every token from 1 q", r"index \(1,\)", "True means vis"]),
        ({"mask": [False] * T}, ["`mask` hides every token from 2 queries", r"index \(0,\)"]),
    ],
)  # fmt: skip
def test_messages_name_argument_given_and_wanted(changes, words):
    for word in words:
        with pytest.raises(InputError, match=word):
            build(**changes)


@pytest.mark.parametrize("name", ["x", "z", "y", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_entries_must_be_finite(name, value):
    good = {"x": X, "z": Z, "y": Y, "v": V}[name]
    where = tuple(int(i) - 1 for i in good.shape)
    text = str(where).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(
        InputError, match=rf"`{name}` has 1 entries that are NaN or infinite, the first at index {text}"
    ):
        build(**{name: with_bad(good, value)})


@pytest.mark.parametrize("name", ["x", "z", "y", "v"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a * 1j,
        lambda a: a.astype(str),
        lambda a: np.array(["one"] * a.size).reshape(a.shape),
        lambda a: np.array([None] * a.size).reshape(a.shape),
        lambda a: np.array([{}] * a.size).reshape(a.shape),
        lambda a: [a.tolist(), [1.0]],
        lambda a: np.array([10**400] * a.size).reshape(a.shape),
        lambda a: a.astype("datetime64[s]"),
    ],
    ids=["complex", "digits", "words", "none", "dicts", "ragged", "huge", "dates"],
)
def test_arrays_must_be_real_numbers(name, spoil):
    good = {"x": X, "z": Z, "y": Y, "v": V}[name]
    with pytest.raises(InputError, match=f"`{name}`"):
        build(**{name: spoil(good)})


@pytest.mark.parametrize("query", [T, -T - 1, 100])
def test_query_out_of_range(query):
    with pytest.raises(InputError, match=rf"`query` is {query}; sequences of 3 tokens have rows 0 to 2"):
        al.Tokens.self_attention(X, Y, query=query)


@pytest.mark.parametrize("query", ["first", "", 1.5, None])
def test_query_of_a_wrong_kind(query):
    with pytest.raises(InputError, match="`query` is"):
        al.Tokens.self_attention(X, Y, query=query)


def test_arguments_are_named():
    with pytest.raises(TypeError):
        al.Tokens(X, Z, Y)  # pyright: ignore[reportCallIssue]


# --- what is kept --------------------------------------------------------------------------------------------------


def test_frozen():
    source = {"x": X.copy(), "z": Z.copy(), "y": Y.copy(), "v": V.copy(), "mask": np.ones((N, T), bool)}
    facts = {"a": 1}
    tokens = al.Tokens(**source, info=facts)
    for name, array in source.items():
        kept = getattr(tokens, name)
        assert not np.shares_memory(kept, array)
        before = kept.copy()
        array[...] = False if name == "mask" else 7.0
        np.testing.assert_array_equal(kept, before)
        with pytest.raises(ValueError, match="read-only"):
            kept[...] = 0
        with pytest.raises(FrozenInstanceError):
            setattr(tokens, name, array)
        with pytest.raises(FrozenInstanceError):
            delattr(tokens, name)
    facts["a"] = 2
    assert tokens.info["a"] == 1
    x = np.random.default_rng(0).standard_normal((N, T, D))
    own = al.Tokens.self_attention(x, Y)
    kept = own.z.copy()
    x[...] = 0
    np.testing.assert_array_equal(own.z, kept)


def test_any_number_type_becomes_float64():
    tokens = al.Tokens(
        x=X.astype(int).tolist(), z=Z.astype(np.float32), y=[True, 1], v=V.astype(np.int8), mask=[1, 0, 1.0]
    )
    for name in ("x", "z", "y", "v"):
        assert getattr(tokens, name).dtype == np.float64
    assert tokens.mask.dtype == bool
    np.testing.assert_array_equal(tokens.mask, [[True, False, True]] * N)


def test_shapes_as_properties():
    one, many = build(), build(z=np.ones((N, K, D)), y=np.ones((N, K)))
    assert (one.n, one.T, one.d, one.K, one.trials) == (N, T, D, None, None)
    assert (many.n, many.T, many.d, many.K) == (N, T, D, K)
    batch = al.Tokens(x=np.ones((5, N, T, D)), z=np.ones((5, N, K, D)), y=np.ones((5, N, K)))
    assert (batch.trials, batch.n, batch.T, batch.d, batch.K) == (5, N, T, D, K)
    assert batch.v is None
    assert one.visible.shape == (N, T)
    assert many.visible.shape == (N, K, T)
    assert batch.visible.shape == (5, N, K, T)
    assert one.visible.all()
    assert repr(one) == "Tokens(n=2, T=3, d=4)"
    assert repr(batch) == "Tokens(trials=5, n=2, T=3, d=4, K=2)"
    assert repr(build(mask=[True] * T, info={"family": "mine"})) == "Tokens(n=2, T=3, d=4, masked, family=mine)"


@pytest.mark.parametrize("queries", [False, True])
def test_v_and_mask_are_shared_by_all_trials(queries):
    rng = np.random.default_rng(0)
    R = 5
    rows = (N, K) if queries else (N,)
    x, z, y = np.ones((R, N, T, D)), np.ones((R, *rows, D)), np.ones((R, *rows))
    v = rng.standard_normal(D)
    full = rng.random((R, *rows, T)) < 0.5
    full[..., 1] = True
    for mask in (full, full[0], full[0, 0]):
        tokens = al.Tokens(x=x, z=z, y=y, v=v, mask=mask)
        np.testing.assert_array_equal(tokens.mask, np.broadcast_to(mask, full.shape))
        np.testing.assert_array_equal(tokens.v, np.tile(v, (R, 1)))
    own = rng.standard_normal((R, D))
    np.testing.assert_array_equal(al.Tokens(x=x, z=z, y=y, v=own).v, own)
    with pytest.raises(InputError, match=r"`v` has shape \(6, 4\)"):
        al.Tokens(x=x, z=z, y=y, v=np.ones((R + 1, D)))


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("query", [0, 1, T - 1, -1, -T])
def test_self_attention_takes_its_own_row(query, lead):
    x = np.random.default_rng(0).standard_normal((*lead, N, T, D))
    tokens = al.Tokens.self_attention(x, np.ones((*lead, N)), V, query)
    np.testing.assert_array_equal(tokens.z, x[..., query % T, :])
    assert tokens.K is None


@pytest.mark.parametrize("lead", [(), (2,)])
def test_self_attention_with_every_row(lead):
    x = np.random.default_rng(0).standard_normal((*lead, N, T, D))
    tokens = al.Tokens.self_attention(x, np.ones((*lead, N, T)), V, "all", mask="causal", info={"a": 1})
    np.testing.assert_array_equal(tokens.z, x)
    assert tokens.K == T
    assert tokens.info == {"a": 1}
    for index in np.ndindex(*tokens.mask.shape):
        assert tokens.mask[index] == (index[-1] <= index[-2]), "query k sees tokens 0 to k"


# --- trials --------------------------------------------------------------------------------------------------------


def random_tokens(
    seed: int, queries: bool = True, mask: bool = True, v: bool = True, trials: int | None = None
) -> al.Tokens:
    rng = np.random.default_rng(seed)
    lead = () if trials is None else (trials,)
    rows = (*lead, N, K) if queries else (*lead, N)
    visible = rng.random((*rows, T)) < 0.5
    visible[..., rng.integers(T)] = True
    return al.Tokens(
        x=rng.standard_normal((*lead, N, T, D)),
        z=rng.standard_normal((*rows, D)),
        y=rng.choice([-1.0, 1.0], rows),
        v=rng.standard_normal((*lead, D)) if v else None,
        mask=visible if mask else None,
        info={"seed": seed, "planted": rng.integers(0, T, (*lead, N)), "family": "mine"},
    )


def same(a: al.Tokens, b: al.Tokens) -> None:
    for name in ("x", "z", "y", "v", "mask"):
        p, q = getattr(a, name), getattr(b, name)
        if p is None or q is None:
            assert p is q
            continue
        assert p.dtype == q.dtype
        np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("queries", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("v", [False, True])
def test_stack_then_pick(v, mask, queries):
    parts = [random_tokens(s, queries, mask, v) for s in range(3)]
    batch = al.Tokens.stack(parts)
    assert batch.trials == 3
    np.testing.assert_array_equal(batch.info["seed"], [0, 1, 2])
    assert batch.info["planted"].shape == (3, N)
    assert batch.info["family"] == "mine"
    for i in (0, 1, 2, -1):
        same(batch[i], parts[i])
        assert batch[i].trials is None
        assert batch[i].info["seed"] == parts[i].info["seed"]
        np.testing.assert_array_equal(batch[i].info["planted"], parts[i].info["planted"])
    same(batch[1:], al.Tokens.stack(parts[1:]))
    np.testing.assert_array_equal(batch[1:].info["seed"], [1, 2])
    same(al.Tokens.stack(list(batch)), batch)


def test_stack_and_pick_errors():
    one = random_tokens(0)
    with pytest.raises(InputError, match="no trial axis"):
        one[0]
    with pytest.raises(InputError, match="`trials` is empty"):
        al.Tokens.stack([])
    for others in ([one, random_tokens(1, v=False)], [one, random_tokens(1, queries=False)], [al.Tokens.stack([one])]):
        with pytest.raises(InputError, match="`trials` differ in shape, or have a trial axis"):
            al.Tokens.stack(others)
    with pytest.raises(IndexError):
        al.Tokens.stack([one])[1]


def test_stack_keeps_only_facts_that_all_have():
    one, two = build(info={"a": 1, "b": 2}), build(info={"a": 1, "c": 3})
    assert al.Tokens.stack([one, two]).info == {"a": 1}


def test_stack_of_facts_of_different_lengths():
    """Facts are notes; whatever they are, the data can be stacked."""
    one, two = build(info={"path": [1, 2]}), build(info={"path": [1, 2, 3]})
    assert al.Tokens.stack([one, two]).trials == 2


# --- files ---------------------------------------------------------------------------------------------------------

numbers = st.floats(-1e300, 1e300, allow_subnormal=True)
facts = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.one_of(
        st.integers(-(2**60), 2**60),
        st.floats(allow_nan=False),
        st.text(max_size=8),
        st.booleans(),
        st.none(),
        arrays(np.float64, st.integers(0, 4), elements=st.floats(-1e9, 1e9)),
        arrays(np.int64, st.tuples(st.integers(1, 2), st.integers(1, 3))),
        st.dictionaries(st.text(max_size=3), st.integers(-5, 5), max_size=2),
    ),
    max_size=4,
)


@st.composite
def any_tokens(draw) -> al.Tokens:
    lead = draw(st.sampled_from([(), (1,), (2,)]))
    n, t, d = (draw(st.integers(1, 3)) for _ in range(3))
    rows = (*lead, n) if draw(st.booleans()) else (*lead, n, draw(st.integers(1, 3)))
    mask = draw(st.none() | arrays(bool, (*rows, t)))
    if mask is not None:
        mask[..., draw(st.integers(0, t - 1))] = True
    return al.Tokens(
        x=draw(arrays(np.float64, (*lead, n, t, d), elements=numbers)),
        z=draw(arrays(np.float64, (*rows, d), elements=numbers)),
        y=draw(arrays(np.float64, rows, elements=st.sampled_from([-1.0, 1.0]))),
        v=draw(st.none() | arrays(np.float64, d, elements=numbers)),
        mask=mask,
        info=draw(facts),
    )


@settings(deadline=None, max_examples=80)
@given(any_tokens())
def test_load_gives_back_what_was_saved(tmp_path_factory, tokens):
    path = tmp_path_factory.mktemp("tokens") / "data"
    written = tokens.save(path)
    assert written == path.with_name("data.npz")
    back = al.Tokens.load(written)
    same(back, tokens)
    assert back.digest() == tokens.digest()
    assert set(back.info) == set(tokens.info)
    for key, value in tokens.info.items():
        np.testing.assert_array_equal(back.info[key], value)
    assert [p.name for p in path.parent.iterdir()] == ["data.npz"]


@pytest.mark.parametrize(
    "info", [{"a": [[1], [1, 2]]}, {"a": ["x", 1]}, {"a": (1, 2)}, {"a": []}, {"a": [{"b": 1}]}, {"a": {"b": [1, 2]}}]
)
def test_facts_of_any_json_shape_survive(tmp_path, info):
    back = al.Tokens.load(build(info=info).save(tmp_path / "a")).info
    plain = json.loads(json.dumps(back, default=lambda v: v.tolist()))
    assert plain == json.loads(json.dumps(info))


def test_names_of_files(tmp_path):
    assert build().save(tmp_path / "a.npz").name == "a.npz"
    assert build().save(str(tmp_path / "b")).name == "b.npz"
    assert build().save(tmp_path / "c.v2").name == "c.v2.npz"


def test_any_npz_with_the_right_arrays_will_do(tmp_path):
    path = tmp_path / "plain.npz"
    np.savez(path, x=X, z=Z, y=Y, other=np.ones(3))
    same(al.Tokens.load(path), build(v=None))
    np.savez_compressed(path, x=X, z=Z, y=Y, v=V, mask=np.ones((N, T), bool))
    same(al.Tokens.load(path), build(mask=np.ones((N, T), bool)))


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"There is no file `.*nothing.npz`; wanted an npz with arrays `x`"):
        al.Tokens.load(tmp_path / "nothing.npz")


@pytest.mark.parametrize("kept", [0, 1, 10, 200, 0.5, 0.95, -1])
@pytest.mark.parametrize("compressed", [False, True])
def test_truncated_file(tmp_path, kept, compressed):
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, x=X, z=Z, y=Y)
    whole = buffer.getvalue()
    path = tmp_path / "cut.npz"
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises(InputError, match=r"cut.npz` is not readable as npz .*; wanted an npz"):
        al.Tokens.load(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_file(tmp_path, compressed):
    """A byte turned over anywhere in the stored x is noticed."""
    buffer = io.BytesIO()
    x = np.random.default_rng(0).standard_normal((N, T, D))
    (np.savez_compressed if compressed else np.savez)(buffer, x=x, z=Z, y=Y)
    whole = bytearray(buffer.getvalue())
    entry = zipfile.ZipFile(buffer).getinfo("x.npy")
    sizes = whole[entry.header_offset + 26 : entry.header_offset + 30]  # lengths of name and extra field
    start = entry.header_offset + 30 + int.from_bytes(sizes[:2], "little") + int.from_bytes(sizes[2:], "little")
    path = tmp_path / "bad.npz"
    for place in range(start, start + entry.compress_size, 5):
        damaged = whole.copy()
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"bad.npz"):
            al.Tokens.load(path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X, "z": Z}, "lacks y; it holds x, z; wanted an npz"),
        ({"a": X}, "lacks x, z, y; it holds a"),
        ({}, "lacks x, z, y; it holds nothing"),
        ({"x": X, "z": np.ones((N, D + 1)), "y": Y}, r"`z` has shape \(2, 5\)"),
        ({"x": X, "z": Z, "y": np.zeros(N)}, "`y` holds 0"),
        ({"x": np.array(["a"]), "z": Z, "y": Y}, "`x` has type <U1; wanted an array of real numbers"),
        ({"x": X, "z": Z, "y": Y, "facts": np.array(3)}, "`.*wrong.npz`"),
        ({"x": X, "z": Z, "y": Y, "facts": np.array("[1]")}, "`.*wrong.npz`"),
        ({"x": X, "z": Z, "y": Y, "facts": np.array("{")}, "`.*wrong.npz`"),
    ],
)
def test_wrong_arrays(tmp_path, arrays, words):
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(InputError, match=words):
        al.Tokens.load(tmp_path / "wrong.npz")


def test_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "o.npz", x=np.array([{}], dtype=object), z=Z, y=Y)
    with pytest.raises(InputError, match="not readable as npz"):
        al.Tokens.load(tmp_path / "o.npz")


def test_single_array_file(tmp_path):
    np.save(tmp_path / "a.npy", X)
    with pytest.raises(InputError, match=r"a.npy` holds a single array; wanted an npz"):
        al.Tokens.load(tmp_path / "a.npy")


@pytest.mark.parametrize("content", [b"", b"x,z,y\n1,2,3\n", b"\x80\x04K\x01.", b"PK not a zip"])
def test_other_kinds_of_file(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"a.npz` is not readable as npz"):
        al.Tokens.load(tmp_path / "a.npz")
    with pytest.raises(InputError, match="wanted an npz"):
        al.Tokens.load(tmp_path)


def test_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    old = random_tokens(0)
    path = old.save(tmp_path / "a")

    def fail(file, **_):
        file.write(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(files.np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        random_tokens(1).save(path)
    monkeypatch.undo()
    same(al.Tokens.load(path), old)
    with pytest.raises(TypeError, match="cannot be stored as JSON"):
        build(info={"a": object()}).save(path)
    same(al.Tokens.load(path), old)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


# --- digest --------------------------------------------------------------------------------------------------------


def test_digest_is_of_the_arrays_alone():
    one = random_tokens(0)
    again = al.Tokens(x=one.x, z=one.z, y=one.y, v=one.v, mask=one.mask, info={"other": 1})
    assert one.digest() == again.digest()
    assert al.Tokens.stack([one])[0].digest() == one.digest()
    fortran = al.Tokens(x=np.asfortranarray(one.x), z=one.z, y=one.y, v=one.v, mask=one.mask)
    assert fortran.digest() == one.digest()


def test_digest_tells_data_apart():
    base = random_tokens(0)
    fields = {"x": base.x, "z": base.z, "y": base.y, "v": base.v, "mask": base.mask}
    seen = {base.digest()}
    changes = [{"v": None}, {"mask": None}, {"mask": np.ones_like(base.mask)}]
    for name in ("x", "z", "v"):
        for place in range(fields[name].size):
            changed = fields[name].copy()
            changed.flat[place] = np.nextafter(changed.flat[place], np.inf)
            changes.append({name: changed})
    changes += [{"y": with_bad(base.y, -base.y.flat[-1])}]
    for change in changes:
        seen.add(al.Tokens(**(fields | change)).digest())
    seen.add(al.Tokens.stack([base]).digest())
    assert len(seen) == len(changes) + 2


def test_digest_of_shapes():
    """The same bytes in another shape are other data."""
    x = np.arange(8.0)
    digests = {
        al.Tokens(x=x.reshape(s), z=np.zeros((s[0], s[2])), y=np.ones(s[0])).digest()
        for s in [(1, 2, 4), (1, 4, 2), (1, 8, 1), (1, 1, 8), (2, 2, 2)]
    }
    assert len(digests) == 5


def test_digest_of_negative_zero():
    """-0.0 and 0.0 are equal numbers."""
    assert build(v=[0.0, 1.0, 2.0, 3.0]).digest() == build(v=[-0.0, 1.0, 2.0, 3.0]).digest()
