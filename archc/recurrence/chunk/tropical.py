"""Layer IR -> layer IR: a running maximum, m[t] = max(shift + m[t-1], value), in chunks.

The scan of `scan.py` over (max, +): sums of shifts stand for products of decays, maxima for sums.
A running minimum and a running logarithm of a sum are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import sympy

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.recurrence.analysis.gauge import SCALE, SHIFT, Weight
from archc.recurrence.analysis.semirings import LOG, LOWEST, MIN
from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.scan import (
    Carried,
    along_rows,
    carried,
    cut,
    diagonal,
    in_last_row,
    starts,
    sums,
)


def running_max(
    frame: Frame,
    state: ir.State,
    shift: int | None,
    value: int,
    initial: int,
) -> Carried:
    """m[t] = max(shift + m[t-1], value); None is a shift of 0.

    -inf means that there is nothing yet, and stays so. The gradient is that of the loop, which
    divides it where two are equal.
    """
    found = _constants(frame, state, shift, value, initial)
    rises = _rises(frame, state, found, shift, value, initial)
    before = frame.fn("add", found[0], rises.before)
    after = frame.fn("add", found[1], rises.after)
    return Carried(before, after, frame.add(ck.Last(frame.stream.name), after, initial))


def running_gauge(
    frame: Frame, state: ir.State, shift: int | None, value: int, initial: int
) -> tuple[Carried, int]:
    """A running maximum that is proved not to matter (see `gauge.py`), and what the last one rises
    by: 0, with the gradient of the loop.

    Every m[t] behind the first may be any number, and neither results nor final states change, if
    those of the last token go with it (`risen`). So these are constants; the initial value is
    given, and the final one is a result: theirs are gradients like any others.
    """
    before, after = _constants(frame, state, shift, value, initial)
    final = _rises(frame, state, (before, after), shift, value, initial).final
    rise = frame.fn("sub", final, frame.add(ck.Detach(), final))
    rise = frame.fn("mul", rise, _any_token(frame, after))
    first = frame.add(ck.AtLast(frame.stream, reverse=True), frame.number(1))
    before = frame.fn("where", frame.fn("ne", first, frame.number(0)), initial, before)
    last = frame.add(ck.Last(frame.stream.name), after, initial)
    return Carried(before, after, frame.fn("add", last, rise)), rise


def _any_token(frame: Frame, like: int) -> int:
    """1 for each sequence of a value along the stream that has a token, else 0: what rises without
    one is the initial value, which is given back as it is."""
    along = ("batch", frame.stream.name)
    axes = tuple(axis for axis in frame.graph[like].type.axes if axis.name in along)
    there = frame.add(ck.Expand(axes), frame.number(1))
    return frame.add(ck.Last(frame.stream.name), there, frame.number(0))


def risen(frame: Frame, final: int, weight: Weight, rise: int) -> int:
    """A final state where the gauge's last value rises, as `weight` says: the same number, and the
    gradient of the rise."""
    if weight.kind == SCALE:
        rise = frame.fn("mul", frame.add(ck.Detach(), final), rise)
    elif weight.kind != SHIFT:
        return final
    return frame.fn("add" if weight.now > 0 else "sub", final, rise)


def _constants(
    frame: Frame, state: ir.State, shift: int | None, value: int, initial: int
) -> tuple[int, int]:
    """The running maximum before and after each token, without a gradient."""
    made = largest(frame, state, shift, value, initial)
    return frame.add(ck.Detach(), made.before), frame.add(ck.Detach(), made.after)


def running_min(
    frame: Frame, state: ir.State, shift: int | None, value: int, initial: int
) -> Carried:
    """m[t] = min(shift + m[t-1], value): what is largest with the other sign."""
    moved = None if shift is None else negative(frame, shift)
    made = running_max(frame, state, moved, negative(frame, value), negative(frame, initial))
    before, after, final = (frame.fn("neg", id) for id in (made.before, made.after, made.final))
    return Carried(before, after, final)


def negative(frame: Frame, id: int) -> int:
    """A value with the other sign; a number stays one, as numbers have no gradient."""
    op = frame.graph[id].op
    return frame.number(-op.value) if isinstance(op, ir.Constant) else frame.fn("neg", id)


def running_log(
    frame: Frame, state: ir.State, shift: int | None, value: int, initial: int
) -> Carried:
    """m[t] = log(exp(shift + m[t-1]) + exp(value)) as M[t] + log(e[t]), with the running maximum M,
    a constant, and e[t] = exp(shift + M[t-1] - M[t]) e[t-1] + exp(value - M[t]): no exponent is
    above 0, and where any is 0, e[t] is at least 1. M is no less than `LOWEST`, so that what has
    seen nothing but -inf is no NaN."""
    lowest = frame.number(LOWEST)
    least = [frame.fn("max", id, lowest) for id in (value, initial)]
    found = largest(frame, state, shift, *least)
    first, *levels = (
        frame.add(ck.Detach(), id) for id in (least[1], found.before, found.after, found.final)
    )
    apart = frame.fn("sub", levels[0], levels[1])
    gate = frame.fn("exp", apart if shift is None else frame.fn("add", shift, apart))
    write = frame.fn("exp", frame.fn("sub", value, levels[1]))
    start = frame.fn("exp", frame.fn("sub", initial, first))
    sums = diagonal(frame, state, gate, write, start)
    scaled = zip(levels, (sums.before, sums.after, sums.final), strict=True)
    return Carried(*(_raised(frame, level, amount) for level, amount in scaled))


def _raised(frame: Frame, level: int, amount: int) -> int:
    """level + log(amount); -inf for 0, through which no gradient goes."""
    there = frame.fn("gt", amount, frame.number(0))
    size = frame.fn("log", frame.fn("where", there, amount, frame.number(1)))
    nothing = frame.add(ir.Constant(-sympy.oo))
    return frame.fn("where", there, frame.fn("add", level, size), nothing)


def largest(frame: Frame, state: ir.State, shift: int | None, value: int, initial: int) -> Carried:
    """The values of the running maximum; their gradient would be that of the scan."""
    a = frame.number(0) if shift is None else cut(frame, shift)
    nothing = frame.add(ir.Constant(-sympy.oo))
    given = {"local": along_rows(frame, a, cut(frame, value), nothing, "max-plus")}
    if shift is not None:
        given["shift"] = sums(frame, a)
    last = {name: in_last_row(frame, id) for name, id in given.items()}
    start = starts(frame, state, initial, last, _step)
    return carried(frame, state, _step(frame, start, given), start, initial)


def _step(frame: Frame, state: int, given: Mapping[str, int]) -> int:
    """max(shift + state, local), of rows or of a whole chunk."""
    moved = frame.total([given.get("shift"), state])
    assert moved is not None
    return frame.fn("max", moved, given["local"])


def differences_first(frame: Frame, log: int, maxima: Sequence[tuple[int, int]]) -> int:
    """g + m[t-1] - m[t] -> g + (m[t-1] - m[t]), for the running `maxima` before and after tokens.

    The gate of a state that is kept divided by exp(m). Most of the time m[t] is g + m[t-1], rounded
    to the precision of m, and the gate makes up for that: the difference of two near numbers is
    exact, where g + m[t-1] would be rounded again, in the same direction for thousands of tokens.
    """
    whole = {id for pair in maxima for id in pair}
    addends = _addends(frame, log, 1, whole)
    near: list[int] = []
    for before, after in maxima:
        if (1, before) in addends and (-1, after) in addends:
            addends.remove((1, before))
            addends.remove((-1, after))
            near.append(frame.fn("sub", before, after))
    if not near:
        return log
    total = frame.total(near)
    assert total is not None, "there is a difference"
    for sign, id in addends:
        total = frame.fn("add" if sign > 0 else "sub", total, id)
    return total


def _addends(frame: Frame, id: int, sign: int, whole: Set[int]) -> list[tuple[int, int]]:
    """The addends of a value: signs and nodes; those of `whole` are not taken apart."""
    node = frame.graph[id]
    fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
    if fn == "neg":
        return _addends(frame, node.operands[0], -sign, whole)
    if id in whole or fn not in ("add", "sub"):
        return [(sign, id)]
    first, second = node.operands
    other = sign if fn == "add" else -sign
    return [*_addends(frame, first, sign, whole), *_addends(frame, second, other, whole)]


# --- gradients -----------------------------------------------------------------------------------
# The values before and after each token, `found`, are constants; what is added to them is 0 and has
# the gradient.


def _rises(
    frame: Frame,
    state: ir.State,
    found: tuple[int, int],
    shift: int | None,
    value: int,
    initial: int,
) -> Carried:
    """0, with the gradient of m[t] = max(shift + m[t-1], value): that of the larger one, half of
    each where they are equal."""
    moved = frame.total([shift, found[0]])
    assert moved is not None
    wins = (frame.fn("real", frame.fn(fn, moved, value)) for fn in ("gt", "ge"))
    share = frame.fn("div", frame.fn("add", *wins), frame.number(2))
    rest = frame.fn("sub", frame.number(1), share)
    write = frame.fn("mul", rest, finite_rise(frame, value))
    if shift is not None:
        write = frame.fn("add", frame.fn("mul", share, finite_rise(frame, shift)), write)
    return diagonal(frame, state, share, write, finite_rise(frame, initial))


def finite_rise(frame: Frame, id: int) -> int:
    """0, with the gradient of a value; one of inf or -inf has none."""
    if isinstance(frame.graph[id].op, ir.Constant):
        return frame.number(0)
    there = frame.fn("lt", frame.fn("abs", id), frame.add(ir.Constant(sympy.oo)))
    rise = frame.fn("sub", id, frame.add(ck.Detach(), id))
    return frame.fn("where", there, rise, frame.number(0))


RUNNING = {MIN: running_min, LOG: running_log}
"""What goes over other semirings."""
