"""Values outside a recurrence as formulas, with the intervals that they lie in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import sympy

from archc.derivation import maths
from archc.derivation.costs import cost_math
from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.verify.study import Study

DEPTH = 4
"""How far back values are spelled out."""


def chain(study: Study, id: int) -> Iterator[tuple[maths.Math, Interval]]:
    """The parts of a value of which something is known, innermost first, each with its interval."""
    seen: set[int] = set()
    yield from _parts(study, id, seen, DEPTH)


def _parts(
    study: Study, id: int, seen: set[int], depth: int
) -> Iterator[tuple[maths.Math, Interval]]:
    node = study.graph[id]
    if not isinstance(node.op, ir.Elementwise) or depth == 0:
        return
    for operand in node.operands:
        inner = study.graph[operand]
        if operand in seen or isinstance(inner.op, ir.Constant):
            continue
        seen.add(operand)
        yield from _parts(study, operand, seen, depth - 1)
        known = study.known[operand]
        if math.isfinite(known.low) or math.isfinite(known.high):
            yield spelled(study.graph, operand), known


def by_name(node: Node) -> maths.Math | None:
    """The name of a value of the layer, of a token if it is one's."""
    if node.name is None:
        return None
    return maths.named(node.name, *(("t",) if "t" in node.type.names else ()))


def spelled(
    graph: Graph, id: int, depth: int = 5, named: Callable[[Node], maths.Math | None] = by_name
) -> maths.Math:
    """A value by its name, or as what it is computed from."""
    node = graph[id]
    found = named(node)
    if found is not None:
        return found
    if isinstance(node.op, ir.Param):
        return maths.named(node.op.name)
    if isinstance(node.op, ir.Constant):
        return _number(node.op.value)
    if depth == 0 or not isinstance(node.op, ir.Elementwise | ir.Contract):
        return maths.Name("…")
    parts = [spelled(graph, operand, depth - 1, named) for operand in node.operands]
    if isinstance(node.op, ir.Contract):
        return maths.row(*map(_closed, parts))
    return _applied(node.op.fn, parts)


def _number(number: sympy.Expr) -> maths.Math:
    if not number.is_finite:
        return maths.Number(str(number))
    sign = maths.NEGATIVE if number.is_negative else None
    return maths.row(sign, cost_math(-number if sign else number))


def _applied(fn: str, parts: list[maths.Math]) -> maths.Math:
    """A function of each element."""
    if fn == "real":
        return parts[0]
    if fn == "neg":
        return maths.row(maths.NEGATIVE, _closed(parts[0]))
    if fn in SIGNS and len(parts) == 2:
        closed = parts if fn == "add" else [_closed(part) for part in parts]
        return maths.row(closed[0], SIGNS[fn], closed[1])
    if fn == "div":
        return maths.Fraction(*parts)
    return maths.function(fn, *parts)


SIGNS = {"add": maths.PLUS, "sub": maths.MINUS, "mul": maths.TIMES}


def _closed(part: maths.Math) -> maths.Math:
    """A part as one factor."""
    sums = isinstance(part, maths.Row) and (maths.PLUS in part.parts or maths.MINUS in part.parts)
    return maths.Fence(part) if sums else part
