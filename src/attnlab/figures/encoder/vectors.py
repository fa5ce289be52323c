"""Figure 3 of *On the Convergence of Encoder-only Shallow Transformers*: vectors as one token, or as many."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array
from attnlab.figures.encoder.runs import EPOCHS, SEED, N, middles, rule
from attnlab.figures.figure import Arrays, Check, Facts, Figure, Finding, Tell
from attnlab.figures.rates.curves import Look, number, plain_log
from attnlab.figures.style import BLUE, GREY, ORANGE, PURPLE, band, new_figure, styled

WIDTH, D, STEP = 100, 100, 1.0
LOOKS = {
    "token": Look("one token of dimension 100", BLUE, "-"),
    "dense": Look("fully connected, two layers, same start", ORANGE, (0, (1, 2.2))),
    "tokens_raw": Look("100 tokens of dimension 1, x N(0, I)", PURPLE, "--"),
    "tokens_unit": Look("100 tokens of dimension 1, |x| = 1", GREY, "-."),
}
# Of the loss at the start: converged below the first, stuck above the second. Two runs are one below the third.
CONVERGED, STUCK, SAME = 1e-6, 0.9, 1e-10
# An eigenvalue counts from this part of the largest on; a singular value from this one.
COUNTED, RANK = 1e-3, 1e-10


def vectors(trials: int, n: int = N) -> tuple[Array, Array]:
    """Gaussian vectors (trials, n, 100) and labels (trials, n)."""
    from attnlab.data.families import each_trial

    drawn = each_trial(lambda rng: (rng.standard_normal((n, D)), rng.standard_normal(n)), SEED, trials)
    return np.stack([x for x, _ in drawn]), np.stack([y for _, y in drawn])


def vectors_data(scale: Scale, tell: Tell) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The same vectors read in three ways, and the fully connected network from the same weights."""
    from attnlab.models import Encoder, FullyConnected
    from attnlab.train import descend

    trials, epochs, n = scale.pick(2, 3, 5), scale.pick(20, EPOCHS, EPOCHS), scale.pick(30, N, N)
    x, y = vectors(trials, n)
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    encoder, dense = Encoder(WIDTH, scaling="linear"), FullyConnected(WIDTH)
    token = Sequences.of_vectors(unit, y)
    start = encoder.initial(token, SEED)
    read = {
        "token": (token, encoder, start),
        "dense": (token, dense, {name: start[name] for name in ("W_V", "w_O")}),
        "tokens_raw": (Sequences.of_vectors(x, y, "sequence"), encoder, None),
        "tokens_unit": (Sequences.of_vectors(unit, y, "sequence"), encoder, None),
    }
    record = sorted({*range(min(epochs, 10) + 1), *range(0, epochs, 5), epochs})
    arrays: dict[str, np.ndarray] = {"epochs": np.array(record)}
    for i, (name, (data, network, init)) in enumerate(read.items()):
        tell(i, len(read), LOOKS[name].label)
        run = descend(
            data, rule(STEP), model=network, loss="mse_mean", steps=epochs, record=record, init=init, seed=SEED
        )
        arrays[f"{name}_mse"] = run.metrics["loss"]
        arrays[f"{name}_values"] = eigenvalues(data, network, run.initial)
        arrays[f"{name}_singular"] = np.linalg.svd(network.hidden(data, run.initial), compute_uv=False)
    arrays["raw_values"] = eigenvalues(Sequences.of_vectors(x, y), encoder, start)
    tell(len(read), len(read), "done")
    facts = {
        "n": n,
        "D": D,
        "width": WIDTH,
        "seed": SEED,
        "seeds": trials,
        "epochs": epochs,
        "step": STEP,
        "tau0": "1/m",
        "init": "lecun",
        "loss": "mean squared error",
        "pool": "mean",
        "the paper does not say": "number of vectors, their scale, labels, step, epochs; here as for Figure 2, with "
        "|x| = 1 where x is one token (x of norm sqrt(D) is beyond the largest stable step), both scales where it is "
        "many",
    }
    return arrays, facts


