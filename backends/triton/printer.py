"""Tile programs as Triton: a table with about a line an op. Nothing is decided here.

Names of values stay, but for those that the text needs for something else (`arguments.py`).
A scalar that is a number or a size, a transposed name, the place in the grid and what is a part of
one formula (`nesting.py`) are written where they are read; every other value has a line of its own.
Addresses are a scalar part in 64 bits and a part for each tile index in 32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import sympy
from archc.backends.lines import broken, unbracketed
from archc.backends.triton.arguments import Arguments, pointer
from archc.backends.triton.handed_on import HandedOn
from archc.backends.triton.made_first import in_order
from archc.backends.triton.nesting import with_places
from archc.backends.triton.numbering import numbered
from archc.backends.triton.row_totals import totals_of_running_sums
from archc.backends.triton.spelling import (
    INDENT,
    TRITON,
    WIDTH,
    docstring,
    filled,
    number_text,
    wants_name,
)

from archc.tile import language as lang
from archc.tile.given import given_names

COMBINE = {"product": "join_product", "max": "join_max", "min": "join_min"}
"""Functions of the runtime that `tl.associative_scan` takes."""

PRECISIONS = ("ieee", "tf32", "tf32x3")
LITERAL = ("f32", "i32")
"""The dtypes that Triton gives numbers without one."""

MOST_PLACES = 5
"""Axes of a grid along which one call finds the place of a program."""

WHOLE = {"floordiv": "//", "mod": "%"}
"""Of integers that are not negative, C and Python divide alike; nothing else is divided so."""


def to_triton(program: lang.Program, printing: type[Printer] | None = None) -> str:
    """The text of a kernel (`archc/runtime/jit.py`), after those of the joins of its scans;
    `printing` may say more than `Printer` does."""
    printer = (printing or Printer)(program)
    body = in_order(program.name, tuple(printer.lines()))
    names = [name for name in program.varying if name in given_names(program)]
    apart = [buffer for buffer in program.buffers if buffer.anywhere]
    names += [printer.names.stride(b, axis) for b in apart for axis in b.steps]
    varying = ", ".join(f'"{name}"' for name in names) + "," * (len(names) == 1)
    decorator = f"@kernel(varying=({varying}))" if varying else "@kernel"
    return "\n".join([*printer.joins, decorator, *head(program, printer.names), *body, ""])


def head(program: lang.Program, names: Arguments, of: str = TRITON) -> list[str]:
    """The signature and the docstring."""
    known, lines, plain = given_names(program), [f"def {program.name}("], list[str]()
    for buffer in program.buffers:
        if buffer.strided:
            lines += filled(plain)
            plain = []
        strides = [names.strides[buffer.name, axis] for axis in buffer.steps]
        if buffer.strided:
            lines += filled([pointer(buffer), *strides])
        else:
            plain += [pointer(buffer), *strides]
    sizes = [symbol.name for symbol in program.sizes if symbol.name in known]
    fixed = [f"{name}: {of}.constexpr" for name in program.constants if name in known]
    lines += [*filled(plain), *filled([*sizes, *fixed])]
    return [*lines, "):", *(f"{INDENT}{line}" for line in docstring(program.doc))]


class Printer(HandedOn):
    """The lines of the statements of one program."""

    def __init__(self, program: lang.Program):
        super().__init__(program)
        self.joins: list[str] = []
        places = with_places(program, self.nested, self.twins).items()
        self.inside = {mask: iota for mask, iota in places if mask.results[0] not in self.twins}
        self.beside = {*self.inside.values()}
        self.totals = totals_of_running_sums(program)

    def lines(self) -> list[str]:
        """The lines of the whole program."""
        doc = re.findall(r"\w+", self.program.doc.replace(".", "_"))
        known = {*doc, *(buffer.name for buffer in self.program.buffers), *self.names.taken}
        every = (*self.grid(), *self.descriptors(), *self.block(self.program.body))
        lines = numbered(every, self.values, known)
        return [part for line in lines for part in broken(unbracketed(line), WIDTH)]

    def grid(self) -> Iterator[str]:
        """The place of a program along each axis of the grid."""
        if not self.program.grid:
            return
        (first, _), *rest = self.program.grid
        if not rest:
            yield f"{INDENT}{self.names.places[first]} = {self.of}.program_id(0)"
            yield from self._wide_grid()
            return
        few, others = self.program.grid[:MOST_PLACES], self.program.grid[MOST_PLACES:]
        counts = [count for _, count in few[1:]]
        counts[-1] = sympy.Mul(counts[-1], *(count for _, count in others))
        places = [self.names.places[axis] for axis, _ in few]
        made = f"grid_place({', '.join(map(self.size, counts))})"
        yield f"{INDENT}{', '.join(places)} = {made}"
        for axis, count in reversed(others):
            place, size = self.names.places[axis], self.size(count)
            yield f"{INDENT}{place}, {places[-1]} = {places[-1]} % {size}, {places[-1]} // {size}"
        yield from self._wide_grid()

    def _wide_grid(self) -> Iterator[str]:
        """Places in the grid in 64 bits, where addresses want them so, on one line."""
        made: dict[str, str] = {}
        for statement in lang.statements(self.program.body):
            if isinstance(statement.op, lang.ProgramId) and self.wide[statement.results[0]]:
                title, text = self.widened(self.names.places[statement.op.axis])
                new, name = self.called(title, text)
                made |= {name: text} if new else {}
        if made:
            yield f"{INDENT}{', '.join(made)} = {', '.join(made.values())}"

    def descriptors(self) -> Iterator[str]:
        """Descriptors of the buffers that are read in blocks, each made once."""
        indent, branch = INDENT, ""
        for op, name in sorted(self.names.copies.items(), key=lambda each: each[0].chosen):
            if op.chosen != branch:
                indent, branch = INDENT * 2, op.chosen
                yield f"{INDENT}if {branch} > 0:"
            sizes, blocks = dict(op.buffer.axes), dict(op.dims)
            order = _blocked_last(op)
            shape = ", ".join(self.size(sizes[axis]) for axis in order)
            strides = ", ".join([*(self.names.stride(op.buffer, axis) for axis in order[:-1]), "1"])
            block = ", ".join(self.size(blocks[a].length) if a in blocks else "1" for a in order)
            yield f"{indent}{name} = {self.of}.make_tensor_descriptor("
            yield f"{indent}{INDENT}{pointer(op.buffer)}, [{shape}], [{strides}], [{block}]"
            yield f"{indent})"

    def block(self, block: lang.Block, depth: int = 1) -> Iterator[str]:
        """The lines of a block."""
        self.named.append({})
        for statement in block.statements:
            if statement.note:
                yield f"{INDENT * depth}# {' '.join(statement.note.split())}"
            yield from self._statement(statement, INDENT * depth)
            yield from self._blocks(statement, depth)
        self.named.pop()

    def _statement(self, statement: lang.Statement, indent: str) -> Iterator[str]:
        """The lines of a statement; before it, of a part of its formula that leaves it no room.
        None of a place or a mask that a line made already."""
        first = next((self.twins[each] for each in statement.results if each in self.twins), None)
        if first is not None:
            yield from self.inline(statement, self.name(first))
            return
        parts = [value for value in statement.operands if value in self.within]
        words, named = ({*self.words}, {**self.named[-1]}) if parts else (set(), {})
        lines = [indent + line for line in LINES[type(statement.op)](self, statement)]
        parts = [value for value in parts if any(self.within[value] in line for line in lines)]
        if parts and any(wants_name(line) for line in lines[-1:]):
            self.words, self.named[-1] = words, named
            longest = max(parts, key=lambda value: len(self.within[value]))
            text = self.within.pop(longest)
            yield f"{indent}{self.name(longest)} = {text}"
            yield from self._statement(statement, indent)
        else:
            yield from self.handed_on(statement, lines, indent)

    def _blocks(self, statement: lang.Statement, depth: int) -> Iterator[str]:
        """The lines inside a loop or a branch."""
        if isinstance(statement.op, lang.For | lang.While):
            (body,) = statement.blocks
            arguments = body.arguments[1 if isinstance(statement.op, lang.For) else 0 :]
            yield from self._body(body, arguments, depth + 1)
        if isinstance(statement.op, lang.If) and not statement.op.fields:
            first, second = statement.blocks
            yield from self._way(first, statement.results, depth + 1)
            if second.statements or statement.results:
                yield f"{INDENT * depth}else:"
                yield from self._way(second, statement.results, depth + 1)

    def _way(self, block: lang.Block, results: Sequence[lang.Value], depth: int) -> Iterator[str]:
        """The lines of one way of a branch: what it makes to give alone has the result's name, and
        so has what a loop carries on the way to it."""
        made = {value: s for s in block.statements for value in s.results}
        for result, value in zip(results, block.yields, strict=True):
            if value in made and self.uses[value] == 1:
                self.texts.setdefault(value, self.name(result))
                if isinstance(made[value].op, lang.For):
                    self.call_carried(made, value, self.name(result))
        yield from self._body(block, results, depth)

    def _body(self, block: lang.Block, targets: Sequence[lang.Value], depth: int) -> Iterator[str]:
        """The lines of a block, and then what it yields by other names: what is made in it to be
        the next of what a loop carries has its name, if nothing after that reads the former."""
        self.note_next(targets, block)
        lines = [*self.block(block, depth)]
        lines += self.changes(targets, block, INDENT * depth)
        yield from lines or [f"{INDENT * depth}pass"]

    # --- lines ---

    def block_of_dim(self, mask: lang.Statement, iota: lang.Statement) -> Iterator[str]:
        """The places of a block along a dim, and which of them are inside, on one line."""
        (places,), (inside,), (place, end) = iota.results, mask.results, mask.operands
        given = [self.size(iota.op.dim.length), self.name(end)]
        if place is not places:
            given.append(self.name(lang.parts(place, self.made[place])[0]))
        yield f"{self.name(places)}, {self.name(inside)} = along({', '.join(given)})"

    def let(self, statement: lang.Statement, text: str) -> Iterator[str]:
        """`value = text`, or no line where the value is a part of one formula, or addresses alone
        read it, of which each has its parts."""
        (result,) = statement.results
        if 0 < self.uses[result] == self.parted[result]:
            return
        self.within.pop(result, None)
        if len(text) <= self.nested.get(result, -1):
            self.within[result] = text
            return
        self.right[result] = text
        yield f"{self.name(result)} = {text}"

    def inline(self, statement: lang.Statement, text: str) -> Iterator[str]:
        """No line: the value is written as this text."""
        self.texts[statement.results[0]] = text
        yield from ()


Line = Callable[[Printer, lang.Statement], Iterator[str]]


def _scalar(p: Printer, s: lang.Statement) -> Iterator[str]:
    return p.inline(s, p.size(s.op.size))


def _program_id(p: Printer, s: lang.Statement) -> Iterator[str]:
    return p.inline(s, p.names.places[s.op.axis])


def _iota(p: Printer, s: lang.Statement) -> Iterator[str]:
    if s in p.beside:
        return iter(())
    text = f"{p.of}.arange(0, {p.size(s.op.dim.length)})"
    if s.op.most:
        return p.let(s, f"{p.of}.max_contiguous({text}, {s.op.most})")
    # dims of one length share a name
    known = next((names[text] for names in reversed(p.named) if text in names), "")
    if known:
        return p.inline(s, known)
    lines = [*p.let(s, text)]
    p.named[-1] |= {text: p.name(s.results[0])} if lines else {}
    return iter(lines)


def _full(p: Printer, s: lang.Statement) -> Iterator[str]:
    text = number_text(s.op.number)
    if not s.op.type.dims:
        literal = s.op.type.dtype in LITERAL
        return p.inline(
            s, text if literal else f"{p.of}.full((), {text}, {p.dtype(s.op.type.dtype)})"
        )
    return p.let(s, f"{p.of}.full({p.shape(s.op.type)}, {text}, {p.dtype(s.op.type.dtype)})")


def _apply(p: Printer, s: lang.Statement) -> Iterator[str]:
    type = s.results[0].type
    if s in p.inside:
        return p.block_of_dim(s, p.inside[s])
    given = [p.operand(place, s) for place in range(len(s.operands))]
    if s.op.function in WHOLE and lang.kind(type.dtype) == "int":
        return p.let(s, f" {WHOLE[s.op.function]} ".join(given))
    return p.let(s, p.functions[s.op.function](*given))


def _cast(p: Printer, s: lang.Statement) -> Iterator[str]:
    bits = ", bitcast=True" if s.op.bits else ""
    if not s.results[0].type.dims:  # sizes may be plain numbers, which have no methods
        return p.let(s, f"{p.of}.cast({p.name(s.operands[0])}, {p.dtype(s.op.dtype)}{bits})")
    return p.let(s, f"{p.bound(s.operands[0])}.to({p.dtype(s.op.dtype)}{bits})")


def _random(p: Printer, s: lang.Statement) -> Iterator[str]:
    given = f"{p.name(s.operands[0])}, {p.name(s.operands[1])}"
    if s.op.dim is None:
        return p.let(s, f"first_random({given})")
    return p.let(s, f"{p.of}.reshape(eight_random({given}), {p.shape(s.results[0].type)})")


def _given(p: Printer, s: lang.Statement) -> Iterator[str]:
    return p.inline(s, f"({pointer(s.op.buffer)} is not None)")


def _chosen(p: Printer, s: lang.Statement) -> Iterator[str]:
    choice = p.dtype(s.op.choice)
    text = choice if s.op.choice in lang.DTYPES else f'"{choice}"'
    of_buffer = s.op.constant.startswith(lang.OF_BUFFER)
    constant = p.dtype(s.op.constant) if of_buffer else s.op.constant
    return p.inline(s, f"({constant} == {text})")


def _at_most(p: Printer, s: lang.Statement) -> Iterator[str]:
    least, most = p.size(s.op.size), p.size(s.op.most)
    if s.op.most == 0:  # sizes are not negative
        return p.inline(s, f"({least} == 0)")
    return p.inline(s, f"({most} > 0)" if s.op.size == 1 else f"({least} <= {most})")


def _reduce(p: Printer, s: lang.Statement) -> Iterator[str]:
    (x,) = s.operands
    if s.op.function == "product":
        return p.let(s, f"{p.of}.reduce({p.name(x)}, {x.type.place(s.op.dim)}, join_product)")
    row = p.name(x)
    if s in p.totals:
        row = f"{p.of}.reshape({row}, {p.shape(x.type)}, can_reorder=True)"
    return p.let(s, f"{p.of}.{s.op.function}({row}, {x.type.place(s.op.dim)})")


def _scan(p: Printer, s: lang.Statement) -> Iterator[str]:
    x = s.operands[0]
    end, axis = (", reverse=True" if s.op.reverse else ""), x.type.place(s.op.dim)
    if not s.op.function:
        return _joined(p, s, f"{axis}, {_join(p, s.blocks[0])}{end}")
    if s.op.function == "sum":
        return p.let(s, f"{p.of}.cumsum({p.name(x)}, {axis}{end})")
    return p.let(s, f"{p.of}.associative_scan({p.name(x)}, {axis}, {COMBINE[s.op.function]}{end})")


def _joined(p: Printer, s: lang.Statement, rest: str) -> Iterator[str]:
    """Several tiles in one scan."""
    given, made = (", ".join(map(p.name, values)) for values in (s.operands, s.results))
    if len(s.results) == 1:
        return p.let(s, f"{p.of}.associative_scan({given}, {rest})")
    return iter([f"{made} = {p.of}.associative_scan(({given}), {rest})"])


def _join(p: Printer, block: lang.Block) -> str:
    """The name of the function that joins two elements; its text goes before the program's."""
    name = f"{p.program.name}_join{p.joins.count('@kernel') or ''}"
    p.joins += ["@kernel", f"def {name}(", *filled([*map(p.name, block.arguments)]), "):"]
    lines = (*p.block(block), f"{INDENT}return {', '.join(map(p.name, block.yields))}")
    p.joins += [*(part for line in lines for part in broken(unbracketed(line), WIDTH)), "", ""]
    return name


