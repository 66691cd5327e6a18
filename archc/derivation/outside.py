"""Values outside a recurrence as formulas, with the intervals that they lie in."""

from __future__ import annotations

import math
from collections.abc import Iterator

from archc.derivation.maths import (
    MINUS,
    NEGATIVE,
    PLUS,
    TIMES,
    Fence,
    Fraction,
    Math,
    Name,
    Number,
    Row,
    function,
    named,
    row,
)
from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.verify.study import Study

DEPTH = 4
"""How far back values are spelled out."""


def chain(study: Study, id: int) -> Iterator[tuple[Math, Interval]]:
    """The parts of a value of which something is known, innermost first, each with its interval."""
    seen: set[int] = set()
    yield from _parts(study, id, seen, DEPTH)


def _parts(study: Study, id: int, seen: set[int], depth: int) -> Iterator[tuple[Math, Interval]]:
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


def spelled(graph: Graph, id: int, depth: int = 5) -> Math:
    """A value by its name, or as what it is computed from."""
    node = graph[id]
    if node.name is not None:
        return named(node.name, *(("t",) if "t" in node.type.names else ()))
    if isinstance(node.op, ir.Param):
        return named(node.op.name)
    if isinstance(node.op, ir.Constant):
        return Number(str(node.op.value))
    if depth == 0 or not isinstance(node.op, ir.Elementwise | ir.Contract):
        return Name("…")
    if isinstance(node.op, ir.Contract):
        return row(*(_closed(spelled(graph, operand, depth - 1)) for operand in node.operands))
    parts = [spelled(graph, operand, depth - 1) for operand in node.operands]
    fn = node.op.fn
    if fn == "neg":
        return row(NEGATIVE, _closed(parts[0]))
    if fn in SIGNS and len(parts) == 2:
        closed = parts if fn == "add" else [_closed(part) for part in parts]
        return row(closed[0], SIGNS[fn], closed[1])
    if fn == "div":
        return Fraction(*parts)
    return function(fn, *parts)


SIGNS = {"add": PLUS, "sub": MINUS, "mul": TIMES}


def _closed(part: Math) -> Math:
    """A part as one factor."""
    sums = isinstance(part, Row) and (PLUS in part.parts or MINUS in part.parts)
    return Fence(part) if sums else part
