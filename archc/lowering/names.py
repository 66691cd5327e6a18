"""Names in tile programs: of tensors, their axes and sizes, so that no two arguments share one."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterator
from functools import lru_cache

import sympy

from archc.dims import counts_tokens, in_words
from archc.ir.kernel import Kernel

RESERVED = frozenset({
    "tl", "triton", "kernel", "program", "float", "T", "B", "BLOCK", "BLOCKS", "IO", "DOT",
    "PRECISION", "ROWS", "SPLITS", "SHARE", "exchange", "counter", "index_p", "index_batch",
    "index_after_p", "index_after_batch",
})  # fmt: skip
"""Words of the text and arguments that are no tensor's and no size's."""


@lru_cache(maxsize=1024)
def plain(text: str) -> str:
    """The nearest word in ASCII: `K'` is `K_prime`, `S[0]` is `S_0`."""
    text = re.sub(r"\[(\w+)\]", r"_\1", in_words(text).replace("'", "_prime"))
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in text)


def axis_name(axis: str) -> str:
    """The name of a tensor's axis in a program: its stride is not the pointer `x_p`, and no number
    of rows; `segment` is the compiler's own."""
    name = plain(axis)
    taken = name.rstrip("_") in ("p", "rows", "segment") and not counts_tokens(axis)
    return f"{name}_" if taken else name


def size_name(symbol: sympy.Basic, reserved: Collection[str] = ()) -> str:
    """The name of a size or an option in a program; blocks and places in the grid begin otherwise,
    and so do the lengths of sequences (`T`, `T_m`), which keep their names."""
    name = plain(str(symbol))
    stem = re.sub("(_size)+$", "", name)
    taken = (
        stem in RESERVED
        or stem in reserved
        or keyword.iskeyword(stem)
        or stem.split("_")[0] in ("p", "B", "T")
    )
    return f"{name}_size" if taken and not counts_tokens(str(symbol)) else name


def buffer_names(kernel: Kernel, reserved: Collection[str] = ()) -> dict[str, str]:
    """The name of each tensor of a kernel in its program: no pointer, stride or number of rows is
    called as another, as a size, or by a word that is `reserved`."""
    axes = {axis_name(axis.name) for node in kernel.graph for axis in node.type.axes}
    used = RESERVED | {*reserved} | {*_sizes(kernel)} | {f"p_{axis}" for axis in axes}
    found: dict[str, str] = {}
    for name in sorted({*kernel.loads.values(), *kernel.stores, *kernel.ends.values()}):
        base = plain(name)
        while used & _arguments(base, axes):
            base += "_"
        used |= _arguments(base, axes)
        found[name] = base
    return found


def _arguments(base: str, axes: Collection[str]) -> set[str]:
    """Everything that a launch may be given of a tensor, and its name, as of a number."""
    return {base, f"{base}_p", f"{base}_rows", *(f"{base}_{axis}" for axis in axes)}


def _sizes(kernel: Kernel) -> Iterator[str]:
    """The names of a program's sizes and options, and of the blocks of its axes."""
    symbols = {
        s for node in kernel.graph for axis in node.type.axes for s in axis.size.free_symbols
    }
    yield from map(size_name, symbols)
    sizes = {axis.size for node in kernel.graph for axis in node.type.axes}
    yield from (f"B_{plain(str(size))}" for size in sizes)
