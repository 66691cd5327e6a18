"""`repeat`: a stack of layers, or a loop in place; some names are carried from pass to pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import sympy

from archc.diagnostics import Refused
from archc.dims import at, size_symbol
from archc.elaborate import ops
from archc.elaborate.binding import declare, force, given_anew
from archc.elaborate.finish import finish
from archc.elaborate.heads import node_name
from archc.elaborate.in_order import in_order
from archc.elaborate.left_out import Parts, called, in_parts, needs_optional
from archc.elaborate.mentions import exported_by, names_given
from archc.elaborate.scope import Context, Scope
from archc.elaborate.values import Frame, Lazy, Option, Tensor, Value
from archc.ir import layer as ir
from archc.ir.typing import layer_graph
from archc.limits import LAYERS, over_budget
from archc.syntax import tree

MAX_REPEAT = 512
"""Most layers that a `repeat` may stack."""

Define = Callable[[Scope, Sequence[tree.Stmt], set[str]], Scope]
"""Binds the names that statements define."""


def repeat(scope: Scope, stmt: tree.Repeat, define: Define) -> Scope:
    """A stack of layers: the names carried through it mean the last layer's from here on."""
    carried = [name for name in names_given(stmt.body) if scope.find(name) is not None]
    if not carried:
        raise scope.error(
            "E0217",
            "this `repeat` carries nothing from layer to layer",
            stmt.span,
            helps=["give a name from outside, such as `x`, a new value in the body"],
        )
    stmt = replace(stmt, body=in_order(scope, stmt.body, carried))
    after = scope.child(carried=scope.carried)
    made: dict[str, Value] = {}

    def compute() -> Value:
        made.update(stack(scope, stmt, carried, define))
        return Option(True)

    block = Lazy("", stmt.span, compute)

    def last(name: str) -> Callable[[], Value]:
        def compute() -> Value:
            block.get(lambda lazy: scope.cycle(lazy, stmt.span))
            return made[name]

        return compute

    for name in carried:
        passed = Lazy(name, stmt.span, last(name))
        if name in scope.carried:  # by the loop around this one too
            declare(scope, name, stmt.span, passed)
        after.names[given_anew(name) if name in scope.carried else name] = passed
    return after


def stack(
    scope: Scope, stmt: tree.Repeat, carried: Sequence[str], define: Define
) -> dict[str, Value]:
    """Apply the body count times: in place in a function, as called layers elsewhere."""
    count = scope.evaluate(stmt.count)
    known = scope.number(count) if isinstance(count, sympy.Expr) else None
    if known is None:
        raise scope.error(
            "E0402",
            f"how often to repeat must be known when compiling: `{stmt.count.span.text}` "
            "has no value",
            stmt.count.span,
            helps=[f"give it a default, or `--set {stmt.count.span.text}=4`"],
        )
    if not known.is_Integer or not 0 <= known <= MAX_REPEAT:
        raise scope.error(
            "E0205", f"`{stmt.count.span.text}` is {known}, not a number of layers", stmt.count.span
        )
    if isinstance(count, sympy.Expr) and not count.is_number:
        text = f"{stmt.count.span.text} == {known}"
        scope.require(sympy.Eq(count, known), text, stmt.span, settled=True)
    values = {name: scope.lookup(name, stmt.span) for name in carried}
    in_place = scope.frame.region or scope.site is not None
    if in_place and not any(isinstance(s, tree.Param) for s in stmt.body):
        for place in range(int(known)):
            inner = scope.child(names={stmt.index: sympy.Integer(place)})
            values = _iterate(inner, stmt, values, define)
        return values
    values = {name: _of_each_sequence(scope, value) for name, value in values.items()}
    path = scope.context.path("layers")
    shared: dict[tuple, Parts] = {}
    for place in range(int(known)):
        scope.session.stacked += 1
        if scope.session.stacked > LAYERS:
            raise over_budget(f"loops stack more than {LAYERS} layers", stmt.span)
        values = _stacked(scope, stmt, values, path, place, shared, define)
    return values


