"""CIFAR-10's Python batches, read without unpickling: no name in the file is imported, nothing in it is called.

Such a batch is a pickle of a dict: `data`, an array of bytes (n, 3072), `labels`, a list of numbers, and two more
entries that are not needed. The few instructions of the pickle language that write this are followed here on plain
values; an array is rebuilt from its shape and bytes by us. Every other instruction, or name, is refused.
"""

from __future__ import annotations

import io
import pickletools
import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from attnlab.errors import InputError, message

ROW = 3072  # bytes of an image: 32 x 32 red, then green, then blue
WANTED = f"a pickle of a dict with `data`, bytes of shape (n, {ROW}), and `labels`, n numbers from 0 to 9"
# Names by which NumPy's pickles, old and new, say "an array", "its type" and "bytes that were text".
RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
ARRAY, TYPE, ENCODE = "numpy ndarray", "numpy dtype", "_codecs encode"
BYTE = ("u1", "|u1", "uint8")
LATIN = ("latin1", "latin-1")

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1")
TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES")
OLD_TEXTS = ("BINSTRING", "SHORT_BINSTRING")  # of Python 2: bytes
WITHOUT_EFFECT = ("PROTO", "FRAME")


class _Foreign(Exception):
    """The pickle says something that no batch of CIFAR-10 says."""


@dataclass(frozen=True)
class _Name:
    """A name of a module, which stays a name."""

    text: str


@dataclass(frozen=True)
class _Type:
    """The type of an array, as NumPy spells it."""

    text: str


@dataclass
class _Bytes:
    """An array that is being rebuilt; None before its content is known."""

    array: np.ndarray | None = None


