"""Statements: what a body defines. Definitions are lazy, so their order in the text does not matter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy

from archc.diagnostics import Refused
from archc.dims import BATCH, TIME, Axis, number_symbol, size_symbol, stream
from archc.elaborate import inits, memory, ops
from archc.elaborate.finish import finish
from archc.elaborate.scope import Along, Context, Module, Scope, Session
from archc.elaborate.values import AbstractLayer, Frame, Lazy, LayerRef, Option, Tensor, Value
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.typing import layer_graph
from archc.source import Span
from archc.syntax import tree

MAX_REPEAT = 512
"""Most layers that a `repeat` may stack."""


# --- layers and functions -----------------------------------------------------------------------


def elaborate_layer(
    session: Session, module: Module, decl: tree.Decl, given: Mapping[str, Value], symbolic: set[str]
) -> ir.Layer:
    """The layer IR of a declaration. `given` are settled options and values for decisions;
    `symbolic` are the sizes a caller binds, which stay symbols whatever their value."""
    context = Context(decl.name, Frame(layer_graph()))
    scope = Scope(session, context, module, context.frame, indices={"t": Along("reader", TIME)})
    declare_arguments(scope, decl, given, symbolic)
    outputs = run(scope, decl)
    session.report.check()
    return finish(context, decl, outputs)


def declare_arguments(
    scope: Scope, decl: tree.Decl, given: Mapping[str, Value], symbolic: set[str]
) -> None:
    """Bind a layer's sizes and options, and record them as its arguments."""
    sizes, called = set(names_of_sizes(decl)), set(names_called(decl))
    for parameter in decl.params:
        name = parameter.name
        if name in scope.names:
            raise scope.error("E0210", f"argument `{name}` is declared twice", parameter.span)
        default = scope.evaluate(parameter.default) if parameter.default is not None else None
        value = given.get(name)
        if isinstance(value, LayerRef | Option) or name not in symbolic and _settles(value, default):
            _settle(scope, name, value if value is not None else default, given)
        elif value is None and default is None and name in called and name not in symbolic:
            scope.names[name] = AbstractLayer(name)
            scope.context.args.append(ir.Arg(name, None))
        else:
            is_size = name in sizes or default is None
            exact = default if isinstance(default, sympy.Expr) else None
            _number(scope, name, value, exact, is_size, keep=name in symbolic)
            if default is None or isinstance(default, sympy.Expr) or name in sizes:
                symbol = scope.names[name]
                scope.dims[name] = (Axis(name, symbol),)  # type: ignore[arg-type]


def _settles(value: Value | None, default: Value | None) -> bool:
    """Whether an argument is an option: its default is one, and no number is given instead."""
    return value is None and isinstance(default, Option)


def _settle(scope: Scope, name: str, value: Any, given: Mapping[str, Value]) -> None:
    """An option or layer: part of what the layer is; sizes of a layer become sizes of this one."""
    scope.names[name] = value
    plain = value.value if isinstance(value, Option) else value
    scope.context.args.append(ir.Arg(name, None, plain))
    for symbol in value.symbols if isinstance(value, LayerRef) else ():
        scope.context.args.append(ir.Arg(symbol.name, symbol))
        known = given.get(symbol.name)
        if isinstance(known, sympy.Expr):
            scope.context.values[symbol.name] = known


def _number(
    scope: Scope, name: str, value: Value | None, default: sympy.Expr | None, is_size: bool, keep: bool
) -> None:
    """A size or number: a symbol, with a value for decisions where one is known."""
    symbol = size_symbol(name) if is_size else number_symbol(name)
    if isinstance(value, sympy.Expr) and not keep:
        default = value
    known = value if isinstance(value, sympy.Expr) else None
    if known is None and default is not None:
        known = scope.number(default)
    scope.names[name] = symbol
    scope.context.args.append(ir.Arg(name, symbol, default))
    if known is not None:
        scope.context.values[name] = known


