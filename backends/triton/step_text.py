"""The text of a kernel that walks tokens, around its body."""

from __future__ import annotations

from typing import Any

import sympy
from archc.backends.triton.naming import program_name, size_name
from archc.backends.triton.steps import StepsWriter
from archc.backends.triton.text import filled
from archc.backends.writer import Writer, identifier

CONSTANTS = ("DOT", "PRECISION")
INDICES = ("index", "index_after")


def step_text(made: StepsWriter, title: str) -> str:
    """The whole text of one kernel."""
    writer = Writer()
    tensors = []
    for name, node in made.arguments.items():
        base = made.pointers[name]
        strides = [f"{base}_{identifier(axis)}" for axis in node.type.names]
        tensors += filled([base] if name in made.numbers else [f"{base}_p", *strides])
    for name in INDICES:
        tensors += [f"{name}_p, {name}_batch"]
    counts = ["T", "B"] if made.kernel.rows is not None else ["T"]
    fixed = [f"{name}: tl.constexpr" for name in constants_of(made)]
    varying = ", ".join(f'"{name}"' for name in counts) + "," * (len(counts) == 1)
    writer.line(f"@kernel(varying=({varying}))")
    writer.call(f"def {title}(", [*tensors, *counts, *fixed], "):")
    writer.depth += 1
    stored = ", ".join(f"`{name}`" for name in (*made.kernel.stores, *made.kernel.ends.values()))
    writer.docstring([f"{stored}, {made.kernel.why[0]}."])
    writer.include(_programs(made))
    writer.include(made.writer.lines)
    return writer.text()


def constants_of(made: StepsWriter) -> list[str]:
    """What is fixed when a kernel is compiled: sizes, blocks, and how exact products are."""
    sizes = [size_name(size) for size in symbols_of(made)]
    turns = ["BLOCKS"] if made.blocks_in_turn else []
    return [*sizes, *sorted(made.blocks), *turns, *CONSTANTS]


def symbols_of(made: StepsWriter) -> list[Any]:
    """The symbols of sizes and options that the lines of a kernel name."""
    found: set[Any] = set()
    for node in (*made.kernel.graph, *made.fold.op.body):
        for axis in node.type.axes:
            found |= axis.size.free_symbols
        for text in ("value", "iterations"):
            value = getattr(node.op, text, None)
            if isinstance(value, sympy.Expr):
                found |= value.free_symbols
    words = made.words()
    return sorted((s for s in found if size_name(s) in words and str(s) != "T"), key=str)


def _programs(made: StepsWriter) -> list[str]:
    """Which index of each axis of the grid a program has, and the indices of its tiles."""
    kernel, lines = made.kernel, ["program = tl.program_id(0).to(tl.int64)"]
    split = kernel.split
    if split is not None:
        count = f"tl.cdiv({made.size(split.size)}, PART)"
        if made.blocks_in_turn:
            lines.append(f"blocks = {count}")
            count = "tl.cdiv(blocks, BLOCKS)"
        lines += [f"block = program % {count}", f"program = program // {count}"]
    for axis in reversed(kernel.grid[1:]):
        length = made.size(axis.size)
        lines += [f"{program_name(axis.name)} = program % {length}"]
        lines += [f"program = program // {length}"]
    if kernel.rows is not None:
        lines.append("row = program * ROWS + tl.arange(0, ROWS)")
    else:
        lines.append(f"{program_name(kernel.grid[0].name)} = program")
    for block in sorted({*made.blocks} - {"ROWS", "PART"}):
        lines.append(f"i_{block.removeprefix('B_')} = tl.arange(0, {block})")
    if made.blocks_in_turn:
        lines += ["first = block * BLOCKS", "last = tl.minimum(first + BLOCKS, blocks)"]
    elif split is not None:
        lines.append("part = block * PART + tl.arange(0, PART)")
    return lines
