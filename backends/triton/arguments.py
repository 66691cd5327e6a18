"""Names that a printed program has besides those of its values: each says one thing.

Pointers, sizes and constants are called as the program says, since other texts name them too.
Strides, places in the grid and descriptors are named here, so that none is called as another: the
stride of `x` along an axis `p` would be called as the pointer of `x`.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import sympy
from archc.backends.triton.spelling import TRITON, size_text

from archc.ir.free_names import numbered
from archc.tile.language import Buffer, LoadBlock, Program, statements


@lru_cache(maxsize=1)
def runtime_names() -> frozenset[str]:
    """The functions that printed programs call."""
    text = files("archc.runtime").joinpath("tiles.py").read_text("utf-8")
    found = ast.parse(text).body
    return frozenset(each.name for each in found if isinstance(each, ast.FunctionDef))


def pointer(buffer: Buffer) -> str:
    """The name of where a buffer begins."""
    return f"{buffer.name}_p"


@dataclass(frozen=True)
class Arguments:
    """Names of places by the axis of the grid, of strides by buffer and axis, and of descriptors by
    what they read; `taken` are the words that no value may be called by, `of` the module of what
    Triton has."""

    places: dict[str, str]
    strides: dict[tuple[str, str], str]
    copies: dict[LoadBlock, str]
    taken: frozenset[str]
    of: str

    def stride(self, buffer: Buffer, axis: str) -> str:
        """From one place along an axis to the next: given, or the sizes of the axes after it."""
        if axis in buffer.steps:
            return self.strides[buffer.name, axis]
        names = [name for name, _ in buffer.axes]
        place, rows = names.index(axis), names.index(buffer.rows) if buffer.rows else -1
        last = rows + 1 if place < rows else None
        after = size_text(sympy.Mul(*(size for _, size in buffer.axes[place + 1 : last])), self.of)
        return f"({after} * {self.strides[buffer.name, buffer.rows]})" if last else after


def arguments(program: Program, of: str = TRITON) -> Arguments:
    """The names of a program: where one is taken, the next of `x`, `x_2`, `x_3`, ..."""
    used = {"tl", "triton", "float", program.name, *keyword.kwlist, *runtime_names()}
    used |= {symbol.name for symbol in program.sizes} | {*program.constants}
    used |= {pointer(buffer) for buffer in program.buffers}

    def free(name: str) -> str:
        used.add(found := numbered(name, used))
        return found

    places = {axis: free(f"p_{axis}") for axis, _ in program.grid}
    strides = {
        (buffer.name, axis): free(f"{buffer.name}_{axis}")
        for buffer in program.buffers
        for axis in buffer.steps
    }
    return Arguments(places, strides, _copies(program, free), frozenset(used), of)


def _copies(program: Program, free: Callable[[str], str]) -> dict[LoadBlock, str]:
    """The descriptors that blocks are read by, one for each shape of them."""
    found: dict[LoadBlock, str] = {}
    for statement in statements(program.body):
        op = statement.op
        if isinstance(op, LoadBlock) and op not in found:
            found[op] = free(f"{op.buffer.name}_blocks")
    return found
