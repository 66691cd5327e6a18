"""The resources of a launch of a tile program: folds over the program that is printed.

Bytes and operations are exact, of what the program says: masks are taken to hold, a tensor that
several programs read counts once for memory (`bytes`) and each time for caches (`moved`).
Registers and shared memory are what the values that are alive together take; a compiler may need
more for what it moves between layouts. Time is a bound from below: no launch is faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from archc.functions.definitions import FUNCTIONS
from archc.tile import language as lang
from archc.tile.affine import Integers

WIDTH = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8, "bool": 1}
SPECIAL = {name: fn.special for name, fn in FUNCTIONS.items()} | {"div": 1}
"""Exponentials, logarithms, roots and quotients in a function of one element."""

GROUP = 64
"""The fewest rows of a product that a warp group does at once, from registers."""

LANES, SMALLEST = 32, 16
"""Threads of a warp; registers of a thread that hold addresses, counters and masks."""


@dataclass
class Work:
    """The work of all programs of a launch: operations in products of matrices, in others, special
    functions, and bytes by buffer. `bytes` counts each element of a buffer once, `moved` each
    program's reads and writes."""

    products: float = 0
    others: float = 0
    special: float = 0
    moved: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OnChip:
    """The storage of one program at a time: bytes in registers and in shared memory, and the
    registers of a thread that the former are."""

    held: int
    shared: int
    registers: int


@dataclass(frozen=True)
class Room:
    """The room of a processor for one program: bytes of shared memory, and registers of 4 bytes."""

    shared: int
    registers: int = 65_536


