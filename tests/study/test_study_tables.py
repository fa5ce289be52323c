"""Tables, summaries, LaTeX and pictures against independent counts."""

import numpy as np
import pandas
import pytest
import study_work as work
from scipy.stats import binom

import attnlab as al
from attnlab.study.latex import _cell, escaped, latex
from attnlab.study.summary import mean, median, share

GRID = {"p": [0.2, 0.7], "n": [1, 2]}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    found = al.Study(work.coins, GRID, trials=40, store=tmp_path_factory.mktemp("store"))
    found.run()
    return found


def test_summary_counts(study):
    rows = study.summary()
    assert len(rows) == 4 * 3
    frame = study.frame()
    for _, row in rows.iterrows():
        group = frame[(frame["p"] == row["p"]) & (frame["n"] == row["n"])][row["of"]]
        expected = group.mean() if row["of"] == "heads" else group.median()
        assert row["value"] == pytest.approx(expected, rel=1e-12)
        assert row["low"] <= row["value"] <= row["high"]
        assert (row["trials"], row["nan"], row["failed"]) == (40, 0, 0)
    pooled = study.summary(by="p", of="heads")
    assert pooled["trials"].tolist() == [80, 80]
    (whole,) = study.summary(by=[], of="heads", how="mean").to_dict("records")
    assert whole["value"] == pytest.approx(frame["heads"].mean())


@pytest.mark.parametrize("count", [6, 7, 11, 20, 101])
def test_the_interval_of_a_median_covers_it(count):
    """Exactly 1 - 2 P(Bin < k) for the order statistics that were taken, and no narrower pair would do."""
    found = median("x", np.arange(float(count)))
    k = int(found.low)
    assert found.high == count - 1 - k
    coverage = 1 - 2 * binom.cdf(k, count, 0.5)
    narrower = 1 - 2 * binom.cdf(k + 1, count, 0.5)
    assert coverage >= 0.95 > narrower


def test_few_values_have_no_interval():
    assert np.isnan(median("x", np.arange(5.0)).low)
    assert median("x", np.arange(5.0)).value == 2
    for estimate in (median, share, mean):
        assert np.isnan(estimate("x", np.zeros(0))).all()
    assert share("x", np.ones(3)).high == 1
    assert median("x", np.array([1.0, np.inf, np.inf])).value == np.inf


def test_the_bootstrap_covers_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(60):
        found = mean("x", rng.standard_normal(40))
        hits += found.low <= 0 <= found.high
    assert hits >= 50


def test_latex(study):
    text = study.to_latex(of="heads", across="n", caption="Heads_%", label="tab:heads")
    lines = text.splitlines()
    assert lines[0] == r"\begin{table}"
    assert r"\caption{Heads\_\%}" in lines
    assert r"\begin{tabular}{lrr}" in lines
    assert r"  p & n = 1 & n = 2 \\" in lines
    row = study.summary(of="heads").iloc[0]
    cell = f"${row['value']:.3g}\\ [{row['low']:.3g}, {row['high']:.3g}]$"
    assert any(line.startswith(f"  0.2 & {cell} & ") for line in lines)
    (nothing,) = study.summary(of="heads", by=[]).to_dict("records")
    cell = _cell(pandas.DataFrame([nothing | {"value": np.nan, "low": np.nan, "high": np.nan}]), None, None, "heads", 3)
    assert cell == "--"
    plain = study.to_latex()
    assert plain.count(r"\\") == 1 + 4
    assert escaped("a_b\\c^") == r"a\_b\textbackslash{}c\textasciicircum{}"


def test_files_read_back(study, tmp_path):
    frame = study.frame()
    assert pandas.read_csv(study.to_csv(tmp_path / "t.csv")).drop(columns="error").equals(frame.drop(columns="error"))
    assert (
        pandas.read_parquet(study.to_parquet(tmp_path / "t.parquet"))
        .drop(columns="error")
        .equals(frame.drop(columns="error"))
    )


def test_dataset(study, tmp_path):
    cube = study.dataset()
    assert dict(cube.sizes) == {"p": 2, "n": 2, "trial": 40}
    frame = study.frame()
    for p in GRID["p"]:
        for n in GRID["n"]:
            rows = frame[(frame["p"] == p) & (frame["n"] == n)]
            assert cube["value"].sel(p=p, n=n).values.tolist() == rows["value"].tolist()
    points = [{"p": 0.2, "n": 1}, {"p": 0.7, "n": 2}]
    listed = al.Study(work.coins, points, trials=40, store=study.store)
    assert listed.run().computed == 0
    assert dict(listed.dataset().sizes) == {"point": 2, "trial": 40}
    matrices = al.Study(lambda point, seeds: {"W": np.ones((len(seeds), 2, 3))}, {"n": [1]}, trials=2, store=tmp_path)
    matrices.run()
    assert matrices.dataset()["W"].shape == (1, 2, 2, 3)
    assert "W" not in matrices.frame()


