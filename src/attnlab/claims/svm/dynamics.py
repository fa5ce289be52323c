"""What the claims on convergence share: data that meet an assumption, runs, and where those runs went."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.data import Tokens, optimal_tokens, scores, sphere
from attnlab.data.tokens import Array
from attnlab.svm import MarginSolutions, solve_margins
from attnlab.theory import assumption_b2
from attnlab.train import misalignment

STEP = 0.1  # length of a normalized step, as in the paper


def equal_score_data(n: int, T: int, d: int, trials: int, seed: int, spread: float = 0.0) -> Tokens:
    """Random unit tokens with all scores of a sequence but the best one made equal, as B.2 asks, by a shift along v.

    v is e1: the tokens have no preferred direction, so nothing is lost, and scores are equal to the last bit. With a
    `spread` they lie evenly over an interval of that length below the common score instead.
    """
    drawn = sphere(n=n, T=T, d=d, seed=seed, trials=trials)
    x, y = np.array(drawn.x), drawn.y[..., None]
    height = x[..., 0]
    best = (y * height).argmax(-1, keepdims=True)
    # The first token that is not the best gives the common height; it scores below the best.
    common = np.take_along_axis(height, np.where(best == 0, 1, 0), axis=-1)
    lowered = common - spread * np.linspace(0.0, 1.0, T) * y
    x[..., 0] = np.where(np.arange(T) == best, height, lowered)
    return Tokens(x=x, z=drawn.z, y=drawn.y, v=np.eye(d)[0])


def slack_of_b2(tokens: Tokens) -> dict[str, float]:
    """How far a batch is from missing B.2: its largest deviation of scores that should be equal, and its least gap."""
    assert tokens.trials is not None
    checks = [assumption_b2(tokens[i]) for i in range(tokens.trials)]
    return {
        "B.2: least gap of scores": min(check.evidence["gap"] for check in checks),
        "B.2: largest spread of other scores": max(check.evidence["deviation"] for check in checks),
        "B.2: tied best scores": float(sum(check.evidence["tied"] for check in checks)),
    }


class Ends(NamedTuple):
    """Where the runs of a batch ended.

    Attributes:
        best: did attention settle on the best tokens?
        apart: 1 - cosine with the max-margin direction of the tokens that were selected; NaN where none separates.
        from_best: 1 - cosine with the max-margin direction of the best tokens; NaN likewise.
        multiple: |W| in units of the norm of that max-margin matrix of the selected tokens.
    """

    best: NDArray[np.bool_]
    apart: Array
    from_best: Array
    multiple: Array


def ends(tokens: Tokens, W: Array, selected: NDArray[np.intp], best: MarginSolutions | None = None) -> Ends:
    """Compare the last W of each trial with the max-margin directions of its own and of the best tokens."""
    optimal = optimal_tokens(tokens)
    best = solve_margins(tokens, optimal) if best is None else best
    own = solve_margins(tokens, selected)
    return Ends(
        best=(selected == optimal).all(-1),
        apart=misalignment(W, own.W),
        from_best=misalignment(W, best.W),
        multiple=np.linalg.norm(W, axis=(-2, -1)) * own.margin,
    )


def stacked(tokens: Tokens, trials: int) -> Tokens:
    """One data set, `trials` times."""
    return Tokens.stack([tokens] * trials)


def with_unit_radius(tokens: Tokens, radius: Array) -> Tokens:
    """The same data with queries scaled so that |W| = 1 stands where |W| = radius stood, which may differ by trial."""
    return Tokens(x=tokens.x, z=tokens.z * radius[:, None, None], y=tokens.y, v=tokens.v)


def margins_of(tokens: Tokens, W: Array, selected: NDArray[np.intp]) -> Array:
    """(x_selected - x_t)^T W z for a batch, laid out as the tokens; 0 at the selected ones."""
    logits = np.einsum("...ntd,...de,...ne->...nt", tokens.x, W, tokens.z, optimize=True)
    return np.take_along_axis(logits, selected[..., None], axis=-1) - logits


def leads_of(tokens: Tokens, selected: NDArray[np.intp]) -> Array:
    """gamma_selected - gamma_t, laid out as the tokens."""
    gamma = scores(tokens)
    return np.take_along_axis(gamma, selected[..., None], axis=-1) - gamma


def log_attention(tokens: Tokens, W: Array) -> Array:
    """log softmax(x W z) for a batch, laid out as the tokens."""
    logits = np.einsum("...ntd,...de,...ne->...nt", tokens.x, W, tokens.z, optimize=True)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def loss_slopes(tokens: Tokens, W: Array) -> Array:
    """-l' of the logistic loss at the margin of each sequence."""
    margins = (np.exp(log_attention(tokens, W)) * scores(tokens)).sum(-1)
    return 1.0 / (1.0 + np.exp(margins))


def downhill(tokens: Tokens, W: Array) -> tuple[Array, Array]:
    """-grad L(W) for the logistic loss and the linear head, as a matrix and the logarithm of a factor, per trial.

    The largest weight of a pair of tokens is taken out, so that nothing underflows however large W is.
    """
    pushes, log_scales = pushes_of(tokens, W)
    log_scale = log_scales.max(-1)
    shares = np.exp(log_scales - log_scale[..., None])
    return np.einsum("...n,...nd,...ne->...de", shares, pushes, tokens.z), log_scale


def pushes_of(tokens: Tokens, W: Array) -> tuple[Array, Array]:
    """What each sequence adds to -grad L(W): a vector, to be multiplied by its query, and the logarithm of a factor.

    A sum over pairs of tokens, `s_t s_u (gamma_t - gamma_u) (x_t - x_u) z^T`, in which nothing cancels. Some two scores
    of every sequence must differ.
    """
    log_s, gamma = log_attention(tokens, W), scores(tokens)
    first, second = np.triu_indices(tokens.T, 1)
    lead = gamma[..., first] - gamma[..., second]
    with np.errstate(divide="ignore"):
        pairs = log_s[..., first] + log_s[..., second] + np.log(np.abs(lead))
    log_scales = pairs.max(-1)
    weight = np.sign(lead) * np.exp(pairs - log_scales[..., None])
    weight = weight * loss_slopes(tokens, W)[..., None] / tokens.n
    differences = tokens.x[..., first, :] - tokens.x[..., second, :]
    return np.einsum("...np,...npd->...nd", weight, differences), log_scales
