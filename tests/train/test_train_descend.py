"""`descend` as a program: what it records, how it stops, continues, repeats, and what it refuses."""

import itertools
import subprocess
import sys
from types import SimpleNamespace

import attention_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import attnlab as al
from attnlab.train import Status, log_spaced
from compiled import programs

CLOCKS = [sys.modules[f"attnlab.train.{name}"] for name in ("descend", "loop")]
# One shape for most tests, so that they share compiled programs.
TOKENS = al.data.sphere(n=3, T=4, d=5, seed=2, trials=3)
TARGET = np.arange(25.0).reshape(5, 5) - 7.0
HEAD_TARGET = np.array([1.0, -2.0, 0.0, 3.0, 0.5])
PER_TRIAL = np.stack([TARGET, -TARGET.T, np.eye(5)])

RULES = {
    "ngd": (al.ngd(0.1), {"targets": TARGET}),
    "momentum A": (al.ngd_momentum(0.05), {"targets": TARGET}),
    # Without a cap form B runs away: the shorter the gradient, the longer the step of the old velocity.
    "momentum B": (al.ngd_momentum(0.05, form="B", cap=1.0), {"targets": TARGET}),
    "adam": (al.adam(0.02), {"targets": TARGET}),
    "joint decay": (
        al.joint_decay(0.2),
        {
            "parameterization": "KQ",
            "rank": 2,
            "train_head": True,
            "loss": "exponential",
            "targets": {"w": PER_TRIAL, "head": HEAD_TARGET},
        },
    ),
}


def train(name="ngd", tokens=TOKENS, **options):
    rule, usual = RULES[name]
    return al.descend(tokens, rule, **(usual | options))


def assert_same(a, b):
    """Two runs, bit for bit."""
    assert a.last_step == b.last_step
    np.testing.assert_array_equal(a.steps, b.steps)
    for group in ("weights", "initial", "metrics"):
        one, other = getattr(a, group), getattr(b, group)
        assert set(one) == set(other)
        for k in one:
            assert one[k].tobytes() == other[k].tobytes(), (group, k)
    assert [s.tobytes() for s in a.rule_state] == [s.tobytes() for s in b.rule_state]
    np.testing.assert_array_equal(a.selected, b.selected)


@pytest.fixture
def ticking(monkeypatch):
    """A clock that moves on by a second whenever it is read."""
    now = [0.0]

    def read():
        now[0] += 1.0
        return now[0]

    for module in CLOCKS:
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=read))
    monkeypatch.setattr(sys.modules["attnlab.train.loop"], "FIRST_WORK", 0)  # a first look after few steps


def test_a_rule_whose_state_depends_on_the_weights_starts_each_trial_from_its_own():
    """Back to the start: after one step of a state that holds it, weights are what they were."""

    def back(updates, state, params=None, **_):
        return jax.tree.map(lambda begin, now: begin - now, state, params), state

    rule = al.optim.StepRule("back", lambda params: jax.tree.map(lambda w: w + 1.0, params), back, {})
    tokens = al.data.sphere(n=2, T=3, d=3, seed=0, trials=3)
    run = al.descend(tokens, rule, steps=1, record=None)
    np.testing.assert_allclose(run.W, run.initial["W"] + 1.0, rtol=0, atol=1e-14)


# --- metrics -----------------------------------------------------------------------------------------------------


def logsum(a, axis):
    top = a.max(axis, keepdims=True)
    return (top + np.log(np.exp(a - top).sum(axis, keepdims=True))).squeeze(axis)


