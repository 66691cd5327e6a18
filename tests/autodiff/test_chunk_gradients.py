"""Rules of chunk ops against torch's autograd of the oracle."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
from torch import Tensor

from archc.autodiff.gradient_builder import NoGradient
from archc.autodiff.reverse import gradient
from archc.dims import TIME, Axis, stream
from archc.ir import chunk as ck
from archc.ir import layer as ir
from tests.autodiff.agreement import agree
from tests.graphs import Sketch, axes, axis

CHUNKS = stream("n", sympy.ceiling(TIME.size / ck.CHUNK))
ROW, COL = Axis("i", ck.CHUNK), Axis("j", ck.CHUNK)
FLAGS = [(False, False), (True, False), (False, True), (True, True)]


class ChunkSketch(Sketch):
    """A sketch with the axes of chunks: n, i and j."""

    def input(self, name: str, dims: str = "", dtype: str = "real") -> int:
        named = {"n": CHUNKS, "i": ROW, "j": COL}
        types = tuple(named.get(dim) or axis(dim) for dim in dims.split())
        return self.add(ir.Input(name, ir.Type(types, dtype)), name=name)


def single(op: object, **operands: str) -> ChunkSketch:
    """`y = tanh(op(operands))`."""
    s = ChunkSketch()
    made = s.add(op, *(s.input(name, dims) for name, dims in operands.items()))
    return s.outputs(y=s.fn("tanh", made), same=made)


# --- between tokens and chunks ------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 3, 5, 6])
@pytest.mark.parametrize("fill", [0, 1])
def test_chunks(length: int, fill: int) -> None:
    s = single(ck.Chunks("t", CHUNKS, ROW, fill, outer=("H",)), x="batch t H K")
    agree(s.graph, {"x": torch.rand(2, length, 2, 3).double()}, sizes={"T#": length})


def test_chunks_of_small_steps() -> None:
    rows = Axis("i", 2 * ck.CHUNK)
    op = ck.Chunks("t", CHUNKS, rows, steps="M")
    agree(single(op, x="batch t M K").graph, sizes={"M": 2}, values={"x": torch.rand(2, 5, 2, 4)})


@pytest.mark.parametrize("length", [0, 4, 6])
def test_tokens(length: int) -> None:
    s = single(ck.Tokens("n", "i", TIME), x="batch n H i K")
    chunks = -(-length // 3)
    agree(s.graph, {"x": torch.rand(2, chunks, 2, 3, 4)}, sizes={"T#": length})


def test_tokens_of_small_steps() -> None:
    s = ChunkSketch()
    rows = Axis("i", 2 * ck.CHUNK)
    x = s.add(ir.Input("x", ir.Type((CHUNKS, rows, axis("K")))))
    s.outputs(y=s.add(ck.Tokens("n", "i", TIME, axis("M")), x))
    agree(s.graph, {"x": torch.rand(2, 6, 4)}, sizes={"M": 2})


def test_stack_select_and_place() -> None:
    s = ChunkSketch()
    a, b = s.input("a", "batch K"), s.input("b", "batch K")
    both = s.add(ck.Stack(axis("M")), a, b)
    placed = s.add(ck.Place(axis("M"), -1), s.add(ck.Select("M", 0), s.fn("exp", both)))
    s.outputs(y=s.fn("mul", placed, both), z=s.add(ir.Reduce("sum", ("M",)), both))
    agree(s.graph, sizes={"M": 2})


# --- along a stream, and along further axes -----------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_last(length: int, reverse: bool) -> None:
    s = single(ck.Last("t", reverse), x="batch t K", empty="K V")
    agree(s.graph, {"x": torch.rand(2, length, 4)}, sizes={"T#": length})
    s = single(ck.AtLast(TIME, reverse), x="batch K")
    agree(s.graph, sizes={"T#": length})


@pytest.mark.parametrize("stride", [None, 2])
def test_unwindow(stride: int | None) -> None:
    number = None if stride is None else sympy.Integer(stride)
    op = ck.Unwindow(TIME, "W", number, None if stride is None else "m")
    agree(
        single(op, x=f"batch {'t' if stride is None else 'm'} W K").graph,
        sizes={"W": 3},
        values={} if stride is None else {"x": torch.rand(2, 2, 3, 4)},
    )


def test_expand() -> None:
    agree(single(ck.Expand(axes("t K")), x="batch V").graph, sizes={"K": 4})


# --- along the rows of a chunk ------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_sums(reverse: bool, exclusive: bool) -> None:
    agree(single(ck.Sums("i", reverse, exclusive), x="n i K").graph)


@pytest.mark.parametrize("steps", [1, 2, -1, 4, 0])
def test_move(steps: int) -> None:
    agree(single(ck.Move("i", steps, 1), x="n i K").graph)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("a", "added", "first"),
    [("n i K", "n i K", "n K"), ("i", "n i K", ""), ("K", "i", "n K"), ("i", "K", "n V")],
)
def test_a_scan(a: str, added: str, first: str, reverse: bool) -> None:
    agree(single(ck.Scan("i", reverse=reverse), a=a, b=added, h=first).graph)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("a", "added", "first"),
    [("n i K K'", "n i K'", "n K'"), ("K K'", "n i K'", "K'"), ("n K K'", "i K' V", "n K'")],
)
def test_a_scan_with_matrices(a: str, added: str, first: str, reverse: bool) -> None:
    s = single(ck.Scan("i", matrix=("K", "K'"), reverse=reverse), a=a, b=added, h=first)
    agree(s.graph)


def test_a_running_maximum_is_refused_unless_it_is_detached() -> None:
    s = single(ck.Scan("i", "max-plus"), a="n i", b="n i", h="n")
    with pytest.raises(NoGradient, match="a running maximum"):
        gradient(s.graph, ["a"], ["y"])
    s = ChunkSketch()
    x = s.input("x", "n i")
    level = s.add(ck.Detach(), s.add(ck.Scan("i", "max-plus"), x, x, s.number(-sympy.oo)))
    s.outputs(y=s.fn("exp", s.fn("sub", x, level)))
    agree(s.graph)


# --- between the rows of a chunk ----------------------------------------------------------------


def gates(*shape: int, hard: bool = False) -> Tensor:
    """Log gates; the hard ones are -inf and -1000 in places."""
    found = -torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    if hard:
        found[:, 1] = -1000
        found[0, 2] = -math.inf
    return found


@pytest.mark.parametrize(("strict", "exclusive"), FLAGS)
def test_spans(strict: bool, exclusive: bool) -> None:
    s = ChunkSketch()
    decays = s.fn("exp", s.add(ck.Spans("i", COL, strict, exclusive), s.input("g", "n i H")))
    s.outputs(y=s.add(ir.Reduce("sum", ("j",)), s.fn("mul", decays, s.input("x", "n j H"))))
    for hard in (False, True):
        agree(s.graph, {"g": gates(2, 3, 4, hard=hard)})


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    ("a", "b", "g", "flags"),
    [
        *(("n i H K", "n i H K", "n i H K", flags) for flags in FLAGS),
        ("n i H K", "n i K", "n i K", (False, False)),
        ("n i H K", "i K V", "n i H", (True, False)),
        ("n i K", "n i", "n i V", (False, True)),
    ],
)
def test_a_gram(a: str, b: str, g: str, flags: tuple[bool, bool], hard: bool) -> None:
    s = single(ck.Gram(("K",), "i", COL, *flags), a=a, b=b, g=g)
    shape = [{"n": 2, "i": 3}.get(name, 4) for name in g.split()]
    made = agree(s.graph, {"g": gates(*shape, hard=hard)})
    kinds = [type(node.op) for node in made.backward]
    assert (kinds.count(ck.Mix), kinds.count(ck.GateGradient)) == (2, 1)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("weights", "b", "g", "flags"),
    [
        *(("n i j H", "n i H V", "n i H V", flags) for flags in FLAGS),
        ("n i j", "n i H V", "n i H", (False, False)),
        ("n H i j", "i V", "n i", (True, False)),
        ("i j H", "n i V", "n i K", (False, True)),
    ],
)
def test_a_mix(
    weights: str, b: str, g: str, flags: tuple[bool, bool], transpose: bool, hard: bool
) -> None:
    s = single(ck.Mix("i", "j", *flags, transpose), A=weights, b=b, g=g)
    shape = [{"n": 2, "i": 3}.get(name, 4) for name in g.split()]
    agree(s.graph, {"g": gates(*shape, hard=hard)})


def test_gradients_of_gates_are_not_differentiated_again() -> None:
    s = single(ck.SpansGradient("i", "j"), x="n i j")
    with pytest.raises(NoGradient, match="not differentiated again"):
        gradient(s.graph, ["x"], ["y"])
    s = single(ck.GateGradient("i", "j"), d="n i j", a="n i K", b="n i K", g="n i K")
    with pytest.raises(NoGradient, match="not differentiated again"):
        gradient(s.graph, ["g"], ["y"])


def test_inverse() -> None:
    s = single(ck.Inverse("i", "j"), A="n i j H")
    agree(s.graph)
    s = single(ck.Inverse("i", "j"), A="i j")
    made = agree(s.graph)
    assert [saved.name for saved in made.saved] == ["saved.inverse"]


@pytest.mark.parametrize("right", ["n j K", "j K", "K"])
def test_a_product_with_an_inverse(right: str) -> None:
    """Y = T R: dR = T^T dY and dA = dR Y^T are all products, if R has the axes of T."""
    s = ChunkSketch()
    solved = s.add(ck.Inverse("i", "j"), s.input("A", "n i j"))
    known = {"i": ROW, "n": CHUNKS}
    out = tuple((name, known.get(name) or axis(name)) for name in "niK")
    factors = (solved, s.input("R", right))
    y = s.add(ir.Contract((("n", "i", "j"), tuple(right.split())), out), *factors)
    s.outputs(y=y)
    made = agree(s.graph)
    products = [n for n in made.backward if isinstance(n.op, ir.Contract) and len(n.operands) == 2]
    assert len(products) == {"n j K": 2, "j K": 4, "K": 4}[right]
    agree(s.outputs(y=y, T=s.fn("tanh", solved)).graph)


# --- structure ----------------------------------------------------------------------------------


def test_detach() -> None:
    s = ChunkSketch()
    x = s.input("x", "n i")
    s.outputs(y=s.fn("mul", s.add(ck.Detach(), s.fn("exp", x)), x))
    agree(s.graph)


@pytest.mark.parametrize("right", ["batch K", "batch H K", "K"])
def test_conjugate(right: str) -> None:
    """(w w^T + diag(u)) z = b with a w and a u that stand outside."""
    s, body = ChunkSketch(), Sketch()
    p = body.input("p", " ".join(dict.fromkeys(("batch", *right.split()))))
    w, u = body.input("w", "batch V K"), body.input("u", "K")
    names = " ".join(body.graph[p].type.names)
    read = body.einsum(f"{names}, batch V K -> {names.replace('K', 'V')}", p, w)
    back = body.einsum(f"{names.replace('K', 'V')}, batch V K -> {names}", read, w)
    body.outputs(product=body.fn("add", back, body.fn("mul", body.fn("exp", u), p)))
    b = s.input("b", right)
    operands = b, s.input("w", "batch V K"), s.input("u", "K")
    z = s.add(ck.Conjugate(("K",), ("w", "u"), body.graph), *operands)
    s.outputs(y=s.fn("tanh", z))
    agree(s.graph)
