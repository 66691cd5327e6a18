"""Inputs of the recurrences of a layer, and which of them their kernels compute themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archc.ir.graph import Graph, Node
from archc.schedule.moving import in_words
from archc.schedule.prologue import REASONS, considered


@dataclass(frozen=True)
class Entering:
    """An input of a recurrence, whether its kernels make it of something else, and why."""

    name: str
    moves: bool
    why: str


def entering(graph: Graph, recurrence: Node) -> Iterator[Entering]:
    """For each input of a recurrence, whether its kernels make it themselves, and the reason; of a
    layer before any moves."""
    if recurrence.op.chunked is None:
        return
    for found in considered(graph, recurrence):
        along = [id for id in found.reads if recurrence.op.stream.name in graph[id].type.names]
        read = found.reads if found.moves or not along else along
        values = " and ".join(f"`{in_words(graph, id)}`" for id in read) or "a number"
        yield Entering(found.capture, found.moves, REASONS[found.rule].format(values))
