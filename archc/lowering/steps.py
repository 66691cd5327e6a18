"""A recurrence token by token -> one tile program, with its states in registers.

A program has one place of the grid: a sequence (or a block of them, where they share weights), a
head, and a block of a dim that no op crosses, or that only results sum over: each block then stores
what it adds to these. It reads the states from rows of pools, walks the
tokens in one loop that carries them, stores the results of each token, and writes the states to
rows of pools in the end. Where a state lacks the dim that programs share, one program may do all
blocks of that dim in turn (`BLOCKS`): it then reads such a state before any program has written it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.chunk import start
from archc.ir.free_names import marked
from archc.ir.graph import Node
from archc.ir.kernel import Kernel
from archc.ir.refusal import Refusal
from archc.lowering.about import about
from archc.lowering.names import axis_name, buffer_names, plain, size_name
from archc.lowering.step_rules import STEP_RULES
from archc.lowering.values import Frame, Index, Made, Numbers, Padded, Place, Rules, Values
from archc.tile.compose import Composer, Tile, ceil_div, size
from archc.tile.language import Block, Buffer, Dim, For, Load, Program, Type, statements
from archc.tile.unread import swept

ROWS = 16
"""How many sequences a program has, where it has several."""

BLOCK, BLOCKS = size("BLOCK"), size("BLOCKS")
"""How long a block of the dim is that programs share, and how many a program does in turn."""

INDICES, SLOTS = ("index", "index_after"), ("slot", "slot_after")
"""The buffers that say in which rows of pools the states stand, and these rows."""

DTYPES = {"real": "IO", "int": "i32", "bool": "bool"}
"""How buffers keep values: real ones in `IO`, which is whatever dtype the tensor has at launch."""


@dataclass(frozen=True)
class Stepping:
    """A kernel that walks tokens, lowered: its program, and what a launch gives it.

    `tensors` and `numbers` are buffers and sizes by the kernel's names for them, `sizes` and
    `blocks` what constants of the program are: sizes and options of the graph, and the sizes that
    blocks hold. `whole_states` lack the dim that programs share: if there are any, a program may do
    all blocks of it in turn."""

    program: Program
    tensors: Mapping[str, Buffer]
    numbers: Mapping[str, sympy.Symbol]
    sizes: Mapping[str, sympy.Symbol]
    blocks: Mapping[str, sympy.Expr]
    whole_states: frozenset[str]
    spread: Spread | None = None


@dataclass(frozen=True)
class Spread:
    """The needs of a program whose dim is spread over all programs of a GPU: the number of products
    with weights of which it holds a block, the memory that programs hand values to each other in,
    and the counter of those that have come to a barrier."""

    products: int
    exchange: Buffer
    counter: Buffer


@dataclass(frozen=True)
class Held:
    """The tiles of a program that decide whether it has room: of states, of the matrices of weights
    that it loads once, and of what it reads at a token."""

    states: tuple[Type, ...]
    weights: tuple[Type, ...]
    moving: tuple[Type, ...]


def held_by(made: Stepping, op: ir.Recurrence) -> Held:
    """The tiles of the program of a Recurrence."""
    body = made.program.body
    loops = (s for s in statements(body) if isinstance(s.op, For))
    tokens = next(loop for loop in loops if loop.results)  # the first that carries something
    captures = {*made.tensors.values()} - {made.tensors[start(each.name)] for each in op.states}

    def read(block: Block) -> dict[Buffer, Type]:
        loads = (s for s in statements(block) if isinstance(s.op, Load))
        return {s.op.buffer: s.results[0].type for s in loads if s.op.buffer in captures}

    moving, every = read(tokens.blocks[0]), read(body)
    still = (type for buffer, type in every.items() if buffer not in moving)
    weights = (type for type in still if len(type.dims) > 1)
    states = (value.type for value in tokens.results[: len(op.states)])
    return Held(tuple(states), tuple(weights), tuple(moving.values()))


def stepping(
    kernel: Kernel,
    numbers: Collection[str] = (),
    pools: bool = True,
    kind: type[Steps] | None = None,
) -> Stepping | Refusal:
    """The program of a kernel of `archc.schedule.token_walks`. `numbers`: captures given by
    value; `pools`: states are in rows of pools that indices choose, else each in its sequence's;
    `kind`: other steps than `Steps`.

    It is made anew where a state turns out not to stay 0 off its axes."""
    clean: dict[str, frozenset[str]] = {}
    while True:
        made = (kind or Steps)(kernel, numbers, pools, clean)
        refusal = made.write()
        if refusal is not None:
            return refusal
        if made.clean == made.first_clean:
            return made.done()
        clean = made.clean


class Steps(Values):
    """One program under construction. `clean`: along which dims a state is 0 off its axes at every
    token, where that is less than at first."""

    rules_of_ops: Rules = STEP_RULES
    rows_length: sympy.Expr = sympy.Integer(ROWS)

    def __init__(
        self, kernel: Kernel, numbers: Collection[str], pools: bool,
        clean: Mapping[str, frozenset[str]],
    ):  # fmt: skip
        doc = about(kernel, "along the tokens")
        assert kernel.walk is not None
        self.kernel, self.pools, self.by_value = kernel, pools, {*numbers}
        self.clean, self.first_clean = dict(clean), dict[str, frozenset[str]]()
        self.recurrence = kernel.graph[kernel.walk]
        self.op: ir.Recurrence = self.recurrence.op
        self.outer = Frame(kernel.graph, self._given)
        super().__init__(
            Composer(kernel.name, doc, ahead=2), self.rules_of_ops, self.outer,
            Numbers("DOT", "PRECISION"),
        )  # fmt: skip
        self.k.dtypes("IO", "DOT")
        self.k.precisions("PRECISION")
        self.states: dict[str, Padded] = {}
        self.now: dict[int, tuple[Place, Padded]] = {}
        self.slots: dict[str, Index] = {}
        self.spread: Spread | None = None
        self.first: Callable[[], list[Tile]] = list
        self.block: Tile | None = None
        self.last: list[Tile] = []
        graph, count = kernel.graph, len(self.op.captures)
        self.starts = self.recurrence.operands[count:]
        self.before = {graph[id].op.name for id in self.starts}
        self.after = {*kernel.ends.values()}
        self.tensors: dict[str, Buffer] = {}
        self.given_numbers: dict[str, sympy.Symbol] = {}
        self._declare()

    def done(self) -> Stepping:
        """The program, and what it is given."""
        program, known = swept(self.k.done()), {self.kernel.grid[0].size, self.op.stream.size}
        tensors = {n: buffer for n, buffer in self.tensors.items() if buffer in program.buffers}
        numbers = {n: number for n, number in self.given_numbers.items() if number in program.sizes}
        sizes = {str(own): symbol for symbol, own in self.symbols.items() if symbol not in known}
        whole = frozenset(self.whole_states)
        return Stepping(program, tensors, numbers, sizes, self.blocks, whole, self.spread)

    @property
    def whole_states(self) -> set[str]:
        """The states that lack the dim that programs share."""
        split = self.kernel.split
        if split is None:
            return set()
        return {s.name for s in self.op.states if split.name not in {a.name for a in s.axes}}

    # --- what a launch is given ---

    def _declare(self) -> None:
        """Sizes, and tensors: states before, captures, results, states after, rows of pools."""
        kernel, k = self.kernel, self.k
        batch, stream = kernel.grid[0], self.op.stream
        self.T, self.B = k.sizes("T", "B", varying=True)
        self.symbols |= {batch.size: self.B, stream.size: self.T}
        names = buffer_names(kernel)
        loads = {name: kernel.graph[id] for id, name in kernel.loads.items()}
        stores = {name: kernel.graph[id] for name, id in kernel.stores.items()}
        known = self.before | self.after
        for name in (*_only(loads, self.before), *(n for n in loads if n not in known)):
            self._argument(name, names[name], loads[name])
        for name, node in stores.items():
            summed = name in kernel.summed
            self.tensors[name] = self._tensor(names[name], node, None, summed)
        for name in _only(loads, self.after):
            self._argument(name, names[name], loads[name])
        which = INDICES if self.pools else ()
        self.rows_of = [k.buffer(n, "i32", False, "rows", True, batch=self.B) for n in which]

    def _argument(self, name: str, called: str, node: Node) -> None:
        """Declare an argument: a number, a pool with rows of its own, or another tensor."""
        if name in self.by_value:
            make = self.k.sizes if node.type.dtype == "int" else self.k.reals
            (self.given_numbers[name],) = make(called)
            return
        rows: sympy.Expr = self.B
        if self.pools and name in self.before | self.after:
            (rows,) = self.k.sizes(f"{called}_rows", varying=True)
        self.tensors[name] = self._tensor(called, node, rows)

    def _tensor(
        self, called: str, node: Node, rows: sympy.Expr | None, summed: bool = False
    ) -> Buffer:
        """A buffer: contiguous, but for the rows of a pool, which may lie apart; of what is
        `summed` over blocks, one of each."""
        sizes = {axis_name(axis.name): self.size(axis.size) for axis in node.type.axes}
        batch = axis_name(self.kernel.grid[0].name)
        if rows is not None:
            sizes = {axis: rows if axis == batch else size for axis, size in sizes.items()}
        if summed:
            sizes = {marked("block", {*sizes}, "_"): self._count_of_blocks(), **sizes}
        dtype, pool = DTYPES[node.type.dtype], rows not in (None, self.B)
        return self.k.memory(called, sizes, dtype, rows=batch if pool else "")

    def constant(self, symbol: sympy.Basic, name: str = "") -> None:
        """Call a size or an option of the graph by a name that no argument has."""
        super().constant(symbol, name or size_name(symbol))

    # --- where a program stands ---

    def length(self, axis: Axis) -> sympy.Expr:
        """A block of the dim that programs share, or of the sequences; else all of an axis."""
        if axis == self.kernel.rows:
            return self.rows_length
        if not self.is_shared(axis):
            return super().length(axis)
        self.k.fixed(BLOCK)
        return BLOCK

    def _all_of(self, axis: Axis, label: str) -> Index:
        """All of an axis, or the program's block of it."""
        if not self.is_shared(axis):
            return super()._all_of(axis, label)
        at = self._called(self.first_of_part + self.k.iota(axis.base, self.length(axis)), "part")
        mask = self._called(at < self.k.lift(self.size(axis.size)), f"in_{plain(axis.name)}")
        return Index(at, True, mask).along(label)

    def is_shared(self, axis: Axis) -> bool:
        """Whether a program has a block of an axis."""
        split = self.kernel.split
        return split is not None and axis.name == split.name

    def _called(self, tile: Tile, name: str) -> Tile:
        """A tile by a name: the one that it has, if it stood already."""
        return tile if tile.value.title == name else tile.named(name)

    def borders(self, axis: Axis) -> tuple[Tile, Tile]:
        """The first index of an axis, and the one after the last."""
        if axis.kind != "stream":
            return super().borders(axis)
        return self.k.lift(0, "i32"), self.k.lift(self.T, "i32")

    def _stand(self) -> None:
        """The place of a program in the grid, all but its block of the dim that is shared."""
        k, (batch, *others) = self.k, self.kernel.grid
        if self.kernel.rows is None:
            self.indices[batch.name] = Index(self._place_of(batch, self.B))
        else:
            count = self.rows_length
            first = k.program("block", ceil_div(self.B, count)) * count
            row = first + k.iota(batch.name, count)
            inside = (row.named("row") < k.lift(self.B)).named("in_batch")
            self.masks[batch.name] = lambda: inside
            self.indices[batch.name] = Index(row, True, inside)
        for axis in others:
            self.indices[axis.name] = Index(self._place_of(axis, self.size(axis.size)))

    def _place_of(self, axis: Axis, count: sympy.Expr) -> Tile:
        """A program's place along an axis of the grid, in 64 bits: strides multiply it."""
        name = plain(axis.name)
        return self.k.program(name, count).to("i64").named(f"at_{name}")

    def _axis_of_parts(self) -> str:
        """The name of the axis of parts in the grid, which no head has."""
        return marked("part", {axis for axis, _ in self.k.grid}, "_")

    def _count_of_blocks(self) -> sympy.Expr:
        """The number of blocks of the dim that programs share."""
        split = self.kernel.split
        assert split is not None
        return ceil_div(self.size(split.size), self.length(split))

    def _choose_rows(self) -> None:
        """The rows of the pools, before and after; where one is negative, none is touched."""
        k, own = self.k, self.indices[self.kernel.grid[0].name]
        masks = [] if own.mask is None else [own.mask]
        for name, buffer in zip(SLOTS, self.rows_of, strict=False):
            with k.branch(k.given(buffer)) as chosen:
                chosen.give(k.load(buffer, own.at, where=masks, fill=-1).to("i64"))
            with k.otherwise(chosen) as missing:
                row = own.at if own.mask is None else k.where(own.mask, own.at, -1)
                missing.give(row.to("i64"))
            (row,) = (each.named(name) for each in chosen.results)
            there = (row >= 0).named(f"in_{name}")
            self.slots[name] = replace(own, at=row, whole=False, mask=there)

    # --- the walk ---

    def write(self) -> Refusal | None:
        """All statements of the program, or why there are none."""
        k, split = self.k, self.kernel.split
        self._stand()
        self._choose_rows()
        if split is None:
            return self._walk()
        blocks = self._count_of_blocks()
        if not self.whole_states:
            part = self.block = k.program(self._axis_of_parts(), blocks)
            self.first, self.first_of_part = lambda: [part.equals(0)], (part * BLOCK).named("first")
            return self._walk()
        (each,) = k.fixed(BLOCKS)
        programs = ceil_div(blocks, each)
        part = k.program(self._axis_of_parts(), programs)
        start, count = part * each, k.lift(blocks)
        with k.loop(0, k.apply("min", k.lift(each), count - start), index="n") as turn:
            block = self.block = (start + turn.index).named("block")
            self.first_of_part = (block * BLOCK).named("first")
            self.first = lambda: [part.equals(0), block.equals(0)]
            self.last = [part.equals(k.lift(programs) - 1), block.equals(count - 1)]
            with self.inner():
                return self._walk()

    def _walk(self) -> Refusal | None:
        """The loop over the tokens."""
        op, stream = self.op, self.op.stream.name
        states = self._states_before()
        if isinstance(states, Refusal):
            return states
        ahead = self._read_ahead()
        now = self._at_token(ahead, None)
        given = [*(x.tile for x in (*states, *now))]
        with self.k.loop(0, self.T, *given, index="step") as turn, self.inner():
            t = self.k.lift(self.T) - 1 - turn.index if op.reverse else turn.index
            self.indices[stream] = Index(t.to("i64").named("t"))
            self.turn = turn.index
            then = self._at_token(ahead, t)
            here = [replace(x, tile=c) for x, c in zip((*states, *now), turn.carried, strict=True)]
            self.now = {
                id: (self._whole(id), x) for id, x in zip(ahead, here[len(states) :], strict=True)
            }
            made = self._token(here[: len(states)])
            if isinstance(made, Refusal):
                return made
            turn.next(*made, *(x.tile for x in then))
        self.indices.pop(stream)
        for state, x, tile in zip(op.states, states, turn.results, strict=False):
            self._store_state(state, replace(x, tile=tile))
        return None

    def _states_before(self) -> list[Padded] | Refusal:
        """The states before the first token, in float32; what all tokens share is read too."""
        found = []
        for state, id in zip(self.op.states, self.starts, strict=True):
            x = self.value(id)
            if isinstance(x, Refusal):
                return x
            zero = self.first_clean[state.name] = self.clean.get(state.name, x.zero)
            self.clean[state.name] = zero
            found.append(Padded(x.tile.named(plain(state.name)), zero))
        refusal = self._shared_by_tokens()
        return refusal or found

    def _shared_by_tokens(self) -> Refusal | None:
        """Load what all tokens share."""
        for id in self.recurrence.operands[: len(self.op.captures)]:
            names = self.kernel.graph[id].type.names
            if self.op.stream.name not in names and self._is_read(id):
                self.stored(id)
        return None

    def _is_read(self, id: int) -> bool:
        """Whether the body has the whole of a captured value in registers."""
        body, name = self.op.body, self.kernel.graph[id].op.name
        found = [n for n in body if isinstance(n.op, ir.Input) and n.op.name == name]
        users = [body[user] for node in found for user in body.users(node.id)]
        return not all(isinstance(user.op, ir.Gather) for user in users)

    def _token(self, states: Sequence[Padded]) -> list[Tile] | Refusal:
        """One token: its results are stored, and the states after it are what comes back."""
        op, made = self.op, dict[str, Padded]()
        self.states = {s.before: x for s, x in zip(op.states, states, strict=True)}
        names = frozenset(self.states)
        with self.within(Frame(op.body, self._entering, self.recurrence.id, states=names)):
            refusal = self._hand_out()
            if refusal is not None:
                return refusal
            for name, id in op.body.outputs.items():
                x = self.value(id)
                if isinstance(x, Refusal):
                    return x
                made[name] = x
        for name, id in self.kernel.stores.items():
            self._store_result(name, self.kernel.graph[id], made)
        following = []
        for state, old in zip(op.states, states, strict=True):
            new = made[state.name]
            self.clean[state.name] &= new.zero & {*new.labels}
            following.append(self.over(new, old.tile.dims).tile.to("f32"))
        return following

    def _hand_out(self) -> Refusal | None:
        """Give other programs what they need at this token, where they need any."""
        return None

    def _store_result(self, name: str, node: Node, made: Mapping[str, Padded]) -> None:
        """A result at this token; of what several programs have, the first writes it."""
        place = self.at(node, {})
        assert isinstance(place, dict)
        x, split = made[node.op.name], self.kernel.split
        lacking = [axis for axis in self.kernel.grid if axis.name not in place]
        only = [self.indices[axis.name].at.equals(0) for axis in lacking]
        if name in self.kernel.summed:
            assert self.block is not None
            place = {"": Index(self.block.to("i64")), **place}
        elif split is not None and split.name not in place:
            only += self.first()
        self._store(self.tensors[name], x, place, only, False)

    def _store_state(self, state: ir.State, x: Padded) -> None:
        """A state after the last token; what several blocks have, the last of them writes."""
        end = self.kernel.ends[state.name]
        (node,) = (n for n in self.kernel.graph if self.kernel.loads.get(n.id) == end)
        place = self.at(node, {})
        assert isinstance(place, dict)
        if self.pools:
            place[self.kernel.grid[0].name] = self.slots["slot_after"]
        only = self.last if state.name in self.whole_states else []
        self._store(self.tensors[end], x, place, only, self.pools)

    def _store(
        self, buffer: Buffer, x: Padded, place: Place, only: Sequence[Tile], exclusive: bool
    ) -> None:
        """A tile as wide as the place where it is stored."""
        dims = tuple(d for index in place.values() for d in index.at.dims)
        masks = (index.mask for index in place.values() if index.mask is not None)
        where = tuple(dict.fromkeys((*masks, *only)))
        at, tile = [index.at for index in place.values()], self.over(x, _once(dims)).tile
        self.k.store(buffer, *at, value=tile, where=where, exclusive=exclusive)

    # --- what enters ---

    def _given(self, node: Node, place: Place) -> Made | None:
        """An input of the recurrence, from memory: a state from its row of a pool."""
        if not isinstance(node.op, ir.Input):
            return None
        name = node.op.name
        if name in self.given_numbers:
            return Padded(self.k.lift(self.given_numbers[name]))
        known = self.now.get(node.id)
        if known is not None and known[0] == place:
            return known[1]
        if self.pools and name in self.before:
            place = {**place, self.kernel.grid[0].name: self.slots["slot"]}
        return self.load(self.tensors[name], {axis_name(axis): i for axis, i in place.items()})

    def _entering(self, node: Node, place: Place) -> Made | None:
        """An input of the body: a state, or a captured value at this token."""
        if not isinstance(node.op, ir.Input):
            return None
        name = node.op.name
        if name in self.states:
            held = self.states[name]
            wanted = (n for n in place if place[n].label or n in held.labels)
            return self.not_whole(node, place, *wanted) or held
        captured = ir.captured(self.recurrence)
        with self.within(self.outer):
            return self.stored(captured[name], place)

    # --- one token ahead ---

    def _read_ahead(self) -> list[int]:
        """Captures that are read one token ahead, as a program waits for them otherwise: those that
        no product of a token is made from, which Triton itself would read ahead."""
        op, body = self.op, self.op.body
        if self.kernel.rows is None:
            return []
        products = {n.id for n in body if isinstance(n.op, ir.Contract) and len(n.operands) == 2}
        read = {n.op.name: body.descendants(n.id) for n in body if isinstance(n.op, ir.Input)}
        found = []
        for name, id in zip(op.captures, self.recurrence.operands, strict=False):
            along = op.stream.name in self.kernel.graph[id].type.names
            if along and name in read and not products & read[name] and name not in self.by_value:
                found.append(id)
        return found

    def _at_token(self, ids: Sequence[int], t: Tile | None) -> list[Padded]:
        """Values at the token after this one, the last at itself; None: at the first, if any."""
        k, op, batch = self.k, self.op, self.kernel.grid[0].name
        if not ids:
            return []
        own, stream = self.indices[batch], op.stream.name
        there, end = dict(self.indices), k.lift(self.T) - 1
        if t is None:
            at = end if op.reverse else k.lift(0, "i32")
            some = k.lift(self.T) > 0
            there[batch] = replace(own, mask=some if own.mask is None else own.mask & some)
        else:
            at = k.apply("max", t - 1, 0) if op.reverse else k.apply("min", t + 1, end)
        there[stream] = Index(at)
        self.indices, kept = there, self.indices
        found = [self._given(self.kernel.graph[id], self._whole(id)) for id in ids]
        self.indices = kept
        return [x for x in found if isinstance(x, Padded)]

    def _whole(self, id: int) -> dict[str, Index]:
        """All of a value that the program has."""
        place = self.at(self.kernel.graph[id], {})
        assert isinstance(place, dict)
        return place


def _only(loads: Mapping[str, Node], names: Collection[str]) -> Iterator[str]:
    return (name for name in loads if name in names)


def _once(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    return tuple({dim.name: dim for dim in dims}.values())
