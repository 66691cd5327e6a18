"""The checker looks into chunked forms, their gradients, and products of conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from archc.compile import before_chunks, in_chunks
from archc.diagnostics import InternalError
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.verify import every_node, verify
from tests.elaborate.specs import layer

SPEC = """layer L(H, K):
    input q[H, K], k[H, K], b[H]
    param lam[H, K]
    recurrence A[K, K'] over H:
        A[t] = sigmoid(b) * A[t-1] + k @ k.T
        o = solve(A[t] + diag(exp(lam)), q)
    output o
"""

Change = Callable[[ck.ChunkForm], ck.ChunkForm]


def copied(form: ck.ChunkForm) -> ck.ChunkForm:
    assert form.backward is not None
    return replace(form, forward=form.forward.copy(), backward=form.backward.copy())


def changed(change: Change) -> ir.Layer:
    """The layer with another chunked form."""
    made = in_chunks(before_chunks(layer(SPEC)))
    graph = made.graph.copy()
    recurrence = next(node for node in graph if isinstance(node.op, ir.Recurrence))
    put(graph, recurrence.id, replace(recurrence.op, chunked=change(copied(recurrence.op.chunked))))
    return replace(made, graph=graph)


def put(graph: Graph, id: int, op: object) -> None:
    """Change an op behind the back of `Graph.add`."""
    graph._nodes[id] = replace(graph[id], op=op)
    graph.version += 1


def unchanged(form: ck.ChunkForm) -> ck.ChunkForm:
    return form


def without_a_saved_value(form: ck.ChunkForm) -> ck.ChunkForm:
    del form.forward.outputs[form.saved[0]]
    return form


def with_a_result_that_the_recurrence_lacks(form: ck.ChunkForm) -> ck.ChunkForm:
    form.forward.outputs["p"] = form.forward.outputs["o"]
    return form


def with_a_final_state_along_the_stream(form: ck.ChunkForm) -> ck.ChunkForm:
    form.forward.outputs["A[T]"] = form.forward.outputs["o"]
    return form


def with_a_gradient_of_nothing(form: ck.ChunkForm) -> ck.ChunkForm:
    assert form.backward is not None
    form.backward.outputs["d.w"] = form.backward.outputs["d.q"]
    return form


def with_a_gradient_that_is_too_wide(form: ck.ChunkForm) -> ck.ChunkForm:
    assert form.backward is not None
    form.backward.outputs["d.b"] = form.backward.outputs["d.q"]
    return form


def with_another_product(form: ck.ChunkForm) -> ck.ChunkForm:
    node = next(n for n in form.forward if isinstance(n.op, ck.Conjugate))
    body = node.op.body.copy()
    body.outputs["product"] = next(n.id for n in body if "K" not in n.type.names)
    put(form.forward, node.id, replace(node.op, body=body))
    return form


def with_an_unknown_size(form: ck.ChunkForm) -> ck.ChunkForm:
    node = next(n for n in form.forward if isinstance(n.op, ck.Conjugate))
    put(form.forward, node.id, replace(node.op, iterations=ck.size_symbol("steps")))
    return form


def test_what_is_in_order_passes() -> None:
    verify(changed(unchanged))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without_a_saved_value, "are saved but not made"),
        (with_a_result_that_the_recurrence_lacks, "no result `p`"),
        (with_a_final_state_along_the_stream, r"`A\[T\]` is .*, not real\[batch, H, K, K'\]"),
        (with_a_gradient_of_nothing, "`d.w` is the gradient of no input"),
        (with_a_gradient_that_is_too_wide, "`d.b` is real"),
        (with_another_product, "is real.*, but says real"),
        (with_an_unknown_size, r"unknown sizes \['steps'\]"),
    ],
)
def test_what_is_not_is_found(change: Change, says: str) -> None:
    with pytest.raises(InternalError, match=says):
        verify(changed(change))


def test_every_node_is_also_one_of_a_form() -> None:
    graph = changed(unchanged).graph
    assert any(isinstance(node.op, ck.Conjugate) for node in every_node(graph))
    assert any(getattr(node.op, "name", "") == "d.o" for node in every_node(graph))
