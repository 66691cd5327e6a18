"""Tile programs of folds as Gluon (a part of Triton) for GPUs of compute capability 9: a warp loads
by the copy engine into rings of shared memory, and two groups of four warps multiply and weigh.

The kernel is called as that of Triton is, with the warps of one group. It knows no packed sequences
(`borders`), and its vectors have 16 bits a number, stand side by side and begin at multiples of 16
bytes. What it cannot say is a `Refusal`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from archc.backends.lines import broken, unbracketed
from archc.backends.triton.arguments import pointer
from archc.backends.triton.gluon_late import LateWeigher, late_products
from archc.backends.triton.gluon_lines import Lines, Shared
from archc.backends.triton.gluon_owned import descriptor, lying, note_owned, roots
from archc.backends.triton.gluon_roles import Roles, Unknown, alike, roles
from archc.backends.triton.gluon_warps import Loader, Weigher
from archc.backends.triton.printer import head
from archc.backends.triton.spelling import GLUON, INDENT, WIDTH, filled, gluon_size

from archc.ir.refusal import Refusal
from archc.tile import language as lang
from archc.tile.given import given_names
from archc.tile.language import Statement, Value

SUFFIX = "_by_warps"
CONSTANTS = {"STAGES": 2, "REGISTERS": 232, "TOGETHER": 4}
"""Places of a ring, registers of a thread that weighs, and heads whose programs run side by side:
they share what is in the cache, and the longest programs of all come first."""

DOCS = {
    "weigh": "A group of four warps: multiply and weigh what comes, for one half of the rows.",
    "load": "A warp alone: have blocks of what is walked copied, whenever there is a place.",
    "score": "A group of four warps: make the weights of what comes, and hand them on.",
    "sum": "A group of four warps: sum one half of the weighted vectors that come.",
}
"""What the functions of the warps do."""

REGISTERS_OF_ALL = 504
"""Of a thread of each kind, together."""


def to_gluon(program: lang.Program) -> str | Refusal:
    """The text of the functions of a kernel, the last of which is launched: called as the kernel of
    Triton is, with `SUFFIX` behind."""
    if not {"IO", "BLOCK_T", "BLOCK_S"} <= given_names(program):
        return Refusal(None, "blocks or vectors that Triton's kernel is not told of")
    try:
        found = roles(program)
        note_owned(found)
        return Kernel(program, found).text()
    except Unknown as error:
        return Refusal(None, str(error))


def _weigher(shared: Shared) -> Weigher:
    """Who writes the function of a group that multiplies and weighs."""
    late = late_products(shared.roles)
    return Weigher(shared) if late is None else LateWeigher(shared, late)


class Kernel:
    """The functions of one kernel."""

    constants: ClassVar = CONSTANTS
    note = "# places of a ring, registers of a thread that weighs, heads side by side"

    def __init__(self, program: lang.Program, found: Roles):
        self.program, self.roles, self.title = program, found, f"{program.name}{SUFFIX}"
        self.ends = {
            load: self._end(load) for turns in found.turns for load in turns.tiles.values()
        }
        self.blocks = self._described()

    def text(self) -> str:
        """All functions."""
        entry = Lines(Shared(self.program, self.roles))
        known = self._entry(entry)
        lines: list[str] = []
        calls: dict[str, list[str]] = {}
        fixed = {*self.program.constants, *self.constants}
        for kind, function in self._functions().items():
            function.write()
            words = {*re.findall(r"\w+", "\n".join(function.lines))}
            calls[kind] = [word for word in known if word in words]
            given = [f"{w}: gl.constexpr" if w in fixed else w for w in calls[kind]]
            given += ["W: gl.constexpr"] if "W" in words else []
            lines += ["@gluon_kernel", f"def {self.title}_{kind}(", *filled(given), "):"]
            lines += [f'{INDENT}"""{DOCS[kind]}"""', *function.lines, "", ""]
        self._fork(entry, calls)
        lines += [*self._signature(), *entry.lines]
        return "\n".join(part for line in lines for part in broken(unbracketed(line), WIDTH)) + "\n"

    def _functions(self) -> dict[str, Weigher | Loader]:
        """Who write the functions of the warps, by what these do."""
        loader = Loader(Shared(self.program, self.roles), self.blocks)
        self.descriptors(loader)
        return {"weigh": _weigher(Shared(self.program, self.roles)), "load": loader}

    def _signature(self) -> list[str]:
        """The head of the function that is launched."""
        known = given_names(self.program)
        lines = head(self.program, Shared(self.program, self.roles).arguments, GLUON)
        varying = [f'"{name}"' for name in self.program.varying if name in known]
        given = f"({', '.join(varying)}{',' * (len(varying) == 1)})"
        lines[0] = f"def {self.title}("
        return [f"@gluon_kernel(varying={given})", *lines]

    # --- what stands before the warps part ---

    def _entry(self, lines: Lines) -> list[str]:
        """The lines of the function that is launched before it forks, and all names it has."""
        found = self.roles
        lines.line(self.note)
        for name, number in self.constants.items():
            lines.line(f"{name}: gl.constexpr = {number}")
        self._places(lines)
        known = [*self._parameters(), *lines.shared.arguments.places.values()]
        for place, (ring, load) in enumerate(found.rings.items()):
            known += self._ring(lines, ring, load, place == 0)
        known += [self._held(lines, value) for value in found.held]
        if found.brought:
            made = "gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())"
            lines.line(f"own_ready = {made}")
            lines.line("mbarrier.init(own_ready, count=1)")
            known.append("own_ready")
        for place in range(found.vectors):
            shape = f"[STAGES, {gluon_size(found.lengths[found.walk])}]"
            flat = "gl.SwizzledSharedLayout(1, 1, 1, [0])"
            made = f"gl.allocate_shared_memory(gl.float32, {shape}, {flat})"
            lines.line(f"vector_{place}_ring = {made}")
            known.append(f"vector_{place}_ring")
        lines.line("fence_async_shared()")
        return known

    def _scalars(self, lines: Lines) -> None:
        """The lines that make what descriptors are of."""
        found = self.roles
        places = [end for end in self.ends.values() if end is not None]
        for load in found.rings.values():
            index = load.operands[: len(load.op.buffer.axes)]
            places += [value for value in index if not found.dims[value]]
        needed = found.needed([*places, *roots(found, [*found.brought.values()])])
        if needed & {v for turns in found.turns for v in turns.loop.blocks[0].arguments}:
            raise Unknown("tensors that change from turn to turn")
        inside = [s for turns in found.turns for s in turns.loop.blocks[0].statements]
        for statement in [*found.body, *inside]:
            made = {*statement.results} & needed
            if made and not isinstance(statement.op, lang.For):
                lines.let(statement)

    def _places(self, lines: Lines) -> None:
        """The lines that find the place in the grid."""
        (*outer, (last, count)) = self.program.grid
        if not outer:
            raise Unknown("a grid of one axis")
        names, blocks = lines.shared.arguments.places, gluon_size(count)
        lines.line(f"row = gl.program_id(0) // (TOGETHER * {blocks}) * TOGETHER")
        lines.line(f"beside = gl.minimum(TOGETHER, gl.num_programs(0) // {blocks} - row)")
        lines.line(f"rest = gl.program_id(0) - row * {blocks}")
        lines.line(f"{names[last]} = rest // beside")
        lines.line("row += rest % beside")
        for axis, size in reversed(outer[1:]):
            lines.line(f"{names[axis]} = row % {gluon_size(size)}")
            lines.line(f"row = row // {gluon_size(size)}")
        lines.line(f"{names[outer[0][0]]} = row")

    def _parameters(self) -> list[str]:
        """The names of all that the kernel is given."""
        found: list[str] = []
        strides = Shared(self.program, self.roles).arguments.strides
        for buffer in self.program.buffers:
            found += [pointer(buffer), *(strides[buffer.name, axis] for axis in buffer.steps)]
        known = given_names(self.program)
        sizes = [symbol.name for symbol in self.program.sizes if symbol.name in known]
        return [*found, *sizes, *(n for n in self.program.constants if n in known), *self.constants]

    def _ring(self, lines: Lines, ring: str, load: Statement, first: bool) -> list[str]:
        """The lines that make a ring, its descriptors and its barriers, and their names."""
        block = self._block(load)
        made = f"gl.allocate_shared_memory(IO, [STAGES, {block}], {lying(block)})"
        lines.line(f"{ring}_ring = {made}")
        made = "gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())"
        lines.line(f"{ring}_ready = {made}")
        lines.line(f"{ring}_free = {made}")
        count = 2 if first and self.roles.vectors else 1  # the copy, and vectors beside it
        lines.line("for stage in gl.static_range(STAGES):")
        lines.line(f"{INDENT}mbarrier.init({ring}_ready.index(stage), count={count})")
        lines.line(f"{INDENT}mbarrier.init({ring}_free.index(stage), count=2)")
        return [f"{ring}_{kind}" for kind in ("ring", "ready", "free")]

    def descriptors(self, lines: Lines) -> None:
        """The lines that make descriptors, in the function of the warp that loads."""
        self._scalars(lines)
        for ring, load in self.roles.rings.items():
            self._descriptors(lines, ring, load)

    def _descriptors(self, lines: Lines, ring: str, load: Statement) -> None:
        """The lines that make the descriptors of a ring."""
        found, buffer = self.roles, load.op.buffer
        index, (rows, width) = load.operands[: len(buffer.axes)], found.dims[load.results[0]]
        along = [found.dims[value] for value in index]
        if along[-1] != (width,) or along.count((rows,)) != 1 or along.count((width,)) != 1:
            raise Unknown("vectors that do not stand side by side")
        names: dict[str, Value | None] = {}
        for turns in found.turns:
            names[self.blocks[turns.tiles[ring]]] = self.ends[turns.tiles[ring]]
        for name, end in names.items():
            last = "" if end is None else lines.name(end)
            descriptor(lines, name, load, rows, last, self._block(load))

    def _block(self, load: Statement) -> str:
        """How long a tile that is walked is along its dims."""
        return ", ".join(
            gluon_size(self.roles.lengths[n]) for n in self.roles.dims[load.results[0]]
        )

    def _described(self) -> dict[Statement, str]:
        """The name of the descriptor of each tile that is walked: those of one ring are of one
        tensor, and may end at different places."""
        found: dict[Statement, str] = {}
        for ring, first in self.roles.rings.items():
            ends: list[Value | None] = []
            for turns in self.roles.turns:
                load = turns.tiles[ring]
                for one, other in zip(first.operands, load.operands, strict=False):
                    if not self.roles.dims[one] and not alike(self.roles, one, other):
                        raise Unknown("loops that walk different parts of a tensor")
                ends += [self.ends[load]] if self.ends[load] not in ends else []
                place = ends.index(self.ends[load])
                found[load] = f"{ring}_blocks" + (f"_{place + 1}" if place else "")
        return found

    def _end(self, load: Statement) -> Value | None:
        """Where the rows of a tile end, if its masks say that they do before the tensor does."""
        found, buffer, last = self.roles, load.op.buffer, None
        index = load.operands[: len(buffer.axes)]
        if load.op.fill != 0:
            raise Unknown("a tile that is filled with another number than 0")
        for mask in load.operands[len(buffer.axes) :]:
            test = found.made.get(mask)
            if test is None or test.op != lang.Apply("lt") or len(found.dims[mask]) != 1:
                raise Unknown("a tile with another mask than its end")
            place, end = test.operands
            axes = zip(buffer.axes, index, strict=True)
            size = next((n for (_, n), v in axes if alike(found, v, place)), None)
            made = found.made.get(end)
            if size is None or (last is not None and found.dims[mask] == (found.walk,)):
                raise Unknown("a tile with a mask of other places")
            if made is not None and isinstance(made.op, lang.Scalar) and made.op.size == size:
                continue
            if found.dims[mask] != (found.walk,):
                raise Unknown("vectors that end before their tensor does")
            last = end
        return last

    # --- what each warp does ---

    def _held(self, lines: Lines, value: Value) -> str:
        """The line that makes room for a factor of what is owned; its name."""
        name = f"{lines.name(value)}_held"
        rows, width = (gluon_size(self.roles.lengths[n]) for n in self.roles.dims[value])
        block = f"{rows} // 2, {width}"
        made = f"gl.allocate_shared_memory(IO, [2, {block}], {lying(block)})"
        lines.line(f"{name} = {made}")
        return name

    def _fork(self, lines: Lines, calls: dict[str, list[str]]) -> None:
        """The lines that run the functions side by side."""
        weigh, load = (", ".join(calls[kind]) for kind in ("weigh", "load"))
        lines.line("gl.warp_specialize([")
        for half in range(2):
            lines.line(f"{INDENT}({self.title}_weigh, ({weigh}, {half})),")
        lines.line(f"{INDENT}({self.title}_load, ({load})),")
        lines.line(f"], [4, 1], [REGISTERS, {REGISTERS_OF_ALL} - 2 * REGISTERS])")
