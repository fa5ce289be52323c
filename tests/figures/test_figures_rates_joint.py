"""Figure 3 of the rates paper: who is ahead, and what is lost; verdicts on doctored curves."""

import numpy as np
import pytest

from attnlab.claims import Verdict
from attnlab.figures.rates import joint

STEPS = np.unique(np.geomspace(1, 3000, 60).astype(int))
FACTS = {"sets": 3, "n": 10, "T": 2, "d": 100}
SPEEDS = {"gd": 1.0, "separate": 2.2, "total": 2.0, "polyak": 9.0, "polyak_free": 400.0, "decay": 0.01}


def made_up(**speeds):
    arrays = {"steps": STEPS, "separate_least": np.array([0.9, 0.95, 0.2, 0.99])}
    for name, speed in {**SPEEDS, **speeds}.items():
        t = speed * STEPS / 1000.0
        found = {
            "log_loss": -t, "norm": t, "norm_u": t, "attention": 1 - 0.5 * np.exp(-t),
            "attention_min": 1 - 0.5 * np.exp(-t), "misalignment_svm": np.exp(-t), "misalignment_head": np.exp(-t),
        }  # fmt: skip
        arrays |= {f"{name}_{key}": np.tile(values, (3, 1)) for key, values in found.items()}
    return arrays


def test_the_order_of_the_rules_decides():
    good = joint.judge(made_up(), FACTS)
    assert good.verdict is Verdict.HOLDS, good.seen
    for speeds, words in (
        ({"separate": 0.9, "total": 0.8}, "smaller loss than GD"),
        ({"polyak": 2.1}, "the Polyak step has the smallest loss"),
        ({"total": 1.5}, "fall alike"),
        ({"total": 2.4}, "ahead of NGD-joint"),
    ):
        bad = joint.judge(made_up(**speeds), FACTS)
        assert bad.verdict is Verdict.FAILS
        assert words in bad.seen.split("Not seen:")[1]


def test_a_lead_of_gd_at_first_is_told():
    arrays = made_up()
    early = STEPS < 1600
    arrays["gd_log_loss"] = np.where(early, -2.5, arrays["gd_log_loss"])
    finding = joint.judge(arrays, FACTS)
    assert finding.verdict is Verdict.HOLDS  # it does not last
    passed = finding.numbers["median step from which the loss is below that of GD"][joint.LOOKS["separate"].label]
    ahead = arrays["gd_log_loss"][0] > -2.2 * STEPS / 1000.0
    assert passed == STEPS[np.flatnonzero(~ahead)[-1] + 1]


def test_lost_sequences_are_counted():
    arrays = made_up()
    arrays["separate_attention_min"][1, -1] = 0.01
    finding = joint.judge(arrays, FACTS)
    assert (
        finding.numbers["sets where a sequence ends below one half on its planted token"][joint.LOOKS["separate"].label]
        == 1
    )
    assert finding.numbers["sets where NGD lost a sequence, of how many"] == [1, 4]
    assert "in 1 of 4 sets" in finding.seen
    assert len(finding.numbers["1 - cos of u at the end where NGD lost a sequence"]) == 1


def test_it_can_be_drawn(tmp_path):
    arrays = made_up()
    for name in joint.LOOKS:  # W is zero, and has no direction, after the first step
        arrays[f"{name}_norm"][:, 0] = 0.0
        arrays[f"{name}_misalignment_svm"][:, 0] = np.nan
    joint.draw(arrays, FACTS).savefig(tmp_path / "3.png")


@pytest.mark.slow
def test_smoke(tmp_path):
    from attnlab.figures import make

    made = make(joint.FIGURES[0], "smoke", out=tmp_path)
    numbers = made.finding.numbers
    # By Polyak's step without a cap the log loss falls by one half per step.
    assert numbers["largest deviation of the log loss without cap from -t/2, relative"] < 1e-3
    ends = numbers["median at the end: log loss, 1 - cos of u, 1 - cos of W, |u|, |W|, attention"]
    assert -0.1 < ends[joint.LOOKS["decay"].label][0] < -0.02
    shown = numbers["shown"]
    assert shown["they end with a smaller loss than GD"]
    assert shown["the Polyak step has the smallest loss of these"]
