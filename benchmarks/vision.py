"""Steps of vision transformers: attnlab against PyTorch modules of the same shape, and wide heads folded against plain.

Both sides take the same steps of SGD on random images in float32, with locality self-attention, from a fresh process on
all cores. A step is the difference of a longer and a shorter run, over the steps between them, so that neither
compilation nor start counts; the time of a first call, compilation included, is told apart.

    attnlab bench --only vision
    python benchmarks/vision.py '{"side": "attnlab", "patch": 7, "dim": 64, "heads": 8, "head_dim": 16, "steps": 20}'
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

SIDE, CLASSES, IMAGES = 28, 10, 1000
DEEP = {"depth": 2, "mlp": 128, "batch": 100}
# Of MNIST: what a small machine trains in minutes, and the sizes of the fast-rates paper.
SHAPES = (
    {"patch": 7, "dim": 64, "heads": 8, "head_dim": 16, **DEEP, "steps": 40},
    {"patch": 4, "dim": 128, "heads": 8, "head_dim": 64, **DEEP, "steps": 16},
)
# The one-layer transformer of the encoder paper at its largest width.
WIDE = {"patch": 7, "dim": 64, "heads": 1, "depth": 1, "mlp": 128, "batch": 128}
WIDTHS = {16: 40, 1024: 20, 16384: 4}  # width -> steps
REPEATS = 3  # processes
LAPS = 3  # runs in a process, of which the shortest counts


def run(quick: bool = False, on_part: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
    """Measure everything; returns plain JSON data."""
    repeats = 1 if quick else REPEATS
    shapes = SHAPES[:1] if quick else SHAPES
    widths = {1024: 5} if quick else WIDTHS
    total, done = repeats * 2 * (len(shapes) + len(widths)), 0

    def side_by_side(case: dict[str, Any], sides: tuple[str, str]) -> dict[str, Any]:
        nonlocal done
        measured: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for _ in range(repeats):  # interleaved, so that a slow moment of the machine hits both sides
            for side in sides:
                if on_part is not None:
                    on_part(done, total, f"{side:8} {_shape(case)}")
                measured[side].append(_fresh_process({"side": side, **case}))
                done += 1
        return {**case, **measured}

    deep = [side_by_side(shape, ("attnlab", "torch")) for shape in shapes]
    wide = [
        side_by_side({**WIDE, "head_dim": width, "steps": steps}, ("attnlab", "plain"))
        for width, steps in widths.items()
    ]
    versions = {package: metadata.version(package) for package in ("attnlab", "jax", "torch")}
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return {"quick": quick, "deep": deep, "wide": wide, "versions": versions, "machine": machine}


def tables(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The result as rows to print."""
    deep = [_row(case, "torch", "torch / attnlab") for case in result["deep"]]
    wide = [_row(case, "plain", "plain / folded") for case in result["wide"]]
    repeats = len(result["deep"][0]["attnlab"])
    return {
        f"A step of a vision transformer in float32; median of {repeats}": deep,
        f"One wide head, folded (attnlab) and plain; median of {repeats}": wide,
    }


