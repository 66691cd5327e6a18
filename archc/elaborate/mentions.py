"""What a body mentions, read off the tree before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from archc.syntax import tree


def free_names(node: Any) -> Iterable[str]:
    """Every name in an expression."""
    if isinstance(node, tree.Name):
        yield node.id
    elif isinstance(node, tree.Node):
        for field in vars(node).values():
            yield from free_names(field)
    elif isinstance(node, tuple):
        for item in node:
            yield from free_names(item)


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


def names_bound(stmt: tree.Stmt) -> list[str]:
    """Names that a statement binds, inputs and parameters among them."""
    if isinstance(stmt, tree.Input):
        return [item.name for item in stmt.names]
    if isinstance(stmt, tree.Param):
        return [item.name for group in stmt.groups for item in group.names]
    return names_defined([stmt])


def exported_by(stmts: Sequence[tree.Stmt]) -> set[str]:
    """Names of blocks that are used outside the block that gives them."""
    mentions = [set(free_names(stmt)) for stmt in stmts]
    wanted: set[str] = set()
    for place, stmt in enumerate(stmts):
        if isinstance(stmt, tree.Output):
            wanted.add(stmt.target.name)
        if isinstance(stmt, tree.Recurrence | tree.Attend | tree.Blocks | tree.Route | tree.Repeat):
            others = set().union(*(m for i, m in enumerate(mentions) if i != place))
            wanted |= {name for name in names_defined([stmt]) if name in others}
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


def names_of_sizes(node: Any, decls: Mapping[str, tree.Decl]) -> Iterable[str]:
    """Names used where only a size can stand: in shapes, counts of layers and blocks, and as such a
    size of another layer."""
    if isinstance(node, tree.Declared | tree.StateDecl | tree.Target | tree.Index):
        items = getattr(node, "axes", None) or getattr(node, "items", None) or ()
        for item in items:
            yield from (name.rstrip("'") for name in free_names(item))
    if isinstance(node, tree.Repeat):
        yield from free_names(node.count)
    if isinstance(node, tree.Recurrence | tree.Attend):
        yield from (*node.over, *([node.grouped] if node.grouped else []))
    if isinstance(node, tree.Attend):
        yield from free_names(node.range)
    if isinstance(node, tree.Blocks):
        yield from (*free_names(node.size), *free_names(node.stride))
    if isinstance(node, tree.OnBlocks):
        yield from (*free_names(node.size), *free_names(node.last))
    if isinstance(node, tree.Call) and isinstance(node.func, tree.Name):
        yield from _passed_as_sizes(node, decls)
    if isinstance(node, tree.Node):
        for value in vars(node).values():
            yield from names_of_sizes(value, decls)
    elif isinstance(node, tuple):
        for item in node:
            yield from names_of_sizes(item, decls)


def _passed_as_sizes(node: tree.Call, decls: Mapping[str, tree.Decl]) -> Iterable[str]:
    """Names in arguments of a call that the callee uses as sizes."""
    assert isinstance(node.func, tree.Name)
    if node.func.id == "top" and node.args:
        yield from free_names(node.args[0].value)
    callee = decls.get(node.func.id)
    if callee is None or callee.kind == "function":
        return
    rest = {name: decl for name, decl in decls.items() if decl is not callee}
    sizes = set(names_of_sizes(callee.body, rest))
    for place, argument in enumerate(node.args):
        known = callee.params[place].name if place < len(callee.params) else ""
        if (argument.name or known) in sizes:
            yield from free_names(argument.value)


def names_called(node: Any) -> Iterable[str]:
    """Names applied to arguments: `inner(...)`."""
    if isinstance(node, tree.Call) and isinstance(node.func, tree.Name):
        yield node.func.id
    if isinstance(node, tree.Node):
        for value in vars(node).values():
            yield from names_called(value)
    elif isinstance(node, tuple):
        for item in node:
            yield from names_called(item)
