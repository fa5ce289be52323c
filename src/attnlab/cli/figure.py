"""`attnlab figure`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from attnlab.cli.show import compile_cache, one_blas_thread, print_json, print_rows, progress, say
from attnlab.papers import TITLES

if TYPE_CHECKING:
    from attnlab.figures.figure import Figure, Made


@dataclass(frozen=True)
class Figures:
    """Draw figures of the papers from runs of our own: picture, data, and what was seen.

    rates-9 takes the digits of scikit-learn, or MNIST from the folder of IDX files that ATTNLAB_MNIST names. rates-6,
    rates-7, encoder-4, -6, -7 and -8 take MNIST and CIFAR-10 from where `attnlab data` finds them, else these digits.
    rates-1, -4 and -10, encoder-1 and multihead-6 take texts and a pretrained model from there, or from --weights and
    --data; else a tiny random model on made-up texts stands in.
    """

    ids: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which, as svm-5 rates-2 (default: all that can be made)."""
    paper: Annotated[str | None, tyro.conf.arg(help=f"All figures of one paper: {', '.join(TITLES)}.")] = None
    list: bool = False
    """Only say what there is."""
    scale: Literal["smoke", "quick", "paper"] = "quick"
    """smoke: does it run; quick: is it about right; paper: the paper's own trial counts."""
    weights: str | None = None
    """Folder of a pretrained model (config.json, model.safetensors, tokenizer.json), or its name on the hub."""
    data: Path | None = None
    """File of texts with labels (TSV, CSV, JSON lines), or a folder with train and dev files."""
    set: tuple[str, ...] = ()
    """Other settings than the paper's, as n=3 T=10 d=5,10 trials=30; those of a figure are in `--list --json`."""
    fresh: bool = False
    """Compute again what is kept in the store; without it a figure is only drawn again."""
    jobs: int = 1
    """Processes to make figures in; -1 for all cores."""
    out: Path = Path("attnlab-figures")
    """Folder for ID.png, ID.pdf, ID.npz, ID.csv, ID.json and ID.md."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        one_blas_thread()
        from attnlab.claims.scale import Scale
        from attnlab.claims.texts import Files
        from attnlab.data.writing import make_folder
        from attnlab.figures import figures, find
        from attnlab.figures.own_files import on_files
        from attnlab.figures.settings import settings_in_words

        wanted = find(self.ids) if self.ids else figures(self.paper)
        if self.paper is not None:
            wanted = [figure for figure in wanted if figure.paper == self.paper]
        own = Files(weights=self.weights or "", data="" if self.data is None else str(self.data))
        wanted = [on_files(figure, own, Scale(self.scale)) for figure in wanted]
        changed = settings_in_words(self.set)
        if self.list:
            if self.json:
                print_json([{**f.about(), "settings": f.settings(Scale(self.scale))} for f in wanted])
            else:
                print_rows([{"id": f.id, "figure": f.title, "status": f.status} for f in wanted], "Figures")
            return 0
        if not self.ids:  # of all, those that can be made; one asked for by name is refused with the reason
            for figure in (f for f in wanted if f.status != "ready"):
                say(f"{figure.id}  left out: {figure.status}")
            wanted = [figure for figure in wanted if figure.status == "ready"]
        if all(figure.status == "ready" for figure in wanted):  # else the first that is not is refused, by `make`
            make_folder(self.out)
        compile_cache()
        results = self._made(wanted, changed)
        if self.json:
            print_json([made.to_json() for made in results])
        else:
            print_rows([_row(made) for made in results], f"Figures at scale {self.scale}, in {self.out}")
        return 1 if any(m.finding.verdict.value == "fails" for m in results) else 0

    def _made(self, wanted: Sequence[Figure], changed: dict[str, Any]) -> Sequence[Made]:
        """One after the other with a bar for each, or side by side with one for all."""
        from attnlab.figures import make, make_all
        from attnlab.store import Store

        options: dict[str, Any] = {"out": self.out, "store": Store(), "fresh": self.fresh, **changed}
        if self.jobs != 1:
            with progress("figures") as show:
                results = make_all(wanted, self.scale, jobs=self.jobs, on_part=show, **options)
            for made in results:
                say(_line(made))
            return results
        results = []
        for figure in wanted:
            with progress(figure.id) as show:
                results.append(make(figure, self.scale, on_part=show, **options))
            say(_line(results[-1]))
        return results


def _line(made: Made) -> str:
    return f"{made.figure.id}  {made.files[0]}  ({made.seconds:.1f} s)"


def _row(made: Made) -> dict[str, Any]:
    return {
        "id": made.figure.id,
        "figure": made.figure.title,
        "verdict": made.finding.verdict.value,
        "seen": made.finding.seen,
        "s": f"{made.seconds:.1f}",
    }
