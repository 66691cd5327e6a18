"""Names in kernels: of tensors, of sizes, and those that values cannot have."""

from __future__ import annotations

import re
from collections.abc import Collection

import sympy
from archc.backends.writer import identifier

from archc.dims import OWN, free_symbols, in_words
from archc.ir import chunk as ck
from archc.ir.kernel import Kernel
from archc.ir.value_names import unsaved

FIRST = ("p", "i", "in", "B", "packed")
"""What names of indices, masks and blocks begin with: `p_H`, `i_K`, `in_K`, `B_K`."""


def pointer(name: str) -> str:
    """What functions call a value: `S_0` for `S[0]`. Its strides are no names of indices."""
    text = identifier(name.rstrip("]").replace("[", "_"))
    return f"{text}_" if text.rstrip("_") in FIRST else text


SEQUENCE = ("p_sequence", "base", "start", "end", "low", "high")
"""What a program knows of its sequence: its place among several (which is its index of the batch,
unless they are packed), the token at which a chunk 0 of it would begin, the first of its
tokens and the one after its last, and the same of its chunks."""

RESERVED = {
    "T", "CHUNKS", "ROWS", "PART", "LEVELS", "DOT", "SUMS", "SOLVE", "PRECISION", "program",
    "block", "DIMS", "dim", "first", "row", "part", "n", "step", "tl", "triton", "kernel",
    "packed_p", "packed_row", "packed_batch", *SEQUENCE,
}  # fmt: skip
"""Words that lines of kernels use."""


def size_name(size: sympy.Symbol) -> str:
    """The name of a size or an option in a kernel."""
    if size == ck.CHUNK:
        return "ROWS"
    name = identifier(in_words(size))
    stem = re.sub("(_size)+$", "", name)
    taken = stem in RESERVED or stem.split("_")[0] in (*FIRST, "T")
    return f"{name}_size" if taken and not str(size).endswith(OWN) else name


def program_name(axis: str) -> str:
    """The name of a program's place along a dim: `p_H`."""
    name = f"p_{identifier(axis)}"
    return f"{name}_" if name in SEQUENCE else name


def pointers(kernel: Kernel) -> dict[str, str]:
    """What a kernel calls each of its tensors: `pointer`, unless two would have a name in common,
    as a value `S_0` and the state `S` before the first token would."""
    found: dict[str, str] = {}
    used, axes = _sizes(kernel) | RESERVED, _axes(kernel)
    for name in sorted({*kernel.loads.values(), *kernel.stores, *kernel.ends.values()}):
        base = pointer(unsaved(name))
        while used & _names(axes, base):
            base += "_"
        used |= _names(axes, base)
        found[name] = base
    return found


def _axes(kernel: Kernel) -> set[str]:
    """What a kernel calls its axes."""
    names = {axis.name for node in kernel.graph for axis in node.type.axes}
    return {identifier(name) for name in names}


def _names(axes: Collection[str], base: str) -> set[str]:
    """A tensor's pointer, and its strides along whatever axes there are."""
    return {f"{base}_p", *(f"{base}_{axis}" for axis in axes)}


def taken(kernel: Kernel) -> set[str]:
    """Names that values cannot have: sizes, and how axes of tensors are walked."""
    found, axes = RESERVED | _sizes(kernel), _axes(kernel)
    return found.union(*(_names(axes, base) for base in pointers(kernel).values()))


def _sizes(kernel: Kernel) -> set[str]:
    """What a kernel calls its sizes."""
    sizes = {axis.size for node in kernel.graph for axis in node.type.axes}
    return {size_name(symbol) for symbol in {s for size in sizes for s in free_symbols(size)}}
