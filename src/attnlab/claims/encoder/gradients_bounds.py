"""Gradients, and how fast they change: Lemmas 12 to 14, and misprints in their proofs."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from attnlab.claims.claim import Claim, Outcome, erratum, outcome
from attnlab.claims.encoder.batch import (
    LETTERS,
    SHAPES,
    Draws,
    aligned_pairs,
    bound_constants,
    evaluate,
    frobenius,
    jacobian,
    loss_gradient,
    opposed_pairs,
    random_pairs,
    stacked,
    total_change,
)
from attnlab.claims.encoder.lipschitz import GUARD, NEARBY, NORMS, pairs
from attnlab.claims.parts import Bound, Identity
from attnlab.claims.scale import Scale
from attnlab.claims.verdict import Kind, Slip
from attnlab.data.tokens import Array
from attnlab.theory.encoder import lemma_12, lemma_13, lemma_14

DERIVATIVE = 1e-10
ASSUMPTION = "|X_n|_F <= sqrt(T) C_x (Assumption 1)"

# Lemmas 12 and 13 -------------------------------------------------------------------------------------------------


def errors_of(draws: Draws, aligned: bool) -> Array:
    """Errors f - y: Gaussian, or all equal, for which gradients of equal sequences add up."""
    B, N = draws.x.shape[:2]
    size = 10.0 ** np.random.default_rng(5).uniform(-3, 3, (B, 1))
    return size * (np.ones((B, N)) if aligned else np.random.default_rng(6).standard_normal((B, N)))


def opposed(scale: Scale, through: str, factor: float) -> Draws:
    """Two tokens of opposite signs, where the gradient by W_Q (or W_K) is `factor` times its usual size, and that by
    the other as much smaller: the other's weight times the factor, its own divided by it, so that logits stay."""
    draws, _ = opposed_pairs(through, scale.pick(25, 41, 101))
    partner = "K" if through == "Q" else "Q"
    return draws._replace(**{through: getattr(draws, through) / factor, partner: getattr(draws, partner) * factor})


def loss_gradients_are_bounded(scale: Scale) -> Outcome:
    """Frobenius norm of the gradient of the loss by each parameter over the bound of Lemma 12."""
    bounds = {p: Bound(f"gradient by {_name(p)} / bound", rounding=NEARBY, guard=GUARD) for p in LETTERS}
    families = [(draws, name.startswith("aligned")) for name, draws, _ in pairs(scale)]
    for draws, aligned in [*families, (opposed(scale, "Q", 1.0), True)]:
        errors = errors_of(draws, aligned)
        gradient = loss_gradient(draws, evaluate(draws), errors)
        misfits = np.linalg.norm(errors, axis=-1)
        allowed = [lemma_12(c, float(misfit)) for c, misfit in zip(bound_constants(draws), misfits, strict=True)]
        for p, bound in bounds.items():
            bound.add(frobenius(gradient[p]), [row[p] for row in allowed])
    return outcome(*bounds.values(), seeds=(0,))


def _name(p: str) -> str:
    return "w_O" if p == "O" else f"W_{p}"


def output_gradients_are_bounded(scale: Scale) -> Outcome:
    """Frobenius norm of the gradient of all outputs, which bounds the spectral one, over c2 of Lemma 13.

    c2 is the root of four squares: besides draws where the first two decide there are some where one of the others is
    nearly all.
    """
    plain = Bound("|grad f| / c2", rounding=NEARBY)
    spectral = Bound("spectral norm / c2", rounding=NEARBY)
    for _, draws, _ in pairs(scale):
        J = stacked(jacobian(draws))  # (B, N, parameters)
        c2 = [lemma_13(c) for c in bound_constants(draws)]
        plain.add(np.linalg.norm(J, axis=(-2, -1)), c2)
        spectral.add(np.linalg.norm(J, 2, axis=(-2, -1)), c2)
    steep = {p: Bound(f"|grad f| / c2, nearly all by W_{p}", rounding=NEARBY, guard=GUARD) for p in "QK"}
    for p, bound in steep.items():
        draws = opposed(scale, p, 1e4)
        bound.add(
            np.linalg.norm(stacked(jacobian(draws)), axis=(-2, -1)), [lemma_13(c) for c in bound_constants(draws)]
        )
    return outcome(spectral, plain, *steep.values(), seeds=(0,))


