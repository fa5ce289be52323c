"""Where normalized gradient descent goes."""

import numpy as np
import pytest
from verifier import judge

import attnlab as al


@pytest.mark.slow
def test_normalized_descent_reaches_the_max_margin_direction_of_its_own_selection():
    """Step 1, 20 000 steps, 64 trials at n = T = 5, d = 10: median misalignment below 1e-6."""
    tokens = al.data.sphere(n=5, T=5, d=10, seed=11, trials=64)
    run = al.descend(tokens, al.ngd(1.0), steps=20_000, record=None)
    found = al.solve_margins(tokens, run.selected)
    assert found.feasible.all()
    away = np.array([float(al.misalignment(w, s)) for w, s in zip(run.W, found.W, strict=True)])
    assert np.median(away) < 1e-6
    assert judge(tokens[0], found[0]).faults == ()
