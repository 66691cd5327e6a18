"""Steps of a derivation: the chunked form of states that are no matrices, and of solved systems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from archc.derivation import linked_formulas
from archc.derivation.chunk_formulas import ChunkFormulas
from archc.derivation.dependence import dependence
from archc.derivation.formula import Formulas
from archc.derivation.letters import Letters
from archc.derivation.maths import (
    EQUALS,
    PLUS,
    TIMES,
    Fence,
    Math,
    Name,
    Number,
    Row,
    Sign,
    Sum,
    Words,
    function,
    named,
    row,
)
from archc.derivation.page import PARALLEL, SEQUENTIAL, Block, Formula, Step, para
from archc.derivation.row_names import Factor, rows_of
from archc.derivation.telling import Telling, joined
from archc.ir import layer as ir
from archc.ir.value_names import state_before
from archc.recurrence.affine.form import DENSE, TROPICAL, WRITTEN, NormalForm
from archc.recurrence.analysis.semirings import MIN

UP_TO_I = row(Name("s"), Sign("≤"), Name("i"))


def scan_chunks(telling: Telling, form: NormalForm, first: bool = True) -> Step:
    """A chunk of a state that is scaled and added to, mixed by a matrix, or a running maximum."""
    letters = Letters(telling.study)
    blocks: list[Block] = [_cut(letters, first)]
    if form.links is not None:
        blocks += linked_formulas.chunk(form, letters)
    elif form.blocks:
        blocks += _several(Formulas(telling.study, form, "i"), letters)
    else:
        for each in form.forms:
            kind = {DENSE: _dense, TROPICAL: _maximum}.get(form.kind, _diagonal)
            blocks += kind(Formulas(telling.study, form, "i"), each.state, letters)
    ends = [named(name, letters.of("C")) for name in form.states]
    verb = "wait" if len(ends) > 1 else "waits"
    blocks.append(
        para("Only ", *joined(ends), f" {verb} for the chunk before: one small operation a chunk.")
    )
    blocks.append(dependence("local, products", ", ".join(form.states), "all rows"))
    return Step(f"In chunks: {', '.join(form.states)}", tuple(blocks))


def _cut(letters: Letters, first: bool) -> Block:
    last = letters.of("C")
    if not first:
        return para("In the same chunks, each of them starting from nothing at first:")
    return para(
        "Cut the tokens into chunks of ", Name(last), ". Inside a chunk, ", Name("i"), " counts its"
        " rows 1, 2, …, and the subscript 0 is what was there before it. All chunks start from"
        " nothing, at the same time; what they really began with is put in afterwards.",
    )  # fmt: skip


def _local(state: str, at: str) -> Math:
    """The state of a chunk that starts from nothing."""
    found = named(state, at)
    return replace(found, local=True) if isinstance(found, Name) else found


def _ends(letters: Letters, at_row: Callable[[str], Math]) -> Iterator[Block]:
    """The state after a chunk, and in it."""
    yield Formula(at_row(letters.of("C")), "to the next chunk", SEQUENTIAL)
    yield Formula(at_row("i"), "at every row", PARALLEL)


def _diagonal(formulas: Formulas, state: str, letters: Letters) -> Iterator[Block]:
    own = next(each for each in formulas.form.forms if each.state == state)
    step, product = own.steps[0], letters.of("Γ")
    writes = [formulas.write(own, term, named(state)) for term in step.terms]
    added = _added(writes)
    decay = formulas.moved("s").value(step.decay)
    yield Formula(
        row(Name(product, ("i",)), EQUALS, Sum("∏", UP_TO_I), decay), "decays so far", PARALLEL
    )
    scaled = row(formulas.factor(step.decay), TIMES, _local(state, "i-1"))
    yield Formula(row(_local(state, "i"), EQUALS, scaled, *added), "from nothing", PARALLEL)
    yield from _ends(letters, lambda at: row(
        named(state, at), EQUALS, Name(product, (at,)), TIMES, named(state, "0"), PLUS,
        _local(state, at),
    ))  # fmt: skip


def _added(writes: list[Math]) -> list[Math]:
    """Things that are added."""
    return [part for write in writes for part in (PLUS, write)]


def _dense(formulas: Formulas, state: str, letters: Letters) -> Iterator[Block]:
    own = next(each for each in formulas.form.forms if each.state == state)
    step, product = own.steps[0], letters.of("Π")
    matrix = formulas.value(step.matrix)
    if step.decay != 0:
        matrix = Fence(row(matrix, PLUS, formulas.diagonal(step.decay) or Name("I")))
    writes = [formulas.write(own, term, named(state)) for term in step.terms]
    again = row(matrix, Name(product, ("i-1",)))
    first = row(Words(", "), Name(product, ("0",)), EQUALS, Name("I"))
    yield Formula(row(Name(product, ("i",)), EQUALS, again, first),
                  "products of the matrix", PARALLEL)  # fmt: skip
    yield Formula(row(_local(state, "i"), EQUALS, matrix, _local(state, "i-1"), *_added(writes)),
                  "from nothing", PARALLEL)  # fmt: skip
    yield from _ends(letters, lambda at: row(
        named(state, at), EQUALS, Name(product, (at,)), named(state, "0"), PLUS, _local(state, at)
    ))  # fmt: skip


def _maximum(formulas: Formulas, state: str, letters: Letters) -> Iterator[Block]:
    own = next(each for each in formulas.form.forms if each.state == state)
    step, total = own.steps[0], letters.of("F")
    floors = [formulas.value(term.c) for term in step.terms]
    shift = formulas.moved("s").value(step.decay)
    yield Formula(row(Name(total, ("i",)), EQUALS, Sum("∑", UP_TO_I), _fenced(shift)), "", PARALLEL)
    moved = row(formulas.value(step.decay), PLUS, _local(state, "i-1"))
    sums, infinite = formulas.form.sums, Number("∞")
    nothing = infinite if sums == MIN else row(Sign("−", tight=True), infinite)
    start = [Words(", "), _local(state, "0"), EQUALS, nothing]
    yield Formula(row(_local(state, "i"), EQUALS, function(sums, moved, *floors), *start),
                  "from nothing", PARALLEL)  # fmt: skip
    yield from _ends(letters, lambda at: row(
        named(state, at), EQUALS,
        function(sums, row(Name(total, (at,)), PLUS, named(state, "0")), _local(state, at)),
    ))  # fmt: skip


def _fenced(math: Math) -> Math:
    return Fence(math) if isinstance(math, Row) else math


def _several(formulas: Formulas, letters: Letters) -> Iterator[Block]:
    """States that feed one another."""
    product = letters.of("Π")
    whole, matrix = letters.of("s"), letters.of("B")
    yield para(
        "The states feed one another. Written one below the other they are one vector ",
        Name(whole, bold=True), ", and the update multiplies it by a small matrix ",
        Name(matrix, ("i",), bold=True), ", element by element of the other axes, and adds ",
        Name(letters.of("b"), ("i",), bold=True), ":",
    )  # fmt: skip
    yield Formula(row(Name(product, ("i",), bold=True), EQUALS, Name(matrix, ("i",), bold=True),
                      Name(product, ("i-1",), bold=True)), "products", PARALLEL)  # fmt: skip
    if (turn := formulas.form.turn) is not None:
        yield para(
            "This matrix scales by ", formulas.value(turn.sizes[0]), " and turns by ",
            formulas.value(turn.angle), ", and so do its products, by the sums of the angles. With"
            " what is added turned back by them, each state is scanned by itself, and then turned:",
        )  # fmt: skip
    added = Name(letters.of("b"), ("i",), bold=True)
    moved = row(Name(matrix, ("i",), bold=True), Name(whole, ("i-1",), bold=True, local=True))
    yield Formula(row(Name(whole, ("i",), bold=True, local=True), EQUALS, moved, PLUS, added),
                  "from nothing", PARALLEL)  # fmt: skip
    yield from _ends(letters, lambda at: row(
        Name(whole, (at,), bold=True), EQUALS, Name(product, (at,), bold=True),
        Name(whole, ("0",), bold=True), PLUS, Name(whole, (at,), bold=True, local=True),
    ))  # fmt: skip


# --- systems that are solved ----------------------------------------------------------------------


def solved(telling: Telling) -> Step | None:
    """Conjugate gradients on a matrix that is a state; None where nothing is solved."""
    body = telling.study.recurrence.body
    solve = next((node for node in body if isinstance(node.op, ir.Solve)), None)
    if solve is None or not telling.matrices:
        return None
    letters = Letters(telling.study)
    z, p = Name(letters.of("z"), ("i",)), Name(letters.of("p"), ("i",))
    inside = body.ancestors(solve.operands[0]) | {solve.operands[0]}
    blocks: list[Block] = [
        para(
            f"`{_text(solve)}` solves a system whose matrix holds a state. Nobody needs the matrix"
            " itself: the method of conjugate gradients finds ", z, " from products of the matrix"
            " with vectors ", p, " alone, and such a product is a read of the state like any other,"
            " for all tokens at once:",
        )
    ]  # fmt: skip
    names = {
        each.name
        for each in telling.study.recurrence.states
        if _update(telling, each.name) & inside
    }
    for form in telling.matrices:
        for own in form.forms:
            if own.state in names:
                formulas = ChunkFormulas(rows_of(telling.study, form, own))
                found = formulas.read_with(Factor(False, None, p), WRITTEN)
                blocks.append(Formula(row(named(own.state, "i"), p, EQUALS, found), "", PARALLEL))
    blocks.append(
        para(
            "The method needs a matrix that is symmetric and positive definite. Both were proved:"
            " the state is a sum of columns times themselves with weights that are not negative,"
            " and what is added on the diagonal is positive. The gradient does not walk back"
            " through the iterations: by the implicit function theorem it is one more system with"
            " the same matrix."
        )
    )
    return Step("The solved system", tuple(blocks), solve.span)


def _text(node: object) -> str:
    """A Solve as the spec has it."""
    span = getattr(node, "span", None)
    text = span.text if span is not None else "solve(..)"
    return " ".join(text[text.index("solve") :].split()) if "solve" in text else text


def _update(telling: Telling, state: str) -> set[int]:
    """The nodes that are a state, before or after the token."""
    body = telling.study.recurrence.body
    found = {body.outputs[state]} if state in body.outputs else set()
    return found | {
        n.id for n in body if isinstance(n.op, ir.Input) and n.op.name == state_before(state)
    }