def run(scope: Scope, decl: tree.Decl) -> dict[str, Tensor]:
    """Elaborate a layer's body in its own frame; the outputs by name."""
    scope = define(scope, decl.body, exported_by(decl.body))
    force(scope, decl.body)
    outputs: dict[str, Tensor] = {}
    for stmt in decl.body:
        if isinstance(stmt, tree.Output):
            try:
                _output(scope, stmt, outputs)
            except Refused:
                continue
    if not outputs and not scope.session.report.diagnostics:
        scope.error(
            "E0211",
            f"`{decl.name}` has no output",
            decl.header,
            helps=["end the layer with `output y[d] = ...`"],
        )
    return outputs


def _output(scope: Scope, stmt: tree.Output, outputs: dict[str, Tensor]) -> None:
    """One `output` statement."""
    name = stmt.target.name
    if name in outputs:
        raise scope.error("E0210", f"output `{name}` is given twice", stmt.span)
    if stmt.value is None:
        value = scope.lookup(name, stmt.target.span)
        tensor = ops.tensor(scope, value, stmt.target.span)
        tensor = annotated(scope, tensor, stmt.target)
    else:
        value = scope.lookup(name, stmt.target.span)
        tensor = ops.tensor(scope, value, stmt.target.span)
    outputs[name] = tensor


def run_inline(body: Scope, decl: tree.Decl) -> dict[str, Tensor]:
    """A layer's body inside another layer's frame; its inputs are bound already."""
    stmts = tuple(stmt for stmt in decl.body if not isinstance(stmt, tree.Input | tree.Chunk))
    return run(body, tree.Decl(decl.span, decl.kind, decl.name, (), (), decl.doc, stmts, decl.header))


def run_function(body: Scope, decl: tree.Decl) -> Value:
    """The value of a library function's `return`."""
    stmts = tuple(stmt for stmt in decl.body if not isinstance(stmt, tree.Return))
    scope = define(body, stmts, set())
    returned = [stmt for stmt in decl.body if isinstance(stmt, tree.Return)]
    if len(returned) != 1:
        raise scope.error("E0212", f"function `{decl.name}` needs one `return`", decl.header)
    return scope.evaluate(returned[0].value)


# --- definitions --------------------------------------------------------------------------------


def define(scope: Scope, stmts: Sequence[tree.Stmt], exported: set[str]) -> Scope:
    """Bind what the statements define; returns the scope in which all of it is visible."""
    for stmt in stmts:
        try:
            scope = DEFINE[type(stmt)](scope, stmt, exported) or scope
        except Refused:
            continue
    return scope


def declare(scope: Scope, name: str, span: Span, value: Lazy | Value) -> None:
    """Bind a name once; one that a `repeat` carries is bound apart from the value it comes in with."""
    if name in scope.carried:
        name = given_anew(name)
    if name in scope.names:
        earlier = scope.names[name]
        at = earlier.span if isinstance(earlier, Lazy) else getattr(earlier, "origin", None)
        raise scope.error(
            "E0210", f"`{name}` is declared twice", span, "again here", others=[(at, "first here")],
            helps=["each name has one meaning; give this one another name"],
        )  # fmt: skip
    scope.names[name] = value


def given_anew(name: str) -> str:
    """Where the new value of a carried name is kept; the space keeps it apart from names of specs."""
    return f"next {name}"


def force(scope: Scope, stmts: Sequence[tree.Stmt]) -> None:
    """Compute every definition, in the order of the text, so that each mistake is found."""
    for name in names_defined(stmts):
        name = given_anew(name) if name in scope.carried else name
        found = scope.find(name)
        if isinstance(found, Lazy):
            try:
                scope.lookup(name, found.span)
            except Refused:
                continue


def _input(scope: Scope, stmt: tree.Input, exported: set[str]) -> None:
    along = TIME
    if stmt.along is not None:
        along = stream(stmt.along)
        scope.context.streams[stmt.along] = (along, None)
    dtype = "real"
    if stmt.within is not None:
        size = scope.evaluate(stmt.within)
        dtype = "int" if isinstance(size, sympy.Expr) else "real"
    for item in stmt.names:
        type = Type((BATCH, along, *scope.axes(item.axes or ())), dtype)
        id = scope.frame.graph.add(ir.Input(item.name, type), name=item.name, span=item.span)
        declare(scope, item.name, item.span, Tensor(scope.frame, id, origin=item.span))


