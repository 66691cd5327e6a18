"""Layer IR -> layer IR: the same values for less work.

Products are put in the cheapest order, identity matrices become what they multiply, a sum times a
matrix is spread over its terms where they are cheaper apart, equal values become one, and weights
that are divided by their sum a softmax, a sum of weights times vectors a product.
"""

from __future__ import annotations

from archc.algebra.angles import known_inside
from archc.algebra.merge import (
    drop_neutral,
    join_constants,
    share,
    share_captures,
)
from archc.algebra.rules import (
    distribute,
    drop_delta,
    look_up_last,
    reassociate,
    rows_apart,
)
from archc.algebra.softmaxes import softmaxes
from archc.algebra.weighed import sums_of_products
from archc.ir import layer as ir
from archc.ir.rewrite import Rule, rewrite

MERGES: tuple[Rule, ...] = (share_captures, share, drop_neutral, join_constants)
PRODUCTS: tuple[Rule, ...] = (
    drop_delta, distribute, reassociate, rows_apart, look_up_last, softmaxes, known_inside,
)  # fmt: skip


def simplify(layer: ir.Layer) -> ir.Layer:
    """A layer with the same meaning, inputs, parameters and outputs, that costs less; the one given
    stays as it is. Applies inside recurrences, attends and called layers as well."""
    # first, as a value that is read twice is not taken apart
    merged = rewrite(layer, (*MERGES, sums_of_products))
    return rewrite(merged, (*MERGES, *PRODUCTS))
