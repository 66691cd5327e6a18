"""The verifier of tile programs: it finds mistakes before a program is printed.

`verify` looks at the program alone: types, order, names. `verify_launch` looks at it for sizes that
are known: lengths of blocks, elements outside a buffer, elements that are stored twice, and what
the device has no room for. Both return `Mistake`s: which value, and why; none means that it is
right. An index that is read from memory cannot be told before it runs: the interpreter checks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from archc.source import Span
from archc.tile import language as lang
from archc.tile.affine import Atom, Integers, Sum
from archc.tile.resources import WIDTH, Launch, Room
from archc.tile.typed import COMPARED, LARGEST, NARROW, common, wrong

LEAST = 16
"""The shortest dim of a product of matrices."""

COPIED, LONGEST = 16, 256
"""Limits of the copy engine: the fewest bytes moved at once, and the longest side of blocks."""


@dataclass(frozen=True)
class Mistake:
    """Why a program is refused: the value or buffer that is to blame, the reason, and the place in
    a spec, if there is one."""

    name: str
    reason: str
    span: Span | None = None

    def __str__(self) -> str:
        return f"`{self.name}`: {self.reason}"


def verify(program: lang.Program) -> list[Mistake]:
    """The mistakes of a program at any size."""
    names = [value.name for value in _values(program.body)]
    found = [
        Mistake(n, "two values have this name") for n in sorted({*names}) if names.count(n) > 1
    ]
    return [*found, *_in_order(program, program.body, set())]


def _values(block: lang.Block) -> Iterator[lang.Value]:
    yield from block.arguments
    for statement in block.statements:
        yield from statement.results
        for inner in statement.blocks:
            yield from _values(inner)


def _in_order(
    program: lang.Program,
    block: lang.Block,
    before: set[lang.Value],
    there: frozenset[lang.Buffer] = frozenset(),
) -> Iterator[Mistake]:
    """Every value is made before it is read, every op has the types that it wants, and what may be
    missing is touched where it is there alone."""
    seen = before | {*block.arguments}
    for statement in block.statements:
        for value in statement.operands:
            if value not in seen:
                yield Mistake(value.name, "it is read where it is not made yet", statement.span)
        reason = wrong(program, statement)
        if reason:
            yield Mistake(_name(statement), reason, statement.span)
        yield from _missing(statement, there)
        for place, inner in enumerate(statement.blocks):
            known = there | _told_there(statement, place, program)
            outer = set() if isinstance(statement.op, lang.Scan) else seen
            yield from _in_order(program, inner, outer, known)
        seen |= {*statement.results}
    for value in block.yields:
        if value not in seen:
            yield Mistake(value.name, "it leaves a block that it is not made in")


def _missing(statement: lang.Statement, there: frozenset[lang.Buffer]) -> Iterator[Mistake]:
    """An access to a buffer that may be missing."""
    buffer = lang.memory(statement.op)
    asks = isinstance(statement.op, lang.Given | lang.SequenceRows)
    if asks or buffer is None or not buffer.optional:
        return
    if buffer not in there:
        reason = f"`{buffer.name}` may be missing: only a branch on `given` may touch it"
        yield Mistake(_name(statement), reason, statement.span)


def _told_there(
    statement: lang.Statement, place: int, program: lang.Program
) -> frozenset[lang.Buffer]:
    """The buffers that are there in the first block of a branch."""
    if not isinstance(statement.op, lang.If) or place:
        return frozenset()
    made = {v: s for s in lang.statements(program.body) for v in s.results}
    op = made[statement.operands[0]].op if statement.operands[0] in made else None
    return frozenset({op.buffer}) if isinstance(op, lang.Given) else frozenset()


def _name(statement: lang.Statement) -> str:
    """The name of a statement in a refusal: its value, else its buffer."""
    if statement.results:
        return statement.results[0].name
    buffer = lang.memory(statement.op)
    return buffer.name if buffer else type(statement.op).__name__.lower()


# --- at sizes that are known --------------------------------------------------------------------


def verify_launch(
    program: lang.Program, known: Mapping[str, int | float | str], room: Room | None = None
) -> list[Mistake]:
    """The faults of a launch of a program: `known` has its sizes and its constants, and as `@x` the
    dtype of buffer `x`, or `MISSING` where an optional one is not there; `room` says what a device
    has for one program (None: it is not asked)."""
    integers = Integers(program, known)
    found: list[Mistake] = [] if room is None else [*_room(Launch(program, known), room)]
    dtypes = {name: value for name, value in known.items() if isinstance(value, str)}
    if any(integers.size(count) < 1 for _, count in program.grid):
        return found  # there are no programs
    for statement, holds in _under(program.body, (), integers):
        found += _lengths(statement, integers)
        found += _dtypes(statement, dtypes)
        found += _too_large(statement, integers)
        if isinstance(statement.op, lang.LoadBlock):
            found += _copied(statement, integers, dtypes)
        if isinstance(statement.op, lang.Load | lang.Store | lang.Atomic):
            found += _outside(statement, integers, holds)
            found += _far(statement, integers)
        if isinstance(statement.op, lang.Store):
            found += _twice(program, statement, integers, holds)
    return found


def _under(
    block: lang.Block, holds: tuple[lang.Value, ...], integers: Integers
) -> Iterator[tuple[lang.Statement, tuple[lang.Value, ...]]]:
    """Every statement that is ever done, with the conditions of the branches that it stands in."""
    for statement in block.statements:
        yield statement, holds
        if isinstance(statement.op, lang.For):
            start, stop = (integers.range(value) for value in statement.operands[:2])
            if stop[1] <= start[0]:
                continue
        for place, inner in integers.taken(statement):
            branch = isinstance(statement.op, lang.If) and place == 0
            within = (*holds, statement.operands[0]) if branch else holds
            yield from _under(inner, within, integers)


def _dtypes(s: lang.Statement, dtypes: Mapping[str, str]) -> Iterator[Mistake]:
    """The faults of arithmetic whose dtype is a constant, with the dtypes of a launch."""
    if not isinstance(s.op, lang.Apply | lang.Reduce | lang.Scan) or s.op == lang.Apply("where"):
        return
    given = [dtypes.get(v.type.dtype, v.type.dtype) for v in s.operands]
    for value, dtype in zip(s.operands, given, strict=True):
        if dtype in NARROW and value.type.dtype not in NARROW:
            reason = f"arithmetic in {value.type.dtype}, which is {dtype}"
            yield Mistake(_name(s), f"{reason}: `{value.name}` must be cast to f32", s.span)
    named = any(value.type.dtype in dtypes for value in (*s.operands, *s.results))
    if named and isinstance(s.op, lang.Apply) and s.op.function not in COMPARED:
        made = dtypes.get(s.results[0].type.dtype, s.results[0].type.dtype)
        if made != common(given):
            reason = f"it is {common(given)} at this launch, and the program says {made}"
            yield Mistake(_name(s), f"{reason}: an operand must be cast", s.span)


def _too_large(s: lang.Statement, integers: Integers) -> Iterator[Mistake]:
    """Integers that their dtype has no room for."""
    for value in s.results:
        largest = LARGEST.get(value.type.dtype, 0)
        if lang.kind(value.type.dtype) == "int" and not isinstance(
            s.op, lang.For | lang.While | lang.If
        ):
            low, high = integers.range(value)
            worst = high if high > largest else low
            if math.isfinite(worst) and not -largest - 1 <= worst <= largest:
                yield Mistake(value.name, f"{worst:.0f} is no {value.type.dtype}", s.span)


def _far(s: lang.Statement, integers: Integers) -> Iterator[Mistake]:
    """Tiles of i32 that, times the stride of their axis, are beyond 32 bits. A scalar that a tile
    is added to is counted in 64 bits, and does not matter."""
    buffer: lang.Buffer = s.op.buffer
    after = 1
    for (axis, size), value in reversed([*zip(buffer.axes, s.operands, strict=False)]):
        tile = lang.parts(value, integers.made.get(value))[1]
        if tile is not None and after > LARGEST["i32"]:
            reason = f"{axis} is in steps of {after} elements, beyond 32 bits"
            yield Mistake(_name(s), f"{reason}: `{buffer.name}` must be strided", s.span)
        elif tile is not None and tile.type.dtype == "i32":
            ends = [end for end in integers.range(tile) if math.isfinite(end)]
            reach = max(map(abs, ends), default=0) if len(ends) == 2 else integers.size(size) - 1
            if reach * after > LARGEST["i32"]:
                reason = f"{axis} is up to {reach:.0f} places of {after} elements in"
                reason = f"{reason} `{buffer.name}`: `{tile.name}` must be cast to i64"
                yield Mistake(_name(s), reason, s.span)
        after *= integers.size(size)


def _copied(s: lang.Statement, integers: Integers, dtypes: Mapping[str, str]) -> Iterator[Mistake]:
    """The limits of the copy engine that a load exceeds: strides that are no multiples of 16 bytes,
    short rows, and blocks of more than 256 of them (a long row is copied in pieces)."""
    buffer: lang.Buffer = s.op.buffer
    width = WIDTH[dtypes.get(buffer.dtype, buffer.dtype)]
    row = integers.size(buffer.axes[-1][1]) * width
    if len(buffer.axes) > 1 and not buffer.steps and row % COPIED:
        reason = f"a row of `{buffer.name}` has {row} bytes, no multiple of {COPIED}"
        yield Mistake(_name(s), f"{reason}: the copy engine cannot read it", s.span)
    lengths = [integers.size(dim.length) for _, dim in s.op.dims]
    if lengths[-1] * width < COPIED or max(lengths[:-1], default=0) > LONGEST:
        reason = f"a block of {lengths} elements of {width} bytes: rows of at least {COPIED} bytes"
        yield Mistake(_name(s), f"{reason}, and at most {LONGEST} of other axes", s.span)


def _room(launch: Launch, room: Room) -> Iterator[Mistake]:
    """Whether all that is held at a time fits into registers, and operands into shared memory."""
    chip, name = launch.on_chip(), launch.largest().name
    if chip.shared > room.shared:
        reason = (
            f"a program needs {chip.shared} bytes of shared memory, and there are {room.shared}"
        )
        yield Mistake(name, f"{reason}; this value is the largest")
    if chip.held > 4 * room.registers:
        reason = f"a program holds {chip.held} bytes in registers, and there are"
        yield Mistake(name, f"{reason} {4 * room.registers}; this value is the largest")


def _lengths(s: lang.Statement, integers: Integers) -> Iterator[Mistake]:
    """Blocks are powers of two; those of products are not short; a reshape keeps all elements."""
    if isinstance(s.op, lang.Iota):
        length = integers.size(s.op.dim.length)
        if length & (length - 1):
            yield Mistake(s.op.dim.name, f"a block of {length} is no power of two", s.span)
    if isinstance(s.op, lang.Dot):
        a, b = (value.type.dims[-2:] for value in s.operands[:2])
        for dim in dict.fromkeys((*a, *b)):
            if integers.size(dim.length) < LEAST:
                reason = f"a product over blocks of {integers.size(dim.length)}, at least {LEAST}"
                yield Mistake(_name(s), f"{reason} (dim `{dim.name}`)", s.span)
    if isinstance(s.op, lang.Reshape):
        sides = [_elements(v.type.dims, integers) for v in (*s.operands, *s.results)]
        if sides[0] != sides[1]:
            reason = f"{sides[0]} elements do not divide into {sides[1]}"
            yield Mistake(_name(s), reason, s.span)


def _elements(dims: Sequence[lang.Dim], integers: Integers) -> int:
    return math.prod(integers.size(dim.length) for dim in dims)


def _outside(
    s: lang.Statement, integers: Integers, holds: Sequence[lang.Value]
) -> Iterator[Mistake]:
    """Elements before the first or after the last of an axis that no mask hides."""
    assert isinstance(s.op, lang.Load | lang.Store | lang.Atomic)
    buffer, count = s.op.buffer, len(s.op.buffer.axes)
    masks = (*holds, *s.operands[count + (0 if isinstance(s.op, lang.Load) else 1) :])
    for (axis, size), value in zip(buffer.axes, s.operands[:count], strict=True):
        total = integers.sum(value)
        if any(
            isinstance(atom.key, lang.Value) and _read(atom.key, integers)
            for atom, _ in total.terms
        ):
            continue  # read from memory: only known when it runs
        low, high = integers.range_of(total)
        for mask in masks:
            below, above = _bounds(mask, total, integers)
            low, high = max(low, below), min(high, above)
        length = integers.size(size)
        if low < 0 or high >= length:
            worst = low if low < 0 else high
            reason = f"{axis} = {worst:g} is outside of `{buffer.name}`, which has {length}"
            yield Mistake(_name(s), f"{reason}, and no mask hides it", s.span)


def _read(value: lang.Value, integers: Integers) -> bool:
    """Whether a value depends on what memory holds."""
    made = integers.made.get(value)
    if made is None:
        return False
    if isinstance(made.op, lang.Load | lang.LoadBlock | lang.Atomic | lang.SequenceRows):
        return True
    given = [*made.operands]
    if isinstance(made.op, lang.If):
        given += integers.given(made, value)
    return any(_read(operand, integers) for operand in given)


def _bounds(mask: lang.Value, total: Sum, integers: Integers) -> tuple[float, float]:
    """The least and the largest value of an index where a mask holds."""
    made = integers.made.get(mask)
    if made is not None and isinstance(made.op, lang.Transpose):
        return _bounds(made.operands[0], total, integers)
    if made is not None and isinstance(made.op, lang.Relabel):
        (operand,) = made.operands
        before = dict(zip(mask.type.names, operand.type.dims, strict=True))
        return _bounds(operand, total.renamed(before), integers)
    if made is not None and isinstance(made.op, lang.SequenceRows):  # it has the token
        apart, last = total - integers.sum(made.results[3]), integers.range(made.operands[2])[1] - 1
        ends = (apart.constant, last + apart.constant)
        return (-math.inf, math.inf) if apart.terms else ends
    if made is None or not isinstance(made.op, lang.Apply):
        return -math.inf, math.inf
    function = made.op.function
    if function == "and":
        both = [_bounds(each, total, integers) for each in made.operands]
        return max(low for low, _ in both), min(high for _, high in both)
    if function == "or":
        ways = [each for each in made.operands if integers.truth(each) is not False]
        ends = [_bounds(each, total, integers) for each in ways]
        return min((low for low, _ in ends), default=0), max((high for _, high in ends), default=-1)
    if function not in ("lt", "le", "gt", "ge"):
        return -math.inf, math.inf
    left, right = (integers.sum(each) for each in made.operands)
    if function in ("gt", "ge"):  # a > b is b < a
        left, right = right, left
    strict = 1 if function in ("lt", "gt") else 0
    above = total - left  # left < right, total = left + c: total < right + c
    below = total - right
    high = math.inf if above.terms else integers.range_of(right)[1] + above.constant - strict
    low = -math.inf if below.terms else integers.range_of(left)[0] + below.constant + strict
    return low, high


def _twice(
    program: lang.Program, s: lang.Statement, integers: Integers, holds: Sequence[lang.Value]
) -> Iterator[Mistake]:
    """Places of the grid or of a tile that an element's address does not tell apart."""
    assert isinstance(s.op, lang.Store)
    count = len(s.op.buffer.axes)
    sums = [integers.sum(value) for value in s.operands[:count]]
    if any(
        isinstance(atom.key, lang.Value) and _read(atom.key, integers)
        for t in sums
        for atom, _ in t.terms
    ):
        if not s.op.exclusive:
            reason = "indices are read from memory, and nothing says that no two are the same"
            yield Mistake(_name(s), reason, s.span)
        return
    conditions = (*holds, *s.operands[count + 1 :])
    apart = (total for total in sums if _told_apart(total, integers, conditions))
    told = {atom for total in apart for atom, _ in total.terms}
    for condition in conditions:
        told |= _pinned(condition, integers)
    told |= _divided(told, integers)
    dims = {dim for value in s.operands[: count + 1] for dim in value.type.dims}
    wanted = [*(Atom(axis) for axis, _ in program.grid), *map(Atom, sorted(dims, key=str))]
    for atom in wanted:
        low, high = integers.ranges.get(atom, (0, 0))
        if high > low and atom not in told:
            reason = f"all places along `{atom.name}` store the same elements of it"
            yield Mistake(_name(s), reason, s.span)


