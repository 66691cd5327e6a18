"""Inputs and outputs of the recurrences of a layer, and the ops before and after them that their
kernels take over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from archc.ir.graph import Graph, Node
from archc.ir.sizes import evaluate
from archc.schedule import epilogue, prologue
from archc.schedule.epilogue import Epilogue
from archc.schedule.following import REASONS, is_costly
from archc.schedule.moving import in_words
from archc.schedule.program import Setting


@dataclass(frozen=True)
class Leaving:
    """An output of a recurrence, its bytes, the value that its kernels end with in its place (None:
    nothing moves), and why nothing more does. `forward` and `backward` are bytes that PyTorch reads
    and writes for what moved, beyond those that the kernels do in its place."""

    name: str
    bytes: int
    ends: str | None
    forward: int
    backward: int
    rule: str
    why: str


def leaving(
    graph: Graph, recurrence: Node, setting: Setting, readers: Callable[[int], int]
) -> Iterator[Leaving]:
    """Each output of a recurrence, and the ops that its kernels take over, in a layer before any
    moves. `readers` tells for the place of an output how many kernels read its gradient."""
    if recurrence.op.chunked is None:
        return
    for place, found in enumerate(epilogue.considered(graph, recurrence)):
        sizes = (evaluate(axis.size, setting.sizes) for axis in found.output.type.axes)
        bytes = int(math.prod(sizes)) * setting.data
        ends = in_words(graph, found.last.id) if found.moves else None
        forward, backward = bytes * found.forward, bytes * found.backward
        name, rule = found.output.op.name, found.stop.rule
        why = _why(graph, recurrence, found, readers(place))
        yield Leaving(name, bytes, ends, forward, backward, rule, why)


def _why(graph: Graph, recurrence: Node, found: Epilogue, kernels: int) -> str:
    """The reason why the op after an output, or after the last value that moved, stays."""
    rule, about = found.stop.rule, found.stop.about
    words = [f"`{in_words(graph, id)}`" for id in about]
    if rule == "several":
        return REASONS[rule].format(" and ".join(words))
    if rule == "across":
        dims = (axis.name for axis in found.output.type.axes if axis.kind == "dim")
        gone = [f"`{dim}`" for dim in dims if dim not in graph[about[0]].type.names]
        return REASONS[rule].format(words[0], " and ".join(gone))
    why = REASONS[rule].format(*words)
    others = [id for id in about[1:] if recurrence.op.stream.name in graph[id].type.names]
    if rule == "needed" and others and kernels:
        does = "compute" if is_costly(graph, others[0]) else "read"
        each = "kernel" if kernels == 1 else f"{kernels} kernels"
        why += f", and the {each} that read{'s' * (kernels == 1)} its gradient would {does}"
        why += f" `{in_words(graph, others[0])}` too"
    return why


@dataclass(frozen=True)
class Entering:
    """An input of a recurrence, whether its kernels make it of something else, and why."""

    name: str
    moves: bool
    why: str


def entering(graph: Graph, recurrence: Node) -> Iterator[Entering]:
    """For each input of a recurrence, whether its kernels make it themselves, and the reason; of a
    layer before any moves."""
    if recurrence.op.chunked is None:
        return
    for found in prologue.considered(graph, recurrence):
        along = [id for id in found.reads if recurrence.op.stream.name in graph[id].type.names]
        read = found.reads if found.moves or not along else along
        values = " and ".join(f"`{in_words(graph, id)}`" for id in read) or "a number"
        yield Entering(found.capture, found.moves, prologue.REASONS[found.rule].format(values))
