"""How far the index of a pair reaches into its table, from the range of tokens that are read.

A kernel reads 0 beside a table, where PyTorch ends with an error: an index that may be there is
either no kernel's, or the layer counts rows before it begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import sympy

from archc.attention.bounds import S, T, affine, bound, conjuncts
from archc.attention.weighted_sum import Bound
from archc.dims import T_SEEN, TIME
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.sizes import Number, evaluate

MOST_TOKENS = 2**31
"""More than a sequence has."""

Ends = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Numbers that a value is at least, each of them, and numbers that it is at most."""


@dataclass(frozen=True)
class Reach:
    """The least and the largest that an index may be, in sizes and in T_SEEN, and the rows of its
    table. `inside`: it is in the table for any number of tokens. `met`: a pair comes to either end;
    otherwise all pairs may be in the table though the ends are not."""

    least: sympy.Expr
    most: sympy.Expr
    rows: sympy.Expr
    inside: bool
    met: bool


def reach_of(attend: ir.Attend, gather: Node) -> Reach | None:
    """How far a table is read by the pairs of an attend; None where that is not known."""
    table, index = (attend.body[operand] for operand in gather.operands)
    found = _Ends(attend)
    ends = found.of(index)
    if ends is None or not all(ends):
        return None
    rows: Any = table.type.axis(gather.op.axis).size
    some = {rows: sympy.Symbol(rows.name, integer=True, positive=True)} if rows.is_Symbol else {}
    low, high = ([each.subs(some) for each in end] for end in ends)
    inside = any(_at_most(sympy.S.Zero, each) for each in low)
    inside = inside and any(_at_most(each, rows.subs(some) - 1) for each in high)
    least, most = sympy.Max(*ends[0]), sympy.Min(*ends[1])
    return Reach(least, most, rows, inside, found.are_met(index))


def counted(graph: Graph) -> Iterator[tuple[str, Reach]]:
    """The tables of a layer that the pairs of its attends read off their rows, if there are more
    tokens than these suffice for: the name of each, and how far it is read."""
    for node in graph:
        if not isinstance(node.op, ir.Attend):
            continue
        entering = zip(node.op.captures, node.operands, strict=True)
        given = {name: graph[id] for (name, _), id in entering}
        for gather, found in reaches(node.op):
            if found is not None and found.met and not found.inside:
                table = node.op.body[gather.operands[0]]
                own = given.get(table.op.name) if isinstance(table.op, ir.Input) else None
                yield (own or table).name or "a table", found


def reaches(attend: ir.Attend) -> Iterator[tuple[Node, Reach | None]]:
    """How far the pairs of an attend read each table of the layer."""
    for gather in attend.body:
        if isinstance(gather.op, ir.Gather):
            table, index = (attend.body[operand] for operand in gather.operands)
            pairs = {attend.reader.name, attend.read.name} <= {*index.type.names}
            if pairs and all(axis.kind == "dim" for axis in table.type.axes):
                yield gather, reach_of(attend, gather)


def most_tokens(reach: Reach, sizes: Mapping[str, Number]) -> int:
    """The longest sequence whose pairs read rows that a table has."""

    def last(tokens: int) -> Number:
        return evaluate(reach.most, {**sizes, str(T_SEEN): tokens})

    return bisect_left(range(1, MOST_TOKENS), evaluate(reach.rows, sizes), key=last)


