"""The machinery: verdicts, errata in two halves, keeping, and what is news."""

import json
from functools import partial

import numpy as np
import pytest

from attnlab import InputError, Store
from attnlab.claims import Claim, Kind, Outcome, Scale, Slip, Verdict, check, claims, find
from attnlab.claims.claim import erratum, within


def made(measure, **options):
    facts = {"id": "svm-X1", "title": "t", "statement": "s", "reason": "r", "tolerance": 1.0, **options}
    return Claim(measure=measure, **facts)


SLIP = Slip(kind=Kind.CONSTANT, where="Lemma 1", quote="p", charitable="none", correction="c")


def outcome(verdict, **facts):
    return lambda scale: Outcome(verdict=verdict, instances=1, **facts)


def test_within():
    assert within(1.0, 1.0, instances=1).verdict is Verdict.HOLDS
    assert within(1.0 + 1e-9, 1.0, instances=1).verdict is Verdict.FAILS
    assert within(float("nan"), 1.0, instances=1).verdict is Verdict.FAILS
    assert within(0.0, 1.0, instances=0, tried=7).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("printed", "corrected", "verdict"),
    [
        (Verdict.FAILS, Verdict.HOLDS, Verdict.ERRATUM),
        (Verdict.HOLDS, Verdict.HOLDS, Verdict.HOLDS),
        (Verdict.FAILS, Verdict.FAILS, Verdict.FAILS),
        (Verdict.NOT_APPLICABLE, Verdict.HOLDS, Verdict.FAILS),
        (Verdict.FAILS, Verdict.NOT_APPLICABLE, Verdict.FAILS),
    ],
)
def test_an_erratum_needs_both_halves(printed, corrected, verdict):
    claim = erratum(
        id="svm-E99", title="t", printed="p", corrected="c", reason="r", slip=SLIP,
        measure_printed=outcome(printed, seeds=[3], note="one"), measure_corrected=outcome(corrected, seeds=[1, 3]),
    )  # fmt: skip
    assert claim.expected is Verdict.ERRATUM
    found = claim.measure(Scale.SMOKE)
    assert found.verdict is verdict
    assert found.numbers["printed"]["verdict"] == printed.value
    assert list(found.seeds) == [1, 3]
    assert found.note == "one"
    assert "Printed: p" in claim.statement


def test_outcomes_survive_json():
    given = Outcome(
        verdict=Verdict.HOLDS, instances=3, worst=0.5, tried=4, seeds=[np.int64(1)], note="n",
        numbers={"a": np.float64(1.5), "b": np.arange(3), "c": float("inf"), "d": {"e": (1, 2)}}, slack={"h": 0.25},
    )  # fmt: skip
    facts = json.loads(json.dumps(given.to_json()))
    again = Outcome.from_json(facts)
    assert again.to_json() == facts
    assert again.numbers == {"a": 1.5, "b": [0, 1, 2], "c": "inf", "d": {"e": [1, 2]}}
    assert (again.verdict, again.worst, again.tried, list(again.seeds)) == (Verdict.HOLDS, 0.5, 4, [1])


def calls_in(file):
    return file.read_text().split() if file.exists() else []


def counted(scale, *, file):
    """A measure that leaves its trace in a file: what a function closes over or names decides what is kept."""
    with file.open("a") as lines:
        lines.write(f"{scale.value}\n")
    return within(0.5, 1.0, instances=len(calls_in(file)))


def test_an_outcome_is_measured_once_and_kept(tmp_path):
    calls = tmp_path / "calls"
    claim, store = made(partial(counted, file=calls)), Store(tmp_path / "store")
    first = check([claim], "smoke", store=store)[0]
    again = check([claim], "smoke", store=store)[0]
    assert calls_in(calls) == ["smoke"]
    assert again.outcome.to_json() == first.outcome.to_json()
    assert again.seconds == first.seconds
    assert check([claim], "quick", store=store)[0].outcome.instances == 2
    assert check([claim], "smoke", store=store, fresh=True)[0].outcome.instances == 3
    assert check([claim], "smoke", store=store)[0].outcome.instances == 3
    assert check([claim], "smoke")[0].outcome.instances == 4


def test_what_differs_from_the_record_is_news():
    results = check([made(outcome(Verdict.HOLDS)), made(outcome(Verdict.FAILS)),
                     made(outcome(Verdict.FAILS), expected=Verdict.FAILS)], "smoke")  # fmt: skip
    assert [r.as_expected for r in results] == [True, False, True]


def test_progress_is_told():
    seen = []
    check([made(outcome(Verdict.HOLDS))] * 2, "smoke", on_part=lambda *part: seen.append(part))
    assert [(done, total) for done, total, _ in seen] == [(0, 2), (1, 2), (2, 2)]
    assert "svm-X1" in seen[0][2]


def test_claims_are_listed_and_found():
    listed = claims()
    names = [claim.id for claim in listed]
    assert len(set(names)) == len(names)
    assert all(claim.statement.strip() and claim.reason.strip() and claim.title for claim in listed)
    assert all(claim.paper == "svm" for claim in claims("svm"))
    assert find(["svm-L1", "svm-T1"])[0].id == "svm-L1"
    json.dumps([claim.about() for claim in listed])
    with pytest.raises(InputError, match=r"no claim svm-L99"):
        find(["svm-L99"])
    with pytest.raises(InputError, match="`paper` is 'x'"):
        claims("x")
    with pytest.raises(InputError, match="`scale` is 'huge'"):
        check([], "huge")


def test_a_rank_beyond_the_queries_would_be_noticed(monkeypatch):
    """svm-L1 fails for a W with a part outside the span of the queries."""
    from attnlab.claims.svm import feasibility

    honest = feasibility.solve_margin

    def tampered(*args, **options):
        found = honest(*args, **options)
        object.__setattr__(found, "W", found.W + 1e-6 * np.eye(len(found.W)))
        return found

    claim = find(["svm-L1"])[0]
    assert claim.measure(Scale.SMOKE).verdict is Verdict.HOLDS
    monkeypatch.setattr(feasibility, "solve_margin", tampered)
    assert claim.measure(Scale.SMOKE).verdict is Verdict.FAILS
