"""Layer IR -> layer IR: the composition law of a recurrence, as four graphs.

What a run of tokens does to a linear state is S_end = P S_start + Q, whatever the state was: the
pair (P, Q) is the run's summary. Two runs, one after the other, are one run with

    (P1, Q1) then (P2, Q2)  =  (P2 P1, P2 Q1 + Q2)

which is associative. So one long sequence can be cut into parts that are summarised independently,
on as many devices as there are; the summaries, merged, give each part the state that it starts
from.

States that need other states' values at every token (a cascade) come in a later round: their
summary takes the earlier states before the run as inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from archc.functions.interval import Interval
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Node, Type
from archc.numerics.stated import stated
from archc.recurrence.chunk.lift import StateNeeded
from archc.recurrence.law.given import joined, summary_graph
from archc.recurrence.law.merge import apply_graph, identity_graph, merge_graph
from archc.recurrence.law.parts import Group
from archc.recurrence.law.summary import NoLaw, Round, rounds_of


@dataclass(frozen=True)
class WithoutLaw:
    """States without a law: why, what to do, and the node of the body that stands in the way."""

    states: tuple[str, ...]
    reason: str
    help: str = ""
    node: int | None = None


@dataclass(frozen=True)
class LawRound:
    """The law of those states that are summarised together.

    `summary`: inputs named as the captures of the Recurrence, and `S[0]` for states of earlier
    rounds that are read; outputs: the parts. `merge`: inputs `<part>.1`, `<part>.2`; outputs: the
    parts. `apply`: inputs: the parts, and `S[0]`; outputs `S[T]`. `identity`: the parts of no
    tokens. `parts` are the types of the parts by name: `P_S` (or `log_P_S`) and `Q_S`. Where the
    spec gives the law, there are no groups, the parts are its own, and no tokens have no summary.
    """

    groups: tuple[Group, ...]
    parts: Mapping[str, Type]
    summary: Graph
    merge: Graph
    apply: Graph
    identity: Graph | None
    given: tuple[GivenLaw, ...] = ()

    @property
    def states(self) -> tuple[str, ...]:
        """The states by name."""
        own = tuple(state.name for group in self.groups for state in group.states)
        return (*own, *(name for law in self.given for name in law.states))


@dataclass(frozen=True)
class Law:
    """The law of every state of a Recurrence, round after round."""

    rounds: tuple[LawRound, ...]


def law_of(
    recurrence: ir.Recurrence, captures: Mapping[str, Type], known: Mapping[str, Interval]
) -> Law | WithoutLaw:
    """The law of a Recurrence: `captures` are the types that its captures have outside, `known` the
    intervals in which they lie."""
    if recurrence.laws:
        return _given(recurrence, captures, known)
    try:
        return Law(tuple(_round(each) for each in rounds_of(recurrence, captures, known)))
    except NoLaw as error:
        return WithoutLaw(error.states, error.reason, error.help, error.node)


def _round(each: Round) -> LawRound:
    """The graphs of one round."""
    parts = {name: each.summary[id].type for name, id in each.summary.outputs.items()}
    return LawRound(
        each.groups, parts, each.summary, merge_graph(each.groups, parts),
        apply_graph(each.groups, parts), identity_graph(each.groups, parts),
    )  # fmt: skip


def _given(
    recurrence: ir.Recurrence, captures: Mapping[str, Type], known: Mapping[str, Interval]
) -> Law | WithoutLaw:
    """The laws that the spec gives, if they are about every state."""
    others = [
        state.name
        for state in recurrence.states
        if not any(state.name in g.states for g in recurrence.laws)
    ]
    if others:
        return WithoutLaw(tuple(others), "the spec gives the law of other states, and not of these")
    try:
        graph = summary_graph(recurrence, captures, known)
    except StateNeeded as needed:
        reason = "the summary of a token reads another state"
        return WithoutLaw(tuple(state.name for state in recurrence.states), reason, "", needed.node)
    merge, apply = (
        joined([getattr(law, kind) for law in recurrence.laws]) for kind in ("merge", "apply")
    )
    parts = {name: graph[id].type for name, id in graph.outputs.items()}
    return Law((LawRound((), parts, graph, merge, apply, None, recurrence.laws),))


# --- of a layer ----------------------------------------------------------------------------------


def law_of_layer(layer: ir.Layer) -> Law | WithoutLaw:
    """The law of a layer that is one recurrence and what is computed of its inputs token by token,
    such as the memory of a layer alone; the summaries take inputs of the layer."""
    regions = [
        node for node in layer.graph if isinstance(node.op, ir.Recurrence | ir.Attend | ir.Call)
    ]
    recurrences = [node for node in regions if isinstance(node.op, ir.Recurrence)]
    if len(recurrences) != 1 or len(regions) != 1:
        names = tuple(state.name for node in recurrences for state in node.op.states)
        reason = "a law is about one recurrence, not about several, an attention or a called layer"
        return WithoutLaw(names, reason)
    (recurrence,) = recurrences
    names = tuple(state.name for state in recurrence.op.states)
    late = _late(layer.graph, recurrence)
    if late is not None:
        return WithoutLaw(names, "what enters the recurrence reads earlier tokens", "", late)
    if recurrence.op.reverse:
        return WithoutLaw(names, "the recurrence runs from the last token to the first")
    known = stated(layer)
    operands = ir.captured(recurrence)
    types = {name: layer.graph[id].type for name, id in operands.items()}
    law = law_of(recurrence.op, types, {name: known[id] for name, id in operands.items()})
    if isinstance(law, WithoutLaw):
        return law
    return Law(tuple(_with_inputs(layer.graph, operands, each) for each in law.rounds))


def _late(graph: Graph, recurrence: Node) -> int | None:
    """A node before the recurrence that looks along the tokens, if any."""
    before = graph.ancestors(recurrence.id)
    looks = (ir.Shift, ir.Window, ir.Position)
    found = (n.id for n in graph if n.id in before and isinstance(n.op, looks))
    return next((id for id in found if "t" in graph[id].type.names), None)


def _with_inputs(graph: Graph, operands: dict[str, int], each: LawRound) -> LawRound:
    """The round, its summary from the inputs of the layer."""
    new = graph.copy()
    new.outputs = {}
    ids: dict[int, int] = {}
    for node in each.summary:
        if isinstance(node.op, ir.Input) and node.op.name in operands:
            ids[node.id] = operands[node.op.name]
        else:
            inside = (ids[operand] for operand in node.operands)
            ids[node.id] = new.add(node.op, *inside, name=node.name, span=node.span)
    new.outputs = {name: ids[id] for name, id in each.summary.outputs.items()}
    starts = {ck.start(state) for state in each.states}
    new.prune()
    assert not any(isinstance(n.op, ir.Input) and n.op.name in starts for n in new)
    return replace(each, summary=new)
