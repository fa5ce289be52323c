"""How far attention, hidden layer and outputs move with the weights: Lemmas 7 to 11."""

from __future__ import annotations

import numpy as np
import scipy.special

from attnlab.claims.claim import Claim, Outcome, outcome
from attnlab.claims.encoder.batch import (
    SHAPES,
    Draws,
    Passed,
    aligned_pairs,
    bound_constants,
    changes,
    evaluate,
    lone_pairs,
    opposed_pairs,
    random_pairs,
)
from attnlab.claims.parts import Bound, Identity
from attnlab.claims.scale import Scale
from attnlab.data.tokens import Array
from attnlab.theory.encoder import lemma_7, lemma_8, lemma_9, lemma_10

NEARBY = 1e-6  # differences over distances of 1e-6 lose up to ten digits
EXACT = 1e-12
GUARD = "tests/theory/test_theory_encoder_constants.py::test_everything_in_40_digits"


def pairs(scale: Scale) -> list[tuple[str, Draws, Draws]]:
    """Random pairs of encoders of several shapes and scales, and pairs along one direction; all parameters move."""
    count = scale.pick(10, 60, 400)
    every = [(f"random N={s[0]} T={s[1]} d={s[2]} m={s[3]}", *random_pairs(count, s)) for s in SHAPES]
    return [*every, *((f"aligned T={T}", *aligned_pairs(count, T)) for T in (1, 2))]


def moves_of(scale: Scale, letter: str) -> list[tuple[Draws, Draws]]:
    """Pairs between which one parameter alone moves: along one direction, and through the softmax of two tokens."""
    ends = []
    for T in (1, 2):
        one, other = aligned_pairs(scale.pick(10, 60, 400), T)
        ends.append((one, one._replace(**{letter: getattr(other, letter)})))
    return [*ends, opposed_pairs(letter, scale.pick(25, 41, 101))]


# Lemmas 7 to 10 ---------------------------------------------------------------------------------------------------


def attention_ratios(one: Draws, other: Draws) -> Array:
    """Largest change of a row of attention weights over the bound of Lemma 7, (B,)."""
    rows = np.linalg.norm(evaluate(other).attention - evaluate(one).attention, axis=-1).max((-2, -1))
    by = changes(one, other)
    constants = bound_constants(one, other)
    return ratios(rows, [lemma_7(c, dQ=float(by["Q"][i]), dK=float(by["K"][i])) for i, c in enumerate(constants)])


def hidden_ratios(one: Draws, other: Draws) -> Array:
    """Change of F_pre in the Frobenius norm over the bound of Lemma 9, (B,)."""
    by = changes(one, other)
    bounds = [
        lemma_9(c, dQ=float(by["Q"][i]), dK=float(by["K"][i]), dV=float(by["V"][i]))
        for i, c in enumerate(bound_constants(one, other))
    ]
    return ratios(change_of_hidden(evaluate(one), evaluate(other)), bounds)


def output_ratios(one: Draws, other: Draws) -> Array:
    """Change of all outputs over the bound of Lemma 10, with the change of F_pre that was measured, (B,)."""
    before, after = evaluate(one), evaluate(other)
    hidden = change_of_hidden(before, after)
    by = changes(one, other)
    bounds = [lemma_10(c, dO=float(by["O"][i]), dF=float(hidden[i])) for i, c in enumerate(bound_constants(one, other))]
    return ratios(np.linalg.norm(after.outputs - before.outputs, axis=-1), bounds)


def change_of_hidden(before: Passed, after: Passed) -> Array:
    """In the Frobenius norm, (B,)."""
    return np.linalg.norm(after.hidden - before.hidden, axis=(-2, -1))


def ratios(moved: Array, bounds: list[float]) -> Array:
    """Change over bound; 0 where nothing moves and nothing may."""
    allowed = np.array(bounds)
    return np.where(moved == 0, 0.0, moved / np.maximum(allowed, 1e-300))


