"""Training of multi-head attention and of encoders: attnlab against plain JAX.

The peer is what an expert writes: one einsum for each product, `jax.nn.softmax`, `jax.grad`, and `lax.scan` over all
steps in one compiled program, in float64. Each measurement is a fresh process with the first call, which compiles, and
the median of later ones apart. Neither side records anything; importing libraries is counted on neither side.

Beside the time stands what the peer's answer is worth: how far its weights are from ours, relative to their norm, after
the same steps, and how far its direction of the gradient by W is from ours where attention has saturated.

    attnlab bench --only layers
    python benchmarks/layers.py '{"side": "jax", "model": "encoder", "n": 100, "T": 10, "d": 100, "width": 100,
                                  "steps": 200}'
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

CASES = (
    {"model": "multi-head", "n": 100, "T": 10, "d": 4, "width": 8, "steps": 2000},
    {"model": "encoder", "n": 100, "T": 10, "d": 100, "width": 100, "steps": 200},
    {"model": "encoder", "n": 100, "T": 10, "d": 100, "width": 1000, "steps": 200},
)
SIDES = ("attnlab", "jax")
REPEATS = 3  # processes
LAPS = 3  # later calls in a process
STEP = {"multi-head": 1.0, "encoder": 1e-3}
SATURATED = 200.0  # the start times this, for the gradient after saturation


def run(quick: bool = False, on_part: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
    """Measure everything; returns plain JSON data."""
    cases = [{**case, "steps": case["steps"] // 10} for case in CASES[:2]] if quick else list(CASES)
    repeats = 1 if quick else REPEATS
    total, done = repeats * len(SIDES) * len(cases), 0
    measured = []
    for case in cases:
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(repeats):  # interleaved, so that a slow moment of the machine hits both sides
                for side in SIDES:
                    if on_part is not None:
                        on_part(done, total, f"{side:8} {_name(case)}")
                    runs[side].append(_fresh_process({"side": side, "folder": folder, **case}))
                    done += 1
            worth = {what: _apart(Path(folder), what) for what in ("weights", "saturated")}
        measured.append({**case, **runs, "worth": worth})
    versions = {package: metadata.version(package) for package in ("attnlab", "jax", "jaxlib")}
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return {"quick": quick, "cases": measured, "versions": versions, "machine": machine}


def tables(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The result as rows to print."""
    repeats = len(result["cases"][0]["attnlab"])
    title = (
        f"Gradient descent in float64; median of {repeats}; ratios are jax / attnlab. Last: how far the peer's weights "
        "are from ours at the end, and its gradient where attention has saturated"
    )
    return {title: [_row(case) for case in result["cases"]]}


def _row(case: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"model": _name(case)}
    for lap in ("first", "warm"):
        pairs = zip(case["attnlab"], case["jax"], strict=True)
        ratios = sorted(theirs[lap] / ours[lap] for ours, theirs in pairs)
        row |= {
            f"jax {lap} s": round(_middle(case["jax"], lap), 2),
            f"attnlab {lap} s": round(_middle(case["attnlab"], lap), 2),
            f"{lap} ratio": f"{ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
        }
    return row | {what: f"{apart:.1e}" for what, apart in case["worth"].items()}


def _name(case: dict[str, Any]) -> str:
    what = "heads" if case["model"] == "multi-head" else "wide"
    return f"{case['model']}, {case['width']} {what}, ({case['n']},{case['T']},{case['d']}) x {case['steps']}"


