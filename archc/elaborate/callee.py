"""The arguments and inputs of a layer that is called, and the sizes that they tell."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from archc.diagnostics import Refused, did_you_mean
from archc.dims import Axis, at
from archc.elaborate import expr, ops
from archc.elaborate.scope import Scope
from archc.elaborate.values import LayerRef, Tensor, Value
from archc.syntax import habits, tree


def bind(scope: Scope, decl: tree.Decl, node: tree.Call) -> dict[str, Value]:
    """Arguments of a call by parameter name, evaluated where the call stands; a condition on sizes
    that a layer is given is settled there."""
    names = [parameter.name for parameter in decl.params]
    bound: dict[str, Value] = {}
    for place, argument in enumerate(node.args):
        if argument.name is None and place >= len(names):
            raise scope.error(
                "E0209",
                f"`{decl.name}` takes {len(names)} arguments, not {len(node.args)}",
                node.span,
                others=[(decl.header, "declared here")],
                helps=habits.of_name(decl.name),
            )
        name = argument.name or names[place]
        if name not in names:
            raise scope.error(
                "E0209",
                f"`{decl.name}` has no argument `{name}`",
                argument.span,
                others=[(decl.header, "declared here")],
                helps=did_you_mean(name, names)
                or (habits.of_name(name) if decl.kind == "function" else ())
                or [f"it has {', '.join(names) or 'none'}"],
            )
        if name in bound:
            raise scope.error("E0209", f"argument `{name}` is given twice", argument.span)
        value = scope.evaluate(argument.value)
        if decl.kind != "function":
            value = expr.settled_condition(scope, value, argument.value)
        bound[name] = value
    return bound


def inputs_of(decl: tree.Decl) -> list[tree.Declared]:
    """The inputs of a layer in the order of the text."""
    return [item for stmt in decl.body if isinstance(stmt, tree.Input) for item in stmt.names]


def infer(
    scope: Scope,
    target: LayerRef,
    inputs: Sequence[tree.Declared],
    values: Sequence[Tensor],
    node: tree.Expr,
) -> tuple[dict[str, Value], dict[str, Axis]]:
    """Sizes given and inferred from inputs, and the caller's axis for each dim of the callee."""
    sizes, axes = dict(target.sizes), dict[str, Axis]()
    for declared, value in zip(inputs, values, strict=True):
        visible = scope.visible(value)
        items = declared.axes or ()
        if len(items) != len(visible):
            raise scope.error(
                "E0311",
                f"`{target.decl.name}` wants `{declared.span.text}`, and gets "
                f"{ops.shape(scope, value)}",
                node.span,
                others=[(declared.span, "declared here"), (value.origin, "from here")],
            )
        for item, axis in zip(items, visible, strict=True):
            if not isinstance(item, tree.Name):
                continue
            if axes.setdefault(item.id, axis) != axis:
                raise _other_axis(scope, target, declared, value, (item.id, axes[item.id], axis))
            name = item.id.rstrip("'")
            given = sizes.setdefault(name, axis.size)
            if isinstance(given, sympy.Expr) and given != axis.size:
                _agree(scope, target, name, given, axis, node)
    return sizes, axes


def _other_axis(
    scope: Scope,
    target: LayerRef,
    declared: tree.Declared,
    value: Tensor,
    found: tuple[str, Axis, Axis],
) -> Refused:
    """The refusal of a value with another dim where an earlier one has its: dims go by places."""
    name, earlier, axis = found
    return scope.error(
        "E0311",
        f"`{name}` of `{target.decl.name}` is `{earlier}` of one value and `{axis}` of another",
        value.origin or declared.span,
        others=[(declared.span, "declared here")],
        helps=[
            f"dims of a layer's inputs are told by their places: the value is "
            f"{ops.shape(scope, value)}; name one with its dims in the order of "
            f"`{declared.span.text}` and give that"
        ],
    )


def _agree(
    scope: Scope, target: LayerRef, name: str, given: sympy.Expr, axis: Axis, node: tree.Expr
) -> None:
    """A size that is given must be the size of the axis that comes in."""
    differences = _differences(given, axis.size)
    if differences == {0}:
        return
    if len(differences) == 1:
        raise scope.error(
            "E0311",
            f"`{target.decl.name}` is given `{name}` = {given}, and a value whose `{axis}` is "
            f"{axis.size}",
            node.span,
        )
    scope.require(sympy.Eq(given, axis.size), f"{given} == {axis.size}", node.span)


def _differences(one: sympy.Expr, other: sympy.Expr) -> set[sympy.Expr]:
    """The difference of two sizes where the symbols have some three values: a single one tells that
    it is constant. (To expand both is no way: that can take forever.)"""
    names = sorted(str(symbol) for symbol in (one - other).free_symbols)
    points = (
        {name: sympy.Integer((place + 3) ** power + power) for place, name in enumerate(names)}
        for power in (1, 2, 3)
    )
    return {at(one - other, point) for point in points}
