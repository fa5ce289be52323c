"""Appendix C.8 of *On the Convergence of Encoder-only Shallow Transformers*: is a width linear in N enough?"""

from __future__ import annotations

from functools import cache

import numpy as np

from attnlab.claims.claim import Outcome, erratum, outcome
from attnlab.claims.encoder.degenerate import FALL, T, tokens
from attnlab.claims.encoder.kernel_limits import power
from attnlab.claims.parts import Limit
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array
from attnlab.models.encoder import Encoder
from attnlab.theory.encoder import Constants, assumption_1
from attnlab.theory.encoder.forward import NAMES, hidden

D_WIDE, PER_SEQUENCE = 4, 4


@cache
def linear_widths(scale: Scale) -> dict[str, Array]:
    """Networks of the NTK start with tau0 = 1/m and m = 4 N, N >= d^4, sum pooling: medians over seeds, by N."""
    medians: dict[str, list[float]] = {}
    for n in scale.pick((256, 512), (256, 512, 1024), (256, 512, 1024, 2048)):
        each = [linear_width(n, seed) for seed in range(scale.pick(4, 4, 8))]
        for name in each[0]:
            medians.setdefault(name, []).append(float(np.median([one[name] for one in each])))
    return {name: np.array(values) for name, values in medians.items()}


def linear_width(n: int, seed: int) -> dict[str, float]:
    """alpha^2, also over N / d; margins of (2) and (3); mean eigenvalue of F F^T; attention."""
    x = tokens(n, D_WIDE, seed)
    network = Encoder(PER_SEQUENCE * n, scaling="linear", init="ntk", pool="sum")
    rng = np.random.default_rng([seed, n, 7])
    shapes, variances = network.sizes(T, D_WIDE), network.variances(T, D_WIDE)
    weights = {k: np.sqrt(variances[k]) * rng.standard_normal(shape) for k, shape in shapes.items()}
    F, outputs = hidden(x, weights, network.tau0, network.tau1)
    gram = F @ F.T
    alpha = float(np.sqrt(max(0.0, np.linalg.eigvalsh(gram)[0])))
    constants = Constants(
        N=n,
        T=T,
        d=D_WIDE,
        width=network.width,
        tau0=network.tau0,
        tau1=network.tau1,
        C_x=assumption_1(x).C_x,
        norms={k: float(np.linalg.norm(weights[w], 2)) for k, w in NAMES.items()},
        radius=dict.fromkeys(NAMES, 1.0),
        alpha=alpha,
        start_loss=0.5 * float(np.sum((outputs - rng.standard_normal(n)) ** 2)),
    )
    return {
        "N": float(n),
        "alpha^2": alpha**2,
        "alpha^2 d / N": alpha**2 * D_WIDE / n,
        "margin (2)": constants.condition_2.margin,
        "margin (3)": constants.condition_3.margin,
        "mean eigenvalue": float(np.trace(gram)) / n,
    }


def linear_width_is_enough(scale: Scale) -> Outcome:
    """Does alpha^2 keep up with N/d, and do the margins of (2) and (3) not fall, at m = 4 N?"""
    medians = linear_widths(scale)
    parts, powers = [], {}
    for name in ("alpha^2 d / N", "margin (2)", "margin (3)"):
        powers[name] = power(medians["N"], medians[name])
        behind = Limit(f"power of N by which {name} falls", tolerance=FALL)
        behind.add(-powers[name])
        parts.append(behind)
    return outcome(
        *parts,
        instances=len(medians["N"]),
        seeds=range(scale.pick(4, 4, 8)),
        slack={"N / d^4 - 1": min(medians["N"]) / D_WIDE**4 - 1.0},
        numbers={"power of N": powers, **{name: values for name, values in medians.items()}},
    )


def pooling_limits_alpha(scale: Scale) -> Outcome:
    """The mean eigenvalue of F F^T tends to T d / 2, which has no N in it, and alpha^2 falls with N."""
    medians = linear_widths(scale)
    # E |relu(V z)|^2 summed over tokens that are all the mean token: T^2 |mean token|^2 / 2, of mean T d / 2.
    mean = Limit("relative distance of the mean eigenvalue from T d / 2", tolerance=0.2)
    mean.add(np.abs(medians["mean eigenvalue"] / (0.5 * T * D_WIDE) - 1.0))
    growth = Limit("power of N of alpha^2", tolerance=FALL)
    growth.add(power(medians["N"], medians["alpha^2"]))
    return outcome(mean, growth, instances=len(medians["N"]), seeds=range(scale.pick(4, 4, 8)))


CLAIMS = [
    erratum(
        id="encoder-C8",
        title="Pooling does not make a linear width enough",
        printed="with tau0 = 1/m attention is a pooling layer, so the least eigenvalue is of the order Omega(N/d), and "
        "a width linear in N is enough.",
        corrected="attention does become pooling (encoder-Rem-1), but the mean eigenvalue of F_pre F_pre^T tends to "
        "T d / 2, whatever N, and alpha^2 falls with N; at m = 4 N the margins of (2) and (3) fall with N.",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="Appendix C.8, a discussion of Theorem 2",
            quote="this leads to the minimum eigenvalue in the order of ... linear over-parameterization is enough",
            charitable="the NTK start of Theorem 2, with the constants of both orders free, at width 4 N: alpha^2 "
            "falls behind N/d by a power of N, and so do both margins.",
            correction="the order N/d is that of the d x d Gram matrix of pooled tokens, not that of F_pre F_pre^T.",
        ),
        hypotheses=("N >= d^4 = 256, NTK start, tau0 = 1/m, m = 4 N",),
        setting="N(0, 1) tokens, T = 6, d = 4, N = 256 to 1024 (2048 at paper scale), sum pooling.",
        reason="printed: powers of N by which alpha^2 falls behind N/d, and margins fall; corrected: mean "
        "eigenvalue against its limit, power of alpha^2",
        measure_printed=linear_width_is_enough,
        measure_corrected=pooling_limits_alpha,
    ),
]
