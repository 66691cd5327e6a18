"""What dropout makes of random numbers of 16 bits: which of them drop an element."""

from __future__ import annotations

import sympy

from archc.tile.compose import Composer
from archc.tile.handle import Tile
from archc.tile.language import RANDOM


def staying(k: Composer, p: sympy.Expr) -> tuple[Tile, Tile]:
    """The least random number with which an element stays, where as many as `p` are dropped, down
    to a multiple of 1/RANDOM, and the factor of those that stay: their mean is what it was."""
    if p.is_number:
        dropped = sympy.floor(p * RANDOM)
        grown = RANDOM / (RANDOM - dropped) if dropped < RANDOM else sympy.S.Zero
        return k.lift(dropped, "i32"), k.lift(grown)
    least = k.noted((k.lift(p) * float(RANDOM)).to("i32"), f"of {RANDOM} random numbers")
    return least, float(RANDOM) / (float(RANDOM) - least.to("f32"))
