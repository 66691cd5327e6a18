"""The cost of a value: arithmetic and numbers written, at sample sizes.

Sizes are not known when a layer is simplified, so a cost is a tuple with one entry for each sample
point, and one way is taken for cheaper than another only if it is nowhere dearer. That leaves what
depends on the sizes (whether two weights are multiplied first, say) as the spec has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache, reduce
from operator import add, gt

import sympy

from archc.dims import Axis

Cost = tuple[float, ...]

POINTS: tuple[tuple[float, float], ...] = tuple(
    (size, length) for size in (64.0, 16.0, 1024.0) for length in (64.0, 1.0, 4096.0)
)
"""Points (size, length) at which costs are compared: the value of every named size and of every
stream's length; batch is 1. The best of several ways is chosen at the first point."""

FREE: Cost = (0.0,) * len(POINTS)

RENAMING: Cost = (1.0,) * len(POINTS)
"""A step that only renames or reorders axes: nothing to compute, yet better not there."""


def elements(axes: Iterable[Axis]) -> Cost:
    """Number of elements of a tensor with these axes."""
    lengths = [_length(axis.kind, axis.size) for axis in axes]
    return tuple(map(math.prod, zip(*lengths, strict=True))) if lengths else (1.0,) * len(POINTS)


def elementwise(axes: Iterable[Axis]) -> Cost:
    """One operation an element, and writing it."""
    written = elements(axes)
    return total(written, written)


def contraction(joined: Iterable[Axis], kept: Iterable[Axis]) -> Cost:
    """A product over the axes joined (and a sum if some are not kept), and writing what is kept."""
    return summing(elements(joined), elements(kept))


def summing(work: Cost, written: Cost) -> Cost:
    """So many products, summed where fewer are written."""
    return total(work, work if any(map(gt, work, written)) else FREE, written)


def total(*costs: Cost) -> Cost:
    """Costs added up, point by point."""
    return reduce(_add, costs) if costs else ()


def _add(one: Cost, other: Cost) -> Cost:
    return tuple(map(add, one, other))


def cheaper(new: Cost, old: Cost) -> bool:
    """Whether `new` is dearer at no point and cheaper at some."""
    pairs = tuple(zip(new, old, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@lru_cache(maxsize=4096)
def _length(kind: str, size: sympy.Expr) -> Cost:
    """Length of an axis at every point."""
    if kind == "batch":
        return (1.0,) * len(POINTS)
    if kind == "stream":
        return tuple(length for _, length in POINTS)
    at = [size.subs(dict.fromkeys(size.free_symbols, sympy.Integer(int(n)))) for n, _ in POINTS]
    return tuple(max(1.0, float(value)) if value.is_finite else 1.0 for value in at)
