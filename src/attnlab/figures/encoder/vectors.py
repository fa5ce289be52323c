"""Figure 3 of *On the Convergence of Encoder-only Shallow Transformers*: vectors as one token, or as many."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlab.claims.scale import Scale
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array
from attnlab.figures.encoder.runs import EPOCHS, SEED, N, middles, rule
from attnlab.figures.figure import Arrays, Facts, Figure, Finding, Tell
from attnlab.figures.multihead.heads import found
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
        run = descend(data, rule(STEP), model=network, loss="mse_mean", steps=epochs, record=record, init=init,
                      seed=SEED)  # fmt: skip
        arrays[f"{name}_mse"] = run.metrics["loss"]
        arrays[f"{name}_values"] = eigenvalues(data, network, run.initial)
        arrays[f"{name}_singular"] = np.linalg.svd(network.hidden(data, run.initial), compute_uv=False)
    arrays["raw_values"] = eigenvalues(Sequences.of_vectors(x, y), encoder, start)
    tell(len(read), len(read), "done")
    facts = {
        "n": n, "D": D, "width": WIDTH, "seed": SEED, "seeds": trials, "epochs": epochs, "step": STEP,
        "tau0": "1/m", "init": "lecun", "loss": "mean squared error", "pool": "mean",
        "the paper does not say": "number of vectors, their scale, labels, step, epochs; here as for Figure 2, with "
        "|x| = 1 where x is one token (x of norm sqrt(D) is beyond the largest stable step), both scales where it is "
        "many",
    }  # fmt: skip
    return arrays, facts


def eigenvalues(data: Sequences, network: Any, weights: Any) -> np.ndarray:
    """Of the tangent kernel of every trial, (trials, n), largest first."""
    from attnlab.theory.tangent import ntk

    found = [ntk(data[i], {k: w[i] for k, w in weights.items()}, network) for i in range(len(data.x))]
    return np.linalg.eigvalsh(np.stack(found))[:, ::-1]


def judge(arrays: Arrays, facts: Facts) -> Finding:
    """One token learns as the fully connected network does; many tokens of dimension 1 do not learn."""
    mse = {name: arrays[f"{name}_mse"] for name in LOOKS}
    left = {name: middles(values[:, -1] / values[:, 0], 0) for name, values in mse.items()}
    ends = {name: [middles(values[:, 0], 0), middles(values[:, -1], 0)] for name, values in mse.items()}
    difference = float(np.abs(mse["token"] - mse["dense"]).max())
    many = ("tokens_raw", "tokens_unit")
    counted = {name: (arrays[f"{name}_values"] > COUNTED * arrays[f"{name}_values"][:, :1]).sum(1) for name in LOOKS}
    rank = {name: (arrays[f"{name}_singular"] > RANK * arrays[f"{name}_singular"][:, :1]).sum(1) for name in LOOKS}
    second = {name: arrays[f"{name}_values"][:, [1, 2]] / arrays[f"{name}_values"][:, :1] for name in many}
    shown = {
        "one token and the fully connected network have the same loss": difference <= SAME,
        f"with one token the loss falls below {CONVERGED:g} of its start": bool(left["token"] <= CONVERGED),
        f"with many tokens it stays above {STUCK:g} of its start": all(bool(left[name] >= STUCK) for name in many),
    }
    raw = middles(arrays["raw_values"][:, 0], 0)
    seen = (
        f"After {facts['epochs']} epochs the median loss goes from {ends['token'][0]:.2g} to {ends['token'][1]:.1e} "
        f"with one token, and that of the fully connected network is the same within {difference:.1e} at every epoch; "
        f"with 100 tokens of dimension 1 it goes from {ends['tokens_raw'][0]:.3f} to {ends['tokens_raw'][1]:.3f} "
        f"(x N(0, I)) and from {ends['tokens_unit'][0]:.3f} to {ends['tokens_unit'][1]:.3f} (|x| = 1). There K^0 has "
        f"{spell(counted['tokens_raw'])} and {spell(counted['tokens_unit'])} eigenvalues above {COUNTED:g} of the "
        f"largest, and the hidden layer rank {spell(rank['tokens_raw'])} and {spell(rank['tokens_unit'])} for "
        f"{facts['n']} vectors. With x N(0, I) as one token the largest eigenvalue of K^0 is {raw:.0f}: step {STEP:g} "
        f"would be {STEP * raw * 2 / facts['n'] / 2:.0f} times the largest stable one."
    )
    numbers = {
        "loss at start and end": {LOOKS[name].label: [number(v) for v in ends[name]] for name in LOOKS},
        "largest loss of any epoch, median": {LOOKS[n].label: number(middles(mse[n].max(1), 0)) for n in LOOKS},
        "largest difference of one token and fully connected": difference,
        f"eigenvalues above {COUNTED:g} of the largest": {LOOKS[n].label: counted[n].tolist() for n in LOOKS},
        "rank of the hidden layer at the start": {LOOKS[n].label: rank[n].tolist() for n in LOOKS},
        "second and third eigenvalue over the largest, median": {
            LOOKS[n].label: [number(v) for v in middles(second[n], 0)] for n in many},
        "largest eigenvalue of K^0": {LOOKS[n].label: number(middles(arrays[f"{n}_values"][:, 0], 0)) for n in LOOKS},
        "largest eigenvalue of K^0, one token N(0, I)": number(raw),
    }  # fmt: skip
    return found(seen, shown, numbers, brief=facts["epochs"] < EPOCHS)


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
            band(panel, arrays["epochs"], arrays[f"{name}_mse"], color=look.color, style=look.style, label=look.label,
                 share=1.0)  # fmt: skip
        values = arrays[f"{name}_values"]
        place = np.arange(1, values.shape[1] + 1)
        share = np.clip(values / values[:, :1], 1e-18, None)
        band(axes[0, 2], place, share, color=look.color, style=look.style, label=look.label, share=1.0)
    for panel, title in zip(axes[0], ("a  Training", "b  The same, linear axis", "c  Tangent kernel at the start"),
                            strict=True):  # fmt: skip
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
    picture.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, handlelength=3.4,
                   title=f"{facts['n']} vectors in dimension {facts['D']} read as; m = {facts['width']}, step "
                   f"{facts['step']:g}. Line: median of {facts['seeds']} seeds; band: range")  # fmt: skip
    return picture


FIGURES = [
    Figure(
        id="encoder-3", title="Vectors as one token, or as many", data=vectors_data, draw=draw, judge=judge,
        says="Fed with vectors in dimension 100, the encoder of width 100 with tau0 = 1/m learns as a fully connected "
        "network of two layers does if a vector is one token (T = 1, d = 100), and fails to converge if it is 100 "
        "tokens of dimension 1, as Corollary 1 says (Figure 3).",
    ),
]  # fmt: skip
