"""Kernels by warps of sums so wide that a group of four warps has half of each: one group makes the
weights, of all rows, two sum a half of the vectors each, and a warp loads.

What is weighed is a factor of the scores too: latents, of which keys and values are made. Its ring
has a place for each half, which the group that sums is the last to need. Weights go through shared
memory, as do vectors of the rows by which sums are scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from archc.backends.triton.gluon_late import Late, carried_sums
from archc.backends.triton.gluon_lines import Lines, Shared
from archc.backends.triton.gluon_owned import lying
from archc.backends.triton.gluon_printer import Kernel
from archc.backends.triton.gluon_roles import Roles, Turns, Unknown, roles
from archc.backends.triton.gluon_warps import Loader, Product, Weigher, advance, hurried
from archc.backends.triton.spelling import INDENT, gluon_size

from archc.ir.refusal import Refusal
from archc.tile import language as lang
from archc.tile.language import Statement, Value


@dataclass
class Wide:
    """Who does what. `sums`: the sum of each loop; `dim`: the dim of which each group sums a half;
    `ring`: the tensor that is weighed; `held`: the factor of scores along that dim; `handed`: the
    vectors of rows that those who sum read in each loop, and `after` all of them; `ends`: what is
    made of the sums."""

    sums: list[Late]
    dim: str
    ring: str
    held: Value
    handed: list[list[Value]]
    after: list[Value]
    ends: list[Statement]

    @property
    def vectors(self) -> int:
        """How many vectors are handed on at once, at most."""
        return max(len(each) for each in (*self.handed, self.after))


def to_gluon_wide(program: lang.Program) -> str | Refusal:
    """The text of the functions of a kernel whose sums are wide, as `to_gluon` gives it."""
    try:
        found = roles(program)
        return WideKernel(program, found, _wide(found)).text()
    except Unknown as error:
        return Refusal(None, str(error))


def _wide(found: Roles) -> Wide:
    sums = carried_sums(found)
    if sums is None or found.vectors:
        raise Unknown("another sum than of what is carried on")
    rings, dims, held = set[str](), set[tuple[str, ...]](), set[Value]()
    for turns, one in zip(found.turns, sums, strict=True):
        tile = one.dot.operands[1]
        rings |= {name for name, load in turns.tiles.items() if load.results[0] is tile}
        dims.add(found.dims[one.dot.results[0]])
        dots = [s for s in turns.loop.blocks[0].statements if isinstance(s.op, lang.Dot)]
        held |= {s.operands[0] for s in dots if s is not one.dot and s.operands[1] is tile}
    if len(rings) != 1 or len(dims) != 1 or len(held) != 1 or not held <= {*found.held}:
        raise Unknown("sums of what is no factor of scores")
    (ring,), ((_, dim),) = rings, dims
    ends = _ends(found, sums)
    after = [value for s in ends for value in s.operands if _is_late(found, value, sums)]
    handed = [_scales(found, *each) for each in zip(found.turns, sums, strict=True)]
    for value in (*after, *(each for turn in handed for each in turn)):
        if value.type.dtype != "f32" or value not in found.made:
            raise Unknown("another vector of rows that is handed on")
    return Wide(sums, dim, ring, held.pop(), handed, [*dict.fromkeys(after)], ends)


def _scales(found: Roles, turns: Turns, one: Late) -> list[Value]:
    """The vectors of rows that a loop makes and scales a sum by."""
    inside, given = turns.loop.blocks[0].statements, dict[Value, None]()
    chain = {one.carried, *(s.results[0] for s in one.chain)}
    for value in (value for s in one.chain for value in s.operands if value not in chain):
        made = found.made.get(value)
        if made is not None and made in inside and found.dims[value] == (found.own,):
            given[value] = None
        elif made is None or not isinstance(made.op, lang.Full):
            raise Unknown("a sum that is scaled by other than vectors of rows")
    return [*given]


def _ends(found: Roles, sums: list[Late]) -> list[Statement]:
    """The statements after all loops that are made of the sums."""
    made, ends = {found.turns[-1].loop.results[sums[-1].place]}, list[Statement]()
    for statement in found.body[found.body.index(found.turns[-1].loop) + 1 :]:
        if made & {*statement.operands}:
            ends.append(statement)
            made |= {*statement.results}
    return ends


def _is_late(found: Roles, value: Value, sums: list[Late]) -> bool:
    """Whether it is a vector of rows that loops leave."""
    left = {v for turns in found.turns for v in turns.loop.results}
    return found.dims[value] == (found.own,) and bool(left & found.needed([value]))


class Scorer(Weigher):
    """The function of the group that makes weights."""

    def __init__(self, shared: Shared, wide: Wide):
        super().__init__(shared)
        self.wide, self.halved = wide, ""
        self.first: list[Value] = []
        self.also = [("turn", "turn + 1")]

    def write(self) -> None:
        """The lines of the program but for what becomes of sums."""
        found, wide = self.roles, self.wide
        for name, layout in self.shared.layouts.items():
            if name != wide.dim:
                self.line(f"{layout}: gl.constexpr = {_layout(gluon_size(found.lengths[name]))}")
        self.line(f"no_scores = {self._zeros((found.own, found.walk))}")
        for name in ("ring_stage", "ring_phase", "turn"):
            self.line(f"{name} = 0")
        needed = self._needed()
        for statement in found.body:
            if isinstance(statement.op, lang.For):
                if statement is found.turns[0].loop:
                    self.line("fence_async_shared()")
                    self.line("mbarrier.wait(factors_ready, 0)")
                self._loop(statement, needed)
            elif isinstance(statement.op, lang.Store):
                if statement not in wide.ends:
                    self.store(statement)
            elif {*statement.results} & needed:
                self.let(statement)
                self._hold(statement)
                self._hand(statement, wide.after)

    def _needed(self) -> set[Value]:
        found, wide = self.roles, self.wide
        tiles = [load.results[0] for turns in found.turns for load in turns.tiles.values()]
        stores = [s for s in found.body if isinstance(s.op, lang.Store) and s not in wide.ends]
        roots = [*wide.after, *(value for s in stores for value in s.operands)]
        for turns, one, handed in zip(found.turns, wide.sums, wide.handed, strict=True):
            given = [v for n, v in enumerate(turns.loop.operands) if n != 2 + one.place]
            left = [v for n, v in enumerate(turns.loop.blocks[0].yields) if n != one.place]
            roots += [*given, *left, *handed, one.dot.operands[0]]
        return found.needed(roots, [*tiles, wide.held]) - {wide.held}

    def _hold(self, statement: Statement) -> None:
        for value in statement.results:
            if value in self.roles.held:
                self.line(f"{self.name(value)}_held.store({self.name(value)})")

    def _hand(self, statement: Statement, handed: list[Value]) -> None:
        """The lines that hand vectors on, once the last of them is made."""
        self.first += [value for value in statement.results if value in handed]
        if handed and len(self.first) == len(handed):
            for place, value in enumerate(handed):
                row = self.seen(value, (self.roles.own,))
                self.line(f"handed.index({2 * place} + (turn & 1)).store({row})")
            self.line("mbarrier.arrive(handed_ready.index(turn & 1), count=1)")
            self.first = []

    def _is_handed_on(self, loop: Statement, carried: Value) -> bool:
        place = self.roles.turns.index(self.roles.turn(loop))
        return carried is not self.wide.sums[place].carried

    def _turn(self, turns: Turns, needed: set[Value]) -> None:
        place = self.roles.turns.index(turns)
        one, handed = self.wide.sums[place], self.wide.handed[place]
        self.turns, self.ready, self.going = turns, set(), []
        statements = turns.loop.blocks[0].statements
        dots = [s for s in statements if isinstance(s.op, lang.Dot) and s is not one.dot]
        self.left = {name: 0 for name in turns.tiles if name != self.wide.ring}
        for dot in dots:
            ring = self._factors(dot)[1]
            if ring in self.left:
                self.left[ring] += 1
            self._dot(dot)
        there = {load.results[0] for load in turns.tiles.values()} | {s.results[0] for s in dots}
        there |= {s.results[0] for s in (*one.chain, one.dot)}
        soon = self.roles.needed(handed)
        order = sorted(statements, key=lambda s: s.results[0] not in soon)
        for statement in hurried(order, there, needed):
            self.let(statement)
            self._hand(statement, handed)
            if statement.results[0] is one.dot.operands[0]:
                self._hand_weights(statement.results[0])
        if not handed and self.wide.vectors:
            self.line("mbarrier.arrive(handed_ready.index(turn & 1), count=1)")

    def _hand_weights(self, weights: Value) -> None:
        self.line("mbarrier.wait(weights_free, (turn & 1) ^ 1)")
        self.line(f"weights_held.store({self.name(weights)})")
        self.line("fence_async_shared()")
        self.line("mbarrier.arrive(weights_ready, count=1)")

    def _dot(self, dot: Statement) -> None:
        """The lines that begin a product of scores; one of wide vectors is of two halves."""
        first, ring = self._factors(dot)
        if self.roles.dims[dot.results[0]] != (self.roles.own, self.roles.walk):
            raise Unknown("a second sum")
        if len(dot.operands) > 2 or (ring == self.wide.ring) is not (first is self.wide.held):
            raise Unknown("scores that are added to others")
        result, held = self._called(dot.results[0]), f"{self.name(first)}_held"
        begun = "no_scores, use_acc=False"
        if ring == self.wide.ring:
            for half in range(2):
                place = f".index(2 * ring_stage + {half})"
                self.line(f"mbarrier.wait({ring}_ready{place}, ring_phase)")
                given = f"{held}.index({half}), {ring}_ring{place}.permute([1, 0])"
                self.line(f"{result} = warpgroup_mma({given}, {begun}, is_async=True)")
                begun = result
        else:
            self._await(ring)
            given = f"{held}, {ring}_ring.index(ring_stage).permute([1, 0])"
            self.line(f"{result} = warpgroup_mma({given}, {begun}, is_async=True)")
        self.going.append(Product(dot.results[0], "", ring))


class Summer(Lines):
    """The function of a group that sums its half of the weighted vectors."""

    def __init__(self, shared: Shared, wide: Wide):
        super().__init__(shared)
        self.wide, self.halved = wide, wide.dim

    def write(self) -> None:
        """The lines of the program that the sums need."""
        found, wide = self.roles, self.wide
        for name, layout in self.shared.layouts.items():
            if name in (found.walk, wide.dim):
                self.line(f"{layout}: gl.constexpr = {_layout(self._quarter(name))}")
        for name in ("ring_stage", "ring_phase", "turn"):
            self.line(f"{name} = 0")
        needed = self._needed()
        for statement in found.body:
            if isinstance(statement.op, lang.For):
                if statement is found.turns[0].loop:
                    self.line("fence_async_shared()")
                    self.line("mbarrier.arrive(factors_ready, count=1)")
                self._loop(statement)
                if statement is found.turns[-1].loop and wide.after:
                    self._take(wide.after)
            elif isinstance(statement.op, lang.Store):
                if statement in wide.ends:
                    self.store(statement)
            elif {*statement.results} & needed:
                self.let(statement)
                if statement.results[0] is wide.held:
                    self.line(f"{self.name(wide.held)}_held.index(W).store({self.name(wide.held)})")

    def _quarter(self, name: str) -> str:
        """The columns of an instruction: of fewer than 256 its sums fit into the registers that a
        thread begins with."""
        text = gluon_size(self.roles.lengths[name])
        return f"{text} // 4" if name == self.halved else text

    def _needed(self) -> set[Value]:
        found, wide = self.roles, self.wide
        roots = [wide.held, *(value for s in wide.ends for value in s.operands)]
        for turns, one in zip(found.turns, wide.sums, strict=True):
            roots += [*turns.loop.operands[:2], turns.loop.operands[2 + one.place]]
        return found.needed(roots, wide.after) - {*wide.after}

    def _take(self, handed: list[Value]) -> None:
        """The lines that take the vectors that are handed on."""
        if self.wide.vectors:
            self.line("mbarrier.wait(handed_ready.index(turn & 1), (turn >> 1) & 1)")
        for place, value in enumerate(handed):
            row = f"handed.index({2 * place} + (turn & 1)).load({self.layout((self.roles.own,))})"
            self.line(f"{self.shared.names.get(value, value.name)} = {row}")

    def _loop(self, loop: Statement) -> None:
        turns = self.roles.turn(loop)
        place = self.roles.turns.index(turns)
        one, ring = self.wide.sums[place], self.wide.ring
        (start, stop, *given), block = loop.operands, loop.blocks[0]
        name = self.name(one.carried)
        self.line(f"{name} = {self.name(given[one.place])}")
        self.shared.names |= {loop.results[one.place]: name, one.dot.results[0]: name}
        index = self.name(block.arguments[0])
        self.line(f"for {index} in range({self.name(start)}, {self.name(stop)}):")
        self.depth += 1
        self._take(self.wide.handed[place])
        for statement in block.statements:
            if statement in one.chain:
                self.let(statement)
        at = f"{ring}_ring.index(2 * ring_stage + W)"
        self.line(f"mbarrier.wait({ring}_ready.index(2 * ring_stage + W), ring_phase)")
        self.line("mbarrier.wait(weights_ready, turn & 1)")
        given = f"weights_held, {at}, {self.name(one.dot.operands[2])}, is_async=True"
        self.line(f"{name} = warpgroup_mma({given})")
        self.line(f"{name} = warpgroup_mma_wait(0, [{name}])")
        self.line("mbarrier.arrive(weights_free, count=1)")
        self.line(f"mbarrier.arrive({ring}_free.index(2 * ring_stage + W), count=1)")
        self.line("turn += 1")
        advance(self)
        self.depth -= 1


class WideLoader(Loader):
    """The function of the warp that loads, halves of what is weighed one after the other."""

    def __init__(self, shared: Shared, blocks: dict[Statement, str], wide: Wide):
        super().__init__(shared, blocks)
        self.wide = wide

    def _copy(self, ring: str, load: Statement, vectors: Sequence[Value]) -> None:
        if ring != self.wide.ring:
            super()._copy(ring, load, vectors)
            return
        rows, width = (gluon_size(self.roles.lengths[n]) for n in self.roles.dims[load.results[0]])
        for half in range(2):
            place = f".index(2 * ring_stage + {half})"
            self.line(f"mbarrier.wait({ring}_free{place}, ring_phase)")
            self.line(f"mbarrier.expect({ring}_ready{place}, {rows} * {width})")
            at = f"[{self.name(self._place(load))}, {half} * ({width} // 2)]"
            given = [self.blocks[load], at, f"{ring}_ready{place}", f"{ring}_ring{place}"]
            self.line(f"tma.async_copy_global_to_shared({', '.join(given)})")


class WideKernel(Kernel):
    """The functions of one kernel of wide sums."""

    constants: ClassVar = {"STAGES": 2, "REGISTERS": 168}
    note = "# places of a ring, registers of a thread that sums"

    def __init__(self, program: lang.Program, found: Roles, wide: Wide):
        self.wide = wide
        super().__init__(program, found)

    def _functions(self) -> dict[str, Any]:
        def shared() -> Shared:
            return Shared(self.program, self.roles)

        loader = WideLoader(shared(), self.blocks, self.wide)
        self.descriptors(loader)
        return {
            "score": Scorer(shared(), self.wide),
            "sum": Summer(shared(), self.wide),
            "load": loader,
        }

    def _entry(self, lines: Lines) -> list[str]:
        own, walk = self.roles.own, self.roles.walk
        rows, columns = (gluon_size(self.roles.lengths[n]) for n in (own, walk))
        bar = "mbarrier.MBarrierLayout()"
        made = {"weights_held": f"gl.allocate_shared_memory(IO, {self._lying(rows, columns)})"}
        for name, places in (("weights_ready", 1), ("weights_free", 1), ("factors_ready", 1)):
            made[name] = f"gl.allocate_shared_memory(gl.int64, [{places}], {bar})"
        if self.wide.vectors:
            flat = "gl.SwizzledSharedLayout(1, 1, 1, [0])"
            shape = f"[{2 * self.wide.vectors}, {rows}]"
            made["handed"] = f"gl.allocate_shared_memory(gl.float32, {shape}, {flat})"
            made["handed_ready"] = f"gl.allocate_shared_memory(gl.int64, [2, 1], {bar})"
        for name, text in made.items():
            lines.line(f"{name} = {text}")
        lines.line("mbarrier.init(weights_ready, count=1)")
        lines.line("mbarrier.init(weights_free, count=2)")
        lines.line("mbarrier.init(factors_ready, count=2)")
        for place in range(2 if self.wide.vectors else 0):
            lines.line(f"mbarrier.init(handed_ready.index({place}), count=1)")
        return [*super()._entry(lines), *made]

    def _lying(self, *dims: str, places: str = "") -> str:
        """The shape and the layout of tiles in shared memory."""
        block = ", ".join(dims)
        shape = f"{places}, {block}" if places else block
        return f"[{shape}], {lying(block)}"

    def _places(self, lines: Lines) -> None:
        (*outer, (last, count)) = self.program.grid
        names = lines.shared.arguments.places
        lines.line(f"{names[last]} = gl.program_id(0) % {gluon_size(count)}")
        lines.line(f"row = gl.program_id(0) // {gluon_size(count)}")
        for axis, size in reversed(outer[1:]):
            lines.line(f"{names[axis]} = row % {gluon_size(size)}")
            lines.line(f"row = row // {gluon_size(size)}")
        lines.line(f"{names[outer[0][0]]} = row")

    def _block(self, load: Statement) -> str:
        names = self.roles.dims[load.results[0]]
        sizes = [gluon_size(self.roles.lengths[n]) for n in names]
        halves = zip(names, sizes, strict=True)
        return ", ".join(f"{text} // 2" if n == self.wide.dim else text for n, text in halves)

    def _ring(self, lines: Lines, ring: str, load: Statement, first: bool) -> list[str]:
        block, places = self._block(load), "2 * STAGES" if ring == self.wide.ring else "STAGES"
        made = f"gl.allocate_shared_memory(IO, {self._lying(block, places=places)})"
        lines.line(f"{ring}_ring = {made}")
        shape = f"[{places}, 1], mbarrier.MBarrierLayout()"
        lines.line(f"{ring}_ready = gl.allocate_shared_memory(gl.int64, {shape})")
        lines.line(f"{ring}_free = gl.allocate_shared_memory(gl.int64, {shape})")
        lines.line(f"for stage in gl.static_range({places}):")
        lines.line(f"{INDENT}mbarrier.init({ring}_ready.index(stage), count=1)")
        lines.line(f"{INDENT}mbarrier.init({ring}_free.index(stage), count=1)")
        return [f"{ring}_{kind}" for kind in ("ring", "ready", "free")]

    def _held(self, lines: Lines, value: Value) -> str:
        name, wide = f"{lines.name(value)}_held", value is self.wide.held
        rows, width = (gluon_size(self.roles.lengths[n]) for n in self.roles.dims[value])
        lying = self._lying(rows, f"{width} // 2" if wide else width, places="2" if wide else "")
        lines.line(f"{name} = gl.allocate_shared_memory(IO, {lying})")
        return name

    def _fork(self, lines: Lines, calls: dict[str, list[str]]) -> None:
        score, add, load = (", ".join(calls[kind]) for kind in ("score", "sum", "load"))
        lines.line("gl.warp_specialize([")
        lines.line(f"{INDENT}({self.title}_score, ({score})),")
        for half in range(2):
            lines.line(f"{INDENT}({self.title}_sum, ({add}, {half})),")
        lines.line(f"{INDENT}({self.title}_load, ({load})),")
        lines.line("], [4, 4, 1], [REGISTERS, REGISTERS, 24])")


def _layout(width: str) -> str:
    """How products of so many columns an instruction lie in registers."""
    return f"gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16])"
