"""The commands as a newcomer runs them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import attnlab as al
from attnlab.cli import main
from attnlab.data.files import read_npz


def attnlab(*arguments: str, cwd=None) -> subprocess.CompletedProcess:
    # COLUMNS may be that of a terminal, or of who runs the tests.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [sys.executable, "-m", "attnlab", *arguments], capture_output=True, text=True, cwd=cwd, env=environment
    )


def test_help_and_version():
    done = attnlab("--help")
    assert done.returncode == 0
    for command in ("demo", "bench", "doctor"):
        assert command in done.stdout
    assert attnlab("--version").stdout.startswith("attnlab ")


@pytest.mark.parametrize("arguments", [["nonsense"], ["demo", "--steps-of-mine", "3"], ["demo", "--seed", "many"]])
def test_wrong_usage_exits_with_2(arguments):
    done = attnlab(*arguments)
    assert done.returncode == 2
    assert not done.stdout


def test_bad_input_exits_with_2_and_a_message(tmp_path):
    done = attnlab("demo", "--seed", "-3", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "`seed` is -3" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory):
    """Programs that one command compiled are there for the next."""
    return str(tmp_path_factory.mktemp("store"))


def test_demo_writes_what_it_says(tmp_path, shared_store, monkeypatch):
    monkeypatch.setenv("ATTNLAB_STORE", shared_store)
    done = attnlab("demo", "--out", "results", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "results" / "demo.json").read_text())
    assert (tmp_path / "results" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "results/demo.png" in done.stderr
    rows = {(row["data"], row["trained"]): row for row in printed["rows"]}
    assert set(rows) == {(d, w) for d in ("plane", "sphere") for w in ("W", "K, Q")}
    # What is printed is what was measured: recompute a cell from the stored arrays.
    arrays, _ = read_npz(tmp_path / "results" / "demo.npz", "the demo's arrays")
    assert rows["sphere", "W"]["all queries on their best token"] == int(arrays["sphere_W_best"].sum())
    assert rows["sphere", "K, Q"]["least top attention"] == arrays["sphere_KQ_attention"][:, -1].min()


def test_demo_table_is_readable_without_a_terminal(tmp_path, shared_store, monkeypatch):
    monkeypatch.setenv("ATTNLAB_STORE", shared_store)
    done = attnlab("demo", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "all queries on their best token" in done.stdout
    assert "…" not in done.stdout  # nothing was cut off


def test_doctor(capsys, monkeypatch):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "attnlab" in text
    assert "FAILED" not in text


def test_bench_measures_both_sides(tmp_path, capsys):
    """A tiny run of the real benchmark; needs PyTorch and Numba, which the tests do not install."""
    pytest.importorskip("torch")
    pytest.importorskip("numba")
    assert main(["bench", "--quick", "--only", "descent", "--json", "--out", str(tmp_path / "bench.json")]) == 0
    result = json.loads((tmp_path / "bench.json").read_text())["descent"]
    for entry in result["speed"]:
        assert set(entry["runs"]) == {"attnlab", *entry["case"]["peers"]}
        assert all(run[0]["warm"] > 0 for run in entry["runs"].values())
    # Before attention saturates all sides compute the same, whatever they sum first.
    apart = result["speed"][0]["apart"]
    assert set(apart) == {"plain JAX", "batched PyTorch", "compiled loop"}
    assert max(apart.values()) < 1e-10


def test_solve_prints_and_saves_the_certificate(tmp_path):
    tokens = al.data.sphere(n=4, T=5, d=8, seed=1)
    tokens.save(tmp_path / "tokens.npz")
    done = attnlab("solve", "tokens.npz", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    want = al.solve_margin(tokens, al.optimal_tokens(tokens))
    assert result["margin"] == pytest.approx(want.margin, rel=1e-12)
    assert result["selected"] == al.optimal_tokens(tokens).tolist()
    assert result["locally_optimal"] is True
    arrays, _ = read_npz(tmp_path / "tokens-margin.npz", "W")
    np.testing.assert_allclose(arrays["W"], want.W, rtol=1e-12)
    table = attnlab("solve", "tokens.npz", "--selected", "0,1,2,3", cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    assert "support tokens" in table.stdout


def test_solve_reports_what_trained_weights_select(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokens = al.data.sphere(n=4, T=5, d=8, seed=1)
    tokens.save("tokens.npz")
    W = np.random.default_rng(0).standard_normal((8, 8))
    np.save("W.npy", W)
    want = al.inspect(tokens, W, draws=3)
    assert main(["solve", "tokens.npz", "--weights", "W.npy", "--draws", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["selected"] == want.selected.tolist()
    assert result["chance"] == want.to_json()["chance"]
    arrays, _ = read_npz(tmp_path / "tokens-inspection.npz", "arrays")
    np.testing.assert_array_equal(arrays["leads"], want.leads)
    np.testing.assert_allclose(arrays["W_nuclear"], want.nuclear.solution.W)
    assert main(["solve", "tokens.npz", "--weights", "W.npy", "--draws", "3"]) == 0
    assert capsys.readouterr().out.strip() == repr(want)
    np.save("zero.npy", 0 * W)
    al.Tokens(x=np.ones((2, 3, 8)), z=tokens.z[:2], y=[1, 1]).save("equal.npz")
    assert main(["solve", "equal.npz", "--weights", "zero.npy"]) == 1
    np.save("small.npy", np.eye(3))
    capsys.readouterr()
    for arguments, words in [
        (["--weights", "missing.npy"], "no file"),
        (["--weights", "tokens.npz"], "npy"),
        (["--weights", "small.npy"], "`W` has shape (3, 3)"),
        (["--weights", "W.npy", "--selected", "0,0,0,0"], "--selected"),
        (["--weights", "W.npy", "--norm", "nuclear"], "--norm"),
        (["--weights", "W.npy", "--draws", "-1"], "`draws` is -1"),
        (["--weights", "W.npy", "--out", "tokens.npz"], "the file of the tokens"),
    ]:
        assert main(["solve", "tokens.npz", *arguments]) == 2, arguments
        assert words in capsys.readouterr().err, arguments
    assert main(["solve", "tokens.npz", "--weights", "W.npy", "--time-limit", "1e-9", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "out_of_time"


def test_solve_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    al.data.sphere(n=6, T=8, d=2, seed=0).save("flat.npz")
    assert main(["solve", "flat.npz", "--selected", "0,1,2,3,4,5", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "infeasible"
    np.savez("no-head.npz", x=np.ones((1, 2, 2)), z=np.ones((1, 2)), y=[1])
    np.savez("no-labels.npz", x=np.ones((1, 2, 2)), z=np.ones((1, 2)))
    (tmp_path / "text.npz").write_text("not an archive")
    al.data.sphere(trials=2).save("batch.npz")
    for arguments, words in [
        (["missing.npz"], "no file"),
        (["text.npz"], "not readable"),
        (["no-labels.npz"], "lacks y"),
        (["no-head.npz"], "--selected"),
        (["batch.npz"], "2 trials"),
        (["flat.npz", "--selected", "0,1"], "`selected` has shape (2,)"),
        (["flat.npz", "--selected", "a,b"], "whole numbers"),
        (["flat.npz", "--selected", "0,1,2,3,4,99"], "token 99"),
    ]:
        assert main(["solve", *arguments]) == 2, arguments
        assert words in capsys.readouterr().err, arguments


def test_solve_in_every_norm_and_under_a_mask(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokens = al.data.sphere(n=4, T=4, d=8, seed=1)
    tokens.save("tokens.npz")

    def solved(*arguments):
        code = main(["solve", "tokens.npz", "--selected", "0,1,2,3", *arguments, "--json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out), read_npz("tokens-margin.npz", "W")[0]

    sizes = {"frobenius": "fro", "nuclear": "nuc", "spectral": 2}
    for norm, order in sizes.items():
        result, arrays = solved("--norm", norm)
        assert result["norm"] == norm
        assert result["gap"] <= 1e-6
        assert 1 / result["margin"] == pytest.approx(np.linalg.norm(arrays["W"], order), rel=1e-9)
    result, arrays = solved("--norm", "l1")
    assert 1 / result["margin"] == pytest.approx(np.abs(arrays["W"]).sum(), rel=1e-9)
    mask = np.array([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=bool)
    np.save("mask.npy", mask)
    want = al.solve_margin(al.Tokens(x=tokens.x, z=tokens.z, y=tokens.y, mask=mask), [0, 1, 2, 3])
    for given in ("mask.npy", "1110,0111,1111,0001"):
        result, arrays = solved("--mask", given)
        np.testing.assert_allclose(arrays["W"], want.W, rtol=1e-10, atol=1e-12)
    assert main(["solve", "tokens.npz", "--selected", "0,1,2,3", "--mask", "1110,0111,1111,0001"]) == 0
    assert "none" in capsys.readouterr().out  # the last query sees one token: nothing holds it


def test_solve_with_several_tokens_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokens = al.data.sphere(n=3, T=4, d=8, seed=1)
    tokens.save("tokens.npz")
    assert main(["solve", "tokens.npz", "--selected", "0,1+2,3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    arrays = read_npz("tokens-margin.npz", "W")[0]
    leads = np.einsum("td,de,e->t", tokens.x[1], arrays["W"], tokens.z[1])
    assert leads[1] == pytest.approx(leads[2], abs=1e-9)
    assert min(leads[1] - leads[0], leads[1] - leads[3]) >= 1 - 1e-9
    assert result["locally_optimal"] is None
    assert main(["solve", "tokens.npz", "--selected", "0,1+2,3"]) == 0
    assert "1+2" in capsys.readouterr().out


def test_solve_says_what_is_wrong_with_a_mask_or_a_set(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    al.data.sphere(n=3, T=4, d=8, seed=1).save("tokens.npz")
    (tmp_path / "broken.npy").write_text("not an array")
    for arguments, words in [
        (["--mask", "missing.npy"], "missing.npy"),
        (["--mask", "broken.npy"], "cannot be read"),
        (["--mask", "11x0"], "rows of 0 and 1"),
        (["--mask", "1110,11"], "rows of 0 and 1"),
        (["--mask", "111"], "`mask` has shape (3,)"),
        (["--mask", "causal"], "one query per token"),
        (["--mask", "0111"], "mask hides"),
        (["--selected", "0,1+9,2"], "0 to 3"),
        (["--selected", "0,1+2"], "wanted 3"),
        (["--selected", ","], "whole numbers"),
    ]:
        assert (
            main(["solve", "tokens.npz", *(["--selected", "0,0,0"] if "--mask" in arguments else []), *arguments]) == 2
        )
        assert words in capsys.readouterr().err, arguments


def test_claims_are_listed_checked_and_reported(tmp_path, capsys):
    assert main(["claim", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert all({"id", "paper", "title", "status", "kind"} <= set(one) for one in listed)
    assert main(["claim", "svm-L1", "svm-T1", "--scale", "smoke", "--out", str(tmp_path / "report"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [(f["id"], f["verdict"], f["as_expected"]) for f in facts] == [
        ("svm-L1", "holds", True),
        ("svm-T1", "holds", True),
    ]
    assert json.loads((tmp_path / "report" / "claims.json").read_text()) == facts
    page = (tmp_path / "report" / "claims.md").read_text()
    assert "| [svm-T1](#svm-t1-" in page
    assert "Lemma 1" in page
    wanted = {"id", "verdict", "kind", "tightness", "parts", "instances", "tried", "seeds", "line"}
    assert all(wanted <= set(fact) for fact in facts)
    assert main(["claim", "--list"]) == 0
    assert "svm-L1" in capsys.readouterr().out
    assert main(["claim", "svm-L1", "--scale", "smoke"]) == 0
    assert "holds" in capsys.readouterr().out


def test_a_verdict_that_is_not_on_record_ends_with_1(monkeypatch, capsys):
    from dataclasses import replace

    from attnlab.claims import Verdict
    from attnlab.claims.svm import feasibility

    other = [replace(claim, expected=Verdict.FAILS) for claim in feasibility.CLAIMS]
    monkeypatch.setattr(feasibility, "CLAIMS", other)
    assert main(["claim", "svm-L1", "--scale", "smoke"]) == 1
    captured = capsys.readouterr()
    assert "(!)" in captured.out
    assert "svm-L1: holds" in captured.err
    assert "on record: fails" in captured.err


OWN_CLAIM = """
from attnlab.claims import Claim, within

