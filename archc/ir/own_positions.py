"""Layer IR -> layer IR: each sequence of the batch has positions of its own.

    t : [t]             ->  t : [batch, t]
    s <= t : [t, s]     ->  s <= t : [batch, t, s]

A layer so changed reads one token of each of several sequences that are of different lengths. It is
for generation alone: what looks along more tokens, or counts all of them, is `unready` for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from archc.dims import BATCH, T_SEEN, TIME
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.typing import layer_graph
from archc.ir.verify import verify


def unready(layer: ir.Layer) -> str | None:
    """The reason why a layer, or one that it calls, cannot continue sequences of different lengths
    in one batch; None if it can."""
    unlike = _kept_unlike(layer.graph)
    for node in layer.graph:
        reason = _unready(node)
        if reason is None and node.id in unlike:
            reason = "of what is read together some is kept for a window, and some whole"
        if reason is None and isinstance(node.op, ir.Attend):
            bodies = (node.op.body, node.op.decode or node.op.body)
            reason = next((r for body in bodies for each in body if (r := _looks(each))), None)
        if reason is not None:
            called = f"`{node.name}` of " if node.name else ""
            return f"{reason} ({called}{layer.name})"
        if isinstance(node.op, ir.Call) and node.op.callee.kind != "argument":
            reason = unready(node.op.callee)
            if reason is not None:
                return reason
    return None


def _kept_unlike(graph: Graph) -> set[int]:
    """The attentions that read values of which some are kept for their window, and others whole, as
    an attention with another window reads them too."""
    windows: dict[int, set[Any]] = {}
    reads: dict[int, list[int]] = {}
    for node in graph:
        if isinstance(node.op, ir.Attend):
            pairs = zip(node.op.captures, node.operands, strict=True)
            reads[node.id] = [
                o for (_, role), o in pairs
                if role != "reader" and node.op.source in graph[o].type.names
            ]  # fmt: skip
            for operand in reads[node.id]:
                windows.setdefault(operand, set()).add(node.op.window)
    shared = {id: {len(windows[operand]) > 1 for operand in each} for id, each in reads.items()}
    return {id for id, each in shared.items() if len(each) > 1 and graph[id].op.window is not None}


def _unready(node: Node) -> str | None:
    """The reason why one node of a layer's graph is of one length alone; None if it is not."""
    op = node.op
    if isinstance(op, ir.Input) and any(a.kind == "stream" and a != TIME for a in op.type.axes):
        return "another sequence enters"
    if isinstance(op, ir.Window) and op.stride is not None:
        return "blocks of tokens are made"
    if isinstance(op, ir.Attend) and (op.source != TIME.name or not op.causal):
        return "other tokens are read than those so far"
    if isinstance(op, ir.Attend) and op.path is not None:
        places = [n for n in op.body if isinstance(n.op, ir.Position) and n.op.axis == op.path]
        if places or op.window is not None:
            return "something is summed between two tokens of a window, or by their positions"
    if isinstance(op, ir.Position) and op.axis.kind == "stream" and op.axis != TIME:
        return "positions are told of tokens that are read"
    if isinstance(op, ir.Recurrence) and any(map(_of_tokens, op.body)):
        return "a recurrence counts its tokens"
    return _looks(node)


def _looks(node: Node) -> str | None:
    """The reason why a node, of a layer or of an attention's body, is of one length alone."""
    op = node.op
    if isinstance(op, ir.Constant) and op.value.free_symbols & {TIME.size, T_SEEN}:
        return "a number depends on how many tokens there are"
    if isinstance(op, ir.Substitute):
        return "a system along the tokens is solved"
    if isinstance(op, ir.Segment) and op.row is not None:
        return "matrices are multiplied between two tokens"
    if isinstance(op, ir.Delta) and {op.row.kind, op.col.kind} != {"dim"}:
        return "positions are compared as a matrix"
    return None


def _of_tokens(node: Node) -> bool:
    return isinstance(node.op, ir.Position) and node.op.axis.kind == "stream"


