"""How fast attention saturates, Lemmas 1 and 8; and what the two thresholds in time are good for in the proofs."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.parts import Bound, Identity, least
from attnlab.claims.rates.instances import Family, Run, families, family_of, leads, run, run_from
from attnlab.claims.rates.lemmas import A1, A2, DATA, SMALL_START, STEP
from attnlab.claims.rates.theorem_5 import proof_eps
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data import Tokens
from attnlab.data.tokens import Array
from attnlab.theory import RateConstants, rate_bounds

# Tokens per sequence of `planes`, and the part of each unit token that all tokens of its sequence share.
PLANE_TOKENS = 20
SHARED = 0.2
PLANE_STEPS = 100_000
# Times after a threshold at which a formula is looked at, up to a million times later.
LATER = np.geomspace(1.0, 1e6, 200)


# K9 ---------------------------------------------------------------------------------------------------------------


def planes(gaps: tuple[float, float] = (1.0, 4.0)) -> Tokens:
    """Two sequences, each in a plane of its own: a unit best token that is the query, the others nearly opposite.

    B^2 Lambda is 0.72, so that the time of Lemma 8 is within reach. Scores are the gap at the best token and 0 else.
    """
    c = np.sqrt(1.0 - SHARED**2)
    x = np.zeros((1, 2, PLANE_TOKENS, 4))
    v = np.zeros(4)
    for i, gap in enumerate(gaps):
        x[0, i, :, 2 * i] = -c
        x[0, i, 0, 2 * i] = c
        x[0, i, :, 2 * i + 1] = SHARED
        v[2 * i] = 0.5 * gap / c
        v[2 * i + 1] = 0.5 * gap / SHARED
    return Tokens.self_attention(x, [[1.0, 1.0]], v)


def against_the_first(data: Family, step: float) -> Array:
    """A start against the first sequence, as long as the conclusions of Lemma 2 allow, (trials, d, d)."""
    x = data.tokens.x[:, 0]
    against = np.einsum("rd,re->rde", x[:, 1] - x[:, 0], data.tokens.z[:, 0])  # lowers the lead of the best token
    against /= np.linalg.norm(against, axis=(-2, -1), keepdims=True)
    T = data.tokens.T
    per_length = -np.einsum("rd,rde,re->r", x[:, 0] - x[:, 1], against, data.tokens.z[:, 0])
    by_attention = np.log((2.0 * T - 1.0) / (T - 1.0)) / per_length
    by_norm = step / (4.0 * data.each("condition"))
    return (1.0 - 1e-9) * np.minimum(by_attention, by_norm)[:, None, None] * against


@lru_cache(maxsize=1)
def planes_run() -> Run:
    """Normalized GD at the largest step on `planes`, from that start."""
    data = family_of("planes", planes())
    step = rate_bounds.largest_step(data.constants[0])
    return run_from(data, step, against_the_first(data, step), PLANE_STEPS)


def exponent(logits: Array, best: NDArray[np.intp]) -> Array:
    """log of (T - 1) phi / (1 - phi) of each best token, of which Lemma 8 promises step t / (8 B^2 Lambda^2)."""
    return np.log(logits.shape[-1] - 1.0) - np.logaddexp.reduce(-leads(logits, best), axis=-1)


def lemma_8_time(path: Run, trial: int, *, corrected: bool) -> float:
    """From when on the lemma speaks about a trial, with the lag at t_0 as measured; inf where t_0 is not reached."""
    c = path.family.constants[trial]
    late = np.flatnonzero(path.steps >= rate_bounds.first_time(c, path.step, corrected=corrected))
    if not late.size:
        return np.inf
    lag = path.norm[trial, late[0]] * path.misalignment[trial, late[0]]
    C = float(rate_bounds.rate_constant(c, path.step, lag=lag))
    return rate_bounds.softmax_time(c, path.step, C, corrected=corrected)


def attention_saturates_at_the_explicit_rate(scale: Scale) -> Outcome:
    """Runs from the printed time on; and two tokens, whose run is known in closed form, from the corrected one on."""
    on_runs = Bound("runs, t >= printed time: promised / measured exponent")
    on_rays = Bound("two tokens in closed form, t >= corrected time: promised / measured exponent")
    closed = Identity("closed form of two tokens against their runs: leads", tolerance=1e-9)
    two = run("two tokens", scale)
    runs = [*(run(data.name, scale) for data in families(scale)), planes_run()]
    times = {}
    for path in runs:
        measured = exponent(path.logits, path.family.best)  # (trials, m, n)
        for trial, c in enumerate(path.family.constants):
            time = lemma_8_time(path, trial, corrected=False)
            times[f"{path.family.name}, set {trial}"] = time
            late = path.steps >= time
            promised = rate_bounds.softmax_decay(c, path.step, path.steps[late])
            on_runs.add_at_least(measured[trial, late], promised[:, None])
    lead = leads(two.logits, two.family.best)[..., 0, 0]  # (trials, m)
    for trial, c in enumerate(two.family.constants):
        # The gradient has one direction, that of W_mm; a step along it adds step / Lambda to the lead.
        ray = lead[trial, 0] + two.step * two.steps / c.Lambda
        closed.add((lead[trial] - ray) / np.maximum(ray, 1.0))
        t = lemma_8_time(two, trial, corrected=True) * np.geomspace(1.0, 1e3, 50)
        on_rays.add_at_least(
            lead[trial, 0] + two.step * t / c.Lambda, rate_bounds.softmax_decay(c, two.step, t), says=np.isfinite(t)
        )
    return outcome(
        on_runs,
        on_rays,
        closed,
        slack=least(*(path.slack() for path in runs)),
        numbers={
            "time from which the lemma speaks, as printed": times,
            "first record at which the bound holds for good": {
                path.family.name: [int(_first_for_good(path, trial)) for trial in range(path.family.trials)]
                for path in runs
            },
        },
        note="The printed time is the earlier one: what holds from it on holds from the corrected one on. It is within "
        "reach of runs where B^2 Lambda < 1. On the planes the bound fails before, so that the time matters.",
    )


def _first_for_good(path: Run, trial: int) -> int:
    """The first record from which the bound of Lemma 8 holds at all later ones."""
    promised = rate_bounds.softmax_decay(path.family.constants[trial], path.step, path.steps)
    misses = (exponent(path.logits, path.family.best)[trial] < promised[:, None]).any(-1)
    after = int(np.flatnonzero(misses)[-1]) + 1 if misses.any() else 0
    return path.steps[min(after, len(misses) - 1)]


# E5 ---------------------------------------------------------------------------------------------------------------


def signal_queries(n: int = 4, T: int = 50) -> Tokens:
    """Signals in front, so that they are the queries, and orthogonal noise of length 1/2: Lambda stays small."""
    d = n * (T - 1) + 2
    x = np.zeros((1, n, T, d))
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    x[0, np.arange(n), 0, np.arange(n) % 2] = 1.0
    noise = np.arange(n * (T - 1)).reshape(n, T - 1)
    x[0, np.arange(n)[:, None], 1 + np.arange(T - 1), 2 + noise] = 0.5
    v = np.zeros(d)
    v[:2] = -1.0, 1.0
    return Tokens.self_attention(x, y[None], v)


def radius_over_norm(constants: RateConstants, step: float, *, corrected: bool) -> Array:
    """The proof's bound on R_eps_t over its bound on |W_t|, from t_0 on.

    `(10 Lambda/eps) log(max(4 n Upsilon T^3 / (B^2 Lambda), 20 T B^2 Lambda) / eps)` over `step t / (4 B^2 Lambda)`;
    corrected, the first is 64 n B^2 Lambda Upsilon T^3.
    """
    c = constants
    t = np.ceil(rate_bounds.first_time(c, step, corrected=corrected)) * LATER
    eps = proof_eps(c, step, t)
    samples = (64.0 * c.condition if corrected else 4.0 / c.condition) * c.n * c.upsilon * c.T**3
    needed = 10.0 * c.Lambda / eps * np.log(max(samples, 20.0 * c.T * c.condition) / eps)
    return needed / (step * t / (4.0 * c.condition))


def distance_over_allowed(constants: RateConstants, step: float, *, corrected: bool) -> Array:
    """`2 B^2 |W_t| sqrt(2 C) log t / sqrt(t)` over `step t / (8 B^2 Lambda^2)` from the time of Lemma 8 on.

    With the largest |W_t| of Lemma 5. It is what Eq. (38) needs to be at most 1.
    """
    c = constants
    C = float(rate_bounds.rate_constant(c, step))
    t = rate_bounds.softmax_time(c, step, C, corrected=corrected) * LATER
    norm = 2.0 * step * max(1.0, 0.25 / c.condition) * t
    return 2.0 * c.B**2 * norm * np.sqrt(2.0 * C / t) * np.log(t) * 8.0 * c.condition * c.Lambda / (step * t)


def measured_radius_over_norm(path: Run) -> list[Array]:
    """R_eps_t over |W_t| as measured, per trial, at all records from t_0 (corrected) on with eps_t < 1."""
    ratios = []
    for trial, c in enumerate(path.family.constants):
        late = path.steps >= rate_bounds.first_time(c, path.step)
        t = path.steps[late].astype(np.float64)
        eps = proof_eps(c, path.step, t)
        below = eps < 1.0
        ratios.append(rate_bounds.radius(c, eps[below]) / path.norm[trial, late][below])
    return ratios


def thresholds_do_what_the_proofs_need(scale: Scale, *, corrected: bool) -> Outcome:
    """On the families that meet the assumptions, and on many tokens with signals as queries."""
    below_one = Bound("eps_t, t >= t_0")
    radius = Bound("proof of Theorem 5: bound on R_eps_t / bound on |W_t|, t >= t_0")
    distance = Bound("Eq. (38): first term / half of the second, t >= time of Lemma 8")
    on_runs = Bound("on runs: R_eps_t / |W_t|, t >= t_0")
    every = [*families(scale), family_of("signals as queries", signal_queries())]
    for data in every:
        for c in data.constants:
            step = rate_bounds.largest_step(c)
            t = np.ceil(rate_bounds.first_time(c, step, corrected=corrected)) * LATER
            below_one.add(proof_eps(c, step, t), 1.0)
            radius.add_ratios(radius_over_norm(c, step, corrected=corrected))
            distance.add_ratios(distance_over_allowed(c, step, corrected=corrected))
    tallies = [below_one, radius, distance]
    if corrected:
        for data in families(scale):
            for ratios in measured_radius_over_norm(run(data.name, scale)):
                on_runs.add_ratios(ratios)
        tallies.append(on_runs)
    return outcome(*tallies, slack=least(*(data.slack() for data in every)))


CLAIMS = [
    Claim(
        id="rates-K9",
        title="Attention saturates at an explicit rate",
        statement="phi^t_i,opt >= 1 / (1 + (T-1) exp(-step t / (8 B^2 Lambda^2))) for t >= 2^11 (B^2 Lambda)^2 C and "
        "t >= t_0; corrected: for t / (log t)^2 >= 2^11 (B^2 Lambda)^4 C and t >= t_0 (Lemmas 1 and 8).",
        hypotheses=(SMALL_START, A1, A2, "normalized GD", STEP, "t as stated"),
        setting=f"{DATA}; and two sequences of 20 tokens in planes of their own, gaps 1 and 4, from a start against "
        "the first as long as Lemma 2's conclusions allow. Normalized GD at the largest step, 1e5 steps.",
        reason="the promised exponent step t / (8 B^2 Lambda^2) over log((T-1) phi/(1-phi)), which does not underflow",
        measure=attention_saturates_at_the_explicit_rate,
    ),
    erratum(
        id="rates-E5",
        title="Two thresholds in time",
        printed="for t >= t_0 with second part log(step T max(n Upsilon T^2 / (B^2 Lambda)^2, 5) / (20 Lambda)), "
        "(10 Lambda/eps_t) log(max(4 n Upsilon (B^2 Lambda)^-1 T^3, 20 T B^2 Lambda) / eps_t) <= step t / (4 B^2 "
        "Lambda) (proof of Theorem 5); for t >= 2^11 (B^2 Lambda)^2 C the first term of Eq. (38) is at most step t / "
        "(8 B^2 Lambda^2) (Lemma 8).",
        corrected="the second part of t_0 is the argument of the logarithm itself, with 16 n Upsilon T^2; Lemma 8 "
        "needs t / (log t)^2 >= 2^11 (B^2 Lambda)^4 C.",
        slip=Slip(
            kind=Kind.PROOF_STEP,
            where="t_0 in Theorem 5 and its proof; the time of Lemma 8, Eq. (38)",
            quote="and we can use Lemma 7 with",
            charitable="Theorem 5 and Lemma 8 were judged with the printed times too, and no run contradicts them "
            "(rates-K8, rates-K9); where the cube is the larger part of t_0, the printed t_0 is right as it stands.",
            correction="t_0 >= step T max(16 n Upsilon T^2, 5) / (20 Lambda), without the logarithm; t / (log t)^2 >= "
            "2^11 (B^2 Lambda)^4 C in Lemma 8: the square of the distance is 2 C (log t)^2 / t.",
        ),
        hypotheses=(A1, A2, "step = log(2T-1)/(2 B^2)"),
        setting=f"Constants of these data sets and of four sequences of 50 tokens whose queries are signals. {DATA}.",
        reason="what each line of the proof needs to be at most 1, over a million-fold range of t; corrected also with "
        "|W_t| as measured on runs",
        measure_printed=partial(thresholds_do_what_the_proofs_need, corrected=False),
        measure_corrected=partial(thresholds_do_what_the_proofs_need, corrected=True),
    ),
]
