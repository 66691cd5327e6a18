"""Tile programs of folds as Gluon (a part of Triton), for GPUs of compute capability 9: one warp
loads by the copy engine into rings of shared memory, two groups of four warps multiply and weigh.

The kernel takes what the one of Triton takes. It knows no packed sequences: tiles end with the tensors, not with a sequence. Vectors lie at multiples of 16
bytes, and have 16 bits a number. What it cannot say is a `Refused`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import sympy
from archc.backends.lines import broken, unbracketed
from archc.backends.triton.arguments import arguments, pointer
from archc.backends.triton.elementwise import TEXT
from archc.backends.triton.gluon_roles import Roles, Turns, Unknown, roles
from archc.backends.triton.printer import WHOLE, _head, mentioned
from archc.backends.triton.spelling import (
    INDENT,
    WIDTH,
    dtype_text,
    filled,
    number_text,
    size_text,
    times_text,
)

from archc.ir.free_names import numbered
from archc.tile import language as lang
from archc.tile.language import Statement, Value

SUFFIX = "_by_warps"
CONSTANTS = {"STAGES": 2, "REGISTERS": 232, "TOGETHER": 4}
"""Places of a ring, registers of a thread that weighs, and heads whose programs run side by side."""

REGISTERS_OF_ALL = 504
"""Of a thread of each kind, together."""

CALLS = re.compile(r"(?<![.\w])(?!float)[a-z_]\w*\(")
"""Functions of the runtime, which are Triton's."""


@dataclass(frozen=True)
class Refused:
    """Why there is no such kernel of a program."""

    why: str


def to_gluon(program: lang.Program) -> str | Refused:
    """The text of the functions of a kernel, the last of which is launched: called as the kernel of
    Triton is, with `SUFFIX` behind."""
    try:
        return _Kernel(program, roles(program)).text()
    except Unknown as error:
        return Refused(str(error))


