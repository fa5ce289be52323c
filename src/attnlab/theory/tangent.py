"""Tangent kernel and curvature of any model: how its outputs move when its weights do.

The kernel is `K_ij = <grad f_i, grad f_j>` over all trained weights, as they are held: over every head of a group, and
over scaled weights under the parameterization "ntk".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from attnlab.checks import finite_array, instance, no_batch, number, whole
from attnlab.data.directions import misalignment
from attnlab.data.scale import length
from attnlab.data.tokens import Array
from attnlab.errors import InputError, message
from attnlab.models.attention import Attention
from attnlab.models.encoder_kernel import BLOCK, even
from attnlab.models.heads import HeadLike
from attnlab.models.losses import as_loss
from attnlab.models.model import Data, Model, Weights
from attnlab.models.precision import in_float64
from attnlab.models.problem import Objective
from attnlab.models.scaled import Params

# Up to so many weights the Hessian is made in full.
DENSE = 60


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of a model on one data set, as a function of its trained parameters.

    Attributes:
        model, weights: as they were given, checked.
        objective: JAX, hashable.
        problem: the data, as the objective takes them.
        params: the trained parameters as they are held.
        fixed: those that are not trained.
    """

    model: Model
    weights: Weights
    objective: Objective
    problem: Any
    params: Params
    fixed: Params

    @classmethod
    def of(cls, data: Any, model: Model | None, weights: Any, head: HeadLike = "linear", name: str = "data") -> Outputs:
        """Of one data set; `name` is what errors call it."""
        no_batch(name, data)
        if model is None:
            model = Attention.of_weights(weights, head)
        wanted = "an al.Model, or None for one attention layer"
        model = instance("model", model, Model, wanted, "the order is (data, model, weights)").directly()
        accepted = model.accepts(data, name)
        checked = model.check(accepted, weights)
        loss = as_loss(model.usual_loss)
        prepared = model.prepare(accepted, loss, checked, isotropic=True)
        frozen = prepared.objective.frozen
        return cls(
            model=model,
            weights=checked,
            objective=prepared.objective,
            problem=prepared.problem,
            params={name: p for name, p in prepared.params.items() if name not in frozen},
            fixed={name: prepared.params[name] for name in frozen},
        )

    @property
    def n(self) -> int:
        """Sequences."""
        return len(self.problem.x)

    @property
    def queries(self) -> int:
        """Outputs of one sequence."""
        shape = jax.eval_shape(self.objective.outputs, {**self.params, **self.fixed}, self.problem).shape
        return int(np.prod(shape[1:], dtype=int))

    @property
    def size(self) -> int:
        """Parameters."""
        return sum(p.size for p in self.params.values())

    def jacobian(self, some: slice = slice(None)) -> Array:
        """Gradients of the outputs of some sequences as rows, in the order of the sorted names of the parameters."""
        rows = {name: array[some] for name, array in self.problem.rows().items()}
        return np.asarray(_jacobian(self.objective, self.params, self.fixed, self.problem, rows))


@in_float64
def ntk(
    data: Data,
    model: Model | None,
    weights: Any,
    *,
    other: Data | None = None,
    head: HeadLike = "linear",
    block: int = BLOCK,
) -> Array:
    """The empirical tangent kernel, (n, n), or (n, n') with the sequences of `other`.

    Args:
        data: one data set, as the model takes it.
        model: any `al.Model`; None for one attention layer with weights W or K and Q.
        weights: where the gradients are taken.
        other: sequences for the columns, as those of a test set.
        head: of an attention layer.
        block: numbers that the largest array may have beside the kernel; it bounds the memory, whatever the sizes are.

    A shallow encoder never makes gradients (see `attnlab.models.encoder_kernel`); for other models they are made for a
    block of sequences at a time. With K queries per sequence there is a row for each query.

    >>> import attnlab as al
    >>> data, model = al.data.gaussian_sequences(5, 3, 4), al.models.Encoder(32)
    >>> kernel = ntk(data, model, model.initial(data))
    >>> kernel.shape, bool(np.linalg.eigvalsh(kernel)[0] > 0)
    ((5, 5), True)
    """
    block = whole("block", block)
    mine = Outputs.of(data, model, weights, head)
    theirs = mine if other is None else Outputs.of(other, model, weights, head, "other")
    if theirs.problem.x.shape[1:] != mine.problem.x.shape[1:]:
        raise InputError(message(f"`other` is {other!r}; wanted sequences with the T and d of {data!r}."))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        columns = None if mine is theirs else theirs.problem.x
        known = mine.model.tangent_kernel(mine.weights, mine.problem.x, columns, block)
        kernel = _by_gradients(mine, theirs, block) if known is None else known
    _check_result("The tangent kernel", kernel, mine)
    # To the last digit, which products of matrices do not promise.
    return 0.5 * kernel + 0.5 * kernel.T if other is None else kernel


