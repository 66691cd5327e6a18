"""Layer IR -> pieces that are computed one after the other, with what is exchanged between them.

A piece is a part of the layer as a layer of its own without parameters: what stands between two
exchanges, one recurrence, one attend. Under `tp` a piece is computed with parts of the heads or
with all of them, never both, so that a size is one number in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from archc.algebra.cut import promises
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type
from archc.ir.typing import layer_graph
from archc.numerics.stated import stated
from archc.parallel.placement import Crossing, Mark, Pending, Places, Split, free_values

BETWEEN, RECURRENCE, ATTEND, CALL = "between", "recurrence", "attend", "call"


@dataclass(frozen=True)
class Piece:
    """Values that are computed together: of `reads` (nodes of the layer) the values `makes`.

    `heads`: on this process's part of the heads; then `slices` are the axes along which a part of
    a value is taken, by its place in `reads`. `halo`: how many earlier tokens it looks back on.
    """

    kind: str
    layer: ir.Layer
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    heads: bool
    halo: sympy.Expr
    slices: Mapping[int, str]
    node: Node | None = None


@dataclass
class _Draft:
    """A piece that is being collected."""

    kind: str
    heads: bool
    nodes: list[int] = field(default_factory=list)


def pieces_of(layer: ir.Layer, heads: Places | None, tokens: Mapping[int, Mark]) -> list[Piece]:
    """The pieces of a layer that has been simplified, in order. `heads` and `tokens` say which
    values are split; where the tokens are not, recurrences and attends stand among the others."""
    drafts = _where_read(layer.graph, _drafted(layer, heads, tokens), heads, tokens)
    known = stated(layer)
    inside = {id: n for n, draft in enumerate(drafts) for id in draft.nodes}
    read_by: dict[int, set[int]] = defaultdict(set)
    for id, n in inside.items():
        for operand in layer.graph[id].operands:
            read_by[operand].add(n)
    ends = set(layer.graph.outputs.values())
    made = []
    for n, draft in enumerate(drafts):
        makes = [id for id in draft.nodes if id in ends or read_by[id] - {n}]
        makes = [
            id for id in makes if not isinstance(layer.graph[id].op, ir.Recurrence | ir.Attend)
        ]
        if draft.kind != CALL:
            _check_made(layer, makes)
        if makes:
            made.append(_piece(layer, draft, makes, heads, known))
    return made


def _check_made(layer: ir.Layer, makes: Iterable[int]) -> None:
    """Refuse a value for every two tokens, or for every block of them, that would leave its
    piece. Raises Crossing."""
    given = {axis.name for _, op in layer.inputs for axis in op.type.axes}
    for id in makes:
        for axis in layer.graph[id].type.axes:
            if axis.kind == "stream" and axis.name not in given:
                what = "is made for each token and each one that it reads"
                raise Crossing(f"a value along `{axis.name}` {what}", layer.graph[id])


def _drafted(layer: ir.Layer, heads: Places | None, tokens: Mapping[int, Mark]) -> list[_Draft]:
    """The nodes of each piece: a value stands in the first one that comes after all that it reads.
    Even steps have whole heads, odd ones parts of them."""
    graph, free = layer.graph, weights_alone(layer.graph)
    step: dict[int, int] = {}
    drafts: dict[tuple[int, int, int], _Draft] = {}
    for node in graph:
        if node.id in free or isinstance(node.op, ir.Input | ir.Param):
            continue
        split = _on_parts(heads, node)
        if isinstance(node.op, ir.Result):
            step[node.id] = step[node.operands[0]]
            next(d for d in drafts.values() if node.operands[0] in d.nodes).nodes.append(node.id)
            continue
        known = [(o, step[o]) for o in node.operands if o in step]
        behind = {o: _waits(graph, graph[o], heads, tokens) for o, _ in known}
        first = max((at + behind[o] for o, at in known), default=0)
        if first % 2 != split:
            first += 1
        step[node.id] = first
        kind = _kind(node, bool(tokens))
        key = (first, 0, 0) if kind == BETWEEN else (first, 1, node.id)
        drafts.setdefault(key, _Draft(kind, bool(split))).nodes.append(node.id)
    return [drafts[key] for key in sorted(drafts)]


def _where_read(
    graph: Graph, drafts: list[_Draft], heads: Places | None, tokens: Mapping[int, Mark]
) -> list[_Draft]:
    """The same; functions of the elements of one value that only later pieces read are made there,
    with what else is, and the value is handed on in their place: the gate of an output."""
    home = {id: n for n, draft in enumerate(drafts) for id in draft.nodes}
    free, readers = weights_alone(graph), defaultdict[int, set[int]](set)
    for node in graph:
        for operand in node.operands:
            readers[operand].add(node.id)

    def moves(id: int) -> bool:
        node, at = graph[id], home.get(id, -1)
        plain = isinstance(node.op, ir.Elementwise) and node.type.dtype == "real"
        here = at >= 0 and drafts[at].kind == BETWEEN and "t" in node.type.names
        return plain and here and not _waits(graph, node, heads, tokens)

    for node in reversed(list(graph)):
        wanted = {home.get(reader, -1) for reader in readers[node.id]}
        if not wanted or not moves(node.id) or min(wanted) <= home[node.id]:
            continue
        kinds = {(drafts[n].kind, drafts[n].heads) for n in wanted}
        group, roots = {node.id}, set[int]()
        for id in sorted(graph.ancestors(node.id), reverse=True):
            if readers[id] & group and id not in free and not isinstance(graph[id].op, ir.Param):
                alike = moves(id) and home[id] == home[node.id] and readers[id] <= group
                (group if alike else roots).add(id)
        alone = len(roots) == 1 and all(graph[r].type.axes == node.type.axes for r in roots)
        if alone and kinds == {(BETWEEN, drafts[home[node.id]].heads)}:
            own, later = drafts[home[node.id]], drafts[min(wanted)]
            own.nodes = [id for id in own.nodes if id not in group]
            later.nodes = sorted([*later.nodes, *group])
            home |= dict.fromkeys(group, min(wanted))
    return [draft for draft in drafts if draft.nodes]


def _on_parts(heads: Places | None, node: Node) -> bool:
    """Whether a value is computed with parts of the heads."""
    if heads is None:
        return False
    if node.id in heads.results:
        return any(isinstance(mark, Split) for mark in heads.results[node.id].values())
    return heads.marks[node.id] is not None


def _waits(graph: Graph, node: Node, heads: Places | None, tokens: Mapping[int, Mark]) -> bool:
    """Whether a value is read at a later step: it is exchanged, or made by its own piece."""
    if isinstance(tokens.get(node.id), Pending):
        return True
    if heads is not None and isinstance(heads.marks[node.id], Pending):
        return True
    made = isinstance(node.op, ir.Result)
    return made and _kind(graph[node.operands[0]], bool(tokens)) != BETWEEN


def _kind(node: Node, apart: bool) -> str:
    """The kind of a piece that a value belongs to; `apart`: one of a recurrence or an attend."""
    if isinstance(node.op, ir.Recurrence | ir.Attend) and apart:
        return RECURRENCE if isinstance(node.op, ir.Recurrence) else ATTEND
    return CALL if isinstance(node.op, ir.Call) else BETWEEN


def weights_alone(graph: Graph) -> frozenset[int]:
    """Values made of parameters and constants alone: each process computes its own."""
    made = free_values(graph, ir.Param)
    return frozenset(id for id in made if not isinstance(graph[id].op, ir.Param))


def _piece(
    layer: ir.Layer, draft: _Draft, makes: list[int], heads: Places | None, known: Mapping[int, Any]
) -> Piece:
    """A piece as a layer of its own."""
    graph = layer.graph
    first = graph[draft.nodes[0]]
    if draft.kind == CALL:
        return Piece(CALL, layer, first.operands, tuple(makes), False, sympy.Integer(0), {}, first)
    alone = weights_alone(graph)
    inside = {*draft.nodes}
    waiting = [o for id in draft.nodes for o in graph[id].operands]
    while waiting:
        id = waiting.pop()
        if id in alone and id not in inside:
            inside.add(id)
            waiting += graph[id].operands
    own, reads = _part(layer, inside, makes, known)
    slices = {}
    if heads is not None and draft.heads:
        for (reader, operand), axis in heads.sliced.items():
            if reader in inside and operand in reads:
                slices[reads.index(operand)] = axis
    halo = look_back(own.graph) if draft.kind == BETWEEN else sympy.Integer(0)
    node = None if draft.kind == BETWEEN else first
    return Piece(draft.kind, own, tuple(reads), tuple(makes), draft.heads, halo, slices, node)


def _part(
    layer: ir.Layer, inside: Collection[int], makes: Iterable[int], known: Mapping[int, Any]
) -> tuple[ir.Layer, list[int]]:
    """A layer of some nodes, and the nodes that its inputs stand for."""
    old, new = layer.graph, layer_graph()
    copies: dict[int, int] = {}
    reads: list[int] = []
    needed = {o for id in inside for o in old[id].operands} | {*inside}
    names: set[str] = set()
    for node in old:
        if node.id in inside:
            operands = [copies[operand] for operand in node.operands]
            copies[node.id] = new.add(node.op, *operands, name=node.name, span=node.span)
        elif node.id in needed:
            name = _fresh(node, names)
            copies[node.id] = _entering(new, name, node)
            reads.append(node.id)
    new.outputs = {f"made_{n}": copies[id] for n, id in enumerate(makes)}
    rules = replace(layer.chunk, bounds=tuple(promises(old, new, copies, known)))
    doc = f"A part of {layer.name}."
    return replace(
        layer, kind="layer", doc=doc, graph=new, chunk=rules, requirements=()
    ), reads  # fmt: skip


def _entering(graph: Graph, name: str, node: Node) -> int:
    """The input that stands for a value; one that is true or false enters as 1 or 0."""
    if node.type.dtype != "bool":
        return graph.add(ir.Input(name, node.type), name=name, span=node.span)
    given = graph.add(ir.Input(name, Type(node.type.axes, "int")), name=name, span=node.span)
    zero = graph.add(ir.Constant(sympy.Integer(0)))
    return Builder(graph).fn("lt", zero, given)


def _fresh(node: Node, taken: set[str]) -> str:
    """A name for an input, each once."""
    op = node.op
    given = op.name if isinstance(op, ir.Input | ir.Param) else (node.name or "value")
    name = numbered(given, taken)
    taken.add(name)
    return name


def look_back(graph: Graph) -> sympy.Expr:
    """How many earlier tokens the last value of a graph is made from."""
    found: dict[int, sympy.Expr] = {}
    for node in graph:
        before = [found[operand] for operand in node.operands]
        own = sympy.Max(sympy.Integer(0), *before)
        if isinstance(node.op, ir.Shift) and node.op.stream == "t":
            own += node.op.steps
        elif isinstance(node.op, ir.Window) and node.op.stream == "t":
            own += node.op.width.size - 1
        found[node.id] = own
    return sympy.Max(sympy.Integer(0), *found.values())
