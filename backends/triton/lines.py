"""The lines of a kernel: names, sizes, places on the axes, and what is in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy
from archc.backends.triton.naming import pointers, size_name, taken
from archc.backends.triton.tile import BOOL, INT, REAL, Index, Tile, spread
from archc.backends.writer import Names, Writer, identifier

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir.graph import Node, Type
from archc.ir.kernel import Kernel
from archc.ir.value_names import unsaved

ROOM = 64
"""How long the sum is that says where a tensor begins; longer ones take several lines."""

INDICES = {"ROWS": "row", "PART": "part", "DIMS": "dim"}
"""The names of indices of blocks that are not of a size."""

Place = tuple[tuple[str, Index], ...]
"""For each axis of a value where it is wanted."""


@lru_cache(maxsize=4096)
def sized(size: sympy.Expr) -> str:
    """A size by the names that kernels have for symbols."""
    names: Any = {s: sympy.Symbol(size_name(s)) for s in size.free_symbols}
    return str(size.subs(names, simultaneous=True))


class NotInKernel(Exception):
    """An op, or a place at which its value is wanted, that kernels do not have: `node` of the
    kernel's graph stays with PyTorch."""

    node: int | None = None


class NotWhole(NotInKernel):
    """A value that looks across an axis is wanted at moved places of it."""