def _param(scope: Scope, stmt: tree.Param, exported: set[str]) -> None:
    for group in stmt.groups:
        items: list[tree.Declared] = list(group.names)
        axes: tuple[tree.Expr, ...] | None = None
        shapes: dict[int, tuple[tree.Expr, ...] | None] = {}
        for place in reversed(range(len(items))):
            axes = items[place].axes if items[place].axes is not None else axes
            shapes[place] = axes
        init = inits.initial(scope, group.init)
        for place, item in enumerate(items):
            written = shapes[place]
            if written is None:
                raise scope.error(
                    "E0213", f"parameter `{item.name}` has no shape", item.span,
                    helps=[f"write `{item.name}[d]`, or `{item.name}[]` for a single number"],
                )  # fmt: skip
            name = scope.prefix + item.name
            op = ir.Param(name, (*scope.extra, *scope.axes(written)), init)
            id = scope.frame.graph.add(op, name=name, span=item.span)
            declare(scope, item.name, item.span, Tensor(scope.frame, id, origin=item.span))


def _assign(scope: Scope, stmt: tree.Assign, exported: set[str]) -> None:
    if stmt.by is not None:
        whole = Lazy("", stmt.span, lambda: _split_source(scope, stmt))
        for place, target in enumerate(stmt.targets):
            declare(scope, target.name, target.span, _part(scope, stmt, whole, place, target))
        return
    if len(stmt.targets) != 1:
        raise scope.error(
            "E0214", "several names are given one value", stmt.span,
            helps=["split an axis with `a, b, c = value by 3`"],
        )  # fmt: skip
    target = stmt.targets[0]
    at_time = target.items is not None and len(target.items) == 1 and _is_time(scope, target.items[0])
    state = scope.state(target.name)
    if at_time and state is None and not scope.frame.region:
        raise scope.error(
            "E0216", f"`{target.name}` is not a state", target.span,
            helps=["no index means the token at hand; states are declared by a `recurrence`"],
        )  # fmt: skip
    plain = target if not at_time else tree.Target(target.span, target.name, None)

    def compute() -> Value:
        value = scope.evaluate(stmt.value)
        return _named(scope, value, plain, stmt)

    lazy = Lazy(target.name, stmt.span, compute)
    declare(scope, target.name, target.span, lazy)
    if state is not None:
        state.after = lazy


def _is_time(scope: Scope, item: tree.Expr) -> bool:
    """Whether a target's bracket is an index variable rather than a shape."""
    if isinstance(item, tree.Name):
        return scope.index(item.id) is not None and scope.axis_named(item.id) is None
    return isinstance(item, tree.Binary)


def _named(scope: Scope, value: Value, target: tree.Target, stmt: tree.Node) -> Value:
    """A value under its name in the spec, checked against the shape written beside it."""
    if not isinstance(value, Tensor):
        if target.items is None:
            return value
        value = ops.tensor(scope, value, target.span)
    value = annotated(scope, value, target)
    node = value.frame.graph[value.node]
    if node.name is None and value.frame is scope.frame:
        value.frame.graph.rename(value.node, scope.prefix + target.name, stmt.span)
    return Tensor(value.frame, value.node, value.row, stmt.span)


def annotated(scope: Scope, value: Tensor, target: tree.Target) -> Tensor:
    """The value with its axes in the order written; another set of axes is an error."""
    if target.items is None:
        return value
    wanted, got = scope.axes(target.items), scope.visible(value)
    if sorted(a.name for a in wanted) != sorted(a.name for a in got):
        raise scope.error(
            "E0301",
            f"`{target.span.text}` is said to be [{', '.join(map(str, wanted))}], and is "
            f"{ops.shape(scope, value)}",
            target.span,
            others=[(value.origin, f"{ops.shape(scope, value)} from here")],
        )
    return ops.relabel(scope, value, [(axis, axis) for axis in wanted], target.span)


