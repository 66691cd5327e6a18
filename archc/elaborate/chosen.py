"""Choices of blocks of tokens, as an `attend` to the tokens sees them: one for each of these."""

from __future__ import annotations

import sympy

from archc.dims import TIME, Axis
from archc.elaborate import ops
from archc.elaborate.scope import BlockStream, Scope
from archc.elaborate.values import Tensor, Value
from archc.ir import layer as ir
from archc.source import Span


def blocks_of(scope: Scope, value: Tensor) -> Axis | None:
    """The sequence of blocks of the own tokens that a value has entries for, where an `attend`
    reads the tokens themselves; None where it reads these blocks, or others."""
    attend = scope.attend
    if attend is None or attend.source != "t":
        return None
    for axis in value.axes:
        _, info = scope.context.streams.get(axis.name, (None, None))
        if axis != attend.read and info is not None and info.source == "t":
            return axis
    return None


def of_tokens(inner: Scope, value: Tensor, blocks: Axis, span: Span) -> Tensor:
    """A choice of blocks, a bool, as one for each token read."""
    _, info = inner.context.streams[blocks.name]
    assert info is not None and inner.attend is not None
    read = ops.node(inner, ir.Position(inner.attend.read), span=span)
    if info.covers:
        block = ops.plain(inner, "floordiv", [read, info.stride], span)
        return ops.node(inner, ir.Gather(blocks.name), value, block, span=span)
    return _in_a_block(inner, value, blocks, info, read, span)


def _in_a_block(
    inner: Scope, chosen: Tensor, blocks: Axis, info: BlockStream, read: Tensor, span: Span
) -> Tensor:
    """Whether a block that is chosen, and complete at the reader, holds the token read: blocks may
    overlap, or leave tokens between them and at the end."""
    assert inner.frame.parent is not None
    outer = inner.frame.parent  # how many blocks there are is known there
    place = Tensor(outer, outer.graph.add(ir.Position(blocks), span=span))
    first = ops.plain(inner, "mul", [inner.frame.bring(place), info.stride], span)
    last = ops.plain(inner, "add", [first, info.size - 1], span)

    def both(*conditions: Value) -> Tensor:
        return ops.plain(inner, "real", [ops.plain(inner, "and", conditions, span)], span)

    reader = ops.node(inner, ir.Position(TIME), span=span)
    taken = both(chosen, ops.plain(inner, "le", [last, reader], span))
    holds = both(*(ops.plain(inner, "le", pair, span) for pair in ([first, read], [read, last])))
    axes = {axis.name: axis for value in (taken, holds) for axis in value.axes}
    out = ops.arranged([(name, axis) for name, axis in axes.items() if name != blocks.name])
    op = ir.Contract((taken.type.names, holds.type.names), out)
    count = ops.node(inner, op, taken, holds, span=span)
    return ops.plain(inner, "gt", [count, sympy.Integer(0)], span)
