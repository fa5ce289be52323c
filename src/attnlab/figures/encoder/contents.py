"""What there is of the paper, in order."""

# Modules of this package; each has a list FIGURES.
PARTS = ("widths", "vectors", "vision", "starts", "embedded", "digits_regression", "scaling", "sentences")
