"""The same graph with other sizes of axes.

A Pair may read more tokens than there are readers: those before, when a sequence is continued. A
gradient is taken of whole sequences, where both are as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK_OPS
from archc.ir.graph import Graph, Type

PARTS = (Type, ir.State, *ir.OPS, *CHUNK_OPS)
"""What has axes in its fields."""


def resized(op: Any, axes: Mapping[Axis, Axis]) -> Any:
    """An op, a type or a part of one with some axes replaced by others; itself where it has none of
    them."""
    if not axes:
        return op
    if isinstance(op, Axis):
        return axes.get(op, op)
    if isinstance(op, tuple):
        return tuple(resized(part, axes) for part in op)
    if isinstance(op, Graph):
        return _graph(op, axes)
    if isinstance(op, sympy.Basic):
        return op.xreplace({old.size: new.size for old, new in axes.items()})
    if isinstance(op, PARTS):
        parts = {f.name: resized(getattr(op, f.name), axes) for f in fields(op)}
        same = all(parts[f.name] == getattr(op, f.name) for f in fields(op))
        return op if same else replace(op, **parts)
    return op


def _graph(graph: Graph, axes: Mapping[Axis, Axis]) -> Graph:
    """A graph with the axes replaced in every op."""
    new: Graph = Graph(graph.infer)
    ids: dict[int, int] = {}
    for node in graph:
        operands = [ids[operand] for operand in node.operands]
        op = resized(node.op, axes)
        ids[node.id] = new.add(op, *operands, name=node.name, span=node.span)
    new.outputs = {name: ids[id] for name, id in graph.outputs.items()}
    return new
