"""The gradient of every op: cotangents of the operands from that of the result, one rule an op.

A rule gets the builder of a graph that has the forward's nodes too, the node, and the id of its
cotangent `d` (of a region: the cotangents of its results by name). It returns one cotangent for
each operand: a node with no axes but the operand's, or None where nothing passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from archc.autodiff import regions, scans, solutions, tensor
from archc.autodiff.elementwise import elementwise
from archc.autodiff.gradient_builder import Builder
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.tables import complete

Rule = Callable[[Builder, Node, Any], list[int | None]]

REGIONS = (ir.Recurrence, ir.Attend, ir.Call)
"""Ops with several results, whose rules get the cotangents by name."""

RULES: dict[type, Rule] = {
    ir.Input: tensor.nothing,
    ir.Param: tensor.nothing,
    ir.Constant: tensor.nothing,
    ir.Position: tensor.nothing,
    ir.Delta: tensor.nothing,
    ir.Noise: tensor.nothing,  # its operand gives nothing but a shape
    ir.Elementwise: elementwise,
    ir.Reduce: tensor.reduce,
    ir.Contract: tensor.contract,
    ir.Gather: tensor.gather,
    ir.Scatter: tensor.scatter,
    ir.Join: tensor.join,
    ir.Reshape: tensor.reshape,
    ir.Top: tensor.nothing,
    ir.Solve: tensor.solve,
    ir.Shift: tensor.shift,
    ir.Window: tensor.window,
    ir.Softmax: tensor.softmax,
    ir.Segment: tensor.segment,
    ir.Substitute: tensor.substitute,
    ir.Recurrence: regions.recurrence,
    ir.Attend: regions.attend,
    ir.Result: tensor.nothing,  # the walk hands its cotangent to the region
    ir.Call: regions.call,
    **{op: lambda b, node, d: node.op.gradient(b, node, d) for op in ck.CHUNK_OPS},
    ck.Last: regions.last,
    ck.Scan: scans.scan,
    ck.Inverse: solutions.inverse,
}
"""The rule of each op, one entry an op: a chunk op has its own, where the graph around tells no
more."""
complete("`RULES` of archc/autodiff/rules.py", RULES, (*ir.OPS, *ck.CHUNK_OPS))

PASSES_NOTHING = (ir.Noise, ir.Top, ck.Detach)
"""Ops behind which no value depends on their operands, for a gradient."""
