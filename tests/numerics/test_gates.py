"""Decays that enter a recurrence as logarithms."""

from __future__ import annotations

import torch

from archc.dims import BATCH, TIME, Axis, size_symbol
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.verify import verify
from archc.numerics.gates import gates_in_logs, in_logs, log_capture
from archc.numerics.logs import NoLog
from archc.numerics.propagation import intervals
from tests.graphs import Sketch, layer, lines, run

STATE = ir.State("S", (BATCH, Axis("K", size_symbol("K"))))


def gated(fn: str = "sigmoid") -> Sketch:
    """S = a * S_old + (1 - a) * x and o = S + a, with a = fn(x)."""
    body = Sketch()
    old, a = body.input("S[t-1]", "batch K"), body.input("a", "batch K")
    x = body.input("x", "batch K")
    rest = body.fn("mul", body.fn("sub", body.number(1), a), x)
    new = body.fn("add", body.fn("mul", a, old), rest)
    body.outputs(S=new, o=body.fn("add", new, a), a=a)
    s = Sketch()
    x = s.input("x", "batch t K")
    gate = s.fn(fn, x)
    s.graph.rename(gate, "a")
    recurrence = s.add(ir.Recurrence(TIME, ("a", "x"), (STATE,), body.graph), gate, x, s.number(0))
    return s.outputs(
        o=s.add(ir.Result("o"), recurrence),
        S=s.add(ir.Result("S"), recurrence),
        a=s.fn("add", s.add(ir.Result("a"), recurrence), gate),
    )


def same(old: ir.Layer, new: ir.Layer) -> None:
    verify(new)
    wanted, found = run(old, K=3).outputs, run(new, K=3).outputs
    assert list(wanted) == list(found)
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, atol=1e-12)


def recurrences(model: ir.Layer) -> list[ir.Recurrence]:
    return [node.op for node in model.graph if isinstance(node.op, ir.Recurrence)]


def test_a_capture_becomes_its_logarithm_and_the_body_reads_exp_of_it() -> None:
    model = layer(gated(), "K")
    new = gates_in_logs(model, lambda recurrence: ["a", "log_a"])
    same(model, new)
    (recurrence,) = recurrences(new)
    assert recurrence.captures == ("log_a", "x")
    assert in_logs(recurrence, "log_a")
    assert not in_logs(recurrences(model)[0], "a")
    assert "a = exp(log_a) : [batch, K]" in lines(recurrence.body)
    assert any(node.op == ir.Elementwise("logsigmoid") for node in new.graph)


def test_log_capture_adds_a_recurrence_and_leaves_the_old_one() -> None:
    s = gated()
    (old,) = (node.id for node in s.graph if isinstance(node.op, ir.Recurrence))
    new = log_capture(s.graph, old, "a", intervals(s.graph))
    assert isinstance(new, int)
    assert s.graph[old].op.captures == ("a", "x")
    assert s.graph[new].op.captures == ("log_a", "x")
    assert s.graph[new].op.body.outputs.keys() == s.graph[old].op.body.outputs.keys()


def test_a_gate_without_a_logarithm_stays() -> None:
    s = gated("tanh")
    (old,) = (node.id for node in s.graph if isinstance(node.op, ir.Recurrence))
    assert isinstance(log_capture(s.graph, old, "a", intervals(s.graph)), NoLog)
    model = layer(gated("tanh"), "K")
    assert gates_in_logs(model, lambda recurrence: ["a"]) is model


def test_a_name_that_is_taken_gets_a_prime() -> None:
    s = gated()
    (node,) = (node for node in s.graph if isinstance(node.op, ir.Recurrence))
    captures = ("a", "x", "log_a")
    op = ir.Recurrence(TIME, captures, (STATE,), node.op.body)
    gate, x, start = node.operands
    recurrence = s.add(op, gate, x, x, start)
    new = log_capture(s.graph, recurrence, "a", intervals(s.graph))
    assert isinstance(new, int)
    assert s.graph[new].op.captures == ("log_a'", "x", "log_a")
    verify(layer(s, "K"))


def test_a_whole_number_becomes_real() -> None:
    """What the body makes of it is real then too: here 1 - keep."""
    body = Sketch()
    old = body.input("S[t-1]", "batch K")
    keep = body.add(ir.Input("keep", Type(STATE.axes, "int")))
    rest = body.fn("mul", body.fn("sub", body.number(1), keep), old)
    body.outputs(S=body.fn("mul", keep, old), o=rest)
    s = Sketch()
    forgets = s.fn("gt", s.input("x", "batch t K"), s.number(1))
    gate = s.fn("where", forgets, s.number(0), s.number(1))
    start = s.input("S", "batch K")
    recurrence = s.add(ir.Recurrence(TIME, ("keep",), (STATE,), body.graph), gate, start)
    model = layer(
        s.outputs(o=s.add(ir.Result("o"), recurrence), S=s.add(ir.Result("S"), recurrence)), "K"
    )
    new = gates_in_logs(model, lambda recurrence: ["keep"])
    same(model, new)
    assert recurrences(new)[0].captures == ("log_keep",)
