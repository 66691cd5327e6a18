"""Gradients of recurrences and attends against torch's autograd of the oracle."""

from __future__ import annotations

import math

import pytest
import sympy
import torch

from archc.autodiff.gradient_builder import NoGradient
from archc.autodiff.keep import report
from archc.autodiff.reverse import gradient
from archc.dims import TIME
from archc.ir import chunk as ck
from archc.ir import layer as ir
from tests.autodiff.agreement import agree
from tests.autodiff.test_chunk_gradients import CHUNKS, COL, ROW, ChunkSketch
from tests.graphs import Sketch, axes, axis, layer


def layer_with(
    body: Sketch,
    outside: dict[str, str],
    states: dict[str, str],
    starts: dict[str, str],
    **more: bool,
) -> Sketch:
    """A fold of a body over captures with these axes; starts are inputs `S0`. Its outputs are those
    of the body, and each state in the end."""
    s = Sketch()
    captures = [s.input(name, dims) for name, dims in outside.items()]
    begin = [s.input(f"{name}0", starts.get(name, dims)) for name, dims in states.items()]
    carried = tuple(ir.State(name, axes(dims)) for name, dims in states.items())
    recurrence = s.add(
        ir.Recurrence(TIME, tuple(outside), carried, body.graph, **more), *captures, *begin
    )
    results = {name: s.add(ir.Result(name), recurrence) for name in body.graph.outputs}
    ends = {
        f"{name}_end": s.add(ck.Last("t", more.get("reverse", False)), results[name], first)
        for name, first in zip(states, begin, strict=True)
    }
    return s.outputs(**results, **ends)


def gated() -> Sketch:
    """A gated cell that is not linear in its states, with weights that are captured."""
    body = Sketch()
    h, c = body.input("h[t-1]", "batch D"), body.input("c[t-1]", "batch D")
    seen = body.einsum("batch D', D' G D -> batch G D", h, body.input("R", "D' G D"))
    pre = body.fn("add", body.input("a", "batch G D"), seen)
    i, f, g, o = (
        body.fn(fn, body.add(ir.Gather("G"), pre, body.number(n)))
        for n, fn in enumerate(("sigmoid", "sigmoid", "tanh", "sigmoid"))
    )
    new = body.fn("add", body.fn("mul", f, c), body.fn("mul", i, g))
    return body.outputs(h=body.fn("mul", o, body.fn("tanh", new)), c=new, f=f)


def linear() -> Sketch:
    """S' = exp(g) S + k v^T; o = q^T S', and q^T S before the token."""
    body = Sketch()
    S = body.input("S[t-1]", "batch K V")
    k, v, q = body.input("k", "batch K"), body.input("v", "batch V"), body.input("q", "batch K")
    kept = body.fn("mul", body.fn("exp", body.input("g", "batch K")), S)
    new = body.fn("add", kept, body.einsum("batch K, batch V -> batch K V", k, v))
    read = body.einsum("batch K, batch K V -> batch V", q, new)
    early = body.einsum("batch K, batch K V -> batch V", q, S)
    return body.outputs(S=new, o=read, early=early)


LINEAR = {"k": "batch t K", "v": "batch t V", "q": "batch t K", "g": "batch t K"}


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_cell_that_is_not_linear(length: int, reverse: bool) -> None:
    outside = {"a": "batch t G D", "R": "D' G D"}
    s = layer_with(gated(), outside, {"h": "batch D", "c": "batch D"}, {"c": "D"}, reverse=reverse)
    a = torch.randn(2, length, 4, 4, dtype=torch.float64)
    made = agree(s.graph, {"a": a}, sizes={"T#": length})
    shapes = [n.type.names for n in made.backward if {"t", "D'"} <= set(n.type.names)]
    assert not shapes, "the cotangent of the weight is one product, not one a token"


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_linear_recurrence(length: int) -> None:
    s = layer_with(linear(), LINEAR, {"S": "batch K V"}, {})
    values = {name: torch.randn(2, length, 4, dtype=torch.float64) for name in LINEAR}
    values["g"] = -values["g"].abs()
    if length == 5:
        values["g"][:, 2], values["g"][:, 3] = -math.inf, -1000
    made = agree(s.graph, values, sizes={"T#": length})
    (back,) = (node.op for node in made.backward if isinstance(node.op, ir.Recurrence))
    assert back.reverse and [state.name for state in back.states] == ["d.S.carried"]


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_state_that_each_token_makes_anew(length: int) -> None:
    """P' = k v^T, read one token late, as another walk reads it too; with no token P[0] is the end,
    and its gradient comes back once."""
    body = Sketch()
    made = body.einsum("batch K, batch V -> batch K V", *(body.input(n, d) for n, d in KV))
    body.outputs(P=made, before=body.input("P[t-1]", "batch K V"))
    s = layer_with(body, {"k": "batch t K", "v": "batch t V"}, {"P": "batch K V"}, {})
    agree(s.graph, {n: torch.randn(2, length, 4) for n in "kv"}, sizes={"T#": length})


