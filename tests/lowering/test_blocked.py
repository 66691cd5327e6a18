"""Kernels that go along one dim block by block: which, and what stands in their loop."""

from __future__ import annotations

from functools import lru_cache

import pytest
import sympy
from archc.backends.triton.schedule import written

import archc
from archc.compile import SCHEDULE, for_kernels, lowered
from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.kernel import Kernel
from archc.ir.typing import layer_graph
from archc.lowering.blocked import Sums, sums_by_blocks
from archc.lowering.kernels import Lowered, lower
from archc.tile.language import For, Load, statements
from tests.lowering.launches import memory

K, V = (Axis(name, sympy.Symbol(name, integer=True, nonnegative=True)) for name in "KV")
ROW, COL = (Axis(name, ck.CHUNK) for name in "ij")


@lru_cache(maxsize=1)
def kernels(spec: str) -> list[tuple[Kernel, Lowered]]:
    """The kernels of a spec's gradient that have no walk."""
    layer = for_kernels(lowered(archc.load(spec).layer))
    (op,) = (n.op for n in layer.graph if isinstance(n.op, ir.Recurrence))
    graph = SCHEDULE.prepare(op.chunked.backward, op.heads)
    plan, _ = written(graph, "memory", op.stream, op.heads, SCHEDULE, False)
    made = ((each, lower(each, op.stream.name, memory(plan))) for each in plan.kernels)
    return [(k, low) for k, low in made if isinstance(low, Lowered) and k.walk is None]


@pytest.mark.default("gla")
@pytest.mark.parametrize(
    ("spec", "blocked"),
    [("delta", {"chunk_output": "K"}), ("gla", {}), ("gated_delta_product", {}), ("mlstm", {})],
)
def test_what_reads_two_states_goes_along_one_of_their_dims(
    spec: str, blocked: dict[str, str]
) -> None:
    """Unless a sum over it is a matrix, or its rows are steps of tokens: 4 warps hold no more."""
    found = {k.name.removeprefix("memory_"): k.blocked.name for k, _ in kernels(spec) if k.blocked}
    assert found == blocked
    assert all(made.warps == 4 for kernel, made in kernels(spec) if kernel.blocked)


def test_vectors_alone_are_carried() -> None:
    """Each state is loaded in the loop alone; what has no K, and the product of all k, before."""
    ((_, made),) = (pair for pair in kernels("gated_delta") if pair[0].blocked)
    every = [*statements(made.program.body)]
    loop = max((s for s in every if isinstance(s.op, For)), key=lambda s: len(s.results))
    inside = [*statements(loop.blocks[0])]
    here, there = ({s.op.buffer.name for s in found if isinstance(s.op, Load)}
                   for found in (inside, [s for s in every if s not in inside]))  # fmt: skip
    assert {"saved_S_start", "d_X0_1", "q", "k"} <= here
    assert there.isdisjoint({"saved_S_start", "d_X0_1"})
    assert {"q", "k"} <= there
    assert len(loop.results) == 5
    assert all(len(value.type.dims) < 2 for value in loop.results)


class Rows:
    """A kernel of one state and of vectors for the rows of a chunk."""

    def __init__(self) -> None:
        self.graph = graph = layer_graph()
        S, k, u = ([K, V], [ROW, K], [ROW, V])
        self.S, self.k, self.u = (
            graph.add(ir.Input(name, Type(tuple(axes))), name=name)
            for name, axes in (("S", S), ("k", k), ("u", u))
        )
        self.k_j = graph.add(ir.Contract((("i", "K"),), (("i", COL), ("K", K))), self.k)
        self.p = self.product("iV KV -> iK", self.u, self.S)

    def product(self, text: str, a: int, b: int) -> int:
        """A sum of products, said by labels."""
        ins, out = text.split(" -> ")
        axes = {"i": ROW, "j": COL, "K": K, "V": V}
        named = tuple(tuple(each) for each in ins.split())
        return self.graph.add(ir.Contract(named, tuple((x, axes[x]) for x in out)), a, b)

    def sums(self, **stores: int) -> Sums | None:
        """The sums over K where these are stored."""
        self.graph.outputs = dict(stores)
        loads = {id: name for name, id in (("S", self.S), ("k", self.k), ("u", self.u))}
        return sums_by_blocks(Kernel("rows", self.graph, loads, stores, ()), K)


def test_sums_over_the_dim_are_vectors_and_none_is_made_of_another() -> None:
    made = Rows()
    b = made.product("iK iK -> i", made.k, made.p)
    assert made.sums(p=made.p, b=b) == Sums(frozenset({b}), frozenset())
    pairs = made.product("iK jK -> ij", made.k, made.k_j)
    mixed = made.product("ij jK -> iK", pairs, made.k_j)
    assert made.sums(b=b, mixed=mixed) == Sums(frozenset({b}), frozenset({pairs}))
    scaled = made.product("iK i -> iK", made.k, b)
    assert made.sums(scaled=scaled) is None  # each block would need all of b
    assert made.sums(again=made.product("iK iK -> i", made.k, scaled)) is None
    assert made.sums(y=made.product("iK KV -> iV", made.k, made.S)) is None  # a matrix
    of_products = made.product("iK jK -> ij", made.p, made.k_j)
    assert made.sums(z=of_products) is None  # both factors whole would be in registers
    largest = made.graph.add(ir.Reduce("max", ("K",)), made.k)
    assert made.sums(largest=largest) is None
    renamed = made.graph.add(
        ir.Contract((("i", "K"),), (("i", ROW), ("K", K.renamed("K'")))), made.k
    )
    assert made.sums(renamed=renamed) is None
