"""What is on the screen as a Python program that computes the same numbers."""

from __future__ import annotations

import numpy as np

from attnlab.explore.scene import Scene

CALLS = {
    "ngd": "al.ngd({step!r})",
    "gd": "al.gd({step!r})",
    "heavy_ball": "al.heavy_ball({step!r})",
    "polyak": "al.polyak(cap={step!r})",
    "adam": "al.adam({step!r})",
}
HEADER = '''"""What was on the screen of the attnlab explorer."""

import numpy as np

import attnlab as al
'''
RUNS = """
# K and Q start at balanced factors of the same matrix: K Q^T = start.
left, singular, right = np.linalg.svd(start)
keys, queries = left * np.sqrt(singular), right.T * np.sqrt(singular)

runs = {{}}
runs["W"] = al.descend(tokens, rule, init={{"W": start}}, parameterization="W", **settings)
"""
KQ = 'runs["KQ"] = al.descend(tokens, rule, init={"K": keys, "Q": queries}, parameterization="KQ", **settings)\n'
NO_KQ = "# K and Q are not run: K Q^T = 0 is a stationary point, from which they never move.\n"
COMPARED = """
directions = {{}}
for name, run in runs.items():
    print(run)
    for norm in ("frobenius", "nuclear"):
        {solve}
        directions[name, norm] = svm
        if svm.feasible and svm.W.any():
            print(" ", norm, "margin", svm.margin, "gap", svm.gap, "1 - cos", al.misalignment(run.W, svm.W))
        else:
            print(" ", norm, svm.status.value)
"""
SELECTED = "svm = al.solve_margin(tokens, run.selected, norm=norm, throw=False)"
MIXED = """kept = al.models.attention(tokens, run.W) >= 1e-3  # the tokens that keep attention
        svm = al.svm.solve_generalized(tokens, kept, norm=norm, throw=False)"""
BEST = """
best, how_many_share_the_score = al.optimal_tokens(tokens, {head}return_ties=True)
for norm in ("frobenius", "nuclear"):
    svm = al.solve_margin(tokens, best, norm=norm, throw=False)
    directions["best", norm] = svm
    print("best tokens", best.tolist(), norm, svm)
"""
CHOSEN = """
chosen = {chosen}
for norm in ("frobenius", "nuclear"):
    svm = al.solve_margin(tokens, chosen, norm=norm, throw=False)
    directions["chosen", norm] = svm
    print("chosen tokens", chosen, norm, svm)
"""


def as_python(scene: Scene) -> str:
    """A program that trains and solves what the scene shows, and prints the numbers.

    >>> from attnlab.explore.presets import presets
    >>> from attnlab.explore.scene import read_scene
    >>> "al.ngd(0.1)" in as_python(read_scene(presets()[0].scene))
    True
    """
    tokens = scene.tokens
    arrays = {"x": tokens.x, "z": tokens.z, "y": tokens.y, "v": tokens.v}
    if tokens.mask is not None:
        arrays["mask"] = tokens.mask
    given = "\n".join(f"    {name}={_written(array)}," for name, array in arrays.items())
    concave = scene.head == "concave"
    head = f"al.models.Concave({scene.strength!r})" if concave else '"linear"'
    settings = f'{{"steps": {scene.steps}, "loss": "{scene.loss}", "head": {head}}}'
    parts = [
        HEADER,
        f"\ntokens = al.Tokens(\n{given}\n)\n",
        f"rule = {CALLS[scene.rule].format(step=scene.step)}\n",
        f"settings = {settings}\n",
        f"start = np.array({_written(scene.start)})\n",
        RUNS.format(),
        KQ if scene.start.any() else NO_KQ,
        COMPARED.format(solve=MIXED if concave else SELECTED),
        BEST.format(head=f"head={head}, " if concave else ""),
    ]
    if scene.chosen is not None:
        parts.append(CHOSEN.format(chosen=scene.chosen.tolist()))
    return "".join(parts)


def _written(array: np.ndarray | None) -> str:
    """Every number to its last digit."""
    return repr(np.asarray(array).tolist())
