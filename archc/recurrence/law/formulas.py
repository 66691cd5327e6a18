"""Graphs of a composition law as formulas: what one element of each output is, in sympy.

An axis is an index: `p[K, V]` is the atom p(K, V). A contraction is a sum over an index that
nothing else has; sums are kept as products of small ones, their indices named in one way, so that
equal sums are equal expressions. Axes are as long as they like: what holds, holds for all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count, permutations
from typing import Any

import sympy

from archc.dims import Axis
from archc.functions.definitions import FUNCTIONS
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

MOST_INDICES = 4
"""Most indices of one sum: all orders of them are tried."""


class Unclear(Exception):
    """A formula that is not looked into: nothing is proved, and nothing refuted."""


def index(axis: Axis) -> sympy.Symbol:
    """The index along an axis."""
    return sympy.Symbol(f"[{axis.name}]", integer=True)


def atom(name: str, axes: Sequence[Axis]) -> sympy.Expr:
    """One element of a real value; all have a batch, so that nobody says so."""
    own = [index(axis) for axis in axes if axis.kind != "batch"]
    return sympy.Function(name, real=True)(*own) if own else sympy.Symbol(name, real=True)


def formulas(graph: Graph, given: Mapping[str, sympy.Expr]) -> dict[str, Any]:
    """The outputs by name; inputs that are not given are atoms of their name. Raises Unclear."""
    values: dict[int, Any] = {}
    needed = set(graph.outputs.values())
    needed |= {id for output in sorted(needed) for id in graph.ancestors(output)}
    for node in graph:
        if node.id not in needed:
            continue
        if isinstance(node.op, ir.Input):
            name = node.op.name
            values[node.id] = given[name] if name in given else atom(name, node.type.axes)
            continue
        rule = RULES.get(type(node.op))
        if rule is None:
            raise Unclear
        values[node.id] = rule(graph, node, [values[operand] for operand in node.operands])
    return {name: values[id] for name, id in graph.outputs.items()}


# --- elementwise ---

ALIKE: dict[str, Callable[..., Any]] = {
    "tanh": lambda x: (sympy.exp(2 * x) - 1) / (sympy.exp(2 * x) + 1),
    "min": lambda x, y: -sympy.Max(-x, -y),
}
"""Formulas that proofs see as those of other functions."""

UNCLEAR = ("mod", "floordiv")
"""Functions that sympy simplifies by rules that nobody here has looked into: no proof."""


def _elementwise(graph: Graph, node: Node, values: Sequence[Any]) -> Any:
    if node.op.fn in UNCLEAR:
        raise Unclear
    fn = FUNCTIONS[node.op.fn]
    return ALIKE.get(fn.name, fn.formula)(*values)


# --- along axes ---


def _contract(graph: Graph, node: Node, values: Sequence[Any]) -> Any:
    """The product of the operands, summed over what is not kept."""
    kept = {label: index(axis) for label, axis in node.op.out}
    summed: dict[str, sympy.Symbol] = {}
    product: Any = sympy.Integer(1)
    for labels, operand, value in zip(node.op.ins, node.operands, values, strict=True):
        names: dict[sympy.Symbol, sympy.Symbol] = {}
        for label, axis in zip(labels, graph[operand].type.axes, strict=True):
            if label not in kept and label not in summed and axis.kind != "batch":
                summed[label] = _fresh(axis)
            names[index(axis)] = kept[label] if label in kept else summed[label]
        product = product * value.xreplace(names)
    return total(product, list(summed.values()))


def _reduce(graph: Graph, node: Node, values: Sequence[Any]) -> Any:
    axes = [axis for axis in graph[node.operands[0]].type.axes if axis.name in node.op.axes]
    if node.op.fn not in ("sum", "mean"):
        raise Unclear
    fresh = {index(axis): _fresh(axis) for axis in axes}
    found = total(values[0].xreplace(fresh), list(fresh.values()))
    return found / sympy.Mul(*(axis.size for axis in axes)) if node.op.fn == "mean" else found


def _gather(graph: Graph, node: Node, values: Sequence[Any]) -> Any:
    """A value at a fixed place of an axis."""
    axis = graph[node.operands[0]].type.axis(node.op.axis)
    if not values[1].is_Integer:
        raise Unclear
    return values[0].xreplace({index(axis): values[1]})


DELTA = sympy.Function("delta", real=True)

RULES: dict[type, Callable[[Graph, Node, Sequence[Any]], Any]] = {
    ir.Constant: lambda graph, node, values: node.op.value,
    ir.Position: lambda graph, node, values: index(node.op.axis),
    ir.Delta: lambda graph, node, values: DELTA(index(node.op.row), index(node.op.col)),
    ir.Elementwise: _elementwise,
    ir.Contract: _contract,
    ir.Reduce: _reduce,
    ir.Gather: _gather,
}


# --- sums ---


class SumOver(sympy.Function):
    """The sum of its first argument, a product, over the indices that follow."""

    def _eval_is_real(self) -> bool:
        return True


_numbers = count()


def _fresh(axis: Axis) -> sympy.Symbol:
    """An index that nothing has, with the length that it runs over as part of its name."""
    return sympy.Symbol(f"?{next(_numbers)}:{axis.size}", integer=True)


def _like(symbol: sympy.Symbol) -> sympy.Symbol:
    return sympy.Symbol(f"?{next(_numbers)}:{symbol.name.split(':', 1)[1]}", integer=True)


def total(expr: sympy.Expr, indices: Sequence[sympy.Symbol]) -> sympy.Expr:
    """The sum over some indices, as sums and products of small sums. Raises Unclear."""
    if not indices:
        return expr
    terms = sympy.Add.make_args(sympy.expand(expr))
    return sympy.Add(*(_of_term(term, indices) for term in terms))


def _of_term(term: sympy.Expr, indices: Sequence[sympy.Symbol]) -> sympy.Expr:
    """A product summed: what does not depend on one another is summed apart."""
    left = list(indices)
    factors = [f for factor in sympy.Mul.make_args(term) for f in _opened(factor, left)]
    factors = _contracted(factors, left)
    outside = [f for f in factors if not f.has(*left)] if left else factors
    parts = [outside]
    while left:
        own, group = [left.pop(0)], list[sympy.Expr]()
        while True:
            more = [f for f in factors if f.has(*own) and f not in group]
            reached = [i for i in left if any(f.has(i) for f in more)]
            if not more:
                break
            group += more
            own += reached
            left = [i for i in left if i not in reached]
        inside = [f for f in factors if f.has(*own)]
        parts.append([_closed(inside, own)] if inside else [_length(own[0])])
    return sympy.Mul(*(factor for part in parts for factor in part))


def _opened(factor: Any, indices: list[sympy.Symbol]) -> list[Any]:
    """A factor as several: copies for a power, parts of an exponential, what a sum sums. The
    indices of sums that are opened join the others."""
    if not factor.has(*indices):
        return [factor]
    kind, args = factor.func, factor.args
    if kind == sympy.exp:
        return [sympy.exp(part) for part in sympy.Add.make_args(args[0])]
    if kind == sympy.Pow and args[1].is_Integer and args[1] > 1:
        return [f for _ in range(int(args[1])) for f in _opened(args[0], indices)]
    if kind == SumOver:
        fresh = {old: _like(old) for old in args[1:]}
        indices += fresh.values()
        parts = sympy.Mul.make_args(args[0].xreplace(fresh))
        return [f for part in parts for f in _opened(part, indices)]
    return [factor]


def _contracted(factors: list[Any], indices: list[sympy.Symbol]) -> list[Any]:
    """Identity matrices that a sum runs over make two indices one."""
    for factor in factors:
        if factor.func == DELTA:
            one, other = factor.args
            gone = next((i for i in (one, other) if i in indices), None)
            if gone is not None and one != other:
                stays = other if gone == one else one
                rest = [f.xreplace({gone: stays}) for f in factors if f is not factor]
                indices.remove(gone)
                return _contracted(rest, indices)
    return factors


def _closed(factors: Sequence[sympy.Expr], indices: Sequence[sympy.Symbol]) -> sympy.Expr:
    """The sum of a product over indices, which get the names that make it come first."""
    if len(indices) > MOST_INDICES:
        raise Unclear
    product = sympy.Mul(*factors)
    inner = [s.name for s in product.atoms(sympy.Symbol) if s.name.startswith("#")]
    first = 1 + max((int(name[1:].split(":")[0]) for name in inner), default=-1)
    found = []
    for order in permutations(indices):
        names = {
            old: sympy.Symbol(f"#{first + place}:{old.name.split(':', 1)[1]}", integer=True)
            for place, old in enumerate(order)
        }
        found.append(SumOver(product.xreplace(names), *names.values()))
    return min(found, key=str)


def _length(symbol: sympy.Symbol) -> sympy.Expr:
    """How many values an index has."""
    return sympy.Symbol(f"size {symbol.name.split(':', 1)[1]}", positive=True, integer=True)
