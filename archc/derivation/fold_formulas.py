"""A fold over the tokens read as formulas: the score of a reader t and a token read s, its
derivative, and the names of what enters."""

from __future__ import annotations

import sympy

from archc.attention.weighted_sum import Bound, Lookup, Source, WeightedSum
from archc.derivation.costs import cost_math
from archc.derivation.letters import OTHERS
from archc.derivation.maths import (
    EQUALS,
    NEGATIVE,
    PLUS,
    Fence,
    Fraction,
    Math,
    Name,
    Number,
    Power,
    Row,
    Sign,
    Sum,
    Words,
    function,
    named,
    row,
    slope,
    transposed,
)
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.value_names import cotangent, primal

LEVELS = {"or": 0, "and": 0, **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "where"), 0),
          "add": 1, "sub": 1, "neg": 1, "mul": 2}  # fmt: skip
"""How tightly the text of a function holds together; what is not here is one part."""

SIGNS = {"or": "or", "and": "and", "add": "+", "sub": "−", "eq": "=", "ne": "≠", "lt": "<",
         "le": "≤", "gt": ">", "ge": "≥"}  # fmt: skip

READ = "s"
"""The subscript of a token read."""


class FoldFormulas:
    """The formulas of one fold. Subscripts are t for the reader and s for the token read."""

    def __init__(self, fold: WeightedSum, body: Graph):
        self.fold, self.body = fold, body
        self.sources = {source.name: source for source in fold.sources}
        self.dots = {dot.name: dot for dot in fold.dots}
        self.lookups = {lookup.name: lookup for lookup in fold.lookups}
        self.at = {fold.reader.name: "t", fold.read.name: READ}
        own = [self.source(source) for source in fold.sources]
        parts = [part for each in own for part in (each.parts if isinstance(each, Row) else [each])]
        self.taken = {part.text for part in parts if isinstance(part, Name)}
        self.score, self.factor = self.letter("z"), self.letter("f")

    # --- names ---

    def letter(self, wanted: str) -> str:
        """A letter that nothing that enters has, `wanted` if that is free."""
        free = (each for each in wanted + OTHERS.get(wanted, "") if each not in self.taken)
        return next(free, wanted + "′")

    def pair(self, name: str) -> Math:
        """A value of a pair: `p_[t,s]`."""
        return Name(name, ("t", READ))

    def source(self, source: Source) -> Math:
        """A value that enters, at its token; of a running sum, what is summed."""
        name = self.body[source.node].name or source.name
        if source.summed:
            return named(name, "r")
        subs = {"reader": ("t",), "read": (READ,)}.get(source.role, ())
        return named(name, *subs)

    def product(self, name: str) -> Math:
        """`q_t k_s`, a product of vectors."""
        dot = self.dots[name]
        return row(
            transposed(self.source(self.sources[dot.reader])), self.source(self.sources[dot.read])
        )

    def lookup(self, lookup: Lookup) -> Math:
        """`bias[t - s]`, a table at the index of a pair."""
        index = self.formula(self.fold.pairs, self.fold.pairs.outputs[lookup.index])
        return row(self.source(self.sources[lookup.table]), Fence(index, "[", "]"))

    # --- formulas ---

    def output(self, name: str) -> Math:
        """The score, the factor, or where pairs are read."""
        return self.formula(self.fold.pairs, self.fold.pairs.outputs[name])

    def slope_of(self, name: str) -> Math:
        """The gradient of an input of the score or of the factor, from those of both."""
        assert self.fold.slopes is not None, "a fold that learns has slopes"
        return self.formula(self.fold.slopes, self.fold.slopes.outputs[cotangent(name)])

    def formula(self, graph: Graph, id: int, level: int = 0) -> Math:
        """The formula of a value of a pair, in brackets where it stands in a tighter one."""
        node = graph[id]
        found = self._formula(graph, node)
        own = LEVELS.get(node.op.fn, 3) if isinstance(node.op, ir.Elementwise) else 3
        return Fence(found) if own < level else found

    def _formula(self, graph: Graph, node: Node) -> Math:
        match node.op:
            case ir.Input(name):
                return self._input(name)
            case ir.Position(axis):
                return Name(self.at.get(axis.name, axis.name))
            case ir.Constant(number):
                return cost_math(number)
        between = self._between(graph, node)
        return self._applied(graph, node) if between is None else between

    def _input(self, name: str) -> Math:
        """The formula of an input: a slope, a product of pairs, a lookup or a source."""
        if name == cotangent("score"):
            return slope(self.pair(self.score))
        if name == cotangent("factor"):
            return slope(self.pair(self.factor))
        if name in self.dots:
            return self.product(name)
        if name in self.lookups:
            return self.lookup(self.lookups[name])
        return self.source(self.sources[name])

    def _between(self, graph: Graph, node: Node) -> Math | None:
        """The difference of running sums as the sum that it is."""
        if node.op != ir.Elementwise("sub"):
            return None
        ends = [graph[o].op for o in node.operands]
        found = [self.sources.get(op.name) if isinstance(op, ir.Input) else None for op in ends]
        if found[0] is None or found[1] is None or not found[0].summed:
            return None
        first = row(Name("r"), EQUALS, Name(READ), PLUS, Number("1"))
        return row(Sum("∑", first, Name("t")), self.source(found[0]))

    def _applied(self, graph: Graph, node: Node) -> Math:
        fn, level = node.op.fn, LEVELS.get(node.op.fn, 3)
        if fn == "real":
            return self.formula(graph, node.operands[0])
        if fn == "div":
            return Fraction(*(self.formula(graph, o) for o in node.operands))
        if fn == "neg":
            return row(NEGATIVE, self.formula(graph, node.operands[0], 2))
        if fn == "mul" and node.operands[0] == node.operands[1]:
            return Power(self.formula(graph, node.operands[0], 4), Number("2"))
        if fn == "mul":
            left, right = (self.formula(graph, o, 2) for o in node.operands)
            return row(left, Sign("·") if isinstance(right, Fence) else None, right)
        if fn == "pow":
            base, exponent = node.operands
            return Power(self.formula(graph, base, 4), self.formula(graph, exponent))
        if fn == "where":
            yes, no = (self.formula(graph, o) for o in node.operands[1:])
            condition = self.formula(graph, node.operands[0])
            return row(yes, Words(" if "), condition, Words(", else "), no)
        if fn in SIGNS:
            left = self.formula(graph, node.operands[0], level if fn in LEVELS else 0)
            right = self.formula(graph, node.operands[1], level + (fn == "sub"))
            return row(left, Sign(SIGNS[fn]), right)
        return function(fn, *(self.formula(graph, o) for o in node.operands))

    def bound(self, bound: Bound) -> Math:
        """`s ≤ t`, `s ≥ t + 1 − w`."""
        limit = cost_math(bound.slope * sympy.Symbol("t") + bound.offset)
        return row(Name(READ), Sign("≤" if bound.most else "≥"), limit)

    def learned(self) -> list[tuple[str, Math]]:
        """The inputs of the score that have a gradient, with it; products first."""
        slopes = self.fold.slopes
        names = [primal(n) or n for n in slopes.outputs] if slopes is not None else []
        names.sort(key=lambda name: name not in self.dots)
        return [(name, self.slope_of(name)) for name in names]
