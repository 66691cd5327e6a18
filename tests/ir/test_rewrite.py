"""The driver of rules: what it hands on, what it leaves alone, what it refuses."""

from __future__ import annotations

import pytest
import sympy

from archc.diagnostics import InternalError
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite
from archc.ir.text import as_text
from tests.graphs import Sketch, layer, lines
from tests.ir.test_meaning import attention, caller


def exp_to_sigmoid(graph: Graph, node: Node) -> int | None:
    """`exp(x)` -> `sigmoid(x)`: of the same type, which is all that the driver asks for."""
    if node.op != ir.Elementwise("exp"):
        return None
    return graph.add(ir.Elementwise("sigmoid"), *node.operands)


def chain(*fns: str) -> Sketch:
    s = Sketch()
    id = s.input("x", "batch K")
    for fn in fns:
        id = s.fn(fn, id)
    return s.outputs(y=id)


def test_a_layer_without_anything_to_change_is_handed_back() -> None:
    model = layer(chain("tanh"), "K")
    assert rewrite(model, [exp_to_sigmoid]) is model


def test_the_new_node_takes_the_place_name_and_span_of_the_old() -> None:
    s = chain("exp", "tanh", "exp")
    model = layer(s, "K")
    s.graph.rename(1, "a", model.span)
    before = as_text(model)
    new = rewrite(model, [exp_to_sigmoid])
    assert lines(new.graph) == [
        "a = sigmoid(x) : [batch, K]",
        "%0 = tanh(a) : [batch, K]",
        "%1 = sigmoid(%0) : [batch, K]",
    ]
    (a,) = (node for node in new.graph if node.name == "a")
    assert a.span is model.span
    assert as_text(model) == before


def test_a_name_of_a_value_that_stays_is_not_overwritten() -> None:
    s = chain("tanh", "neg", "neg")
    s.graph.rename(1, "a")
    s.graph.rename(3, "b")

    def drop(graph: Graph, node: Node) -> int | None:
        inner = graph[node.operands[0]] if node.operands else node
        both = node.op == inner.op == ir.Elementwise("neg")
        return inner.operands[0] if both and inner is not node else None

    new = rewrite(layer(s, "K"), [drop])
    assert lines(new.graph) == ["a = tanh(x) : [batch, K]"]
    assert new.graph[new.graph.outputs["y"]].name == "a"


def test_new_nodes_stand_where_the_old_one_stood() -> None:
    s = chain("exp", "tanh")
    z = s.fn("cos", s.graph.outputs["y"])
    s.outputs(y=s.fn("add", z, s.fn("sin", s.graph.outputs["y"])))
    new = rewrite(layer(s, "K"), [exp_to_sigmoid])
    assert [line.split(" = ")[1].split("(")[0] for line in lines(new.graph)] == [
        "sigmoid", "tanh", "cos", "sin", "add",
    ]  # fmt: skip


def test_what_a_rule_adds_in_vain_is_dropped() -> None:
    def vain(graph: Graph, node: Node) -> int | None:
        graph.add(ir.Constant(sympy.Integer(7)))

    model = layer(chain("exp"), "K")
    assert rewrite(model, [vain]) is model
    new = rewrite(model, [vain, exp_to_sigmoid])
    assert len(new.graph) == 2


def test_bodies_and_called_layers_are_rewritten_once() -> None:
    s = attention("t", causal=True)
    (pair,) = (node for node in s.graph if isinstance(node.op, ir.Attend))
    body = pair.op.body
    body.outputs["p"] = body.add(ir.Elementwise("exp"), body.outputs["p"])
    new = rewrite(layer(s, "H K V"), [exp_to_sigmoid])
    (changed,) = (node for node in new.graph if isinstance(node.op, ir.Attend))
    assert "exp" not in "".join(lines(changed.op.body)) and "exp" in "".join(lines(body))
    model = caller()
    callee = model.calls[0][1].callee
    callee.graph.outputs["y"] = callee.graph.add(ir.Elementwise("exp"), callee.graph.outputs["y"])
    one, two = (call.callee for _, call in rewrite(model, [exp_to_sigmoid]).calls)
    assert one is two and one is not callee


def test_rules_that_undo_one_another_are_a_bug() -> None:
    def back(graph: Graph, node: Node) -> int | None:
        if node.op != ir.Elementwise("sigmoid"):
            return None
        return graph.add(ir.Elementwise("exp"), *node.operands)

    with pytest.raises(InternalError, match="undo one another"):
        rewrite(layer(chain("exp"), "K"), [exp_to_sigmoid, back])


def test_a_rule_that_changes_the_type_is_a_bug() -> None:
    def summed(graph: Graph, node: Node) -> int | None:
        if node.op != ir.Elementwise("exp"):
            return None
        return graph.add(ir.Reduce("sum", ("K",)), *node.operands)

    with pytest.raises(InternalError, match="rule summed: "):
        rewrite(layer(chain("exp"), "K"), [summed])
