"""The derivation of a layer as a page to read.

`story.py` has the page: chapters (`chapters.py`) of steps (`step_*.py`), written out by `html.py`
and `document.py`. Facts and their numbers are those of `archc/verify`.
"""