class _Ends:
    """The ends of whole numbers that are made of two positions."""

    def __init__(self, attend: ir.Attend):
        self.graph, self.reader, self.read = attend.body, attend.reader.name, attend.read.name
        self.bounds = bounds = _bounds(self.graph, self.reader, self.read)
        most = [-b.offset for b in bounds if not b.most and b.slope == 1]
        least = [-b.offset for b in bounds if b.most and b.slope == 1]
        last = [T_SEEN - 1] if attend.source == TIME.name else []
        self.distance: Ends = (*least, *(-each for each in last)), (*most, *last)
        self.place: Ends = (sympy.S.Zero,), tuple(last)

    def of(self, node: Node) -> Ends | None:
        """The least and the largest value of a node, as ends."""
        if isinstance(node.op, ir.Constant):
            return (node.op.value,), (node.op.value,)
        found = affine(self.graph, node, self.reader, self.read)
        if found is not None:
            return self._of_positions(sympy.expand(found))
        if not isinstance(node.op, ir.Elementwise) or node.op.fn not in RULES:
            return None
        operands = node.operands[1:] if node.op.fn == "where" else node.operands
        known = [self.of(self.graph[operand]) for operand in operands]
        made = RULES[node.op.fn](*known)
        apart = self._quotients_apart(node) if node.op.fn == "sub" else None
        if made is None or apart is None:
            return made
        return (*apart[0], *made[0]), (*apart[1], *made[1])

    def _quotients_apart(self, node: Node) -> Ends | None:
        """How far two quotients by one number of the layer are apart, `t // w - s // w`: as far as
        what is divided, rounded down or up."""
        above, below = (self.graph[operand] for operand in node.operands)
        if any(each.op != ir.Elementwise("floordiv") for each in (above, below)):
            return None
        (a, n), (b, m) = (map(self.graph.__getitem__, each.operands) for each in (above, below))
        top, bottom = (affine(self.graph, each, self.reader, self.read) for each in (a, b))
        if not isinstance(n.op, ir.Constant) or n.op != m.op or top is None or bottom is None:
            return None
        size, far = n.op.value, self._of_positions(sympy.expand(top - bottom))
        if far is None:
            return None
        low = tuple(sympy.floor(each / size) for each in far[0])
        return low, tuple(sympy.ceiling(each / size) for each in far[1])

    def _of_positions(self, found: Any) -> Ends | None:
        """The ends of a t + b s + c."""
        a, b = found.coeff(T), found.coeff(S)
        if not (a.is_Integer and b.is_Integer):
            return None
        number = found - a * T - b * S
        rest: Ends = (number,), (number,)
        if a + b == 0:
            return _added(_times(a, self.distance), rest)
        return _added(_times(a, self.place), _times(b, self.place), rest)

    def are_met(self, node: Node) -> bool:
        """Whether a pair comes to either end of an index: of a distance, of a sum of positions, and
        of what one number of the layer makes of these, rising with them."""
        found = affine(self.graph, node, self.reader, self.read)
        if found is not None:
            a, b = (sympy.expand(found).coeff(each) for each in (T, S))
            return bool(a + b == 0 or a * b >= 0)
        if not isinstance(node.op, ir.Elementwise):
            return False
        sides = [self.graph[operand] for operand in node.operands]
        number = [isinstance(side.op, ir.Constant) for side in sides]
        if node.op.fn == "where":
            return number[2] and self._is_of_read(sides[0]) and self.are_met(sides[1])
        if node.op.fn not in ("min", "max", "floordiv"):
            return False
        return (number[1] and self.are_met(sides[0])) or (number[0] and self.are_met(sides[1]))

    def _is_of_read(self, mask: Node) -> bool:
        """Whether a condition is that a pair is read, and nothing more."""
        each = [bound(self.graph, n, self.reader, self.read) for n in conjuncts(self.graph, mask)]
        return all(found in self.bounds for found in each)


def _bounds(graph: Graph, reader: str, read: str) -> list[Bound]:
    """The bounds that every mask of a body sets: of its softmaxes, and of weights as they are."""
    masks = [graph[n.operands[1]] for n in graph if isinstance(n.op, ir.Softmax)]
    summed = {
        operand for n in graph if isinstance(n.op, ir.Contract | ir.Reduce)
        and read not in n.type.names for operand in n.operands
    }  # fmt: skip
    for id in summed:
        if graph[id].op == ir.Elementwise("where") and {reader, read} <= {*graph[id].type.names}:
            masks.append(graph[graph[id].operands[0]])
    found = [
        {bound(graph, each, reader, read) for each in conjuncts(graph, mask)} - {None}
        for mask in masks
    ]
    common = set.intersection(*found) if found else set()
    return [each for each in common if each is not None]