def _sort(p: Printer, s: lang.Statement) -> Iterator[str]:
    name = p.name(s.operands[0])
    if s.op.most is not None:
        return p.let(s, f"{p.of}.topk({name}, {p.size(s.op.most.length)})")
    return p.let(s, f"{p.of}.sort({name}, descending={s.op.descending})")


def _flip(p: Printer, s: lang.Statement) -> Iterator[str]:
    (x,) = s.operands
    return p.let(s, f"{p.of}.flip({p.name(x)}, {x.type.place(s.op.dim)})")


def _dot(p: Printer, s: lang.Statement) -> Iterator[str]:
    given = [p.name(value) for value in s.operands]
    precision = f'"{s.op.precision}"' if s.op.precision in PRECISIONS else s.op.precision
    if p.program.apart and len(s.results[0].type.dims) == 2:
        first, second, *rest = given
        parts = [first, second, *(rest or ["None"]), f"{p.program.apart} > 0"]
        return p.let(s, f"dot_apart({', '.join(parts)}, input_precision={precision})")
    add = f", {given[2]}" if len(given) > 2 else ""
    return p.let(s, f"{p.of}.dot({given[0]}, {given[1]}{add}, input_precision={precision})")


def _transpose(p: Printer, s: lang.Statement) -> Iterator[str]:
    (x,) = s.operands
    order = ", ".join(str(x.type.place(name)) for name in s.op.order)
    text = f"{p.of}.permute({p.name(x)}, ({order}))"
    return p.inline(s, text if len(s.op.order) > 2 else f"{p.of}.trans({p.name(x)})")


