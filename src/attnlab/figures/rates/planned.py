"""Figures 1, 4, 6, 7 and 10, which need deep networks or their embeddings."""

from __future__ import annotations

from attnlab.figures.figure import planned

FIGURES = [
    planned(
        id="rates-1", title="Fine-tuning a language model on sentence pairs", needs="needs deep models (a language "
        "model fine-tuned on MultiNLI), not built yet", says="Fine-tuning on MultiNLI, stochastic normalized GD and "
        "stochastic Polyak steps train much faster than SGD and about as fast as Adam (Figure 1).",
    ),
    planned(
        id="rates-4", title="Fine-tuning a language model on comments", needs="needs deep models (a language model "
        "fine-tuned on CivilComments), not built yet", says="On CivilComments the order of the optimizers is that of "
        "Figure 1 (Figure 4).",
    ),
    planned(
        id="rates-6", title="A small vision transformer on MNIST", needs="needs deep models (a vision transformer), "
        "not built yet", says="On MNIST stochastic normalized GD trains slower than SGD, and Adam gains little over "
        "SGD (Figure 6).",
    ),
    planned(
        id="rates-7", title="A small vision transformer on CIFAR-10", needs="needs deep models (a vision "
        "transformer), not built yet", says="On CIFAR-10 stochastic normalized GD trains slower than SGD; the norms "
        "of several layers grow (Figure 7).",
    ),
    planned(
        id="rates-10", title="Cosines between token embeddings", needs="needs deep models (a pre-trained embedding "
        "table), not built yet", says="Within a sentence most cosines between token embeddings lie in a small range "
        "around 0 (Figure 10).",
    ),
]  # fmt: skip
