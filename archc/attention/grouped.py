"""Grouped heads: head h takes the part of group h // (H / G) of a value."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


@dataclass(frozen=True)
class Grouped:
    """A value along groups that is read along heads, of which `share` are in a group."""

    value: int
    heads: Axis
    groups: Axis
    share: sympy.Expr


def grouped(graph: Graph, node: Node) -> Grouped | None:
    """x[head // share] along the groups; None for any other node."""
    if not isinstance(node.op, ir.Gather):
        return None
    value, index = (graph[operand] for operand in node.operands)
    if index.op != ir.Elementwise("floordiv"):
        return None
    heads, share = (graph[operand].op for operand in index.operands)
    if not isinstance(heads, ir.Position) or not isinstance(share, ir.Constant):
        return None
    groups = value.type.axis(node.op.axis)
    if heads.axis.kind != "dim" or share.value != sympy.floor(heads.axis.size / groups.size):
        return None
    return Grouped(value.id, heads.axis, groups, share.value)
