"""The functions of a kernel by warps: of the warp that loads, and of a group that multiplies.

Each tile that is walked has a ring, of `STAGES` places with two barriers each: for what is there,
and for what both groups are through with. A product goes on until its result is read, or the turn
ends; it begins as soon as its factors are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archc.backends.triton import gluon_owned as owned
from archc.backends.triton.gluon_lines import Lines, Shared
from archc.backends.triton.gluon_roles import Turns, Unknown
from archc.backends.triton.spelling import GLUON, INDENT, dtype_text, gluon_size

from archc.tile import language as lang
from archc.tile.language import Statement, Value


class Loader(Lines):
    """The function of the warp that loads, by descriptors of these names."""

    def __init__(self, shared: Shared, blocks: dict[Statement, str]):
        super().__init__(shared)
        self.blocks = blocks

    def layout(self, dims: tuple[str, ...], without: int | None = None) -> str:
        if dims != (self.roles.walk,):
            raise Unknown(f"a tile along {dims} that is loaded")
        return "gl.BlockedLayout([1], [32], [1], [0])"

    def write(self) -> None:
        """The lines: what loops need, and their turns."""
        found = self.roles
        roots = [value for turns in found.turns for value in turns.loop.operands[:2]]
        for turns in found.turns:
            roots += [self._place(load) for load in turns.tiles.values()]
            roots += turns.vectors
        copies = {self.name(v): load for v, load in found.brought.items()}
        needed = found.needed([*roots, *owned.roots(found, [*copies.values()])])
        self.line("ring_stage = 0")
        self.line("ring_phase = 1")
        for name, load in copies.items():
            owned.describe(self, f"{name}_own", load)
        for statement in found.body:
            if isinstance(statement.op, lang.For):
                self._bring(copies)
                copies = {}
                self._loop(found.turn(statement), needed)
            elif {*statement.results} & needed:
                self.let(statement)

    def _bring(self, copies: Mapping[str, Statement]) -> None:
        """The lines that have factors of what is owned copied, each half by itself."""
        if copies:
            sizes = [self.roles.dims[value] for value in self.roles.brought]
            tiles = [" * ".join(gluon_size(self.roles.lengths[n]) for n in dims) for dims in sizes]
            self.line(f"mbarrier.expect(own_ready, 2 * ({' + '.join(tiles)}))")
        for name, load in copies.items():
            for half in (0, 1):
                at = f"[{owned.place_text(self, load, half)}, 0]"
                given = f"{name}_own, {at}, own_ready, {name}_held.index({half})"
                self.line(f"tma.async_copy_global_to_shared({given})")

    def _place(self, load: Statement) -> Value:
        """Where a tile begins along the axis that is walked."""
        for value in load.operands[: len(load.op.buffer.axes)]:
            if self.roles.dims[value] == (self.roles.walk,):
                scalar, _ = lang.parts(value, self.roles.made.get(value))
                if scalar is not None:
                    return scalar
        raise Unknown("a tile that begins nowhere")

    def _loop(self, turns: Turns, needed: set[Value]) -> None:
        start, stop = (self.name(value) for value in turns.loop.operands[:2])
        block = turns.loop.blocks[0]
        self.line(f"for {self.name(block.arguments[0])} in range({start}, {stop}):")
        self.depth += 1
        for statement in block.statements:
            if {*statement.results} & needed:
                self.let(statement)
        for place, (ring, load) in enumerate(turns.tiles.items()):
            self._copy(ring, load, turns.vectors if not place else [])
        advance(self)
        self.depth -= 1

    def _copy(self, ring: str, load: Statement, vectors: Sequence[Value]) -> None:
        """The lines that have a tile copied, once its place is free; vectors go along."""
        dims = self.roles.dims[load.results[0]]
        rows, width = (gluon_size(self.roles.lengths[name]) for name in dims)
        self.line(f"mbarrier.wait({ring}_free.index(ring_stage), ring_phase)")
        self.line(f"mbarrier.expect({ring}_ready.index(ring_stage), {rows} * {width} * 2)")
        at = f"[{self.name(self._place(load))}, 0]"
        given = [self.blocks[load], at, f"{ring}_ready.index(ring_stage)"]
        given.append(f"{ring}_ring.index(ring_stage)")
        self.line(f"tma.async_copy_global_to_shared({', '.join(given)})")
        for place, value in enumerate(vectors):
            self.line(f"vector_{place}_ring.index(ring_stage).store({self.name(value)})")
        if self.roles.vectors and ring == next(iter(self.roles.rings)):
            self.line(f"mbarrier.arrive({ring}_ready.index(ring_stage), count=1)")


def advance(lines: Lines) -> None:
    """The lines that go on to the next place of the rings."""
    lines.line("ring_stage += 1")
    lines.line("if ring_stage == STAGES:")
    lines.line(f"{INDENT}ring_stage = 0")
    lines.line(f"{INDENT}ring_phase ^= 1")


@dataclass
class Product:
    """A product that goes on: its factor in registers, if it has one there, and its ring."""

    value: Value
    factor: str
    ring: str


class Weigher(Lines):
    """The function of a group of warps that multiplies and weighs."""

    def __init__(self, shared: Shared):
        super().__init__(shared)
        self.going: list[Product] = []
        self.turns: Turns | None = None
        self.ready = set[str]()
        self.left: dict[str, int] = {}
        self.vectors = list[Value]()
        self.waited = not self.roles.brought  # for what is owned
        self.also: list[tuple[str, str]] = []  # names that each turn hands on besides

    def write(self) -> None:
        """The lines of the program."""
        found = self.roles
        for name, layout in self.shared.layouts.items():
            width = gluon_size(found.lengths[name])
            made = f"gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16])"
            self.line(f"{layout}: gl.constexpr = {made}")
        self.line(f"no_scores = {self._zeros((found.own, found.walk))}")
        self.line("ring_stage = 0")
        self.line("ring_phase = 0")
        needed = self._needed()
        for statement in found.body:
            if isinstance(statement.op, lang.For):
                if statement is found.turns[0].loop:
                    self._begin_loops()
                self._loop(statement, needed)
            elif statement in found.taken:
                self._take_away(statement)
            elif isinstance(statement.op, lang.Store):
                self.store(statement)
            elif statement in found.brought.values():
                self._read(statement)
            elif {*statement.results} & needed:
                self.let(statement)
                self._hold(statement)
        if found.taken:
            self.line("tma.store_wait(0)")

    def _begin_loops(self) -> None:
        """The lines before all loops: descriptors of what is taken away, while what is owned
        arrives; what is owned is there."""
        found = self.roles
        for place, statement in enumerate(found.taken):
            owned.describe(self, f"taken_{place}", statement)
        if {*found.held} - {*found.brought}:
            self.line("fence_async_shared()")
        self._await_own()

    def _await_own(self) -> None:
        if not self.waited:
            self.line("mbarrier.wait(own_ready, 0)")
        self.waited = True

    def _read(self, load: Statement) -> None:
        """The line that reads a factor that is brought, where more than a product needs it."""
        (value,) = load.results
        if self.roles.read_beside(value):
            self._await_own()
            layout = self.layout(self.roles.dims[value])
            self.line(f"{self._called(value)} = {self._called(value)}_held.index(W).load({layout})")

    def _take_away(self, store: Statement) -> None:
        """The lines that have a result copied through the room of a factor."""
        found, place = self.roles, [*self.roles.taken].index(store)
        value, room = store.operands[len(store.op.buffer.axes)], found.taken[store]
        through = f"{self._called(room)}_held.index(W)"
        if found.dims[room] != found.dims[value]:
            block = ", ".join(owned.shape_of(found, store))
            through += f"._reinterpret(IO, [{block}], {owned.lying(block)})"
        self.line(f"{through}.store(gl.cast({self.name(value)}, IO))")
        self.line("fence_async_shared()")
        at = f"[{owned.place_text(self, store)}, 0]"
        self.line(f"tma.async_copy_shared_to_global(taken_{place}, {at}, {through})")

    def _needed(self) -> set[Value]:
        found = self.roles
        tiles = [load.results[0] for turns in found.turns for load in turns.tiles.values()]
        ends = [s for s in found.body if isinstance(s.op, lang.Store | lang.For)]
        ends = [s for s in ends if s not in found.taken]
        roots = [value for statement in ends for value in statement.operands]
        roots += owned.roots(found, [*found.taken])
        roots += [s.operands[len(s.op.buffer.axes)] for s in found.taken]
        for turns in found.turns:
            roots += turns.loop.blocks[0].yields
        return found.needed(roots, [*tiles, *found.loaded, *found.brought])

    def _hold(self, statement: Statement) -> None:
        """The line that puts a factor into shared memory."""
        for value in statement.results:
            if value in self.roles.held:
                self.line(f"{self.name(value)}_held.index(W).store({self.name(value)})")

    def _loop(self, loop: Statement, needed: set[Value]) -> None:
        """The lines of a loop: what it begins with, its turns, and what each hands on."""
        block, (start, stop, *given) = loop.blocks[0], loop.operands
        index, *carried = block.arguments
        handed = [
            each for each in zip(carried, given, loop.results, block.yields, strict=True)
            if self._is_handed_on(loop, each[0])
        ]  # fmt: skip
        for inner, value, result, _ in handed:
            self.line(f"{self.name(inner)} = {self.begun(inner, value)}")
            self.shared.names[result] = self.name(inner)
        self.line(f"for {self.name(index)} in range({self.name(start)}, {self.name(stop)}):")
        self.depth += 1
        self._turn(self.roles.turn(loop), needed)
        pairs = [(self.name(x), self.begun(x, y)) for x, _, _, y in handed if x is not y]
        self._end()
        pairs += self.also
        if pairs:
            left, right = (", ".join(side) for side in zip(*pairs, strict=True))
            self.line(f"{left} = {right}")
        advance(self)
        self.depth -= 1
        self.turns = None

    def _is_handed_on(self, loop: Statement, carried: Value) -> bool:
        """Whether a turn hands on what is carried by the name that it has there."""
        return True

    def begun(self, inner: Value, value: Value) -> str:
        """What a loop begins with, or goes on with: a number that is the same for all rows as a
        tile."""
        dims = self.roles.dims[inner]
        if self.roles.dims[value] == dims:
            return self.name(value)
        if self.roles.dims[value] or not dims:
            raise Unknown("what a loop begins with along some of its dims")
        kind = dtype_text(inner.type.dtype, GLUON)
        return f"gl.full({self.shape(dims)}, {self.name(value)}, {kind}, {self.layout(dims)})"

    def _turn(self, turns: Turns, needed: set[Value]) -> None:
        """The lines of a turn but for what it carries on."""
        dots = self._begin_turn(turns, [*turns.tiles], None)
        early = [s for s in dots if self._factors(s)[0] in self.roles.held and len(s.operands) == 2]
        for dot in early:
            self._dot(dot)
        self._rest(turns, needed, [dot.results[0] for dot in early])

    def _begin_turn(
        self, turns: Turns, rings: Sequence[str], late: Statement | None
    ) -> list[Statement]:
        """Note what a turn waits for, and its products but a `late` one."""
        self.turns, self.ready, self.going = turns, set(), []
        self.vectors = [*turns.vectors]
        dots = [s for s in turns.loop.blocks[0].statements if isinstance(s.op, lang.Dot)]
        dots = [dot for dot in dots if dot is not late]
        self.left = dict.fromkeys(rings, 0)
        for dot in dots:
            self.left[self._factors(dot)[1]] += 1
        return dots

    def _rest(self, turns: Turns, needed: set[Value], made: Sequence[Value]) -> None:
        """The lines of a turn but for what is `made`, and comes through rings or along."""
        there = {load.results[0] for load in turns.tiles.values()} | self.roles.loaded | {*made}
        for statement in hurried(turns.loop.blocks[0].statements, there, needed):
            if isinstance(statement.op, lang.Dot):
                self._dot(statement)
            else:
                self.let(statement)

    def _factors(self, dot: Statement) -> tuple[Value, str]:
        """The factor of what is owned, and the ring that the other comes through."""
        assert self.turns is not None
        first, second = dot.operands[:2]
        ring = next((n for n, load in self.turns.tiles.items() if load.results[0] is second), None)
        dims, scores = self.roles.dims, (self.roles.own, self.roles.walk)
        if ring is None or {first.type.dtype, second.type.dtype} != {"IO"}:
            raise Unknown("a product of other factors")
        shared = [name for name in dims[second] if name in dims[first]]
        held = first in self.roles.held and dims[first][:1] == scores[:1]
        if (
            shared != [n for n in dims[first] if n != self.roles.own]
            or dims[second][0] != scores[1]
        ):
            raise Unknown("a product along other dims")
        if (dims[dot.results[0]] == scores) is not held or (not held and dims[first] != scores):
            raise Unknown("a product of what neither is held nor made of scores")
        return first, ring

    def _dot(self, dot: Statement) -> None:
        """The lines that begin a product."""
        first, ring = self._factors(dot)
        (result,), dims = dot.results, self.roles.dims[dot.results[0]]
        given, factor = [self.name(value) for value in dot.operands[2:]], ""
        tile = f"{ring}_ring.index(ring_stage)"
        if dims == (self.roles.own, self.roles.walk):
            left, tile = f"{self.name(first)}_held.index(W)", f"{tile}.permute([1, 0])"
            zero = "no_scores"
        else:
            left = factor = f"{self.name(first)}_factor"
            kind = f"gl.DotOperandLayout(0, {self.layout(dims)}, 2)"
            self.line(f"{factor} = gl.convert_layout({self.name(first)}, {kind})")
            zero = self._zeros(dims)
        self._await(ring)
        given = [left, tile, *(given or [zero, "use_acc=False"]), "is_async=True"]
        self.line(f"{self._called(result)} = warpgroup_mma({', '.join(given)})")
        self.going.append(Product(result, factor, ring))

    def _zeros(self, dims: tuple[str, ...]) -> str:
        """A tile of zeros."""
        return f"gl.full({self.shape(dims)}, 0.0, gl.float32, {self.layout(dims)})"

    def _called(self, value: Value) -> str:
        """The name of a value, which may not be there yet."""
        return self.shared.names.get(value, value.name)

    def _await(self, ring: str) -> None:
        """The line that waits for a tile, once a turn."""
        if ring not in self.ready:
            self.ready.add(ring)
            self.line(f"mbarrier.wait({ring}_ready.index(ring_stage), ring_phase)")

    def name(self, value: Value) -> str:
        """How a value is written, once a product that goes on, or a vector that comes along, is
        there."""
        places = [n for n, product in enumerate(self.going) if product.value is value]
        if places:
            self._finish(places[0] + 1)
        if value in self.vectors:
            self._take(value)
        return super().name(value)

    def _take(self, value: Value) -> None:
        assert self.turns is not None
        place = self.turns.vectors.index(value)
        self.vectors.remove(value)
        self._await(next(iter(self.roles.rings)))
        given = f"vector_{place}_ring.index(ring_stage).load({self.layout((self.roles.walk,))})"
        self.line(f"{self._called(value)} = {given}")
        self._free()

    def _finish(self, count: int) -> None:
        """The lines that wait for the first so many products, and say what is free again."""
        done, self.going = self.going[:count], self.going[count:]
        names = [self._called(each.value) for each in done]
        given = ", ".join([*names, *(each.factor for each in done if each.factor)])
        self.line(f"{given} = warpgroup_mma_wait({len(self.going)}, [{given}])")
        for each in done:
            if each.ring in self.left:
                self.left[each.ring] -= 1
        self._free()

    def _free(self) -> None:
        first = next(iter(self.roles.rings))
        for ring, count in [*self.left.items()]:
            if not count and (ring != first or not self.vectors):
                del self.left[ring]
                self.line(f"mbarrier.arrive({ring}_free.index(ring_stage), count=1)")

    def _end(self) -> None:
        """The lines that end a turn: everything is there, and every place is free."""
        for value in [*self.vectors]:
            self._take(value)
        if self.going:
            self._finish(len(self.going))
        if self.left:
            raise Unknown("a tile that nothing multiplies")


def hurried(
    statements: Sequence[Statement], there: set[Value], needed: set[Value]
) -> list[Statement]:
    """Statements of a turn but for what is there: products, and what becomes a factor of one, as
    soon as all that they are made of is made."""
    dots = [s for s in statements if isinstance(s.op, lang.Dot)]
    factors = {value for dot in dots for value in dot.operands[:2]}
    left = [s for s in statements if s.results[0] in needed and s.results[0] not in there]
    inside = {value for s in left for value in s.results}
    casts = [s for s in left if isinstance(s.op, lang.Cast) and s.results[0] in factors]
    hurry = [s for s in left if s in dots or s in casts]
    found: list[Statement] = []

    def add(statement: Statement) -> None:
        found.append(statement)
        left.remove(statement)
        inside.difference_update(statement.results)
        for other in [each for each in hurry if each in left]:
            if other in left and inside.isdisjoint(other.operands):
                add(other)

    while left:
        add(left[0])
    return found
