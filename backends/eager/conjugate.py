"""A system that is given by its products becomes a function for the product and a call."""

from __future__ import annotations

from archc.backends.eager.chunk_rows import applied, tensor
from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, Value
from archc.backends.expression import MUL, Text, binary, call
from archc.backends.index import aligned

from archc.ir.graph import Node


def conjugate(scope: Scope, node: Node) -> Value:
    """`conjugate_gradients(lambda p: product(p, k), b, (-1,), steps)`."""
    op, layout = node.op, scope.node_layout(node)
    values = {
        name: tensor(scope, o) for name, o in zip(op.captures, node.operands[1:], strict=True)
    }
    given = {"p": Value(Text("p"), layout, DATA), **values}
    title = scope.file.names.fresh(f"{scope.region or scope.target(node.id)}_product")
    stream = next(a for a in node.type.axes if a.kind == "stream")
    function = GraphFunction(scope, op.body, title, given, ["p", *op.captures], stream)
    extra = function.write({"product": layout}, "The product of a matrix with `p`.")
    arguments = ["p" if n == "p" else values[n].text.text for n in function.inputs]
    chunk = scope.chunk or "None"
    product = call(f"lambda p: {title}", *arguments, *extra.values(), chunk)
    b = tensor(scope, node.operands[0])
    shape = ", ".join(scope.length(axis).text for axis in node.type.axes)
    right = aligned(b.text, b.layout, layout)
    right = right if len(b.layout) == len(layout) else call(f"{right}.expand", shape)
    dims = "".join(f"{layout.index(name) - len(layout)}, " for name in op.over)
    steps = Text("2")
    for name in op.over:
        steps = binary("*", MUL, steps, scope.length(node.type.axis(name)))
    if op.iterations is not None:
        steps = scope.size(op.iterations)
    text = applied("conjugate_gradients", Text(f"{product}[0]"), right, f"({dims})", steps)
    return Value(text, layout, DATA)
