"""A layer without parameters of its own, elaborated where it is applied: its statements in the
caller's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy

from archc.dims import TIME, Axis
from archc.elaborate import tied
from archc.elaborate.body import run
from archc.elaborate.callee import infer, inputs_of
from archc.elaborate.clashes import check_names
from archc.elaborate.mentions import sizes_of
from archc.elaborate.scope import Along, Scope
from archc.elaborate.values import LayerRef, Tensor
from archc.elaborate.whole import hold_whole
from archc.ir.paths import snake
from archc.syntax import tree


def outputs(
    scope: Scope, target: LayerRef, values: Sequence[Tensor], node: tree.Expr
) -> dict[str, Tensor]:
    """Every output of a layer in place; `values` are what its inputs stand for."""
    check_names(scope, target.decl)
    inputs = inputs_of(target.decl)
    sizes, axes = infer(scope, target, inputs, values, node)
    body = _scope(scope, target, axes, node)
    body = replace(body, several=tied.mentioned_often(target.decl.body))
    own = sizes_of(target.decl, target.module)
    for parameter in target.decl.params:
        value = sizes.get(parameter.name)
        if value is None and parameter.default is not None:
            value = body.evaluate(parameter.default)
        if value is None:
            raise scope.error("E0311", f"`{target.decl.name}` needs `{parameter.name}`", node.span)
        if parameter.name in own:
            value = hold_whole(scope, parameter, value, node)
        value = tied.bound(body, parameter.name, value)
        body.names[parameter.name] = value
        if isinstance(value, sympy.Expr) and parameter.name not in body.dims:
            taken = scope.axis_named(parameter.name) is not None
            fresh = body.prefix + parameter.name if taken else parameter.name
            body.dims[parameter.name] = (Axis(fresh, value),)
    for declared, value in zip(inputs, values, strict=True):
        body.names[declared.name] = Tensor(value.frame, value.node, origin=value.origin)
    _without_rules(body, target.decl)
    with scope.session.calling(target.decl, node.span):
        return run(body, _without_face(target.decl))


def _without_rules(body: Scope, decl: tree.Decl) -> None:
    """Refuse rules for chunks: they would be about the caller."""
    for stmt in decl.body:
        if isinstance(stmt, tree.Chunk):
            raise body.error(
                "E0223",
                f"`chunk:` of `{decl.name}`, which becomes part of `{body.context.name}` here",
                stmt.span,
                others=[(body.site, "applied here")] if body.site else [],
                helps=[f"move the rules into `{body.context.name}`"],
            )


def _without_face(decl: tree.Decl) -> tree.Decl:
    """The layer without arguments and inputs, which have values already."""
    stmts = tuple(stmt for stmt in decl.body if not isinstance(stmt, tree.Input))
    return tree.Decl(decl.span, decl.kind, decl.name, (), (), decl.doc, stmts, decl.header)


def _scope(scope: Scope, target: LayerRef, axes: Mapping[str, Axis], node: tree.Expr) -> Scope:
    """The scope of the layer's names: in the caller's graph, without its names."""
    return Scope(
        scope.session,
        scope.context,
        target.module,
        scope.frame,
        dims={name: (axis,) for name, axis in axes.items() if "'" not in name},
        hidden=scope.hidden,
        rows=scope.rows,
        indices={"t": Along("reader", TIME)},
        extra=scope.extra,
        gate=scope.gate,
        site=scope.site or node.span,
        prefix=f"{scope.prefix}{scope.context.path(snake(target.decl.name))}_",
    )
