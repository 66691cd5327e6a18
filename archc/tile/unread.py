"""Dead code elimination: values that nothing reads are left out, as a lowering may ask for more
than it needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from archc.tile import language as lang
from archc.tile.called import call_values
from archc.tile.given import made_of


def swept(program: lang.Program) -> lang.Program:
    """The program without values that no store depends on, without buffers that nothing touches,
    and without sizes and constants that nothing is made of."""
    body = _swept_block(program.body, set())
    touched = {lang.memory(statement.op) for statement in lang.statements(body)}
    buffers = tuple(buffer for buffer in program.buffers if buffer in touched)
    smaller = replace(program, body=body, buffers=buffers)
    words = made_of(smaller)
    sizes = tuple(symbol for symbol in program.sizes if symbol.name in words)
    constants = tuple(name for name in program.constants if name in words)
    varying = tuple(name for name in program.varying if name in words)
    call_values(body, {*map(str, sizes), *constants})
    return replace(smaller, sizes=sizes, constants=constants, varying=varying)


def _swept_block(block: lang.Block, wanted: set[lang.Value]) -> lang.Block:
    """A block of which the values `wanted`, and what it yields, are read; adds what it reads."""
    wanted |= {*block.yields}
    kept: list[lang.Statement] = []
    for statement in reversed(block.statements):
        found = _swept(statement, wanted)
        if found is not None:
            wanted |= {*found.operands}
            kept.append(found)
    return lang.Block(block.arguments, kept[::-1], block.yields)


def _swept(statement: lang.Statement, wanted: set[lang.Value]) -> lang.Statement | None:
    """A statement with what is read of it; None if nothing is."""
    read = [value in wanted for value in statement.results]
    if isinstance(statement.op, (*lang.PURE, lang.Load, lang.LoadBlock, lang.SequenceRows)):
        return statement if any(read) else None
    if isinstance(statement.op, lang.For | lang.While | lang.If):
        return _swept_control(statement, wanted)
    return statement


def _swept_control(statement: lang.Statement, wanted: set[lang.Value]) -> lang.Statement | None:
    """A loop or a branch without results that nobody reads; a loop keeps what its turns read."""
    blocks = statement.blocks
    if not any(value in wanted for value in statement.results) and not _acts(blocks):
        return None
    kept = _kept(statement, wanted)
    before = len(statement.operands) - len(statement.results)
    operands = statement.operands
    if not isinstance(statement.op, lang.If):
        carried = [value for value, keep in zip(operands[before:], kept, strict=True) if keep]
        operands = (*operands[:before], *carried)
    made = tuple(_swept_block(_narrower(block, kept), wanted) for block in blocks)
    results = tuple(value for value, keep in zip(statement.results, kept, strict=True) if keep)
    return replace(_of_fields(statement, kept), operands=operands, results=results, blocks=made)


def _of_fields(statement: lang.Statement, kept: Collection[bool]) -> lang.Statement:
    """A statement that gives only what is kept of the fields of a row, if it gives these."""
    if not isinstance(statement.op, lang.If) or not statement.op.fields:
        return statement
    fields = (name for name, keep in zip(statement.op.fields, kept, strict=True) if keep)
    return replace(statement, op=lang.If(tuple(fields)))


def _kept(statement: lang.Statement, wanted: set[lang.Value]) -> list[bool]:
    """The results that are read, after the statement or by the turns of a loop themselves."""
    kept = [value in wanted for value in statement.results]
    if isinstance(statement.op, lang.If):
        return kept
    (body,) = statement.blocks
    first = len(body.yields) - len(kept)
    inner = body.arguments[len(body.arguments) - len(kept) :]
    while True:
        yields = [y for y, keep in zip(body.yields[first:], kept, strict=True) if keep]
        read: set[lang.Value] = set()
        _swept_block(
            lang.Block(body.arguments, body.statements, (*body.yields[:first], *yields)), read
        )
        again = [keep or value in read for keep, value in zip(kept, inner, strict=True)]
        if again == kept:
            return kept
        kept = again


def _narrower(block: lang.Block, kept: Collection[bool]) -> lang.Block:
    """A block that carries or yields only what is kept."""
    arguments, yields = block.arguments, block.yields
    first, last = len(arguments) - len(kept), len(yields) - len(kept)
    if arguments:
        chosen = [a for a, keep in zip(arguments[first:], kept, strict=True) if keep]
        arguments = (*arguments[:first], *chosen)
    chosen = [y for y, keep in zip(yields[last:], kept, strict=True) if keep]
    return lang.Block(arguments, block.statements, (*yields[:last], *chosen))


def _acts(blocks: Collection[lang.Block]) -> bool:
    """Whether something in these blocks writes memory, or waits."""
    quiet = (*lang.PURE, lang.Load, lang.LoadBlock, lang.For, lang.While, lang.If)
    return any(not isinstance(s.op, quiet) for block in blocks for s in lang.statements(block))
