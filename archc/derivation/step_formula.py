"""Steps of a derivation: the update as the spec prints it, its normal form, and its class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from archc.derivation import linked_formulas
from archc.derivation.as_written import formulas
from archc.derivation.formula import Formulas
from archc.derivation.letters import Letters
from archc.derivation.maths import Math, Name, named
from archc.derivation.page import Block, Formula, Inline, Step, Table, para
from archc.derivation.telling import Telling, excerpt
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.recurrence.affine.form import (
    AFTER,
    BEFORE,
    DENSE,
    DIAGONAL,
    LINKED,
    MATRIX,
    TROPICAL,
    NormalForm,
    StateForm,
)
from archc.recurrence.analysis.classify import recurrence_classes
from archc.recurrence.analysis.degree import updates
from archc.recurrence.analysis.semirings import LOG, MAX, MIN
from archc.source import Span
from archc.verify.checks import normal_checks
from archc.verify.study import Study

# --- as printed -----------------------------------------------------------------------------------


def printed(telling: Telling) -> Step:
    """The recurrence in the spec, its updates marked, and what its letters stand for."""
    study, recurrence = telling.study, telling.study.recurrence
    body, span = recurrence.body, study.node.span
    spans = [body[id].span for id in updates(recurrence).values()]
    blocks: list[Block] = [
        para(
            "This is the recurrence as the spec has it. What is marked is the update: it makes the"
            " state after token ", Name("t"), " from the state before it, ",
            *_memory(telling), " A loop that runs it token after token is right, and is what"
            " everything below is held against; but it is slow, as each token waits for the last.",
        )
    ]  # fmt: skip
    if span is not None:
        blocks.append(excerpt(span, [each for each in spans if each is not None]))
    blocks += _typeset(study)
    table = letters(study.graph, study.captured, recurrence.stream.name, span)
    return Step("As printed", (*blocks, table), span)


def _typeset(study: Study) -> list[Block]:
    """The same in the signs of mathematics."""
    lines = list(formulas(study))
    if not lines:
        return []
    stream = study.recurrence.stream.name
    said = "For one sequence and one head, and with what each token has for itself marked by "
    return [para(said, Name(stream), ", that is:"), *lines]


def _memory(telling: Telling) -> Iterator[Inline]:
    """The carried states in words: `S, which has axes K, V`."""
    recurrence = telling.study.recurrence
    for number, state in enumerate(recurrence.states):
        dims = [axis for axis in state.axes if axis.kind == "dim"]
        own = [str(axis.size) for axis in dims if axis.name not in recurrence.heads]
        kind = {0: "a number", 1: f"a vector of `{own[0] if own else ''}`"}.get(
            len(own), f"a matrix of `{'` by `'.join(own)}`"
        )
        yield " and " if number and number == len(recurrence.states) - 1 else ", " if number else ""
        yield named(state.name)
        yield f" ({kind})"
    heads = " and ".join(recurrence.heads)
    yield f", one for each of the heads `{heads}`." if heads else "."


def letters(graph: Graph, captured: Mapping[str, int], stream: str, home: Span | None) -> Table:
    """The values that a block takes from outside: name, axes, and their place in the spec."""
    rows: list[tuple[Inline, ...]] = []
    for name, id in captured.items():
        node = graph[id]
        text = " ".join(node.span.text.split()) if node.span is not None else ""
        where = f"`{text}`" if node.span not in (None, home) and text else "made beside it"
        where = "a parameter" if isinstance(node.op, ir.Param) else where
        streams = [axis.name for axis in node.type.axes if axis.kind == "stream"]
        token = [stream] if stream in streams else streams[:1]
        rows.append((named(name, *token), _axes(node.type), where))
    return Table(("value", "axes", "in the spec"), tuple(rows))


def _axes(type: Type) -> str:
    """The dims of a value, without those that every value has."""
    dims = [axis.name for axis in type.axes if axis.kind == "dim"]
    return ", ".join(f"`{name}`" for name in dims) or "a number"


# --- normal form ----------------------------------------------------------------------------------


def normal(telling: Telling) -> Step:
    """The normal forms of the states that have one."""
    blocks: list[Block] = [
        para(
            "Papers write the same update in many ways: multiplied out or in factors, transposed or"
            " not. Expanding it as a polynomial in the state and collecting what multiplies what"
            " brings every spelling to one normal form, which says three things: how the old state"
            " decays, what is written, and what is read."
        )
    ]
    for form in telling.forms:
        formulas = Formulas(telling.study, form)
        if form.links is not None:
            blocks += [Formula(math, "update") for math in linked_formulas.updates(formulas)]
            blocks += [Formula(math, "read") for math in linked_formulas.reads(formulas)]
        for own in form.forms:
            lines = formulas.update(own)
            notes = (
                ["decay", "write"] if len(lines) == 2 and form.kind == MATRIX else [""] * len(lines)
            )
            blocks += [Formula(math, note) for math, note in zip(lines, notes, strict=True)]
            blocks += [
                Formula(formulas.read(own, read, number), "read")
                for number, read in enumerate(own.reads)
            ]
            blocks += _side(telling, own)
    blocks += [*_solution(telling), *_outputs(telling)]
    blocks += telling.run(normal_checks(telling.trial))
    return Step("Normal form", tuple(blocks), _update_span(telling.study))


def _solution(telling: Telling) -> Iterator[Block]:
    """The letter for the solution of a system, and its meaning."""
    body = telling.study.recurrence.body
    for node in body:
        if isinstance(node.op, ir.Solve) and node.name is None and telling.forms:
            z = Name(Letters(telling.study).of("z"), ("t",))
            yield para(z, " is the solution of the system in the spec; a step of its own is below.")


def _outputs(telling: Telling) -> Iterator[Block]:
    """The outputs that a token makes of its reads, in the words of the spec; a read itself is
    told elsewhere."""
    body, forms = telling.study.recurrence.body, telling.forms
    reads = {read.node for form in forms for own in form.forms for read in own.reads}
    for name, id in body.outputs.items():
        span = body[id].span
        states = {state.name for state in telling.study.recurrence.states}
        if id not in reads and name not in states and span is not None and reads:
            yield para(
                f"From that comes `{' '.join(span.text.split())}`, for each token by itself."
            )


def _update_span(study: Study) -> Span | None:
    """The place of the first state's update."""
    body = study.recurrence.body
    return body[next(iter(updates(study.recurrence).values()))].span


