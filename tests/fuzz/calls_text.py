"""Cases of texts, tokenizers and transformers that read them."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import attnlab as al
from attnlab import models
from fuzz.arrays import anything
from fuzz.calls import Call, case
from fuzz.calls_images import damaged, empty_folder
from fuzz.calls_models import EVALUATED, rule
from fuzz.scalars import choice, flag, junk, number, optional, or_junk, seed, share, small, some_of
from fuzz.source import Source
from fuzz.tabled import row

WORDS = ("good", "bad", "film", "", " ", "naïve", "\x00", "[SEP]", "a\tb", '"', "x" * 300, "1", "日本", "\ud800")
LABELS = ("0", "1", "-", "", "yes", "no", "0.5", "entailment", "nan", "1e400", "-1")


def text(src: Source) -> str:
    """A few words, some of them odd."""
    return " ".join(src.choose(WORDS) for _ in range(src.index(4)))


def texts(src: Source) -> al.data.Texts:
    """A few texts, of few classes; perhaps pairs, perhaps without labels."""
    n = src.choose((3, 1, 5))
    pairs = [f"film {i}" for i in range(n)] if src.index(2) else None
    y = None if src.rarely(4) else [src.index(3) for _ in range(n)]
    return al.data.Texts(texts=[f"good {src.choose(WORDS[:3])}" for _ in range(n)], pairs=pairs, y=y)


@case("data.Texts", weight=8)
def make_texts(src: Source) -> Call:
    n = src.choose((2, 1, 3))
    plain = [text(src) for _ in range(n)]
    given: Any = src.choose((plain, tuple(plain), np.array(plain), "ab", [1, 2], [None], [], {}, 5))
    kwargs: dict[str, Any] = {"texts": plain if src.index(3) else given}
    kwargs |= some_of(
        src,
        {
            "pairs": lambda src: src.choose((plain, [text(src)], None, "ab", 3)),
            "y": lambda src: [src.index(3) for _ in range(n)] if src.index(2) else anything(src, (n,)),
            "names": lambda src: src.choose((["a", "b", "c"], ["a"], "abc", [], [1], None, {"a": 1})),
            "info": lambda src: src.choose((None, {}, {"dropped": {"x": 1}}, [], 3)),
        },
    )
    return Call(al.data.Texts, (), kwargs)


@case("data.Texts.take", weight=4)
def take(src: Source) -> Call:
    data = texts(src)
    which = src.choose((1, 2, data.n, data.n + 1, [0], [0, -1], [9])) if src.index(6) else junk(src)
    return Call(data.take, (which,), some_of(src, {"seed": seed, "balanced": flag}))


def is_partition(call: Call, found: Any) -> str | None:
    data = call.facts["texts"]
    together = sorted(found[0].texts + found[1].texts)
    return None if together == sorted(data.texts) else "the parts are not the whole"


@case("data.Texts.split", weight=4, judge=is_partition)
def split(src: Source) -> Call:
    data = texts(src)
    test = or_junk(lambda src: src.choose((1, 2, 0.5, 0.01, 0.99, 5)))(src)
    return Call(data.split, (test,), some_of(src, {"seed": seed}), {"texts": data})


@cache
def tokenizer() -> al.data.Tokenizer:
    return al.data.Tokenizer.of_words(["good", "bad", "film", "1", "2"])


length = or_junk(lambda src: src.choose((6, 8, 3, 20)))


@case("data.Texts.encode", weight=3, covers=("data.Tokenizer.encode", "data.Tokenizer"))
def encode(src: Source) -> Call:
    if src.rarely(4):
        given = [text(src) for _ in range(src.choose((2, 1)))]
        pairs = src.choose((None, given, ["a"], 3, [1, 2]))
        return Call(
            tokenizer().encode, (src.choose((given, given, 5, [None], [])), pairs), some_of(src, {"length": length})
        )
    return Call(texts(src).encode, (junk(src) if src.rarely(8) else tokenizer(),), some_of(src, {"length": length}))


@case("data.Tokenizer.tokens", weight=2)
def tokens(src: Source) -> Call:
    return Call(tokenizer().tokens, (src.choose(([[0, 1], [2, 3]], [4], 5, [], junk(src), anything(src, (2, 2)))),))


@case("data.Tokenizer.of_words", weight=2, covers=("data.Tokenizer.of_texts",))
def of_words(src: Source) -> Call:
    if src.index(2):
        kwargs = some_of(src, {"lower": flag, "most": or_junk(lambda src: src.choose((1, 3, 100)))})
        return Call(al.data.Tokenizer.of_texts, (junk(src) if src.rarely(4) else texts(src),), kwargs)
    words = src.choose((["a", "b"], [text(src)], "abc", [], [1], None, 5, {"a": 1}, ["a", "a"], ["[CLS]"]))
    return Call(al.data.Tokenizer.of_words, (words,), some_of(src, {"lower": flag}))


row(
    "data.made_up_texts",
    or_junk(lambda src: src.choose((5, 1, 30))),
    options={"kind": choice("sentiment", "inference"), "noise": share, "seed": seed},
    weight=2,
)


@case("data.read_texts", weight=6)
def read(src: Source) -> Call:
    folder = empty_folder(src)
    rows = [(text(src), src.choose(LABELS)) for _ in range(src.index(5))]
    form = src.choose(("tsv", "csv", "jsonl", "txt", "json", "xyz"))
    if form in ("jsonl", "json"):
        objects = [json.dumps({"text": one, "label": label}) for one, label in rows]
        content = "\n".join(objects) if src.index(2) else f"[{','.join(objects)}]"
    else:
        head = src.choose(("text{}label\n", "", "sentence{}label\n", "a{}b\n")).format("," if form == "csv" else "\t")
        content = head + "\n".join(("," if form == "csv" else "\t").join(row) for row in rows)
    encoding = src.choose(("utf-8", "utf-16", "latin-1"))
    path = folder / f"a.{form}"
    path.write_bytes(damaged(src, content.encode(encoding, errors="replace")))
    column = or_junk(lambda src: src.choose((0, 1, "text", "label", "a", 7, False)))
    options = {
        "text": column,
        "pair": optional(column),
        "label": column,
        "classes": lambda src: src.choose((None, ["0", "1"], ["yes", "no"], [], "ab", [1, 0], ["a", "a"])),
        "threshold": optional(number),
        "form": choice("tsv", "csv", "jsonl", "lines"),
        "header": optional(flag),
        "encoding": lambda src: src.choose((encoding, "utf-8", "klingon", 5, None, "latin-1")),
        "lower": flag,
    }
    return Call(al.data.read_texts, (junk(src) if src.rarely(20) else path,), some_of(src, options))


# Models.


def active(src: Source) -> Any:
    return src.choose((None, 1, 0, 2, ((0,),), ((0,), (1, 0)), (((), ())), ((5,), (0,)), [[0], [0]], "all", True, 3.5))


SETTINGS = {
    "dim": or_junk(lambda src: src.choose((4, 8))),
    "depth": small,
    "heads": or_junk(lambda src: src.choose((1, 2, 3))),
    "mlp": small,
    "positions": or_junk(lambda src: src.choose((5, 64))),
    "dropout": share,
    "activation": choice("gelu", "gelu_tanh", "relu"),
    "eps": share,
    "active": active,
    "fixed": lambda src: src.choose((None, {}, 3, "x")),
}
SIZES = (or_junk(lambda src: src.choose((3, None, 2))), or_junk(lambda src: src.choose((9, 1, 30000))))
row(
    "models.Bert",
    *SIZES,
    options=SETTINGS | {"pool": choice("first", "mean", "last"), "segments": small, "pooler": flag},
    weight=2,
)
row("models.Gpt2", *SIZES, options=SETTINGS | {"pool": choice("last", "mean", "first")}, weight=2)

SMALL = {"vocabulary": 9, "dim": 4, "depth": 2, "heads": 2, "mlp": 3, "positions": 4}
READERS = (
    models.Bert(classes=3, **SMALL),
    models.Bert(classes=None, **SMALL, pool="mean", segments=0, active=1),
    models.Gpt2(classes=3, **SMALL),
)
METHODS = (*EVALUATED, "initial", "states", "freeze", "whole")


def read_data(src: Source, model: Any) -> Any:
    """Three tokens of two texts; labels of classes, or numbers."""
    ids = [[src.index(9) for _ in range(3)] for _ in range(2)]
    mask = src.choose((None, [[1, 1, 0], [0, 1, 1]], [[1, 1, 1], [1, 0, 0]]))
    segments = src.choose((None, [[0, 1, 1], [0, 0, 1]], [[0, 0, 2], [0, 0, 0]]))
    y = src.choose(([0, 1], [2, 2], [0, 3], [0.5, -1.0]))
    return al.Sequences(ids=ids, mask=mask, segments=segments, y=y)


@case(
    "models.Bert.outputs",
    weight=0.1,
    covers=tuple(f"models.{kind}.{name}" for kind in ("Bert", "Gpt2") for name in METHODS),
)
def text_methods(src: Source) -> Call:
    model = src.choose(READERS)
    data = read_data(src, model)
    name = src.choose(METHODS)
    given = junk(src) if src.rarely(25) else data
    if name == "initial":
        return Call(model.initial, (given,), {"seed": seed(src)})
    drawn: Any = model.initial(al.Sequences(ids=[[0, 1, 2]] * 2, y=[0, 1]), seed=src.index(3))
    if src.rarely(2):
        which = src.choose(tuple(drawn))
        drawn = drawn | {which: anything(src, drawn[which].shape)}
    if src.rarely(20):
        drawn = src.choose((None, {}, 3, drawn | {"x": 1}))
    if name == "whole":
        return Call(model.whole, (drawn,))
    if name == "freeze":
        parts = tuple(
            src.choose(("body", "embeddings", 0, 1, "head", "pooler", 7, None, 0.5)) for _ in range(src.index(4))
        )
        return Call(model.freeze, (drawn, *parts))
    if name == "states":
        layers = {"layers": lambda src: src.choose((None, [0], [1, 0], [5], [], "a", 1))}
        return Call(model.states, (given, drawn), some_of(src, layers | {"precision": choice("float64", "float32")}))
    args = (given, drawn, drawn) if name == "hessian_product" else (given, drawn)
    wants_loss = name in ("loss", "gradient", "hessian", "hessian_product")
    loss = choice("cross_entropy", "half_sum", "logistic")
    return Call(getattr(model, name), args, {"loss": loss(src)} if wants_loss else {})


@case("train.descend: texts", weight=0.06)
def descend_on_texts(src: Source) -> Call:
    model = src.choose(READERS)
    kwargs: dict[str, Any] = {"model": model, "batch": src.choose((1, 2)), "record": None, "steps": 2}
    if model.classes is None:
        kwargs["loss"] = "mse_mean"
    return Call(
        al.descend, (read_data(src, model), rule(src)), kwargs | {"precision": src.choose(("float64", "float32"))}
    )


@cache
def folder_of_models() -> Path:
    """One for all calls of a process; gone with its temporary folder."""
    keeper = tempfile.TemporaryDirectory(prefix="attnlab-fuzz-")
    _KEPT.append(keeper)
    return Path(keeper.name)


_KEPT: list[Any] = []


@cache
def checkpoint(kind: str) -> dict[str, bytes]:
    """Files of a tiny model."""
    from safetensors.numpy import save

    model: Any = READERS[2] if kind == "gpt2" else READERS[0]
    d, m, V, P = model.dim, model.mlp, model.vocabulary, model.positions
    sizes = {
        "n_embd": d,
        "n_layer": 1,
        "n_head": 2,
        "n_inner": m,
        "n_positions": P,
        "vocab_size": V,
        "model_type": kind,
    }
    rng = np.random.default_rng(0)
    shapes = {
        "wte.weight": (V, d),
        "wpe.weight": (P, d),
        "h.0.attn.c_attn.weight": (d, 3 * d),
        "h.0.attn.c_attn.bias": (3 * d,),
        "h.0.attn.c_proj.weight": (d, d),
        "h.0.attn.c_proj.bias": (d,),
        "h.0.mlp.c_fc.weight": (d, m),
        "h.0.mlp.c_fc.bias": (m,),
        "h.0.mlp.c_proj.weight": (m, d),
        "h.0.mlp.c_proj.bias": (d,),
    }
    for name in ("ln_f", "h.0.ln_1", "h.0.ln_2"):
        shapes |= {f"{name}.weight": (d,), f"{name}.bias": (d,)}
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {"config.json": json.dumps(sizes).encode(), "model.safetensors": save(tensors)}


@case("models.Gpt2.load", weight=2, covers=("models.Bert.load", "data.Tokenizer.load"))
def load(src: Source) -> Call:
    """Never a name on the hub, which would be downloaded."""
    folder = folder_of_models()
    for path in folder.iterdir():
        path.unlink()
    for name, content in checkpoint("gpt2").items():
        (folder / name).write_bytes(damaged(src, content))
    if src.index(2):
        (folder / "tokenizer.json").write_bytes(damaged(src, tokenizer()._inner.to_str().encode()))
    where = src.choose((5, "", b"x", object(), "a\0", "../none", "/dev/null")) if src.rarely(10) else folder
    function = src.choose((models.Gpt2.load, models.Gpt2.load, models.Bert.load, al.data.Tokenizer.load))
    if function == al.data.Tokenizer.load:
        return Call(function, (where,))
    options = {
        "classes": SIZES[0],
        "pool": choice("last", "mean", "first"),
        "dropout": share,
        "active": active,
        "frozen": lambda src: src.choose(((), ("body",), (0,), ("x",), 5, "body", None)),
        "seed": seed,
    }
    return Call(function, (where,), some_of(src, options))
