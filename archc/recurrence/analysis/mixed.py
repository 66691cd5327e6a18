"""Layer IR -> the value that a memory mixes: o[t] = sum over s of M[t, s] v[s].

A value is followed through the memory. Where the result is linear in it and every channel of it
keeps to itself, so that one T x T matrix serves all channels, the value is what the memory mixes;
queries, keys and gates fail one of the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.value_names import state_before

ZERO, FREE, LINEAR, OTHER = "zero", "free", "linear", "other"


@dataclass(frozen=True)
class Flow:
    """The degree of a value in the one that is followed: it is zero, free of it, linear, or other.

    Of a linear one: `kept` pairs dims of the followed value with the dims here that they became,
    `varies` has the dims along which its coefficient differs, and `mixed` says whether it may come
    from another token.
    """

    kind: str
    kept: frozenset[tuple[str, str]] = frozenset()
    varies: frozenset[str] = frozenset()
    mixed: bool = False

    @property
    def depends(self) -> bool:
        """Whether the followed value can be seen here."""
        return self.kind in (LINEAR, OTHER)


@dataclass(frozen=True)
class Mixer:
    """A value, the memory's result that is linear in it, and the dims of both.

    One matrix for each position along `heads` (dims of the result) and `summed` (dims of the value
    that the result has no more) serves all `channels`: pairs of a dim of the value and of the
    result.
    """

    value: int
    result: int
    channels: tuple[tuple[str, str], ...]
    heads: tuple[str, ...]
    summed: tuple[str, ...]


GATES = ("exp", "sigmoid", "softplus")
"""Functions that make a positive number, which scales values and is none."""


def mixer(graph: Graph, inside: Collection[int]) -> Mixer | None:
    """The value that the memory made of the nodes `inside` mixes, all else that enters it held
    fixed; None where nothing fits, or where the memory has several results.

    Of several values (`i` and `z` in c[t] = f * c[t-1] + i * z) it is one of which nothing is
    summed, then one that is no gate, then the one that the spec has last.
    """
    results = _results(graph, inside)
    if len(results) != 1:
        return None
    found = [_as_value(graph, inside, id, results[0]) for id in entering(graph, inside)]

    def rank(mixer: Mixer) -> tuple[int, bool, int]:
        op, span = graph[mixer.value].op, graph[mixer.value].span
        gate = isinstance(op, ir.Elementwise) and op.fn in GATES
        return len(mixer.summed), gate, -(span.start if span else 0)

    return min((m for m in found if m is not None), key=rank, default=None)


def entering(graph: Graph, inside: Collection[int]) -> list[int]:
    """The values that enter the nodes `inside`."""
    return sorted({o for id in inside for o in graph[id].operands} - set(inside))


def _as_value(graph: Graph, inside: Collection[int], id: int, result: int) -> Mixer | None:
    """The mixer of a memory if this is the value it mixes."""
    node, dims = graph[id], _dims(graph[result])
    kinds = [axis.kind for axis in node.type.axes]
    if node.type.dtype != "real" or kinds.count("stream") != 1 or "batch" not in kinds:
        return None
    followed = Flow(LINEAR, frozenset((name, name) for name in _dims(node)))
    others = (o for o in entering(graph, inside) if "batch" in graph[o].type.names)
    flow = follow(graph, {**dict.fromkeys(others, Flow(FREE)), id: followed})[result]
    came_from = {here: own for own, here in flow.kept}
    if flow.kind != LINEAR or not flow.mixed or set(dims) - came_from.keys():
        return None
    channels = tuple((came_from[name], name) for name in dims if name not in flow.varies)
    heads = tuple(name for name in dims if name in flow.varies)
    summed = tuple(name for name in _dims(node) if name not in came_from.values())
    return Mixer(id, result, channels, heads, summed)


def _results(graph: Graph, inside: Collection[int]) -> list[int]:
    """The memory's values that the rest of the layer reads."""
    outside = {o for node in graph if node.id not in inside for o in node.operands}
    read = outside | set(graph.outputs.values())
    return [
        id
        for id in inside
        if id in read and not isinstance(graph[id].op, ir.Recurrence | ir.Attend)
    ]


