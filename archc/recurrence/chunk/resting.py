"""Layer IR -> layer IR: a state that falls back to a value, as how far it is from there.

    S[t] = f * S[t-1] + (1 - f) * P + k @ v.T,    P the same at every token
    -> D[t] = f * D[t-1] + k @ v.T,    S = D + P

What is written to S has an entry for every element of it; what is written to D is of low rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node, Type
from archc.ir.typing import layer_graph
from archc.recurrence.affine.atoms import Table
from archc.recurrence.affine.form import MATRIX, NormalForm
from archc.recurrence.affine.normalize import normal_forms
from archc.recurrence.chunk.derived import Derived

Rests = Mapping[str, str]
"""Captures that states fall back to, by the states."""

Change = Callable[[Builder, Node, int, Mapping[str, int]], int]
"""A node, its copy in a new graph, and the inputs there by name -> what stands for it there."""


def derived_from_rest(
    recurrence: ir.Recurrence,
    captures: Mapping[str, Type],
    derive: Callable[[ir.Recurrence], Derived],
) -> Derived | None:
    """The chunked form by what states are from where they rest; None if that is no better."""
    rests = {} if recurrence.laws else _rests(recurrence, captures)
    if not rests:
        return None
    own, nodes = _from_rest(recurrence, rests)
    found = derive(own)
    forms = [_of_nodes(form, nodes) for form in found.forms]
    if found.graph is None or found.kept or found.definite or None in forms:
        return None
    told = [f"`{state}` is summed as how far it is from `{rest}`" for state, rest in rests.items()]
    return replace(
        found, graph=_with_rests(found.graph, rests), forms=tuple(filter(None, forms)),
        notes=(*told, *found.notes),
    )  # fmt: skip


def _of_nodes(form: NormalForm, nodes: Mapping[int, int]) -> NormalForm | None:
    """A normal form of nodes of the recurrence's own body; None where it takes one that is not."""
    used = [atom.node for atom in form.atoms.values() if atom.node is not None]
    used += [n for each in form.forms for n in (*each.whole, *(r.node for r in each.reads))]
    if not nodes.keys() >= {*used}:
        return None
    atoms = {
        symbol: atom if atom.node is None else replace(atom, node=nodes[atom.node])
        for symbol, atom in form.atoms.items()
    }
    forms = (
        replace(
            each, whole=tuple(nodes[n] for n in each.whole),
            reads=tuple(replace(read, node=nodes[read.node]) for read in each.reads),
        )
        for each in form.forms
    )  # fmt: skip
    return replace(form, atoms=atoms, forms=tuple(forms))


def _rests(recurrence: ir.Recurrence, captures: Mapping[str, Type]) -> dict[str, str]:
    """The states to which a matrix is written that is the same at every token, and it, where
    nothing of its size is written to what is left of the state without it."""
    heads, rests = {*recurrence.heads}, dict[str, str]()
    for state in recurrence.states:
        own = {axis.name for axis in state.axes if axis.kind == "dim"}
        same = [name for name, type in captures.items() if {*type.names} <= own]
        same = [name for name in same if len({*captures[name].names} - heads) > 1]
        if not same or state.name not in _filled(recurrence):
            continue
        for name in same:
            if state.name not in _filled(_from_rest(recurrence, {state.name: name})[0]):
                rests[state.name] = name
                break
    return rests


def _filled(recurrence: ir.Recurrence) -> set[str]:
    """The matrix states to which something is written that is of no low rank."""
    found, heads = set[str](), {*recurrence.heads}
    dims = {s.name: {a.name for a in s.axes if a.kind == "dim"} - heads for s in recurrence.states}
    for form in normal_forms(recurrence):
        table = Table(form.atoms)
        for each in form.forms:
            terms = [table.symbols(term.x * term.c) for step in each.steps for term in step.terms]
            wide = [dims[each.state] <= table.names(s) for symbols in terms for s in symbols]
            if form.kind != MATRIX or any(wide):
                found.add(each.state)
    return found


def _from_rest(recurrence: ir.Recurrence, rests: Rests) -> tuple[ir.Recurrence, Mapping[int, int]]:
    """The Recurrence with how far its states are from where they rest in their place, and which
    nodes of the old body are those of the new one."""
    after = {recurrence.body.outputs[state]: state for state in rests}
    before = {state.before: rests[state.name] for state in recurrence.states if state.name in rests}
    apart = dict[str, int]()

    def changed(make: Builder, node: Node, id: int, inputs: Mapping[str, int]) -> int:
        if isinstance(node.op, ir.Input):
            rest = before.get(node.op.name)
            return id if rest is None else make.fn("add", id, inputs[rest])
        if node.id not in after:
            return id
        rest = inputs[rests[after[node.id]]]
        apart[after[node.id]] = make.fn("sub", id, rest)
        return make.fn("add", apart[after[node.id]], rest)

    body, nodes = _changed(recurrence.body, changed)
    body.outputs |= apart
    return replace(recurrence, body=body), nodes


def _with_rests(graph: Graph, rests: Rests) -> Graph:
    """A chunked form from the states themselves, and to them."""
    starts = {ck.start(state): rest for state, rest in rests.items()}
    known = dict[str, int]()

    def changed(make: Builder, node: Node, id: int, inputs: Mapping[str, int]) -> int:
        known.update(inputs)
        rest = starts.get(node.op.name) if isinstance(node.op, ir.Input) else None
        return id if rest is None else make.fn("sub", id, inputs[rest])

    new, _ = _changed(graph, changed)
    for state, rest in rests.items():
        final = ck.final(state)
        new.outputs[final] = Builder(new).fn("add", new.outputs[final], known[rest])
    return new


def _changed(graph: Graph, changed: Change) -> tuple[Graph, Mapping[int, int]]:
    """A graph in which other values stand for some, and the old nodes of those that are copies."""
    new, ids, nodes = layer_graph(), dict[int, int](), dict[int, int]()
    own = {
        node.id: new.add(node.op, name=node.name, span=node.span)
        for node in graph
        if isinstance(node.op, ir.Input)
    }
    inputs = {graph[old].op.name: id for old, id in own.items()}
    for node in graph:
        copy = own.get(node.id)
        if copy is None:
            operands = (ids[operand] for operand in node.operands)
            copy = new.add(node.op, *operands, name=node.name, span=node.span)
        nodes[copy] = node.id
        ids[node.id] = changed(Builder(new, node.span), node, copy, inputs)
    new.outputs = {name: ids[id] for name, id in graph.outputs.items()}
    return new, nodes
