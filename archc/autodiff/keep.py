"""Rematerialisation: each of the forward's values that a gradient needs is saved by the forward, or
computed again.

A value is costly to recompute if it takes more than `COSTLY` operations for each byte that it reads
and writes, or if its op works through a sequence (a Recurrence, a Scan, a solve ...); any other
value is recomputed for nothing by a processor that waits for memory. No costly value is computed
twice. Among the ways to ensure that, the one that saves the fewest bytes is chosen: a minimum cut
between the costly values and their readers in the backward. Inputs of the forward need not be
saved.

Costs are taken at sample sizes: 4096 tokens, chunks of 64, and 64 for every other size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import is_
from typing import Any

import sympy

from archc.dims import T_SEEN, TIME, Axis, counts_tokens
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK_OPS
from archc.ir.count import operations_of
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type, cheapest_cut
from archc.ir.roles import held
from archc.ir.shapes import elements
from archc.ir.value_names import saved_name

COSTLY = 8
"""Operations a byte, above which a value is not computed again."""

BYTES = 4
TOKENS, SIZE = 4096, 64

IN_ORDER = (
    ir.Result, ir.Solve, ir.Segment, ir.Substitute, ir.Noise,
    *(op for op in CHUNK_OPS if op.in_order),
)  # fmt: skip
"""Ops that are costly at any size: they go step by step, or draw random numbers."""

LEAVES = (ir.Input, ir.Constant, ir.Position, ir.Delta)


@dataclass(frozen=True)
class Saved:
    """A value that the forward hands to the backward, and why it is saved."""

    name: str
    type: Type
    reason: str

    @property
    def numbers(self) -> sympy.Expr:
        """Numbers a token."""
        return per_token(self.type.axes)

    @property
    def bytes(self) -> sympy.Expr:
        """Bytes a token, as float32."""
        return BYTES * self.numbers


@dataclass(frozen=True)
class Gradient:
    """`forward`: the graph that was given, with an output more for each saved value. `backward`:
    from `d.<output>` of every given output, saved values and those inputs of the forward that it
    needs to `d.<input>`. `recomputed`: the nodes of the backward that compute a value of the
    forward again. `unreached`: wanted inputs that get zeros, as no gradient reaches them."""

    forward: Graph
    backward: Graph
    saved: tuple[Saved, ...]
    recomputed: tuple[Node, ...]
    unreached: tuple[str, ...] = ()


def divide(
    forward: Graph,
    graph: Graph,
    save: bool,
    stored: Collection[str],
    again: tuple[type, ...] = (),
    never: Collection[int] = (),
) -> Gradient:
    """Cut a graph of forward and gradient in two; its outputs are those of the gradient. Ops of
    `again` are never costly, and the values of `never` are not saved."""
    extended = graph.copy()
    given = [n.id for n in graph if isinstance(n.op, ir.Input) and n.id not in forward]
    graph.prune(given)
    later = {id for root in given for id in (root, *graph.descendants(root))}
    chosen = _cut(graph, later, stored, again, never) if save else []
    names = _names(graph, chosen, {*forward.outputs})
    extended.outputs = {**forward.outputs, **{name: id for id, name in names.items()}}
    extended.prune([node.id for node in forward if isinstance(node.op, ir.Input | ir.Param)])
    saved = tuple(_saved(graph, id, name) for id, name in names.items())
    for id, name in names.items():
        graph.substitute(id, graph.add(ir.Input(name, graph[id].type), span=graph[id].span))
    graph.prune(given)
    entering = [graph[id].op.name for id in given]
    backward = whole(graph)
    return Gradient(extended, backward, saved, _again(backward, entering))


def _again(backward: Graph, given: Collection[str]) -> tuple[Node, ...]:
    """The nodes of a backward that do not depend on a cotangent."""
    roots = [n.id for n in backward if isinstance(n.op, ir.Input) and n.op.name in given]
    later = {id for root in roots for id in (root, *backward.descendants(root))}
    return tuple(n for n in backward if n.id not in later and not isinstance(n.op, LEAVES))


def report(gradient: Gradient) -> str:
    """A report of the values that are saved, and of those that are computed again."""
    lines = ["saved for the gradient, bytes a token in float32:"]
    width = max((len(saved.name) for saved in gradient.saved), default=0)
    for saved in gradient.saved:
        axes = ", ".join(saved.type.names)
        lines.append(f"  {saved.name:<{width}}  {saved.bytes}  [{axes}]  {saved.reason}")
    total = sympy.factor_terms(sympy.Add(*(saved.bytes for saved in gradient.saved)))
    lines.append(f"  in all {total}" if gradient.saved else "  nothing")
    named = [node.name for node in gradient.recomputed if node.name is not None]
    others = len(gradient.recomputed) - len(named)
    shown = ", ".join([*named, *([f"{others} without a name"] if others else [])])
    lines.append(f"computed again: {shown or 'nothing'}")
    return "\n".join(lines) + "\n"


# --- the choice ---------------------------------------------------------------------------------


def _cut(
    graph: Graph,
    later: Collection[int],
    stored: Collection[str],
    again: tuple[type, ...],
    never: Collection[int],
) -> list[int]:
    """The values of the forward to save, in dataflow order."""
    values = [
        n for n in graph if n.id not in later and not isinstance(n.op, ir.Recurrence | ir.Attend)
    ]
    held = {n.id for n in values if isinstance(n.op, ir.Input) and n.op.name in stored}
    costly = {n.id for n in values if not isinstance(n.op, again) and _is_costly(graph, n)}
    weights = {n.id: 0 if _is_input(n) and n.id not in held else size(n.type) for n in values}
    weights |= dict.fromkeys({*never} & {*weights}, 1 + sum(weights.values()))
    reads = {n.id: () if n.id in costly else n.operands for n in values}
    sinks = {read for id in later for read in graph[id].operands if read not in later}
    found = cheapest_cut(weights, reads, sorted(costly | held), sorted(sinks))
    return [id for id in found if not _is_input(graph[id])]


def _is_costly(graph: Graph, node: Node) -> bool:
    """Whether a value is not to be computed again."""
    if isinstance(node.op, IN_ORDER):
        return True
    types = [graph[operand].type for operand in node.operands]
    found = operations_of(node, types, {})
    moved = BYTES * sum(map(size, [node.type, *types]))
    return _sample(found) > COSTLY * moved


def _is_input(node: Node) -> bool:
    return isinstance(node.op, ir.Input)


def size(type: Type) -> int:
    """The number of elements of a value at the sample sizes; at least one."""
    return max(1, round(_sample(elements(type.axes, {}))))


@lru_cache(maxsize=4096)
def _sample(expr: sympy.Expr) -> float:
    """An expression in sizes at the sample sizes."""
    value: Any = expr
    for symbol in sorted(expr.free_symbols, key=str):
        value = value.subs(symbol, TOKENS if counts_tokens(str(symbol)) else SIZE)
    return float(value) if value.is_finite else float(SIZE)


def _names(graph: Graph, chosen: Iterable[int], taken: set[str]) -> dict[int, str]:
    """A name for each saved value: its own, or that of a loop that it enters, or that of its op;
    `saved.q`, `saved.scores.2`."""
    names: dict[int, str] = {}
    for id in chosen:
        names[id] = numbered(saved_name(held(graph, id)), taken, ".")
        taken.add(names[id])
    return names


def _saved(graph: Graph, id: int, name: str) -> Saved:
    node = graph[id]
    kind = type(node.op).__name__
    if isinstance(node.op, ir.Result):
        kind = type(graph[node.operands[0]].op).__name__
    fewest = "the fewest bytes that give a costly value"
    reason = f"{kind}: costly to recompute" if _is_costly(graph, node) else fewest
    return Saved(name, node.type, reason)


def per_token(axes: Iterable[Axis]) -> sympy.Expr:
    """Numbers a token of a value: of one along chunks, its numbers a chunk over C."""
    return _per_token(tuple(axes))


@lru_cache(maxsize=1024)
def _per_token(axes: tuple[Axis, ...]) -> sympy.Expr:
    numbers = elements(axes, {}).replace(sympy.ceiling, lambda inner: inner)
    return sympy.simplify(numbers.xreplace({T_SEEN: TIME.size}) / TIME.size)


PARTS = {Axis, Type, ir.State, *ir.OPS, *CHUNK_OPS}
"""Classes with sizes in their fields."""


def whole(graph: Graph) -> Graph:
    """A graph and its bodies with T in place of T_seen; nodes are numbered anew. A sequence that is
    continued has more tokens to read than readers; a gradient is taken of a whole one."""
    new: Graph = Graph(graph.infer)
    ids: dict[int, int] = {}
    for node in graph:
        operands = [ids[operand] for operand in node.operands]
        ids[node.id] = new.add(_whole(node.op), *operands, name=node.name, span=node.span)
    new.outputs = {name: ids[id] for name, id in graph.outputs.items()}
    return new


def _whole(part: Any) -> Any:
    """An op or a part of one, itself where it does not speak of T_seen."""
    if isinstance(part, tuple):
        parts = tuple(map(_whole, part))
        return part if all(map(is_, parts, part)) else parts
    if isinstance(part, Graph):
        return whole(part)
    if isinstance(part, sympy.Basic):
        return part.xreplace({T_SEEN: TIME.size})
    if type(part) in PARTS:
        held = {f.name: getattr(part, f.name) for f in fields(part)}
        parts = {name: _whole(value) for name, value in held.items()}
        return part if all(parts[name] is held[name] for name in held) else replace(part, **parts)
    return part
