"""Messages: what is read from them, what is refused, and that answers are the laboratory's own."""

import json
import time

import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.explore.answers import Answers, descended, margins_along
from attnlab.explore.export import exported
from attnlab.explore.presets import presets
from attnlab.explore.scene import balanced_factors, principal_plane, pulled, read_scene, scene_of_tokens, written
from attnlab.explore.script import as_python
from attnlab.explore.worker import Worker, check_message

PLAIN = {
    "x": [[[1.0, 0.5], [-0.6, 1.0]], [[0.3, -0.9], [0.1, 0.4]]],
    "z": [[1.0, 0.2], [0.1, 1.0]],
    "y": [1, -1],
    "v": [0.25, 1.0],
    "start": [[0.05, 0.0], [0.0, 0.02]],
}


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.id)
def test_scenes_survive_the_way_to_the_page_and_back(preset):
    told = preset.to_json()["scene"]
    again = written(read_scene(json.loads(json.dumps(told))))
    assert again == told


def test_presets_show_what_they_promise():
    selected = {}
    for preset in presets():
        answers = Answers(read_scene(preset.scene))
        selected[preset.id] = (answers.solved(), answers.trained())
    solved, trained = selected["parting"]
    runs = trained["runs"]
    assert runs["W"]["selected"] == runs["KQ"]["selected"]
    assert runs["W"]["apart"]["frobenius"][-1] < 0.01 < 0.1 < runs["W"]["apart"]["nuclear"][-1]
    assert runs["KQ"]["apart"]["nuclear"][-1] < 0.01 < 0.1 < runs["KQ"]["apart"]["frobenius"][-1]
    solved, trained = selected["trap"]
    assert solved["best"] == [0, 0]
    assert trained["runs"]["W"]["selected"] == [[1], [0]]
    assert trained["runs"]["W"]["settled"]
    solved, trained = selected["local"]
    assert (solved["best"], trained["runs"]["W"]["selected"]) == ([0], [[1]])
    assert trained["runs"]["W"]["settled"]
    assert selected["tie"][0]["tied"] == [[0, 1]]
    solved, _ = selected["infeasible"]
    proof = solved["solutions"][solved["bestKey"]]["frobenius"]
    assert proof["status"] == "infeasible"
    assert sum(weight for _, _, weight in proof["farkas"]) == pytest.approx(1.0)
    _, trained = selected["concave"]
    assert all(run["selected"] == [[0, 1]] for run in trained["runs"].values())


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_the_library(seed):
    tokens = al.data.sphere(n=2, T=2, d=2, seed=seed)
    scene = scene_of_tokens(tokens, seed)
    answers = Answers(scene)
    solved, trained = answers.solved(), answers.trained()
    best = al.optimal_tokens(tokens)
    assert solved["best"] == best.tolist()
    for norm in ("frobenius", "nuclear"):
        svm = al.solve_margin(tokens, best, norm=norm, throw=False)
        told = solved["solutions"][solved["bestKey"]][norm]
        assert told["status"] == svm.status.name.lower()
        if svm.feasible:
            assert told["margin"] == pytest.approx(svm.margin, rel=1e-12)
            np.testing.assert_allclose(told["directions"], (svm.W @ tokens.z.T).T, rtol=1e-4, atol=1e-5)
    run = al.descend(tokens, al.ngd(0.1), steps=2000, init={"W": scene.start})
    told = trained["runs"]["W"]
    assert told["selected"] == [[int(token)] for token in run.selected]
    assert told["norm"][-1] == pytest.approx(run.metrics["norm"][-1], rel=1e-9)
    np.testing.assert_allclose(told["path"][-1], (run.W @ tokens.z.T).T, rtol=1e-4)


def test_margins_along_a_path_are_those_of_the_max_margin_direction_at_its_end():
    scene = read_scene(PLAIN)
    selected = al.optimal_tokens(scene.tokens)
    kept = np.arange(2) == selected[:, None]
    for norm in ("frobenius", "nuclear"):
        svm = al.solve_margin(scene.tokens, selected, norm=norm)
        along = margins_along(scene, np.stack([np.zeros((2, 2)), svm.W, -svm.W]), kept, norm)
        assert np.isnan(along[0])
        assert along[1] == pytest.approx(svm.margin, rel=1e-9)
        assert along[2] < 0


def test_short_sequences_are_padded_and_the_padding_is_never_seen():
    ragged = PLAIN | {"x": [PLAIN["x"][0], [PLAIN["x"][1][0]]]}
    scene = read_scene(ragged)
    assert scene.tokens.visible.tolist() == [[True, True], [True, False]]
    assert written(scene)["x"] == ragged["x"]
    run = descended(scene, "W")
    assert run.metrics["probabilities"][-1].reshape(2, 2)[1].tolist() == [1.0, 0.0]


def test_a_start_is_pulled_no_further_than_it_must():
    rng = np.random.default_rng(0)
    start, query, target = rng.standard_normal((3, 3)), rng.standard_normal(3), rng.standard_normal(3)
    moved = pulled(start, query, target)
    np.testing.assert_allclose(moved @ query, target, rtol=1e-12)
    # Any other W that goes there differs by something that kills the query, and is further away.
    other = rng.standard_normal((3, 3))
    other -= np.outer(other @ query, query) / (query @ query)
    assert np.linalg.norm(moved + 0.1 * other - start) > np.linalg.norm(moved - start)
    keys, queries = balanced_factors(moved)
    np.testing.assert_allclose(keys @ queries.T, moved, rtol=1e-10)
    np.testing.assert_allclose(keys.T @ keys, queries.T @ queries, atol=1e-12)


