"""How far attention, hidden layer and outputs move with the weights: Lemmas 7 to 11."""

from __future__ import annotations

import numpy as np
import scipy.special

from attnlab.claims.claim import Claim, Outcome, within
from attnlab.claims.encoder.batch import (
    SHAPES,
    Draws,
    aligned_pairs,
    bound_constants,
    changes,
    evaluate,
    largest,
    random_pairs,
)
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.encoder import lemma_7, lemma_8, lemma_9, lemma_10

RATIO = 1.0 + 1e-6  # differences over distances of 1e-6 lose up to ten digits
EXACT = 1e-12


def pairs(scale: Scale) -> list[tuple[str, Draws, Draws]]:
    """Random pairs of encoders of several shapes and scales, and pairs that come close to the bounds."""
    count = scale.pick(10, 60, 400)
    found = [(f"random N={s[0]} T={s[1]} d={s[2]} m={s[3]}", *random_pairs(count, s)) for s in SHAPES]
    return [*found, *((f"aligned T={T}", *aligned_pairs(count, T)) for T in (1, 2))]


def ratio(moved: Array, bounds: list[float]) -> float:
    """The largest change over its bound; 0 where nothing moves and nothing may."""
    allowed = np.array(bounds)
    return float(np.where(moved == 0, 0.0, moved / np.maximum(allowed, 1e-300)).max())


def judged(scale: Scale, ratios: dict[str, float]) -> Outcome:
    """The largest ratio of all families."""
    return within(largest(*ratios.values()), RATIO, instances=scale.pick(10, 60, 400) * len(ratios), seeds=(0,),
                  numbers={"largest change / bound": ratios})  # fmt: skip


def attention_moves_little(scale: Scale) -> Outcome:
    """Change of a row of attention weights over the bound of Lemma 7, with l_P the larger of the two norms."""
    ratios = {}
    for name, one, other in pairs(scale):
        rows = np.linalg.norm(evaluate(other).attention - evaluate(one).attention, axis=-1).max((-2, -1))
        by = changes(one, other)
        bounds = [lemma_7(c, dQ=float(by["Q"][i]), dK=float(by["K"][i]))
                  for i, c in enumerate(bound_constants(one, other))]  # fmt: skip
        if one.x.shape[2] > 1:  # one token has attention 1
            ratios[name] = ratio(rows, bounds)
    return judged(scale, ratios)


def attention_rows_have_bounded_norms(scale: Scale) -> Outcome:
    """By how much |v| leaves [T^(-1/2), 1], for random logits from tiny to saturated, ties and extremes."""
    rng, worst, count = np.random.default_rng(0), -np.inf, scale.pick(500, 5000, 100_000)
    reached = {}
    for T in (1, 2, 3, 10, 100):
        logits = rng.standard_normal((count, T)) * 10.0 ** rng.uniform(-8, 4, (count, 1))
        logits[0], logits[1] = 0.0, 1e4 * (np.arange(T) == 0)
        norms = np.linalg.norm(scipy.special.softmax(logits, axis=-1), axis=-1)
        low, high = lemma_8(T)
        worst = largest(worst, float((low - norms).max()), float((norms - high).max()))
        reached[f"T={T}"] = [float(norms.min() - low), float(high - norms.max())]
    return within(worst, EXACT, instances=5 * count, seeds=(0,), numbers={"least distance to both ends": reached})


def hidden_layer_moves_little(scale: Scale) -> Outcome:
    """Change of F_pre in the Frobenius norm over the bound of Lemma 9."""
    ratios = {}
    for name, one, other in pairs(scale):
        moved = np.linalg.norm(evaluate(other).hidden - evaluate(one).hidden, axis=(-2, -1))
        by = changes(one, other)
        bounds = [lemma_9(c, dQ=float(by["Q"][i]), dK=float(by["K"][i]), dV=float(by["V"][i]))
                  for i, c in enumerate(bound_constants(one, other))]  # fmt: skip
        ratios[name] = ratio(moved, bounds)
    return judged(scale, ratios)


