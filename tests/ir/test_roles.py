"""What kernels and buffers are called."""

from __future__ import annotations

import archc
from archc.compile import SCHEDULE, lowered
from archc.ir import layer as ir
from archc.ir.kernel import Kernels
from archc.ir.roles import CARRY, SEGMENT, of_segments


def cut(spec: str, gradient: bool = False) -> Kernels:
    """The kernels of the recurrence of a spec."""
    layer = lowered(archc.load(spec).layer)
    (recurrence,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    graph = recurrence.chunked.backward if gradient else recurrence.chunked.forward
    graph = SCHEDULE.prepare(graph, recurrence.heads)
    return SCHEDULE.partition(graph, "m", recurrence.stream, recurrence.heads, {}, False)


def test_kernels_of_segments_are_called_after_the_scan():
    assert of_segments("kda_inter_chunk_scan_2", SEGMENT) == "kda_segment_scan_2"
    assert of_segments("walk", CARRY) == "walk_segment_carry"


def test_buffers_are_called_by_what_they_hold_and_no_two_alike():
    for spec in ("kda", "gla", "delta", "gated_delta"):
        for gradient in (False, True):
            names = [buffer.name for buffer in cut(spec, gradient).buffers]
            assert len({*names}) == len(names), spec
            assert not [name for name in names if name[0] == "v" and name[1:].isdigit()], spec
    names = {buffer.name for buffer in cut("kda").buffers}
    assert {"saved.scores", "saved.inverse", "middle", "middle decay"} <= names
    names = {buffer.name for buffer in cut("kda", True).buffers}
    assert {"log_alpha_sums", "key decay"} <= names
