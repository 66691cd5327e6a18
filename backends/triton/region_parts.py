"""The parts of a token region in a generated file: its kernels under a title, and its functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
from archc.backends.eager.elementwise import IN_FLOAT32
from archc.backends.eager.scope import Scope
from archc.backends.triton.program_launch import count_text
from archc.backends.writer import COLUMNS, INDENT, Writer, literals, quoted

from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.lowering.token import BLOCK_T, EACH, Lowered, RegionKernels
from archc.tile.language import Buffer, Program
from archc.tile.resources import LANES, tiles_alive

EXTRA = "@extra"
"""Where a call is given what no shape tells, which is known in the end."""

PART = 256
"""The longest block of a dim that need not be whole."""

KEPT, WARPS = 128, 4
"""How many registers a thread is to have for tiles that are alive at once; the fewest warps of a
program that sums tokens or has many tiles."""


@dataclass(frozen=True)
class Variant:
    """The kernels of a region. `tails`: the last tokens of sequences that they make, by the name of
    the past these are kept for; `nexts`: the pasts of the next call that they can write."""

    made: RegionKernels
    outputs: Mapping[str, str]
    slopes: Mapping[str, str]
    tails: Mapping[str, str]
    nexts: Mapping[str, str]

    @property
    def graph(self) -> Graph:
        """The graph of the values."""
        return self.made.region.graph


@dataclass(frozen=True)
class Part:
    """One function of a file: its scope and lines; it is given what is `drawn` after the tensors,
    `borders`, which say where packed sequences are, and `more`; then what no shape tells, and the
    `last` ones."""

    name: str
    scope: Scope
    lines: Writer
    doc: list[str]
    more: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    borders: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)


def listed(variant: Variant) -> str:
    """The values that kernels make, as a reader has them."""
    return ", ".join(f"`{name}`" for name in variant.outputs.values())


def alike_inputs(variant: Variant, arguments: Mapping[str, str]) -> list[str]:
    """For each result the argument that has its shape; empty if some result is like none of them.
    `arguments`: how the inputs are called."""
    region, graph, found = variant.made.region, variant.graph, list[str]()
    shapes = {
        node.type.axes: arguments[node.op.name]
        for node in reversed([*graph]) if isinstance(node.op, ir.Input)
        if node.op.name in region.reads and node.type.axes
    }  # fmt: skip
    for name in variant.outputs:
        type = graph[graph.outputs[name]].type
        plain = type.dtype == "real" and region.edge(name) is None
        found += [shapes[type.axes]] if plain and type.axes in shapes else []
    return found if len(found) == len(variant.outputs) else []


def with_extra(line: str, names: list[str]) -> str:
    """A line with what no shape tells in its place."""
    if names:
        return line.replace(EXTRA, ", ".join(names))
    return line.replace(f", {EXTRA}", "").replace(f"{EXTRA}, ", "").replace(f"{EXTRA},", "")


def is_wide(op: object) -> bool:
    """Whether autocast does an op in float32."""
    if isinstance(op, ir.Reduce):
        return op.fn in ("sum", "prod")
    return isinstance(op, ir.Elementwise) and op.fn in IN_FLOAT32


def largest_of(texts: list[str]) -> str:
    """The largest of some numbers, each said once."""
    different = [*dict.fromkeys(texts)]
    return different[0] if len(different) == 1 else f"max({', '.join(different)})"


def that_fit(numbers: int, program: Program) -> int:
    """So many numbers of a tile, halved until those of all tiles that a program holds at once have
    room in the registers of its warps."""
    most = max(WARPS * LANES, KEPT * WARPS * LANES / max(tiles_alive(program), 1))
    while numbers > most:
        numbers //= 2
    return numbers


def literal(text: str) -> str:
    """A text as the sum of literals that are not too long."""
    return " + ".join(literals(text, COLUMNS - 2 * len(INDENT))) or quoted(text)


def as_read(buffer: Buffer, given: str) -> str:
    """A tensor as a kernel reads it: its tokens equally far apart, or all of it contiguous."""
    return f"*tokens_apart({given})" if buffer.rows else f"{given}.contiguous()"


def grid_texts(made: Lowered, known: Mapping[str, str]) -> list[str]:
    """The programs of a launch as it is told of them: sequences, tokens, which it shares out in
    blocks itself, and programs that share a token."""
    (_, batch), (_, blocks), *rest = made.program.grid
    above, below = sympy.fraction(sympy.together(blocks.args[0]))
    assert {str(each) for each in below.free_symbols} <= {BLOCK_T, EACH}, below
    return [str(count_text(each, known)) for each in (batch, above, *(count for _, count in rest))]
