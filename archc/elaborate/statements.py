"""Statements: what each kind of them defines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy

from archc.dims import BATCH, TIME, stream
from archc.elaborate import inits, layers, ops, rearrange, select, tied
from archc.elaborate.attend import attend
from archc.elaborate.binding import declare
from archc.elaborate.body import annotated, define, refused, region_body
from archc.elaborate.chunk_rules import chunk
from archc.elaborate.mentions import names_defined
from archc.elaborate.recurrence import recurrence
from archc.elaborate.repeat import repeat
from archc.elaborate.scope import Scope
from archc.elaborate.values import Identity, Lazy, Option, Tensor, Value
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.source import Span
from archc.syntax import tree


def _input(scope: Scope, stmt: tree.Input, exported: set[str]) -> None:
    along = TIME
    if stmt.along is not None:
        along = stream(stmt.along)
        scope.context.streams[stmt.along] = (along, None)
    dtype = "real"
    if stmt.within is not None:
        size = scope.evaluate(stmt.within)
        dtype = "int" if isinstance(size, sympy.Expr) else "real"
    scope.frame.optional |= stmt.optional
    for item in stmt.names:
        type = Type((BATCH, along, *scope.axes(item.axes or ())), dtype)
        id = scope.frame.graph.add(
            ir.Input(item.name, type, stmt.optional), name=item.name, span=item.span
        )
        declare(scope, item.name, item.span, Tensor(scope.frame, id, origin=item.span))


def _param(scope: Scope, stmt: tree.Param, exported: set[str]) -> None:
    for group in stmt.groups:
        items: list[tree.Declared] = list(group.names)
        axes: tuple[tree.Expr, ...] | None = None
        shapes: dict[int, tuple[tree.Expr, ...] | None] = {}
        for place in reversed(range(len(items))):
            axes = items[place].axes if items[place].axes is not None else axes
            shapes[place] = axes
        dims = [axis for written in shapes.values() for axis in scope.axes(written or ())]
        init = inits.initial(scope, group.init, dims)
        for place, item in enumerate(items):
            written = shapes[place]
            if written is None:
                raise scope.error(
                    "E0213",
                    f"parameter `{item.name}` has no shape",
                    item.span,
                    helps=[f"write `{item.name}[d]`, or `{item.name}[]` for a single number"],
                )
            name = scope.prefix + item.name
            op = ir.Param(name, (*scope.extra, *scope.axes(written)), init)
            id = scope.frame.graph.add(op, name=name, span=item.span)
            declare(scope, item.name, item.span, Tensor(scope.frame, id, origin=item.span))


def _assign(scope: Scope, stmt: tree.Assign, exported: set[str]) -> None:
    if stmt.by:
        return _split(scope, stmt)
    if len(stmt.targets) != 1:
        return _outputs_of_call(scope, stmt)
    target = stmt.targets[0]
    state = scope.state(target.name)
    if _initial_value(scope, target) or _is_another_token(scope, stmt, target):
        return
    at_time = (
        target.items is not None and len(target.items) == 1 and _is_time(scope, target.items[0])
    )
    if at_time and state is None and not scope.frame.region:
        raise scope.error(
            "E0216",
            f"`{target.name}` is not a state",
            target.span,
            helps=["no index means the token at hand; states are declared by a `recurrence`"],
        )
    plain = target if not at_time else tree.Target(target.span, target.name, None)

    def compute() -> Value:
        scope.axes(plain.items or ())
        value = tied.bound(scope, target.name, scope.evaluate(stmt.value))
        return _named(scope, value, plain, stmt)

    lazy = Lazy(target.name, stmt.span, compute)
    declare(scope, target.name, target.span, lazy)
    if state is not None:
        state.after = lazy


def _split(scope: Scope, stmt: tree.Assign) -> None:
    """`a, b, c = value by 3`, `a, b = value by N, R`."""
    if len(stmt.by) != 1 or isinstance(stmt.by[0], tree.ListOf):
        return _parts(scope, stmt)
    whole = Lazy("", stmt.span, lambda: _split_source(scope, stmt))
    for place, target in enumerate(stmt.targets):
        declare(scope, target.name, target.span, _part(scope, stmt, whole, place, target))


def _is_time(scope: Scope, item: tree.Expr) -> bool:
    """Whether a target's bracket is an index variable rather than a shape."""
    return (
        isinstance(item, tree.Name)
        and scope.index(item.id) is not None
        and scope.axis_named(item.id) is None
    )


def _initial_value(scope: Scope, target: tree.Target) -> bool:
    """Whether a target is `S[0]`, which is reported, and then as if it were not there."""
    item = target.items[0] if target.items is not None and len(target.items) == 1 else None
    state = scope.state(target.name)
    if not isinstance(item, tree.Number) or state is None:
        return False
    header = " ".join(state.decl.span.text.split())
    scope.error(
        "E0216",
        f"`{target.span.text}` is no token: a recurrence says what `{target.name}[t]` is",
        target.span,
        helps=[f"the value at first stands in the header: `recurrence {header} = 0 ...:`"],
    )
    return True