def _side(telling: Telling, own: StateForm) -> Iterator[Block]:
    """A remark where the spec writes the state with its axes the other way round."""
    axes = next(s.axes for s in telling.study.recurrence.states if s.name == own.state)
    order = [axis.name for axis in axes]
    if own.key and own.value and order.index(own.key[0].name) > order.index(own.value[0].name):
        keys = ", ".join(axis.name for axis in own.key)
        yield para(
            "Here ", named(own.state), f" stands with the axis it is read along (`{keys}`) as its"
            " rows: the transpose of the spec's matrix.",
        )  # fmt: skip


# --- class ----------------------------------------------------------------------------------------


def classed(telling: Telling) -> Step:
    """The class of each group of states, and the forms that it allows."""
    blocks: list[Block] = []
    found = {
        name: each for each in recurrence_classes(telling.study.recurrence) for name in each.states
    }
    for form in telling.forms:
        texts = list(dict.fromkeys(found[name].text for name in form.states if name in found))
        names = [named(name) for name in form.states]
        means = MEANS.get(form.sums or form.kind, "")
        blocks.append(para(*_and(names), f": {'; '.join(texts)}. {means}"))
        if form.kind == MATRIX:
            blocks.append(Table(("", "in this recurrence"), tuple(_facts(telling, form))))
    if any(form.kind == TROPICAL for form in telling.forms):
        blocks += [
            para(f"{note[0].upper()}{note[1:]}. {GAUGE}")
            for note in telling.study.derived.notes
            if "gauge" in note
        ]
    return Step("Class", tuple(blocks))


MEANS = {
    MATRIX: "What is written is a column times a row, and the state is read by products with"
    " vectors. So many tokens can be taken at once: the products with the state become products of"
    " matrices.",
    DIAGONAL: "Every element of the state goes its own way: it is scaled and added to. So a chunk"
    " of tokens does to an element what one multiplication and one addition do.",
    LINKED: "What is written is a column times a row, states are read by products with vectors, and"
    " one state is scaled into another by a number. So the numbers between all rows of a chunk are"
    " made first, and then many tokens are taken at once, as with one state.",
    DENSE: "A matrix mixes the elements of the state. Products of these matrices say what many"
    " tokens do at once.",
    MAX: "With the maximum in place of the sum, and the sum in place of the product, this is a"
    " linear recurrence: the same laws hold.",
    MIN: "With the minimum in place of the sum, and the sum in place of the product, this is a"
    " linear recurrence: the same laws hold.",
    LOG: "Its exponential is a linear recurrence: a sum of logarithms stands for a product. It is"
    " kept divided by that of a running maximum, so that no exponential is large.",
}
GAUGE = (
    "Replacing it by any other number changes the other states by a factor that every output"
    " divides out again: this was proved by substitution. It only keeps exponentials small, so it"
    " is a constant for the gradient."
)


def _and(names: list[Math]) -> Iterator[Inline]:
    for number, name in enumerate(names):
        yield " and " if number and number == len(names) - 1 else ", " if number else ""
        yield name


def _facts(telling: Telling, form: NormalForm) -> Iterator[tuple[Inline, ...]]:
    """Decay, corrections, micro-steps and reads of a matrix state."""
    own, formulas = form.forms[0], Formulas(telling.study, form)
    yield "decay", _decay(formulas, own)
    count = len(own.steps)
    if count > 1:
        yield "micro-steps a token", str(count)
    readers = [term for step in own.steps for term in step.terms if term.w != 0]
    moments = list(dict.fromkeys("after" if term.after else "before" for term in readers))
    rank = own.steps[0].rank
    high = "one" if rank is None else f"up to {rank.name}"
    several = (
        f"{len(readers)} of rank {high}" if readers else "none: nothing that is written depends"
    )
    text = f"{several}, reading the state {' and '.join(moments)} the decay" if moments else (
        f"{several} on the state"
    )  # fmt: skip
    yield "corrections", text
    whens = dict.fromkeys(p.when for each in form.forms for r in each.reads for p in r.parts)
    yield "read", " and ".join(WHEN[when] for when in whens) or "not at all"


WHEN = {
    BEFORE: "before the token's decay",
    AFTER: "after the decay, before the write",
    "written": "after the write",
}


def _decay(formulas: Formulas, own: StateForm) -> str:
    steps = own.steps
    keys, values = ({axis.name for axis in axes} for axes in (own.key, own.value))
    key = any(keys & set(formulas.table.names(step.key)) for step in steps)
    value = any(values & set(formulas.table.names(step.value)) for step in steps)
    if all(step.decay == 1 for step in steps):
        return "none: the state only grows"
    if key and value:
        return "one for each row and one for each column of the state"
    if key or value:
        return f"one for each {'row' if key else 'column'} of the state (a channel)"
    return "one number for the whole state of a head"
