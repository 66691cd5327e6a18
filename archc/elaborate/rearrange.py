"""Dims cut, joined and counted otherwise, each by name: `by N, R`, `join`, `split` and `merge`."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from archc.dims import Axis, apply
from archc.elaborate import ops
from archc.elaborate.scope import Scope
from archc.elaborate.values import Tensor
from archc.elaborate.whole import whole as whole_number
from archc.ir import layer as ir
from archc.source import Span
from archc.syntax import tree

# --- the parts of a value ------------------------------------------------------------------------


def parts(scope: Scope, stmt: tree.Assign, value: Tensor) -> list[Tensor]:
    """The values of the names of `a, b = value by N, [H, K]`: runs of the last dim, in order."""
    axes = scope.visible(value)
    pieces = [_piece(scope, item) for item in stmt.by]
    if len(pieces) != len(stmt.targets) or not axes:
        raise scope.error(
            "E0214",
            f"{len(stmt.targets)} names for a value of shape {ops.shape(scope, value)} "
            f"`by {', '.join(item.span.text for item in stmt.by)}`",
            stmt.span,
            "one dim for each name, all of them together the last dim",
        )
    whole, sizes = axes[-1], [_count(piece) for piece in pieces]
    same_size(scope, sympy.Add(*sizes), whole.size, stmt.span)
    found: list[Tensor] = []
    for place, (item, piece) in enumerate(zip(stmt.by, pieces, strict=True)):
        _check_fresh(scope, piece, axes[:-1], item.span)
        start = whole_number(scope, sympy.Add(*sizes[:place]))
        found.append(_run(scope, value, whole, piece, start, item.span))
    return found


def _piece(scope: Scope, item: tree.Expr) -> tuple[Axis, ...]:
    """The dims of one part: `N`, or `[H, K]` for a part that is counted by two."""
    return scope.axes(item.items) if isinstance(item, tree.ListOf) else scope.axis(item)


def _run(
    scope: Scope, value: Tensor, whole: Axis, into: Sequence[Axis], start: sympy.Expr, span: Span
) -> Tensor:
    """The entries of a dim from one on, along other dims."""
    run = into[0] if len(into) == 1 else Axis(f"{whole.name}_run", _count(into))
    at = ops.node(scope, ir.Position(run), span=span)
    if start != 0:
        first = ops.constant(scope, start, span)
        at = ops.node(scope, ir.Elementwise("add"), at, first, span=span)
    made = ops.node(scope, ir.Gather(whole.name), value, at, span=span, row=value.row)
    return made if len(into) == 1 else _counted(scope, made, [run], into, span)


def _count(axes: Sequence[Axis]) -> sympy.Expr:
    """How many entries there are along some dims."""
    return sympy.Mul(*(axis.size for axis in axes))


# --- functions -----------------------------------------------------------------------------------


def join(scope: Scope, node: tree.Call, values: Sequence[Tensor], func: tree.Index) -> Tensor:
    """`join[N, R as K](a, b)`: the entries of a along N, then those of b along R, as one dim K."""
    items, made = func.items, scope.axes(func.into)
    if len(items) != len(values) or len(made) != 1 or not values:
        raise usage(scope, node, func)
    own = [_own(scope, value, item) for value, item in zip(values, items, strict=True)]
    same_size(scope, _count_of_all(own), made[0].size, func.span)
    for value, axis in zip(values, own, strict=True):
        rest = [other for other in scope.visible(value) if other != axis]
        _check_fresh(scope, [*made, *own], rest, func.span)
    op = ir.Join(tuple(axis.name for axis in own), made[0])
    return ops.node(scope, op, *values, span=node.span, row=all(value.row for value in values))


def _count_of_all(axes: Sequence[Axis]) -> sympy.Expr:
    return sympy.Add(*(axis.size for axis in axes))


def split(scope: Scope, node: tree.Call, values: Sequence[Tensor], func: tree.Index) -> Tensor:
    """`split[d as H, K](x)`: entry h * K + k of d becomes entry (h, k)."""
    return _recount(scope, node, values, func, fewer=False)


def merge(scope: Scope, node: tree.Call, values: Sequence[Tensor], func: tree.Index) -> Tensor:
    """`merge[H, K as d](x)`: entry (h, k) becomes entry h * K + k of d."""
    return _recount(scope, node, values, func, fewer=True)


def _recount(
    scope: Scope, node: tree.Call, values: Sequence[Tensor], func: tree.Index, fewer: bool
) -> Tensor:
    """The entries of a value, counted by other dims."""
    made = scope.axes(func.into)
    one = made if fewer else func.items
    if len(values) != 1 or len(one) != 1 or not func.items or not made:
        raise usage(scope, node, func)
    own = [_own(scope, values[0], item) for item in func.items]
    if len({axis.name for axis in own}) < len(own):
        raise usage(scope, node, func)
    same_size(scope, _count(own), _count(made), func.span)
    _check_fresh(scope, made, [a for a in scope.visible(values[0]) if a not in own], func.span)
    return _counted(scope, values[0], own, made, node.span)


def _counted(
    scope: Scope, value: Tensor, own: Sequence[Axis], made: Sequence[Axis], span: Span
) -> Tensor:
    op = ir.Reshape(tuple(axis.name for axis in own), tuple(made))
    return ops.node(scope, op, value, span=span)


FORMS = {"join": "join[N, R as K](a, b)", "split": "split[d as H, K](x)",
         "merge": "merge[H, K as d](x)"}  # fmt: skip
"""How each function is called."""

FUNCTIONS = {"join": join, "split": split, "merge": merge}


def usage(scope: Scope, node: tree.Call, func: tree.Expr) -> Exception:
    """The error for a call that is not of the form that the function has."""
    named = func.base if isinstance(func, tree.Index) else func
    name = named.span.text
    return scope.error(
        "E0225",
        f"`{name}` says which dims it takes, and as what",
        node.func.span,
        helps=[f"write it as `{FORMS[name]}`"],
    )


# --- what must hold ------------------------------------------------------------------------------


def same_size(scope: Scope, one: sympy.Expr, other: sympy.Expr, span: Span) -> None:
    """Have as many entries after a cut, or a join, as before."""
    scope.hold(apply(sympy.Eq, one, other), f"{one} == {other}", span, "as many entries as before")


def _own(scope: Scope, value: Tensor, item: tree.Expr) -> Axis:
    """A dim that a value has, as it is written."""
    (axis, *others) = scope.axis(item)
    there = {each.name: each for each in scope.visible(value)}
    if others or axis.name not in there:
        hidden = axis.name in scope.hidden
        helps = [f"`{axis}` is of the heads, which a block never sees: do it before the block"]
        raise scope.error(
            "E0301",
            f"no axis `{axis}` in a value of shape {ops.shape(scope, value)}",
            item.span,
            others=[(value.origin, f"{ops.shape(scope, value)} from here")],
            helps=helps if hidden else [],
        )
    return there[axis.name]


def _check_fresh(scope: Scope, made: Sequence[Axis], rest: Sequence[Axis], span: Span) -> None:
    """Refuse a result with one dim twice, or with the heads of a block."""
    names = [*(axis.name for axis in rest), *scope.hidden]
    for axis in made:
        if axis.name in names:
            raise scope.error(
                "E0206",
                f"the value has an axis `{axis}` already",
                span,
                helps=[f"a second axis of that size is written `{axis}'`"],
            )
