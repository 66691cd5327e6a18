"""Two axes of a buffer that are always gone through by one index are one axis.

    v[x // 3, x % 3, h]  of  v[T, 3, h]   ->   v[x, h]  of  v[3 T, h]

So are the steps of tokens, which lie side by side: an address is made without quotients then. What
a launch is given stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any

import sympy

from archc.tile import language as lang

Access = lang.Load | lang.Store | lang.Atomic


def joined(program: lang.Program) -> lang.Program:
    """The program whose buffers have no two axes that one index goes through."""
    every = [*lang.statements(program.body)]
    made = {value: each for each in every for value in each.results}
    changed: dict[lang.Buffer, tuple[int, lang.Buffer]] = {}
    users = defaultdict(list)
    for each in every:
        users[lang.memory(each.op)].append(each)
    for buffer in program.buffers:
        used = users[buffer]
        for place in range(len(buffer.axes) - 1 if used and not buffer.steps else 0):
            if all(_of_one(each, place, made) for each in used):
                changed[buffer] = place, _with_one(buffer, place)
                break
    if not changed:
        return program
    buffers = tuple(changed.get(buffer, (0, buffer))[1] for buffer in program.buffers)
    return replace(program, body=_block(program.body, changed, made), buffers=buffers)


def same_memory(tensor: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a contiguous tensor of one shape is one of another in memory, with axes as one."""
    given, wanted = ([*accumulate(each, mul, initial=1)] for each in (tensor, shape))
    return given[-1] == wanted[-1] and {*wanted} <= {*given}


def _with_one(buffer: lang.Buffer, place: int) -> lang.Buffer:
    """A buffer with the axis at a place and the next one as one."""
    (name, count), (inner, length) = buffer.axes[place : place + 2]
    one = (f"{name}_{inner}", count * length)
    return replace(buffer, axes=(*buffer.axes[:place], one, *buffer.axes[place + 2 :]))


def _of_one(each: lang.Statement, place: int, made: dict[lang.Value, lang.Statement]) -> bool:
    """Whether a statement has the quotient and the rest of one number by the length of an axis as
    its places along that axis and the one before it."""
    if not isinstance(each.op, Access):
        return False
    pair = [made.get(value) for value in each.operands[place : place + 2]]
    quotient, rest = pair
    if quotient is None or rest is None or quotient.operands[:1] != rest.operands[:1]:
        return False
    if (quotient.op, rest.op) != (lang.Apply("floordiv"), lang.Apply("mod")):
        return False
    length = each.op.buffer.axes[place + 1][1]
    return all(_number(made.get(by.operands[1])) == length for by in (quotient, rest))


def _number(by: lang.Statement | None) -> sympy.Expr | None:
    """The number that a statement makes, if it is one."""
    op: Any = None if by is None else by.op
    if isinstance(op, lang.Scalar):
        return op.size
    return sympy.Integer(op.number) if isinstance(op, lang.Full) else None


def _block(
    block: lang.Block, changed: dict[lang.Buffer, tuple[int, lang.Buffer]],
    made: dict[lang.Value, lang.Statement],
) -> lang.Block:  # fmt: skip
    """A block, and those inside it, with such buffers."""
    found = []
    for each in block.statements:
        op, operands = each.op, each.operands
        if isinstance(op, Access) and op.buffer in changed:
            place, buffer = changed[op.buffer]
            index = made[operands[place]].operands[:1]
            op = replace(op, buffer=buffer)
            operands = (*operands[:place], *index, *operands[place + 2 :])
        inside = tuple(_block(inner, changed, made) for inner in each.blocks)
        found.append(replace(each, op=op, operands=operands, blocks=inside))
    return lang.Block(block.arguments, found, block.yields)
