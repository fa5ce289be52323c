"""Heads of trained models, probed: margins against chance and against held-out max-margin weights.

`layout` checks what is given; `metrics`, `selection` and `nulls` say what is compared; `measure` does one head;
`judged` looks at all of them; `report` is what comes back.
"""
