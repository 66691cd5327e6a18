"""A walk over tokens: what windows look back on, and what they add to tokens behind, in registers.

Where a region has a short convolution, each row of a tile is a run of tokens, of which the program
looks at one a turn. What is carried from token to token, for each of the `width` places of a run:

    Window      what ends at a token: moved down by a place, and the newest value put last
    Unwindow    the sums of the tokens behind so far: moved down, and added to; the first is whole

A value may be wanted some tokens after those of the row (a *shift*): what an Unwindow sums is made
`width - 1` tokens ahead of the sum. Before the first turn there are as many turns as fill all
places, which store nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.lowering.token_rules import at_tokens
from archc.lowering.values import Made, Padded, Place
from archc.tile.handle import Tile
from archc.tile.language import Dim

if TYPE_CHECKING:
    from archc.lowering.token import TokenProgram


@dataclass(frozen=True)
class Carried:
    """The places of a run that ends so many tokens after those of the program: of the values of a
    node, or (`adds`) of sums over them."""

    node: int
    shift: sympy.Expr
    width: Axis
    adds: bool


class Looks:
    """The tokens that the windows of a graph look at: those carried, how far ahead of the last
    outputs their operands are made (`lag`), and how many turns fill all places: those of windows
    that no sums are part of (`windows`), and then the others (`sums`)."""

    def __init__(self, graph: Graph, stream: str):
        self.graph, self.stream = graph, stream
        self.summed = {n.id for n in graph if isinstance(n.op, ck.Unwindow)}
        self.summed |= {id for each in self.summed for id in graph.descendants(each)}
        self._ahead = self._longest(self._later)
        self.lag = furthest(self._ahead[id] for id in graph.outputs.values())
        self.windows = furthest(self._longest(lambda n: self._fills(n, sums=False)).values())
        self.sums = furthest(self._longest(lambda n: self._fills(n, sums=True)).values())
        self.carried: dict[Carried, None] = {}
        self._seen = set[tuple[int, sympy.Expr]]()
        for id in graph.outputs.values():
            self._find(id, self.shift(id))

    def shift(self, id: int) -> sympy.Expr:
        """How many tokens after the row's own an output is made: such that what all outputs read
        furthest ahead is at the same token."""
        return self.lag - self._ahead[id]

    def key(self, node: Node, shift: sympy.Expr) -> Carried:
        """The carried tokens of a window or of its transpose."""
        width, adds = self._width(node), isinstance(node.op, ck.Unwindow)
        return Carried(node.operands[0], shift + (width.size - 1 if adds else 0), width, adds)

    @property
    def said(self) -> dict[str, int]:
        """How many turns loads are ahead, and are one of machine code: of two fewer instructions
        move what is carried and make addresses. With sums registers have room for one."""
        summed = any(key.adds for key in self.carried)
        return {"ahead": 4} if summed else {"ahead": 3, "together": 2}

    @property
    def first(self) -> list[Carried]:
        """The carried tokens that have no sums in them."""
        return [key for key in self.carried if not key.adds and key.node not in self.summed]

    def _width(self, node: Node) -> Axis:
        """The places of a run."""
        if isinstance(node.op, ir.Window):
            return node.op.width
        return self.graph[node.operands[0]].type.axis(node.op.width)

    def _longest(self, steps: Callable[[Node], sympy.Expr]) -> dict[int, sympy.Expr]:
        """The most steps on the way to each node."""
        found = dict[int, sympy.Expr]()
        for node in self.graph:
            found[node.id] = furthest(found[each] for each in _read(node)) + steps(node)
        return found

    def _later(self, node: Node) -> sympy.Expr:
        """How many tokens after its own a node reads its operand."""
        if isinstance(node.op, ck.Unwindow):
            return self._width(node).size - 1
        return sympy.Integer(max(0, -node.op.steps) if _moves(node, self.stream) else 0)

    def _fills(self, node: Node, sums: bool) -> sympy.Expr:
        """How many turns fill the places of a node, if they are of sums or if they are not."""
        if isinstance(node.op, ir.Window | ck.Unwindow) and (node.id in self.summed) == sums:
            return self._width(node).size - 1
        return sympy.Integer(0)

    def _find(self, id: int, shift: sympy.Expr) -> None:
        """Find what is carried for a value, what it is made of first."""
        if (id, shift) in self._seen:
            return
        self._seen.add((id, shift))
        node = self.graph[id]
        if isinstance(node.op, ir.Window | ck.Unwindow):
            key = self.key(node, shift)
            self._find(key.node, key.shift)
            self.carried[key] = None
            return
        if isinstance(node.op, ir.Shift) or _moves(node, self.stream):
            shift = shift - node.op.steps
        for operand in _read(node):
            self._find(operand, shift)


def _read(node: Node) -> tuple[int, ...]:
    """The operands whose values a node is made of; that of a dropout gives its shape alone."""
    return node.operands[1:] if isinstance(node.op, ir.Noise) else node.operands


def _moves(node: Node, stream: str) -> bool:
    return isinstance(node.op, ck.Move) and node.op.axis == stream


def furthest(counts: Iterable[sympy.Expr]) -> sympy.Expr:
    """At least the largest of several numbers of tokens: their sum, if it is not known."""
    found = list[sympy.Expr]()
    for count in counts:
        if any((other - count).is_nonnegative for other in found):
            continue
        found = [other for other in found if not (count - other).is_nonnegative] + [count]
    return sympy.Add(*found)


class Walk:
    """The tokens that a program carries from turn to turn."""

    def __init__(self, v: TokenProgram, looks: Looks):
        self.v, self.looks = v, looks
        self.before: dict[Carried, Tile] = {}
        self.after: dict[Carried, Padded] = {}

    def begin(self, keys: Iterable[Carried], tiles: Sequence[Tile]) -> None:
        """Take what the last turn left."""
        self.before, self.after = dict(zip(keys, tiles, strict=True)), {}

    def end(self) -> list[Tile]:
        """The carried tokens of the next turn."""
        return [self.after[key].tile for key in self.before]

    def filled(self, first: Tile) -> list[Tile] | Refusal:
        """The carried tokens at the turn of the first outputs, filled by the turns before it: of
        windows alone, and then of all."""
        looks = self.looks
        tiles = {key: self.v.k.full(0.0, *self._dims(key)).named("run") for key in looks.carried}
        for keys, count, later in (
            (looks.first, looks.windows, looks.sums), ([*tiles], looks.sums, sympy.Integer(0))
        ):  # fmt: skip
            problem = self._early(first, keys, tiles, count, later) if count != 0 else None
            if problem is not None:
                return problem
        return [*tiles.values()]

    def _early(
        self, first: Tile, keys: list[Carried], tiles: dict[Carried, Tile], count: sympy.Expr,
        later: sympy.Expr,
    ) -> Refusal | None:  # fmt: skip
        """So many turns that store nothing, the last of them `later` tokens before the first."""
        v, given = self.v, [tiles[key] for key in keys]
        with v.k.loop(0, v.size(count), *given, index="early") as turn, v.inner():
            v.tokens(first - v.size(count + later) + turn.index, early=True)
            self.begin(keys, turn.carried)
            made = [self.run(key) for key in keys]
            problem = next((x for x in made if isinstance(x, Refusal)), None)
            turn.next(*(turn.carried if problem else self.end()))
        tiles |= zip(keys, turn.results, strict=True)
        return problem

    def run(self, key: Carried) -> Made:
        """The places of a run as they are at the token of this turn."""
        if key not in self.after:
            made = self._run(key)
            if isinstance(made, Refusal):
                return made
            self.after[key] = made
        return self.after[key]

    def _run(self, key: Carried) -> Made:
        v, k = self.v, self.v.k
        at: Place = {v.stream: v.shifted(key.shift)}
        x = at_tokens(v, key.node, at) if key.adds else v.value(key.node, at)
        if isinstance(x, Refusal):
            return x
        run, places = self.before[key], v.size(key.width.size)
        if not key.adds:
            newest = v.over(x.wide(), run.dims[:-1]).tile
            zero, stream = x.zero - {v.stream} | {key.width.name}, frozenset((v.stream,))
            return Padded(run.push(newest, places), zero, stream)
        rest = run.push(k.full(0.0, *run.dims[:-1]), places)
        names = tuple(dim.name for dim in run.dims)
        return Padded(k.apply("add", rest, x.wide().tile, dims_in=names))

    def sum(self, key: Carried) -> Made:
        """The sum that no later token adds to: nothing is added to it, as x + -0 is x."""
        run, width = self.run(key), key.width
        if isinstance(run, Refusal):
            return run
        first = self.v.k.iota(width.name, self.v.length(width)).equals(0)
        return Padded(self.v.k.where(first, run.tile, -0.0).sum(width.name))

    def _dims(self, key: Carried) -> tuple[Dim, ...]:
        """The tokens, the dims that tiles have, and last the places, of which threads have all."""
        v = self.v
        axes = [v.axes[v.stream], *v.graph[key.node].type.axes]
        own = {a.name: a for a in axes if v.is_tiled(a) and a.name != key.width.name}
        return (*(v.dim(n, own[n]) for n in v.sorted({*own})), v.dim(key.width.name, key.width))
