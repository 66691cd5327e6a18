"""Products in float32, whatever the data are."""

from __future__ import annotations

from archc.lowering.values import Padded, Values
from archc.tile.handle import Tile


def in_two_parts(v: Values, left: Padded, right: Padded) -> Tile:
    """left @ right in float32: where the data have no room for that, what is wider than bfloat16,
    whose range is that of float32, is the nearest number of it and the nearest to the rest."""
    k, operand, precision = v.k, v.numbers.operand, v.numbers.precision
    with k.branch(k.chosen(operand, "f32")) as whole:
        whole.give(k.dot(left.tile.to("f32"), right.tile.to("f32"), precision=precision))
    with k.otherwise(whole) as parts:
        if operand not in (left.tile.dtype, right.tile.dtype):
            parts.give(_of_parts(v, left.tile, right.tile, ""))
        else:
            with k.branch(k.chosen(operand, "bf16")) as near:
                near.give(_of_parts(v, left.tile, right.tile, operand))
            with k.otherwise(near) as others:
                others.give(_of_parts(v, left.tile, right.tile, ""))
            parts.give(*near.results)
    return whole.results[0]


def _of_parts(v: Values, left: Tile, right: Tile, plain: str) -> Tile:
    """The sum of the products of parts; numbers of the dtype `plain` are bfloat16, with no rest."""
    a, b = left.to("bf16"), right.to("bf16")
    made = v.k.dot(a, b)
    if left.dtype != plain:
        made = v.k.dot((left.to("f32") - a.to("f32")).to("bf16"), b, made)
    if right.dtype != plain:
        made = v.k.dot(a, (right.to("f32") - b.to("f32")).to("bf16"), made)
    return made