def test_the_principal_plane_sees_most():
    x = np.random.default_rng(0).standard_normal((3, 5, 4)) * [0.1, 3.0, 0.2, 2.0]
    plane = principal_plane(al.Tokens(x=x, z=np.ones((3, 4)), y=np.ones(3), v=np.ones(4)))
    np.testing.assert_allclose(plane @ plane.T, np.eye(2), atol=1e-12)
    assert np.abs(plane[:, [1, 3]]).min(0).max() < 1
    flat = x.reshape(-1, 4) - x.mean((0, 1))
    assert ((flat @ plane.T) ** 2).sum() > 0.95 * (flat**2).sum()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("x", None, "lacks `x`"),
        ("x", [], "`x`"),
        ("x", "text", "`x`"),
        ("x", [[[1.0, float("nan")]]], "`x\\[0\\]`"),
        ("x", [[[1.0]], [[1.0, 2.0]]], "different dimensions"),
        ("x", [[[1e9, 0.0], [0.0, 1.0]]] * 2, "beyond"),
        ("x", [[[0.0, 1.0]] * 129] * 2, "`x\\[0\\]`"),
        ("x", [[[0.0, 1.0]] * 64] * 65, "`x`"),
        ("z", [[1.0, 0.0]], "`z` has shape"),
        ("y", [0, 1], "labels must be"),
        ("v", [1.0], "`v` has shape"),
        ("mask", [[True, False]], "`mask` has shape"),
        ("head", "quartic", "`head`"),
        ("rule", "__import__", "`rule`"),
        ("rule", ["ngd"], "`rule`"),
        ("step", 0, "`step`"),
        ("step", float("inf"), "`step`"),
        ("steps", 10**9, "`steps`"),
        ("steps", True, "`steps`"),
        ("start", [[1.0]], "`start` has shape"),
        ("plane", [[1.0, 0.0], [1.0, 0.0]], "orthonormal"),
        ("pull", {"query": 5, "to": [0, 0]}, "pull.query"),
        ("pull", {"path": "/etc/passwd"}, "`pull` has fields"),
        ("chosen", [0, 7], "selected"),
        ("file", "/etc/passwd", "has a field"),
    ],
)
def test_what_is_wrong_with_a_scene_is_said_by_name(field, value, words):
    with pytest.raises(InputError, match=words):
        read_scene(PLAIN | {field: value})


@pytest.mark.parametrize("given", [None, 3, [], "scene", {}, {"kind": "scene"}, {"kind": "exec", "seq": 1}])
def test_messages_that_are_none_are_refused(given):
    with pytest.raises(InputError):
        check_message(given)


def test_programs_have_every_number_to_its_last_digit():
    scene = read_scene(PLAIN | {"v": [1 / 3, 0.1]})
    names = {}
    exec(as_python(scene).split("rule =")[0], names)
    assert names["tokens"].digest() == scene.tokens.digest()


def test_an_exported_file_has_a_frame_for_every_place_and_ends_no_script_early():
    scene = read_scene(PLAIN)
    text = exported(scene, [1, 0], "</script><script>alert(1)</script>", side=2)
    content = json.loads(text.split('id="content">')[1].split("</script>")[0])
    assert len(content["frames"]) == 4
    assert text.count("</script>") == 2
    assert len({tuple(frame["token"]) for frame in content["frames"]}) == 4
    with pytest.raises(InputError, match="moved"):
        exported(scene, [0, 9])


class Listener:
    """Whoever sends messages and reads the answers."""

    def __init__(self):
        self.answers = []

    def wait(self, condition, seconds=60.0):
        until = time.monotonic() + seconds
        while not condition(self.answers):
            assert time.monotonic() < until, self.answers
            time.sleep(0.005)


@pytest.fixture
def worker():
    started = Worker().start()
    yield started
    started.close()


def test_the_newest_message_is_answered_and_stale_ones_are_not(worker):
    listener = Listener()
    client = worker.join(listener.answers.append)
    for seq in range(200):
        worker.put(client, {"kind": "scene", "seq": seq, "scene": PLAIN | {"step": 0.1 + 1e-3 * seq}})
    listener.wait(lambda answers: any(a["kind"] == "trained" and a["seq"] == 199 for a in answers))
    solved = [answer["seq"] for answer in listener.answers if answer["kind"] == "solved"]
    assert solved == sorted(solved)
    assert len(solved) < 100


def test_a_client_that_floods_does_not_keep_another_waiting(worker):
    loud, quiet = Listener(), Listener()
    flooding, patient = worker.join(loud.answers.append), worker.join(quiet.answers.append)
    worker.put(patient, {"kind": "scene", "seq": 0, "scene": PLAIN})
    quiet.wait(lambda answers: len(answers) == 2)
    for seq in range(50):
        worker.put(flooding, {"kind": "python", "seq": seq, "scene": PLAIN})
    worker.put(patient, {"kind": "scene", "seq": 1, "scene": PLAIN})
    quiet.wait(lambda answers: len(answers) == 4)
    loud.wait(lambda answers: len(answers) == 50)
    refused = [answer for answer in loud.answers if answer["kind"] == "error"]
    assert all("waiting" in answer["message"] for answer in refused)
    assert len(refused) >= 30


def test_what_goes_wrong_inside_is_told_without_details(worker, monkeypatch, capsys):
    def broken(_):
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("attnlab.explore.worker.as_python", broken)
    listener = Listener()
    worker.put(worker.join(listener.answers.append), {"kind": "python", "seq": 0, "scene": PLAIN})
    listener.wait(len)
    assert listener.answers[0]["error"] == "Fault"
    assert "secret" not in listener.answers[0]["message"]
