"""`made_up_texts`: small texts with labels that their words give away, for trying things out without any file."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attnlab.checks import number, one_of, whole
from attnlab.data.texts import Texts

GOOD = ("brilliant", "moving", "funny", "warm", "clever", "gripping", "fresh", "lovely")
BAD = ("dull", "flat", "clumsy", "tedious", "empty", "stale", "awful", "lifeless")
THINGS = ("film", "plot", "cast", "story", "music", "ending", "script", "scene")
OPENINGS = ("the", "this", "its", "their")
ADVERBS = ("very", "rather", "truly", "often", "quite")
PEOPLE = ("a man", "a woman", "a child", "a girl", "a boy", "a dog")
ACTIONS = ("sleeps", "eats", "runs", "reads", "sings", "waits")
PLACES = ("in the park", "at home", "on the train", "near the river", "in the garden", "at school")
EMBELLISHMENTS = ("today", "with a friend", "in the rain", "for an hour")
OTHER: dict[str, str] = dict(zip(ACTIONS, (*ACTIONS[1:], ACTIONS[0]), strict=True))
MOST = 10**6


def made_up_texts(
    n: int = 200, kind: Literal["sentiment", "inference"] = "sentiment", *, noise: float = 0.0, seed: int = 0
) -> Texts:
    """Texts put together from a few words, with balanced labels that can be learned from them.

    Args:
        n: texts, or pairs.
        kind: "sentiment" has phrases about films, of the classes negative and positive: of their two adjectives both
            are bad or both are good. "inference" has pairs, of the classes entailment (the hypothesis says less than
            the premise), neutral (it adds something) and contradiction (nobody does it, or they do something else).
        noise: share of texts whose label is drawn at random.
        seed: of everything.

    >>> texts = made_up_texts(4, seed=1)
    >>> for text, label in zip(texts.texts, texts.y):
    ...     print(texts.names[label], "|", text)
    negative | truly awful ending , flat script
    positive | this script is very fresh and warm .
    negative | their plot is very lifeless and tedious .
    positive | warm scene , gripping cast
    """
    count = whole("n", n, most=MOST)
    one_of("kind", kind, ("sentiment", "inference"))
    rng = np.random.default_rng(whole("seed", seed, 0))
    names = ("negative", "positive") if kind == "sentiment" else ("entailment", "neutral", "contradiction")
    y = rng.permutation(np.arange(count) % len(names))
    wrong = rng.random(count) < number("noise", noise, least=0, most=1)
    make = _phrase if kind == "sentiment" else _pair
    made = [make(rng, int(label)) for label in y]
    y = np.where(wrong, rng.integers(len(names), size=count), y)
    info = {"source": f"made-up {kind}", "seed": int(seed)}
    if kind == "sentiment":
        return Texts(texts=[first for first, _ in made], y=y, names=names, info=info)
    return Texts(texts=[first for first, _ in made], pairs=[second for _, second in made], y=y, names=names, info=info)


def _one(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[int(rng.integers(len(words)))]


def _phrase(rng: np.random.Generator, label: int) -> tuple[str, str]:
    """A phrase of one of a few forms, with two adjectives of one kind."""
    kind = GOOD if label else BAD
    first, second = (kind[i] for i in rng.choice(len(kind), 2, replace=False))
    opening, thing = _one(rng, OPENINGS), _one(rng, THINGS)
    adverb = f"{_one(rng, ADVERBS)} " if rng.random() < 0.5 else ""
    if rng.random() < 0.5:
        return f"{opening} {thing} is {adverb}{first} and {second} .", ""
    other = _one(rng, THINGS)
    return f"{adverb}{first} {thing} , {second} {other}", ""


def _pair(rng: np.random.Generator, label: int) -> tuple[str, str]:
    """A premise, and a hypothesis that says less, more or something else."""
    person, action, place = _one(rng, PEOPLE), _one(rng, ACTIONS), _one(rng, PLACES)
    premise = f"{person} {action} {place} ."
    if label == 0:
        return premise, f"{person} {action} ."
    if label == 1:
        return premise, f"{person} {action} {_one(rng, EMBELLISHMENTS)} ."
    if rng.random() < 0.5:
        return premise, f"nobody {action} {place} ."
    return premise, f"{person} {OTHER[action]} ."
