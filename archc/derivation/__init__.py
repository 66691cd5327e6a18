"""The derivation of a layer as a reader follows it: what was found, and a page of it.

`study.py` has the facts of one recurrence, `trial.py` and `checks.py` its numbers, `story.py` the
page: chapters (`chapters.py`) of steps (`step_*.py`), written out by `html.py` and `document.py`.
"""
