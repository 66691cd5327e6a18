"""Products in float32, whatever the data are."""

from __future__ import annotations

from archc.lowering.values import Padded, Values
from archc.tile.handle import Tile
from archc.tile.language import OF_BUFFER


def in_two_parts(v: Values, left: Padded, right: Padded) -> Tile:
    """left @ right in float32: where the data have no room for that, what is wider than bfloat16,
    whose range is that of float32, is the nearest number of it and the nearest to the rest."""
    k, operand, precision = v.k, v.numbers.operand, v.numbers.precision
    with k.branch(k.chosen(operand, "f32")) as whole:
        whole.give(k.dot(left.tile.to("f32"), right.tile.to("f32"), precision=precision))
    with k.otherwise(whole) as parts:
        a, b = left.tile.to("bf16"), right.tile.to("bf16")
        made = _with_rest(v, left.tile, a, b, k.dot(a, b), turned=False)
        parts.give(_with_rest(v, right.tile, b, a, made, turned=True))
    return whole.results[0]


def _with_rest(v: Values, tile: Tile, near: Tile, other: Tile, made: Tile, turned: bool) -> Tile:
    """A product, and that of what its factor `tile` is more than `near`: nothing where it is a
    bfloat16. `turned`: the factor stands on the right."""

    def more() -> Tile:
        rest = (tile.to("f32") - near.to("f32")).to("bf16")
        return v.k.dot(other, rest, made) if turned else v.k.dot(rest, other, made)

    if tile.dtype != v.numbers.operand and not tile.dtype.startswith(OF_BUFFER):
        return more()
    with v.k.branch(v.k.chosen(tile.dtype, "bf16")) as whole:
        whole.give(made)
    with v.k.otherwise(whole) as parts:
        parts.give(more())
    return whole.results[0]