class Lines:
    """What is written of a kernel, and what is known of it: `lengths` and `bounds` of labels,
    `blocks` and the sizes that they are of, `indices` that a program has one of."""

    sequence = "p_sequence"
    """What lines call the place of a program's sequence among packed ones; "" where none are."""

    def __init__(self, kernel: Kernel):
        self.kernel, self.pointers = kernel, pointers(kernel)
        self.names, self.writer = Names(taken(kernel)), Writer()
        self.made: dict[Any, Tile] = {}
        self.texts: dict[str, str] = {}
        self.arguments: dict[str, Node] = {}
        self.order: list[str] = []
        self.indices: dict[str, Index] = {}
        self.lengths: dict[str, str] = {}
        self.bounds: dict[str, str] = {}
        self.blocks: dict[str, sympy.Expr] = {}
        self.halved: set[str] = set()
        self.cut: set[str] = set()
        self.pieces: set[str] = set()
        self.looped = ""
        self.has_few = False

    @property
    def most(self) -> int:
        """The longest block of the axis that is split."""
        return self.kernel.most

    def is_split(self, block: str) -> bool:
        """Whether a block is only a part of the axis that it is of."""
        return block in ("PART", "DIMS")

    @contextmanager
    def branch(self, header: str) -> Iterator[None]:
        """Lines that are done in some cases: what is made in them is not known after them."""
        kept, texts = dict(self.made), dict(self.texts)
        with self.writer.block(header):
            yield
        self.made, self.texts = kept, texts

    @contextmanager
    def part_by_part(self, axis: Axis) -> Iterator[None]:
        """A loop over the blocks of an axis: what is made in it is not known after it."""
        with self.branch(f"for first in range(0, {self.size_text(axis)}, DIMS):"):
            self.writer.line("dim = first + tl.arange(0, DIMS)")
            self.looped = axis.name
            self.whole(axis)
            yield
        self.looped = ""

    @contextmanager
    def block_by_block(self, axis: Axis) -> Iterator[Index]:
        """A loop over parts of an axis, with the index of one."""
        block, label, size = self.block(axis), f"{axis.name} part", self.size_text(axis)
        self.blocks[block], self.lengths[label] = axis.size, f"{block}_PART"
        self.cut.add(block)
        first = self.names.fresh("first")
        with self.branch(f"for {first} in range(0, {size}, {block}_PART):"):
            text = self.let("part", f"{first} + tl.arange(0, {block}_PART)")
            self.bounds[label] = f"{text} < {size}"
            yield Index(text, label, False, self.bounds[label])

    @contextmanager
    def one_by_one(self, axis: Axis | None) -> Iterator[dict[str, Index]]:
        """A loop over the indices of an axis, and where a value is wanted in it; no loop without an
        axis. What is made in it is not known after it."""
        if axis is None:
            yield {}
            return
        kept, texts, k = dict(self.made), dict(self.texts), self.names.fresh("k")
        with self.writer.block(f"for {k} in range({self.size_text(axis)}):"):
            yield {axis.name: Index(k)}
        self.made, self.texts = kept, texts

    # --- text ---

    def let(self, hint: str, text: str) -> str:
        """A line that names a value."""
        if text.isidentifier():
            return text
        name = self.names.fresh(hint)
        self.writer.line(f"{name} = {text}")
        return name

    def let_index(self, hint: str, text: str) -> str:
        """A name for an index; the same text has one name."""
        if text.isidentifier():
            return text
        if text not in self.texts:
            self.texts[text] = self.let(hint, text)
        return self.texts[text]

    def see(self, tile: Tile) -> Tile:
        """Know the labels of a tile, so that they have an order."""
        for label in tile.labels:
            if label not in self.order:
                self.order.append(label)
        return tile

    def arranged(self, tile: Tile, labels: tuple[str, ...]) -> Tile:
        """A tile with its dims in another order."""
        if tile.labels == labels:
            return tile
        key = ("arranged", tile.text, labels)
        if key in self.made:
            return replace(self.made[key], clean=tile.clean, finite=tile.finite)
        order = [tile.labels.index(label) for label in labels]
        turned = f"tl.permute({tile.text}, {tuple(order)})"
        text = f"tl.trans({tile.text})" if len(order) == 2 else turned
        name = self.let(f"{tile.text}_t", text)
        self.made[key] = replace(tile, text=name, labels=labels, turned=not tile.turned)
        return self.made[key]

    # --- sizes and places ---

    def size(self, size: sympy.Expr) -> str:
        """A size by the names that kernels have for symbols."""
        return sized(size)

    def size_text(self, axis: Axis) -> str:
        """The length of an axis, as text."""
        return self.size(axis.size)

    def block(self, axis: Axis) -> str:
        """The length of the tile of an axis: a power of 2."""
        if axis.size == ck.CHUNK:
            return "ROWS"
        if self.kernel.split is not None and axis.name == self.kernel.split.name:
            return "PART"
        if axis.name == self.looped:
            return "DIMS"
        return f"B_{identifier(str(axis.size))}"

    def levels(self, label: str) -> str:
        """The number of times that a block can be halved."""
        length = self.lengths[label]
        if length == "ROWS":
            return "LEVELS"
        self.halved.add(length)
        return f"{length}_LEVELS"

    def is_matrix(self, axes: Sequence[Axis], at: Mapping[str, Index]) -> bool:
        """Whether values lie between two dims, all of both; in a walk a program has a part."""
        return self.kernel.walk is None and len(axes) == 2 and all(
            axis.kind == "dim" and not axis.size.has(ck.CHUNK) and at[axis.name].whole
            and not self.is_split(self.block(axis)) for axis in axes
        )  # fmt: skip

    def shape(self, labels: Sequence[str]) -> str:
        """The lengths of the dims of a tile."""
        return f"({', '.join(self.lengths[label] for label in labels)}{',' * (len(labels) == 1)})"

    def area(self, tile: Tile) -> str:
        """The number of elements of a tile."""
        return " * ".join(self.lengths[label] for label in tile.labels)

    def whole(self, axis: Axis) -> Index:
        """All of an axis, or the program's block of it."""
        self.lengths[axis.name] = self.block(axis)
        self.blocks[self.block(axis)] = axis.size
        self.bounds[axis.name] = self.bound(axis)
        return Index(self.arange(axis), axis.name, True, self.bound(axis))

    def arange(self, axis: Axis) -> str:
        """The name of the indices of a tile along an axis."""
        block = self.block(axis)
        return INDICES.get(block, f"i_{block.removeprefix('B_')}")

    def bound(self, axis: Axis) -> str:
        """The mask of the indices of a tile that lie on the axis; "" if all do."""
        if axis.size == ck.CHUNK:
            return ""
        return f"{self.arange(axis)} < {self.size(axis.size)}"

    def at(self, type: Type, place: Mapping[str, Index]) -> Place:
        """A place for each axis of a type: as asked, the program's, or all of it."""
        found, taken = [], {index.label for index in place.values()}
        for axis in type.axes:
            index = place.get(axis.name) or self.indices.get(axis.name)
            if index is None and axis.name in taken:
                raise NotInKernel(f"all of {axis.name}, by which another axis goes")
            found.append((axis.name, index or self.whole(axis)))
        return tuple(found)

    def factor(self, text: str) -> str:
        """A size as a factor."""
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    # --- memory ---

    def load(self, name: str, node: Node, place: dict[str, Index]) -> Tile:
        """A value from memory: 0 where an index is off its axis."""
        at = self.at(node.type, place)
        labels = tuple(dict.fromkeys(i.label for _, i in at if i.label))
        address, mask = self.address(name, node, at, labels)
        kind = {"real": REAL, "int": INT, "bool": BOOL}[node.type.dtype]
        given = f", {mask}, 0" if mask else ""
        text = self.let(node.name or unsaved(name), f"tl.load({address}{given})")
        clean = frozenset(i.label for _, i in at if i.label and i.mask)
        return Tile(text, labels, kind, clean, stored=kind == REAL)

    def widened(self, tile: Tile) -> Tile:
        """A tile in float32."""
        if not tile.stored:
            return tile
        key = ("widened", tile.text)
        if key not in self.made:
            text = self.let(f"{tile.text}_wide", f"{tile.text}.to(tl.float32)")
            self.made[key] = replace(tile, text=text, stored=False)
        return replace(tile, text=self.made[key].text, stored=False)

    def store(
        self, name: str, node: Node, tile: Tile, place: dict[str, Index], only: str = ""
    ) -> None:
        """A tile into memory, where `only` is true."""
        at = self.at(node.type, place)
        labels = tuple(dict.fromkeys(i.label for _, i in at if i.label))
        tile = self.arranged(tile, tuple(label for label in labels if label in tile.labels))
        address, mask = self.address(name, node, at, labels)
        value = tile.text
        if tile.labels != labels:
            value = self.broadcast(tile, labels)
        mask = " & ".join(each for each in (mask, only) if each)
        self.writer.line(f"tl.store({address}, {value}{f', {mask}' if mask else ''})")

    def broadcast(self, tile: Tile, labels: tuple[str, ...]) -> str:
        """A tile made as wide as `labels`."""
        shape = self.shape(labels)
        if not tile.labels:
            return f"tl.full({shape}, {tile.text}, tl.float32)"
        tile = self.arranged(tile, tuple(label for label in labels if label in tile.labels))
        return f"tl.broadcast_to({spread(tile, labels)}, {shape})"

    def address(self, name: str, node: Node, at: Place, labels: tuple[str, ...]) -> tuple[str, str]:
        """Pointers to the elements of a tile, and where they lie in the tensor."""
        self.arguments[name] = node
        base = self.pointers[name]
        fixed = [f"{base}_p"]
        fixed += [
            f"{self._program_s(node.type, axis, i)} * {base}_{identifier(axis)}"
            for axis, i in at
            if not i.label
        ]
        parts = [self._first(base, fixed) if len(fixed) > 1 else fixed[0]]
        masks = []
        for axis, index in at:
            if not index.label:
                masks += [self.inside(axis, index.mask)] if index.mask else []
                continue
            shape = ""
            if len(labels) > 1:
                dims = (":" if label == index.label else "None" for label in labels)
                shape = f"[{', '.join(dims)}]"
            parts.append(f"{self.bracketed(index.text)}{shape} * {base}_{identifier(axis)}")
            if index.mask:
                masks.append(f"{self.inside(axis, index.mask)}{shape}")
        while len(" + ".join(parts)) > ROOM + 20 and len(parts) > 2:
            parts[:2] = [self.let_index(f"{base}_at", " + ".join(parts[:2]))]
        return " + ".join(parts), " & ".join(dict.fromkeys(masks))

    def stride(self, name: str, axis: str) -> str:
        """The distance between elements of a tensor that are neighbours along an axis."""
        return f"{self.pointers[name]}_{identifier(axis)}"

    def _program_s(self, type: Type, name: str, index: Index) -> str:
        """The program's index of an axis, as a factor. Of packed sequences what runs along tokens
        has a batch of one, and everything else one row a sequence."""
        streams = any(axis.kind == "stream" for axis in type.axes)
        if type.axis(name).kind == "batch" and not streams and self.sequence:
            return self.sequence
        return self.bracketed(index.text)

    def _first(self, base: str, terms: list[str]) -> str:
        """The name of where a program's part of a tensor begins."""
        text = " + ".join(terms)
        if text not in self.texts:
            name, lines = self.names.fresh(f"{base}_at"), [""]
            for term in terms:
                if len(lines[-1]) + len(term) > ROOM:
                    lines.append("")
                lines[-1] += f" + {term}" if lines[-1] else term
            for number, line in enumerate(lines):
                self.writer.line(f"{name} {'+=' if number else '='} {line}")
            self.texts[text] = name
        return self.texts[text]

    def inside(self, axis: str, mask: str) -> str:
        """The name of a mask."""
        return self.let_index("in_T" if mask.endswith("< end") else f"in_{identifier(axis)}", mask)

    def bracketed(self, text: str) -> str:
        """An index as a factor."""
        return text if text.isidentifier() or text.startswith("(") else f"({text})"
