"""Ops of a layer that move into its recurrences: which may, the names of their values there, and
the recurrences that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Node
from archc.schedule.forms import Differentiate, derived


def may_move(graph: Graph, node: Node, stream: str, whole: bool = False) -> bool:
    """Whether a value is elementwise and real, along the tokens, and made of real values; `whole`:
    or of any numbers."""
    values = (o for o in node.operands if not (whole and is_number(graph, o)))
    real = all(graph[id].type.dtype == "real" for id in (node.id, *values))
    return isinstance(node.op, ir.Elementwise) and real and stream in node.type.names


def is_number(graph: Graph, id: int) -> bool:
    """Whether a value is a constant, which stands anywhere."""
    return isinstance(graph[id].op, ir.Constant)


def called(graph: Graph, id: int) -> str | None:
    """The name of a value in the spec; None if it has none."""
    node = graph[id]
    return node.op.name if isinstance(node.op, ir.Input | ir.Param) else node.name


def in_words(graph: Graph, id: int) -> str:
    """A value's name in the spec, or the text that it comes from."""
    node = graph[id]
    text = node.span.text if node.span else type(node.op).__name__.lower()
    return called(graph, id) or text


def names_inside(op: ir.Recurrence) -> set[str]:
    """The names that a recurrence has for something."""
    return {*op.captures, *(state.name for state in op.states), *op.body.outputs}


def add_ops(
    graph: Graph, home: Graph, ops: Iterable[Node], reads: Iterable[int], names: Mapping[int, str],
    made: dict[int, int], without: str | None = None,
) -> None:  # fmt: skip
    """Add ops of a layer, their `home`, to a graph of its recurrence, of what is `made` there and
    of what they read, which enters under its name; `without` the stream where the graph is of one
    token."""
    known = {n.op.name: n.id for n in graph if isinstance(n.op, ir.Input)}
    for id in reads:
        name, type = names[id], home[id].type
        if name not in known:
            axes = tuple(axis for axis in type.axes if axis.name != without)
            known[name] = graph.add(ir.Input(name, replace(type, axes=axes)))
        made[id] = known[name]
    for node in ops:
        for o in node.operands:
            if is_number(home, o) and o not in made:
                made[o] = graph.add(home[o].op)
        operands = [made[o] for o in node.operands]
        made[node.id] = graph.add(node.op, *operands, name=node.name, span=node.span)


def rebuilt(
    graph: Graph, recurrence: Node, captured: Mapping[str, int], body: Graph, forward: Graph,
    differentiate: Differentiate,
) -> int:  # fmt: skip
    """A recurrence with other captures, another body, and the chunked form of that."""
    starts = recurrence.operands[len(recurrence.op.captures) :]
    form = derived(recurrence.op.chunked, forward, differentiate)
    op = replace(recurrence.op, captures=tuple(captured), body=body, chunked=form)
    return graph.add(op, *captured.values(), *starts, name=recurrence.name, span=recurrence.span)


def fresh(name: str, taken: set[str]) -> str:
    """A name that nothing has yet, which is taken then."""
    name = marked(name, taken)
    taken.add(name)
    return name
