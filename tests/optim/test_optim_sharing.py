"""Rules that share a program take the steps that each takes alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnlab as al
from attnlab.optim.sharing import sharing_a_program
from compiled import programs
from sampling import first_few

RULES = {
    "gd": al.gd(0.3),
    "ngd": al.ngd(0.1, cap=0.2, norms="total"),
    "polyak": al.polyak(cap=0.5, constant=0.5, floor=0.0),
    "adam": al.adam(0.02),
}


class Linear(al.Model):
    """Three classes of the mean token."""

    usual_loss = "cross_entropy"

    def shapes(self, data):
        return {"A": al.weights((3, data.d), law="lecun"), "b": al.weights((3,), law="zeros")}

    def output(self, weights, example):
        return jnp.asarray(weights["A"]) @ example.x.mean(axis=0) + weights["b"]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return al.Sequences(x=rng.normal(size=(24, 3, 4)), y=rng.integers(0, 3, 24))


@pytest.mark.parametrize("precision", first_few(["float64", "float32"], 1))
@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_shares_takes_the_steps_it_takes_alone(name, precision, data):
    how = {"model": Linear(), "batch": 7, "steps": 30, "record": [0, 15, 30], "precision": precision, "seed": 3}
    alone = al.descend(data, RULES[name], **how)
    shared = al.descend(data, sharing_a_program(RULES)[name], **how)
    tolerance = 1e-12 if precision == "float64" else 1e-5
    for weight, values in alone.weights.items():
        np.testing.assert_allclose(shared.weights[weight], values, rtol=tolerance, atol=tolerance)
    expected = alone.metrics.get("capped_share", np.zeros(3))  # a rule without a cap has no step that it decides
    np.testing.assert_array_equal(shared.metrics["capped_share"], expected)
    if name in ("ngd", "polyak"):
        assert alone.metrics["capped_share"][-1] > 0


def test_runs_of_all_rules_compile_one_program(data):
    """Another rule, another seed: nothing is compiled for it, where rules of their own compile one program each."""
    from attnlab.train.program import advance_in_place

    jax.clear_caches()  # a process with many programs would make room in the midst of it
    shared = sharing_a_program(RULES)
    how = {"model": Linear(), "batch": 6, "steps": 4, "record": [0, 4], "precision": "float32"}

    def compiled_by(rules):
        before = programs(advance_in_place)
        for seed, rule in enumerate(rules):
            al.descend(data, rule, seed=seed, **how)
        return programs(advance_in_place) - before

    assert compiled_by(shared.values()) == 1
    assert compiled_by(RULES.values()) == len(RULES)
    assert compiled_by(sharing_a_program(RULES).values()) == 0  # made anew of the same rules


def test_without_caps_none_is_recorded(data):
    rules = sharing_a_program({"gd": al.gd(0.3), "adam": al.adam(0.1)})
    run = al.descend(data, rules["gd"], model=Linear(), batch=6, steps=3)
    assert "capped_share" not in run.metrics


def test_states_of_the_other_rules_stand_still(data):
    """Adam's moments do not gather what gradient descent does beside it."""
    params = {"w": np.ones(3)}
    rule = sharing_a_program(RULES)["gd"]
    with jax.enable_x64(True):
        state = rule.init(params)
        _, after = rule.update({"w": np.array([1.0, 2.0, 3.0])}, state, params, value=1.0, log_excess=0.0)
    for before, now in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(before, now)
