"""Emission of a triangular system along the tokens: what was solved earlier is kept."""

from __future__ import annotations

from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, Value, shape_text
from archc.backends.expression import Text
from archc.backends.index import aligned, permuted

from archc.ir.graph import Node


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
    call = permuted(Text(f"substituted({', '.join(text.text for text in given)})"), inside, names)
    scope.writer.line(f"{made.text} = {call}", shape_text(made))
    scope.file.refused.append(f"    {made.text}: a triangular system along the tokens")
    if field is not None:
        seen = scope.names.fresh(f"{field.name}_seen")
        scope.writer.line(f"{seen} = grown(state.{field.name}, {made.text})")
        scope.seen[node.id] = scope.kept[field.name] = seen
    return made