def expected_metrics(tokens, run, loss, targets, track=None):
    """Every metric of one unbatched point, in long double, from its definition."""
    data = oracle.arrays_of(tokens)
    weights = {k: np.asarray(w, np.longdouble) for k, w in run.items()}
    W = weights["W"] if "W" in weights else weights["K"] @ weights["Q"].T
    grads, at = oracle.gradients(data, weights, loss)
    total = np.sqrt(sum((g**2).sum() for g in grads.values()))
    best = oracle.evaluate(data, W, None, loss).scores.argmax(-1)
    tracked = best if track is None else track[..., None]
    picked = np.take_along_axis(at.s, tracked[..., None], -1)[..., 0]
    own = np.take_along_axis(at.logits, tracked[..., None], -1)
    others = np.arange(tokens.T) != tracked[..., None]
    not_top = np.arange(tokens.T) != at.logits.argmax(-1)[..., None]
    found = {
        "loss": at.loss,
        "log_loss": np.log(at.loss),
        "norm": np.sqrt((W**2).sum()),
        "log_gradient_norm": np.log(total),
        "attention": picked.mean(),
        "attention_min": picked.min(),
        "top_attention": at.s.max(-1).mean(),
        "log_off_attention": np.log(np.where(not_top, at.s, 0).sum(-1).max()),
        "margin": np.where(others, own - at.logits, np.inf).min(),
    }
    for k, w in weights.items():
        if k != "W":
            found[f"norm_{k}"] = np.sqrt((w**2).sum())
    if "u" not in weights:
        score = np.take_along_axis(at.scores, best[..., None], -1)[..., 0]
        delta = score - at.margins
        each = np.log1p(np.expm1(delta) / (1 + np.exp(score)))
        found["excess_loss"] = each.sum() / tokens.n
        found["log_excess_loss"] = np.log(found["excess_loss"])
    for k, t in targets.items():
        subject = weights["u"] if t.ndim == 1 else W
        cosine = (subject * t).sum() / np.sqrt((subject**2).sum() * (np.asarray(t, np.longdouble) ** 2).sum())
        found[f"cosine_{k}"], found[f"misalignment_{k}"] = cosine, 1 - cosine
    return found


AT = [0, 1, 7, 40]


def test_metrics_are_what_they_say_for_normalized_steps():
    run = train(steps=40, record=AT)
    assert run.steps.tolist() == AT
    for r, at in enumerate(AT):
        here = train(steps=at, record=[at])
        after = train(steps=at + 1, record=None)
        for i in range(3):
            want = expected_metrics(TOKENS[i], {"W": here.W[i]}, "logistic", {"target": TARGET})
            want["step_length"] = np.linalg.norm(after.W[i] - here.W[i])
            want["log_step_size"] = np.log(0.1) - want["log_gradient_norm"]
            assert set(run.metrics) == set(want)
            for k, v in want.items():
                got = run.metrics[k][i, r]
                assert got == pytest.approx(float(v), rel=1e-11, abs=1e-12), (k, at)
                assert here.metrics[k][i, 0] == got, (k, at)
            assert run.metrics["step_length"][i, r] == pytest.approx(0.1, rel=1e-12)


def test_metrics_are_what_they_say_for_keys_queries_and_a_head():
    """Joint training from zero head: the second step on, all three parameters move."""
    at = [1, 5, 30]
    run = train("joint decay", steps=30, record=at)
    for r, t in enumerate(at):
        here = train("joint decay", steps=t, record=[t])
        for i in range(3):
            weights = {k: w[i] for k, w in here.weights.items()}
            targets = {"w": PER_TRIAL[i], "head": HEAD_TARGET}
            want = expected_metrics(TOKENS[i], weights, "exponential", targets)
            blocks = [0.2 * (t + 1) ** (-2 / 3), 0.2 / (t + 1), 0.2 / (t + 1)]
            want["step_length"] = np.linalg.norm(blocks)
            want["log_step_size"] = np.log(want["step_length"]) - want["log_gradient_norm"]
            assert set(run.metrics) == set(want)
            for k, v in want.items():
                assert run.metrics[k][i, r] == pytest.approx(float(v), rel=1e-11, abs=1e-12), (k, t)
    assert not run.initial["u"].any()
    assert run.u.shape == (3, 5)
    assert run.K.shape == (3, 5, 2)
    np.testing.assert_array_equal(run.W, run.K @ np.swapaxes(run.Q, -1, -2))


