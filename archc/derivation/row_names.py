"""The names of a chunk's rows: the spec's own, or letters of their own.

Row i of a chunk writes x_i y_i^T into the state; where its covector w_i reads the state, y_i is
c_i + S^T w_i. A token with one micro-step and one such read is one row, and needs no letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy

from archc.derivation.formula import Formulas
from archc.derivation.letters import Letters
from archc.derivation.maths import Math, Name, Number
from archc.recurrence.affine.form import NormalForm, StateForm, Step, Term
from archc.verify.study import Study


@dataclass(frozen=True)
class Slot:
    """The terms that stand in one place of every micro-step, by micro-step; `number` counts those
    that read, or those that do not, from 1, and is 0 where there is but one."""

    terms: tuple[tuple[int, Term], ...]
    reads: bool
    after: bool
    number: int

    @property
    def term(self) -> Term:
        """The first of them."""
        return self.terms[0][1]

    @property
    def sub(self) -> tuple[str, ...]:
        """The subscript of a slot; empty where there is one alone."""
        return (str(self.number),) if self.number else ()


def slots_of(steps: tuple[Step, ...]) -> tuple[Slot, ...]:
    """Terms of different micro-steps in one slot where they read at the same moment."""
    groups: list[dict[int, Term]] = []
    for p, step in enumerate(steps):
        for term in step.terms:
            fits = (g for g in groups if p not in g and _alike(term, next(iter(g.values()))))
            group = next(fits, None)
            if group is None:
                groups.append({p: term})
            else:
                group[p] = term
    kinds = [next(iter(group.values())).w != 0 for group in groups]
    found = []
    for place, group in enumerate(groups):
        own = next(iter(group.values()))
        several = kinds.count(kinds[place]) > 1
        number = kinds[: place + 1].count(kinds[place]) if several else 0
        found.append(Slot(tuple(group.items()), own.w != 0, own.after, number))
    return tuple(found)


def _alike(one: Term, other: Term) -> bool:
    return one.after == other.after and (one.w == 0) == (other.w == 0)


@dataclass(frozen=True)
class Factor:
    """A sign, a number and a vector: what a term is multiplied by; None stands for 1."""

    negative: bool
    scale: Math | None
    vector: Math | None

    @property
    def nothing(self) -> bool:
        """Whether it is 0."""
        return self.vector == Number("0")


class Spelled:
    """Rows by the spec's names: one micro-step a token."""

    def __init__(self, study: Study, form: NormalForm, own: StateForm) -> None:
        self.letters = Letters(study)
        self.study, self.form, self.own, self.step = study, form, own, own.steps[0]
        keys, values = ({axis.name for axis in axes} for axes in (own.key, own.value))
        table = self.at("i").table
        self.key_wide = bool(keys & set(table.names(self.step.key)))
        self.value_wide = bool(values & set(table.names(self.step.value)))
        self.decays = self.step.key != 1
        self.value_decays = self.step.value != 1

    def at(self, row: str) -> Formulas:
        """Formulas at a row."""
        return Formulas(self.study, self.form, row)

    def gate(self, row: str) -> Math:
        """The decay of a row."""
        return self.at(row).value(self.step.key)

    def value_gate(self, row: str) -> Math:
        """The decay on the value side of a row."""
        return self.at(row).value(self.step.value)

    def x(self, slot: Slot, row: str) -> Factor:
        """The left vector that a row is written along."""
        return self._factor(slot.term.x, row)

    def w(self, slot: Slot, row: str) -> Factor:
        """The covector that a row reads with."""
        return self._factor(slot.term.w, row)

    def c(self, slot: Slot, row: str) -> Factor:
        """The part of a written row that does not depend on the state."""
        return self._factor(slot.term.c, row)

    def q(self, covector: sympy.Expr, row: str) -> Factor:
        """The vector that an output reads a state with."""
        return self._factor(covector, row)

    def _factor(self, expr: sympy.Expr, row: str) -> Factor:
        formulas = self.at(row)
        if expr == 0:
            return Factor(False, None, Number("0"))
        negative = formulas.table.is_negative(expr)
        scale, vector = formulas.split(sympy.expand(-expr) if negative else expr)
        return Factor(negative, formulas.factor(scale), formulas.vector_of(vector))


class Lettered:
    """Rows by letters: x, w, c and a decay gamma; a token is as many rows as it has micro-steps."""

    def __init__(self, study: Study, form: NormalForm, own: StateForm) -> None:
        self.letters = Letters(study)
        self.study, self.form, self.own, self.steps = study, form, own, own.steps
        keys, values = ({axis.name for axis in axes} for axes in (own.key, own.value))
        table = self.at("t").table
        self.key_wide = any(keys & set(table.names(step.key)) for step in self.steps)
        self.value_wide = any(values & set(table.names(step.value)) for step in self.steps)
        self.decays = any(step.key != 1 for step in self.steps)
        self.value_decays = any(step.value != 1 for step in self.steps)

    def at(self, row: str) -> Formulas:
        """Formulas at a token."""
        return Formulas(self.study, self.form, row)

    def gate(self, row: str) -> Math:
        """The decay of a row."""
        return Name(self.letters.of("γ"), (row,))

    def value_gate(self, row: str) -> Math:
        """The decay on the value side of a row."""
        return Name(self.letters.of("δ"), (row,))

    def x(self, slot: Slot, row: str) -> Factor:
        """The left vector that a row is written along."""
        name = "x" if slot.reads else "u"
        return Factor(False, None, Name(self.letters.of(name), (*slot.sub, row)))

    def w(self, slot: Slot, row: str) -> Factor:
        """The covector that a row reads with, its sign within."""
        return Factor(False, None, Name(self.letters.of("w"), (*slot.sub, row)))

    def c(self, slot: Slot, row: str) -> Factor:
        """The part of a written row that does not depend on the state."""
        name = "c" if slot.reads else "b"
        return Factor(False, None, Name(self.letters.of(name), (*slot.sub, row)))

    def q(self, covector: sympy.Expr, row: str) -> Factor:
        """The vector that an output reads a state with."""
        found = self.at(row).value(covector)
        own = found if isinstance(found, Name) else Name(self.letters.of("q"), (row,))
        return Factor(False, None, own)

    def meanings(self) -> Iterator[tuple[Math, list[Math]]]:
        """Each letter, and what it stands for in each micro-step of token t."""
        formulas = self.at("i" if len(self.steps) == 1 else "t")
        if self.decays:
            yield self.gate("i"), [formulas.value(step.key) for step in self.steps]
        if self.value_decays:
            yield self.value_gate("i"), [formulas.value(step.value) for step in self.steps]
        for slot in slots_of(self.steps):
            terms = dict(slot.terms)
            for letter, field in ((self.x, "x"), (self.c, "c"), (self.w, "w")):
                if field == "w" and not slot.reads:
                    continue
                found = [
                    formulas.value(getattr(terms[p], field)) if p in terms else Number("0")
                    for p in range(len(self.steps))
                ]
                name = letter(slot, "i").vector
                assert name is not None, "a letter"
                yield name, found


Rows = Spelled | Lettered


def rows_of(study: Study, form: NormalForm, own: StateForm) -> Rows:
    """Rows by the spec's names where that is simple, else by letters."""
    readers = sum(term.w != 0 for term in own.steps[0].terms)
    simple = len(own.steps) == 1 and readers <= 1
    return Spelled(study, form, own) if simple else Lettered(study, form, own)
