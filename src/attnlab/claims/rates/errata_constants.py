"""Constants and hypotheses that read differently in print: Upsilon and zeta, Assumption 1, the small start."""

from __future__ import annotations

import numpy as np

from attnlab.claims.claim import Claim, Outcome, erratum, within
from attnlab.claims.rates.instances import (
    Family,
    downhill,
    families,
    family_of,
    followed,
    logits_of,
    random_weights,
    split,
    start_slack,
    weights_of,
)
from attnlab.claims.rates.lemmas import A1, A2, ROUNDING, SMALL_START, STEP, attention_never_falls_below_its_start
from attnlab.claims.scale import Scale
from attnlab.data import Tokens, bad_direction, sphere
from attnlab.data.tokens import Array
from attnlab.optim import gd, ngd
from attnlab.theory import assumption_1, initialization, rate_bounds

# E2 ---------------------------------------------------------------------------------------------------------------


def loss_ratio(data: Family, W: Array) -> Array:
    """max_i loss_i gap_i / min_i loss_i gap_i, (trials, m)."""
    parts = split(logits_of(data, W), data.best)
    log = weights_of(data, parts) - parts.log_on - parts.log_off
    return np.exp(log.max(-1) - log.min(-1))


def gradient_size(data: Family, W: Array) -> Array:
    """2 |grad| / B^2, which the proof of Theorem 6 bounds by zeta, (trials, m)."""
    g, log_scale = downhill(data, W)
    return 2.0 * np.linalg.norm(g, axis=(-2, -1)) * np.exp(log_scale) / data.each("B")[:, None] ** 2


def unlike_scores(shifts: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0)) -> Tokens:
    """Two sequences of two orthonormal tokens; scores (1, 0), and the same less a shift, one per trial."""
    x = np.tile(np.eye(4).reshape(2, 2, 4), (len(shifts), 1, 1, 1))
    v = np.stack([(1.0, 0.0, 1.0 - shift, -shift) for shift in shifts])
    return Tokens.self_attention(x, np.ones((len(shifts), 2)), v)


def constants_bound_what_they_must(scale: Scale, names: tuple[str, str]) -> Outcome:
    """Random W on data with T = 2 (where Assumption 2 is no restriction) whose scores differ between sequences."""
    every = [
        family_of("unlike scores", unlike_scores()),
        family_of("unit tokens, T = 2", sphere(n=5, T=2, d=8, trials=scale.pick(4, 10, 50))),
    ]
    upsilon, zeta = names
    count = scale.pick(16, 32, 96)
    by, slack = {}, {}
    for data in every:
        W = random_weights(data, count)
        ratio, size = loss_ratio(data, W), gradient_size(data, W)
        found = {name: ratio / data.each(name)[:, None] for name in (upsilon, "upsilon")}
        found[zeta] = size / data.each(zeta)[:, None]
        by[data.name] = {name: float(values.max()) for name, values in found.items()}
        slack |= {k: v for k, v in data.slack().items() if "Assumption 2" in k}
    return within(
        max(found[name] for found in by.values() for name in names), 1.0 + ROUNDING, seeds=(0,), slack=slack,
        instances=count * sum(data.trials for data in every), numbers={"over its bound": by},
        note="The Upsilon of the main text, e^(largest gap) times the ratio of gaps, is shown beside.",
    )  # fmt: skip


# E12 --------------------------------------------------------------------------------------------------------------


def opposite_noise(best: float = 0.01, lengths: tuple[float, float] = (1.0, 0.9), n: int = 2) -> Tokens:
    """Each sequence in a plane of its own: a short best token, and two long noise tokens that point apart.

    The query is the longer noise token; labels alternate. All products between sequences are zero.
    """
    x = np.zeros((1, n, 3, 2 * n))
    rows = np.arange(n)
    x[0, rows, 0, 2 * rows + 1] = lengths[0]
    x[0, rows, 1, 2 * rows] = best
    x[0, rows, 2, 2 * rows + 1] = -lengths[1]
    y = np.where(rows % 2, -1.0, 1.0)
    v = np.zeros(2 * n)
    v[2 * rows] = y / best
    return Tokens.self_attention(x, y[None], v)


def attention_falls_within_a_sequence(scale: Scale) -> Outcome:
    """Normalized GD from zero on one and on two such sequences, at the largest step size."""
    falls, slack, within_ratio = {}, {}, {}
    for n in (1, 2):
        data = family_of(f"n = {n}", opposite_noise(n=n))
        c = data.constants[0]
        step = rate_bounds.largest_step(c)
        start = np.zeros((1, data.tokens.d, data.tokens.d))
        found = followed(data, ngd(step), start, list(range(scale.pick(20, 60, 200))))
        on = np.exp(split(found.metrics["logits"], data.best).log_on)
        falls[data.name] = float((np.minimum(on[:, :1], 1.0 / 3.0) - on).max())
        check = assumption_1(data.tokens[0], constants=c)
        slack |= {f"n = {n}: Assumption 1 (ratio, as printed)": check.slack}
        slack |= {f"n = {n}: Assumption 2": float(data.equality[0])}
        slack |= start_slack(data, start, step, found.metrics["logits"][:, 0])
        within_ratio[data.name] = check.evidence["within"]
    return within(
        max(falls.values()), ROUNDING, instances=2, slack=slack,
        numbers={"fall of attention below min(start, 1/T)": falls,
                 "|x_opt|^2 / 4 over the product of the noise tokens (wanted >= 1)": within_ratio},
    )  # fmt: skip


