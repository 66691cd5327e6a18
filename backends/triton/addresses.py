"""How values and addresses of a program are written.

A value goes by its name, unless the text needs that for something else (`arguments.py`), or is a
part of one formula (`nesting.py`). An address is a scalar part in 64 bits and a part for each tile
index in 32; what several addresses share has a name.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import sympy
from archc.backends.triton.arguments import arguments, pointer
from archc.backends.triton.elementwise import TEXT
from archc.backends.triton.nesting import least_level, level_of, nested
from archc.backends.triton.spelling import (
    LONG,
    TRITON,
    dtype_text,
    number_text,
    shape_text,
    size_text,
    times_text,
)

from archc.ir.free_names import marked, numbered
from archc.tile.language import (
    Atomic,
    Block,
    Buffer,
    Full,
    If,
    Load,
    Program,
    Relabel,
    Statement,
    Store,
    Type,
    Value,
    parts,
    statements,
)
from archc.tile.sharing import twins

SHORT = 76
"""How long the arguments of a tile may be beside what else a line has."""


def _value_names(block: Block) -> Iterator[str]:
    """The names of all values of a block and of those inside it."""
    yield from (value.name for value in block.arguments)
    for statement in block.statements:
        yield from (value.name for value in statement.results)
        for inner in statement.blocks:
            yield from _value_names(inner)


def _widened(buffer: Buffer, places: dict[str, Value]) -> list[Value]:
    """The scalars of an address that stand in 64 bits: what a stride is multiplied by, or the first
    term of the place in what is contiguous."""
    if buffer.strided:
        return [*places.values()]
    parts = ([places[axis] for axis, _ in part if axis in places] for part in _parts(buffer))
    return [value for part in parts for value in part[:1]]


def _parts(buffer: Buffer) -> list[tuple[tuple[str, sympy.Expr], ...]]:
    """The axes as far as the one whose stride is given, and those after it; or all of them."""
    count = [axis for axis, _ in buffer.axes].index(buffer.rows) + 1 if buffer.rows else 0
    return [part for part in (buffer.axes[:count], buffer.axes[count:]) if part]


Leading = tuple[tuple[sympy.Expr, Value], ...]
"""Sizes of the first axes of a buffer, and the places along them."""


def _leading(buffer: Buffer, places: dict[str, Value]) -> list[Leading]:
    """The axes that a contiguous buffer begins with of which a tile has one place each: the first
    two, three and so on."""
    axes = itertools.takewhile(lambda axis: axis[0] in places, buffer.axes)
    found = tuple((size, places[axis]) for axis, size in axes)
    return [found[:count] for count in range(2, len(found) + 1) if not buffer.steps]


def _wide_of_row(statement: Statement) -> list[Value]:
    """What a row of a table says in 64 bits."""
    fields = statement.op.fields if isinstance(statement.op, If) else ()
    pairs = zip(fields, statement.results, strict=False)
    return [value for name, value in pairs if name in ("sequence", "row")]


def _of_row(statement: Statement) -> list[Statement]:
    """The statements that a call reads a row of a table by."""
    row = isinstance(statement.op, If) and statement.op.fields
    return statement.blocks[0].statements if row else []


class Names:
    """The names of the values of one program, and the texts of its addresses. `of`: the module of
    what Triton has, `functions` those of elements."""

    of: ClassVar[str] = TRITON
    functions: ClassVar[Mapping[str, Callable[..., str]]] = TEXT

    def __init__(self, program: Program):
        self.program = program
        self.texts: dict[Value, str] = {}
        self.made: dict[Value, Statement] = {}
        self.uses: Counter[Value] = Counter()
        self.wide: Counter[Value] = Counter()
        self.parted: Counter[Value] = Counter()
        self.leading: Counter[Leading] = Counter()
        self.own: dict[Value, Block] = {}
        self.nested = nested(program)
        self.twins = self._twins(program)
        self.within: dict[Value, str] = {}
        self.named: list[dict[str, str]] = [{}]
        self.names = arguments(program, self.of)
        self.values = frozenset(_value_names(program.body))
        self._mark(program.body, self.names.taken)
        self.words = {*self.names.taken, *map(self.name, self.own)}
        rows = {s for each in statements(program.body) for s in _of_row(each)}
        self.long = {v for each in statements(program.body) for v in _wide_of_row(each)}
        for statement in statements(program.body):
            if statement in rows:  # a call has them all
                continue
            self.made |= dict.fromkeys(statement.results, statement)
            self.uses.update(self.twins.get(value, value) for value in statement.operands)
            for inner in statement.blocks:
                self.uses.update(self.twins.get(value, value) for value in inner.yields)
            if isinstance(statement.op, Load | Store | Atomic):
                buffer, index = statement.op.buffer, statement.operands
                index = index[: len(buffer.axes)]
                places = self._places(buffer, index)
                parted = (each for each in index if None not in self._split(each))
                self.parted.update(self.twins.get(each, each) for each in parted)
                self.wide.update(_widened(buffer, places))
                self.leading.update(_leading(buffer, places))

    def _twins(self, program: Program) -> dict[Value, Value]:
        """The places and masks that need no line: another one made them, all of whose parts have a
        line as well."""
        known, found = twins(program), dict[Value, Value]()
        for statement in statements(program.body):
            for value in statement.results:
                first = known.get(value)
                parts = {each for each in statement.operands if each in known}
                if first is not None and first not in self.nested and parts <= {*found}:
                    found[value] = first
        return found

    def _mark(self, block: Block, taken: frozenset[str]) -> None:
        """In which block each value is made, and another name where its own is taken."""
        made = (value for statement in block.statements for value in statement.results)
        for value in (*block.arguments, *made):
            self.own[value] = block
            if value.name in taken:
                self.texts[value] = marked(value.name, taken | self.values, "_")
        for statement in block.statements:
            for inner in statement.blocks:
                self._mark(inner, taken)

    def size(self, size: sympy.Expr) -> str:
        """How a size is written."""
        return size_text(size, self.of)

    def dtype(self, dtype: str) -> str:
        """How a dtype is written."""
        return dtype_text(dtype, self.of)

    def shape(self, type: Type) -> str:
        """How the lengths of a tile are written."""
        return shape_text(type, self.of)

    def name(self, value: Value) -> str:
        """How a value is written."""
        return self.within.get(value) or self.texts.get(value, value.name)

    def bound(self, value: Value, least: int = 9) -> str:
        """How a value is written that must hold together as tightly as this (`nesting.LEVELS`)."""
        source = self.source(value)
        loose = source in self.within and level_of(self.made[source]) < least
        return f"({self.name(value)})" if loose else self.name(value)

    def source(self, value: Value) -> Value:
        """The value whose text one has that is the same under other names of dims."""
        made = self.made.get(value)
        return (
            self.source(made.operands[0])
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
                own.append(
                    f"{self.seen(tile, dims, 2)}{times_text(self.names.stride(buffer, axis))}"
                )
        lines, base = self._wide_lines(_widened(buffer, shared)), pointer(buffer)
        offset = self._offset(buffer, shared, lines)
        if own and offset and len(" + ".join([base, *offset, *own])) > LONG:
            more, base = self._first(buffer, base, offset)
            lines += more
            while len(own) > 1 and len(" + ".join([base, *own])) > LONG:
                more, base = self._first(buffer, base, own[:1])
                lines, own = [*lines, *more], own[1:]
            return lines, " + ".join([base, *own])
        base = " + ".join([base, *offset])
        return lines, " + ".join([f"({base})" if own and offset else base, *own])

    def tile(
        self, buffer: Buffer, index: Sequence[Value], dims: Sequence[str], masks: Sequence[Value]
    ) -> tuple[list[str], list[str], list[str]] | None:
        """The arguments of `load_tile` and `store_tile` for a tile of two dims, after lines that
        name where it begins, and those that stand last; None where an index or a mask is one of
        both dims."""
        found = self._along(buffer, index, dims)
        if len(found) != 2 or any(len(mask.type.dims) > 1 for mask in masks):
            return None
        own, last = list[str](), list[str]()
        for dim, (text, step) in found.items():
            first = dim == dims[0]
            where = [m for m in masks if m.type.names == (dim,) or (first and not m.type.dims)]
            least = 2 if len(where) > 1 else 0
            inside = " & ".join(self.bound(mask, least) for mask in where) or "None"
            own += [text, step, inside] if first else [text, inside]
            last += [] if first or step == "1" else [f"j_step={step}"]
        shared = self._places(buffer, index)
        lines = self._wide_lines(_widened(buffer, shared))
        offset = self._offset(buffer, shared, lines)
        base = " + ".join([pointer(buffer), *offset])
        if offset and len(", ".join([base, *own])) > SHORT:
            more, base = self._first(buffer, pointer(buffer), offset)
            lines += more
        return lines, [base, *own], last

    def _along(
        self, buffer: Buffer, index: Sequence[Value], dims: Sequence[str]
    ) -> dict[str, tuple[str, str]]:
        """By the dims of a tile the index along each and its stride, or the sum of several, and 1;
        nothing where one index has two dims."""
        found: dict[str, list[tuple[Value, str]]] = {}
        for (axis, _), value in zip(buffer.axes, index, strict=True):
            tile = self._split(value)[1]
            if tile is not None:
                if len(tile.type.dims) > 1:
                    return {}
                found.setdefault(tile.type.names[0], []).append(
                    (tile, self.names.stride(buffer, axis))
                )
        return {d: self._sum_of(found[d]) for d in dims if d in found} if len(dims) == 2 else {}

    def _sum_of(self, parts: Sequence[tuple[Value, str]]) -> tuple[str, str]:
        """An index and its stride; of several along one dim how far it is, in 64 bits."""
        if len(parts) == 1:
            ((tile, stride),) = parts
            return self.bound(tile), stride
        return " + ".join(f"{self.bound(t, 2)}{times_text(s)}" for t, s in parts), "1"

    def _places(self, buffer: Buffer, index: Sequence[Value]) -> dict[str, Value]:
        """The part of an index that is the same for all elements of a tile, by axis, without
        zeros."""
        axes = (axis for axis, _ in buffer.axes)
        scalars = {axis: self._split(value)[0] for axis, value in zip(axes, index, strict=True)}
        found = {axis: each for axis, each in scalars.items() if each is not None}
        return {axis: each for axis, each in found.items() if self._number_of(each) != "0"}

    def _first(self, buffer: Buffer, base: str, offset: Sequence[str]) -> tuple[list[str], str]:
        """Lines that name where a tile begins, and the name: none where it stands already."""
        return self.called(f"{buffer.name}_at", " + ".join([base, *offset]))

    def called(self, title: str, text: str) -> tuple[list[str], str]:
        """A name for a text, and the line that makes it unless this block or one around it did."""
        for known in reversed(self.named):
            if text in known:
                return [], known[text]
        name = numbered(title, self.words)
        self.words.add(name)
        self.named[-1][text] = name
        return [f"{name} = {text}"], name

    def _wide_lines(self, places: Iterable[Value]) -> list[str]:
        """Lines that name scalars in 64 bits by which several addresses are found."""
        lines: list[str] = []
        for value in places:
            if self.wide[value] > 1 and not self._is_long(value):
                name = self.name(value)
                lines += self.called(*self.widened(name))[0] if name.isidentifier() else []
        return lines

    def widened(self, name: str) -> tuple[str, str]:
        """What a scalar is called in 64 bits, and its text."""
        return f"{name}_64", f"{self.of}.cast({name}, {self.of}.int64)"

    def _offset(self, buffer: Buffer, places: dict[str, Value], lines: list[str]) -> list[str]:
        """How far it is to an element, as addends: of a strided buffer one an axis, else
        `(b * T + t) * H + h`, or `(b * T + t) * x_t + h * K`. The first term of each is in 64 bits,
        and so is what is added to it; what several buffers begin with is named in `lines`."""
        if buffer.strided:
            return [f"{self._wide(v)} * {self.names.stride(buffer, a)}" for a, v in places.items()]
        found = []
        for part in _parts(buffer):
            text, level = self._place(buffer, part, places, lines)
            if text and part[-1][0] == buffer.rows:
                text = f"({text})" if level else text
                text = f"{text} * {self.names.stride(buffer, buffer.rows)}"
            found += [text] * bool(text)
        return found

    def _place(
        self, buffer: Buffer, axes: Sequence[tuple[str, sympy.Expr]], places: dict[str, Value],
        lines: list[str],
    ) -> tuple[str, int]:  # fmt: skip
        """A place among axes, each as long as all of the next, and whether that is a sum."""
        text, level, shared = "", 0, self._shared(buffer, places)
        for place, (axis, size) in enumerate(axes):
            if place and place == shared:
                title = "_".join(name for name, _ in axes[min(1, place - 1) : place])
                more, text = self.called(f"at_{title}", text)
                lines += more
                level = 0
            if text:
                text = f"({text}) * {self.size(size)}" if level else f"{text} * {self.size(size)}"
                level = 0
            if axis in places and text:
                text, level = f"{text} + {self.bound(places[axis], 2)}", 1
            elif axis in places:
                text = self._wide(places[axis])
        return text, level

    def _shared(self, buffer: Buffer, places: dict[str, Value]) -> int:
        """How many axes most other addresses begin with too; 0 where none does."""
        found = [each for each in _leading(buffer, places) if self.leading[each] > 1]
        return len(max(found, key=lambda each: (self.leading[each], len(each)), default=()))

    def mask(self, masks: Sequence[Value], dims: Sequence[str]) -> str:
        """All masks at once."""
        least = 9 if len(masks) > 1 else 0
        return " & ".join(self.seen(mask, dims, least) for mask in masks)

    def _split(self, index: Value) -> tuple[Value | None, Value | None]:
        """A scalar and a tile whose sum an index is."""
        return parts(index, self.made.get(index))

    def _wide(self, scalar: Value) -> str:
        """A scalar in 64 bits: offsets may be longer than 32."""
        if self._is_long(scalar):
            return self.bound(scalar, 2)
        _, text = self.widened(self.name(scalar))
        return next((known[text] for known in self.named if text in known), text)

    def _is_long(self, scalar: Value) -> bool:
        """Whether a scalar has 64 bits."""
        return scalar.type.dtype == "i64" or scalar in self.long
