"""Sums over the places that read a place, where no two places read the same: rotations.

The gradient of `take[K](x, index)` adds up the cotangents of those places whose index is k. Where
the index is a permutation of K that has a formula for its inverse, that is one read more:

    (i + c) mod K                     read at (i + (K - c)) mod K
    i + g(i mod m), on blocks of m    a permutation p of 0 ... m - 1 that is its own inverse
"""

from __future__ import annotations

import sympy

from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node

LARGEST_BLOCK = 64
"""Blocks of more places are not looked at."""


def with_gathers(graph: Graph) -> Graph:
    """The graph, its scatters along permutations that are known as gathers."""
    made = graph.copy()
    for node in graph:
        if not isinstance(node.op, ir.Scatter) or node.op.into.name != node.op.axis:
            continue
        d, index = node.operands
        inverse = _turned_back(made, node, index)
        if inverse is None and _is_own_inverse(made, index):
            inverse = index
        if inverse is not None:
            made.substitute(node.id, made.add(ir.Gather(node.op.axis), d, inverse, span=node.span))
    made.prune([n.id for n in made if isinstance(n.op, ir.Input)])
    return made


def _turned_back(graph: Graph, scatter: Node, index: int) -> int | None:
    """(i + (K - c)) mod K for an index (i + c) mod K."""
    make = Builder(graph)
    size = scatter.op.into.size
    node = graph[index]
    if node.op != ir.Elementwise("mod") or not _is_number(graph, node.operands[1], size):
        return None
    inner = graph[node.operands[0]]
    if inner.op != ir.Elementwise("add"):
        return None
    for i, c in (inner.operands, inner.operands[::-1]):
        step = graph[c].op
        if isinstance(graph[i].op, ir.Position) and isinstance(step, ir.Constant):
            back = graph.add(ir.Constant(size - step.value))
            moved = make.fn("add", i, back)
            return make.fn("mod", moved, node.operands[1])
    return None


def _is_number(graph: Graph, id: int, value: sympy.Expr) -> bool:
    op = graph[id].op
    return isinstance(op, ir.Constant) and sympy.simplify(op.value - value) == 0


def _is_own_inverse(graph: Graph, index: int) -> bool:
    """Whether an index goes from each block of m places to the same block, twice to itself."""
    blocks = _moduli(graph, index)
    if len(blocks) != 1:
        return False
    (m,) = blocks
    if not 1 < m <= LARGEST_BLOCK:
        return False
    q = sympy.Symbol("q", integer=True, nonnegative=True)
    found = []
    for rest in range(m):
        at = _value(graph, index, m * q + rest, rest, m)
        if at is None or not sympy.expand(at - m * q).is_Integer:
            return False
        found.append(int(sympy.expand(at - m * q)))
    inside = all(0 <= place < m for place in found)
    return inside and all(found[found[rest]] == rest for rest in range(m))


def _moduli(graph: Graph, index: int) -> set[int]:
    """The numbers m for which an index looks at i mod m."""
    found = set()
    for id in (index, *graph.ancestors(index)):
        if graph[id].op == ir.Elementwise("mod"):
            op = graph[graph[id].operands[1]].op
            whole = isinstance(op, ir.Constant) and op.value.is_Integer
            found.add(int(op.value) if whole else 0)
    return found


def _value(graph: Graph, id: int, i: sympy.Expr, rest: int, m: int) -> sympy.Expr | None:
    """An index at a place i = m q + rest; None where an op is none of a few."""
    node = graph[id]
    if isinstance(node.op, ir.Position):
        return i
    if isinstance(node.op, ir.Constant):
        return node.op.value
    if not isinstance(node.op, ir.Elementwise):
        return None
    if node.op.fn == "mod":
        plain = isinstance(graph[node.operands[0]].op, ir.Position)
        return sympy.Integer(rest) if plain else None
    operands = [_value(graph, operand, i, rest, m) for operand in node.operands]
    if any(x is None for x in operands):
        return None
    match node.op.fn, operands:
        case "add", [a, b]:
            return a + b  # type: ignore[operator]
        case "sub", [a, b]:
            return a - b  # type: ignore[operator]
        case "mul", [a, b]:
            return a * b  # type: ignore[operator]
        case "neg", [a]:
            return -a  # type: ignore[operator]
    return None
