"""`attnlab solve FILE --weights W.npy`: what a trained W selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnlab.cli.ending import OUT_OF_TIME
from attnlab.cli.limit import finished_within
from attnlab.cli.show import print_json, progress, say

if TYPE_CHECKING:
    from attnlab.cli.solve import Solve


def inspect_weights(asked: Solve) -> int:
    """Print the report and write its arrays; 0 if some W separates what these weights select, 1 if none does."""
    from attnlab.cli.solve import check_out, out_path, read_tokens
    from attnlab.data.files import read_npy, write_npz
    from attnlab.reports import inspect

    _check(asked)
    results: list[Any] = []
    out = out_path(asked, "inspection")

    def work(tell: Any) -> None:
        tell(f"reading {asked.file}")
        tokens = read_tokens(asked)
        check_out(out, asked=asked)
        assert asked.weights is not None
        W = read_npy(asked.weights, "an npy file with W (d, d)")
        tell(f"inspecting W on {tokens}")
        results.append(inspect(tokens, W, draws=asked.draws))

    with progress("inspect") as show:
        in_time = finished_within(asked.time_limit, lambda: work(lambda what: show(0, None, what)))
    if not in_time:
        say(f"time is up: W was not inspected in {asked.time_limit:g} seconds")
        if asked.json:
            print_json({"status": "out_of_time", "file": str(asked.file), "weights": str(asked.weights), "out": None})
        return OUT_OF_TIME
    (report,) = results
    written = write_npz(out, _arrays(report), {"file": str(asked.file), "weights": str(asked.weights)})
    if asked.json:
        print_json(report.to_json() | {"file": str(asked.file), "weights": str(asked.weights), "out": str(written)})
    else:
        print(report)
    say(f"selected tokens, leads and both max-margin solutions: {written}")
    return 0 if report.separable else 1


def _check(asked: Solve) -> None:
    """What goes with a selection of one's own does not go with that of W."""
    from attnlab.errors import InputError, message

    if asked.selected is not None:
        raise InputError(
            message("`--selected` and `--weights` are both given; wanted one.", "W selects its own tokens")
        )
    if asked.norm != "frobenius":
        raise InputError(
            message(f"`--norm` is {asked.norm}; with `--weights` both the Frobenius and the nuclear norm are reported.")
        )


def _arrays(report: Any) -> dict[str, Any]:
    """All that the table has no room for."""
    return {
        "selected": report.selected,
        "tied": report.tied,
        "attention": report.attention,
        "leads": report.leads,
        "W_frobenius": report.frobenius.solution.W,
        "W_nuclear": report.nuclear.solution.W,
    }