def _check_result(what: str, result: Array, maps: Outputs) -> None:
    """Refuse what is not finite, with the sizes that it came from."""
    if np.isfinite(result).all():
        return
    tokens = float(np.abs(maps.problem.x).max())
    weights = {name: float(np.abs(p).max()) for name, p in maps.params.items()}
    sizes = ", ".join(f"{name} {size:.1e}" for name, size in weights.items())
    given = f"`data` has entries up to {tokens:.1e}, `weights` up to {sizes}"
    raise InputError(message(f"{what} is beyond float64: {given}.", "smaller tokens or weights"))


def _by_gradients(mine: Outputs, theirs: Outputs, block: int) -> Array:
    """Inner products of gradients, made for a block of sequences at a time."""
    size = even(mine.n, block // (2 * mine.size * mine.queries))
    blocks: list[list[Array]] = []
    for i in range(0, mine.n, size):
        left = mine.jacobian(slice(i, i + size))
        blocks.append([])
        for j in range(0, theirs.n, size):
            if mine is theirs and j < i:  # the kernel is symmetric
                blocks[-1].append(blocks[j // size][i // size].T)
                continue
            right = left if mine is theirs and j == i else theirs.jacobian(slice(j, j + size))
            blocks[-1].append(left @ right.T)
    return np.block(blocks)


def ntk_eigenvalues(
    data: Data, model: Model | None, weights: Any, *, head: HeadLike = "linear", block: int = BLOCK
) -> Array:
    """Eigenvalues of the tangent kernel, ascending, as `ntk` has it; 0 where they are rounding.

    The least one is how fast the slowest part of the errors is learned, `2 / largest` the step beyond which squared
    errors grow. Those below `n eps` of the largest are not told from 0 in float64.

    >>> import attnlab as al
    >>> data = al.Sequences.of_vectors([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [1.0, 2.0, 3.0])  # two are the same
    >>> ntk_eigenvalues(data, al.models.FullyConnected(1), {"W_V": [[1.0, 1.0]], "w_O": [1.0]}).round(6).tolist()
    [0.0, 1.267949, 4.732051]
    """
    values = np.linalg.eigvalsh(ntk(data, model, weights, head=head, block=block)).astype(np.float64)
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
    data: Data,
    model: Model | None,
    weights: Any,
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
        data, model, weights, head: as for `ntk`.
        sequence, query: which output.
        tolerance: relative, of the eigenvalue.
        seed: of the vector that the iteration starts from.

    >>> import attnlab as al
    >>> data, model = al.data.gaussian_sequences(1, 3, 4), al.models.Encoder(64, scaling="linear", init="ntk")
    >>> curvature = hessian_norm(data, model, model.initial(data))
    >>> bool(0 < curvature.norm < 1 and curvature.residual < 1e-3 * curvature.norm)
    True
    """
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    maps = Outputs.of(data, model, weights, head)
    for name, value, count in (("sequence", sequence, maps.n), ("query", query, maps.queries)):
        whole(name, value, 0, count - 1)
    tolerance, seed = number("tolerance", tolerance, least=0, below=1), whole("seed", seed, 0)
    row = {name: array[sequence] for name, array in maps.problem.rows().items()}
    size, products = maps.size, 0

    def times(vector: Array) -> Array:
        nonlocal products
        products += 1
        product = _product(maps.objective, maps.params, maps.fixed, maps.problem, row, query, np.ravel(vector))
        _check_result("A product with the Hessian", np.asarray(product), maps)
        return np.asarray(product)

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


def _by_powers(times: Callable[[Array], Array], vector: Array, steps: int = 200) -> tuple[float, Array]:
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


def _of_one(objective: Objective, fixed: Params, problem: Any, row: Params) -> Callable[[Params], Any]:
    """Trained parameters -> the outputs of one sequence, as a vector."""
    alone = problem.alone(row)
    return lambda params: jnp.ravel(objective.outputs({**params, **fixed}, alone)[0])


@partial(jax.jit, static_argnums=0)
def _jacobian(objective: Objective, params: Params, fixed: Params, problem: Any, rows: Params) -> Any:
    flat, back = ravel_pytree(params)

    def one(row: Params) -> Any:
        outputs = _of_one(objective, fixed, problem, row)
        return jax.jacrev(lambda p: outputs(back(p)))(flat)

    return jax.vmap(one)(rows).reshape(-1, flat.size)


@partial(jax.jit, static_argnums=0)
def _product(
    objective: Objective, params: Params, fixed: Params, problem: Any, row: Params, query: Any, direction: Any
) -> Any:
    flat, back = ravel_pytree(params)
    outputs = _of_one(objective, fixed, problem, row)
    slope = jax.grad(lambda p: outputs(back(p))[query])
    return jax.jvp(slope, (flat,), (jnp.asarray(direction),))[1]