def test_gradient_norm_is_that_of_models_gradient():
    run = train(steps=300, record=[0, 300])
    for r, W in ((0, run.initial["W"]), (1, run.W)):
        mantissa, log_scale = al.models.gradient(TOKENS, W)
        want = np.log(np.linalg.norm(mantissa["W"], axis=(-2, -1))) + log_scale["W"]
        np.testing.assert_allclose(run.metrics["log_gradient_norm"][:, r], want, rtol=1e-13)


def test_own_metrics_see_weights_logits_and_probabilities():
    def first(view):
        return view.W[0, 0]

    def everything(view):
        parts = (view.logits, view.probs, view.margins, view.params["W"])
        return jnp.concatenate([part.ravel() for part in parts])

    run = train(steps=9, record=[0, 9], metrics={"first": first, "everything": everything})
    assert run.metrics["first"].shape == (3, 2)
    np.testing.assert_array_equal(run.metrics["first"][:, 0], run.initial["W"][:, 0, 0])
    np.testing.assert_array_equal(run.metrics["first"][:, 1], run.W[:, 0, 0])
    assert run.metrics["everything"].shape == (3, 2, 12 + 12 + 3 + 25)
    for i in range(3):
        at = oracle.evaluate(oracle.arrays_of(TOKENS[i]), run.W[i].astype(np.longdouble))
        logits, probs, margins, W = np.split(run.metrics["everything"][i, 1], [12, 24, 27])
        centred = at.logits - at.logits.mean(-1, keepdims=True)
        np.testing.assert_allclose(logits.reshape(3, 1, 4), centred.astype(float), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(probs.reshape(3, 1, 4), at.s.astype(float), rtol=1e-12)
        np.testing.assert_allclose(margins.reshape(3, 1), at.margins.astype(float), rtol=1e-12)
        np.testing.assert_array_equal(W.reshape(5, 5), run.W[i])


def test_tracked_tokens_are_those_asked_for():
    track = np.array([[0, 1, 2], [3, 3, 3], [2, 1, 0]])
    run, usual = train(steps=7, record=[7], track=track), train(steps=7, record=[7])
    for i in range(3):
        want = expected_metrics(TOKENS[i], {"W": run.W[i]}, "logistic", {"target": TARGET}, track[i])
        for k in ("attention", "attention_min", "margin"):
            assert run.metrics[k][i, 0] == pytest.approx(float(want[k]), rel=1e-12)
    assert run.W.tobytes() == usual.W.tobytes()
    assert run.metrics["excess_loss"].tobytes() == usual.metrics["excess_loss"].tobytes()


def test_targets_are_directions_shared_or_per_trial():
    shared = train(steps=3, record=[3])
    scaled = train(steps=3, record=[3], targets=1e150 * TARGET)
    each = train(steps=3, record=[3], targets={"target": np.stack([TARGET, TARGET, np.eye(5)])})
    np.testing.assert_allclose(scaled.metrics["misalignment_target"], shared.metrics["misalignment_target"], rtol=1e-14)
    np.testing.assert_array_equal(each.metrics["cosine_target"][:2], shared.metrics["cosine_target"][:2])
    want = al.cosine(each.W[2], np.eye(5))
    assert each.metrics["cosine_target"][2, 0] == pytest.approx(want, abs=1e-14)


def test_selected_is_the_largest_logit():
    run = train(steps=100, record=None)
    assert run.metrics == {}
    assert run.steps.shape == (0,)
    np.testing.assert_array_equal(run.selected, al.models.attention(TOKENS, run.W).argmax(-1))
    assert run.selected.shape == (3, 3)


# --- recording ---------------------------------------------------------------------------------------------------


def test_the_number_of_records_depends_on_the_schedule_alone():
    for steps, per_decade in ((0, 20), (1, 20), (99, 5), (5000, 7)):
        run = train(steps=steps, record=per_decade)
        assert tuple(run.steps) == log_spaced(steps, per_decade)
        assert all(v.shape == (3, len(run.steps)) for v in run.metrics.values())
        assert run.last_step == steps
        assert run.status is Status.FINISHED
    assert train(steps=0).W.tobytes() == train(steps=0).initial["W"].tobytes()


def test_where_records_are_taken_does_not_change_the_run():
    """Every step, few, many at once, none: the same weights, and the same values where schedules meet."""
    every = train(steps=150, record=list(range(151)))
    some = train(steps=150, record=[149, 3, 64, 65, 128])
    none = train(steps=150, record=None)
    assert every.W.tobytes() == some.W.tobytes()
    np.testing.assert_allclose(none.W, every.W, rtol=1e-13)
    assert some.steps.tolist() == [3, 64, 65, 128, 149]
    for k, v in some.metrics.items():
        assert v.tobytes() == every.metrics[k][:, some.steps].tobytes()


def test_a_range_is_a_schedule():
    assert train(steps=6, record=range(0, 7, 3)).steps.tolist() == [0, 3, 6]


def test_how_often_the_clock_is_read_does_not_change_the_run(ticking):
    assert_same(train(steps=700), train(steps=700))
    slow = train(steps=700)
    assert slow.seconds > 20  # read often


# --- continuing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_two_parts_with_a_file_between_are_one_run(name, tmp_path):
    whole = train(name, steps=90)
    part = train(name, steps=37)
    loaded = al.Trajectory.load(part.save(tmp_path / "part"))
    assert_same(loaded, part)
    assert loaded.config == part.config
    assert loaded.versions == part.versions
    assert (loaded.status, loaded.seconds) == (part.status, part.seconds)
    rest = train(name, steps=90, resume=loaded)
    assert_same(rest, whole)
    assert rest.seconds > part.seconds
    assert 37 in part.steps
    assert 37 not in whole.steps


def test_a_finished_run_continues_into_itself():
    run = train(steps=30)
    assert_same(train(steps=30, resume=run), run)


def test_a_part_without_records_can_be_followed_by_one_with():
    part = train(steps=20, record=None)
    rest = train(steps=40, record=[10, 20, 30], resume=part)
    assert rest.steps.tolist() == [20, 30]
    whole = train(steps=40, record=[20, 30])
    np.testing.assert_allclose(rest.metrics["loss"], whole.metrics["loss"], rtol=1e-13)


def test_one_trial_without_axis_round_trips(tmp_path):
    part = train(tokens=TOKENS[1], steps=37)
    assert part.W.shape == (5, 5)
    assert part.selected.shape == (3,)
    assert part.metrics["loss"].shape == (len(part.steps),)
    assert part.trials is None
    rest = train(tokens=TOKENS[1], steps=90, resume=al.Trajectory.load(part.save(tmp_path / "one.npz")))
    assert_same(rest, train(tokens=TOKENS[1], steps=90))
    assert "step=90" in repr(rest)


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("seed", {"seed": 1}),
        ("init_scale", {"init_scale": 2.0}),
        ("init", {"init": "gaussian"}),
        ("loss", {"loss": "exponential"}),
        ("head", {"head": "relu-sum"}),
        ("tokens", {"tokens": al.data.sphere(n=3, T=4, d=5, seed=3, trials=3)}),
        ("train_head", {"train_head": True}),
        ("parameterization", {"parameterization": "KQ"}),
    ],
)
def test_resuming_with_another_setting_names_it(setting, options):
    run = train(steps=5, record=None)
    with pytest.raises(al.InputError, match=rf"`resume`.*another .*\b{setting}\b"):
        train(steps=9, record=None, resume=run, **options)


