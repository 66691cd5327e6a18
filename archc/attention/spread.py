"""An attend's body -> one in which a sum over the tokens read is of weights times their values.

    w @ (a[t] * b[s] - c[t])  ->  a * (w @ b[s]) - c * sum[s](w)
    sum[s](w * m)             ->  sum[s](where(seen, w * m, 0)), of two numbers of a pair

What is weighted is a polynomial in values of the reader and of the token read: what is the
reader's leaves the sum. Kernels alone see it.
"""

from __future__ import annotations

import sympy

from archc.attention.factors import parts_of
from archc.attention.polynomials import Factors, Polynomial
from archc.attention.rewritten import rewritten
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

ZERO = ir.Constant(sympy.S.Zero)


def spread(attend: ir.Attend) -> ir.Attend:
    """The attend with such sums as those of weights and of values of the token read; the same one
    where it has none."""
    inputs = [attend.body[id] for id in attend.body.ids(ir.Input)]
    if attend.body.ids(ir.Noise) or any(node.type.dtype == "bool" for node in inputs):
        return attend  # two sums would drop other weights each; of chosen tokens one has no kernel
    return rewritten(attend, lambda body, node: _Weighted(body, node, attend).made())


class _Weighted(Polynomial):
    """A node that is looked at: whether it sums weights times another value of pairs."""

    def __init__(self, body: Graph, node: Node, attend: ir.Attend):
        super().__init__(body, node, attend)
        self.node = node

    def made(self) -> int | None:
        """The sum in parts; None where it is another."""
        if not isinstance(self.node.op, ir.Contract) or len(self.node.operands) != 2:
            return None
        both = [self.body[operand] for operand in self.node.operands]
        weights, value = sorted(both, key=self._is_weight, reverse=True)
        if not self._is_sum(weights, value):
            return None
        names = {*value.type.names}
        if names <= {*weights.type.names} or parts_of(self.body, value, names) is not None:
            return self._typed(self._summed(self._product(weights, value)))
        terms = self.terms(value) if self.reader in names else None
        if not terms:
            return None
        parts = [self._part(weights, *term) for term in sorted(terms.items())]
        return self._typed(self.make.chain("add", parts))

    def _is_weight(self, node: Node) -> tuple[bool, int]:
        """What sorts weights, of pairs and with the fewest axes, behind what they weigh."""
        names = node.type.names
        return {self.reader, self.read} <= {*names}, -len(names)

    def _is_sum(self, weights: Node, value: Node) -> bool:
        """Whether weights are of pairs and the tokens read are all that is summed, by name."""
        names = [{*operand.type.names} for operand in (weights, value)]
        pairs = {self.reader, self.read} <= names[0] and self.read in names[1]
        plain = all(
            labels == self.body[operand].type.names
            for labels, operand in zip(self.node.op.ins, self.node.operands, strict=True)
        )
        kept = all(label == axis.name for label, axis in self.node.op.out)
        whole = names[0] | names[1] == {*self.node.type.names, self.read}
        return pairs and plain and kept and whole and self.read not in self.node.type.names

    def _product(self, weights: Node, factor: Node) -> int:
        """Weights times a factor of each pair, in the mask of either."""
        for one, other in ((weights, factor), (factor, weights)):
            if one.op == ir.Elementwise("where") and self.body[one.operands[2]].op == ZERO:
                seen, inner, rest = one.operands
                return self.make.fn("where", seen, self.make.fn("mul", inner, other.id), rest)
        return self.make.fn("mul", weights.id, factor.id)

    def _summed(self, pairs: int) -> int:
        """The sum over the tokens read."""
        return self.make.add(ir.Reduce("sum", (self.read,)), pairs)

    def _part(self, weights: Node, factors: Factors, number: sympy.Expr) -> int:
        """The part of one product: the reader's factors times the sum of the others."""
        mine = [id for id in factors if self.reader in self.body[id].type.names]
        rest = [id for id in factors if id not in mine]
        if not any(self.read in self.body[id].type.names for id in rest):
            made, mine = self._summed(weights.id), [*mine, *rest]
        else:
            made = self._weighed(weights, self.body[self.make.chain("mul", rest)])
        made = self.make.chain("mul", [made, *mine])
        return self.times(made, number)

    def _weighed(self, weights: Node, vectors: Node) -> int:
        """Weights times values of the token read, numbers or vectors, summed over these."""
        if {*vectors.type.names} <= {*weights.type.names}:
            return self._summed(self._product(weights, vectors))
        names = {*weights.type.names, *vectors.type.names}
        out = tuple(each for each in self.node.op.out if each[0] in names)
        op = ir.Contract((weights.type.names, vectors.type.names), out)
        return self.make.add(op, weights.id, vectors.id)

    def _typed(self, value: int) -> int:
        """A value with the axes of the sum in their order."""
        type = self.make.type(value)
        if type == self.node.type:
            return value
        return self.make.add(ir.Contract((type.names,), self.node.op.out), value)
