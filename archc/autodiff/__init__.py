"""Gradients: a graph -> the graph of its gradient, in the same ops.

Reading order: `reverse.py` (the walk), `rules.py` (the table of rules, one an op), the rooms of the
rules (`elementwise.py`, `tensor.py`, `chunk.py`, `regions.py` with `products.py`), `keep.py` (what
the forward keeps), `whole.py` (sizes of the result).
"""
