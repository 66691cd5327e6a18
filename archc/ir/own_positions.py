"""Layer IR -> layer IR: each sequence of the batch has positions of its own.

    t : [t]             ->  t : [batch, t]
    s <= t : [t, s]     ->  s <= t : [batch, t, s]

A layer so changed reads one token of each of several sequences that are of different lengths. It is
for generation alone: what looks along more tokens, or counts all of them, is `unready` for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from archc.dims import BATCH, T_SEEN, TIME, Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.typing import layer_graph
from archc.ir.verify import verify


def unready(layer: ir.Layer) -> str | None:
    """The reason why a layer, or one that it calls, cannot continue sequences of different lengths
    in one batch; None if it can."""
    unlike, blocks = _kept_unlike(layer.graph), blocks_of(layer.graph)
    mixed = _mixed(layer.graph, blocks)
    for node in layer.graph:
        reason = _unready(node, blocks)
        if reason is None and (begun := begun_by_inputs(layer.graph, node)):
            reason = f"`{begun[0]}` begins as what is given"
        if reason is None and node.id in mixed:
            reason = "blocks of tokens are more than made one by one, and read"
        if reason is None and node.id in unlike:
            reason = "of what is read together some is kept for a window, and some whole"
        if reason is None and _counts_blocks(node.op, blocks) and not _all_kept(layer.graph):
            reason = "blocks of tokens are counted, and no attention keeps all of these"
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


def begun_by_inputs(graph: Graph, node: Node) -> list[str]:
    """The states of a recurrence whose first values are made of inputs, those of another sequence
    or weights from outside: they are not known before a layer is called."""
    if not isinstance(node.op, ir.Recurrence):
        return []
    first = node.operands[len(node.op.captures) :]
    return [
        state.name
        for state, operand in zip(node.op.states, first, strict=True)
        if any(isinstance(graph[id].op, ir.Input) for id in (operand, *graph.ancestors(operand)))
    ]


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


def blocks_of(graph: Graph) -> dict[str, ir.Window]:
    """The streams of blocks that are made of a layer's own tokens, each with what makes them."""
    windows = (node.op for node in graph if isinstance(node.op, ir.Window))
    return {op.blocks.name: op for op in windows if op.blocks and op.stream == TIME.name}


def _counts_blocks(op: Any, blocks: Collection[str]) -> bool:
    """Whether an op counts blocks of tokens that no values are made of."""
    own = isinstance(op, ir.Position) and op.axis.kind == "stream" and op.axis != TIME
    return own and op.axis.name not in blocks


def _all_kept(graph: Graph) -> bool:
    """Whether an attention keeps all tokens: what it keeps tells for how many there is room."""
    attends = (node.op for node in graph if isinstance(node.op, ir.Attend))
    return any(op.source == TIME.name and op.window is None for op in attends)


def _mixed(graph: Graph, blocks: Collection[str]) -> set[int]:
    """The nodes that do more with values of blocks than to compute each from itself: a call in
    which sequences have lengths of their own has the next block of each, and what was kept."""
    own = {name: set[int]() for name in blocks}
    return {node.id for node in graph for name in blocks if _mixes(graph, node, name, own[name])}


def _mixes(graph: Graph, node: Node, blocks: str, own: set[int]) -> bool:
    """Whether a node does so with blocks of one kind; `own` are values of the next block, to which
    the node's is added."""
    op, made = node.op, {each for each in node.operands if each in own}
    if isinstance(op, ir.Attend):
        pairs = zip(op.captures, node.operands, strict=True)
        return any(role != "read" or op.source != blocks for (_, role), id in pairs if id in own)
    begins = isinstance(op, ir.Window) and op.blocks is not None and op.blocks.name == blocks
    if not made and not begins:
        return False
    own.add(node.id)
    along = {id for id in node.operands if blocks in graph[id].type.names}
    alone = begins or (along == made and _each_alone(graph, node, blocks))
    return not alone or node.id in graph.outputs.values()


def _each_alone(graph: Graph, node: Node, blocks: str) -> bool:
    """Whether an op makes of each block's values that block's."""
    op = node.op
    match op:
        case ir.Elementwise():
            return blocks in node.type.names
        case ir.Contract():
            return all(label == name for label, name in _along(graph, node, blocks))
        case ir.Reduce():
            return blocks not in op.axes
        case ir.Softmax():
            return op.over != blocks
        case ir.Gather() | ir.Scatter():
            return op.axis != blocks
    return False


def _along(graph: Graph, node: Node, blocks: str) -> Iterator[tuple[str, str]]:
    """The labels of a product that stand for blocks, each with its name in what is made."""
    made = {label: axis.name for label, axis in node.op.out}
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        for label, name in zip(labels, graph[operand].type.names, strict=True):
            if name == blocks:
                yield made.get(label, ""), blocks


def _unready(node: Node, blocks: Collection[str]) -> str | None:
    """The reason why one node of a layer's graph is of one length alone; None if it is not.
    `blocks`: the streams of blocks of its tokens."""
    op = node.op
    if isinstance(op, ir.Input) and any(a.kind == "stream" and a != TIME for a in op.type.axes):
        return "another sequence enters"
    if isinstance(op, ir.Window) and op.stride is not None and op.stream != TIME.name:
        return "blocks of blocks of tokens are made"
    if isinstance(op, ir.Attend) and (op.source not in (TIME.name, *blocks) or not op.causal):
        return "other tokens are read than those so far"
    if isinstance(op, ir.Attend) and op.path is not None:
        places = [n for n in op.body if isinstance(n.op, ir.Position) and n.op.axis == op.path]
        if places or op.window is not None:
            return "something is summed between two tokens of a window, or by their positions"
    if isinstance(op, ir.Position) and _is_told(op.axis, blocks):
        return "positions are told of tokens that are read"
    if isinstance(op, ir.Recurrence) and any(map(_of_tokens, op.body)):
        return "a recurrence counts its tokens"
    return _looks(node)


def _is_told(axis: Axis, blocks: Collection[str]) -> bool:
    """Whether positions are of a stream that is neither a layer's own nor of blocks of it, which
    are as many as there is room for."""
    counted = axis.size.has(T_SEEN) and axis.size != T_SEEN
    return axis.kind == "stream" and axis != TIME and axis.name not in blocks and not counted


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
