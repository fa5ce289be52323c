"""Figures 1, 4 and 10, which need language models or their embeddings."""

from __future__ import annotations

from attnlab.figures.figure import planned

FIGURES = [
    planned(
        id="rates-1",
        title="Fine-tuning a language model on sentence pairs",
        needs="needs deep models (a language model fine-tuned on MultiNLI), not built yet",
        says="Fine-tuning on MultiNLI, stochastic normalized GD and "
        "stochastic Polyak steps train much faster than SGD and about as fast as Adam (Figure 1).",
    ),
    planned(
        id="rates-4",
        title="Fine-tuning a language model on comments",
        needs="needs deep models (a language model fine-tuned on CivilComments), not built yet",
        says="On CivilComments the order of the optimizers is that of Figure 1 (Figure 4).",
    ),
    planned(
        id="rates-10",
        title="Cosines between token embeddings",
        needs="needs deep models (a pre-trained embedding table), not built yet",
        says="Within a sentence most cosines between token embeddings lie in a small range around 0 (Figure 10).",
    ),
]
