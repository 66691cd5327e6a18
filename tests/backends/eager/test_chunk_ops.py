"""Every chunk op, emitted as a function of its graph: the numbers of the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import sympy
import torch
from archc.backends.assembly import assembled
from archc.backends.eager.file import File
from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.scope import Scope
from archc.backends.eager.table import EMITTERS
from archc.backends.load import load
from torch import Tensor

from archc.dims import TIME, Axis, stream
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.meaning import evaluate_graph
from tests.graphs import Sketch, axis

CHUNKS = stream("n", sympy.ceiling(TIME.size / ck.CHUNK))
ROW, COL = Axis("i", ck.CHUNK), Axis("j", ck.CHUNK)
SIZES = {"B": 2, "batch": 2, "H": 2, "K": 3, "V": 2, "D": 2}


def cut(s: Sketch, id: int, outer: tuple[str, ...] = ("H",), fill: int = 0) -> int:
    return s.add(ck.Chunks("t", CHUNKS, ROW, fill, None, outer), id)


def emitted(sketch: Sketch) -> tuple[Callable[..., tuple[Tensor, ...]], list[str], list[str]]:
    """The function of a sketch, loaded, and the order of its arguments."""
    file = File()
    scope = Scope(Sketch().graph, EMITTERS, file, "x", "Test")
    function = GraphFunction(scope, sketch.graph, "run", {}, [], TIME)
    types = {name: sketch.graph[id].type.names for name, id in sketch.graph.outputs.items()}
    extra = function.write(types, "A test.")
    assert set(extra) <= {"T", "B", "K", "V", "H", "D"}
    module = load(assembled(file, embedded=False), "run")
    return module.run, list(function.inputs), list(extra)


def agrees(sketch: Sketch, tokens: int = 7, chunk: int = 3, **given: Tensor) -> None:
    """Both ways to compute the outputs give the same."""
    run, order, extra = emitted(sketch)
    known = {**SIZES, "T#": tokens, "chunk": chunk}
    torch.manual_seed(0)
    inputs: dict[str, Tensor] = {}
    for node in sketch.graph:
        if isinstance(node.op, ir.Input):
            shape = [int(a.size.subs({s: known[str(s)] for s in a.size.free_symbols}))
                     for a in node.type.axes]  # fmt: skip
            inputs[node.op.name] = torch.randn(shape, dtype=torch.float64)
    inputs |= given
    wanted = evaluate_graph(sketch.graph, inputs, known)
    made = run(*(inputs[name] for name in order), *(known[name] for name in extra), chunk)
    for found, (name, value) in zip(made, wanted.items(), strict=True):
        assert found.shape == value.shape, name
        torch.testing.assert_close(found, value, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_chunks_tokens(tokens: int) -> None:
    s = Sketch()
    x, b = s.input("x", "batch t H K"), s.input("b", "batch t H")
    u = s.fn("mul", cut(s, x), cut(s, b, fill=1))
    agrees(s.outputs(y=s.add(ck.Tokens("n", "i", TIME), u), u=u), tokens)


def test_micro_steps() -> None:
    s, step = Sketch(), Axis("step", sympy.Integer(2))
    x, y = s.input("x", "batch t H K"), s.input("y", "batch t H K")
    both = s.add(ck.Stack(step), x, y)
    twice = stream("n", sympy.ceiling(2 * TIME.size / ck.CHUNK))
    u = s.add(ck.Chunks("t", twice, ROW, 0, "step", ("H",)), both)
    back = s.add(ck.Tokens("n", "i", TIME, step), u)
    agrees(s.outputs(u=u, y=s.add(ck.Select("step", -1), back), z=back))


def test_select_place_stack_expand() -> None:
    s = Sketch()
    x = s.input("x", "batch t H K")
    u = cut(s, x)
    last = s.add(ck.Select("i", -1), u)
    s.outputs(
        a=last, b=s.add(ck.Place(ROW, -1), last), c=s.add(ck.Place(ROW, 0), last),
        d=s.add(ck.Expand((axis("V"),)), last), e=s.add(ck.Stack(axis("D")), last, last),
        f=s.add(ck.AtLast(CHUNKS), s.input("h", "batch H K")), g=s.add(ck.Detach(), last),
        h=s.add(ck.Last("n"), last, s.input("h0", "batch H K")),
        k=s.add(ck.Last("n", reverse=True), last, s.number(0)),
    )  # fmt: skip
    agrees(s)
    agrees(s, tokens=0)


def test_sums_and_moves() -> None:
    s = Sketch()
    u = cut(s, s.input("x", "batch t H K"))
    found = {
        f"s{r:d}{e:d}": s.add(ck.Sums("i", r, e), u) for r in (False, True) for e in (False, True)
    }
    moved = {f"m{k + 2}": s.add(ck.Move("i", k, 1), u) for k in (-2, 1)}
    agrees(s.outputs(**found, **moved, rest=s.add(ck.Rest("i"), found["s00"])))


def test_unwindow() -> None:
    s = Sketch()
    agrees(s.outputs(y=s.add(ck.Unwindow(TIME, "D"), s.input("x", "batch t D K"))))
    s = Sketch()
    w = s.add(ck.Expand((axis("D"),)), s.add(ck.Select("i", 0), cut(s, s.input("x", "batch t K"))))
    agrees(s.outputs(y=s.add(ck.Unwindow(TIME, "D", sympy.Integer(3), "n"), w)))


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(reverse: bool) -> None:
    s = Sketch()
    a, b = cut(s, s.input("a", "batch t H K")), cut(s, s.input("b", "batch t H K"))
    first = s.add(ck.Select("i", 0), a)
    s.outputs(
        x=s.add(ck.Scan("i", reverse=reverse), a, b, first),
        y=s.add(ck.Scan("i", "max-plus", reverse=reverse), a, b, first),
        u=s.add(ck.Scan("i", "max-times", reverse=reverse), s.fn("exp", a), b, first),
        z=s.add(ck.Scan("i", reverse=reverse), s.number(2), b, s.number(0)),
        w=s.add(ck.Scan("i", reverse=reverse, exclusive=True), a, b, first),
        v=s.add(ck.BlockSums("H", 2), a),
    )
    agrees(s)
    s = Sketch()
    b, a = cut(s, s.input("b", "batch t H K D")), cut(s, s.input("a", "batch t H"))
    matrix = s.input("m", "K' K")
    gated = s.fn("mul", a, matrix)
    first = s.add(ck.Select("i", 0), b)
    s.outputs(
        x=s.add(ck.Scan("i", matrix=("K'", "K"), reverse=reverse), gated, b, first),
        y=s.add(ck.Scan("i", matrix=("K'", "K"), reverse=reverse), matrix, b, s.number(0)),
    )
    agrees(s)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_spans(strict: bool, exclusive: bool) -> None:
    s = Sketch()
    g = cut(s, s.fn("neg", s.fn("abs", s.input("g", "batch t H K"))))
    d = s.fn("exp", s.add(ck.Spans("i", COL, strict, exclusive), g))
    agrees(s.outputs(d=d, g=s.add(ck.SpansGradient("i", "j", strict, exclusive), d)))


@pytest.mark.parametrize("strict", [False, True])
def test_differences(strict: bool) -> None:
    s = Sketch()
    g = cut(s, s.fn("neg", s.fn("abs", s.input("g", "batch t H K"))))
    sums = s.add(ck.Sums("i", gates=True), g)
    agrees(s.outputs(d=s.fn("exp", s.add(ck.Differences("i", COL, strict), sums))))


@pytest.mark.parametrize("switches", [(False, False), (True, False), (False, True)], ids=str)
def test_products(switches: tuple[bool, bool]) -> None:
    s = Sketch()
    g = cut(s, s.fn("neg", s.fn("abs", s.input("g", "batch t H K"))))
    a, b = cut(s, s.input("a", "batch t H K")), cut(s, s.input("b", "batch t K"), ())
    gram = s.add(ck.Gram(("K",), "i", COL, *switches), a, b, g)
    mix = s.add(ck.Mix("i", "j", *switches, False), gram, b, g)
    back = s.add(ck.Mix("i", "j", *switches, True), gram, a, g)
    gate = s.add(ck.GateGradient("i", "j", *switches), gram, a, b, g)
    agrees(s.outputs(gram=gram, mix=mix, back=back, gate=gate), chunk=5)
    agrees(s.outputs(back=back, gate=gate), chunk=5)
    agrees(s.outputs(mix=mix, back=back), chunk=5)


@pytest.mark.parametrize("exclusive", [False, True])
def test_sums_of_products(exclusive: bool) -> None:
    s = Sketch()
    g = cut(s, s.fn("neg", s.fn("abs", s.input("g", "batch t H K"))))
    a, b = cut(s, s.input("a", "batch t H K")), cut(s, s.input("b", "batch t H K"))
    gram = ck.Gram(("K",), "i", COL, True, exclusive)
    one, two = (s.add(gram, *rows, g) for rows in ((a, b), (b, a)))
    mix = ck.Mix("i", "j", True, exclusive)
    gate = ck.GateGradient("i", "j", True, exclusive)
    mixed = s.add(ck.MixSum((mix, replace(mix, transpose=True))), one, b, two, a, g)
    lots = (one, a, b, two, b, a, g)
    shares, entering = (s.add(ck.GateShares((gate, gate), x), *lots) for x in (False, True))
    agrees(s.outputs(mixed=mixed, shares=shares, entering=entering), chunk=5)


def test_products_over_two_dims_and_of_shared_gates() -> None:
    s = Sketch()
    g = cut(s, s.fn("neg", s.fn("abs", s.input("g", "batch t H K"))))
    shared = cut(s, s.fn("neg", s.fn("abs", s.input("f", "batch t K"))), ())
    a, b = cut(s, s.input("a", "batch t H K V")), cut(s, s.input("b", "batch t H K V"))
    gram = s.add(ck.Gram(("K", "V"), "i", COL), a, b, g)
    one, two = cut(s, s.input("c", "batch t H K")), cut(s, s.input("d", "batch t H K"))
    s.outputs(
        gram=gram, mix=s.add(ck.Mix("i", "j"), gram, b, b),
        other=s.add(ck.Gram(("K",), "i", COL), one, two, shared),
        gate=s.add(ck.GateGradient("i", "j"), gram, one, two, shared),
    )  # fmt: skip
    agrees(s, chunk=4)


def test_inverse() -> None:
    s = Sketch()
    a, b = cut(s, s.input("a", "batch t H K")), cut(s, s.input("b", "batch t H K"))
    g = cut(s, s.input("g", "batch t H K"))
    gram = s.add(ck.Gram(("K",), "i", COL, strict=True), a, b, g)
    agrees(s.outputs(y=s.add(ck.Inverse("i", "j"), gram)))