def _dims(node: Node) -> tuple[str, ...]:
    return tuple(axis.name for axis in node.type.axes if axis.kind == "dim")


# --- following a value --------------------------------------------------------------------------


def follow(
    graph: Graph, seeds: Mapping[int, Flow], inputs: Mapping[str, Flow] | None = None
) -> dict[int, Flow]:
    """The flow of every node, from that of some nodes and of a body's inputs by name; whatever else
    comes from outside is free."""
    flows: dict[int, Flow] = {}
    regions: dict[int, Mapping[str, Flow]] = {}
    for node in graph:
        operands = [flows[operand] for operand in node.operands]
        flow = Flow(FREE)
        if node.id in seeds:
            flow = seeds[node.id]
        elif isinstance(node.op, ir.Input):
            flow = (inputs or {}).get(node.op.name, flow)
        elif isinstance(node.op, ir.Constant):
            flow = Flow(ZERO if node.op.value == 0 else FREE)
        elif isinstance(node.op, ir.Recurrence | ir.Attend | ir.Call):
            regions[node.id] = _region(node.op, operands)
        elif isinstance(node.op, ir.Result):
            flow = regions[node.operands[0]][node.op.name]
        elif operands:
            flow = _step(graph, node, operands)
        flows[node.id] = flow
    return flows


def _region(
    op: ir.Recurrence | ir.Attend | ir.Call, operands: Sequence[Flow]
) -> Mapping[str, Flow]:
    """The flows of what a region computes, by name."""
    if isinstance(op, ir.Recurrence):
        return _recurrence(op, operands)
    if isinstance(op, ir.Attend):
        roles = zip(op.captures, operands, strict=True)
        given = {name: _elsewhere(f) if role != "reader" else f for (name, role), f in roles}
        flows = follow(op.body, {}, given)
        return {name: flows[id] for name, id in op.body.outputs.items()}
    depends = any(flow.depends for flow in operands)
    return dict.fromkeys(op.callee.graph.outputs, Flow(OTHER if depends else FREE))


def _recurrence(op: ir.Recurrence, operands: Sequence[Flow]) -> Mapping[str, Flow]:
    """A state is what it starts as, or what an update leaves: repeated until that stays the same.
    Flows only ever grow, so that it does."""
    captures = dict(zip(op.captures, operands, strict=False))
    states = {s.name: f for s, f in zip(op.states, operands[len(captures) :], strict=True)}
    while True:
        before = {state_before(name): _elsewhere(flow) for name, flow in states.items()}
        flows = follow(op.body, {}, {**captures, **before})
        results = {name: flows[id] for name, id in op.body.outputs.items()}
        grown = {name: _either(flow, results[name]) for name, flow in states.items()}
        if grown == states:
            return results
        states = grown


def _elsewhere(flow: Flow) -> Flow:
    """A flow that comes from another token."""
    return replace(flow, mixed=flow.kind == LINEAR)


def _either(a: Flow, b: Flow) -> Flow:
    """The flow of a value that is one of two, or the sum of both."""
    if a.kind == ZERO or a == b:
        return b
    if b.kind == ZERO:
        return a
    if a.kind == b.kind == LINEAR and a.kept == b.kept:
        return Flow(LINEAR, a.kept, a.varies | b.varies, a.mixed or b.mixed)
    return Flow(FREE if a.kind == b.kind == FREE else OTHER)


# --- single ops ---------------------------------------------------------------------------------


