"""The names that a body mentions, read off the tree before anything is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from archc.elaborate.scope import Module
from archc.syntax import tree

PARTS = (tuple, tree.Node)
"""What may hold nodes."""

MAX_CALLS = 60
"""Longest chain of layers that call one another, as far as it is followed here."""


def walk(node: Any) -> Iterator[tree.Node]:
    """Every node in a node or a tuple, itself first, in the order of the text."""
    ahead = [node]
    while ahead:
        here = ahead.pop()
        if isinstance(here, tree.Node):
            yield here
            here = tuple(vars(here).values())
        if isinstance(here, tuple):
            ahead += [part for part in reversed(here) if isinstance(part, PARTS)]


def free_names(node: Any) -> Iterable[str]:
    """Every name in an expression."""
    return (part.id for part in walk(node) if isinstance(part, tree.Name))


def names_defined(stmts: Iterable[tree.Stmt]) -> list[str]:
    """Names that statements give to their scope, in order."""
    names: list[str] = []
    for stmt in stmts:
        if isinstance(stmt, tree.Assign):
            names += [target.name for target in stmt.targets]
        elif isinstance(stmt, tree.Output) and stmt.value is not None:
            names.append(stmt.target.name)
        elif isinstance(stmt, tree.Recurrence):
            names += [state.name for state in stmt.states]
            names += [n for n in names_defined(stmt.body) if n not in names]
        elif isinstance(stmt, tree.Attend | tree.Blocks | tree.Route):
            names += names_defined(stmt.body)
    return names


def names_given(stmts: Sequence[tree.Stmt]) -> list[str]:
    """The names that statements define, and those that loops among them carry on."""
    loops = [name for s in stmts if isinstance(s, tree.Repeat) for name in names_given(s.body)]
    return [*dict.fromkeys([*names_defined(stmts), *loops])]


def names_bound(stmt: tree.Stmt) -> list[str]:
    """Names that a statement binds, inputs and parameters among them."""
    if isinstance(stmt, tree.Input):
        return [item.name for item in stmt.names]
    if isinstance(stmt, tree.Param):
        return [item.name for group in stmt.groups for item in group.names]
    if isinstance(stmt, tree.Repeat):
        return names_defined(stmt.body)
    return names_defined([stmt])


def exported_by(stmts: Sequence[tree.Stmt]) -> set[str]:
    """Names of blocks that are used outside the block that gives them."""
    mentions = [set(free_names(stmt)) for stmt in stmts]
    users = Counter(name for names in mentions for name in names)
    wanted: set[str] = set()
    for stmt, own in zip(stmts, mentions, strict=True):
        if isinstance(stmt, tree.Output):
            wanted.add(stmt.target.name)
        if isinstance(stmt, tree.Recurrence | tree.Attend | tree.Blocks | tree.Route | tree.Repeat):
            wanted |= {n for n in names_defined([stmt]) if users[n] > (n in own)}
            wanted |= exported_by(stmt.body)
    return wanted


def unused_params(stmts: Sequence[tree.Stmt]) -> list[tree.Declared]:
    """Parameters that no statement mentions, those of repeated layers among them."""
    mentioned = {name for stmt in stmts for name in free_names(stmt)}
    params = [group for stmt in stmts if isinstance(stmt, tree.Param) for group in stmt.groups]
    unused = [item for group in params for item in group.names if item.name not in mentioned]
    for stmt in stmts:
        if isinstance(stmt, tree.Repeat):
            unused += unused_params(stmt.body)
    mentioned |= {stmt.target.name for stmt in stmts if isinstance(stmt, tree.Output)}
    return [item for item in unused if item.name not in mentioned]


def sizes_of(
    decl: tree.Decl,
    module: Module,
    read: dict[int, set[str]] | None = None,
    depth: int = 0,
    ranges: bool = True,
) -> set[str]:
    """Names that a declaration uses as sizes, those that a size's default is made from among
    them; `ranges`: also those in ranges of tokens, which may be `none` instead."""
    names = names_of_sizes(decl.body, module, read, depth, ranges) | names_in_indices(decl.body)
    for parameter in reversed(decl.params):
        if parameter.name in names and parameter.default is not None:
            plain = {each.name for each in decl.params if each.default is None}
            names |= plain & set(free_names(parameter.default))
    return names


def names_in_indices(body: Sequence[tree.Stmt]) -> set[str]:
    """Names that whole numbers are made of which pick entries: n of `i = min(t - s, n)` where
    `E[i]` or `take[K](x, i)` is, also where other names stand between."""
    made: dict[str, list[tree.Expr]] = {}
    ahead = list[tree.Expr]()
    for part in walk(tuple(body)):
        if isinstance(part, tree.Assign) and not part.by:
            for target in part.targets:
                made.setdefault(target.name, []).append(part.value)
        elif isinstance(part, tree.Index):
            ahead += part.items
        elif isinstance(part, tree.Call) and _called(part) == "take":
            ahead += [argument.value for argument in part.args[1:]]
    names = set[str]()
    while ahead:
        found = _terms(ahead.pop()) - names
        names |= found
        ahead += [value for name in found for value in made.get(name, ())]
    return names


def _called(node: tree.Call) -> str | None:
    """The name of what is called, `take` of `take[K](...)`."""
    func = node.func.base if isinstance(node.func, tree.Index) else node.func
    return func.id if isinstance(func, tree.Name) else None


def _terms(node: tree.Expr) -> set[str]:
    """The names of a whole number's terms and factors; not those of conditions in it."""
    if isinstance(node, tree.Name):
        return {node.id}
    if isinstance(node, tree.Binary | tree.Unary):
        parts = (node.arg,) if isinstance(node, tree.Unary) else (node.left, node.right)
        return {name for part in parts for name in _terms(part)}
    if not isinstance(node, tree.Call) or _called(node) not in ("min", "max", "where"):
        return set()
    values = [argument.value for argument in node.args]
    return {name for value in values[_called(node) == "where" :] for name in _terms(value)}


