"""A step of a derivation: why no exponential overflows, and where exponents are summed from."""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from archc.derivation.formula import Formulas
from archc.derivation.letters import Letters
from archc.derivation.maths import (
    EQUALS,
    Fraction,
    Math,
    Name,
    Number,
    Sign,
    Sum,
    Words,
    function,
    named,
    row,
)
from archc.derivation.outside import chain
from archc.derivation.page import Block, Formula, Inline, Step, Table, para
from archc.derivation.telling import Telling
from archc.ir import chunk as ck
from archc.ir.value_names import state_before
from archc.recurrence.affine.atoms import Atom
from archc.recurrence.affine.atoms import Table as Atoms
from archc.recurrence.affine.form import DENSE, DIAGONAL, LINKED, TROPICAL, NormalForm
from archc.recurrence.analysis.semirings import MAX
from archc.verify.checks import safe_checks
from archc.verify.study import Study

MOST_GATES = 4


def numbers(telling: Telling) -> Step:
    """Gates, their intervals, and how exponents are made."""
    blocks: list[Block] = []
    decaying = [f for f in telling.matrices if any(s.decay != 1 for s in f.forms[0].steps)]
    g = Letters(telling.study).of("g")
    if decaying:
        blocks += _logs(telling, decaying)
        blocks += _never_quotients(g)
        blocks += _anchors(telling, g)
    elif telling.matrices:
        blocks.append(para("Nothing decays, so there is no exponential that could overflow."))
    blocks += _others(telling)
    blocks += telling.run(safe_checks(telling.trial))
    return Step("Safe numbers", tuple(blocks))


# --- gates ----------------------------------------------------------------------------------------


def _logs(telling: Telling, forms: list[NormalForm]) -> Iterator[Block]:
    """Every decay enters as its logarithm, which is at most 0."""
    yield para(
        "A product of many decays is soon too small for a float, and a quotient of two such"
        " products is 0 / 0. So a decay enters as its logarithm, and products become sums. A decay"
        " may only shrink the state: its logarithm must be at most 0, which follows from how the"
        " gate is made:"
    )
    for form in forms:
        gates = dict.fromkeys(g for step in form.forms[0].steps for g in (step.key, step.value))
        for gate in [each for each in gates if each != 1][:MOST_GATES]:
            yield from _gate(telling.study, form, gate)


def _gate(study: Study, form: NormalForm, gate: sympy.Expr) -> Iterator[Block]:
    """One decay: its logarithm, and the interval of that."""
    table, formulas = Atoms(form.atoms), Formulas(study, form)
    gauges = {name for each in study.derived.forms if each.sums == MAX for name in each.states}
    gauged = False
    exps = [form.atoms[s] for s in table.symbols(gate) if form.atoms[s].fn == "exp"]
    for atom in exps:
        used = {name for name in gauges if _mentions(table, atom, name)}
        if used:
            gauged = True
            yield from _gauged(formulas, atom, sorted(used)[0])
    if gauged:
        return
    named_logs = [name for name, id in study.captured.items() if _enters(form, table, gate, name)]
    for name in named_logs:
        rows = [(math, str(interval)) for math, interval in chain(study, study.captured[name])]
        logarithm = named(name, "t")
        rows.append((logarithm, str(study.known[study.captured[name]])))
        yield Table(("value", "lies in"), tuple(_readable(rows)))


def _readable(rows: list[tuple[Math, str]]) -> Iterator[tuple[Inline, ...]]:
    for math, interval in rows:
        yield math, interval.replace("-inf", "−∞").replace("inf", "∞")


def _enters(form: NormalForm, table: Atoms, gate: sympy.Expr, name: str) -> bool:
    """Whether a captured value is (part of) the gate."""
    return any(_mentions(table, form.atoms[s], name) for s in table.symbols(gate))


def _mentions(table: Atoms, atom: Atom, name: str) -> bool:
    """Whether an atom is made of a value."""
    if atom.kind in ("value", "state"):
        return atom.head in (name, state_before(name))
    return any(
        _mentions(table, table.atoms[s], name) for arg in atom.args for s in table.symbols(arg)
    )


def _gauged(formulas: Formulas, atom: Atom, gauge: str) -> Iterator[Block]:
    """An exponent with a running maximum in it."""
    exponent = formulas.value(atom.args[0])
    yield Formula(row(exponent, Sign("≤"), Number("0")))
    yield para(
        "whatever the gates are: ", named(gauge, "t"), " is the maximum of several values, and what"
        " is subtracted from here is one of them.",
    )  # fmt: skip


# --- exponents ------------------------------------------------------------------------------------