def _middle(runs: list[dict[str, float]], key: str) -> float:
    return sorted(run[key] for run in runs)[len(runs) // 2]


def _fresh_process(case: dict[str, Any]) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, json.dumps(case)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"benchmark {case} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _apart(folder: Path, what: str) -> float:
    """Distance of the peer's arrays from ours, relative to the norm of ours."""
    import numpy as np

    ours, theirs = (np.load(folder / f"{side}.npz")[what] for side in SIDES)
    return float(np.linalg.norm(theirs - ours) / np.linalg.norm(ours))


def measure(side: str, model: str, steps: int, folder: str | None = None, **sizes: int) -> dict[str, float]:
    """Seconds of a first call and of later ones; weights and a saturated gradient go to `folder`."""
    import numpy as np

    train, saturated = {"attnlab": _attnlab, "jax": _jax}[side](model, **sizes)
    laps, weights = [], {}
    for _ in range(1 + LAPS):
        start = time.perf_counter()
        weights = train(steps)
        laps.append(time.perf_counter() - start)
    if folder is not None:
        vector = np.concatenate([np.ravel(weights[name]) for name in sorted(weights)])
        np.savez(Path(folder) / f"{side}.npz", weights=vector, saturated=_direction(saturated()))
    return {"first": laps[0], "warm": sorted(laps[1:])[LAPS // 2]}


def _direction(gradient: Any) -> Any:
    """A gradient over its norm, which may underflow; zero stays zero."""
    import numpy as np

    size = np.abs(gradient).max()
    scaled = np.ravel(gradient) / (size if size > 0 else 1.0)
    return scaled / max(float(np.linalg.norm(scaled)), 1.0)


def _setting(model: str, n: int, T: int, d: int, width: int) -> tuple[Any, Any, dict[str, Any]]:
    """Data, our model and the start of both sides."""
    import numpy as np

    import attnlab as al

    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, T, d)) / np.sqrt(d)
    if model == "multi-head":
        tokens = al.Tokens.self_attention(x, np.sign(rng.standard_normal(n)), np.zeros(d))
        ours = al.models.MultiHead(width)
        return tokens, ours, ours.start(tokens, "gaussian", 1.0, 0)
    sequences = al.Sequences(x=x, y=rng.standard_normal(n))
    ours = al.models.Encoder(width)
    return sequences, ours, ours.initial(sequences)


def _attnlab(model: str, **sizes: int) -> tuple[Callable[[int], dict[str, Any]], Callable[[], Any]]:
    import attnlab as al

    data, ours, start = _setting(model, **sizes)
    descend = al.descend  # loads JAX, which is not counted
    ours.outputs(data, start)  # starts the JAX runtime, which is not counted either

    def train(steps: int) -> dict[str, Any]:
        run = descend(data, al.gd(STEP[model]), model=ours, init=start, steps=steps, record=None)
        return dict(run.weights)

    def saturated() -> Any:
        mantissa, _ = ours.gradient(data, {name: SATURATED * w for name, w in start.items()})
        return mantissa[_of_logits(model)]

    return train, saturated


def _of_logits(model: str) -> str:
    return "W" if model == "multi-head" else "W_Q"


def _jax(model: str, **sizes: int) -> tuple[Callable[[int], dict[str, Any]], Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    data, _, given = _setting(model, **sizes)
    start = {name: jnp.asarray(w) for name, w in given.items()}
    x, y = jnp.asarray(data.x), jnp.asarray(data.y)
    loss = {"multi-head": _multi_head_loss, "encoder": _encoder_loss}[model]

    @jax.jit
    def run(start: Any, x: Any, y: Any, steps: Any) -> Any:
        def step(weights: Any, _: Any) -> Any:
            slopes = jax.grad(loss)(weights, x, y)
            return jax.tree.map(lambda w, slope: w - STEP[model] * slope, weights, slopes), None

        return jax.lax.scan(step, start, steps)[0]

    def train(steps: int) -> dict[str, Any]:
        return jax.block_until_ready(run(start, x, y, jnp.arange(steps)))

    def saturated() -> Any:
        return jax.grad(loss)({name: SATURATED * w for name, w in start.items()}, x, y)[_of_logits(model)]

    return train, saturated


def _multi_head_loss(weights: Any, x: Any, y: Any) -> Any:
    """The logistic loss of H heads of attention with decoders U (H, T, d) and weights W (H, d, d)."""
    import jax
    import jax.numpy as jnp

    queries = jnp.einsum("ntd,hde->nhte", x, weights["W"])
    attention = jax.nn.softmax(jnp.einsum("nhte,nse->nhts", queries, x), axis=-1)
    attended = jnp.einsum("nhts,nsd->nhtd", attention, x)
    outputs = jnp.einsum("nhtd,htd->n", attended, weights["U"]) / jnp.sqrt(float(len(weights["W"])))
    return jnp.mean(jax.nn.softplus(-y * outputs))


def _encoder_loss(weights: Any, x: Any, y: Any) -> Any:
    """Half the sum of squared errors of a shallow encoder with mean pooling."""
    import jax
    import jax.numpy as jnp

    queries = jnp.einsum("ntd,md->ntm", x, weights["W_Q"])
    keys = jnp.einsum("nsd,md->nsm", x, weights["W_K"])
    logits = jnp.einsum("ntm,nsm->nts", queries, keys) / jnp.sqrt(float(len(weights["W_Q"])))
    attended = jnp.einsum("nts,nsd->ntd", jax.nn.softmax(logits, axis=-1), x)
    hidden = jnp.mean(jax.nn.relu(jnp.einsum("ntd,md->ntm", attended, weights["W_V"])), axis=1)
    outputs = jnp.einsum("nm,m->n", hidden, weights["w_O"])
    return 0.5 * jnp.sum((outputs - y) ** 2)


def _main() -> None:
    print(json.dumps(measure(**json.loads(sys.argv[1]))))


if __name__ == "__main__":
    _main()
