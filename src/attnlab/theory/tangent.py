"""Tangent kernel and curvature of any model: how its outputs move when its weights do.

Models are one attention layer (None), `al.models.MultiHead`, `al.models.Encoder` and `al.models.FullyConnected`. The
kernel is `K_ij = <grad f_i, grad f_j>` over all trained weights, as they are held: over every head of a group, and over
scaled weights under the parameterization "ntk".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from attnlab.checks import finite_array, number, shown, whole
from attnlab.data.scale import length
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array, Tokens
from attnlab.errors import InputError, message
from attnlab.models.attention import AttentionModel, Problem
from attnlab.models.encoder import Encoder
from attnlab.models.evaluate import HeadLike, attention_model, check_weights
from attnlab.models.multihead import HeadsModel, HeadsProblem, MultiHead, check_sequences
from attnlab.models.network import Network
from attnlab.models.precision import in_float64
from attnlab.models.softmax import softmax
from attnlab.theory.encoder.ntk import BLOCK, encoder_kernels, even
from attnlab.train.alignment import misalignment

Model = MultiHead | Network | None
Weights = Mapping[str, ArrayLike] | ArrayLike
# Up to so many weights the Hessian is made in full.
DENSE = 60


@dataclass(frozen=True)
class _NetworkOutputs:
    network: Network

    def __call__(self, params: Any, row: Any, fixed: Any) -> Any:
        scale = self.network.held(*row["x"].shape)
        own = {name: scale[name] * p for name, p in params.items()}
        return self.network.outputs({**own, **fixed}, row["x"][None])


@dataclass(frozen=True)
class _HeadsOutputs:
    model: HeadsModel

    def __call__(self, params: Any, row: Any, fixed: Any) -> Any:
        return self.model.outputs(params, HeadsProblem(row["x"][None], None, fixed["counts"], fixed["held"]))[0]


@dataclass(frozen=True)
class _AttentionOutputs:
    model: AttentionModel

    def __call__(self, params: Any, row: Any, fixed: Any) -> Any:
        alone = jax.tree.map(lambda a: a[None], row)
        problem = Problem(**alone, head=fixed, reference=None, reference_score=None)
        margins = self.model.margins(params, problem, softmax(self.model.logits(params, problem)))
        return (problem.y * margins)[0]


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of a model as a function of its trained parameters.

    Attributes:
        function: (params, row, fixed) -> outputs of one sequence, one for each of its queries; JAX, hashable.
        params: the parameters as they are held.
        rows: arrays with one entry per sequence.
        fixed: arrays that are neither.
    """

    function: Any
    params: dict[str, Array]
    rows: dict[str, Any]
    fixed: dict[str, Any]

    @classmethod
    def of(
        cls,
        data: Tokens | Sequences,
        weights: Weights,
        model: Model = None,
        head: HeadLike = "linear",
        name: str = "data",
    ) -> Outputs:
        """Of one data set; `name` is what errors call it."""
        if getattr(data, "trials", None) is not None:
            raise InputError(message(f"`{name}` is a batch of {data.trials} trials; wanted one data set.", "data[0]"))
        if isinstance(model, Network):
            data = Sequences.of(data, name)
            own, scale = model.check(data, weights), model.held(data.T, data.d)  # type: ignore[arg-type]
            held = {name: w / scale[name] for name, w in own.items() if name not in model.frozen}
            return cls(_NetworkOutputs(model), held, {"x": data.x}, {name: own[name] for name in model.frozen})
        if isinstance(model, MultiHead):
            check_sequences(data, name)
            own = model.check(data, weights)  # type: ignore[arg-type]
            problem = model.problem(data, own["W"].shape[0], all_heads=True)  # type: ignore[arg-type]
            held = {name: w * problem.held.reshape(-1, *[1] * (w.ndim - 1)) for name, w in own.items()}
            fixed = {"counts": problem.counts, "held": problem.held}
            return cls(_HeadsOutputs(HeadsModel.of(model.decoder)), held, {"x": data.x}, fixed)
        if model is not None or not isinstance(data, Tokens):
            given = f"`model` is {shown(model)} with `{name}` a {type(data).__name__}"
            wanted = "wanted a model of attnlab, or None with al.Tokens for one attention layer"
            raise InputError(message(f"{given}; {wanted}.", "model=al.models.Encoder(width)"))
        own = check_weights(weights, data)
        core, problem = attention_model(data, own, "logistic", head)
        rows = {name: getattr(problem, name) for name in ("x", "common", "z", "y", "visible")}
        return cls(_AttentionOutputs(core), own, rows, problem.head)

    @property
    def n(self) -> int:
        """Sequences."""
        return len(self.rows["x"])

    @property
    def size(self) -> int:
        """Parameters."""
        return sum(p.size for p in self.params.values())

    def some(self, rows: slice) -> dict[str, Any]:
        """The arrays of some sequences."""
        return jax.tree.map(lambda a: a[rows], self.rows)

    def jacobian(self, rows: slice = slice(None)) -> Array:
        """Gradients of the outputs of some sequences as rows, in the order of the sorted names of the parameters."""
        return np.asarray(_jacobian(self.function, self.params, self.some(rows), self.fixed))


