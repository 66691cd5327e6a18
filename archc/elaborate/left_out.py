"""A layer of a stack that takes what optional inputs are needed for -> two, of which one does not.

    repeat L as l:                                         x, h = first(x)
        x    = net(x)                               ->
        loss = loss + cross_entropy(x @ O, targets)        loss = rest(loss, h, O, targets)

Without `targets` the first ones give all that is made without them, and alone keep a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from archc.elaborate import ops
from archc.elaborate.scope import Scope
from archc.elaborate.values import Tensor
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.source import Span

HANDED = "handed_"
"""How names of what the second part takes of the first begin."""

ALONG = (ir.Recurrence, ir.Attend, ir.Call, ir.Shift, ir.Window)
"""What may keep something of earlier tokens: it stays in the first part."""

LEAVES = (ir.Constant, ir.Position, ir.Input, ir.Param)


@dataclass(frozen=True)
class Parts:
    """A layer as two: `first` needs no optional input; `rest` does, if there is such a part.
    `inputs` and `outputs` are the names of those of both, in the order of the whole."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    first: ir.Layer
    rest: ir.Layer | None = None


def _whole(layer: ir.Layer) -> Parts:
    """A layer that is in one part."""
    return Parts(tuple(op.name for _, op in layer.inputs), tuple(layer.graph.outputs), layer)


def needs_optional(value: Tensor) -> bool:
    """Whether a value is made from an input that may be left out."""
    graph = value.frame.graph
    if not value.frame.optional:
        return False
    made = (graph[id].op for id in (value.node, *graph.ancestors(value.node)))
    return any(isinstance(op, ir.Input) and op.optional for op in made)


def _and_before(graph: Graph, ids: Iterable[int]) -> set[int]:
    """Nodes, and all that they depend on."""
    return {each for id in ids for each in (id, *graph.ancestors(id))}


def in_parts(layer: ir.Layer) -> Parts:
    """The layer in two parts, if some of its outputs need no optional input. Else the layer, whose
    inputs are all given."""
    graph = layer.graph
    late = {id for id, op in layer.inputs if op.optional}
    if not late:
        return _whole(layer)
    made = late.union(*(graph.descendants(id) for id in late))
    outputs = graph.outputs.items()
    first = {name: id for name, id in outputs if id not in made}
    second = {name: id for name, id in outputs if id in made}
    own = _and_before(graph, second.values())
    along = [id for id in own - made if isinstance(graph[id].op, ALONG)]
    results = [u for id in along for u in graph.users(id) if isinstance(graph[u].op, ir.Result)]
    own -= _and_before(graph, [*first.values(), *along, *results])
    border = sorted({o for id in own for o in graph[id].operands} - own)
    handed = [id for id in border if not isinstance(graph[id].op, LEAVES)]
    shared = any(isinstance(graph[id].op, ir.Param) for id in border)
    whole = shared or any("batch" not in graph[id].type.names for id in handed)
    if not first or not second or whole:
        return _whole(_all_given(layer, graph.copy()))
    names = {id: f"{HANDED}{number}" for number, id in enumerate(handed, 1)}
    above, below = graph.copy(), graph.copy()
    above.outputs = first | {name: id for id, name in names.items()}
    for id, name in names.items():
        below.substitute(id, below.add(ir.Input(name, graph[id].type), name=name))
    below.outputs = {name: id for name, id in below.outputs.items() if name in second}
    above.prune()
    below.prune()
    rest = replace(layer, name=f"{layer.name}Optional")
    parts = replace(layer, graph=above), _all_given(rest, below)
    return replace(_whole(layer), first=parts[0], rest=parts[1])


def _all_given(layer: ir.Layer, graph: Graph) -> ir.Layer:
    """The layer with another graph, of which no input is left out."""
    for node in list(graph):
        if isinstance(node.op, ir.Input) and node.op.optional:
            graph.replace_op(node.id, replace(node.op, optional=False))
    return replace(layer, graph=graph)


def parted(scope: Scope, layer: ir.Layer, given: Sequence[Tensor]) -> Parts:
    """The parts of a layer that is applied to values of which some need optional inputs."""
    late = frozenset(
        id for (id, _), value in zip(layer.inputs, given, strict=True) if needs_optional(value)
    )
    if not late:
        return _whole(layer)
    known = scope.session.parted.get((id(layer), late))
    if known is None:
        graph = layer.graph.copy()
        for node, op in layer.inputs:
            graph.replace_op(node, replace(op, optional=node in late))
        known = in_parts(replace(layer, graph=graph))
        if known.rest is None:  # all of it needs them
            known = _whole(layer)
        scope.session.parted[id(layer), late] = known
    return known


def called(
    scope: Scope, parts: Parts, op: ir.Call, beside: str, given: Sequence[Tensor], span: Span
) -> dict[str, Tensor]:
    """The outputs of a layer that is applied to its inputs, by their names; `beside` is the path of
    its second part."""
    known = dict(zip(parts.inputs, given, strict=True))
    read = applied(scope, replace(op, callee=parts.first), _inputs(parts.first, known), span)
    if parts.rest is not None:
        parts.rest.name = f"{parts.first.name}Optional"
        known |= {name: value for name, value in read.items() if name.startswith(HANDED)}
        rest = replace(op, callee=parts.rest, path=beside)
        read |= applied(scope, rest, _inputs(parts.rest, known), span)
    return {name: read[name] for name in parts.outputs}


def _inputs(layer: ir.Layer, known: Mapping[str, Tensor]) -> list[Tensor]:
    """What a layer is applied to, in the order of its inputs."""
    return [known[op.name] for _, op in layer.inputs]


def applied(scope: Scope, op: ir.Call, given: Sequence[Tensor], span: Span) -> dict[str, Tensor]:
    """The outputs of one layer that is applied to its inputs, by their names."""
    made, names = ops.node(scope, op, *given, span=span), op.callee.graph.outputs
    return {name: ops.node(scope, ir.Result(name), made, span=span) for name in names}
