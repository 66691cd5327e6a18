"""Composition laws that a spec gives (`chunk: law(..)`), proved or else held against numbers.

A law that does not hold would give wrong numbers, so it is refused with an example. One that is
neither proved nor refuted is used, and whoever compiles the layer is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from archc.diagnostics import ArchError, fail
from archc.dims import at
from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.given_law import DRAWS, GivenLaw
from archc.ir.graph import Graph, Node, Type
from archc.ir.plan import examples
from archc.ir.sizes import Number
from archc.ir.text import called_layers
from archc.numerics.stated import stated
from archc.recurrence.law.equations import MERGE, TOKEN, Equation, trial
from archc.recurrence.law.proof import laws_proved

if TYPE_CHECKING:
    from torch import Generator, Tensor

SMALL = 2
"""About how long the dims of a draw are."""

CLOSE = 1e-8
"""Numbers that are nearer than this, for their size, count as equal."""


def with_laws(layer: ir.Layer) -> ir.Layer:
    """The layer with what is proved of its laws. Raises ArchError for a law that does not hold."""
    if not any(each.chunk.laws for each in called_layers(layer)):
        return layer
    layer = laws_proved(layer)
    for each in called_layers(layer):
        for node, law in _laws(each):
            if not law.proved:
                _hold(each, node, law)
    return layer


def _laws(layer: ir.Layer) -> list[tuple[Node, GivenLaw]]:
    """The laws of a layer's recurrences."""
    recurrences = [node for node in layer.graph if isinstance(node.op, ir.Recurrence)]
    return [(node, law) for node in recurrences for law in node.op.laws]


def _hold(layer: ir.Layer, node: Node, law: GivenLaw) -> None:
    """Random numbers for everything that enters a token; raises ArchError if a rule breaks."""
    graph, equations = trial(node.op, law)
    known = stated(layer)
    lies = {name: known[id] for name, id in zip(node.op.captures, node.operands, strict=False)}
    seen = dict.fromkeys(equations, 0)
    for sizes in islice(examples(layer, SMALL), 2):
        values = _drawn(graph, lies, sizes)
        for equation in equations:
            left, right = values[equation.left], values[equation.right]
            wrong, finite = _differs(left, right)
            seen[equation] += finite
            if wrong is not None:
                raise _refuted(law, graph, equation, values, wrong)
    if not all(seen.values()):
        raise fail(
            "E0608", f"`{law.text}` gives no finite number for random values", law.span,
            helps=["say where inputs lie: `chunk: bound a <= 0`"],
        )  # fmt: skip


def _drawn(
    graph: Graph, lies: Mapping[str, Interval], sizes: Mapping[str, Number]
) -> dict[str, Tensor]:
    """The outputs for `DRAWS` random inputs, which lie where the layer says."""
    import torch  # takes a second: only where a law is not proved

    from archc.ir.meaning import evaluate_graph

    generator = torch.Generator().manual_seed(0)
    given = {}
    for node in graph:
        if isinstance(node.op, ir.Input):
            lie = lies.get(node.op.name.rsplit(".", 1)[0], lies.get(node.op.name, Interval()))
            given[node.op.name] = _random(_shape(node.type, sizes), node.type.dtype, lie, generator)
    return evaluate_graph(graph, given, {**sizes, "batch": DRAWS})


def _shape(type: Type, sizes: Mapping[str, Number]) -> list[int]:
    return [
        DRAWS if axis.kind == "batch" else int(at(axis.size, dict(sizes))) for axis in type.axes
    ]


def _random(shape: list[int], dtype: str, lie: Interval, generator: Generator) -> Tensor:
    """Numbers of all signs and of several magnitudes, within an interval."""
    import torch

    if dtype == "bool":
        return torch.rand(shape, generator=generator) < 0.5
    low, high = float(lie.low), float(lie.high)
    if dtype == "int":
        return torch.randint(0, 3, shape, generator=generator).clamp(low, high).long()
    if math.isfinite(low) and math.isfinite(high):
        part = torch.rand(shape, generator=generator, dtype=torch.float64)
        return low + (high - low) * part
    normal = 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    if math.isfinite(low):
        return low + normal.abs()
    return high - normal.abs() if math.isfinite(high) else normal


def _differs(left: Tensor, right: Tensor) -> tuple[tuple[int, ...] | None, int]:
    """The first place where two values differ, if any, and how many of their entries are finite."""
    finite = left.isfinite() & right.isfinite()
    apart = (left - right).abs() > CLOSE * (1 + left.abs() + right.abs())
    found = (finite & apart).nonzero()
    place = tuple(map(int, found[0])) if len(found) else None
    return place, int(finite.sum())


def _refuted(
    law: GivenLaw,
    graph: Graph,
    equation: Equation,
    values: Mapping[str, Tensor],
    place: tuple[int, ...],
) -> ArchError:
    """The error, with the numbers of an example."""
    (token, *_), (merge, *_), (apply, *_) = law.named
    left, right = (float(values[side][place]) for side in (equation.left, equation.right))
    if equation.rule == MERGE:
        message, span = f"`{merge}` is not associative", law.named[1][1]
        sides = (f"{merge}({merge}(x, y), z)", f"{merge}(x, {merge}(y, z))")
    elif equation.rule == TOKEN:
        message, span = f"`{token}` and `{apply}` are not the update of a token", law.named[0][1]
        sides = (f"{apply}({token}(..), {equation.name}[t-1])", f"{equation.name}[t]")
    else:
        message, span = f"`{merge}` does not do what its runs do", law.named[1][1]
        sides = (f"{apply}({merge}(x, y), S)", f"{apply}(y, {apply}(x, S))")
    return fail(
        "E0608", message, span, "by an example",
        notes=[
            f"`{sides[0]}` has {equation.name} = {left:.6g}",
            f"`{sides[1]}` has {equation.name} = {right:.6g}",
            *_example(graph, equation, values, place),
        ],
        helps=["mend the law, or leave it out"],
    )  # fmt: skip


def _example(
    graph: Graph, equation: Equation, values: Mapping[str, Tensor], place: tuple[int, ...]
) -> Iterator[str]:
    """The numbers that both sides were made from at an element, where that is one number each."""

    def names(output: str) -> tuple[str, ...]:
        return graph[graph.outputs[output]].type.names

    at_axis = dict(zip(names(equation.left), place, strict=True))
    if any(name not in at_axis for output, _ in equation.of for name in names(output)):
        return
    known = [
        f"{word} = {float(values[output][tuple(at_axis[n] for n in names(output))]):.6g}"
        for output, word in equation.of
    ]
    yield f"for {', '.join(known)}"
