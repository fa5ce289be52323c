"""`al.probe`: calibrated on untrained heads, finds a trained one; blind to what does not matter."""

import json

import numpy as np
import pytest

import attnlab as al
from attnlab.errors import InputError
from attnlab.reports import HeadVerdict
from attnlab.reports.probing.judged import discoveries, judge, verdict
from attnlab.reports.probing.measure import Measured
from attnlab.reports.probing.metrics import Metric
from reports.probe_data import queries_and_keys, trained, untrained

SMALL = {"queries": 6, "draws": 3, "splits": 1}


def numbers(report, metric="whitened", names=("share", "chance", "ceiling", "z")):
    frame = report.frame()
    return np.array([frame[f"{metric}_{name}"] for name in names])


@pytest.mark.slow
def test_untrained_heads_are_not_distinguishable_from_chance():
    """160 heads: the deviation of z is known to 6 % (its own deviation), its mean to 0.08."""
    reports = [al.probe(**untrained(seed, layers=2, heads=20, prompts=16), queries=8, splits=1) for seed in range(4)]
    for metric in ("hidden", "whitened"):
        z = np.concatenate([numbers(report, metric, ("z",))[0] for report in reports])
        assert 0.8 < z.std(ddof=1) < 1.2, metric
        assert abs(z.mean()) < 0.4, metric  # heads share their tokens, so means move more than by 0.08
    above = sum(report.counts[HeadVerdict.ONE] + report.counts[HeadVerdict.BOTH] for report in reports)
    assert above <= 0.05 * 2 * 160


@pytest.mark.parametrize("seed", [0, 1])
def test_a_head_trained_to_its_max_margin_direction_is_found_and_rotated_ones_are_not(seed):
    arrays, tokens, run = trained(seed)
    solution = al.solve_margin(tokens, run.selected)
    assert al.cosine(run.W, solution.W) > 0.999
    report = al.probe(**arrays)
    found = report["L0H0"].judged[Metric.HIDDEN]
    assert found.index > 0.8
    assert found.z > 5
    assert report["L0H0"].verdict in (HeadVerdict.BOTH, HeadVerdict.ONE)
    for head in report.heads[1:]:
        assert head.verdict is HeadVerdict.CHANCE, head.name


@pytest.mark.parametrize("seed", range(3))
def test_heads_that_are_the_same_function_get_the_same_whitened_numbers(seed):
    given = untrained(seed)
    q, k = queries_and_keys(given)
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((6, 6)) + 2 * np.eye(6)
    plain = al.probe(q, k, **SMALL)
    other = al.probe(q @ np.linalg.inv(A), 3.0 * k @ A.T + rng.standard_normal(6), **SMALL)
    np.testing.assert_allclose(numbers(other), numbers(plain), rtol=1e-4, atol=1e-6)
    names = ("share", "chance", "ceiling")
    of_hidden = al.probe(**{**given, "b_Q": None, "ids": None}, **SMALL)
    q, k = queries_and_keys({**given, "b_Q": np.zeros((1, 3, 6))})
    np.testing.assert_allclose(
        numbers(of_hidden, names=names), numbers(al.probe(q, k, **SMALL), names=names), rtol=1e-6
    )


