"""Values that differ in the names of their dims alone are one.

    k  = load k[t + i, c]                 k  = load k[t + i, c]
    a  = dot(u, k.T)    [i, K]            a  = dot(u, k.T)
    k2 = load k[t + j, c]           ->    k2 = k, its dims named j, c
    b  = dot(x, k2)     [j, K]            b  = dot(x, k2)

A score has two places of one chunk, each with a name, and a gradient asks for the same rows by
both: they are loaded once, and a product of them is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from archc.tile.language import (
    PURE,
    Atomic,
    Block,
    Broadcast,
    Flip,
    Full,
    Iota,
    Load,
    Op,
    Pick,
    Program,
    Reduce,
    Relabel,
    Reshape,
    Scan,
    Sort,
    Statement,
    Store,
    Transpose,
    Value,
    kind,
    statements,
)

Named = tuple[Value, tuple[str, ...]]
"""A value, and the names that its dims have where it is read."""

Numbers = dict[str, int]
"""The names of dims, in the order in which a statement mentions them."""


def alike(program: Program) -> Program:
    """The program with one value in place of those that differ in names alone."""
    every = [*statements(program.body)]
    written = {each.op.buffer for each in every if isinstance(each.op, Store | Atomic)}
    found = _Alike({each.op.buffer for each in every if isinstance(each.op, Load)} - written)
    return replace(program, body=found.block(program.body))


def twins(program: Program) -> dict[Value, Value]:
    """The places and masks of a program that are the same as one before them but for the names of
    dims, which a text need not say twice."""
    found = _Alike(set())
    found.block(program.body)
    return found.twins


class _Alike:
    """The values in sight, by how they are made; of buffers, those that are only `read`."""

    def __init__(self, read: set) -> None:
        self.read = read
        self.known: list[dict[tuple, Value]] = []
        self.same: dict[Value, Named] = {}
        self.twins: dict[Value, Value] = {}

    def block(self, block: Block) -> Block:
        """A block, and those within it, in which each value is made once."""
        self.known.append({})
        made = [self._statement(each) for each in block.statements]
        self.known.pop()
        return Block(block.arguments, made, block.yields)

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement.op, Relabel):
            (of,) = statement.operands
            self.same[statement.results[0]] = self._named(of)[0], statement.op.names
            return statement
        if statement.blocks:
            return replace(statement, blocks=tuple(map(self.block, statement.blocks)))
        key = self._key(statement)
        if key is None:
            return statement
        (made,) = statement.results
        first = next((known[key] for known in reversed(self.known) if key in known), None)
        if first is None:
            self.known[-1][key] = made
            return statement
        self.same[made] = first, made.type.names
        if kind(made.type.dtype) != "real":  # places and masks cost nothing, and tell what is what
            self.twins[made] = first
            return statement
        return replace(statement, op=Relabel(made.type.names), operands=(first,))

    def _named(self, value: Value) -> Named:
        """The value that stands for one, and the names of its dims in this one."""
        return self.same.get(value, (value, value.type.names))

    def _key(self, statement: Statement) -> tuple | None:
        """How a value is made, whatever its dims are called; None where it may differ each time."""
        op = statement.op
        if not isinstance(op, PURE) and not (isinstance(op, Load) and op.buffer in self.read):
            return None
        (made,) = statement.results
        operands = [self._named(value) for value in statement.operands]
        numbers: Numbers = {}
        for names in (*(names for _, names in operands), made.type.names):
            for name in names:
                numbers.setdefault(name, len(numbers))
        dims = tuple((numbers[dim.name], dim.length) for dim in made.type.dims)
        read = tuple((value, _numbered(names, numbers)) for value, names in operands)
        return _way(op, numbers), read, made.type.dtype, dims


def _numbered(names: Sequence[str], numbers: Numbers) -> tuple[int, ...]:
    return tuple(numbers[name] for name in names)


def _way(op: Op, numbers: Numbers) -> tuple:
    """An op with numbers in place of the names of dims: those of the result are in its type."""
    match op:
        case Iota(_, most):
            return Iota, most
        case Full(number, _):
            return Full, repr(number)  # 0.0 == -0.0
        case Broadcast(_, held):
            return Broadcast, held
        case Reshape():
            return (Reshape,)
        case Reduce(function, dim):
            return Reduce, function, numbers[dim]
        case Scan(function, dim, reverse):
            return Scan, function, numbers[dim], reverse
        case Flip(dim) | Pick(dim):
            return type(op), numbers[dim]
        case Sort(descending, most):
            return Sort, descending, most is None
        case Transpose(order):
            return Transpose, _numbered(order, numbers)
        case _:
            return (op,)
