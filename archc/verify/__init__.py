"""The derived forms of a layer, each measured against the layer's meaning.

`study.py` has the facts of one recurrence, `trial.py` and `checks.py` its numbers, and
`measures.py` the forms of a whole layer.
"""
