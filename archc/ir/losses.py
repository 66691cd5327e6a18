"""Layer graph -> the outputs that are losses, and what is computed for these alone: numbers for all
tokens that a call is given, which no token depends on."""

from __future__ import annotations

from collections.abc import Collection

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

LOSS = "_loss"
"""How the name of a loss among the outputs ends."""

TOKENS = {"batch", "t"}
"""The axes that a loss has none of."""


def loss_names(graph: Graph) -> tuple[str, ...]:
    """The outputs that are losses: numbers whose names say so."""
    every = graph.outputs.items()
    return tuple(n for n, id in every if n.endswith(LOSS) and not graph[id].type.axes)


def outputs_of_call(graph: Graph, count: int | None = None) -> list[str]:
    """The outputs of a call, in order: of one that gives so many, or, for None, of one without the
    inputs that may be left out."""
    names = [*graph.outputs]
    if count == len(names):
        return names
    extra = {n.id for n in graph if isinstance(n.op, ir.Input) and n.op.optional}
    made = graph.outputs.items()
    return [name for name, id in made if not extra & {id, *graph.ancestors(id)}]


def for_tokens(graph: Graph) -> frozenset[int]:
    """The values that something else than losses is made of."""
    losses = {graph.outputs[name] for name in loss_names(graph)}
    waiting = [id for id in graph.outputs.values() if id not in losses]
    found: set[int] = set()
    while waiting:
        id = waiting.pop()
        if id in found:
            continue
        found.add(id)
        node = graph[id]
        alone = for_losses(node.op.callee.graph) if isinstance(node.op, ir.Call) else frozenset()
        inputs = [place for place, _ in node.op.callee.inputs] if alone else []
        waiting += [
            operand for at, operand in enumerate(node.operands)
            if not alone or inputs[at] not in alone
        ]  # fmt: skip
    return frozenset(found)


def for_losses(graph: Graph) -> frozenset[int]:
    """The values that losses alone are made of."""
    losses = {graph.outputs[name] for name in loss_names(graph)}
    every = losses.union(*(graph.ancestors(id) for id in losses))
    return frozenset(every - for_tokens(graph)) if losses else frozenset()


def is_read(graph: Graph, node: Node, read: Collection[int]) -> bool:
    """Whether a value is a loss of a called layer, and among those that tokens are made of."""
    if not isinstance(node.op, ir.Result) or node.id not in read:
        return False
    owner = graph[node.operands[0]].op
    return isinstance(owner, ir.Call) and node.op.name in loss_names(owner.callee.graph)


def sums_all_tokens(graph: Graph, node: Node) -> bool:
    """Whether a value has no tokens, and what it is made of has those of all sequences, if any."""
    along = [TOKENS & {*graph[operand].type.names} for operand in node.operands]
    return not TOKENS & {*node.type.names} and all(each in (set(), TOKENS) for each in along)
