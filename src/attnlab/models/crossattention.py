"""`CrossAttention`: `softmax(Z W^T X^T) X V`, Eq. (1) of *Transformers as Support Vector Machines*, and its head.

For sequence i and query k: `o_ik = V^T x_i^T softmax(x_i W z_ik)`, a vector, and the output `h_k(o_ik)`. The paper has
the value matrix V in a fixed head h. Here V may be trained, and so may heads and a query that all sequences share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attnlab.checks import no_batch, one_of, shown, whole
from attnlab.data.families import Seed
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Tokens
from attnlab.errors import InputError, message
from attnlab.models.functions import check_head, told_as
from attnlab.models.heads import Head, HeadLike, Linear, as_head
from attnlab.models.headtokens import HeadTokens
from attnlab.models.model import Data, Init, Model, Weight, Weights
from attnlab.models.powers import check_range
from attnlab.models.precision import in_float64
from attnlab.models.problem import Example
from attnlab.models.scaled import GivenWeights, Params
from attnlab.models.softmax import softmax
from attnlab.models.trainedheads import TrainedHead, TrainedLinear, check_trained, weights_of

AnyHead = HeadLike | TrainedHead
MOST_COLUMNS = 10**7
OWN_NAMES = ("W", "K", "Q", "V", "p")  # of weights that are not a head's


class CrossAttention(Model[Data]):
    """`h(V^T x^T softmax(x W z))` with every part trained, frozen or left out.

    Args:
        parameterization: "W"; "KQ" for W = K Q^T; None for logits `x . z` without weights, which needs a trained query.
        width: m, columns of K and Q (default d).
        values: columns of V: a number, "square" for d, or None for no value matrix.
        query: "data" takes the z of `al.Tokens`, "first" the first token of each sequence, "trained" a weight p that
            all sequences share (prompt attention), one for each of K queries where the data have so many.
        head: "linear" (v of the tokens), "relu-sum", a head of `attnlab.models` or a function: fixed.
            `TrainedLinear()`, `TrainedMlp(8)` or a `TrainedHead` of your own: trained. A tuple of K such: one for each
            query. None: none, the output is the vector itself, one number for each class.
        frozen: names of weights that keep their start, as ("V",).

    Weights are W (d, d), or K and Q (d, m); V (d, columns); p (d,) or (K, d); those of the head, of a tuple with the
    number of the query after their names, as u0, u1. `init` may leave some out: they are drawn.

    >>> import attnlab as al
    >>> tokens = al.data.sphere(n=4, T=5, d=8, seed=0)
    >>> run = al.descend(tokens, al.joint_separate(0.1), model=CrossAttention(), steps=1000)
    >>> sorted(run.weights), bool(run.metrics["top_attention"][-1] > 0.99)
    (['V', 'W'], True)
    """

    parameterization: Literal["W", "KQ"] | None = "W"
    width: int | None = None
    values: int | Literal["square"] | None = "square"
    query: Literal["data", "first", "trained"] = "data"
    head: AnyHead | tuple[AnyHead, ...] | None = "linear"
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one_of("parameterization", self.parameterization, ("W", "KQ", None))
        one_of("query", self.query, ("data", "first", "trained"))
        if self.parameterization is None and self.query != "trained":
            raise InputError(message("`parameterization=None` has no attention weights to train.", "query='trained'"))
        if self.width is not None:
            object.__setattr__(self, "width", whole("width", self.width, most=MOST_COLUMNS))
            if self.parameterization != "KQ":
                raise InputError(message("`width` is that of K and Q; there are none.", "parameterization='KQ'"))
        if isinstance(self.values, str):
            one_of("values", self.values, ("square", None))
        elif self.values is not None:
            object.__setattr__(self, "values", whole("values", self.values, most=MOST_COLUMNS))
        object.__setattr__(self, "head", _checked_head(self.head))
        if isinstance(self.frozen, str) or not all(isinstance(name, str) for name in self.frozen):
            raise InputError(message(f"`frozen` is {shown(self.frozen)}; wanted names of weights.", 'frozen=("V",)'))
        object.__setattr__(self, "frozen", tuple(self.frozen))

    @property
    def heads(self) -> tuple[Head | TrainedHead, ...]:
        """All heads as objects: one, or one for each query; none where the output is the vector."""
        if self.head is None:
            return ()
        return cast(Any, self.head if isinstance(self.head, tuple) else (self.head,))

    @property
    def usual_loss(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Vectors are classes."""
        return "cross_entropy" if self.head is None else "logistic"

    @property
    def floor_is_known(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Without trained values or heads outputs are bounded, and so is the loss from below."""
        free = self.values is not None and "V" not in self.frozen
        return free or any(isinstance(head, TrainedHead) for head in self.heads)

    # Data and weights, with NumPy.

    def accepts(self, data: object, name: str = "data") -> Data:
        """Tokens; or sequences, where they ask for nothing that these lack."""
        given = super().accepts(data, name)
        if isinstance(given, Sequences):
            self._refuse_sequences(given, name)
        else:
            self._refuse_tokens(given, name)
        self._refuse_frozen(given)
        for head in self.heads:
            if isinstance(head, TrainedHead):
                check_trained(head, self.columns(given))
            elif isinstance(given, Tokens):
                check_head(given, head)
        return given

    def _refuse_sequences(self, data: Sequences, name: str) -> None:
        if self.query == "data":
            problem = f"`query='data'` takes the z of al.Tokens; `{name}` is {data!r}."
            raise InputError(message(problem, "query='first' or query='trained'"))
        if isinstance(self.head, tuple):
            raise InputError(message(f"`head` is a tuple, one for each query; `{name}` is {data!r}, of one query."))
        if any(isinstance(head, Head) for head in self.heads):
            problem = f"`head` is fixed, for labels +1 and -1 of al.Tokens; `{name}` is {data!r}."
            raise InputError(message(problem, "head=None for classes, or head=al.models.TrainedLinear()"))

    def _refuse_tokens(self, data: Tokens, name: str) -> None:
        if self.head is None:
            problem = f"`head=None` puts out a vector, one number for each class; `{name}` has labels +1 and -1."
            raise InputError(message(problem, "al.Sequences(x=, y=classes) with query='first' or 'trained'"))
        if self.query == "data":
            check_range(f"{name}.z", data.z, 1)
        if self.query == "first" and data.K is not None:
            raise InputError(message(f"`query='first'` asks once; `{name}` has {data.K} queries.", "query='data'"))
        if isinstance(self.head, tuple) and len(self.head) != data.K:
            queries = "one query without an axis" if data.K is None else f"{data.K} queries"
            raise InputError(message(f"`head` has {len(self.head)} heads, one for each query; `{name}` has {queries}."))
        for head in self.heads:
            if isinstance(head, Linear) and data.v is None:
                problem = f"`head='linear'` needs `v`, which `{name}` lacks."
                raise InputError(message(problem, "Tokens(..., v=), or head=al.models.TrainedLinear()"))
            if isinstance(head, Head) and self.columns(data) != data.d:
                problem = f"`head` is made for tokens of {data.d} numbers; `values` gives {self.columns(data)}."
                raise InputError(message(problem, "values='square', or head=al.models.TrainedLinear()"))

    def _refuse_frozen(self, data: Data) -> None:
        named = self._all_shapes(data)
        for name in self.frozen:
            if name not in named:
                raise InputError(message(f"`frozen` names {name!r}; the weights are {', '.join(named)}."))
        if not set(named) - set(self.frozen):
            raise InputError(message(f"`frozen` is {self.frozen}, all there is: nothing would be trained."))

    def columns(self, data: Data) -> int:
        """Numbers of the vector that attention puts out."""
        return self.values if isinstance(self.values, int) else data.d

    def shapes(self, data: Data) -> dict[str, Weight]:
        """W or K and Q, V, p, and those of heads; less trained where `frozen` says so."""
        every = self._all_shapes(data)
        return {name: replace(weight, trained=name not in self.frozen) for name, weight in every.items()}

    def _all_shapes(self, data: Data) -> dict[str, Weight]:
        d = data.d
        shapes: dict[str, Weight] = {}
        if self.parameterization == "W":
            shapes["W"] = Weight((d, d), "uniform")
        elif self.parameterization == "KQ":
            columns = d if self.width is None else self.width
            shapes |= {"K": Weight((d, columns), "uniform"), "Q": Weight((d, columns), "uniform")}
        if self.values is not None:
            shapes["V"] = Weight((d, self.columns(data)), "lecun")
        if self.query == "trained":
            queries = data.K if isinstance(data, Tokens) else None
            shapes["p"] = Weight((d,) if queries is None else (queries, d), "lecun")
        for number, head in enumerate(self.heads):
            if isinstance(head, TrainedHead):
                own = weights_of(head, self.columns(data))
                shapes |= self._named_apart({self._name(name, number): w for name, w in own.items()}, shapes)
        return shapes

    def _named_apart(self, own: dict[str, Weight], others: dict[str, Weight]) -> dict[str, Weight]:
        """Weights of a head, refused where another weight has the name of one."""
        for name in own:
            if name in others or name in OWN_NAMES:
                problem = f"`head` has a weight {name!r}; a weight that is not its own has that name."
                raise InputError(message(problem, "another name in `shapes` of the head"))
        return own

    def _name(self, name: str, number: int) -> str:
        """Of a weight of one head."""
        return f"{name}{number}" if isinstance(self.head, tuple) else name

    def start(self, data: Data, init: Init, scale: float, seed: Seed) -> Weights:
        """As for every model; weights that a dict leaves out are drawn."""
        if isinstance(init, Mapping) and init:
            drawn = super().start(data, None, scale, seed)
            unknown = [name for name in init if name not in drawn]
            if unknown:
                raise InputError(message(f"`init` gives {shown(unknown[0])}; the weights are {', '.join(drawn)}."))
            init = {**drawn, **init}
        return super().start(data, init, scale, seed)

    def constants(self, data: Data, weights: Weights) -> dict[str, np.ndarray]:
        """Those of fixed heads, by the number of the head."""
        named: dict[str, np.ndarray] = {}
        for number, head in enumerate(self.heads):
            if isinstance(head, Head) and isinstance(data, Tokens):
                with told_as("head", "al.Tokens, in `constants`"):
                    own = head.constants(data)
                named |= {f"{number}_{name}": array for name, array in own.items()}
        return named

    def for_flow(self) -> CrossAttention:
        """The same with trained heads that gradient flow can follow."""
        smooth = tuple(head.for_flow() if isinstance(head, TrainedHead) else head for head in self.heads)
        if not smooth:
            return self
        return replace(self, head=smooth if isinstance(self.head, tuple) else smooth[0])

    def heads_as_tokens(self, data: Data, weights: GivenWeights) -> list[HeadTokens]:
        """The layer as `softmax(x W z)` on tokens, with `v = V u` where heads are linear, and zero where they are not.

        A trained query is no data: its logits `x (W p_k)` are those of `W P` on queries e_k, unit vectors (tokens get
        zeros where there are more queries than d). Where W is frozen, tokens are `x W`, and P is what is separated by.
        """
        accepted = self.accepts(data)
        no_batch("data", accepted)
        checked = self.check(accepted, weights)
        W = _combined(checked, accepted.d)
        x, y = accepted.x, accepted.y if isinstance(accepted, Tokens) else np.ones(accepted.n)
        scored = self._scored_by(accepted, checked)
        if self.query != "trained":
            z = accepted.z if isinstance(accepted, Tokens) and self.query == "data" else _first_tokens(accepted)
            return [HeadTokens("W", Tokens(x=x, z=z, y=y, v=scored, mask=accepted.mask), W)]
        asked = checked["p"]
        P = np.atleast_2d(asked).T  # (d, K)
        size = max(accepted.d, P.shape[1])
        if self.parameterization is None or {"W", "K", "Q"} & set(checked) <= set(self.frozen):
            x, scored = x @ W, _scored_through(W, scored)
        else:
            P = W @ P
        pad = size - accepted.d
        matrix = np.pad(P, ((0, pad), (0, size - P.shape[1])))
        z = np.broadcast_to(np.eye(size)[: P.shape[1]] if asked.ndim == 2 else np.eye(size)[0], (*y.shape, size))
        x = np.pad(x, ((0, 0), (0, 0), (0, pad)))
        tokens = Tokens(x=x, z=z, y=y, v=np.pad(scored, (0, pad)), mask=accepted.mask)
        return [HeadTokens("p", tokens, matrix)]

    def _scored_by(self, data: Data, weights: Weights) -> np.ndarray:
        """The vector by which tokens are scored, `V u`; zero where there is no one such."""
        none = np.zeros(data.d)
        if len(self.heads) != 1:
            return none
        if isinstance(self.heads[0], Linear) and isinstance(data, Tokens) and data.v is not None:
            own = data.v
        elif isinstance(self.heads[0], TrainedLinear):
            own = weights["u0" if isinstance(self.head, tuple) else "u"]
        else:
            return none
        return weights["V"] @ own if "V" in weights else own

    # On one example.

    def output(self, weights: Params, example: Example) -> Array:
        """h(o) of one example, for each of its queries; o itself without a head."""
        vectors = self._vectors(weights, example)
        if self.head is None:
            return vectors
        if not isinstance(self.head, tuple):
            return jnp.vectorize(lambda o: self._value(0, weights, example, o), signature="(c)->()")(vectors)
        each = [self._value(k, weights, example, vectors[k]) for k in range(len(self.head))]
        return jnp.stack(each)

    def _vectors(self, weights: Params, example: Example) -> Array:
        """V^T x^T softmax(x W z), (columns,) or (K, columns)."""
        z = self._asked(weights, example)
        if "W" in weights:
            z = jnp.einsum("de,...e->...d", weights["W"], z)
        elif "K" in weights:
            z = jnp.einsum("dm,em,...e->...d", weights["K"], weights["Q"], z)
        logits = jnp.einsum("td,...d->...t", example.x, z)
        if example.mask is not None:
            logits = jnp.where(example.mask, logits, -jnp.inf)
        attended = softmax(logits) @ example.x
        return attended @ weights["V"] if "V" in weights else attended

    def _asked(self, weights: Params, example: Example) -> Array:
        """The query, or all of them."""
        if self.query == "trained":
            return jnp.asarray(weights["p"])
        if self.query == "data":
            assert example.z is not None
            return example.z
        return example.x[0] if example.mask is None else example.x[jnp.argmax(example.mask)]

    def _value(self, number: int, weights: Params, example: Example, output: Array) -> Array:
        """h_k(o), one number."""
        head = self.heads[number]
        if isinstance(head, TrainedHead):
            own = {name: weights[self._name(name, number)] for name in head.shapes(output.shape[-1])}
            return head.apply(own, output)
        prefix = f"{number}_"
        every = example.constants or {}
        return head.apply({k.removeprefix(prefix): a for k, a in every.items() if k.startswith(prefix)}, output)

    @in_float64
    def vectors(self, data: Data, weights: GivenWeights) -> np.ndarray:
        """What attention puts out before the head, `softmax(Z W^T X^T) X V`: (n, columns), or (n, K, columns).

        >>> import attnlab as al
        >>> tokens = al.data.sphere(n=4, T=5, d=8, seed=0)
        >>> model = CrossAttention(values=3, head=al.models.TrainedLinear())
        >>> model.vectors(tokens, model.initial(tokens)).shape
        (4, 3)
        """
        prepared = self.at(data, weights)

        def of_all(params: Params, problem: Any) -> Array:
            examples, axes = problem.examples()
            return jax.vmap(self._vectors, (None, axes))(params, examples)

        with_trials = data.trials is not None
        return np.asarray((jax.vmap(of_all) if with_trials else of_all)(prepared.params, prepared.problem))


def _checked_head(head: Any) -> Any:
    """Head objects for what may stand for them."""
    if head is None or isinstance(head, TrainedHead):
        return head
    if isinstance(head, tuple | list):
        if not head or any(one is None or isinstance(one, tuple | list) for one in head):
            raise InputError(message(f"`head` is {shown(head)}; wanted a head for each query in a tuple."))
        return tuple(_checked_head(one) for one in head)
    return as_head(head)


def _combined(weights: Weights, d: int) -> np.ndarray:
    """W, K Q^T, or the identity."""
    if "W" in weights:
        return weights["W"]
    return weights["K"] @ weights["Q"].T if "K" in weights else np.eye(d)


def _scored_through(W: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The vector that scores tokens `x W` as v scores x; zero where there is none."""
    through = np.linalg.lstsq(W, v, rcond=None)[0]
    same = np.allclose(W @ through, v, rtol=0.0, atol=1e-9 * max(1.0, float(np.abs(v).max())))
    return through if same else np.zeros_like(v)


def _first_tokens(data: Data) -> np.ndarray:
    """The first token of every sequence that is there, (n, d)."""
    if data.mask is None:
        return data.x[:, 0]
    return data.x[np.arange(data.n), data.mask.argmax(-1)]
