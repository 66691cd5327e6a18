"""The chunked form of a matrix state as formulas.

In a chunk, row i writes x_i y_i^T into the state, where y_i may depend on what the state holds.
Gamma_i is the product of the decays of rows 1 .. i, S_0 the state before the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archc.derivation.maths import (
    EQUALS,
    MINUS,
    NEGATIVE,
    PLUS,
    TIMES,
    Fence,
    Fraction,
    Math,
    Name,
    Number,
    Row,
    Sign,
    Sum,
    Words,
    function,
    inverse,
    named,
    row,
    transposed,
)
from archc.derivation.row_names import Factor, Rows, Slot, slots_of
from archc.recurrence.affine.form import BEFORE, WRITTEN, Part

EARLIER = row(Name("j"), Sign("<"), Name("i"))
UP_TO = row(Name("j"), Sign("≤"), Name("i"))


class ChunkFormulas:
    """Formulas of one state of a matrix form."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.own = rows, rows.own
        self.slots = slots_of(self.own.steps)
        self.reading = [slot for slot in self.slots if slot.reads]
        self.free = [slot for slot in self.slots if not slot.reads]
        self.U, self.W, self.Y = (
            Name(rows.letters.of(letter), bold=True) for letter in ("U", "W", "Y")
        )
        self.last = rows.letters.of("C")
        self.solve = inverse(Fence(row(Name("I"), MINUS, Name(rows.letters.of("A"), bold=True))))

    # --- names ---

    def state(self, *subs: str, prime: bool = False) -> Math:
        """The state."""
        return named(self.own.state, *subs, prime=prime)

    def read_state(self, slot: Slot) -> Math:
        """The state that a correction at row i reads: after its decay, or before the row."""
        after = slot.after and (self.rows.decays or self.rows.value_decays)
        if after:
            return self.state("i", prime=True)
        old, rows = self.state("i-1"), self.rows
        if not rows.value_decays:
            return old
        gate = rows.value_gate("i")
        return row(old, function("Diag", gate)) if rows.value_wide else row(gate, old)

    def y(self, slot: Slot, at: str) -> Math:
        """The written row y of a row that reads the state."""
        return Name(self.rows.letters.of("y"), (*slot.sub, at))

    def written(self, slot: Slot, at: str) -> Factor:
        """The row that a slot writes, with its scale apart."""
        return Factor(False, None, self.y(slot, at)) if slot.reads else self.rows.c(slot, at)

    # --- decays ---

    def gamma(self, at: str) -> Math:
        """The product of decays up to a row."""
        return Name(self.rows.letters.of("Γ"), (at,))

    def delta(self, at: str) -> Math:
        """The same on the value side."""
        return Name(self.rows.letters.of("Δ"), (at,))

    def products(self) -> Iterator[Math]:
        """Gamma_i = the product of the decays of rows 1 .. i, and the same of the value side."""
        over = row(Name("s"), Sign("≤"), Name("i"))
        if self.rows.decays:
            yield row(self.gamma("i"), EQUALS, Sum("∏", over), self.rows.gate("s"))
        if self.rows.value_decays:
            yield row(self.delta("i"), EQUALS, Sum("∏", over), self.rows.value_gate("s"))

    def ratio(self, late: str, early: str) -> Math | None:
        """The decay from one row to a later one; None without a decay."""
        return Fraction(self.gamma(late), self.gamma(early)) if self.rows.decays else None

    def decayed(self, factor: Factor, decay: Math | None) -> Math:
        """A vector times a decay: a number in front, or element by element."""
        vector = factor.vector
        if decay is None:
            return row(factor.scale, vector) if factor.scale or vector else Number("1")
        if not self.rows.key_wide or vector is None:
            return row(factor.scale, decay, vector)
        return row(factor.scale, Fence(row(decay, TIMES, vector)))

    def product(self, left: Factor, late: str, early: str, right: Factor) -> Math:
        """left^T Diag(decay) right: what one row reads of another."""
        ratio = self.ratio(late, early)
        a = transposed(left.vector) if left.vector else None
        scales = [left.scale, right.scale]
        if ratio is None:
            return row(*scales, a, right.vector) if a or right.vector else row(*scales, Number("1"))
        if self.rows.key_wide:
            return row(*scales, a, function("Diag", ratio), right.vector)
        return row(*scales, ratio, a, right.vector)

    def whole(self, at: str, state: Math, values: str = "") -> Math:
        """A state of the chunk's start as it has decayed until a row, on the value side until
        another one."""
        key = self.gamma(at) if self.rows.decays else None
        value = self.delta(values or at) if self.rows.value_decays else None
        left = function("Diag", key) if key is not None and self.rows.key_wide else key
        right = function("Diag", value) if value is not None and self.rows.value_wide else value
        return row(left, state, right)

    # --- the state and what is written ---

    def unrolled(self, slot: Slot) -> Math:
        """The state that a correction reads: what the chunk began with, and earlier writes."""
        late = "i" if slot.after else "i-1"
        begun = self.whole(late, self.state("0"), "i")
        written = self._writes(EARLIER, late, "i")
        return row(self.read_state(slot), EQUALS, begun, PLUS, *written)

    def one_row(self) -> Math:
        """The state after row i, from that before it."""
        decayed = self.rows.decays or self.rows.value_decays
        old = self.state("i", prime=True) if decayed else self.state("i-1")
        parts: list[Math] = [old]
        for slot in self.slots:
            x, y = self.rows.x(slot, "i"), self.written(slot, "i")
            parts += [MINUS if y.negative else PLUS]
            value = y.vector
            if value is not None and self.own.value:
                value = transposed(value)
            parts.append(row(y.scale, x.scale, x.vector, value))
        return row(self.state("i"), EQUALS, *parts)

    def end(self) -> Math:
        """The state after the chunk."""
        begun = self.whole(self.last, self.state("0"))
        return row(self.state(self.last), EQUALS, begun, PLUS, *self._writes(Name("j"), self.last))

    def added(self) -> tuple[Math, Math]:
        """The share of a chunk in the state, and the state after it, if no write reads it."""
        name = Name(self.rows.letters.of("Q"), (self.own.state,))
        begun = self.whole(self.last, self.state("0"))
        return (
            row(name, EQUALS, *self._writes(Name("j"), self.last)),
            row(self.state(self.last), EQUALS, begun, PLUS, name),
        )

    def _writes(self, over: Math, late: str, values: str = "") -> list[Math]:
        """The sum of what rows j have written, decayed until a row, on the value side until another
        one."""
        parts: list[Math] = []
        ratio = self.ratio(late, "j")
        for slot in self.slots:
            x, y = self.rows.x(slot, "j"), self.written(slot, "j")
            moved = self.decayed(Factor(False, x.scale, x.vector), ratio)
            body = row(y.scale, moved, self._row_of(y, values or late))
            sign = MINUS if y.negative else PLUS
            parts += [sign] if parts else [NEGATIVE] if y.negative else []
            parts += [Sum("∑", over), body]
        return parts

    def _row_of(self, y: Factor, late: str) -> Math | None:
        """The written row transposed, decayed on the value side."""
        if y.vector is None or not self.own.value:
            return y.vector
        if not self.rows.value_decays:
            return transposed(y.vector)
        ratio = Fraction(self.delta(late), self.delta("j"))
        if self.rows.value_wide:
            return transposed(Fence(row(ratio, TIMES, y.vector)))
        return row(ratio, transposed(y.vector))

    def what_is_written(self, slot: Slot) -> Math:
        """y_i: what a row that reads writes."""
        c, w = self.rows.c(slot, "i"), self.rows.w(slot, "i")
        state = self.read_state(slot)
        state = Fence(state) if isinstance(state, Row) else state
        read = row(transposed(state), w.vector) if self.own.value else row(
            transposed(w.vector) if w.vector else None, state
        )  # fmt: skip
        return row(self.y(slot, "i"), EQUALS, *self._c_and(c, w, row(w.scale, read)))

    @staticmethod
    def _c_and(c: Factor, w: Factor, read: Math) -> list[Math]:
        """c + read, with the signs of both."""
        if c.nothing:
            return [NEGATIVE, read] if w.negative else [read]
        first = row(NEGATIVE if c.negative else None, c.scale, c.vector)
        if c.scale is None and c.vector is None:
            first = Number("1")
        return [first, MINUS if w.negative else PLUS, read]

    # --- the triangular system ---

    def weights(self, reader: Slot, writer: Slot) -> Math:
        """A_ij, or B_ij: what row i reads of what row j has written."""
        text, subs = self._matrix(reader, writer)
        name = Name(text, (*subs, "i", "j"))
        w, x = self.rows.w(reader, "i"), self.rows.x(writer, "j")
        value = self.product(w, "i" if reader.after else "i-1", "j", x)
        return row(name, EQUALS, NEGATIVE if w.negative else None, value)

    def _matrix(self, reader: Slot, writer: Slot) -> tuple[str, tuple[str, ...]]:
        pair = "".join((*reader.sub, *writer.sub))
        return self.rows.letters.of("A" if writer.reads else "B"), ((pair,) if pair else ())

    def with_weights(self, reader: Slot) -> Math:
        """y_i with the state put in: what is known, what the chunk began with, earlier rows."""
        w, c = self.rows.w(reader, "i"), self.rows.c(reader, "i")
        alone = Factor(False, None, w.vector)
        start = self.decayed(alone, self._since_start("i" if reader.after else "i-1"))
        s0 = self.state("0")
        carried = row(transposed(s0), start) if self.own.value else row(
            transposed(Fence(start) if isinstance(start, Row) else start), s0
        )  # fmt: skip
        if self.rows.value_decays:
            carried = Fence(row(self.delta("i"), TIMES, carried))
        parts = self._c_and(c, w, row(w.scale, carried))
        for writer in self.slots:
            text, subs = self._matrix(reader, writer)
            y = self.written(writer, "j")
            parts += [MINUS if y.negative else PLUS, Sum("∑", EARLIER)]
            parts += [Name(text, (*subs, "i", "j")), row(y.scale, self._since(y.vector, "i"))]
        return row(self.y(reader, "i"), EQUALS, *parts)

    def _since(self, vector: Math | None, late: str) -> Math | None:
        """What row j has written, decayed on the value side until a row."""
        if vector is None or not self.rows.value_decays:
            return vector
        return Fence(row(Fraction(self.delta(late), self.delta("j")), TIMES, vector))

    def _since_start(self, at: str) -> Math | None:
        return self.gamma(at) if self.rows.decays else None

    def solution(self) -> Iterator[Math]:
        """U, W and Y = U + W S_0; with several readers their rows stand one below the other. Rows
        that decay on the value side are solved for as they were without that: Y / Delta."""
        rights = [self._right(r) for r in self.reading]
        whole, begun = list[Math](), row(self.W, self.state("0"))
        if self.rows.value_decays:
            rights = [row(Fraction(Number("1"), self.delta("i")), TIMES, Fence(r)) for r in rights]
            whole = [Name(self.rows.letters.of("Δ"), bold=True), TIMES]
            begun = row(*whole, Fence(begun))
        yield row(self.W, EQUALS, self.solve, _stack([self._start(r) for r in self.reading]))
        yield row(self.U, EQUALS, *whole, self.solve, _stack(rights))
        yield row(self.Y, EQUALS, self.U, PLUS, begun)

    def _start(self, reader: Slot) -> Math:
        """The covector that a row reads the state before the chunk with."""
        w = self.rows.w(reader, "i")
        start = self.decayed(w, self._since_start("i" if reader.after else "i-1"))
        return row(NEGATIVE if w.negative else None, start)

    def _right(self, reader: Slot) -> Math:
        """The row written if the chunk began with a state of 0 and no other row read: the
        right-hand side of the system."""
        c = self.rows.c(reader, "i")
        parts: list[Math] = []
        if not c.nothing:
            known = row(c.scale, c.vector) if c.scale or c.vector else Number("1")
            parts = [row(NEGATIVE if c.negative else None, known)]
        for writer in self.free:
            text, subs = self._matrix(reader, writer)
            y = self.written(writer, "j")
            sign = MINUS if y.negative else PLUS
            parts += [sign] if parts else [NEGATIVE] if y.negative else []
            moved = row(y.scale, self._since(y.vector, "i"))
            parts += [Sum("∑", EARLIER), Name(text, (*subs, "i", "j")), moved]
        return row(*parts) if parts else Number("0")

    # --- reads ---

    def read(self, part: Part) -> Math:
        """The value that a covector reads in the chunk, without its scale."""
        return self.read_with(self.rows.q(part.covector, "i"), part.when)

    def read_with(self, q: Factor, when: str) -> Math:
        """The value that a vector at row i reads of the state."""
        sign = NEGATIVE if q.negative else None
        q = Factor(False, q.scale, q.vector)
        late = "i-1" if when == BEFORE else "i"
        start = self.decayed(Factor(False, None, q.vector), self._since_start(late))
        s0 = self.state("0")
        if self.own.value:
            first = row(transposed(s0), start)
        else:
            closed = Fence(start) if isinstance(start, Row) else start
            first = row(transposed(closed) if q.vector else start, s0)
        if self.rows.value_decays:
            first = row(self.delta(late), TIMES, first)
        parts: list[Math] = [first]
        for slot in self.slots:
            parts += self._read_of(slot, q, late, UP_TO if when == WRITTEN else EARLIER)
        body = row(*parts)
        return body if q.scale is None and sign is None else row(sign, q.scale, Fence(body))

    def _read_of(self, slot: Slot, q: Factor, late: str, over: Math) -> list[Math]:
        """The terms that a row reads of the rows that a slot has written."""
        x, y = self.rows.x(slot, "j"), self.written(slot, "j")
        weight = Fence(self.product(Factor(False, None, q.vector), late, "j", x))
        moved = row(weight, y.scale, self._since(y.vector, late))
        return [MINUS if y.negative else PLUS, Sum("∑", over), moved]


def _stack(parts: Sequence[Math]) -> Math:
    """All rows i of some values as a matrix, those of one value below those of the one before."""
    listed: list[Math] = []
    for part in parts:
        listed += [Sign(";", tight=True), Words(" "), part] if listed else [part]
    return Fence(row(*listed), "[", "]")
