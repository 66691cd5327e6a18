"""The inverse of a chunk's system, applied where the state is read."""

from __future__ import annotations

import archc
from archc.compile import differentiate, lowered
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.schedule.delayed_solve import inverses_last
from tests.schedule.same import check_same_form


def form_of(layer: ir.Layer) -> ck.ChunkForm:
    """The chunked form of a layer's one recurrence."""
    (recurrence,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    assert recurrence.chunked is not None
    return recurrence.chunked


def test_the_inverse_is_read_along_the_chunks_and_nothing_else_changes() -> None:
    layer = lowered(archc.load("delta").layer)
    before, after = form_of(layer), form_of(inverses_last(layer, differentiate))
    (walk,) = (node for node in after.forward if isinstance(node.op, ir.Recurrence))
    inverses = {node.id for node in after.forward if isinstance(node.op, ck.Inverse)}
    assert inverses & {*walk.operands}
    check_same_form(before, after)


def test_a_form_without_a_system_stays() -> None:
    layer = lowered(archc.load("linear_attention_simple").layer)
    assert form_of(inverses_last(layer, differentiate)) is form_of(layer)
