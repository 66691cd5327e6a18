"""The reverse walk through the chunked form of a matrix state, as formulas in letters.

Rows write x_i y_i^T where they read the state, and u_i b_i^T where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archc.derivation.chunk_formulas import EARLIER, UP_TO, ChunkFormulas
from archc.derivation.formula import Formulas
from archc.derivation.maths import (
    EQUALS,
    NEGATIVE,
    PLUS,
    TIMES,
    Fence,
    Math,
    Name,
    Power,
    Row,
    Sign,
    Sum,
    T,
    function,
    row,
    slope,
    transposed,
)
from archc.derivation.page import PARALLEL, SEQUENTIAL, Block, Formula, para
from archc.derivation.row_names import Slot
from archc.recurrence.affine.form import WRITTEN, NormalForm, StateForm
from archc.verify.study import Study

LATER = Sum("∑", row(Name("i"), Sign(">"), Name("j")))
FROM_J = Sum("∑", row(Name("i"), Sign("≥"), Name("j")))


def has_walk(chunk: ChunkFormulas, own: StateForm) -> bool:
    """Whether the formulas here are those of a state: a term of each kind at most, reads of what is
    written, by one vector each."""
    kinds = [slot.reads for slot in chunk.slots]
    parts = [part for read in own.reads for part in read.parts]
    plain = all(part.when == WRITTEN and part.scale == 1 for part in parts)
    single = all(len(read.parts) == 1 for read in own.reads)
    return len(set(kinds)) == len(kinds) and plain and single and not chunk.rows.value_decays


@dataclass(frozen=True)
class Written:
    """A slot: where it writes, what it writes, and the name of what rows read of it."""

    slot: Slot
    x: str
    y: str
    weights: str


class Walk:
    """Formulas of one state."""

    def __init__(self, chunk: ChunkFormulas, study: Study, form: NormalForm) -> None:
        self.study, self.form = study, form
        self.chunk, self.rows = chunk, chunk.rows
        self.wide, self.reads = bool(chunk.own.value), bool(chunk.own.reads)
        self.solves = bool(chunk.reading)
        letter = chunk.rows.letters.of
        self.slots = [
            Written(slot, letter("x"), letter("y"), letter("A")) if slot.reads
            else Written(slot, letter("u"), letter("b"), letter("B"))
            for slot in chunk.slots
        ]  # fmt: skip
        self.right, self.w = letter("R"), letter("w")
        self.end, self.start = chunk.state(chunk.last), chunk.state("0")
        self.late = "i" if not self.solves or chunk.reading[0].after else "i-1"
        covectors = {part.covector for read in chunk.own.reads for part in read.parts}
        self.covector = covectors.pop() if len(covectors) == 1 else None

    # --- names ---

    def query(self, at: str = "i") -> Math:
        """The vector of a read: by its own name, if all reads are made with one value."""
        if self.covector is not None:
            found = self.rows.at(at).value(self.covector)
            if isinstance(found, Name):
                return found
        return Name(self.rows.letters.of("q"), (at,))

    def read(self, at: str = "i") -> Math:
        """The name of the value that is read."""
        if not self.reads:
            return Name(self.rows.letters.of("r"), (at,))
        return Formulas(self.study, self.form, at).result(self.chunk.own.reads[0], 0)

    # --- pieces ---

    def _scaled(self, ratio: Math | None, vector: Math) -> Math:
        """A vector on the key axis, decayed."""
        if ratio is None:
            return vector
        if not self.rows.key_wide:
            return row(ratio, vector)
        return Fence(row(ratio, TIMES, vector))

    def _since(self, at: str) -> Math | None:
        return self.chunk.gamma(at) if self.rows.decays else None

    def _product(self, left: Math, ratio: Math | None, right: Math) -> Math:
        """left^T Diag(decay) right."""
        if ratio is not None and self.rows.key_wide:
            return Fence(row(transposed(left), function("Diag", ratio), right))
        return Fence(row(ratio, transposed(left), right))

    def _pair(self, one: Written) -> Math:
        """dr_i^T y_j."""
        return Fence(row(transposed(slope(self.read())), Name(one.y, ("j",))))

    # --- formulas ---

    def blocks(self) -> Iterator[Block]:
        """From what is written back to the inputs."""
        for one in self.slots:
            if one.slot.reads:
                yield Formula(self.written(one), "what is written", SEQUENTIAL)
        yield Formula(self.state(), "to the chunk before", SEQUENTIAL)
        if self.solves:
            yield para(
                "A solution of a linear system hands its gradient on through the same system,"
                " transposed; the inverse is there already:"
            )
            yield from self._system()
        yield para("What the products of pairs of rows hand on is products of the same kind:")
        yield from (Formula(math, "", PARALLEL) for math in self._vectors())
        if self.rows.decays:
            yield from self._gates()

    def written(self, one: Written) -> Math:
        """dy_i: later rows have read it, and it is in the state in the end."""
        parts: list[Math] = []
        x = Name(one.x, ("i",))
        if self.reads:
            later = Sum("∑", row(Name("l"), Sign("≥"), Name("i")))
            weight = self._product(self.query("l"), self.chunk.ratio("l", "i"), x)
            parts = [later, weight, slope(self.read("l")), PLUS]
        if self.solves and not one.slot.reads:
            later = Sum("∑", row(Name("l"), Sign(">"), Name("i")))
            weight = Name(one.weights, ("l", "i"))
            parts += [later, weight, slope(Name(self.right, ("l",))), PLUS]
        kept = self._scaled(self.chunk.ratio(self.chunk.last, "i"), x)
        end = slope(self.end)
        last = row(transposed(end), kept) if self.wide else row(transposed(kept), end)
        return row(slope(Name(one.y, ("i",))), EQUALS, *parts, last)

    def state(self) -> Math:
        """dS_0: what is left of it in the end, what reads it, and what corrections read."""
        parts: list[Math] = [self.chunk.whole(self.chunk.last, slope(self.end))]
        if self.reads:
            q, r = self._scaled(self._since("i"), self.query()), slope(self.read())
            parts += [PLUS, Sum("∑", Name("i")), row(q, transposed(r) if self.wide else r)]
        if self.solves:
            parts += [PLUS, transposed(self.chunk.W), slope(self.chunk.Y)]
        return row(slope(self.start), EQUALS, *parts)

    def _system(self) -> Iterator[Block]:
        """Through the triangular system."""
        rights, solve = slope(Name(self.right, bold=True)), self.chunk.solve
        assert isinstance(solve, Power), "an inverse"
        back = Power(solve.base, Row((NEGATIVE, T)))
        yield Formula(row(rights, EQUALS, back, slope(self.chunk.Y)), "the right side", PARALLEL)
        mine = slope(Name(self.right, ("i",)))
        for one in self.slots:
            pair = row(transposed(mine), Name(one.y, ("j",)))
            weights = slope(Name(one.weights, ("i", "j")))
            yield Formula(row(weights, EQUALS, pair), "for j < i", PARALLEL)
        if all(term.c == 0 for _, term in self.chunk.reading[0].terms):
            return
        c = Name(self.rows.letters.of("c"), ("i",))
        yield Formula(row(slope(c), EQUALS, mine), "", PARALLEL)

    def _vectors(self) -> Iterator[Math]:
        """Cotangents of the vectors that read, and of those that rows are written with."""
        if self.reads:
            own = self._scaled(self._since("i"), Fence(row(self.start, slope(self.read()))))
            parts = [own]
            for one in self.slots:
                moved = self._scaled(self.chunk.ratio("i", "j"), Name(one.x, ("j",)))
                parts += [PLUS, Sum("∑", UP_TO), self._pair(one), moved]
            yield row(slope(self.query()), EQUALS, *parts)
        if self.solves:
            right = Fence(row(self.start, slope(Name(self.right, ("i",)))))
            parts = [self._scaled(self._since(self.late), right)]
            for one in self.slots:
                moved = self._scaled(self.chunk.ratio(self.late, "j"), Name(one.x, ("j",)))
                weights = slope(Name(one.weights, ("i", "j")))
                parts += [PLUS, Sum("∑", EARLIER), weights, moved]
            yield row(slope(Name(self.w, ("i",))), EQUALS, *parts)
        for one in self.slots:
            yield self._key(one)
            if not one.slot.reads:
                yield self.written(one)

    def _key(self, one: Written) -> Math:
        """dx_j: rows after j have read it, and it is in the state in the end."""
        parts: list[Math] = []
        if self.reads:
            moved = self._scaled(self.chunk.ratio("i", "j"), self.query())
            parts += [FROM_J, self._pair(one), moved, PLUS]
        if self.solves:
            moved = self._scaled(self.chunk.ratio(self.late, "j"), Name(self.w, ("i",)))
            parts += [LATER, slope(Name(one.weights, ("i", "j"))), moved, PLUS]
        read = Fence(row(slope(self.end), Name(one.y, ("j",))))
        end = self._scaled(self.chunk.ratio(self.chunk.last, "j"), read)
        return row(slope(Name(one.x, ("j",))), EQUALS, *parts, end)

    def _gates(self) -> Iterator[Block]:
        """The gates' share."""
        more = ", of the triangular system too," if self.solves else ""
        yield para(
            "The gate of row ", Name("s"), f" stands in the decay of every pair of rows{more} that"
            " has ", Name("s"), " between them, and in that of the state at both ends of the chunk."
            " Its logarithm gets the share of each, added up: nothing is subtracted, so no digits"
            " are lost.",
        )  # fmt: skip
