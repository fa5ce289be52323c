"""Tallies: what holds, what fails, how tight it was, and what follows for the whole."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import binomtest, norm

from attnlab.claims import Bound, Count, Identity, Limit, Mean, Part, Share, Verdict, outcome
from attnlab.claims.parts import TIGHT, UNSOLVED, least, together

positive = st.floats(1e-6, 1e6)


def bound_of(*pairs, **options):
    bound = Bound("b", **options)
    for measured, promised in pairs:
        bound.add(measured, promised)
    return bound.part()


@settings(deadline=None)
@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=8))
def test_the_tightness_of_a_bound_is_its_largest_ratio(pairs):
    part = bound_of(*pairs)
    ratio = max(m / p for m, p in pairs)
    assert part.tightness == pytest.approx(ratio)
    assert part.instances == len(pairs)
    expected = Verdict.FAILS if ratio > 1 + 1e-9 else Verdict.HOLDS if ratio >= TIGHT else Verdict.LOOSE
    assert part.verdict is expected


@settings(deadline=None)
@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=8))
def test_bounds_by_logarithms_by_ratios_and_from_below_agree(pairs):
    measured, promised = np.array(pairs).T
    tallies = [Bound("b") for _ in range(4)]
    tallies[0].add(measured, promised)
    tallies[1].add_logs(np.log(measured), np.log(promised))
    tallies[2].add_ratios(measured / promised)
    tallies[3].add_at_least(promised, measured)
    values = [tally.part().tightness for tally in tallies]
    assert values == pytest.approx([values[0]] * 4, rel=1e-9)


@pytest.mark.parametrize(
    ("measured", "promised", "verdict"),
    [
        (0.0, 0.0, Verdict.LOOSE),
        (1e-300, 0.0, Verdict.FAILS),
        (1.0, np.inf, Verdict.LOOSE),
        (np.nan, 1.0, Verdict.FAILS),
        (1.0, np.nan, Verdict.FAILS),
        (1.0, -1.0, Verdict.FAILS),
        (-1.0, 1.0, Verdict.LOOSE),
        (np.inf, 1.0, Verdict.FAILS),
        (1.0 + 1e-12, 1.0, Verdict.HOLDS),
        (1.0 + 1e-6, 1.0, Verdict.FAILS),
    ],
)
def test_bounds_at_the_edge(measured, promised, verdict):
    assert bound_of((measured, promised)).verdict is verdict
    assert bound_of((measured, promised), (0.5, 1.0)).verdict is (
        Verdict.FAILS if verdict is Verdict.FAILS else Verdict.HOLDS
    )


def test_logs_of_zero_and_of_numbers_beyond_floats():
    bound = Bound("b")
    bound.add_logs([-np.inf, -1e5, -np.inf], [-np.inf, -1e5 + 1.0, 3.0])
    assert bound.part().tightness == pytest.approx(np.exp(-1.0))
    bound.add_logs(-1e5, -np.inf)
    assert bound.part().verdict is Verdict.FAILS


def test_promises_that_say_nothing_are_counted_and_not_judged():
    silent = Bound("b")
    silent.add([5.0, 7.0], 1.0, says=False)
    assert silent.part().verdict is Verdict.VACUOUS
    assert silent.silent == 2
    silent.add([5.0, 0.5], 1.0, says=[False, True])
    assert silent.part().verdict is Verdict.HOLDS
    assert (silent.silent, silent.instances) == (3, 1)
    assert Bound("none").part().verdict is Verdict.NOT_APPLICABLE


def test_how_much_a_bound_notices_is_said():
    assert bound_of((0.025, 1.0)).notices == "a constant 40 times smaller would still hold"
    assert "attained" in bound_of((1.0, 1.0)).notices
    assert "broken" in bound_of((2.0, 1.0)).notices
    assert "however small" in bound_of((0.0, 1.0)).notices


def test_identities_and_limits():
    for kind in (Identity, Limit):
        tally = kind("i", tolerance=1e-3)
        assert tally.part().verdict is Verdict.NOT_APPLICABLE
        tally.add([1e-4, 1e-3])
        assert tally.part().verdict is Verdict.HOLDS
        assert tally.part().worst == 1e-3
        tally.add(2e-3)
        assert tally.part().verdict is Verdict.FAILS
        broken = kind("i", tolerance=1e-3)
        broken.add([0.0, np.nan])
        assert broken.part().verdict is Verdict.FAILS
    signed = Identity("i", tolerance=1e-3)
    signed.add(-1.0)
    assert signed.part().verdict is Verdict.FAILS
    falling = Limit("l", tolerance=0.0)
    falling.add(-1.0)
    assert falling.part().verdict is Verdict.HOLDS


def test_counts():
    count = Count("c")
    assert count.part().verdict is Verdict.NOT_APPLICABLE
    count.add([False, False])
    assert (count.part().verdict, count.part().worst) == (Verdict.HOLDS, 0.0)
    count.add([True, False])
    assert (count.part().verdict, count.part().worst, count.part().instances) == (Verdict.FAILS, 1.0, 4)


@pytest.mark.parametrize(
    ("successes", "of", "verdict"),
    [(99, 100, Verdict.HOLDS), (8, 10, Verdict.TOO_FEW), (50, 100, Verdict.FAILS), (1, 1, Verdict.TOO_FEW)],
)
def test_shares_respect_how_many_there_are(successes, of, verdict):
    share = Share("s", at_least=0.8)
    share.add(np.arange(of) < successes)
    assert share.part().verdict is verdict
    opposite = Share("s", at_most=0.2)
    opposite.add(np.arange(of) >= successes)
    assert opposite.part().verdict is verdict


@settings(deadline=None)
@given(st.integers(1, 200), st.data())
def test_the_interval_of_a_share_is_wilsons(n, data):
    k = data.draw(st.integers(0, n))
    share = Share("s", at_least=0.5)
    share.add(np.arange(n) < k)
    level = norm.cdf(2.0) - norm.cdf(-2.0)
    wanted = binomtest(k, n).proportion_ci(confidence_level=level, method="wilson")
    assert share.interval() == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_all_and_none_need_no_interval():
    for level, passing in (({"at_least": 1.0}, True), ({"at_most": 0.0}, False)):
        share = Share("s", **level)
        share.add([passing] * 3)
        assert share.part().verdict is Verdict.HOLDS
        share.add(not passing)
        assert share.part().verdict is Verdict.FAILS


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.3, Verdict.HOLDS), (0.1, Verdict.TOO_FEW), (-0.1, Verdict.TOO_FEW), (-0.3, Verdict.FAILS)]
)
def test_means_are_judged_by_two_standard_errors(shift, verdict):
    values = np.tile([-1.0, 1.0], 50)  # standard error 0.1005
    mean = Mean("m", at_least=2.0)
    mean.add(2.0 + shift + values)
    assert mean.part().verdict is verdict
    other = Mean("m", at_most=2.0)
    other.add(2.0 - shift + values)
    assert other.part().verdict is verdict
    single = Mean("m", at_least=0.0)
    single.add(5.0)
    assert single.part().verdict is Verdict.TOO_FEW


def test_unsolved_instances_are_no_contradiction():
    count = Count("c")
    count.add([False] * 95)
    count.leave_unsolved(5)
    assert count.part().verdict is Verdict.HOLDS
    count.leave_unsolved(1)
    assert count.part().verdict is Verdict.UNSOLVED
    assert 6 / 101 > UNSOLVED >= 5 / 100
    count.add(True)
    assert count.part().verdict is Verdict.FAILS
    assert outcome(count).verdict is Verdict.FAILS


def part(form, verdict, tightness=None):
    return Part(name="p", form=form, verdict=verdict, worst=None, limit=None, tightness=tightness, instances=1)


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([("bound", Verdict.HOLDS), ("bound", Verdict.FAILS), ("count", Verdict.UNSOLVED)], Verdict.FAILS),
        ([("bound", Verdict.HOLDS), ("count", Verdict.UNSOLVED)], Verdict.UNSOLVED),
        ([("bound", Verdict.HOLDS), ("mean", Verdict.TOO_FEW)], Verdict.TOO_FEW),
        ([("bound", Verdict.LOOSE), ("bound", Verdict.LOOSE)], Verdict.LOOSE),
        ([("bound", Verdict.LOOSE), ("count", Verdict.HOLDS)], Verdict.LOOSE),
        ([("bound", Verdict.LOOSE), ("limit", Verdict.HOLDS)], Verdict.HOLDS),
        ([("bound", Verdict.LOOSE), ("bound", Verdict.HOLDS)], Verdict.HOLDS),
        ([("bound", Verdict.VACUOUS), ("bound", Verdict.HOLDS)], Verdict.HOLDS),
        ([("bound", Verdict.VACUOUS), ("bound", Verdict.NOT_APPLICABLE)], Verdict.VACUOUS),
        ([("bound", Verdict.NOT_APPLICABLE)], Verdict.NOT_APPLICABLE),
        ([("count", Verdict.HOLDS)], Verdict.HOLDS),
        ([], Verdict.NOT_APPLICABLE),
    ],
)
def test_the_whole_follows_from_its_parts(parts, verdict):
    assert together(part(form, one) for form, one in parts) is verdict


def test_an_outcome_of_several_parts():
    near, far, count = Bound("near"), Bound("far"), Count("count")
    near.add([0.2, 0.5], 1.0)
    far.add(1e-6, 1.0)
    count.add([False] * 7)
    whole = outcome(near, far, count, seeds=[1])
    assert whole.verdict is Verdict.HOLDS
    assert whole.tightness == 0.5
    assert whole.instances == 7
    assert whole.worst == 0.5
    assert whole.line == "holds; a constant 2 times smaller would still hold"
    facts = whole.to_json()
    assert [p["verdict"] for p in facts["parts"]] == ["holds", "not violated, far from tight", "holds"]
    assert type(whole).from_json(facts).to_json() == facts
    far.add(3.0, 1.0)
    broken = outcome(near, far, count)
    assert (broken.verdict, broken.worst) == (Verdict.FAILS, 3.0)
    assert broken.line == "fails; broken 3 times over"
    assert outcome(near, far, count, instances=4).instances == 4


def test_the_tightness_of_an_outcome_is_that_of_its_bounds():
    bound, exact = Bound("b"), Identity("i", tolerance=1e-9)
    bound.add(0.1, 1.0)
    exact.add(0.0)
    assert outcome(bound, exact).tightness == 0.1
    assert outcome(exact).tightness == 1.0
    limit = Limit("l", tolerance=1.0)
    limit.add(0.5)
    assert outcome(limit).tightness is None


def test_infinities_survive_json():
    bound = Bound("b")
    bound.add(1.0, 0.0)
    whole = outcome(bound)
    assert whole.to_json()["parts"][0]["worst"] == "inf"
    again = type(whole).from_json(whole.to_json())
    assert again.parts[0].worst == np.inf
    assert again.worst == np.inf


def test_the_least_slack_by_name():
    assert least({"a": 1.0, "b": 2.0}, {"a": 0.5, "c": 3.0}) == {"a": 0.5, "b": 2.0, "c": 3.0}


def test_what_was_found_is_said_in_the_words_of_its_form():
    count, identity, limit, bound = Count("c"), Identity("i", tolerance=1e-9), Limit("l", tolerance=0.1), Bound("b")
    count.add([False] * 3)
    identity.add(2e-12)
    limit.add(0.05)
    bound.add(0.25, 1.0)
    stands = [tally.part().found for tally in (count, identity, limit, bound)]
    assert stands == [
        "in all of 3",
        "equal to 2e-12",
        "l: 0.05, asked 0.1",
        "a constant 4 times smaller would still hold",
    ]
    count.add(True)
    identity.add(1e-3)
    limit.add(0.5)
    bound.add(7.0, 1.0)
    fails = [tally.part().found for tally in (count, identity, limit, bound)]
    assert fails == [
        "contradicted in 1 of 4",
        "off by 0.001, asked 1e-09",
        "l: 0.5, asked 0.1",
        "broken 7 times over",
    ]
    assert Bound("none").part().found == "not judged"
    assert count.part().limit == 0.0


def test_zero_over_zero_in_logarithms_is_nothing():
    bound = Bound("b")
    bound.add_logs(-np.inf, -np.inf)
    assert bound.part().tightness == 0.0


def test_the_standard_error_of_a_mean_is_that_of_a_sample():
    mean = Mean("m", at_least=0.0)
    mean.add([1.0, 3.0])  # deviation sqrt(2), standard error 1
    assert mean.part().notices.startswith("2 ± 2 ")