KV = ("k", "batch K"), ("v", "batch V")
"""What a token brings."""


def test_captures_without_the_stream_and_integers() -> None:
    """x[t] = where(t-th is odd, x * w, x) + b with w[K], b[] and integers along the stream."""
    body = Sketch()
    x = body.input("x[t-1]", "batch K")
    odd = body.fn("eq", body.input("odd", "", "int"), body.number(1))
    chosen = body.fn("where", odd, body.fn("mul", x, body.input("w", "K")), x)
    body.outputs(x=body.fn("tanh", body.fn("add", chosen, body.input("b"))))
    s = Sketch()
    odd, w, b = s.input("odd", "t", "int"), s.input("w", "K"), s.input("b")
    state = ir.State("x", axes("batch K"))
    first = s.input("x0", "K")
    recurrence = s.add(
        ir.Recurrence(TIME, ("odd", "w", "b"), (state,), body.graph), odd, w, b, first
    )
    s.outputs(y=s.add(ir.Result("x"), recurrence), again=s.add(ir.Result("x"), recurrence))
    agree(s.graph, {"odd": torch.arange(5) % 2})


@pytest.mark.parametrize("length", [0, 1, 5])
def test_shares_of_a_sum_that_are_as_large_as_the_state_are_not_stored(length: int) -> None:
    """S' = sigmoid(A) S + tanh(B) x, o = sum[K](C S') - S' has A, B, C [K, V]: their cotangents are
    carried as sums, one for each sequence, and no value [t, K, V] leaves the loop."""
    body = Sketch()
    S, x = body.input("S[t-1]", "batch K V"), body.input("x", "batch K")
    A, B, C = (body.input(name, "K V") for name in "ABC")
    kept = body.fn("mul", body.fn("sigmoid", A), S)
    new = body.fn("add", kept, body.fn("mul", body.fn("tanh", B), x))
    read = body.einsum("K V, batch K V -> batch V", C, new)
    body.outputs(S=new, o=body.fn("sub", read, body.einsum("batch K V -> batch V", new)))
    outside = {"x": "batch t K", "A": "K V", "B": "K V", "C": "K V"}
    s = layer_with(body, outside, {"S": "batch K V"}, {})
    made = agree(s.graph, {"x": torch.randn(2, length, 4)}, sizes={"T#": length})
    (back,) = (node.op for node in made.backward if isinstance(node.op, ir.Recurrence))
    carried = [f"d.{name}.carried" for name in "SABC"]
    assert [state.name for state in back.states] == carried
    assert [*back.body.outputs] == ["d.S.carried", "d.x", *carried[1:]]


def test_only_states_that_take_part_are_carried() -> None:
    """Of a counter that depends on nothing wanted, and of a state that no result reads, nothing."""
    body = Sketch()
    n, h, u = (body.input(f"{name}[t-1]", "batch") for name in "nhu")
    x = body.input("x", "batch")
    body.outputs(
        n=body.fn("add", n, body.number(1)),
        h=body.fn("tanh", body.fn("add", body.fn("div", h, n), x)),
        u=body.fn("mul", u, x),
    )
    s = Sketch()
    x = s.input("x", "batch t")
    states = tuple(ir.State(name, axes("batch")) for name in "nhu")
    starts = (s.number(1), s.number(0), s.number(1))
    recurrence = s.add(ir.Recurrence(TIME, ("x",), states, body.graph), x, *starts)
    s.outputs(y=s.add(ir.Result("h"), recurrence))
    made = agree(s.graph)
    (back,) = (node.op for node in made.backward if isinstance(node.op, ir.Recurrence))
    assert [state.name for state in back.states] == ["d.h.carried"]


