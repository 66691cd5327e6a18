"""The checker: what passes rely on, each broken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import sympy

from archc.diagnostics import InternalError
from archc.dims import TIME, Axis, size_symbol
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.ir.verify import verify
from tests.graphs import Sketch, axes, axis, layer
from tests.ir.test_meaning import attention, caller, cell


def refused(model: ir.Layer, says: str) -> None:
    with pytest.raises(InternalError, match=says) as caught:
        verify(model)
    assert "bug in archc" in str(caught.value)


def simple() -> Sketch:
    """y = x @ W, of nodes 0, 1 and 2."""
    s = Sketch()
    s.einsum("batch t d, d K -> batch t K", s.input("x", "batch t d"), s.param("W", "d K"))
    return s.outputs(y=2)


def broken(graph: Graph, id: int, **changes: object) -> None:
    """Change a node behind the back of `Graph.add`."""
    graph._nodes[id] = replace(graph[id], **changes)
    graph.version += 1


@pytest.mark.parametrize("make", [lambda: layer(simple(), "d K"), cell, caller])
def test_what_is_in_order_passes(make: Callable[[], ir.Layer]) -> None:
    verify(make())


def test_an_attend_that_is_in_order_passes() -> None:
    verify(layer(attention("t", causal=True), "H K V"))
    verify(layer(attention("m", causal=False), "H K V"))


def test_a_type_that_does_not_follow_from_the_operands() -> None:
    s = simple()
    broken(s.graph, 2, type=Type(axes("batch t V")))
    refused(layer(s, "d K V"), r"node 2 \(Contract\): is real\[batch, t, K\], but says .* V\]")


def test_an_operand_that_is_not_there() -> None:
    s = simple()
    broken(s.graph, 2, operands=(0, 7))
    refused(layer(s, "d K"), "operand 7 is not in the graph")


def test_an_output_that_is_not_there_and_a_layer_without_any() -> None:
    refused(layer(simple().outputs(y=9), "d K"), "output `y` is not in the graph")
    refused(layer(simple().outputs(), "d K"), "has no output")


def test_a_circle() -> None:
    s = simple()
    broken(s.graph, 0, operands=(2,))
    s.graph._order = None
    refused(layer(s, "d K"), "depends on itself")


def test_names_that_stand_twice() -> None:
    s = simple()
    s.param("W", "d K")
    refused(layer(s, "d K"), r"parameter \['W'\] stands more than once")
    s = simple()
    s.input("x", "batch t d")
    refused(layer(s, "d K"), r"input \['x'\] stands more than once")


def test_a_size_that_no_argument_gives() -> None:
    refused(layer(simple(), "d"), r"node 1 \(Param, W\): unknown sizes \['K'\]")
    s = simple()
    s.outputs(y=s.fn("mul", 2, s.number(size_symbol("N"))))
    refused(layer(s, "d K"), r"unknown sizes \['N'\]")


def test_an_argument_and_its_symbol_have_one_name() -> None:
    model = replace(layer(simple(), "d K"), args=(ir.Arg("d", size_symbol("D")),))
    refused(model, "argument `d` is called `D`")


def test_a_contraction_of_axes_of_different_lengths() -> None:
    s = Sketch()
    y = s.einsum("i, i ->", s.input("x", "K"), s.input("z", "V"))
    refused(layer(s.outputs(y=y), "K V"), "joins K of K with V of V")
    equal = Axis("V", size_symbol("K") * 2 / 2)
    s = Sketch()
    z = s.add(ir.Param("z", (equal,), ir.Init("value", (sympy.Integer(0),))))
    verify(layer(s.outputs(y=s.einsum("i, i ->", s.input("x", "K"), z)), "K"))


def test_a_region_is_read_by_its_results_alone() -> None:
    s = attention("t", causal=True)
    attend = next(node.id for node in s.graph if isinstance(node.op, ir.Attend))
    refused(layer(s.outputs(y=attend), "H K V"), "output `y` is a region")
    s.outputs(y=s.fn("exp", attend))
    refused(layer(s, "H K V"), "read by Result alone")


def test_a_result_that_its_region_does_not_have() -> None:
    s = attention("t", causal=True)
    broken(s.graph, s.graph.outputs["y"], op=ir.Result("z"))
    refused(layer(s, "H K V"), "no such result")


def recurrence(**changes: object) -> ir.Layer:
    """S[t] = S[t-1] + v, with the Recurrence's fields changed, and `state` and `v` as axes of
    inputs."""
    s, body = Sketch(), Sketch()
    before = body.input("S[t-1]", str(changes.pop("state", "batch V")))
    v = body.input("v", str(changes.pop("v", "batch V")))
    body.outputs(S=body.fn("add", before, v))
    if changes.pop("param", False):
        body.outputs(S=body.fn("add", before, body.param("p", "V")))
    op = ir.Recurrence(TIME, ("v",), (ir.State("S", axes("batch V")),), body.graph)
    ids = [s.input("v", "batch t V"), s.number(0)]
    made = s.add(replace(op, **changes), *ids[: 2 if changes.get("captures") is None else 1])
    return layer(s.outputs(y=s.add(ir.Result("S"), made)), "V K")


def test_the_body_of_a_recurrence() -> None:
    verify(recurrence())
    refused(recurrence(v="batch K"), r"`v` enters as real\[batch, V\], not real\[batch, K\]")
    refused(recurrence(v="batch t V"), r"`v` enters as real\[batch, V\], not real\[batch, t, V\]")
    refused(
        recurrence(state="batch K"), r"`S\[t-1\]` enters as real\[batch, V\], not real\[batch, K\]"
    )
    refused(recurrence(captures=()), r"\['v'\] unknown")
    refused(recurrence(param=True), r"parameters \['p'\] are declared in a body")
    wide = (ir.State("S", axes("batch V")), ir.State("n", axes("batch")))
    refused(recurrence(states=wide), "2 operands, not 3")
    refused(recurrence(states=(ir.State("n", axes("batch V")),)), r"\['S\[t-1\]'\] unknown")


def test_the_update_of_a_state_fits_the_state() -> None:
    model = recurrence(state="batch V", v="batch V")
    narrow = ir.State("S", axes("batch"))
    (node,) = (node for node in model.graph if isinstance(node.op, ir.Recurrence))
    body = Sketch()
    body.outputs(S=body.fn("add", body.input("S[t-1]", "batch"), body.input("v", "batch V")))
    broken(model.graph, node.id, op=replace(node.op, states=(narrow,), body=body.graph))
    refused(model, r"update of `S` is real\[batch, V\]")


def attend(**changes: object) -> ir.Layer:
    s = attention("t", causal=True)
    (node,) = (node for node in s.graph if isinstance(node.op, ir.Attend))
    broken(s.graph, node.id, op=replace(node.op, **changes))
    return layer(s, "H K V")


def test_the_captures_of_an_attend() -> None:
    swapped = (("q", "read"), ("k", "read"), ("v", "read"))
    refused(attend(captures=swapped), r"`q` enters as real\[batch, s, H, K\], not real\[batch, t")
    refused(attend(captures=swapped[1:]), "an operand for each capture")
    refused(attend(captures=(("q", "path"), *swapped[1:])), "`q` needs a path")
    refused(attend(captures=(("q", "writer"), *swapped[1:])), "role `writer`")
    refused(
        attend(captures=(("k", "read"), *swapped[1:])), r"capture \['k'\] stands more than once"
    )


def test_a_call_gives_every_size_and_input_of_the_callee() -> None:
    model = caller()
    id, call = model.calls[0]
    broken(model.graph, id, op=replace(call, sizes=call.sizes[:1]))
    refused(model, r"no value for sizes \['b'\]")
    model = caller()
    broken(model.graph, id, op=replace(call, axes=(("a", axis("H")), ("b", axis("H")))))
    refused(model, r"`x` is real\[batch, t, a\], given real\[batch, t, d\]")
    model = caller()
    broken(model.graph, id, operands=())
    refused(model, "0 operands")
    model = caller()
    broken(model.graph, model.calls[1][0], op=replace(model.calls[1][1], path="up"))
    refused(model, r"path of a called layer \['up'\] stands more than once")


def test_a_called_layer_is_checked_itself() -> None:
    model = caller()
    model.calls[0][1].callee.graph.outputs["y"] = 99
    refused(model, "layer `Test`: output `y` is not in the graph")
