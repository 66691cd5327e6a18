"""Graphs become tile programs: values on padded tiles, kernel by kernel.

`values.py` is the core: the nodes of a graph as tiles of one program that is being composed, and
what is known of their padding. `algebra.py` and `products.py` have a rule an op; `rules.py` is the
table of them. Nothing here knows a backend, or torch.
"""