def test_a_recurrence_in_a_recurrence() -> None:
    """Steps along m for every token, from the state that the token before left."""
    inner = Sketch()
    z = inner.input("z[t-1]", "batch K")
    inner.outputs(z=inner.fn("tanh", inner.fn("add", z, inner.input("u", "batch K"))))
    body = Sketch()
    x, y = body.input("x", "batch K"), body.input("y[t-1]", "batch K")
    u = body.fn("mul", x, body.input("w", "batch m K"))
    state = ir.State("z", axes("batch K"))
    steps = body.add(ir.Recurrence(axis("m"), ("u",), (state,), inner.graph), u, y)
    found = body.add(ir.Result("z"), steps)
    body.outputs(y=body.add(ck.Last("m"), found, y))
    outside = {"x": "batch t K", "w": "batch m K"}
    agree(layer_with(body, outside, {"y": "batch K"}, {}).graph)


def test_a_result_may_be_called_like_a_state_before_the_token() -> None:
    """The gradient of h[t] = x h[t-1] reads h[t-1] of every token, which is put out under a name of
    its own."""
    body = Sketch()
    h, x = body.input("h[t-1]", "batch"), body.input("x", "batch")
    body.outputs(h=body.fn("mul", h, x), **{"h[t-1]": body.fn("exp", x)})
    made = agree(layer_with(body, {"x": "batch t"}, {"h": "batch"}, {}).graph)
    (walk,) = (node.op for node in made.forward if isinstance(node.op, ir.Recurrence))
    assert {*walk.body.outputs} == {"h", "h[t-1]", "h[t-1]'"}


def test_a_refusal_in_a_body_names_the_node() -> None:
    body = Sketch()
    x = body.input("x", "batch m")
    M = body.add(ck.Scan("m", "max-plus"), x, x, body.input("y[t-1]", "batch"))
    body.outputs(y=body.add(ir.Reduce("max", ("m",)), M))
    s = layer_with(body, {"x": "batch t m"}, {"y": "batch"}, {})
    with pytest.raises(NoGradient, match="no gradient of Scan: a running maximum"):
        gradient(s.graph, ["x"], ["y"])


def test_another_layer_is_refused() -> None:
    inner = Sketch()
    callee = layer(inner.outputs(y=inner.fn("tanh", inner.input("x", "batch t"))))
    s = Sketch()
    x = s.input("x", "batch t")
    s.outputs(y=s.add(ir.Result("y"), s.add(ir.Call(callee, "inner", (), ()), x)))
    with pytest.raises(NoGradient, match="a called layer"):
        gradient(s.graph, ["x"], ["y"])


# --- attends ------------------------------------------------------------------------------------


def attend(source: str = "t", path: bool = False) -> Sketch:
    """Causal softmax attention, with a decay along the path if asked for."""
    read = axis("s") if source == "t" else axis(source)
    body = Sketch()
    q, k = body.input("q", "batch t H K"), body.input("k", f"batch {read} H K")
    score = body.einsum(f"batch t H K, batch {read} H K -> batch t {read} H", q, k)
    captures = [("q", "reader"), ("k", "read"), ("v", "read")]
    if path:
        captures.append(("g", "path"))
        between = ir.Segment("sum", "r", axis("t"), axis("s"))
        score = body.fn("add", score, body.add(between, body.input("g", "batch r H")))
    past = body.fn("le", body.add(ir.Position(read)), body.add(ir.Position(TIME)))
    p = body.add(ir.Softmax(read.name), score, past)
    v = body.input("v", f"batch {read} H V")
    body.outputs(o=body.einsum(f"batch t {read} H, batch {read} H V -> batch t H V", p, v))
    s = Sketch()
    shapes = {"q": "batch t H K", "k": f"batch {source} H K", "v": f"batch {source} H V"}
    ids = [s.input(name, dims) for name, dims in shapes.items()]
    ids += [s.input("g", "batch t H")] if path else []
    over = axis("r") if path else None
    attend = s.add(ir.Attend(TIME, read, source, tuple(captures), body.graph, over), *ids)
    return s.outputs(y=s.fn("tanh", s.add(ir.Result("o"), attend)))