def _split_source(scope: Scope, stmt: tree.Assign) -> Tensor:
    """The value that `a, b, c = value by 3` splits along its last axis."""
    assert stmt.by is not None
    value = ops.tensor(scope, scope.evaluate(stmt.value), stmt.value.span)
    count = scope.evaluate(stmt.by)
    axes = scope.visible(value)
    if count != len(stmt.targets) or not axes or axes[-1].size != count:
        raise scope.error(
            "E0214",
            f"{len(stmt.targets)} names for a value of shape {ops.shape(scope, value)} `by {stmt.by.span.text}`",
            stmt.span,
            "the last axis must have one entry for each name",
        )
    return value


def _part(scope: Scope, stmt: tree.Assign, whole: Lazy, place: int, target: tree.Target) -> Lazy:
    """One of the parts of a split."""

    def compute() -> Value:
        value = whole.get(lambda lazy: scope.cycle(lazy, stmt.span))
        assert isinstance(value, Tensor)
        last = scope.visible(value)[-1]
        at = ops.constant(scope, sympy.Integer(place), stmt.span)
        return _named(scope, ops.node(scope, ir.Gather(last.name), value, at, span=stmt.span), target, stmt)

    return Lazy(target.name, target.span, compute)


def _output_definition(scope: Scope, stmt: tree.Output, exported: set[str]) -> None:
    if stmt.value is not None:
        _assign(scope, tree.Assign(stmt.span, (stmt.target,), stmt.value, None), exported)


def _require(scope: Scope, stmt: tree.Require, exported: set[str]) -> None:
    condition = scope.evaluate(stmt.condition)
    if condition in (sympy.true, sympy.false) or isinstance(condition, Option):
        holds = condition.value if isinstance(condition, Option) else condition is sympy.true
        if not holds:
            raise scope.error("E0401", f"`{stmt.condition.span.text}` does not hold", stmt.span)
    elif isinstance(condition, sympy.Basic) and not isinstance(condition, sympy.Expr):
        text = stmt.condition.span.text
        scope.context.requirements.append(ir.Requirement(condition, text, stmt.span))
    else:
        raise scope.error("E0403", "`require` takes a condition on sizes", stmt.condition.span)


def _chunk(scope: Scope, stmt: tree.Chunk, exported: set[str]) -> None:
    for rule in stmt.rules:
        if rule.word not in CHUNK_RULES:
            raise scope.error(
                "E0215", f"no chunk rule `{rule.word}`", rule.span,
                helps=[f"known: {', '.join(CHUNK_RULES)}"],
            )  # fmt: skip
        scope.context.chunk[rule.word] = " ".join(arg.span.text for arg in rule.args)


CHUNK_RULES = ("size", "state", "gates", "bound", "save", "sequential", "law")


# --- blocks -------------------------------------------------------------------------------------


def _region(scope: Scope, stmt: tree.Recurrence | tree.Attend, exported: set[str]) -> None:
    """A recurrence or attend: computed as a whole when one of its names is first needed."""
    if scope.frame.region:
        word = "recurrence" if isinstance(stmt, tree.Recurrence) else stmt.keyword
        raise scope.error("E0309", f"`{word}` inside another block", stmt.span, "one block at a time")
    made: dict[str, Tensor] = {}

    def compute() -> Value:
        run = memory.recurrence if isinstance(stmt, tree.Recurrence) else memory.attend
        made.update(run(scope, stmt, exported, _region_body))  # type: ignore[arg-type]
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


def _region_body(inner: Scope, body: Sequence[tree.Stmt]) -> tuple[list[str], Scope]:
    """Define and compute a block's body; returns the names it gives and where they are visible."""
    inner = define(inner, body, set())
    force(inner, body)
    names = [name for name in names_defined(body) if inner.find(name) is not None]
    refused = [name for name in names if getattr(inner.find(name), "state", "") == "refused"]
    if refused:
        raise Refused(refused[0])
    return names, inner


def _blocks(scope: Scope, stmt: tree.Blocks, exported: set[str]) -> None:
    inner = define(memory.blocks(scope, stmt), stmt.body, exported)
    for name in names_defined(stmt.body):
        if name in inner.names:
            declare(scope, name, stmt.span, inner.names[name])


