"""The picture of a counterexample shows its tokens, its scores and both directions."""

import io

import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.figures.trap import draw_trap


def example_of(tokens, **more):
    return {"how": "by hand", "x": tokens.x, "z": tokens.z, "y": tokens.y, "v": tokens.v, **more}


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_one_panel_per_sequence_with_scores_and_directions():
    tokens = al.data.trap("T4", seed=0)
    figure = draw_trap(example_of(tokens, selected=[1, 0]), "Theorem 4")
    assert len(figure.axes) == 2
    assert {"best token", "selected", "query", "W_mm z", "W_mm(selected) z"} <= set(labels(figure))
    for i, axes in enumerate(figure.axes):
        shown = {text.get_text() for text in axes.texts} - {""}
        assert shown == {f"{value + 0.0:.2g}" for value in al.scores(tokens)[i]}
    assert "Theorem 4" in figure.get_suptitle()
    assert "principal" in figure.axes[0].get_xlabel()
    figure.savefig(io.BytesIO(), format="png")


def test_arrows_point_where_the_max_margin_matrices_do():
    tokens = al.data.trap("plain")
    figure = draw_trap(example_of(tokens, selected=[1, 0]), "plain")
    W = al.solve_margin(tokens, [0, 0]).W
    for i, axes in enumerate(figure.axes):
        arrows = [text for text in axes.texts if not text.get_text()]  # query, best, selected
        tip, foot = np.array(arrows[1].xy), np.array(arrows[1].get_position())
        wanted = W @ tokens.z[i]
        assert np.allclose((tip - foot) / np.linalg.norm(tip - foot), wanted / np.linalg.norm(wanted))


def test_it_draws_what_it_can():
    tokens = al.data.sphere(n=8, T=3, d=1 + 1, seed=0)
    figure = draw_trap({"x": tokens.x, "z": tokens.z, "y": tokens.y}, "no head, many sequences")
    assert len(figure.axes) == 6
    assert "6 of 8" in figure.get_suptitle()
    several = al.Tokens(x=tokens.x, z=np.stack([tokens.z, tokens.z], axis=1), y=np.ones((8, 2)), v=tokens.v)
    assert "W_mm z" not in labels(draw_trap(example_of(several, selected=np.zeros((8, 2))), "several queries"))


def test_missing_arrays_are_named():
    with pytest.raises(InputError, match="z, y"):
        draw_trap({"x": np.zeros((1, 2, 2))}, "nothing")