def _row(case: dict[str, Any], peer: str, ratio: str) -> dict[str, Any]:
    ours, theirs = case["attnlab"], case[peer]
    ratios = sorted(p["seconds"] / o["seconds"] for o, p in zip(ours, theirs, strict=True))
    return {
        "shape": _shape(case),
        f"{peer} ms": round(1e3 * _middle(theirs, "seconds"), 2),
        "attnlab ms": round(1e3 * _middle(ours, "seconds"), 2),
        ratio: round(ratios[len(ratios) // 2], 2),
        "range": f"{ratios[0]:.2f}-{ratios[-1]:.2f}",
        "first call s": round(_middle(ours, "first"), 1),
        f"{peer} MB": round(_middle(theirs, "megabytes")),
        "attnlab MB": round(_middle(ours, "megabytes")),
    }


def _shape(case: dict[str, Any]) -> str:
    heads = f"{case['heads']} x {case['head_dim']}"
    return f"patch {case['patch']}, dim {case['dim']}, heads {heads}, depth {case['depth']}, batch {case['batch']}"


def _middle(runs: list[dict[str, Any]], key: str) -> float:
    return sorted(run[key] for run in runs)[len(runs) // 2]


def _fresh_process(case: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, json.dumps(case)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"benchmark {case} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(side: str, steps: int, **shape: Any) -> dict[str, float]:
    """Seconds of a step and of a first call, and the peak memory of the process."""
    train = {"attnlab": _attnlab, "plain": _plain, "torch": _torch}[side](**shape)
    first = _seconds(train, 1)
    short = min(_seconds(train, 1) for _ in range(LAPS))
    long = min(_seconds(train, 1 + steps) for _ in range(LAPS))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": (long - short) / steps, "first": first, "megabytes": peak}


def _seconds(train: Callable[[int], None], steps: int) -> float:
    start = time.perf_counter()
    train(steps)
    return time.perf_counter() - start


def _images(patch: int) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    tokens = (SIDE // patch) ** 2
    return rng.standard_normal((IMAGES, tokens, patch * patch)), rng.integers(0, CLASSES, IMAGES)


def _attnlab(batch: int, fold: bool | None = None, **shape: Any) -> Callable[[int], None]:
    import attnlab as al

    x, y = _images(shape["patch"])
    data = al.Sequences(x=x, y=y)
    model = al.models.VisionTransformer(classes=CLASSES, locality=True, fold=fold, **shape)

    def train(steps: int) -> None:
        al.descend(data, al.gd(0.01), model=model, batch=batch, steps=steps, record=None, precision="float32")

    return train


def _plain(**shape: Any) -> Callable[[int], None]:
    return _attnlab(fold=False, **shape)


def _torch(batch: int, patch: int, dim: int, heads: int, head_dim: int, depth: int, mlp: int) -> Callable[[int], None]:
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(dim)
            self.project = nn.Linear(dim, 3 * heads * head_dim, bias=False)
            self.out = nn.Linear(heads * head_dim, dim)
            self.log_tau = nn.Parameter(torch.tensor(head_dim**-0.5).log())

        def forward(self, tokens: Any) -> Any:
            n, T, _ = tokens.shape
            parts = self.project(self.norm(tokens)).chunk(3, dim=-1)
            queries, keys, values = (part.view(n, T, heads, head_dim).transpose(1, 2) for part in parts)
            logits = queries @ keys.transpose(-1, -2) * self.log_tau.exp()
            logits = logits.masked_fill(torch.eye(T, dtype=torch.bool), -torch.inf)
            mixed = (logits.softmax(-1) @ values).transpose(1, 2).reshape(n, T, -1)
            return tokens + self.out(mixed)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(patch * patch, dim)
            self.cls = nn.Parameter(torch.randn(1, 1, dim))
            self.positions = nn.Parameter(torch.randn(1, (SIDE // patch) ** 2 + 1, dim))
            self.attention = nn.ModuleList([Attention() for _ in range(depth)])
            self.mlp = nn.ModuleList([_perceptron(nn, dim, mlp) for _ in range(depth)])
            self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, CLASSES))

        def forward(self, patches: Any) -> Any:
            tokens = torch.cat([self.cls.expand(len(patches), -1, -1), self.embed(patches)], dim=1) + self.positions
            for attention, mlp in zip(self.attention, self.mlp, strict=True):
                tokens = attention(tokens)
                tokens = tokens + mlp(tokens)
            return self.head(tokens[:, 0])

    x, y = _images(patch)
    images, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    network = Network()
    rule = torch.optim.SGD(network.parameters(), lr=0.01)

    def train(steps: int) -> None:
        for _ in range(steps):
            which = torch.randint(0, IMAGES, (batch,))
            rule.zero_grad()
            nn.functional.cross_entropy(network(images[which]), labels[which]).backward()
            rule.step()

    return train


def _perceptron(nn: Any, dim: int, hidden: int) -> Any:
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
