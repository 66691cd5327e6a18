"""Emission of systems: one given by its products, by conjugate gradients, and a triangular one
along the tokens, of which what was solved earlier is kept."""

from __future__ import annotations

from archc.backends.eager.chunk_rows import applied, tensor
from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, Value, shape_text
from archc.backends.expression import MUL, Text, binary, call
from archc.backends.index import aligned, permuted

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


def substitute(scope: Scope, node: Node) -> Value:
    """`u = substituted(weights, right, state.u)`, laid out with the tokens before what the weights
    do not have; what is kept is a row for each token seen."""
    assert not node.op.reverse, "PyTorch differentiates the systems of a layer"
    weights, right = (scope.as_data(scope.real(scope.value(o))) for o in node.operands)
    read, names = node.op.read, node.type.names
    common = ["batch", *(n for n in names if n in weights.layout and n not in ("batch", "t"))]
    rest = [n for n in names if n not in (*common, "t")]
    inside = [*common, "t", *rest]
    given = [
        aligned(weights.text, weights.layout, [*common, "t", read]),
        aligned(right.text, right.layout, inside),
    ]
    field = scope.memory.field("seen", node.id) if scope.memory else None
    if field is not None:
        given.append(permuted(Text(f"state.{field.name}"), names, inside))
    made = Value(Text(scope.names.fresh(node.name or scope.hint(node))), names, DATA)
    text = call("substituted", *(text.text for text in given))
    text = permuted(text, inside, names)
    scope.writer.line(f"{made.text} = {text}", shape_text(made))
    scope.file.refused.append(f"    {made.text}: a triangular system along the tokens")
    if field is not None:
        seen = scope.names.fresh(f"{field.name}_seen")
        given = [f"state.{field.name}", made.text, *filter(None, [scope.wanted])]
        scope.writer.line(f"{seen} = {call('grown', *given)}")
        scope.seen[node.id] = scope.kept[field.name] = seen
    return made
