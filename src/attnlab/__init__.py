"""attnlab: a laboratory for how attention learns.

>>> import attnlab as al
>>> tokens = al.data.sphere(n=6, T=8, d=10, seed=0)
>>> run = al.descend(tokens, al.ngd(0.1), steps=500)
>>> run.selected.shape
(6,)

Names are loaded when first used: `import attnlab` alone imports none of JAX, SciPy or matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attnlab import (
        data as data,
        figures as figures,
        models as models,
        optim as optim,
        reports as reports,
        store as store,
        study as study,
        svm as svm,
        theory as theory,
        train as train,
    )
    from attnlab.data import (
        Sequences as Sequences,
        Tokens as Tokens,
        optimal_tokens as optimal_tokens,
        scores as scores,
    )
    from attnlab.errors import (
        AttnlabError as AttnlabError,
        InfeasibleSelection as InfeasibleSelection,
        InputError as InputError,
        StoreError as StoreError,
    )
    from attnlab.explore import explore as explore
    from attnlab.models import Model as Model, weights as weights
    from attnlab.optim import (
        adam as adam,
        gd as gd,
        heavy_ball as heavy_ball,
        joint_decay as joint_decay,
        joint_separate as joint_separate,
        joint_total as joint_total,
        ngd as ngd,
        ngd_momentum as ngd_momentum,
        polyak as polyak,
    )
    from attnlab.reports import (
        encoder_report as encoder_report,
        good_initialization as good_initialization,
        inspect as inspect,
        limits as limits,
        probe as probe,
        rates as rates,
        report as report,
    )
    from attnlab.store import Store as Store
    from attnlab.study import Study as Study
    from attnlab.svm import (
        MarginSolution as MarginSolution,
        distance_to_face as distance_to_face,
        solve_margin as solve_margin,
        solve_margins as solve_margins,
    )
    from attnlab.theory import is_locally_optimal as is_locally_optimal
    from attnlab.train import (
        Trajectory as Trajectory,
        cosine as cosine,
        descend as descend,
        flow as flow,
        misalignment as misalignment,
        regularization_path as regularization_path,
    )

_ROOMS = ("data", "models", "optim", "train", "svm", "theory", "reports", "store", "study", "figures")
_NAMES = {
    "attnlab.data": ("Tokens", "Sequences", "scores", "optimal_tokens"),
    "attnlab.errors": ("AttnlabError", "InfeasibleSelection", "InputError", "StoreError"),
    "attnlab.models": ("Model", "weights"),
    "attnlab.optim": (
        "gd",
        "heavy_ball",
        "ngd",
        "ngd_momentum",
        "polyak",
        "adam",
        "joint_decay",
        "joint_separate",
        "joint_total",
    ),
    "attnlab.train": ("descend", "flow", "regularization_path", "Trajectory", "cosine", "misalignment"),
    "attnlab.svm": ("MarginSolution", "solve_margin", "solve_margins", "distance_to_face"),
    "attnlab.theory": ("is_locally_optimal",),
    "attnlab.reports": ("rates", "good_initialization", "encoder_report", "inspect", "limits", "probe", "report"),
    "attnlab.explore": ("explore",),
    "attnlab.store": ("Store",),
    "attnlab.study": ("Study",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [*_ROOMS, *_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"attnlab.{name}")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
