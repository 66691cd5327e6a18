"""The chunked form of matrix states that a rotation mixes, channel by channel, or that nothing
mixes but what reads them together.

    S[t] = exp(g) R(angle) S[t-1] + sum over terms of x (c + sum over p of w_p . S_p[t-1])

with a log gate and an angle for each channel of the key. Within a chunk, let G be the sums of the
gates and R the rotation by the sums of the angles. In the frame that turns with the states, R^-1 S,
only the gates are left, so that scores of pairs are those of a single state:

    score[i, j] = sum over p and channels of (R^T w)_p[i] exp(G[i] - G[j]) (R^T x)_p[j]

Angles are summed from the start of a chunk, and the states turned at its end: no sum is long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.recurrence.chunk.coupled import Turn, rotated
from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.linked_matrices import LinkedForm, LinkedSlot, Numbers, TokenLink
from archc.recurrence.chunk.matrix import Slot


@dataclass(frozen=True)
class TurnedSlot(LinkedSlot):
    """A term in chunks, its covectors and what it writes in the turning frame; `ended` is what it
    writes, as it is left after the chunk."""

    xs: tuple[int | None, ...] = ()
    ended: tuple[int | None, ...] = ()


class TurnedForm(LinkedForm):
    """One group of states that are turned together: a log gate each (None: no decay), and the angle
    by which the first is turned into the second (None: none)."""

    def __init__(
        self,
        frame: Frame,
        keys: Sequence[Axis],
        states: Sequence[ir.State],
        gates: Numbers,
        angle: int | None,
        terms: Sequence[TokenLink],
        initial: Sequence[int],
    ) -> None:
        self._begin(frame, keys, states, initial)
        self.gates = [None if gate is None else frame.cut(gate) for gate in gates]
        self.angle = None if angle is None else frame.cut(angle)
        self.slots = [self._turned_slot(term) for term in terms]
        self.grams = {}
        self._carry()

    def _turned_slot(self, term: TokenLink) -> TurnedSlot:
        frame = self.frame
        given = [None if id is None else frame.cut(id) for id in term.reads]
        written = [
            None if id is None else frame.cut(frame.full(id, self.keys)) for id in term.writes
        ]
        reads = tuple(self._turned(given, self._turn(exclusive=True)))
        row = None if term.row is None else frame.cut(term.row)
        w = next((id for id in reads if id is not None), None)
        x = next(id for id in written if id is not None)
        left = self._turned(written, self._turn(reverse=True, exclusive=True), back=True)
        ended = [
            x if x is None or gate is None else self._until_end(x, gate)
            for x, gate in zip(left, self.gates, strict=True)
        ]
        xs = tuple(self._turned(written, self._turn()))
        return TurnedSlot(x, (row,), w, False, reads, (), xs, tuple(ended))

    # --- turning --------------------------------------------------------------------------------

    def _turn(self, reverse: bool = False, exclusive: bool = False) -> Turn | None:
        """The turn from the start of the chunk to each row; reverse: from each row to its end."""
        if self.angle is None:
            return None
        frame = self.frame
        angle = frame.add(ck.Sums(frame.row.name, reverse, exclusive), self.angle)
        return frame.fn("cos", angle), frame.fn("sin", angle)

    def _turned(self, pair: Numbers, turn: Turn | None, back: bool = False) -> list[int | None]:
        """Vectors of both states in the turning frame; `back`: turned with the states."""
        return [*pair] if turn is None else rotated(self.frame, pair, turn, back=not back)

    # --- scores, and the carried states ---------------------------------------------------------

    def _score(self, covectors: Numbers, writer: Slot, strict: bool) -> int | None:
        """The scores of rows that read with covectors, one of each state, of rows that a term
        wrote."""
        assert isinstance(writer, TurnedSlot)
        parts = [
            self._scores(self.key_names, gate, covector, x, strict, strict)
            for covector, x, gate in zip(covectors, writer.xs, self.gates, strict=True)
            if covector is not None and x is not None
        ]
        return self.frame.total(parts)

    def _read_by(self, reader: Slot, writer: Slot) -> int:
        assert isinstance(reader, LinkedSlot)
        found = self._score(reader.reads, writer, True)
        return self._nothing() if found is None else found

    def _ended(self, slot: Slot, p: int) -> int | None:
        assert isinstance(slot, TurnedSlot)
        return slot.ended[p]

    def _reads_start(self, slot: Slot, q: int) -> int | None:
        assert isinstance(slot, LinkedSlot)
        covector = slot.reads[q]
        if covector is None:
            return None
        return self.frame.times(covector, self._decay(self.gates[q], exclusive=True))

    def _kept(self, p: int, q: int) -> int | None:
        frame, gate, turn = self.frame, self.gates[p], self._turn()
        if p != q and turn is None:
            return None
        decay = None if gate is None else frame.last(frame.sums(gate))
        if turn is None:
            return frame.number(1) if decay is None else decay
        part = frame.last(turn[int(p != q)])
        part = frame.fn("neg", part) if q > p else part
        return frame.times(part, decay)

    # --- reads ----------------------------------------------------------------------------------

    def of_states(self, queries: Numbers, written: bool) -> int:
        frame = self.frame
        given = [None if id is None else frame.cut(id) for id in queries]
        covectors = self._turned(given, self._turn(exclusive=not written))
        parts = list[int | None]()
        for covector, gate, begin in zip(covectors, self.gates, self.begin, strict=True):
            if covector is not None:
                query = frame.times(covector, self._decay(gate, exclusive=not written))
                assert query is not None, "a read has a covector"
                parts.append(frame.product(query, begin, self.key_names))
        for slot, rows in zip(self.slots, self.rows, strict=True):
            weights = self._score(covectors, slot, not written)
            if weights is not None and rows[0] is not None:
                parts.append(self._times(weights, rows[0]))
        return frame.joined(self._sum(parts))
