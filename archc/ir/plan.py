"""What a backend writes a file from: a layer, where it came from, and a small instance to check it on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product

import sympy

from archc.diagnostics import ArchError
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.sizes import Number, callee_sizes, evaluate, resolve_sizes

Expected = Mapping[str, Mapping[int, float]]
"""For each output of a layer, some elements: their place in the flattened tensor and their value."""


@dataclass(frozen=True)
class Check:
    """What a generated file checks about itself: `sizes` of a small instance, those of a larger one
    for timing, and what the float64 meaning of the layer gave for the small one."""

    sizes: Mapping[str, Number]
    speed_sizes: Mapping[str, Number]
    expected: Expected = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Everything that a file is made from; equal plans give equal bytes.

    `layer` is what the file computes. `command` makes it again, `version` is the compiler's.
    `verified` lists the forms that were checked, each with a bound on its relative error. Without a
    `check` the file holds the layer alone.
    """

    layer: ir.Layer
    version: str = ""
    command: str = ""
    check: Check | None = None
    verified: tuple[tuple[str, float], ...] = ()


TRIES = 4000
"""How many instances are looked at before there is said to be none."""


def example_sizes(layer: ir.Layer, unit: int) -> dict[str, Number] | None:
    """Sizes of an instance that meets every requirement, its dims around `unit` and mostly different,
    so that a dim taken for another one shows; None if none was found."""
    names = [arg.name for arg in layer.args if arg.symbol is not None]
    wishes = _wishes(layer, unit)
    for chosen in islice(product(*wishes), TRIES):
        given = {n: value for n, value in zip(names, chosen, strict=True) if value is not None}
        try:
            sizes = resolve_sizes(layer, given)
        except ArchError:
            continue
        if _whole(layer, sizes):
            return sizes
    return None


def _wishes(layer: ir.Layer, unit: int) -> list[list[Number | None]]:
    """For each argument the values to try, best first; None leaves it at its default."""
    wishes: list[list[Number | None]] = []
    required = 0
    fresh = iter(range(1, 1 << 10))
    for arg in layer.args:
        if arg.symbol is None:
            continue
        plain = isinstance(arg.default, sympy.Expr) and arg.default.is_number
        small = plain and arg.default <= unit
        if not arg.symbol.is_integer:
            wishes.append([None] if arg.default is not None else [1])
        elif arg.default is None:
            first = [unit * 2, 2, *(unit // 2 + 2 * n for n in range(4)), 1]
            wishes.append(first[:1] + [unit, unit * 4] if not required else first[1:])
            required += 1
        elif small or not plain:
            wishes.append([None, unit, 2, 1])
        else:
            wishes.append([unit + 2 * (next(fresh) - 1), unit, 2, None, 1])
    return wishes


def _whole(layer: ir.Layer, sizes: Mapping[str, Number]) -> bool:
    """Whether every dim of the layer and of those it calls is a whole number and not 0."""
    for axis in _axes(layer.graph):
        free = {symbol.name for symbol in axis.size.free_symbols}
        if axis.kind == "dim" and free <= set(sizes):
            length = evaluate(axis.size, sizes)
            if not isinstance(length, int) or not 1 <= length <= 4096:
                return False
    return all(_whole(call.callee, callee_sizes(call, sizes)) for _, call in layer.calls)


def _axes(graph: Graph) -> Iterator[Axis]:
    """The axes of every value, those inside recurrences and attends too."""
    for node in graph:
        yield from node.type.axes
        if isinstance(node.op, ir.Fold | ir.Pair):
            yield from _axes(node.op.body)
