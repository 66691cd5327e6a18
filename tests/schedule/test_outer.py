"""Sums over sequences and heads, taken out of walks."""

from __future__ import annotations

from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.chunk import start
from archc.ir.graph import Graph
from archc.schedule.outer import without_outer_sums
from tests.graphs import Sketch, axes


def walked() -> Graph:
    """h' = a h; d = sigmoid(w) * the sum of h' over the batch."""
    body = Sketch()
    h = body.fn("mul", body.input("a", "batch D"), body.input("h[t-1]", "batch D"))
    every = body.add(ir.Reduce("sum", ("batch",)), h)
    body.outputs(h=h, d=body.fn("mul", body.fn("sigmoid", body.input("w", "D")), every))
    s = Sketch()
    states = (ir.State("h", axes("batch D")),)
    given = s.input("a", "batch t D"), s.input("w", "D"), s.input(start("h"), "batch D")
    recurrence = s.add(ir.Recurrence(TIME, ("a", "w"), states, body.graph), *given)
    return s.outputs(d=s.add(ir.Result("d"), recurrence)).graph


def test_what_all_sequences_share_is_no_result_of_a_walk() -> None:
    """Every program would store it, in the same place."""
    found = without_outer_sums(walked(), ())
    (recurrence,) = (node.op for node in found if isinstance(node.op, ir.Recurrence))
    made = {name: recurrence.body[id].type.names for name, id in recurrence.body.outputs.items()}
    assert made and all("batch" in names for names in made.values()), made
    assert {n.op.fn for n in found if isinstance(n.op, ir.Elementwise)} >= {"sigmoid"}
