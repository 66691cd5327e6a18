"""Tile programs as Triton: a table with about a line an op. Nothing is decided here.

A scalar that is a number or a size, a transposed name and the place in the grid are written where
they are used; every other value has a line of its own. Addresses are a scalar part in 64 bits and
a part for each tile index in 32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import sympy
from archc.backends.expression import number
from archc.backends.triton.elementwise import TEXT

from archc.tile.language import (
    Apply,
    Atomic,
    Barrier,
    Block,
    Buffer,
    Cast,
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
    statements,
)

DTYPE = {
    "f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "f64": "tl.float64",
    "i32": "tl.int32", "i64": "tl.int64", "bool": "tl.int1",
}  # fmt: skip
COMBINE = {"product": "product", "max": "larger", "min": "smaller"}
"""Functions of the runtime that `tl.associative_scan` takes."""

WHOLE = {"floordiv": "//", "mod": "%"}
"""Of integers that are not negative, C and Python divide alike; nothing else is divided so."""

INDENT = "    "
WIDTH = 96


def to_triton(program: Program) -> str:
    """The text of a `@triton.jit` function."""
    printer = Printer(program)
    lines = [*_head(program), *printer.grid(), *printer.descriptors(), *printer.block(program.body)]
    return "\n".join(["@triton.jit", *lines, ""])


def _head(program: Program) -> list[str]:
    """The signature and the docstring."""
    lines = [f"def {program.name}("]
    for buffer in program.buffers:
        strides = [stride(buffer, axis) for axis, _ in buffer.axes] if buffer.strided else []
        lines.append(f"{INDENT}{', '.join([f'{buffer.name}_p', *strides])},")
    lines += [f"{INDENT}{symbol.name}," for symbol in program.sizes]
    lines += [f"{INDENT}{name}: tl.constexpr," for name in program.constants]
    return [*lines, "):", f'{INDENT}"""{program.doc}"""']


def stride(buffer: Buffer, axis: str) -> str:
    """The name of a stride that is given."""
    return f"{buffer.name}_{axis}"


class Printer:
    """Names of the values of one program, and the lines of its statements."""

    def __init__(self, program: Program):
        self.program = program
        self.texts: dict[Value, str] = {}
        self.made: dict[Value, Statement] = {}
        self.uses: Counter[Value] = Counter()
        for statement in statements(program.body):
            self.made |= dict.fromkeys(statement.results, statement)
            self.uses.update(statement.operands)
            for inner in statement.blocks:
                self.uses.update(inner.yields)

    def grid(self) -> Iterator[str]:
        """The place of a program along each axis of the grid, the last of them fastest."""
        if not self.program.grid:
            return
        (first, _), *rest = self.program.grid
        if not rest:
            yield f"{INDENT}p_{first} = tl.program_id(0)"
            return
        yield f"{INDENT}program = tl.program_id(0)"
        for axis, count in reversed(rest):
            yield f"{INDENT}p_{axis} = program % {_size(count)}"
            yield f"{INDENT}program = program // {_size(count)}"
        yield f"{INDENT}p_{first} = program"

    def descriptors(self) -> Iterator[str]:
        """Descriptors of the buffers that are read in blocks, each made once."""
        ops = [s.op for s in statements(self.program.body) if isinstance(s.op, LoadBlock)]
        for op in dict.fromkeys(ops):
            sizes, blocks = dict(op.buffer.axes), dict(op.dims)
            order = _blocked_last(op)
            shape = ", ".join(_size(sizes[axis]) for axis in order)
            strides = ", ".join([*(self._stride(op.buffer, axis) for axis in order[:-1]), "1"])
            block = ", ".join(_size(blocks[a].length) if a in blocks else "1" for a in order)
            yield f"{INDENT}{_descriptor(op)} = tl.make_tensor_descriptor("
            yield f"{INDENT * 2}{op.buffer.name}_p, [{shape}], [{strides}], [{block}]"
            yield f"{INDENT})"

    def block(self, block: Block, depth: int = 1) -> Iterator[str]:
        """The lines of a block."""
        if not block.statements:
            yield f"{INDENT * depth}pass"
        for statement in block.statements:
            if statement.note:
                yield f"{INDENT * depth}# {statement.note}"
            for line in LINES[type(statement.op)](self, statement):
                yield from _wrapped(INDENT * depth + line)
            yield from self._blocks(statement, depth)

    def _blocks(self, statement: Statement, depth: int) -> Iterator[str]:
        """What stands in a loop or a branch."""
        if isinstance(statement.op, For):
            (body,) = statement.blocks
            yield from self.block(body, depth + 1)
            carried, following = body.arguments[1:], body.yields
            changed = [(a, b) for a, b in zip(carried, following, strict=True) if a is not b]
            if changed:
                left = ", ".join(self.name(a) for a, _ in changed)
                right = ", ".join(self.name(b) for _, b in changed)
                yield from _wrapped(f"{INDENT * (depth + 1)}{left} = {right}")
        if isinstance(statement.op, If):
            yield from self.block(statement.blocks[0], depth + 1)
            if statement.blocks[1].statements:
                yield f"{INDENT * depth}else:"
                yield from self.block(statement.blocks[1], depth + 1)

    # --- names ---

    def name(self, value: Value) -> str:
        """How a value is written."""
        return self.texts.get(value, value.name)

    def seen(self, value: Value, names: Sequence[str]) -> str:
        """A value among dims of these names: a missing one is `None`."""
        own = value.type.names
        if not own or tuple(names) == own:
            return self.name(value)
        return f"{self.name(value)}[{', '.join(':' if n in own else 'None' for n in names)}]"

    # --- addresses ---

    def address(self, buffer: Buffer, index: Sequence[Value], dims: Sequence[str]) -> str:
        """The pointer of an element for each index: first what all elements of a tile share."""
        axes = [axis for axis, _ in buffer.axes]
        parts = [(a, *self._split(value)) for a, value in zip(axes, index, strict=True)]
        shared = {axis: scalar for axis, scalar, _ in parts if scalar is not None}
        shared = {axis: each for axis, each in shared.items() if self.name(each) != "0"}
        own = [
            f"{self.seen(tile, dims)}{_times(self._stride(buffer, axis))}"
            for axis, _, tile in parts
            if tile is not None
        ]
        offset = self._offset(buffer, shared)
        base = f"{buffer.name}_p{f' + {offset}' if offset else ''}"
        return " + ".join([f"({base})" if own and offset else base, *own])

    def _offset(self, buffer: Buffer, places: dict[str, Value]) -> str:
        """How far it is to an element: of a strided buffer a sum, else `(b * T + t) * H + h`. The
        first term is in 64 bits, and so is what is added to it."""
        if buffer.strided:
            terms = (f"{self._wide(v)} * {stride(buffer, axis)}" for axis, v in places.items())
            return " + ".join(terms)
        text, level = "", 0
        for axis, size in buffer.axes:
            if text:
                text = f"({text}) * {_size(size)}" if level else f"{text} * {_size(size)}"
                level = 0
            if axis in places and text:
                text, level = f"{text} + {self.name(places[axis])}", 1
            elif axis in places:
                text = self._wide(places[axis])
        return text

    def mask(self, masks: Sequence[Value], dims: Sequence[str]) -> str:
        """All masks at once."""
        return " & ".join(self.seen(mask, dims) for mask in masks)

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
        op = self.made[scalar].op if scalar in self.made else None
        if scalar.type.dtype == "i64" or isinstance(op, Full):
            return self.name(scalar)
        return f"tl.cast({self.name(scalar)}, tl.int64)"

    def _stride(self, buffer: Buffer, axis: str) -> str:
        """From one place along an axis to the next: given, or the sizes of the axes after it."""
        if buffer.strided:
            return stride(buffer, axis)
        names = [name for name, _ in buffer.axes]
        after = [size for _, size in buffer.axes[names.index(axis) + 1 :]]
        return _size(sympy.Mul(*after))

    # --- lines ---

    def let(self, statement: Statement, text: str) -> Iterator[str]:
        """`value = text`."""
        yield f"{statement.results[0].name} = {text}"

    def inline(self, statement: Statement, text: str) -> Iterator[str]:
        """No line: the value is written as this text."""
        self.texts[statement.results[0]] = text
        yield from ()


Line = Callable[[Printer, Statement], Iterator[str]]


def _scalar(p: Printer, s: Statement) -> Iterator[str]:
    return p.inline(s, _size(s.op.size))


def _program_id(p: Printer, s: Statement) -> Iterator[str]:
    return p.inline(s, f"p_{s.op.axis}")


def _iota(p: Printer, s: Statement) -> Iterator[str]:
    return p.let(s, f"tl.arange(0, {_size(s.op.dim.length)})")


def _full(p: Printer, s: Statement) -> Iterator[str]:
    text = _number(s.op.number)
    if not s.op.type.dims:
        return p.inline(s, text)
    return p.let(s, f"tl.full({_shape(s.op.type)}, {text}, {_dtype(s.op.type.dtype)})")


def _apply(p: Printer, s: Statement) -> Iterator[str]:
    type = s.results[0].type
    given = [p.seen(value, type.names) for value in s.operands]
    if s.op.function in WHOLE and kind(type.dtype) == "int":
        return p.let(s, f" {WHOLE[s.op.function]} ".join(given))
    return p.let(s, TEXT[s.op.function](*given))


def _cast(p: Printer, s: Statement) -> Iterator[str]:
    bits = ", bitcast=True" if s.op.bits else ""
    if not s.results[0].type.dims:  # sizes may be plain numbers, which have no methods
        return p.let(s, f"tl.cast({p.name(s.operands[0])}, {_dtype(s.op.dtype)}{bits})")
    return p.let(s, f"{p.name(s.operands[0])}.to({_dtype(s.op.dtype)}{bits})")


def _random(p: Printer, s: Statement) -> Iterator[str]:
    return p.let(s, f"tl.rand({p.name(s.operands[0])}, {p.name(s.operands[1])})")


def _reduce(p: Printer, s: Statement) -> Iterator[str]:
    (x,) = s.operands
    return p.let(s, f"tl.{s.op.function}({p.name(x)}, {x.type.place(s.op.dim)})")


def _scan(p: Printer, s: Statement) -> Iterator[str]:
    (x,) = s.operands
    end, axis = (", reverse=True" if s.op.reverse else ""), x.type.place(s.op.dim)
    if s.op.function == "sum":
        return p.let(s, f"tl.cumsum({p.name(x)}, {axis}{end})")
    return p.let(s, f"tl.associative_scan({p.name(x)}, {axis}, {COMBINE[s.op.function]}{end})")


def _sort(p: Printer, s: Statement) -> Iterator[str]:
    name = p.name(s.operands[0])
    if s.op.most is not None:
        return p.let(s, f"tl.topk({name}, {_size(s.op.most.length)})")
    return p.let(s, f"tl.sort({name}, descending={s.op.descending})")


def _dot(p: Printer, s: Statement) -> Iterator[str]:
    given = [p.name(value) for value in s.operands]
    add = f", {given[2]}" if len(given) > 2 else ""
    return p.let(s, f'tl.dot({given[0]}, {given[1]}{add}, input_precision="{s.op.precision}")')


def _transpose(p: Printer, s: Statement) -> Iterator[str]:
    (x,) = s.operands
    order = ", ".join(str(x.type.place(name)) for name in s.op.order)
    text = f"tl.permute({p.name(x)}, ({order}))"
    return p.inline(s, text if len(s.op.order) > 2 else f"tl.trans({p.name(x)})")


def _relabel(p: Printer, s: Statement) -> Iterator[str]:
    return p.inline(s, p.name(s.operands[0]))


def _reshape(p: Printer, s: Statement) -> Iterator[str]:
    return p.let(s, f"tl.reshape({p.name(s.operands[0])}, {_shape(s.results[0].type)})")


def _pick(p: Printer, s: Statement) -> Iterator[str]:
    x, index = s.operands
    return p.let(s, f"tl.gather({p.name(x)}, {p.name(index)}, {x.type.place(s.op.dim)})")


def _load(p: Printer, s: Statement) -> Iterator[str]:
    count, (result,) = len(s.op.buffer.axes), s.results
    names = result.type.names
    at = p.address(s.op.buffer, s.operands[:count], names)
    mask = p.mask(s.operands[count:], names)
    where = f", {mask}, {_number(s.op.fill)}" if mask else ""
    return p.let(s, f"tl.load({at}{where})")


def _store(p: Printer, s: Statement) -> Iterator[str]:
    count = len(s.op.buffer.axes)
    index, value, masks = s.operands[:count], s.operands[count], s.operands[count + 1 :]
    names = tuple(dict.fromkeys(name for each in index for name in each.type.names))
    mask = p.mask(masks, names)
    at = p.address(s.op.buffer, index, names)
    yield f"tl.store({at}, {p.seen(value, names)}{f', {mask}' if mask else ''})"


def _load_block(p: Printer, s: Statement) -> Iterator[str]:
    starts = dict(zip((axis for axis, _ in s.op.buffer.axes), s.operands, strict=True))
    at = ", ".join(f"tl.cast({p.name(starts[axis])}, tl.int32)" for axis in _blocked_last(s.op))
    shape = _shape(s.results[0].type)
    return p.let(s, f"{_descriptor(s.op)}.load([{at}]).reshape{shape}")


def _atomic(p: Printer, s: Statement) -> Iterator[str]:
    count = len(s.op.buffer.axes)
    names = s.results[0].type.names
    at = p.address(s.op.buffer, s.operands[:count], names)
    return p.let(s, f"tl.atomic_{s.op.function}({at}, {p.seen(s.operands[count], names)})")


def _barrier(p: Printer, s: Statement) -> Iterator[str]:
    yield f"grid_barrier({s.op.counter.name}_p, {p.name(s.operands[0])})"


def _for(p: Printer, s: Statement) -> Iterator[str]:
    start, stop, *given = s.operands
    (body,) = s.blocks
    index, *carried = body.arguments
    for inner, value, result in zip(carried, given, s.results, strict=True):
        if p.uses[value] == 1 and value not in p.texts:
            p.texts[inner] = p.name(value)  # nothing else reads it: the loop goes on with it
        else:
            yield f"{p.name(inner)} = {p.name(value)}"
        p.texts[result] = p.name(inner)
    ahead = "" if s.op.ahead is None else f", num_stages={s.op.ahead}"
    yield f"for {p.name(index)} in tl.range({p.name(start)}, {p.name(stop)}{ahead}):"


def _if(p: Printer, s: Statement) -> Iterator[str]:
    yield f"if {p.name(s.operands[0])}:"


LINES: dict[type[Op], Line] = {
    Scalar: _scalar, ProgramId: _program_id, Iota: _iota, Full: _full, Apply: _apply, Cast: _cast,
    Random: _random, Reduce: _reduce, Scan: _scan, Sort: _sort, Dot: _dot, Transpose: _transpose,
    Relabel: _relabel, Reshape: _reshape, Pick: _pick, Load: _load, Store: _store,
    LoadBlock: _load_block, Atomic: _atomic, Barrier: _barrier, For: _for, If: _if,
}  # fmt: skip


# --- pieces of text -----------------------------------------------------------------------------


class _Itself(dict[str, str]):
    """Every symbol is written as its name."""

    def __missing__(self, name: str) -> str:
        return name


def _size(size: sympy.Expr) -> str:
    """An expression in sizes, in brackets unless it is one word."""
    blocks = {each: _blocks(each) for each in size.atoms(sympy.ceiling)}
    text = str(number(size.xreplace(blocks), _Itself()))
    return text if text.replace("_", "").isalnum() or size in blocks else f"({text})"


def _blocks(count: sympy.ceiling) -> sympy.Symbol:
    """How many blocks cover a size, as a symbol that is written so."""
    above, below = sympy.fraction(count.args[0])
    return sympy.Symbol(f"tl.cdiv({_size(above)}, {_size(below)})", integer=True, positive=True)


def _times(step: str) -> str:
    return "" if step == "1" else f" * {step}"


def _number(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return repr(value)


def _dtype(dtype: str) -> str:
    return DTYPE.get(dtype, dtype)


def _shape(type: Type) -> str:
    lengths = ", ".join(_size(dim.length) for dim in type.dims)
    return f"({lengths},)" if len(type.dims) == 1 else f"({lengths})"


def _blocked_last(op: LoadBlock) -> list[str]:
    """The axes of a buffer, first those of which a block has one index."""
    blocked = [axis for axis, _ in op.dims]
    return [*(axis for axis, _ in op.buffer.axes if axis not in blocked), *blocked]


def _descriptor(op: LoadBlock) -> str:
    return f"{op.buffer.name}_blocks"


def _wrapped(line: str) -> Iterator[str]:
    """A line, or the same on several where it is too long: broken at the commas of its first
    bracket."""
    open_at = line.find("(")
    if len(line) <= WIDTH or open_at < 0 or line.rstrip().endswith(":"):
        yield line
        return
    indent = " " * (len(line) - len(line.lstrip()))
    inside, rest = _inside(line, open_at)
    yield line[: open_at + 1]
    for part in inside:
        yield f"{indent}{INDENT}{part},"
    yield f"{indent}{rest}"


def _inside(line: str, open_at: int) -> tuple[list[str], str]:
    """The parts between the commas of a bracket, and what stands from its end on."""
    parts, depth, start = [], 0, open_at + 1
    for place in range(open_at, len(line)):
        depth += line[place] in "([{"
        depth -= line[place] in ")]}"
        if depth == 1 and line[place] == ",":
            parts.append(line[start:place].strip())
            start = place + 1
        if depth == 0:
            return [*parts, line[start:place].strip()], line[place:]
    return [line[open_at + 1 :]], ""