class _Lines:
    """Lines of one function, and how values are written in it."""

    def __init__(self, kernel: _Kernel):
        self.kernel, self.roles = kernel, kernel.roles
        self.lines: list[str] = []
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append(INDENT * self.depth + re.sub(r"\btl\.", "gl.", text))

    # --- values ---

    def name(self, value: Value) -> str:
        """How a value is written, by which it is there."""
        made = self.roles.made.get(value)
        if made is None or value.type.dims:
            return self.kernel.names.get(value, value.name)
        if isinstance(made.op, lang.Scalar):
            return size_text(made.op.size)
        if isinstance(made.op, lang.Full):
            return number_text(made.op.number)
        if isinstance(made.op, lang.ProgramId):
            return self.kernel.arguments.places[made.op.axis]
        return self.kernel.names.get(value, value.name)

    def seen(self, value: Value, dims: tuple[str, ...]) -> str:
        """A value among these dims."""
        own, name = self.roles.dims[value], self.name(value)
        if not own or own == dims:
            return name
        if len(own) != 1 or len(dims) != 2:
            raise Unknown(f"{value.name} along {dims}")
        if own[0] != dims[0]:
            return f"{name}[None, :]"
        if dims[1] != self.roles.walk:
            name = f"gl.convert_layout({name}, {self.layout(dims, 1)})"
        return f"{name}[:, None]"

    def layout(self, dims: tuple[str, ...], without: int | None = None) -> str:
        """How a tile lies in registers, or one that is the same along a dim of it."""
        if without is None and len(dims) == 1:
            if dims[0] in (self.roles.own, self.roles.walk):
                pair = (self.roles.own, self.roles.walk)
                return self.layout(pair, 1 - pair.index(dims[0]))
            return self.layout((self.roles.own, dims[0]), 0)
        if dims[0] != self.roles.own:
            raise Unknown(f"a tile along {dims}")
        whole = self.kernel.layouts[dims[1]]
        return whole if without is None else f"gl.SliceLayout({without}, {whole})"

    def length(self, name: str) -> str:
        """How long a tile is along a dim."""
        text = size_text(self.roles.lengths[name])
        return f"{text} // 2" if name == self.roles.own else text

    def shape(self, dims: Sequence[str]) -> str:
        return f"[{', '.join(map(self.length, dims))}]"

    # --- statements ---

    def let(self, statement: Statement) -> None:
        """The line that makes a value, unless it is written where it is read."""
        (result,) = statement.results
        op, dims = statement.op, self.roles.dims[result]
        if not dims and isinstance(op, lang.Scalar | lang.Full | lang.ProgramId):
            return
        text = self._text(statement, dims)
        self.line(f"{self.kernel.names.get(result, result.name)} = {text}")

    def _text(self, s: Statement, dims: tuple[str, ...]) -> str:
        op = s.op
        if isinstance(op, lang.Apply):
            return self._apply(s, dims)
        if isinstance(op, lang.Cast):
            if op.bits:
                raise Unknown("bits of a number")
            given = self.seen(s.operands[0], dims)
            return f"{given}.to({dtype_text(op.dtype)})" if dims else f"gl.cast({given}, {dtype_text(op.dtype)})"
        if isinstance(op, lang.Full):
            return f"gl.full({self.shape(dims)}, {number_text(op.number)}, {dtype_text(op.type.dtype)}, {self.layout(dims)})"
        if isinstance(op, lang.Iota) and not op.most:
            text = f"gl.arange(0, {self.length(dims[0])}, {self.layout(dims)})"
            own = dims[0] == self.roles.own
            return f"{text} + W * ({self.length(dims[0])})" if own else text
        if isinstance(op, lang.Reduce):
            return self._reduce(s, dims)
        if isinstance(op, lang.Load):
            return self._load(s, dims)
        raise Unknown(type(op).__name__)

    def _apply(self, s: Statement, dims: tuple[str, ...]) -> str:
        function = s.op.function
        given = [self.seen(value, dims) for value in s.operands]
        if function in WHOLE and lang.kind(s.results[0].type.dtype) == "int":
            return f" {WHOLE[function]} ".join(given)
        if function == "sigmoid":
            return f"1.0 / (1.0 + gl.exp2({given[0]} * -1.4426950408889634))"
        text = TEXT[function](*given)
        if CALLS.search(text):
            raise Unknown(f"the function {function}")
        return text

    def _reduce(self, s: Statement, dims: tuple[str, ...]) -> str:
        (value,) = s.operands
        given = self.roles.dims[value]
        if s.op.function not in ("sum", "max", "min") or s.op.dim not in given:
            raise Unknown(f"{s.op.function} over {s.op.dim}")
        if s.op.dim == self.roles.own or len(given) != 2:
            raise Unknown("a sum over what two groups of warps own")
        text = f"gl.{s.op.function}({self.seen(value, given)}, {given.index(s.op.dim)})"
        return text if s.op.dim == self.roles.walk else f"gl.convert_layout({text}, {self.layout(dims)})"

    # --- memory ---

    def _load(self, s: Statement, dims: tuple[str, ...]) -> str:
        count = len(s.op.buffer.axes)
        at = self.address(s.op.buffer, s.operands[:count], dims)
        mask = " & ".join(self.seen(value, dims) for value in s.operands[count:])
        where = f", {mask}, {number_text(s.op.fill)}" if mask else ""
        return f"gl.load({at}{where})"

    def store(self, s: Statement) -> None:
        """The line that stores a tile."""
        count = len(s.op.buffer.axes)
        index, value, masks = s.operands[:count], s.operands[count], s.operands[count + 1 :]
        names = {name for each in index for name in self.roles.dims[each]}
        dims = self.roles.dims[value]
        if {*dims} != names or self.roles.own not in names:
            raise Unknown("a store of what no group of warps owns alone")
        at = self.address(s.op.buffer, index, dims)
        mask = " & ".join(self.seen(each, dims) for each in masks)
        self.line(f"gl.store({at}, {self.seen(value, dims)}{f', {mask}' if mask else ''})")

    def address(
        self, buffer: lang.Buffer, index: Sequence[Value], dims: tuple[str, ...], walked: bool = True
    ) -> str:
        """The pointer of an element for each index; not `walked`: of where a tensor begins along
        the axis that is walked."""
        terms = [pointer(buffer)]
        tiles: list[str] = []
        for (axis, _), value in zip(buffer.axes, index, strict=True):
            scalar, tile = lang.parts(value, self.roles.made.get(value))
            step = times_text(self.kernel.stride(buffer, axis))
            skipped = not walked and tile is not None
            if scalar is not None and not skipped and self.name(scalar) not in ("0", "0.0"):
                terms.append(f"gl.cast({self.name(scalar)}, gl.int64){step}")
            if tile is not None and not skipped:
                tiles.append(f"{self.seen(tile, dims)}{step}")
        base = " + ".join(terms)
        return " + ".join([f"({base})", *tiles]) if tiles else base


