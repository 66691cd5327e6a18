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

    -inf means that there is nothing yet, and stays so. `gauge`: the maximum is proved not to matter
    (see `gauge.py`), so that no gradient passes it where it does not have to.
    """
    a = frame.number(0) if shift is None else cut(frame, shift)
    nothing = frame.add(ir.Constant(-sympy.oo))
    given = {"local": along_rows(frame, a, cut(frame, value), nothing, "max-plus")}
    if shift is not None:
        given["shift"] = sums(frame, a)
    last = {name: in_last_row(frame, id) for name, id in given.items()}
    start = starts(frame, state, initial, last, _step)
    found = carried(frame, state, _step(frame, start, given), start, initial)
    return _as_gauge(frame, found, initial) if gauge else found


def _step(frame: Frame, state: int, given: Mapping[str, int]) -> int:
    """max(shift + state, local), of rows or of a whole chunk."""
    moved = frame.total([given.get("shift"), state])
    assert moved is not None
    return frame.fn("max", moved, given["local"])


def _as_gauge(frame: Frame, found: Carried, initial: int) -> Carried:
    """The same values; constants but for the first and the last.

    Every m[t] between them may be any number, and neither results nor final states change. The
    initial value is given, and the final one is a result: theirs are gradients like any others.
    """
    first, last = (_only_at(frame, reverse) for reverse in (True, False))
    before, after = (frame.add(ck.Detach(), id) for id in (found.before, found.after))
    before = frame.fn("where", first, initial, before)
    return Carried(before, frame.fn("where", last, found.after, after), found.final)


def _only_at(frame: Frame, first: bool) -> int:
    """True at the first or the last token."""
    one = frame.add(ck.AtLast(frame.stream, first), frame.number(1))
    return frame.fn("ne", one, frame.number(0))