def eigenvalues(data: Sequences, network: Any, weights: Any) -> np.ndarray:
    """Of the tangent kernel of every trial, (trials, n), largest first."""
    from attnlab.theory.tangent import ntk

    found = [ntk(data[i], network, {k: w[i] for k, w in weights.items()}) for i in range(len(data.x))]
    return np.linalg.eigvalsh(np.stack(found))[:, ::-1]


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """One token learns as the fully connected network does; many tokens of dimension 1 do not learn."""
    mse = {name: arrays[f"{name}_mse"] for name in LOOKS}  # (seeds, records)
    left = {name: values[:, -1] / values[:, 0] for name, values in mse.items()}
    apart = np.abs(mse["token"] - mse["dense"]).max(axis=1)
    stuck = np.minimum(left["tokens_raw"], left["tokens_unit"]) >= STUCK
    checks = [
        Check("one token and the fully connected network have the same loss", apart <= SAME, at_least=1.0),
        Check(
            f"with one token the loss falls below {CONVERGED:g} of its start", left["token"] <= CONVERGED, at_least=1.0
        ),
        Check(f"with many tokens it stays above {STUCK:g} of its start", stuck, at_least=1.0),
    ]
    epochs = facts["epochs"]
    brief = f"Runs of {epochs} of {EPOCHS} epochs decide nothing." if epochs < EPOCHS else ""
    remarks = [loss_remark(mse, float(apart.max()), epochs), rank_remark(arrays, facts)]
    return Finding.of(*checks, table=vector_table(arrays, mse), remarks=remarks, brief=brief)


def loss_remark(mse: dict[str, Array], apart: float, epochs: int) -> str:
    """Where losses start and end, by medians over seeds."""
    ends = {name: [middles(values[:, 0], 0), middles(values[:, -1], 0)] for name, values in mse.items()}
    return (
        f"After {epochs} epochs the median loss goes from {ends['token'][0]:.2g} to {ends['token'][1]:.1e} with one "
        f"token, and that of the fully connected network is the same within {apart:.1e} at every epoch; with 100 "
        f"tokens of dimension 1 it goes from {ends['tokens_raw'][0]:.3f} to {ends['tokens_raw'][1]:.3f} (x N(0, I)) "
        f"and from {ends['tokens_unit'][0]:.3f} to {ends['tokens_unit'][1]:.3f} (|x| = 1)."
    )


def counted(arrays: Arrays, name: str) -> np.ndarray:
    """Eigenvalues of K^0 above a part of the largest, by seed."""
    values = arrays[f"{name}_values"]
    return (values > COUNTED * values[:, :1]).sum(1)


def rank(arrays: Arrays, name: str) -> np.ndarray:
    """Rank of the hidden layer at the start, by seed."""
    values = arrays[f"{name}_singular"]
    return (values > RANK * values[:, :1]).sum(1)


def rank_remark(arrays: Arrays, facts: Facts) -> str:
    """Why many tokens of dimension 1 do not learn, and why one token has norm 1."""
    raw = middles(arrays["raw_values"][:, 0], 0)
    many = ("tokens_raw", "tokens_unit")
    eigenvalues_of = [spell(counted(arrays, name)) for name in many]
    ranks = [spell(rank(arrays, name)) for name in many]
    return (
        f"There K^0 has {eigenvalues_of[0]} and {eigenvalues_of[1]} eigenvalues above {COUNTED:g} of the largest, and "
        f"the hidden layer rank {ranks[0]} and {ranks[1]} for {facts['n']} vectors. With x N(0, I) as one token the "
        f"largest eigenvalue of K^0 is {raw:.0f}: step {STEP:g} would be {STEP * raw * 2 / facts['n'] / 2:.0f} "
        "times the largest stable one."
    )


