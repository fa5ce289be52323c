"""The shallow encoder token by token, its gradients, and instances of all shapes and scales."""

import numpy as np

LETTERS = {"Q": "W_Q", "K": "W_K", "V": "W_V", "O": "w_O"}
# n, T, d, m: plain; more dimensions, or sequences, than width; one token, sequence, dimension or neuron.
SHAPES = [(4, 3, 2, 6), (3, 2, 7, 4), (6, 2, 3, 4), (3, 1, 4, 5), (1, 4, 3, 5), (3, 3, 1, 4), (2, 2, 2, 1)]


def draw(seed, shape=None, scale=1.0):
    """Tokens, labels, weights, tau0 and tau1; scales log-uniform over two decades either way for `scale = 1`."""
    rng = np.random.default_rng(seed)
    n, T, d, m = SHAPES[seed % len(SHAPES)] if shape is None else shape

    def size():
        return 10 ** (scale * rng.uniform(-1, 1))

    x = rng.standard_normal((n, T, d)) * size()
    weights = {name: rng.standard_normal((m, d)) * size() for name in ("W_Q", "W_K", "W_V")}
    weights["w_O"] = rng.standard_normal(m) * size()
    return x, rng.standard_normal(n) * size(), weights, size(), size()


def rows(x, weights, tau0):
    """Attention weights of one sequence (T, T), one softmax at a time."""
    found = []
    for query in x:
        logits = [tau0 * float((weights["W_Q"] @ query) @ (weights["W_K"] @ key)) for key in x]
        top = np.exp(np.array(logits) - max(logits))
        found.append(top / top.sum())
    return np.array(found)


def one_output(x, weights, tau0, tau1, S=None):
    """Hidden layer and output of one sequence, a sum over tokens."""
    hidden = np.zeros(len(weights["w_O"]))
    for i, b in enumerate(rows(x, weights, tau0)):
        inside = weights["W_V"] @ (x.T @ b)
        hidden += tau1 * np.maximum(inside if S is None else inside + S.T @ x[i], 0.0)
    return hidden, float(hidden @ weights["w_O"])


def gradient(x, weights, tau0, tau1, S=None):
    """The gradient of the output of one sequence, by letter: Eqs. (7) to (10), with the slope of relu."""
    W_Q, W_K, W_V, w_O = (weights[name] for name in LETTERS.values())
    found = {letter: np.zeros_like(weights[name]) for letter, name in LETTERS.items()}
    for i, b in enumerate(rows(x, weights, tau0)):
        inside = W_V @ (x.T @ b) + (0.0 if S is None else S.T @ x[i])
        back = w_O * (inside > 0)
        towards = x.T @ (np.diag(b) - np.outer(b, b)) @ x @ (W_V.T @ back)
        found["O"] += tau1 * np.maximum(inside, 0.0)
        found["V"] += tau1 * np.outer(back, x.T @ b)
        found["Q"] += tau0 * tau1 * np.outer(W_K @ towards, x[i])
        found["K"] += tau0 * tau1 * np.outer(W_Q @ x[i], towards)
    return found


def jacobian(x, weights, tau0, tau1, S=None):
    """Gradients of all outputs as rows, Q before K before V before O."""
    found = [gradient(one, weights, tau0, tau1, S) for one in x]
    return np.array([np.concatenate([g[letter].ravel() for letter in LETTERS]) for g in found])


def moved(weights, radius, rng):
    """Weights within `radius[letter]` of these in the Frobenius norm, often close, sometimes on the sphere."""
    found = {}
    for letter, name in LETTERS.items():
        step = rng.standard_normal(weights[name].shape)
        far = radius[letter] * 10 ** rng.uniform(-4, 0)
        found[name] = weights[name] + far * step / np.linalg.norm(step)
    return found


def changes(one, other):
    """Spectral norms of the change of each parameter, by letter."""
    return {letter: float(np.linalg.norm(one[name] - other[name], ord=2)) for letter, name in LETTERS.items()}


def far(one, other):
    """Euclidean norm of the change of all parameters together."""
    return float(np.sqrt(sum(np.sum((one[name] - other[name]) ** 2) for name in LETTERS.values())))
