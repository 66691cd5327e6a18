"""The end of an elaboration: drop what nothing needs, settle how parameters start."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from archc.elaborate import ops
from archc.elaborate.scope import Context, Scope
from archc.elaborate.values import Tensor
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.syntax import tree


def check_outputs(scope: Scope, decl: tree.Decl, outputs: dict[str, Tensor]) -> None:
    """Refuse outputs that no input enters; a condition is put out as 0 or 1."""
    graph = scope.context.frame.graph
    for name, made in list(outputs.items()):
        value = scope.context.frame.bring(made)
        before = graph.ancestors(value.node) | {value.node}
        entered = any(isinstance(graph[id].op, ir.Input) for id in before)
        if not entered and all(axis.kind == "dim" for axis in value.axes):
            raise scope.error(
                "E0222",
                f"no input enters the output `{name}` of `{decl.name}`",
                value.origin or decl.header,
                "the same for all that comes in",
                helps=[f"make it from an input: `... + 0 * {_an_input(decl)}`"],
            )
        if value.type.dtype == "bool":
            outputs[name] = ops.node(scope, ir.Elementwise("real"), value, span=value.origin)


def _an_input(decl: tree.Decl) -> str:
    """The name of some input of a layer."""
    names = (item.name for s in decl.body if isinstance(s, tree.Input) for item in s.names)
    return next(names, "x")


def finish(context: Context, decl: tree.Decl, outputs: Mapping[str, Tensor]) -> ir.Layer:
    """The layer, its graph pruned to what the outputs need; inputs stay, and so do the parameters
    of the branches taken."""
    graph = context.frame.graph
    graph.outputs = {name: context.frame.bring(tensor).node for name, tensor in outputs.items()}
    graph.prune(keep=[n.id for n in graph if isinstance(n.op, ir.Input)])
    for node in list(graph):
        if isinstance(node.op, ir.Param) and node.op.init == ir.Init("default", ()):
            init = ir.Init("default", (contracted_size(graph, node),))
            graph.replace_op(node.id, ir.Param(node.op.name, node.op.axes, init))
    unique = {(str(r.condition), r.text): r for r in context.requirements}
    return ir.Layer(
        decl.name,
        decl.kind,
        decl.doc,
        tuple(context.args),
        graph,
        decl.span.source,
        decl.header,
        tuple(unique.values()),
        context.chunk,
    )


def contracted_size(graph: Graph, node: Node) -> sympy.Expr:
    """How many terms a parameter's use sums: the square root of it scales the parameter down."""
    for user in graph.users(node.id):
        reader = graph[user]
        place = reader.operands.index(node.id)
        if isinstance(reader.op, ir.Contract):
            kept = {label for label, _ in reader.op.out}
            labels = reader.op.ins[place]
            sizes = [
                a.size for a, label in zip(node.type.axes, labels, strict=True) if label not in kept
            ]
            if sizes:
                return sympy.Mul(*sizes)
            return contracted_size(graph, reader) if len(reader.operands) == 1 else sympy.Integer(1)
        if isinstance(reader.op, ir.Recurrence | ir.Attend):
            inside = _captured(reader, place)
            if inside is not None:
                return contracted_size(reader.op.body, inside)
    return sympy.Integer(1)


def _captured(region: Node, place: int) -> Node | None:
    """The node of a region's body that stands for its operand."""
    captures = [c if isinstance(c, str) else c[0] for c in region.op.captures]
    if place >= len(captures):
        return None
    for node in region.op.body:
        if isinstance(node.op, ir.Input) and node.op.name == captures[place]:
            return node
    return None
