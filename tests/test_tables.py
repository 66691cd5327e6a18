"""Tables about ops and functions: what one lacks, or has too much, is told as it is made."""

from __future__ import annotations

import pytest

from archc.diagnostics import InternalError
from archc.functions.definitions import FUNCTIONS
from archc.ir.chunk import CHUNK_OPS, Gram
from archc.tables import complete


def test_a_table_is_complete_or_an_error() -> None:
    whole = dict.fromkeys(FUNCTIONS, 0)
    assert complete("`TEXT` of text.py", whole, FUNCTIONS) is whole
    del whole["erf"]
    with pytest.raises(InternalError, match=r"`TEXT` of text.py lacks erf: give each an entry"):
        complete("`TEXT` of text.py", whole, FUNCTIONS)
    with pytest.raises(InternalError, match="has gamma, which is not defined anywhere"):
        complete("`TEXT` of text.py", {**whole, "erf": 0, "gamma": 0}, FUNCTIONS)
    with pytest.raises(InternalError, match="lacks Gram:"):
        complete("`OPS`", {op: 0 for op in CHUNK_OPS if op is not Gram}, CHUNK_OPS)
