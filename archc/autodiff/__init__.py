"""Gradients: a graph -> the graph of its gradient, in the same ops.

Reading order: `reverse.py` (the walk, and the table of rules, one an op), the rules
(`elementwise.py`, `tensor.py`, `regions.py` with `products.py`, `scans.py`, `solutions.py`; a chunk
op has its own in `archc/ir/chunk_ops`), `keep.py` (the values that the forward keeps).
"""
