"""A check of what was printed: no line of a kernel reads a name that a later one makes.

Triton says so when a kernel is launched, on the user's GPU; this says so when it is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from archc.diagnostics import InternalError


@dataclass
class LineNames:
    """A statement: the names that it reads, those that it makes, and the blocks in it."""

    reads: set[str] = field(default_factory=set)
    makes: set[str] = field(default_factory=set)
    blocks: list[list[LineNames]] = field(default_factory=list)

    def every(self) -> Iterator[str]:
        """The names that it makes, with those in its blocks."""
        yield from self.makes
        for block in self.blocks:
            for line in block:
                yield from line.every()


def in_order(name: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of the body of a kernel. Raises InternalError if one reads a name before it is
    made."""
    (kernel,) = ast.parse("\n".join(["def kernel():", "    pass", *lines])).body
    assert isinstance(kernel, ast.FunctionDef)
    body = [_names_of(statement) for statement in kernel.body]
    early = _early(body, {each for line in body for each in line.every()}, set())
    if early:
        raise InternalError(f"kernel `{name}` reads `{early}` before it is made")
    return lines


def _names_of(statement: ast.stmt) -> LineNames:
    """A statement with its names."""
    found, waiting = LineNames(), list[ast.AST]([statement])
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Del):
                (found.reads if isinstance(node.ctx, ast.Load) else found.makes).add(node.id)
            continue
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                found.blocks.append([_names_of(each) for each in value])
            elif isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)
    if isinstance(statement, ast.AugAssign):  # x += y reads x
        found.reads |= found.makes
    return found


def _early(block: Sequence[LineNames], every: set[str], made: set[str]) -> str:
    """The first name of `every` that a block reads before it is among those `made`, to which it
    adds its own; either way of a branch makes what it makes."""
    for line in block:
        if read := line.reads & every - made:
            return min(read)
        made |= line.makes
        for inner in line.blocks:
            if found := _early(inner, every, made):
                return found
    return ""