class _Loader(_Lines):
    """The function of the warp that loads."""

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
        needed = found.needed(roots)
        self.line("ring_stage = 0")
        self.line("ring_phase = 1")
        for statement in found.body:
            if isinstance(statement.op, lang.For):
                self._loop(found.turn(statement), needed)
            elif {*statement.results} & needed:
                self.let(statement)

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
        _advance(self)
        self.depth -= 1

    def _copy(self, ring: str, load: Statement, vectors: Sequence[Value]) -> None:
        """The lines that have a tile copied, once its place is free; vectors go along."""
        rows, width = (size_text(self.roles.lengths[name]) for name in self.roles.dims[load.results[0]])
        self.line(f"mbarrier.wait({ring}_free.index(ring_stage), ring_phase)")
        self.line(f"mbarrier.expect({ring}_ready.index(ring_stage), {rows} * {width} * 2)")
        at = f"[{self.name(self._place(load))}, 0]"
        self.line(
            f"tma.async_copy_global_to_shared({self.kernel.blocks[load][0]}, {at}, {ring}_ready.index(ring_stage), "
            f"{ring}_ring.index(ring_stage))"
        )
        for place, value in enumerate(vectors):
            self.line(f"vector_{place}_ring.index(ring_stage).store({self.name(value)})")
        if self.kernel.vectors and ring == next(iter(self.roles.rings)):
            self.line(f"mbarrier.arrive({ring}_ready.index(ring_stage), count=1)")


def _advance(lines: _Lines) -> None:
    """The lines that go on to the next place of the rings."""
    lines.line("ring_stage += 1")
    lines.line("if ring_stage == STAGES:")
    lines.line(f"{INDENT}ring_stage = 0")
    lines.line(f"{INDENT}ring_phase ^= 1")


@dataclass
class _Product:
    """A product that goes on: its factor in registers, if it has one there, and its ring."""

    value: Value
    factor: str
    ring: str


