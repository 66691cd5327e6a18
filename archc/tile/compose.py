"""The composer of tile programs: values with operators, loops and branches as `with` blocks.

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

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy

from archc.functions.definitions import FUNCTIONS
from archc.source import Span
from archc.tile import language as lang
from archc.tile.called import call_values
from archc.tile.handle import Tile
from archc.tile.hints import hint
from archc.tile.typed import COMPARED, common

Number = int | float | sympy.Expr
Length = int | sympy.Expr
Join = Callable[[tuple[Tile, ...], tuple[Tile, ...]], Sequence[Tile]]


def ceil_div(a: Length, b: Length) -> sympy.Expr:
    """The number of blocks of `b` that cover `a`."""
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


@dataclass
class Loop:
    """A loop that is being written: its index, what is carried, and what the next turn gets."""

    index: Tile
    carried: tuple[Tile, ...]
    results: tuple[Tile, ...] = ()
    following: tuple[Tile, ...] = ()

    def next(self, *values: Tile) -> None:
        """Hand values to the next turn; after the last one they are the loop's `results`. Of a loop
        that goes on while something holds, that is the first of them."""
        self.following = values


@dataclass
class Branch:
    """A branch that is being written: what its block gives, and the `results` of both."""

    given: tuple[Tile, ...] = ()
    results: tuple[Tile, ...] = ()

    def give(self, *values: Tile) -> None:
        """Give this block's results; the block of `otherwise` gives the same types."""
        self.given = values