@in_float64
def ntk(
    data: Tokens | Sequences,
    weights: Weights,
    model: Model = None,
    *,
    other: Tokens | Sequences | None = None,
    head: HeadLike = "linear",
    block: int = BLOCK,
) -> Array:
    """The empirical tangent kernel, (n, n), or (n, n') with the sequences of `other`.

    Args:
        data: one data set; `al.Tokens`, or for networks also `al.Sequences`.
        weights: where the gradients are taken.
        model: None for one attention layer with weights W or K and Q.
        other: sequences for the columns, as those of a test set.
        head: of an attention layer.
        block: numbers that the largest array may have beside the kernel; it bounds the memory, whatever the sizes are.

    A shallow encoder never makes gradients (see `attnlab.theory.encoder.ntk`); for other models they are made for a
    block of sequences at a time. With K queries per sequence there is a row for each query.

    >>> import attnlab as al
    >>> data, model = al.data.gaussian_sequences(5, 3, 4), al.models.Encoder(32)
    >>> kernel = ntk(data, model.initial(data), model)
    >>> kernel.shape, bool(np.linalg.eigvalsh(kernel)[0] > 0)
    ((5, 5), True)
    """
    block = whole("block", block)
    mine = Outputs.of(data, weights, model, head)
    theirs = mine if other is None else Outputs.of(other, weights, model, head, "other")
    if theirs.rows["x"].shape[1:] != mine.rows["x"].shape[1:]:
        raise InputError(message(f"`other` is {other!r}; wanted sequences with the T and d of {data!r}."))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        kernel = _kernel(data, weights, model, mine, theirs, block)
    _check_result("The tangent kernel", kernel, mine)
    # To the last digit, which products of matrices do not promise.
    return 0.5 * kernel + 0.5 * kernel.T if other is None else kernel


def _kernel(
    data: Tokens | Sequences, weights: Weights, model: Model, mine: Outputs, theirs: Outputs, block: int
) -> Array:
    """As the model knows best."""
    if isinstance(model, Encoder) and model.depth == 1:
        own = model.check(Sequences.of(data), weights)  # type: ignore[arg-type]
        columns = None if mine is theirs else theirs.rows["x"]
        return np.sum([*encoder_kernels(model, own, mine.rows["x"], columns, block=block).values()], axis=0)
    return _by_gradients(mine, theirs, block)


def _check_result(what: str, found: Array, maps: Outputs) -> None:
    """Refuse what is not finite, with the sizes that it came from."""
    if np.isfinite(found).all():
        return
    tokens = float(np.abs(maps.rows["x"]).max())
    weights = {name: float(np.abs(p).max()) for name, p in maps.params.items()}
    sizes = ", ".join(f"{name} {size:.1e}" for name, size in weights.items())
    given = f"`data` has entries up to {tokens:.1e}, `weights` up to {sizes}"
    raise InputError(message(f"{what} is beyond float64: {given}.", "smaller tokens or weights"))