def _relabel(p: Printer, s: lang.Statement) -> Iterator[str]:
    return p.inline(s, p.name(s.operands[0]))


def _broadcast(p: Printer, s: lang.Statement) -> Iterator[str]:
    (x,), type = s.operands, s.results[0].type
    if not x.type.dims:  # it may be a plain number
        return p.let(s, f"{p.of}.full({p.shape(type)}, {p.name(x)}, {p.dtype(type.dtype)})")
    if s.op.held:  # a layout with further dims of length 1, not one that is a slice of another
        further = ["1"] * (len(type.dims) - len(x.type.dims))
        shape = ", ".join([*(p.size(dim.length) for dim in x.type.dims), *further])
        text = f"{p.of}.reshape({p.name(x)}, ({shape}))"
        return p.let(s, f"{p.of}.broadcast_to({text}, {p.shape(type)})")
    return p.let(s, f"{p.of}.broadcast_to({p.seen(x, type.names)}, {p.shape(type)})")


def _reshape(p: Printer, s: lang.Statement) -> Iterator[str]:
    return p.let(s, f"{p.of}.reshape({p.name(s.operands[0])}, {p.shape(s.results[0].type)})")


def _sequence_rows(p: Printer, s: lang.Statement) -> Iterator[str]:
    before, ahead = (p.size(size) for size in (s.op.before, s.op.ahead))
    given = [pointer(s.op.buffer), p.size(s.op.buffer.axes[1][1]), *map(p.name, s.operands)]
    made = ", ".join(p.name(each) if p.uses[each] else "_" for each in s.results)
    yield f"{made} = sequence_rows({', '.join([*given, before, ahead])})"


