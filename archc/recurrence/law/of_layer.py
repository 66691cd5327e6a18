"""Layer IR -> the law of a layer's recurrence: what it takes is the layer's inputs."""

from __future__ import annotations

from dataclasses import replace

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.numerics.stated import stated
from archc.recurrence.law.composition import Law, LawRound, Refusal, law_of


def law_of_layer(layer: ir.Layer) -> Law | Refusal:
    """The law of a layer that is one recurrence and what is computed of its inputs token by token,
    such as the memory of a layer alone; the summaries take inputs of the layer."""
    regions = [node for node in layer.graph if isinstance(node.op, ir.Fold | ir.Pair | ir.Call)]
    folds = [node for node in regions if isinstance(node.op, ir.Fold)]
    if len(folds) != 1 or len(regions) != 1:
        names = tuple(state.name for node in folds for state in node.op.states)
        reason = "a law is about one recurrence, not about several, an attention or a called layer"
        return Refusal(names, reason)
    (fold,) = folds
    names = tuple(state.name for state in fold.op.states)
    late = _late(layer.graph, fold)
    if late is not None:
        return Refusal(names, "what enters the recurrence reads earlier tokens", "", late)
    if fold.op.reverse:
        return Refusal(names, "the recurrence runs from the last token to the first")
    known, operands = stated(layer), dict(zip(fold.op.captures, fold.operands, strict=False))
    types = {name: layer.graph[id].type for name, id in operands.items()}
    law = law_of(fold.op, types, {name: known[id] for name, id in operands.items()})
    if isinstance(law, Refusal):
        return law
    return Law(tuple(_with_inputs(layer.graph, operands, each) for each in law.rounds))


def _late(graph: Graph, fold: Node) -> int | None:
    """A node before the recurrence that looks along the tokens, if any."""
    before = graph.ancestors(fold.id)
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
