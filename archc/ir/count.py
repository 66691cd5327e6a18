"""Layer IR -> what a layer costs, as expressions in its sizes: arithmetic, and what it keeps.

A multiply-add of a product is two operations, anything else one an element. Nothing is counted for
what moves or renames data, for what no input reaches (weights alone, the angles of a rotation, a
mask), or for what needs an optional input. Every pair of positions that an attention is given
counts, masked or not; but of an axis that `top` chooses from, what the choice is not made from
counts for as many as are chosen, since the rest is multiplied by zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, fields

import sympy

from archc.dims import TIME, Axis
from archc.ir import layer as ir
from archc.ir.chunk_ops.op import ChunkOp
from archc.ir.graph import Graph, Node
from archc.ir.shapes import Lengths, Types, elements
from archc.tables import complete

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


@dataclass(frozen=True)
class Cost:
    """The cost of a layer for one sequence, in its symbols and `T`, the number of tokens.

    `flops`: operations for the whole sequence. Numbers kept between tokens: `state` in recurrences
    and `tail` as tokens (the last ones, for convolutions and windows; all of another sequence),
    however long the sequence is; `cache` for every token of it, to be read by later ones.
    """

    flops: sympy.Expr = ZERO
    state: sympy.Expr = ZERO
    tail: sympy.Expr = ZERO
    cache: sympy.Expr = ZERO


def cost(layer: ir.Layer) -> Cost:
    """The cost of a layer, with the layers it calls. Count the simplified layer: a product has the
    order there in which it is computed."""
    return costs(layer)[id(layer)]


def costs(layer: ir.Layer) -> dict[int, Cost]:
    """The costs of a layer and of every layer that it calls, by the `id` of each."""
    count = _Count()
    count.layer(layer)
    return count.layers


def weight_products(layer: ir.Layer) -> sympy.Expr:
    """Operations of the products of a layer's values with its weights, for one sequence: what
    PyTorch's matrix products do, whatever computes the rest."""
    graph = layer.graph
    others = {node.id for node in graph if not _multiplies_by_weights(graph, node)}
    calls = [node.op for node in graph if isinstance(node.op, ir.Call)]
    inner = [
        weight_products(call.callee).subs([*given.items()], simultaneous=True)
        for call, given in ((call, in_symbols_of_the_caller(call)) for call in calls)
    ]
    return sympy.Add(operations(graph, {}, others), *inner)


def _multiplies_by_weights(graph: Graph, node: Node) -> bool:
    """Whether a node is a product, with a sum, of what depends on an input and what does not; a
    convolution is none."""
    if not ir.is_product(node.op):
        return False
    shared = set(node.op.ins[0]) & set(node.op.ins[1])
    dependent = [
        any(isinstance(graph[at].op, ir.Input) for at in graph.ancestors(id) | {id})
        for id in node.operands
    ]
    windows = any(isinstance(graph[id].op, ir.Window) for id in node.operands)
    return (
        dependent.count(True) == 1
        and not windows
        and bool(shared - {label for label, _ in node.op.out})
    )


def in_symbols_of_the_caller(call: ir.Call) -> dict[sympy.Symbol, sympy.Expr]:
    """The sizes of a called layer, and the length of its sequence, in symbols of its caller."""
    given = dict(call.sizes)
    found = {a.symbol: given[a.name] for a in call.callee.args if a.symbol is not None}
    if isinstance(TIME.size, sympy.Symbol):
        found[TIME.size] = dict(call.axes).get(TIME.name, TIME).size
    return found


def _sum(costs: Iterable[Cost]) -> Cost:
    listed = list(costs)
    return Cost(**{f.name: sympy.Add(*(getattr(c, f.name) for c in listed)) for f in fields(Cost)})


