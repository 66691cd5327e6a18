"""The body of a `repeat` whose carried names are given and then read -> one in which they are not.

    z = net(x + z)                  z_2 = net(x + z)
    y = net(y + z)          ->      y   = net(y + z_2)
                                    z   = z_2

Elsewhere a name has one value, and the order of the text is free. What a loop carries changes, and
each line sees what the lines above it have made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from archc.elaborate.mentions import free_names, names_given, walk
from archc.elaborate.scope import Scope
from archc.syntax import tree

Names = dict[str, str]
"""What each carried name is called from here on, where it is not its own."""


def in_order(
    scope: Scope, body: Sequence[tree.Stmt], carried: Sequence[str]
) -> tuple[tree.Stmt, ...]:
    """The body, in which a carried name that is read, or given again, below a line that gives it
    anew has another name from there on, and its own at the end."""
    taken = {part.id for part in walk(tuple(body)) if isinstance(part, tree.Name)}
    taken |= {*names_given(body)}
    now: Names = {}
    made: list[tree.Stmt] = []
    for place, stmt in enumerate(body):
        given = [name for name in names_given([stmt]) if name in carried]
        later = {*free_names(tuple(body[place + 1 :])), *names_given(body[place + 1 :])}
        loop, anew = isinstance(stmt, tree.Repeat), Names()
        for name in given:
            if name in later or (loop and name in now):
                _check_block(scope, stmt, name)
                anew[name] = _fresh(scope, name, taken)
                taken.add(anew[name])
            elif name in now:
                anew[name] = name
        if loop:  # what it carries comes in by the name it leaves by
            made += _aliases(stmt, {new: now.get(name, name) for name, new in anew.items()})
        made.append(_renamed(stmt, now | anew if loop else now, anew))
        now |= anew
    ends = {name: last for name, last in now.items() if name != last}
    return (*made, *_aliases(body[-1], ends))


def _aliases(stmt: tree.Stmt, names: Mapping[str, str]) -> Iterator[tree.Stmt]:
    """`z = z_2` for each."""
    for name, value in names.items():
        target = tree.Target(stmt.span, name, None)
        if name != value:
            yield tree.Assign(stmt.span, (target,), tree.Name(stmt.span, value))


def _fresh(scope: Scope, name: str, taken: set[str]) -> str:
    """A name that nothing has."""
    number = 2
    while f"{name}_{number}" in taken or scope.find(f"{name}_{number}") is not None:
        number += 1
    return f"{name}_{number}"


def _renamed(node: Any, read: Mapping[str, str], given: Mapping[str, str]) -> Any:
    """A node with other names for values that are read in it, and for those that it gives."""
    if isinstance(node, tuple):
        return tuple(_renamed(part, read, given) for part in node)
    if not isinstance(node, tree.Node):
        return node
    if isinstance(node, tree.Name):
        return replace(node, id=read.get(node.id, node.id))
    parts = {key: _renamed(part, read, given) for key, part in vars(node).items()}
    if isinstance(node, tree.Target):
        parts["name"] = given.get(node.name, node.name)
    return replace(node, **parts)


def _check_block(scope: Scope, stmt: tree.Stmt, name: str) -> None:
    """Refuse a name that is carried into a block which reads it and gives it anew: in the block,
    and behind it, the value that came in and the new one would both be a way to read it."""
    if isinstance(stmt, tree.Assign | tree.Repeat) or name not in {*free_names(stmt)}:
        return
    raise scope.error(
        "E0227",
        f"`{name}` is read in the block that gives it a new value, and below",
        stmt.span,
        "the value that came in, or the new one?",
        helps=[
            "for the new one, give it a name of its own, read that, and carry it on "
            f"in the end: `{name} = ...`",
        ],
    )
