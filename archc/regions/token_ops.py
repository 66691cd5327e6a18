"""The ops of a layer that may be in a token region."""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.token_region import is_token_type

OF_POSITIONS = (ir.Position, ir.Constant, ir.Delta, ir.Elementwise, ir.Reduce, ir.Contract)
"""Ops that tables are made by: no parameter is behind them, no input, and no layer that is called,
which may have parameters."""


def fits(graph: Graph, node: Node, stream: str) -> bool:
    """Whether a node is computed token by token from few tokens: elementwise, a reduction over
    dims, or a look at the last tokens."""
    if not is_token_type(node.type, stream):
        return False
    match node.op:
        case ir.Elementwise() | ir.Join():
            return all(_one_stream(graph[o], stream) for o in node.operands)
        case ir.Reduce(fn, axes):
            kinds = {graph[node.operands[0]].type.axis(name).kind for name in axes}
            return fn != "prod" and kinds <= {"dim"}
        case ir.Contract():
            return is_product(graph, node, stream) or is_matrix_product(graph, node, stream)
        case ir.Shift():
            return node.op.stream == stream and node.type.dtype == "real"
        case ir.Window():
            return is_convolved(graph, node, stream)
        case ir.Noise():
            return True
        case ir.Top(axis):
            return node.type.axis(axis).kind == "dim"
        case ir.Gather():
            return is_free(graph, node.operands[1])
        case _:
            return False


def _one_stream(node: Node, stream: str) -> bool:
    """Whether a value runs along no other stream."""
    return all(axis.kind != "stream" or axis.name == stream for axis in node.type.axes)


def is_matrix_product(graph: Graph, node: Node, stream: str) -> bool:
    """Whether a node is a product of two matrices of each token, summed over dims. How small they
    are is known when it is called."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return False
    types = [graph[operand].type for operand in node.operands]
    if not all(is_token_type(type, stream) and type.dtype == "real" for type in types):
        return False
    first, second = (set(each) for each in node.op.ins)
    summed = (first & second) - {label for label, _ in node.op.out}
    matrices = bool(summed and first - second and second - first)
    return matrices and _sums_of_products(graph, node, stream)


def is_product(graph: Graph, node: Node, stream: str) -> bool:
    """Whether a contraction is an elementwise product that is summed: one of its operands has all
    labels, none of them twice. A product of matrices is none."""
    every = set().union(*map(set, node.op.ins))
    has_all = any(set(own) == every for own in node.op.ins)
    return has_all and _sums_of_products(graph, node, stream)


def _sums_of_products(graph: Graph, node: Node, stream: str) -> bool:
    """Whether a contraction has no label twice, sums over dims alone, and has each token and
    sequence where its operands have it."""
    if any(len(set(each)) != len(each) for each in node.op.ins):
        return False
    if any(not _one_stream(graph[o], stream) for o in node.operands):
        return False
    kept = {label for label, _ in node.op.out}
    summed = {
        axis.kind
        for operand, names in zip(node.operands, node.op.ins, strict=True)
        for axis, label in zip(graph[operand].type.axes, names, strict=True)
        if label not in kept
    }
    renamed = [
        axis.name
        for operand, names in zip(node.operands, node.op.ins, strict=True)
        for axis, label in zip(graph[operand].type.axes, names, strict=True)
        if axis.kind != "dim" and dict(node.op.out).get(label) != axis
    ]
    return summed <= {"dim"} and not renamed


def is_convolved(graph: Graph, node: Node, stream: str) -> bool:
    """Whether the runs of a window are read by products alone that sum over the run: a short
    convolution, which never lays them out."""
    op = node.op
    if op.stream != stream or op.stride is not None or node.type.dtype != "real":
        return False
    users = [graph[user] for user in graph.users(node.id)]
    return node.id not in graph.outputs.values() and all(
        isinstance(user.op, ir.Contract)
        and is_product(graph, user, stream)
        and is_token_type(user.type, stream)
        and op.width.name not in user.type.names
        and _sums(graph, user, node, op.width.name)
        for user in users
    )


def _sums(graph: Graph, user: Node, window: Node, width: str) -> bool:
    """Whether a product sums over the runs of a window."""
    place = user.operands.index(window.id)
    label = user.op.ins[place][window.type.names.index(width)]
    return label not in {kept for kept, _ in user.op.out}


def is_free(graph: Graph, id: int) -> bool:
    """Whether a value is made of sizes and of positions along dims alone: each program of a kernel
    makes it again for nothing."""
    node = graph[id]
    if isinstance(node.op, ir.Position):
        return node.op.axis.kind == "dim"
    if isinstance(node.op, ir.Constant | ir.Delta):
        return True
    return isinstance(node.op, ir.Elementwise) and all(is_free(graph, o) for o in node.operands)


def is_table(graph: Graph, id: int, stream: str) -> bool:
    """Whether a value runs along the tokens, is the same for every sequence, and is made of
    positions alone, as the cosines of rotations are: nothing learns by its gradient. One that
    depends on a parameter or an input is none, and has a gradient as every other input."""
    type = graph[id].type
    made = (id, *graph.ancestors(id))
    same = stream in type.names and not is_token_type(type, stream)
    return same and all(isinstance(graph[each].op, OF_POSITIONS) for each in made)
