"""Layer IR -> layer IR: a running maximum, m[t] = max(shift + m[t-1], value), in chunks.

The scan of `scan.py` over (max, +): sums of shifts stand for products of decays, maxima for sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.recurrence.frame import Frame
from archc.recurrence.scan import Carried, along_rows, carried, cut, in_last_row, starts, sums


def running_max(
    frame: Frame,
    state: ir.State,
    shift: int | None,
    value: int,
    initial: int,
    gauge: bool = False,
) -> Carried:
    """m[t] = max(shift + m[t-1], value); None is a shift of 0.

    -inf means that there is nothing yet, and stays so. With `gauge` the maximum is proved not to
    matter (see `gauge.py`): no gradient passes it, but the initial value still gets its own.
    """
    a = frame.number(0) if shift is None else cut(frame, shift)
    nothing = frame.add(ir.Constant(-sympy.oo))
    given = {"local": along_rows(frame, a, cut(frame, value), nothing, "max-plus")}
    if shift is not None:
        given["shift"] = sums(frame, a)

    def step(inner: Frame, old: int, values: Mapping[str, int]) -> int:
        moved = inner.total([values.get("shift"), old])
        assert moved is not None
        found = inner.fn("max", moved, values["local"])
        return inner.add(ck.Detach(), found) if gauge else found

    last = {name: in_last_row(frame, id) for name, id in given.items()}
    start = starts(frame, state, initial, last, step)
    return carried(frame, state, step(frame, start, given), start, initial)
