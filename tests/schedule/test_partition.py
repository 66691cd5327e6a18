"""How a chunked form is cut into kernels."""

from __future__ import annotations

import archc
from archc.compile import lowered
from archc.ir import layer as ir
from archc.ir.kernel import Kernels
from archc.schedule.partition import partition


def cut(spec: str) -> Kernels:
    """The kernels of a spec's one recurrence, forward."""
    layer = lowered(archc.load(spec).layer)
    (fold,) = (node.op for node in layer.graph if isinstance(node.op, ir.Fold))
    return partition(fold.chunked.forward, "memory", fold.stream, fold.heads, {})


def test_a_walk_stands_between_what_is_done_for_every_chunk_at_once() -> None:
    found = cut("kda")
    assert [each.name for each in found.kernels] == [
        "memory_before", "memory_walk", "memory_after",
    ]  # fmt: skip
    assert [each.walk is not None for each in found.kernels] == [False, True, False]


def test_every_program_has_one_chunk_or_walks_them_all() -> None:
    before, walk, _ = cut("kda").kernels
    assert [axis.kind for axis in before.grid] == ["batch", "stream", "dim"]
    assert [axis.kind for axis in walk.grid] == ["batch", "dim"]
    assert walk.split is not None and walk.split.name == "V"


def test_what_is_read_was_written_before() -> None:
    """In the order of the launches: inputs, the host's values, and buffers of earlier kernels."""
    for spec in ("kda", "mesa", "rwkv7"):
        found = cut(spec)
        written = {name for each in found.kernels for name in (*each.stores, *each.ends.values())}
        assert {buffer.name for buffer in found.buffers} == written
