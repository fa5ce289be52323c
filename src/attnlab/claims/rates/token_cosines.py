"""Figure 10: cosines between the token embeddings of a text, and what the paper says of them.

*Implicit Bias and Fast Convergence Rates for Self-attention*, Appendix C.3: the first part of Assumption 1 on language.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.claim import Claim, Outcome, outcome_of_checks
from attnlab.claims.scale import Scale, Tell
from attnlab.claims.seen import Check
from attnlab.claims.texts import (
    BERT,
    NONE,
    Files,
    Reader,
    made_up_corpus,
    missing_texts,
    pretrained_reader,
    text_inputs,
    tiny_reader,
)
from attnlab.claims.verdict import Verdict
from attnlab.data.sequences import Sequences
from attnlab.data.texts import Texts
from attnlab.data.textsets import TEXT_SETS
from attnlab.data.tokens import Array

# Sets of the paper and how many texts it looks at; for comments any of two folders.
SETS = {"civil": 50_000, "mnli": 100_000}
FOLDERS = {"civil": ("civil", "toxic"), "mnli": ("mnli",)}
QUICK = 4_000
NEAR = 0.1  # cosines up to this size are called near 0
MOST = 0.5  # share of them that is called significant
LENGTH = 128
BINS = np.linspace(-1.0, 1.0, 201)
SEED = 0
RANDOM_PAIRS = 100_000


def of_text(ids: np.ndarray, directions: Array) -> tuple[Array, int]:
    """Cosines of every pair of different tokens of a text; and how many pairs of places hold one token twice.

    >>> cosines, twice = of_text(np.array([0, 1, 1]), np.array([[1.0, 0.0], [0.6, 0.8]]))
    >>> cosines.tolist(), twice
    ([0.6], 1)
    """
    different, counts = np.unique(ids, return_counts=True)
    rows = directions[different]
    cosines = (rows @ rows.T)[np.triu_indices(len(different), 1)]
    return cosines, int((counts * (counts - 1) // 2).sum())


def cosines_of(data: Sequences, directions: Array, special: frozenset[int]) -> dict[str, np.ndarray]:
    """Of every text: the share of cosines near 0, their mean and number; of all texts: counts by bin.

    Texts of fewer than two different tokens have no pair, and are left out.
    """
    assert data.ids is not None
    mask = np.ones(data.ids.shape, dtype=bool) if data.mask is None else data.mask
    counts = np.zeros(len(BINS) - 1)
    near, means, pairs, twice = [], [], [], []
    for ids, there in zip(data.ids, mask, strict=True):
        own = ids[there & ~np.isin(ids, list(special))]
        cosines, repeated = of_text(own, directions)
        if not cosines.size:
            continue
        counts += np.histogram(np.clip(cosines, -1.0, 1.0), BINS)[0]
        near.append(float((np.abs(cosines) < NEAR).mean()))
        means.append(float(cosines.mean()))
        pairs.append(cosines.size)
        twice.append(repeated)
    return {
        "counts": counts,
        "near": np.array(near),
        "mean": np.array(means),
        "pairs": np.array(pairs),
        "twice": np.array(twice),
    }


def cosine_data(scale: Scale, tell: Tell, *, files: Files = NONE) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Cosines within the texts of two sets (of one, if its file is given), and of tokens drawn from the vocabulary."""
    folder = files.model(BERT)
    small = scale is Scale.SMOKE or folder is None
    wanted = ["given"] if files.data else list(SETS)
    texts = {name: made_up(name) if small else unlabelled(name, files) for name in wanted}
    titles = {name: title for name, (_, title, _) in texts.items()}
    reader = tiny_reader(next(iter(texts.values()))[0]) if small or folder is None else pretrained_reader(folder)
    directions = _directions(reader)
    special = special_ids(reader)
    arrays: dict[str, np.ndarray] = {"bins": BINS}
    cut = {}
    for i, (name, (found, title, _)) in enumerate(texts.items()):
        count = min(found.n, scale.pick(200, QUICK, SETS.get(name, 100_000)))
        tell(i, len(texts), f"{title}, {count} texts")
        data = found.take(count, seed=SEED).encode(reader.tokenizer, length=LENGTH if reader.pretrained else 32)
        cut[title] = int(data.info["truncated"])
        arrays |= {f"{name}_{key}": value for key, value in cosines_of(data, directions, special).items()}
    tell(len(texts), len(texts), "done")
    arrays["random_counts"] = random_counts(directions, special)
    return arrays, {
        "sets": titles,
        "texts by set": {titles[name]: len(arrays[f"{name}_near"]) for name in texts},
        "the paper's texts by set": {TEXT_SETS[name].title: count for name, count in SETS.items()},
        "pairs by set": {titles[name]: int(arrays[f"{name}_pairs"].sum()) for name in texts},
        "files": {} if small else file_names(wanted, files),
        "model": reader.title,
        "dimension": int(directions.shape[1]),
        "stand-in": not reader.pretrained or any(stands_in for _, _, stands_in in texts.values()),
        "as the paper": reader.pretrained and directions.shape == (30_522, 768),
        "pairs": "of different tokens of a text, each once; special tokens are left out",
        "texts that were cut": cut,
        "control": f"{RANDOM_PAIRS} pairs of tokens drawn from the whole vocabulary",
        "the paper does not say": "whether a token that is there twice counts as a pair (it would, at cosine 1), what "
        "a small range is (here 0.1), and how long texts may be",
    }


