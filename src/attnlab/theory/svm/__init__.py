"""Token geometry, assumptions, cones and constants of *Transformers as Support Vector Machines*, on given data.

All names are in `al.theory`.
"""