class Launch:
    """One launch of a program at sizes that are known."""

    def __init__(self, program: lang.Program, known: Mapping[str, int | float | str]):
        self.program, self.integers = program, Integers(program, known)
        self.dtypes = {name: value for name, value in known.items() if isinstance(value, str)}
        self.programs = math.prod(self.integers.size(count) for _, count in program.grid)
        self.made = self.integers.made
        self.done = [*self.integers.statements(program.body)]

    def width(self, dtype: str) -> int:
        """Bytes of one number."""
        return WIDTH[self.dtypes.get(dtype, dtype)]

    def elements(self, type: lang.Type) -> int:
        """Numbers of a tile."""
        return math.prod(self.integers.size(dim.length) for dim in type.dims)

    def bytes_of(self, type: lang.Type) -> int:
        """Bytes of a tile."""
        return self.elements(type) * self.width(type.dtype)

    # --- work ---

    def work(self) -> Work:
        """The work of all programs of a launch."""
        total = Work()
        self._add(self.program.body, self.programs, total)
        for buffer in self.program.buffers:
            size = math.prod(self.integers.size(size) for _, size in buffer.axes)
            moved = total.moved.get(buffer.name, 0)
            total.bytes[buffer.name] = min(moved, size * self.width(buffer.dtype))
        return total

    def _add(self, block: lang.Block, times: float, total: Work) -> None:
        """The work of a block that is done so many times."""
        for statement in block.statements:
            self._count(statement, times, total)
            turns = self.turns(statement) if isinstance(statement.op, lang.For | lang.While) else 1
            for _, inner in self.integers.taken(statement):
                self._add(inner, times * turns, total)

    def turns(self, loop: lang.Statement) -> float:
        """How many turns a loop has, on average over programs where they differ; of one that goes
        on while something holds, the most."""
        if isinstance(loop.op, lang.While):
            return self.integers.size(loop.op.most)
        low, high = (self.integers.range(value) for value in loop.operands[:2])
        return max(0.0, sum(high) / 2 - sum(low) / 2)

    def _count(self, s: lang.Statement, times: float, total: Work) -> None:
        match s.op:
            case lang.Dot():
                a, b, *_ = (value.type for value in s.operands)
                columns = self.integers.size(b.dims[-1].length)
                total.products += 2 * times * self.elements(a) * columns
            case lang.Apply(function):
                count = times * self.elements(s.results[0].type)
                total.special += SPECIAL[function] * count
                total.others += count
            case lang.Reduce() | lang.Scan() | lang.Sort() | lang.Flip() | lang.Push():
                total.others += times * self.elements(s.operands[0].type)
            case lang.Load() | lang.LoadBlock() | lang.Atomic() | lang.Store():
                self._move(s.op.buffer, s, times, total)

    def _move(self, buffer: lang.Buffer, s: lang.Statement, times: float, total: Work) -> None:
        count = len(buffer.axes)
        values = s.results or s.operands[: count + 1]
        shape = {dim: None for value in values for dim in value.type.dims}
        elements = self.elements(lang.Type(buffer.dtype, tuple(shape)))
        moved = times * elements * self.width(buffer.dtype)
        total.moved[buffer.name] = total.moved.get(buffer.name, 0) + moved

    # --- on chip ---

    def on_chip(self) -> OnChip:
        """The on-chip memory of a program where it holds most."""
        shared = self._staged() + self._read_once() + self._operands()
        held = self._alive(self.program.body, set())
        threads = LANES * self.program.warps
        return OnChip(held, shared, SMALLEST + -(-held // (4 * threads)))

    def _staged(self) -> int:
        """Shared memory of loads that are issued turns ahead: where the program does not say so of
        a loop, compilers do it for what products are made from."""
        most = 0
        for statement in self.done:
            if isinstance(statement.op, lang.For):
                said = statement.op.ahead
                ahead = said if isinstance(said, int) else self.program.ahead
                ahead *= statement.op.together
                (body,) = statement.blocks
                loads = [s for s in body.statements if self._is_staged(s)]
                if statement.op.ahead is None:
                    factors = self._made_into_factors(body)
                    loads = [s for s in loads if s.results[0] in factors]
                most = max(most, ahead * sum(self.bytes_of(s.results[0].type) for s in loads))
        return most

    def _made_into_factors(self, block: lang.Block) -> set[lang.Value]:
        """The values of a block that factors of its products are made from, and these factors."""
        found: set[lang.Value] = set()
        for statement in reversed([*lang.statements(block)]):
            factors = isinstance(statement.op, lang.Dot)
            if factors or any(value in found for value in statement.results):
                found |= {*statement.operands[: 2 if factors else None]}
        return found

    def _read_once(self) -> int:
        """Shared memory of loads outside of loops that go to products alone."""
        read = [
            s for s in self.program.body.statements if isinstance(s.op, lang.Load | lang.LoadBlock)
        ]
        found = (s.results[0] for s in read if self._is_read_by_products(s))
        return sum(self._factor_bytes(value) for value in found)

    def _factor_bytes(self, value: lang.Value) -> int:
        """Shared memory of a factor: of one in float32 that is multiplied in parts, both parts."""
        dots = (s for s in self.done if isinstance(s.op, lang.Dot))
        users = [s.op.precision for s in dots if value in map(self._root, s.operands[:2])]
        parts = any(self.dtypes.get(each, each) == "tf32x3" for each in users)
        wide = self.width(value.type.dtype) == WIDTH["f32"]
        return self.bytes_of(value.type) * (2 if parts and wide else 1)

    def largest(self) -> lang.Value:
        """The value that takes most room on chip."""
        made = [value for value in self.made if value.type.dims]
        return max(made, key=lambda value: self.bytes_of(value.type))

    def _is_staged(self, s: lang.Statement) -> bool:
        """Whether the loads of a loop are issued ahead of their use: those of tiles are."""
        if isinstance(s.op, lang.LoadBlock):
            return True
        return isinstance(s.op, lang.Load) and bool(s.results[0].type.dims)

    def _operands(self) -> int:
        """Shared memory of the largest factor that was made in registers: a right one, or a left
        one with fewer rows than a warp group multiplies at once."""
        found = [0]
        for s in self.done:
            if isinstance(s.op, lang.Dot):
                few = self.integers.size(s.operands[0].type.dims[0].length) < GROUP
                factors = map(self._root, s.operands[0 if few else 1 : 2])
                found += [self._factor_bytes(f) for f in factors if not self._from_memory(f)]
        return max(found)

    def _from_memory(self, value: lang.Value) -> bool:
        """Whether a factor is read in the order that it has in memory, or turned around."""
        made = self.made.get(self._root(value))
        return made is not None and isinstance(made.op, lang.Load | lang.LoadBlock)

    def _alive(self, block: lang.Block, after: set[lang.Value]) -> int:
        """The most bytes in registers of values that are read later, statement by statement."""
        alive = {self._root(value) for value in after} | {self._root(v) for v in block.yields}
        most = self._bytes(alive)
        for statement in reversed(block.statements):
            alive |= {self._root(value) for value in statement.results}
            for _, inner in self.integers.taken(statement):
                most = max(most, self._alive(inner, alive))
            most = max(most, self._bytes(alive))
            alive -= {self._root(value) for value in statement.results}
            alive |= {self._root(value) for value in statement.operands}
        return max(most, self._bytes(alive))

    def _root(self, value: lang.Value) -> lang.Value:
        """The value whose registers another one stands in."""
        made = self.made.get(value)
        while made is not None and self._passes(made):
            value = made.operands[0]
            made = self.made.get(value)
        return value

    def _passes(self, made: lang.Statement) -> bool:
        """Whether a statement leaves numbers where they are: it names them, or turns them around,
        or casts them to the dtype that they have at this launch."""
        if isinstance(made.op, lang.Cast):
            before, after = (v.type.dtype for v in (*made.operands, *made.results))
            return self.dtypes.get(before, before) == self.dtypes.get(after, after)
        return isinstance(made.op, lang.Transpose | lang.Relabel)

    def _bytes(self, values: set[lang.Value]) -> int:
        """Bytes of registers: scalars, indices and what products read from shared memory need none
        to speak of."""
        total = 0
        for value in values:
            made = self.made.get(value)
            index = lang.kind(value.type.dtype) != "real"
            if value.type.dims and not index and not (made and self._is_read_by_products(made)):
                total += max(2, self.width(value.type.dtype)) * self.elements(value.type)
        return total

    def _is_read_by_products(self, made: lang.Statement) -> bool:
        """Whether a load goes to products alone, which read it from shared memory."""
        if not isinstance(made.op, lang.Load | lang.LoadBlock):
            return False
        (value,) = made.results
        users = [s for s in self.done if value in map(self._root, s.operands)]
        return bool(users) and all(isinstance(s.op, lang.Dot) or self._passes(s) for s in users)


SAMPLE = 4
"""The length of every dim where lengths are not told."""


def tiles_alive(program: lang.Program) -> float:
    """How many of its largest tiles a program holds at once, whatever the lengths of its dims."""
    names = (*map(str, program.sizes), *program.constants)
    launch = Launch(program, {**dict.fromkeys(names, SAMPLE), "IO": "bf16"})
    most = max((launch.elements(value.type) for value in launch.made), default=1)
    return launch.on_chip().held / (WIDTH["f32"] * most)


def largest_tiles(program: lang.Program, *besides: str) -> list[tuple[str, ...]]:
    """The lengths of the dims of those tiles that have not all of another's, whatever they are;
    those named `besides` are not counted."""
    made = (value for s in lang.statements(program.body) for value in s.results)
    lengths = ([str(dim.length) for dim in value.type.dims] for value in made)
    found = [Counter(each for each in tile if each not in besides) for tile in lengths]
    apart = [*{tuple(sorted(tile.elements())): tile for tile in found}.items()]
    return [name for name, tile in apart if not any(tile < other for _, other in apart)]