def test_resuming_with_another_rule_or_too_far_is_refused():
    run = train(steps=5, record=None)
    for rule in (al.ngd(0.2), al.gd(0.1)):
        with pytest.raises(al.InputError, match=r"`resume`.*another rule"):
            al.descend(TOKENS, rule, steps=9, record=None, resume=run, targets=TARGET)
    with pytest.raises(al.InputError, match="step 5, past `steps` = 4"):
        train(steps=4, record=None, resume=run)


def test_a_file_that_is_no_run_is_refused(tmp_path):
    path = TOKENS.save(tmp_path / "tokens")
    with pytest.raises(al.InputError, match="not a saved run"):
        al.Trajectory.load(path)


# --- stopping ----------------------------------------------------------------------------------------------------

TWO = al.data.two_tokens()
E11 = np.array([[1.0, 0.0], [0.0, 0.0]])
SIDEWAYS = np.array([[0.0, 1.0], [0.0, 0.0]])


def toward_e11(other=E11, **options):
    return al.descend(TWO, al.ngd(0.1), init=SIDEWAYS, targets={"target": E11, "other": other}, **options)


def test_stops_at_the_first_record_that_is_aligned():
    full = toward_e11(steps=600)
    first = int(np.argmax(full.metrics["misalignment_target"] <= 0.01))
    at = int(full.steps[first])
    assert 64 < at < 128
    run = toward_e11(steps=600, stop_misalignment=0.01)
    assert run.status is Status.ALIGNED
    assert run.last_step == run.steps[-1] == at
    assert run.steps.tolist() == full.steps[: first + 1].tolist()
    np.testing.assert_allclose(run.metrics["loss"], full.metrics["loss"][: first + 1], rtol=1e-14)
    np.testing.assert_allclose(run.W, toward_e11(steps=at, record=None).W, rtol=1e-14)


