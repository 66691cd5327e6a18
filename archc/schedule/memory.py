"""The on-chip memory of a program: tiles in registers, and operands of products of matrices in
shared memory.

Estimates from the graph, not from machine code. Both operands of a product are in shared memory
while it is done, twice over where a float32 product is three in tf32, and then what is made for one
product stays there for the next that reads it; a walk loads the operands of its next steps ahead.
Every other tile is in registers as long as it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.kernel import BLOCK, POINTWISE, WHOLE, Kernel, dims_of_half, loaded_by_walk, warps
from archc.ir.refusal import Refusal
from archc.ir.sizes import evaluate
from archc.lowering.steps import Stepping, held_by, stepping
from archc.schedule.devices import REFERENCE, Budget
from archc.schedule.operands import PAIRED, is_product, matrices, summed, tile_of_rows
from archc.schedule.program import OUTER, STATE, WIDE, Key, Program, Setting, Step
from archc.tile import language as tile
from archc.tile.language import Dot, statements
from archc.tile.resources import Launch

CHUNKS = (64, 32, 16)
"""Lengths of chunks that kernels are made for, the best first."""

STAGES, AHEAD = 3, {2: 232_448, 4: 98_304}
"""A walk has that many chunks under way, or as many as need so many bytes at most by the bytes of a
number: as the launches of a generated file do (`settings_of`)."""

MARGIN = 1.125
"""The share of shared memory beside the operands of the largest product, as a factor."""

THREADS, REGISTERS = 32, 255
"""Threads of a warp, and the most registers that one has."""

EASE = 2 / 3
"""The part of its registers that tiles may have, so that none is spilled for sure. In the others
are addresses and masks, and tiles once more: a sum wants them otherwise than a product does."""

GROUP = 64
"""Rows from which on products read their operands from shared memory (wgmma)."""

VECTORS = THREADS * WIDE * 64 * 4
"""Bytes of a solve's vectors, of which there are four in the registers of its warps all the time:
64 numbers a thread each."""

VIEWS = (ck.Expand, ck.Detach, ck.Tokens, ck.Chunks, ir.Constant, ir.Position)
"""Ops that make no tile: they are part of what reads them."""


@dataclass(frozen=True)
class OnChip:
    """Bytes that a program of a kernel holds at its fullest: in shared memory, and in registers."""

    shared: int
    registers: int


@dataclass(frozen=True)
class Misfit:
    """A kernel that does not fit: what it needs of `what`, in bytes, and what there is."""

    kernel: str
    what: str
    needed: int
    most: int

    def __str__(self) -> str:
        return (
            f"`{self.kernel}` needs {self.needed:,} bytes of {self.what} a program of {self.most:,}"
        )


def on_chip(program: Program) -> OnChip:
    """The registers and the shared memory of a program."""
    made = Tiles(program)
    return OnChip(made.shared(), made.registers())


def fits(kernel: Kernel, setting: Setting, budget: Budget = REFERENCE.budget) -> Misfit | None:
    """The reason why a kernel cannot run at some sizes, or None."""
    tiles = Tiles(Program(kernel, setting))
    needed, vectors = tiles.shared(), tiles.vectors()
    if needed > budget.shared:
        return Misfit(kernel.name, "shared memory", needed, budget.shared)
    over = vectors > VECTORS and setting.sizes[ck.CHUNK.name] > CHUNKS[-1]
    return Misfit(kernel.name, "registers for each vector", vectors, VECTORS) if over else None


def spills(kernel: Kernel, setting: Setting, budget: Budget = REFERENCE.budget) -> Misfit | None:
    """The reason why a kernel may be slow: its tiles do not surely fit into the registers of its
    threads."""
    tiles = Tiles(Program(kernel, setting))
    most = int(EASE * WIDE * min(budget.registers, THREADS * REGISTERS * tiles.warps))
    needed = tiles.registers()
    return Misfit(kernel.name, "registers", needed, most) if needed > most else None


class Tiles:
    """The tiles of a program, and when they are needed."""

    def __init__(self, program: Program):
        self.program = program
        self.order = list(program.steps.values())
        self.last: dict[Key, int] = {}
        self._views: dict[Key, list[Key]] = {}
        self._pointwise: dict[Key, bool] = {}
        self._tiles: dict[Key, list[int]] = {}
        for place, step in enumerate(self.order):
            for key in step.operands:
                for source in self._sources(key):
                    self.last[source] = place
        self._rows = self._loaded_by_rows()
        self._kept()

    @property
    def setting(self) -> Setting:
        """The setting of the program, which may get another."""
        return self.program.setting

    def moved_to(self, setting: Setting, known: dict[object, int]) -> None:
        """Look at other sizes; `known` are lengths of axes at these."""
        self.program.moved_to(setting, known)
        self._tiles = {}

    def _kept(self) -> None:
        """Have values that are stored, and states, live to the end."""
        program, end = self.program, len(self.order)
        if program.recurrence is not None:
            for id in program.recurrence.op.body.outputs.values():
                self.last |= dict.fromkeys(self._sources(("body", id)), end)
            self.last |= {(STATE, name): end for name in program.states}

    def _sources(self, key: Key) -> list[Key]:
        """The tiles that a value stands for: its own, or those that it is a view of."""
        if key not in self._views:
            step = self.program.steps.get(key)
            view = step.operands if step is not None and self._is_view(step) else None
            found = [key] if view is None else [s for each in view for s in self._sources(each)]
            self._views[key] = found
        return self._views[key]

    def _is_view(self, step: Step) -> bool:
        op = step.node.op
        if step.load is not None:
            return False
        return isinstance(op, VIEWS) or ir.renames(op)

    def _type(self, key: Key) -> Type:
        step = self.program.steps.get(key)
        return self.program.states[str(key[1])] if step is None else step.node.type

    def _tile(self, key: Key) -> list[int]:
        found = self._tiles.get(key)
        if found is None:
            type = self._rows.get(key) or self._type(key)
            found = self._tiles[key] = self.program.tile(type.axes)
        return found

    def _loaded_by_rows(self) -> dict[Key, Type]:
        """What is loaded with an axis that all its readers call one of a token's rows, such as its
        keys `k[t, R, K]`, as they read it: the tile has rows, not a dim of its own along it."""
        read: dict[Key, list[Type | None]] = {}
        inner = self.program.inner
        for step in self.order:
            named = self._is_view(step) and not inner.keys().isdisjoint(step.node.type.names)
            for key in step.operands:
                read.setdefault(key, []).append(step.node.type if named else None)
        loads = (step.key for step in self.order if step.load is not None)
        kept = {key: types for key in loads if None not in (types := read.get(key, [None]))}
        return {key: type for key, (type, *_) in kept.items() if type is not None}

    def _area(self, key: Key) -> int:
        return math.prod(self._tile(key))

    # --- registers ---

    def registers(self) -> int:
        """Bytes of the tiles that are needed at the same time, where these are most."""
        live: list[Key] = [(STATE, name) for name in self.program.states]
        held = {key: self._area(key) for key in live}
        peak = sum(held.values())
        for place, step in enumerate(self.order):
            if not self._is_view(step):
                held[step.key] = self._area(step.key)
            peak = max(peak, sum(held.values()) + self._beside(step, held))
            held = {key: area for key, area in held.items() if self.last.get(key, -1) > place}
        return WIDE * peak

    def _beside(self, step: Step, held: Collection[Key]) -> int:
        """Elements that are needed beside what is `held` while pairs of rows are made: all that
        decays alike is made at once, level by level, from what each is made from; at a level there
        are the decay, what decays, and their product, and a matrix of pairs both ways."""
        if step.load is not None or not isinstance(step.node.op, PAIRED):
            return 0
        alike = self._alike(step)
        keys = {key for s in alike for each in s.operands for key in self._sources(each)}
        keys |= {s.key for s in alike}
        rows, dims = tile_of_rows(self.program, step)
        mixes = any(not isinstance(s.node.op, ck.Gram) for s in alike)
        level = 3 * rows * min(dims, self.program.kernel.most) + mixes * rows * rows
        return sum(map(self._area, keys.difference(held))) + level

    def _alike(self, step: Step) -> list[Step]:
        """Pairs of rows that decay as those of a step do."""
        alike = [s for s in self.order if s.load is None and isinstance(s.node.op, PAIRED)]
        return [s for s in alike if s.operands[-1] == step.operands[-1]]

    @property
    def warps(self) -> int:
        """The number of warps of the program."""
        kernel, steps = self.program.kernel, self.program.steps.values()
        if self.program.is_short:
            return 4
        loaded = {s.load: s.node.type for s in steps if s.load and s.load not in kernel.stores}
        parts = any(s.key[1] in kernel.in_parts for s in self.products if s.key[0] == OUTER)
        count = warps(kernel, loaded.values(), parts and not kernel.exact)
        small = dims_of_half(kernel, loaded.values()) if self.setting.data < WIDE else ()
        sizes = [evaluate(size, self.setting.sizes) for size in small]
        return count // 2 if count > 4 and sizes and max(sizes) <= BLOCK else count

    # --- shared memory ---

    def shared(self) -> int:
        """Bytes of the operands of the largest product, and of what a walk loads ahead."""
        ahead = self.ahead
        largest = self._across(ahead) if self._is_exact else self._operands(ahead)
        if not self._is_exact and self.program.rows > GROUP and self.program.recurrence is None:
            largest = max(largest, self._staying())
        inside = max(map(self._inside, self.special), default=0)
        inside += sum(map(self._solving, self.special))
        steps = [self.program.steps[key] for key in ahead]
        loaded = sum(self._area(s.key) * self.setting.width(str(s.load)) for s in steps)
        return int(MARGIN * max(largest, inside)) + (self._stages() - 1) * loaded

    @cached_property
    def products(self) -> list[Step]:
        """The products of matrices."""
        return [step for step in self.order if self._multiplies(step)]

    def _across(self, ahead: Collection[Key]) -> int:
        """Bytes of the operands of a float32 product and of those that were made for one before and
        are read again after it, where these are most: what is made stays in shared memory, both
        parts, by what is summed."""
        own = [0] * len(self.products)
        stays: dict[object, list[int]] = {}
        for place, step in enumerate(self.products):
            share = max(map(self._share, step.operands))
            for key, names in zip(step.operands, summed(step), strict=True):
                area = self._held(key, ahead) // share
                if self._is_loaded(key):
                    own[place] += area
                    continue
                first, _, most = stays.get((key, names), (place, place, 0))
                stays[key, names] = [first, place, max(most, area)]
        for first, last, area in stays.values():
            for place in range(first, last + 1):
                own[place] += area
        return 2 * WIDE * max(own, default=0)

    def _staying(self) -> int:
        """Bytes of operands from their first product to their last, where these are most: of tall
        tiles those that several products read stay in shared memory, loaded or made."""
        found: dict[Key, tuple[int, int, int]] = {}
        for place, step in enumerate(self.products):
            share = max(map(self._share, step.operands))
            for key in (source for each in step.operands for source in self._sources(each)):
                first, _, area = found.get(key, (place, place, 0))
                found[key] = first, place, max(area, self._area(key) // share)
        at_once = (
            sum(area for first, last, area in found.values() if first <= place <= last)
            for place in range(len(self.products))
        )
        return self.setting.data * max(at_once, default=0)

    def _is_loaded(self, key: Key) -> bool:
        steps = (self.program.steps.get(each) for each in self._sources(key))
        return all(step is None or step.load is not None for step in steps)

    @cached_property
    def special(self) -> list[Step]:
        """The steps that take products of their own: pairs that decay, inverses and solves."""
        kinds = (*PAIRED, ck.Inverse, ck.Conjugate)
        return [s for s in self.order if s.load is None and isinstance(s.node.op, kinds)]

    @cached_property
    def walked(self) -> list[Step]:
        """The values that an inter-chunk scan loads at every chunk."""
        return [step for step in self.order if step.load is not None and step.each]

    @cached_property
    def ahead(self) -> set[Key]:
        """The part of it that is loaded ahead."""
        return self._ahead()

    def _stages(self) -> int:
        """How many chunks of a walk are under way at a time."""
        tile = self.program.tile
        numbers = sum(count * math.prod(tile(axes)) for count, axes in self._matrices)
        matrices = numbers * self.setting.data
        return max(1, min(STAGES, AHEAD[self.setting.data] // matrices)) if matrices else STAGES

    @cached_property
    def _matrices(self) -> list[tuple[int, list[Axis]]]:
        """How many matrices of each value a walk loads at each chunk, and the axes of one."""
        found = (loaded_by_walk(self.program.kernel, step.node.id) for step in self.walked)
        return [each for each in found if each is not None]

    def _ahead(self) -> set[Key]:
        """The values, but for vectors, that a walk loads at every chunk for a product."""
        found: set[Key] = set()
        waiting = [key for s in self.order if s.each and self._multiplies(s) for key in s.operands]
        seen: set[Key] = set()
        while waiting and self.program.recurrence is not None:
            key = waiting.pop()
            step = self.program.steps.get(key)
            if key in seen or step is None:
                continue
            seen.add(key)
            waiting += step.operands
            if step.load is not None and step.each and len(self._tile(key)) > 1:
                found.add(key)
        return found

    @property
    def _is_exact(self) -> bool:
        """Whether the operands of products are of 32 bits, in two parts."""
        return self.setting.dtype == "float32"

    def _operands(self, ahead: Collection[Key]) -> int:
        """Bytes of the operands of the largest product, beside what is loaded ahead in its own
        dtype. Of an exact one both parts of the smaller operand are there, and one of them once
        more for what follows."""
        most = 0
        for step in self.products:
            frame, id = step.key
            share = max(map(self._share, step.operands))
            if frame == OUTER and id in self.program.kernel.in_parts:
                small, large = sorted(self._area(key) // share for key in step.operands)
                most = max(most, 3 * small + large)
            else:
                most = max(most, sum(self._held(key, ahead) // share for key in step.operands))
        return most * self.setting.data

    def _share(self, key: Key) -> int:
        """In how many blocks an operand is taken: of a large matrix from memory in several, and so
        is what it is multiplied with."""
        program, axes = self.program, self._type(key).axes
        axes = tuple(axis for axis in axes if program.is_tiled(axis))
        split = program.kernel.split
        dims = all(a.kind == "dim" and not a.size.has(ck.CHUNK) and a != split for a in axes)
        large = len(axes) == 2 and dims and self._area(key) > WHOLE
        if program.recurrence is not None or not large or not self._is_pointwise(key):
            return 1
        return max(self._tile(key)) // BLOCK

    @property
    def in_blocks(self) -> bool:
        """Whether a product takes a matrix from memory in blocks."""
        return any(self._share(key) > 1 for step in self.products for key in step.operands)

    def _is_pointwise(self, key: Key) -> bool:
        """Whether a value is made from memory, each element from its own."""
        if key not in self._pointwise:
            step = self.program.steps.get(key)
            self._pointwise[key] = step is not None and (
                step.load is not None
                or (
                    isinstance(step.node.op, POINTWISE)
                    and all(map(self._is_pointwise, step.operands))
                )
            )
        return self._pointwise[key]

    def _held(self, key: Key, ahead: Collection[Key]) -> int:
        """Elements of an operand that stand in shared memory. Products of many rows read them
        there; with few a tile goes from memory right into the registers where a product wants it,
        if what lies side by side is summed."""
        exact, sources = self._is_exact, self._sources(key)
        if not exact and set(sources) <= {*ahead}:
            return 0
        steps = [self.program.steps.get(each) for each in sources]
        if self.program.rows >= GROUP or not all(s and s.load and not s.each for s in steps):
            return self._area(key)
        right = all(self.summed_of.get(s.key, set()) <= {s.node.type.names[-1]} for s in steps if s)
        return 0 if right else self._area(key) // (1 + exact)

    @cached_property
    def summed_of(self) -> dict[Key, set[str]]:
        """Over which axes products sum each operand."""
        found: dict[Key, set[str]] = {}
        for step in self.products:
            for names, key in zip(summed(step), step.operands, strict=True):
                for source in self._sources(key):
                    found.setdefault(source, set()).update(names)
        return found

    def _multiplies(self, step: Step) -> bool:
        return step.load is None and is_product(self.program, step)

    def _inside(self, step: Step) -> int:
        """Operands of the products that an op is done in; those of pairs that decay alike are done
        side by side."""
        op, program = step.node.op, self.program
        if step.load is not None or not isinstance(op, (*PAIRED, ck.Inverse)):
            return 0
        rows, dims = tile_of_rows(program, step)
        if isinstance(op, ck.Inverse):
            return self._exact(rows * rows, rows * rows)
        alike = self._alike(step)
        grams = sum(isinstance(s.node.op, ck.Gram) for s in alike)
        dims = min(dims, program.kernel.most) if grams == len(alike) else dims
        mixed = (s.node for s in alike if not isinstance(s.node.op, ck.Gram))
        mixes = len({matrix for node in mixed for matrix in matrices(node)})
        exact = 2 if self._is_exact else 1
        area = grams * 2 * rows * dims + mixes * (rows * rows + rows * dims)
        return exact * self.setting.data * area

    def _solving(self, step: Step) -> int:
        """Bytes that a solve multiplies with again and again, beside those before and after it."""
        if step.load is not None or not isinstance(step.node.op, ck.Conjugate):
            return 0
        areas = [self._area(key) // self._share(key) for key in step.operands]
        largest = max(areas, default=0) * WIDE
        if self.program.rows < GROUP:
            return largest
        return 4 * largest if self._is_exact else self.setting.data * sum(areas)

    def vectors(self) -> int:
        """Bytes of the largest vector of what is solved turn by turn."""
        solved = (s for s in self.special if isinstance(s.node.op, ck.Conjugate))
        return WIDE * max((self._area(step.key) for step in solved), default=0)

    def _exact(self, a: int, b: int) -> int:
        """Operands in float32 whatever the data: of the inverse of a matrix, which is made in two
        products at a time."""
        copies = 2 if self._is_exact else 1
        return copies * WIDE * (a + b)


DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}

SHORT, LEAST = 8, 16
"""The shortest block of a dim that programs share, and that of a dim of a product of matrices."""


def walks_tokens(kernel: Kernel) -> bool:
    """Whether a kernel is one of `steps`."""
    return kernel.tokenwise


def of_steps(kernel: Kernel, setting: Setting) -> OnChip:
    """The most that a program holds at a time, with the shortest block of each shared dim; nothing,
    where there is no program."""
    made = stepping(kernel)
    if isinstance(made, Refusal):
        return OnChip(0, 0)
    held = Launch(made.program, _known(made, setting)).on_chip()
    return OnChip(held.shared, held.held)


def numbers_of_steps(kernel: Kernel, setting: Setting) -> tuple[int, int, int]:
    """The numbers of states, of weights, and of what is read at a token, of a program of `steps`: a
    launch in a generated file (`step_fits`) takes the loop in PyTorch where they are too many."""
    made = stepping(kernel)
    if isinstance(made, Refusal) or kernel.walk is None:
        return 0, 0, 0
    held = held_by(made, kernel.graph[kernel.walk].op)
    known = {name: size for name, size in _known(made, setting).items() if isinstance(size, int)}

    def total(types: Sequence[tile.Type]) -> int:
        lengths = ([int(evaluate(dim.length, known)) for dim in each.dims] for each in types)
        return sum(map(math.prod, lengths))

    return total(held.states), total(held.weights), total(held.moving)


def _known(made: Stepping, setting: Setting) -> dict[str, int | float | str]:
    """The sizes and constants of a launch."""
    dtype, sizes = DTYPES[setting.dtype], setting.sizes
    dots = any(isinstance(each.op, Dot) for each in statements(made.program.body))
    found: dict[str, int | float | str] = {"IO": dtype, "DOT": dtype, "PRECISION": "tf32x3"}
    found |= {"BLOCK": LEAST if dots else SHORT, "BLOCKS": 1}
    found |= {symbol.name: 1 for symbol in made.program.sizes}  # of which no tile is made
    found |= {name: evaluate(size, sizes) for name, size in made.sizes.items()}
    for name, size in made.blocks.items():
        found[name] = max(LEAST, 1 << (int(evaluate(size, sizes)) - 1).bit_length())
    return found