# E13 --------------------------------------------------------------------------------------------------------------


def adverse_starts(data: Family, size: Array, *, seed: int = 3) -> dict[str, Array]:
    """Starts of these lengths: against W_mm, toward the worst tokens, and random."""
    t = data.tokens
    apart = t.x.sum(2) - t.T * np.take_along_axis(t.x, data.best[..., None, None], axis=2)[:, :, 0]
    wrong = np.einsum("rnd,rne->rde", apart, t.z)
    ways = {
        "against W_mm": -data.unit_target,
        "toward the other tokens": wrong,
        "random": np.random.default_rng(seed).standard_normal(wrong.shape),
    }
    return {name: size[:, None, None] * W / np.linalg.norm(W, axis=(-2, -1), keepdims=True) for name, W in ways.items()}


def every_small_start_is_alike(scale: Scale) -> Outcome:
    """Normalized GD from starts as long as Lemma 2 allows, in adverse directions; GD from -c I on the data of C.1."""
    steps, worst, longest, judged, departures, slack = 1_000, 0.0, 0.0, 0, {}, {}
    for data in families(scale):
        step = min(map(rate_bounds.largest_step, data.constants))
        longest = max(longest, float((0.25 / data.each("condition")).max()))
        for name, start in adverse_starts(data, step / (4.0 * data.each("condition"))).items():
            found = followed(data, ngd(step), start, [0, steps])
            worst, judged = max(worst, float(found.metrics["misalignment_target"][:, -1].max())), judged + data.trials
            logits = found.metrics["logits"][:, 0]
            attention = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
            departures[f"{data.name}, {name}"] = float(np.abs(attention - 1.0 / data.tokens.T).max())
            slack |= start_slack(data, start, step, logits)
        slack |= data.slack()
    bad = family_of("bad direction", bad_direction(trials=1))
    allowed = initialization(bad.tokens[0], 0.0, 0.1, constants=bad.constants[0]).evidence["largest_scale"]
    ends = {}
    for c in (allowed, 0.1, 0.35, 0.4, 0.5):
        start = -c * np.eye(bad.tokens.d)[None]
        ends[f"c = {c:.3g}"] = float(followed(bad, gd(0.1), start, [0, 10 * steps]).metrics["cosine_target"][0, -1])
    return within(
        worst, 1e-3, instances=judged, seeds=(3,), slack=slack,
        numbers={"largest departure of attention from 1/T at the start": departures, "largest |W(0)| in steps": longest,
                 "C.1, GD from -c I: cosine at 10000": ends, "largest deviation that Lemma 2 allows there": allowed},
        note="Lemma 2 keeps |W(0)| under step / (4 B^2 Lambda), at most half a step: at this scale no direction is "
        "bad. Starts that do favour a wrong token, as in C.1 and figure 8, are larger than that; from -0.4 I on they "
        "are trapped.",
    )  # fmt: skip


CLAIMS = [
    erratum(
        id="rates-E2",
        title="Upsilon and zeta of Table 1",
        printed="max_i loss_i gap_i / min_i loss_i gap_i <= Upsilon (Eq. 22) and |grad| <= B^2 zeta / 2 (proof of "
        "Theorem 6) with Upsilon = kappa min_i exp(gamma_i,opt) / max_i exp(gamma_i) and zeta = max_i gap_i / max_i "
        "exp(gamma_i) (Table 1).",
        corrected="min and max change places: Upsilon = kappa max_i exp(gamma_i,opt) / min_i exp(gamma_i), zeta = "
        "max_i gap_i / min_i exp(gamma_i). The main text has a third form of Upsilon, which can fall short as well. "
        "All agree when the sequences have the same scores, as in Example 1.",
        hypotheses=(A2,),
        tolerance=1.0 + ROUNDING,
        reason="left over right side, at random W",
        measure_printed=lambda scale: constants_bound_what_they_must(scale, ("upsilon_printed", "zeta_printed")),
        measure_corrected=lambda scale: constants_bound_what_they_must(scale, ("upsilon_proof", "zeta")),
    ),
    erratum(
        id="rates-E12",
        title="Assumption 1 says nothing about products inside a sequence",
        printed="under Lemma 2's start, Assumptions 1 and 2 and step <= log(2T-1)/(2B^2), phi^t_j,opt >= "
        "min(phi^0_j,opt, 1/T) for all t (Lemma 3).",
        corrected="add |<x_jt, x_js>| <= |x_j,opt|^2 / 4 for s other than opt_j and t, which Eq. (21) uses, and the "
        "bound of line 1 for a noise query against a best-token query of another sequence. Example 1 meets both.",
        hypotheses=(SMALL_START, A1, A2, "normalized GD", STEP),
        tolerance=ROUNDING,
        reason="largest fall of attention below min(its start, 1/T)",
        measure_printed=attention_falls_within_a_sequence,
        measure_corrected=attention_never_falls_below_its_start,
    ),
    Claim(
        id="rates-E13",
        title="At the scale of Lemma 2 no direction of the start is bad",
        statement="Normalized GD converges in direction to W_mm from any initialization direction (Theorem 1), at the "
        "scale that Lemma 2 asks for.",
        hypotheses=(A1, A2, "|W(0)| = step / (4 B^2 Lambda)", STEP),
        tolerance=1e-3,
        reason="1 - cosine with W_mm after 1000 steps",
        measure=every_small_start_is_alike,
    ),
]  # fmt: skip
