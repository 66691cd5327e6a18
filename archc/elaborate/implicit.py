"""A value of an `attend` that is made from its own earlier tokens: `u[V] = v - b * w @ u[s]`, a
triangular system along the sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.diagnostics import Refused
from archc.dims import BATCH, Axis
from archc.elaborate import ops
from archc.elaborate.reach import reads_past_alone
from archc.elaborate.scope import Scope
from archc.elaborate.values import Lazy, Tensor
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.source import Span
from archc.syntax import tree

EXAMPLE = "u[V] = v - b * w @ u[s]"


def unknown(scope: Scope, node: tree.Index) -> Tensor | None:
    """`u[s]` in the definition of `u` itself: the value at a token read, not yet known. None for
    any other value."""
    attend = scope.attend
    found = scope.find(node.base.id) if isinstance(node.base, tree.Name) else None
    if attend is None or not isinstance(found, Lazy) or found.state != "active":
        return None
    target = attend.targets.get(found.name)
    if target is None:
        return None
    if target.items is None:
        raise _wrong(
            scope,
            node.span,
            f"`{found.name}` is made from itself, and says no dims",
            label="its dims are not yet known",
        )
    if found.name not in attend.unknowns:
        axes = (BATCH, attend.read, *attend.heads, *scope.axes(target.items))
        id = scope.frame.graph.add(ir.Input(node.span.text, Type(axes)), span=node.span)
        attend.unknowns[found.name] = Tensor(scope.frame, id, origin=node.span)
    return attend.unknowns[found.name]


def system(inner: Scope, node: tree.Attend, variable: str, name: str, value: Tensor) -> None:
    """Make what a value is of itself, and what it is otherwise, results of the block."""
    assert inner.attend is not None
    if not reads_past_alone(inner, node, variable):
        text = f"`{name}` is made from itself at tokens that are not all earlier ones"
        help = f"write `{node.keyword} {variable} < t`"
        raise _wrong(
            inner, node.range.span, text, help, "may name the token itself, or a later one"
        )
    own = inner.attend.unknowns[name]
    graph, span = inner.frame.graph, value.origin or node.span
    weights, rest = _Parts(inner, own.node, span).of(inner.frame.bring(value).node)
    if weights is None or rest is None:
        text = f"`{name}` is nothing but a part of itself at earlier tokens"
        raise _wrong(inner, span, text, label="0 at the first token, so at all")
    wanted = {
        axis.name for axis in own.axes if axis.kind == "dim" and axis not in inner.attend.heads
    }
    if not wanted <= set(rest.type.names):
        text = f"`{name}` is {ops.shape(inner, rest)} without what it is of itself"
        raise _wrong(inner, span, text, label=f"it has to have {ops.shape(inner, own)}")
    graph.outputs[weights_of(name)] = weights.node
    graph.outputs[right_of(name)] = rest.node


def check_alone(inner: Scope, node: tree.Attend, outputs: Mapping[str, int]) -> None:
    """Refuse that anything else of the block is made from a value which is known behind it."""
    assert inner.attend is not None
    for name, own in inner.attend.unknowns.items():
        for other, id in outputs.items():
            if own.node in (id, *inner.frame.graph.ancestors(id)):
                text = f"`{other}` is made from `{name}`, which is known behind the block alone"
                help = f"read `{name}` in another `{node.keyword}`"
                at = inner.frame.graph[id].span or node.span
                raise _wrong(inner, at, text, help, "behind the block alone")


def solved(scope: Scope, name: str, made: Mapping[str, Tensor], read: Axis, span: Span) -> Tensor:
    """The value of the system that a block has put out."""
    op = ir.Substitute(read.name)
    return ops.node(scope, op, made[weights_of(name)], made[right_of(name)], span=span)


def weights_of(name: str) -> str:
    """The name of the weights by which a value reads itself at earlier tokens."""
    return f"{name}@weights"


def right_of(name: str) -> str:
    """The name of the part of a value that does not read itself."""
    return f"{name}@right"


def _wrong(scope: Scope, span: Span, message: str, help: str = "", label: str = "") -> Refused:
    helps = [help or f"a value of its own earlier tokens is written `{EXAMPLE}`, linear in `u[s]`"]
    return scope.error("E0317", message, span, label, helps=helps)


class _Parts:
    """A value as weights of an unknown, summed over the tokens read, and the rest."""

    def __init__(self, inner: Scope, own: int, span: Span):
        self.inner, self.own, self.span = inner, own, span
        self.graph: Graph = inner.frame.graph
        self.own_dims = inner.visible(Tensor(inner.frame, own))

    def of(self, id: int) -> tuple[Tensor | None, Tensor | None]:
        """The weights of the unknown in a value, and the value without it; None where it is 0."""
        here = Tensor(self.inner.frame, id)
        if id != self.own and self.own not in self.graph.ancestors(id):
            return None, here
        node = self.graph[id]
        if isinstance(node.op, ir.Contract):
            return self._contract(id, node.op, node.operands)
        if id == self.own or not isinstance(node.op, ir.Elementwise):
            raise self._not_linear(
                id, "`[s]` without weights to sum over" if id == self.own else ""
            )
        parts = [self.of(operand) for operand in node.operands]
        fn = node.op.fn
        if fn in ("add", "sub"):
            (a, c), (b, e) = parts
            return self._sum(fn, a, b), self._sum(fn, c, e)
        if fn == "neg":
            return self._map("neg", parts[0][0]), self._map("neg", parts[0][1])
        if fn == "mul" and None in (parts[0][0], parts[1][0]):
            place = 0 if parts[1][0] is None else 1
            return self._scaled("mul", *parts[place], node.operands[1 - place])
        if fn == "div" and parts[1][0] is None:
            return self._scaled("div", *parts[0], node.operands[1])
        raise self._not_linear(id)

    def _contract(
        self, id: int, op: ir.Contract, operands: Sequence[int]
    ) -> tuple[Tensor | None, Tensor | None]:
        """`w @ u[s]`, or another order of dims."""
        assert self.inner.attend is not None
        if len(operands) == 1:
            if len(op.out) != len(op.ins[0]) or any(x != axis.name for x, axis in op.out):
                raise self._not_linear(id)
            return self.of(operands[0])
        weights, other = operands
        summed = {x for labels in op.ins for x in labels} - {label for label, _ in op.out}
        same = all(label == axis.name for label, axis in op.out)
        if other != self.own or summed != {self.inner.attend.read.name} or not same:
            raise self._not_linear(id)
        return Tensor(self.inner.frame, weights), None

    def _sum(self, fn: str, one: Tensor | None, other: Tensor | None) -> Tensor | None:
        if one is None:
            return other if fn == "add" else self._map("neg", other)
        if other is None:
            return one
        return ops.plain(self.inner, fn, [one, other], self.span)

    def _map(self, fn: str, value: Tensor | None) -> Tensor | None:
        return None if value is None else ops.plain(self.inner, fn, [value], self.span)

    def _scaled(
        self, fn: str, weights: Tensor | None, rest: Tensor | None, factor: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Both parts times a value of the reader, or divided by one: a number, or one for each
        element, which makes a system of each."""
        by = Tensor(self.inner.frame, factor)
        strange = [axis.name for axis in self.inner.visible(by) if axis not in self.own_dims]
        if strange:
            reason = f"`{strange[0]}` is no dim of it"
            raise self._not_linear(factor, reason)
        scaled = [
            None if x is None else ops.plain(self.inner, fn, [x, by], self.span)
            for x in (weights, rest)
        ]
        return scaled[0], scaled[1]

    def _not_linear(self, id: int, reason: str = "") -> Refused:
        at = self.graph[id].span or self.span
        text = "a value is not made of itself by weighted sums over earlier tokens here"
        label = reason or "neither a sum, nor a factor, nor weights of tokens"
        return _wrong(self.inner, at, text, label=label)
