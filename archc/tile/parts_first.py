"""Loops that multiply what they load, in two parts of each number, stand before all else.

    a = ...                          c = for n from 0 below N
    c = for n from 0 below N               c + load x[n] @ load y[n]
          c + load x[n] @ load y[n]  ->  a = ...
    store a + c                          store a + c

A turn of such a loop holds a tile in float32 and both its parts, beside everything that is wanted
after it. Where it stands first, that is nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from archc.tile import language as lang


def parts_first(program: lang.Program) -> lang.Program:
    """The program whose blocks begin with such loops."""
    written = {lang.memory(each.op) for each in lang.statements(program.body) if _writes(each)}
    return replace(program, body=_block(program.body, written))


def _writes(statement: lang.Statement) -> bool:
    return isinstance(statement.op, lang.Store | lang.Atomic | lang.Barrier)


def _block(block: lang.Block, written: Collection[lang.Buffer | None]) -> lang.Block:
    """A block, and those of its branches, with the loops and what they are made of in front."""
    statements = [
        replace(each, blocks=tuple(_block(part, written) for part in each.blocks))
        if isinstance(each.op, lang.If) else each
        for each in block.statements
    ]  # fmt: skip
    made_by = {value: each for each in statements for value in each.results}
    first: set[lang.Statement] = set()
    for each in statements:
        if _multiplies(each):
            first |= _made_of(each, made_by, written) or set()
    ordered = sorted(statements, key=lambda each: each not in first)
    return lang.Block(block.arguments, ordered, block.yields)


def _multiplies(statement: lang.Statement) -> bool:
    """Whether a statement is a loop with products of parts, which are bfloat16 whatever the data
    are, or a choice of which one is."""
    inside = [each for block in statement.blocks for each in lang.statements(block)]
    if isinstance(statement.op, lang.For):
        products = (each for each in inside if isinstance(each.op, lang.Dot))
        return any(each.operands[0].type.dtype == "bf16" for each in products)
    chosen = isinstance(statement.op, lang.If) and bool(statement.results)
    return chosen and any(_multiplies(each) for each in inside if isinstance(each.op, lang.For))


def _made_of(
    statement: lang.Statement,
    made_by: dict[lang.Value, lang.Statement],
    written: Collection[lang.Buffer | None],
) -> set[lang.Statement] | None:
    """A statement and those of its block that it is made of; None where these are more than loads,
    places and what is 0 at first."""
    found: set[lang.Statement] = set()
    waiting = [statement]
    while waiting:
        each = waiting.pop()
        whole = [each, *(inner for block in each.blocks for inner in lang.statements(block))]
        touched = (lang.memory(n.op) in written for n in whole if lang.memory(n.op) is not None)
        if any(touched) or (each is not statement and not _is_place(each)):
            return None
        found.add(each)
        read = {value for n in whole for value in _used(n)}
        waiting += {made_by[value] for value in read if value in made_by} - found
    return found


def _used(statement: lang.Statement) -> list[lang.Value]:
    yielded = [value for block in statement.blocks for value in block.yields]
    return [*statement.operands, *yielded]


def _is_place(statement: lang.Statement) -> bool:
    """Whether a statement is a load, or makes a place, a mask or a number."""
    if isinstance(statement.op, lang.Load | lang.LoadBlock | lang.SequenceRows):
        return True
    whole = all(lang.kind(value.type.dtype) != "real" for value in statement.results)
    return isinstance(statement.op, lang.Full) or (isinstance(statement.op, lang.PURE) and whole)
