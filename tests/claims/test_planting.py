"""The planting of faults itself: it changes what runs, everywhere, and takes it back."""

from functools import partial

import pytest
from planting import Fault, planted

import attnlab as al
from attnlab.theory import lipschitz_constants
from attnlab.theory.svm import lipschitz

HELD = partial(lipschitz_constants, loss="correlation")


def test_a_fault_reaches_whoever_holds_the_function_and_goes_again():
    tokens = al.data.sphere(n=2, T=3, d=4, seed=0)
    honest = HELD(tokens).W
    with planted(
        Fault("svm-L4", "theory.svm.lipschitz:lipschitz_constants", "3.0 * used.M1", "0.0 * used.M1", "dropped term")
    ):
        assert HELD(tokens).W == 0.0 < honest
        assert al.theory.lipschitz_constants(tokens, "correlation").W == 0.0
    assert honest == HELD(tokens).W


def test_methods_and_constants_can_be_faulty_too():
    constants = lipschitz.lipschitz_constants(al.data.sphere(n=2, T=3, d=4, seed=0))
    with planted(Fault("svm-E3", "theory.svm.lipschitz:LipschitzConstants.K", "** 2", "** 1", "exponent")):
        assert constants.K([[3.0]]) == pytest.approx(3.0 * constants.W)
    assert constants.K([[3.0]]) == pytest.approx(9.0 * constants.W)
    with planted(Fault("svm-L4", "theory.svm.lipschitz:LOSSES", "", "('logistic',)", "constant")):
        assert lipschitz.LOSSES == ("logistic",)
    assert len(lipschitz.LOSSES) == 3


def test_text_that_is_not_there_once_is_an_error():
    fault = Fault("svm-L4", "theory.svm.lipschitz:lipschitz_constants", "no such text", "", "none")
    with pytest.raises(LookupError, match="0 times"), planted(fault):
        pass