class _Weigher(_Lines):
    """The function of a group of warps that multiplies and weighs."""

    def __init__(self, kernel: _Kernel):
        super().__init__(kernel)
        self.going: list[_Product] = []
        self.turns: Turns | None = None
        self.ready = set[str]()
        self.left: dict[str, int] = {}
        self.vectors = list[Value]()

    def write(self) -> None:
        """The lines of the program."""
        found = self.roles
        for name, layout in self.kernel.layouts.items():
            width = size_text(found.lengths[name])
            self.line(f"{layout}: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16])")
        pair = self.layout((found.own, found.walk))
        self.line(f"no_scores = gl.full({self.shape((found.own, found.walk))}, 0.0, gl.float32, {pair})")
        self.line("ring_stage = 0")
        self.line("ring_phase = 0")
        needed = self._needed()
        first = True
        for statement in found.body:
            if isinstance(statement.op, lang.For):
                if first and found.held:
                    self.line("fence_async_shared()")
                first = False
                self._loop(statement, needed)
            elif isinstance(statement.op, lang.Store):
                self.store(statement)
            elif {*statement.results} & needed:
                self.let(statement)
                self._hold(statement)

    def _needed(self) -> set[Value]:
        found = self.roles
        tiles = [load.results[0] for turns in found.turns for load in turns.tiles.values()]
        roots = [v for s in found.body for v in s.operands if isinstance(s.op, lang.Store | lang.For)]
        for turns in found.turns:
            roots += turns.loop.blocks[0].yields
        return found.needed(roots, [*tiles, *found.loaded])

    def _hold(self, statement: Statement) -> None:
        """The line that puts a factor into shared memory."""
        for value in statement.results:
            if value in self.roles.held:
                self.line(f"{self.name(value)}_held.index(W).store({self.name(value)})")

    def _loop(self, loop: Statement, needed: set[Value]) -> None:
        block = loop.blocks[0]
        start, stop, *given = loop.operands
        index, *carried = block.arguments
        for inner, value in zip(carried, given, strict=True):
            self.line(f"{self.name(inner)} = {self.name(value)}")
        self.kernel.names |= {r: self.name(i) for r, i in zip(loop.results, carried, strict=True)}
        self.line(f"for {self.name(index)} in range({self.name(start)}, {self.name(stop)}):")
        self.depth += 1
        self._turn(self.roles.turn(loop), needed)
        pairs = [(self.name(old), self.name(new)) for old, new in zip(carried, block.yields, strict=True)]
        self._end()
        pairs = [pair for pair in pairs if pair[0] != pair[1]]
        if pairs:
            left, right = (", ".join(side) for side in zip(*pairs, strict=True))
            self.line(f"{left} = {right}")
        _advance(self)
        self.depth -= 1
        self.turns = None

    def _turn(self, turns: Turns, needed: set[Value]) -> None:
        """The lines of a turn but for what it carries on."""
        self.turns, self.ready, self.going = turns, set(), []
        self.vectors = [*turns.vectors]
        statements = turns.loop.blocks[0].statements
        dots = [s for s in statements if isinstance(s.op, lang.Dot)]
        self.left = dict.fromkeys(turns.tiles, 0)
        for dot in dots:
            self.left[self._factors(dot)[1]] += 1
        early = [s for s in dots if self._factors(s)[0] in self.roles.held and len(s.operands) == 2]
        for dot in early:
            self._dot(dot)
        there = {load.results[0] for load in turns.tiles.values()} | self.roles.loaded
        there |= {dot.results[0] for dot in early}
        for statement in _hurried(statements, there, needed):
            if isinstance(statement.op, lang.Dot):
                self._dot(statement)
            else:
                self.let(statement)

    def _factors(self, dot: Statement) -> tuple[Value, str]:
        """The factor of what is owned, and the ring that the other comes through."""
        assert self.turns is not None
        first, second = dot.operands[:2]
        ring = next((n for n, load in self.turns.tiles.items() if load.results[0] is second), None)
        if ring is None or self.roles.own not in self.roles.dims[first]:
            raise Unknown("a product of other factors")
        return first, ring

    def _dot(self, dot: Statement) -> None:
        """The lines that begin a product."""
        first, ring = self._factors(dot)
        (result,), dims = dot.results, self.roles.dims[dot.results[0]]
        add = self.name(dot.operands[2]) if len(dot.operands) > 2 else ""
        name, factor = self.kernel.names.get(result, result.name), ""
        if dims == (self.roles.own, self.roles.walk):
            left, right = f"{self.name(first)}_held.index(W)", ".permute([1, 0])"
            if first not in self.roles.held:
                raise Unknown("scores of a factor that is made in the loop")
        else:
            factor, right = f"{self.name(first)}_factor", ""
            kind = f"gl.DotOperandLayout(0, {self.layout(dims)}, 2)"
            self.line(f"{factor} = gl.convert_layout({self.name(first)}, {kind})")
            left = factor
        self._await(ring)
        zero = "no_scores" if dims[1] == self.roles.walk else f"gl.full({self.shape(dims)}, 0.0, gl.float32, {self.layout(dims)})"
        start = f"{add}" if add else f"{zero}, use_acc=False"
        self.line(
            f"{name} = warpgroup_mma({left}, {ring}_ring.index(ring_stage){right}, {start}, is_async=True)"
        )
        self.going.append(_Product(result, factor, ring))

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
        name = self.kernel.names.get(value, value.name)
        layout = self.layout((self.roles.walk,))
        self.line(f"{name} = vector_{place}_ring.index(ring_stage).load({layout})")
        self._free()

    def _finish(self, count: int) -> None:
        """The lines that wait for the first so many products, and say what is free again."""
        done, self.going = self.going[:count], self.going[count:]
        names = [self.kernel.names.get(each.value, each.value.name) for each in done]
        names += [each.factor for each in done if each.factor]
        self.line(f"{', '.join(names)} = warpgroup_mma_wait({len(self.going)}, [{', '.join(names)}])")
        for each in done:
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


