"""`read_texts`: texts with labels from the files in which they are published; what is left out is counted."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attnlab.checks import flag, number, one_of, shown, whole
from attnlab.data.textlabels import labels_of
from attnlab.data.texts import Texts
from attnlab.data.writing import as_path
from attnlab.errors import InputError, message

Form = Literal["tsv", "csv", "jsonl", "lines"]
FORMS: dict[str, Form] = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".txt": "lines"}
# Names of columns by which texts, second texts and labels are known, in the order in which they are looked for.
TEXT_NAMES = ("sentence", "text", "comment_text", "review", "premise", "sentence1", "question1", "content", "comment")
PAIR_NAMES = {"premise": "hypothesis", "sentence1": "sentence2", "question1": "question2"}
LABEL_NAMES = ("gold_label", "label", "toxic", "toxicity", "target", "sentiment", "is_duplicate", "class")
LONGEST_FIELD = 2**31 - 1
MOST_RAGGED = 0.5  # of the rows: more of them, and the file is of another form
BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}
Column = str | int


class Row(NamedTuple):
    """One example as it stands in a file."""

    text: str
    pair: str | None
    label: Any  # text, or what JSON has; None without labels


class Chosen(NamedTuple):
    """Which columns hold what."""

    text: Column
    pair: Column | None
    label: Column | None


def read_texts(
    path: str | os.PathLike[str],
    *,
    text: Column | None = None,
    pair: Column | None = None,
    label: Column | Literal[False] | None = None,
    classes: Sequence[str] | None = None,
    threshold: float | None = None,
    form: Form | None = None,
    header: bool | None = None,
    encoding: str = "utf-8",
    lower: bool = False,
) -> Texts:
    """Texts, or pairs of texts, with class labels, from a file: GLUE's TSV (SST-2, MNLI), JSON lines, CSV, plain lines.

    Args:
        path: the file; one that ends in .gz is unpacked.
        text, pair, label: columns, by name, or by number from 0. None looks for the usual names: sentence, text,
            comment_text, review; premise and hypothesis, sentence1 and sentence2; gold_label, label, toxic, ...
            Without a header the text is column 0 and the label column 1. `label=False` reads no labels.
        classes: names of the classes, from class 0 on; rows with another label are dropped. None takes those that are
            there: numbers in their order; entailment, neutral, contradiction in this order; others by the alphabet.
            Give the `names` of the training set when you read the test.
        threshold: for labels that are shares, as toxicity is: class 1 from this on.
        form: "tsv" (no quotes), "csv" (quotes), "jsonl", "lines"; None goes by the name of the file.
        header: does the first row name the columns? None looks whether it does.
        encoding: of the file; a byte-order mark is heeded.
        lower: put all texts into lower case.

    Returns:
        `Texts`. Empty texts, rows without a label, with a label "-" (of which raters disagreed) or too few or too many
        columns are dropped: `dropped` says how many, and why.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "dev.tsv"
    >>> _ = file.write_text("sentence\\tlabel\\na fine film\\t1\\n\\t0\\ndull\\t0\\n")
    >>> texts = read_texts(file)
    >>> texts, texts.y.tolist(), texts.dropped
    (Texts(n=2, classes=2, dev.tsv, 1 of 3 rows dropped), [1, 0], {'empty text': 1})
    """
    place = as_path("path", path, "the path of a file")
    form = _form(place, form)
    lower = flag("lower", lower)
    if header is not None:
        flag("header", header)
    if threshold is not None:
        threshold = number("threshold", threshold)
    content = _content(place, encoding)
    dropped: Counter[str] = Counter()
    labelled = label is not False and form != "lines"
    wanted = Chosen(_column("text", text), _column("pair", pair), _column("label", label) if labelled else None)
    if form == "lines":
        rows = _of_lines(content)
    elif form == "jsonl":
        rows = _of_objects(place, content, wanted, dropped, labelled=labelled)
    else:
        rows = _of_table(place, content, form, wanted, header, dropped, labelled=labelled)
    total = len(rows) + sum(dropped.values())
    rows = _with_text(rows, dropped)
    y, names = None, None
    if labelled:
        kept, y, names = labels_of([row.label for row in rows], classes, threshold, dropped)
        rows = [rows[i] for i in kept]
    if not rows:
        raise InputError(message(f"`{place}` has no text that can be read; rows dropped: {dict(dropped) or 'none'}."))
    lowered = str.lower if lower else str
    info: dict[str, Any] = {"source": place.name, "rows": total}
    info |= {"dropped": dict(dropped)} if dropped else {}
    info |= {"lower": True} if lower else {}
    return Texts(
        texts=[lowered(row.text) for row in rows],
        pairs=None if rows[0].pair is None else [lowered(row.pair or "") for row in rows],
        y=y,
        names=names,
        info=info,
    )


def _form(place: Path, form: Form | None) -> Form:
    if form is not None:
        one_of("form", form, ("tsv", "csv", "jsonl", "lines"))
        return form
    ending = Path(place.name.removesuffix(".gz")).suffix.lower()
    if ending not in FORMS:
        hint = 'form="csv", or "tsv", "jsonl", "lines"'
        raise InputError(message(f"`path` is {str(place)!r}; its ending does not tell what it is.", hint))
    return FORMS[ending]


def _column(name: str, value: Any) -> Any:
    """A name or a number of a column; None for none."""
    if value is None or (isinstance(value, str) and value):
        return value
    return whole(name, value, 0)


def _content(place: Path, encoding: str) -> str:
    """The text of a file."""
    try:
        given = place.read_bytes()
        if place.name.endswith(".gz"):
            given = gzip.decompress(given)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(message(f"`path` is {str(place)!r}, which cannot be read: {why}.")) from error
    marked = next((name for bom, name in BOMS.items() if given.startswith(bom)), None)
    try:
        return given.decode(marked or encoding)
    except LookupError as error:
        raise InputError(message(f"`encoding` is {shown(encoding)}, which is not known.", "'utf-8'")) from error
    except TypeError as error:
        raise InputError(message(f"`encoding` is {shown(encoding)}; wanted its name.", "'utf-8'")) from error
    except UnicodeDecodeError as error:
        line = given[: error.start].count(b"\n") + 1
        problem = f"`{place}` is not {marked or encoding}: line {line} has the byte 0x{given[error.start]:02x}."
        raise InputError(
            message(problem, 'encoding="latin-1" or "cp1252" reads most files of western Europe')
        ) from error


def _with_text(rows: list[Row], dropped: Counter[str]) -> list[Row]:
    """Rows whose texts are not empty."""
    kept = [row for row in rows if row.text.strip() and (row.pair is None or row.pair.strip())]
    if len(kept) < len(rows):
        dropped["empty text"] += len(rows) - len(kept)
    return kept


def _of_lines(content: str) -> list[Row]:
    """One text a line."""
    return [Row(line.removesuffix("\r"), None, None) for line in content.removesuffix("\n").split("\n")]


def _of_table(
    place: Path,
    content: str,
    form: Form,
    wanted: Chosen,
    header: bool | None,
    dropped: Counter[str],
    *,
    labelled: bool,
) -> list[Row]:
    """Rows of columns."""
    table = list(_cells(place, content, form))
    blank = sum(1 for cells in table if not any(cell.strip() for cell in cells))
    table = [cells for cells in table if any(cell.strip() for cell in cells)]
    if not table:
        raise InputError(message(f"`{place}` is empty; wanted rows of text and label."))
    if blank:
        dropped["empty line"] += blank
    names = [cell.strip() for cell in table[0]]
    if _is_header(names, wanted) if header is None else header:
        chosen = _named(place, names, wanted, labelled)
        table = table[1:]
    else:
        chosen = _numbered(place, names, wanted, labelled)
    places = [None if one is None else _place(place, names, one) for one in chosen]
    width = len(names)
    whole_rows = [cells for cells in table if len(cells) == width]
    ragged = len(table) - len(whole_rows)
    if ragged:
        dropped["wrong number of columns"] += ragged
        if ragged > MOST_RAGGED * len(table):
            problem = f"`{place}` has {ragged} of {len(table)} rows without the {width} columns of the first one."
            raise InputError(message(problem, f"read here as {form}: form= says otherwise"))
    at_text, at_pair, at_label = places
    assert at_text is not None
    return [
        Row(cells[at_text], None if at_pair is None else cells[at_pair], None if at_label is None else cells[at_label])
        for cells in whole_rows
    ]


def _cells(place: Path, content: str, form: Form) -> Iterator[list[str]]:
    """The cells of each row. A TSV of GLUE has no quotes, and no text of it a tab."""
    if form == "tsv":
        for line in content.removesuffix("\n").split("\n"):
            yield line.removesuffix("\r").split("\t")
        return
    with _long_fields():
        reader = csv.reader(io.StringIO(content, newline=""))
        try:
            yield from reader
        except csv.Error as error:
            problem = f"`{place}` is no CSV: {error}, near line {reader.line_num}."
            raise InputError(message(problem, 'form="tsv" reads columns without quotes')) from error


@contextmanager
def _long_fields() -> Iterator[None]:
    """Fields of any length, which the module csv limits for everyone."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _is_header(names: list[str], wanted: Chosen) -> bool:
    """Does a first row name columns?"""
    asked = [one for one in wanted if isinstance(one, str)]
    if asked:
        return all(one in names for one in asked)
    return any(name.lower() in TEXT_NAMES for name in names)