LIMIT = 0.5


def small(scale):
    return within(LIMIT, 1.0, instances=3)


mine = Claim(id="mine-1", title="Mine", statement="x is small.", reason="x against 1", measure=small)
both = [mine, mine]
"""


def test_a_claim_of_ones_own_is_checked_from_its_file(tmp_path, capsys):
    file = tmp_path / "my_claims.py"
    file.write_text(OWN_CLAIM)
    for name, count in ((f"{file}:mine", 1), (str(file), 1), (f"{file}:both", 2)):
        assert main(["claim", name, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert [(fact["id"], fact["verdict"], fact["worst"]) for fact in facts] == [("mine-1", "holds", 0.5)] * count
    file.write_text(OWN_CLAIM.replace("LIMIT = 0.5", "LIMIT = 2.0"))
    assert main(["claim", f"{file}:mine", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["worst"] == 2.0
    assert main(["claim", f"{file}:mine", "--explain"]) == 1
    told = capsys.readouterr().out
    assert "x is small." in told
    assert "fails" in told


def test_wrong_files_of_claims_are_refused(tmp_path, capsys):
    file = tmp_path / "others.py"
    file.write_text("x = 1\n")
    for name, words in [
        (f"{tmp_path}/none.py:mine", "There is no file"),
        (str(file), "has no Claim"),
        (f"{file}:x", "has int as 'x'"),
        (f"{file}:y", "nothing of that name"),
    ]:
        assert main(["claim", name]) == 2, name
        assert words in capsys.readouterr().err


def test_wrong_claims_and_figures_are_refused(capsys):
    for arguments, words in [
        (["claim", "svm-L99"], "no claim svm-L99"),
        (["claim", "--paper", "nobody"], "`paper` is 'nobody'"),
        (["claim", "svm-t22"], "did you mean svm-T2"),
        (["figure", "svm-99"], "did you mean svm-9"),
        (["figure", "svm7"], "did you mean svm-7"),
        (["figure", "--paper", "nobody"], "`paper` is 'nobody'"),
    ]:
        assert main(arguments) == 2, arguments
        assert words in capsys.readouterr().err


def test_figures_are_listed_and_made(tmp_path, monkeypatch, capsys):
    from attnlab.claims import Verdict
    from attnlab.figures import Figure, Finding, figure as module
    from attnlab.figures.style import new_figure

    line = Figure(
        id="svm-99", title="A line", says="It rises.",
        data=lambda scale, tell: ({"curve": np.arange(3.0)}, {"attempts": 1}),
        draw=lambda arrays, facts: new_figure(1, 1)[0],
        judge=lambda arrays, facts: Finding(seen="It ends at 2.", verdict=Verdict.HOLDS, numbers={}),
    )  # fmt: skip
    monkeypatch.setattr(module, "figures", lambda paper=None: [line])
    assert main(["figure", "svm-99", "--scale", "smoke", "--out", str(tmp_path / "pictures"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made[0]["verdict"] == "holds"
    assert (tmp_path / "pictures" / "svm-99.png").exists()
    assert main(["figure", "svm-99", "--scale", "smoke", "--out", str(tmp_path / "pictures")]) == 0
    assert "It ends at" in capsys.readouterr().out
