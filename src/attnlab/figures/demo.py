"""The demonstration: W against (K, Q), and both against the two max-margin directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnlab.data import optimal_tokens, sphere, two_clusters
from attnlab.data.tokens import Tokens
from attnlab.figures.style import BLUE, GREY, ORANGE, band, new_figure, save_figure, styled

STEPS = 2000
STEP_SIZE = 0.1
TRIALS = 100
NORMS: tuple[Literal["frobenius", "nuclear"], ...] = ("frobenius", "nuclear")
# The norm whose max-margin problem theory says each parameterization solves.
OWN = {"W": "frobenius", "KQ": "nuclear"}
SPELT = {"frobenius": "Frobenius", "nuclear": "nuclear"}


def demo_data(seed: int = 6, on_part: Callable[[int, int, str], None] | None = None) -> dict[str, np.ndarray]:
    """Train W and (K, Q) by normalized gradient descent on one plane set and a batch of sphere sets, and solve the
    max-margin problem of the tokens that each run selected, in the Frobenius and in the nuclear norm.

    Args:
        seed: of the data and of the starts. Seed 6 is one where the two parameterizations pick the same tokens in
            the plane but part ways in direction, so that the picture has something to show.
        on_part: told (parts done, parts in all, what comes next).

    Returns:
        Arrays by name; `plane_*` for the set in the plane, `sphere_*` with a leading trial axis.
    """
    from attnlab.optim import ngd
    from attnlab.svm import solve_margins
    from attnlab.train import cosine, descend, misalignment

    plane = two_clusters(seed=seed)
    many = sphere(n=6, T=8, d=10, seed=seed, trials=TRIALS)
    key_start = {"K": 0.1 * np.random.default_rng([seed, 2]).standard_normal((2, 2)), "Q": np.zeros((2, 2))}
    parts: list[tuple[str, Literal["W", "KQ"], Tokens, Any]] = [
        ("plane", "W", plane, "zeros"),
        ("plane", "KQ", plane, key_start),
        ("sphere", "W", many, "uniform"),
        ("sphere", "KQ", many, "uniform"),
    ]
    found: dict[str, np.ndarray] = {"seed": np.array(seed), "plane_x": plane.x, "plane_z": plane.z}
    for i, (name, parameterization, tokens, start) in enumerate(parts):
        if on_part is not None:
            on_part(i, len(parts), f"{name}: training {'W' if parameterization == 'W' else 'K and Q'}")
        run = descend(
            tokens, ngd(STEP_SIZE), steps=STEPS, parameterization=parameterization, init=start, seed=seed,
            metrics={"path": _weights},
        )  # fmt: skip
        path = run.metrics["path"]
        batch = tokens if tokens.trials is not None else Tokens.stack([tokens])
        key = f"{name}_{parameterization}"
        found |= {
            f"{key}_steps": run.steps,
            f"{key}_weights": run.W,
            f"{key}_selected": run.selected,
            f"{key}_best": (run.selected == optimal_tokens(tokens)).all(-1),
            f"{key}_norm": run.metrics["norm"],
            f"{key}_attention": run.metrics["top_attention"],
            f"{key}_log10_excess": run.metrics["log_excess_loss"] / np.log(10.0),
            f"{key}_singular": np.linalg.svd(run.W, compute_uv=False),
            f"{key}_seconds": np.array(run.seconds),
        }
        for norm in NORMS:
            margins = solve_margins(batch, run.selected.reshape(batch.y.shape), norm=norm)
            predicted = margins.W.reshape(run.W.shape)
            found |= {
                f"{key}_{norm}": predicted,
                f"{key}_{norm}_gap": margins.gap,
                f"{key}_{norm}_rank": np.array([np.nan if s.rank is None else s.rank for s in margins], dtype=float),
                f"{key}_{norm}_apart": misalignment(path, predicted[..., None, :, :]),
            }
        if name == "plane":
            found[f"{key}_path"] = path
    for name in ("plane", "sphere"):
        found[f"{name}_cosine"] = cosine(found[f"{name}_W_weights"], found[f"{name}_KQ_weights"])
    if on_part is not None:
        on_part(len(parts), len(parts), "done")
    return found


def _weights(view: Any) -> Any:
    return view.W


def demo_table(data: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """One row per run: what was trained, what it picked, how far it is settled."""
    rows = []
    for name in ("plane", "sphere"):
        for parameterization in ("W", "KQ"):
            key = f"{name}_{parameterization}"
            best = np.atleast_1d(data[f"{key}_best"])
            rows.append(
                {
                    "data": name,
                    "trained": "W" if parameterization == "W" else "K, Q",
                    "trials": int(best.size),
                    "all queries on their best token": int(best.sum()),
                    "least top attention": float(np.min(data[f"{key}_attention"][..., -1])),
                    "norm (median)": float(np.median(data[f"{key}_norm"][..., -1])),
                    "log10 excess loss (median)": float(np.nanmedian(data[f"{key}_log10_excess"][..., -1])),
                    "separable selections": int(np.isfinite(data[f"{key}_frobenius_gap"]).sum()),
                    **{
                        f"1 - cos with the {SPELT[norm]} max-margin W (median)": float(
                            np.nanmedian(data[f"{key}_{norm}_apart"][..., -1])
                        )
                        for norm in NORMS
                    },
                    **{
                        f"rank of the {SPELT[norm]} max-margin W (mean)": float(np.nanmean(data[f"{key}_{norm}_rank"]))
                        for norm in NORMS
                    },
                    "ranks that the gap leaves open": int(
                        sum(np.isnan(data[f"{key}_{norm}_rank"]).sum() for norm in NORMS)
                    ),
                    "cos of W with K Q^T (median)": float(np.median(data[f"{name}_cosine"])),
                    "seconds": float(data[f"{key}_seconds"]),
                }
            )
    return rows


@styled
def draw_demo(data: dict[str, np.ndarray], path: Path) -> Path:
    """Draw `demo_data` to a file."""
    figure, axes = new_figure(2, 3, width=10.2, height=6.0)
    _draw_plane(axes[0, 0], data)
    (attention, excess), (near, also, spectrum) = axes[0, 1:], axes[1]
    for name, color, style, label in (("W", BLUE, "-", "W"), ("KQ", ORANGE, "--", "(K, Q)")):
        key = f"sphere_{name}"
        steps, best = data[f"{key}_steps"], data[f"{key}_best"]
        later = steps > 0
        look: dict[str, Any] = {"color": color, "style": style}
        band(attention, steps[later], data[f"{key}_attention"][:, later], label=label, **look)
        found = f"{label}: {best.sum()} of {best.size} sets"
        band(excess, steps[later], -data[f"{key}_log10_excess"][best][:, later], label=found, **look)
        for panel, norm in ((near, "frobenius"), (also, "nuclear")):
            own = ", its own limit" if OWN[name] == norm else ""
            band(panel, steps[later], data[f"{key}_{norm}_apart"][:, later], label=f"{label}{own}", **look)
        _draw_spectrum(spectrum, data, name, color, style, label)
    attention.set(title="b  Attention settles on one token", ylabel="largest softmax weight")
    attention.set_ylim(0, 1.05)
    attention.legend(
        title=f"{data['sphere_W_best'].size} sphere sets:\nmedian, middle 80 %", loc="upper left", borderaxespad=1.2
    )
    excess.set(title="c  Loss above its infimum", ylabel="-log10 of excess loss", yscale="log")
    excess.axhline(16, color=GREY, linewidth=1, linestyle=":")
    excess.text(1.1, 13, "textbook gradients:\nnoise above this line", color=GREY, fontsize=7, va="top")
    excess.legend(title="sets where every best token was found", loc="upper left")
    near.set(title="d  To the Frobenius max-margin W", ylabel="1 - cos(., Frobenius max-margin W)")
    also.set(title="e  To the nuclear max-margin W", ylabel="1 - cos(., nuclear max-margin W)")
    least = min(np.nanquantile(data[f"sphere_{n}_{OWN[n]}_apart"][:, -1], 0.1) for n in OWN)
    for panel in (near, also):
        panel.set(yscale="log", ylim=(0.5 * least, 2.0))
        panel.legend(loc="lower left")
    for panel in (attention, excess, near, also):
        panel.set(xscale="log", xlabel="step")
    spectrum.set(title="f  Singular values after the last step", xlabel="number", ylabel="over the largest",
                 yscale="log", ylim=(1e-4, 1.5))  # fmt: skip
    spectrum.legend(loc="upper right", fontsize=7, handlelength=1.6, borderaxespad=0.0)
    return save_figure(figure, path)


def _draw_spectrum(axes: Any, data: dict[str, np.ndarray], name: str, color: str, style: str, label: str) -> None:
    """What was trained, with its spread, and its own max-margin direction, medians as open circles."""

    def relative(values: np.ndarray) -> np.ndarray:
        return values / values[:, :1]

    trained = relative(data[f"sphere_{name}_singular"])
    number = np.arange(1, trained.shape[1] + 1)
    band(axes, number, trained, color=color, style=style, label=label)
    limit = data[f"sphere_{name}_{OWN[name]}"]
    limit = relative(np.linalg.svd(limit[np.isfinite(limit).all((-2, -1))], compute_uv=False))
    axes.plot(number, np.median(limit, axis=0), linestyle="none", marker="o", markersize=4, markerfacecolor="white",
              color=color, label=f"{SPELT[OWN[name]]} limit")  # fmt: skip


def _draw_plane(axes: Any, data: dict[str, np.ndarray]) -> None:
    """Tokens, and the curves W(t) z_i and K(t) Q(t)^T z_i with their lengths on a log scale."""

    def compressed(curve: np.ndarray) -> np.ndarray:
        length = np.linalg.norm(curve, axis=-1, keepdims=True)
        return curve / np.where(length > 0, length, 1.0) * np.log10(1.0 + length)

    markers = ("o", "s")
    for i, (tokens, marker) in enumerate(zip(data["plane_x"], markers, strict=True)):
        axes.scatter(*tokens.T, marker=marker, s=22, facecolor="white", edgecolor="black", linewidth=0.8, zorder=3,
                     label=f"tokens {i + 1}")  # fmt: skip
        chosen = tokens[data["plane_W_selected"][i]]
        axes.scatter(*chosen, marker=marker, s=26, color="black", zorder=4)
    for name, color, style, label in (("W", BLUE, "-", "W z"), ("KQ", ORANGE, "--", "K Qᵀ z")):
        for i, z in enumerate(data["plane_z"]):
            curve = compressed(data[f"plane_{name}_path"] @ z)
            axes.plot(*curve.T, color=color, linestyle=style, label=label if i == 0 else None)
            axes.annotate("", xy=curve[-1], xytext=curve[-2], arrowprops={"arrowstyle": "->", "color": color})
            ray = data[f"plane_{name}_{OWN[name]}"] @ z
            length = np.linalg.norm(ray)
            ray = (2.6 if name == "W" else 4.4) * ray / (length if length > 0 else 1.0)
            axes.plot([0, ray[0]], [0, ray[1]], color=color, linewidth=1, linestyle=":", zorder=1,
                      label=f"{SPELT[OWN[name]]} limit" if i == 0 else None)  # fmt: skip
            if name == "W":
                axes.annotate(f"query {i + 1}", curve[-1], textcoords="offset points", xytext=(4, 4), fontsize=7.5)
    axes.scatter([], [], marker="o", color="black", s=24, label="selected")
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(title="a  In the plane; length log10(1 + |.|)",
             xlabel="first coordinate", ylabel="second coordinate")  # fmt: skip
    axes.legend(loc="lower left", ncols=2, fontsize=7, handlelength=1.6, columnspacing=0.9)