def test_reaching_alignment_at_the_very_end_is_just_the_end():
    run = toward_e11(steps=12, record=[0, 12], stop_misalignment=0.5)
    assert run.metrics["misalignment_target"][-1] < 0.5
    assert run.status is Status.FINISHED
    assert run.last_step == 12


def test_alignment_is_judged_at_records_only():
    run = toward_e11(steps=2000, record=[0, 1000, 2000], stop_misalignment=0.1)
    assert run.last_step == 1000
    assert run.steps.tolist() == [0, 1000]


def test_every_target_must_be_reached():
    run = toward_e11(-E11, steps=100, stop_misalignment=0.5)
    assert run.status is Status.FINISHED


def test_stopping_by_alignment_needs_records():
    with pytest.raises(al.InputError, match="record"):
        toward_e11(steps=100, record=None, stop_misalignment=0.5)


def test_out_of_time_and_on_again(ticking):
    whole = train(steps=400)
    part = train(steps=400, stop_seconds=6.0)
    assert part.status is Status.OUT_OF_TIME
    assert part.seconds > 6.0
    assert 0 < part.last_step < 400
    assert train(steps=400, stop_seconds=1e6).status is Status.FINISHED
    assert part.steps[-1] <= part.last_step
    again = train(steps=400, stop_seconds=6.0, resume=part)
    assert again.last_step > part.last_step
    assert again.seconds > part.seconds
    rest = train(steps=400, resume=again)
    assert rest.status is Status.FINISHED
    assert_same(rest, whole)


def test_on_step_reports_and_its_snapshot_resumes(ticking):
    seen, kept = [], []

    def look(progress):
        seen.append((progress.step, progress.steps, progress.seconds))
        if len(kept) < 2:
            kept.append(progress.snapshot())

    whole = train(steps=400, on_step=look)
    steps = [s for s, _, _ in seen]
    assert steps == sorted(set(steps))
    assert len(steps) > 3
    assert steps[-1] == 400
    assert {total for _, total, _ in seen} == {400}
    assert all(a[2] < b[2] for a, b in itertools.pairwise(seen))
    for snapshot in kept:
        assert snapshot.status is Status.RUNNING
        assert snapshot.last_step in steps
        assert_same(train(steps=400, resume=snapshot), whole)


def test_overflow_is_a_status_and_not_an_exception():
    run = al.descend(TOKENS, al.ngd(1e308), steps=100000, targets=TARGET)
    assert run.status is Status.NOT_FINITE
    assert run.diverged.tolist() == [True, True, True]
    assert run.last_step < 100000
    assert "not_finite" in repr(run)


