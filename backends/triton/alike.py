"""Tile programs that differ in names alone: they share one kernel, which is compiled once."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from archc.backends.triton.printer import mentioned

from archc.tile.language import Block, Buffer, Program, Statement, Value


def likeness(program: Program) -> str:
    """What programs have in common that differ in names of buffers and of values alone, in notes
    and in places of a spec."""
    order = {buffer: place for place, buffer in enumerate(program.buffers)}
    values: dict[Value, int] = {}
    head = (
        [
            (tuple(size for _, size in b.axes), b.dtype, b.strided, b.optional)
            for b in program.buffers
        ],
        program.sizes, program.constants, program.grid, program.cooperative, program.varying,
        sorted(mentioned(program)),
    )  # fmt: skip
    return f"{head} {_block(program.body, order, values)}"


def _block(block: Block, order: dict[Buffer, int], values: dict[Value, int]) -> str:
    arguments = [_named(value, values) for value in block.arguments]
    lines = [_statement(each, order, values) for each in block.statements]
    return f"{arguments} {lines} {[_named(value, values) for value in block.yields]}"


def _statement(made: Statement, order: dict[Buffer, int], values: dict[Value, int]) -> str:
    given = [_named(value, values) for value in made.operands]
    results = [_named(value, values) for value in made.results]
    inner = [_block(each, order, values) for each in made.blocks]
    return f"{_op(made.op, order)} {given} {results} {inner}"


def _named(value: Value, values: dict[Value, int]) -> str:
    """A value by its number and its type."""
    return f"{values.setdefault(value, len(values))}: {value.type}"


def _op(op: Any, order: dict[Buffer, int]) -> str:
    """An op, its buffer by its place among all."""
    if isinstance(op, Buffer):
        return f"buffer {order[op]}"
    if is_dataclass(op):
        inner = ", ".join(_op(getattr(op, field.name), order) for field in fields(op))
        return f"{type(op).__name__}({inner})"
    return repr(op)
