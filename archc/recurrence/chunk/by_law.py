"""Layer IR -> layer IR: states whose composition law the spec gives, in chunks.

The summaries of all tokens are made at once. Within every chunk, for all chunks at once, they are
merged from the first row on; a Recurrence along the chunks applies what a whole chunk does; and the
state after each token is what the rows up to it do to the state before its chunk:

    prefix[i] = merge(prefix[i-1], token[i]),    S[i] = apply(prefix[i], S before the chunk)

Rows that fill up the last chunk repeat a token that is there and are never merged, so that neither
a value nor a gradient of theirs matters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Node, Type
from archc.ir.typing import layer_graph
from archc.ir.value_names import state_at_start, state_before
from archc.recurrence.affine.form import MATRIX, NormalForm
from archc.recurrence.analysis.degree import reads
from archc.recurrence.chunk.frame import Frame, input_of, settled
from archc.recurrence.chunk.scan import Carried, carried, in_rows

Starts = Mapping[str, int]

JOINS = "joins"
"""Whether there is something before to be merged with; no part of a summary."""


def in_order(recurrence: ir.Recurrence, forms: Sequence[NormalForm]) -> list[NormalForm]:
    """The forms, those that do not need the states of a law first: its summaries may read them.
    States side by side in one form are taken apart if only some have a law."""
    given = {name for law in recurrence.laws for name in law.states}
    after = set(given)
    for _ in recurrence.states:
        after |= {
            state.name for state in recurrence.states if reads(recurrence, state.name) & after
        }
    parts = [part for form in forms for part in _apart(form, given)]
    return sorted(parts, key=lambda form: bool(after & {*form.states}))


def _apart(form: NormalForm, given: Collection[str]) -> Iterator[NormalForm]:
    """The columns of a matrix that have a law, and the others."""
    own = [name in given for name in form.states]
    if form.kind != MATRIX or all(own) or not any(own):
        yield form
        return
    for chosen in (True, False):
        forms = tuple(each for each in form.forms if (each.state in given) is chosen)
        yield replace(form, states=tuple(each.state for each in forms), forms=forms)


def without_laws(recurrence: ir.Recurrence) -> ir.Recurrence:
    """The Recurrence without laws and the summaries of tokens, once its chunked form is made."""
    if not recurrence.laws:
        return recurrence
    body = recurrence.body.copy()
    inside = {law.in_body(part) for law in recurrence.laws for part in law.parts}
    body.outputs = {name: id for name, id in body.outputs.items() if name not in inside}
    body.prune([node.id for node in body if isinstance(node.op, ir.Input)])
    return replace(recurrence, body=body, laws=())


def remark(law: GivenLaw) -> str:
    """How states of a law come to be in chunks, for a reader."""
    known = {True: "proved", False: "not proved, nor refuted by random numbers", None: "as given"}
    names = ", ".join(f"`{name}`" for name in law.states)
    if not law.text:
        return f"{names} is kept within bounds: runs of tokens compose by {', '.join(law.parts)}"
    return f"{names}: by the composition law `{law.text}`, {known[law.proved]}"


def by_law(
    frame: Frame, law: GivenLaw, states: Sequence[ir.State], parts: Sequence[int], starts: Starts
) -> dict[str, Carried]:
    """The states of a law along the stream, from the summaries of tokens and the initial states."""
    prefixes = in_chunks(frame, law, parts)
    last = {name: frame.last(id) for name, id in prefixes.items()}
    begins = _before_chunks(frame, law, states, last, starts)
    after = _applied(frame, law, prefixes, begins)
    return {
        state.name: carried(
            frame, state, in_rows(frame, after[state.name]), begins[state.name], starts[state.name]
        )
        for state in states
    }


def in_chunks(frame: Frame, law: GivenLaw, parts: Sequence[int]) -> dict[str, int]:
    """The summary of the rows of a chunk up to each; what fills the last chunk adds nothing."""
    there = frame.fn("ne", frame.cut(frame.number(1)), frame.number(0))
    rows = {}
    for (name, type), id in zip(law.types.items(), parts, strict=True):
        row = frame.cut(frame.full(id, type.axes))
        first = frame.add(ck.Select(frame.row.name, 0), row)
        rows[name] = frame.fn("where", there, row, first)
    later = frame.fn("gt", frame.add(ir.Position(frame.row)), frame.number(0))
    return folded(frame, law, frame.row, {**rows, JOINS: frame.fn("and", there, later)})


def folded(frame: Frame, law: GivenLaw, along: Axis, given: Mapping[str, int]) -> dict[str, int]:
    """Summaries merged along an axis, from its first position on; `joins` says where."""
    inner = replace(frame, graph=layer_graph())
    types = {name: _without(frame.graph[id].type, along) for name, id in given.items()}
    new = {name: input_of(inner.graph, here(name), type) for name, type in types.items()}
    old = {p: input_of(inner.graph, state_before(so_far(p)), types[p]) for p in law.parts}
    pairs = {f"{p}.1": old[p] for p in law.parts} | {f"{p}.2": new[p] for p in law.parts}
    for part, id in spread(inner, law.merge, pairs).items():
        chosen = inner.fn("where", new[JOINS], id, old[part])
        inner.graph.outputs[so_far(part)] = settled(inner.graph, chosen, types[part])
    states = tuple(ir.State(so_far(p), types[p].axes) for p in law.parts)
    inside = [name for name in given if inner.graph.users(new[name])]
    inner.graph.prune()
    begin = [frame.add(ck.Select(along.name, 0), given[p]) for p in law.parts]
    op = ir.Recurrence(along, tuple(map(here, inside)), states, inner.graph)
    made = frame.add(op, *(given[name] for name in inside), *begin)
    return {p: frame.add(ir.Result(so_far(p)), made) for p in law.parts}


def here(name: str) -> str:
    """The name of an input at the row, or the chunk, at hand: one that nothing else has."""
    return f"{name} here"


def so_far(part: str) -> str:
    """A part of the summary of the rows up to the one at hand."""
    return f"{part} so far"


def _before_chunks(
    frame: Frame,
    law: GivenLaw,
    states: Sequence[ir.State],
    last: Mapping[str, int],
    starts: Starts,
) -> dict[str, int]:
    """The states before every chunk, from what the chunks do to them."""
    inner = replace(frame, graph=layer_graph())
    own = {
        name: input_of(inner.graph, here(name), _without(frame.graph[id].type, frame.chunk))
        for name, id in last.items()
    }
    before = {s.name: input_of(inner.graph, s.before, Type(s.axes)) for s in states}
    after = _applied(inner, law, own, before)
    for state in states:
        inner.graph.outputs[state.name] = settled(inner.graph, after[state.name], Type(state.axes))
        inner.graph.outputs[state_at_start(state.name)] = before[state.name]
    inside = [name for name in last if inner.graph.users(own[name])]
    inner.graph.prune()
    heads = tuple(a.name for a in states[0].axes if a.name in frame.outer)
    op = ir.Recurrence(frame.chunk, tuple(map(here, inside)), tuple(states), inner.graph, heads)
    made = frame.add(op, *(last[n] for n in inside), *(starts[s.name] for s in states))
    return {s.name: frame.add(ir.Result(state_at_start(s.name)), made) for s in states}


def _applied(
    frame: Frame, law: GivenLaw, parts: Mapping[str, int], states: Mapping[str, int]
) -> dict[str, int]:
    """The states after a run, from its summary and the states before it."""
    given = {**parts, **{ck.start(name): id for name, id in states.items()}}
    found = spread(frame, law.apply, given)
    return {name: found[ck.final(name)] for name in law.states}


# --- graphs of a law, on values with further axes -------------------------------------------------


def spread(frame: Frame, graph: Graph, inputs: Mapping[str, int]) -> dict[str, int]:
    """The outputs of a graph on values with further axes (chunks, rows), which outputs have,
    too."""
    ids: dict[int, int] = {}
    for node in graph:
        if isinstance(node.op, ir.Input):
            ids[node.id] = inputs[node.op.name]
            continue
        operands = [ids[operand] for operand in node.operands]
        op = node.op
        if isinstance(op, ir.Contract):
            op = _contract(frame, graph, node, operands)
        fresh = frame.graph.fresh
        ids[node.id] = new = frame.add(op, *operands)
        if new >= fresh:
            frame.graph.rename(new, node.name, node.span)
    return {name: ids[id] for name, id in graph.outputs.items()}


def _contract(frame: Frame, graph: Graph, node: Node, operands: Sequence[int]) -> ir.Contract:
    """A contraction that leaves further axes of its operands as they are."""
    ins, more = [], dict[str, Axis]()
    for labels, old, new in zip(node.op.ins, node.operands, operands, strict=True):
        known = dict(zip(graph[old].type.names, labels, strict=True))
        axes = frame.graph[new].type.axes
        more |= {f"+{axis.name}": axis for axis in axes if axis.name not in known}
        ins.append(tuple(known.get(axis.name, f"+{axis.name}") for axis in axes))
    place = sum(axis.kind == "batch" for _, axis in node.op.out)
    out = (*node.op.out[:place], *more.items(), *node.op.out[place:])
    return ir.Contract(tuple(ins), out)


def _without(type: Type, axis: Axis) -> Type:
    """The type of a value at one position of an axis."""
    return Type(tuple(a for a in type.axes if a.name != axis.name), type.dtype)
