"""Layer IR -> layer IR: the same values for less work.

Sums of products are put in the cheapest order, identity matrices become what they multiply, a sum times
a matrix is spread over its terms where they are cheaper apart, and equal values become one.
"""

from __future__ import annotations

from archc.algebra.merge import (
    drop_neutral,
    fold_constants,
    join_constants,
    share,
    share_captures,
)
from archc.algebra.rules import distribute, drop_delta, reassociate
from archc.ir import layer as ir
from archc.ir.rewrite import Rule, rewrite

RULES: tuple[Rule, ...] = (
    share_captures,
    share,
    fold_constants,
    drop_neutral,
    join_constants,
    drop_delta,
    distribute,
    reassociate,
)
"""In the order in which they are asked."""


def simplify(layer: ir.Layer) -> ir.Layer:
    """A layer with the same meaning, inputs, parameters and outputs, that costs less; the one given
    stays as it is. Applies inside recurrences, attends and called layers as well."""
    return rewrite(layer, RULES)
