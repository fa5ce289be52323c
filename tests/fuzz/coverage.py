"""Every public name, and the few that no case calls, each with the reason."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from fuzz.calls import table

ROOMS = (
    "",
    "data",
    "models",
    "optim",
    "train",
    "svm",
    "theory",
    "theory.svm",
    "theory.rates",
    "theory.encoder",
    "theory.multihead",
    "theory.rate_bounds",
    "reports",
    "store",
    "study",
    "figures",
    "claims",
)

RESULT = "comes back from a call; its properties are read there"
TRACED = "takes JAX arrays inside a compiled program"
NAMES = "names or constants, nothing to call"
ERROR = "an error, raised by attnlab alone"
RECORD = "a plain record without checks of its own"
SLOW = "minutes a piece: measured and drawn in tests of its own room"

EXEMPT = {
    "AttnlabError": ERROR,
    "InputError": ERROR,
    "StoreError": ERROR,
    "InfeasibleSelection": ERROR,
    "store.NotKept": ERROR,
    "study.StudyRun": RESULT,
    "study.StudyProgress": RESULT,
    "study.StudyStatus": RESULT,
    "MarginSolution": RESULT,
    "svm.MarginSolutions": RESULT,
    "svm.MarginStatus": NAMES,
    "svm.Bracket": RESULT,
    "svm.BracketStatus": NAMES,
    "svm.HardMargin": RESULT,
    "svm.FactoredSolution": RESULT,
    "svm.FinitePart": RESULT,
    "svm.Combination": RESULT,
    "svm.OptimalFace": RESULT,
    "models.Problem": TRACED,
    "models.Example": TRACED,
    "models.Forward": TRACED,
    "models.Held": TRACED,
    "models.View": TRACED,
    "models.HeadTokens": RESULT,
    "models.Weight": RECORD,
    "models.Model": "abstract; called on a model of a user's",
    "models.MarginLoss": TRACED,
    "models.ScaledGradient": TRACED,
    "models.LOSSES": NAMES,
    "models.Loss": TRACED,
    "models.Network": "abstract",
    "models.TextTransformer": "abstract",
    "models.LayerStates": RESULT,
    "models.TrainedHead": "abstract",
    "train.View": TRACED,
    "train.Progress": RESULT,
    "train.FlowProgress": RESULT,
    "train.PathProgress": RESULT,
    "theory.Check": RESULT,
    "theory.FamilyComparison": RESULT,
    "theory.LocalCone": RESULT,
    "theory.LocalOptimality": RESULT,
    "theory.LocallyOptimalSelections": RESULT,
    "theory.LossConstants": RECORD,
    "theory.RateConstants": RESULT,
    "reports.EncoderReport": RESULT,
    "reports.Fact": RECORD,
    "reports.HeadRow": RESULT,
    "reports.ModelReport": RESULT,
    "reports.Inspection": RESULT,
    "reports.Chance": RESULT,
    "reports.NormRow": RESULT,
    "reports.QueryRow": RESULT,
    "reports.InitializationReport": RESULT,
    "reports.HeadVerdict": NAMES,
    "reports.Judged": RESULT,
    "reports.ProbedHead": RESULT,
    "reports.ProbeReport": RESULT,
    "reports.Limit": RESULT,
    "reports.LimitsReport": RESULT,
    "reports.RatesRow": RESULT,
    "reports.RatesTable": RESULT,
    "reports.Report": "abstract",
    "reports.Section": RECORD,
    "reports.Stability": RESULT,
    "theory.rate_bounds.PolyakConstants": RESULT,
    "theory.encoder.AlphaPrediction": RESULT,
    "theory.encoder.BoundedTokens": RESULT,
    "theory.encoder.Covariance": RESULT,
    "theory.encoder.Dissimilarity": RESULT,
    "theory.encoder.Forward": RESULT,
    "theory.encoder.FullRank": RESULT,
    "theory.encoder.LITERATURE": NAMES,
    "theory.encoder.Lambda0": RESULT,
    "theory.encoder.Lemma15": RESULT,
    "theory.encoder.Line": RESULT,
    "theory.encoder.LiteratureWidth": RECORD,
    "theory.encoder.RequiredWidth": RESULT,
    "theory.multihead.GENERALIZATION": NAMES,
    "theory.multihead.TRAINING": NAMES,
    "theory.multihead.GoodStartBounds": RESULT,
    "theory.multihead.HeadWeights": RESULT,
    "theory.multihead.PhaseOne": RESULT,
    "theory.multihead.Promise": RESULT,
    "theory.multihead.RealizableBounds": RESULT,
    "theory.multihead.TokenBounds": RESULT,
    "figures.demo_data": SLOW,
    "figures.draw_demo": SLOW,
    "figures.make": SLOW,
    "figures.make_all": SLOW,
    "claims.check": SLOW,
    "figures.Figure": RECORD,
    "figures.Finding": RECORD,
    "figures.Made": RESULT,
    "claims.Checked": RESULT,
    "claims.Claim": RECORD,
    "claims.LeftOut": RECORD,
    "claims.Outcome": RECORD,
    "claims.Slip": RECORD,
    "claims.Kind": NAMES,
    "claims.Scale": NAMES,
    "claims.Verdict": NAMES,
    "claims.outcome": "takes tallies, which have cases of their own",
    "claims.erratum": RECORD,
    "claims.claims_page": "takes what `Checked.to_json` gives",
}

# Methods that no case calls, by class.
METHODS_EXEMPT = {
    "reports.ProbeReport": RESULT,
    "reports.RatesRow": RESULT,
    "reports.RatesTable": RESULT,
    "svm.Rows": "arithmetic of rows that were checked when they were made",
    "svm.MarginSolutions": RESULT,
    "models.Loss": TRACED,
    "models.MarginLoss": TRACED,
    "models.Problem": TRACED,
    "models.Held": TRACED,
    "models.Weight": RECORD,
    "models.ScaledGradient": TRACED,
    "models.Head": "called through `scores` with every head",
    "models.Linear": "likewise",
    "models.Concave": "likewise",
    "models.Mlp": "likewise",
    "models.Along": "likewise",
    "models.TrainedHead": TRACED,
    "models.TrainedLinear": TRACED,
    "models.TrainedMlp": TRACED,
    "models.LayerStates": RESULT,
    "models.RoundedMlp": "likewise",
    "models.ReluSum": "likewise",
    "models.FunctionHead": "likewise",
    "models.Network": "abstract; called on Encoder and FullyConnected",
    "models.TextTransformer": "abstract; called on Bert and Gpt2",
    "theory.LocallyOptimalSelections": RESULT,
    "theory.LipschitzConstants": "one case calls all four",
    "figures.Figure": RECORD,
    "figures.Finding": RECORD,
    "figures.Made": RESULT,
    "claims.Checked": RESULT,
    "claims.Claim": RECORD,
    "claims.LeftOut": RECORD,
    "claims.Outcome": RECORD,
    "claims.Slip": RECORD,
    "claims.Part": RECORD,
}
TRACED_METHODS = {
    "all_shapes",
    "attend",
    "embedded",
    "embedding_shapes",
    "forward",
    "logits",
    "normed",
    "outputs",
    "raw",
    "held",
    "pooling",
    "pooling_shapes",
    "shapes",
    "variances",
    "problem",
    "leave_unsolved",
    "interval",
    "add_at_least",
    "add_logs",
    "add_ratios",
}
# What `descend`, `flow`, paths and kernels ask of a model; their cases come here through them.
PROTOCOL = {
    "accepts",
    "as_shown",
    "at",
    "bytes_at_work",
    "check",
    "columns",
    "check_trainable",
    "checked_shapes",
    "chosen_engine",
    "compared",
    "compiled_as",
    "constants",
    "decoded",
    "directly",
    "excess",
    "for_flow",
    "heads_as_tokens",
    "hold_factors",
    "of_weights",
    "output",
    "prepare",
    "random_points",
    "records",
    "relu",
    "settled",
    "sizes",
    "start",
    "tangent_kernel",
    "targets",
    "tested",
    "test_records",
    "unchecked_forward",
    "view",
}
READ = (
    "summary",
    "to_json",
    "describe",
    "about",
    "record",
    "cells",
    "sections",
    "frame",
    "from_json",
    "K",
    "Q",
    "K_printed",
    "Q_printed",
)  # by `outcomes.touch`


def public() -> dict[str, Any]:
    """Every public name outside of modules, with what it is."""
    found: dict[str, Any] = {}
    for room in ROOMS:
        module = _module(room)
        names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        for name in names:
            value = getattr(module, name)
            if isinstance(value, ModuleType) and callable(value):  # a room that is called like its function
                value = getattr(value, name)
            if not isinstance(value, ModuleType) and _own(value, module, room):
                found[f"{room}.{name}".lstrip(".")] = value
    return found


def _module(room: str) -> Any:
    if room == "theory.rate_bounds":
        return import_module("attnlab.theory.rates.bounds")
    return import_module(f"attnlab.{room}".rstrip("."))


def _own(value: Any, module: Any, room: str) -> bool:
    """Is it attnlab's, and not only imported for use?"""
    home = getattr(value, "__module__", None)
    if room == "theory.rate_bounds":
        return home == module.__name__
    return (
        home is None or not isinstance(home, str) or home.startswith("attnlab") or home in ("typing", "builtins", "jax")
    )