def _route(scope: Scope, stmt: tree.Route, exported: set[str]) -> None:
    made: dict[str, Any] = {}

    def compute() -> Value:
        inner, weight, axis = memory.route(scope, stmt)
        made.update(scope=define(inner, stmt.body, exported), weight=weight, axis=axis)
        return Option(True)

    block = Lazy("", stmt.span, compute)

    def part(name: str) -> Callable[[], Value]:
        def compute() -> Value:
            block.get(lambda lazy: scope.cycle(lazy, stmt.span))
            value = ops.tensor(made["scope"], made["scope"].lookup(name, stmt.span), stmt.span)
            mixed = memory.mixed(scope, value, made["weight"], made["axis"], stmt.span)
            scope.frame.graph.rename(mixed.node, scope.prefix + name)
            return mixed

        return compute

    for name in names_defined(stmt.body):
        declare(scope, name, stmt.span, Lazy(name, stmt.span, part(name)))


def _repeat(scope: Scope, stmt: tree.Repeat, exported: set[str]) -> Scope:
    """A stack of layers: the names carried through it mean the last layer's from here on."""
    carried = [name for name in names_defined(stmt.body) if scope.find(name) is not None]
    if not carried:
        raise scope.error(
            "E0217", "this `repeat` carries nothing from layer to layer", stmt.span,
            helps=["give a name from outside, such as `x`, a new value in the body"],
        )  # fmt: skip
    after = scope.child()
    made: dict[str, Value] = {}

    def compute() -> Value:
        made.update(stack(scope, stmt, carried))
        return Option(True)

    block = Lazy("", stmt.span, compute)

    def last(name: str) -> Callable[[], Value]:
        def compute() -> Value:
            block.get(lambda lazy: scope.cycle(lazy, stmt.span))
            return made[name]

        return compute

    for name in carried:
        after.names[name] = Lazy(name, stmt.span, last(name))
    return after


def stack(scope: Scope, stmt: tree.Repeat, carried: Sequence[str]) -> dict[str, Value]:
    """Apply the body count times: in place in a function, as called layers elsewhere."""
    count = scope.evaluate(stmt.count)
    known = scope.number(count) if isinstance(count, sympy.Expr) else None
    if known is None:
        raise scope.error(
            "E0402", f"how often to repeat must be known when compiling: `{stmt.count.span.text}` has no value",
            stmt.count.span, helps=[f"give it a default, or `--set {stmt.count.span.text}=4`"],
        )  # fmt: skip
    if not known.is_Integer or not 0 <= known <= MAX_REPEAT:
        raise scope.error(
            "E0205", f"`{stmt.count.span.text}` is {known}, not a number of layers", stmt.count.span
        )
    if isinstance(count, sympy.Expr) and not count.is_number:
        condition = sympy.Eq(count, known)
        scope.context.requirements.append(
            ir.Requirement(condition, f"{stmt.count.span.text} == {known}", stmt.span, settled=True)
        )
    values = {name: scope.lookup(name, stmt.span) for name in carried}
    in_place = scope.frame.region or scope.site is not None
    if in_place and not any(isinstance(s, tree.Param) for s in stmt.body):
        for place in range(int(known)):
            inner = scope.child(names={stmt.index: sympy.Integer(place)})
            values = _iterate(inner, stmt, values)
        return values
    path = scope.context.path("layers")
    shared: dict[tuple, ir.Layer] = {}
    for place in range(int(known)):
        values = _stacked(scope, stmt, values, f"{path}.{place}", place, shared)
    return values


def _iterate(inner: Scope, stmt: tree.Repeat, values: Mapping[str, Value]) -> dict[str, Value]:
    """One pass of a repeat's body: carried names are read as they come in, and given anew."""
    body = inner.child(names=dict(values), carried=frozenset(values))
    scope = define(body, stmt.body, exported_by(stmt.body))
    force(scope, stmt.body)
    return {name: scope.lookup(given_anew(name), stmt.span) for name in values}