def _push(p: Printer, s: lang.Statement) -> Iterator[str]:
    run, newest = map(p.name, s.operands)
    return p.let(s, f"pushed({run}, {newest}, {p.size(s.op.count)})")


def _pick(p: Printer, s: lang.Statement) -> Iterator[str]:
    x, index = s.operands
    return p.let(s, f"{p.of}.gather({p.name(x)}, {p.name(index)}, {x.type.place(s.op.dim)})")


def _load(p: Printer, s: lang.Statement) -> Iterator[str]:
    count, (result,) = len(s.op.buffer.axes), s.results
    names = result.type.names
    tile = None
    if s.op.fill == 0:  # a tile that is not taken would name addresses that no line makes
        tile = p.tile(s.op.buffer, s.operands[:count], names, s.operands[count:])
    if tile is not None:
        yield from tile[0]
        apart = ["apart=True"] if s.op.apart else []
        yield from p.let(s, f"load_tile({', '.join([*tile[1], *tile[2], *apart])})")
        return
    lines, at = p.address(s.op.buffer, s.operands[:count], names)
    mask = p.mask(s.operands[count:], names)
    where = f", {mask}, {number_text(s.op.fill)}" if mask else ""
    yield from lines
    yield from p.let(s, f"{p.of}.load({at}{where})")


