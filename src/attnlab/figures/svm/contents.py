"""What there is of the paper, in order."""

# Modules of this package; each has a list FIGURES.
PARTS = ("plane", "selection", "rank", "alignment", "nonlinear", "mixtures", "lemma6")