def _is_another_token(scope: Scope, stmt: tree.Assign, target: tree.Target) -> bool:
    """Refuse a target such as `S[t+1]`, which is not of the token at hand."""
    item = target.items[0] if target.items is not None and len(target.items) == 1 else None
    state = scope.state(target.name)
    if not isinstance(item, tree.Binary) or not _is_time(scope, item.left):
        return False
    at = item.left.span.text
    if state is not None:
        state.after = Lazy(target.name, stmt.span, refused)
    raise scope.error(
        "E0216",
        f"`{target.span.text}` cannot be given a value: it is of another token",
        target.span,
        helps=[f"write `{target.name}[{at}] = ...`, with `[{at}-1]` for the token before"],
    )


def _named(scope: Scope, value: Value, target: tree.Target, stmt: tree.Node) -> Value:
    """A value under its name in the spec, checked against the shape written beside it."""
    if not isinstance(value, Tensor):
        if target.items is None:
            return value
        at = stmt.value.span if isinstance(stmt, tree.Assign) else target.span
        value = _shaped(scope, value, target, at)
    if scope.site is None and not ops.positional(value):  # a function has dims of its own
        value = ops.settled(scope, value, target.span)
    value = annotated(scope, value, target)
    node = value.frame.graph[value.node]
    if node.name is None and value.frame is scope.frame:
        value.frame.graph.rename(value.node, scope.prefix + target.name, stmt.span)
    return Tensor(value.frame, value.node, value.row, stmt.span)


def _shaped(scope: Scope, value: Value, target: tree.Target, span: Span) -> Tensor:
    """A value that is no tensor yet, under a name with a shape: `I` is of the size written."""
    axes = scope.axes(target.items or ())
    if isinstance(value, Identity) and len(axes) == 2:
        row, col = ops.settle(axes, scope.hidden)
        return ops.identity_matrix(scope, value, row, col, span)
    return ops.tensor(scope, value, span)


PARTS = "parts that are dims are named one by one: `a, b = value by N, R`"


def _split_source(scope: Scope, stmt: tree.Assign) -> Tensor:
    """The value that `a, b, c = value by 3` splits along its last axis."""
    (by,) = stmt.by
    value = ops.tensor(scope, scope.evaluate(stmt.value), stmt.value.span)
    count = scope.evaluate(by)
    axes = scope.visible(value)
    if count != len(stmt.targets) or not axes or axes[-1].size != count:
        named = bool(axes) and count == len(stmt.targets) and axes[-1].size.is_Symbol
        number = f"`{axes[-1]}` may be of any size: declare the dim as {count}" if named else ""
        raise scope.error(
            "E0214",
            f"{len(stmt.targets)} names for a value of shape {ops.shape(scope, value)} "
            f"`by {by.span.text}`",
            stmt.span,
            "the last axis must have one entry for each name",
            helps=[*filter(None, [number]), PARTS],
        )
    return value


def _outputs_of_call(scope: Scope, stmt: tree.Assign) -> None:
    """The names of `a, b = Layer(sizes)(inputs)`."""
    value = stmt.value
    if not isinstance(value, tree.Call):
        raise scope.error(
            "E0214",
            "several names are given one value",
            stmt.span,
            helps=["split an axis with `a, b, c = value by 3`"],
        )
    _made_at_once(scope, stmt, lambda: layers.several(scope, value, len(stmt.targets)))


def _parts(scope: Scope, stmt: tree.Assign) -> None:
    """The names of `a, b = value by N, R`."""

    def compute() -> list[Tensor]:
        value = ops.tensor(scope, scope.evaluate(stmt.value), stmt.value.span)
        return rearrange.parts(scope, stmt, value)

    _made_at_once(scope, stmt, compute)


def _made_at_once(scope: Scope, stmt: tree.Assign, values: Callable[[], Sequence[Tensor]]) -> None:
    """Names of values that are made together, when the first is needed."""
    made: list[Tensor] = []

    def compute() -> Value:
        made.extend(values())
        return Option(True)

    whole = Lazy("", stmt.span, compute)

    def part(place: int, target: tree.Target) -> Callable[[], Value]:
        def compute() -> Value:
            whole.get(lambda lazy: scope.cycle(lazy, stmt.span))
            return _named(scope, made[place], target, stmt)

        return compute

    for place, target in enumerate(stmt.targets):
        declare(
            scope, target.name, target.span, Lazy(target.name, target.span, part(place, target))
        )


def _part(scope: Scope, stmt: tree.Assign, whole: Lazy, place: int, target: tree.Target) -> Lazy:
    """One of the parts of a split."""

    def compute() -> Value:
        value = whole.get(lambda lazy: scope.cycle(lazy, stmt.span))
        assert isinstance(value, Tensor)
        last = scope.visible(value)[-1]
        at = ops.constant(scope, sympy.Integer(place), stmt.span)
        return _named(
            scope, ops.node(scope, ir.Gather(last.name), value, at, span=stmt.span), target, stmt
        )

    return Lazy(target.name, target.span, compute)


