"""Layer IR -> layer IR: states that a matrix mixes, along an axis or with one another, in chunks.

Products of the matrices take in what a chunk began with. A matrix that no token changes has the
same powers in every chunk: they are computed once. Two states that are turned, as the parts of a
complex number are, need no matrices: in the frame that turns with them each is only scaled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.scan import (
    Carried,
    along_rows,
    carried,
    cut,
    in_last_row,
    in_rows,
    starts,
    starts_together,
    sums,
)

Turn = tuple[int, int]
"""The cosine and the sine of an angle."""


def dense(
    frame: Frame,
    state: ir.State,
    matrix: int,
    row: str,
    column: Axis,
    decay: int | None,
    write: int | None,
    initial: int,
) -> Carried:
    """S[t] = decay * S[t-1] + matrix @ S[t-1] + write along the state's axis `row`.

    The matrix [..., row, column] sums over `column`, which the state has as `row`. None is a decay
    of 1, a write of 0.
    """
    axis = next(a for a in state.axes if a.name == row)
    turned = {row: column, column.name: axis}  # Scan's state has the axis that is summed over
    a = cut(frame, frame.renamed(_whole(frame, matrix, axis, column, decay), turned))
    begin = fresh("from", [axis, column, *state.axes, *frame.graph[a].type.axes], axis.size)
    sides = (column.name, row)
    identity = frame.add(ir.Delta(axis, begin))
    zero, nothing = frame.number(0), _wide(frame, frame.number(0), axis)
    given = {"powers": along_rows(frame, a, nothing, identity, matrix=sides)}
    if write is not None:
        b = _wide(frame, cut(frame, write), axis)
        given["local"] = along_rows(frame, a, b, zero, matrix=sides)

    def step(inner: Frame, old: int, values: Mapping[str, int]) -> int:
        moved = inner.product(values["powers"], inner.renamed(old, {row: begin}), (begin.name,))
        total = inner.total([moved, values.get("local")])
        assert total is not None
        return total

    last = {name: in_last_row(frame, id) for name, id in given.items()}
    start = starts(frame, state, initial, last, step)
    return carried(frame, state, step(frame, start, given), start, initial)


def _wide(frame: Frame, id: int, axis: Axis) -> int:
    """A value with an axis: the same along it if it is the same everywhere."""
    return id if frame.has(id, (axis.name,)) else frame.add(ck.Expand((axis,)), id)


def _whole(frame: Frame, matrix: int, axis: Axis, column: Axis, decay: int | None) -> int:
    """The matrix with the decay on its diagonal."""
    if decay is not None and frame.graph[decay].op == ir.Constant(sympy.Integer(0)):
        return matrix
    identity = frame.add(ir.Delta(axis, column))
    scaled = identity if decay is None else frame.fn("mul", decay, identity)
    return frame.fn("add", matrix, scaled)


def coupled(
    frame: Frame,
    states: Sequence[ir.State],
    blocks: Sequence[Sequence[int | None]],
    writes: Sequence[int | None],
    initials: Sequence[int],
) -> tuple[Carried, ...]:
    """S_i[t] = the sum over j of blocks[i][j] * S_j[t-1], + writes[i], elementwise; None is 0.

    The states, which all have the same axes, are one state with a small matrix for each element.
    """
    first = states[0]
    if any({*state.axes} != {*first.axes} for state in states):
        raise ValueError("states that are coupled element by element have the same axes")
    used = [a for id in _present(*blocks, writes, initials) for a in frame.graph[id].type.axes]
    size = sympy.Integer(len(states))
    part = fresh("part", [*first.axes, *used], size)
    column = fresh("part", [part, *first.axes, *used], size)
    name = " ".join(state.name for state in states)
    whole = replace(first, name=name, axes=(first.axes[0], part, *first.axes[1:]))
    rows = [gathered(frame, column, entries) for entries in blocks]
    matrix = gathered(frame, part, rows)
    assert matrix is not None, "states that nothing couples"
    write, initial = (gathered(frame, part, values) for values in (writes, initials))
    assert initial is not None
    zero = frame.number(0)
    found = dense(frame, whole, matrix, part.name, column, zero, write, initial)

    def one(index: int) -> Carried:
        select = ck.Select(part.name, index)
        ids = (found.before, found.after, found.final)
        return Carried(*(frame.add(select, id) for id in ids))

    return tuple(one(index) for index in range(len(states)))


def spun(
    frame: Frame,
    states: Sequence[ir.State],
    size: int | None,
    angle: int,
    writes: Sequence[int | None],
    initials: Sequence[int],
) -> tuple[Carried, ...]:
    """(S_1, S_2)[t] = size * R(angle) (S_1, S_2)[t-1] + writes, elementwise; None is a size of 1, a
    write of 0.

    With the sums of the angles from the start of a chunk, what is written is turned back, and each
    state scanned by itself; the states of the rows are turned as far as they are.
    """
    row, zero = frame.row.name, frame.number(0)
    through = in_rows(frame, cut(frame, angle))
    turn = _turn_by(frame, frame.add(ck.Sums(row), through))
    a = None if size is None else cut(frame, size, fill=1)
    kept = None if a is None else along_rows(frame, a, zero, frame.number(1))
    b = [None if write is None else cut(frame, write) for write in writes]
    local = [
        id if id is None else sums(frame, id) if a is None else along_rows(frame, a, id, zero)
        for id in rotated(frame, b, turn, back=True)
    ]
    given = {"cos": turn[0], "sin": turn[1], "kept": kept, "local.0": local[0], "local.1": local[1]}
    last = {name: in_last_row(frame, id) for name, id in given.items() if id is not None}
    begin = starts_together(frame, states, initials, last, _spin)
    given |= {key: in_rows(frame, id) for key, id in given.items() if id is not None}
    rows = _spin(frame, begin, given)
    filled = all(frame.has(id, (frame.stream.name,)) for id in _present([size, angle, *writes]))
    return tuple(
        carried(frame, *each, filled) for each in zip(states, rows, begin, initials, strict=True)
    )


def _turn_by(frame: Frame, angle: int) -> Turn:
    return frame.fn("cos", angle), frame.fn("sin", angle)


def _spin(frame: Frame, before: Sequence[int], given: Mapping[str, int | None]) -> list[int]:
    """R (kept * before + local), of rows or of a whole chunk."""
    inside = [
        frame.total([frame.times(given.get("kept"), old), given.get(f"local.{p}")])
        for p, old in enumerate(before)
    ]
    cos, sin = given["cos"], given["sin"]
    assert cos is not None and sin is not None, "there is a turn"
    found = rotated(frame, inside, (cos, sin))
    return [id for id in found if id is not None]


def rotated(
    frame: Frame, pair: Sequence[int | None], turn: Turn, back: bool = False
) -> list[int | None]:
    """Two values turned, the first into the second; `back`: the other way."""
    (cos, sin), (one, other) = turn, pair
    less = frame.fn("neg", sin)

    def times(id: int | None, by: int) -> int | None:
        return None if id is None else frame.fn("mul", id, by)

    across = [times(other, sin if back else less), times(one, less if back else sin)]
    straight = [times(one, cos), times(other, cos)]
    return [frame.total(both) for both in zip(straight, across, strict=True)]


def _present(*rows: Sequence[int | None]) -> list[int]:
    return [id for row in rows for id in row if id is not None]


def gathered(frame: Frame, axis: Axis, ids: Sequence[int | None]) -> int | None:
    """Values one after the other along a new axis, 0 where there is none; they may differ in axes,
    so that Stack would not take them."""
    places = [None if id is None else frame.add(ck.Place(axis, i), id) for i, id in enumerate(ids)]
    return frame.total(places)


def fresh(base: str, axes: Collection[Axis], size: sympy.Expr) -> Axis:
    """A dim with a name that none of the axes has."""
    return Axis(marked(base, {axis.name for axis in axes}), size)
