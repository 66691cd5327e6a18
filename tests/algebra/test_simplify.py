"""Simplification as a whole: recurrences in any spelling take the same steps, and specs keep their
meaning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from archc.algebra.simplify import simplify
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.text import as_text
from archc.ir.verify import every_node, verify
from tests.graphs import Sketch, axes, axis, layer, lines, run
from tests.ir.test_meaning import caller

SIZES = {"H": 2, "K": 3, "V": 4}
Step = Callable[[Sketch, dict[str, int]], int]


def matrix(b: Sketch, v: dict[str, int]) -> int:
    """I - beta * k @ k.T"""
    outer = b.einsum(
        "batch H K, batch H K' -> batch H K K'", b.fn("mul", v["beta"], v["k"]), v["k"]
    )
    return b.fn("sub", b.add(ir.Delta(axis("K"), axis("K'"))), outer)


def diagonal(b: Sketch, v: dict[str, int]) -> int:
    """diag(alpha), with the axes batch, H, K, K'"""
    delta = b.add(ir.Delta(axis("K"), axis("K'")))
    out = b.fn("mul", v["alpha"], delta)
    return b.einsum("batch H K K' -> batch H K K'", out)


def write(b: Sketch, v: dict[str, int], turned: bool = False) -> int:
    """beta * k @ v.T"""
    bk = b.fn("mul", v["beta"], v["k"])
    order = "batch H V K" if turned else "batch H K V"
    return b.einsum(f"batch H K, batch H V -> {order}", bk, v["v"])


def as_printed(b: Sketch, v: dict[str, int]) -> int:
    """S[t] = (I - beta * k @ k.T) @ diag(alpha) @ S[t-1] + beta * k @ v.T"""
    product = "batch H K j, batch H j {0} -> batch H K {0}"
    both = b.einsum("batch H K j, batch H j k -> batch H K k:K'", matrix(b, v), diagonal(b, v))
    return b.fn("add", b.einsum(product.format("V"), both, v["S[t-1]"]), write(b, v))


def from_the_right(b: Sketch, v: dict[str, int]) -> int:
    """R = diag(alpha) @ S[t-1]; S[t] = (I - beta * k @ k.T) @ R + beta * k @ v.T"""
    product = "batch H K j, batch H j V -> batch H K V"
    R = b.einsum(product, diagonal(b, v), v["S[t-1]"])
    return b.fn("add", b.einsum(product, matrix(b, v), R), write(b, v))


def transposed(b: Sketch, v: dict[str, int]) -> int:
    """S[t] = S[t-1] @ diag(alpha) @ (I - beta * k @ k.T) + v @ (beta * k).T, with S[V, K]"""
    product = "batch H V j, batch H j K -> batch H V K"
    once = b.einsum(product, v["S[t-1]"], diagonal(b, v))
    return b.fn("add", b.einsum(product, once, matrix(b, v)), write(b, v, turned=True))


def recurrence(step: Step, state: str) -> ir.Layer:
    s, b = Sketch(), Sketch()
    dims = {"k": "H K", "v": "H V", "alpha": "H K", "beta": "H", "q": "H K"}
    values = {name: b.input(name, f"batch {own}") for name, own in dims.items()}
    values["S[t-1]"] = b.input("S[t-1]", state)
    S = step(b, values)
    labels = " ".join(b.graph[S].type.names)
    b.outputs(S=S, o=b.einsum(f"{labels}, batch H K -> batch H V", S, values["q"]))
    recurrence = ir.Recurrence(TIME, tuple(dims), (ir.State("S", axes(state)),), b.graph)
    ids = [s.input(name, f"batch t {own}") for name, own in dims.items()]
    return layer(s.outputs(o=s.add(ir.Result("o"), s.add(recurrence, *ids, s.number(0)))), "H K V")


def body(model: ir.Layer) -> ir.Recurrence:
    (found,) = (node.op for node in model.graph if isinstance(node.op, ir.Recurrence))
    return found