def test_an_orthogonal_basis_of_the_hidden_states_changes_nothing():
    given = untrained(0)
    R = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0]
    turned = {**given, "hidden": given["hidden"] @ R.T, "W_Q": given["W_Q"] @ R.T, "W_K": given["W_K"] @ R.T}
    one, other = al.probe(**given, **SMALL), al.probe(**turned, **SMALL)
    np.testing.assert_allclose(numbers(other, "hidden"), numbers(one, "hidden"), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scales_change_nothing(scale):
    q, k = queries_and_keys(untrained(1))
    expected = numbers(al.probe(q, k, **SMALL))
    np.testing.assert_allclose(numbers(al.probe(scale * q, k, **SMALL)), expected, rtol=1e-6)
    np.testing.assert_allclose(numbers(al.probe(q, scale * k, **SMALL)), expected, rtol=1e-6)


def test_prompts_in_another_order_change_the_halves_alone():
    given = untrained(2)
    q, k = queries_and_keys(given)
    order = np.random.default_rng(0).permutation(q.shape[2])
    one = al.probe(q, k, ids=given["ids"], **SMALL)
    other = al.probe(q[:, :, order], k[:, :, order], ids=given["ids"][order], **SMALL)
    for a, b in zip(one.heads, other.heads, strict=True):
        assert vars(a.descriptors) == pytest.approx(vars(b.descriptors))
        assert a.stable_rank[Metric.WHITENED] == pytest.approx(b.stable_rank[Metric.WHITENED])


def test_padding_and_hidden_keys_are_never_seen():
    given = untrained(3)
    q, k = queries_and_keys(given)
    mask = np.arange(7) < np.random.default_rng(0).integers(4, 8, size=(14, 1))
    rubbish = np.where(mask[..., None], 0.0, 1e6)
    one = al.probe(q, k, mask=mask, sinks=[0], **SMALL)
    other = al.probe(q + rubbish, k + rubbish, mask=mask, sinks=[0], **SMALL)
    np.testing.assert_allclose(numbers(other), numbers(one), rtol=1e-9)
    wide = np.pad(q, [(0, 0)] * 3 + [(0, 3), (0, 0)]), np.pad(k, [(0, 0)] * 3 + [(0, 3), (0, 0)])
    padded = al.probe(*wide, mask=np.pad(mask, [(0, 0), (0, 3)]), sinks=[0], **SMALL)
    np.testing.assert_allclose(numbers(padded), numbers(one), rtol=1e-9)
    full = mask[:, :, None] & mask[:, None, :]
    np.testing.assert_allclose(numbers(al.probe(q, k, mask=full, sinks=[0], **SMALL))[:, 0].shape, (4,))


def test_tokens_in_a_row_with_groups_are_padded_prompts():
    given = untrained(4)
    q, k = queries_and_keys(given)
    lengths = np.random.default_rng(0).integers(4, 8, size=14)
    mask = np.arange(7) < lengths[:, None]
    groups = np.repeat(np.arange(14), lengths)
    flat_q, flat_k = q[:, :, mask], k[:, :, mask]
    padded = al.probe(q, k, mask=mask, ids=given["ids"], **SMALL)
    flat = al.probe(flat_q, flat_k, groups=groups, ids=given["ids"][mask], **SMALL)
    assert flat.frame().equals(padded.frame())
    hidden = {name: given[name] for name in ("W_Q", "W_K", "b_Q")}
    both = al.probe(hidden=given["hidden"][:, mask], groups=groups, **hidden, **SMALL)
    np.testing.assert_allclose(numbers(both), numbers(padded), rtol=1e-6)


def test_keys_may_be_shared_by_heads_and_heads_may_be_chosen():
    q, k = queries_and_keys(untrained(5, layers=2, heads=4))
    shared = al.probe(q, k[:, :2], **SMALL)
    repeated = al.probe(q, np.repeat(k[:, :2], 2, axis=1), **SMALL)
    assert shared.frame().equals(repeated.frame())
    some = al.probe(q, k, layers=[1], heads=[0, 3], **SMALL)
    assert [head.name for head in some.heads] == ["L1H0", "L1H3"]
    whole = al.probe(q, k, **SMALL)
    assert some[1, 3].judged[Metric.WHITENED].share == whole["L1H3"].judged[Metric.WHITENED].share
    one = al.probe(q[0, 0], k[0, 0], **SMALL)
    assert one["L0H0"].judged[Metric.WHITENED].share == whole["L0H0"].judged[Metric.WHITENED].share


def test_causal_is_a_triangle():
    q, k = queries_and_keys(untrained(6))
    triangle = np.tile(np.tri(7, dtype=bool), (14, 1, 1))
    assert al.probe(q, k, causal=True, **SMALL).frame().equals(al.probe(q, k, mask=triangle, **SMALL).frame())


@pytest.mark.parametrize("norm", ["nuclear", "spectral", "max"])
def test_other_norms(norm):
    report = al.probe(**untrained(7, heads=1), norm=norm, **SMALL)
    shares = numbers(report, "hidden", ("share", "chance", "ceiling"))
    assert ((shares > 0) & (shares <= 1 + 0.03)).all()
    assert report.settings.norm == norm


def test_report_prints_counts_and_writes_json():
    seen = []
    report = al.probe(**untrained(8), **SMALL, on_part=lambda *told: seen.append(told))
    assert repr(report).count("\n") == 0
    assert "L0H2" in str(report)
    assert "To be said with it" in str(report)
    assert [done for done, _, _ in seen] == [0, 1, 2, 3]
    text = json.dumps(report.to_json(), allow_nan=False)
    assert len(json.loads(text)["heads"]) == 3
    frame = report.frame()
    assert frame["name"].tolist() == ["L0H0", "L0H1", "L0H2"]
    assert frame["whitened_share"].tolist() == [head.judged[Metric.WHITENED].share for head in report.heads]
    with pytest.raises(InputError, match="no head 'L9H9'"):
        report["L9H9"]


def measured(share, chance, ceiling=0.5, reason=""):
    halves = np.array(share, dtype=float)
    drawn = np.array(chance, dtype=float)[:, None] * np.ones(len(halves))
    return Measured(
        share=halves,
        chance=drawn,
        ceiling=np.full(len(halves), ceiling),
        agreement=halves,
        chance_agreement=drawn,
        gap=0.0,
        stable_rank=1.0,
        pairs=np.zeros((0, 4), dtype=int),
        multipliers=np.zeros(0),
        held_by=0,
        reason=reason,
    )


def test_index_and_z_by_hand():
    heads = [
        measured([0.3, 0.5], [0.1, 0.2, 0.3]),
        measured([], [], reason="few"),
        measured([0.2, 0.2], [0.19, 0.2, 0.21], ceiling=0.21),
    ]
    (first, nothing, second), deviation = judge(heads)
    assert nothing is None
    assert deviation == pytest.approx(np.sqrt((0.1**2 + 0.01**2) / 2))
    assert first.z == pytest.approx(0.2 / (deviation * np.sqrt(1 + 1 / 3)))
    assert first.index == pytest.approx(0.2 / 0.3)
    assert first.index_range == pytest.approx((0.1 / 0.3, 0.3 / 0.3))
    assert first.share_range == (0.3, 0.5)
    assert first.ceiling == 0.5
    assert second.index is None  # its ceiling is not clear of chance
    assert second.p == pytest.approx(0.5)
    assert second.agreement == pytest.approx(0.2)


def test_index_needs_a_ceiling_four_deviations_above_chance():
    (below,), deviation = judge([measured([0.3], [0.1, 0.2, 0.3], ceiling=0.2 + 3.99 * 0.1)])
    (above,), _ = judge([measured([0.3], [0.1, 0.2, 0.3], ceiling=0.2 + 4.01 * 0.1)])
    assert deviation == pytest.approx(0.1)
    assert below.index is None
    assert above.index == pytest.approx(0.1 / 0.401)


@pytest.mark.parametrize("seed", range(5))
def test_discoveries_by_their_definition(seed):
    p = np.random.default_rng(seed).random(40) ** 3
    largest = max([0, *(i for i in range(1, 41) if np.sort(p)[i - 1] <= 0.05 * i / 40)])
    assert discoveries(p).sum() == largest
    assert set(np.flatnonzero(discoveries(p))) == set(np.argsort(p)[:largest])


def test_verdicts():
    (above,), _ = judge([measured([9.0], [0.1, 0.2, 0.3])])
    (below,), _ = judge([measured([0.2], [0.1, 0.2, 0.3])])
    hidden, whitened = Metric.HIDDEN, Metric.WHITENED
    assert verdict({hidden: above, whitened: above}) is HeadVerdict.BOTH
    assert verdict({hidden: below, whitened: above}) is HeadVerdict.ONE
    assert verdict({whitened: above}) is HeadVerdict.ONLY
    assert verdict({hidden: below, whitened: below}) is HeadVerdict.CHANCE
    assert verdict({hidden: below, whitened: None}) is HeadVerdict.TOO_LITTLE


GOOD = np.random.default_rng(0).standard_normal((6, 5, 4))
TOO_LITTLE = {
    "one query": ({"mask": np.arange(30).reshape(6, 5) < 1}, "no query has two keys"),
    "one query of two": ({"mask": np.arange(30).reshape(6, 5) < 2, "causal": True}, "there is one query"),
    "all sinks": ({"sinks": np.ones((6, 5), dtype=bool)}, "all keys are sinks"),
    "hidden": ({"mask": np.zeros((6, 5))}, "the mask hides every token"),
    "one prompt": ({"mask": np.arange(30).reshape(6, 5) < 5}, "there is one prompt"),
    "few": ({"queries": 9}, "18 are wanted, for n = 9"),
}


@pytest.mark.parametrize("name", TOO_LITTLE)
def test_too_little_data_says_why(name):
    options, why = TOO_LITTLE[name]
    report = al.probe(GOOD, GOOD[::-1], **options)
    assert report.heads[0].verdict is HeadVerdict.TOO_LITTLE
    assert why in report.heads[0].reason
    assert why in str(report)
    json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("q", "k", "why"),
    [
        (GOOD, np.ones_like(GOOD), "all keys are equal"),
        (0 * GOOD, GOOD, "queries are zero"),
        (GOOD, np.where(np.arange(5)[:, None] < 4, GOOD[:, :1], GOOD), "decisive"),
    ],
)
def test_ties_are_no_choice(q, k, why):
    report = al.probe(q, k, queries=4)
    assert report.heads[0].verdict is HeadVerdict.TOO_LITTLE
    assert why in report.heads[0].reason


