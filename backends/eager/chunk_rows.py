"""Values as rows [..., C, K] of chunks, the factors by which they decay, and the gradient that
gives three values at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from archc.backends.eager.value import KIND_OF, NUMBER, Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import aligned

from archc.diagnostics import InternalError
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

if TYPE_CHECKING:
    from archc.backends.eager.scope import Scope


def applied(name: str, *arguments: Text | str) -> Text:
    """A call of a function of the runtime, without arguments that are left out."""
    return call(name, *(argument for argument in arguments if str(argument)))


def tensor(scope: Scope, id: int) -> Value:
    """A value as a tensor; a number becomes one, which the GPU fills in: to copy it there would
    wait until all that was launched is done."""
    value = scope.value(id)
    if value.kind != NUMBER:
        return value
    kind = f"device={scope.device}, dtype={scope.dtype}"
    made = call("torch.full", "()", value.text, kind)
    return Value(made, (), KIND_OF[scope.graph[id].type.dtype])


class Rows:
    """How values stand as rows: [outer..., row, K], where K is all of `inner` in one dim; of these,
    some of `values` may lack dims that others have."""

    def __init__(
        self, scope: Scope, outer: Sequence[str], row: str, inner: Sequence[str],
        values: Sequence[int],
    ):  # fmt: skip
        self.scope, self.outer, self.row, self.inner = scope, list(outer), row, list(inner)
        self.sizes: dict[str, str] = {}
        for id in values:
            self._learn(id)

    def of(self, id: int) -> Text:
        """A value as rows; dims that it lacks are 1, or missing on the left."""
        value = tensor(self.scope, id)
        if not value.bound and len(value.text.text) > 30:
            self.scope.bind(id)
            value = self.scope.values[id]
        layout = [*self.outer, self.row, *self.inner]
        text = aligned(value.text, value.layout, layout)
        if len(self.inner) == 1:
            return text
        if not self.inner:
            return Text(f"{text.at(ATOM)}[..., None]")
        places = [i for i, name in enumerate(layout) if name in value.layout]
        kept = len(layout) - len(self.inner) - (places[0] if places else len(layout))
        sizes = [self.sizes[name] for name in self.inner]
        text = call(f"{text.at(ATOM)}.expand", *["-1"] * max(kept, 0), *sizes)
        return call(f"{text}.flatten", str(-len(self.inner)))

    def apart(self, text: Text) -> Text:
        """A result with the dims of `inner` apart again."""
        if len(self.inner) == 1:
            return text
        if not self.inner:
            return Text(f"{text.at(ATOM)}[..., 0]")
        sizes = ", ".join(self.sizes[name] for name in self.inner)
        return call(f"{text.at(ATOM)}.unflatten", "-1", f"({sizes})")

    def _learn(self, id: int) -> None:
        for axis in self.scope.graph[id].type.axes:
            if axis.name in self.inner and len(self.inner) > 1:
                self.sizes.setdefault(axis.name, self.scope.length(axis).text)


def decays(rows: Rows, gate: int, op: ck.Gram | ck.Mix | ck.GateGradient) -> Text:
    """The name of the factors for a gate: a line of its own, which all that decays alike reads."""
    if op.anchor == ck.SUMS:
        raise InternalError(f"pairs of rows `{op.row}` decay by sums of gates: for kernels alone")
    scope, text = rows.scope, rows.of(gate)
    key = (text.text, op.exclusive)
    if key not in scope.decays:
        made = applied("decays_between", text, "exclusive=True" if op.exclusive else "")
        scope.decays[key] = scope.names.fresh("decays")
        scope.writer.line(f"{scope.decays[key]} = {made}")
    return Text(scope.decays[key])


def decay_of_rows(graph: Graph, node: Node) -> tuple[tuple[int, ...], partial] | None:
    """exp(sums(g)) from the first row on, or of the rows after each, where a Gram or its gradient
    decays alike -> its factors have that already."""
    if node.op != ir.Elementwise("exp") or not isinstance(graph[node.operands[0]].op, ck.Sums):
        return None
    sums = graph[node.operands[0]]
    if sums.op.reverse != sums.op.exclusive:
        return None
    for id in graph.users(sums.operands[0]):
        gram = graph[id]
        if isinstance(gram.op, ck.Gram | ck.GateGradient):
            outer, inner = _gram_axes(graph, gram)
            alike = (gram.op.row, gram.op.anchor) == (sums.op.axis, "halves")
            if alike and len(inner) == 1 and {*outer, *inner, gram.op.row} == {*node.type.names}:
                return sums.operands, partial(_decay, gram=gram, reverse=sums.op.reverse)
    return None


def _decay(scope: Scope, node: Node, gram: Node, reverse: bool) -> Value:
    """`decays[-1][1]`."""
    op, (outer, inner) = gram.op, _gram_axes(scope.graph, gram)
    rows = Rows(scope, outer, op.row, inner, gram.operands)
    factors = decays(rows, sums_of(scope.graph, node), op)
    text = Text(f"{factors}[-1][{0 if reverse else 1}]")
    return scope.settled(node, text, [*outer, op.row, *inner])


def _gram_axes(graph: Graph, gram: Node) -> tuple[list[str], list[str]]:
    """The axes before the rows of a Gram, or of a gradient of one, and those it sums over."""
    if isinstance(gram.op, ck.Gram):
        outer = [n for n in gram.type.names if n not in (gram.op.row, gram.op.col.name)]
        return outer, list(gram.op.over)
    weights = graph[gram.operands[0]].type.names
    names = [name for name in _names(graph, gram) if name != gram.op.row]
    return [n for n in names if n in weights], [n for n in names if n not in weights]


def sums_of(graph: Graph, node: Node) -> int:
    """The gate of exp(sums(gate))."""
    return graph[node.operands[0]].operands[0]


# --- gradients ----------------------------------------------------------------------------------


def joint_gradient(graph: Graph, node: Node) -> tuple[tuple[int, ...], partial] | None:
    """mix(d, b, g), mix(d, a, g) transposed, gate_gradient(d, a, b, g) -> one call that gives all
    three: the operands of that call and its emission, for the node's value."""
    if not isinstance(node.op, ck.Mix):
        return None
    for id in graph.users(node.operands[0]):
        other = graph[id]
        if not isinstance(other.op, ck.GateGradient) or not _alike(node.op, other.op):
            continue
        d, a, b, g = other.operands
        if node.operands != ((d, a, g) if node.op.transpose else (d, b, g)):
            continue
        makers = {o for operand in other.operands for o in (operand, *graph.ancestors(operand))}
        if node.id not in makers and set(node.type.names) == set(_names(graph, other)):
            return other.operands, partial(_part, owner=id)
    return None


