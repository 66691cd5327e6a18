"""Layer IR -> layer IR: the summary of a run of tokens by the laws that the spec gives.

Tokens are merged within every chunk, for all chunks at once, and then the chunks, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.functions.interval import Interval
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph
from archc.recurrence.chunk.by_law import JOINS, folded, in_chunks
from archc.recurrence.chunk.derive import Derivation
from archc.recurrence.chunk.frame import settled


def summary_graph(
    recurrence: ir.Recurrence, captures: Mapping[str, Type], known: Mapping[str, Interval]
) -> Graph:
    """The parts of the summary of all tokens; there is at least one. Raises StateNeeded."""
    work = _Summary(recurrence, captures, known)
    for law in recurrence.laws:
        work.add(law)
    graph = work.frame.graph
    graph.prune(list(work.inputs.values()))
    return graph


class _Summary(Derivation):
    """The graph under construction."""

    def __init__(
        self, recurrence: ir.Recurrence, captures: Mapping[str, Type], known: Mapping[str, Interval]
    ) -> None:
        super().__init__(recurrence, captures, known, ())

    def add(self, law: GivenLaw) -> None:
        """The parts of a law."""
        frame, graph, along = self.frame, self.frame.graph, self.frame.chunk.name
        parts = [self.lifted[self.body.outputs[law.in_body(part)]] for part in law.parts]
        rows = in_chunks(frame, law, parts)
        chunks = {name: frame.last(id) for name, id in rows.items()}
        there = frame.add(ck.Select(frame.row.name, 0), frame.cut(frame.number(1)))
        later = frame.fn("gt", frame.add(ck.Move(along, 1), there), frame.number(0))
        runs = folded(frame, law, frame.chunk, {**chunks, JOINS: later})
        for name, type in law.types.items():
            nothing = frame.add(ck.Select(along, 0), chunks[name])
            whole = frame.add(ck.Last(along), runs[name], nothing)
            graph.outputs[name] = settled(graph, whole, type)


def joined(graphs: Sequence[Graph]) -> Graph:
    """Graphs side by side, as one."""
    new = layer_graph()
    for graph in graphs:
        ids: dict[int, int] = {}
        for node in graph:
            operands = (ids[operand] for operand in node.operands)
            ids[node.id] = new.add(node.op, *operands, name=node.name, span=node.span)
        new.outputs |= {name: ids[id] for name, id in graph.outputs.items()}
    return new
