"""Token regions: what of a layer is elementwise, or looks along dims or a few tokens back.

A region is a convex part of a layer's graph that runs along the tokens: chains of elementwise ops,
reductions over dims (norms), short convolutions and shifts along the tokens. Products with
parameters, recurrences, attentions and calls stand outside. One kernel reads its inputs once and
writes its outputs once, where PyTorch makes a pass over memory for each op.

The tokens before the first one enter as an input of their own for each op that looks back, a
`past`: it runs along the stream as any input does, but has values at the tokens -P ... -1 alone. In
the graph the op reads `where(position >= 0, x, past)`, so that the gradient of the past is found as
every other gradient is.

What a region looks back on and makes itself leaves it as a `tail`: the last tokens of each
sequence, which are kept for the next call. Packed sequences have a past and a tail each, and
positions count from the first token of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy

from archc.ir.graph import Graph, Node, Type
from archc.ir.layer import Input


@dataclass(frozen=True)
class Past:
    """Tokens before the first one: of what op of the layer (`looks`), and how many."""

    looks: int
    count: sympy.Expr


@dataclass(frozen=True, eq=False)
class TokenRegion:
    """One region: `members` are its nodes in the layer, `graph` the same by itself. `reads` gives
    each input of the graph its node in the layer, `makes` each output; `pasts` are the inputs that
    hold what was before the first token. `tables` are the inputs that nothing learned is behind,
    such as cosines of positions: they have no gradient. `seeds` are the inputs of which dropout's
    random numbers are a function, each with its node in the layer; outside of training they are
    missing. `passes` and `least` are numbers a token that PyTorch would move, and that the region
    must move, at sample sizes.
    `packed`: the sequences may stand one after the other in a batch of 1; `tails` are the outputs
    that are the last tokens of a sequence alone, each with the past that it is kept for. `nexts`
    are pasts of the next call, of short convolutions, which the kernel of the values writes where
    there is room for them, each with the past that it takes the place of.
    `again`: its one output is read by nothing but a product with a parameter, so that its gradient
    can make it a second time and no one keeps it."""

    name: str
    stream: str
    members: frozenset[int]
    graph: Graph
    reads: Mapping[str, int]
    makes: Mapping[str, int]
    pasts: Mapping[str, Past]
    tables: frozenset[str]
    passes: float
    least: float
    seeds: Mapping[str, int] = field(default_factory=dict)
    packed: bool = False
    tails: Mapping[str, str] = field(default_factory=dict)
    nexts: Mapping[str, str] = field(default_factory=dict)
    again: bool = False

    def edge(self, name: str) -> Past | None:
        """The tokens of each sequence that an input or an output has, if these are not all: those
        before its first one, or the last of a tail."""
        return self.pasts.get({**self.tails, **self.nexts}.get(name, name))

    def choice(self, past: str) -> Node:
        """What an op looks back on: `where(position >= 0, x, past)`."""
        (input,) = (n.id for n in self.graph if n.op == Input(past, n.type))
        (choice,) = self.graph.users(input)
        return self.graph[choice]

    def reader(self, past: str) -> Node:
        """The op that looks back on a past."""
        (reader,) = self.graph.users(self.choice(past).id)
        return self.graph[reader]


@dataclass(frozen=True)
class Gradient:
    """The gradient of a region: a graph from its inputs and the cotangents of its outputs
    (`d.<output>`) to the cotangents of `wanted` inputs (`d.<input>`). `alike` are further inputs
    whose cotangents are that of another one, or of an output, as those of a sum are. `in_place`:
    the value that it makes as well may be written where its cotangent stands."""

    graph: Graph
    wanted: tuple[str, ...]
    given: tuple[str, ...]
    alike: Mapping[str, str] = field(default_factory=dict)
    in_place: bool = False


@dataclass(frozen=True)
class Left:
    """A part of a layer that could be a token region and stays in PyTorch, and why."""

    name: str
    members: frozenset[int]
    reason: str


def is_token_type(type: Type, stream: str) -> bool:
    """Whether a value has a row for each sequence and token, and no other stream."""
    kinds = [axis.kind for axis in type.axes]
    return kinds.count("batch") == 1 and kinds.count("stream") == 1 and stream in type.names
