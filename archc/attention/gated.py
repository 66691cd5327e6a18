"""An attend's body -> one in which sums of pairs through gates by channel have three factors.

    sum[K](q[t] * k[s] * exp(sum i in (s, t]: g[i]) / n)
      ->  contract(q / n, k * exp(segment sum of g))

The exponent may be any sum of such segments times numbers: their tokens are added up first. What
of a factor has no number for each entry of the dim is multiplied outside. Kernels alone see it.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from archc.attention.multiplied_out import summed_dim
from archc.attention.rewritten import rewritten
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node

Scaled = tuple[Node, sympy.Expr]
"""A segment, and the number that it is multiplied by."""


def with_gates(attend: ir.Attend) -> ir.Attend:
    """The attend with such sums as products of three; the same one where it has none."""
    return rewritten(attend, lambda body, node: _Gated(body, node, attend).made())


def gate_of(body: Graph, node: Node) -> Node | None:
    """The log gates of a factor exp(segment sum); None of another."""
    if node.op != ir.Elementwise("exp"):
        return None
    segment = body[node.operands[0]]
    if not isinstance(segment.op, ir.Segment) or segment.op.kind != "sum":
        return None
    return body[segment.operands[0]]


def segments_of(body: Graph, node: Node, scale: sympy.Expr = sympy.S.One) -> list[Scaled] | None:
    """The segments that an exponent is a sum of, each with its number."""
    if isinstance(node.op, ir.Segment):
        return [(node, scale)] if node.op.kind == "sum" else None
    if not isinstance(node.op, ir.Elementwise):
        return None
    fn, operands = node.op.fn, [body[operand] for operand in node.operands]
    if fn == "neg":
        return segments_of(body, operands[0], -scale)
    if fn in ("add", "sub"):
        both = [segments_of(body, operands[0], scale)]
        both.append(segments_of(body, operands[1], scale if fn == "add" else -scale))
        return None if None in both else [each for part in both if part for each in part]
    if fn in ("mul", "div") and isinstance(operands[1].op, ir.Constant):
        number = operands[1].op.value
        return segments_of(body, operands[0], scale * (number if fn == "mul" else 1 / number))
    if fn == "mul" and isinstance(operands[0].op, ir.Constant):
        return segments_of(body, operands[1], scale * operands[0].op.value)
    return None


class _Gated:
    """A sum over a dim that is looked at."""

    def __init__(self, body: Graph, node: Node, attend: ir.Attend):
        self.body, self.node, self.make = body, node, Builder(body, node.span)
        self.reader, self.read = attend.reader.name, attend.read.name

    def made(self) -> int | None:
        """The sum as a product of three, and what is multiplied outside."""
        node, pairs = self.node, {self.reader, self.read}
        self.dim = summed_dim(self.body, node, pairs)
        mean = isinstance(node.op, ir.Reduce) and node.op.fn != "sum"
        if not self.dim or mean:
            return None
        factors = [each for operand in node.operands for each in self._factors(self.body[operand])]
        inner = [x for x in factors if self.dim in x.type.names]
        outer = [x.id for x in factors if self.dim not in x.type.names]
        sides = {side: [x.id for x in inner if self._side(x) == side] for side in ("t", "s", "")}
        gates = [x for x in inner if self._side(x) == "ts"]
        parts = [segments_of(self.body, self.body[x.operands[0]]) for x in gates
                 if x.op == ir.Elementwise("exp")]  # fmt: skip
        if not gates or len(parts) < len(gates) or None in parts:
            return None
        if not sides["t"] or not sides["s"]:
            return None
        found = [each for part in parts if part is not None for each in part]
        q = self.make.chain("mul", sides["t"] + sides[""])
        k = self.make.chain("mul", sides["s"])
        product = self._product(q, self.make.fn("mul", k, self._exp(found)))
        return self.make.chain("mul", [product, *outer])

    def _factors(self, node: Node) -> list[Node]:
        """The factors of a value of pairs, itself if it is none."""
        if {self.reader, self.read} <= {*node.type.names} and isinstance(node.op, ir.Elementwise):
            operands = [self.body[operand] for operand in node.operands]
            if node.op.fn == "mul":
                return [each for operand in operands for each in self._factors(operand)]
            if node.op.fn == "div" and isinstance(operands[1].op, ir.Constant):
                number = self.make.number(1 / operands[1].op.value)
                return [*self._factors(operands[0]), self.body[number]]
        return [node]

    def _side(self, node: Node) -> str:
        names = node.type.names
        return "t" * (self.reader in names) + "s" * (self.read in names)

    def _exp(self, found: Sequence[Scaled]) -> int:
        """The exponential of a sum of segments, as that of one."""
        first = found[0][0]
        tokens = [
            self.body[node.operands[0]].id if scale == 1
            else self.make.fn("mul", self.make.number(scale), node.operands[0])
            for node, scale in found
        ]  # fmt: skip
        return self.make.fn("exp", self.make.add(first.op, self.make.chain("add", tokens)))

    def _product(self, *ids: int) -> int:
        """The sum over the dim of the product of two."""
        types = [self.body[id].type for id in ids]
        axes = {axis.name: axis for type in types for axis in type.axes if axis.name != self.dim}
        names = [name for name in self.node.type.names if name in axes]
        op = ir.Contract(tuple(t.names for t in types), tuple((n, axes[n]) for n in names))
        return self.make.add(op, *ids)
