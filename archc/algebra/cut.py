"""Layer IR -> layer IR: the memory of a layer alone, as a layer without parameters.

The memory is what stands between the values that enter the layer's recurrences and attentions and
their results. What enters keeps its name in the spec; a value that is defined as exp(e) enters
as e, under the name `log_<name>`, so that a decay can be given without losing digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

from archc.ir import layer as ir
from archc.ir.chunk_section import Bound
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node
from archc.ir.typing import layer_graph
from archc.source import Source

MEMORY = (ir.Recurrence, ir.Attend)
EXP = ir.Elementwise("exp")


class NoMemory(ValueError):
    """A layer whose memory cannot be taken out: it has none of its own."""


class Lies(Protocol):
    """The interval that a value lies in."""

    @property
    def low(self) -> float | Fraction: ...
    @property
    def high(self) -> float | Fraction: ...
    @property
    def open_low(self) -> bool: ...
    @property
    def open_high(self) -> bool: ...


Known = Mapping[int, Lies]
"""The interval of each value of a layer, by node: an input of the memory keeps it as a promise."""


def op(layer: ir.Layer, known: Known | None = None) -> ir.Layer:
    """The memory, cut where values enter it. Raises NoMemory for a layer that has none."""
    inside = memory_of(layer)
    return _cut(layer, inside, _operands_outside(layer.graph, inside), known or {})


def fused_op(layer: ir.Layer, known: Known | None = None) -> ir.Layer:
    """The memory and the tokenwise work before it, cut at the nearest product with a parameter,
    short convolution, row of a table, or input of the layer. Parameters in between become
    inputs."""
    return _cut(layer, *_fused(layer), known or {})


def _fused(layer: ir.Layer) -> tuple[set[int], set[int]]:
    """The nodes inside the fused memory of a layer, and those that enter it."""
    inside = set(memory_of(layer))
    waiting = list(_operands_outside(layer.graph, inside))
    edge: set[int] = set()
    while waiting:
        id = waiting.pop()
        if id in inside or id in edge:
            continue
        if _is_edge(layer.graph, id):
            edge.add(id)
        else:
            inside.add(id)
            waiting += layer.graph[id].operands
    return inside, edge


def entering(layer: ir.Layer, fused: bool = False) -> ir.Layer:
    """The part of a layer before its memory, as a layer: its outputs are the inputs of `op`, or of
    `fused_op`, by their names. Raises NoMemory for a layer that has none."""
    graph, names = layer.graph.copy(), _Names()
    edges = _fused(layer)[1] if fused else _operands_outside(graph, memory_of(layer))
    edge = _in_spec_order(graph, edges)
    edge = [id for id in edge if not _given_by_sizes(graph, id)]
    graph.outputs = dict(_entry(graph, names, id, layer.source) for id in edge)
    graph.prune(keep=[id for id, _ in layer.inputs])
    doc = f"What enters the memory of {layer.name}."
    return replace(layer, kind="layer", doc=doc, graph=graph)


def memory_of(layer: ir.Layer) -> frozenset[int]:
    """The recurrences and attentions of a layer, their results, and what lies between them."""
    graph = layer.graph
    first = [node.id for node in graph if isinstance(node.op, (*MEMORY, ir.Substitute))]
    if not first:
        calls = ", ".join(sorted({call.callee.name for _, call in layer.calls}))
        more = f"; it calls {calls}" if calls else ""
        raise NoMemory(f"{layer.name} has no recurrence or attention of its own{more}")
    after = set(first).union(*(graph.descendants(id) for id in first))
    before = set(first).union(*(graph.ancestors(id) for id in first))
    regions = [id for id in first if isinstance(graph[id].op, MEMORY)]
    results = {user for id in regions for user in graph.users(id)}
    inside = frozenset((after & before) | results)
    if any(isinstance(graph[id].op, ir.Call) for id in inside):
        raise NoMemory(f"{layer.name} calls another layer between its memories")
    return inside


def _operands_outside(graph: Graph, inside: Iterable[int]) -> set[int]:
    """Values that enter a set of nodes."""
    inside = set(inside)
    return {o for id in inside for o in graph[id].operands if o not in inside}


def _is_edge(graph: Graph, id: int) -> bool:
    """Whether a fused memory begins behind this value."""
    node = graph[id]
    if isinstance(node.op, ir.Input | ir.Param | ir.Result):
        return True
    kinds = [graph[operand].op for operand in node.operands]
    with_param = any(isinstance(kind, ir.Param) for kind in kinds)
    if isinstance(node.op, ir.Gather):
        return with_param
    return (
        isinstance(node.op, ir.Contract) and len(kinds) == 2 and with_param and _sums(graph, node)
    )


def _sums(graph: Graph, node: Node) -> bool:
    """Whether a contraction sums over something, as a matrix product or a convolution does."""
    return {label for labels in node.op.ins for label in labels} > {
        label for label, _ in node.op.out
    }


# --- the new layer ------------------------------------------------------------------------------


def _cut(layer: ir.Layer, inside: Iterable[int], edge: Iterable[int], known: Known) -> ir.Layer:
    """A layer of the nodes inside; what enters becomes an input, constants are copied."""
    old, new = layer.graph, layer_graph()
    inside, edge = set(inside), set(edge)
    names = _Names()
    copies: dict[int, int] = {}
    for id in _in_spec_order(old, edge):
        if not _given_by_sizes(old, id):
            copies[id] = _enter(old, new, names, id, layer.source)
    for node in old:
        if node.id in copies or not (node.id in inside or _needed(old, inside, node.id)):
            continue
        operands = [copies[operand] for operand in node.operands]
        copies[node.id] = new.add(node.op, *operands, name=node.name, span=node.span)
    new.outputs = _results(old, inside, copies)
    given = [node for node in new if isinstance(node.op, ir.Input)]
    rules = replace(layer.chunk, bounds=tuple(promises(old, new, copies, known)))
    new.prune(keep=[node.id for node in given])
    unnamed = {old[id].span for id in edge if old[id].name is None}
    doc = [f"The memory of {layer.name} alone."]
    doc += [
        f"`{node.op.name}` is `{' '.join(node.span.text.split())}` in the spec."
        for node in given
        if node.span is not None and node.span in unnamed
    ]
    return replace(layer, kind="layer", doc="\n".join(doc), graph=new, chunk=rules)


def promises(old: Graph, new: Graph, copies: Mapping[int, int], known: Known) -> Iterator[Bound]:
    """Promises about the inputs of a layer that was cut off: the intervals of their values."""
    for id, copy in copies.items():
        node, source = new[copy], id
        if node.op == EXP and old[id].op == EXP and old[id].operands[0] not in copies:
            node, source = new[node.operands[0]], old[id].operands[0]
        lies = known.get(source)
        if lies is None or not isinstance(node.op, ir.Input):
            continue
        if lies.low > -math.inf or lies.high < math.inf:
            yield Bound(node.op.name, lies.low, lies.high, lies.open_low, lies.open_high)


class _Names:
    """Names of inputs, each once."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def fresh(self, hint: str) -> str:
        """The hint, or `hint_2`."""
        name = numbered(hint, self.taken)
        self.taken.add(name)
        return name


