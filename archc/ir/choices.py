"""The choices of a layer: the best n of m, windows, blocks. Sizes for which a choice leaves
something out, and whether an instance had one.

An instance in which every token takes all there is would hide a mistake in what is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from archc.dims import T_SEEN, TIME, counts_tokens, substituted
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.source import Span

OTHER = 5
"""Tokens of another sequence in an instance."""


def leaving_out(layer: ir.Layer, values: Mapping[Any, Any], tokens: int) -> list[sympy.Basic]:
    """Conditions under which each choice of a layer, and of those that it calls, leaves something
    out where a sequence has that many tokens. `values` gives the layer's symbols in those of its
    caller."""
    own = (_at_tokens(each, tokens) for each in _of(layer.graph))
    found = dict.fromkeys(substituted(each, values) for each in own)
    for call in {(id(c.callee), c.sizes): c for _, c in layer.calls}.values():
        given = {name: substituted(expr, values) for name, expr in call.sizes}
        symbols = [arg.symbol for arg in call.callee.args if arg.symbol is not None]
        inner = {s: given[s.name] for s in symbols}
        found |= dict.fromkeys(leaving_out(call.callee, inner, tokens))
    return [condition for condition in found if condition != sympy.true]


def _of(graph: Graph) -> Iterator[sympy.Basic]:
    """The conditions of one graph and of the bodies in it."""
    for node in graph:
        op = node.op
        if isinstance(op, ir.Top):
            many = node.type.axis(op.axis).size
            yield from (sympy.Ge(op.count, 1), sympy.Lt(op.count, many))
        elif isinstance(op, ir.Window):
            yield sympy.Lt(op.width.size, TIME.size)
            if op.blocks is not None:
                yield sympy.Ge(op.blocks.size, 2)
        elif isinstance(op, ir.Attend | ir.Recurrence):
            yield from _of(op.body)
            if isinstance(op, ir.Attend) and op.window is not None:
                yield sympy.Lt(op.window, TIME.size)


def _at_tokens(condition: sympy.Basic, tokens: int) -> sympy.Basic:
    """A condition for sequences of that length; another sequence is shorter."""
    streams = [s for s in condition.free_symbols if counts_tokens(str(s))]
    lengths = dict.fromkeys(streams, OTHER) | {TIME.size: tokens, T_SEEN: tokens}
    return condition.subs(lengths)


# --- what an instance shows ---------------------------------------------------------------------


@dataclass
class Seen:
    """Notes of each choice of the best few whether some row had a score that was chosen and one
    that was not; infinite scores are chosen, or left out, whatever the others are. It is given to
    the oracle, which calls it with every node and its values."""

    ranked: dict[tuple[str, int, Span | None], bool] = field(default_factory=dict)

    def __call__(self, node: Node, prefix: str, operands: Sequence[Any], value: Any) -> None:
        """Note whether a node chose."""
        if not isinstance(node.op, ir.Top):
            return
        dim = value.names.index(node.op.axis)
        free, chosen = operands[0].to(value.names).isfinite(), value.data
        both = (free & chosen).any(dim) & (free & ~chosen).any(dim)
        key = (prefix, node.id, node.span)
        self.ranked[key] = self.ranked.get(key, False) or bool(both.any())

    def one_sided(self) -> list[Span | None]:
        """The choices of the best few that never were one, in the order of the layer."""
        return [span for (_, _, span), ranked in self.ranked.items() if not ranked]


def chooses(op: ir.Attend) -> bool:
    """Whether all that an attend makes are choices: the places of the largest scores of each
    reader. They have no gradient, and those of one reader do not depend on other readers."""
    return all(isinstance(op.body[id].op, ir.Top) for id in op.body.outputs.values())
