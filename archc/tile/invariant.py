"""Loop-invariant code motion: products and sums that no turn changes are made before their loop.

    for n from 0 below N                   a = load x[i, k] @ load y[k, j]
      a = load x[i, k] @ load y[k, j]  ->  for n from 0 below N
      store z[i, n] = sum(a * b[j, n])       store z[i, n] = sum(a * b[j, n])

With them goes what they are made of, and what is made of them element by element and is no larger:
it is held instead. All else stays: a compiler moves what is cheap itself, or makes it again rather
than hold it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from archc.tile import language as lang

COSTLY = (lang.Dot, lang.Reduce, lang.Scan, lang.Sort)
"""Ops of which one in each turn costs more than a result that is held."""

QUIET = (*lang.PURE, lang.For, lang.If, lang.Load)
"""Ops that leave memory as it is, and come to an end."""

Buffers = Collection[lang.Buffer | None]


def before_loops(program: lang.Program) -> lang.Program:
    """The program whose loops have no costly values that are the same in all turns."""
    changes = (lang.Store, lang.Atomic)
    every = lang.statements(program.body)
    written = {lang.memory(each.op) for each in every if isinstance(each.op, changes)}
    return replace(program, body=_block(program.body, written))


def _block(block: lang.Block, written: Buffers) -> lang.Block:
    """A block with its loops, and those within them, rewritten."""
    made: list[lang.Statement] = []
    for each in block.statements:
        found = replace(each, blocks=tuple(_block(part, written) for part in each.blocks))
        if isinstance(found.op, lang.For):
            before = _moved(found.blocks[0], written)
            (body,) = found.blocks
            rest = [one for one in body.statements if one not in before]
            made += before
            found = replace(found, blocks=(replace(body, statements=rest),)) if before else found
        made.append(found)
    return lang.Block(block.arguments, made, block.yields)


def _moved(body: lang.Block, written: Buffers) -> list[lang.Statement]:
    """The statements of a turn that are made before the loop, in order."""
    changing, same = {*body.arguments}, list[lang.Statement]()
    for each in body.statements:
        if all(_is_quiet(one, written) for one in _with_inner(each)) and not _read(each) & changing:
            same.append(each)
        else:
            changing |= {*each.results}
    costly: set[lang.Value] = set()
    for each in same:
        if any(isinstance(one.op, COSTLY) for one in _with_inner(each)) or _follows(each, costly):
            costly |= {*each.results}
    wanted = set(costly)
    for each in reversed(same):
        if wanted & {*each.results}:
            wanted |= _read(each)
    return [each for each in same if wanted & {*each.results}]


def _with_inner(statement: lang.Statement) -> list[lang.Statement]:
    return [statement, *(one for block in statement.blocks for one in lang.statements(block))]


def _is_quiet(statement: lang.Statement, written: Buffers) -> bool:
    """Whether a statement makes the same in every turn of the same values."""
    changes = isinstance(statement.op, lang.Load) and statement.op.buffer in written
    return isinstance(statement.op, QUIET) and not changes


def _read(statement: lang.Statement) -> set[lang.Value]:
    """The values that a statement, and those within it, are made of."""
    found = set[lang.Value]()
    for each in _with_inner(statement):
        found |= {*each.operands, *(value for block in each.blocks for value in block.yields)}
    return found


def _follows(statement: lang.Statement, costly: Collection[lang.Value]) -> bool:
    """Whether a value is made element by element of a costly one, and as large."""
    if not isinstance(statement.op, lang.Apply | lang.Cast):
        return False
    (made,) = statement.results
    dims = {*made.type.dims}
    return any(value in costly and {*value.type.dims} == dims for value in statement.operands)
