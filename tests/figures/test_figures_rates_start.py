"""Figure 8 of the rates paper: small starts escape, large ones are trapped."""

import numpy as np
import pytest

from attnlab.claims import Verdict
from attnlab.figures import make
from attnlab.figures.rates import start


@pytest.fixture(scope="module")
def data():
    from attnlab.claims import Scale

    return start.start_data(Scale.SMOKE, lambda *_: None)


@pytest.mark.slow
def test_starts_and_limits(data):
    arrays, facts = data
    small, large = start._at(arrays, 0.1), start._at(arrays, 0.4)
    # softmax of -c |x_1|^2 against c |x_1|^2 with |x_1|^2 = 6.5 in sequence 2 and 1.04 in sequence 1
    for at, c in ((small, 0.1), (large, 0.4)):
        np.testing.assert_allclose(
            arrays["opt"][at, 0], [1 / (1 + np.exp(-2.08 * c)), 1 / (1 + np.exp(13 * c))], rtol=1e-12
        )
    np.testing.assert_allclose(arrays["floor"], 0.5 * (np.exp(-0.2) + np.exp(-0.5)), rtol=1e-12)
    np.testing.assert_allclose(arrays["W_mm"], [[-0.2096645, -0.725], [-0.725, -0.0083866]], atol=1e-6)
    finding = start.judge(arrays, facts)
    assert finding.verdict is Verdict.HOLDS, finding.seen
    assert not start._escapes(arrays)[large]
    start.draw(arrays, facts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("misalignment_svm", 0.2, "W aligns"), ("opt", 0.6, "goes to 1"), ("log_excess_loss", -1.0, "to its floor")],
)
def test_a_run_that_stays_behind_is_noticed(data, key, value, words):
    arrays, facts = data
    doctored = {**arrays, key: arrays[key].copy()}
    doctored[key][start._at(arrays, 0.1), -1] = value
    finding = start.judge(doctored, facts)
    assert finding.verdict is Verdict.FAILS
    assert words in finding.seen.split("Not seen:")[1]


@pytest.mark.slow
def test_files(tmp_path):
    assert make(start.FIGURES[0], "smoke", out=tmp_path).finding.verdict is Verdict.HOLDS
