"""`Store.descend`: kept, taken up again after a kill, and the same as if nothing had happened."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
import store_work as w

import attnlab as al
from attnlab.errors import InputError
from attnlab.store import Store, descent
from attnlab.store.keys import descent_identity
from attnlab.train import Status, Trajectory


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def checkpoint(store, tokens, rule, options):
    return store.path / "partial" / f"{descent_identity(tokens, rule, options).key}.npz"


def files(store, name):
    return list((store.path / name).iterdir())


def same(a: Trajectory, b: Trajectory):
    """To the last bit, but for the time it took."""
    assert (a.status, a.last_step) == (b.status, b.last_step)
    for group in ("weights", "initial", "metrics"):
        assert list(getattr(a, group)) == list(getattr(b, group))
        for name, value in getattr(a, group).items():
            np.testing.assert_array_equal(value, getattr(b, group)[name], strict=True, err_msg=name)
    for x, y in zip((a.steps, a.selected, *a.rule_state), (b.steps, b.selected, *b.rule_state), strict=True):
        np.testing.assert_array_equal(x, y, strict=True)
    assert a.config | {"stop_seconds": None} == b.config | {"stop_seconds": None}


@pytest.fixture(scope="module")
def uninterrupted():
    return al.descend(w.tokens(), w.rule(), **w.OPTIONS)


def test_a_killed_run_goes_on_and_ends_the_same(tmp_path, store, uninterrupted):
    process = w.spawn("w.descend_and_die()", tmp_path)
    process.communicate(timeout=2 * w.PATIENCE)
    assert process.returncode < 0
    assert list(store.runs()) == []
    at = Trajectory.load(checkpoint(store, w.tokens(), w.rule(), w.OPTIONS)).last_step
    assert 64 < at < w.OPTIONS["steps"]
    looks = []
    run = store.descend(w.tokens(), w.rule(), on_step=lambda p: looks.append(p.step), **w.OPTIONS)
    assert looks[0] > at  # 64 if it had begun again
    same(run, uninterrupted)
    assert files(store, "partial") == files(store, "tmp") == []
    assert [s.status for s in store.runs()] == ["finished"]


def test_a_finished_run_is_read(store, uninterrupted, monkeypatch):
    first = store.descend(w.tokens(), w.rule(), **w.OPTIONS)
    left = checkpoint(store, w.tokens(), w.rule(), w.OPTIONS)
    left.write_bytes(b"left by a process that was overtaken")
    monkeypatch.setattr(al.train, "descend", lambda *_, **__: pytest.fail("computed again"))
    again = Store(store.path).descend(w.tokens(), w.rule(), **w.OPTIONS)
    same(again, first)
    same(again, uninterrupted)
    assert again.seconds == first.seconds
    assert not left.exists()
    (summary,) = store.runs()
    assert (summary.kind, summary.seconds, summary.config["steps"]) == ("descend", first.seconds, 3000)


def test_two_processes_at_once_agree(tmp_path, store, uninterrupted):
    both = [w.spawn("w.descend_together()", tmp_path) for _ in range(2)]
    first, second = (w.output(process) for process in both)
    assert first == second
    assert first.split()[0] == uninterrupted.W.tobytes().hex()
    assert len(files(store, "runs")) == 1
    assert files(store, "partial") == files(store, "tmp") == []


def test_a_run_out_of_time_is_not_final(store, uninterrupted):
    path = checkpoint(store, w.tokens(), w.rule(), w.OPTIONS)
    reached = []
    for _ in range(2):
        run = store.descend(w.tokens(), w.rule(), stop_seconds=0.0, **w.OPTIONS)
        assert run.status is Status.OUT_OF_TIME
        assert list(store.runs()) == []
        assert Trajectory.load(path).last_step == run.last_step
        reached.append(run.last_step)
    assert reached[0] < reached[1]
    same(store.descend(w.tokens(), w.rule(), **w.OPTIONS), uninterrupted)
    assert not path.exists()
    same(store.descend(w.tokens(), w.rule(), stop_seconds=0.0, **w.OPTIONS), uninterrupted)


class Interrupted(Exception):
    pass


def explode(updates, state, params):
    return jax.tree.map(lambda p: 1e100 * p, params), state


ENDINGS = {
    Status.FINISHED: (al.ngd(0.1), {"steps": 12}),
    Status.ALIGNED: (al.ngd(0.1), {"steps": 40, "targets": np.eye(2)[:1].T @ np.eye(2)[:1], "stop_misalignment": 0.05}),
    Status.NOT_FINITE: (optax.GradientTransformation(lambda _: optax.EmptyState(), explode), {"steps": 40}),
}


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda s: s.name)
def test_interrupted_at_every_look_it_ends_the_same(store, ending):
    """Also when the interruption comes just before the end."""
    rule, options = ENDINGS[ending]
    tokens, options = al.data.two_tokens(), options | {"record": list(range(options["steps"] + 1)), "seed": 4}
    expected = al.descend(tokens, rule, **options)
    assert expected.status is ending
    assert expected.last_step > 2
    seen = set()

    def interrupt(progress):
        if progress.step not in seen:
            seen.add(progress.step)
            raise Interrupted

    for _ in range(100):
        try:
            run = store.descend(tokens, rule, checkpoint_seconds=0, on_step=interrupt, **options)
            break
        except Interrupted:
            assert list(store.runs()) == []
    else:
        pytest.fail("interrupted a hundred times")
    same(run, expected)
    assert max(seen) == expected.last_step
    assert [s.status for s in store.runs()] == [ending.name.lower()]
    assert files(store, "partial") == files(store, "tmp") == []


def test_checkpoints_come_when_it_is_time(store, monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(descent, "time", SimpleNamespace(monotonic=lambda: clock.now))
    writer = descent._Writer(store._folder, "0" * 32, 20.0, lambda p: told.append(p.step))
    run = al.descend(al.data.two_tokens(), al.ngd(0.1), steps=3)
    told, written = [], []
    for step in range(10):
        clock.now = 1000.0 + 8 * step
        path = store.path / "partial" / f"{'0' * 32}.npz"
        writer(SimpleNamespace(step=step, steps=100, snapshot=lambda: run))
        if path.exists():
            written.append(step)
            path.unlink()
    assert told == list(range(10))
    assert written == [3, 6, 9]  # 24, 48, 72 seconds


@pytest.mark.parametrize("harm", ["nonsense", "cut", "another run", "another state"])
def test_a_checkpoint_that_does_not_fit_is_moved_aside(store, harm):
    tokens, rule, options = al.data.two_tokens(), al.ngd(0.1), {"steps": 900, "seed": 2}
    path = checkpoint(store, tokens, rule, options)
    assert store.descend(tokens, rule, stop_seconds=0.0, **options).status is Status.OUT_OF_TIME
    run = Trajectory.load(path)
    if harm == "nonsense":
        path.write_bytes(b"nonsense")
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    elif harm == "another run":
        al.descend(tokens, rule, steps=900, seed=3, stop_seconds=0.0).save(path)
    else:
        dataclasses.replace(run, rule_state=run.rule_state[:-1]).save(path)
    harmed = path.read_bytes()
    same(store.descend(tokens, rule, **options), al.descend(tokens, rule, **options))
    (aside,) = files(store, "partial")
    assert aside.name.startswith(f"{path.name}.damaged-")
    assert aside.read_bytes() == harmed
    assert store.size().bytes > len(harmed)
    assert store.clear().count == 2
    assert files(store, "partial") == []


def test_a_damaged_run_is_computed_anew(store):
    tokens, rule = al.data.two_tokens(), al.ngd(0.1)
    first = store.descend(tokens, rule, steps=20)
    (summary,) = store.runs()
    (summary.path / "trajectory.npz").write_bytes(b"PK")
    same(store.descend(tokens, rule, steps=20), first)
    assert len(list((store.path / "runs").glob("*.damaged-*"))) == 1


def test_an_optax_rule_is_kept_and_taken_up(store):
    tokens, options = al.data.two_tokens(), {"steps": 900, "record": 10}
    rules = [optax.adam(0.1), optax.adam(0.2)]
    for rule in rules:
        assert store.descend(tokens, rule, stop_seconds=0.0, **options).status is Status.OUT_OF_TIME
    for rule in rules:
        looks = []
        run = store.descend(tokens, rule, on_step=lambda p, looks=looks: looks.append(p.step), **options)
        assert looks[0] > 64
        same(run, al.descend(tokens, rule, **options))
    assert len(list(store.runs())) == 2


def test_wrong_arguments_are_named(store):
    tokens, rule = al.data.two_tokens(), al.ngd(0.1)
    with pytest.raises(InputError, match="`steps`"):
        store.descend(tokens, rule, steps=-1)
    with pytest.raises(InputError, match="`resume`"):
        store.descend(tokens, rule, resume=None)
    for seconds in (-1, float("nan"), "20", None):
        with pytest.raises(InputError, match="`checkpoint_seconds`"):
            store.descend(tokens, rule, checkpoint_seconds=seconds)
    assert list(store.runs()) == []


def test_an_input_error_of_the_callback_is_not_taken_for_a_bad_checkpoint(store):
    tokens, rule, options = al.data.two_tokens(), al.ngd(0.1), {"steps": 900}
    store.descend(tokens, rule, stop_seconds=0.0, **options)

    def complain(progress):
        raise InputError("mine")

    with pytest.raises(InputError, match="mine"):
        store.descend(tokens, rule, on_step=complain, **options)
    assert files(store, "partial") == [checkpoint(store, tokens, rule, options)]
