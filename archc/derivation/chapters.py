"""A recurrence -> the chapter of its derivation, with every number computed. Imports torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from archc.derivation.as_written import declared
from archc.derivation.costs import chunk_letter, cost_math
from archc.derivation.dependence import dependence
from archc.derivation.maths import named
from archc.derivation.page import Block, Chapter, Formula, Inline, Listing, Step, Table, para
from archc.derivation.step_bounds import within_bounds
from archc.derivation.step_chunk import matrix_chunks
from archc.derivation.step_formula import classed, normal, printed
from archc.derivation.step_gradient import gradient
from archc.derivation.step_numbers import numbers
from archc.derivation.step_run import decode, law
from archc.derivation.step_scan import scan_chunks, solved
from archc.derivation.telling import Telling, excerpt, joined
from archc.derivation.work import at_sizes, given, in_numbers, operations
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Node
from archc.recurrence.affine.form import MATRIX
from archc.recurrence.chunk.derived import Kept
from archc.show.stage_listing import chunk_text, heading
from archc.source import Span
from archc.verify.checks import chunk_checks
from archc.verify.study import Study
from archc.verify.trial import Trial

TOKENS = 12
"""How many tokens the numbers of a page are computed with."""


def chapter(study: Study, sizes: Mapping[str, int]) -> Chapter:
    """The steps of one recurrence."""
    telling = Telling(study, Trial(study, TOKENS, sizes))
    title = heading(study).split("  #")[0]
    return Chapter(f"The {title}", tuple(_steps(telling)), study.node.span)


def _steps(telling: Telling) -> Iterator[Step]:
    yield printed(telling)
    if telling.forms:
        yield normal(telling)
        yield classed(telling)
    if telling.study.derived.kept:
        yield _loops(telling)
    for given_law in telling.study.derived.laws:
        told = within_bounds(telling, given_law) if given_law.token is not None else None
        yield told or _by_law(given_law, telling.study.recurrence.body)
    if telling.study.derived.graph is not None:
        for number, form in enumerate(telling.forms):
            tell = matrix_chunks if form.kind == MATRIX else scan_chunks
            yield tell(telling, form, number == 0)
        found = solved(telling)
        if found is not None:
            yield found
        yield _checked(telling)
        safe = numbers(telling)
        if safe.blocks:
            yield safe
        yield gradient(telling)
    yield decode(telling)
    yield law(telling)


# --- what has no chunks ---------------------------------------------------------------------------


def _loops(telling: Telling) -> Step:
    """States that stay a loop: why, where, and what to do."""
    study, blocks, first = telling.study, list[Block](), None
    for kept in study.derived.kept:
        names = joined(named(name) for name in kept.states)
        verb = " stay" if len(kept.states) > 1 else " stays"
        blocks.append(para(*names, f"{verb} a loop over the tokens: {kept.reason}."))
        span = _at(study, None if kept.node is None else study.recurrence.body[kept.node])
        first = first or span
        if span is not None and kept.node is not None:
            blocks.append(excerpt(span, [_value(span)], fault=True))
            blocks.append(para(_consequence(kept, study.layer.chunk.sequential)))
    return Step("Why it is a loop", tuple(blocks), first)


def _value(span: Span) -> Span:
    """Of a statement what stands to the right of its `=`."""
    found = re.match(r"[\w.\[\]-]+\s*=\s*", span.text)
    return Span(span.source, span.start + found.end(), span.end) if found else span


def _consequence(kept: Kept, meant: bool) -> str:
    more = f"{kept.help[0].upper()}{kept.help[1:]}. " if kept.help else ""
    if meant:
        return f"{more}The spec says by its rule `chunk: sequential` that the loop is meant."
    rule = "If the loop is meant, the rule `chunk: sequential` in the spec says so"
    if kept.code != CELL:
        return f"{more}{rule}."
    return (
        "To take several tokens at once, what they do to the state must be known before the state"
        f" is, and here it is not. {more}{rule}; to be rid of it, let what is underlined depend on"
        " the input alone."
    )


CELL = "E0601"
"""The finding about a state inside a function that is not linear."""


def _at(study: Study, node: Node | None) -> Span | None:
    """The place of a node of the body in the spec: of a captured value, that where it is made."""
    if node is None:
        return study.node.span
    if isinstance(node.op, ir.Input) and node.op.name in study.captured:
        return study.graph[study.captured[node.op.name]].span
    return node.span or study.node.span


# --- laws of the spec -----------------------------------------------------------------------------


def _by_law(law: GivenLaw, body: Graph) -> Step:
    """States that are computed by a law that the spec gives."""
    names = joined(named(name) for name in law.states)
    parts = joined(f"`{part}`" for part in law.parts)
    known = (
        "It was proved: the merge is associative, applying a merged summary is applying the two one"
        " after the other, and one token's summary does what the update does."
        if law.proved
        else "It was not proved, but no random numbers refute it: the merge is associative, and"
        " applying summaries does what the updates do, in each of many draws."
    )
    blocks: list[Block] = [
        para(
            "The class of ", *names, " is none that archc knows, but the spec says how runs of"
            " tokens compose: what a run does to the state is told by its summary, which consists"
            " of ", *parts, f". {known}",
        ),
        *([] if law.span is None else [excerpt(law.span, [law.span])]),
        *_layers(law, body),
        para(
            "So a chunk of tokens is merged row by row, for all chunks at once; the total of each"
            " chunk is applied to the state, one chunk after the other; and the merged summary up"
            " to a row, applied to the state before the chunk, is the state at that row."
        ),
        dependence("merged summaries", ", ".join(law.states), "all rows"),
    ]  # fmt: skip
    return Step("By a law of the spec", tuple(blocks), law.span)


def _layers(law: GivenLaw, body: Graph) -> Iterator[Formula]:
    """The formulas of a law's layers, the name of each beside its first formula."""
    graphs = (body, law.merge, law.apply)
    for (name, _, header), graph in zip(law.named, graphs, strict=True):
        for number, line in enumerate(declared(header, graph)):
            yield replace(line, note=name) if number == 0 else line


# --- the chunked form as a whole ------------------------------------------------------------------


def _checked(telling: Telling) -> Step:
    """The costs of chunks beside those of the loop, the form in full, and its checks."""
    form = telling.study.derived.graph
    assert form is not None, "there is a form"
    loop, chunks = operations(telling.trial.step), operations(form)
    sizes = at_sizes(telling.study.layer, loop, chunks)
    head = ("", "steps that wait", "operations a token", f"with {given(sizes, loop, chunks)}")
    rows: list[tuple[Inline, ...]] = [
        ("loop", cost_math(TIME.size), cost_math(loop), in_numbers(loop, sizes)),
        ("chunks", cost_math(TIME.size / CHUNK), cost_math(chunks), in_numbers(chunks, sizes)),
    ]
    blocks: list[Block] = [
        para("With ", named("T"), " tokens in all and ", named(chunk_letter(loop, chunks)),
             " in a chunk, two numbers tell the forms apart: how many steps have to wait for one"
             " another, and how many operations there are. ",
             MORE if telling.matrices else FEWER),
        Table(head, tuple(rows)),
        *telling.run(chunk_checks(telling.trial)),
        Listing("The form in full: `archc show --stage chunk`",
                chunk_text(telling.study)),
    ]  # fmt: skip
    return Step("Loop and chunks", tuple(blocks))


MORE = (
    "Pairs of rows take operations that the loop does not need, but nearly all of them are products"
    " of matrices."
)
FEWER = "A chunk is gone through twice, from nothing and then from what was there before it."
