"""The sizes and constants that a program is made of, and those that its kernel is given: the others
say how many programs there are, how large buffers are, and of what dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import sympy

from archc.tile import language as lang

Made = Mapping[lang.Value, lang.Statement]
"""The statement that makes each value."""

Found = Iterator[sympy.Expr | str]
"""Sizes, and names of constants."""


@lru_cache(maxsize=256)
def given_names(program: lang.Program) -> frozenset[str]:
    """The sizes and constants that the work of one program of a launch names."""
    found: set[sympy.Expr | str] = {program.apart, *(count for _, count in program.grid[1:])}
    made = {value: s for s in lang.statements(program.body) for value in s.results}
    for statement in lang.statements(program.body):
        found.update(_named(statement, made))
        values = (*statement.results, *(v for block in statement.blocks for v in block.arguments))
        found.update(dim.length for value in values for dim in value.type.dims)
    return _names(found) & {*program.constants, *(symbol.name for symbol in program.sizes)}


def made_of(program: lang.Program) -> frozenset[str]:
    """All sizes and constants that a program needs to be understood."""
    found: set[sympy.Expr | str] = {count for _, count in program.grid}
    for buffer in program.buffers:
        found |= {buffer.dtype, *(size for _, size in buffer.axes)}
    for statement in lang.statements(program.body):
        values = (*statement.results, *(v for block in statement.blocks for v in block.arguments))
        found.update(value.type.dtype for value in values)
        if isinstance(statement.op, lang.While):
            found.add(statement.op.most)
    return given_names(program) | _names(found)


def _names(found: set[sympy.Expr | str]) -> frozenset[str]:
    sizes = {each for each in found if not isinstance(each, str)}
    symbols = {str(symbol) for size in sizes for symbol in size.free_symbols}
    return frozenset(symbols | {each for each in found if isinstance(each, str)})


def _named(s: lang.Statement, made: Made) -> Found:
    """What an op names beside the lengths of the dims of what it makes."""
    op = s.op
    if isinstance(op, lang.Scalar):
        yield op.size
    elif isinstance(op, lang.AtMost):
        yield from (op.size, op.most)
    elif isinstance(op, lang.Chosen):
        yield from (op.constant, op.choice)
    elif isinstance(op, lang.Dot):
        yield op.precision
    elif isinstance(op, lang.For) and isinstance(op.ahead, str):
        yield op.ahead
    elif isinstance(op, lang.Push):
        yield op.count
    elif isinstance(op, lang.SequenceRows):
        yield from (op.before, op.ahead, op.buffer.axes[1][1])
    elif isinstance(op, lang.LoadBlock):
        yield from (op.chosen, *(size for _, size in op.buffer.axes))
    elif isinstance(op, lang.Load | lang.Store | lang.Atomic):
        yield from _of_address(op.buffer, s.operands, made)
    elif isinstance(op, lang.Full | lang.Cast | lang.Broadcast):
        yield s.results[0].type.dtype


def _of_address(buffer: lang.Buffer, operands: tuple[lang.Value, ...], made: Made) -> Found:
    """The sizes of axes that an address is counted with: of those behind one along which it has a
    place, as far as the one whose stride is given."""
    if buffer.strided:
        return
    counted = False
    for (axis, size), index in zip(buffer.axes, operands, strict=False):
        if counted:
            yield size
        counted |= not _is_zero(index, made)
        counted &= axis != buffer.rows


def _is_zero(index: lang.Value, made: Made) -> bool:
    """Whether an index is the number 0."""
    op = made[index].op if index in made else None
    return isinstance(op, lang.Full) and not index.type.dims and op.number == 0