@pytest.mark.parametrize(("source", "path"), [("t", False), ("t", True), ("m", False)])
def test_an_attend(source: str, path: bool) -> None:
    agree(attend(source, path).graph)


# --- a chunked form -----------------------------------------------------------------------------


def chunked() -> ChunkSketch:
    """Linear attention with a decay for each channel, in chunks, written by hand:

    o[i] = (q exp G)[i] S_0 + sum over j <= i of gram(q, k, g)[i, j] v[j]
    S_C = exp(G_C) S_0 + sum over j of (k exp(G_C - G))[j] v[j]^T
    """
    s = ChunkSketch()
    to_chunks = ck.Chunks("t", CHUNKS, ROW)
    q, k, v, g = (
        s.add(to_chunks, s.input(name, f"batch t {dim}"))
        for name, dim in zip("qkvg", "KKVK", strict=True)
    )
    inside = s.add(ck.Gram(("K",), "i", COL), q, k, g)
    before = s.fn("mul", q, s.fn("exp", s.add(ck.Sums("i"), g)))
    after = s.fn("mul", k, s.fn("exp", s.add(ck.Sums("i", reverse=True, exclusive=True), g)))
    whole = s.fn("exp", s.add(ir.Reduce("sum", ("i",)), g))
    body = ChunkSketch()
    S, keys, values = (
        body.input("S[t-1]", "batch K V"),
        body.input("k", "batch i K"),
        body.input("v", "batch i V"),
    )
    kept = body.fn("mul", body.input("decay", "batch K"), S)
    new = body.fn("add", kept, product(body, "batch i K, batch i V -> batch K V", keys, values))
    read = product(body, "batch i K, batch K V -> batch i V", body.input("q", "batch i K"), S)
    body.outputs(S=new, o=read)
    state, first = ir.State("S", axes("batch K V")), s.input("S0", "batch K V")
    recurrence = ir.Recurrence(CHUNKS, ("k", "v", "decay", "q"), (state,), body.graph)
    made = s.add(recurrence, after, v, whole, before, first)
    from_before = s.add(ir.Result("o"), made)
    within = product(s, "batch n i j, batch n j V -> batch n i V", inside, v)
    o = s.add(ck.Tokens("n", "i", TIME), s.fn("add", from_before, within))
    return s.outputs(o=o, S=s.add(ck.Last("n"), s.add(ir.Result("S"), made), first))


def product(s: Sketch, text: str, *operands: int) -> int:
    """An einsum over the axes of chunks."""
    left, right = text.split("->")
    known = {"i": ROW, "j": COL, "n": CHUNKS}
    out = tuple((name, known.get(name) or axis(name)) for name in right.split())
    ins = tuple(tuple(part.split()) for part in left.split(","))
    return s.add(ir.Contract(ins, out), *operands)


@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_a_chunked_form(length: int) -> None:
    shapes = {"q": (2, length, 4), "k": (2, length, 4), "v": (2, length, 5), "g": (2, length, 4)}
    values = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    values["g"] = -values["g"].abs()
    hard = values["g"].clone()
    hard[:, 1:2], hard[:, 3:4] = -math.inf, -1000
    for g in (values["g"], hard):
        made = agree(
            chunked().graph,
            {**values, "g": g, "S0": torch.randn(2, 4, 5)},
            sizes={"T#": length},
            tolerance=1e-8,
        )
    assert {saved.name: saved.numbers for saved in made.saved}.get("saved.S[t-1]") == (
        sympy.Symbol("K", integer=True, nonnegative=True)
        * sympy.Symbol("V", integer=True, nonnegative=True)
        / ck.CHUNK
    )
    assert "saved.S[t-1]" in report(made)


def test_products_that_no_state_needs_leave_the_loop() -> None:
    """dk = v dS^T, dv = dS^T k and d decay = sum of S dS are made for all chunks at once. The loop
    begins with the cotangent of the state in the end."""
    graph = chunked().graph
    backward = gradient(graph, ["k", "v", "g"], ["o", "S"]).backward
    (recurrence,) = (n for n in backward if isinstance(n.op, ir.Recurrence))
    assert [*recurrence.op.body.outputs] == ["d.S.carried", "d.k.1"]
    assert backward[recurrence.operands[-1]].op.name == "d.S"
    assert not any(isinstance(n.op, ck.AtLast) for n in backward)
