"""Tables about ops and functions: what one lacks, or has too much, is told as it is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from archc.diagnostics import InternalError
from archc.functions.definitions import FUNCTIONS
from archc.ir import chunk, chunk_ops
from archc.ir.chunk import CHUNK_OPS, Gram
from archc.ir.chunk_ops.op import Moving
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


def test_chunk_ops_are_found_from_their_classes() -> None:
    """Of every file of their folder; `archc/ir/chunk.py` hands their names on."""
    files = {path.stem for path in Path(chunk_ops.__file__).parent.glob("*.py")}
    assert {op.__module__.rpartition(".")[2] for op in CHUNK_OPS} == files - {"__init__", "op"}
    assert all(getattr(chunk, op.__name__) is op for op in CHUNK_OPS)


def test_a_chunk_op_without_a_gradient_is_none() -> None:
    methods = {name: getattr(Gram, name) for name in ("typed", "meaning", "reduction_dims")}
    lacking = dataclass(frozen=True)(type("Lacking", (Moving,), methods))
    with pytest.raises(TypeError, match=r"abstract method '?gradient"):
        lacking()
