"""The chunked form of a matrix state: rank-one writes, corrections, decays on either side.

In a chunk the update of every row i, with S the state before the chunk and G the sums of the log
gates from its start, is

    Y_m = c_m + (w_m exp G) S + sum over m' of Gram(w_m, x_m') Y_m'        what each term writes
    O   = (q exp G) S + sum over m of Gram(q, x_m) Y_m                     a read
    S'  = exp(G_last) S + sum over m of (x_m exp(G_last - G))^T Y_m        the state after the chunk

A decay on the value side, with sums H, scales what rows have of earlier ones by exp(H_i - H_j), and
what they have of S by exp(H_i): the system is the same for every value.

The first is a unit lower triangular system: with its inverse X the rows are Y = U + W S, where U
and W do not depend on S. So all Grams, inverses, U and W are computed for all chunks at once, a
Recurrence along the chunks carries S and makes Y, and the reads are again for all chunks at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import sympy

from archc.dims import Axis
from archc.functions.interval import Interval
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.value_names import state_at_start
from archc.recurrence.affine.form import BEFORE, WRITTEN
from archc.recurrence.chunk.carrying import SO_FAR, TO_COME, carrying
from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.merged_sides import Sides, merge_of, merged_state
from archc.recurrence.chunk.together import together


@dataclass(frozen=True)
class TokenTerm:
    """A term of a micro-step as values along tokens: x, one free row for each state (None: 0), and
    the covector w (None: it reads nothing), of the state before or after the decay."""

    x: int
    rows: tuple[int | None, ...]
    w: int | None
    after: bool


@dataclass(frozen=True)
class TokenStep:
    """A micro-step as values along tokens: the log gates of the key side and of the value side
    (None: no decay), the terms, the axis of their values that they have a row for each entry of,
    whether gates of either side may be 0 (`signed`), and, where they may be negative, how many of
    their factors are (`below`): what is read and written has the sign of their product, and the log
    gates are those of their sizes."""

    key: int | None
    value: int | None
    terms: tuple[TokenTerm, ...]
    rank: Axis | None = None
    signed: tuple[bool, bool] = (False, False)
    below: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True)
class Slot:
    """The terms that stand in one place of every micro-step, in chunks."""

    x: int
    rows: tuple[int | None, ...]
    w: int | None
    after: bool


class MatrixForm:
    """One group of states that share decays, x and w, in chunks.

    `keys` are the axes that x and w have; `steps` the micro-steps of a token, `initial` the states
    before the first token, `known` intervals of sizes by their names, `early` whether every row of
    a token will read the state before it, `sides` the axes of keys and of values that may be
    counted as one dim where they decay. Whatever is asked for is added to the frame's graph.
    """

    def __init__(
        self,
        frame: Frame,
        keys: Sequence[Axis],
        states: Sequence[ir.State],
        steps: Sequence[TokenStep],
        initial: Sequence[int],
        known: Mapping[str, Interval] = MappingProxyType({}),
        early: bool = False,
        sides: Sides = ((), ()),
    ):
        taken = {axis.name for state in states for axis in state.axes}
        of_keys = merge_of(frame, sides[0], [step.key for step in steps], taken)
        of_values = merge_of(frame, sides[1], [step.value for step in steps], taken)
        self.merges = [merge for merge in (of_keys, of_values) if merge is not None]
        self.keys = tuple(keys) if of_keys is None else (of_keys.into,)
        self.initial = [self._merged(id) for id in initial]
        self.states = tuple(merged_state(self.merges, state) for state in states)
        self.key_names = tuple(axis.name for axis in self.keys)
        self.count, self.known = len(steps), known
        steps = [self._merged_step(step) for step in steps]
        self.rank = steps[0].rank
        rows = sympy.Integer(self.count) if self.rank is None else self.rank.size
        self.steps_axis = None if rows == 1 else Axis("step", rows)
        self.frame = frame if self.steps_axis is None else longer(frame, rows)
        self.own_gate: int | None = None
        gates = {p: self._early_gate(step, early) for p, step in enumerate(steps)}
        self.key_gate = self._lay(gates)
        self.value_gate = self._lay({p: step.value for p, step in enumerate(steps)})
        laid = self.key_gate, self.value_gate
        self.signed = {g for i, g in enumerate(laid) if any(step.signed[i] for step in steps)}
        self.below, self.values_below = (
            self._lay({p: step.below[i] for p, step in enumerate(steps)}) for i in range(2)
        )
        self.slots = self._slots(steps)
        self.grams: dict[tuple[int, int, bool, bool], int] = {}
        self._carry()

    # --- several dims as one ---

    def _merged(self, id: int) -> int:
        """A value with one dim for those that decay together."""
        for merge in self.merges:
            id = merge.of(id)
        return id

    def _apart(self, id: int) -> int:
        """A value with the dims of the states again."""
        for merge in self.merges:
            id = merge.back(id)
        return id

    def _merged_step(self, step: TokenStep) -> TokenStep:
        """A micro-step whose values are counted so."""

        def of(id: int | None) -> int | None:
            return None if id is None else self._merged(id)

        terms = tuple(
            TokenTerm(self._merged(t.x), tuple(map(of, t.rows)), of(t.w), t.after)
            for t in step.terms
        )
        below = of(step.below[0]), of(step.below[1])
        return replace(step, key=of(step.key), value=of(step.value), terms=terms, below=below)

    # --- from tokens to rows ---

    def _lay(self, values: Mapping[int, int | None]) -> int | None:
        """The values of the micro-steps in chunks: 0 at a step that has none."""
        found = {p: id for p, id in values.items() if id is not None}
        if not found:
            return None
        if self.steps_axis is None:
            return self.frame.cut(found[0])
        frame, rank = self.frame, self.rank
        if rank is not None and frame.has(found[0], (rank.name,)):
            return frame.cut(found[0], steps=rank.name)
        whole = together(frame, [*found.values()], self.known) if len(found) == self.count else None
        if whole is not None:
            return frame.cut(whole[0], steps=whole[1])
        placed = [frame.add(ck.Place(self.steps_axis, p), id) for p, id in found.items()]
        sum = frame.total(placed)
        assert sum is not None, "there is a value"
        return frame.cut(sum, steps=self.steps_axis.name)

    def _early_gate(self, step: TokenStep, early: bool) -> int | None:
        """The log gate of a micro-step. Where rows of one token read the state before it, that it
        decays is taken out of sums again, which need finite gates; each row has it, then."""
        reads = early or any(term.w is not None and not term.after for term in step.terms)
        if self.rank is None or step.key is None or not reads:
            return step.key
        frame, axis = self.frame, self.steps_axis
        assert axis is not None, "a token has several rows"
        gate = frame.fn("max", step.key, frame.number(sympy.Integer(int(ck.LEAST_GATE))))
        self.own_gate = frame.cut(frame.full(gate, (axis,)), steps=axis.name)
        return gate

    def _slots(self, steps: Sequence[TokenStep]) -> list[Slot]:
        """Terms of different micro-steps in one slot where they read at the same moment."""
        groups: list[dict[int, TokenTerm]] = []
        for p, step in enumerate(steps):
            for term in step.terms:
                fits = (
                    g for g in groups
                    if p not in g and all(_alike(term, other) for other in g.values())
                )  # fmt: skip
                group = next(fits, None)
                if group is None:
                    groups.append({p: term})
                else:
                    group[p] = term
        return [self._slot(group) for group in groups]

    def _slot(self, group: Mapping[int, TokenTerm]) -> Slot:
        """One slot in chunks."""
        after = next(iter(group.values())).after
        x = self._lay({p: self.frame.full(t.x, self.keys) for p, t in group.items()})
        x = self._signed(x, self.below)
        assert x is not None, "a term writes somewhere"
        states = range(len(self.states))
        rows = [self._lay({p: term.rows[k] for p, term in group.items()}) for k in states]
        rows = tuple(self._signed(row, self.values_below) for row in rows)
        w = self._signed(self._lay({p: term.w for p, term in group.items()}), self.below, not after)
        return Slot(x, rows, w, after)

    def _signed(self, rows: int | None, below: int | None, exclusive: bool = False) -> int | None:
        """Values of rows times the sign of the gates of a side up to each row; `below` counts those
        that are negative (None: none is)."""
        if rows is None or below is None:
            return rows
        frame = self.frame
        count = frame.add(ck.Sums(frame.row.name), below)
        count = frame.fn("sub", count, below) if exclusive else count
        return frame.fn("mul", rows, self._parity(count))

    def _signed_at_end(self, values: int, below: int | None) -> int:
        """Values times the sign of all gates of a side in the chunk."""
        if below is None:
            return values
        frame = self.frame
        count = frame.last(frame.add(ck.Sums(frame.row.name), below))
        return frame.fn("mul", values, self._parity(count))

    def _parity(self, count: int) -> int:
        """1 where a count is even, and -1 where it is odd."""
        frame = self.frame
        odd = frame.fn("mod", count, frame.number(2))
        return frame.fn("sub", frame.number(1), frame.fn("mul", frame.number(2), odd))

    # --- between rows ---

    def _gram(self, a: int, b: int, strict: bool, exclusive: bool) -> int:
        """The scores of pairs of rows: row i reads with a, row j has written with b."""
        known = (a, b, strict, exclusive)
        if known not in self.grams:
            self.grams[known] = self._scores(self.key_names, self.key_gate, a, b, strict, exclusive)
        return self.grams[known]

    def _scores(
        self, over: tuple[str, ...], gate: int | None, a: int, b: int, strict: bool, exclusive: bool
    ) -> int:
        """The products of pairs of rows along axes, decayed by the log gates of their side."""
        frame = self.frame
        row, col = frame.row.name, frame.col
        if gate is not None and frame.has(gate, over):
            op = ck.Gram(over, row, col, strict, exclusive, signed=gate in self.signed)
            return frame.add(op, a, b, gate)
        dots = frame.product(a, frame.renamed(b, {row: col}), over)
        if gate is None:
            kept = frame.before(strict or exclusive)
            return frame.fn("where", kept, dots, frame.number(0))
        spans = frame.add(ck.Spans(row, col, strict, exclusive), gate)
        return frame.fn("mul", dots, frame.fn("exp", spans))

    def _apply(
        self, weights: int, rows: int, gate: int | None, strict: bool, exclusive: bool
    ) -> int:
        """The sum over j of weights[i, j] rows[j], decayed by the log gates of their side."""
        frame = self.frame
        row, col = frame.row.name, frame.col.name
        if gate is None:
            return self._times(weights, rows)
        if all(axis.kind != "dim" or axis.name in frame.outer for axis in self._beside_rows(gate)):
            spans = frame.add(ck.Spans(row, frame.col, strict, exclusive), gate)
            return self._times(frame.fn("mul", weights, frame.fn("exp", spans)), rows)
        op = ck.Mix(row, col, strict, exclusive, signed=gate in self.signed)
        return frame.add(op, weights, rows, gate)

    def _beside_rows(self, id: int) -> list[Axis]:
        """The axes of a value of rows, but for the rows."""
        return [axis for axis in self.frame.graph[id].type.axes if axis.name != self.frame.row.name]

    def _times(self, matrix: int, rows: int) -> int:
        """A matrix between rows times values of rows."""
        frame = self.frame
        columns = frame.renamed(rows, {frame.row.name: frame.col})
        return frame.product(matrix, columns, (frame.col.name,))

    def _matmul(self, a: int, b: int) -> int:
        """The product of two matrices between rows."""
        frame = self.frame
        middle = frame.col.renamed(frame.col.name + "'")
        left = frame.renamed(a, {frame.col.name: middle})
        right = frame.renamed(b, {frame.row.name: middle})
        return frame.product(left, right, (middle.name,))

    # --- the triangular system ---

    def _system(self) -> tuple[list[Slot], list[list[int]]]:
        """The slots that read, and the inverse of their system, in blocks."""
        unknown = [slot for slot in self.slots if slot.w is not None]
        inverse: list[list[int]] = []
        for u in range(len(unknown)):
            inverse = self._bordered(inverse, unknown[: u + 1])
        return unknown, inverse

    def _read_by(self, reader: Slot, writer: Slot) -> int:
        """The scores of a slot's covectors with another slot's writes in the chunk."""
        assert reader.w is not None, "the slot reads"
        if self.rank is None:
            return self._gram(reader.w, writer.x, True, not reader.after)
        if reader.after or self.own_gate is None:
            return self._earlier(self._gram(reader.w, writer.x, True, False), self.rank)
        assert self.key_gate is not None, "the state decays"
        frame = self.frame
        columns = frame.renamed(writer.x, {frame.row.name: frame.col})
        dots = frame.product(reader.w, columns, self.key_names)
        spans = frame.add(ck.Spans(frame.row.name, frame.col, True), self.key_gate)
        since = self._earlier(frame.fn("sub", spans, self.own_gate), self.rank)
        return self._earlier(frame.fn("mul", dots, frame.fn("exp", since)), self.rank)

    def _earlier(self, values: int, rank: Axis) -> int:
        """Values of pairs of rows, 0 for two of one token: what a token reads is the same for all
        its rows."""
        frame = self.frame
        count = frame.number(rank.size)
        i, j = (
            frame.fn("floordiv", frame.add(ir.Position(axis)), count)
            for axis in (frame.row, frame.col)
        )
        return frame.fn("where", frame.fn("lt", j, i), values, frame.number(0))

    def _bordered(self, inverse: list[list[int]], slots: Sequence[Slot]) -> list[list[int]]:
        """The inverse for one slot more, from that for those before it."""
        frame, last, before = self.frame, slots[-1], range(len(slots) - 1)
        op = ck.Inverse(frame.row.name, frame.col.name)
        if not before:
            return [[frame.add(op, self._read_by(last, last))]]
        reads = [self._read_by(last, slots[v]) for v in before]
        read_by = [self._read_by(slots[v], last) for v in before]
        left = [self._sum(self._matmul(reads[u], inverse[u][v]) for u in before) for v in before]
        right = [self._sum(self._matmul(inverse[v][u], read_by[u]) for u in before) for v in before]
        through = self._sum(self._matmul(left[v], read_by[v]) for v in before)
        corner = frame.add(op, frame.fn("add", self._read_by(last, last), through))
        row = [self._matmul(corner, left[v]) for v in before]
        grown = [
            [
                *(frame.fn("add", inverse[u][v], self._matmul(right[u], row[v])) for v in before),
                self._matmul(right[u], corner),
            ]
            for u in before
        ]
        return [*grown, [*row, corner]]

    def _sum(self, ids: Iterable[int | None]) -> int:
        """A sum of at least one value."""
        sum = self.frame.total(list(ids))
        assert sum is not None, "a sum has terms"
        return sum

    # --- the carried state ---

    def _decay(self, gate: int | None, exclusive: bool = False) -> int | None:
        """The decay from the start of the chunk to each row."""
        return None if gate is None else self.frame.sums(gate, exclusive=exclusive)

    def _decay_of_reads(self, slot: Slot) -> int | None:
        """The decay from the start of the chunk to what each row of a slot reads."""
        frame, own = self.frame, self.own_gate
        if slot.after or own is None or self.key_gate is None:
            return self._decay(self.key_gate, not slot.after)
        sums = frame.add(ck.Sums(frame.row.name), self.key_gate)
        return frame.fn("exp", frame.fn("sub", sums, own))

    def _carry(self) -> None:
        """The Recurrence along the chunks, the state before each, and the rows written."""
        frame = self.frame
        unknown, inverse = self._system()
        self.reads_state = []
        for slot in unknown:
            decay = self._decay_of_reads(slot)
            self.reads_state.append(frame.times(slot.w, decay))
        solved = [self._solved(inverse[u], self.reads_state) for u in range(len(unknown))]
        captured: dict[str, int] = {}
        for u, slot in enumerate(unknown):
            captured[f"W{u}"] = solved[u]
            captured[f"X{u}"] = self._ended_along_keys(slot)
        for k in range(len(self.states)):
            for u in range(len(unknown)):
                free = self._free(unknown, inverse[u], k)
                if free is not None:
                    captured[f"U{u}.{k}"] = free
            written = self._written_by_known(k)
            if written is not None:
                captured[f"write.{k}"] = written
        sides = (self.key_gate, self.below), (self.value_gate, self.values_below)
        for name, (gate, below) in zip(("key", "value"), sides, strict=True):
            if gate is not None:
                captured[f"{name} decay"] = self._signed_at_end(frame.last(frame.sums(gate)), below)
        if unknown and self.value_gate is not None:
            captured[SO_FAR] = frame.sums(self.value_gate)
            to_come = frame.sums(self.value_gate, reverse=True, exclusive=True)
            captured[TO_COME] = self._signed_at_end(to_come, self.values_below)
        self._recurrence(unknown, captured)

    def _solved(
        self, row: Sequence[int], values: Sequence[int | None], gate: int | None = None
    ) -> int:
        """One block row of the inverse times values of rows, which decay by a gate of theirs."""
        parts = [
            self._apply(block, value, gate, False, False)
            for block, value in zip(row, values, strict=True)
            if value is not None
        ]
        return self._sum(parts)

    def _free(self, unknown: Sequence[Slot], row: Sequence[int], k: int) -> int | None:
        """The writes of a slot into state k where the carried state is 0."""
        rights = [self._right(slot, k) for slot in unknown]
        if all(right is None for right in rights):
            return None
        return self._solved(row, rights, self.value_gate)

    def _right(self, slot: Slot, k: int) -> int | None:
        """The free row of a slot, and what it reads of writes that read nothing."""
        parts = [slot.rows[k]]
        for known in self.slots:
            row = known.rows[k]
            if known.w is None and row is not None:
                weights = self._read_by(slot, known)
                parts.append(self._apply(weights, row, self.value_gate, True, False))
        return self.frame.total(parts)

    def _until_end(self, x: int, gate: int | None) -> int:
        """Values of rows, decayed to the end of the chunk."""
        if gate is None:
            return x
        return self.frame.fn("mul", x, self.frame.sums(gate, reverse=True, exclusive=True))

    def _ended_along_keys(self, slot: Slot) -> int:
        """What a slot writes along the keys, as it is left after the chunk."""
        return self._signed_at_end(self._until_end(slot.x, self.key_gate), self.below)

    def _written_by_known(self, k: int) -> int | None:
        """The writes into state k, as they are after the chunk, of slots that read nothing."""
        frame, parts = self.frame, []
        for slot in self.slots:
            row = slot.rows[k]
            if slot.w is None and row is not None:
                x = self._ended_along_keys(slot)
                row = self._signed_at_end(self._until_end(row, self.value_gate), self.values_below)
                parts.append(frame.product(x, row, (frame.row.name,)))
        return frame.total(parts)

    def _recurrence(self, unknown: Sequence[Slot], captured: Mapping[str, int]) -> None:
        """Add the Recurrence, and note its results."""
        frame = self.frame
        body = carrying(frame, self.key_names, captured, self.states, len(unknown))
        op = ir.Recurrence(frame.chunk, tuple(captured), self.states, body, frame.outer)
        recurrence = frame.graph.add(op, *captured.values(), *self.initial)
        result = {name: frame.add(ir.Result(name), recurrence) for name in body.outputs}
        self.begin = [result[state_at_start(state.name)] for state in self.states]
        self.final = [
            self._apart(frame.add(ck.Last(frame.chunk.name), result[state.name], first))
            for state, first in zip(self.states, self.initial, strict=True)
        ]
        self.rows: list[list[int | None]] = []
        for slot in self.slots:
            if slot.w is None:
                self.rows.append(list(slot.rows))
            else:
                u = unknown.index(slot)
                self.rows.append([result[f"Y{u}.{k}"] for k in range(len(self.states))])

    # --- reads ---

    def query(self, covector: int, step: int, when: str) -> int:
        """A covector of tokens as rows: at the row of its micro-step."""
        covector = self._merged(covector)
        if self.steps_axis is None:
            return self.frame.cut(covector)
        placed = self.frame.add(ck.Place(self.steps_axis, self._row(step, when)), covector)
        return self.frame.cut(placed, steps=self.steps_axis.name)

    def _row(self, step: int, when: str) -> int:
        """The row of a token that reads: the last one what all of them have written."""
        return step if self.rank is None else -1 if when == WRITTEN else 0

    def _read_at(self, rows: int, below: int | None, exclusive: bool) -> int:
        """Values of rows that read, with the sign of the gates of a side."""
        signed = self._signed(rows, below, exclusive)
        assert signed is not None, "there is a value"
        return signed

    def read(self, k: int, query: int, when: str) -> int:
        """The reads of state k by rows, summed over the key axes: a value of rows."""
        exclusive, strict = when == BEFORE, when != WRITTEN
        query = self._read_at(query, self.below, exclusive)
        parts = [self._read_start(k, query, self.key_names, when)]
        for slot, rows in zip(self.slots, self.rows, strict=True):
            written = rows[k]
            if written is not None:
                weights = self._gram(query, slot.x, strict, exclusive)
                parts.append(self._apply(weights, written, self.value_gate, strict, exclusive))
        return self._read_at(self._sum(parts), self.values_below, exclusive)

    def read_at_keys(self, k: int, covectors: int, axis: Axis, when: str) -> int:
        """The reads of state k by each row of a token, before any of them writes, summed over the
        key axes: a value along tokens. `axis` is that of a token's covectors."""
        frame = self.frame
        query = frame.cut(self._merged(covectors), steps=axis.name)
        reader = Slot(query, (), query, when != BEFORE)
        q = frame.times(query, self._decay_of_reads(reader))
        assert q is not None, "there is a covector"
        parts = [frame.product(q, self.begin[k], self.key_names)]
        for slot, rows in zip(self.slots, self.rows, strict=True):
            written = rows[k]
            if written is not None:
                parts.append(self._times(self._read_by(reader, slot), written))
        return self._apart(frame.joined(self._sum(parts), axis))

    def read_values(self, k: int, query: int, over: tuple[str, ...], when: str) -> int:
        """The reads of state k by rows, summed over its value axes: what was written is met by its
        rows, and found along its x."""
        exclusive, strict = when == BEFORE, when != WRITTEN
        query = self._read_at(query, self.values_below, exclusive)
        over = next(((m.into.name,) for m in self.merges if {*m.names} == {*over}), over)
        own = [axis for axis in self.states[k].axes if axis.name in over]
        parts = [self._read_start(k, query, over, when)]
        for slot, rows in zip(self.slots, self.rows, strict=True):
            written = rows[k]
            if written is not None:
                full = self.frame.full(written, own)
                weights = self._scores(over, self.value_gate, query, full, strict, exclusive)
                parts.append(self._apply(weights, slot.x, self.key_gate, strict, exclusive))
        return self._read_at(self._sum(parts), self.below, exclusive)

    def _read_start(self, k: int, query: int, over: Collection[str], when: str) -> int:
        """The values that rows read of the state before the chunk, summed over one side's axes."""
        frame, key = self.frame, over == self.key_names
        gates = (self.key_gate, self.value_gate) if key else (self.value_gate, self.key_gate)
        inner, outer = (self._decay(gate, when == BEFORE) for gate in gates)
        q = frame.times(query, inner)
        assert q is not None, "a read has a covector"
        found = frame.times(frame.product(q, self.begin[k], over), outer)
        assert found is not None, "a state is read"
        return found

    def written(self, k: int) -> int:
        """What each token writes to state k, which is a vector, in all of its rows."""
        frame, steps, parts = self.frame, self.steps_axis, list[int | None]()
        for slot, rows in zip(self.slots, self.rows, strict=True):
            row = rows[k]
            parts.append(None if row is None else frame.fn("mul", slot.x, row))
        joined = frame.joined(self._read_at(self._sum(parts), self.below, False), steps)
        joined = joined if steps is None else frame.add(ir.Reduce("sum", (steps.name,)), joined)
        return self._apart(joined)

    def tokens(self, rows: int, step: int, when: str) -> int:
        """A value of rows along tokens: that of the row of a micro-step."""
        joined = self.frame.joined(rows, self.steps_axis)
        if self.steps_axis is not None:
            joined = self.frame.add(ck.Select(self.steps_axis.name, self._row(step, when)), joined)
        return self._apart(joined)


def _alike(one: TokenTerm, other: TokenTerm) -> bool:
    """Whether two terms may stand in one slot."""
    return one.after == other.after and (one.w is None) == (other.w is None)


def longer(frame: Frame, count: sympy.Expr) -> Frame:
    """A frame in which a token has several rows."""
    size = frame.row.size * count
    return replace(frame, row=Axis("u", size), col=Axis("u'", size))
