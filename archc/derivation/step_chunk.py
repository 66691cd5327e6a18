"""Steps of a derivation: the chunked form of states that are matrices."""

from __future__ import annotations

from collections.abc import Iterator

from archc.derivation.chunk_formulas import ChunkFormulas
from archc.derivation.dependence import dependence
from archc.derivation.formula import Formulas
from archc.derivation.maths import EQUALS, Name, named, row
from archc.derivation.page import (
    PARALLEL,
    SEQUENTIAL,
    Block,
    Formula,
    Step,
    Table,
    para,
)
from archc.derivation.row_names import Lettered, rows_of
from archc.derivation.telling import Telling, joined
from archc.recurrence.affine.form import NormalForm, StateForm


def matrix_chunks(telling: Telling, form: NormalForm, first: bool = True) -> Step:
    """How a chunk of rows is computed at once."""
    own = form.forms[0]
    rows = rows_of(telling.study, form, own)
    formulas = ChunkFormulas(rows)
    blocks: list[Block] = [*_cut(formulas, own, first), *_letters(rows)]
    blocks += [Formula(math) for math in formulas.products()]
    blocks += _system(formulas) if formulas.reading else _plain(formulas)
    for each in form.forms:
        blocks += _carried(telling, form, each)
    blocks += [_waits(formulas, form), dependence(*_words(formulas, form))]
    names = ", ".join(form.states)
    return Step(f"In chunks: {names}", tuple(blocks))


def _waits(formulas: ChunkFormulas, form: NormalForm) -> Block:
    """The values that wait for the chunk before, and that no other does."""
    ends = [named(each.state, formulas.last) for each in form.forms]
    names = [formulas.Y, *ends] if formulas.reading else ends
    return para(
        "Only ", *joined(names), f" wait{'s' if len(names) == 1 else ''} for the chunk before."
        " Everything else is a few products of matrices for all chunks at once, which is what a"
        " processor with units for matrices is good at.",
    )  # fmt: skip


def _cut(formulas: ChunkFormulas, own: StateForm, first: bool) -> Iterator[Block]:
    """The cut into chunks: its letters, and the idea."""
    if not first:
        yield para("In the same chunks, with ", formulas.state("0"), " for the state before a chunk"
                   " and ", formulas.state(formulas.last), " for the one after it:")  # fmt: skip
        return
    count, last = len(own.steps), formulas.last
    several = (
        f" A token has {count} micro-steps, and each of them is a row: a chunk has {count}{last}"
        " rows, and the subscript ", Name(last), " stands for the last of them. A token is read at"
        " the last of its rows.",
    )  # fmt: skip
    rank = own.steps[0].rank
    same: tuple[str, ...] = (
        f" A token has a row for each entry of {rank.name}. Its rows read the state before all of"
        " them: no j < i is of their token. What is read after the write is read at the last.",
    ) if rank is not None else ()  # fmt: skip
    yield para(
        "Cut the tokens into chunks of ", Name(last), ". Inside a chunk, ", Name("i"), " and ",
        Name("j"), " count its rows 1, 2, …; ", formulas.state("0"), " is the state before the"
        " chunk and ", formulas.state(last), " the one after it. The idea: express everything in a"
        " chunk by ", formulas.state("0"), ", so that the chunk has to wait for that alone.",
        *(several if count > 1 else same),
    )  # fmt: skip


def _letters(rows: object) -> Iterator[Block]:
    """A table of the letters of rows, and what each stands for."""
    if not isinstance(rows, Lettered):
        return
    count = len(rows.steps)
    head = ("letter", *([f"micro-step {p + 1}" for p in range(count)] if count > 1 else ["value"]))
    yield Table(head, tuple((name, *values) for name, values in rows.meanings()))


def _plain(formulas: ChunkFormulas) -> Iterator[Block]:
    """Nothing that is written depends on the state."""
    yield para(
        "What a row writes does not depend on the state. So the state after a chunk is what is left"
        " of the state before it and a sum over rows, each decayed from its own row to the end:"
    )


def _system(formulas: ChunkFormulas) -> Iterator[Block]:
    """Corrections: a triangular system."""
    first = formulas.reading[0]
    y = formulas.y(first, "i")
    yield para("Call ", y, " what is written at row ", Name("i"), ":")
    yield Formula(formulas.one_row())
    yield from (Formula(formulas.what_is_written(slot)) for slot in formulas.reading)
    yield para("It reads a state, which is what is left of ", formulas.state("0"), " and what rows"
               " before ", Name("i"), " have written, each decayed since:")  # fmt: skip
    for slot in formulas.reading[:1]:
        yield Formula(formulas.unrolled(slot))
    yield para("Put the second into the first. The state is gone; what is left of it is a number"
               " for each pair of rows,")  # fmt: skip
    for reader in formulas.reading:
        for writer in formulas.slots:
            yield Formula(formulas.weights(reader, writer), "for j < i, else 0", PARALLEL)
    yield from (Formula(formulas.with_weights(slot)) for slot in formulas.reading)
    yield para(
        "This is a system of linear equations in which each row needs only earlier ones: a"
        " triangular matrix with ones on its diagonal, which always has an inverse."
        + (" The rows of all corrections stand one below the other." if len(formulas.reading) > 1
           else "")
        + (" Decays of the values scale both sides of it, so that all values share it; sums over"
           " rows are made with ratios of them, which are at most 1."
           if formulas.rows.value_decays else "")
        + " Its right side has a part with ", formulas.state("0"), " and a part without, and so has"
        " its solution. A bold letter stands for all rows of a chunk, one below the other, and"
        " square brackets put rows below one another in this way:",
    )  # fmt: skip
    solution = list(formulas.solution())
    tones = [PARALLEL, PARALLEL, SEQUENTIAL]
    notes = ["what reads the chunk's start", "what does not", "known when the state arrives"]
    for math, tone, note in zip(solution, tones, notes, strict=True):
        yield Formula(math, note, tone)


def _carried(telling: Telling, form: NormalForm, own: StateForm) -> Iterator[Block]:
    """The state after the chunk, and the reads."""
    formulas = ChunkFormulas(rows_of(telling.study, form, own))
    if formulas.reading:
        yield Formula(formulas.end(), "to the next chunk", SEQUENTIAL)
    else:
        added, end = formulas.added()
        yield Formula(added, "what the rows leave", PARALLEL)
        yield Formula(end, "to the next chunk", SEQUENTIAL)
    spelled = Formulas(telling.study, form, "i")
    for number, read in enumerate(own.reads):
        if len(read.parts) == 1 and read.free == 0 and read.parts[0].scale == 1:
            name = spelled.result(read, number)
            yield Formula(row(name, EQUALS, formulas.read(read.parts[0])), "a read", PARALLEL)
            continue
        for part in read.parts:
            whole = formulas.read(part)
            read_here = spelled.part(own, part) if len(own.steps) == 1 else None
            yield Formula(row(read_here, EQUALS, whole) if read_here else whole, "a read", PARALLEL)


def _words(formulas: ChunkFormulas, form: NormalForm) -> tuple[str, str, str]:
    """The values before, along and after the chunks, for the picture."""
    names = ", ".join(form.states)
    if formulas.reading:
        a, u, w, y = (
            getattr(math, "text", "") for math in
            (Name(formulas.rows.letters.of("A")), formulas.U, formulas.W, formulas.Y)
        )  # fmt: skip
        return f"{a}, (I − {a})⁻¹, {u}, {w}", f"{y}, {names}", "reads"
    return "what rows write", names, "reads"
