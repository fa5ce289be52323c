"""Sequences with real labels: checks, vectors as tokens, seeded draws."""

import numpy as np
import pytest

import attnlab as al
from attnlab.data import Sequences, gaussian_sequences


def test_arrays_are_copied_and_frozen():
    x, y = np.ones((2, 3, 4), dtype=np.float32), [1, 2]
    data = Sequences(x=x, y=y)
    x[:] = 0
    assert (data.x == 1).all()
    assert data.x.dtype == data.y.dtype == np.float64
    assert (data.n, data.T, data.d, data.trials) == (2, 3, 4, None)
    with pytest.raises(ValueError, match="read-only"):
        data.x[0] = 2
    assert repr(data.repeated(5)) == "Sequences(trials=5, n=2, T=3, d=4)"


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.ones((2, 3)), np.ones(2), "`x` has shape (2, 3)"),
        (np.ones((2, 0, 3)), np.ones(2), "no empty axis"),
        (np.ones((2, 3, 4)), np.ones(3), "`y` has shape (3,)"),
        (np.ones((5, 2, 3, 4)), np.ones(2), "labels of shape (5, 2)"),
        (np.full((2, 3, 4), np.nan), np.ones(2), "`x` has 24 entries that are NaN"),
        (np.ones((2, 3, 4)), [np.inf, 1], "`y` has 1 entries that are NaN or infinite"),
        (np.ones((2, 3, 4)), ["a", "b"], "`y` has type <U1; wanted an array of real numbers"),
    ],
)
def test_what_is_refused(x, y, says):
    with pytest.raises(al.InputError) as caught:
        Sequences(x=x, y=y)
    assert says in str(caught.value)


def test_vectors_as_one_token_or_as_many():
    x = np.arange(6.0).reshape(2, 3)
    one, many = (Sequences.of_vectors(x, [0.5, -2.0], read) for read in ("embedding", "sequence"))
    np.testing.assert_array_equal(one.x, x[:, None, :])
    np.testing.assert_array_equal(many.x, x[:, :, None])
    batch = Sequences.of_vectors(np.stack([x, x]), np.ones((2, 2)), "sequence")
    assert batch.x.shape == (2, 2, 3, 1)
    with pytest.raises(al.InputError, match="`read` is 'rows'"):
        Sequences.of_vectors(x, [1, 2], "rows")
    with pytest.raises(al.InputError, match="wanted vectors"):
        Sequences.of_vectors(np.ones(3), [1])


def test_tokens_are_taken_without_masks():
    tokens = al.data.sphere(3, 4, 5)
    np.testing.assert_array_equal(Sequences.of(tokens).x, tokens.x)
    masked = al.Tokens.self_attention(tokens.x, tokens.y, query=0, mask=np.ones(4, dtype=bool))
    with pytest.raises(al.InputError, match=r"wanted al\.Sequences"):
        Sequences.of(masked)
    with pytest.raises(al.InputError, match="`test` is list"):
        Sequences.of([1, 2], "test")


@pytest.mark.parametrize("rows", ["unit", "raw"])
def test_gaussian_draws(rows):
    data = gaussian_sequences(50, 8, 40, rows=rows, seed=4, trials=3)
    norms = np.linalg.norm(data.x, axis=-1)
    if rows == "unit":
        np.testing.assert_allclose(norms, 1.0, rtol=1e-14)
    else:
        assert abs(data.x.var() - 1) < 6 * np.sqrt(2 / data.x.size)
    assert abs(data.y.mean()) < 6 / np.sqrt(150)
    assert abs(data.y.var() - 1) < 6 * np.sqrt(2 / 150)
    alone = gaussian_sequences(50, 8, 40, rows=rows, seed=4)
    np.testing.assert_array_equal(alone.x, data.x[0])
    np.testing.assert_array_equal(alone.y, data[0].y)
    assert not np.allclose(data.x[0], data.x[1])
    assert not np.allclose(alone.x, gaussian_sequences(50, 8, 40, rows=rows, seed=5).x)


def test_errors_of_draws():
    bad = {"`n` is 0": {"n": 0}, "`rows` is 'ones'": {"rows": "ones"}, "`seed` is -1": {"seed": -1},
           "`trials` is 0": {"trials": 0}}  # fmt: skip
    for says, options in bad.items():
        with pytest.raises(al.InputError) as caught:
            gaussian_sequences(**options)
        assert says in str(caught.value)


def test_digest_and_trials():
    data = gaussian_sequences(3, 2, 4)
    assert data.digest() == gaussian_sequences(3, 2, 4).digest() != gaussian_sequences(3, 2, 4, seed=1).digest()
    assert data.digest() != Sequences(x=data.x, y=-data.y).digest()
    again = data.repeated(2)
    np.testing.assert_array_equal(again.x[1], data.x)
    assert again[0].trials is None
    with pytest.raises(al.InputError, match="no trial axis"):
        data[0]
    with pytest.raises(al.InputError, match="2 trials already"):
        again.repeated(3)
    with pytest.raises(al.InputError, match="`trials` is 0"):
        data.repeated(0)


def test_saved_and_read_again(tmp_path):
    data = gaussian_sequences(3, 2, 4, trials=2, seed=7)
    again = Sequences.load(data.save(tmp_path / "data.npz"))
    assert again.digest() == data.digest()
    assert again.info == data.info
    np.savez(tmp_path / "plain.npz", x=data.x, y=data.y)
    assert Sequences.load(tmp_path / "plain.npz").digest() == data.digest()
    np.savez(tmp_path / "short.npz", x=data.x)
    with pytest.raises(al.InputError, match="lacks y; it holds x"):
        Sequences.load(tmp_path / "short.npz")
    with pytest.raises(al.InputError):
        Sequences.load(tmp_path / "nothing.npz")
