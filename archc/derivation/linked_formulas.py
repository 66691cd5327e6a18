"""Formulas of matrices that scale one another by numbers: their updates, and a chunk of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sympy

from archc.derivation.formula import Formulas, before
from archc.derivation.letters import Letters
from archc.derivation.maths import (
    EQUALS,
    MINUS,
    NEGATIVE,
    PLUS,
    Fence,
    Math,
    Name,
    Sign,
    Sum,
    Words,
    named,
    row,
    transposed,
)
from archc.derivation.page import PARALLEL, SEQUENTIAL, Block, Formula, para
from archc.recurrence.affine.form import LinkedRead, LinkedTerm, NormalForm


def updates(formulas: Formulas) -> Iterator[Math]:
    """The update of each state: what the others are scaled into it by, and what is written."""
    form = formulas.form
    assert form.links is not None, "linked states have links"
    for place, name in enumerate(form.states):
        parts: list[tuple[bool, Math]] = []
        for scale, other in zip(form.blocks[place], form.states, strict=True):
            if scale != 0:
                old = named(other, before(formulas.at))
                parts.append((False, row(formulas.factor(scale), old)))
        for term in form.links.terms:
            if term.writes[place] != 0:
                parts.append(_written(formulas, term, term.writes[place]))
        yield row(named(name, formulas.at), EQUALS, *_sum(parts))


def _written(formulas: Formulas, term: LinkedTerm, number: sympy.Expr) -> tuple[bool, Math]:
    """x (c + the sum over j of S_j^T w_j)^T times a number, over all rows of a token, and whether
    it is subtracted."""
    assert formulas.form.links is not None, "linked states have links"
    parts = [(formulas.table.is_negative(term.c), _bare(formulas, term.c))] if term.c != 0 else []
    for read, state in zip(term.reads, formulas.form.states, strict=True):
        if read != 0:
            old = named(state, before(formulas.at))
            parts.append((formulas.table.is_negative(read), _read(formulas, read, old)))
    negative = formulas.table.is_negative(number)
    body = row(*_sum(parts))
    inside = transposed(Fence(body) if len(parts) > 1 or parts[0][0] else body)
    factor = formulas.factor(-number if negative else number)
    written = row(factor, formulas.vector_of(term.x), inside)
    return negative, formulas.over_rank(formulas.form.links.rank, term.x, written)


def _bare(formulas: Formulas, expr: sympy.Expr) -> Math:
    """A value without its sign."""
    negative = formulas.table.is_negative(expr)
    return formulas.factor(-expr if negative else expr) or formulas.value(expr)


def _read(formulas: Formulas, covector: sympy.Expr, state: Math) -> Math:
    """S^T w, without the sign of w: numbers first."""
    negative = formulas.table.is_negative(covector)
    scale, vector = formulas.split(-covector if negative else covector)
    return row(formulas.factor(scale), transposed(state), formulas.vector_of(vector))


def _sum(parts: Sequence[tuple[bool, Math]]) -> list[Math]:
    """A sum of values, those with a sign subtracted."""
    found: list[Math] = []
    for negative, part in parts:
        sign = (MINUS if found else NEGATIVE) if negative else PLUS
        found += [sign, part] if found or negative else [part]
    return found


def reads(formulas: Formulas) -> Iterator[Math]:
    """The formula of each value that the recurrence reads of its states."""
    links = formulas.form.links
    assert links is not None, "linked states have links"
    for number, read in enumerate(links.reads):
        yield row(_result(formulas, read, number), EQUALS, *_sum(_parts(formulas, read)))


def _result(formulas: Formulas, read: LinkedRead, number: int) -> Math:
    body = formulas.study.recurrence.body
    name = body[read.node].name
    if name in body.outputs:
        return named(name, formulas.at)
    return Name(formulas.letter, (formulas.at, *([str(number + 1)] if number else [])))


def _parts(formulas: Formulas, read: LinkedRead) -> list[tuple[bool, Math]]:
    found = []
    for part in read.parts:
        at = formulas.at if part.written else before(formulas.at)
        state = named(formulas.form.states[part.state], at)
        whole = row(formulas.factor(part.scale), _read(formulas, part.covector, state))
        found.append((formulas.table.is_negative(part.covector), whole))
    if read.free != 0:
        found.append((formulas.table.is_negative(read.free), _bare(formulas, read.free)))
    return found


def chunk(form: NormalForm, letters: Letters) -> Iterator[Block]:
    """The share of a state in another, the rows of a chunk, and the states after it."""
    links = form.links
    assert links is not None, "linked states have links"
    if links.rank is not None:
        yield para(
            "A token has a row for each entry of ", Words(links.rank.name), ". Its rows read the"
            " states before all of them; its numbers stand at the last one, at which all that it"
            " writes is added, and which is read after it.",
        )  # fmt: skip
    yield from _by_numbers(letters) if links.turn is None else _turned(letters)


def _by_numbers(letters: Letters) -> Iterator[Block]:
    """The same of states that scale one another by numbers."""
    left, fed, x, y = letters.of("F"), letters.of("A"), letters.of("x"), letters.of("y")
    w, c, last = letters.of("w"), letters.of("c"), letters.of("C")

    def of(letter: str, *places: str) -> Math:
        return Name(letter, places)

    yield para(
        "Call ", of(fed, "pq", "i"), " the number that scales state ", Name("q"), " into state ",
        Name("p"), " at row ", Name("i"), ". What state ", Name("p"), " has at row ", Name("i"),
        " of what state ", Name("q"), " was at row ", Name("j"), " is a product of these, a number"
        " for each pair of rows; it is made row after row, and nothing is divided by:",
    )  # fmt: skip
    yield Formula(
        row(of(left, "pq", "ij"), EQUALS, Sum("∑", Name("r")), of(fed, "pr", "i"),
            of(left, "rq", "i-1,j")),
        "numbers", PARALLEL,
    )  # fmt: skip
    yield para(
        "A row ", of(y, "i"), " that reads the states before its token, with a covector ",
        of(w, "p", "i"), " for each, reads with these numbers the states before the chunk and the"
        " rows before it, each written along its ", of(x, "q", "j"), ":",
    )  # fmt: skip
    pairs = row(Name("p"), Words(", "), Name("q"), Words(", "), Name("j"), Sign("<"), Name("i"))
    yield Formula(
        row(of(y, "i"), EQUALS, of(c, "i"), PLUS, Sum("∑", row(Name("p"), Words(", "), Name("q"))),
            of(left, "pq", "i-1,0"), transposed(of("S", "q", "0")), of(w, "p", "i"), PLUS,
            Sum("∑", pairs), of(left, "pq", "i-1,j"),
            Fence(row(transposed(of(w, "p", "i")), of(x, "q", "j"))), of(y, "j")),
        "one triangular system", PARALLEL,
    )  # fmt: skip
    yield Formula(
        row(of("S", "p", last), EQUALS, Sum("∑", Name("q")), Fence(row(
            of(left, "pq", f"{last}0"), of("S", "q", "0"), PLUS, Sum("∑", Name("j")),
            of(left, "pq", f"{last}j"), of(x, "q", "j"), transposed(of(y, "j")),
        ))),
        "to the next chunk", SEQUENTIAL,
    )  # fmt: skip


def _turned(letters: Letters) -> Iterator[Block]:
    """The same of states that are turned: in a frame that turns with them, they only decay."""
    turn, decay, x, y = letters.of("R"), letters.of("D"), letters.of("x"), letters.of("y")
    w, c, last = letters.of("w"), letters.of("c"), letters.of("C")

    def of(letter: str, *places: str) -> Math:
        return Name(letter, places)

    def within(row_: str, letter: str, at: str) -> Math:
        return Fence(row(transposed(of(turn, row_)), of(letter, at)))

    yield para(
        "Call ", of(turn, "i"), " the turn by the sum of the angles from the start of the chunk to"
        " row ", Name("i"), " (the identity where nothing turns), and ", of(decay, "ij"), " the"
        " decay from row ", Name("j"), " to row ", Name("i"), ", a number for each state and"
        " channel. Vectors are those of all states, one below the other. In the frame that turns"
        " with the states they only decay, so that pairs of rows meet as those of one state do:",
    )  # fmt: skip
    yield Formula(
        row(of(y, "i"), EQUALS, of(c, "i"), PLUS, transposed(of("S", "0")), of(decay, "i-1,0"),
            within("i-1", w, "i"), PLUS, Sum("∑", row(Name("j"), Sign("<"), Name("i"))),
            Fence(row(transposed(within("i-1", w, "i")), of(decay, "i-1,j"), within("j", x, "j"))),
            of(y, "j")),
        "one triangular system", PARALLEL,
    )  # fmt: skip
    yield Formula(
        row(of("S", last), EQUALS, of(turn, last), Fence(row(
            of(decay, f"{last}0"), of("S", "0"), PLUS, Sum("∑", Name("j")),
            of(decay, f"{last}j"), within("j", x, "j"), transposed(of(y, "j")),
        ))),
        "to the next chunk", SEQUENTIAL,
    )  # fmt: skip
