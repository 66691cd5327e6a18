"""Formulas of pairs on tiles: elementwise graphs of the layer IR, written into a program."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sympy

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.lowering.algebra import explain_numbers
from archc.tile.compose import Composer, Tile
from archc.tile.language import Dim, kind

LOGIC = ("and", "or", "not")
SUMS = ("add", "sub", "neg")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True)
class Running:
    """A running sum with twice the digits of a float32: a number, and what it lacks."""

    high: Tile
    low: Tile


Known = Tile | Running
"""An input of a formula."""


def tile(known: Known) -> Tile:
    """The tile of a value, which is known to have one."""
    assert isinstance(known, Tile), "a running sum is read as a difference alone"
    return known


class Formula:
    """A graph whose inputs are tiles. A value has the dims that what it is made of has: numbers of
    the reader stay numbers of the reader until they meet a pair.

    `inputs` are tiles by name, `positions` by the axis, `numbers` symbols of the program for the
    constants that are not known yet. `pairs` are the dims of a pair, in the order of its tiles."""

    def __init__(
        self, k: Composer, graph: Graph, inputs: Mapping[str, Known], positions: Mapping[str, Tile],
        numbers: Mapping[sympy.Expr, sympy.Symbol], pairs: tuple[Dim, Dim],
    ):  # fmt: skip
        self.k, self.graph, self.pairs = k, graph, pairs
        self.inputs, self.positions, self.numbers = inputs, positions, numbers
        self.known: dict[int, Tile] = {}

    def outputs(self) -> dict[str, Tile]:
        """Every output of the graph."""
        return {name: self.value(id) for name, id in self.graph.outputs.items()}

    def ready(self) -> None:
        """Write what can be made of the inputs that there are, so that it stands before a loop."""
        there = set[int]()
        for node in self.graph:
            if self._is_there(node, there):
                there.add(node.id)
                self.value(node.id)
            elif node.op == ir.Elementwise("div") and node.operands[1] in there:
                self._inverse(self.value(node.operands[1]))

    def _is_there(self, node: Node, there: set[int]) -> bool:
        if isinstance(node.op, ir.Input):
            return isinstance(self.inputs.get(node.op.name), Tile)
        if isinstance(node.op, ir.Position):
            return node.op.axis.name in self.positions
        return all(operand in there for operand in node.operands)

    def value(self, id: int) -> Tile:
        """The tile of a node."""
        if id not in self.known:
            self.known[id] = self._value(self.graph[id])
        return self.known[id]

    def common(self, id: int, names: Collection[str]) -> Tile | None:
        """The sum of those terms of a value that are inputs of these names; None if none is."""
        own = [term for term in self._terms(id) if self._is_given(term[1], names)]
        return self._total(own) if own else None

    def rest(self, id: int, names: Collection[str]) -> Tile:
        """A value without the terms that are inputs of these names."""
        return self._total([t for t in self._terms(id) if not self._is_given(t[1], names)])

    def _terms(self, id: int, sign: int = 1) -> list[tuple[int, int]]:
        """The sign and the node of each term of a sum of real numbers. A difference of running sums
        is one term where they are not taken apart."""
        node = self.graph[id]
        apart = isinstance(node.op, ir.Elementwise) and node.op.fn in SUMS
        if not apart or node.type.dtype == "int" or any(map(self._running, node.operands)):
            return [(sign, id)]
        signs = [-sign if node.op.fn != "add" else sign] * len(node.operands)
        signs[0] = -sign if node.op.fn == "neg" else sign
        pairs = zip(node.operands, signs, strict=True)
        return [term for operand, own in pairs for term in self._terms(operand, own)]

    def _is_given(self, id: int, names: Collection[str]) -> bool:
        op = self.graph[id].op
        found = self.inputs.get(op.name) if isinstance(op, ir.Input) else None
        return isinstance(found, Tile) and isinstance(op, ir.Input) and op.name in names

    def _total(self, terms: list[tuple[int, int]]) -> Tile:
        """A sum of terms: those that are added first."""
        (sign, first), *others = sorted(terms, key=lambda term: -term[0])
        total = self._real(first) if sign > 0 else -self._real(first)
        for sign, id in others:
            given = self._spread([total, self._real(id)])
            total = self.k.apply("add" if sign > 0 else "sub", *given)
        return total

    def _value(self, node: Node) -> Tile:
        match node.op:
            case ir.Input(name):
                return tile(self.inputs[name])
            case ir.Position(axis):
                return self.positions[axis.name]
            case ir.Constant(number):
                return self._number(number, node.type.dtype)
            case ir.Elementwise(fn):
                made = self._apply(fn, node)
                explain_numbers(made, self.graph, node)
                return made
        raise AssertionError(f"{type(node.op).__name__} in a formula of pairs")

    def _number(self, number: sympy.Expr, dtype: str) -> Tile:
        """A constant: its digits, or a number that the launch is given."""
        if number in self.numbers:
            return self.k.lift(self.numbers[number])
        return self.k.lift(float(number), "i32" if dtype == "int" else "f32")

    def _apply(self, fn: str, node: Node) -> Tile:
        """A function of tiles: whole numbers become real where they meet real ones."""
        if fn == "tanh":
            return self._tanh(self.value(node.operands[0]))
        ends = [self._running(operand) for operand in node.operands]
        if fn == "sub" and ends[0] is not None and ends[1] is not None:
            high = self.k.apply("sub", *self._spread([ends[0].high, ends[1].high]))
            low = self.k.apply("sub", *self._spread([ends[0].low, ends[1].low]))
            return high + low
        given = [self.value(operand) for operand in node.operands]
        if fn == "real":
            return self._real(node.operands[0])
        first = 1 if fn == "where" else 0
        chosen = given[first:]
        whole = node.type.dtype == "int" or all(kind(x.dtype) != "real" for x in chosen)
        if fn not in LOGIC and not (whole and (node.type.dtype == "int" or fn in COMPARISONS)):
            chosen = [self._real(operand) for operand in node.operands[first:]]
        given = [*given[:first], *chosen]
        if fn == "div" and len(given[1].dims) < len(given[0].dims):
            fn, given = "mul", [given[0], self._inverse(given[1])]
        return self.k.apply(fn, *self._spread(given))

    def _real(self, id: int) -> Tile:
        """A value as a real number. Sums of positions are made of real positions, of which each is
        cast once: below 2^24 these are exact."""
        node, made = self.graph[id], self.value(id)
        if kind(made.dtype) == "real":
            return made
        if len(made.dims) == 2 and isinstance(node.op, ir.Elementwise) and node.op.fn in SUMS:
            return self.k.apply(node.op.fn, *self._spread([self._real(o) for o in node.operands]))
        return made.to("f32")

    def _tanh(self, x: Tile) -> Tile:
        """tanh x, as close to it as 1 has digits, which is enough for a score."""
        grown = self.k.apply("exp2", x.to("f32") * (2.0 / math.log(2.0)))
        grown = grown.named("grown", "exp(2 x) of a tanh, as exp2: 2 log2(e) is 2.8854")
        return 1.0 - 2.0 / (1.0 + grown)

    def _running(self, id: int) -> Running | None:
        """A running sum, of which only differences are taken: they may be much smaller."""
        op = self.graph[id].op
        found = self.inputs.get(op.name) if isinstance(op, ir.Input) else None
        return found if isinstance(found, Running) else None

    def _inverse(self, divisor: Tile) -> Tile:
        """1 / x of what many pairs are divided by."""
        return self.k.apply("div", 1.0, divisor.to("f32"))

    def _spread(self, given: list[Tile]) -> list[Tile]:
        """A number of the reader that meets one of the token read is laid out as pairs are: left to
        the order of operands, some tiles of pairs would be turned around."""
        names = {name for x in given for name in x.value.type.names}
        if len(names) < 2 or any(len(x.dims) == 2 for x in given):
            return given
        place = next(i for i, x in enumerate(given) if x.dims)
        return [t.over(*self.pairs) if i == place else t for i, t in enumerate(given)]