def _named(place: Path, names: list[str], wanted: Chosen, labelled: bool) -> Chosen:
    """The columns by the names of a header, or the keys of objects."""
    lowered = {name.lower(): name for name in names}
    text = wanted.text
    if text is None:
        text = next((lowered[name] for name in TEXT_NAMES if name in lowered), None)
        if text is None:
            raise InputError(message(f"`{place}` has columns {', '.join(names[:8])}; which is the text?", 'text="..."'))
    pair = wanted.pair
    if pair is None and wanted.text is None:
        pair = lowered.get(PAIR_NAMES.get(str(text).lower(), ""))
    if not labelled:
        return Chosen(text, pair, None)
    label = wanted.label
    if label is None:
        label = next((lowered[name] for name in LABEL_NAMES if name in lowered), None)
    if label is None:
        hint = 'label="...", or label=False to read no labels'
        raise InputError(message(f"`{place}` has columns {', '.join(names[:8])}; which is the label?", hint))
    return Chosen(text, pair, label)


def _numbered(place: Path, first: list[str], wanted: Chosen, labelled: bool) -> Chosen:
    """The columns of a file without a header."""
    for name, one in zip(("text", "pair", "label"), wanted, strict=True):
        if isinstance(one, str):
            raise InputError(
                message(f"`{name}` is {one!r}; the first row of `{place}` names no such column: {shown(first)}.")
            )
    text = 0 if wanted.text is None else wanted.text
    label = 1 if wanted.label is None else wanted.label
    return Chosen(text, wanted.pair, label if labelled else None)