def attention_moves_little(scale: Scale) -> Outcome:
    """Change of a row of attention weights over the bound of Lemma 7, with l_P the larger of the two norms."""
    together = Bound("change of a row / bound, both move", rounding=NEARBY)
    for _, one, other in pairs(scale):
        if one.x.shape[2] > 1:  # one token has attention 1
            together.add_ratios(attention_ratios(one, other))
    alone = {p: Bound(f"change of a row / bound, W_{p} moves", rounding=NEARBY) for p in "QK"}
    for letter, bound in alone.items():
        for one, other in [*moves_of(scale, letter), lone_pairs(letter)]:
            bound.add_ratios(attention_ratios(one, other))
    return outcome(together, *alone.values(), seeds=(0,))


def hidden_layer_moves_little(scale: Scale) -> Outcome:
    """Change of F_pre in the Frobenius norm over the bound of Lemma 9, all parameters together and one by one."""
    together = Bound("change of F / bound, all move", rounding=NEARBY)
    for _, one, other in pairs(scale):
        together.add_ratios(hidden_ratios(one, other))
    alone = {p: Bound(f"change of F / bound, W_{p} moves", rounding=NEARBY, guard=GUARD) for p in "QKV"}
    for letter, bound in alone.items():
        for one, other in moves_of(scale, letter):
            bound.add_ratios(hidden_ratios(one, other))
    return outcome(together, *alone.values(), seeds=(0,))


def outputs_move_little(scale: Scale) -> Outcome:
    """Change of all outputs over the bound of Lemma 10: everything moves, w_O alone, and F alone by W_V."""
    together = Bound("change of f / bound, all move", rounding=NEARBY)
    for _, one, other in pairs(scale):
        together.add_ratios(output_ratios(one, other))
    alone = {
        "O": Bound("change of f / bound, w_O moves", rounding=NEARBY),
        "V": Bound("change of f / bound, F moves", rounding=NEARBY),
    }
    for letter, bound in alone.items():
        for one, other in moves_of(scale, letter):
            bound.add_ratios(output_ratios(one, other))
    return outcome(together, *alone.values(), seeds=(0,))


# The softmax: Lemmas 8 and 11 -------------------------------------------------------------------------------------


def attention_rows_have_bounded_norms(scale: Scale) -> Outcome:
    """|v| and its ends T^(-1/2) and 1, for random logits from tiny to saturated, ties and extremes."""
    lower = Bound("T^(-1/2) / |v|", rounding=EXACT)
    upper = Bound("|v| / 1", rounding=EXACT)
    rng = np.random.default_rng(0)
    count = scale.pick(500, 5000, 100_000)
    for T in (1, 2, 3, 10, 100):
        logits = rng.standard_normal((count, T)) * 10.0 ** rng.uniform(-8, 4, (count, 1))
        logits[0] = 0.0
        logits[1] = 1e4 * (np.arange(T) == 0)
        norms = np.linalg.norm(scipy.special.softmax(logits, axis=-1), axis=-1)
        low, high = lemma_8(T)
        lower.add_at_least(norms, low)
        upper.add(norms, high)
    return outcome(lower, upper, seeds=(0,))


def closed_jacobian(v: Array) -> Array:
    """Lemma 11: diag(v) - v v^T for each row of v (B, T), (B, T, T)."""
    return v[:, :, None] * np.eye(v.shape[-1]) - v[:, :, None] * v[:, None, :]


def softmax_jacobian(logits: Array) -> Array:
    """Derivatives of softmax at logits (B, T), (B, T, T), by a step of 1e-30 i: no digit is lost."""
    T = logits.shape[-1]
    moved = logits[:, None, :] + 1e-30j * np.eye(T)  # [draw, by which logit, logit]
    top = np.exp(moved - logits.max(-1)[:, None, None])
    return np.swapaxes((top / top.sum(-1, keepdims=True)).imag / 1e-30, -1, -2)


