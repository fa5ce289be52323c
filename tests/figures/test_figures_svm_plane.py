"""Figures 1 and 3: in the plane."""

import numpy as np
import pytest

from attnlab.claims import Verdict
from attnlab.figures import make
from attnlab.figures.svm import plane
from attnlab.svm import linear_margin


def labelled(seed, sets=3, many=8):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((sets, many, 2))
    truth = rng.standard_normal((sets, 2))
    labels = np.sign(np.einsum("rid,rd->ri", points, truth))
    return points + 0.3 * labels[..., None] * truth[:, None], labels


@pytest.mark.parametrize("seed", range(3))
def test_regression_follows_the_gradient_and_then_the_margin(seed):
    points, labels = labelled(seed)
    record = np.array([1, 2, 3, 3000])
    path = plane.logistic_path(points, labels, record)
    here = np.zeros((len(points), 2))
    for k in range(3):  # the textbook gradient, while nothing is small
        signed = labels[..., None] * points
        weight = 1 / (1 + np.exp(np.einsum("rid,rd->ri", signed, here)))
        step = (weight[..., None] * signed).sum(1)
        here = here + 0.1 * step / np.linalg.norm(step, axis=-1, keepdims=True)
        np.testing.assert_allclose(path[:, k], here, rtol=1e-12)
    for i in range(len(points)):
        limit = linear_margin(points[i], labels[i]).weights
        end = path[i, -1]
        assert end @ limit / np.linalg.norm(end) / np.linalg.norm(limit) > 0.999


def cluster_arrays(own, cross, sets=4):
    """Both runs with these cosines at the end, in sets whose solutions differ."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((sets, 2, 3, 2)), "z": rng.standard_normal((sets, 2, 2)),
              "steps": np.array([0, 1, 10, 100])}  # fmt: skip
    for name in plane.BOTH:
        arrays |= {f"{name}_path": rng.standard_normal((sets, 4, 2, 2)), f"{name}_selected": np.zeros((sets, 2), int),
                   f"{name}_best": np.ones(sets, bool), f"{name}_between": np.full(sets, 0.9)}  # fmt: skip
        for norm in plane.NORMS:
            end = own if norm == plane.OWN[name] else cross
            arrays[f"{name}_{norm}"] = rng.standard_normal((sets, 2, 2))
            arrays[f"{name}_{norm}_apart"] = np.tile([1.0, 0.5, 1 - end], (sets, 1))
    return arrays


def test_paths_must_end_at_their_own_solution():
    facts = {"shown": 0}
    assert plane.judge_1(cluster_arrays(0.995, 0.9), facts).verdict is Verdict.HOLDS
    assert plane.judge_1(cluster_arrays(0.97, 0.9), facts).verdict is Verdict.FAILS
    assert plane.judge_1(cluster_arrays(0.995, 0.999), facts).verdict is Verdict.FAILS
    alike = cluster_arrays(0.995, 0.9)
    alike["W_between"][:] = 1.0  # no set tells the norms apart
    assert plane.judge_1(alike, facts).verdict is Verdict.FAILS


def separation_arrays(apart):
    points, labels = labelled(0)
    directions = np.stack([np.asarray(linear_margin(p, y).weights) for p, y in zip(points, labels, strict=True)])
    flat = np.full((3, 3), apart)
    return {"steps": np.array([1, 10, 100]), "points": points, "labels": labels, "regression": directions,
            "regression_path": np.tile(directions[:, None], (1, 3, 1)), "regression_apart": flat, "tokens": points,
            "selected": np.zeros(3, int), "attention": directions, "best": np.ones(3, bool),
            "attention_path": np.tile(directions[:, None], (1, 3, 1)), "attention_apart": flat}  # fmt: skip


def test_the_demonstration_must_settle():
    facts = {"sets": 3, "shown": 0}
    assert plane.judge_3(separation_arrays(1e-3), facts).verdict is Verdict.HOLDS
    assert plane.judge_3(separation_arrays(0.1), facts).verdict is Verdict.FAILS


def test_everything_can_be_drawn(tmp_path):
    plane.draw_1(cluster_arrays(0.995, 0.9), {"shown": 0}).savefig(tmp_path / "1.png")
    plane.draw_3(separation_arrays(1e-3), {"sets": 3, "shown": 0}).savefig(tmp_path / "3.png")


def test_the_demonstration_is_called_our_own():
    figure = next(f for f in plane.FIGURES if f.id == "svm-3")
    assert "our own demonstration" in figure.title.lower()
    picture = figure.draw(separation_arrays(1e-3), {"sets": 3, "shown": 0})
    assert "Our own demonstration" in picture.get_suptitle()


@pytest.mark.slow
@pytest.mark.parametrize("figure", plane.FIGURES, ids=lambda f: f.id)
def test_smoke(figure, tmp_path):
    assert make(figure, "smoke", out=tmp_path).finding.verdict is Verdict.HOLDS
