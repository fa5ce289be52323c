"""Figure 1, which needs real text."""

from __future__ import annotations

from attnlab.figures.figure import planned

FIGURES = [
    planned(
        id="encoder-1",
        title="Similarity of embedded sentences",
        needs="needs real text (IMDB reviews, and a table of word embeddings of dimension 100), not built yet",
        says="For 100 normalized, embedded IMDB sentences the "
        "probability that <X^T X, X'^T X'> of two of them passes t decays exponentially in t, over 10 draws, as "
        "Assumption 3 asks (Figure 1).",
    ),
]
