"""Layer IR -> layer IR: a state that is scaled and added to, element by element, in chunks.

S[t] = decay * S[t-1] + write. Within a chunk all rows start from 0; a product of decays takes in
what the chunk began with, and a Recurrence along the chunks finds out what that is. Decays stay
factors: one that is 0, or negative, is as good as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.typing import layer_graph
from archc.ir.value_names import state_at_start
from archc.recurrence.chunk.frame import Frame, input_of

Step = Callable[[Frame, int, Mapping[str, int]], int]
"""In the body of a Recurrence along chunks: the state before a chunk, and values of the chunk by
name -> the state after it."""


@dataclass(frozen=True)
class Carried:
    """A state along the stream: before and after every token [batch, t, ...], and after the last
    one [batch, ...]. Pruning drops those that nothing reads."""

    before: int
    after: int
    final: int


def diagonal(
    frame: Frame,
    state: ir.State,
    decay: int | None,
    write: int | None,
    initial: int,
    start: int | None = None,
) -> Carried:
    """S[t] = decay * S[t-1] + write, elementwise; None is a decay of 1, a write of 0. `start`: the
    state before every chunk, which a Recurrence has found (None: one is made for it)."""
    a = None if decay is None else cut(frame, decay, fill=1)
    b = None if write is None else cut(frame, write)
    kept = None if a is None else along_rows(frame, a, frame.number(0), frame.number(1))
    if b is None or a is None:
        local = None if b is None else sums(frame, b)
    else:
        local = along_rows(frame, a, b, frame.number(0))
    given = {"kept": kept, "local": local}
    if start is None:
        last = {name: in_last_row(frame, id) for name, id in given.items() if id is not None}
        start = starts(frame, state, initial, last, _step)
    filled = all(frame.has(id, (frame.stream.name,)) for id in (decay, write) if id is not None)
    return carried(frame, state, _step(frame, start, given), start, initial, filled)


def _step(frame: Frame, state: int, given: Mapping[str, int | None]) -> int:
    """kept * state + local, of rows or of a whole chunk."""
    scaled = frame.times(given.get("kept"), state)
    total = frame.total([scaled, given.get("local")])
    assert total is not None
    return total


# --- what every scan in chunks is made of --------------------------------------------------------


def cut(frame: Frame, id: int, fill: int = 0) -> int:
    """A value along tokens in chunks; one that no token changes stays as it is."""
    return frame.cut(id, fill) if frame.has(id, (frame.stream.name,)) else id


def in_rows(frame: Frame, id: int) -> int:
    """A value of a chunk, the same in each of its rows if it is the same in all."""
    return id if frame.has(id, (frame.row.name,)) else frame.add(ck.Expand((frame.row,)), id)


def in_last_row(frame: Frame, id: int) -> int:
    """The value in the last row."""
    return frame.last(in_rows(frame, id))


def sums(frame: Frame, id: int) -> int:
    """Sums of a value over the rows up to each."""
    return frame.add(ck.Sums(frame.row.name), in_rows(frame, id))


def along_rows(
    frame: Frame,
    a: int,
    b: int,
    first: int,
    kind: str = "linear",
    matrix: tuple[str, str] | None = None,
) -> int:
    """A Scan along the rows of each chunk; if neither a nor b has rows, along those of one."""
    wide = b if frame.has(a, (frame.row.name,)) else in_rows(frame, b)
    return frame.add(ck.Scan(frame.row.name, kind, matrix), a, wide, first)


def starts(
    frame: Frame, state: ir.State, initial: int, given: Mapping[str, int], step: Step
) -> int:
    """The state before every chunk [batch, n, ...]: `step` makes it from the one before."""

    def steps(inner: Frame, old: Sequence[int], values: Mapping[str, int]) -> list[int]:
        return [step(inner, old[0], values)]

    return starts_together(frame, [state], [initial], given, steps)[0]


def starts_together(
    frame: Frame,
    states: Sequence[ir.State],
    initials: Sequence[int],
    given: Mapping[str, int],
    step: Callable[[Frame, Sequence[int], Mapping[str, int]], Sequence[int]],
) -> list[int]:
    """The same of several states, which `step` makes from all of those before."""
    inner = replace(frame, graph=layer_graph())
    old = [input_of(inner.graph, state.before, Type(state.axes)) for state in states]
    values = {}
    for key, id in given.items():
        type = frame.graph[id].type
        rest = tuple(axis for axis in type.axes if axis.name != frame.chunk.name)
        values[key] = input_of(inner.graph, key, Type(rest, type.dtype))
    after = step(inner, old, values)
    for state, before, id in zip(states, old, after, strict=True):
        inner.graph.outputs |= {state.name: id, state_at_start(state.name): before}
    heads = tuple(axis.name for axis in states[0].axes if axis.name in frame.outer)
    op = ir.Recurrence(frame.chunk, tuple(given), tuple(states), inner.graph, heads)
    made = frame.add(op, *given.values(), *initials)
    return [frame.add(ir.Result(state_at_start(state.name)), made) for state in states]


def carried(
    frame: Frame, state: ir.State, rows: int, start: int, initial: int, filled: bool = False
) -> Carried:
    """The state after every row, and before every chunk -> before and after tokens, and at last.

    `filled`: a chunk is filled up with tokens that change nothing, so that the state after the last
    chunk is the one after the last token, and no state of a token need be kept for that.
    """
    rows = in_rows(frame, rows)
    first = frame.fn("eq", frame.add(ir.Position(frame.row)), frame.number(0))
    before = frame.fn("where", first, start, frame.add(ck.Move(frame.row.name, 1), rows))
    after = _ordered(frame, state, frame.joined(rows))
    if filled:
        ended = frame.add(ir.Result(state.name), frame.graph[start].operands[0])
        final = frame.add(ck.Last(frame.chunk.name), ended, initial)
    else:
        final = frame.add(ck.Last(frame.stream.name), after, initial)
    return Carried(
        _ordered(frame, state, frame.joined(before)), after, _ordered(frame, state, final)
    )


def _ordered(frame: Frame, state: ir.State, id: int) -> int:
    """A state with its axes in the order of its declaration, after batch and stream."""
    names = [axis.name for axis in state.axes]
    axes = sorted(
        frame.graph[id].type.axes,
        key=lambda axis: (axis.kind == "dim", names.index(axis.name) if axis.kind == "dim" else 0),
    )
    if [axis.name for axis in axes] == list(frame.names(id)):
        return id
    out = tuple((axis.name, axis) for axis in axes)
    return frame.add(ir.Contract((frame.names(id),), out), id)
