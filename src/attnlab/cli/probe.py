"""`attnlab probe`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from attnlab.cli.show import compile_cache, one_blas_thread, print_json, print_text, progress, say
from attnlab.errors import InputError, message

if TYPE_CHECKING:
    from attnlab.reports import ProbeReport
    from attnlab.reports.probing.probe import Probe

KIND = "probe"
ARRAYS = ("q", "k", "hidden", "W_Q", "W_K", "b_Q", "groups", "mask", "causal", "sinks", "ids", "words")
WANTED = "queries and keys of heads (q and k, or hidden, W_Q and W_K)"
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
# Queries that are read for each one that is asked: two halves, of which half is decisive, and some that have no choice.
QUERIES_READ = 5


@dataclass(frozen=True)
class ProbeHeads:
    """What have the heads of a model learned: do they select with more margin for their norm than chance?

    FILE is an npz with q and k (layers, heads, prompts, T, d_h), or hidden (layers, prompts, T, D) with W_Q, W_K
    (layers, heads, d_h, D) and perhaps b_Q; and perhaps mask, sinks, groups, ids, words, causal, as for `al.probe`.
    Or give a language model and a text: `attnlab probe --model FOLDER --text FILE`.
    """

    file: tyro.conf.Positional[Path | None] = None
    """The arrays."""
    model: str | None = None
    """Folder of a model (config.json, *.safetensors, tokenizer.json), or its name on the Hugging Face hub."""
    text: Path | None = None
    """Texts for the model, a prompt each: plain lines, or TSV, CSV, JSON lines with a column of text."""
    prompts: int | None = None
    """How many of them (default: as many as are needed), drawn with the seed."""
    length: int = 48
    """Tokens of a text; more are cut off."""
    layers: str | None = None
    """Which, as 0-5 or 0,2 (default: all)."""
    heads: str | None = None
    """Which, of each layer, as 3,7 (default: all)."""
    norm: Literal["frobenius", "nuclear", "spectral", "max"] = "frobenius"
    """Of the weights; max is the largest entry."""
    sinks: str | None = None
    """Positions that are not to be chosen, as 0,-1 for the first and last token (default: `sinks` of the file; of a
    model its special tokens)."""
    queries: int | None = None
    """Decisive queries that are asked on each half of the prompts (default: d_h^2 / 8)."""
    draws: int = 6
    """Weights with random directions, for each head."""
    splits: int = 2
    """How often the prompts are split into two halves."""
    seed: int = 0
    """Of splits, draws and prompts."""
    jobs: int = 1
    """Processes; -1 for all cores."""
    figure: Path | None = None
    """Where a picture goes, as probe.png or probe.pdf."""
    example: str | None = None
    """The head whose examples the picture shows, as L0H2 (default: the one furthest above chance)."""
    fresh: bool = False
    """Measure again what is kept in the store."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        one_blas_thread()
        if self.figure is not None:
            from attnlab.data.writing import check_writable
            from attnlab.figures.probe import checked_picture

            check_writable(checked_picture("--figure", self.figure))
        with progress("probe") as show:
            show(0, None, "reading")
            ready = self._ready()
            report = self._measured(ready, show)
            if self.figure is not None:
                from attnlab.figures.probe import draw_probe

                draw_probe(report, self.figure, example=self.example)
        if self.json:
            print_json(report.to_json() | {"figure": None if self.figure is None else str(self.figure)})
        else:
            print_text(str(report))
        if self.figure is not None:
            say(f"picture: {self.figure}")
        return 0

    def _ready(self) -> Probe:
        from attnlab.reports.probing.probe import prepare

        if (self.file is None) == (self.model is None):
            given = "neither" if self.file is None else "both"
            hint = "attnlab probe arrays.npz, or attnlab probe --model FOLDER --text FILE"
            raise InputError(message(f"FILE and `--model` are {given} given; wanted one of them.", hint))
        arrays = self._of_file() if self.file is not None else self._of_model()
        if self.sinks is not None:
            arrays["sinks"] = _positions(self.sinks)
        return prepare(**arrays, **self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "layers": _numbers("--layers", self.layers),
            "heads": _numbers("--heads", self.heads),
            "norm": self.norm,
            "queries": self.queries,
            "draws": self.draws,
            "splits": self.splits,
            "seed": self.seed,
        }

    def _of_file(self) -> dict[str, Any]:
        from attnlab.data.files import read_npz

        assert self.file is not None
        found, _ = read_npz(self.file, WANTED)
        unknown = sorted(set(found) - set(ARRAYS))
        if unknown:
            say(f"not read: {', '.join(unknown)} (known are {', '.join(ARRAYS)})")
        arrays: dict[str, Any] = {name: found[name] for name in ARRAYS if name in found}
        if "causal" in arrays:
            arrays["causal"] = bool(arrays["causal"])
        return arrays

    def _of_model(self) -> dict[str, Any]:
        """Hidden states and weights of a language model on as many texts as are needed."""
        import numpy as np

        from attnlab.checks import whole
        from attnlab.data import Tokenizer, read_texts
        from attnlab.reports import probe_arrays
        from attnlab.reports.probing.texts import texts_of_tokens

        if self.text is None or self.model is None:
            raise InputError(message("`--model` is given without `--text`.", "--text FILE: a prompt in every line"))
        whole("--length", self.length, 3)
        compile_cache()
        texts = read_texts(self.text, label=False)
        for why, count in texts.dropped.items():
            say(f"{self.text}: {count} left out ({why})")
        tokenizer = Tokenizer.load(self.model)
        model, weights = _language_model(self.model)
        if self.prompts is None:
            wanted = QUERIES_READ * (self.queries or max(1, model.width**2 // 8))
            data = texts_of_tokens(texts, tokenizer, tokens=wanted, length=self.length, seed=self.seed)
        else:
            order = np.random.default_rng(self.seed).permutation(texts.n)
            data = texts.take(order[: whole("--prompts", self.prompts)]).encode(tokenizer, length=self.length)
        arrays = probe_arrays(model, weights, data)
        count, cut = int(arrays["mask"].sum()), data.info["truncated"]
        say(f"{data.n} of {texts.n} texts, {count} tokens; {cut} were cut at {self.length} tokens")
        return arrays | {"words": np.array(tokenizer.tokens(arrays["ids"]))}

    def _measured(self, ready: Probe, show: Any) -> ProbeReport:
        """Every head, from the store where it is kept."""
        from attnlab.reports.probing.measure import measure
        from attnlab.store import Store

        store = Store()
        if self.fresh:
            for task in ready.tasks:
                show(0, None, f"layer {task.layer}, head {task.head}")
                store.keep(KIND, task, lambda task=task: measure(task), fresh=True)
        kept = store.map(
            KIND,
            measure,
            ready.tasks,
            jobs=self.jobs,
            on_done=lambda done: show(done.done, done.total, f"heads, {done.kept} kept before"),
        )
        return ready.report([(one.arrays, one.facts) for one in kept])


def _language_model(name: str) -> tuple[Any, Any]:
    """The model of a folder, or of a name on the hub, by what its config.json says."""
    from attnlab.data.hub import model_folder, read_json
    from attnlab.models import Bert, Gpt2

    folder = model_folder(name)
    kind = read_json(folder / "config.json", "the shape of the model").get("model_type")
    return Gpt2.load(folder, classes=None) if kind == "gpt2" else Bert.load(folder, classes=None)


def _numbers(name: str, text: str | None) -> list[int] | None:
    """0-2,5 as [0, 1, 2, 5].

    >>> _numbers("--layers", "0-2,5")
    [0, 1, 2, 5]
    """
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        ends = _RANGE.fullmatch(part.strip())
        if ends is None or (ends[2] is not None and not 0 <= int(ends[2]) - int(ends[1]) < 10_000):
            raise InputError(message(f"`{name}` is {text[:40]!r}; wanted numbers.", f"{name} 0-5 or {name} 0,2"))
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return found


def _positions(text: str) -> list[int]:
    """0,-1 as [0, -1]; nothing as no sinks.

    >>> _positions("0,-1"), _positions("")
    ([0, -1], [])
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(re.fullmatch(r"-?\d{1,9}", part) for part in parts):
        raise InputError(message(f"`--sinks` is {text[:40]!r}; wanted positions.", "--sinks=0,-1"))
    return [int(part) for part in parts]