class _Count:
    """The costs of called layers, each found once."""

    def __init__(self) -> None:
        self.layers: dict[int, Cost] = {}
        self.calls: dict[Hashable, Cost] = {}

    def layer(self, layer: ir.Layer) -> Cost:
        """The cost of a layer in its own symbols."""
        if id(layer) not in self.layers:
            skipped = _optional(layer.graph)
            nodes = [node for node in layer.graph if node.id not in skipped]
            calls = (self.call(n.op) for n in nodes if isinstance(n.op, ir.Call))
            own = Cost(operations(layer.graph, {}, skipped), *_kept(layer.graph, nodes))
            self.layers[id(layer)] = _sum((own, *calls))
        return self.layers[id(layer)]

    def call(self, call: ir.Call) -> Cost:
        """The cost of a called layer in the symbols of its caller; calls in a stack that differ in
        their place alone cost the same."""
        inner = self.layer(call.callee)
        found = [getattr(inner, f.name) for f in fields(Cost)]
        named = set[sympy.Basic]().union(*(expr.free_symbols for expr in found))
        values = {s: v for s, v in in_symbols_of_the_caller(call).items() if s in named}
        key = (id(call.callee), *values.items())
        if key not in self.calls:
            self.calls[key] = Cost(*(expr.subs(values, simultaneous=True) for expr in found))
        return self.calls[key]


def _optional(graph: Graph) -> set[int]:
    """The nodes that depend on an input that may be left out."""
    inputs = [n.id for n in graph if isinstance(n.op, ir.Input) and n.op.optional]
    return {*inputs, *(after for id in inputs for after in graph.descendants(id))}


# --- arithmetic --------------------------------------------------------------------------------


def operations(
    graph: Graph, lengths: Lengths, skipped: Collection[int] = frozenset()
) -> sympy.Expr:
    """Operations of a graph, of called layers none."""
    chosen = [(node, graph.ancestors(node.id)) for node in graph if isinstance(node.op, ir.Top)]
    found: list[sympy.Expr] = []
    for node in graph:
        types = [graph[operand].type for operand in node.operands]
        region = isinstance(node.op, ir.Recurrence | ir.Attend)
        if node.id in skipped or not (region or any("batch" in t.names for t in types)):
            continue
        known = dict(lengths)
        for top, before in chosen:
            if node.id != top.id and node.id not in before:
                size = graph[top.operands[0]].type.axis(top.op.axis).size
                known[top.op.axis] = sympy.Min(top.op.count, size)
        found.append(operations_of(node, types, known))
    return sympy.Add(*found)


