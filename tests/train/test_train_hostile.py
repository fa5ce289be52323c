"""Whatever is given to training, models and rules: a typed error that names the argument, or numbers that are right."""

import hostile_calls as hostile
import numpy as np
import pytest

from sampling import first_few

GOOD = {"error", "result", "FINISHED", "STALLED", "PARTLY_FINITE", "NOT_FINITE", "UNMOVED", "INCOMPLETE", "ALIGNED",
        "OUT_OF_TIME"}  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_any_argument(seed):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        note, call = hostile.any_argument(rng)
        assert hostile.outcome(call) in GOOD, note


@pytest.mark.parametrize("seed", first_few(range(4), 2))
def test_any_scale(seed):
    rng = np.random.default_rng(100 + seed)
    for _ in range(4):
        note, call = hostile.any_scale(rng)
        assert hostile.outcome(call) in GOOD, note


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_more(seed):
    rng = np.random.default_rng(1000 + seed)
    for _ in range(100):
        note, call = (hostile.any_argument if rng.random() < 0.5 else hostile.any_scale)(rng)
        assert hostile.outcome(call) in GOOD, note