def outputs_move_little(scale: Scale) -> Outcome:
    """Change of all outputs over the bound of Lemma 10, with the change of F_pre that was measured."""
    ratios = {}
    for name, one, other in pairs(scale):
        before, after = evaluate(one), evaluate(other)
        hidden = np.linalg.norm(after.hidden - before.hidden, axis=(-2, -1))
        by = changes(one, other)
        bounds = [lemma_10(c, dO=float(by["O"][i]), dF=float(hidden[i]))
                  for i, c in enumerate(bound_constants(one, other))]  # fmt: skip
        ratios[name] = ratio(np.linalg.norm(after.outputs - before.outputs, axis=-1), bounds)
    return judged(scale, ratios)


def softmax_jacobian(logits: Array) -> Array:
    """Derivatives of softmax at logits (B, T), (B, T, T), by a step of 1e-30 i: no digit is lost."""
    T = logits.shape[-1]
    moved = logits[:, None, :] + 1e-30j * np.eye(T)  # [draw, by which logit, logit]
    top = np.exp(moved - logits.max(-1)[:, None, None])
    return np.swapaxes((top / top.sum(-1, keepdims=True)).imag / 1e-30, -1, -2)


def jacobian_is_that_of_the_lemma(scale: Scale) -> Outcome:
    """Largest difference between diag(v) - v v^T and the derivative by an imaginary step."""
    rng, worst, count = np.random.default_rng(0), 0.0, scale.pick(200, 1000, 10_000)
    for T in (1, 2, 5, 12):
        logits = rng.standard_normal((count, T)) * 10.0 ** rng.uniform(-3, 1.5, (count, 1))
        v = scipy.special.softmax(logits, axis=-1)
        closed = v[:, :, None] * np.eye(T) - v[:, :, None] * v[:, None, :]
        worst = largest(worst, float(np.abs(closed - softmax_jacobian(logits)).max()))
    return within(worst, EXACT, instances=4 * count, seeds=(0,))


NORMS = "norms of the weights at most l_P; here l_P is the larger of the two norms, the least that is allowed"
CLOSE = "change over bound; 1e-6 for differences of nearby points. Random draws, and draws made to come close"

CLAIMS = [
    Claim(
        id="encoder-L7",
        title="Attention moves little",
        statement="|b_i' - b_i| <= 2 tau0 C_x^2 T (l_Q |W_K' - W_K| + l_K |W_Q' - W_Q|) for every row b_i of attention "
        "weights (Lemma 7).",
        hypotheses=("|X_n|_F <= sqrt(T) C_x (Assumption 1)", NORMS),
        tolerance=RATIO,
        reason=CLOSE,
        measure=attention_moves_little,
    ),
    Claim(
        id="encoder-L8",
        title="Norm of a softmax",
        statement="T^(-1/2) <= |v| <= 1 for v = softmax(u) with T entries (Lemma 8).",
        hypotheses=("none",),
        tolerance=EXACT,
        reason="by how much a norm is outside; rounding",
        measure=attention_rows_have_bounded_norms,
    ),
    Claim(
        id="encoder-L9",
        title="The hidden layer moves little",
        statement="|F' - F|_F <= rho (|W_V' - W_V| + 2 tau0 C_x^2 T l_V (l_Q |W_K' - W_K| + l_K |W_Q' - W_Q|)) with "
        "rho = N^(1/2) T^(3/2) tau1 C_x (Lemma 9).",
        hypotheses=("|X_n|_F <= sqrt(T) C_x (Assumption 1)", NORMS),
        tolerance=RATIO,
        reason=CLOSE,
        measure=hidden_layer_moves_little,
    ),
    Claim(
        id="encoder-L10",
        title="Outputs move little",
        statement="|f' - f| <= rho l_V |w_O' - w_O| + l_O |F' - F|_F (Lemma 10).",
        hypotheses=("|X_n|_F <= sqrt(T) C_x (Assumption 1)", NORMS),
        tolerance=RATIO,
        reason=CLOSE,
        measure=outputs_move_little,
    ),
    Claim(
        id="encoder-L11",
        title="Jacobian of the softmax",
        statement="dv/du = diag(v) - v v^T for v = softmax(u) (Lemma 11; a slip in its middle line is encoder-E7).",
        hypotheses=("none",),
        tolerance=EXACT,
        reason="largest difference of an entry; rounding",
        measure=jacobian_is_that_of_the_lemma,
    ),
]  # fmt: skip
