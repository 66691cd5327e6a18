"""Layer IR -> calls that torch has a name for: small patterns that read better, and run faster,
as one.

Each rule looks at one node and answers with the call that replaces it, or None. They are
recognised by their algebra alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import sympy
from archc.backends.eager import carry
from archc.backends.eager.attention import attention
from archc.backends.eager.chunk_rows import decay_of_rows, joint_gradient
from archc.backends.eager.fused import Fused
from archc.backends.eager.value import Value, shape_text
from archc.backends.expression import ATOM, MUL, Text, binary, call
from archc.backends.index import aligned, dims, permuted

from archc.attention.grouped import grouped
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

if TYPE_CHECKING:
    from archc.backends.eager.scope import Scope

Labels = tuple[str, ...]


def fuse(graph: Graph) -> dict[int, Fused]:
    """The patterns of a graph, by the node whose value they give."""
    found: dict[int, Fused] = {}
    for node in graph:
        for rule in RULES:
            fused = rule(graph, node)
            if fused is not None:
                found[node.id] = fused
                break
    return found


def silu(graph: Graph, node: Node) -> Fused | None:
    """a * sigmoid(a) -> silu(a)."""
    if node.op != ir.Elementwise("mul"):
        return None
    for gate, a in (node.operands, node.operands[::-1]):
        if graph[gate].op == ir.Elementwise("sigmoid") and graph[gate].operands == (a,):
            return Fused((a,), partial(_unary, operand=a, function="F.silu"), "silu")
    return None


def gated(graph: Graph, node: Node) -> Fused | None:
    """a * (sigmoid(a) * b) -> silu(a) * b."""
    if node.op != ir.Elementwise("mul"):
        return None
    for a, inner in (node.operands, node.operands[::-1]):
        if graph[inner].op != node.op or graph.users(inner) != (node.id,) or graph[inner].name:
            continue
        for gate, b in (graph[inner].operands, graph[inner].operands[::-1]):
            if graph[gate].op == ir.Elementwise("sigmoid") and graph[gate].operands == (a,):
                return Fused((a, b), partial(_gated, a=a, b=b), "gated")
    return None


def _gated(scope: Scope, node: Node, a: int, b: int) -> Value:
    layout = scope.node_layout(node)
    values, kind = scope.joined([scope.value(a), scope.value(b)])
    texts = [aligned(v.text, v.layout, layout) for v in values]
    text = binary("*", MUL, call("F.silu", texts[0]), texts[1])
    return Value(text, layout, kind)


def _unary(scope: Scope, node: Node, operand: int, function: str) -> Value:
    value = scope.value(operand)
    return Value(call(function, value.text), value.layout, value.kind)


def dropout(graph: Graph, node: Node) -> Fused | None:
    """x * noise -> dropout(x): the operand of a noise gives its shape alone."""
    if node.op != ir.Elementwise("mul"):
        return None
    for noise, x in (node.operands, node.operands[::-1]):
        op = graph[noise].op
        if isinstance(op, ir.Noise) and graph[noise].type == graph[x].type:
            return Fused((x,), partial(_dropout, x=x, p=op.p), "dropout")
    return None


def _dropout(scope: Scope, node: Node, x: int, p: sympy.Expr) -> Value:
    value = scope.as_data(scope.value(x))
    text = call("F.dropout", value.text, scope.number(p), scope.ask(scope.training))
    return Value(text, value.layout, value.kind)


def short_convolution(graph: Graph, node: Node) -> Fused | None:
    """The last tokens times a filter, summed over them -> one call that never lays them out."""
    if not ir.is_product(node.op):
        return None
    for this in (0, 1):
        window, weight = node.operands[this], node.operands[1 - this]
        op, labels, taps = graph[window].op, node.op.ins[this], node.op.ins[1 - this]
        if not isinstance(op, ir.Window) or op.stride is not None or window == weight:
            continue
        width = labels[graph[window].type.names.index(op.width.name)]
        summed = set(labels) - {label for label, _ in node.op.out}
        if summed == {width} and width in taps and set(taps) <= set(labels):
            operands = (graph[window].operands[0], weight)
            emit = partial(_convolution, window=window, labels=labels, taps=taps, width=width)
            return Fused(operands, emit, "conv")
    return None


def _convolution(
    scope: Scope, node: Node, window: int, labels: Labels, taps: Labels, width: str
) -> Value:
    """`short_convolution(x, past, w)`, the filter laid out as x is, its taps last."""
    source = scope.graph[window]
    x = scope.per_token(source.operands[0], source.op.stream, short=True)
    weight = next(o for o in node.operands if o != window)
    label_of = dict(zip(source.type.names, labels, strict=True))
    want = [*(label_of[name] for name in x.layout), width]
    w = aligned(scope.as_data(scope.value(weight)).text, taps, want)
    before, after = carry.past(scope, source)
    axis_of = {label: axis.name for label, axis in node.op.out}
    have = tuple(axis_of[label] for label in want[:-1])
    name = scope.names.fresh(f"{scope.target(node.id)}_conv")
    result = Value(Text(name), have, x.kind)
    borders = [scope.cu_seqlens] * bool(scope.cu_seqlens)
    text = call("short_convolution", x.text, before, w, *borders)
    scope.writer.line(f"{name}, {after} = {text}", shape_text(result))
    return Value(
        permuted(result.text, have, scope.node_layout(node)), scope.node_layout(node), x.kind
    )


def backwards(graph: Graph, node: Node) -> Fused | None:
    """x[T - 1 - t] -> x.flip(1)."""
    if not isinstance(node.op, ir.Gather):
        return None
    x, place = node.operands
    axis = graph[x].type.axis(node.op.axis)
    if graph[place].op != ir.Elementwise("sub"):
        return None
    last, own = (graph[operand].op for operand in graph[place].operands)
    if last != ir.Constant(axis.size - 1) or own != ir.Position(axis):
        return None
    return Fused((x,), partial(_flipped, x=x), "flipped")


def _flipped(scope: Scope, node: Node, x: int) -> Value:
    value = scope.value(x)
    text = call(f"{value.text.at(ATOM)}.flip", dims(value.layout, [node.op.axis]))
    return scope.settled(node, text, value.layout, value.kind)


def grouping(graph: Graph, node: Node) -> Fused | None:
    """x[head // share] along the groups -> each group repeated for its heads."""
    found = grouped(graph, node)
    if found is None:
        return None
    emit = partial(_repeat, operand=found.value, share=found.share)
    return Fused((found.value,), emit, "repeated")


def _repeat(scope: Scope, node: Node, operand: int, share: sympy.Expr) -> Value:
    value = scope.value(operand)
    dim = dims(value.layout, [node.op.axis])
    text = call(f"{value.text.at(ATOM)}.repeat_interleave", scope.size(share), dim)
    new = next(name for name in node.type.names if name not in value.layout)
    have = tuple(new if name == node.op.axis else name for name in value.layout)
    return scope.settled(node, text, have, value.kind)


def gradients(graph: Graph, node: Node) -> Fused | None:
    """The gradients of decayed products, three at once."""
    found = joint_gradient(graph, node)
    return None if found is None else Fused(*found, "gradient")


def decay(graph: Graph, node: Node) -> Fused | None:
    """The decay of values over the rows of a chunk, as decayed products take it."""
    found = decay_of_rows(graph, node)
    return None if found is None else Fused(*found, "decay")


RULES: tuple[Callable[[Graph, Node], Fused | None], ...] = (
    silu, gated, attention, dropout, short_convolution, backwards, grouping, gradients,
    decay,
)  # fmt: skip
