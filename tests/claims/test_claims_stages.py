"""Stages of long computations: told, kept, read again."""

from pathlib import Path

import numpy as np
import pytest

from attnlab import AttnlabError, Store
from attnlab.claims import Claim, Outcome, Scale, Verdict, check
from attnlab.claims.stages import Stages, kept_in


def computation(log, stop_at=None):
    """Three stages; `log` has the words of those that were computed."""
    told = []
    stage = Stages(lambda *seen: told.append(seen), 3, "slow")
    found = []
    for n in (1, 2, 3):

        def compute(n=n):
            if n == stop_at:
                raise KeyboardInterrupt
            log.append(n)
            return {"square": np.array(n**2), "n": n}

        found.append(int(stage(f"n = {n}", compute)["square"]))
    return found, told


def test_a_stopped_computation_goes_on(tmp_path):
    log = []
    with kept_in(Store(tmp_path), {"id": "a"}), pytest.raises(KeyboardInterrupt):
        computation(log, stop_at=3)
    with kept_in(Store(tmp_path), {"id": "a"}):
        found, told = computation(log)
    assert (found, log) == ([1, 4, 9], [1, 2, 3])
    assert told == [(0, 3, "n = 1 (slow)"), (1, 3, "n = 2 (slow)"), (2, 3, "n = 3 (slow)"), (3, 3, "done")]


def test_another_whole_has_other_stages(tmp_path):
    log = []
    for config in ({"id": "a"}, {"id": "b"}):
        with kept_in(Store(tmp_path), config):
            computation(log)
    with kept_in(None):
        computation(log)
    computation(log)
    assert log == 4 * [1, 2, 3]


def test_two_stages_of_one_name_are_refused():
    stage = Stages()
    stage("one", dict)
    with pytest.raises(AttnlabError, match="both 'one'"):
        stage.keep("one", dict)


def test_a_stopped_claim_goes_on(tmp_path):
    log = str(tmp_path / "log")  # a file, since values that a function reaches decide what is kept

    def compute(n):
        with open(log, "a") as file:
            file.write(f"{n}")
        return {"n": n}

    def measure(scale):
        stage = Stages()
        for n in (1, 2):
            stage(f"n = {n}", lambda n=n: compute(n))
        if Path(log).read_text() == "12":
            raise KeyboardInterrupt
        stage("n = 3", lambda: compute(3))
        return Outcome(verdict=Verdict.HOLDS, instances=3)

    claim = Claim(id="own-1", title="three", statement="", reason="", measure=measure)
    with pytest.raises(KeyboardInterrupt):
        check([claim], Scale.SMOKE, store=Store(tmp_path / "store"))
    with open(log, "a") as file:
        file.write(" again ")
    check([claim], Scale.SMOKE, store=Store(tmp_path / "store"))
    check([claim], Scale.SMOKE, store=Store(tmp_path / "store"), fresh=True)
    assert Path(log).read_text() == "12 again 3123"
