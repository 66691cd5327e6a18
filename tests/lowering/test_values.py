"""Nodes of graphs as padded tiles, run by the interpreter in float64, against their meaning."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import sympy
import torch
from torch import Tensor

from archc.dims import size_symbol
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.refusal import Refusal
from archc.tile.language import Load, statements
from tests.graphs import Sketch, axes, axis
from tests.lowering.single import Single, check

SIZES = {"A": 5, "B": 6, "C": 7, "H": 2}
"""None is a block's length: every tile has places beyond its axis."""


def normal(*names: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = [SIZES[name.rstrip("'")] for name in names]
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def over(*names: str, fn: str = "sum") -> Callable[[Sketch, int], int]:
    return lambda s, x: s.add(ir.Reduce(fn, names), s.fn("exp", x))


def squared(s: Sketch, x: int) -> int:
    return s.fn("mul", x, x)


def behind(s: Sketch, fn: str, by: int) -> int:
    """A quotient of integers of which some are negative."""
    return s.fn(fn, s.fn("sub", s.add(ir.Position(axis("B"))), s.number(4)), s.number(by))


CASES: dict[str, Callable[[Sketch, int, int], int]] = {
    "sum": lambda s, x, y: over("B")(s, x),
    "sums": lambda s, x, y: over("A", "B")(s, x),
    "mean": lambda s, x, y: over("B", fn="mean")(s, x),
    "max": lambda s, x, y: over("B", fn="max")(s, s.fn("neg", x)),
    "min": lambda s, x, y: over("A", fn="min")(s, x),
    "prod": lambda s, x, y: over("B", fn="prod")(s, x),
    "matrices": lambda s, x, y: s.einsum("H A B, H B C -> H A C", s.fn("exp", x), y),
    "divided": lambda s, x, y: s.einsum("H A B, H B C -> H A C", x, s.fn("div", s.number(1), y)),
    "turned": lambda s, x, y: s.einsum("H A B, H B C -> H C A", s.fn("exp", x), y),
    "outer": lambda s, x, y: s.einsum("H A B, H B C -> H A B C", x, y),
    "columns": lambda s, x, y: s.einsum("H A B, H B C -> H B", s.fn("exp", x), y),
    "own": lambda s, x, y: s.einsum("H A B, H i B -> H A i:A'", x, x),
    "renamed": lambda s, x, y: s.einsum("H A B -> H B A", x),
    "position": lambda s, x, y: s.fn("mul", x, s.fn("real", s.add(ir.Position(axis("B"))))),
    "delta": lambda s, x, y: s.fn("add", x, s.add(ir.Delta(*axes("A B")))),
    "select": lambda s, x, y: s.add(ck.Select("B", -1), s.fn("exp", x)),
    "place": lambda s, x, y: s.add(ck.Place(axis("C"), 2), x),
    "placed": lambda s, x, y: over("C", fn="sum")(s, s.add(ck.Place(axis("C"), -1), x)),
    "expand": lambda s, x, y: s.add(ck.Expand(axes("C")), x),
    "expanded": lambda s, x, y: over("C")(s, s.add(ck.Expand(axes("C")), x)),
    "factor": lambda s, x, y: s.fn("mul", x, s.number(1 / sympy.sqrt(size_symbol("B")))),
    "gather": lambda s, x, y: s.add(ir.Gather("B"), x, s.number(3)),
    "norm": lambda s, x, y: s.fn("div", x, s.fn("sqrt", over("B")(s, squared(s, x)))),
    "softmax": lambda s, x, y: s.fn("div", s.fn("exp", x), over("B")(s, x)),
    "modulo": lambda s, x, y: s.fn("real", s.fn("mod", s.add(ir.Position(axis("B"))), s.number(4))),
    "behind": lambda s, x, y: s.fn("real", behind(s, "floordiv", 3)),
    "rest": lambda s, x, y: s.fn("real", behind(s, "mod", -3)),
}  # fmt: skip


def drawn() -> tuple[Sketch, int, int, dict[str, Tensor]]:
    sketch = Sketch()
    x, y = sketch.input("x", "H A B"), sketch.input("y", "H B C")
    return sketch, x, y, {"x": normal("H", "A", "B"), "y": normal("H", "B", "C", seed=1)}


@pytest.mark.parametrize("grid", [(), ("H",)], ids=["whole", "heads"])
@pytest.mark.parametrize("name", CASES)
def test_a_graph_is_what_it_means(name: str, grid: tuple[str, ...]) -> None:
    sketch, x, y, given = drawn()
    made = CASES[name](sketch, x, y)
    if "H" not in sketch.graph[made].type.names:
        made = sketch.fn("add", made, sketch.einsum("H A B -> H B", x))
    sketch.graph.outputs["z"] = made
    check(sketch.graph, given, SIZES, grid)


UNARY = ("neg", "exp", "sigmoid", "tanh", "abs", "relu", "cos", "sin", "softplus", "floor", "sign")
BINARY = ("add", "sub", "mul", "max", "min")
EINSUMS = (
    "H A B, H B C -> H A C", "H A B, H B C -> H C", "H A B, H A C -> H B C",
    "H A B, H A B -> H A", "H A B -> H B A", "H A B, H B C -> H B",
)  # fmt: skip


def random_graph(seed: int) -> Sketch:
    """A graph of a dozen values that are made from one another, whatever their axes are."""
    draw = random.Random(seed)
    sketch, x, y, _ = drawn()
    values = [x, y]
    for _ in range(12):
        one, other = draw.choice(values), draw.choice(values)
        names = [sketch.graph[each].type.names for each in (one, other)]
        what = draw.randrange(5)
        if what == 0:
            values.append(sketch.fn(draw.choice(UNARY), one))
        elif what == 1:
            values.append(sketch.fn("tanh", sketch.fn(draw.choice(BINARY), one, other)))
        elif what == 2 and len(names[0]) > 1:
            fn = draw.choice(("sum", "mean", "max", "min"))
            along = draw.choice([name for name in names[0] if name != "H"])
            values.append(sketch.add(ir.Reduce(fn, (along,)), one))
        elif what == 3:
            text = draw.choice(EINSUMS)
            wanted = [part.split() for part in text.split("->")[0].split(",")]
            if [[*each] for each in names[: len(wanted)]] == wanted:
                given = (one, other)[: len(wanted)]
                values.append(sketch.fn("tanh", sketch.einsum(text, *given)))
        elif "B" in names[0]:
            values.append(sketch.add(ck.Select("B", draw.randrange(-2, 3)), one))
    for number, each in enumerate(values[2:]):
        sketch.graph.outputs[f"z{number}"] = each
    return sketch


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(seed: int) -> None:
    *_, given = drawn()
    check(random_graph(seed).graph, given, SIZES, ("H",))


def test_a_refusal_has_the_node_and_the_reason() -> None:
    sketch, x, _, _ = drawn()
    at = sketch.add(ir.Top("B", sympy.Integer(2)), x)
    sketch.graph.outputs["z"] = sketch.fn("exp", sketch.fn("real", at))
    assert Single(sketch.graph, ("H",)).program() == Refusal(at, "kernels have no Top")
    over_heads = Sketch()
    z = over_heads.add(ir.Reduce("sum", ("H",)), over_heads.input("x", "H A B"))
    over_heads.graph.outputs["z"] = z
    refused = Single(over_heads.graph, ("H",)).program()
    assert refused == Refusal(z, "sum over H, of which a program has one index")


def test_what_is_refused_on_the_way_is_not_in_the_program() -> None:
    """An element of a sum along another axis: the sum is made, not what was tried."""
    sketch, x, _, given = drawn()
    sketch.graph.outputs["z"] = sketch.add(ck.Select("B", 1), sketch.fn("exp", x))
    program = Single(sketch.graph, ("H",)).program()
    assert not isinstance(program, Refusal)
    loads = [s for s in statements(program.body) if isinstance(s.op, Load)]
    assert len(loads) == 1 and loads[0].results[0].type.names == ("A",)
    check(sketch.graph, given, SIZES, ("H",))