def _never_quotients(g: str) -> Iterator[Block]:
    """The decay between two rows as the exponential of a sum."""
    span = row(
        Sum("∑", row(Name("j"), Sign("<"), Name("s"), Sign("≤"), Name("i"))), Name(g, ("s",))
    )
    ratio = Fraction(Name("Γ", ("i",)), Name("Γ", ("j",)))
    yield para(
        "Write ", Name(g), " for the logarithm of a decay. The decay between two rows, which the"
        " formulas above have as a quotient, is computed as",
    )  # fmt: skip
    yield Formula(row(ratio, EQUALS, function("exp", span), Sign("≤"), Number("1")))
    yield para(
        "The sum has no positive term, so its exponential is at most 1. It is summed from row ",
        Name("j"), " on, never taken as the difference of two sums from the start of the chunk:"
        " with gates of −1000 a difference of large sums has lost its digits, and with −∞ it is"
        " −∞ − (−∞), which is no number. Pairs that are left out are set to −∞ before the"
        " exponential, not to 0 after it.",
    )  # fmt: skip


def _anchors(telling: Telling, g: str) -> Iterator[Block]:
    """How the exponentials are shared out between the two sides of a product."""
    graph = telling.study.derived.graph
    ops = [node.op for node in graph] if graph is not None else []
    if any(isinstance(op, ck.Spans) for op in ops):
        yield para(
            "There is one gate for a whole product here, so the products of all pairs of rows are"
            " made first, by one multiplication of matrices, and each is then multiplied by its"
            " decay."
        )
    if any(isinstance(op, ck.Gram) for op in ops):
        yield from _halves(g)


def _halves(g: str) -> Iterator[Block]:
    """A tree of halves."""
    later = row(
        Sum("∑", row(Name("b"), Sign("<"), Name("s"), Sign("≤"), Name("i"))), Name(g, ("s",))
    )
    early = row(
        Sum("∑", row(Name("j"), Sign("<"), Name("s"), Sign("≤"), Name("b"))), Name(g, ("s",))
    )
    yield para(
        "Each channel has its own gate, so the decay stands inside the sum over channels and must"
        " be shared out between the two vectors of a product. Dividing by ", Name("Γ", ("j",)),
        " would do it, and overflow. Instead take a border ", Name("b"), " with ", Name("j"),
        " before and ", Name("i"), " after it:",
    )  # fmt: skip
    yield Formula(
        row(
            Fraction(Name("Γ", ("i",)), Name("Γ", ("j",))), EQUALS, function("exp", later),
            Words(" "), function("exp", early),
        ),
        "both at most 1",
    )  # fmt: skip
    yield para(
        "One factor goes to row ", Name("i"), ", the other to row ", Name("j"), ", and all pairs"
        " across the border are one product of matrices. The first border is the middle of the"
        " chunk; then each half is treated the same way, and so on. No exponent is ever positive,"
        " whatever the gates are.",
    )  # fmt: skip


# --- states without logarithms --------------------------------------------------------------------


def _others(telling: Telling) -> Iterator[Block]:
    """Forms whose decays stay factors."""
    kinds = {form.kind for form in telling.forms}
    if DIAGONAL in kinds:
        yield para(
            "The decays of an elementwise state stay factors: they are multiplied in the order of"
            " the tokens and never divided by, so a decay of 0, or a negative one, is as good as"
            " any other."
        )
        yield from _factors(telling)
    if LINKED in kinds:
        yield para(
            "The numbers between states are multiplied and added up in the order of the tokens, and"
            " never divided by: a decay of 0, or a negative one, is as good as any other."
        )
    if DENSE in kinds:
        yield para(
            "The products of the matrix have no exponential and no quotient in them. Whether they"
            " stay small is up to the matrix, as it is in the loop."
        )
    if kinds == {TROPICAL}:
        yield para(
            "There are only sums, maxima and minima, and exponentials of what is not above 0:"
            " nothing can overflow that the loop keeps."
        )


def _factors(telling: Telling) -> Iterator[Block]:
    """Intervals of decays that stay factors."""
    for form in telling.forms:
        if form.kind != DIAGONAL:
            continue
        for own in form.forms:
            table = Atoms(form.atoms)
            names = [
                name for name in telling.study.captured
                if _enters(form, table, own.steps[0].decay, name)
            ]  # fmt: skip
            for name in names:
                id = telling.study.captured[name]
                rows = [(m, str(interval)) for m, interval in chain(telling.study, id)]
                rows.append((named(name, "t"), str(telling.study.known[id])))
                yield Table(("value", "lies in"), tuple(_readable(rows)))