def methods(name: str, kind: type) -> list[str]:
    """Public methods that a class of attnlab defines."""
    found = []
    for method in dir(kind):
        if method.startswith("_") and method != "__getitem__":
            continue
        given = inspect.getattr_static(kind, method)
        inner = getattr(given, "__func__", given)
        if isinstance(inner, FunctionType) and inner.__module__.startswith("attnlab"):
            found.append(f"{name}.{method}")
    return found


def covered() -> set[str]:
    """Names that some case calls."""
    names = set(table())
    for one in table().values():
        names.update(one.covers)
    return names


def missing() -> list[str]:
    """Public names without a case and without a reason for having none."""
    have, values = covered(), public()
    aliases: dict[int, set[str]] = {}
    for name, value in values.items():
        aliases.setdefault(id(value), set()).add(name)
    lacking = []
    for name, value in values.items():
        same = aliases[id(value)]
        if not same & have and not same & set(EXEMPT):
            lacking.append(name)
        if inspect.isclass(value) and name.count(".") and not same & set(METHODS_EXEMPT):
            lacking += [m for m in methods(name, value) if not _method_covered(m, same, have)]
    return sorted(set(lacking))


def _method_covered(method: str, same: set[str], have: set[str]) -> bool:
    last = method.rpartition(".")[2]
    return last in TRACED_METHODS | PROTOCOL or last in READ or any(f"{name}.{last}" in have for name in same)


def stale() -> list[str]:
    """Exemptions and cases of names that there are not."""
    values = public()
    names = set(values)
    for name, value in values.items():
        if inspect.isclass(value):
            names.update(methods(name, value))
    known = {name.partition(":")[0] for name in covered()}
    return sorted((known | set(EXEMPT) | set(METHODS_EXEMPT)) - names)
