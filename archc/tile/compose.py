"""How a tile program is written: values with operators, loops and branches as `with` blocks.

    k = Composer("scale", "y = a x, row by row.")
    rows, columns = k.sizes("R", "C")
    BLOCK_R, BLOCK_C = k.lengths("BLOCK_R", "BLOCK_C")
    x = k.buffer("x", r=rows, c=columns, dtype="IO", strided=True)
    y = k.buffer("y", r=rows, c=columns, dtype="IO")
    r = k.program("block", ceil_div(rows, BLOCK_R)) * BLOCK_R + k.iota("r", BLOCK_R)
    c = k.iota("c", BLOCK_C)
    inside = (r < rows, c < columns)
    k.store(y, r, c, value=2.0 * k.load(x, r, c, where=inside), where=inside)
    program = k.done()

Operands are brought into the order of dims that an op wants, and two equal statements of a block
are one, so that a lowering may ask for a value as often as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy

from archc.ir.layer import ELEMENTWISE
from archc.source import Span
from archc.tile.language import (
    Apply,
    Atomic,
    Barrier,
    Block,
    Buffer,
    Cast,
    Dim,
    Dot,
    For,
    Full,
    If,
    Iota,
    Load,
    LoadBlock,
    Op,
    Pick,
    Program,
    ProgramId,
    Random,
    Reduce,
    Relabel,
    Reshape,
    Scalar,
    Scan,
    Sort,
    Statement,
    Store,
    Transpose,
    Type,
    Value,
    kind,
)

Number = int | float | sympy.Expr
Length = int | sympy.Expr

COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not")
PURE = (
    Scalar, ProgramId, Iota, Full, Apply, Cast, Random, Reduce, Scan, Sort, Dot, Transpose, Relabel,
    Reshape, Pick,
)  # fmt: skip
"""Ops that make the same value of the same operands, wherever they stand."""


def ceil_div(a: Length, b: Length) -> sympy.Expr:
    """How many blocks of `b` cover `a`."""
    return sympy.ceiling(as_size(a) / b)


def as_size(number: Length) -> sympy.Expr:
    """A whole number as a size."""
    return number if isinstance(number, sympy.Expr) else sympy.Integer(number)


def size(symbol: str) -> sympy.Symbol:
    """The symbol of a size or of a constant of that name."""
    return sympy.Symbol(symbol, integer=True, positive=True)


def real(symbol: str) -> sympy.Symbol:
    """The symbol of a real number of that name."""
    return sympy.Symbol(symbol, real=True)


@dataclass(frozen=True, eq=False)
class Tile:
    """A value in the hands of the one who writes a program: Python's operators apply."""

    composer: Composer
    value: Value

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dims of the value."""
        return self.value.type.dims

    @property
    def dtype(self) -> str:
        """The dtype of the value."""
        return self.value.type.dtype

    def dim(self, name: str) -> Dim:
        """The dim of that name; ValueError if there is none."""
        return self.dims[self.value.type.place(name)]

    def named(self, name: str, note: str = "") -> Tile:
        """The same value under a name for readers, with the equation that it stands for."""
        return self.composer.named(self, name, note)

    def to(self, dtype: str, bits: bool = False) -> Tile:
        """The same numbers in another dtype."""
        if dtype == self.dtype:
            return self
        return self.composer.put(Cast(dtype, bits), self, type=Type(dtype, self.dims))

    def along(self, **names: str) -> Tile:
        """Dims under other names: `k.along(t="s")`."""
        found = tuple(names.get(dim.name, dim.name) for dim in self.dims)
        dims = tuple(Dim(name, dim.length) for name, dim in zip(found, self.dims, strict=True))
        return self.composer.put(Relabel(found), self, type=Type(self.dtype, dims))

    def ordered(self, *names: str) -> Tile:
        """Dims in this order."""
        if names == self.value.type.names:
            return self
        dims = tuple(self.dim(name) for name in names)
        return self.composer.put(Transpose(names), self, type=Type(self.dtype, dims))

    def shaped(self, *dims: Dim) -> Tile:
        """One dim as several, or several as one; the number of elements stays."""
        return self.composer.put(Reshape(dims), self, type=Type(self.dtype, dims))

    def reduce(self, function: str, dim: str) -> Tile:
        """`sum`, `max`, `min`, `argmax` or `argmin` along a dim."""
        rest = tuple(each for each in self.dims if each.name != dim)
        dtype = "i32" if function.startswith("arg") else self.dtype
        self.value.type.place(dim)
        return self.composer.put(Reduce(function, dim), self, type=Type(dtype, rest))

    def sum(self, dim: str) -> Tile:
        """The sum along a dim."""
        return self.reduce("sum", dim)

    def max(self, dim: str) -> Tile:
        """The largest along a dim."""
        return self.reduce("max", dim)

    def scan(self, function: str, dim: str, reverse: bool = False) -> Tile:
        """The running sum, product, max or min along a dim."""
        return self.composer.put(Scan(function, dim, reverse), self, type=self.value.type)

    def sort(self, descending: bool = False, most: Dim | None = None) -> Tile:
        """Sorted along the last dim; `most`: only the largest so many."""
        dims = self.dims if most is None else (*self.dims[:-1], most)
        return self.composer.put(Sort(descending, most), self, type=Type(self.dtype, dims))

    def pick(self, index: Tile, dim: str) -> Tile:
        """Elements along a dim at the indices of a tile."""
        return self.composer.put(Pick(dim), self, index, type=Type(self.dtype, index.dims))

    def dot(self, other: Tile, add: Tile | None = None, precision: str = "ieee") -> Tile:
        """The product of two matrices over the dim that both have, in float32."""
        return self.composer.dot(self, other, add, precision)

    def __add__(self, other: Any) -> Tile:
        return self.composer.apply("add", self, other)

    def __radd__(self, other: Any) -> Tile:
        return self.composer.apply("add", other, self)

    def __sub__(self, other: Any) -> Tile:
        return self.composer.apply("sub", self, other)

    def __rsub__(self, other: Any) -> Tile:
        return self.composer.apply("sub", other, self)

    def __mul__(self, other: Any) -> Tile:
        return self.composer.apply("mul", self, other)

    def __rmul__(self, other: Any) -> Tile:
        return self.composer.apply("mul", other, self)

    def __truediv__(self, other: Any) -> Tile:
        return self.composer.apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Tile:
        return self.composer.apply("div", other, self)

    def __floordiv__(self, other: Any) -> Tile:
        return self.composer.apply("floordiv", self, other)

    def __mod__(self, other: Any) -> Tile:
        return self.composer.apply("mod", self, other)

    def __neg__(self) -> Tile:
        return self.composer.apply("neg", self)

    def __lt__(self, other: Any) -> Tile:
        return self.composer.apply("lt", self, other)

    def __le__(self, other: Any) -> Tile:
        return self.composer.apply("le", self, other)

    def __gt__(self, other: Any) -> Tile:
        return self.composer.apply("gt", self, other)

    def __ge__(self, other: Any) -> Tile:
        return self.composer.apply("ge", self, other)

    def __and__(self, other: Any) -> Tile:
        return self.composer.apply("and", self, other)

    def __or__(self, other: Any) -> Tile:
        return self.composer.apply("or", self, other)

    def equals(self, other: Any) -> Tile:
        """Whether elements are equal (`==` compares values of the program as objects)."""
        return self.composer.apply("eq", self, other)


@dataclass
class Loop:
    """A loop that is being written: its index, what is carried, and what the next turn gets."""

    index: Tile
    carried: tuple[Tile, ...]
    results: tuple[Tile, ...] = ()
    following: tuple[Tile, ...] = ()

    def next(self, *values: Tile) -> None:
        """Hand values to the next turn; after the last one they are the loop's `results`."""
        self.following = values