BAD = {
    "q": [
        {"q": np.where(np.arange(4) == 2, np.nan, GOOD)},
        {"q": GOOD[0, 0]},
        {"q": np.zeros((0, 5, 4))},
        {"q": None},
        {"q": "text"},
    ],
    "k": [{"k": None}, {"k": GOOD[:5]}, {"k": GOOD[..., :3]}, {"k": GOOD + 1j}],
    "mask": [{"mask": np.ones((5, 6))}, {"mask": np.full((6, 5), 2)}, {"mask": np.ones((6, 5, 4))}],
    "sinks": [{"sinks": [[0, 1]]}, {"sinks": [0.5]}, {"sinks": np.ones((5, 6), dtype=bool)}, {"sinks": "first"}],
    "ids": [{"ids": np.ones((6, 5))}, {"ids": np.ones((6, 4), dtype=int)}],
    "words": [{"words": np.ones((6, 5))}, {"words": [["a"]]}],
    "groups": [{"groups": [0, 1]}, {"q": GOOD[0], "k": GOOD[0], "groups": [0.5] * 5}],
    "layers": [{"layers": [1]}, {"layers": []}, {"layers": "all"}],
    "heads": [{"heads": [-1]}],
    "norm": [{"norm": "l1"}, {"norm": None}],
    "queries": [{"queries": 0}, {"queries": 2.5}],
    "draws": [{"draws": 1}],
    "splits": [{"splits": 0}],
    "tolerance": [{"tolerance": 0.0}, {"tolerance": np.nan}],
    "seed": [{"seed": -1}],
    "causal": [{"causal": "yes"}],
    "W_Q": [{"W_Q": GOOD}, {"q": None, "k": None, "hidden": GOOD}],
    "W_K": [{"q": None, "k": None, "hidden": GOOD, "W_Q": np.ones((2, 4))}],
    "hidden": [{"hidden": GOOD}, {"q": None, "k": None, "hidden": GOOD[0, 0], "W_Q": GOOD, "W_K": GOOD}],
    "b_Q": [{"q": None, "k": None, "hidden": GOOD, "W_Q": np.ones((2, 4)), "W_K": np.ones((2, 4)), "b_Q": np.ones(3)}],
}


