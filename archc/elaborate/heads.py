"""The common part of `recurrence` and `attend`: the heads they run over, and their captures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import sympy

from archc.diagnostics import Refused, did_you_mean
from archc.dims import Axis, apply
from archc.elaborate.scope import Scope
from archc.elaborate.values import Frame, Tensor
from archc.ir import layer as ir
from archc.source import Span
from archc.syntax import tree

Define = Callable[[Scope, Sequence[tree.Stmt]], tuple[list[str], Scope]]
"""Elaborates a block's body: the names it gives, and the scope where they are visible."""

Grouped = tuple[Axis, Axis]
"""Head axis and group axis."""


def heads_of(
    scope: Scope, node: tree.Recurrence | tree.Attend
) -> tuple[tuple[Axis, ...], Grouped | None]:
    """The head axes of a block, and (heads, groups) if it is grouped."""
    axes = []
    for name in node.over:
        found = scope.axis_named(name)
        if found is None:
            raise _no_dim(scope, node, "over", name)
        axes.append(found[0])
    if node.grouped is None:
        return tuple(axes), None
    groups = scope.axis_named(node.grouped)
    if groups is None or not axes:
        raise _no_dim(scope, node, "grouped", node.grouped)
    if groups[0].name == axes[0].name:
        return tuple(axes), None
    require_groups(scope, axes[0], groups[0], node.span)
    return tuple(axes), (axes[0], groups[0])


def require_groups(scope: Scope, heads: Axis, groups: Axis, span: Span) -> None:
    """Groups of heads are of one size: no head is left over."""
    condition = apply(sympy.Eq, apply(sympy.Mod, heads.size, groups.size), sympy.Integer(0))
    scope.hold(condition, f"{heads.size} % {groups.size} == 0", span, "groups of one size")


def _no_dim(scope: Scope, node: tree.Recurrence | tree.Attend, word: str, name: str) -> Refused:
    """The error for a name in a block's header that is no dim."""
    text = node.span.text
    found = re.search(rf"\b{word}\b[^:]*?(?<!\w)({re.escape(name)})(?![\w'])", text)
    start = node.span.start + (found.start(1) if found else 0)
    end = start + len(name) if found else node.span.end
    known = scope.dim_names()
    along = "it is a sequence: a layer is applied along it, `Layer(...)(x)` of its values `x`"
    return scope.error(
        "E0202",
        f"`{name}` is not a dim of this layer",
        Span(node.span.source, start, end),
        "unknown size",
        helps=([along] if name in scope.context.streams else did_you_mean(name, known))
        or [scope.as_argument(name)],
    )


def node_name(tensor: Tensor, fallback: str) -> str:
    """The name of a tensor in the spec, if it has one."""
    return tensor.frame.graph[tensor.node].name or fallback


def live_entries(frame: Frame) -> list[tuple[str, str, Tensor]]:
    """Captures that the body still uses."""
    names = {n.op.name for n in frame.graph if isinstance(n.op, ir.Input)}
    return [entry for entry in frame.entries if entry[0] in names]