class Composer:
    """Writes one program. Every method adds a statement at the end of the block that is open."""

    def __init__(self, name: str, doc: str, warps: int = 4, ahead: int = 3):
        self.name, self.doc, self.warps, self.ahead = name, doc, warps, ahead
        self.buffers: list[Buffer] = []
        self.numbers: list[sympy.Symbol] = []
        self.constants: list[str] = []
        self.grid: list[tuple[str, sympy.Expr]] = []
        self.cooperative = False
        self.span: Span | None = None
        self._body = Block()
        self._open: list[Block] = [self._body]
        self._known: list[dict[Any, Tile]] = [{}]
        self._names: dict[str, int] = {}

    # --- what a launch is given ---

    def sizes(self, *names: str) -> tuple[sympy.Symbol, ...]:
        """Whole numbers that may differ from launch to launch without new machine code."""
        return self._numbers([size(name) for name in names])

    def reals(self, *names: str) -> tuple[sympy.Symbol, ...]:
        """Real numbers that may differ from launch to launch."""
        return self._numbers([real(name) for name in names])

    def _numbers(self, symbols: list[sympy.Symbol]) -> tuple[sympy.Symbol, ...]:
        self.numbers += symbols
        self._names |= {symbol.name: 1 for symbol in symbols}
        return tuple(symbols)

    def lengths(self, *names: str) -> tuple[sympy.Symbol, ...]:
        """Numbers that machine code is made for: lengths of blocks, sizes that loops unroll."""
        self.constants += names
        self._names |= dict.fromkeys(names, 1)
        return tuple(size(name) for name in names)

    def dtypes(self, *names: str) -> tuple[str, ...]:
        """Real dtypes that machine code is made for."""
        self.constants += names
        return names

    def buffer(
        self, name: str, dtype: str = "f32", strided: bool = False, doc: str = "", **axes: Length
    ) -> Buffer:
        """Memory with named axes, in the order of the tensor's dims."""
        sized = tuple((axis, as_size(n)) for axis, n in axes.items())
        self.buffers.append(Buffer(name, sized, dtype, strided, doc))
        return self.buffers[-1]

    def program(self, axis: str, count: Length) -> Tile:
        """The place of a program along a new axis of the grid."""
        self.grid.append((axis, as_size(count)))
        return self.put(ProgramId(axis), type=Type("i32"), name=f"i_{axis}")

    # --- values ---

    def put(self, op: Op, *operands: Tile, type: Type, name: str = "") -> Tile:
        """The value of an op; the one that stands already, if an equal statement is in sight."""
        values = tuple(tile.value for tile in operands)
        if isinstance(op, Cast) and not name:
            name = f"{values[0].name}_{'wide' if op.dtype == 'f32' else op.dtype.lower()}"
        key = (op, values, type)
        if isinstance(op, PURE):
            for known in reversed(self._known):
                if key in known:
                    return known[key]
        made = Tile(self, Value(self._fresh(name or _hint(op)), type))
        self._add(Statement(op, values, (made.value,), span=self.span))
        if isinstance(op, PURE):
            self._known[-1][key] = made
        return made

    def named(self, tile: Tile, name: str, note: str = "") -> Tile:
        """Give the statement that made a value a name and an equation."""
        for block in reversed(self._open):
            for place, found in enumerate(block.statements):
                if tile.value in found.results:
                    object.__setattr__(tile.value, "name", self._fresh(name))
                    block.statements[place] = _with_note(found, note or found.note)
                    return tile
        object.__setattr__(tile.value, "name", self._fresh(name))  # what a loop carries
        return tile

    def lift(self, value: Tile | Number, like: str = "f32") -> Tile:
        """A number, or an expression in sizes, as a value."""
        if isinstance(value, Tile):
            return value
        if isinstance(value, sympy.Expr) and not value.is_number:
            dtype = "i32" if value.is_integer else "f32"
            return self.put(Scalar(value), type=Type(dtype), name="size")
        if kind(like) == "int" and int(value) == value:
            return self.put(Full(int(value), Type(like)), type=Type(like))
        return self.put(Full(float(value), Type("f32")), type=Type("f32"))

    def iota(self, name: str, length: Length) -> Tile:
        """0, 1, 2, ... along a new dim."""
        dim = Dim(name, as_size(length))
        return self.put(Iota(dim), type=Type("i32", (dim,)), name=f"i_{name}")

    def full(self, number: float, *dims: Dim, dtype: str = "f32") -> Tile:
        """A tile of one number."""
        return self.put(Full(number, Type(dtype, dims)), type=Type(dtype, dims))

    def apply(self, function: str, *operands: Tile | Number) -> Tile:
        """An elementwise function; the result has the dims of the first operand that has most, and
        then those that others add."""
        if ELEMENTWISE.get(function) != len(operands):
            raise ValueError(f"no function `{function}` of {len(operands)} operands")
        tiles = [each for each in operands if isinstance(each, Tile)]
        if function == "real":
            return tiles[0].to("f32")
        like = next((t.dtype for t in tiles if t.dtype != "bool"), "f32")
        if function == "add" and operands[1] == 0 and kind(like) == "int":
            return tiles[0]
        lifted = [self.lift(each, like) for each in operands]
        dims: dict[str, Dim] = {}
        for tile in sorted(lifted, key=lambda tile: (-len(tile.dims), tile.dtype == "bool")):
            dims |= {dim.name: dim for dim in tile.dims if dim.name not in dims}
        order = tuple(dims)
        seen = [tile.ordered(*(n for n in order if n in tile.value.type.names)) for tile in lifted]
        dtype = "bool" if function in COMPARED else _common(seen, function)
        return self.put(Apply(function), *seen, type=Type(dtype, tuple(dims.values())))

    def where(self, condition: Tile, yes: Tile | Number, no: Tile | Number) -> Tile:
        """`yes` where the condition holds, else `no`."""
        return self.apply("where", condition, yes, no)

    def random(self, seed: Tile | Number, counter: Tile) -> Tile:
        """A number in [0, 1) for each counter."""
        given = self.lift(seed, "i64")
        return self.put(Random(), given, counter, type=Type("f32", counter.dims))

    def dot(self, a: Tile, b: Tile, add: Tile | None = None, precision: str = "ieee") -> Tile:
        """A product over the one dim that both operands have, in float32."""
        shared = [name for name in a.value.type.names if name in b.value.type.names]
        if len(shared) != 1 or len(a.dims) != 2 or len(b.dims) != 2:
            raise ValueError(f"a product of {a.value.type} and {b.value.type}")
        (left,) = (dim for dim in a.dims if dim.name != shared[0])
        (right,) = (dim for dim in b.dims if dim.name != shared[0])
        operands = [a.ordered(left.name, shared[0]), b.ordered(shared[0], right.name)]
        if add is not None:
            operands.append(add.ordered(left.name, right.name))
        return self.put(Dot(precision), *operands, type=Type("f32", (left, right)))

    # --- memory ---

    def load(
        self,
        buffer: Buffer,
        *index: Tile | Number,
        where: Sequence[Tile] = (),
        fill: float = 0.0,
        wide: bool = True,
    ) -> Tile:
        """The elements of a buffer at an index for each axis; real ones in float32 if `wide`."""
        places = self._places(buffer, index)
        dims: dict[str, Dim] = {}
        for place in places:
            dims |= {dim.name: dim for dim in place.dims}
        type = Type(buffer.dtype, tuple(dims.values()))
        made = self.put(Load(buffer, fill), *places, *where, type=type, name=buffer.name)
        narrow = kind(buffer.dtype) == "real" and buffer.dtype not in ("f32", "f64")
        return made.to("f32") if wide and narrow else made

    def load_block(
        self, buffer: Buffer, *start: Tile | Number, wide: bool = False, **dims: Dim
    ) -> Tile:
        """A block of a buffer from a first index of each axis on, by the copy engine."""
        places = self._places(buffer, start)
        kept = tuple((axis, dims[axis]) for axis, _ in buffer.axes if axis in dims)
        type = Type(buffer.dtype, tuple(dim for _, dim in kept))
        made = self.put(LoadBlock(buffer, kept), *places, type=type, name=buffer.name)
        return made.to("f32") if wide else made

    def store(
        self,
        buffer: Buffer,
        *index: Tile | Number,
        value: Tile,
        where: Sequence[Tile] = (),
        exclusive: bool = False,
    ) -> None:
        """Write elements of a buffer at an index for each axis."""
        places = self._places(buffer, index)
        dims = list(dict.fromkeys(dim.name for place in places for dim in place.dims))
        seen = value.ordered(*(name for name in dims if name in value.value.type.names))
        operands = tuple(tile.value for tile in (*places, seen, *where))
        self._add(Statement(Store(buffer, exclusive), operands, span=self.span))

    def atomic(
        self, buffer: Buffer, *index: Tile | Number, value: Tile, function: str = "add"
    ) -> Tile:
        """Add (or `max`, `min`) into a buffer of integers; what was there before."""
        places = self._places(buffer, index)
        type = Type(buffer.dtype, value.dims)
        return self.put(Atomic(buffer, function), *places, value, type=type)

    def barrier(self, counter: Buffer, before: Tile | Number) -> None:
        """Wait for all programs of the launch; `before` counts the barriers before this one."""
        self.cooperative = True
        given = self.lift(before, "i32")
        self._add(Statement(Barrier(counter), (given.value,), span=self.span))

    def _places(self, buffer: Buffer, index: Sequence[Tile | Number]) -> list[Tile]:
        if len(index) != len(buffer.axes):
            raise ValueError(f"`{buffer.name}` has {len(buffer.axes)} axes, not {len(index)}")
        return [self.lift(each, "i32") for each in index]

    # --- control ---

    @contextmanager
    def loop(
        self,
        start: Tile | Number,
        stop: Tile | Number,
        *carried: Tile,
        index: str = "n",
        ahead: int | None = None,
    ) -> Iterator[Loop]:
        """A loop; what it carries is named as what enters it."""
        bounds = [self.lift(start, "i32"), self.lift(stop, "i32")]
        at = Value(self._fresh(index), Type("i32"))
        inside = tuple(Value(self._fresh(c.value.name), c.value.type) for c in carried)
        block = Block((at, *inside))
        loop = Loop(Tile(self, at), tuple(Tile(self, value) for value in inside))
        with self._inside(block):
            yield loop
        block.yields = tuple(tile.value for tile in loop.following)
        results = tuple(Value(self._fresh(f"{c.value.name}_end"), c.value.type) for c in carried)
        operands = tuple(tile.value for tile in (*bounds, *carried))
        self._add(Statement(For(ahead), operands, results, (block,), span=self.span))
        loop.results = tuple(Tile(self, value) for value in results)

    @contextmanager
    def branch(self, condition: Tile) -> Iterator[None]:
        """Statements that are done where a scalar holds, and make nothing for others to read."""
        block = Block()
        with self._inside(block):
            yield
        self._add(Statement(If(), (condition.value,), (), (block, Block()), span=self.span))

    @contextmanager
    def _inside(self, block: Block) -> Iterator[None]:
        self._open.append(block)
        self._known.append({})
        yield
        self._open.pop()
        self._known.pop()

    # --- the whole ---

    def done(self) -> Program:
        """The program as it stands."""
        return Program(
            self.name,
            self.doc,
            tuple(self.buffers),
            tuple(self.numbers),
            tuple(self.constants),
            tuple(self.grid),
            self._body,
            self.warps,
            self.ahead,
            self.cooperative,
        )

    def _add(self, statement: Statement) -> None:
        self._open[-1].statements.append(statement)

    def _fresh(self, name: str) -> str:
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_") or "v"
        self._names[base] = self._names.get(base, 0) + 1
        return base if self._names[base] == 1 else f"{base}_{self._names[base]}"


