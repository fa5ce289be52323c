"""Figures 1, 4, 6, 7 and 8, which need real text, images, or a vision transformer."""

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
    planned(
        id="encoder-4",
        title="Both scalings in a vision transformer on MNIST",
        needs="needs a vision transformer (one "
        "layer, one head, d = 64, query width 16, 1024 and 16384) and the MNIST images, not built yet",
        says="At width "
        "16 both scalings train alike; at 1024 and 16384 tau0 = 1/m is slower, extremely so at 16384; under "
        "tau0 = m^(-1/2) training changes the attention map a lot (Figure 4).",
    ),
    planned(
        id="encoder-6",
        title="Similarity of embedded images",
        needs="needs the patch embedding of a vision "
        "transformer (linear map and positions) and the MNIST images, not built yet",
        says="For MNIST images embedded "
        "by the vision transformer the tail of <X^T X, X'^T X'> decays exponentially, as Assumption 3 asks (Figure 6).",
    ),
    planned(
        id="encoder-7",
        title="Train loss and test accuracy of a vision transformer",
        needs="needs the runs of encoder-4 (a vision transformer), and the MNIST test images, not built yet",
        says="On MNIST tau0 = m^(-1/2) "
        "converges faster in training loss and reaches a higher test accuracy than tau0 = 1/m (Figure 7).",
    ),
    planned(
        id="encoder-8",
        title="Two digits as a regression",
        needs="needs the vision transformer of encoder-4 trained "
        "on squared errors, and the MNIST digits 0 and 1, not built yet",
        says="On the digits 0 and 1 with squared "
        "errors the training error sum (sign f - y)^2 falls faster under tau0 = m^(-1/2) than under tau0 = 1/m "
        "(Figure 8).",
    ),
]
