"""A sample of hostile calls over the whole API, by Hypothesis: a failing one is made as plain as it can be."""

import os
import zlib

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from fuzz.calls import table
from fuzz.outcomes import outcome
from fuzz.source import Drawn, Seeded
from fuzz.written import written

EXAMPLES = 3  # of a usual case; those of large weight have more
SEEDED = 12
COMPILED = 0.5  # cases of less weight compile programs, or are slow: one call each


def _judge(case, src):
    found, call = outcome(case, src)
    assert not found.kind.fault, f"{found.kind.value}: {found.what} {found.where}\n{found.detail}\n{written(call)}"


def _cheap(case):
    return case.weight >= COMPILED


@pytest.mark.parametrize("name", [name for name, case in table().items() if _cheap(case)])
def test_hostile_calls_end_in_a_right_answer_or_a_typed_error(name):
    case = table()[name]

    @settings(
        max_examples=EXAMPLES + int(case.weight),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(strategies.data())
    def judged(data):
        _judge(case, Drawn(data))

    judged()


@pytest.mark.parametrize("name", list(table()))
def test_seeded_calls_end_in_a_right_answer_or_a_typed_error(name):
    case = table()[name]
    first = zlib.crc32(name.encode())
    for i in range(SEEDED + int(2 * case.weight) if _cheap(case) else 1):
        _judge(case, Seeded(first, i))


assert os.environ.get("OPENBLAS_NUM_THREADS") == "1"
