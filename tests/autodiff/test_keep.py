"""What is saved for a gradient, and what is computed again."""

from __future__ import annotations

import sympy

from archc.autodiff.keep import per_token, report, whole
from archc.autodiff.reverse import gradient
from archc.dims import T_SEEN, TIME, stream
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import cheapest_cut
from archc.ir.typing import layer_graph
from tests.autodiff.agreement import agree
from tests.autodiff.test_chunk_gradients import CHUNKS, COL, ROW, ChunkSketch
from tests.graphs import Sketch, axes, axis


def test_the_cheapest_cut_is_between_the_sources_and_the_sinks() -> None:
    """0 -> 1 -> 2 -> 4 and 0 -> 3 -> 4: at 1 and 3, or at 4."""
    reads = {0: (), 1: (0,), 2: (1,), 3: (0,), 4: (2, 3)}
    weights = {0: 9, 1: 2, 2: 3, 3: 1, 4: 8}
    assert cheapest_cut(weights, reads, [0], [4]) == [1, 3]
    assert cheapest_cut({**weights, 4: 1}, reads, [0], [4]) == [4]
    assert cheapest_cut({**weights, 4: 3}, reads, [0], [4]) == [4], "the nearest to the sinks"
    assert cheapest_cut(weights, reads, [], [4]) == []


def test_what_is_elementwise_in_inputs_is_computed_again() -> None:
    s = Sketch()
    x, g = s.input("x", "t K"), s.input("g", "t K")
    s.outputs(y=s.fn("mul", s.fn("exp", s.add(ck.Sums("K"), g)), s.fn("sigmoid", x)))
    made = agree(s.graph)
    assert not made.saved
    assert {"exp", "sigmoid"} <= {getattr(node.op, "fn", None) for node in made.recomputed}


def test_of_a_dear_value_the_smallest_that_follows_is_saved() -> None:
    """Of tanh(x @ W) the sum over V of what is wide: neither product, nor anything twice."""
    s = Sketch()
    product = s.einsum("t K, K V -> t V", s.input("x", "t K"), s.input("W", "K V"))
    least = s.add(ir.Reduce("sum", ("V",)), product)
    s.outputs(y=s.fn("exp", s.fn("tanh", least)))
    made = agree(s.graph)
    (saved,) = made.saved
    assert (saved.type.names, saved.numbers, saved.bytes) == (("t",), 1, 4)


def test_a_report_says_what_is_saved_and_why() -> None:
    s = ChunkSketch()
    A = s.add(ck.Inverse("i", "j"), s.add(ir.Input("A", ir.Type((CHUNKS, ROW, COL)))))
    level = s.add(ir.Elementwise("tanh"), s.input("x", "n i K"), name="level")
    s.outputs(y=s.add(ck.Mix("i", "j"), A, level, s.input("g", "n i K")))
    made = gradient(s.graph, ["A", "x", "g"], ["y"])
    assert report(made) == (
        "saved for the gradient, bytes a token in float32:\n"
        "  saved.inverse  4*chunk  [n, i, j]  Inverse: costly to recompute\n"
        "  in all 4*chunk\n"
        "computed again: level, 3 without a name\n"
    )


def test_numbers_a_token_of_a_value_along_chunks() -> None:
    K = axis("K").size
    assert per_token((TIME, axis("K"))) == K
    assert sympy.simplify(per_token((CHUNKS, axis("K"))) - K / ck.CHUNK) == 0
    assert per_token((CHUNKS, ROW, COL)) == ck.CHUNK
    assert per_token(()) == 1 / TIME.size


def test_a_gradient_is_of_whole_sequences() -> None:
    """T_seen is T, also in a body."""
    seen = stream("s", T_SEEN)
    graph = layer_graph()
    graph.outputs["y"] = graph.add(ir.Input("y", ir.Type((seen,))))
    body = layer_graph()
    body.outputs["S"] = body.add(ir.Input("S[t-1]", ir.Type((seen,))))
    zero = graph.add(ir.Constant(T_SEEN))
    state = ir.State("S", (seen, *axes("K")))
    graph.outputs["S"] = graph.add(
        ir.Result("S"), graph.add(ir.Recurrence(TIME, (), (state,), body), zero)
    )
    found = whole(graph)
    assert [found[id].type.axes[-1].size for id in found.outputs.values()] == [TIME.size] * 2
    assert [n.op.value for n in found if isinstance(n.op, ir.Constant)] == [TIME.size]
