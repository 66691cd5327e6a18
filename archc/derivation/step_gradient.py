"""A step of a derivation: the gradient of the chunked form, and what is saved for it."""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from archc.autodiff.keep import COSTLY, Saved
from archc.derivation.chunk_formulas import ChunkFormulas
from archc.derivation.costs import cost_math
from archc.derivation.formula import Formulas
from archc.derivation.maths import EQUALS, PLUS, TIMES, Name, named, row, slope, transposed
from archc.derivation.page import Block, Formula, Inline, Step, Table, para
from archc.derivation.row_names import Lettered
from archc.derivation.telling import Telling, joined
from archc.derivation.walk_formulas import Walk, has_walk
from archc.derivation.work import at_sizes, given, in_numbers
from archc.ir import layer as ir
from archc.ir.value_names import state_started, unsaved
from archc.recurrence.affine.form import DENSE, DIAGONAL, MATRIX, NormalForm
from archc.recurrence.chunk.carrying import part_of
from archc.verify.checks import gradient_checks


def gradient(telling: Telling) -> Step:
    """The reverse walk."""
    blocks: list[Block] = [
        para(
            "The gradient is that of the chunked form, not of the loop: each of its few operations"
            " has one rule, and one walk from the results back to the inputs applies them. What was"
            " parallel stays parallel, and the walk along the chunks goes from the last to the"
            " first. ", slope(Name("a")), " stands for the gradient of the loss with respect to ",
            Name("a"), ".",
        )
    ]  # fmt: skip
    for form in telling.matrices[:1]:
        blocks += _walk(telling, form)
    for form in telling.forms:
        blocks += _scan(telling, form) if form.kind != MATRIX else ()
    blocks += _kept(telling)
    blocks += telling.run(gradient_checks(telling.trial))
    return Step("Gradient", tuple(blocks))


# --- the reverse walk -----------------------------------------------------------------------------


def _walk(telling: Telling, form: NormalForm) -> Iterator[Block]:
    """The main formulas, in letters: of the first state that is read."""
    own = next((each for each in form.forms if each.reads), form.forms[0])
    rows = Lettered(telling.study, form, own)
    chunk = ChunkFormulas(rows)
    if not has_walk(chunk, own):
        yield para(SEVERAL)
        return
    walk, count = Walk(chunk, telling.study, form), len(own.steps)
    head = ("letter", *([f"micro-step {p + 1}" for p in range(count)] if count > 1 else ["value"]))
    yield para("With letters for what a row writes and reads,")
    yield Table(head, tuple((name, *values) for name, values in rows.meanings()))
    if own.reads:
        yield para(
            "and ", walk.query(), " for what the read ", walk.read(), " is made with, the walk"
            " starts from ", slope(walk.read()), " at every row, and from ", slope(walk.end),
            " of the state after the chunk.",
        )  # fmt: skip
    yield from walk.blocks()
    if len(form.forms) > 1:
        others = joined(named(each.state) for each in form.forms if each != own)
        yield para("For ", *others, " it is the same, with what it writes and its own reads; where"
                   " the same value is used, the gradients add up.")  # fmt: skip


SEVERAL = (
    "The triangular system hands its gradient on through its transpose, for which the inverse is"
    " there already. A product of pairs of rows hands on two products of the same kind, one to each"
    " side; and the gate of a row gets, for every pair of rows that has it between them, that"
    " pair's share, added up: nothing is subtracted, so no digits are lost."
)