def _store(p: Printer, s: lang.Statement) -> Iterator[str]:
    count = len(s.op.buffer.axes)
    index, value, masks = s.operands[:count], s.operands[count], s.operands[count + 1 :]
    names = tuple(dict.fromkeys(name for each in index for name in each.type.names))
    tile = p.tile(s.op.buffer, index, names, masks)
    if tile is not None:
        yield from tile[0]
        yield f"store_tile({', '.join([*tile[1], p.seen(value, names), *tile[2]])})"
        return
    mask = p.mask(masks, names)
    lines, at = p.address(s.op.buffer, index, names)
    yield from lines
    yield f"{p.of}.store({at}, {p.seen(value, names)}{f', {mask}' if mask else ''})"


def _load_block(p: Printer, s: lang.Statement) -> Iterator[str]:
    starts = dict(zip((axis for axis, _ in s.op.buffer.axes), s.operands, strict=True))
    at = ", ".join(_at(p, starts[axis]) for axis in _blocked_last(s.op))
    shape = p.shape(s.results[0].type)
    return p.let(s, f"{p.names.copies[s.op]}.load([{at}]).reshape{shape}")


def _at(p: Printer, start: lang.Value) -> str:
    """Where a block begins along an axis, in 32 bits."""
    known = start.type.dtype == "i32"
    return p.name(start) if known else f"{p.of}.cast({p.name(start)}, {p.of}.int32)"


