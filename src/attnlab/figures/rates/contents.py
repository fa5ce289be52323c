"""What there is of the paper, in order."""

# Modules of this package; each has a list FIGURES.
PARTS = ("signal", "joint", "start", "vision", "digits", "text", "token_cosines")