def test_a_trial_that_overflows_leaves_the_others_alone():
    start = np.array(train(steps=0).initial["W"])
    start[1] = 1.7e308 * np.sign(TOKENS.z[1, 0])  # the logits of its first query overflow
    run = train(steps=50, init=start)
    assert run.status is Status.PARTLY_FINITE
    assert run.diverged.tolist() == [False, True, False]
    np.testing.assert_allclose(run.W[[0, 2]], train(steps=50).W[[0, 2]], rtol=1e-13)


# --- trials ------------------------------------------------------------------------------------------------------

MANY = al.data.sphere(n=3, T=4, d=5, seed=5, trials=40)
SIZES = [1, 2, 15, 16, 17, 33, 40]


@pytest.fixture(scope="module")
def forty():
    return al.descend(MANY, al.ngd(0.1), steps=60, record=None)


@pytest.mark.parametrize("size", SIZES)
def test_a_trial_does_not_depend_on_its_company(size, forty):
    run = al.descend(MANY[:size], al.ngd(0.1), steps=60, record=None)
    assert run.W.shape == (size, 5, 5)
    assert run.initial["W"].tobytes() == forty.initial["W"][:size].tobytes()
    assert oracle.error(run.W, forty.W[:size]) < 1e-12
    drawn = al.data.sphere(n=3, T=4, d=5, seed=5, trials=size)
    np.testing.assert_array_equal(drawn.x, MANY.x[:size])


def test_every_trial_of_a_batch_is_the_trial_alone(forty):
    for i in (0, 15, 16, 31, 32, 39):
        alone = al.descend(MANY[i], al.ngd(0.1), steps=60, record=None, init=forty.initial["W"][i])
        assert oracle.error(alone.W, forty.W[i]) < 1e-12
        np.testing.assert_array_equal(alone.selected, forty.selected[i])
    assert al.descend(MANY[0], al.ngd(0.1), steps=0, record=None).W.tobytes() == forty.initial["W"][0].tobytes()


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (al.ngd(0.1), {"parameterization": "KQ"}),
        (al.joint_decay(0.3), {"train_head": True, "loss": "exponential"}),
        (al.polyak(cap=20.0), {"loss": "exponential"}),
        (al.ngd_momentum(0.05, form="B", cap=1.0), {}),
    ],
    ids=["KQ", "joint", "polyak", "momentum"],
)
def test_batches_equal_single_runs_for_other_models_and_rules(rule, options):
    batch = al.descend(MANY[:18], rule, steps=40, record=None, **options)
    for i in (0, 17):
        start = {k: w[i] for k, w in batch.initial.items()}
        alone = al.descend(MANY[i], rule, steps=40, record=None, init=start, **options)
        for k, w in alone.weights.items():
            error = np.abs(w - batch.weights[k][i]).max() / np.abs(w).max()
            assert error < 1e-12, (k, error)


def test_another_process_finds_the_same_bytes(forty):
    script = (
        "import sys, attnlab as al\n"
        "run = al.descend(al.data.sphere(n=3, T=4, d=5, seed=5, trials=40), al.ngd(0.1), steps=60, record=None)\n"
        "sys.stdout.write(run.W.tobytes().hex())"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert found == forty.W.tobytes().hex()


# --- optax -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (optax.sgd(0.3), al.gd(0.3)),
        (optax.adam(0.02), al.adam(0.02)),
        (optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(2.0)), al.ngd(2e-3)),
    ],
    ids=["sgd", "adam", "clip"],
)
def test_any_optax_optimizer_drops_in(theirs, ours):
    """Clipping far below the norm of every gradient is a normalized step."""
    a = al.descend(TOKENS, theirs, steps=60, record=None)
    b = al.descend(TOKENS, ours, steps=60, record=None)
    assert oracle.error(a.W, b.W) < 1e-12
    assert a.config["rule"]["name"] == "optax"
    rest = al.descend(TOKENS, theirs, steps=60, record=None, resume=al.descend(TOKENS, theirs, steps=21, record=None))
    assert rest.W.tobytes() == a.W.tobytes()


