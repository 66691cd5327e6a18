"""The range of tokens that a reader may read, from the inequalities of a mask: s <= t, t - w <
s."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import sympy

from archc.attention.weighted_sum import Bound, WeightedSum
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

T, S = sympy.Symbol("position of the reader"), sympy.Symbol("position read")
ROUNDED: dict[str, Callable[[sympy.Expr], sympy.Expr]] = {
    "lt": lambda x: sympy.ceiling(x) - 1, "le": sympy.floor,
    "gt": lambda x: sympy.floor(x) + 1, "ge": sympy.ceiling,
}  # fmt: skip
"""The last whole number below a number that may be none, and so on."""

TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def conjuncts(graph: Graph, node: Node) -> Iterator[Node]:
    """The conditions that a mask is the conjunction of."""
    return joined_by("and", graph, node)


def joined_by(word: str, graph: Graph, node: Node) -> Iterator[Node]:
    """The conditions that are joined by a word ("and", "or") alone."""
    if node.op == ir.Elementwise(word):
        for operand in node.operands:
            yield from joined_by(word, graph, graph[operand])
    else:
        yield node


def always(graph: Graph, node: Node) -> bool:
    """Whether a condition holds of every position: that it is not negative."""
    if node.op != ir.Elementwise("ge"):
        return False
    left, right = (graph[operand].op for operand in node.operands)
    return isinstance(left, ir.Position) and right == ir.Constant(sympy.Integer(0))


def bound(graph: Graph, node: Node, reader: str, read: str) -> Bound | None:
    """A condition as a bound on the token read; None where it is no such inequality."""
    if not isinstance(node.op, ir.Elementwise) or node.op.fn not in TURNED:
        return None
    sides = [affine(graph, graph[operand], reader, read) for operand in node.operands]
    if sides[0] is None or sides[1] is None:
        return None
    rest = sympy.expand(sides[0] - sides[1])  # rest <fn> 0
    of_read = rest.coeff(S)
    if of_read not in (1, -1) or rest.coeff(T).free_symbols:
        return None
    fn = node.op.fn if of_read == 1 else TURNED[node.op.fn]
    limit = sympy.expand(S - rest * of_read)  # s <fn> limit
    slope, offset = limit.coeff(T), sympy.expand(limit - T * limit.coeff(T))
    if not slope.is_Integer:
        return None
    offset = ROUNDED[fn](offset)
    return Bound(fn in ("lt", "le"), int(slope), offset)


@dataclass(frozen=True)
class End:
    """A condition that ends what a reader reads where a place stands for several positions, as that
    of a block does: s each + past <= t. Nothing ends where `each` is no positive number."""

    each: sympy.Expr
    past: sympy.Expr


def ends_of(fold: WeightedSum) -> Iterator[End]:
    """The conditions of a fold's mask that are such ends."""
    graph, visible = fold.pairs, fold.pairs.outputs.get("visible")
    for node in conjuncts(graph, graph[visible]) if visible is not None else ():
        if not isinstance(node.op, ir.Elementwise) or node.op.fn not in TURNED:
            continue
        names = (fold.reader.name, fold.read.name)
        sides = [affine(graph, graph[operand], *names) for operand in node.operands]
        if sides[0] is None or sides[1] is None:
            continue
        rest = sympy.expand(sides[0] - sides[1])  # rest <fn> 0
        turned = node.op.fn in ("gt", "ge")
        rest = -rest if turned else rest
        each, past = rest.coeff(S), sympy.expand(rest - S * rest.coeff(S) + T)
        if each.is_integer is not False and each.free_symbols and not {S, T} & past.free_symbols:
            yield End(each, past + (1 if node.op.fn in ("lt", "gt") else 0))


MOST_RANGES = 4
"""The most ranges of a union of which kernels walk each."""


def ranges(
    graph: Graph, nodes: Sequence[Node], reader: str, read: str
) -> tuple[tuple[Bound, ...], ...]:
    """The ranges of which one or another holds, as the first condition has them that is such a
    union; none where there is none, or one of them has no bound."""
    for node in nodes:
        found = []
        for each in joined_by("or", graph, node):
            own = [bound(graph, part, reader, read) for part in conjuncts(graph, each)]
            found.append(tuple(b for b in own if b is not None))
        if 1 < len(found) <= MOST_RANGES and all(found):
            return tuple(found)
    return ()


def affine(graph: Graph, node: Node, reader: str, read: str) -> sympy.Expr | None:
    """Sums of both positions, and products of them with numbers of the layer, which may be any."""
    if isinstance(node.op, ir.Position):
        return {reader: T, read: S}.get(node.op.axis.name)
    if isinstance(node.op, ir.Constant):
        return node.op.value
    known = {"add": sympy.Add, "sub": lambda a, b: a - b, "mul": sympy.Mul, "neg": lambda a: -a}
    if not isinstance(node.op, ir.Elementwise) or node.op.fn not in known:
        return None
    operands = [affine(graph, graph[operand], reader, read) for operand in node.operands]
    if None in operands:
        return None
    made = sympy.expand(known[node.op.fn](*operands))
    return made if sympy.Poly(made, T, S).total_degree() <= 1 else None


def of_distance(graph: Graph, node: Node, reader: str, read: str) -> bool:
    """Whether a whole number, or a condition, depends on nothing of a pair but t - s."""
    if isinstance(node.op, ir.Constant):
        return True
    found = affine(graph, node, reader, read)
    if found is not None:
        found = sympy.expand(found)
        return bool(found.coeff(T) + found.coeff(S) == 0)
    if not isinstance(node.op, ir.Elementwise):
        return False
    operands = [graph[operand] for operand in node.operands]
    if node.op.fn == "where" and always(graph, operands[0]):  # beside an index, of any token
        operands = operands[1:2]
    if node.op.fn in TURNED:
        sides = [affine(graph, operand, reader, read) for operand in operands]
        if sides[0] is not None and sides[1] is not None:
            rest = sympy.expand(sides[0] - sides[1])
            return bool(rest.coeff(T) + rest.coeff(S) == 0)
    return all(of_distance(graph, operand, reader, read) for operand in operands)


def up_to_the_reader(bounds: tuple[Bound, ...]) -> bool:
    """Whether no token after the reader is read."""
    return any(b.most and b.slope == 1 and b.offset.is_nonpositive for b in bounds)
