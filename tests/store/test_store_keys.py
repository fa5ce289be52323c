"""Keys: different for what differs, equal for what is equal, in every process."""

import json

import numpy as np
import optax
import pytest
import store_work as w

import attnlab as al
from attnlab.store import keys
from attnlab.store.keys import descent_identity, identity


def key(value, kind="test"):
    return identity(kind, value).key


@pytest.mark.parametrize("values", w.DIFFERENT.values(), ids=w.DIFFERENT)
def test_what_differs_has_different_keys(values):
    assert len({key(value) for value in values}) == len(values)
    assert len({key({"deep": [value]}) for value in values}) == len(values)


def test_kind_and_format_are_part_of_the_key(monkeypatch):
    assert key({}, "a") != key({}, "b")
    before = key({})
    monkeypatch.setattr(keys, "FORMAT", keys.FORMAT + 1)
    assert key({}) != before


def test_equal_settings_have_equal_keys():
    assert key({"a": 1, "b": [2.0, w.plain]}) == key({"b": (2.0, w.plain), "a": np.int64(1)})
    assert key(w.times(3)) == key(w.times(3))
    assert key(w.scaled(2)(w.plain)) == key(w.scaled(2)(w.plain))
    assert key(np.arange(3.0)) == key(np.arange(6.0)[::2] / 2)
    assert len(key({})) == 32


def test_keys_are_the_same_in_every_process(tmp_path, capsys):
    others = [w.spawn("w.print_keys()", tmp_path, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    w.print_keys()
    here = json.loads(capsys.readouterr().out)
    assert len(here["descents"]) == len(set(here["descents"]))
    for process in others:
        assert json.loads(w.output(process)) == here


def refers_to_itself():
    def function(x):
        return function(x - 1) if x else 0

    return function


def test_a_function_that_refers_to_itself_has_a_key():
    assert key(refers_to_itself()) == key(refers_to_itself()) != key(w.plain)


def closes_over_nothing():
    def function(x):
        return later + x  # pyright: ignore[reportUndefinedVariable]

    return function
    later = 1


@pytest.mark.parametrize(
    "value",
    [
        w.Holder(1).method,
        w.scaled(1)(w.Holder(1).method),
        closes_over_nothing(),
        w.times({1, 2}),
        {1, 2},
        object(),
        np.array([object()]),
        np.array([1, "a"], dtype=object),
        {1: 0, "1": 1},
    ],
)
def test_what_cannot_be_told_apart_is_refused(value):
    with pytest.raises(al.StoreError):
        key(value)


@pytest.mark.parametrize("kind", ["", None, 3])
def test_a_kind_is_a_name(kind):
    with pytest.raises(al.InputError, match="`kind`"):
        key({}, kind)


def descent_key(rule=None, tokens=None, **options):
    tokens = al.data.two_tokens() if tokens is None else tokens
    return descent_identity(tokens, al.ngd(0.1) if rule is None else rule, options).key


@pytest.mark.parametrize(
    "make",
    [
        lambda a: al.gd(a),
        lambda a: optax.sgd(a),
        lambda a: optax.adam(0.1, b1=a),
        lambda a: optax.sgd(optax.cosine_decay_schedule(a, 100)),
        lambda a: optax.chain(optax.clip(a), optax.sgd(0.1)),
        lambda a: optax.inject_hyperparams(optax.sgd)(learning_rate=a),
        lambda a: optax.adagrad(0.1, initial_accumulator_value=a),
    ],
)
def test_settings_of_a_rule_are_part_of_the_key(make):
    assert descent_key(make(0.1)) == descent_key(make(0.1))
    assert descent_key(make(0.1)) != descent_key(make(0.2))


def test_a_rule_whose_settings_are_out_of_sight_is_refused():
    with pytest.raises(al.StoreError, match="MultiSteps"):
        descent_key(optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation())


def test_every_setting_of_a_descent_but_the_time_limit_is_part_of_its_key():
    W = np.eye(2)
    options = [
        {}, {"steps": 10}, {"parameterization": "KQ"}, {"loss": "exponential"}, {"loss": w.plain}, {"loss": w.other},
        {"head": "relu-sum"}, {"head": w.times(1)}, {"head": w.times(2)}, {"train_head": True},
        {"parameterization": "KQ", "rank": 1},
        {"init": "zeros"}, {"init": W}, {"init": 2 * W}, {"init_scale": 2.0}, {"seed": 1}, {"record": 5},
        {"record": [0, 5]}, {"metrics": {"a": w.plain}}, {"metrics": {"a": w.ONE_LINE[0]}},
        {"metrics": {"a": w.ONE_LINE[1]}}, {"targets": W}, {"track": np.array([1])}, {"stop_misalignment": 0.1},
    ]  # fmt: skip
    found = [descent_key(**each) for each in options]
    found.append(descent_key(tokens=al.data.bad_direction()))
    assert len(set(found)) == len(options) + 1
    assert descent_key(stop_seconds=1.0) == descent_key() == descent_key(steps=2000, stop_seconds=None)


def test_wrong_arguments_are_named():
    with pytest.raises(al.InputError, match="`tokens`"):
        descent_key(tokens=np.zeros(3))
    with pytest.raises(al.InputError, match="`rule`"):
        descent_key(rule=0.1)
    with pytest.raises(al.InputError, match="stepz"):
        descent_key(stepz=3)
