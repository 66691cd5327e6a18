"""The gradient of a scan whose chunks are joined by a Recurrence, as one scan the other way.

    kept, local = scan(a, 0, 1), scan(a, b, 0);  start = recurrence[n](their last rows)
    h = scan(a, b, start)

Of h alone a chunk would be scanned twice more, for what its end hands on to later chunks: once for
`kept` and once for `local`. But the state that enters later chunks is the last row of h, so both
together are the scan of h with the cotangent of that state after its last row:

    e[i] = dh[i] + a[i+1] e[i+1],   db = e,   da[i] = e[i] h[i-1]

What a row hands on, y[i] = a[i] e[i], is scanned in place of e: no factor stands in another row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from archc.autodiff.gradient_builder import Builder
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.joined_scans import KEPT, LOCAL, is_joining


@dataclass(frozen=True)
class Joined:
    """The scans of a chunk: `kept` and `local` from nothing, of which a Recurrence makes the state
    before each chunk, and `rows` from there."""

    kept: int
    local: int
    rows: int


def scan(b: Builder, node: Node, d: int) -> list[int | None]:
    """As above for a scan of such a chunk, else as its own formula says."""
    found = None if node.op.exclusive else _of_twin(b, node, d) or _of_rows(b, node, d)
    return node.op.gradient(b, node, d) if found is None else found


def joined(graph: Graph, node: Node) -> Joined | None:
    """The scans that belong together with the one that starts from what a Recurrence has found."""
    op: ck.Scan = node.op
    a, b, first = node.operands
    start = graph[first]
    if op.kind != "linear" or op.matrix or op.reverse or not isinstance(start.op, ir.Result):
        return None
    recurrence = graph[start.operands[0]]
    if not isinstance(recurrence.op, ir.Recurrence) or not is_joining(recurrence.op):
        return None
    captured = ir.captured(recurrence)
    kept, local = (_scanned(graph, captured[name], recurrence.id) for name in (KEPT, LOCAL))
    if kept is None or local is None or {graph[kept].op, graph[local].op} != {op}:
        return None
    same = graph[kept].operands[0] == a and graph[local].operands[:2] == (a, b)
    return Joined(kept, local, node.id) if same else None


def _scanned(graph: Graph, last: int, recurrence: int) -> int | None:
    """The scan whose last row a Recurrence reads, if nothing else reads it."""
    node = graph[last]
    if (
        not isinstance(node.op, ck.Select)
        or node.op.index != -1
        or graph.users(last) != (recurrence,)
    ):
        return None
    (scan,) = node.operands
    found = graph[scan]
    alone = graph.users(scan) == (last,) and isinstance(found.op, ck.Scan)
    return scan if alone and found.op.axis == node.op.axis else None


def _of_rows(b: Builder, node: Node, d: int) -> list[int | None] | None:
    """The cotangent of a scan's first state, from that of the state before each chunk; those of its
    factor and addend come with their twins. None: it has no such twins."""
    found = joined(b.graph, node)
    if found is None or not {found.kept, found.local} <= b.active:
        return None
    op, (a, _, first) = node.op, node.operands
    d = b.full(d, node.type.axes)
    b.joined |= {found.local: (found, d), found.kept: (found, d)}
    back = replace(op, reverse=not op.reverse)
    begun = b.add(ck.Select(op.axis, 0), b.add(back, a, b.mul(a, d), b.zero()))
    return [None, None, b.fit(begun, b.type(begun), b.type(first))]


def _of_twin(b: Builder, node: Node, d: int) -> list[int | None] | None:
    """The cotangents of what all scans of a chunk are made of, from that of the last row of
    `local`; of `kept` there is nothing to add. None: it is no such scan."""
    if node.id not in b.joined:
        return None
    found, rows = b.joined[node.id]
    if node.id == found.kept:
        return [None, None, None]
    op, (a, added, _) = node.op, node.operands
    placed = b.graph[d]
    end = placed.operands[0] if placed.op == ck.Place(node.type.axis(op.axis), -1) else (
        b.add(ck.Select(op.axis, -1), d)
    )  # fmt: skip
    before = replace(op, reverse=True, exclusive=True)
    e = b.fn("add", rows, b.add(before, a, b.mul(a, rows), end))
    h = b.add(replace(op, exclusive=True), *b.graph[found.rows].operands)
    return [
        b.fit(b.mul(e, h), node.type, b.type(a)),
        b.fit(e, node.type, b.type(added)),
        None,
    ]
