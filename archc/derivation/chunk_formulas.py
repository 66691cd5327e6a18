"""The chunked form of a matrix state as formulas, with the spec's own names.

In a chunk, row i writes x_i y_i^T into the state, where y_i may depend on what the state holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.derivation.formula import Formulas
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
from archc.derivation.study import Study
from archc.recurrence.normal_form import BEFORE, NormalForm, Part, StateForm, Term

EARLIER = row(Name("j"), Sign("<"), Name("i"))
UP_TO = row(Name("j"), Sign("≤"), Name("i"))
S0 = ("0",)
IDENTITY_MINUS = Fence(row(Name("I"), MINUS, Name("A")))


@dataclass(frozen=True)
class Written:
    """A term of the update and what its rows are called: y, or y_1, y_2, ..."""

    term: Term
    number: int
    count: int

    def rows(self, at: str = "") -> Math:
        """The row at i, or all of them as a stack."""
        subs = (*([str(self.number + 1)] if self.count > 1 else []), *([at] if at else []))
        return Name("y" if at else "Y", subs, bold=not at)


class ChunkFormulas:
    """Formulas of one state of a matrix form with one micro-step a token."""

    def __init__(self, study: Study, form: NormalForm, own: StateForm) -> None:
        self.own, self.step = own, own.steps[0]
        self.i, self.j = Formulas(study, form, "i"), Formulas(study, form, "j")
        terms = self.step.terms
        self.terms = [Written(term, m, len(terms)) for m, term in enumerate(terms)]
        self.reading = [written for written in self.terms if written.term.w != 0]
        keys = {axis.name for axis in own.key}
        self.wide = bool(keys & set(self.i.table.names(self.step.key)))

    # --- decays ---

    def product_of_gates(self) -> Math | None:
        """Gamma_i = the product of the decays of rows 1 .. i; None without a decay."""
        if self.step.key == 1:
            return None
        gate = Formulas(self.i.study, self.i.form, "r").value(self.step.key)
        upper = Sum("∏", row(Name("r"), Sign("≤"), Name("i")))
        return row(self.gamma("i"), EQUALS, upper, gate)

    def gamma(self, at: str) -> Math:
        """The product of decays up to a row."""
        return Name("Γ", (at,))

    def between(self, late: str, early: str) -> Math | None:
        """The decay from row `early` to row `late`, as a factor before a vector or matrix."""
        if self.step.key == 1:
            return None
        ratio = Fraction(self.gamma(late), self.gamma(early))
        return function("Diag", ratio) if self.wide else ratio

    def since_start(self, at: str) -> Math | None:
        """The decay from the start of the chunk to a row, before a matrix."""
        if self.step.key == 1:
            return None
        return function("Diag", self.gamma(at)) if self.wide else self.gamma(at)

    def decayed(self, vector: Math, at: str, after: bool = True) -> Math:
        """A vector times the decay from the start of the chunk."""
        if self.step.key == 1:
            return vector
        return Fence(row(self.gamma(at if after else f"{at}-1"), TIMES, vector))

    # --- formulas ---

    def state_in_chunk(self) -> Math:
        """S'_i as what the chunk began with and what its rows have written."""
        state = named(self.own.state, "i", prime=self.step.decay != 1)
        begun = row(self.since_start("i"), named(self.own.state, *S0))
        return row(state, EQUALS, begun, PLUS, *self._sum_of_writes(EARLIER, "i"))

    def _sum_of_writes(self, over: Math, late: str) -> list[Math]:
        parts: list[Math] = []
        for written in self.terms:
            x = self.j.vector_of(written.term.x)
            parts += [PLUS] if parts else []
            y = written.rows("j") if not self.own.value else transposed(written.rows("j"))
            parts += [Sum("∑", over), row(self.between(late, "j"), x, y)]
        return parts

    def what_is_written(self, written: Written) -> Math:
        """y_i: what a row writes."""
        term = written.term
        if term.w == 0:
            return row(written.rows("i"), EQUALS, self.i.value(term.c))
        state = named(self.own.state, "i", prime=self.step.decay != 1)
        state = state if term.after else named(self.own.state, "i-1")
        parts = [self.i.value(term.c)] if term.c != 0 else []
        negative, w = self._signed(term.w)
        sign = [(MINUS if parts else NEGATIVE) if negative else PLUS] if parts or negative else []
        return row(written.rows("i"), EQUALS, *parts, *sign, self.i.read_by(self.own, w, state))

    def system(self, reader: Written, writer: Written) -> Math:
        """A_ij: what row i reads of what row j has written."""
        name = Name("A", (*self._pair(reader, writer), "i", "j"))
        negative, w = self._signed(reader.term.w)
        scale, vector = self.i.split(w)
        left = transposed(self.i.vector_of(vector) or Number("1"))
        x = self.j.vector_of(writer.term.x)
        value = row(self.i.factor(scale), left, self.between("i", "j"), x)
        return row(name, EQUALS, NEGATIVE if negative else None, value)

    def _pair(self, reader: Written, writer: Written) -> list[str]:
        return [f"{reader.number + 1}{writer.number + 1}"] if len(self.terms) > 1 else []

    def solution(self) -> list[Math]:
        """U, W and Y = U + W S_0 of the only term that reads."""
        (reader,) = self.reading
        term = reader.term
        negative, w = self._signed(term.w)
        scale, vector = self.i.split(w)
        inner = self.decayed(self.i.vector_of(vector) or Number("1"), "i", term.after)
        inner = row(NEGATIVE if negative else None, self.i.factor(scale), inner)
        c = self.i.value(term.c) if term.c != 0 else Number("0")
        known = [w for w in self.terms if w.term.w == 0]
        extra = [row(PLUS, Name("A", (*self._pair(reader, k),), bold=True), k.rows()) for k in known]
        right = Fence(row(self._stack(c), *extra)) if extra else self._stack(c)
        U, W = Name("U", bold=True), Name("W", bold=True)
        return [
            row(U, EQUALS, inverse(IDENTITY_MINUS), right),
            row(W, EQUALS, inverse(IDENTITY_MINUS), self._stack(inner)),
            row(reader.rows(), EQUALS, U, PLUS, W, named(self.own.state, *S0)),
        ]

    @staticmethod
    def _stack(of: Math) -> Math:
        """All rows i of a value as a matrix."""
        return Row((Fence(of, "[", "]"), Words(" "))) if isinstance(of, Row) else Fence(of, "[", "]")

    def end(self) -> Math:
        """The state after the chunk."""
        new, old = named(self.own.state, "C"), named(self.own.state, *S0)
        every = Name("j")
        return row(
            new, EQUALS, row(self.since_start("C"), old), PLUS, *self._sum_of_writes(every, "C")
        )

    def read(self, part: Part) -> Math:
        """What a covector reads in the chunk, without its scale."""
        scale, vector = self.i.split(part.covector)
        q = self.i.vector_of(vector) or Number("1")
        state = named(self.own.state, *S0)
        start = self.decayed(q, "i", part.when != BEFORE)
        first = row(transposed(state), start) if self.own.value else row(transposed(start), state)
        parts: list[Math] = [first]
        for written in self.terms:
            x = self.j.vector_of(written.term.x)
            weight = Fence(row(transposed(q), self.between("i", "j"), x))
            over = UP_TO if part.when == "written" else EARLIER
            parts += [PLUS, Sum("∑", over), row(weight, written.rows("j"))]
        body = row(*parts)
        return body if scale == 1 else row(self.i.factor(scale), Fence(body))

    def _signed(self, expr: sympy.Expr) -> tuple[bool, sympy.Expr]:
        """Whether all of an expression is negative, and it without the sign."""
        negative = self.i.is_negative(expr)
        return negative, sympy.expand(-expr) if negative else expr
