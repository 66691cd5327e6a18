"""Graphs become tile programs: values on padded tiles, kernel by kernel.

`values.py` is the core: the nodes of a graph as tiles of one program that is being composed, and
what is known of their padding. `algebra.py` and `products.py` have a rule an op; `rules.py` is the
table of them. `attention.py` and `attention_gradient.py` make programs of a fold over the tokens
that an attend reads, with `formula.py` for the formula of a pair. `pairs.py`, `solve.py` and
`scans.py` write the hard parts of a chunk, on plain tiles. Nothing here knows a backend, or torch.
"""
