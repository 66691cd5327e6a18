"""Lowering of choices: the largest values along a dim of which a program has all places."""

from __future__ import annotations

import math

from archc.ir.graph import Node
from archc.ir.refusal import Refusal
from archc.lowering.values import Made, Padded, Place, Values

LARGEST = 3.4028234663852886e38
"""The largest number of float32."""


def top(v: Values, node: Node, place: Place) -> Made:
    """Whether each place of an axis has one of the `count` largest values, of equals the first: the
    largest of those that are left is taken so many times. A NaN is the largest; -inf is never
    chosen."""
    axis = node.type.axis(node.op.axis)
    if not v.is_own(axis.name, place[axis.name]):
        return v.refused(node, f"a choice is wanted at other places along {axis.name}")
    x = v.value(node.operands[0], place)
    if isinstance(x, Refusal):
        return x
    dims = [v.dim(name, node.type.axis(name)) for name in v.sorted({*x.labels, axis.name})]
    value = v.masked(v.over(x.wide(), dims), (axis.name,), -math.inf).tile
    wrong = v.k.apply("ne", value, value)
    finite = v.k.noted(
        v.k.apply("min", value, LARGEST), "the largest finite: a NaN goes before all"
    )
    ordered = v.k.where(wrong, math.inf, finite)
    with v.k.loop(0, v.size(node.op.count), ordered, index="turn") as turn, v.inner():
        (left,) = turn.carried
        names = tuple(dim.name for dim in dims)
        first = left.reduce("argmax", axis.name)
        best = v.k.apply("eq", place[axis.name].at, first, dims_in=names)
        turn.next(v.k.apply("where", best, -math.inf, left, dims_in=names))
    return Padded(turn.results[0].equals(-math.inf) & v.k.apply("ne", value, -math.inf))
