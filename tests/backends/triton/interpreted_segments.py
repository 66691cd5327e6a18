"""Walks in segments of 2 chunks of 16 tokens, whatever there is to do: the checks of `interpreted`
and `interpreted_packed`, in a process of its own.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_segments layer gla 70 4
    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_segments packed gla 4 40,0,1,33

Several can be named one after the other, with a `;` between.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from archc.ir import layer as ir
from tests.backends.triton import interpreted, interpreted_packed

CHUNK, SEGMENT = 16, 2


@contextmanager
def in_segments() -> Iterator[list[int]]:
    """Files that are loaded here walk in segments. How many segments each walk had."""
    found: list[int] = []
    file_of = interpreted.file_of

    def loaded(*given: Any) -> tuple[ir.Layer, ModuleType]:
        layer, module = file_of(*given)
        made: Any = module
        tables = made.segment_tables

        def counted(*given: Any) -> Any:
            rows, joined = tables(*given)
            found.append(len(rows))
            return rows, joined

        made.chunks_of_segment = lambda *given: SEGMENT
        made.rows_of_chunk = lambda chunk, tokens, x, steps: CHUNK
        made.segment_tables = counted
        return layer, module

    with (
        patch.object(interpreted, "file_of", loaded),
        patch.object(interpreted_packed, "file_of", loaded),
    ):
        yield found


def main(arguments: list[str]) -> None:
    """Every check in turn."""
    for each in " ".join(arguments).split(";"):
        kind, spec, *rest = each.split()
        torch.manual_seed(0)
        print(f"== {each.strip()}")
        with in_segments() as found:
            if kind == "packed":
                unit, lengths = rest
                layer, module = interpreted_packed.file_of(spec)
                sizes = [int(length) for length in lengths.split(",")]
                interpreted_packed.check(layer, module, int(unit), sizes)
            elif kind == "gates":
                interpreted.check_gates(spec, *map(int, rest))
            else:
                interpreted.check_layer(spec, *map(int, rest))
        assert found and max(found) > 2, f"{each}: no walk went in segments"


if __name__ == "__main__":
    main(sys.argv[1:])