def vector_table(arrays: Arrays, mse: dict[str, Array]) -> dict[str, dict[str, Any]]:
    """Medians over seeds, by how vectors are read."""
    values = {name: arrays[f"{name}_values"] for name in LOOKS}
    rows = {
        "loss at the start": {name: number(middles(mse[name][:, 0], 0)) for name in LOOKS},
        "loss at the end": {name: number(middles(mse[name][:, -1], 0)) for name in LOOKS},
        "largest loss of any epoch": {name: number(middles(mse[name].max(1), 0)) for name in LOOKS},
        "largest eigenvalue of K^0": {name: number(middles(values[name][:, 0], 0)) for name in LOOKS},
        "second eigenvalue over it": {
            name: number(middles(values[name][:, 1] / values[name][:, 0], 0)) for name in LOOKS
        },
        "third eigenvalue over it": {
            name: number(middles(values[name][:, 2] / values[name][:, 0], 0)) for name in LOOKS
        },
        f"eigenvalues above {COUNTED:g} of it": {name: spell(counted(arrays, name)) for name in LOOKS},
        "rank of the hidden layer": {name: spell(rank(arrays, name)) for name in LOOKS},
    }
    return {words: {LOOKS[name].label: value for name, value in row.items()} for words, row in rows.items()}


def spell(counts: Array) -> str:
    """Counts that differ by trial, in words.

    >>> spell(np.array([2, 2])), spell(np.array([2, 3]))
    ('2', '2 to 3')
    """
    low, high = int(counts.min()), int(counts.max())
    return f"{low}" if low == high else f"{low} to {high}"


@styled
def draw(arrays: Arrays, facts: Facts) -> Any:
    """Loss by epoch, and on a linear axis where it hardly moves; eigenvalues of the kernel at the start."""
    picture, axes = new_figure(1, 3, width=9.6, height=3.5)
    for name, look in LOOKS.items():
        for panel in axes[0, :2]:
            band(
                panel,
                arrays["epochs"],
                arrays[f"{name}_mse"],
                color=look.color,
                style=look.style,
                label=look.label,
                share=1.0,
            )
        values = arrays[f"{name}_values"]
        place = np.arange(1, values.shape[1] + 1)
        share = np.clip(values / values[:, :1], 1e-18, None)
        band(axes[0, 2], place, share, color=look.color, style=look.style, label=look.label, share=1.0)
    for panel, title in zip(
        axes[0], ("a  Training", "b  The same, linear axis", "c  Tangent kernel at the start"), strict=True
    ):
        panel.set_title(title, fontweight="bold")
    for panel in axes[0, :2]:
        panel.set(xlabel="epoch", xlim=(0, facts["epochs"]), ylabel="mean squared error")
    plain_log(axes[0, 0])
    axes[0, 1].set_ylim(0, None)
    axes[0, 2].set(xscale="log", xlabel="eigenvalue of K⁰, by size", ylabel="over the largest", ylim=(1e-17, 3))
    ticks = [at for at in (1, 2, 5, 10, 20, 50, 100) if at <= facts["n"]]
    axes[0, 2].set_xticks(ticks, labels=[str(at) for at in ticks])
    axes[0, 2].minorticks_off()
    axes[0, 2].set_xlim(1, facts["n"])
    plain_log(axes[0, 2])
    picture.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        handlelength=3.4,
        title=f"{facts['n']} vectors in dimension {facts['D']} read as; m = {facts['width']}, step "
        f"{facts['step']:g}. Line: median of {facts['seeds']} seeds; band: range",
    )
    return picture


FIGURES = [
    Figure(
        id="encoder-3",
        axes={"epochs": "epoch", "*_mse": "trial epoch", "*": "trial place"},
        title="Vectors as one token, or as many",
        data=vectors_data,
        draw=draw,
        judge=judge,
        says="Fed with vectors in dimension 100, the encoder of width 100 with tau0 = 1/m learns as a fully connected "
        "network of two layers does if a vector is one token (T = 1, d = 100), and fails to converge if it is 100 "
        "tokens of dimension 1, as Corollary 1 says (Figure 3).",
    ),
]