def with_own_positions(layer: ir.Layer) -> ir.Layer:
    """The layer, and those that it calls, with positions for each sequence; itself where there are
    none. The layer must not be `unready`."""
    made = _OwnPositions().layer(layer)
    verify(made)
    return made


class _OwnPositions:
    """The layers that are done, so that one that is called twice stays one."""

    def __init__(self) -> None:
        self.done: dict[int, ir.Layer] = {}

    def layer(self, layer: ir.Layer) -> ir.Layer:
        """A layer, and those that it calls."""
        if id(layer) not in self.done:
            graph = self.graph(layer.graph, {TIME.name}, {})
            self.done[id(layer)] = layer if graph is layer.graph else replace(layer, graph=graph)
        return self.done[id(layer)]

    def graph(self, graph: Graph, own: Collection[str], given: Mapping[str, Type]) -> Graph:
        """A graph with positions along the streams `own` for each sequence, and with inputs of the
        types `given`; itself where nothing changes."""
        made, ids, changed = layer_graph(), dict[int, int](), False
        for node in graph:
            operands = [made[ids[operand]] for operand in node.operands]
            before = [graph[operand] for operand in node.operands]
            op = self._changed(node, before, operands, own, given)
            changed = changed or op is not node.op
            at = [each.id for each in operands]
            ids[node.id] = made.add(op, *at, name=node.name, span=node.span)
        made.outputs = {name: ids[id] for name, id in graph.outputs.items()}
        return made if changed else graph

    def _changed(
        self,
        node: Node,
        before: list[Node],
        operands: list[Node],
        own: Collection[str],
        given: Mapping[str, Type],
    ) -> Any:
        """The op of a node whose operands, `before`, are now others."""
        op: Any = node.op
        match op:
            case ir.Position(axis) if axis.name in own:
                return ir.Position(axis, own=True)
            case ir.Input(name, type) if given.get(name, type) != type:
                return replace(op, type=given[name])
            case ir.Contract():
                return _contract(op, before, operands)
            case ir.Call() if op.callee.kind != "argument":
                callee = self.layer(op.callee)
                return op if callee is op.callee else replace(op, callee=callee)
            case ir.Attend():
                return self._attend(op, operands)
            case ir.Recurrence():
                return self._recurrence(op, operands)
        return op

    def _attend(self, op: ir.Attend, operands: list[Node]) -> ir.Attend:
        """An attention in whose body readers and what they read are of each sequence."""
        names = {"read": op.read, "path": op.path, "reader": None}
        given = {
            name: Type(
                tuple(names[role] or a if a.name == op.source else a for a in node.type.axes),
                node.type.dtype,
            )
            for (name, role), node in zip(op.captures, operands, strict=True)
        }
        own = {op.reader.name, op.read.name}
        body = self.graph(op.body, own, given)
        decode = None if op.decode is None else self.graph(op.decode, own, given)
        return replace(op, body=body, decode=decode)

    def _recurrence(self, op: ir.Recurrence, operands: list[Node]) -> ir.Recurrence:
        """A recurrence that values of each sequence enter, which were the same for all before; it
        goes token by token."""
        given = {
            name: Type(tuple(a for a in node.type.axes if a != op.stream), node.type.dtype)
            for name, node in zip(op.captures, operands, strict=False)
        }
        body = self.graph(op.body, (), given)
        return op if body is op.body else replace(op, body=body, chunked=None, laws=())


def _contract(op: ir.Contract, before: list[Node], operands: list[Node]) -> ir.Contract:
    """A product whose operands may have a row for each sequence that they had not."""
    axes = list(zip(op.ins, before, operands, strict=True))
    if all(old.type.names == new.type.names for _, old, new in axes):
        return op
    known = [dict(zip(old.type.names, labels, strict=True)) for labels, old, _ in axes]
    label = next((each[BATCH.name] for each in known if BATCH.name in each), BATCH.name)
    ins = tuple(
        tuple({BATCH.name: label, **have}[name] for name in new.type.names)
        for have, (_, _, new) in zip(known, axes, strict=True)
    )
    out = op.out if label in dict(op.out) else ((label, BATCH), *op.out)
    return ir.Contract(ins, out)