def read_batch(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Images, bytes (n, 3072), and labels, (n,), of the content of a Python batch; `where` names it in messages."""
    try:
        with warnings.catch_warnings():  # of odd text in a file that is refused anyway
            warnings.simplefilter("ignore")
            held = _Machine().run(content)
        return _checked(held)
    except _Foreign as error:
        _refuse(where, str(error), error)
    except Exception as error:  # damaged files raise whatever they like
        _refuse(where, "it is cut off or damaged", error)


def _refuse(where: str, why: str, error: Exception) -> NoReturn:
    raise InputError(message(f"`{where}` is no Python batch of CIFAR-10 ({why}); wanted {WANTED}.")) from error


def _checked(held: Any) -> tuple[np.ndarray, np.ndarray]:
    """The two entries that are needed, if they are what they should be."""
    if not isinstance(held, dict):
        raise _Foreign(f"it holds {type(held).__name__.strip('_')}, and no dict")
    entries = {_text(name): value for name, value in held.items()}
    missing = [name for name in ("data", "labels") if name not in entries]
    if missing:
        raise _Foreign(f"it lacks {' and '.join(missing)}; it holds {', '.join(sorted(entries)) or 'nothing'}")
    data, labels = entries["data"], entries["labels"]
    rows = data.array if isinstance(data, _Bytes) else None
    if rows is None or rows.ndim != 2 or rows.shape[1] != ROW or not len(rows):
        raise _Foreign("its data is no array" if rows is None else f"its data has shape {rows.shape}")
    if not isinstance(labels, list) or not all(type(one) is int and 0 <= one <= 9 for one in labels):
        raise _Foreign("its labels are no list of numbers from 0 to 9")
    if len(labels) != len(rows):
        raise _Foreign(f"it has {len(rows)} images and {len(labels)} labels")
    return rows, np.array(labels, dtype=np.uint8)


class _Machine:
    """The stack on which a pickle builds its value."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # what lies under each mark
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """The value of a pickle, all of `content`."""
        if content[:1] != b"\x80":
            raise _Foreign("it does not begin as a pickle of protocol 2 or later")
        stream = io.BytesIO(content)
        for code, argument, _ in pickletools.genops(stream):
            self._step(code.name, argument)
        if stream.read(1):
            raise _Foreign("it goes on after its end")
        if self.below or len(self.stack) != 1:
            raise _Foreign("it leaves other than one value")
        return self.stack[0]

    def _step(self, code: str, argument: Any) -> None:
        if code in WITHOUT_EFFECT or code == "STOP":
            return
        if code in CONSTANTS:
            self.stack.append(CONSTANTS[code])
        elif code in NUMBERS or code in TEXTS:
            self.stack.append(argument)
        elif code in OLD_TEXTS:
            self.stack.append(argument.encode("latin-1"))
        elif code == "GLOBAL":
            self.stack.append(_name(argument))
        else:
            step = getattr(self, f"_{code.lower()}", None)
            if step is None:
                raise _Foreign(f"it says {code}")
            step(argument)

    def _empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def _empty_list(self, _: Any) -> None:
        self.stack.append([])

    def _mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _to_mark(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        above, self.stack = self.stack, self.below.pop()
        return above

    def _last(self, many: int) -> tuple[Any, ...]:
        if len(self.stack) < many:
            raise _Foreign("it takes more from its stack than there is")
        taken = self.stack[len(self.stack) - many :]
        del self.stack[len(self.stack) - many :]
        return tuple(taken)

    def _tuple(self, _: Any) -> None:
        values = tuple(self._to_mark())  # first: it changes which stack is on top
        self.stack.append(values)

    def _tuple1(self, _: Any) -> None:
        self.stack.append(self._last(1))

    def _tuple2(self, _: Any) -> None:
        self.stack.append(self._last(2))

    def _tuple3(self, _: Any) -> None:
        self.stack.append(self._last(3))

    def _append(self, _: Any) -> None:
        self._extend(self._last(1))

    def _appends(self, _: Any) -> None:
        self._extend(self._to_mark())

    def _extend(self, values: Any) -> None:
        _as_a(list, self.stack[-1]).extend(values)

    def _setitem(self, _: Any) -> None:
        self._put(self._last(2))

    def _setitems(self, _: Any) -> None:
        self._put(self._to_mark())

    def _put(self, pairs: Any) -> None:
        """Names and values, one after the other, into the dict on top."""
        target = _as_a(dict, self.stack[-1])
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            target[_text(name)] = value

    def _binput(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    _long_binput = _binput

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _binget(self, place: int) -> None:
        self.stack.append(self.memo[place])

    _long_binget = _binget

    def _stack_global(self, _: Any) -> None:
        module, name = self._last(2)
        self.stack.append(_name(f"{module} {name}"))

    def _reduce(self, _: Any) -> None:
        """What the pickle wants called: one of three things that we do ourselves, on plain values."""
        function, arguments = self._last(2)
        self.stack.append(_called(_as_a(_Name, function).text, _as_a(tuple, arguments)))

    def _build(self, _: Any) -> None:
        """The content of an array; that of its type says nothing more than its name does."""
        (state,) = self._last(1)
        if isinstance(self.stack[-1], _Type):
            return
        target = _as_a(_Bytes, self.stack[-1])
        target.array = _array(_as_a(tuple, state))


def _name(text: str) -> _Name:
    if text not in (*RECONSTRUCT, ARRAY, TYPE, ENCODE):
        raise _Foreign(f"it names `{text.replace(' ', '.')}`, which loading would run")
    return _Name(text)


def _called(name: str, arguments: tuple[Any, ...]) -> Any:
    if name in RECONSTRUCT:
        return _Bytes()
    if name == TYPE:
        return _Type(_text(arguments[0]))
    if name == ENCODE and len(arguments) == 2 and _text(arguments[1]) in LATIN:
        return _as_a(str, arguments[0]).encode("latin-1")
    raise _Foreign(f"it calls `{name.replace(' ', '.')}` in another way than arrays do")


def _array(state: tuple[Any, ...]) -> np.ndarray:
    """An array of bytes from NumPy's state: version, shape, type, whether columns come first, content."""
    _, shape, kind, columns_first, content = state
    if _as_a(_Type, kind).text not in BYTE:
        raise _Foreign(f"it has an array of type {kind.text}")
    flat = np.frombuffer(_as_a(bytes, content), np.uint8)
    return flat.reshape(_as_a(tuple, shape), order="F" if columns_first else "C")


def _as_a(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        given, wanted = (one.__name__.strip("_") for one in (type(value), kind))
        raise _Foreign(f"it has {given} where {wanted} is wanted")
    return value


def _text(value: Any) -> str:
    """Text, also that of Python 2."""
    return value.decode("latin-1") if isinstance(value, bytes) else _as_a(str, value)
