"""The encoder by explicit loops over sequences, tokens and blocks, in NumPy or in mpmath's arithmetic."""

import numpy as np


def softmax_rows(logits):
    out = np.empty_like(logits)
    for i, row in enumerate(logits):
        e = np.exp(row - row.max())
        out[i] = e / e.sum()
    return out


def encoder_outputs(model, weights, x):
    """Outputs (n,) and hidden rows (n, m)."""
    outputs, rows = [], []
    for X in x:
        tokens = X
        for block in range(model.depth):
            tail = "" if block == 0 else str(block + 1)
            W_Q, W_V = weights[f"W_Q{tail}"], weights[f"W_V{tail}"]
            W_K = W_Q if model.tied else weights[f"W_K{tail}"]
            logits = model.tau0 * (tokens @ W_Q.T) @ (tokens @ W_K.T).T
            if model.attention_kind == "softmax":
                B = softmax_rows(logits)
            elif model.attention_kind == "relu":
                B = np.maximum(logits, 0.0)
            else:
                B = np.full_like(logits, 1.0 / len(X))
            raw = B @ tokens @ W_V.T
            if model.residual == "identity":
                raw = raw + X
            elif model.residual == "projected":
                raw = raw + X @ weights["S"]
            tokens = model.tau1 * np.maximum(raw, 0.0)
        row = tokens.sum(0) / (len(X) if model.pool == "mean" else 1)
        rows.append(row)
        outputs.append(row @ weights["w_O"])
    return np.array(outputs), np.array(rows)


def closed_gradients(model, weights, X):
    """Gradients of one output by W_Q, W_K, W_V, w_O, written out as in the paper's Lemma 12 (depth 1, softmax)."""
    T = len(X)
    t = model.tau1 / (T if model.pool == "mean" else 1)
    W_Q, W_K, W_V, w_O = (weights[k] for k in ("W_Q", "W_K", "W_V", "w_O"))
    B = softmax_rows(model.tau0 * X @ W_Q.T @ W_K @ X.T)
    found = {k: np.zeros_like(weights[k]) for k in ("W_Q", "W_K", "W_V", "w_O")}
    for i in range(T):
        beta = B[i]
        u = W_V @ X.T @ beta
        slope = np.where(u > 0, w_O, 0.0)
        J = np.diag(beta) - np.outer(beta, beta)
        found["w_O"] += t * np.maximum(u, 0.0)
        found["W_V"] += t * np.outer(slope, X.T @ beta)
        pulled = X.T @ J @ X @ W_V.T @ slope  # (d,)
        found["W_Q"] += model.tau0 * t * np.outer(W_K @ pulled, X[i])
        found["W_K"] += model.tau0 * t * np.outer(W_Q @ X[i], pulled)
    return found