WORDS = {
    "add": "plus", "sub": "minus", "mul": "times", "div": "ratio", "neg": "negative", "eq": "equal",
    "ne": "unequal", "lt": "below", "le": "at_most", "gt": "above", "ge": "at_least", "and": "both",
    "or": "either", "not": "otherwise", "where": "chosen", "max": "larger", "min": "smaller",
    "floordiv": "quotient", "mod": "rest", "sum": "total", "abs": "size", "real": "number",
}  # fmt: skip
"""Names of values that nobody named, by the function that makes them."""


def _hint(op: Op) -> str:
    """What a value without a name is called."""
    match op:
        case Reduce(function):
            return f"{WORDS.get(function, function)}_{op.dim}"
        case Scan(function):
            return f"running_{WORDS.get(function, function)}"
        case Apply(function):
            return WORDS.get(function, function)
        case Dot():
            return "product"
        case Full():
            return "number"
        case _:
            return type(op).__name__.lower()


RANKS = {"bool": 0, "i32": 1, "i64": 2, "f16": 3, "bf16": 3, "f32": 5, "f64": 6}


def _common(tiles: Sequence[Tile], function: str) -> str:
    """The dtype of a result: real before integer before truth, the wider of two."""
    of = tiles[1:] if function == "where" else tiles
    found = [tile.dtype for tile in of]
    return max(found, key=lambda dtype: RANKS.get(dtype, 4))


def _with_note(statement: Statement, note: str) -> Statement:
    return Statement(
        statement.op, statement.operands, statement.results, statement.blocks, note, statement.span
    )