def test_optax_polyak_gets_the_loss():
    """optax.polyak_sgd: step min(cap, loss / |g|^2), which is our rule with constant 1 and floor 0."""
    a = al.descend(TOKENS, optax.polyak_sgd(max_learning_rate=0.5), steps=30, record=None)
    b = al.descend(TOKENS, al.polyak(cap=0.5, constant=1.0, floor=0.0), steps=30, record=None)
    assert oracle.error(a.W, b.W) < 1e-12


# --- the caller's configuration ----------------------------------------------------------------------------------


def test_the_callers_precision_is_left_alone():
    assert jnp.zeros(2).dtype == jnp.float32
    train(steps=3, record=None)
    assert jnp.zeros(2).dtype == jnp.float32
    with pytest.raises(al.InputError):
        train(steps=-1)
    assert jnp.zeros(2).dtype == jnp.float32

    def fails(progress):
        assert jnp.zeros(2).dtype == jnp.float64
        raise KeyError("stop")

    with pytest.raises(KeyError):
        train(steps=3, record=None, on_step=fails)
    assert jnp.zeros(2).dtype == jnp.float32
    with jax.enable_x64(True):
        train(steps=3, record=None)
        assert jnp.zeros(2).dtype == jnp.float64


# --- refusals ----------------------------------------------------------------------------------------------------


def refuse(**options):
    return {"tokens": TOKENS, "rule": al.ngd(0.1), "steps": 3, "record": None} | options


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tokens": np.zeros((2, 3, 4))}, "`tokens` is an array"),
        ({"rule": "ngd"}, "`rule` is 'ngd'"),
        ({"rule": SimpleNamespace(init=al.ngd(0.1).init)}, "`rule` is"),
        ({"rule": SimpleNamespace(update=al.ngd(0.1).update)}, "`rule` is"),
        ({"steps": -1}, "`steps` is -1"),
        ({"steps": 10.0}, "`steps` is 10.0"),
        ({"record": [0, 4]}, "`record` asks for step 4"),
        ({"record": [-1]}, "`record`"),
        ({"record": 0}, "`record` is 0"),
        ({"record": "all"}, "`record`"),
        ({"track": np.zeros(3, int)}, "`track` has shape"),
        ({"track": np.zeros((3, 3))}, "`track` has type"),
        ({"track": np.full((3, 3), 4)}, "`track`"),
        ({"track": np.full((3, 3), -1)}, "`track`"),
        ({"targets": np.zeros((5, 5))}, r"`targets\['target'\]` is zero"),
        ({"targets": np.eye(4)}, r"`targets\['target'\]` has shape \(4, 4\)"),
        ({"targets": {"mine": np.full((5, 5), np.nan)}}, "targets\\['mine'\\]"),
        ({"targets": {"mine": np.ones(5)}}, "targets\\['mine'\\]"),
        ({"targets": np.ones((2, 5, 5))}, r"`targets\['target'\]` has shape \(2, 5, 5\)"),
        ({"stop_misalignment": 0.1}, "`stop_misalignment`"),
        ({"train_head": True, "head": "relu-sum"}, "`train_head`"),
        ({"rank": 2}, "`rank`"),
        ({"parameterization": "V"}, "`parameterization` is 'V'"),
        ({"loss": "focal"}, "`loss` is 'focal'"),
        ({"loss": 3}, "`loss` is 3"),
        ({"head": "mlp"}, "`head` is 'mlp'"),
        ({"init": "ones"}, "`init` is 'ones'"),
        ({"init_scale": -1.0}, "`init_scale`"),
        ({"rule": al.joint_decay(0.1)}, "'u'"),
        ({"parameterization": "KQ", "init": "zeros"}, "zeros"),
    ],
)
def test_bad_arguments_are_refused_by_name(options, match):
    with pytest.raises(al.InputError, match=match):
        al.descend(**refuse(**options))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"seed": -1}, "`seed`"),
        ({"seed": 0.5}, "`seed`"),
        ({"targets": np.stack([TARGET, 0 * TARGET, TARGET])}, r"`targets\['target'\]` is zero, or of some trial"),
        ({"init_scale": "big"}, "`init_scale`"),
        ({"metrics": {"loss": lambda view: 0.0}, "record": [0]}, "`metrics`"),
    ],
)
def test_other_bad_arguments_are_refused_by_name(options, match):
    with pytest.raises(al.InputError, match=match):
        al.descend(**refuse(**options))


