"""Figure 6, which needs a pre-trained network."""

from __future__ import annotations

from attnlab.figures.figure import planned

FIGURES = [
    planned(
        id="multihead-6",
        title="Fine-tuning a language model with more or fewer heads",
        needs="needs deep models (a pre-trained language model fine-tuned on SST-2), not built yet",
        says="Fine-tuning on SST-2 with AdamW, more heads speed up both training and generalization (Figure 6).",
    ),
]