def names_of_sizes(
    node: Any,
    module: Module,
    read: dict[int, set[str]] | None = None,
    depth: int = 0,
    ranges: bool = True,
) -> set[str]:
    """Names used where only a size can stand: in shapes, counts of layers and blocks, and as such a
    size of another layer. `read` keeps what is known of layers, `depth` counts their calls."""
    read = {} if read is None else read
    names: set[str] = set()
    for part in walk(node):
        if isinstance(part, tree.Declared | tree.StateDecl | tree.Target | tree.Index):
            items = getattr(part, "axes", None) or getattr(part, "items", None) or ()
            items = (*items, *getattr(part, "into", ()))
            names |= {name.rstrip("'") for name in free_names(items)}
        elif isinstance(part, tree.Repeat):
            names |= set(free_names(part.count))
        elif isinstance(part, tree.Recurrence | tree.Attend):
            names |= {*part.over, *([part.grouped] if part.grouped else [])}
            if ranges and isinstance(part, tree.Attend):
                names |= set(free_names(part.range))
        elif isinstance(part, tree.Blocks):
            names |= set(free_names((part.size, part.stride)))
        elif isinstance(part, tree.OnBlocks):
            names |= set(free_names((part.size, part.last)))
        elif isinstance(part, tree.Input | tree.Assign):
            names |= set(free_names(part.within if isinstance(part, tree.Input) else part.by))
        elif isinstance(part, tree.Call) and isinstance(part.func, tree.Name):
            names |= _passed_as_sizes(part, part.func.id, module, read, depth, ranges)
    return names


def _passed_as_sizes(
    node: tree.Call,
    called: str,
    module: Module,
    read: dict[int, set[str]],
    depth: int,
    ranges: bool,
) -> set[str]:
    """Names in arguments of a call that the callee uses as sizes."""
    if called in ("top", "size") and node.args:
        return set(free_names(node.args[0].value))
    callee, home = module.decls.get(called), module.homes.get(called, module)
    if callee is None or callee.kind == "function" or depth >= MAX_CALLS:
        return set()
    if id(callee) not in read:
        read[id(callee)] = set()
        read[id(callee)] = sizes_of(callee, home, read, depth + 1, ranges)
    names: set[str] = set()
    for place, argument in enumerate(node.args):
        known = callee.params[place].name if place < len(callee.params) else ""
        if (argument.name or known) in read[id(callee)]:
            names |= set(free_names(argument.value))
    return names


def names_called(node: Any) -> Iterable[str]:
    """Names applied to arguments: `inner(...)`."""
    calls = (part.func for part in walk(node) if isinstance(part, tree.Call))
    return (func.id for func in calls if isinstance(func, tree.Name))