def _step(graph: Graph, node: Node, operands: list[Flow]) -> Flow:
    """The flow of a tensor op that has operands."""
    op = node.op
    if isinstance(op, ir.Noise):
        return Flow(FREE)  # only the shape counts
    if any(flow.kind == OTHER for flow in operands):
        return Flow(OTHER)
    fn = op.fn if isinstance(op, ir.Elementwise) else ""
    if fn in ("add", "sub"):
        return _either(*operands)
    if fn == "where" and not operands[0].depends:
        return _scaled(_either(*operands[1:]), [graph[node.operands[0]]])
    if fn == "mul" or isinstance(op, ir.Contract):
        return _product(graph, node, operands)
    if any(flow.depends for flow in operands[1:]) and not isinstance(op, ir.Solve):
        return Flow(OTHER)
    if fn == "div":
        return _scaled(operands[0], [graph[node.operands[1]]])
    if fn in ("neg", "real"):
        return operands[0]
    return _of_one(graph, node, operands)


def _of_one(graph: Graph, node: Node, operands: list[Flow]) -> Flow:
    """Ops that are linear in one operand, or in none."""
    op, flow = node.op, operands[0]
    if isinstance(op, ir.Solve) and not flow.depends:
        lost = _without(operands[1], [op.row])
        return _scaled(lost, [graph[node.operands[0]]])
    if isinstance(op, ir.Reduce) and op.fn in ("sum", "mean"):
        return _without(flow, op.axes)
    if isinstance(op, ir.Gather):
        return _gathered(flow, op.axis, graph[node.operands[1]])
    if isinstance(op, ir.Shift | ir.Window):
        return _elsewhere(flow)
    return Flow(OTHER if any(f.depends for f in operands) else FREE)


def _product(graph: Graph, node: Node, operands: list[Flow]) -> Flow:
    """A product of one or two values: linear if one of them is."""
    if any(flow.kind == ZERO for flow in operands):
        return Flow(ZERO)
    places = [place for place, flow in enumerate(operands) if flow.kind == LINEAR]
    if len(places) != 1:
        return Flow(OTHER if places else FREE)
    place = places[0]
    others = [graph[o] for i, o in enumerate(node.operands) if i != place]
    flow = operands[place]
    if isinstance(node.op, ir.Elementwise):
        return _scaled(flow, others)
    here = _renamed(graph, node, place)
    varies = {here[name] for name in flow.varies if name in here}
    for other in range(len(operands)):
        if other != place:
            new = _renamed(graph, node, other)
            varies |= {new[name] for name in _dims(graph[node.operands[other]]) if name in new}
    kept = frozenset((own, here[name]) for own, name in flow.kept if name in here)
    return Flow(LINEAR, kept, frozenset(varies), flow.mixed)


def _renamed(graph: Graph, node: Node, place: int) -> dict[str, str]:
    """The axes of a contraction's operand that are not summed, each with its name in the result."""
    out = {label: axis.name for label, axis in node.op.out}
    names = graph[node.operands[place]].type.names
    labels = zip(names, node.op.ins[place], strict=True)
    return {name: out[label] for name, label in labels if label in out}


def _scaled(flow: Flow, factors: Iterable[Node]) -> Flow:
    """A flow times values that are free."""
    if flow.kind != LINEAR:
        return flow
    return replace(flow, varies=flow.varies.union(*(_dims(factor) for factor in factors)))


def _without(flow: Flow, axes: Collection[str]) -> Flow:
    """A flow whose axes are summed."""
    kept = frozenset(pair for pair in flow.kept if pair[1] not in axes)
    return replace(flow, kept=kept, varies=flow.varies - set(axes))


def _gathered(flow: Flow, axis: str, index: Node) -> Flow:
    """A flow read along an axis: heads may read their group, or all of them one position."""
    new = _dims(index)
    if flow.kind != LINEAR or len(new) > 1 or axis in new:
        return Flow(OTHER) if flow.kind == LINEAR else flow
    moved = {pair for pair in flow.kept if pair[1] == axis}
    kept = (flow.kept - moved) | {(own, name) for own, _ in moved for name in new}
    return replace(flow, kept=kept, varies=(flow.varies - {axis}) | set(new))
