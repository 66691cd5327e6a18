"""The graph for whole sequences: as many tokens are seen as there are.

Where a sequence is continued an attend reads more tokens than it has readers. A gradient is taken
of a whole one, and joins the axes of both: so T_seen is T in it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import sympy

from archc.dims import T_SEEN, TIME, Axis
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK_OPS
from archc.ir.graph import Graph, Type

PARTS = (Axis, Type, ir.State, *ir.OPS, *CHUNK_OPS)
"""What has sizes in its fields."""


def whole(graph: Graph) -> Graph:
    """A graph and its bodies with T in place of T_seen; nodes are numbered anew."""
    new: Graph = Graph(graph.infer)
    ids: dict[int, int] = {}
    for node in graph:
        operands = [ids[operand] for operand in node.operands]
        ids[node.id] = new.add(_whole(node.op), *operands, name=node.name, span=node.span)
    new.outputs = {name: ids[id] for name, id in graph.outputs.items()}
    return new


def _whole(part: Any) -> Any:
    """An op or a part of one, itself where it does not speak of T_seen."""
    if isinstance(part, tuple):
        return tuple(map(_whole, part))
    if isinstance(part, Graph):
        return whole(part)
    if isinstance(part, sympy.Basic):
        return part.xreplace({T_SEEN: TIME.size})
    if isinstance(part, PARTS):
        parts = {f.name: _whole(getattr(part, f.name)) for f in fields(part)}
        same = all(parts[f.name] == getattr(part, f.name) for f in fields(part))
        return part if same else replace(part, **parts)
    return part
