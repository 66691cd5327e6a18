"""Layer IR: a gate that may be negative, as the logarithm of its size and where it is below 0.

    a = tanh(x)    ->    below = where(a < 0, 1, 0),    log(where(a < 0, -a, a) + LEAST)

The sign of a product of gates is the parity of a sum of `below`. What follows from a gate is linear
in it, so that its gradient at 0 is that at LEAST, and a gradient of the logarithm, divided by the
size, is right to all digits wherever it is a sum of nothing but what decays by that gate.
"""

from __future__ import annotations

import sympy

from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph
from archc.numerics.logs import Known, NoLog, growth, log_of

LEAST = sympy.Rational(1, 2**60)
"""The size of a gate of 0: float64 has no digit of it beside 1, and float32 room for its square."""


def log_and_sign(graph: Graph, id: int, known: Known) -> tuple[int, int | None] | NoLog:
    """The logarithm of the size of a gate from -1 to 1, and what is 1 where it is below 0 and 0
    elsewhere (None: it is nowhere; of a product the number of factors), or why there are none.

    known: `intervals(graph)`. A factor that has a logarithm enters by that.
    """
    found, node = log_of(graph, id, known), graph[id]
    make = Builder(graph, node.span)
    if not isinstance(found, NoLog):
        never = growth(graph, found, known).never
        return (found, None) if never else NoLog(id, "a factor of it may be more than 1")
    if node.op == ir.Elementwise("mul"):
        parts = list[tuple[int, int | None]]()
        for operand in node.operands:
            part = log_and_sign(graph, operand, known)
            if isinstance(part, NoLog):
                return part
            parts.append(part)
        belows = [below for _, below in parts if below is not None]
        log = make.chain("add", [log for log, _ in parts])
        return log, make.chain("add", belows) if belows else None
    inside = known.get(id, Interval())
    if not inside.within(Interval(-1, 1)):
        return found
    zero, size, below = make.number(0), id, None
    if inside.low < 0:
        negative = make.fn("lt", id, zero)
        size = make.fn("where", negative, make.fn("neg", id), id)
        below = make.fn("where", negative, make.number(1), zero)
    return make.fn("log", make.fn("add", size, make.number(LEAST))), below