# Lemma 14 ---------------------------------------------------------------------------------------------------------


def gradient_changes(one: Draws, other: Draws) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Spectral norm of the change of the gradient, length of the move, and whether no relu changes its side, (B,)."""
    before, after = evaluate(one), evaluate(other)
    J = stacked(jacobian(other, after)) - stacked(jacobian(one, before))
    same = ((before.inside > 0) == (after.inside > 0)).all((1, 2, 3))
    return np.linalg.norm(J, 2, axis=(-2, -1)), total_change(one, other), same


def aligned_families(scale: Scale) -> list[tuple[Draws, Draws]]:
    """One token along one direction; with small w_O besides, where Lemma 14 is closest."""
    one, other = aligned_pairs(scale.pick(10, 60, 400), 1, seed=1)
    small = one._replace(O=1e-3 * one.O), other._replace(O=1e-3 * other.O)
    return [(one, other), small]


def curved_pair(scale: Scale, through: str, moves: str) -> tuple[Draws, Draws]:
    """Two tokens whose gradient by W_Q (or W_K), `through`, decides c3, and a move by which that gradient changes.

    Its own move: nearly no output and much attention. A move of W_V: small W_V, so that 2 l T C_x^2 l_O is most of c3.
    """
    if moves == through:
        draws = opposed(scale, through, 1e6)
        draws = draws._replace(V=1e-6 * draws.V, O=1e-6 * draws.O)
        return draws, draws.moved({through: np.full_like(getattr(draws, through), 1e-10)})
    draws = opposed(scale, through, 1e4)
    draws = draws._replace(V=1e-6 * draws.V)
    return draws, draws.moved({"V": 1e-4 * draws.V})


def gradient_is_lipschitz_between_kinks(scale: Scale) -> Outcome:
    """Change of the gradient over c3 times the move, for pairs between which no relu changes its side."""
    families = {"all move": [(one, other) for _, one, other in pairs(scale)]}
    families["all move, one token, small w_O or not"] = aligned_families(scale)
    for through, moves in (("Q", "Q"), ("Q", "V"), ("K", "K"), ("K", "V")):
        name = f"W_{moves} moves, the gradient by W_{through} decides"
        families[name] = [curved_pair(scale, through, moves)]
    bounds = []
    tried = 0
    for name, ends in families.items():
        bound = Bound(f"change of the gradient / (c3 move): {name}", rounding=NEARBY, guard=GUARD)
        for one, other in ends:
            change, move, same = gradient_changes(one, other)
            allowed = [lemma_14(c, float(far)) for c, far in zip(bound_constants(one, other), move, strict=True)]
            bound.add(change[same], np.array(allowed)[same])
            tried += len(same)
        bounds.append(bound)
    judged = sum(bound.instances for bound in bounds)
    return outcome(*bounds, instances=judged, tried=tried, seeds=(0, 1))


STEPS = (1e-2, 1e-4, 1e-6, 1e-8)


def across_a_kink(draws: Draws, step: float) -> tuple[Draws, Draws]:
    """W_V moved along one attended token so that one preactivation, that nearest to 0, goes from step/2 to -step/2."""
    at = evaluate(draws)
    B = len(draws.x)
    which = np.abs(at.inside).reshape(B, -1).argmin(-1)
    n, i, k = np.unravel_index(which, at.inside.shape[1:])
    rows = np.arange(B)
    token = at.attended[rows, n, i]
    by = np.zeros_like(draws.V)
    by[rows, k] = token / np.sum(token**2, axis=-1, keepdims=True)  # moves the preactivation by 1
    now = at.inside[rows, n, i, k]
    return draws.moved({"V": by}, step / 2 - now), draws.moved({"V": by}, -step / 2 - now)


def gradient_is_lipschitz_across_kinks(scale: Scale) -> Outcome:
    """The same for pairs on both sides of one kink, over the larger of c3 as printed and repaired."""
    count = scale.pick(5, 20, 100)
    bound = Bound("change of the gradient / (c3 move), across a kink")
    slopes = dict.fromkeys(STEPS, 0.0)
    for step, shape in product(STEPS, SHAPES[:3]):
        one, other = across_a_kink(random_pairs(count, shape, seed=2)[0], step)
        change, move, same = gradient_changes(one, other)
        allowed = [
            max(lemma_14(c, float(far)), lemma_14(c, float(far), corrected=False))
            for c, far in zip(bound_constants(one, other), move, strict=True)
        ]
        bound.add(change[~same], np.array(allowed)[~same])
        slopes[step] = max(slopes[step], float((change / move).max()))
    numbers = {"largest |change of the gradient| / |move|, by how far the preactivation goes": slopes}
    return outcome(bound, tried=count * 3 * len(STEPS), seeds=(2,), numbers=numbers)


# E7 ---------------------------------------------------------------------------------------------------------------


def moderate_draws(count: int, shape: tuple[int, int, int, int]) -> Draws:
    """Random encoders with logits of at most 1: saturated ones leave no gradient to compare."""
    draws, _ = random_pairs(count, shape, seed=4)
    logits = draws.x @ (np.swapaxes(draws.Q, -1, -2) @ draws.K)[:, None] @ np.swapaxes(draws.x, -1, -2)
    return draws._replace(tau0=1.0 / np.abs(logits).max((1, 2, 3)))


def printed_gradients(draws: Draws, errors: Array) -> dict[str, Array]:
    """Gradient of the loss as inside the norms of Eqs. (7) and (9): relu where its slope is meant."""
    at = evaluate(draws)
    slopes = draws.O[:, None, None, :] * np.maximum(at.inside, 0.0)
    v = at.attention
    covariance = v[..., :, None] * np.eye(v.shape[-1]) - v[..., :, None] * v[..., None, :]  # (B, N, i, T, T)
    towards = np.einsum("bnsd,bnist,bnte,bnie->bnid", draws.x, covariance, draws.x, slopes @ draws.V[:, None])
    by_product = np.einsum("bn,bnid,bnie->bde", errors, towards, draws.x)
    by_V = np.einsum("bn,bnim,bnid->bmd", errors, slopes, at.attended)
    through = (draws.tau0 * draws.tau1)[:, None, None]
    return {"Q": through * (draws.K @ by_product), "V": draws.tau1[:, None, None] * by_V}


def numeric_gradient(draws: Draws, errors: Array, p: str) -> Array:
    """<errors, f> differentiated by one parameter, one entry after the other, by imaginary steps: no digit is lost."""
    weights = getattr(draws, p)
    gradient = np.zeros_like(weights)
    for entry in np.ndindex(weights.shape[1:]):
        moved = weights.astype(complex)
        moved[(slice(None), *entry)] += 1e-30j
        outputs = evaluate(draws._replace(**{p: moved})).outputs
        gradient[(slice(None), *entry)] = np.einsum("bn,bn->b", errors, outputs.imag)
    return gradient / 1e-30


def printed_norms_are_right(scale: Scale) -> Outcome:
    """The norms in the second lines of Eqs. (7) and (9), as printed, against those of the true gradient."""
    norms = {p: Identity(f"norm of the gradient by W_{p}, relative error", tolerance=DERIVATIVE) for p in "QV"}
    count = scale.pick(10, 50, 200)
    for shape in SHAPES[:3]:
        draws = moderate_draws(count, shape)
        errors = errors_of(draws, False)
        printed = printed_gradients(draws, errors)
        for p, norm in norms.items():
            size = frobenius(numeric_gradient(draws, errors, p))
            norm.add((frobenius(printed[p]) / size - 1.0)[size > 0])
    return outcome(*norms.values(), seeds=(4,))


def gradients_with_slopes_are_right(scale: Scale) -> Outcome:
    """Relative error of the gradient of the loss with slopes of relu, by each parameter."""
    entries = {p: Identity(f"gradient by {_name(p)}, relative error", tolerance=DERIVATIVE) for p in LETTERS}
    count = scale.pick(10, 50, 200)
    for shape in SHAPES[:3]:
        draws = moderate_draws(count, shape)
        errors = errors_of(draws, False)
        closed = loss_gradient(draws, evaluate(draws), errors)
        for p, entry in entries.items():
            true = numeric_gradient(draws, errors, p)
            size = frobenius(true)
            some = size > 0
            entry.add(frobenius(closed[p] - true)[some] / size[some])
    return outcome(*entries.values(), seeds=(4,))


def softmax_derivatives(count: int) -> tuple[dict[str, Array], Array]:
    """dv_1/du_2 of a softmax: with the middle line of Lemma 11 as printed, with a product, and differentiated."""
    u = np.random.default_rng(0).standard_normal((count, 4))
    e = np.exp(u)
    square = e.sum(-1) ** 2
    moved = np.exp(u + 1e-30j * (np.arange(4) == 1))
    true = (moved[:, 0] / moved.sum(-1)).imag / 1e-30
    return {"printed": (-e[:, 0] - e[:, 1]) / square, "product": -e[:, 0] * e[:, 1] / square}, true


def softmax_line_is_right(scale: Scale, *, line: str) -> Outcome:
    """Relative error of dv_1/du_2 by one of the two lines."""
    error = Identity("dv_1/du_2, relative error", tolerance=DERIVATIVE)
    lines, true = softmax_derivatives(scale.pick(20, 50, 200))
    error.add(lines[line] / true - 1.0)
    return outcome(error, seeds=(0,))


SETTING = (
    "Sum pooling. Random Gaussian encoders of five shapes at scales over two decades; equal sequences along one "
    "direction with equal errors; two tokens cos(e) and -sin(e), on a grid of angles and logits."
)
ATTAINED = "norms of the weights at most l_P; here equal to l_P"
MODERATE = "Random encoders of three shapes (N to 6, T to 4), logits at most 1, Gaussian errors f - y."

CLAIMS = [
    Claim(
        id="encoder-L12",
        title="The gradient of the loss is bounded",
        statement="The gradient of the loss is at most rho l_O |f - y| by W_V, rho l_V |f - y| by w_O, 2 rho tau0 l_K "
        "l_V l_O T C_x^2 |f - y| by W_Q, and the same with l_Q by W_K (Lemma 12).",
        hypotheses=(ASSUMPTION, ATTAINED),
        setting=SETTING,
        reason="Frobenius norm over bound, each parameter by itself; 1e-6 for rounding",
        measure=loss_gradients_are_bounded,
    ),
    Claim(
        id="encoder-L13",
        title="The gradient of the outputs is bounded",
        statement="|grad f| <= c2 = rho sqrt(l_O^2 + l_V^2 + (2 tau0 l_K l_V l_O T C_x^2)^2 + (2 tau0 l_Q l_V l_O T "
        "C_x^2)^2) (Lemma 13).",
        hypotheses=(ASSUMPTION, ATTAINED),
        setting=f"{SETTING} Some of these with keys (queries) 10^4 times larger and queries (keys) as much smaller.",
        reason="spectral and Frobenius norm over c2; and where a single one of its last two squares is nearly all",
        measure=output_gradients_are_bounded,
    ),
    erratum(
        id="encoder-L14",
        title="The gradient of the outputs changes slowly",
        printed="|grad f' - grad f| <= c3 |theta' - theta| (Lemma 14, with its own z = 2 tau0 C_x^2 T (l_Q + l_K), not "
        "that of Proposition 1); its proof takes the slope of relu to be 1-Lipschitz (Eq. 19).",
        corrected="it holds for any two points between which no preactivation changes its sign, with c3 repaired as in "
        "encoder-E3; across a kink of relu the gradient jumps, and no constant is enough.",
        slip=Slip(
            kind=Kind.STATEMENT,
            where="Lemma 14, Eqs. (13) and (19)",
            quote=r"Upper bound for the Lipschitzness of the network gradient",
            charitable="Read between kinks, or with a smooth activation in place of relu: then no pair breaks it (the "
            "corrected half). The paper calls the loss almost smooth; runs under Proposition 1 were never "
            "seen to suffer (encoder-P1).",
            correction="Ask that no preactivation changes its sign on the way, or bound how many do.",
        ),
        hypotheses=(ASSUMPTION, NORMS),
        setting=f"{SETTING} Printed: W_V moves so that one preactivation crosses 0, by 1e-2 to 1e-8.",
        reason="change of the gradient over bound. Printed: pairs on both sides of one kink, over the larger of both "
        "c3. Corrected: pairs with equal signs of all preactivations; others are dropped and counted",
        measure_printed=gradient_is_lipschitz_across_kinks,
        measure_corrected=gradient_is_lipschitz_between_kinks,
    ),
    erratum(
        id="encoder-E7",
        title="Slopes of relu in printed gradients",
        printed="the norms of the gradients by W_V and W_Q are those of sums with w_O * relu(W_V X^T b_i) (second "
        "lines of Eqs. 7 and 9).",
        corrected="the slope of relu stands in place of relu, as in Eq. (19) and in the h below Eq. (20). The "
        "minus in the first lines is inside a norm and changes nothing; all bounds are untouched.",
        slip=Slip(
            kind=Kind.TYPO,
            where="proof of Lemma 12, Eqs. (7) and (9); also Eq. (17)",
            quote=r"\mathbf{w}_O \circ \sigma_r(\mathbf{W}_V \mathbf{X}_n^\top \boldsymbol{\beta}_{i,n})",
            charitable="Read as the slope of relu, which the paper writes with a dot elsewhere: then the gradients are "
            "right to rounding (the corrected half).",
            correction="A dot over sigma_r in Eqs. (7), (9) and (17).",
        ),
        hypotheses=("no preactivation is 0",),
        setting=MODERATE,
        reason="relative error against derivatives by imaginary steps, which are exact to rounding; printed: of the "
        "norm alone, so that signs do not count",
        measure_printed=printed_norms_are_right,
        measure_corrected=gradients_with_slopes_are_right,
    ),
    erratum(
        id="encoder-E7-softmax",
        title="A product in the proof of Lemma 11",
        printed="dv_j/du_k = (-exp(u_j) - exp(u_k)) / (sum exp)^2 for j != k (middle line of the proof of Lemma 11).",
        corrected="the product -exp(u_j) exp(u_k) in place of the difference, as the next line has it: -v_j v_k.",
        slip=Slip(
            kind=Kind.TYPO,
            where="proof of Lemma 11",
            quote=r"-\exp(\mathbf{u}^{(j)}) - \exp(\mathbf{u}^{(k)})",
            charitable="The second minus read as a product: the next line and the lemma then follow (encoder-L11).",
            correction="exp(u_j) exp(u_k), with one minus in front.",
        ),
        setting="Four Gaussian logits.",
        reason="relative error against the derivative by an imaginary step",
        measure_printed=partial(softmax_line_is_right, line="printed"),
        measure_corrected=partial(softmax_line_is_right, line="product"),
    ),
]
