"""The gradient of every op: cotangents of the operands from that of the result, one rule an op.

A rule gets the builder of a graph that has the forward's nodes too, the node, and the id of its
cotangent `d` (of a region: the cotangents of its results by name). It returns one cotangent for
each operand: a node with no axes but the operand's, or None where nothing passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from archc.autodiff import chunk_gradients, regions, tensor
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
    ck.Chunks: chunk_gradients.chunks,
    ck.Tokens: chunk_gradients.tokens,
    ck.Stack: chunk_gradients.stack,
    ck.Select: chunk_gradients.select,
    ck.Place: chunk_gradients.place,
    ck.Last: chunk_gradients.last,
    ck.AtLast: chunk_gradients.at_last,
    ck.Unwindow: chunk_gradients.unwindow,
    ck.Expand: chunk_gradients.expand,
    ck.BlockSums: chunk_gradients.second,
    ck.Sums: chunk_gradients.sums,
    ck.Move: chunk_gradients.move,
    ck.Scan: chunk_gradients.scan,
    ck.Spans: chunk_gradients.spans,
    ck.SpansGradient: chunk_gradients.second,
    ck.Gram: chunk_gradients.gram,
    ck.Mix: chunk_gradients.mix,
    ck.GateGradient: chunk_gradients.second,
    ck.Inverse: chunk_gradients.inverse,
    ck.Detach: tensor.nothing,
    ck.Conjugate: regions.conjugate,
}
"""The rule of each op; one entry an op."""
complete("`RULES` of archc/autodiff/rules.py", RULES, (*ir.OPS, *ck.CHUNK_OPS))

PASSES_NOTHING = (ir.Noise, ir.Top, ck.Detach)
"""Ops behind which no value depends on their operands, for a gradient."""