def _scan(telling: Telling, form: NormalForm) -> Iterator[Block]:
    """A scan backwards."""
    formulas = Formulas(telling.study, form, "i")
    for own in form.forms:
        step, state = own.steps[0], own.state
        if form.kind not in (DIAGONAL, DENSE) or form.blocks or not isinstance(named(state), Name):
            continue
        after = slope(named(state, "i+1"))
        later = formulas.moved("i+1")
        if form.kind == DENSE:
            moved = row(transposed(later.value(step.matrix)), after)
        else:
            moved = row(later.factor(step.decay), TIMES if step.decay != 1 else None, after)
        yield para("The gradient of a scan is a scan from the last token to the first: ",
                   slope(named(state, "i")), " is what the reads of ", named(state, "i"), " hand"
                   " back, and")  # fmt: skip
        yield Formula(row(slope(named(state, "i")), EQUALS, Name("…"), PLUS, moved))
        yield para("What is added has ", slope(named(state, "i")), " as its gradient, and what the"
                   " state is multiplied by the same times ", named(state, "i-1"), ".")  # fmt: skip


# --- what is kept ---------------------------------------------------------------------------------


def _kept(telling: Telling) -> Iterator[Block]:
    """The values that the forward hands to the backward, and those that are computed again."""
    found = telling.study.gradient
    assert found is not None, "there is a form"
    total = sympy.Add(*(saved.bytes for saved in found.saved))
    yield para(
        "The walk needs values of the forward. A value is saved if it is costly to recompute, that"
        f" is if it takes more than {COSTLY} operations for each byte that it reads and writes or"
        " has to go through the chunks in order; everything else is recomputed, as a processor that"
        " waits for memory does that for nothing. Among all ways to recompute no costly value the"
        " one that saves the fewest bytes is taken, which is a minimum cut of the graph."
    )
    if found.saved:
        yield Table(
            ("saved", "axes", "bytes a token"), tuple(_row(telling, saved) for saved in found.saved)
        )
    loop = sympy.Add(*(4 * _numbers(telling, s.name) for s in telling.study.recurrence.states))
    example = at_sizes(telling.study.layer, total, loop)
    yield para(
        "In all ",
        cost_math(total),
        " bytes a token, as float32"
        f"{_example(total, example)}. A loop that keeps the state after every token would take ",
        cost_math(loop),
        f"{_example(loop, example)}. Computed again:"
        f" {len(found.recomputed)} values, most of them products and exponentials of elements.",
    )


def _row(telling: Telling, saved: Saved) -> tuple[Inline, ...]:
    kind = saved.reason.split(":")[0]
    what = _captured(telling, saved) or KINDS.get(kind, "a value that gives a costly one")
    state = state_started(unsaved(saved.name))
    if state is not None:
        what = f"the state `{state}` before each chunk"
    axes = ", ".join(f"`{name}`" for name in saved.type.names)
    return what, axes, cost_math(saved.bytes)


def _captured(telling: Telling, saved: Saved) -> str:
    """The part of a value in the loop along the chunks; "" for a value that does not enter it."""
    forward = telling.study.gradient.forward if telling.study.gradient else None
    if forward is None:
        return ""
    id = forward.outputs[saved.name]
    for user in forward.users(id):
        op = forward[user].op
        if isinstance(op, ir.Recurrence):
            place = forward[user].operands.index(id)
            name = op.captures[place] if place < len(op.captures) else ""
            return CAPTURES.get(part_of(name), "")
    return ""


CAPTURES = {
    "W": "W: what reads the state before the chunk",
    "U": "U: what is written if that is 0",
    "write": "what rows add to the state",
}
"""The part of each kind of capture in the loop along the chunks."""

KINDS = {
    "Inverse": "the inverse of the triangular system",
    "Gram": "what rows read of what rows wrote",
    "Contract": "a product of matrices",
    "Recurrence": "what rows write, computed along the chunks",
    "Scan": "what was computed along the rows of a chunk",
    "Conjugate": "the solution of the system",
}


def _numbers(telling: Telling, state: str) -> sympy.Expr:
    axes = next(s.axes for s in telling.study.recurrence.states if s.name == state)
    return sympy.Mul(*(axis.size for axis in axes if axis.kind == "dim"))


def _example(expr: sympy.Expr, sizes: dict[str, int]) -> str:
    """` (98 k for H = 4, ...)`."""
    if not expr.free_symbols:
        return ""
    return f" ({in_numbers(expr, sizes)} for {given(sizes, expr)})"