def _atomic(p: Printer, s: lang.Statement) -> Iterator[str]:
    count = len(s.op.buffer.axes)
    names = s.results[0].type.names
    lines, at = p.address(s.op.buffer, s.operands[:count], names)
    mask = p.mask(s.operands[count + 1 :], names)
    value = f"{p.seen(s.operands[count], names)}{f', {mask}' if mask else ''}"
    yield from lines
    yield from p.let(s, f"{p.of}.atomic_{s.op.function}({at}, {value})")


def _barrier(p: Printer, s: lang.Statement) -> Iterator[str]:
    if s.op.counter is None:
        yield f"{p.of}.debug_barrier()"
        return
    yield f"grid_barrier({pointer(s.op.counter)}, {p.name(s.operands[0])})"


def _for(p: Printer, s: lang.Statement) -> Iterator[str]:
    start, stop, *given = s.operands
    index, *carried = s.blocks[0].arguments
    yield from p.carry(s, given, carried)
    p.texts |= {result: p.name(inner) for result, inner in zip(s.results, carried, strict=True)}
    said = "" if s.op.ahead is None else f", num_stages={s.op.ahead}"
    said += "" if s.op.together == 1 else f", loop_unroll_factor={s.op.together}"
    yield f"for {p.name(index)} in {p.of}.range({p.name(start)}, {p.name(stop)}{said}):"


def _while(p: Printer, s: lang.Statement) -> Iterator[str]:
    going, *carried = s.blocks[0].arguments
    yield from p.carry(s, s.operands, [going, *carried])
    p.texts |= {result: p.name(inner) for result, inner in zip(s.results, carried, strict=True)}
    yield f"while {p.name(going)}:"


def _row(p: Printer, s: lang.Statement) -> Iterator[str]:
    """`sequence, base, _, end, low, high, row, _ = table_row(rows_p, p_batch, T, CHUNKS, p_batch)`:
    what the row of a table says, or the row of the batch where there is no table."""
    first, *_ = s.blocks[0].statements
    unread = [*p.block(s.blocks[1])]
    assert not unread, f"what stands for a row has lines of its own: {unread}"
    made = dict(zip(s.op.fields, map(p.name, s.results), strict=True))
    given = dict(zip(s.op.fields, map(p.name, s.blocks[1].yields), strict=True))
    batch = given.get("row", given.get("sequence", "0"))
    whole = [given.get("end", "0"), given.get("high", "0"), batch]
    at = [pointer(first.op.buffer), p.name(first.operands[0])]
    yield f"{', '.join(made.get(n, '_') for n in lang.ROW)} = table_row({', '.join([*at, *whole])})"


def _if(p: Printer, s: lang.Statement) -> Iterator[str]:
    if s.op.fields:
        yield from _row(p, s)
        return
    yield f"if {p.name(s.operands[0])}:"


LINES: dict[type[lang.Op], Line] = {
    lang.Scalar: _scalar, lang.ProgramId: _program_id, lang.Iota: _iota, lang.Full: _full,
    lang.Apply: _apply, lang.Cast: _cast, lang.Given: _given, lang.Chosen: _chosen,
    lang.AtMost: _at_most, lang.Broadcast: _broadcast, lang.While: _while, lang.Random: _random,
    lang.Reduce: _reduce, lang.Scan: _scan, lang.Sort: _sort, lang.Flip: _flip, lang.Dot: _dot,
    lang.Transpose: _transpose, lang.Relabel: _relabel, lang.Reshape: _reshape,
    lang.Pick: _pick, lang.Push: _push, lang.Load: _load, lang.Store: _store,
    lang.SequenceRows: _sequence_rows,
    lang.LoadBlock: _load_block, lang.Atomic: _atomic, lang.Barrier: _barrier, lang.For: _for,
    lang.If: _if,
}  # fmt: skip


def _blocked_last(op: lang.LoadBlock) -> list[str]:
    """The axes of a buffer, first those of which a block has one index."""
    blocked = [axis for axis, _ in op.dims]
    return [*(axis for axis, _ in op.buffer.axes if axis not in blocked), *blocked]