class Composer:
    """Writes one program. Every method adds a statement at the end of the block that is open."""

    def __init__(self, name: str, doc: str, warps: int = 4, ahead: int = 3):
        self.name, self.doc, self.warps, self.ahead = name, doc, warps, ahead
        self.buffers: list[lang.Buffer] = []
        self.numbers: list[sympy.Symbol] = []
        self.constants: list[str] = []
        self.grid: list[tuple[str, sympy.Expr]] = []
        self.cooperative = False
        self.varying: list[str] = []
        self.span: Span | None = None
        self._body = lang.Block()
        self._open: list[lang.Block] = [self._body]
        self._known: list[dict[Any, Tile]] = [{}]
        self._names: dict[str, int] = {}
        self._origins: dict[lang.Value, Tile] = {}

    # --- what a launch is given ---

    def sizes(self, *names: str, varying: bool = False) -> tuple[sympy.Symbol, ...]:
        """Whole numbers that differ from launch to launch. Machine code may be made anew where 16
        divides them or they are 1, unless they are `varying`."""
        self.varying += names if varying else ()
        return self._numbers([size(name) for name in names])

    def integers(self, *names: str) -> tuple[sympy.Symbol, ...]:
        """Whole numbers of any sign that differ from call to call, as first positions do."""
        self.varying += names
        return self._numbers([sympy.Symbol(name, integer=True) for name in names])

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

    def fixed(self, *symbols: sympy.Symbol) -> tuple[sympy.Symbol, ...]:
        """Sizes, options and lengths of blocks that machine code is made for, by their symbols: as
        often as one likes."""
        new = [symbol.name for symbol in symbols if symbol.name not in self.constants]
        self.constants += new
        self._names |= dict.fromkeys(new, 1)
        return symbols

    def dtypes(self, *names: str) -> tuple[str, ...]:
        """Real dtypes that machine code is made for."""
        self.constants += names
        return names

    def precisions(self, *names: str) -> tuple[str, ...]:
        """Precisions of products that machine code is made for."""
        self.constants += names
        return names

    def buffer(
        self,
        name: str,
        dtype: str = "f32",
        strided: bool = False,
        doc: str = "",
        optional: bool = False,
        **axes: Length,
    ) -> lang.Buffer:
        """Memory with named axes, in the order of the tensor's dims."""
        return self.memory(name, axes, dtype, strided, doc, optional)

    def memory(
        self, name: str, axes: Mapping[str, Length], dtype: str = "f32", strided: bool = False,
        doc: str = "", optional: bool = False, rows: str = "",
    ) -> lang.Buffer:  # fmt: skip
        """Memory with named axes of any name, as those of a spec may have."""
        sized = tuple((axis, as_size(n)) for axis, n in axes.items())
        return self.declare(lang.Buffer(name, sized, dtype, strided, doc, optional, rows))

    def declare(self, buffer: lang.Buffer) -> lang.Buffer:
        """Memory whose axes may have any name."""
        self.buffers.append(buffer)
        return buffer

    def given(self, buffer: lang.Buffer) -> Tile:
        """Whether an optional buffer is there, for a branch."""
        return self.put(lang.Given(buffer), type=lang.Type("bool"), name=f"has_{buffer.name}")

    def chosen(self, constant: str, choice: str) -> Tile:
        """Whether a constant, or a buffer, is of that dtype or precision, for a branch."""
        type, name = lang.Type("bool"), constant.removeprefix(lang.OF_BUFFER)
        return self.put(lang.Chosen(constant, choice), type=type, name=f"{name}_is_{choice}")

    def at_most(self, size: Length, most: Length) -> Tile:
        """Whether one size of constants is at most another, for a branch."""
        type = lang.Type("bool")
        return self.put(lang.AtMost(as_size(size), as_size(most)), type=type, name="fits")

    def program(self, axis: str, count: Length) -> Tile:
        """The place of a program along a new axis of the grid."""
        self.grid.append((axis, as_size(count)))
        return self.put(lang.ProgramId(axis), type=lang.Type("i32"), name=f"i_{axis}")

    # --- values ---

    def put(self, op: lang.Op, *operands: Tile, type: lang.Type, name: str = "") -> Tile:
        """The value of an op; the one that stands already, if an equal statement is in sight."""
        values = tuple(tile.value for tile in operands)
        sign = math.copysign(1, op.number) if isinstance(op, lang.Full) else 1  # 0.0 == -0.0
        key = (op, sign, values, type)
        if isinstance(op, lang.PURE):
            for known in reversed(self._known):
                if key in known:
                    return known[key]
        made = Tile(self, lang.Value(self._fresh(name or hint(op)), type, _plain(name)))
        self._add(lang.Statement(op, values, (made.value,), span=self.span))
        if isinstance(op, lang.PURE):
            self._known[-1][key] = made
        return made

    def named(self, tile: Tile, name: str, note: str = "") -> Tile:
        """Give the statement that made a value a name and an equation."""
        self._rename(tile.value, name)
        return self.noted(tile, note) if note else tile

    def noted(self, tile: Tile, note: str) -> Tile:
        """Give the statement that made a value an equation, or a word on a number in it."""
        for block in reversed(self._open):
            for place, found in enumerate(block.statements):
                if tile.value in found.results:
                    block.statements[place] = _with_note(found, note)
        return tile

    def _rename(self, value: lang.Value, name: str) -> None:
        object.__setattr__(value, "name", self._fresh(name))
        object.__setattr__(value, "title", _plain(name))

    def lift(self, value: Tile | Number, like: str = "f32") -> Tile:
        """A number, or an expression in sizes, as a value."""
        if isinstance(value, Tile):
            return value
        if isinstance(value, sympy.Expr) and not value.is_number:
            dtype = "i32" if value.is_integer else "f32"
            return self.put(lang.Scalar(value), type=lang.Type(dtype), name="size")
        if lang.kind(like) == "int" and float(value).is_integer():
            return self.put(lang.Full(int(value), lang.Type(like)), type=lang.Type(like))
        real = lang.Type("f64" if like == "f64" else "f32")
        return self.put(lang.Full(float(value), real), type=real)

    def iota(self, name: str, length: Length, most: int = 0) -> Tile:
        """0, 1, 2, ... along a new dim, of which a thread is to have `most` side by side."""
        dim = lang.Dim(name, as_size(length))
        return self.put(lang.Iota(dim, most), type=lang.Type("i32", (dim,)), name=f"i_{name}")

    def along(self, tile: Tile, names: tuple[str, ...]) -> Tile:
        """The tile with its dims under these names: one that has them already stays itself, so
        that a value under two names and back is one value."""
        origin = self._origins.get(tile.value, tile)
        if names == origin.value.type.names:
            return origin
        dims = tuple(lang.Dim(n, dim.length) for n, dim in zip(names, tile.dims, strict=True))
        made = self.put(lang.Relabel(names), origin, type=lang.Type(tile.dtype, dims))
        self._origins[made.value] = origin
        return made

    def full(self, number: float, *dims: lang.Dim, dtype: str = "f32") -> Tile:
        """A tile of one number, a whole one in whole numbers: 1.0 would make real what it meets."""
        if lang.kind(dtype) == "int" and float(number).is_integer():
            number = int(number)
        return self.put(lang.Full(number, lang.Type(dtype, dims)), type=lang.Type(dtype, dims))

    def apply(self, function: str, *operands: Tile | Number, dims_in: Sequence[str] = ()) -> Tile:
        """An elementwise function; the result has the dims of the first operand that has most, and
        then those that others add; or its dims in a given order."""
        if function not in FUNCTIONS or FUNCTIONS[function].arity != len(operands):
            raise ValueError(f"no function `{function}` of {len(operands)} operands")
        tiles = [each for each in operands if isinstance(each, Tile)]
        if function == "real":
            return tiles[0].to("f32")
        like = next((t.dtype for t in tiles if t.dtype != "bool"), "f32")
        nothing = {"add": 0, "floordiv": 1}.get(function)
        if nothing is not None and operands[1] == nothing and lang.kind(like) == "int":
            return tiles[0]
        lifted = [self.lift(each, like) for each in operands]
        dims: dict[str, lang.Dim] = {}
        for tile in sorted(lifted, key=lambda tile: (-len(tile.dims), tile.dtype == "bool")):
            dims |= {dim.name: dim for dim in tile.dims if dim.name not in dims}
        order = tuple(dims_in) or tuple(dims)
        dims = {name: dims[name] for name in order}
        seen = [tile.ordered(*(n for n in order if n in tile.value.type.names)) for tile in lifted]
        dtype = "bool" if function in COMPARED else _common(seen, function)
        return self.put(lang.Apply(function), *seen, type=lang.Type(dtype, tuple(dims.values())))

    def where(self, condition: Tile, yes: Tile | Number, no: Tile | Number) -> Tile:
        """`yes` where the condition holds, else `no`."""
        return self.apply("where", condition, yes, no)

    def random(
        self, seed: Tile | Number, counter: Tile, eight: lang.Dim | None = None
    ) -> Tile:  # fmt: skip
        """A number of 16 bits for each counter, or `eight` along the last dim, which is that
        then."""
        given, dims = self.lift(seed, "i64"), counter.dims
        dims = dims if eight is None else (*dims[:-1], eight)
        return self.put(lang.Random(eight), given, counter, type=lang.Type("i32", dims))

    def dot(self, a: Tile, b: Tile, add: Tile | None = None, precision: str = "ieee") -> Tile:
        """A product of matrices, in float32: over the one dim that both operands have, or the last
        of several, the others of which are a batch."""
        both = [dim for dim in a.dims if dim.name in b.value.type.names]
        left = [dim for dim in a.dims if dim.name not in b.value.type.names]
        right = [dim for dim in b.dims if dim.name not in a.value.type.names]
        if not both or len(left) != 1 or len(right) != 1:
            raise ValueError(f"a product of {a.value.type} and {b.value.type}")
        *batch, shared = both
        made, (n,), (m,) = tuple(dim.name for dim in batch), left, right
        operands = [a.ordered(*made, n.name, shared.name), b.ordered(*made, shared.name, m.name)]
        if add is not None:
            operands.append(add.ordered(*made, n.name, m.name))
        return self.put(lang.Dot(precision), *operands, type=lang.Type("f32", (*batch, n, m)))

    # --- memory ---

    def load(
        self,
        buffer: lang.Buffer,
        *index: Tile | Number,
        where: Sequence[Tile] = (),
        fill: float = 0.0,
        wide: bool = True,
        apart: bool = False,
    ) -> Tile:
        """The elements of a buffer at an index for each axis; real ones in float32 if `wide`."""
        places, masks, dims = self._access(buffer, index, where)
        type = lang.Type(buffer.dtype, dims)
        op = lang.Load(buffer, fill, apart)
        made = self.put(op, *places, *masks, type=type, name=buffer.name)
        narrow = lang.kind(buffer.dtype) == "real" and buffer.dtype not in ("f32", "f64")
        return made.to("f32") if wide and narrow else made

    def sequence_rows(
        self, table: lang.Buffer, first: Tile, step: Tile, tokens: Tile, batch: Tile,
        before: Length, ahead: Length,
    ) -> tuple[Tile, ...]:  # fmt: skip
        """The tokens of rows of a table of packed sequences, and of the sequence of each the token
        after the last, how many stand before, whether it has that one, and which it is."""
        whole, truth = lang.Type("i64", step.dims), lang.Type("bool", step.dims)
        types = (lang.Type("i32"), whole, whole, whole, truth, whole)
        names = ("base", "place", "end", "local", "inside", "sequence")
        results = tuple(
            lang.Value(self._fresh(n), type) for n, type in zip(names, types, strict=True)
        )
        op = lang.SequenceRows(table, as_size(before), as_size(ahead))
        operands = tuple(tile.value for tile in (first, step, tokens, batch))
        self._add(lang.Statement(op, operands, results, span=self.span))
        base, place, *rest = (
            Tile(self, value).named(name) for value, name in zip(results, names, strict=True)
        )
        return (base + place).named("token"), *rest

    def load_block(
        self, buffer: lang.Buffer, *start: Tile | Number, wide: bool = False, **dims: lang.Dim
    ) -> Tile:
        """A block of a buffer from a first index of each axis on, by the copy engine."""
        made = self.load_block_where("", buffer, *start, **dims)
        return made.to("f32") if wide else made

    def load_block_where(
        self, chosen: str, buffer: lang.Buffer, *start: Tile | Number, **dims: lang.Dim
    ) -> Tile:
        """The same in a branch on a constant, in the buffer's dtype."""
        places = self._places(buffer, start)
        kept = tuple((axis, dims[axis]) for axis, _ in buffer.axes if axis in dims)
        type = lang.Type(buffer.dtype, tuple(dim for _, dim in kept))
        return self.put(lang.LoadBlock(buffer, kept, chosen), *places, type=type, name=buffer.name)

    def store(
        self,
        buffer: lang.Buffer,
        *index: Tile | Number,
        value: Tile,
        where: Sequence[Tile] = (),
        exclusive: bool = False,
    ) -> None:
        """Write elements of a buffer at an index for each axis."""
        places, masks, dims = self._access(buffer, index, where)
        operands = tuple(tile.value for tile in (*places, _among(value, dims), *masks))
        self._add(lang.Statement(lang.Store(buffer, exclusive), operands, span=self.span))

    def atomic(
        self,
        buffer: lang.Buffer,
        *index: Tile | Number,
        value: Tile,
        function: str = "add",
        where: Sequence[Tile] = (),
    ) -> Tile:
        """Add (or `max`, `min`) into a buffer of integers; what was there before."""
        places, masks, dims = self._access(buffer, index, where)
        seen = _among(value, dims).over(*dims)
        type = lang.Type(buffer.dtype, dims)
        return self.put(lang.Atomic(buffer, function), *places, seen, *masks, type=type)

    def barrier(self, counter: lang.Buffer, before: Tile | Number) -> None:
        """Wait for all programs of the launch; `before` counts the barriers before this one."""
        self.cooperative = True
        given = self.lift(before, "i32")
        self._add(lang.Statement(lang.Barrier(counter), (given.value,), span=self.span))

    def sync(self) -> None:
        """Wait for the threads of this program, which then may read what it wrote."""
        self._add(lang.Statement(lang.Barrier(), span=self.span))

    def _access(
        self, buffer: lang.Buffer, index: Sequence[Tile | Number], where: Sequence[Tile]
    ) -> tuple[list[Tile], list[Tile], tuple[lang.Dim, ...]]:
        """Indices and masks with the dims of all indices in one order, and these dims."""
        places = self._places(buffer, index)
        dims = tuple({dim.name: dim for place in places for dim in place.dims}.values())
        return [_among(p, dims) for p in places], [_among(m, dims) for m in where], dims

    def _places(self, buffer: lang.Buffer, index: Sequence[Tile | Number]) -> list[Tile]:
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
        ahead: int | str | None = None,
        together: int = 1,
    ) -> Iterator[Loop]:
        """A loop; what it carries is named as what enters it."""
        bounds = [self.lift(start, "i32"), self.lift(stop, "i32")]
        at = lang.Value(self._fresh(index), lang.Type(_common(bounds, "for")), _plain(index))
        operands = (*bounds, *carried)
        with self._turn(lang.For(ahead, together), at, operands, carried) as turn:
            yield turn

    @contextmanager
    def repeat(self, going: Tile, *carried: Tile, most: Length) -> Iterator[Loop]:
        """A loop that goes on while a truth value holds, at most so many turns: the first value
        that is handed to the next turn says whether there is one.

            with k.repeat(rest > least, z, rest, most=30) as turn:
                z, rest = step(*turn.carried)
                turn.next(rest > least, z, rest)
            z, rest = turn.results
        """
        at = self._like(going.value, going.value.name)
        with self._turn(lang.While(as_size(most)), at, (going, *carried), carried) as turn:
            yield turn

    @contextmanager
    def _turn(
        self, op: lang.Op, at: lang.Value, operands: Sequence[Tile], carried: Sequence[Tile]
    ) -> Iterator[Loop]:
        """The block of a loop, which takes `at` and what is carried."""
        inside = tuple(self._like(c.value, c.value.name) for c in carried)
        block = lang.Block((at, *inside))
        loop = Loop(Tile(self, at), tuple(Tile(self, value) for value in inside))
        with self._inside(block):
            yield loop
        block.yields = tuple(tile.value for tile in loop.following)
        results = tuple(self._like(c.value, f"{c.value.name}_end") for c in carried)
        given = tuple(tile.value for tile in operands)
        self._add(lang.Statement(op, given, results, (block,), span=self.span))
        loop.results = tuple(Tile(self, value) for value in results)

    @contextmanager
    def branch(self, condition: Tile, fields: tuple[str, ...] = ()) -> Iterator[Branch]:
        """Statements that are done where a scalar holds; `otherwise` may follow, and then both may
        give values:

            with k.branch(k.given(bias)) as there:
                there.give(x + k.load(bias, n))
            with k.otherwise(there) as missing:
                missing.give(x)
            (y,) = there.results

        `fields`: what it gives of a row of a table.
        """
        block, branch = lang.Block(), Branch()
        with self._inside(block):
            yield branch
        block.yields = tuple(tile.value for tile in branch.given)
        both = (block, lang.Block())
        self._add(lang.Statement(lang.If(fields), (condition.value,), (), both, span=self.span))

    @contextmanager
    def otherwise(self, branch: Branch) -> Iterator[Branch]:
        """Statements that are done where the scalar of the last branch does not hold; `branch` then
        has the results of both."""
        last = self._open[-1].statements.pop()
        block, other = lang.Block(), Branch()
        with self._inside(block):
            yield other
        block.yields = tuple(tile.value for tile in other.given)
        results = tuple(self._like(tile.value, tile.value.name) for tile in branch.given)
        both = (last.blocks[0], block)
        self._add(lang.Statement(last.op, last.operands, results, both, span=last.span))
        branch.results = tuple(Tile(self, value) for value in results)

    def scan(self, join: Join, dim: str, *tiles: Tile, reverse: bool = False) -> tuple[Tile, ...]:
        """Several tiles scanned together along a dim: `join` gets an element of each of what comes
        before, and one of each of what follows. Of h[t] = a[t] h[t - 1] + b[t] from 0:

            _, h = k.scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), "t", a, b)
        """
        dims = tuple({d.name: d for tile in tiles for d in tile.dims}.values())
        given = tuple(tile.over(*dims) for tile in tiles)
        before, after = (
            tuple(
                lang.Value(self._fresh(f"{t.value.name}_{n}"), lang.Type(t.dtype), n) for t in given
            )
            for n in ("before", "after")
        )
        block, known = lang.Block((*before, *after)), self._known
        self._known = []  # a join is a function of its own: it reads nothing from outside
        with self._inside(block):
            first, second = (tuple(Tile(self, v) for v in side) for side in (before, after))
            block.yields = tuple(tile.value for tile in join(first, second))
        self._known = known
        results = tuple(self._like(t.value, f"{t.value.name}_run") for t in given)
        operands = tuple(tile.value for tile in given)
        op = lang.Scan("", dim, reverse)
        self._add(lang.Statement(op, operands, results, (block,), span=self.span))
        return tuple(Tile(self, value) for value in results)

    @contextmanager
    def _inside(self, block: lang.Block) -> Iterator[None]:
        self._open.append(block)
        self._known.append({})
        yield
        self._open.pop()
        self._known.pop()

    # --- the whole ---

    def done(self) -> lang.Program:
        """The program as it stands, with a name for every value."""
        call_values(self._body, {*map(str, self.numbers), *self.constants})
        return lang.Program(
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
            tuple(self.varying),
        )

    def _like(self, value: lang.Value, name: str) -> lang.Value:
        """A new value like one, which hands its numbers on."""
        return lang.Value(self._fresh(name), value.type, value.title, value.hint)

    def _add(self, statement: lang.Statement) -> None:
        self._open[-1].statements.append(statement)

    def _fresh(self, name: str) -> str:
        base = _plain(name) or "v"
        found = base
        while found in self._names:
            self._names[base] += 1
            found = f"{base}_{self._names[base]}"
        self._names[found] = 1
        return found


def _plain(name: str) -> str:
    """A name as a word."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name).strip("_")


def _common(tiles: Sequence[Tile], function: str) -> str:
    """The dtype of a result."""
    return common([tile.dtype for tile in (tiles[1:] if function == "where" else tiles)])


def _among(tile: Tile, dims: Sequence[lang.Dim]) -> Tile:
    """A tile with its dims in the order of these."""
    names = [dim.name for dim in dims if dim.name in tile.value.type.names]
    missing = [name for name in tile.value.type.names if name not in names]
    if missing:
        raise ValueError(f"`{tile.value.name}` has dims {missing}, which no index has")
    return tile.ordered(*names)


def _with_note(statement: lang.Statement, note: str) -> lang.Statement:
    return lang.Statement(
        statement.op, statement.operands, statement.results, statement.blocks, note, statement.span
    )