@pytest.mark.parametrize(("name", "changed"), [(name, one) for name, many in BAD.items() for one in many])
def test_bad_arguments_are_named(name, changed):
    with pytest.raises(InputError, match=f"`{name}`"):
        al.probe(**({"q": GOOD, "k": GOOD, "queries": 4} | changed))


def test_language_models_give_their_arrays():
    texts = al.data.made_up_texts(30, seed=0)
    tokenizer = al.data.Tokenizer.of_texts(texts)
    data = texts.encode(tokenizer, length=24)
    model = al.models.Bert(classes=2, vocabulary=tokenizer.vocabulary, dim=16, heads=2, mlp=16)
    arrays = al.reports.probe_arrays(model, model.initial(data, seed=0), data)
    assert arrays["hidden"].shape[2] == data.mask.sum(1).max()
    assert arrays["mask"].sum() == data.mask.sum()
    report = al.probe(**arrays, queries=6, draws=2, splits=1)
    assert report.metrics == (Metric.HIDDEN, Metric.WHITENED)
    assert len(report.heads) == 4
    causal = al.models.Gpt2(classes=2, vocabulary=tokenizer.vocabulary, dim=16, heads=2, mlp=16)
    assert al.reports.probe_arrays(causal, causal.initial(data, seed=0), data)["causal"] is True
    with pytest.raises(InputError, match="`model`"):
        al.reports.probe_arrays(data, {}, model)
