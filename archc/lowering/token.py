"""A token region -> one tile program for its values, and one for its gradient.

A program has a block of tokens and a group of dims (`token_space.py`). A value is asked for at
*places*: an index for each of its axes. A shift asks for its operand some tokens earlier, a gather
at other places of a dim; what stands between is made again there, down to the loads. Of what a
short convolution looks at, the places of a run are carried from token to token (`token_walk.py`).
Every load is masked: there are no tokens before the first one but those that were kept (`past`),
and none after the last.

The gradient of what has no tokens (a gain, a bias, taps) is a sum over tokens. Each program stores
the sum of its own tokens: buffers of these gradients have the axes of the grid that the input lacks
in front, and whoever launches the program sums over them. So does that of what all sequences share
(angles that are learned), whose program stores its own tokens. The order of sums is always the
same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.ir.token_region import Gradient, Past, TokenRegion, is_token_type
from archc.ir.value_names import cotangent, primal
from archc.limits import deep_calls
from archc.lowering.about import about_tokens
from archc.lowering.algebra import reduced
from archc.lowering.names import size_name
from archc.lowering.token_borders import TABLE, Borders, Look
from archc.lowering.token_nexts import if_wanted, is_again, let_in_place, nexts_of, store_nexts
from archc.lowering.token_rules import TOKEN_RULES, as_written
from archc.lowering.token_space import Space, space_of
from archc.lowering.token_walk import Looks, Walk, furthest
from archc.lowering.values import Frame, Index, Made, Padded, Place, Values
from archc.tile.compose import Composer, ceil_div
from archc.tile.handle import Tile
from archc.tile.language import Buffer, Dim, Program
from archc.tile.unread import swept

BLOCK_T, EACH = "BLOCK_T", "TURNS"
"""Tokens of a block; turns that a program takes one after the other, a block of tokens each."""

BORDERS = "@borders"
"""The key of the table of packed sequences among buffers."""

IO = "IO"
"""The dtype of the data: whatever a tensor has, arithmetic is in float32."""

STORED = {"real": IO, "int": "i64", "bool": "bool"}
"""The dtypes of values in memory, by their own."""


@dataclass(frozen=True)
class Lowered:
    """A program of a region. `buffers` has the buffer of each input and output of its graph, and
    `options` the numbers that a launch computes, `lengths` the axes whose blocks its constants are.
    `sizes` are the sizes of the spec, by what the program calls them. `shares` are the outputs that
    are sums of a program's tokens, with the axes to sum over, `written` all outputs. Packed
    sequences have `before` rows in front of the tokens of each, a row of the batch has `ahead`.
    `few`: sizes of the dims that products go along index by index."""

    program: Program
    space: Space
    buffers: Mapping[str, str]
    options: Mapping[str, sympy.Expr]
    lengths: Mapping[str, Axis]
    sizes: Mapping[str, sympy.Expr]
    shares: Mapping[str, tuple[str, ...]]
    written: frozenset[str]
    before: sympy.Expr
    ahead: sympy.Expr
    few: tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class RegionKernels:
    """A region, its gradient, and the programs of both."""

    region: TokenRegion
    backward: Gradient
    values: Lowered
    gradient: Lowered

    @property
    def programs(self) -> tuple[Lowered, ...]:
        return (self.values, self.gradient)


def lower(region: TokenRegion, backward: Gradient) -> RegionKernels | Refusal:
    """The programs of a region."""
    values = lower_values(region)
    if isinstance(values, Refusal):
        return values
    made = lower_gradient(region, backward.graph)
    return made if isinstance(made, Refusal) else RegionKernels(region, backward, values, made)


def lower_values(region: TokenRegion) -> Lowered | Refusal:
    """The program that makes the outputs of a region."""
    with deep_calls():
        return TokenProgram(region.graph, region, "values", looks_ahead=False).lowered()


def lower_gradient(region: TokenRegion, backward: Graph) -> Lowered | Refusal:
    """A program that makes gradients of its inputs; `backward` is the graph of them. Its tokens
    begin with those that were kept, where these have gradients too."""
    kept = {cotangent(name) for name in region.pasts} & {*backward.outputs}
    with deep_calls():
        return TokenProgram(backward, region, "gradient", looks_ahead=bool(kept)).lowered()


class TokenProgram(Values):
    """One program under construction."""

    def __init__(self, graph: Graph, region: TokenRegion, name: str, looks_ahead: bool):
        composer = Composer(name, about_tokens(graph), ahead=2)
        super().__init__(composer, TOKEN_RULES, Frame(graph, self.loaded))
        self.graph, self.stream, self.region = graph, region.stream, region
        self.space = space_of(graph, region.stream)
        self.axes = {axis.name: axis for node in graph for axis in node.type.axes}
        self.k.dtypes(IO)
        self.options: dict[str, sympy.Expr] = {}
        self.shares: dict[str, tuple[str, ...]] = {}
        self.shifts: dict[Index, sympy.Expr] = {}
        self.at_shift: dict[sympy.Expr, Index] = {}
        self.seen: dict[Index, Look] = {}
        self.few: dict[sympy.Expr, None] = {}
        self.turns, self.early = False, False
        looks = Looks(graph, region.stream) if self.space.unrolled else None
        self.walk = Walk(self, looks) if looks else None
        along = [a for a in self.axes.values() if a.kind != "batch"]
        self.see(*(a.name for a in sorted(along, key=lambda a: a in self.space.unrolled)))
        self.first: Tile
        self.turn_count: sympy.Expr = sympy.Integer(1)
        for axis in self.axes.values():
            if axis.kind != "dim":
                for symbol in sorted(axis.size.free_symbols, key=str):
                    (self.symbols[symbol],) = self.k.sizes(size_name(symbol), varying=True)
        (self.block,) = self.k.lengths(BLOCK_T)
        self.blocks[BLOCK_T] = self.axes[self.stream].size
        counts = [past.count for past in region.pasts.values()]
        lag = [looks.lag] if looks else []
        before = furthest([*counts, *lag])
        ahead = furthest([*(counts if looks_ahead else []), *lag])
        self.in_front, self.ahead = (before, ahead), self.size(ahead)
        self.rows_in_all = self.size(self.axes[self.stream].size) + self.ahead
        self.packed: Borders | None = None
        if region.packed:
            self._pack(self.size(before))
        self.memory = {n.op.name: self._given(n) for n in graph if isinstance(n.op, ir.Input)}

    def _pack(self, before: sympy.Expr) -> None:
        """Be told where packed sequences begin and end, if there are any."""
        name = marked(TABLE, {plain(primal(each) or each) for each in self.names()}, "_")
        self.packed = Borders(self.k, before, self.ahead, name)
        self.rows_in_all = self.packed.rows

    def names(self) -> set[str]:
        """The names of what enters and leaves."""
        return {n.op.name for n in self.graph if isinstance(n.op, ir.Input)} | {*self.graph.outputs}

    # --- what a launch is given ---

    def _given(self, node: Node) -> Buffer:
        """The memory of an input: contiguous, but that tokens of what enters may lie apart."""
        name, first = node.op.name, [a.kind for a in node.type.axes[:2]] == ["batch", "stream"]
        enters = name in self.region.reads or primal(name) in self.region.makes
        apart = enters and first and self.edge(name) is None
        return self.buffer(name, node, plain(self.stream) if apart else "")

    def buffer(self, name: str, node: Node, rows: str = "") -> Buffer:
        """The memory of what has the axes of a node, by name."""
        axes = {plain(axis.name): self._length(name, axis) for axis in node.type.axes}
        optional = name in self.region.seeds or name in self.region.nexts or is_again(self, name)
        dtype = STORED[node.type.dtype]
        return self.k.memory(plain(name), axes, dtype, rows=rows, optional=optional)

    def _length(self, name: str, axis: Axis) -> sympy.Expr:
        """How long an axis of a tensor is."""
        past = self.edge(name)
        if past is not None and self.packed is not None and axis.kind == "batch":
            return self.packed.sequences
        return self.size(past.count if past and axis.name == self.stream else axis.size)

    def edge(self, name: str) -> Past | None:
        """The tokens of a sequence that an input or an output, or its gradient, has; None if it
        has all of them."""
        return self.region.edge(primal(name) or name)

    def at_edge(self, name: str, index: Index) -> tuple[Tile, list[Tile]]:
        """The place of tokens among those that an input or an output has, and its masks."""
        past, tail = self.edge(name), (primal(name) or name) in self.region.tails
        assert past is not None
        look = self.seen.get(index)
        if look is None and tail:
            from_end = index.at - self.tokens_in_all
            place = from_end + self.whole_number(past.count)
            return place, [from_end < 0, place >= 0, index.at >= 0]
        if look is None:
            place = self.moved(index, past.count).at
            return place, [index.at < 0, place >= 0]
        from_edge = look.token - look.end if tail else look.local
        place = from_edge + self.whole_number(past.count)
        inside = [look.inside] if tail else []
        return place, [from_edge < 0, place >= 0, *inside]

    def whole_number(self, expr: sympy.Expr) -> Tile:
        """A size as a value."""
        return self.k.lift(self.size(expr), "i32")

    def option(self, value: sympy.Expr, whole: bool) -> sympy.Expr:
        """A number made of sizes and options, which the launch computes."""
        for name, known in self.options.items():
            if known == value:
                return sympy.Symbol(name, **_kind(whole))
        sizes = {str(s) for axis in self.axes.values() for s in axis.size.free_symbols}
        numbers = (f"number_{n}" for n in count(len(self.options)))
        name = next(name for name in numbers if name not in sizes and name not in self.options)
        self.options[name] = value
        return (self.k.sizes if whole else self.k.reals)(name)[0]

    def constant(self, symbol: sympy.Basic, name: str = "") -> None:
        super().constant(symbol, name or size_name(symbol, (BLOCK_T, EACH)))

    # --- places ---

    def _enter(self, tokens: sympy.Expr) -> Tile:
        """Take the program's place in the grid; the first of its blocks of tokens."""
        self.ids, self.firsts = dict[str, Tile](), dict[str, Tile]()
        for axis in self.axes.values():
            if axis.kind == "batch":
                self._one(axis)
        block = self.ids["block"] = self.k.program("block", tokens)
        for axis in self.space.grid:
            self._one(axis)
        if self.space.split is not None:
            self._part(self.space.split)
        return block

    def _one(self, axis: Axis) -> None:
        """One index of an axis."""
        at = self.ids[plain(axis.name)] = self.k.program(plain(axis.name), self.size(axis.size))
        self.indices[axis.name] = Index(at)

    def _part(self, axis: Axis) -> None:
        """A block of an axis."""
        length, size = self.length(axis), self.size(axis.size)
        name = f"{plain(axis.name)}_part"
        part = self.ids[name] = self.k.program(name, ceil_div(size, length))
        self.firsts[axis.name] = part * length
        at = self.firsts[axis.name] + self.k.iota(axis.name, length)
        mask = self.inside(axis.name, at < self.k.lift(size, "i32"))
        self.indices[axis.name] = Index(at, True, mask)
        self.masks[axis.name] = lambda: mask

    def tokens(self, first: Tile, early: bool = False) -> None:
        """Look at the block of tokens that begins there; `early`: maybe before all tokens that the
        program has."""
        self.first, self.early, self.at_shift = first.named("first"), early, {}
        self.look_at(sympy.Integer(0))

    def look_at(self, shift: sympy.Expr) -> None:
        """Make what is wanted so many tokens after those of the block."""
        own = self.indices[self.stream] = self.shifted(shift)
        self.masks[self.stream] = lambda: own.mask

    def moved(self, index: Index, steps: sympy.Expr | int) -> Index:
        """The tokens some steps after those of an index."""
        return self.shifted(self.shifts[index] + steps)

    def shifted(self, shift: sympy.Expr) -> Index:
        """The tokens so many after those of the block."""
        if shift not in self.at_shift:
            found = self.at_shift[shift] = self._shifted(shift)
            self.shifts[found] = shift
        return self.at_shift[shift]

    def _shifted(self, shift: sympy.Expr) -> Index:
        first = self.first if shift == 0 else self.first + self.whole_number(shift)
        steps = self.k.iota(self.stream, self.block)
        steps = steps if self.walk is None else steps * self.turn_count
        whole = shift == 0 and self.walk is None
        if self.packed is not None:
            (batch,) = (a for a in self.axes.values() if a.kind == "batch")
            row = self.ids[plain(batch.name)]
            look = self.packed.look(first, steps, self.tokens_in_all, row)
            found = Index(look.token, whole, look.inside)
            self.seen[found] = look
            return found
        t = first + steps
        mask = t < self.tokens_in_all
        return Index(t, whole, mask if self._is_late(shift) else mask & (t >= 0))

    def _is_late(self, shift: sympy.Expr) -> bool:
        """Whether no token so many after those of the block stands before the first of all."""
        return not self.early and bool((self.size(shift) - self.ahead).is_nonnegative)

    def is_late(self, index: Index) -> bool:
        """Whether no token of an index stands before the first one, unless there is a table."""
        return index in self.shifts and self._is_late(self.shifts[index])

    @property
    def tokens_in_all(self) -> Tile:
        """How many tokens there are."""
        return self.whole_number(self.axes[self.stream].size)

    def position(self, index: Index, axis: Axis) -> Tile:
        """How many places of an axis stand before, of tokens those of the same sequence."""
        look = self.seen.get(index)
        return index.at if look is None else look.local

    def is_own(self, axis: str, index: Index) -> bool:
        """Whether an index has the places of an axis that the program itself has."""
        return index.whole or index is self.indices.get(axis)

    # --- values ---

    def loaded(self, node: Node, place: Place) -> Made | None:
        """An input from memory: of what was kept, the tokens before the first one."""
        if not isinstance(node.op, ir.Input):
            return None
        past, at, masks = self.edge(node.op.name), [], []
        for axis in node.type.names:
            index = place[axis].at
            if past is not None and axis == self.stream:
                index, inside = self.at_edge(node.op.name, place[axis])
                masks += inside
            elif past is not None and self.packed is not None and self._is_batch(axis):
                index = self.seen[place[self.stream]].sequence
            elif place[axis].mask is not None:
                masks.append(place[axis].mask)
            at.append(index)
        tile = self.k.load(self.memory[node.op.name], *at, where=tuple(masks), wide=False)
        let_in_place(self, node.op.name)
        own = [i for axis, i in place.items() if self.is_own(axis, i) and i.mask is not None]
        zero = frozenset(
            i.label for i in own if i.label and (past is None or i.label != self.stream)
        )
        return Padded(tile, zero, stored=True)

    def summed(self, x: Padded, fn: str, axes: list[Axis]) -> Padded:
        """A value reduced over the dims that tiles have; over the grid, whoever launches it
        sums. In turns of blocks of tokens each token has its own sum until the last turn."""
        later = self.turns and self.stream in {axis.name for axis in axes}
        own = [a for a in axes if self.is_tiled(a) and not (later and a.name == self.stream)]
        made = reduced(self, x.wide(), tuple(axis.name for axis in own), fn, own)
        if not later:
            return made
        if self.stream not in made.labels:
            made = self.over(made, (Dim(self.stream, self.block), *made.tile.dims))
        return self.masked(made, (self.stream,))

    def _is_batch(self, axis: str) -> bool:
        return self.axes[axis].kind == "batch"

    def is_tiled(self, axis: Axis) -> bool:
        """Whether tiles have a dim along an axis."""
        if axis.name == self.stream:
            return True
        index = self.indices.get(axis.name)
        return index is None or index.label is not None

    def dim(self, label: str, axis: Axis) -> Dim:
        """The dim of a tile along an axis."""
        return Dim(label, self.block) if axis.name == self.stream else super().dim(label, axis)

    def beside(self, x: Padded, dims: Sequence[Dim]) -> Padded:
        """A tile along further dims that are places of short convolutions, each of which stays in
        the threads that have the rest of it."""
        further = [d for d in dims if d.name in self.taps_of and d.name not in x.labels]
        if not further or self.stream not in x.labels or {*x.labels} & self.taps_of:
            return x
        tile = x.tile.over(*x.tile.dims, *further, held=True)
        return replace(x, tile=tile, finite=x.finite | {d.name for d in further})

    @property
    def taps_of(self) -> frozenset[str]:
        """The places of short convolutions."""
        return frozenset(axis.name for axis in self.space.unrolled)

    # --- the whole ---

    def lowered(self) -> Lowered | Refusal:
        """The program."""
        outputs = {name: self.graph[id] for name, id in self.graph.outputs.items()}
        tokens = {n: o for n, o in outputs.items() if self.stream in o.type.names}
        rest = {name: node for name, node in outputs.items() if name not in tokens}
        in_turn = bool(rest) or self.walk is not None
        if in_turn:
            (self.turn_count,) = self.k.sizes(EACH)
        block = self._enter(ceil_div(self.rows_in_all, self.block * self.turn_count))
        self.made = {name: self._made_buffer(name, node) for name, node in tokens.items()}
        self.made |= {name: self._share_buffer(name, node) for name, node in rest.items()}
        self.nexts = nexts_of(self)
        if in_turn:
            problem = self._in_turn(block, tokens, rest)
        else:
            self.tokens(self._first(block))
            problem = self._store_all(tokens)
        if problem is not None:
            return problem
        lengths = {name: self._axis_of(name) for name in self.blocks}
        program = swept(self.k.done())
        own = {} if self.packed is None else {BORDERS: self.packed.table}
        buffers = self._of_program(program, {**self.memory, **self.made, **self.nexts, **own})
        sizes = {str(own): symbol for symbol, own in self.symbols.items()}
        return Lowered(
            program, self.space, buffers, self.options, lengths, sizes, self.shares,
            frozenset(self.made), *self.in_front, (*self.few,),
        )  # fmt: skip

    def _of_program(self, program: Program, given: Mapping[str, Buffer]) -> dict[str, str]:
        """The buffers that a program has: not that of an input which it does not read, such as one
        that is only compared, whose gradient is zero."""
        names = {buffer.name for buffer in program.buffers}
        return {name: each.name for name, each in given.items() if each.name in names}

    def _first(self, block: Tile) -> Tile:
        """The first token of a block: of a gradient the first block begins with those kept."""
        first = block * self.block
        apart = self.ahead == 0 or self.packed is not None
        return first if apart else first - self.ahead

    def _axis_of(self, block: str) -> Axis:
        """An axis of which a constant is the block."""
        size = self.blocks[block]
        return next(axis for axis in self.axes.values() if axis.size == size)

    def _store_all(self, tokens: Mapping[str, Node]) -> Refusal | None:
        """Write what runs along the tokens."""
        for name, node in tokens.items():
            with if_wanted(self, name):
                if isinstance(x := self._at_its_tokens(node, name), Refusal):
                    return x
                self._store(name, node, x, self.made[name])
        return None

    def _store(self, name: str, node: Node, x: Padded, buffer: Buffer) -> None:
        """Write one output: the gradient of what was kept at the tokens before the first one."""
        place, past = self.at(node, {}), self.edge(name)
        assert not isinstance(place, Refusal)
        at: list[Tile] = []
        masks: list[Tile] = []
        if name in self.shares:
            at += [self.ids[axis] for axis in self.shares[name]]
        else:
            masks += self._only_once(node)
        for axis in node.type.names:
            index = place[axis].at
            if past is not None and axis == self.stream:
                index, inside = self.at_edge(name, place[axis])
                at.append(index)
                masks += inside
            elif past is not None and self.packed is not None and self._is_batch(axis):
                at.append(self.seen[place[self.stream]].sequence)
            else:
                at.append(index)
                mask = place[axis].mask
                masks += [mask] if mask is not None else []
        value = x.wide().tile if name in self.shares else x.tile
        alone = self.packed is not None  # no two rows of its table are the same token
        self.k.store(buffer, *at, value=value, where=tuple(masks), exclusive=alone)

    def _only_once(self, *nodes: Node) -> list[Tile]:
        """Conditions under which a value without an axis of the grid is written, or summed: by the
        first program along it."""
        own = {plain(name) for node in nodes for name in node.type.names}
        own |= {f"{name}_part" for name in own} | {"block"}
        return [at.equals(0) for axis, at in self.ids.items() if axis not in own]

    def _made_buffer(self, name: str, node: Node) -> Buffer:
        """The memory of what runs along the tokens."""
        own = is_token_type(node.type, self.stream)
        return self.buffer(name, node) if own else self._share_buffer(name, node)

    def _share_buffer(self, name: str, node: Node) -> Buffer:
        """The sums of each program: the axes of the grid that a value lacks, then its own."""
        own = {plain(axis) for axis in node.type.names}
        own |= {f"{axis}_part" for axis in own}
        own |= {"block"} if self.stream in node.type.names else set()
        front = {axis: count for axis, count in self.k.grid if axis not in own}
        self.shares[name] = tuple(front)
        axes = {plain(axis.name): self.size(axis.size) for axis in node.type.axes}
        return self.k.memory(plain(name), {**front, **axes})

    def _in_turn(
        self, block: Tile, tokens: Mapping[str, Node], rest: Mapping[str, Node]
    ) -> Refusal | None:
        """Tokens one after the other, or blocks of them, and in the end the sums of all."""
        k, walk, made = self.k, self.walk, self.made
        for node in self.graph:
            if self._is_everywhere(node):
                self.stored(node.id)  # the same in every turn
        dims = [self._share_dims(node) for node in rest.values()]
        start = [k.full(0.0, *each).named(made[n].name) for n, each in zip(rest, dims, strict=True)]
        first = self._first(block * self.turn_count)
        filled = walk.filled(first) if walk else []
        if isinstance(filled, Refusal):
            return filled
        carried, said = (*start, *filled), walk.looks.said if walk else {}
        with k.loop(0, self.turn_count, *carried, index="turn", **said) as turn, self.inner():
            step = turn.index if walk else turn.index * self.block
            self.tokens(first + step)
            if walk:
                walk.begin(walk.looks.carried, turn.carried[len(rest) :])
            problem = self._made_at_once({n: o for n, o in tokens.items() if not is_again(self, n)})
            sums = self._shares([*rest.values()], turn.carried[: len(rest)], dims)
            problem = self._store_all(tokens) or store_nexts(self, self.nexts) or problem
            if problem is None and not isinstance(sums, Refusal):
                turn.next(*sums, *(walk.end() if walk else ()))
        if problem is not None:
            return problem
        if isinstance(sums, Refusal):
            return sums
        for name, result in zip(rest, turn.results, strict=False):
            total = result.sum(self.stream)
            for elsewhere in self._only_once(rest[name], *self._summed(rest[name])):
                total = k.where(elsewhere, total, 0.0)
            self._store_share(rest[name], made[name], total)
        return None

    def _is_everywhere(self, node: Node) -> bool:
        """Whether an input is the same for all tokens, and there in every launch."""
        everywhere = isinstance(node.op, ir.Input) and self.stream not in node.type.names
        return everywhere and node.op.name not in self.region.seeds

    def _made_at_once(self, nodes: Mapping[str, Node]) -> Refusal | None:
        """Make values before any is stored."""
        found = [self._at_its_tokens(node, name) for name, node in nodes.items()]
        return next((x for x in found if isinstance(x, Refusal)), None)

    def _at_its_tokens(self, node: Node, name: str) -> Made:
        """An output, so many tokens after the block's as what it is made of is made together."""
        if self.walk is not None:
            self.look_at(self.walk.looks.shift(node.id))
        return self.value(as_written(self, name, node).id)

    def _shares(
        self, nodes: Sequence[Node], sums: Sequence[Tile], dims: Sequence[tuple[Dim, ...]]
    ) -> list[Tile] | Refusal:
        """The sums so far, and those of this turn."""
        found, self.turns = [], True
        for node, so_far, own in zip(nodes, sums, dims, strict=True):
            made = self._share(node, so_far, own)
            if isinstance(made, Refusal):
                return made
            found.append(made)
        self.turns = False
        return found

    def _summed(self, node: Node) -> list[Node]:
        """The nodes along the tokens that are summed over them to make a node."""
        if self.stream in node.type.names:
            return [node]
        return [each for id in node.operands for each in self._summed(self.graph[id])]

    def _share_dims(self, node: Node) -> tuple[Dim, ...]:
        """The dims of a sum: the tokens of a block, those of tiles, and the taps of a short
        convolution."""
        own = {a.name: a for a in node.type.axes if self.is_tiled(a)}
        names = self.sorted({self.stream, *own})
        stream = Dim(self.stream, self.block)
        return tuple(self.dim(n, own[n]) if n in own else stream for n in names)

    def _share(self, node: Node, so_far: Tile, dims: tuple[Dim, ...]) -> Tile | Refusal:
        """The sums so far with the tokens of this block."""
        x = self._at_its_tokens(node, "")
        if isinstance(x, Refusal):
            return x
        x = self.beside(x.wide(), dims)
        return self.k.apply("add", so_far, x.tile, dims_in=tuple(dim.name for dim in dims))

    def _store_share(self, node: Node, buffer: Buffer, sums: Tile) -> None:
        """Write the sums of this program."""
        front = buffer.axes[: len(buffer.axes) - len(node.type.axes)]
        at, masks = [self.ids[axis] for axis, _ in front], []
        for axis in node.type.axes:
            own = None if axis in self.space.unrolled else self.indices.get(axis.name)
            index = own or self.whole(axis)
            at.append(index.at)
            masks += [index.mask] if index.mask is not None else []
        self.k.store(buffer, *at, value=sums, where=tuple(masks))


def plain(name: str) -> str:
    """A name as programs can write it."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def _kind(whole: bool) -> dict[str, bool]:
    return {"integer": True, "positive": True} if whole else {"real": True}