def _in_spec_order(graph: Graph, ids: Iterable[int]) -> list[int]:
    """Values in the order in which the spec names them, parameters last."""

    def place(id: int) -> tuple[bool, int, int]:
        node = graph[id]
        return isinstance(node.op, ir.Param), node.span.start if node.span else -1, id

    return sorted(ids, key=place)


def _given_by_sizes(graph: Graph, id: int) -> bool:
    """Whether a value is made of constants and positions alone, so that it need not be given."""
    sources = {id, *graph.ancestors(id)}
    return not any(isinstance(graph[s].op, ir.Input | ir.Param) for s in sources)


def _needed(graph: Graph, inside: set[int], id: int) -> bool:
    """Whether a node outside is a constant that something inside is made from."""
    return _given_by_sizes(graph, id) and bool(graph.descendants(id) & inside)


def _enter(old: Graph, new: Graph, names: _Names, id: int, home: Source) -> int:
    """The input that stands for a value of the layer; exp(log_a) for one that is an exponential."""
    node = old[id]
    name, _ = _entry(old, names, id, home)
    given = new.add(ir.Input(name, node.type), name=name, span=node.span)
    return new.add(node.op, given, span=node.span) if node.op == EXP else given


def _entry(graph: Graph, names: _Names, id: int, home: Source) -> tuple[str, int]:
    """The name of the input that stands for a value, and the node that it gives."""
    node = graph[id]
    name = node.name or _called(graph, id, home)
    if node.op == EXP:
        return names.fresh(f"log_{name}"), node.operands[0]
    return names.fresh(name), id


def _called(graph: Graph, id: int, home: Source) -> str:
    """A name for a value that has none in the spec: what a memory calls it that it enters, or the
    name of the value that it goes into."""
    seen, row = {id}, [id]
    while row:
        for user in row:
            for reader in (graph[r] for r in graph.users(user)):
                if isinstance(reader.op, MEMORY) and user == id:
                    capture = reader.op.captures[reader.operands.index(user)]
                    return capture if isinstance(capture, str) else capture[0]
                if (
                    reader.name is not None
                    and reader.span is not None
                    and reader.span.source is home
                ):
                    return reader.name
        row = sorted({u for user in row for u in graph.users(user)} - seen)
        seen |= set(row)
    return "u"


def _results(old: Graph, inside: set[int], copies: dict[int, int]) -> dict[str, int]:
    """The memory's results that the rest of the layer reads, by name."""
    read = set(old.outputs.values()) | {
        o for node in old if node.id not in inside for o in node.operands
    }
    found: dict[str, int] = {}
    for node in old:
        if node.id in inside and node.id in read and not isinstance(node.op, MEMORY):
            base = node.name or getattr(node.op, "name", None) or "o"
            found.setdefault(base, copies[node.id])
    return found