def _by_gradients(mine: Outputs, theirs: Outputs, block: int) -> Array:
    """Inner products of gradients, made for a block of sequences at a time."""
    queries = mine.rows["y"].shape[-1] if "y" in mine.rows else 1
    size = even(mine.n, block // (2 * mine.size * queries))
    found: list[list[Any]] = []
    for i in range(0, mine.n, size):
        left = mine.jacobian(slice(i, i + size))
        found.append([])
        for j in range(0, theirs.n, size):
            if mine is theirs and j < i:  # the kernel is symmetric
                found[-1].append(found[j // size][i // size].T)
                continue
            right = left if mine is theirs and j == i else theirs.jacobian(slice(j, j + size))
            found[-1].append(left @ right.T)
    return np.block(found)


def ntk_eigenvalues(
    data: Tokens | Sequences, weights: Weights, model: Model = None, *, head: HeadLike = "linear", block: int = BLOCK
) -> Array:
    """Eigenvalues of the tangent kernel, ascending, as `ntk` has it; 0 where they are rounding.

    The least one is how fast the slowest part of the errors is learned, `2 / largest` the step beyond which squared
    errors grow. Those below `n eps` of the largest are not told from 0 in float64.

    >>> import attnlab as al
    >>> data = al.Sequences.of_vectors([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [1.0, 2.0, 3.0])  # two are the same
    >>> ntk_eigenvalues(data, {"W_V": [[1.0, 1.0]], "w_O": [1.0]}, al.models.FullyConnected(1)).round(6).tolist()
    [0.0, 1.267949, 4.732051]
    """
    values = np.linalg.eigvalsh(ntk(data, weights, model, head=head, block=block)).astype(np.float64)
    return np.where(values > len(values) * np.finfo(np.float64).eps * values[-1], values, 0.0)


def kernel_distance(a: ArrayLike, b: ArrayLike) -> Any:
    """`1 - <a, b> / (|a| |b|)`: 0 for proportional kernels, at most 1 for positive semidefinite ones.

    >>> float(kernel_distance(np.eye(2), np.diag([1.0, 0.0])))
    0.2928932188134524
    """
    kernels = finite_array("a", a), finite_array("b", b)
    for name, kernel in zip("ab", kernels, strict=True):
        if kernel.ndim < 2 or not kernel.size or not kernel.any((-2, -1)).all():
            shape = f"has shape {kernel.shape}" if kernel.ndim < 2 or not kernel.size else "is all zeros"
            raise InputError(message(f"`{name}` {shape}; wanted a kernel, or a stack of them, that is not zero."))
    return misalignment(*kernels)


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """The eigenvalue of largest magnitude of a Hessian.

    Attributes:
        value: that eigenvalue, with its sign.
        residual: |H v - value v| for the unit vector v that was found; some eigenvalue is within this of `value`.
        products: Hessian products that it took.
    """

    value: float
    residual: float
    products: int

    @property
    def norm(self) -> float:
        """Spectral norm of the Hessian."""
        return abs(self.value)


@in_float64
def hessian_norm(
    data: Tokens | Sequences,
    weights: Weights,
    model: Model = None,
    *,
    sequence: int = 0,
    query: int = 0,
    head: HeadLike = "linear",
    tolerance: float = 1e-4,
    seed: int = 0,
) -> Curvature:
    """The spectral norm of the Hessian of one output by all trained parameters (Theorem 3 of *On the Convergence of
    Encoder-only Shallow Transformers*), by Lanczos iterations on Hessian products.

    Args:
        data, weights, model, head: as for `ntk`.
        sequence, query: which output.
        tolerance: relative, of the eigenvalue.
        seed: of the vector that the iteration starts from.

    >>> import attnlab as al
    >>> data, model = al.data.gaussian_sequences(1, 3, 4), al.models.Encoder(64, scaling="linear", init="ntk")
    >>> found = hessian_norm(data, model.initial(data), model)
    >>> bool(0 < found.norm < 1 and found.residual < 1e-3 * found.norm)
    True
    """
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    maps = Outputs.of(data, weights, model, head)
    queries = maps.rows["y"].shape[-1] if "y" in maps.rows else 1
    for name, value, count in (("sequence", sequence, maps.n), ("query", query, queries)):
        whole(name, value, 0, count - 1)
    tolerance, seed = number("tolerance", tolerance, least=0, below=1), whole("seed", seed, 0)
    row = jax.tree.map(lambda a: a[sequence], maps.rows)
    size, products = maps.size, 0

    def times(vector: Array) -> Array:
        nonlocal products
        products += 1
        found = np.asarray(_product(maps.function, maps.params, row, maps.fixed, query, np.ravel(vector)))
        _check_result("A product with the Hessian", found, maps)
        return found

    if size <= DENSE:
        dense = np.stack([times(e) for e in np.eye(size)])
        values, vectors = np.linalg.eigh(0.5 * (dense + dense.T))
        best = int(np.abs(values).argmax())
        value, vector = values[best], vectors[:, best]
    else:
        operator = LinearOperator((size, size), matvec=times, dtype=np.float64)  # type: ignore[call-arg]
        start = np.random.default_rng(seed).standard_normal(size)
        try:
            values, vectors = eigsh(operator, k=1, which="LM", tol=tolerance, v0=start)  # type: ignore[arg-type]
            value, vector = values[0], vectors[:, 0]
        except ArpackError:  # no convergence, or no curvature at all
            value, vector = _by_powers(times, start)
    with np.errstate(over="ignore", invalid="ignore"):
        left = times(vector) - value * vector
        residual = length(left)
    _check_result("The Hessian", np.array([value, residual]), maps)
    return Curvature(value=float(value), residual=residual, products=products)


def _by_powers(times: Any, vector: Array, steps: int = 200) -> tuple[float, Array]:
    """The same by powers of the squared Hessian, which an eigenvalue and its negative do not disturb."""
    for _ in range(steps):
        vector = times(times(vector))
        size = np.linalg.norm(vector)
        if size == 0:
            return 0.0, vector
        vector = vector / size
    # In the span of v and H v both signs are told apart.
    basis, _ = np.linalg.qr(np.stack([vector, times(vector)], axis=1))
    small = basis.T @ np.stack([times(b) for b in basis.T], axis=1)
    values, inside = np.linalg.eigh(0.5 * (small + small.T))
    best = int(np.abs(values).argmax())
    return float(values[best]), basis @ inside[:, best]


@partial(jax.jit, static_argnums=0)
def _jacobian(function: Any, params: Any, rows: Any, fixed: Any) -> Any:
    flat, back = ravel_pytree(params)

    def one(row: Any) -> Any:
        return jax.jacrev(lambda p: function(back(p), row, fixed))(flat)

    found = jax.vmap(one)(rows)
    return found.reshape(-1, flat.size)


@partial(jax.jit, static_argnums=0)
def _product(function: Any, params: Any, row: Any, fixed: Any, query: Any, direction: Any) -> Any:
    flat, back = ravel_pytree(params)
    slope = jax.grad(lambda p: function(back(p), row, fixed)[query])
    return jax.jvp(slope, (flat,), (jnp.asarray(direction),))[1]
