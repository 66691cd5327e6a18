"""The words of the field for kernels, after their part in a chunked recurrence, and for values,
after what they hold: plans, files and pages share them.

    chunk_prepare          every chunk at once, before any state is needed
    intra_chunk_scores     scores of pairs of rows, each of which decays in its own way
    solve_tril             the inverse of a triangle of scores
    solve_system           a system with the state in its matrix, of every token of a chunk
    inter_chunk_scan       the state, from chunk to chunk
    chunk_output           every chunk at once, with the state before it

    segment_scan           the scan of each segment of a sequence, from nothing
    segment_transition     what a segment makes of any state, where that is a matrix
    segment_carry          the state that each segment starts from
    segment_rescan         the scan of each segment from there, where it is not the first one
"""

from __future__ import annotations

from collections.abc import Mapping

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.value_names import unsaved

PREPARE, SCORES = "chunk_prepare", "intra_chunk_scores"
SOLVE, SYSTEM = "solve_tril", "solve_system"
SCAN, OUTPUT = "inter_chunk_scan", "chunk_output"
SEGMENT, TRANSITION, CARRY, RESCAN = (
    f"segment_{part}" for part in ("scan", "transition", "carry", "rescan")
)

HELD: Mapping[type, str] = {
    ir.Contract: "product",
    **{op: op.held for op in ck.CHUNK_OPS if op.held},
}
"""The noun for the value of each op, from which values are named."""

CHANGED: Mapping[str | type, str] = {
    "mul": "scaled", "add": "sum", "sub": "diff", "div": "ratio", "neg": "negative",
    **{op: op.changed for op in ck.CHUNK_OPS if op.changed},
}  # fmt: skip
"""The word that an op, or an elementwise function, adds to the name of its first operand."""

LONGEST = 16
"""The most letters of a name that is extended by such a word."""


def of_segments(kernel: str, part: str) -> str:
    """The name of a kernel of the segments of a scan, by that of the scan."""
    head, found, tail = kernel.rpartition(SCAN)
    return f"{head}{part}{tail}" if found else f"{kernel}_{part}"


def captured_as(graph: Graph, id: int) -> str | None:
    """The name that the first loop which captures a value has for it."""
    for user in graph.users(id):
        op, operands = graph[user].op, graph[user].operands
        if isinstance(op, ir.Recurrence) and operands.index(id) < len(op.captures):
            return op.captures[operands.index(id)]
    return None


def held(graph: Graph, id: int) -> str:
    """The name of a value: its own, that of the loop input it becomes, or the noun of its op."""
    node = graph[id]
    if node.name or isinstance(node.op, ir.Result | ir.Input):
        return node.name or node.op.name
    captured = captured_as(graph, id)
    if captured is not None:
        return captured
    fn = getattr(node.op, "fn", "")
    word = CHANGED.get(fn) or CHANGED.get(type(node.op)) or (fn if fn else "")
    if not word:
        return HELD.get(type(node.op), type(node.op).__name__.lower())
    source = unsaved(_source(graph, id)).replace(".", "_")
    return f"{source}_{word}" if source and len(source) <= LONGEST else word


def _source(graph: Graph, id: int) -> str:
    """The name of the nearest value that a first operand comes from; "" if it has none."""
    node = graph[id]
    while node.operands:
        node = graph[node.operands[getattr(node.op, "fn", "") == "where"]]
        if node.name or isinstance(node.op, ir.Result | ir.Input):
            return node.name or node.op.name
        if type(node.op) in HELD and len(node.operands) > 1:
            return HELD[type(node.op)]
    return ""