def _of_each_sequence(scope: Scope, value: Value) -> Value:
    """A value that enters a layer of a stack, with a row for each sequence as it leaves one."""
    return ops.batched(scope.frame.bring(value)) if isinstance(value, Tensor) else value


def _iterate(
    inner: Scope, stmt: tree.Repeat, values: Mapping[str, Value], define: Define
) -> dict[str, Value]:
    """One pass of a repeat's body: carried names are read as they come in, and given anew."""
    body = inner.child(names=dict(values), carried=frozenset(values))
    scope = define(body, stmt.body, exported_by(stmt.body))
    force(scope, stmt.body)
    for name in values:
        if scope.find(given_anew(name)) is None:  # what gives it was refused
            raise Refused(name)
    return {name: scope.lookup(given_anew(name), stmt.span) for name in values}


def _stacked(
    scope: Scope,
    stmt: tree.Repeat,
    values: Mapping[str, Value],
    path: str,
    place: int,
    shared: dict[tuple, Parts],
    define: Define,
) -> dict[str, Value]:
    """One layer of a stack: the body as a layer, shared by all of the same branches and inputs."""
    index = size_symbol(stmt.index)
    frame = Frame(layer_graph(), scope.frame, _layer_capture)
    outer = scope.context
    context = Context(f"{outer.name}Layer", frame, streams=outer.streams, widths=outer.widths)
    context.args = [arg for arg in outer.args if arg.symbol is not None]
    context.args = [ir.Arg(a.name, a.symbol) for a in context.args] + [ir.Arg(stmt.index, index)]
    context.values = {**outer.values, stmt.index: sympy.Integer(place)}
    inner = scope.child(context=context, frame=frame, names={stmt.index: index})
    found = len(scope.session.report.diagnostics)
    results = _iterate(inner, stmt, values, define)
    if len(scope.session.report.diagnostics) > found:
        raise Refused(stmt.index)
    here = {stmt.index: sympy.Integer(place)}
    numbers = {n: at(v, here) for n, v in results.items() if _is_number(v)}
    tensors = {n: ops.tensor(inner, v, stmt.span) for n, v in results.items() if n not in numbers}
    if not tensors:
        return {**numbers}
    decl = tree.Decl(stmt.span, "block", context.name, (), (), "", stmt.body, stmt.span)
    layer = finish(context, decl, tensors)
    key = _made_of(context, layer, values)
    parts = shared.setdefault(key, in_parts(layer))
    if len(shared) > 1:
        parts.first.name = f"{context.name}{list(shared).index(key) + 1}"
    sizes = tuple((a.symbol.name, a.symbol) for a in context.args if a.symbol is not None)
    sizes = (*sizes[:-1], *here.items())
    axes = {a.name: a for t in tensors.values() for a in t.axes if a.kind == "dim"}
    given = [outer for _, _, outer in frame.entries]
    op = ir.Call(parts.first, f"{path}.{place}", sizes, tuple(axes.items()))
    read = called(scope, parts, op, f"{path}_optional.{place}", given, stmt.span)
    return {n: numbers[n] if n in numbers else read[n] for n in results}


def _made_of(context: Context, layer: ir.Layer, values: Mapping[str, Value]) -> tuple:
    """What layers of a stack that are one agree in: branches, layers inside, inputs, and numbers
    that are carried in."""
    callees = tuple(id(call.callee) for _, call in layer.calls)
    types = tuple(op.type for _, op in layer.inputs)
    given = tuple((name, value) for name, value in values.items() if _is_number(value))
    return (tuple(context.choices), callees, types, given)


def _is_number(value: Value) -> bool:
    """Whether what a loop carries on is a number: it is one in the next layer, and no input."""
    return isinstance(value, sympy.Expr)


def _layer_capture(frame: Frame, outer: Tensor, role: str) -> int:
    """A value from outside a stack enters each of its layers as an input."""
    name = frame.enter(node_name(outer, "x"), role, outer)
    late = needs_optional(outer)
    frame.optional |= late
    return frame.graph.add(ir.Input(name, outer.type, late), name=name)
