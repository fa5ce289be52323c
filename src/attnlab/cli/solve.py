"""`attnlab solve`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from attnlab.cli.show import print_rows, say


@dataclass(frozen=True)
class Solve:
    """The max-margin direction of your own tokens: where gradient descent takes W or (K, Q), with a certificate.

    FILE is an npz (`np.savez("tokens.npz", x=x, z=z, y=y, v=v)`) with arrays x (n,T,d), z (n,d) or (n,K,d), y (n,) or
    (n,K) of +1 and -1, and perhaps v (d,), mask, and selected (n,) or (n,K): the token each query should pick.
    """

    file: tyro.conf.Positional[Path]
    """The tokens."""
    selected: str | None = None
    """Token per query, as 0,2,1,... (default: `selected` in the file, else the tokens of best score). Tokens that share
    a query's attention are joined by +, as 0,2+3,1."""
    norm: Literal["frobenius", "nuclear", "spectral", "l1"] = "frobenius"
    """frobenius: where W goes; nuclear: where (K, Q) goes; or another norm of W (l1: sum of absolute entries)."""
    mask: str | None = None
    """What each query sees: causal, an npy file of booleans, or rows of 0 and 1 as 1110,1011 (default: `mask` in the
    file, else everything)."""
    out: Path | None = None
    """Where W and the certificate go (default: FILE with -margin.npz)."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        import numpy as np

        from attnlab.data import optimal_tokens
        from attnlab.data.files import write_npz
        from attnlab.svm import solve_generalized, solve_margin
        from attnlab.svm.norms import ENTRYWISE_L1, SPECTRAL
        from attnlab.theory import is_locally_optimal

        tokens = self._tokens()
        best = None if tokens.v is None else optimal_tokens(tokens, return_ties=True)
        chosen, kept = self._selection(tokens, best)
        norm: Any = {"spectral": SPECTRAL, "l1": ENTRYWISE_L1}.get(self.norm, self.norm)
        if kept is not None:
            solution, local = solve_generalized(tokens, kept, norm=norm, throw=False), None
        else:
            solution = solve_margin(tokens, chosen, norm=norm, throw=False)
            local = is_locally_optimal(tokens, chosen, solution=solution) if best is not None else None
        result = solution.summary() | {
            "file": str(self.file),
            "locally_optimal": None if local is None else bool(local),
            "optimal": None if best is None or kept is not None else bool((chosen == best[0]).all()),
            "tied_best_scores": None if best is None else int((best[1] > 1).sum()),
        }
        out = self.out or self.file.with_name(self.file.stem + "-margin.npz")
        arrays = {"W": solution.W, "multipliers": solution.multipliers, "values": solution.values, "selected": chosen}
        arrays |= {} if kept is None else {"kept": kept}
        if solution.farkas is not None:
            arrays["farkas"] = solution.farkas
        write_npz(out, arrays, result)
        if self.json:
            print(json.dumps({**result, "out": str(out)}))
        else:
            shown = {
                k: v for k, v in result.items() if k not in ("support", "selected", "status", "file") and v is not None
            }
            print_rows([{"": k.replace("_", " "), "value": v} for k, v in shown.items()], f"{tokens} from {self.file}")
            if solution.feasible and solution.support is not None:
                print_rows(
                    _per_query(np, chosen, kept, best, solution),
                    "Tokens per query (values: lead of the selected token)",
                )
        say(f"W and the certificate: {out}")
        return 0 if solution.feasible else 1

    def _tokens(self) -> Any:
        """The tokens of the file, under the mask that was asked for."""
        from attnlab.data import Tokens
        from attnlab.errors import InputError, message

        tokens = Tokens.load(self.file)
        if tokens.trials is not None:
            raise InputError(message(f"`{self.file}` holds {tokens.trials} trials; wanted one data set.",
                                     "in Python: al.solve_margins(tokens, selected)"))  # fmt: skip
        if self.mask is None:
            return tokens
        mask = self.mask if self.mask == "causal" else _mask_array(self.mask)
        return Tokens(x=tokens.x, z=tokens.z, y=tokens.y, v=tokens.v, mask=mask, info=tokens.info)

    def _selection(self, tokens: Any, best: Any) -> tuple[Any, Any]:
        """A token per query, and where queries keep several: which, as booleans (else None)."""
        import numpy as np

        from attnlab.data.files import read_npz
        from attnlab.errors import InputError, message

        if self.selected is not None:
            sets = _token_sets(self.selected)
            shape = tokens.y.shape if len(sets) == tokens.y.size else (len(sets),)
            chosen = np.array([tokens_of[0] for tokens_of in sets]).reshape(shape)
            if all(len(tokens_of) == 1 for tokens_of in sets):
                return chosen, None
            named = np.array([t for tokens_of in sets for t in tokens_of])
            if shape != tokens.y.shape or named.min() < 0 or named.max() >= tokens.T:
                raise InputError(
                    message(f"`--selected` names {len(sets)} sets of tokens from {named.min()} to {named.max()}; "
                            f"wanted {tokens.y.size}, of tokens 0 to {tokens.T - 1}.")
                )  # fmt: skip
            kept = np.zeros((len(sets), tokens.T), dtype=bool)
            for i, tokens_of in enumerate(sets):
                kept[i, tokens_of] = True
            return chosen, kept.reshape(*tokens.y.shape, tokens.T)
        arrays = read_npz(self.file, "tokens")[0]
        if "selected" in arrays:
            return arrays["selected"], None
        if best is not None:
            return best[0], None
        raise InputError(message(f"`{self.file}` has no `selected`, and no `v` to tell the best tokens by.",
                                 "--selected 0,2,1,..."))  # fmt: skip


def _token_sets(text: str) -> list[list[int]]:
    """0,2+3,1 as [[0], [2, 3], [1]]."""
    from attnlab.errors import InputError, message

    try:
        sets = [[int(t) for t in part.split("+")] for part in text.replace(" ", ",").split(",") if part]
    except ValueError:
        sets = []
    if not sets:
        raise InputError(message(f"`--selected` is {text!r}; wanted whole numbers.", "--selected 0,2,1 or 0,2+3,1"))
    return sets


def _mask_array(text: str) -> Any:
    """A mask from an npy file, or from rows of 0 and 1."""
    import numpy as np

    from attnlab.errors import InputError, message

    hint = "--mask causal, --mask mask.npy or --mask 1110,1011"
    if Path(text).suffix == ".npy":
        try:
            return np.load(text, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(message(f"`--mask` names {text}, which cannot be read ({error}).", hint)) from None
    rows = [part for part in text.replace(" ", ",").split(",") if part]
    if not rows or set(text) - set("01, ") or len({len(row) for row in rows}) > 1:
        raise InputError(message(f"`--mask` is {text!r}; wanted rows of 0 and 1, all as long as a sequence.", hint))
    mask = np.array([[char == "1" for char in row] for row in rows])
    return mask[0] if len(mask) == 1 else mask


def _per_query(np: Any, chosen: Any, kept: Any, best: Any, solution: Any) -> list[dict[str, Any]]:
    """At most 30 rows: which tokens hold the direction in place."""
    rows = []
    for where in list(np.ndindex(chosen.shape))[:30]:
        support = np.flatnonzero(solution.support[where])
        compared = np.isfinite(solution.values[where]) & (True if kept is None else ~kept[where])
        rows.append(
            {
                "query": ",".join(map(str, where)),
                "selected": str(chosen[where]) if kept is None else "+".join(map(str, np.flatnonzero(kept[where]))),
                "best score": "" if best is None else int(best[0][where]),
                "support tokens": ", ".join(map(str, support)) or "none",
                "least value": float(solution.values[where][compared].min()) if compared.any() else "",
            }
        )
    return rows
