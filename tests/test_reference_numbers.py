"""A few numbers of every part, kept in a file, so that another version of a library that changes them is noticed.

`python tests/test_reference_numbers.py` writes the file anew and says what has changed. Each part has the tolerance to
which it should agree across machines and versions of NumPy, SciPy and JAX, relative to the largest number of the part:

| part | tolerance | why |
|---|---|---|
| data | 1e-14 | random streams are fixed; norms are summed in another order by another version |
| descent | 1e-9 | some rounding per step, over 60 steps that forgive it |
| flow, path | 1e-6 | an integrator, and a search, that stop at tolerances of their own |
| margin | 1e-8 | a certified optimum |
| kernel | 1e-11 | one evaluation |
"""

import json
from pathlib import Path

import numpy as np
import optax
import pytest

import attnlab as al

FILE = Path(__file__).with_name("reference_numbers.json")
TOLERANCES = {"data": 1e-14, "descent": 1e-9, "flow": 1e-6, "path": 1e-6, "margin": 1e-8, "kernel": 1e-11}
KEPT = 4  # numbers of each array

TOKENS = al.data.sphere(n=3, T=4, d=5, seed=11)
SEQUENCES = al.data.gaussian_sequences(n=4, T=3, d=5, seed=11)
START = np.linspace(-0.5, 0.5, 25).reshape(5, 5)
RULES = {
    "gd": al.gd(0.5),
    "ngd": al.ngd(0.05),
    "ngd_momentum": al.ngd_momentum(0.02),
    "polyak": al.polyak(cap=10.0),
    "heavy_ball": al.heavy_ball(0.2),
    "adam": al.adam(0.02),
    "optax.rmsprop": optax.rmsprop(0.01),
    "scale_free": al.optim.scale_free(optax.sign_sgd(0.01)),
}


def some(array):
    """The norm of an array and a few of its entries."""
    flat = np.ravel(np.asarray(array, dtype=np.float64))
    picked = flat[np.linspace(0, flat.size - 1, min(KEPT, flat.size)).astype(int)]
    return [float(np.sqrt(np.sum(flat**2))), *map(float, picked)]


def data():
    families = {
        "sphere": TOKENS,
        "two_clusters": al.data.two_clusters(seed=11),
        "orthogonal_signal": al.data.orthogonal_signal(seed=11),
        "antipodal_signal": al.data.antipodal_signal(seed=11),
        "gaussian_signal": al.data.gaussian_signal(seed=11),
        "gaussian_sequences": SEQUENCES,
    }
    return {name: some(tokens.x) for name, tokens in families.items()}


def descent():
    options = {"steps": 60, "record": None}
    found = {name: al.descend(TOKENS, rule, init=START, **options).W for name, rule in RULES.items()}
    found["joint_decay"] = al.descend(TOKENS, al.joint_decay(0.1), init=START, train_head=True, **options).u
    heads = al.descend(TOKENS, al.gd(0.5), model=al.models.MultiHead(3), init="gaussian", seed=11, **options)
    found["several heads"] = heads.weights["W"]
    network = al.descend(SEQUENCES, al.gd(0.1), model=al.models.Encoder(6), seed=11, **options)
    found["encoder"] = network.weights["W_V"]
    extreme = al.Tokens(x=1e-150 * TOKENS.x, z=1e-150 * TOKENS.z, y=TOKENS.y, v=TOKENS.v)
    found["tokens of 1e-150"] = al.descend(extreme, al.ngd(0.05), init=START, **options).W
    return {name: some(w) for name, w in found.items()}


def flow():
    return {
        "W": some(al.flow(TOKENS, init=START, time=1e6, record=None).W),
        "concave head": some(al.flow(TOKENS, head=al.models.Concave(0.5), init=START, time=1e3, record=None).attention),
    }


def path():
    found = al.regularization_path(TOKENS, radii=(1.0, 10.0), restarts=1, seed=11)
    return {"directions": some(found.directions), "value": some(found.value)}


def margin():
    selected = al.optimal_tokens(TOKENS)
    solved = {norm: al.solve_margin(TOKENS, selected, norm=norm) for norm in ("frobenius", "nuclear")}
    return {norm: [float(found.margin), *some(found.W)] for norm, found in solved.items()}


def kernel():
    encoder = al.models.Encoder(6)
    return {
        "attention": some(al.theory.ntk(TOKENS, None, START)),
        "encoder": some(al.theory.ntk(SEQUENCES, encoder, encoder.initial(SEQUENCES, seed=11))),
    }


PARTS = {part.__name__: part for part in (data, descent, flow, path, margin, kernel)}


@pytest.mark.parametrize("part", PARTS)
def test_numbers_are_those_of_the_file(part):
    kept, found = json.loads(FILE.read_text())[part], PARTS[part]()
    assert set(kept) == set(found)
    for name, numbers in found.items():
        size = np.max(np.abs(kept[name]))
        np.testing.assert_allclose(numbers, kept[name], rtol=0, atol=TOLERANCES[part] * size, err_msg=name)


def write():
    """Write the file anew and say what has changed, relative to the largest number of each entry."""
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    found = {name: part() for name, part in PARTS.items()}
    for part, entries in found.items():
        for name, numbers in entries.items():
            kept = before.get(part, {}).get(name)
            if kept is None:
                print(f"{part}: {name}: new")
                continue
            change = np.max(np.abs(np.subtract(numbers, kept))) / np.max(np.abs(kept))
            print(f"{part}: {name}: changed by {change:.1e}")
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write()
