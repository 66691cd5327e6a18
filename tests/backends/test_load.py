"""A text becomes a module: once, with its lines in tracebacks."""

from __future__ import annotations

import traceback

import pytest
from archc.backends.load import load


def test_the_same_text_is_loaded_once():
    first, again = load("x = [1]", "one"), load("x = [1]", "other")
    assert first is again and first.x == [1]
    assert load("x = [2]", "one") is not first


def test_tracebacks_show_the_line():
    module = load("def f():\n    return 1 / 0  # here\n", "division")
    with pytest.raises(ZeroDivisionError) as caught:
        module.f()
    assert "return 1 / 0  # here" in "".join(traceback.format_exception(caught.value))
