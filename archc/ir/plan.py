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


TRIES = 500
"""How many instances are looked at before there is said to be none."""


def examples(layer: ir.Layer, unit: int) -> Iterator[dict[str, Number]]:
    """Sizes of instances that meet every requirement, their dims around `unit` and mostly different,
    so that a dim taken for another one shows."""
    names = [arg.name for arg in layer.args if arg.symbol is not None]
    for chosen in islice(product(*_wishes(layer, unit)), TRIES):
        given = {n: value for n, value in zip(names, chosen, strict=True) if value is not None}
        try:
            sizes = resolve_sizes(layer, given)
        except ArchError:
            continue
        if _whole(layer, sizes, 16 * unit):
            yield sizes


def _wishes(layer: ir.Layer, unit: int) -> list[list[Number | None]]:
    """For each argument the values to try, best first; None leaves it at its default."""
    settled = {s for r in layer.requirements if r.settled for s in r.condition.free_symbols}
    wishes: list[list[Number | None]] = []
    required = sized = 0
    for arg in layer.args:
        if arg.symbol is None:
            continue
        default = arg.default
        if default is not None and (arg.symbol in settled or not arg.symbol.is_integer):
            wishes.append([None])
        elif default is None:
            several = [2, unit, unit + 2, 1]
            turn = max(required - 1, 0) % 3
            wishes.append([*several[turn:], *several[:turn]] if required else [2 * unit, unit])
            required += 1
        elif default.is_number and default > unit:
            large = default > 512
            first = (2 * unit if large else unit if default > 64 else 2) + (unit if large else 2) * (sized % 3)
            wishes.append([first, unit, 2, None])
            sized += 1
        else:
            wishes.append([None, unit, 2, 1])
    return wishes


def _whole(layer: ir.Layer, sizes: Mapping[str, Number], most: int) -> bool:
    """Whether every dim of the layer is a whole number between 1 and `most`, and so on in the layers
    it calls, whatever they add of their own."""
    lengths = {
        axis.size: evaluate(axis.size, sizes)
        for axis in _axes(layer.graph)
        if axis.kind == "dim" and {symbol.name for symbol in axis.size.free_symbols} <= set(sizes)
    }
    if not all(isinstance(length, int) and 1 <= length <= most for length in lengths.values()):
        return False
    return all(_whole(c.callee, callee_sizes(c, sizes), 1 << 12) for _, c in layer.calls)


def _axes(graph: Graph) -> Iterator[Axis]:
    """The axes of every value, those inside recurrences and attends too."""
    for node in graph:
        yield from node.type.axes
        if isinstance(node.op, ir.Fold | ir.Pair):
            yield from _axes(node.op.body)