def test_a_head_to_train_without_v_needs_tokens_to_track():
    bare = al.Tokens(x=TOKENS.x, z=TOKENS.z, y=TOKENS.y)
    with pytest.raises(al.InputError, match="track"):
        al.descend(bare, al.joint_separate(0.1), steps=2, train_head=True)
    with pytest.raises(al.InputError, match="`v`"):
        al.descend(bare, al.ngd(0.1), steps=2)
    rule, track = al.joint_decay(0.2), np.zeros((3, 3), int)
    options = {"steps": 5, "train_head": True, "init": "gaussian", "record": None}
    got = al.descend(bare, rule, track=track, **options)
    assert got.W.tobytes() == al.descend(TOKENS, rule, **options).W.tobytes()


def test_equal_shapes_share_one_compiled_program():
    """Other steps, step sizes, schedules, head constants and wraps of one user function compile nothing new."""
    from attnlab.train.program import advance

    def head(o):
        return jnp.tanh(o).sum()

    def loss(u):
        return jnp.exp(-u)

    tokens = al.data.sphere(n=2, T=3, d=4, seed=5)
    al.descend(tokens, al.ngd(0.1), steps=10, head=head, loss=loss)
    al.descend(tokens, al.ngd(0.1), steps=10, head=al.models.Concave(0.1))
    before = programs(advance)
    al.descend(tokens, al.ngd(0.3, cap=5.0), steps=17, record=[3, 4], head=head, loss=loss)
    al.descend(tokens, al.ngd(0.1), steps=10, head=al.models.Concave(0.7))
    assert programs(advance) == before


@pytest.mark.parametrize("parameterization", ["W", "KQ"])
@pytest.mark.parametrize("shape", [(5, 5, 10), (3, 4, 4)])
def test_a_long_run_of_one_trial_is_the_same_in_any_batch(shape, parameterization):
    """2000 steps, by which time K and Q have magnified any difference in the last digit beyond recognition."""
    tokens = al.data.sphere(*shape, seed=1, trials=18)
    options = {"steps": 2000, "parameterization": parameterization, "record": None}
    together = al.descend(tokens, al.ngd(0.1), **options)
    few = al.descend(tokens[:3], al.ngd(0.1), **options)
    np.testing.assert_allclose(few.W, together.W[:3], rtol=0, atol=1e-12 * np.abs(together.W).max())
    for i in (0, 16):
        alone = al.descend(tokens[i], al.ngd(0.1), init={k: w[i] for k, w in together.initial.items()}, **options)
        np.testing.assert_allclose(alone.W, together.W[i], rtol=0, atol=1e-12 * np.abs(alone.W).max())


def test_recording_does_not_change_a_run():
    tokens = al.data.sphere(5, 5, 10, seed=2, trials=3)
    options = {"steps": 1000, "parameterization": "KQ"}
    silent = al.descend(tokens, al.ngd(0.1), record=None, **options)
    watched = al.descend(tokens, al.ngd(0.1), metrics={"trace": lambda v: jnp.trace(v.W)}, **options)
    stopping = al.descend(tokens, al.ngd(0.1), targets=np.eye(10), stop_misalignment=1e-30, **options)
    np.testing.assert_array_equal(silent.W, watched.W)
    np.testing.assert_array_equal(silent.W, stopping.W)
