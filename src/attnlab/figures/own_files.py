"""A figure of the user's own model and texts."""

from __future__ import annotations

from attnlab.claims.scale import Scale
from attnlab.claims.texts import Files
from attnlab.errors import InputError, message
from attnlab.figures.figure import Figure, figures


def on_files(figure: Figure, files: Files, scale: Scale) -> Figure:
    """The same figure of a model or of texts of the user's own.

    >>> from attnlab.figures import find
    >>> on_files(find("svm-1")[0], Files(weights="my-model"), Scale.QUICK)
    Traceback (most recent call last):
    attnlab.errors.InputError: `--weights` is given; svm-1 looks at no such file.
    <BLANKLINE>
    hint: for encoder-1, multihead-6, rates-1, rates-4, rates-10
    """
    given = " and ".join(f"`--{name}`" for name, value in vars(files).items() if value)
    if not given:
        return figure
    if figure.on_files is None:
        takers = ", ".join(one.id for one in figures() if one.on_files is not None)
        raise InputError(message(f"{given} is given; {figure.id} looks at no such file.", f"for {takers}"))
    if scale is Scale.SMOKE:
        raise InputError(message(f"{given} is given; scale smoke looks at made-up texts alone.", "--scale quick"))
    return figure.on_files(files)