def _part(scope: Scope, node: Node, owner: int) -> Value:
    return gradients(scope, node, owner, 1 if node.op.transpose else 0)


def _alike(one: ck.Mix, other: ck.GateGradient) -> bool:
    return all(
        getattr(one, name) == getattr(other, name) for name in ("row", "col", "strict", "exclusive")
    )


def _names(graph: Graph, node: Node) -> list[str]:
    """The axes of the gradients: all of the cotangent's but the column, and those summed over."""
    names = [name for operand in node.operands for name in graph[operand].type.names]
    return [name for name in dict.fromkeys(names) if name != node.op.col]


def gradients(scope: Scope, node: Node, owner: int, place: int) -> Value:
    """One of the three results of `decayed_gram_gradients`, whose line is written once."""
    gate = scope.graph[owner]
    op, weights = gate.op, tensor(scope, gate.operands[0])
    names = [name for name in _names(scope.graph, gate) if name != op.row]
    outer = [name for name in names if name in weights.layout]
    inner = [name for name in names if name not in weights.layout]
    rows = Rows(scope, outer, op.row, inner, gate.operands)
    if owner not in scope.joint:
        d = aligned(weights.text, weights.layout, [*outer, op.row, op.col])
        a, b = (rows.of(operand) for operand in gate.operands[1:3])
        factors = decays(rows, gate.operands[3], op)
        switches = [f"{n}=True" for n in ("strict", "exclusive") if getattr(op, n)]
        if op.exclusive and not op.strict:
            switches = ["strict=True", *switches]
        text = applied("decayed_gram_gradients", d, a, b, factors, *switches)
        name = scope.names.fresh(f"{scope.target(owner)}_gradients")
        scope.writer.line(f"{name} = {text}")
        scope.joint[owner] = (name, rows)
    name, rows = scope.joint[owner]
    text, have = rows.apart(Text(f"{name}[{place}]")), [*outer, op.row, *inner]
    wanted = scope.node_layout(node)
    lost = [have.index(axis) for axis in have if axis not in wanted]
    if lost:
        text = call(f"{text.at(ATOM)}.sum", f"({', '.join(map(str, lost))},)")
    return scope.settled(node, text, [axis for axis in have if axis in wanted])