def _divided(told: set[Atom], integers: Integers) -> set[Atom]:
    """The causes that a quotient and the remainder beside it tell apart together."""
    halves: dict[tuple[Sum, Sum], set[str]] = {}
    for atom in told:
        made = integers.made.get(atom.key) if isinstance(atom.key, lang.Value) else None
        if made is not None and isinstance(made.op, lang.Apply):
            x, y = (integers.sum(value) for value in (made.operands * 2)[:2])
            halves.setdefault((x, y), set()).add(made.op.function)
    whole = [x for (x, _), found in halves.items() if found >= {"floordiv", "mod"}]
    return {atom for x in whole if _told_apart(x, integers) for atom, _ in x.terms}


def _pinned(condition: lang.Value, integers: Integers) -> set[Atom]:
    """Atoms that have one value alone where a condition holds."""
    made = integers.made.get(condition)
    if made is None or made.op not in (lang.Apply("and"), lang.Apply("eq")):
        return set()
    if made.op == lang.Apply("and"):
        return set().union(*(_pinned(each, integers) for each in made.operands))
    if any(lang.kind(each.type.dtype) != "int" for each in made.operands):
        return set()
    left, right = (integers.sum(each) for each in made.operands)
    total = left - right
    return {atom for atom, _ in total.terms} if _told_apart(total, integers) else set()


def _told_apart(total: Sum, integers: Integers, holds: Sequence[lang.Value] = ()) -> bool:
    """Whether no two places where conditions hold have the same sum: each step is longer than all
    shorter ones reach."""
    reach = 0.0
    for atom, factor in sorted(total.terms, key=lambda term: abs(term[1])):
        low, high = integers.ranges[atom]
        for condition in holds:
            ends = _bounds(condition, Sum(0, ((atom, 1),)), integers)
            low, high = max(low, ends[0]), min(high, ends[1])
        if abs(factor) <= reach and high > low:
            return False
        reach += abs(factor) * (high - low)
    return True