def test_a_dataset_has_its_combinations_in_their_places(tmp_path):
    """Points in any order; a failed block is NaN and its error, words are words."""

    def block(point, seeds):
        if point["p"] == 2 and point["q"] == "a":
            raise ValueError("not here")
        whole = {"count": 10 * point["p"] + seeds, "word": np.array([point["q"]] * len(seeds))}
        return whole | {"pair": np.stack([seeds, -seeds], axis=1)}

    points = [{"p": p, "q": q} for p, q in ((2, "b"), (1, "b"), (1, "a"), (2, "a"))]
    study = al.Study(block, points, trials=3, block=2, store=tmp_path)
    study.run(retries=0)
    cube = study.dataset()
    assert dict(cube.sizes) == {"p": 2, "q": 2, "trial": 3, "pair_0": 2}
    for p, q in ((2, "b"), (1, "b"), (1, "a")):
        cell = cube.sel(p=p, q=q)
        assert cell["count"].values.tolist() == [10 * p, 10 * p + 1, 10 * p + 2]
        assert cell["word"].values.tolist() == [q] * 3
        assert cell["pair"].values.tolist() == [[0, 0], [1, -1], [2, -2]]
        assert cell["error"].values.tolist() == [""] * 3
    bad = cube.sel(p=2, q="a")
    assert np.isnan(bad["count"].values).all()
    assert bad["error"].values.tolist() == ["ValueError: not here"] * 3
    partly = al.Study(block, points[:2], trials=5, block=2, store=tmp_path).dataset()
    assert np.isnan(partly["count"].sel(p=1).values.ravel()).tolist() == [False] * 3 + [True] * 2
    listed = al.Study(block, points[:3], trials=3, block=2, store=tmp_path).dataset()
    assert listed["q"].values.tolist() == ["b", "b", "a"]
    assert listed["count"].values[:, 0].tolist() == [20, 10, 10]


def test_columns_of_settings_have_the_type_that_all_share(tmp_path):
    points = [
        {"step": 1, "flag": True, "word": "x", "any": None},
        {"step": 0.5, "flag": False, "word": "y", "any": 2},
    ]
    study = al.Study(lambda point, seeds: {"value": seeds}, points, trials=1, store=tmp_path)
    study.run()
    frame = study.frame()
    assert [frame[name].dtype.kind for name in ("step", "flag")] == ["f", "b"]
    assert frame["word"].tolist() == ["x", "y"]
    assert frame["any"].isna().tolist() == [True, False]


def test_failed_numbers_are_nan_and_failed_words_none(tmp_path):
    def block(point, seeds):
        if 2 in seeds:
            raise ValueError("no 2")
        return {"number": 0.5 * seeds, "word": np.array(["w"] * len(seeds))}

    study = al.Study(block, {"n": [1]}, trials=4, block=2, store=tmp_path)
    study.run(retries=0)
    frame = study.frame()
    assert frame["number"].tolist()[:2] == [0.0, 0.5]
    assert frame["number"].isna().tolist() == frame["word"].isna().tolist() == [False, False, True, True]
    with pytest.raises(al.InputError, match="Trials from 2 on of n=1 have no results: ValueError: no 2"):
        study.arrays()
    assert study.with_trials(2).arrays()[0]["number"].tolist() == [0.0, 0.5]
    with pytest.raises(al.InputError, match="not computed yet"):
        al.Study(block, {"n": [3]}, trials=4, store=tmp_path).arrays()


def test_estimates_by_their_formulas():
    hits, count, z = 13.0, 40, 1.96
    values = np.r_[np.ones(13), np.zeros(27)]
    found = share("best", values)
    middle = (hits + z**2 / 2) / (count + z**2)
    half = z * np.sqrt(hits * (count - hits) / count + z**2 / 4) / (count + z**2)
    np.testing.assert_allclose(found, (hits / count, middle - half, middle + half), rtol=1e-9)
    numbers = np.random.default_rng(1).standard_normal(400) + 3
    found = mean("x", numbers)
    error = numbers.std() / 20
    assert found.value == pytest.approx(numbers.mean(), rel=1e-12)
    np.testing.assert_allclose((found.low, found.high), numbers.mean() + np.array([-z, z]) * error, atol=0.15 * error)
    assert median("x", np.array([1.0, 2.0, 4.0, 10.0])).value == 3.0
    assert len({mean("x", numbers) for _ in range(2)}) == 1


def test_latex_of_hard_numbers():
    rows = [
        {"p": 0.5, "of": "x", "value": 1.2345e-7, "low": 1e-8, "high": np.inf},
        {"p": 12, "of": "x", "value": 3.0, "low": np.nan, "high": np.nan},
    ]
    lines = latex(pandas.DataFrame(rows), ["p"], None, "", "tab:x", 3).splitlines()
    assert lines[:3] == [r"\begin{table}", r"\centering", r"\label{tab:x}"]
    assert r"  0.5 & $1.23 \cdot 10^{-7}\ [1 \cdot 10^{-8}, \infty]$ \\" in lines
    assert r"  12.0 & $3$ \\" in lines or r"  12 & $3$ \\" in lines
    assert lines[-1] == r"\end{table}"
    across = latex(pandas.DataFrame([rows[0] | {"q": 1}, rows[1] | {"q": 2}]), ["p", "q"], "q", "", "", 2).splitlines()
    assert across[2] == r"  p & q = 1 & q = 2 \\"
    assert across[4].endswith(r"& -- \\")
    assert across[5].split("&")[1].strip() == "--"


def test_pictures(study):
    import matplotlib
    from matplotlib.figure import Figure

    before = dict(matplotlib.rcParams)
    picture = study.plot("n", "heads", "p")
    (axes,) = picture.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["p = 0.2", "p = 0.7"]
    for line, p in zip(axes.lines, GRID["p"], strict=True):
        rows = study.summary(by=["n", "p"], of="heads")
        assert line.get_ydata().tolist() == rows[rows["p"] == p]["value"].tolist()
    own = Figure()
    assert study.plot("p", "value", ax=own.subplots()) is own
    assert dict(matplotlib.rcParams) == before


def test_words_on_an_axis(tmp_path):
    study = al.Study(lambda point, seeds: {"value": 1.0}, {"rule": ["gd", "ngd"]}, trials=6, store=tmp_path)
    study.run()
    (axes,) = study.plot("rule", "value").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["gd", "ngd"]
    assert study.frame()["rule"].tolist() == ["gd"] * 6 + ["ngd"] * 6
