"""A recurrence token by token over a whole GPU -> one tile program, with its weights on chip.

States that a matrix multiplies at every token are spread over all programs: each holds a block of
the states' dim, and the columns of the matrices that make this block, for the whole sequence. The
values that matrices multiply go through memory: every program stores its block, waits for all
others at a barrier, and loads the whole dim. Memory holds two tokens in turn, so that a program one
token ahead overwrites nothing that another one still reads.

A product is split along the dim that is summed, so that the warps of a program share it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.kernel import Kernel
from archc.ir.refusal import Refusal
from archc.lowering.names import axis_name
from archc.lowering.products import contract
from archc.lowering.step_rules import STEP_RULES
from archc.lowering.steps import Spread, Stepping, Steps, stepping
from archc.lowering.values import Made, Padded, Place, Values
from archc.tile.compose import size
from archc.tile.handle import Tile
from archc.tile.language import Buffer

ROWS, SPLITS, SHARE = size("ROWS"), size("SPLITS"), size("SHARE")
"""How many sequences a program has, in how many parts the dim of products is split, and how long a
part is."""

WARPS = 4
"""Warps of a program, as many as a product is split into parts."""

PAIR = 2
"""Of how many tokens memory has what is handed out."""

LOOKING: Mapping[type, Callable[[Any], tuple[str, ...]]] = {
    ir.Reduce: lambda op: op.axes,
    ir.Gather: lambda op: (op.axis,),
    ir.Scatter: lambda op: (op.axis, op.into.name),
    ir.Join: lambda op: (*op.axes, op.into.name),
    ir.Reshape: lambda op: (*op.axes, *(axis.name for axis in op.into)),
    ir.Solve: lambda op: (op.row, op.col),
    ir.Top: lambda op: (op.axis,),
}
"""The dims of which an op wants other places than its own."""


def over_grid(
    kernel: Kernel, numbers: Collection[str] = (), pools: bool = True
) -> Stepping | Refusal:
    """The program of a kernel of `archc.schedule.token_walks` spread over a GPU, or why there is
    none. `numbers`, `pools`: as of `stepping`."""
    assert kernel.walk is not None
    spread = _spread_dim(kernel)
    if isinstance(spread, Refusal):
        return spread
    return stepping(replace(kernel, split=spread), numbers, pools, GridSteps)


def _spread_dim(kernel: Kernel) -> Axis | Refusal:
    """The one dim that every state has besides its heads."""
    assert kernel.walk is not None
    op: ir.Recurrence = kernel.graph[kernel.walk].op
    if kernel.rows is None:
        return Refusal(kernel.walk, "no product with weights that all sequences share")
    dims = [[a for a in s.axes if a.kind == "dim" and a.name not in op.heads] for s in op.states]
    first = dims[0][0] if dims and dims[0] else None
    if first is None or any(axes != [first] for axes in dims):
        return Refusal(kernel.walk, "its states have not one dim, the same of all")
    return first


class GridSteps(Steps):
    """One program under construction: `split` of its kernel is the dim that is spread."""

    rows_length = ROWS

    def __init__(
        self, kernel: Kernel, numbers: Collection[str], pools: bool,
        clean: Mapping[str, frozenset[str]],
    ):  # fmt: skip
        self.rules_of_ops = {**STEP_RULES, **dict.fromkeys(LOOKING, apart), ir.Contract: across}
        super().__init__(kernel, numbers, pools, clean)
        self.k.fixed(ROWS, SPLITS, SHARE)
        self.k.warps, self.k.ahead = WARPS, 1  # what is handed out is not there ahead of its token
        self.products = [n for n in self.op.body if self.crosses(n)]
        self.rounds = [*self._rounds()]
        self.handed = [id for level in self.rounds for id in level]
        self.weights: dict[int, Tile] = {}
        batch, *heads = kernel.grid
        axes = {batch.name: self.B} | {a.name: self.size(a.size) for a in heads}
        assert kernel.split is not None
        axes[kernel.split.name] = self.size(kernel.split.size)
        values = sympy.Integer(PAIR * len(self.handed))
        named = (("value", values), *((axis_name(n), s) for n, s in axes.items()))
        self.exchange = self.k.declare(Buffer("exchange", named, "DOT"))
        self.counter = self.k.buffer("counter", "i32", one=1)
        self.spread = Spread(len(self.products), self.exchange, self.counter)

    # --- which values other programs need ---

    def is_shared(self, axis: Axis) -> bool:
        """Whether an axis is the dim that is spread, under any name."""
        split = self.kernel.split
        alike = split is not None and axis.base == split.base and axis.size == split.size
        return alike and axis.kind == "dim"

    def crosses(self, node: Node) -> bool:
        """Whether a node is a product that sums over the dim that is spread."""
        return len(node.operands) == 2 and bool(self._summed(node))

    def _summed(self, node: Node) -> set[str]:
        """The labels of a contraction that are summed, and run along the dim that is spread."""
        if not isinstance(node.op, ir.Contract):
            return set()
        kept, graph = dict(node.op.out), self.op.body
        labels = {
            label
            for own, operand in zip(node.op.ins, node.operands, strict=True)
            for label, axis in zip(own, graph[operand].type.axes, strict=True)
            if self.is_shared(axis)
        }
        return labels - {*kept}

    def factors(self, node: Node) -> tuple[int, int] | None:
        """The value of a product that is handed out, and its weights, if it is of these."""
        graph = self.op.body
        first, second = node.operands
        for value, weights in ((first, second), (second, first)):
            op = graph[weights].op
            fixed = isinstance(op, ir.Input) and op.name in self._fixed()
            if fixed and "batch" in graph[value].type.names:
                return value, weights
        return None

    def _fixed(self) -> set[str]:
        """Captures that are the same for all tokens and all sequences."""
        graph = self.kernel.graph
        captured = zip(self.op.captures, self.recurrence.operands, strict=False)
        moving = {self.op.stream.name, self.kernel.grid[0].name}
        return {name for name, id in captured if not moving & {*graph[id].type.names}}

    def _rounds(self) -> Iterator[list[int]]:
        """The values that are handed out at a token: after no barrier, after one, ..."""
        found: dict[int, int] = {}
        handed: dict[int, list[int]] = {}
        for node in self.op.body:
            given = self.factors(node) if self.crosses(node) else None
            before = [found[operand] for operand in node.operands]
            if given is not None:
                level = found[given[0]]
                before.append(level + 1)
                own = handed.setdefault(level, [])
                own += [given[0]] * (given[0] not in own)
            found[node.id] = max(before, default=0)
        return (handed[level] for level in sorted(handed))

    # --- the program ---

    def write(self) -> Refusal | None:
        """All statements of the program, or why there are none."""
        assert self.kernel.walk is not None
        for node in self.products:
            reason = self._unlike(node)
            if reason:
                return Refusal(self.kernel.walk, reason)
        return super().write()

    def _unlike(self, node: Node) -> str:
        """Why a product is none of those whose weights programs hold; "" if it is one."""
        given = self.factors(node)
        if given is None:
            return "a product over a dim that programs share, with no weights as they are"
        outside = {*self.op.heads, *(axis.name for axis in self.kernel.grid)}
        for id, count in zip(given, (1, 2), strict=True):
            axes = tuple(a for a in self.op.body[id].type.axes if a.name not in outside)
            if len(axes) != count or not all(map(self.is_shared, axes)):
                return "a product of other dims than the one of its states"
        return ""

    def _shared_by_tokens(self) -> Refusal | None:
        """Load the blocks of all weights, and what else all tokens share."""
        given = [self.factors(node) for node in self.products]
        found = {self.op.body[each[1]].op.name for each in given if each is not None}
        captured = ir.captured(self.recurrence)
        for node in self.products:
            self.weights[node.id] = self._load_weights(node)
        for name, id in captured.items():
            names = self.kernel.graph[id].type.names
            if name not in found and self.op.stream.name not in names and self._is_read(id):
                made = self.stored(id)
                if isinstance(made, Refusal):
                    return made
        return None

    def _every(self) -> tuple[Tile, Tile]:
        """All indices of the dim that is spread, in parts, and which of them lie on it."""
        assert self.kernel.split is not None
        first = self.k.iota("split", SPLITS) * SHARE
        index = self.k.apply("add", first, self.k.iota("share", SHARE)).named("every")
        return index, index < self.k.lift(self.size(self.kernel.split.size))

    def _load_weights(self, node: Node) -> Tile:
        """The weights of a product that make the program's block, [split, share, block]."""
        given = self.factors(node)
        assert given is not None and self.kernel.split is not None
        own = self.op.body[given[1]]
        labels = node.op.ins[node.operands.index(given[1])]
        summed, (every, inside) = self._summed(node), self._every()
        block = self.whole(self.kernel.split)
        outer = ir.captured(self.recurrence)[own.op.name]
        buffer = self.tensors[self.kernel.loads[outer]]
        at = []
        for label, axis in zip(labels, own.type.axes, strict=True):
            if label in summed:
                at.append(every)
            else:
                at.append(block.at if self.is_shared(axis) else self.indices[axis.name].at)
        masks = [inside, *([] if block.mask is None else [block.mask])]
        tile = self.k.load(buffer, *at, where=masks, wide=False)
        return tile.ordered("split", "share", str(block.label)).to(self.numbers.operand)

    def _hand_out(self) -> Refusal | None:
        """Store the values that others need, and wait for theirs: those that products make after
        that, once more."""
        k, count = self.k, len(self.rounds)
        slot = (self.turn % PAIR) * len(self.handed)
        for level, ids in enumerate(self.rounds):
            for id in ids:
                node = self.op.body[id]
                place = self.at(node, {})
                if isinstance(place, Refusal):
                    return place
                x = self.value(id, place)
                if isinstance(x, Refusal):
                    return x
                at = [place[axis.name] for axis in self._axes()]
                masks = tuple(index.mask for index in at if index.mask is not None)
                dims = tuple(dim for index in at for dim in index.at.dims)
                tile = self.over(x, dims).tile.to(self.numbers.operand)
                which = slot + self.handed.index(id)
                k.store(self.exchange, which, *(i.at for i in at), value=tile, where=masks)
            k.barrier(self.counter, self.turn * count + level)
        return None

    def _axes(self) -> list[Axis]:
        """The axes of a value that is handed out."""
        assert self.kernel.split is not None
        return [*self.kernel.grid, self.kernel.split]

    def handed_out(self, id: int) -> Tile:
        """A value that programs handed out: all of the dim, [split, rows, share]."""
        slot = (self.turn % PAIR) * len(self.handed) + self.handed.index(id)
        every, inside = self._every()
        own = [self.indices[axis.name] for axis in self.kernel.grid]
        masks = [index.mask for index in own if index.mask is not None]
        at = [slot, *(index.at for index in own), every]
        tile = self.k.load(self.exchange, *at, where=(*masks, inside), wide=False)
        return tile.ordered("split", self.kernel.grid[0].name, "share")

    def _read_ahead(self) -> list[int]:
        """Values read along the tokens, each one token ahead, so that no program waits for them."""
        names = ir.captured(self.recurrence)
        graph, stream = self.kernel.graph, self.op.stream.name
        return [
            id for name, id in names.items()
            if name not in self.by_value and stream in graph[id].type.names and self._is_read(id)
        ]  # fmt: skip