def _place(place: Path, names: list[str], column: Column) -> int:
    """The number of a column."""
    if isinstance(column, str):
        if column not in names:
            raise InputError(message(f"`{place}` has no column {column!r}; it has {', '.join(names[:8])}."))
        return names.index(column)
    if column >= len(names):
        hint = "label=False reads no labels" if len(names) == 1 else None
        raise InputError(message(f"`{place}` has {len(names)} columns, from 0 on; there is no column {column}.", hint))
    return column


def _of_objects(place: Path, content: str, wanted: Chosen, dropped: Counter[str], *, labelled: bool) -> list[Row]:
    """One JSON object a line, or one list of them."""
    objects = list(_objects(place, content, dropped))
    if not objects:
        raise InputError(message(f"`{place}` is empty; wanted a JSON object in each line."))
    chosen = _named(place, list(objects[0]), wanted, labelled)
    for name, one in zip(("text", "pair", "label"), chosen, strict=True):
        if isinstance(one, int):
            raise InputError(message(f"`{name}` is {one}; objects of JSON have names.", f'{name}="..."'))
    first, second, label = (None if one is None else str(one) for one in chosen)
    assert first is not None
    rows = []
    for one in objects:
        if any(name is not None and name not in one for name in chosen):
            dropped["wrong number of columns"] += 1
            continue
        text, pair = one[first], None if second is None else one[second]
        if not isinstance(text, str) or not (second is None or isinstance(pair, str)):
            dropped["no text"] += 1
            continue
        rows.append(Row(text, pair, None if label is None else one[label]))
    return rows


def _objects(place: Path, content: str, dropped: Counter[str]) -> Iterator[dict[str, Any]]:
    if content.lstrip()[:1] == "[":
        numbered = [(1, content)]
    else:
        numbered = list(enumerate(content.removesuffix("\n").split("\n"), start=1))
    for at, line in numbered:
        if not line.strip():
            dropped["empty line"] += 1
            continue
        try:
            given = json.loads(line)
        except ValueError as error:
            raise InputError(message(f"`{place}`, line {at}, is no JSON ({error}).", "one object a line")) from error
        for one in given if isinstance(given, list) else [given]:
            if not isinstance(one, dict):
                raise InputError(message(f"`{place}`, line {at}, holds {shown(one)}; wanted an object of JSON."))
            yield one
