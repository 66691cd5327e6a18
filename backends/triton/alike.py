"""Tile programs that differ in names alone: they share one kernel, which is compiled once; and
functions that do, of which a file has one."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from archc.tile.language import OF_BUFFER, Block, Buffer, Program, Statement, Value

Order = dict[Buffer | str, int]
"""The places of buffers among those of a program, by themselves and by what their dtypes are
called."""


def likeness(program: Program) -> Hashable:
    """A key that programs share which differ in names of buffers and of values alone, in notes and
    in places of a spec."""
    order: Order = {}
    for place, buffer in enumerate(program.buffers):
        order |= {buffer: place, f"{OF_BUFFER}{buffer.name}": place}
    values: dict[Value, int] = {}
    head = (
        tuple(
            (tuple(size for _, size in b.axes), order.get(b.dtype, b.dtype), b.steps, b.optional)
            for b in program.buffers
        ),
        program.sizes, program.constants, program.grid, program.cooperative, program.varying,
        program.apart,
    )  # fmt: skip
    return head, _block(program.body, order, values)


def _block(block: Block, order: Order, values: dict[Value, int]) -> Hashable:
    arguments = tuple(_named(value, order, values) for value in block.arguments)
    lines = tuple(_statement(each, order, values) for each in block.statements)
    return arguments, lines, tuple(_named(value, order, values) for value in block.yields)


def _statement(made: Statement, order: Order, values: dict[Value, int]) -> Hashable:
    given = tuple(_named(value, order, values) for value in made.operands)
    results = tuple(_named(value, order, values) for value in made.results)
    inner = tuple(_block(each, order, values) for each in made.blocks)
    return _op(made.op, order), given, results, inner


def _named(value: Value, order: Order, values: dict[Value, int]) -> Hashable:
    """A value by its number and its type."""
    dtype = order.get(value.type.dtype, value.type.dtype)
    return values.setdefault(value, len(values)), dtype, value.type.dims


def _op(op: Any, order: Order) -> Hashable:
    """An op, its buffer by its place among all, and so the dtype of one."""
    if isinstance(op, Buffer):
        return Buffer, order[op]
    if isinstance(op, str) and op in order:
        return order[op]
    names = _fields(type(op))
    if names is not None:
        return type(op), *(_op(getattr(op, name), order) for name in names)
    return repr(op) if isinstance(op, float) else op  # 0.0 and -0.0 are not alike


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """The names of the fields of a dataclass."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def alike(sections: Sequence[str], titles: Iterable[str]) -> Hashable:
    """A key that functions share which differ alone in the names that they define themselves, in
    `titles` and in comments: their words, their own ones by number."""
    text = "\n".join(sections)
    own, order = {*titles}, dict[str, int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            own |= {node.name, *(argument.arg for argument in node.args.args)}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    words = re.findall(r"\w+|[^\w\s]", re.sub(r"  #.*|^ *#.*", "", text, flags=re.M))
    return tuple(order.setdefault(word, len(order)) if word in own else word for word in words)
