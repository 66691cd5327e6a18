"""The chunked form of matrix states that scale one another by numbers, corrected and read together.

Within a chunk, let P[i] be the product of the matrices of numbers from its start to row i, and
F_m[i, j] what of the numbers by which term m writes at row j is left at row i, both with an entry
for each state: scans along the rows, of one state after the other, or of all where they scale one
another in a circle. Then, with Z the states before the chunk,

    Y_m = c_m + sum over p of w_mp (P[i-1] Z)_p
              + sum over p and m' of (w_mp . x_m'[j]) F_m'p[i-1, j] Y_m'
    O   = q (P[i] Z)_p + sum over m of (q . x_m[j]) F_mp[i, j] Y_m
    Z'  = P[last] Z + sum over m of (x_m F_m[last])^T Y_m

which is a triangular system, solved for all chunks at once, as that of a single state. Where a
token has several rows, all of them read the states before it, and write at its last row; there
the numbers are its own, and at its other rows the states are as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.typing import layer_graph
from archc.ir.value_names import state_at_start
from archc.recurrence.chunk.coupled import fresh, gathered
from archc.recurrence.chunk.frame import Frame, input_of
from archc.recurrence.chunk.matrix import MatrixForm, Slot, longer
from archc.recurrence.chunk.scan import along_rows, in_rows

Numbers = Sequence[int | None]
"""A number along tokens for each state; None is 0."""


@dataclass(frozen=True)
class LinkedSlot(Slot):
    """A term in chunks: the covectors with which it reads each state before the token, and the
    numbers by which it writes to each; None is 0."""

    reads: tuple[int | None, ...] = ()
    writes: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class TokenLink:
    """A term as values along tokens: x, its free row, a covector and a number of each state."""

    x: int
    row: int | None
    reads: tuple[int | None, ...]
    writes: tuple[int | None, ...]


class LinkedForm(MatrixForm):
    """One group of linked states in chunks; `blocks[p][q]` scales state q into state p."""

    def __init__(
        self,
        frame: Frame,
        keys: Sequence[Axis],
        states: Sequence[ir.State],
        blocks: Sequence[Numbers],
        terms: Sequence[TokenLink],
        initial: Sequence[int],
        rank: Axis | None = None,
    ) -> None:
        self._begin(frame, keys, states, initial, rank)
        self.order = in_turn(blocks)
        self.blocks = [[self._cut(id, int(p == q)) for q, id in enumerate(row)]
                       for p, row in enumerate(blocks)]  # fmt: skip
        self.slots = [self._linked_slot(term) for term in terms]
        self.start = self._from_start()
        self.left = [self._left(slot) for slot in self.slots]
        self.grams = {}
        self._carry()

    def _begin(
        self,
        frame: Frame,
        keys: Sequence[Axis],
        states: Sequence[ir.State],
        initial: Sequence[int],
        rank: Axis | None = None,
    ) -> None:
        """The fields of matrices with one step a token, which share no gate; `rank` is the axis of
        what a token has a row for each entry of."""
        self.frame, self.keys = frame if rank is None else longer(frame, rank.size), tuple(keys)
        self.states, self.initial, self.rank = tuple(states), tuple(initial), rank
        self.key_names = tuple(axis.name for axis in keys)
        self.steps_axis = None if rank is None else Axis("step", rank.size)
        self.known, self.key_gate, self.value_gate = {}, None, None
        self.signed, self.below, self.values_below = set(), None, None

    def _cut(self, id: int | None, fill: int) -> int | None:
        """A number in chunks; tokens that fill the last one leave the states as they are."""
        if id is None:
            return self._cut(self.frame.number(0), fill) if fill else None
        if self.rank is None:
            return self.frame.cut(id, fill)
        frame, row = self.frame, self.frame.add(ir.Position(self.frame.row))
        last = frame.fn("eq", row, self._last_row(row))
        return frame.fn("where", last, self._of_rows(id, fill), frame.number(fill))

    def _last_row(self, row: int) -> int:
        """The last row of the token that a row is of."""
        frame = self.frame
        if self.rank is None:
            return row
        count = frame.number(self.rank.size)
        token = frame.fn("mul", frame.fn("floordiv", row, count), count)
        return frame.fn("add", token, frame.number(self.rank.size - 1))

    def _of_rows(self, id: int, fill: int = 0) -> int:
        """A value along tokens in chunks: the same at all rows of a token, or one for each."""
        if self.rank is None:
            return self.frame.cut(id, fill)
        full = self.frame.full(id, (self.rank,))
        return self.frame.cut(full, fill, self.rank.name)

    def _at_last(self, id: int) -> int:
        """A value along tokens in chunks: at the last row of each token."""
        if self.steps_axis is None:
            return self.frame.cut(id)
        placed = self.frame.add(ck.Place(self.steps_axis, -1), id)
        return self.frame.cut(placed, steps=self.steps_axis.name)

    def _linked_slot(self, term: TokenLink) -> LinkedSlot:
        frame = self.frame
        reads = tuple(None if id is None else self._of_rows(id) for id in term.reads)
        writes = tuple(None if id is None else self._of_rows(id) for id in term.writes)
        row = None if term.row is None else self._of_rows(term.row)
        w = next((id for id in reads if id is not None), None)
        x, rank = frame.full(term.x, self.keys), self.rank
        ranked = rank is not None and frame.has(x, (rank.name,))
        x = self._of_rows(x) if ranked else self._at_last(x)
        return LinkedSlot(x, (row,), w, False, reads, writes)

    # --- numbers between rows -------------------------------------------------------------------

    def _scanned(self, given: Callable[[int], tuple[int | None, int]]) -> list[int | None]:
        """A vector with an entry for each state, scanned along the rows: `given` says what is added
        to an entry there, and its value before the chunk."""
        if self.order is None:
            return self._scanned_together(given)
        frame, made = self.frame, list[int | None]([None] * len(self.states))
        firsts = [given(p)[1] for p in range(len(self.states))]
        for p in self.order:
            own, (added, first) = self.blocks[p][p], given(p)
            others = [
                frame.times(self.blocks[p][q], self._before(made[q], firsts[q]))
                for q in self.order
                if q != p and self.blocks[p][q] is not None and made[q] is not None
            ]
            total = frame.total([added, *others])
            if total is None and first == 0:
                continue
            assert own is not None, "a diagonal is cut, with what fills a chunk"
            local = frame.number(0) if total is None else total
            made[p] = along_rows(frame, own, frame.with_heads(local, own), frame.number(first))
        return made

    def _scanned_together(self, given: Callable[[int], tuple[int | None, int]]) -> list[int | None]:
        """The same where numbers go in a circle: one scan with their matrix."""
        frame, count = self.frame, len(self.states)
        held = [a for row in self.blocks for id in row if id for a in frame.graph[id].type.axes]
        part = fresh("part", held, sympy.Integer(count))
        out = fresh("part", [*held, part], sympy.Integer(count))
        matrix = gathered(frame, out, [gathered(frame, part, row) for row in self.blocks])
        added = gathered(frame, part, [given(p)[0] for p in range(count)])
        first = gathered(frame, part, [frame.number(given(p)[1]) for p in range(count)])
        assert matrix is not None and first is not None, "there are states"
        local = frame.full(frame.real(frame.number(0)), (part,)) if added is None else added
        local = frame.with_heads(local, matrix)
        found = along_rows(frame, matrix, local, first, matrix=(out.name, part.name))
        return [frame.add(ck.Select(part.name, p), found) for p in range(count)]

    def _before(self, id: int | None, first: int = 0) -> int | None:
        """A number of the row before each, `first` at the beginning."""
        if id is None:
            return None
        frame = self.frame
        moved = frame.add(ck.Move(frame.row.name, 1), in_rows(frame, id))
        if first == 0:
            return moved
        start = frame.fn("eq", frame.add(ir.Position(frame.row)), frame.number(0))
        return frame.fn("where", start, frame.number(first), moved)

    def _from_start(self) -> list[list[int | None]]:
        """P[p][q]: how much of state q before the chunk is in state p after each row."""
        count = range(len(self.states))
        columns = [self._scanned(lambda p, q=q: (None, int(p == q))) for q in count]
        return [[columns[q][p] for q in count] for p in count]

    def _left(self, slot: LinkedSlot) -> list[int | None]:
        """F[p][i, j]: how much of what row j writes is in state p after row i."""
        frame = self.frame
        i, j = (frame.add(ir.Position(axis)) for axis in (frame.row, frame.col))
        same, nothing = frame.fn("eq", i, self._last_row(j)), frame.number(0)

        def given(p: int) -> tuple[int | None, int]:
            number = slot.writes[p]
            if number is None:
                return None, 0
            there = frame.renamed(number, {frame.row.name: frame.col})
            return frame.fn("where", same, there, nothing), 0

        return self._scanned(given)

    def _left_of(self, slot: Slot) -> list[int | None]:
        """The shares of the numbers by which a term writes that are left at later rows."""
        return next(left for each, left in zip(self.slots, self.left, strict=True) if each == slot)

    def _until(self, x: int, number: int | None) -> int | None:
        """Values of rows, times what is left of them after the chunk."""
        if number is None:
            return None
        last = self.frame.renamed(self.frame.last(number), {self.frame.col.name: self.frame.row})
        return self.frame.fn("mul", x, last)

    # --- the triangular system, and the carried states --------------------------------------------

    def _between(self, covector: int, slot: Slot, number: int | None) -> int | None:
        """The numbers that rows read with a covector from the rows that a term wrote, times
        `number`, the share of them that is left."""
        if number is None:
            return None
        frame = self.frame
        written = frame.renamed(slot.x, {frame.row.name: frame.col})
        return frame.fn("mul", frame.product(covector, written, self.key_names), number)

    def _read_by(self, reader: Slot, writer: Slot) -> int:
        assert isinstance(reader, LinkedSlot)
        left = self._left_of(writer)
        parts = [
            self._between(covector, writer, self._before(left[p]))
            for p, covector in enumerate(reader.reads)
            if covector is not None
        ]
        return self.frame.total(parts) or self._nothing()

    def _nothing(self) -> int:
        """0 for each pair of rows."""
        frame = self.frame
        axes = (frame.row, frame.col)
        return frame.full(frame.real(frame.number(0)), axes)

    def _carry(self) -> None:
        count = range(len(self.states))
        unknown, inverse = self._system()
        wanted = [[self._reads_start(slot, q) for slot in unknown] for q in count]
        captured: dict[str, int | None] = {}
        for u, slot in enumerate(unknown):
            for q in count:
                if any(id is not None for id in wanted[q]):
                    captured[f"W{u}.{q}"] = self._solved(inverse[u], wanted[q])
            for p in count:
                captured[f"X{u}.{p}"] = self._ended(slot, p)
            captured[f"U{u}.0"] = self._free(unknown, inverse[u], 0)
        for p in count:
            captured[f"write.{p}"] = self._written_to(p)
            for q in count:
                captured[f"kept {p}.{q}"] = self._kept(p, q)
        self._linked_recurrence(
            unknown, {name: id for name, id in captured.items() if id is not None}
        )

    def _ended(self, slot: Slot, p: int) -> int | None:
        """The rows written to state p, as much of them as is left after the chunk."""
        return self._until(slot.x, self._left_of(slot)[p])

    def _kept(self, p: int, q: int) -> int | None:
        """How much of state q before the chunk is in state p after it."""
        number = self.start[p][q]
        return None if number is None else self.frame.last(number)

    def _reads_start(self, slot: Slot, q: int) -> int | None:
        """The covector with which a term reads state q as it was before the chunk."""
        assert isinstance(slot, LinkedSlot)
        parts = [
            self.frame.times(covector, self._before(self.start[p][q], int(p == q)))
            for p, covector in enumerate(slot.reads)
            if covector is not None and self.start[p][q] is not None
        ]
        return self.frame.total(parts)

    def _written_to(self, p: int) -> int | None:
        """The writes into state p, as they are after the chunk, of terms that read nothing."""
        parts = []
        for slot in self.slots:
            x, row = self._ended(slot, p), slot.rows[0]
            if slot.w is None and x is not None and row is not None:
                parts.append(self.frame.product(x, row, (self.frame.row.name,)))
        return self.frame.total(parts)

    def _linked_recurrence(self, unknown: Sequence[Slot], captured: Mapping[str, int]) -> None:
        """Add the Recurrence along the chunks, and note its results."""
        frame = self.frame
        body = replace(frame, graph=layer_graph())
        values = {}
        for name, id in captured.items():
            type = frame.graph[id].type
            axes = tuple(axis for axis in type.axes if axis.name != frame.chunk.name)
            values[name] = input_of(body.graph, name, Type(axes, type.dtype))
        before = [input_of(body.graph, s.before, Type(s.axes)) for s in self.states]
        rows = [self._rows(body, values, before, u) for u in range(len(unknown))]
        for u, row in enumerate(rows):
            body.graph.outputs[f"Y{u}.0"] = row
        for p, state in enumerate(self.states):
            parts = [
                body.times(before[q], values[f"kept {p}.{q}"])
                for q in range(len(self.states))
                if f"kept {p}.{q}" in values
            ]
            parts.append(values.get(f"write.{p}"))
            for u, row in enumerate(rows):
                if f"X{u}.{p}" in values:
                    parts.append(body.product(values[f"X{u}.{p}"], row, (frame.row.name,)))
            after = body.total(parts)
            assert after is not None, "a diagonal is cut, so that a state is kept"
            body.graph.outputs[state.name] = after
            body.graph.outputs[state_at_start(state.name)] = before[p]
        op = ir.Recurrence(frame.chunk, tuple(captured), self.states, body.graph, frame.outer)
        self._note_results(unknown, frame.graph.add(op, *captured.values(), *self.initial))

    def _rows(self, body: Frame, values: Mapping[str, int], before: Sequence[int], u: int) -> int:
        """The writes of a term, of every row."""
        parts = [values.get(f"U{u}.0")]
        for q, old in enumerate(before):
            if f"W{u}.{q}" in values:
                parts.append(body.product(values[f"W{u}.{q}"], old, self.key_names))
        found = body.total(parts)
        assert found is not None, "a term that reads writes"
        return found

    def _note_results(self, unknown: Sequence[Slot], recurrence: int) -> None:
        frame = self.frame
        result = {
            name: frame.add(ir.Result(name), recurrence)
            for name in frame.graph[recurrence].op.body.outputs
        }
        self.begin = [result[state_at_start(state.name)] for state in self.states]
        self.final = [
            frame.add(ck.Last(frame.chunk.name), result[state.name], first)
            for state, first in zip(self.states, self.initial, strict=True)
        ]
        self.rows = [
            list(slot.rows) if slot.w is None else [result[f"Y{unknown.index(slot)}.0"]]
            for slot in self.slots
        ]

    # --- reads ----------------------------------------------------------------------------------

    def of_states(self, queries: Numbers, written: bool) -> int:
        """The sum of values along tokens that are read of the states, with a covector of each."""
        parts = [
            self._of_state(p, query, written)
            for p, query in enumerate(queries)
            if query is not None
        ]
        return self._sum(parts)

    def _of_state(self, p: int, query: int, written: bool) -> int:
        """The values along tokens that are read of state p with a covector: after the token if
        `written`, else before it."""
        frame, query = self.frame, self._at_last(query)
        parts = list[int | None]()
        for q, begin in enumerate(self.begin):
            number = self.start[p][q]
            if number is None:
                continue
            number = number if written else self._before(number, int(p == q))
            parts.append(frame.product(frame.times(query, number) or query, begin, self.key_names))
        for slot, left, rows in zip(self.slots, self.left, self.rows, strict=True):
            number = left[p] if written else self._before(left[p])
            weights = self._between(query, slot, number)
            if weights is not None and rows[0] is not None:
                parts.append(self._times(weights, rows[0]))
        found = frame.joined(self._sum(parts), self.steps_axis)
        if self.steps_axis is None:
            return found
        return frame.add(ck.Select(self.steps_axis.name, -1), found)


def in_turn(blocks: Sequence[Numbers]) -> list[int] | None:
    """The states, each after those that are scaled into it; None where they go in a circle."""
    order, left = list[int](), list(range(len(blocks)))
    while left:
        ready = [p for p in left if all(blocks[p][q] is None or q == p or q in order for q in left)]
        if not ready:
            return None
        order.append(ready[0])
        left.remove(ready[0])
    return order
