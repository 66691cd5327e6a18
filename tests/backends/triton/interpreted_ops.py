"""Every op of a chunked form by kernels, each in a small graph of its own, beside its meaning in
float64: under Triton's interpreter, with buffers that hold no numbers before they are written.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_ops every
    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_ops spans

Prints each output's largest error against its largest value, and what is left to PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any
from unittest.mock import patch

import sympy
import torch
from archc.backends.assembly import assembled
from archc.backends.eager.file import File
from archc.backends.eager.scope import Scope
from archc.backends.eager.table import EMITTERS
from archc.backends.load import load
from archc.backends.triton.function import KernelFunction
from torch import Tensor

from archc.compile import SCHEDULE
from archc.dims import TIME, Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.meaning import evaluate_graph
from archc.ir.sizes import evaluate
from tests.backends.eager.test_chunk_ops import CHUNKS, COL, ROW, cut
from tests.backends.triton.interpreted import with_gaps
from tests.backends.triton.memory import guarded
from tests.backends.triton.narrow import rounding
from tests.backends.triton.quick import quick_scans
from tests.graphs import Sketch, axis

SIZES = {"B": 1, "batch": 1, "H": 2, "K": 3, "V": 5, "D": 2}
TOKENS, CHUNK = 21, 16
Cases = Iterator[tuple[str, Sketch]]


def emitted(sketch: Sketch) -> tuple[Callable[..., Any], KernelFunction, list[str]]:
    """The function of a sketch with its kernels, and what it takes besides the inputs."""
    file = File()
    scope = Scope(Sketch().graph, EMITTERS, file, "x", "Test")
    heads = ["H"] if any("H" in node.type.names for node in sketch.graph) else []
    function = KernelFunction(scope, sketch.graph, "run", {}, [], TIME, heads, SCHEDULE)
    types = {name: sketch.graph[id].type.names for name, id in sketch.graph.outputs.items()}
    extra = function.write(types, "A test.")
    module: Any = load(assembled(file, embedded=False), "run")
    return module.run, function, list(extra)


def errors(sketch: Sketch) -> Iterator[tuple[str, float]]:
    """How far each output is off, and which ops no kernel does."""
    run, function, extra = emitted(sketch)
    known = {**SIZES, "T#": TOKENS, "chunk": CHUNK}
    inputs: dict[str, Tensor] = {}
    for node in sketch.graph:
        if isinstance(node.op, ir.Input):
            shape = [int(evaluate(a.size, known)) for a in node.type.axes]
            inputs[node.op.name] = torch.randn(shape)
    exact = {name: x.double() for name, x in inputs.items()}
    wanted = evaluate_graph(sketch.graph, exact, known)
    given = [inputs[name] for name in function.inputs]
    with patch.object(torch, "empty", with_gaps), guarded(), rounding(), quick_scans():
        made = run(*given, *(known[name] for name in extra), CHUNK)
    for (name, value), found in zip(wanted.items(), made, strict=True):
        assert found.shape == value.shape, f"{name}: {found.shape}, and not {value.shape}"
        away = torch.where(found.double() == value, 0.0, (found.double() - value).abs())
        finite = torch.where(value.isfinite(), value, 0.0)
        yield name, float(away.max() / finite.abs().max().clamp(min=1e-9))
    left = [id for id in function.plan.fallback if id in sketch.graph]
    hosts = {type(sketch.graph[id].op).__name__ for id in left}
    for name in sorted(hosts):
        yield f"PyTorch does {name}", 0.0


def gates(s: Sketch, name: str, dims: str, outer: Sequence[str] = ("H",)) -> int:
    """Log gates in chunks."""
    return cut(s, s.fn("neg", s.fn("abs", s.input(name, dims))), tuple(outer))


# --- tokens and chunks --------------------------------------------------------------------------


def places() -> Cases:
    s = Sketch()
    x, b = s.input("x", "batch t H K"), s.input("b", "batch t H")
    c = s.input("c", "batch t")
    ones = cut(s, b, fill=1)
    u = s.fn("mul", cut(s, x), ones)
    filled = {"wide": s.fn("exp", cut(s, x, fill=2)), "one": s.fn("exp", ones)}
    filled["all"] = s.fn("exp", cut(s, c, (), fill=1))
    yield "filled", s.outputs(y=s.add(ck.Tokens("n", "i", TIME), u), u=u, **filled)
    s = Sketch()
    u = cut(s, s.input("x", "batch t H K"))
    last, first = s.add(ck.Select("i", -1), u), s.add(ck.Select("i", 0), u)
    s.outputs(
        last=last, first=first, second=s.add(ck.Select("i", 1), u),
        at_last=s.add(ck.Place(ROW, -1), last), at_first=s.add(ck.Place(ROW, 0), first),
        wide=s.add(ck.Expand((axis("V"),)), last), same=s.add(ck.Detach(), last),
        one=s.add(ck.Select("K", 1), u), other=s.add(ck.Select("K", -1), u),
    )  # fmt: skip
    yield "chosen", s
    s = Sketch()
    u = s.add(ck.Sums("i"), cut(s, s.input("x", "batch t H K")))
    v = s.add(ck.Sums("i"), cut(s, s.input("v", "batch t H")))
    s.outputs(
        last=s.add(ck.Select("i", -1), u), third=s.add(ck.Select("i", 3), u),
        one=s.add(ck.Select("K", 1), u), other=s.add(ck.Select("K", -1), u),
        of_rows=s.add(ck.Select("i", -2), v), of_row=s.add(ck.Select("i", 2), v),
        there=s.add(ck.Place(axis("V"), 3), u), back=s.add(ck.Place(axis("V"), -2), v),
    )  # fmt: skip
    yield "chosen of what is computed", s
    s = Sketch()
    h = s.input("h", "batch H K")
    ends = [s.add(ck.AtLast(CHUNKS, reverse), h) for reverse in (False, True)]
    u = cut(s, s.input("x", "batch t H K"))
    s.outputs(
        **{f"at_{n}": s.fn("add", s.add(ck.Select("i", 0), u), e) for n, e in enumerate(ends)}
    )
    yield "at the last chunk", s


def micro_steps() -> Cases:
    s, step = Sketch(), Axis("step", sympy.Integer(2))
    rows = Axis("i", 2 * ck.CHUNK)
    x, y = s.input("x", "batch t H K"), s.input("y", "batch t H K")
    both = s.add(ck.Stack(step), x, y)
    u = s.add(ck.Chunks("t", CHUNKS, rows, 0, "step", ("H",)), both)
    v = s.add(ck.Sums("i"), u)
    back = s.add(ck.Tokens("n", "i", TIME, step), v)
    yield "two steps a token", s.outputs(v=v, y=s.add(ck.Select("step", -1), back), z=back)


def rows() -> Cases:
    for reverse, exclusive in product((False, True), repeat=2):
        s = Sketch()
        u, w = cut(s, s.input("x", "batch t H K")), cut(s, s.input("w", "batch t H"))
        how = {"reverse": reverse, "exclusive": exclusive}
        s.outputs(
            y=s.add(ck.Sums("i", **how), u), z=s.add(ck.Sums("i", **how), w),
            sums=s.add(ck.Sums("i", **how, gates=True), gates(s, "g", "batch t H K")),
        )  # fmt: skip
        yield f"sums, {how}", s
    s = Sketch()
    gated = s.add(ck.Sums("i", gates=True), gates(s, "g", "batch t H K"))
    s.outputs(sums=gated, rest=s.add(ck.Rest("i"), gated))
    yield "what is left of sums", s
    s = Sketch()
    u = cut(s, s.input("x", "batch t H K"))
    moved = {f"by_{k}_{fill}".replace("-", "m"): s.add(ck.Move("i", k, fill), u)
             for k in (-2, -1, 1, 3) for fill in (0, 1)}  # fmt: skip
    yield "moved rows", s.outputs(**moved)


def reduced() -> Cases:
    s = Sketch()
    u = cut(s, s.input("x", "batch t H K"))
    found = {fn: s.add(ir.Reduce(fn, ("K",)), u) for fn in ("sum", "max", "min", "mean")}
    found |= {f"{fn}_rows": s.add(ir.Reduce(fn, ("i",)), u) for fn in ("sum", "max", "min")}
    yield "over a dim, over rows", s.outputs(**found)
    s = Sketch()
    u, v = cut(s, s.input("x", "batch t H K")), cut(s, s.input("v", "batch t H V"))
    w, shared = s.input("w", "K V"), cut(s, s.input("p", "batch t K"), ())
    s.outputs(
        outer=s.einsum("batch n H i K, batch n H i V -> batch n H K V", u, v),
        weighted=s.einsum("batch n H i K, K V -> batch n H i V", u, w),
        dot=s.einsum("batch n H i K, batch n i K -> batch n H i", u, shared),
        summed=s.einsum("batch n H i K -> batch n H K", u),
        both=s.add(ck.Sums("i"), v),
    )
    yield "products", s
    s = Sketch()
    q, k = cut(s, s.input("q", "batch t H K")), cut(s, s.input("k", "batch t H K"))
    v, state = cut(s, s.input("v", "batch t H V")), s.input("S", "batch H K V")
    scores = contracted(s, "bnHiK bnHjK", "b:batch n H i j", q, k)
    later = s.fn("ge", s.add(ir.Position(ROW)), s.add(ir.Position(COL)))
    kept = s.fn("where", later, scores, s.number(0))
    s.outputs(
        scores=scores, mixed=contracted(s, "bnHij bnHjV", "b:batch n H i V", kept, v),
        back=contracted(s, "bnHij bnHiV", "b:batch n H j:i V", kept, v),
        read=contracted(s, "bnHiK bHKV", "b:batch n H i V", q, state),
        sums=s.add(ir.Reduce("sum", ("i",)), kept), most=s.add(ir.Reduce("max", ("j",)), scores),
    )  # fmt: skip
    yield "products of rows", s


def contracted(s: Sketch, ins: str, out: str, *operands: int) -> int:
    """A product whose operands' axes have labels of one letter, and the result's `label:axis`."""
    known = {"n": CHUNKS, "i": ROW, "j": COL}
    pairs = [part.partition(":")[::2] for part in out.split()]
    axes = [(label, known.get(name or label) or axis(name or label)) for label, name in pairs]
    return s.add(ir.Contract(tuple(map(tuple, ins.split())), tuple(axes)), *operands)


# --- along the rows and between them ------------------------------------------------------------


def scans() -> Cases:
    for reverse in (False, True):
        s = Sketch()
        a, b = cut(s, s.input("a", "batch t H K")), cut(s, s.input("b", "batch t H K"))
        one, first = cut(s, s.input("c", "batch t H")), s.add(ck.Select("i", 0), a)
        s.outputs(
            x=s.add(ck.Scan("i", reverse=reverse), a, b, first),
            y=s.add(ck.Scan("i", "max-plus", reverse=reverse), a, b, first),
            t=s.add(ck.Scan("i", "max-times", reverse=reverse), s.fn("exp", a), b, first),
            z=s.add(ck.Scan("i", reverse=reverse), s.number(2), b, s.number(0)),
            w=s.add(ck.Scan("i", reverse=reverse), one, b, first),
            v=s.add(ck.Scan("i", reverse=reverse), one, one, s.number(0)),
            u=s.add(ck.Scan("i", reverse=reverse, exclusive=True), a, b, first),
        )  # fmt: skip
        yield f"scans, reverse: {reverse}", s
        s = Sketch()
        b, m = cut(s, s.input("b", "batch t H K")), s.input("m", "K' K")
        matrix = ck.Scan("i", matrix=("K'", "K"), reverse=reverse)
        start = s.add(ck.Select("i", 0), b)
        s.outputs(x=s.add(matrix, m, b, s.number(0)), y=s.add(matrix, m, b, start))
        yield f"scans with a matrix, reverse: {reverse}", s


def spans() -> Cases:
    for strict, exclusive in product((False, True), repeat=2):
        s = Sketch()
        g = gates(s, "g", "batch t H")
        span = s.add(ck.Spans("i", COL, strict, exclusive), g)
        decay = s.fn("exp", span)
        gradient = s.add(ck.SpansGradient("i", "j", strict, exclusive), decay)
        yield f"decays between rows, {strict} {exclusive}", s.outputs(d=decay, back=gradient)
        s = Sketch()
        sums = s.add(ck.Sums("i", gates=True), gates(s, "g", "batch t H"))
        decay = s.fn("exp", s.add(ck.Differences("i", COL, strict), sums))
        yield f"decays by sums of gates, {strict}", s.outputs(d=decay)
        s = Sketch()
        span = s.add(ck.Spans("i", COL, strict, exclusive), gates(s, "g", "batch t H"))
        most = s.add(ir.Reduce("max", ("j",)), span)
        yield f"spans that are read, {strict} {exclusive}", s.outputs(s=span, m=most)


def pairs() -> Cases:
    for switches in ((False, False), (True, False), (False, True)):
        s = Sketch()
        g = gates(s, "g", "batch t H K")
        a, b = cut(s, s.input("a", "batch t H K")), cut(s, s.input("b", "batch t K"), ())
        gram = s.add(ck.Gram(("K",), "i", COL, *switches), a, b, g)
        mix = s.add(ck.Mix("i", "j", *switches, False), gram, b, g)
        back = s.add(ck.Mix("i", "j", *switches, True), gram, a, g)
        gate = s.add(ck.GateGradient("i", "j", *switches), gram, a, b, g)
        yield f"pairs, {switches}", s.outputs(gram=gram, mix=mix, back=back, gate=gate)
    s = Sketch()
    a, b = cut(s, s.input("a", "batch t H K")), cut(s, s.input("b", "batch t H K"))
    gram = s.add(ck.Gram(("K",), "i", COL, strict=True), a, b, gates(s, "g", "batch t H K"))
    small = s.fn("mul", gram, s.number(sympy.Rational(1, 8)))
    yield "an inverse", s.outputs(y=s.add(ck.Inverse("i", "j"), small))


EVERY = (places, micro_steps, rows, reduced, scans, spans, pairs)


def main(names: Sequence[str]) -> None:
    for kind in EVERY:
        if names != ["every"] and kind.__name__ not in names:
            continue
        for what, sketch in kind():
            torch.manual_seed(0)
            for name, error in errors(sketch):
                print(f"{what}, {name}: {error:.1e}")


if __name__ == "__main__":
    main(sys.argv[1:])