def _hurried(
    statements: Sequence[Statement], there: set[Value], needed: set[Value]
) -> list[Statement]:
    """Statements of a turn but for what is there: products, and what becomes a factor of one, as
    soon as all that they are made of is made."""
    dots = [s for s in statements if isinstance(s.op, lang.Dot)]
    factors = {value for dot in dots for value in dot.operands[:2]}
    left = [s for s in statements if s.results[0] in needed and s.results[0] not in there]
    inside = {value for s in left for value in s.results}
    hurry = [s for s in left if s in dots or (isinstance(s.op, lang.Cast) and s.results[0] in factors)]
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


class _Kernel:
    """The functions of one kernel."""

    def __init__(self, program: lang.Program, found: Roles):
        self.program, self.roles = program, found
        self.arguments = arguments(program)
        self.names = self._renamed()
        wide = [n for v in found.dims for n in found.dims[v] if n not in (found.own, found.walk)]
        self.layouts = {found.walk: "of_pairs"} | {n: f"of_{n}" for n in dict.fromkeys(wide)}
        self.vectors = max(len(turns.vectors) for turns in found.turns)
        self.title = f"{program.name}{SUFFIX}"
        self.blocks = self._described()

    def _renamed(self) -> dict[Value, str]:
        """Another name for the values whose own one is taken."""
        used = {*self.arguments.taken, "W", "gl", "tma", "mbarrier", *(v.name for v in self.roles.dims)}
        found: dict[Value, str] = {}
        for value in self.roles.dims:
            if value.name in self.arguments.taken:
                found[value] = numbered(value.name, used)
                used.add(found[value])
        return found

    def stride(self, buffer: lang.Buffer, axis: str) -> str:
        """From one place along an axis to the next."""
        if axis in buffer.steps:
            return self.arguments.strides[buffer.name, axis]
        names = [name for name, _ in buffer.axes]
        place, rows = names.index(axis), names.index(buffer.rows) if buffer.rows else -1
        last = rows + 1 if place < rows else None
        after = size_text(sympy.Mul(*(size for _, size in buffer.axes[place + 1 : last])))
        return f"({after} * {self.arguments.strides[buffer.name, buffer.rows]})" if last else after

    def text(self) -> str:
        """All functions."""
        weigher, loader, entry = _Weigher(self), _Loader(self), _Lines(self)
        names = dict(self.names)
        weigher.write()
        self.names = names
        loader.write()
        known = self._entry(entry)
        parts = [("weigh", weigher), ("load", loader)]
        lines: list[str] = []
        calls: dict[str, list[str]] = {}
        for kind, function in parts:
            words = {*re.findall(r"\w+", "\n".join(function.lines))}
            calls[kind] = [word for word in known if word in words]
            fixed = {*self.program.constants, "STAGES", "W"}
            given = [f"{w}: gl.constexpr" if w in fixed else w for w in calls[kind]]
            given += ["W: gl.constexpr"] if kind == "weigh" else []
            lines += ["@gluon_kernel", f"def {self.title}_{kind}(", *filled(given), "):"]
            lines += [*function.lines, "", ""]
        self._fork(entry, calls)
        lines += self._signature()
        lines += entry.lines
        return "\n".join(part for line in lines for part in broken(unbracketed(line), WIDTH)) + "\n"

    def _signature(self) -> list[str]:
        """The head of the function that is launched."""
        known = mentioned(self.program)
        head = _head(self.program, self.arguments, known)
        varying = [f'"{name}"' for name in self.program.varying if name in known]
        given = f"({', '.join(varying)}{',' * (len(varying) == 1)})"
        head[0] = f"def {self.title}("
        return [f"@gluon_kernel(varying={given})", *(line.replace("tl.", "gl.") for line in head)]

    def _entry(self, lines: _Lines) -> list[str]:
        """The lines of the function that is launched before it forks, and all names it has."""
        found = self.roles
        for name, number in CONSTANTS.items():
            lines.line(f"{name}: gl.constexpr = {number}")
        self._places(lines)
        loads = [*found.rings.values()]
        scalars = [v for load in loads for v in load.operands[: len(load.op.buffer.axes)]
                   if not found.dims[v]]  # fmt: skip
        needed = found.needed([*scalars, *(end for _, end in self.blocks.values() if end is not None)])
        if needed & {v for turns in found.turns for v in turns.loop.blocks[0].arguments}:
            raise Unknown("tensors that change from turn to turn")
        inside = [s for turns in found.turns for s in turns.loop.blocks[0].statements]
        for statement in [*found.body, *inside]:
            if not isinstance(statement.op, lang.For | lang.Store) and {*statement.results} & needed:
                lines.let(statement)
        known = [*self._parameters(), *self.arguments.places.values()]
        for place, (ring, load) in enumerate(found.rings.items()):
            known += self._ring(lines, ring, load, place == 0)
        for value in found.held:
            known.append(self._held(lines, value))
        for place in range(self.vectors):
            flat = "gl.SwizzledSharedLayout(1, 1, 1, [0])"
            shape = f"[STAGES, {size_text(found.lengths[found.walk])}]"
            lines.line(f"vector_{place}_ring = gl.allocate_shared_memory(gl.float32, {shape}, {flat})")
            known.append(f"vector_{place}_ring")
        lines.line("fence_async_shared()")
        return known

    def _places(self, lines: _Lines) -> None:
        """The lines that find the place in the grid: of so many heads, which share what is in the
        cache, the first blocks come first."""
        (*outer, (last, count)) = self.program.grid
        names = self.arguments.places
        blocks = size_text(count)
        lines.line("row = gl.program_id(0) // (TOGETHER * " + blocks + ") * TOGETHER")
        lines.line(f"beside = gl.minimum(TOGETHER, gl.num_programs(0) // {blocks} - row)")
        lines.line(f"rest = gl.program_id(0) - row * {blocks}")
        lines.line(f"{names[last]} = rest // beside")
        lines.line("row += rest % beside")
        for axis, size in reversed(outer[1:]):
            lines.line(f"{names[axis]} = row % {size_text(size)}")
            lines.line(f"row = row // {size_text(size)}")
        lines.line(f"{names[outer[0][0]]} = row")

    def _parameters(self) -> list[str]:
        """The names of all that the kernel is given."""
        found: list[str] = []
        for buffer in self.program.buffers:
            found += [pointer(buffer), *(self.arguments.strides[buffer.name, a] for a in buffer.steps)]
        known = mentioned(self.program)
        sizes = [symbol.name for symbol in self.program.sizes if symbol.name in known]
        return [*found, *sizes, *(n for n in self.program.constants if n in known), "STAGES"]

    def _ring(self, lines: _Lines, ring: str, load: Statement, first: bool) -> list[str]:
        """The lines that make a ring, its barriers and its descriptor, and their names."""
        found, buffer = self.roles, load.op.buffer
        index = load.operands[: len(buffer.axes)]
        rows, width = found.dims[load.results[0]]
        axes = {found.dims[v][0]: axis for (axis, _), v in zip(buffer.axes, index, strict=True) if found.dims[v]}
        if axes[width] != buffer.axes[-1][0]:
            raise Unknown("vectors that do not lie side by side")
        sizes, block = dict(buffer.axes), f"[{size_text(found.lengths[rows])}, {size_text(found.lengths[width])}]"
        layout = f"gl.NVMMASharedLayout.get_default_for({block}, IO)"
        lines.line(f"{ring}_layout: gl.constexpr = {layout}")
        base = lines.address(buffer, index, (rows, width), walked=False)
        step = self.stride(buffer, axes[rows])
        descriptors = dict(v for load, v in self.blocks.items() if load.op.buffer == buffer)
        for name, end in descriptors.items():
            length = size_text(sizes[axes[rows]]) if end is None else lines.name(end)
            shape = f"[{length}, {size_text(sizes[axes[width]])}]"
            lines.line(f"{name} = tma.make_tensor_descriptor({base}, {shape}, [{step}, 1], {block}, {ring}_layout)")
        lines.line(f"{ring}_ring = gl.allocate_shared_memory(IO, [STAGES, {block[1:-1]}], {ring}_layout)")
        for kind in ("ready", "free"):
            lines.line(f"{ring}_{kind} = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())")
        lines.line("for stage in gl.static_range(STAGES):")
        count = 2 if first and self.vectors else 1
        lines.line(f"{INDENT}mbarrier.init({ring}_ready.index(stage), count={count})")
        lines.line(f"{INDENT}mbarrier.init({ring}_free.index(stage), count=2)")
        return [*descriptors, *(f"{ring}_{kind}" for kind in ("ring", "ready", "free"))]

    def _described(self) -> dict[Statement, tuple[str, Value | None]]:
        """The descriptor of each tile that is walked, and where it ends: at a value, or with its
        tensor."""
        found: dict[Statement, tuple[str, Value | None]] = {}
        for turns in self.roles.turns:
            for ring, load in turns.tiles.items():
                end = self._end(load)
                known = [name for other, (name, its) in found.items()
                         if other.op.buffer == load.op.buffer and its is end]  # fmt: skip
                count = len({name for name, _ in found.values() if name.startswith(f"{ring}_blocks")})
                name = f"{ring}_blocks" + (f"_{count + 1}" if count else "")
                found[load] = (known[0] if known else name, end)
        return found

    def _end(self, load: Statement) -> Value | None:
        """Where the rows of a tile end, if its masks say that they do before the tensor does."""
        roles, buffer, found = self.roles, load.op.buffer, None
        index = load.operands[: len(buffer.axes)]
        for mask in load.operands[len(buffer.axes) :]:
            test = roles.made[mask]
            if test.op != lang.Apply("lt") or len(roles.dims[mask]) != 1:
                raise Unknown("a tile with another mask than its end")
            dim, (place, end) = roles.dims[mask][0], test.operands
            size = next(n for (_, n), v in zip(buffer.axes, index, strict=True) if roles.dims[v] == (dim,))
            made = roles.made.get(end)
            if made is not None and isinstance(made.op, lang.Scalar) and made.op.size == size:
                continue
            if dim != roles.walk or place not in index or found is not None:
                raise Unknown("a tile that ends before its tensor")
            found = end
        return found

    def _held(self, lines: _Lines, value: Value) -> str:
        """The line that makes room for a factor of what is owned; its name."""
        name = f"{self.names.get(value, value.name)}_held"
        rows, width = (size_text(self.roles.lengths[n]) for n in self.roles.dims[value])
        layout = f"gl.NVMMASharedLayout.get_default_for([{rows} // 2, {width}], IO)"
        lines.line(f"{name}_layout: gl.constexpr = {layout}")
        lines.line(f"{name} = gl.allocate_shared_memory(IO, [2, {rows} // 2, {width}], {name}_layout)")
        return name

    def _fork(self, lines: _Lines, calls: dict[str, list[str]]) -> None:
        """The lines that run the functions side by side."""
        weigh, load = (", ".join(calls[kind]) for kind in ("weigh", "load"))
        lines.line("gl.warp_specialize([")
        for half in range(2):
            lines.line(f"{INDENT}({self.title}_weigh, ({weigh}, {half})),")
        lines.line(f"{INDENT}({self.title}_load, ({load})),")
        lines.line(f"], [4, 1], [REGISTERS, {REGISTERS_OF_ALL} - 2 * REGISTERS])")
