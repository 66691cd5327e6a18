"""Steps of a derivation: one token at a time, and runs of tokens composed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import sympy

from archc.derivation.chunk_formulas import ChunkFormulas
from archc.derivation.costs import cost_math
from archc.derivation.maths import (
    EQUALS,
    MINUS,
    PLUS,
    TIMES,
    Fence,
    Math,
    Name,
    Number,
    function,
    named,
    row,
    transposed,
)
from archc.derivation.page import Block, Formula, Step, para
from archc.derivation.row_names import Spelled, rows_of
from archc.derivation.telling import Telling
from archc.derivation.work import at_sizes, given, in_numbers, operations
from archc.dims import Axis
from archc.recurrence.law.composition import Law, LawRound, WithoutLaw
from archc.recurrence.law.parts import BLOCKS, FACTOR, MATRIX, MAXIMUM, RESCALED, Group, addition
from archc.verify.checks import decode_checks, law_checks


def decode(telling: Telling) -> Step:
    """The update itself, and what it moves."""
    study = telling.study
    size = sympy.Add(*(_numbers(state.axes) for state in study.recurrence.states))
    types = [study.graph[id].type for id in study.captured.values()]
    weights = sympy.Add(*(_numbers(t.axes) for t in types if all(a.kind == "dim" for a in t.axes)))
    flops = operations(telling.trial.step)
    moved = 8 * size + 4 * weights
    sizes = at_sizes(study.layer, size, flops, moved)
    rate = float((flops / moved).subs({s: sizes[str(s)] for s in (flops / moved).free_symbols}))
    also = (", and the weights in the update are read, ", cost_math(weights), " numbers")
    verdict = (
        f"{rate:.2g} operations a byte: decoding waits for memory" if rate < SLOW
        else f"{rate:.2g} operations a byte, which keeps the arithmetic units busy"
    )  # fmt: skip
    blocks: list[Block] = [
        para(
            "With one new token there is nothing to take together: the update is computed as it"
            " stands. All that is kept of a sequence, however long it is, is the state, ",
            cost_math(size), " numbers a sequence. Each is read once and written once",
            *(also if weights != 0 else ()), ". A token takes ", cost_math(flops), " operations."
            f" With {given(sizes, flops, moved)} that is {in_numbers(flops, sizes)} operations for"
            f" {in_numbers(moved, sizes)}B in float32, {verdict}.",
        ),
        *telling.run(decode_checks(telling.trial)),
    ]  # fmt: skip
    return Step("Decoding", tuple(blocks))


SLOW = 16
"""Operations a byte that processors do while they wait for memory."""


def _numbers(axes: Iterable[Axis]) -> sympy.Expr:
    """Elements, for one sequence."""
    return sympy.Mul(*(axis.size for axis in axes if axis.kind == "dim"))


# --- the composition law --------------------------------------------------------------------------


def law(telling: Telling) -> Step:
    """The composition law: the effect of a run of tokens on the state, and how runs compose."""
    found = telling.study.law
    if isinstance(found, WithoutLaw):
        own = {name for law in telling.study.derived.laws if law.token for name in law.states}
        if own.issuperset(found.states):
            return Step("Composition", (para(IN_BOUNDS),))
        names = ", ".join(f"`{name}`" for name in found.states)
        more = f" ({found.help})" if found.help else ""
        return Step("Composition", (para(f"There is no law: {names}: {found.reason}{more}."),))
    blocks: list[Block] = [
        para(
            "What a run of tokens does to the state can be said without knowing the state. That is"
            " the run's summary, and two runs, one after the other, have a summary that is made of"
            " theirs."
        )
    ]
    for each in found.rounds:
        blocks += _round(telling, each, len(found.rounds) > 1)
    blocks.append(
        para(
            "The merge is associative: which neighbours are merged first does not matter. So one"
            " long sequence can be cut into parts that are summarised at the same time, on as many"
            " devices as there are; the merged summaries say where each part starts from. A summary"
            " also stands for a prefix that many sequences share."
        )
    )
    blocks += telling.run(law_checks(telling.trial))
    return Step("Composition", tuple(blocks))


IN_BOUNDS = (
    "Runs of tokens compose by the summaries that “Within bounds” has, where they were merged with"
    " numbers. Chunks are computed so; the law as functions, `spec.law`, and a sequence on several"
    " devices are for linear states and for laws that a spec gives."
)


def _round(telling: Telling, each: LawRound, several: bool) -> Iterator[Block]:
    if several:
        names = ", ".join(f"`{name}`" for name in each.states)
        yield para(f"Of {names}, once the states before are known at every token:")
    for group in each.groups:
        yield from KINDS[group.kind](telling, group) if group.kind in KINDS else ()
        parts = [group.transition, *(addition(state.name) for state in group.states)]
        sizes = ", ".join(
            f"`{name}` [{', '.join(a.name for a in each.parts[name].axes if a.kind == 'dim')}]"
            for name in parts if name in each.parts
        )  # fmt: skip
        yield para(f"The parts of the summary and their axes: {sizes}.")


def _P(at: str = "") -> Math:
    return Name("P", (at,) if at else ())


def _Q(state: str, at: str = "") -> Math:
    return named(addition(state), *([at] if at else []))


def _applied(group: Group, product: bool) -> Iterator[Block]:
    """S after = P S before + Q, and the merge."""
    times = None if product else TIMES
    for state in group.states:
        after, begun = named(state.name, "T"), named(state.name, "0")
        yield Formula(
            row(after, EQUALS, _P(), times, begun, PLUS, _Q(state.name)), "a run of tokens"
        )
    yield Formula(row(_P(), EQUALS, _P("2"), times, _P("1")), "two runs, 1 before 2")
    for state in group.states:
        moved = row(_P("2"), times, _Q(state.name, "1"))
        yield Formula(row(_Q(state.name), EQUALS, moved, PLUS, _Q(state.name, "2")))


def _factor(telling: Telling, group: Group) -> Iterator[Block]:
    yield para("A run scales the state by the product ", _P(), " of its decays, and adds to it:")
    yield from _applied(group, False)


def _matrix(telling: Telling, group: Group) -> Iterator[Block]:
    """A matrix; of a chunk it has a formula of low rank."""
    form = next(
        (f for f in telling.matrices if f.forms[0].state == group.states[0].name), None
    )  # fmt: skip
    yield para("A run multiplies the state by a matrix ", _P(), " and adds to it:")
    yield from _applied(group, True)
    if form is None:
        return
    own = form.forms[0]
    rows = rows_of(telling.study, form, own)
    formulas = ChunkFormulas(rows)
    if isinstance(rows, Spelled) and formulas.reading:
        yield para("For one token,")
        yield Formula(row(_P(), EQUALS, *_transition(rows, formulas)))
    if formulas.reading:
        last = formulas.last
        kept = formulas.whole(last, Number("1")) if not rows.decays else None
        decay = formulas.gamma(last) if rows.decays else None
        kept = (
            function("Diag", decay) if decay is not None and rows.key_wide
            else row(decay, Name("I")) if decay is not None else Name("I")
        )  # fmt: skip
        x = Name(rows.letters.of("X"), bold=True)
        yield para("and for a chunk, with the rows of ", x, " what each row writes with, decayed to"
                   " the end of the chunk, and the matrices of its solution,")  # fmt: skip
        yield Formula(row(_P(), EQUALS, kept, PLUS, transposed(x), formulas.W))
        free = PLUS if formulas.free else None
        more = Name("…") if formulas.free else None
        yield Formula(
            row(_Q(own.state), EQUALS, transposed(x), formulas.U, free, more),
            "with what is written without a read" if formulas.free else "",
        )


def _transition(rows: Spelled, formulas: ChunkFormulas) -> Iterator[Math]:
    """(I + x w^T) Diag(decay), or Diag(decay) + x w^T."""
    slot = formulas.reading[0]
    x, w = rows.x(slot, "t"), rows.w(slot, "t")
    outer = row(w.scale, x.vector, transposed(w.vector) if w.vector else None)
    sign = MINUS if w.negative else PLUS
    gate = rows.gate("t") if rows.decays else None
    decay = function("Diag", gate) if gate is not None and rows.key_wide else gate
    if slot.after or decay is None:
        yield (
            Fence(row(Name("I"), sign, outer)) if decay is not None else row(Name("I"), sign, outer)
        )
        if decay is not None:
            yield decay
        return
    yield from (decay if rows.key_wide else row(decay, Name("I")), sign, outer)


def _blocks(telling: Telling, group: Group) -> Iterator[Block]:
    yield para("The states feed one another: ", _P(), " is a small matrix between them, and a run"
               " takes each state from all of them.")  # fmt: skip
    yield Formula(row(_P(), EQUALS, _P("2"), _P("1")), "two runs, 1 before 2")
    q = Name("Q")
    yield Formula(row(q, EQUALS, _P("2"), Name("Q", ("1",)), PLUS, Name("Q", ("2",))))


def _maximum(telling: Telling, group: Group) -> Iterator[Block]:
    (state,) = group.states
    p, q = named(group.transition), _Q(state.name)
    moved = row(p, PLUS, named(state.name, "0"))
    yield Formula(row(named(state.name, "T"), EQUALS, function("max", moved, q)), "a run of tokens")
    p1, p2 = named(group.transition, "1"), named(group.transition, "2")
    yield Formula(row(p, EQUALS, p2, PLUS, p1), "two runs, 1 before 2")
    joined = function("max", row(p2, PLUS, _Q(state.name, "1")), _Q(state.name, "2"))
    yield Formula(row(q, EQUALS, joined))


def _rescaled(telling: Telling, group: Group) -> Iterator[Block]:
    """Kept divided by the exponential of a running maximum."""
    gauge, log = group.gauge, "log_P"
    yield para(
        "The other states are kept to the scale of ", named(gauge), ". So the logarithm of ", _P(),
        " is a sum, and what comes from an earlier run is brought to the new scale; the new ",
        named(gauge), " is known from its own law:",
    )  # fmt: skip
    yield Formula(row(named(log), EQUALS, named(log, "2"), PLUS, named(log, "1")), "two runs")
    for state in group.states:
        kept, own = _exponents(group, log)
        yield Formula(
            row(_Q(state.name), EQUALS, function("exp", kept), TIMES, _Q(state.name, "1"), PLUS,
                function("exp", own), TIMES, _Q(state.name, "2")),
        )  # fmt: skip


def _exponents(group: Group, log: str) -> tuple[Math, Math]:
    """The exponents that bring the summaries of two runs to the common scale."""
    first, second, both = (_Q(group.gauge, "1"), _Q(group.gauge, "2"), _Q(group.gauge))
    if group.sign > 0:
        return (
            row(named(log, "2"), PLUS, both, MINUS, first), row(both, MINUS, second),
        )  # fmt: skip
    return row(named(log, "2"), PLUS, first, MINUS, both), row(second, MINUS, both)


KINDS = {
    FACTOR: _factor, MATRIX: _matrix, BLOCKS: _blocks, MAXIMUM: _maximum, RESCALED: _rescaled,
}  # fmt: skip

__all__ = ["Law", "decode", "law"]
