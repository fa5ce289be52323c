"""`attnlab solve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import tyro

from attnlab.cli.ending import OUT_OF_TIME
from attnlab.cli.show import print_json, print_rows, progress, say

SHOWN = 30  # queries in the table; JSON has all
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Solve:
    """The max-margin direction of your own tokens: where gradient descent takes W or (K, Q), with a certificate.

    FILE is an npz (`np.savez("tokens.npz", x=x, z=z, y=y, v=v)`) with arrays x (n,T,d), z (n,d) or (n,K,d), y (n,) or
    (n,K) of +1 and -1, and perhaps v (d,), mask, and selected (n,) or (n,K): the token each query should pick.

    With --weights, what your own trained W selects on these tokens: its margin beside the best, and beside chance.
    """

    file: tyro.conf.Positional[Path]
    """The tokens."""
    selected: str | None = None
    """Token per query, as 0,2,1,... (default: `selected` in the file, else the tokens of best score). Tokens that share
    a query's attention are joined by +, as 0,2+3,1."""
    norm: Literal["frobenius", "nuclear", "spectral", "l1"] = "frobenius"
    """frobenius: where W goes; nuclear: where (K, Q) goes; or another norm of W (l1: sum of absolute entries)."""
    weights: Path | None = None
    """An npy file with W (d,d) of a trained attention layer: report what it selects, in both norms, in place of solving
    for a given selection."""
    draws: int = 20
    """With --weights: how many random rotations of W chance is told from."""
    mask: str | None = None
    """What each query sees: causal, an npy file of booleans, or rows of 0 and 1 as 1110,1011 (default: `mask` in the
    file, else everything)."""
    time_limit: float | None = None
    """Seconds after which to end with what is known by then, and exit code 3."""
    out: Path | None = None
    """Where W and the certificate go (default: FILE with -margin.npz)."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from attnlab.checks import number
        from attnlab.cli.limit import finished_within
        from attnlab.data.files import write_npz

        if self.time_limit is not None:
            number("--time-limit", self.time_limit, above=0)
        if self.weights is not None:
            from attnlab.cli.weights import inspect_weights

            return inspect_weights(self)
        work = _Work(self)
        with progress("solve") as show:
            in_time = finished_within(self.time_limit, lambda: work.do(lambda what: show(0, None, what)))
        out = None
        if work.solution is not None:
            out = write_npz(work.out, work.arrays(), work.facts())
        if not in_time:
            what = "W was found; the rest was not" if out else "no W was found"
            say(f"time is up: {what} in {self.time_limit:g} seconds")
        if self.json:
            print_json(work.facts() | {"queries": work.per_query(), "out": None if out is None else str(out)})
        elif work.tokens is not None:
            self._print(work)
        say(f"W and the certificate: {out}" if out else "no file was written")
        if not in_time or work.solution is None:
            return OUT_OF_TIME
        return 0 if work.solution.feasible else 1

    def _print(self, work: _Work) -> None:
        hidden = ("support", "selected", "status", "file")
        shown = {name: fact for name, fact in work.facts().items() if name not in hidden and fact is not None}
        rows = [{"": name.replace("_", " "), "value": fact} for name, fact in shown.items()]
        print_rows(rows, f"{work.tokens} from {self.file}")
        queries = work.per_query()
        if queries:
            count = f"; {SHOWN} of {len(queries)}, --json has all" if len(queries) > SHOWN else ""
            print_rows(queries[:SHOWN], f"Tokens per query (values: lead of the selected token{count})")


class _Work:
    """All that is found out about a file of tokens, as far as it has come."""

    def __init__(self, asked: Solve) -> None:
        self.asked = asked
        self.out = out_path(asked, "margin")
        self.tokens: Any = None
        self.best: Any = None  # (tokens of best score, how many share it)
        self.chosen: Any = None
        self.kept: Any = None
        self.solution: Any = None
        self.local: bool | None = None

    def do(self, tell: Tell) -> None:
        """Everything, in order."""
        tell(f"reading {self.asked.file}")
        tokens, in_file = self._read()
        check_out(self.out, asked=self.asked)
        tell("choosing tokens")
        self.best = self._best(tokens, needed=self.asked.selected is None and in_file is None)
        self.chosen, self.kept = self._selection(tokens, in_file)
        self.tokens = tokens
        tell(f"solving: {self.chosen.size} queries of {tokens.T} tokens, d = {tokens.d}, {self.asked.norm} norm")
        self.solution = self._solved()
        if self.best is not None and self.kept is None:
            from attnlab.theory import is_locally_optimal

            tell("asking whether the tokens are locally optimal")
            self.local = bool(is_locally_optimal(tokens, self.chosen, solution=self.solution))

    def facts(self) -> dict[str, Any]:
        """What is known, as JSON."""
        best, chosen = self.best, self.chosen
        is_best = None if best is None or chosen is None or self.kept is not None else bool((chosen == best[0]).all())
        if self.solution is None:
            known: dict[str, Any] = {
                "status": "out_of_time",
                "message": f"Not solved in {self.asked.time_limit:g} seconds.",
                "norm": self.asked.norm,
                "selected": None if chosen is None else chosen.tolist(),
            }
        else:
            known = self.solution.summary()
        return known | {
            "file": str(self.asked.file),
            "locally_optimal": self.local,
            "optimal": is_best,
            "tied_best_scores": None if best is None else int((best[1] > 1).sum()),
        }

    def arrays(self) -> dict[str, Any]:
        """W and its certificate."""
        solution = self.solution
        arrays = {"W": solution.W, "multipliers": solution.multipliers, "values": solution.values}
        if solution.multiplier_exponent:
            arrays["multiplier_exponent"] = solution.multiplier_exponent
        arrays["selected"] = self.chosen
        if self.kept is not None:
            arrays["kept"] = self.kept
        if solution.farkas is not None:
            arrays["farkas"] = solution.farkas
        return arrays

    def per_query(self) -> list[dict[str, Any]]:
        """For every query: which tokens hold the direction in place."""
        import numpy as np

        solution = self.solution
        if solution is None or not solution.feasible or solution.support is None:
            return []
        return [self._about(where) for where in np.ndindex(self.chosen.shape)]

    def _about(self, where: tuple[int, ...]) -> dict[str, Any]:
        import numpy as np

        values = self.solution.values[where]
        compared = np.isfinite(values)
        selected = str(self.chosen[where])
        if self.kept is not None:
            compared &= ~self.kept[where]
            selected = "+".join(map(str, np.flatnonzero(self.kept[where])))
        return {
            "query": ",".join(map(str, where)),
            "selected": selected,
            "best score": "" if self.best is None else int(self.best[0][where]),
            "support tokens": ", ".join(map(str, np.flatnonzero(self.solution.support[where]))) or "none",
            "least value": float(values[compared].min()) if compared.any() else "",
        }

    def _read(self) -> tuple[Any, Any]:
        """The tokens of the file, and the selection in it, if any."""
        from attnlab.data.files import read_npz

        tokens = read_tokens(self.asked)
        in_file = None if self.asked.selected is not None else read_npz(self.asked.file, "tokens")[0].get("selected")
        return tokens, in_file

    def _best(self, tokens: Any, *, needed: bool) -> Any:
        """Tokens of best score, and how many share it; None where there are no scores and none are needed."""
        from attnlab.data import optimal_tokens
        from attnlab.errors import InputError

        try:
            return None if tokens.v is None else optimal_tokens(tokens, return_ties=True)
        except InputError:  # scores beyond the largest number
            if needed:
                raise
            return None

    def _selection(self, tokens: Any, in_file: Any) -> tuple[Any, Any]:
        """A token per query, and where queries keep several: which, as booleans (else None)."""
        from attnlab.cli.selection import chosen_and_kept, token_sets
        from attnlab.errors import InputError, message
        from attnlab.svm.rows import check_selected

        if self.asked.selected is not None:
            chosen, kept = chosen_and_kept(token_sets(self.asked.selected), tokens)
            return (chosen if kept is not None else check_selected(tokens, chosen)), kept
        if in_file is not None:
            return check_selected(tokens, in_file), None
        if self.best is not None:
            return self.best[0], None
        problem = f"`{self.asked.file}` has no `selected`, and no `v` to tell the best tokens by."
        raise InputError(message(problem, "--selected 0,2,1,..."))

    def _solved(self) -> Any:
        from attnlab.svm import solve_generalized, solve_margin
        from attnlab.svm.norms import ENTRYWISE_L1, SPECTRAL

        norm: Any = {"spectral": SPECTRAL, "l1": ENTRYWISE_L1}.get(self.asked.norm, self.asked.norm)
        if self.kept is not None:
            return solve_generalized(self.tokens, self.kept, norm=norm, throw=False)
        return solve_margin(self.tokens, self.chosen, norm=norm, throw=False)


def out_path(asked: Solve, what: str) -> Path:
    """Where results go: as asked, or beside the tokens."""
    return asked.out or asked.file.with_name(f"{asked.file.stem}-{what}.npz")


class Asked(Protocol):
    """A command that reads tokens."""

    @property
    def file(self) -> Path: ...
    @property
    def mask(self) -> str | None: ...


def read_tokens(asked: Asked) -> Any:
    """The tokens of the file, one data set, under the mask that was asked for."""
    from attnlab.cli.selection import mask_array
    from attnlab.data import Tokens
    from attnlab.errors import InputError, message

    tokens = Tokens.load(asked.file)
    if tokens.trials is not None:
        problem = f"`{asked.file}` holds {tokens.trials} trials; wanted one data set."
        raise InputError(message(problem, "al.Tokens.load(file)[0].save(...) writes the first of them"))
    if asked.mask is None:
        return tokens
    mask = asked.mask if asked.mask == "causal" else mask_array(asked.mask)
    return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, mask=mask, info=tokens.info)


def check_out(out: Path, *, asked: Solve) -> None:
    """Refuse now, not after minutes of solving, what could not be written or would write over what is read."""
    from attnlab.data.files import npz_path
    from attnlab.data.writing import check_writable
    from attnlab.errors import InputError, message

    if out.is_dir():
        raise InputError(message(f"`--out` is {out}, a folder; wanted a file.", f"--out {out}/margin.npz"))
    path = npz_path(out)
    check_writable(path)
    if path.exists() and os.path.samefile(path, asked.file):
        raise InputError(message(f"`--out` is {path}, the file of the tokens.", "--out margin.npz"))
