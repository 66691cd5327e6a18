"""How values and addresses of a program are written.

A value goes by its name, unless the text needs that for something else (`arguments.py`), or is a
part of one formula (`nesting.py`). An address is a scalar part in 64 bits and a part for each tile
index in 32; what several addresses share has a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import sympy
from archc.backends.triton.arguments import arguments, pointer
from archc.backends.triton.nesting import least_level, level_of, nested
from archc.backends.triton.spelling import LONG, number_text, size_text, summed, times_text, titles

from archc.tile.language import (
    Apply,
    Atomic,
    Block,
    Buffer,
    Full,
    Load,
    Program,
    Relabel,
    Statement,
    Store,
    Value,
    statements,
)


def _value_names(block: Block) -> Iterator[str]:
    """The names of all values of a block and of those inside it."""
    yield from (value.name for value in block.arguments)
    for statement in block.statements:
        yield from (value.name for value in statement.results)
        for inner in statement.blocks:
            yield from _value_names(inner)


def _widened(buffer: Buffer, places: dict[str, Value]) -> list[Value]:
    """The scalars of an address that stand in 64 bits: what a stride is multiplied by, or the first
    term of the place in a contiguous buffer."""
    return [*places.values()] if buffer.strided else [*places.values()][:1]


class Names:
    """The names of the values of one program, and the texts of its addresses."""

    def __init__(self, program: Program):
        self.program = program
        self.texts: dict[Value, str] = {}
        self.made: dict[Value, Statement] = {}
        self.uses: Counter[Value] = Counter()
        self.wide: Counter[Value] = Counter()
        self.own: dict[Value, Block] = {}
        self.nested = nested(program)
        self.within: dict[Value, str] = {}
        self.named: list[dict[str, str]] = [{}]
        self.names = arguments(program)
        self.values = frozenset(_value_names(program.body))
        self._mark(program.body, self.names.taken)
        self.words = {*self.names.taken, *map(self.name, self.own)}
        for statement in statements(program.body):
            self.made |= dict.fromkeys(statement.results, statement)
            self.uses.update(statement.operands)
            for inner in statement.blocks:
                self.uses.update(inner.yields)
            if isinstance(statement.op, Load | Store | Atomic):
                buffer, index = statement.op.buffer, statement.operands
                places = self._places(buffer, index[: len(buffer.axes)])
                self.wide.update(_widened(buffer, places))

    def _mark(self, block: Block, taken: frozenset[str]) -> None:
        """In which block each value is made, and another name where its own is taken."""
        made = (value for statement in block.statements for value in statement.results)
        for value in (*block.arguments, *made):
            self.own[value] = block
            if value.name in taken:
                self.texts[value] = self._free(value.name)
        for statement in block.statements:
            for inner in statement.blocks:
                self._mark(inner, taken)

    def _free(self, name: str) -> str:
        """Another name, which neither an argument nor a value has."""
        while name in self.names.taken or name in self.values:
            name += "_"
        return name

    def name(self, value: Value) -> str:
        """How a value is written."""
        return self.within.get(value) or self.texts.get(value, value.name)

    def bound(self, value: Value, least: int = 9) -> str:
        """How a value is written that must hold together as tightly as this (`nesting.LEVELS`)."""
        source = self._relabelled(value)
        loose = source in self.within and level_of(self.made[source]) < least
        return f"({self.name(value)})" if loose else self.name(value)

    def _relabelled(self, value: Value) -> Value:
        """The value whose text one has that is the same under other names of dims."""
        made = self.made.get(value)
        return (
            self._relabelled(made.operands[0])
            if made is not None and isinstance(made.op, Relabel)
            else value
        )

    def seen(self, value: Value, names: Sequence[str], least: int = 0) -> str:
        """A value among dims of these names, of which a missing one is `None`; it holds together as
        tightly as `least` says."""
        own = value.type.names
        if not own or tuple(names) == own:
            return self.bound(value, least)
        return f"{self.bound(value)}[{', '.join(':' if n in own else 'None' for n in names)}]"

    def operand(self, place: int, statement: Statement) -> str:
        """An operand of a function: a whole number beside a value of its dtype needs none."""
        value = statement.operands[place]
        number = self._number_of(value)
        others = [o for o in statement.operands if self._number_of(o) is None]
        if number is not None and any(o.type.dtype == value.type.dtype == "i64" for o in others):
            return number
        least = least_level(statement.op.function, place)
        return self.seen(value, statement.results[0].type.names, least)

    def _number_of(self, value: Value) -> str | None:
        """A scalar that is one number, as that."""
        made = self.made.get(value)
        plain = made is not None and isinstance(made.op, Full) and not value.type.dims
        return number_text(made.op.number) if made is not None and plain else None

    # --- addresses ---

    def address(
        self, buffer: Buffer, index: Sequence[Value], dims: Sequence[str]
    ) -> tuple[list[str], str]:
        """The pointer of an element for each index: first what all elements of a tile share, which
        has lines of its own where it is long."""
        shared, own = self._places(buffer, index), []
        for (axis, _), value in zip(buffer.axes, index, strict=True):
            tile = self._split(value)[1]
            if tile is not None:
                own.append(f"{self.seen(tile, dims, 2)}{times_text(self._stride(buffer, axis))}")
        lines, base = self._wide_lines(_widened(buffer, shared)), pointer(buffer)
        offset = self._offset(buffer, shared)
        if own and offset and len(" + ".join([base, *offset, *own])) > LONG:
            more, base = self._first(buffer, base, offset)
            lines += more
            while len(own) > 1 and len(" + ".join([base, *own])) > LONG:
                more, base = self._first(buffer, base, own[:1])
                lines, own = [*lines, *more], own[1:]
            return lines, " + ".join([base, *own])
        base = " + ".join([base, *offset])
        return lines, " + ".join([f"({base})" if own and offset else base, *own])

    def _places(self, buffer: Buffer, index: Sequence[Value]) -> dict[str, Value]:
        """What is the same for all elements of a tile, by axis; a 0 adds nothing."""
        axes = (axis for axis, _ in buffer.axes)
        scalars = {axis: self._split(value)[0] for axis, value in zip(axes, index, strict=True)}
        found = {axis: each for axis, each in scalars.items() if each is not None}
        return {axis: each for axis, each in found.items() if self._number_of(each) != "0"}

    def _first(self, buffer: Buffer, base: str, offset: Sequence[str]) -> tuple[list[str], str]:
        """Lines that name where a tile begins, and the name: none where it stands already."""
        return self._called(f"{buffer.name}_at", " + ".join([base, *offset]), [base, *offset])

    def _called(self, title: str, text: str, terms: Sequence[str]) -> tuple[list[str], str]:
        """A name for a text, and the lines that make it unless this block or one around it did."""
        for known in reversed(self.named):
            if text in known:
                return [], known[text]
        name = next(t for t in titles(title) if t not in self.words)
        self.words.add(name)
        self.named[-1][text] = name
        return [*summed(name, terms)], name

    def _wide_lines(self, places: Iterable[Value]) -> list[str]:
        """Lines that name scalars in 64 bits by which several addresses are found."""
        lines: list[str] = []
        for value in places:
            if self.wide[value] > 1 and value.type.dtype != "i64":
                lines += self._wide_line(self.name(value))
        return lines

    def _wide_line(self, name: str) -> list[str]:
        """The line that names a scalar in 64 bits, if it stands nowhere yet."""
        text = f"tl.cast({name}, tl.int64)"
        return self._called(f"{name}_64", text, [text])[0] if name.isidentifier() else []

    def _offset(self, buffer: Buffer, places: dict[str, Value]) -> list[str]:
        """How far it is to an element, as addends: of a strided buffer one an axis, else
        `(b * T + t) * H + h`. The first term is in 64 bits, and so is what is added to it."""
        if buffer.strided:
            return [f"{self._wide(v)} * {self._stride(buffer, a)}" for a, v in places.items()]
        text, level = "", 0
        for axis, size in buffer.axes:
            if text:
                text = f"({text}) * {size_text(size)}" if level else f"{text} * {size_text(size)}"
                level = 0
            if axis in places and text:
                text, level = f"{text} + {self.bound(places[axis], 2)}", 1
            elif axis in places:
                text = self._wide(places[axis])
        return [text] if text else []

    def mask(self, masks: Sequence[Value], dims: Sequence[str]) -> str:
        """All masks at once."""
        least = 9 if len(masks) > 1 else 0
        return " & ".join(self.seen(mask, dims, least) for mask in masks)

    def _split(self, index: Value) -> tuple[Value | None, Value | None]:
        """A scalar and a tile whose sum an index is."""
        if not index.type.dims:
            return index, None
        made = self.made.get(index)
        if made is not None and made.op == Apply("add"):
            for scalar, tile in (made.operands, made.operands[::-1]):
                if not scalar.type.dims and tile.type.dims == index.type.dims:
                    return scalar, tile
        return None, index

    def _wide(self, scalar: Value) -> str:
        """A scalar in 64 bits: offsets may be longer than 32."""
        if scalar.type.dtype == "i64":
            return self.bound(scalar, 2)
        text = f"tl.cast({self.name(scalar)}, tl.int64)"
        return next((known[text] for known in self.named if text in known), text)

    def _stride(self, buffer: Buffer, axis: str) -> str:
        """From one place along an axis to the next: given, or the sizes of the axes after it."""
        if buffer.strided:
            return self.names.strides[buffer.name, axis]
        names = [name for name, _ in buffer.axes]
        after = [size for _, size in buffer.axes[names.index(axis) + 1 :]]
        return size_text(sympy.Mul(*after))
