"""Polynomials of an attend's body: values of pairs that are sums of products of values of the
reader, of the token read and of neither.

    (a[t] - b[s]) ** 2  ->  {a a: 1, a b: -2, b b: 1}
    cos(a[t] - b[s])    ->  {cos a cos b: 1, sin a sin b: 1}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import sympy

from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.graph import Graph, Node
from archc.ir.known import is_known

MOST_TERMS, HIGHEST_POWER = 12, 4
"""The most terms, and the highest power, that are still multiplied out."""

Factors = tuple[int, ...]
Terms = dict[Factors, sympy.Expr]
"""A polynomial: what each product of values, by their nodes, is multiplied by."""


class Polynomial:
    """Values of a body as polynomials; what these are made of is added to it. `waves`: whether a
    sine or cosine was taken apart."""

    def __init__(self, body: Graph, node: Node, attend: ir.Attend):
        self.body, self.make, self.waves = body, Sharing(body, node.span), False
        self.reader, self.read = attend.reader.name, attend.read.name

    def of_all(self, ids: Sequence[int]) -> Terms | None:
        """The product of several values."""
        found: Terms = {(): sympy.S.One}
        for id in ids:
            other = self.terms(self.body[id])
            if other is None:
                return None
            found = _added(
                ((tuple(sorted(a + b)), x * y) for (a, x), (b, y) in
                 product(found.items(), other.items()))
            )  # fmt: skip
            if len(found) > MOST_TERMS:
                return None
        return found

    def terms(self, node: Node) -> Terms | None:
        """A value as a polynomial; None where it is none."""
        if isinstance(node.op, ir.Constant):
            return {(): node.op.value}
        if not {self.reader, self.read} <= {*node.type.names}:
            return {(node.id,): sympy.S.One}
        if not isinstance(node.op, ir.Elementwise):
            return None
        fn, operands = node.op.fn, [self.body[operand] for operand in node.operands]
        if fn == "mul":
            return self.of_all(node.operands)
        if fn in ("pow", "div"):
            number = operands[1].op.value if isinstance(operands[1].op, ir.Constant) else None
            if fn == "div" and number is not None:
                return self._scaled(operands[0], 1 / number)
            if number is None or number not in range(1, HIGHEST_POWER + 1):
                return None
            return self.of_all([node.operands[0]] * int(number))
        if fn == "neg":
            return self._scaled(operands[0], sympy.Integer(-1))
        if fn in ("sin", "cos"):
            return self._wave(fn, operands[0])
        if fn not in ("add", "sub"):
            return None
        sign = sympy.Integer(1 if fn == "add" else -1)
        left, right = self.terms(operands[0]), self._scaled(operands[1], sign)
        return None if left is None or right is None else _added((*left.items(), *right.items()))

    def _wave(self, fn: str, angle: Node) -> Terms | None:
        """The sine or cosine of a + b, a of the reader and b of the token read, as products of
        theirs; None of another angle."""
        parts: dict[bool, list[int]] = {True: [], False: []}
        for factors, number in (self.terms(angle) or {}).items():
            names = {name for id in factors for name in self.body[id].type.names}
            if {self.reader, self.read} <= names or not self._is_angle(factors):
                return None
            parts[self.read not in names].append(self.term(factors, number))
        if not all(parts.values()):
            return None
        self.waves = True
        a, b = (self.make.chain("add", parts[side]) for side in (True, False))
        sin_a, cos_a, sin_b, cos_b = (self.make.fn(f, x) for x in (a, b) for f in ("sin", "cos"))
        pairs = {"sin": ((sin_a, cos_b), (cos_a, sin_b)), "cos": ((cos_a, cos_b), (sin_a, sin_b))}
        first, second = (tuple(sorted(each)) for each in pairs[fn])
        return {first: sympy.S.One, second: sympy.Integer(1 if fn == "sin" else -1)}

    def _is_angle(self, factors: Factors) -> bool:
        """Whether a part of an angle may be made of one token: what is learned has no factor that
        grows with the tokens, as the gradients of reader and token read would be large, and alike
        but for their last digits."""
        streams = {self.reader, self.read}
        learned = [id for id in factors if not is_known(self.body, id, streams)]
        known = {name for id in factors if id not in learned for name in self.body[id].type.names}
        return not learned or (len(learned) == 1 and known.isdisjoint(streams))

    def _scaled(self, node: Node, by: sympy.Expr) -> Terms | None:
        """A polynomial times a number."""
        found = self.terms(node)
        return None if found is None else {factors: by * x for factors, x in found.items()}

    def term(self, factors: Factors, number: sympy.Expr) -> int:
        """A product of values, times a number."""
        if not factors:
            return self.make.number(number)
        return self.times(self.make.chain("mul", factors), number)

    def times(self, value: int, number: sympy.Expr) -> int:
        """A value times a number."""
        return value if number == 1 else self.make.fn("mul", self.make.number(number), value)


def _added(terms: Iterable[tuple[Factors, sympy.Expr]]) -> Terms:
    """Terms with those of the same factors as one, without what comes to nothing."""
    found: Terms = {}
    for factors, number in terms:
        found[factors] = found.get(factors, sympy.S.Zero) + number
    return {factors: number for factors, number in found.items() if number != 0}