SPELLINGS = {
    "as printed": (as_printed, "batch H K V"),
    "from the right": (from_the_right, "batch H K V"),
    "transposed": (transposed, "batch H V K"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_low_rank_step_never_builds_a_square_matrix(spelling: str) -> None:
    model = recurrence(*SPELLINGS[spelling])
    verify(model)
    simple = simplify(model)
    old, new = run(model, **SIZES).outputs["o"], run(simple, **SIZES).outputs["o"]
    assert torch.allclose(old, new, rtol=1e-10)
    assert any({"K", "K'"} <= set(node.type.names) for node in body(model).body)
    assert not any({"K", "K'"} <= set(node.type.names) for node in body(simple).body)


def test_the_step_of_a_decayed_state_that_is_corrected() -> None:
    steps = lines(body(simplify(recurrence(*SPELLINGS["as printed"]))).body)
    assert steps == [
        "%0 = mul(beta, k) : [batch, H, K]",
        "%1 = mul(alpha, S[t-1]) : [batch, H, K, V]",
        "%2 = contract[batch H K, batch H K V -> batch H V](k, %1) : [batch, H, V]",
        "%3 = contract[batch H K, batch H V -> batch H K V](%0, %2) : [batch, H, K, V]",
        "%4 = sub(%1, %3) : [batch, H, K, V]",
        "%5 = contract[batch H K, batch H V -> batch H K V](%0, v) : [batch, H, K, V]",
        "%6 = add(%4, %5) : [batch, H, K, V]",
        "%7 = contract[batch H K V, batch H K -> batch H V](%6, q) : [batch, H, V]",
    ]


def test_two_spellings_become_one() -> None:
    one, other = (
        lines(body(simplify(recurrence(*SPELLINGS[name]))).body)
        for name in ("as printed", "from the right")
    )
    assert one == other


def test_the_layer_that_is_given_stays_as_it_is() -> None:
    model = recurrence(*SPELLINGS["as printed"])
    before = as_text(model)
    assert as_text(simplify(model)) != before
    assert as_text(model) == before


def test_what_cannot_be_simplified_is_handed_back() -> None:
    simple = simplify(recurrence(*SPELLINGS["as printed"]))
    assert simplify(simple) is simple


def test_inputs_and_parameters_stay_in_order_though_nothing_reads_them() -> None:
    s = Sketch()
    names = ["x", "unread", "W", "spare"]
    x, _ = s.input("x", "batch K"), s.input("unread", "batch K")
    W, _ = s.param("W", "K V"), s.param("spare", "K V")
    y = s.einsum("batch K, K V -> batch V", s.fn("mul", x, s.number(1)), W)
    new = simplify(layer(s.outputs(y=y), "K V"))
    assert [op.name for _, op in new.inputs] + [op.name for _, op in new.params] == names


def test_a_layer_called_twice_stays_one_layer() -> None:
    model = caller()
    inner = model.calls[0][1].callee
    y = inner.graph.outputs["y"]
    inner.graph.outputs["y"] = inner.graph.add(ir.Elementwise("neg"), y)
    inner.graph.outputs["y"] = inner.graph.add(ir.Elementwise("neg"), inner.graph.outputs["y"])
    new = simplify(model)
    first, second = (call.callee for _, call in new.calls)
    assert first is second and len(first.graph) == len(inner.graph) - 2
    sizes = {"d": 3, "H": 4}
    assert torch.equal(run(new, **sizes).outputs["y"], run(model, **sizes).outputs["y"])


def test_names_and_spans_go_to_what_takes_the_place() -> None:
    model = recurrence(*SPELLINGS["as printed"])
    span = model.span
    graph = body(model).body
    S, o = graph.outputs["S"], graph.outputs["o"]
    graph.rename(S, "S", span)
    graph.rename(o, "o", span)
    for node in graph:
        graph.rename(node.id, node.name, span)
    nodes = [n for n in every_node(simplify(model).graph) if not isinstance(n.op, ir.Input)]
    assert {"S", "o"} <= {node.name for node in nodes}
    inside = [node for node in nodes if "t" not in node.type.names and node.type.axes]
    assert inside and all(node.span is span for node in inside)
