"""The lowering rule of each op of the layer IR, and of the chunk ops that look at no other row."""

from __future__ import annotations

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.lowering.algebra import (
    constant,
    delta,
    elementwise,
    gather,
    place_,
    position,
    reduce,
    same,
    select,
)
from archc.lowering.products import contract
from archc.lowering.values import Rule

RULES: dict[type, Rule] = {
    ir.Constant: constant, ir.Position: position, ir.Delta: delta, ir.Elementwise: elementwise,
    ir.Reduce: reduce, ir.Contract: contract, ir.Gather: gather, ck.Select: select,
    ck.Place: place_, ck.Expand: same, ck.Detach: same,
}  # fmt: skip