def _output_definition(scope: Scope, stmt: tree.Output, exported: set[str]) -> None:
    if stmt.value is not None:
        _assign(scope, tree.Assign(stmt.span, (stmt.target,), stmt.value), exported)


# --- blocks -------------------------------------------------------------------------------------


def _region(scope: Scope, stmt: tree.Recurrence | tree.Attend, exported: set[str]) -> None:
    """A recurrence or attend: computed as a whole when one of its names is first needed."""
    if scope.frame.region:
        word = "recurrence" if isinstance(stmt, tree.Recurrence) else stmt.keyword
        raise scope.error(
            "E0309", f"`{word}` inside another block", stmt.span, "one block at a time"
        )
    made: dict[str, Tensor] = {}

    def compute() -> Value:
        if isinstance(stmt, tree.Recurrence):
            made.update(recurrence(scope, stmt, exported, region_body))
        else:
            made.update(attend(scope, stmt, exported, region_body))
        return Option(True)

    block = Lazy("", stmt.span, compute)
    names = [state.name for state in stmt.states] if isinstance(stmt, tree.Recurrence) else []
    names += [name for name in names_defined(stmt.body) if name not in names]
    for name in names:
        declare(scope, name, stmt.span, _from_block(scope, stmt, block, made, name))


def _from_block(
    scope: Scope, stmt: tree.Node, block: Lazy, made: Mapping[str, Tensor], name: str
) -> Lazy:
    """A name that a block gives to the layer."""

    def compute() -> Value:
        block.name = name
        block.get(lambda lazy: scope.cycle(lazy, stmt.span))
        if name not in made:
            return Option(None)
        result = made[name]
        result.frame.graph.rename(result.node, scope.prefix + name)
        return result

    return Lazy(name, stmt.span, compute)


def _blocks(scope: Scope, stmt: tree.Blocks, exported: set[str]) -> None:
    inner = define(select.blocks(scope, stmt), stmt.body, exported)
    for name in names_defined(stmt.body):
        if name in inner.names:
            declare(scope, name, stmt.span, inner.names[name])


def _route(scope: Scope, stmt: tree.Route, exported: set[str]) -> None:
    made: dict[str, Any] = {}

    def compute() -> Value:
        inner, weight, axis = select.route(scope, stmt)
        made.update(scope=define(inner, stmt.body, exported), weight=weight, axis=axis)
        return Option(True)

    block = Lazy("", stmt.span, compute)

    def part(name: str) -> Callable[[], Value]:
        def compute() -> Value:
            block.get(lambda lazy: scope.cycle(lazy, stmt.span))
            found = made["scope"].lookup(name, stmt.span)
            if isinstance(found, Option):  # of a recurrence, a name that nothing reads
                return found
            value = ops.tensor(made["scope"], found, stmt.span)
            mixed = select.mixed(scope, value, made["weight"], made["axis"], stmt.span)
            scope.frame.graph.rename(mixed.node, scope.prefix + name)
            return mixed

        return compute

    for name in names_defined(stmt.body):
        declare(scope, name, stmt.span, Lazy(name, stmt.span, part(name)))


def require(scope: Scope, stmt: tree.Require, exported: set[str]) -> None:
    """`require H * K == d`: recorded, to be checked when sizes are known."""
    condition = scope.evaluate(stmt.condition)
    if condition in (sympy.true, sympy.false) or isinstance(condition, Option):
        holds = condition.value if isinstance(condition, Option) else condition is sympy.true
        if not holds:
            raise scope.error("E0401", f"`{stmt.condition.span.text}` does not hold", stmt.span)
    elif isinstance(condition, sympy.Basic) and not isinstance(condition, sympy.Expr):
        text = _requirement_text(scope, stmt.condition.span.text)
        scope.require(condition, text, scope.site or stmt.span)
    else:
        raise scope.error(
            "E0403",
            "`require` takes a condition on sizes",
            stmt.condition.span,
            helps=["of a value, it is a promise: `chunk: bound a > 0`"],
        )


def _requirement_text(scope: Scope, text: str) -> str:
    """A condition in the caller's words: in a function `size(D)` is the size that D stands for."""

    def size(match: re.Match[str]) -> str:
        axes = scope.axis_named(match[1]) or ()
        return " * ".join(str(axis.size) for axis in axes) or match[0]

    return re.sub(r"\bsize\((\w+)\)", size, text)


DEFINE: dict[type, Callable[[Scope, Any, set[str]], Scope | None]] = {
    tree.Input: _input,
    tree.Param: _param,
    tree.Assign: _assign,
    tree.Output: _output_definition,
    tree.Require: require,
    tree.Chunk: chunk,
    tree.Recurrence: _region,
    tree.Attend: _region,
    tree.Blocks: _blocks,
    tree.Route: _route,
    tree.Repeat: lambda scope, stmt, _: repeat(scope, stmt, define),
}
