"""The images of figures 4, 6, 7 and 8 and of what is claimed of them: MNIST, or small digits that stand in for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.claims.images import at_hand, missing_images
from attnlab.claims.scale import Scale
from attnlab.data.digitpatches import NEEDS, digits_installed
from attnlab.data.images import Images
from attnlab.data.imagesets import digits, mnist
from attnlab.data.sequences import Sequences
from attnlab.data.tokens import Array

# Mean and deviation of MNIST's pixels, as is usual; those of the stand-in are measured.
MEAN, STD = 0.1307, 0.3081


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images to train on and for the test, and how they are cut into patches.

    Attributes:
        train, test: the images.
        patch: pixels along a side of a patch; 16 patches of an image.
        mean, std: of the pixels, taken out.
        stand_in: why these are not MNIST; empty if they are.
    """

    train: Images
    test: Images
    patch: int
    mean: float
    std: float
    stand_in: str

    def patches(self, images: Images) -> Sequences:
        """Images as sequences of normalised patches."""
        return images.patches(self.patch, mean=self.mean, std=self.std)

    def facts(self, train: Images, test: Images | None = None) -> dict[str, Any]:
        """What is seen, for the note."""
        source = "digits of scikit-learn, 8 x 8, in place of MNIST" if self.stand_in else "MNIST, 28 x 28"
        facts: dict[str, Any] = {
            "images": source,
            "MNIST": not self.stand_in,
            "images to train on": train.n,
            "images of the whole set": self.train.n,
            "patch": f"{self.patch} x {self.patch} pixels, 16 patches",
            "pixels": f"mean {self.mean:.4g} and deviation {self.std:.4g} taken out",
        }
        if test is not None:
            facts["test images"] = test.n
        if self.stand_in:
            facts["stand-in"] = self.stand_in
        return facts


def pictures(scale: Scale) -> Pictures:
    """MNIST if its files are found; at scale smoke, and where they are not, the digits of scikit-learn."""
    if scale is Scale.SMOKE and digits_installed():
        return _small("scale smoke looks at small images, to be quick")
    if at_hand("mnist"):
        return mnist_pictures()
    return _small(f"MNIST was not found: {missing_images('mnist')}")


def mnist_pictures() -> Pictures:
    """MNIST, in patches of 7 x 7 pixels."""
    return Pictures(mnist(), mnist(split="test"), 7, MEAN, STD, "")


def _small(why: str) -> Pictures:
    train = digits()
    pixels = np.asarray(train.pixels, dtype=np.float64)
    return Pictures(train, digits("test"), 2, float(pixels.mean()), float(pixels.std()), why)


def missing() -> str:
    """What must be there for a figure: any of the two sets."""
    return "" if digits_installed() or at_hand("mnist") else f"{NEEDS}; or {missing_images('mnist')}"


def as_signs(data: Sequences) -> Sequences:
    """Two classes with labels -1 (the first) and +1."""
    return Sequences(x=data.x, y=_signs(data.y), info=data.info)


def _signs(y: Array) -> Array:
    return np.where(y > 0, 1.0, -1.0)
