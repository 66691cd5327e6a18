"""The text of a kernel around its body: arguments, and which program does what."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.lines import INDICES
from archc.backends.triton.naming import SEQUENCE, program_name, size_name
from archc.backends.writer import Writer, identifier

from archc.dims import TIME, free_symbols
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK
from archc.ir.graph import Graph, Node
from archc.ir.kernel_text import stored_texts
from archc.source import Span

CONSTANTS = ("ROWS", "LEVELS", "DOT", "SUMS", "SOLVE", "PRECISION")


def kernel_text(made: KernelWriter, title: str, home: Span | None = None) -> str:
    """The whole text of one kernel; `home` is what it comes from in the spec."""
    writer = Writer()
    tensors = []
    for name, node in made.arguments.items():
        base = made.pointers[name]
        strides = [f"{base}_{identifier(axis)}" for axis in node.type.names]
        tensors += filled([f"{base}_p", *strides])
    sizes = [size_name(size) for size in sizes_of(made)]
    blocks = sorted(block for block in made.blocks if block != "ROWS")
    levels = [f"{block}_LEVELS" for block in sorted(made.halved)]
    parts = [f"{block}_PART" for block in sorted(made.cut)]
    fixed = [f"{name}: tl.constexpr" for name in [*sizes, *blocks, *parts, *levels, *CONSTANTS]]
    writer.line('@kernel(varying=("T", "CHUNKS"))')
    writer.call(f"def {title}(", [*tensors, "packed_p", "T", "CHUNKS", *filled(fixed)], "):")
    writer.depth += 1
    lines = "\n".join(f"    {line}" for line in stored_texts(made.kernel))
    writer.docstring([_title(made, home), *filter(None, [lines])])
    writer.include(_programs(made))
    writer.include(made.writer.lines)
    return writer.text()


def filled(items: list[str], room: int = 90) -> list[str]:
    """Items joined to lines that are not too long."""
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > room:
            lines.append("")
        lines[-1] += f", {item}" if lines[-1] else item
    return lines


def _title(made: KernelWriter, home: Span | None) -> str:
    """How it was cut, and where the recurrence stands."""
    (why,) = made.kernel.why
    return f"{why[0].upper()}{why[1:]}{f' ({home.where})' if home is not None else ''}."


def _programs(made: KernelWriter) -> list[str]:
    """Which index of each axis of the grid a program has, and the indices of its tiles."""
    lines, split = [], made.kernel.split
    grid = list(made.kernel.grid)
    lines.append("program = tl.program_id(0).to(tl.int64)")
    if split is not None:
        block = made.block(split)
        lines.append(f"block = program % tl.cdiv({made.size(split.size)}, {block})")
        lines.append(f"program = program // tl.cdiv({made.size(split.size)}, {block})")
    for axis in reversed(grid):
        name = "n" if axis.kind == "stream" else program_name(axis.name)
        length = "CHUNKS" if axis.kind == "stream" else made.size(axis.size)
        if axis is grid[0]:
            lines.append(f"{name} = program")
        else:
            lines.append(f"{name} = program % {length}")
            lines.append(f"program = program // {length}")
    lines += _sequence(made)
    for block in sorted(made.blocks):
        index = INDICES.get(block, f"i_{block.removeprefix('B_')}")
        if block == "DIMS" or index not in made.words():  # it is that of a loop, or of nothing
            continue
        first = f"block * {block} + " if made.is_split(block) else ""
        lines.append(f"{index} = {first}tl.arange(0, {block})")
    return lines


def _sequence(made: KernelWriter) -> list[str]:
    """What a program knows of its sequence: all tokens, or those of one of several."""
    if not made.words() & {*SEQUENCE}:
        return []
    made.pieces.add("packed_row")
    names, walked = ", ".join(SEQUENCE), made.kernel.walk is not None
    batch = next((f"p_{axis.name}" for axis in made.kernel.grid if axis.kind == "batch"), "0")
    lines = [f"{names} = {batch}, 0, 0, T, 0, CHUNKS"]
    several = "or a segment of one" if walked else "in a batch of 1"
    lines.append(f"if packed_p is not None:  # one of several sequences, {several}")
    lines.append(f"    {names} = packed_row(packed_p, {batch if walked else 'n'})")
    if not walked:
        return [*lines, "    if p_sequence < 0:", "        return"]
    if batch != "0":
        made.pieces.add("packed_batch")
        lines.append(f"    {batch} = packed_batch(packed_p, {batch})")
    return lines


def every_node(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph, and of the bodies in it."""
    for node in graph:
        yield node
        if isinstance(node.op, ir.Fold | ck.Conjugate):
            yield from every_node(node.op.body)


def sizes_of(made: KernelWriter) -> list[sympy.Symbol]:
    """The symbols of sizes and options that the lines of a kernel name."""
    found: set[sympy.Symbol] = set()
    for node in every_node(made.kernel.graph):
        for axis in node.type.axes:
            found |= free_symbols(axis.size)
        for value in (getattr(node.op, name, None) for name in ("value", "iterations")):
            found |= free_symbols(value) if isinstance(value, sympy.Expr) else set()
    words = set(made.words())
    return sorted(
        (s for s in found if s != CHUNK and size_name(s) in words and s != TIME.size), key=str
    )
