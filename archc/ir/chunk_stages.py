"""A chunked form -> its stages: what is computed for all chunks at once, and what along them.

Only a Recurrence has to wait from chunk to chunk. So a value's stage is the number of Recurrences,
one after the other, that it depends on; between two of them everything is there at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from archc.ir import layer as ir
from archc.ir.graph import Graph

PARALLEL, CHUNKS, TOKENS = "parallel", "along chunks", "along tokens"


@dataclass(frozen=True)
class Stage:
    """Nodes of one stage in dataflow order. kind: "parallel" (for all chunks at once), "along
    chunks", or "along tokens" (states that stay a loop); `number` counts the loops before it."""

    kind: str
    number: int
    nodes: tuple[int, ...]


def stages(graph: Graph, stream: str) -> tuple[Stage, ...]:
    """The stages of a chunked form of a Recurrence along `stream`, in order; inputs are left
    out."""
    depth: dict[int, int] = {}
    found: dict[tuple[int, str], list[int]] = {}
    for node in graph:
        depth[node.id] = max((depth[operand] for operand in node.operands), default=0)
        if isinstance(node.op, ir.Recurrence):
            kind = TOKENS if node.op.stream.name == stream else CHUNKS
            found.setdefault((depth[node.id], kind), []).append(node.id)
            depth[node.id] += 1
        elif not isinstance(node.op, ir.Input):
            found.setdefault((depth[node.id], PARALLEL), []).append(node.id)
    order = [PARALLEL, CHUNKS, TOKENS]
    keys = sorted(found, key=lambda key: (key[0], order.index(key[1])))
    return tuple(Stage(kind, number, tuple(found[number, kind])) for number, kind in keys)