def jacobian_is_that_of_the_lemma(scale: Scale) -> Outcome:
    """Largest difference between diag(v) - v v^T and the derivative by an imaginary step."""
    entries = Identity("entry of diag(v) - v v^T less the derivative", tolerance=EXACT)
    rng = np.random.default_rng(0)
    count = scale.pick(200, 1000, 10_000)
    for T in (1, 2, 5, 12):
        logits = rng.standard_normal((count, T)) * 10.0 ** rng.uniform(-3, 1.5, (count, 1))
        closed = closed_jacobian(scipy.special.softmax(logits, axis=-1))
        entries.add(np.abs(closed - softmax_jacobian(logits)).max((-2, -1)))
    return outcome(entries, seeds=(0,))


BOUNDED = "|X_n|_F <= sqrt(T) C_x (Assumption 1)"
NORMS = "norms of the weights at most l_P; here l_P is the larger of the two norms, the least that is allowed"
SETTING = (
    "Sum pooling. Random Gaussian encoders of five shapes (N to 6, T to 5, d to 5, m to 8) at scales over two decades; "
    "encoders of rank one along equal sequences; two tokens cos(e) and -sin(e) of one dimension, on a grid of angles "
    "and logits, where changes through the softmax come closest."
)
CLOSE = (
    "change over bound, for all parameters together and for each that moves alone: a bound that is a sum can hide a "
    "wrong term. 1e-6 for differences of nearby points"
)

CLAIMS = [
    Claim(
        id="encoder-L7",
        title="Attention moves little",
        statement="|b_i' - b_i| <= 2 tau0 C_x^2 T (l_Q |W_K' - W_K| + l_K |W_Q' - W_Q|) for every row b_i of attention "
        "weights (Lemma 7).",
        hypotheses=(BOUNDED, NORMS),
        setting=SETTING,
        reason=f"{CLOSE}. The closest has 0.213 of the bound; a search over two and three tokens found no closer one",
        measure=attention_moves_little,
    ),
    Claim(
        id="encoder-L8",
        title="Norm of a softmax",
        statement="T^(-1/2) <= |v| <= 1 for v = softmax(u) with T entries (Lemma 8).",
        hypotheses=("none",),
        setting="Random logits from 1e-8 to 1e4, all equal, and saturated; T = 1 to 100.",
        reason="ratio to each end; both are attained, so the only tolerance is rounding",
        measure=attention_rows_have_bounded_norms,
    ),
    Claim(
        id="encoder-L9",
        title="The hidden layer moves little",
        statement="|F' - F|_F <= rho (|W_V' - W_V| + 2 tau0 C_x^2 T l_V (l_Q |W_K' - W_K| + l_K |W_Q' - W_Q|)) with "
        "rho = N^(1/2) T^(3/2) tau1 C_x (Lemma 9).",
        hypotheses=(BOUNDED, NORMS),
        setting=SETTING,
        reason=CLOSE,
        measure=hidden_layer_moves_little,
    ),
    Claim(
        id="encoder-L10",
        title="Outputs move little",
        statement="|f' - f| <= rho l_V |w_O' - w_O| + l_O |F' - F|_F (Lemma 10).",
        hypotheses=(BOUNDED, NORMS),
        setting=SETTING,
        reason=CLOSE,
        measure=outputs_move_little,
    ),
    Claim(
        id="encoder-L11",
        title="Jacobian of the softmax",
        statement="dv/du = diag(v) - v v^T for v = softmax(u) (Lemma 11; its middle line is encoder-E7-softmax).",
        hypotheses=("none",),
        setting="Random logits from 0.001 to 30; T = 1, 2, 5 and 12.",
        reason="largest difference of an entry from the derivative by an imaginary step, which is exact to rounding",
        measure=jacobian_is_that_of_the_lemma,
    ),
]