def _stacked(
    scope: Scope, stmt: tree.Repeat, values: Mapping[str, Value], path: str, place: int,
    shared: dict[tuple, ir.Layer],
) -> dict[str, Value]:  # fmt: skip
    """One layer of a stack: the body as a layer of its own, shared by all that take the same branches."""
    index = size_symbol(stmt.index)
    frame = Frame(layer_graph(), scope.frame, _layer_capture)
    outer = scope.context
    context = Context(f"{outer.name}Layer", frame, streams=outer.streams, widths=outer.widths)
    context.args = [arg for arg in outer.args if arg.symbol is not None]
    context.args = [ir.Arg(a.name, a.symbol) for a in context.args] + [ir.Arg(stmt.index, index)]
    context.values = {**outer.values, stmt.index: sympy.Integer(place)}
    inner = scope.child(context=context, frame=frame, names={stmt.index: index})
    results = _iterate(inner, stmt, values)
    scope.session.report.check()
    tensors = {n: ops.tensor(inner, value, stmt.span) for n, value in results.items()}
    decl = tree.Decl(stmt.span, "block", context.name, (), (), "", stmt.body, stmt.span)
    layer = finish(context, decl, tensors)
    key = (tuple(context.choices), tuple(id(call.callee) for _, call in layer.calls))
    layer = shared.setdefault(key, layer)
    if len(shared) > 1:
        layer.name = f"{context.name}{list(shared).index(key) + 1}"
    sizes = tuple((a.symbol.name, a.symbol) for a in context.args if a.symbol is not None)
    sizes = (*sizes[:-1], (stmt.index, sympy.Integer(place)))
    axes = {a.name: a for t in tensors.values() for a in t.axes if a.kind == "dim"}
    entries = [entry[2] for entry in frame.entries]
    made = ops.node(scope, ir.Call(layer, path, sizes, tuple(axes.items())), *entries, span=stmt.span)
    return {n: ops.node(scope, ir.Result(n), made, span=stmt.span) for n in tensors}


def _layer_capture(frame: Frame, outer: Tensor, role: str) -> int:
    """A value from outside a stack enters each of its layers as an input."""
    name = frame.enter(memory.node_name(outer, "x"), role, outer)
    return frame.graph.add(ir.Input(name, outer.type), name=name)


DEFINE: dict[type, Callable[[Scope, Any, set[str]], Scope | None]] = {
    tree.Input: _input,
    tree.Param: _param,
    tree.Assign: _assign,
    tree.Output: _output_definition,
    tree.Require: _require,
    tree.Chunk: _chunk,
    tree.Recurrence: _region,
    tree.Attend: _region,
    tree.Blocks: _blocks,
    tree.Route: _route,
    tree.Repeat: _repeat,
}


# --- what a body mentions -----------------------------------------------------------------------


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


def exported_by(stmts: Sequence[tree.Stmt]) -> set[str]:
    """Names of blocks that are used outside the block that gives them."""
    mentions = [set(memory.free_names(stmt)) for stmt in stmts]
    wanted: set[str] = set()
    for place, stmt in enumerate(stmts):
        if isinstance(stmt, tree.Output):
            wanted.add(stmt.target.name)
        if isinstance(stmt, tree.Recurrence | tree.Attend | tree.Blocks | tree.Route | tree.Repeat):
            others = set().union(*(m for i, m in enumerate(mentions) if i != place))
            wanted |= {name for name in names_defined([stmt]) if name in others}
            wanted |= exported_by(stmt.body)
    return wanted


def names_of_sizes(node: Any) -> Iterable[str]:
    """Names used where only a size can stand: in shapes, counts of layers and blocks."""
    if isinstance(node, tree.Declared | tree.StateDecl | tree.Target | tree.Index):
        items = getattr(node, "axes", None) or getattr(node, "items", None) or ()
        for item in items:
            yield from (name.rstrip("'") for name in memory.free_names(item))
    if isinstance(node, tree.Repeat):
        yield from memory.free_names(node.count)
    if isinstance(node, tree.Recurrence | tree.Attend):
        yield from (*node.over, *([node.grouped] if node.grouped else []))
    if isinstance(node, tree.Node):
        for value in vars(node).values():
            yield from names_of_sizes(value)
    elif isinstance(node, tuple):
        for item in node:
            yield from names_of_sizes(item)


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
