"""Sums over the places that read a place, where no two places read the same: rotations and cuts.

The gradient of `take[K](x, index)` adds up the cotangents of those places whose index is k. Where
the index reads each place of K once at most and has a formula for its inverse, that is one read
more:

    i + c, for N places i             read at k - c, and 0 outside of c ... c + N - 1
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
    """The graph, its scatters along cuts and permutations that are known as gathers."""
    made = graph.copy()
    for node in graph:
        if not isinstance(node.op, ir.Scatter):
            continue
        d, index = node.operands
        if node.op.into.name != node.op.axis:
            first = _first_of_a_cut(made, node)
            if first is not None:
                made.substitute(node.id, _put_back(made, node, first))
            continue
        inverse = _turned_back(made, node, index)
        if inverse is None and _is_own_inverse(made, index):
            inverse = index
        if inverse is not None:
            made.substitute(node.id, made.add(ir.Gather(node.op.axis), d, inverse, span=node.span))
    made.prune([n.id for n in made if isinstance(n.op, ir.Input)])
    return made


def _first_of_a_cut(graph: Graph, scatter: Node) -> int | None:
    """The number c of an index i + c, in which i counts the places of the axis that is read."""
    index = graph[scatter.operands[1]]
    if isinstance(index.op, ir.Position):
        return Builder(graph).number(0) if index.op.axis.name == scatter.op.axis else None
    if index.op != ir.Elementwise("add"):
        return None
    for i, c in (index.operands, index.operands[::-1]):
        counted = graph[i].op
        whole = isinstance(counted, ir.Position) and counted.axis.name == scatter.op.axis
        if whole and isinstance(graph[c].op, ir.Constant):
            return c
    return None


def _put_back(graph: Graph, scatter: Node, first: int) -> int:
    """The cotangent of a cut at each place of the axis that was cut, 0 outside of the cut."""
    make = Builder(graph, scatter.span)
    d, axis = scatter.operands[0], graph[scatter.operands[0]].type.axis(scatter.op.axis)
    at = make.fn("sub", make.add(ir.Position(scatter.op.into)), first)
    behind, before = make.fn("le", make.number(0), at), make.fn("lt", at, make.number(axis.size))
    inside = make.fn("and", behind, before)
    read = make.add(ir.Gather(axis.name), d, make.fn("where", inside, at, make.number(0)))
    return make.fn("where", inside, read, make.real(make.number(0)))


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
