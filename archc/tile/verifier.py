"""What no tile program may do, found before it is printed.

`verify` looks at the program alone: types, order, names. `verify_launch` looks at it for sizes that
are known: lengths of blocks, elements outside a buffer, elements that are stored twice, and what
the device has no room for. Both return `Refusal`s: which value, and why; none means that it is
right. An index that is read from memory cannot be told before it runs: the interpreter checks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from archc.ir.layer import ELEMENTWISE
from archc.source import Span
from archc.tile.affine import Atom, Integers, Sum
from archc.tile.language import (
    DTYPES,
    Apply,
    Atomic,
    Block,
    Buffer,
    Dim,
    Dot,
    For,
    If,
    Iota,
    Load,
    LoadBlock,
    Program,
    Relabel,
    Reshape,
    Statement,
    Store,
    Transpose,
    Type,
    Value,
    kind,
    memory,
    statements,
)
from archc.tile.resources import Launch, Room

NARROW = ("f16", "bf16")
LEAST = 16
"""The shortest dim of a product of matrices."""


@dataclass(frozen=True)
class Refusal:
    """Why a program is refused: the value or buffer that is to blame, the reason, and the place in
    a spec, if there is one."""

    name: str
    reason: str
    span: Span | None = None

    def __str__(self) -> str:
        return f"`{self.name}`: {self.reason}"


def verify(program: Program) -> list[Refusal]:
    """What is wrong with a program at any size."""
    names = [value.name for value in _values(program.body)]
    found = [
        Refusal(n, "two values have this name") for n in sorted({*names}) if names.count(n) > 1
    ]
    return [*found, *_in_order(program, program.body, set())]


def _values(block: Block) -> Iterator[Value]:
    yield from block.arguments
    for statement in block.statements:
        yield from statement.results
        for inner in statement.blocks:
            yield from _values(inner)


def _in_order(program: Program, block: Block, before: set[Value]) -> Iterator[Refusal]:
    """Every value is made before it is read, and every op has the types that it wants."""
    seen = before | {*block.arguments}
    for statement in block.statements:
        for value in statement.operands:
            if value not in seen:
                yield Refusal(value.name, "it is read where it is not made yet", statement.span)
        reason = _wrong(program, statement)
        if reason:
            yield Refusal(_name(statement), reason, statement.span)
        for inner in statement.blocks:
            yield from _in_order(program, inner, seen)
        seen |= {*statement.results}
    for value in block.yields:
        if value not in seen:
            yield Refusal(value.name, "it leaves a block that it is not made in")


def _name(statement: Statement) -> str:
    """What a refusal calls a statement: its value, else its buffer."""
    if statement.results:
        return statement.results[0].name
    buffer = memory(statement.op)
    return buffer.name if buffer else type(statement.op).__name__.lower()


def _wrong(program: Program, s: Statement) -> str:
    """Why a statement is not well-typed; empty if it is."""
    buffer = memory(s.op)
    if buffer is not None and buffer not in program.buffers:
        return f"`{buffer.name}` is no buffer of the program"
    for value in s.results:
        dtype = value.type.dtype
        if dtype not in DTYPES and dtype not in program.constants:
            return f"`{dtype}` is no dtype, and no constant of the program"
    match s.op:
        case Apply(function):
            return _wrong_apply(function, s)
        case Dot():
            return _wrong_dot(s)
        case Transpose(order) if sorted(order) != sorted(s.operands[0].type.names):
            return f"{_shown(s.operands[0].type)} has no dims {', '.join(order)}"
        case Load() | Store() | LoadBlock() | Atomic():
            return _wrong_memory(s.op.buffer, s)
        case For():
            (body,) = s.blocks
            given = [v.type for v in s.operands[2:]], [v.type for v in body.arguments[1:]]
            made = [v.type for v in body.yields], [v.type for v in s.results]
            if not given[0] == given[1] == made[0] == made[1]:
                return "what a turn hands on is not of the type that the next one takes"
        case If() if s.operands[0].type.dims:
            return "a branch needs a scalar"
    return ""


def _wrong_apply(function: str, s: Statement) -> str:
    if ELEMENTWISE.get(function) != len(s.operands):
        return f"no function `{function}` of {len(s.operands)} operands"
    (result,) = s.results
    for value in s.operands:
        if value.type.dtype in NARROW:
            return f"arithmetic in {value.type.dtype}: `{value.name}` must be cast to f32"
        at = [
            result.type.names.index(n) if n in result.type.names else -1 for n in value.type.names
        ]
        if -1 in at or at != sorted(at):
            return f"{_shown(value.type)} does not line up with {_shown(result.type)}"
        if any(dim not in result.type.dims for dim in value.type.dims):
            return f"a dim of `{value.name}` has another length there"
    return ""


def _wrong_dot(s: Statement) -> str:
    a, b, *_ = (value.type for value in s.operands)
    if len(a.dims) != 2 or len(b.dims) != 2 or a.dims[1] != b.dims[0]:
        return f"no product of {_shown(a)} and {_shown(b)}"
    if a.dtype != b.dtype:
        return f"a product of {a.dtype} and {b.dtype}"
    if any(kind(t.dtype) != "real" for t in (a, b)):
        return "a product of numbers that are not real"
    return ""


def _wrong_memory(buffer: Buffer, s: Statement) -> str:
    index = s.operands[: len(buffer.axes)]
    if len(index) < len(buffer.axes) or any(kind(v.type.dtype) != "int" for v in index):
        return f"`{buffer.name}` is read with {len(buffer.axes)} integers"
    if isinstance(s.op, LoadBlock) and any(value.type.dims for value in index):
        return "a block begins at scalars"
    if isinstance(s.op, Atomic) and s.op.function == "add" and kind(buffer.dtype) != "int":
        return "sums of real numbers would change from run to run"
    masks = s.operands[len(index) + (1 if isinstance(s.op, Store) else 0) :]
    if isinstance(s.op, Load | Store) and any(v.type.dtype != "bool" for v in masks):
        return "a mask is a truth value"
    return ""


def _shown(type: Type) -> str:
    return f"[{', '.join(type.names)}]"


# --- at sizes that are known --------------------------------------------------------------------


def verify_launch(
    program: Program, known: Mapping[str, int | float | str], room: Room | None = None
) -> list[Refusal]:
    """What is wrong with a launch of a program: `known` has its sizes and its constants, `room`
    says what a device has for one program (None: it is not asked)."""
    integers = Integers(program, known)
    found: list[Refusal] = [] if room is None else [*_room(Launch(program, known), room)]
    for statement in statements(program.body):
        found += _lengths(statement, integers)
        if isinstance(statement.op, Load | Store | Atomic):
            found += _outside(statement, integers)
        if isinstance(statement.op, Store):
            found += _twice(program, statement, integers)
    return found


def _room(launch: Launch, room: Room) -> Iterator[Refusal]:
    """Whether what is held at a time fits into registers, and what products read into shared
    memory."""
    chip, name = launch.on_chip(), launch.largest().name
    if chip.shared > room.shared:
        reason = (
            f"a program needs {chip.shared} bytes of shared memory, and there are {room.shared}"
        )
        yield Refusal(name, f"{reason}; this value is the largest")
    if chip.held > 4 * room.registers:
        reason = f"a program holds {chip.held} bytes in registers, and there are"
        yield Refusal(name, f"{reason} {4 * room.registers}; this value is the largest")


def _lengths(s: Statement, integers: Integers) -> Iterator[Refusal]:
    """Blocks are powers of two; those of products are not short; a reshape keeps all elements."""
    if isinstance(s.op, Iota):
        length = integers.size(s.op.dim.length)
        if length & (length - 1):
            yield Refusal(s.op.dim.name, f"a block of {length} is no power of two", s.span)
    if isinstance(s.op, Dot):
        for dim in {*s.operands[0].type.dims, *s.operands[1].type.dims}:
            if integers.size(dim.length) < LEAST:
                reason = f"a product over blocks of {integers.size(dim.length)}, at least {LEAST}"
                yield Refusal(_name(s), f"{reason} (dim `{dim.name}`)", s.span)
    if isinstance(s.op, Reshape):
        sides = [_elements(v.type.dims, integers) for v in (*s.operands, *s.results)]
        if sides[0] != sides[1]:
            reason = f"{sides[0]} elements do not divide into {sides[1]}"
            yield Refusal(_name(s), reason, s.span)


def _elements(dims: Sequence[Dim], integers: Integers) -> int:
    return math.prod(integers.size(dim.length) for dim in dims)


def _outside(s: Statement, integers: Integers) -> Iterator[Refusal]:
    """Elements before the first or after the last of an axis that no mask hides."""
    assert isinstance(s.op, Load | Store | Atomic)
    buffer, count = s.op.buffer, len(s.op.buffer.axes)
    masks = s.operands[count + (0 if isinstance(s.op, Load) else 1) :]
    for (axis, size), value in zip(buffer.axes, s.operands[:count], strict=True):
        total = integers.sum(value)
        if any(
            isinstance(atom.key, Value) and _read(atom.key, integers) for atom, _ in total.terms
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
            yield Refusal(_name(s), f"{reason}, and no mask hides it", s.span)


def _read(value: Value, integers: Integers) -> bool:
    """Whether a value depends on what stands in memory."""
    made = integers.made.get(value)
    if made is None:
        return False
    if isinstance(made.op, Load | LoadBlock | Atomic):
        return True
    return any(_read(operand, integers) for operand in made.operands)


def _bounds(mask: Value, total: Sum, integers: Integers) -> tuple[float, float]:
    """What a mask says of an index: the least and the largest where it holds."""
    made = integers.made.get(mask)
    if made is not None and isinstance(made.op, Relabel):
        (operand,) = made.operands
        before = dict(zip(mask.type.names, operand.type.dims, strict=True))
        return _bounds(operand, total.renamed(before), integers)
    if made is None or not isinstance(made.op, Apply):
        return -math.inf, math.inf
    function = made.op.function
    if function == "and":
        both = [_bounds(each, total, integers) for each in made.operands]
        return max(low for low, _ in both), min(high for _, high in both)
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


def _twice(program: Program, s: Statement, integers: Integers) -> Iterator[Refusal]:
    """Places of the grid or of a tile that an element's address does not tell apart."""
    assert isinstance(s.op, Store)
    count = len(s.op.buffer.axes)
    sums = [integers.sum(value) for value in s.operands[:count]]
    if any(
        isinstance(atom.key, Value) and _read(atom.key, integers)
        for t in sums
        for atom, _ in t.terms
    ):
        if not s.op.exclusive:
            reason = "indices are read from memory, and nothing says that no two are the same"
            yield Refusal(_name(s), reason, s.span)
        return
    told = {atom for total in sums if _told_apart(total, integers) for atom, _ in total.terms}
    dims = {dim for value in s.operands[: count + 1] for dim in value.type.dims}
    wanted = [*(Atom(axis) for axis, _ in program.grid), *map(Atom, sorted(dims, key=str))]
    for atom in wanted:
        low, high = integers.ranges.get(atom, (0, 0))
        if high > low and atom not in told:
            reason = f"all places along `{atom.name}` store the same elements of it"
            yield Refusal(_name(s), reason, s.span)


def _told_apart(total: Sum, integers: Integers) -> bool:
    """Whether no two places have the same sum: each step is longer than all shorter ones reach."""
    reach = 0.0
    for atom, factor in sorted(total.terms, key=lambda term: abs(term[1])):
        low, high = integers.ranges[atom]
        if abs(factor) <= reach and high > low:
            return False
        reach += abs(factor) * (high - low)
    return True
