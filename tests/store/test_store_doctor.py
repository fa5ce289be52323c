"""The doctor finds a sound installation sound, and an unsound one not."""

import json

import jax
import numpy as np
import pytest

import attnlab as al
from attnlab.store import Store, doctor

NUMERICAL = {
    "_scope", "_softmax_derivative", "_vanishing_gradient", "_normalized_steps", "_trial_in_batch",
}  # fmt: skip


def test_all_is_well_here(tmp_path):
    store, before = Store(tmp_path / "store"), jax.config.read("jax_enable_x64")
    report = doctor.examine(store)
    assert report.ok, report.failed
    assert jax.config.read("jax_enable_x64") == before
    names = [check.name for check in report.checks]
    for name in ("python", "attnlab", "jax", "jaxlib", "numpy", "scipy", "optax", "matplotlib"):
        assert name in names
    assert {check.name: check.value for check in report.checks}["attnlab"] == al.__version__
    assert all(check.seconds >= 0 for check in report.checks)
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
    assert report.to_dict()["ok"] is True
    assert repr(report) == f"Report({len(names)} checks, all ok)"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def only(monkeypatch):
    """Of the slower checks leave only one."""

    def choose(kept):
        for name in NUMERICAL - {kept}:
            monkeypatch.setattr(doctor, name, lambda: ("left out", True))

    return choose


def failed(tmp_path):
    report = doctor.examine(Store(tmp_path / "store"))
    assert not report.ok
    assert report.to_dict()["ok"] is False
    (check,) = report.failed
    assert check.name in repr(report)
    return check


def test_a_textbook_softmax_is_noticed(tmp_path, monkeypatch, only):
    only("_softmax_derivative")
    monkeypatch.setattr(al.models, "softmax", jax.nn.softmax)
    assert failed(tmp_path).name == "softmax derivative at margin 100"


def test_a_lost_64_bit_scope_is_noticed(tmp_path, monkeypatch, only):
    only("_scope")
    monkeypatch.setattr(al.models, "in_float64", lambda function: function)
    assert failed(tmp_path).value == "float32 inside, float32 outside"


def test_a_changed_global_setting_is_noticed(tmp_path, monkeypatch, only):
    def leave_it_on(function):
        jax.config.update("jax_enable_x64", True)
        return function

    only("_scope")
    monkeypatch.setattr(al.models, "in_float64", leave_it_on)
    try:
        assert failed(tmp_path).value == "float64 inside, float64 outside"
    finally:
        jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize(
    "wrong", [lambda m, s: (m, s + 1e-9), lambda m, s: (0 * m, s), lambda m, s: (m.T + m[::-1], s)]
)
def test_a_wrong_gradient_is_noticed(tmp_path, monkeypatch, only, wrong):
    def gradient(*args):
        mantissa, log_scale = wrong(*(part["W"] for part in true(*args)))
        return {"W": mantissa}, {"W": log_scale}

    only("_vanishing_gradient")
    true = al.models.gradient
    monkeypatch.setattr(al.models, "gradient", gradient)
    assert failed(tmp_path).name == "gradient at e^-3000"


@pytest.mark.parametrize("check", ["_normalized_steps", "_trial_in_batch"])
def test_a_wrong_step_is_noticed(tmp_path, monkeypatch, only, check):
    """A rule that adapts its step to the weights of the trial count fails both."""
    only(check)
    true = al.train.descend

    def descend(tokens, rule, **options):
        return true(tokens, al.ngd(0.1 if tokens.trials else 0.1 + 1e-9), **options)

    monkeypatch.setattr(al.train, "descend", descend)
    failed(tmp_path)


def test_nan_is_not_right():
    assert not doctor._error(np.array([np.nan]), np.array([1.0]), 1.0)[1]


def test_an_error_is_a_failed_check_and_the_others_run(tmp_path, only):
    only(None)
    (tmp_path / "store").write_text("a file")
    check = failed(tmp_path)
    assert check.name == "store is writable"
    assert "ATTNLAB_STORE" in check.value
