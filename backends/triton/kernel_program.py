"""Kernels that are tile programs, and the lines that launch them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archc.backends.triton.launch import Call, write_launch

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir.graph import Node
from archc.ir.kernel import BLOCK, WHOLE, Buffer, Kernel, Kernels, dim_of_states, shrinking
from archc.ir.value_names import is_saved
from archc.lowering.kernel_values import Memory, made_here
from archc.lowering.kernels import ROW_WARPS, Lowered
from archc.lowering.paired import DIMS, DIMS_OF_A_PART, NEAR_DIMS, NEAR_OF_A_PART
from archc.lowering.twice import HARD
from archc.tile.given import given_names
from archc.tile.language import Program

if TYPE_CHECKING:
    from archc.backends.triton.function import KernelFunction
    from archc.backends.triton.segments import Launch

NUMBERS = {
    "CHUNK": "chunk", "LEVELS": "chunk.bit_length() - 1", "DOT": "data", "SUMS": "sums_of(data)",
    "PRECISION": '"tf32x3"', "SOLVE": "solve_of(data)", "STAGES": "3",
}  # fmt: skip
"""How kernels count, where `data` is the dtype of the data; `STAGES` is the most (`staged`)."""


IS_NARROW = "data.itemsize == 2"
"""Whether data have 16 bits, in a generated file."""

MOST_OF_FOUR = 128
"""The longest dim of a state of float32 that 4 warps have in registers beside a product's factors:
of 256 by 64 numbers they spilled 1.4 to 2.5 kB of a thread, where 8 warps spill 0.2 to 1.2."""

THREE_PROGRAMS, FOUR_PROGRAMS = 168, 128
"""Registers of a thread with which so many programs of 4 warps run at once."""


@dataclass(frozen=True, eq=False)
class KernelProgram:
    """A kernel with its program; `alone`: launched for what becomes of its state alone."""

    kernel: Kernel
    lowered: Lowered
    alone: bool = False

    @property
    def most(self) -> int:
        """The longest block of the axis that is split."""
        return self.kernel.most

    @property
    def numbers(self) -> dict[str, str]:
        """How its program counts."""
        wanted, walk = given_names(self.lowered.program), self.kernel.walk
        backward = walk is not None and self.kernel.graph[walk].op.reverse
        known = {**NUMBERS, "BACKWARD": str(int(backward)), "ALONE": str(int(self.alone))}
        return {name: text for name, text in known.items() if name in wanted}

    @property
    def arguments(self) -> dict[str, Node]:
        """The nodes of its tensors by name, in the order of its arguments."""
        names, nodes = self.lowered.names, self.lowered.nodes
        own = (each.name for each in self.lowered.program.buffers if each.name in names)
        return {names[name]: self.kernel.graph[nodes[name]] for name in own}

    @property
    def grid(self) -> Mapping[str, Axis]:
        """Axes of which a program has one index, by name."""
        return {axis.name: axis for axis in self.kernel.grid}


def memory_of(plan: Kernels, further: tuple[Buffer, ...] = ()) -> Memory:
    """The tensors that a plan's kernels write: contiguous; `further` buffers have a row for each
    segment. A value saved for a gradient is as wide as it is where nothing is saved."""
    stored = {name for kernel in plan.kernels for name in (*kernel.stores, *kernel.ends.values())}
    buffers = {each.name: each for each in plan.buffers if each.name in stored}
    flat = {each.name: each for each in further}
    outputs = {name for name in plan.graph.outputs if not is_saved(name)}
    return Memory(buffers | flat, outputs, {*flat})


def launch_kernel_program(
    function: KernelFunction, made: KernelProgram, title: str, launch: Launch, options: Call
) -> None:
    """The lines that launch the program of a kernel."""
    lowered, tensors = made.lowered, list[str]()
    for buffer in lowered.program.buffers:
        name = lowered.names.get(buffer.name)
        if buffer.name == HARD:
            tensors.append(_flags(function, made))
        else:
            tensors.append(launch.rows if name is None else launch.arguments[name])
    sizes, constants = _sizes(function, made, launch), constants_of(function, made)
    known = given_names(lowered.program)
    counts = [sizes[each.name]() for each in lowered.program.sizes if each.name in known]
    with _launched(function, made, launch.batch) as (programs, fixed, limit):
        constants |= fixed
        opening, items, closing = options
        write_launch(
            function.body.writer, title, programs, tensors, counts,
            function.fixed({n: constants[n] for n in lowered.program.constants if n in known}),
            (opening, [*items, *limit], closing),
        )  # fmt: skip


@contextmanager
def _launched(
    function: KernelFunction, made: KernelProgram, batch: str
) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """How often a program is launched: how many programs there are, constants, and what limits
    registers. What is launched twice looks at a run of chunks the second time."""
    programs = function.programs(made, batch)
    if not is_launched_twice(made.lowered.program):
        few = FOUR_PROGRAMS if sums_gates(made.kernel) else None
        few = THREE_PROGRAMS if solves(made.kernel) else few
        yield programs, {}, [f"registers={few}"] if few else []
        return
    again, run = (function.body.names.fresh(name) for name in ("again", "run"))
    turns = f"((0, 1), (1, chunks_of_run({programs})))"
    with function.body.writer.block(f"for {again}, {run} in {turns}:"):
        few = str(THREE_PROGRAMS)
        if adds_up_few(made):
            few = f"{FOUR_PROGRAMS} if {IS_NARROW} else {few}"
        limit = [f"registers=0 if {again} else {few}"]
        yield function.programs(made, batch, run), {"AGAIN": again, "RUN": run}, limit


def sums_gates(kernel: Kernel) -> bool:
    """Whether a kernel makes running sums of gates of a dim: it is for what is made of them row by
    row, whose loads and stores wait the less for each other the more programs run at once."""
    made = (node for node in made_here(kernel) if isinstance(node.op, ck.Sums) and node.op.gates)
    return kernel.split is not None and kernel.walk is None and any(made)


def adds_up_few(made: KernelProgram) -> bool:
    """Whether a kernel adds up two matrices of pairs of rows at most, part by part of a dim, and
    solves no system with them: each takes 32 registers."""
    grams = [node for node in made_here(made.kernel) if isinstance(node.op, ck.Gram)]
    parts = {DIMS.name, NEAR_DIMS.name} & {*made.lowered.parts}
    return bool(parts) and len(grams) <= 2 and not solves(made.kernel)


def solves(kernel: Kernel) -> bool:
    """Whether a kernel inverts the system of a chunk: its products wait for each other."""
    made = (n for n in made_here(kernel) if isinstance(n.op, ck.Inverse))
    return kernel.walk is None and any(n.type.axis(n.op.row).size.has(ck.CHUNK) for n in made)


def is_launched_twice(program: Program) -> bool:
    """Whether a program is launched twice."""
    return any(buffer.name == HARD for buffer in program.buffers)


def _flags(function: KernelFunction, made: KernelProgram) -> str:
    """A flag for each program of a first launch, after the line that makes room for them."""
    body = function.body
    name = body.names.fresh(HARD)
    function.flags.append(name)
    shape = function.programs(made)
    body.writer.line(f"{name} = torch.empty({shape}, device={body.device}, dtype=torch.int32)")
    return name


def part_of(name: str, turns: Collection[str]) -> str:
    """The longest part of a dim that a loop takes. Of float32 a loop for all that is stored takes
    the whole dim: twice the warps hold it, and no loop has to keep what it shares."""
    if name in turns:
        return f"{BLOCK} if {IS_NARROW} else {WHOLE}"
    most = {DIMS.name: DIMS_OF_A_PART, NEAR_DIMS.name: NEAR_OF_A_PART}
    return str(most.get(name, BLOCK))


def warps_of(function: KernelFunction, made: KernelProgram) -> str:
    """How many warps a program has: in float32, whose products hold both parts of their factors,
    twice as many where all that is stored, or a state of long dims, is in registers."""
    count, small = made.lowered.warps, made.lowered.small
    usual = f"warps_for(data, {', '.join(map(function.size, small))})" if small else str(count)
    if count > ROW_WARPS:
        dim = shrinking(made.kernel)
        return usual if dim is None else f"warps_of_walk(data, {function.size(dim)}, {usual})"
    if made.kernel.blocked is not None:
        return f"{count} if {IS_NARROW} else {2 * count}"
    dim = dim_of_states(made.kernel)
    if dim is None:
        return str(count)
    return f"{count} if {IS_NARROW} or {function.size(dim)} <= {MOST_OF_FOUR} else {2 * count}"


def _sizes(function: KernelFunction, made: KernelProgram, launch: Launch) -> dict:
    """How the sizes that change from call to call are found."""
    batch = next((axis for axis in made.kernel.grid if axis.kind == "batch"), None)

    def rows(streams: bool) -> str:
        return "1" if batch is None else function.length(batch, streams)

    return {
        "BATCH": lambda: rows(True),
        "SEQUENCES": lambda: launch.batch or rows(False),
        "SEGMENTS": lambda: launch.segments,
        "T": function.stream_length,
        "CHUNKS": function.chunks,
    }


def constants_of(function: KernelFunction, made: KernelProgram) -> dict[str, str]:
    """The constants that machine code is made for."""
    lowered, split = made.lowered, made.kernel.split
    wanted = {*lowered.program.constants}
    found = made.numbers
    if "EVEN" in wanted:
        found["EVEN"] = function.even
    for name, size in lowered.blocks.items():
        if name in wanted:
            found[name] = f"block_of({function.size(size)})"
    for name, size in lowered.parts.items():
        if name in wanted:
            found[name] = f"block_of({function.size(size)}, {part_of(name, lowered.turns)})"
    for name, size in lowered.levels.items():
        if name in wanted:
            found[name] = f"block_of({function.size(size)}).bit_length() - 1"
    if split is not None and "BLOCK" in wanted:
        found["BLOCK"] = function.block(made, split.size)
    for name, size in lowered.sizes.items():
        if name in wanted and name not in found:
            found[name] = function.size(size)
    return found