def _times(factor: Any, ends: Ends) -> Ends:
    """The ends of a whole number times a value."""
    low, high = (tuple(factor * each for each in ends[place]) for place in (0, 1))
    return (high, low) if factor.is_negative else (low, high)


def _added(*known: Ends) -> Ends:
    low, high = (_combined(sympy.Add, [ends[place] for ends in known]) for place in (0, 1))
    return low, high


def _combined(function: Callable[..., sympy.Expr], sides: Sequence[tuple]) -> tuple:
    return tuple(function(*each) for each in product(*sides))


def _least(*known: Ends | None) -> Ends | None:
    """Of the smaller of two values: it is at most what either is."""
    high = tuple(each for ends in known if ends is not None for each in ends[1])
    if not high:
        return None
    if None in known:
        return (), high
    return _combined(sympy.Min, [ends[0] for ends in known if ends]), high


def _most(*known: Ends | None) -> Ends | None:
    """Of the larger of two values: it is at least what either is."""
    low = tuple(each for ends in known if ends is not None for each in ends[0])
    if not low:
        return None
    if None in known:
        return low, ()
    return low, _combined(sympy.Max, [ends[1] for ends in known if ends])


def _size(value: Ends | None) -> Ends:
    """Of a value without its sign."""
    if value is None:
        return (sympy.S.Zero,), ()
    low, high = _most(value, _times(sympy.Integer(-1), value)) or ((), ())
    return (sympy.S.Zero, *low), high


def _either(*known: Ends | None) -> Ends | None:
    """Of one of two values."""
    if None in known:
        return None
    low, high = zip(*(ends for ends in known if ends is not None), strict=True)
    return _combined(sympy.Min, low), _combined(sympy.Max, high)


def _quotient(value: Ends | None, by: Ends | None) -> Ends | None:
    """Of a quotient by a number of the layer, rounded down."""
    if value is None or by is None or by[0] != by[1] or not by[0][0].is_nonnegative:
        return None
    low, high = (tuple(sympy.floor(each / by[0][0]) for each in end) for end in value)
    return low, high


def _rest(value: Ends | None, by: Ends | None) -> Ends | None:
    """Of the rest of a division by a number of the layer."""
    if by is None or by[0] != by[1] or not by[0][0].is_nonnegative:
        return None
    return (sympy.S.Zero,), (by[0][0] - 1,)


def _sum(a: Ends | None, b: Ends | None) -> Ends | None:
    return None if a is None or b is None else _added(a, b)


def _product(a: Ends | None, b: Ends | None) -> Ends | None:
    """Of a product with a number of the layer, of either sign."""
    if a is None or b is None:
        return None
    for (number, same), value in ((a, b), (b, a)):
        if number == same:
            turned = [_times(number[0], ends) for ends in (value, (value[1], value[0]))]
            low = _combined(sympy.Min, [ends[0] for ends in turned])
            return low, _combined(sympy.Max, [ends[1] for ends in turned])
    return None


RULES: dict[str, Callable[..., Ends | None]] = {
    "add": _sum, "sub": lambda a, b: _sum(a, None if b is None else _times(sympy.Integer(-1), b)),
    "mul": _product,
    "abs": _size, "min": _least, "max": _most, "where": _either,
    "floordiv": _quotient, "mod": _rest,
}  # fmt: skip


def _at_most(value: Any, limit: Any) -> bool:
    """Whether a number is at most another, for all sizes."""
    if isinstance(value, sympy.Max):
        return all(_at_most(each, limit) for each in value.args)
    if isinstance(value, sympy.Min):
        return any(_at_most(each, limit) for each in value.args)
    if isinstance(limit, sympy.Min):
        return all(_at_most(value, each) for each in limit.args)
    if isinstance(limit, sympy.Max):
        return any(_at_most(value, each) for each in limit.args)
    return bool(sympy.expand(limit - value).is_nonnegative)