def across(v: Values, node: Node, place: Place) -> Made:
    """A product over the dim that is spread, of what programs handed out and their own weights."""
    assert isinstance(v, GridSteps)
    if not v.crosses(node):
        return refused_sum(v, node) if v._summed(node) else contract(v, node, place)
    given = v.factors(node)
    assert given is not None
    refusal = v.not_whole(node, place, *(n for n in place if place[n].label))
    if refusal is not None:
        return refusal
    value, weights = v.handed_out(given[0]), v.weights[node.id]
    made = v.k.dot(value, weights, precision=v.numbers.precision).sum("split")
    return Padded(made, frozenset(made.value.type.names))


def apart(v: Values, node: Node, place: Place) -> Made:
    """A value that is looked at along other dims than the one that is spread."""
    assert isinstance(v, GridSteps)
    axes = {axis.name: axis for id in (node.id, *node.operands) for axis in _axes(v, id)}
    if any(v.is_shared(axes[name]) for name in LOOKING[type(node.op)](node.op)):
        return refused_sum(v, node)
    return STEP_RULES[type(node.op)](v, node, place)


def _axes(v: Values, id: int) -> tuple[Axis, ...]:
    return v.frame.graph[id].type.axes


def refused_sum(v: Values, node: Node) -> Refusal:
    """That a node needs all of the dim of which each program has a block."""
    return v.refused(node, "all of the dim that programs share is looked at")
