"""Conditions by which a state would be known not to grow: statements that the spec lacks, found by
trying them.

A decay such as `sigmoid(e) ** (1 / tau)` is at most 1 where `tau > 0`, and may be anything where
nothing is said about tau. The derivation is made again as if the spec said so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import sympy

from archc.dims import free_symbols
from archc.ir import layer as ir
from archc.ir.chunk_section import Bound
from archc.ir.graph import Graph, Node
from archc.ir.value_names import gate_of
from archc.numerics.constants import required
from archc.numerics.gates import gates_in_logs, in_logs
from archc.recurrence.affine.normalize import decays
from archc.recurrence.chunk.chunked import studies
from archc.recurrence.chunk.derived import Kept
from archc.source import Span

MAY_GROW, INDEFINITE = "E0602", "E0606"

CONDITIONS: tuple[tuple[Callable[[sympy.Symbol], Any], ...], ...] = (
    (lambda symbol: sympy.Gt(symbol, 0),),
    (lambda symbol: sympy.Le(symbol, 1),),
    (lambda symbol: sympy.Gt(symbol, 0), lambda symbol: sympy.Le(symbol, 1)),
)
"""Requirements on a size or option, tried in this order."""


@dataclass(frozen=True)
class Unsaid:
    """A fact that is not known, and the statement that says it."""

    note: str
    help: str


def unsaid(layer: ir.Layer, recurrence: Node, kept: Kept) -> Iterator[Unsaid]:
    """The requirement, and the promise, of which each would be enough for a chunked form."""
    if kept.code not in (MAY_GROW, INDEFINITE):
        return
    gates = gates_of(layer.graph, recurrence, kept)
    symbols = _symbols(layer.graph, [*gates.values()], recurrence, kept)
    if (missing := _requirement(layer, kept, symbols)) is not None:
        yield missing
    if kept.code == INDEFINITE:
        return
    if len(gates) == 1:
        (name, gate), *_ = gates.items()
        if (missing := _promise(layer, kept, gate, in_logs(recurrence.op, name))) is not None:
            yield missing
    yield from _of_inputs(layer, kept, [*gates.values()])


def gates_of(graph: Graph, recurrence: Node, kept: Kept) -> dict[str, Node]:
    """The values of a layer that the decay in question is made of, by the names of captures."""
    outside = ir.captured(recurrence)
    body, around = recurrence.op.body, set[int]()
    if kept.node is not None:
        around = {kept.node, *body.ancestors(kept.node)}
    inputs = (body[id].op for id in sorted(around))
    names = [op.name for op in inputs if isinstance(op, ir.Input) and op.name in outside]
    return {name: graph[outside[name]] for name in names}


def _requirement(layer: ir.Layer, kept: Kept, symbols: list[sympy.Symbol]) -> Unsaid | None:
    """A condition on one size or option."""
    known = required(layer)
    for symbol in symbols:
        for conditions in CONDITIONS:
            made = [condition(symbol) for condition in conditions]
            requirements = tuple(ir.Requirement(each, str(each), layer.span) for each in made)
            said = replace(layer, requirements=(*layer.requirements, *requirements))
            if required(said) != known and _chunked(said, kept):
                text = " and ".join(f"{each.lhs} {each.rel_op} {each.rhs}" for each in made)
                helps = "` and `".join(f"require {part}" for part in text.split(" and "))
                return Unsaid(f"`{text}` is not known", f"say `{helps}`")
    return None


def _symbols(graph: Graph, gates: list[Node], recurrence: Node, kept: Kept) -> list[sympy.Symbol]:
    """The sizes and options that go into values, and into what stands in the way in the body."""
    ids = {id for gate in gates for id in (gate.id, *graph.ancestors(gate.id))}
    body: Graph = recurrence.op.body
    inside = set[int]() if kept.node is None else {kept.node, *body.ancestors(kept.node)}
    constants = (*(graph[id].op for id in sorted(ids)), *(body[id].op for id in sorted(inside)))
    values = (op.value for op in constants if isinstance(op, ir.Constant))
    found = {symbol for value in values for symbol in free_symbols(value)}
    return sorted(found, key=str)


def _promise(layer: ir.Layer, kept: Kept, gate: Node, log: bool) -> Unsaid | None:
    """A promise about the value that the decay is made of, if the spec has a name for it; `log`:
    it is the logarithm of the decay."""
    if gate.name is None or gate.span is None:
        return None
    name, limit = gate.name, "0" if log else "1"
    if log and not _names(gate.span, name):
        name, limit = gate_of(name) or name, "1"
    if not _names(gate.span, name):
        return None
    origin = None if isinstance(gate.op, ir.Input) else gate.span
    low, high = (-math.inf, 0.0) if log else (0.0, 1.0)
    bounds = (*layer.chunk.bounds, Bound(gate.name, low, high, True, False, origin))
    if not _chunked(replace(layer, chunk=replace(layer.chunk, bounds=bounds)), kept):
        return None
    rules = [] if log else [f"bound {name} > 0"]
    rules.append(f"bound {name} <= {limit}")
    return Unsaid("", f"if it always holds, promise it: `chunk: {', '.join(rules)}`")


def _of_inputs(layer: ir.Layer, kept: Kept, gates: list[Node]) -> Iterator[Unsaid]:
    """A promise about an input from which a decay is made: a share of a gate, say."""
    above = {id for gate in gates for id in layer.graph.ancestors(gate.id)}
    inputs = (node for id in sorted(above) if isinstance((node := layer.graph[id]).op, ir.Input))
    for name in (node.op.name for node in inputs if node.type.dtype == "real"):
        bounds = (*layer.chunk.bounds, Bound(name, 0.0, 1.0, False, False, None))
        if _chunked(replace(layer, chunk=replace(layer.chunk, bounds=bounds)), kept):
            rule = f"`chunk: bound {name} >= 0, bound {name} <= 1`"
            yield Unsaid("", f"if the input `{name}` lies between 0 and 1, promise that: {rule}")
            return


def _names(span: Span, name: str) -> bool:
    """Whether the text of a statement or declaration starts with a name."""
    return re.match(rf"{re.escape(name)}(?![\w'])", span.text) is not None


def _chunked(layer: ir.Layer, kept: Kept) -> bool:
    """Whether the states have a chunked form in a layer that says more."""
    said = gates_in_logs(layer, decays)
    for each, node, derived in studies(said):
        if each is not said:
            return False
        if kept.states[0] in (state.name for state in node.op.states):
            return all(kept.states != other.states for other in derived.kept)
    return False