def file_names(wanted: list[str], files: Files) -> dict[str, str]:
    """The file of each set, which may be a part of what the paper looks at."""
    names = {}
    for name in wanted:
        folders = ("mnli",) if name == "given" else FOLDERS[name]
        paths = next((found for folder in folders if (found := files.texts(folder)) is not None), None)
        names[name] = "made up" if paths is None else paths.train.name
    return names


def unlabelled(name: str, files: Files) -> tuple[Texts, str, bool]:
    """Texts of a set, premises and hypotheses as texts of their own; their title, and whether they stand in."""
    for folder in ("mnli",) if name == "given" else FOLDERS[name]:
        paths = files.texts(folder)
        if paths is None:
            continue
        known = TEXT_SETS[folder]
        found = known.read_unlabelled(paths.train)
        texts = found.texts if found.pairs is None else (*found.texts, *found.pairs)
        if name == "given":
            of_the_paper = any(TEXT_SETS[one].is_in(paths.train) for one in SETS)
            return Texts(texts=texts), paths.train.name, not of_the_paper
        stands_in = not known.is_in(paths.train)
        title = f"texts of {paths.train.name} (for {known.title})" if stands_in else known.title
        return Texts(texts=texts), title, stands_in
    return made_up(name)


def made_up(name: str) -> tuple[Texts, str, bool]:
    """Made-up texts in place of a set."""
    corpus = made_up_corpus("mnli" if name == "mnli" else "toxic")
    texts = corpus.train.texts if corpus.train.pairs is None else (*corpus.train.texts, *corpus.train.pairs)
    wanted = TEXT_SETS[name].title if name in TEXT_SETS else name
    return Texts(texts=texts), f"made-up texts (for {wanted})", True


def _directions(reader: Reader) -> Array:
    """The rows of the table of tokens, of length 1; a row of zeros stays."""
    model, weights = reader.load(2, 0)
    table = np.asarray(model.whole(weights)["tokens"], dtype=np.float64)
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    return table / np.where(norms > 0, norms, 1.0)


def special_ids(reader: Reader) -> frozenset[int]:
    """Tokens that the tokenizer adds to a text: those that every text begins and ends with."""
    ids = reader.tokenizer.encode(["a", "the"]).ids
    return frozenset(int(one) for one in (ids[0, 0], ids[0, -1], reader.tokenizer.pad))


def random_counts(directions: Array, special: frozenset[int]) -> Array:
    """Cosines of pairs of different tokens drawn from the vocabulary, counted by bin."""
    rng = np.random.default_rng(SEED)
    one, other = rng.integers(len(directions), size=(2, RANDOM_PAIRS))
    kept = (one != other) & ~np.isin(one, list(special)) & ~np.isin(other, list(special))
    cosines = np.einsum("pd,pd->p", directions[one[kept]], directions[other[kept]])
    return np.histogram(np.clip(cosines, -1.0, 1.0), BINS)[0].astype(float)


def near_checks(arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> list[Check]:
    """Most cosines of a text are near 0, in the mean over texts."""
    return [
        Check(
            f"{title}: in a text at least {MOST:g} of the cosines are within {NEAR:g} of 0 (mean over texts)",
            arrays[f"{name}_near"],
            at_least=MOST,
        )
        for name, title in facts["sets"].items()
    ]


def stand_in(facts: Mapping[str, Any]) -> str:
    """Why nothing is decided; empty if it is."""
    sets = " and ".join(facts["sets"].values())
    return f"Nothing is decided on {sets} with {facts['model']}." if facts["stand-in"] else ""


def too_small(facts: Mapping[str, Any]) -> str:
    """Why nothing is refuted: another table than the paper's; empty if it is that."""
    if facts["as the paper"]:
        return ""
    return f"The table of {facts['model']} stands in for that of BERT-base: what is not seen here may be seen there."


def measured(scale: Scale) -> Outcome:
    """The checks on the texts that are found."""
    arrays, facts = cosine_data(scale, lambda done, total, what: None)
    nothing = stand_in(facts)
    return outcome_of_checks(
        near_checks(arrays, facts),
        brief="" if nothing else too_small(facts),
        stand_in=nothing,
        seeds=[SEED],
        numbers={
            "share near 0": {title: float(arrays[f"{name}_near"].mean()) for name, title in facts["sets"].items()}
        },
    )


def missing_both() -> str:
    """What must be there: a model, and any of the folders of each set."""
    comments = next((name for name in FOLDERS["civil"] if NONE.texts(name) is not None), "civil")
    return missing_texts(("mnli", comments), BERT)


def inputs_of(files: Files = NONE) -> dict[str, str]:
    """The files that decide."""
    return text_inputs(("mnli",) if files.data else ("mnli", "civil", "toxic"), BERT, files)


CLAIMS = [
    Claim(
        id="rates-F10",
        title="Cosines between token embeddings",
        statement='Within a text "a significant fraction of all the cosine similarities fall within a small range '
        'around 0" (Appendix C.3, Figure 10).',
        hypotheses=("token embeddings of bert-base-uncased; texts of CivilComments and MultiNLI",),
        setting="pairs of different tokens of a text, without special ones. quick: 4,000 texts of each set; paper: "
        "50,000 and 100,000",
        reason="of the pairs of a text at least half have a cosine of at most 0.1 in size, in the mean over texts, "
        "less two standard errors",
        measure=measured,
        missing=missing_both,
        inputs=partial(inputs_of, NONE),
        at_scale={Scale.SMOKE: (Verdict.NOT_APPLICABLE, "made-up texts")},
    ),
]
