"""How much work and memory a form takes, as formulas in the sizes."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from archc.derivation.costs import chunk_letter
from archc.dims import TIME, in_words
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK
from archc.ir.count import operations_of
from archc.ir.graph import Graph

EXAMPLE = {"H": 4, "d": 1024, "D": 1024, "N": 16}
"""Sizes of an example; any other dim is 128."""


def operations(graph: Graph) -> sympy.Expr:
    """Operations of a form a token of a long sequence: 2 for a multiply-add of a product, 1 an
    element for others."""
    found = [
        operations_of(node, [graph[operand].type for operand in node.operands], {})
        for node in graph
    ]
    whole = sympy.Add(*found).replace(sympy.ceiling, lambda inner: inner)
    terms = sympy.Add.make_args(sympy.expand(sympy.expand(whole) / TIME.size))
    return sympy.Add(*(term for term in terms if not term.as_numer_denom()[1].has(TIME.size)))


def at_sizes(layer: ir.Layer, *exprs: sympy.Expr) -> dict[str, int]:
    """A number for every symbol: the layer's default, or an example; 64 tokens a chunk."""
    defaults = {
        arg.name: int(arg.default)
        for arg in layer.args
        if arg.symbol is not None and arg.default is not None and _whole(arg.default)
    }
    names = sorted({str(symbol) for expr in exprs for symbol in expr.free_symbols})
    known = {**EXAMPLE, str(CHUNK): 64, **defaults}
    return {name: known.get(name, 128) for name in names}


def given(sizes: Mapping[str, int], *exprs: sympy.Expr) -> str:
    """`H = 4, K = 128`: those that the expressions have."""
    used = {str(symbol) for expr in exprs for symbol in expr.free_symbols}
    written = {name: in_words(name) for name in sizes} | {str(CHUNK): chunk_letter(*exprs)}
    shown = ((written[name], size) for name, size in sizes.items() if name in used)
    return ", ".join(f"{name} = {size}" for name, size in sorted(shown))


def _whole(value: object) -> bool:
    return isinstance(value, int | sympy.Integer) and not isinstance(value, bool)


def in_numbers(expr: sympy.Expr, sizes: Mapping[str, int]) -> str:
    """A formula at some sizes, with three digits."""
    value = float(expr.subs({s: sizes[str(s)] for s in expr.free_symbols if str(s) in sizes}))
    for prefix in ("", " k", " M", " G"):
        if value < 999.5:
            return f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:.3g} T"
