"""The probe on a pretrained model and on the same architecture with random weights: seconds per head, and calibration.

Nobody trained random weights, so of their heads none should stand out, and z should have deviation one.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/probe.py MODEL_FOLDER TEXT_FILE [TEXT_FILE ...]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import attnlab as al
from attnlab.reports.probing.judged import judge
from attnlab.reports.probing.measure import Task, measured_in
from attnlab.reports.probing.metrics import Metric
from attnlab.reports.probing.probe import prepare
from attnlab.reports.probing.texts import texts_of_tokens

TOKENS, LENGTH = 1024, 48
COLUMNS = "weights    text          metric    above  mean z  sd z  share  chance  ceiling  median index  s/head  widest"


def main(folder: str, files: list[str]) -> None:
    """A line for each choice of weights, text and metric."""
    tokenizer = al.data.Tokenizer.load(folder)
    model, trained = al.models.Bert.load(folder, classes=2)
    print(COLUMNS)
    for file in files:
        texts = al.data.read_texts(file, label=False)
        data = texts_of_tokens(texts, tokenizer, tokens=TOKENS, length=LENGTH, seed=0)
        for name, weights in (("random", model.initial(data, seed=0)), ("trained", trained)):
            ready = prepare(**al.reports.probe_arrays(model, weights, data))
            for metric in Metric:
                line(name, Path(file).stem[:12], metric, ready.tasks)


def line(weights: str, text: str, metric: Metric, tasks: tuple[Task, ...]) -> None:
    """All heads in one metric, one after the other."""
    began = time.perf_counter()
    measured = [measured_in(task, metric) for task in tasks]
    seconds = (time.perf_counter() - began) / len(tasks)
    judged = [one for one in judge(measured)[0] if one is not None]
    z = np.array([one.z for one in judged])
    row: list[Any] = [f"{weights:10} {text:13} {metric.value:9}"]
    row += [f"{sum(one.above for one in judged):2} of {len(judged)}", f"{z.mean():6.2f} {z.std(ddof=1):6.2f}"]
    row += [f"{np.median([getattr(one, part) for one in judged]):6.3f}" for part in ("share", "chance", "ceiling")]
    known = [one.index for one in judged if one.index is not None]
    row += [f"{np.median(known):6.2f} ({len(known)})" if known else "     - (0)"]
    row += [f"{seconds:6.2f}", f"{max(one.gap for one in measured):.3f}"]
    print("  ".join(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
