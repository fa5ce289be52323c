"""The look of all pictures, see `attnlab.style`."""

from attnlab.style import (
    BLUE as BLUE,
    GREEN as GREEN,
    GREY as GREY,
    ORANGE as ORANGE,
    PURPLE as PURPLE,
    RC as RC,
    SKY as SKY,
    band as band,
    new_figure as new_figure,
    save_figure as save_figure,
    styled as styled,
)