def operations_of(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    """Operations of one node with operands of these types, a sequence."""
    if isinstance(node.op, ChunkOp):
        own, inner = node.op.operations(node, types, lengths), node.op.inner
        if inner is None:
            return own
        return node.op.inner_runs(node) * (operations(inner, lengths) + own)
    return OPERATIONS[type(node.op)](node, types, lengths)


Rule = Callable[[Node, Types, Lengths], sympy.Expr]


def _nothing(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    return ZERO


def _written(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    return elements(node.type.axes, lengths)


def _read(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    return elements(types[0].axes, lengths)


def _contract(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    """A product and a sum for each term, or only one of them."""
    axes: dict[str, Axis] = {}
    for labels, type in zip(node.op.ins, types, strict=True):
        axes |= zip(labels, type.axes, strict=True)
    summed = set(axes) - {label for label, _ in node.op.out}
    return (len(types) - 1 + bool(summed)) * elements(axes.values(), lengths)


def _softmax(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    """Largest, difference, exponential, sum and quotient."""
    return 5 * _written(node, types, lengths)


def _solve(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    """Conjugate gradients: a product with the matrix, two inner products and three updates in each
    step; else Cholesky's decomposition and two triangular systems."""
    size = types[0].axis(node.op.row).size
    systems = elements(types[1].axes, lengths) / size
    if node.op.iterations is not None:
        return systems * node.op.iterations * (2 * size**2 + 10 * size)
    return systems * (size**3 / 3 + 2 * size**2)


def _segment(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    """Each pair from the one a token shorter, by one sum or one product."""
    each = ONE if node.op.col is None else 2 * node.type.axis(node.op.col).size
    return each * _written(node, types, lengths)


def _substitute(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    """A product and a sum for each number of a token and each token before it."""
    read = types[0].axis(node.op.read)
    return 2 * lengths.get(read.name, read.size) * _written(node, types, lengths)


def _recurrence(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    stream = node.op.stream
    return lengths.get(stream.name, stream.size) * operations(node.op.body, lengths)


def _attend(node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
    op, known = node.op, dict(lengths)
    if op.window is not None:
        known.setdefault(op.read.name, sympy.Min(op.window, op.read.size))
    # what no reader enters is made once for a token, whichever tokens each reader chooses
    made = [n.id for n in op.body if op.reader.name not in n.type.names and n.type.axes]
    every = {name: size for name, size in known.items() if name != op.read.name}
    rest = [n.id for n in op.body if n.id not in set(made)]
    return operations(op.body, known, made) + operations(op.body, every, rest)


OPERATIONS: dict[type, Rule] = {
    ir.Input: _nothing,
    ir.Param: _nothing,
    ir.Constant: _nothing,
    ir.Position: _nothing,
    ir.Delta: _nothing,
    ir.Noise: _nothing,  # there is none outside training
    ir.Elementwise: _written,
    ir.Reduce: _read,
    ir.Contract: _contract,
    ir.Gather: _nothing,
    ir.Scatter: _read,
    ir.Join: _nothing,
    ir.Reshape: _nothing,
    ir.Top: _read,
    ir.Solve: _solve,
    ir.Shift: _nothing,
    ir.Window: _nothing,
    ir.Softmax: _softmax,
    ir.Segment: _segment,
    ir.Substitute: _substitute,
    ir.Recurrence: _recurrence,
    ir.Attend: _attend,
    ir.Result: _nothing,
    ir.Call: _nothing,  # `cost` adds the layer that is called
}
"""Operations of each op, a sequence, from its operands' types."""
complete("`OPERATIONS` of archc/ir/count.py", OPERATIONS, ir.OPS)


# --- what is kept ------------------------------------------------------------------------------


def _kept(graph: Graph, nodes: Iterable[Node]) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr]:
    """Numbers in recurrences, in tokens of bounded number, and for each token of the sequence."""
    growth, state = {TIME.name: ONE}, ZERO
    bounded: dict[tuple[int, int], sympy.Expr] = {}
    unbounded: dict[int, sympy.Expr] = {}
    for node in nodes:
        op = node.op
        if isinstance(op, ir.Recurrence) and op.stream.name in growth:
            state += sympy.Add(*(elements(s.axes, {}) for s in op.states))
        elif isinstance(op, ir.Window | ir.Shift) and op.stream in growth:
            if isinstance(op, ir.Window) and op.stride is not None and op.blocks is not None:
                growth[op.blocks.name] = growth[op.stream] / op.stride
            count = op.steps if isinstance(op, ir.Shift) else op.width.size - 1
            bounded[node.operands[0], node.id] = count * _token(graph[node.operands[0]], op.stream)
        elif isinstance(op, ir.Attend):
            for id in _read_later(graph, node):
                token = _token(graph[id], op.source)
                if op.source not in growth:
                    bounded[id, -1] = op.read.size * token
                elif op.window is not None:
                    bounded[id, -1] = (op.window - 1) * token
                else:
                    unbounded[id] = growth[op.source] * token
    tail = sympy.Add(*(size for (id, _), size in bounded.items() if id not in unbounded))
    return state, tail, sympy.Add(*unbounded.values())


def _read_later(graph: Graph, attend: Node) -> list[int]:
    """The values that an attention keeps for later tokens; none if it reads later tokens itself."""
    op = attend.op
    if op.source == op.reader.name and not op.causal:
        return []
    roles = zip((role for _, role in op.captures), attend.operands, strict=True)
    return [id for role, id in roles if role != "reader" and op.source in graph[id].type.names]


def _token(node: Node, stream: str) -> sympy.Expr:
    """Numbers of a value at one position of a stream."""
    return elements((axis for axis in node.type.axes if axis.name != stream), {})
