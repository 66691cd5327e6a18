"""Which lines of PyTorch between kernels are right of packed sequences, whatever sequence a token
or a chunk is of: one op at a time, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
from archc.backends.triton.packed import read_by_chunks, why_alone

from archc.dims import TIME, stream
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.kernel import Kernel, Kernels
from tests.graphs import Sketch, axis

CHUNKS = stream("n", sympy.ceiling(TIME.size / ck.CHUNK))
ROW = axis("i")


class Host(Sketch):
    """A graph of which some nodes are lines of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.input("x", "batch t K")
        self.state = self.input("S", "batch K")
        self.every = self.input("e", "K")
        self.shared = self.input("p", "t K")
        self.chunks = self.add(ck.Chunks("t", CHUNKS, ROW), self.x)

    def why(self, id: int) -> str:
        """Why packed sequences go one by one where a node is a line of PyTorch."""
        return why_alone(self.graph, Kernels(self.graph, (), (), {id: "made up"}), TIME)


def reduced(fn: str, *axes: str, of: str = "x") -> Callable[[Host], int]:
    return lambda g: g.add(ir.Reduce(fn, axes), getattr(g, of))


KNOWS_NO_BORDERS: dict[str, Callable[[Host], int]] = {
    "each element": lambda g: g.fn("exp", g.x),
    "of two values along the tokens": lambda g: g.fn("mul", g.x, g.x),
    "a value that all sequences share": lambda g: g.fn("mul", g.x, g.every),
    "a value of each sequence": lambda g: g.fn("exp", g.state),
    "places along a dim": lambda g: g.add(ir.Position(axis("K"))),
    "a number": lambda g: g.number(3),
    "a sum over a dim": reduced("sum", "K"),
    "a sum along a dim": lambda g: g.add(ck.Sums("K"), g.x),
    "a product at each token": lambda g: g.einsum("batch t K, K -> batch t", g.x, g.every),
    "sums along the tokens": lambda g: g.add(ck.Sums("t"), g.x),
    "the sum of each sequence": reduced("sum", "t"),
    "the largest of each sequence": reduced("max", "t"),
    "the least of each sequence": reduced("min", "t"),
    "the sum of the chunks of each": reduced("sum", "n", of="chunks"),
    "the largest chunk of each": reduced("max", "n", of="chunks"),
    "the sum of everything": reduced("sum", "batch", "t"),
    "the product of everything": lambda g: g.einsum("batch t K, batch t K -> K", g.x, g.x),
    "the last token": lambda g: g.add(ck.Last("t"), g.x, g.state),
    "at the last token": lambda g: g.add(ck.AtLast(TIME), g.state),
    "tokens in chunks": lambda g: g.chunks,
    "rows of chunks": lambda g: g.add(ck.Move("i", 1), g.chunks),
    "the same along a dim": lambda g: g.add(ck.Expand((axis("V"),)), g.x),
    "the same at every token, of all sequences": lambda g: g.add(ck.Expand((TIME,)), g.every),
}

LOOKS_ACROSS: dict[str, Callable[[Host], int]] = {
    "places along the tokens": lambda g: g.add(ir.Position(TIME)),
    "places along the chunks": lambda g: g.add(ir.Position(CHUNKS)),
    "a value of each sequence at each token": lambda g: g.fn("mul", g.x, g.state),
    "the mean of each sequence": reduced("mean", "t"),
    "the product of each sequence": reduced("prod", "t"),
    "the mean of the chunks of each": reduced("mean", "n", of="chunks"),
    "a product over the tokens of each": lambda g: g.einsum(
        "batch t K, batch t K -> batch K", g.x, g.x
    ),
    "tokens before": lambda g: g.add(ir.Shift("t", 1), g.x),
    "rows of tokens before": lambda g: g.add(ck.Move("t", 1), g.x),
    "sums along the chunks": lambda g: g.add(ck.Sums("n"), g.chunks),
    "a token of each": lambda g: g.add(ck.Select("t", 0), g.x),
    "the last chunk": lambda g: g.add(ck.Last("n"), g.chunks, g.state),
    "at the last chunk": lambda g: g.add(ck.AtLast(CHUNKS), g.state),
    "the same along a dim, of each sequence": lambda g: g.add(ck.Expand((axis("V"),)), g.state),
}


@pytest.mark.parametrize("what", KNOWS_NO_BORDERS)
def test_what_is_right_of_packed_sequences(what: str) -> None:
    host = Host()
    assert host.why(KNOWS_NO_BORDERS[what](host)) == ""


@pytest.mark.parametrize("what", LOOKS_ACROSS)
def test_what_is_done_for_each_sequence_alone(what: str) -> None:
    host = Host()
    id = LOOKS_ACROSS[what](host)
    name = type(host.graph[id].op).__name__
    assert host.why(id) == f"{name} is in PyTorch, which knows no borders"


def test_chunks_are_those_of_the_tokens() -> None:
    """Of a token with two rows there are other chunks than the table of the tokens has."""
    host = Sketch()
    twice = stream("n", sympy.ceiling(2 * TIME.size / ck.CHUNK))
    made = host.add(ck.Chunks("t", twice, ROW), host.input("x", "batch t K"))
    plan = Kernels(host.graph, (), (), {made: "made up"})
    assert why_alone(host.graph, plan, TIME) == "chunks are counted in another way"


def test_lines_of_pytorch_are_those_that_no_kernel_stores() -> None:
    """What PyTorch reads and no kernel stores it makes itself; what one stores is read as it is,
    with zeros where no chunk stands."""
    host = Host()
    before = host.add(ir.Shift("t", 1), host.x)
    made = host.fn("exp", before)
    cut = host.add(ck.Chunks("t", CHUNKS, ROW), host.x)
    added = host.add(ir.Reduce("sum", ("n",)), cut)
    assert host.why(made) == "Shift is in PyTorch, which knows no borders"
    kernel = Kernel("k", host.graph, {}, {"b": before, "c": cut}, ())
    plan = Kernels(host.graph, (kernel,), (), {made: "made up", added: "made up"})
    assert why_alone(host.graph, plan, TIME) == ""
    assert read_by_chunks(host.graph, plan) == {cut}
