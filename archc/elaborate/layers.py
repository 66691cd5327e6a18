"""Layers that call layers: sizes by name or from the inputs, one elaboration per kind of use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from archc.diagnostics import Refused
from archc.dims import BATCH, TIME, Axis, at, number_symbol, size_symbol
from archc.elaborate import in_place, left_out, ops, tied
from archc.elaborate.body import elaborate_layer
from archc.elaborate.callee import bind, infer, inputs_of
from archc.elaborate.scope import OF_VALUES, Scope
from archc.elaborate.values import AbstractLayer, LayerRef, Option, Tensor, Value
from archc.ir import layer as ir
from archc.ir.paths import snake
from archc.ir.typing import layer_graph
from archc.source import Span
from archc.syntax import tree

OF_SIZES = ("E04", "E05")
"""Codes of what is wrong with the sizes that a layer is given."""


def call(scope: Scope, target: LayerRef | AbstractLayer, node: tree.Call) -> Value:
    """`Attention(d, H)` fixes sizes; `Attention(d, H)(x)`, or `Memory(q, k)`, applies the layer."""
    if isinstance(target, AbstractLayer):
        return _abstract(scope, target, node)
    if not _is_applied(scope, target, node):
        given = tuple(bind(scope, target.decl, node).items())
        return LayerRef(target.decl, target.module, given, called=True)
    made = outputs(scope, target, node)
    if len(made) != 1:
        name, names = target.decl.name, ", ".join(made)
        raise scope.error(
            "E0311",
            f"`{name}` has several outputs, {names}, and one is used",
            node.span,
            helps=[f"name them all, in a line of its own: `{names} = {name}(...)(...)`"],
        )
    return next(iter(made.values()))


def _is_applied(scope: Scope, target: LayerRef, node: tree.Call) -> bool:
    """Whether a call gives a layer its inputs, rather than its sizes alone."""
    return isinstance(node.func, tree.Call) or target.called or _gives_tensors(scope, node)


def several(scope: Scope, node: tree.Call, count: int) -> list[Tensor]:
    """The outputs of a layer that is applied, in its order, for so many names."""
    func = node.func
    if isinstance(func, tree.Name):
        known = scope.find(func.id) is not None or func.id in scope.module.decls
    else:
        known = isinstance(func, tree.Call)
    target = scope.evaluate(func) if known else None
    if not isinstance(target, LayerRef) or not _is_applied(scope, target, node):
        raise scope.error(
            "E0214",
            "several names are given one value",
            node.span,
            helps=["only a layer has several: `a, b = Layer(sizes)(inputs)`"],
        )
    made = outputs(scope, target, node)
    if len(made) != count:
        raise scope.error(
            "E0214",
            f"{count} names for the {len(made)} output{'s' * (len(made) != 1)} of "
            f"`{target.decl.name}`: {', '.join(made)}",
            node.span,
            others=[(target.decl.header, "declared here")],
            helps=[f"name each output once: `{', '.join(made)} = {target.decl.name}(...)(...)`"],
        )
    return [*made.values()]


def outputs(scope: Scope, target: LayerRef, node: tree.Call) -> dict[str, Tensor]:
    """Every output of a layer that is applied, in its order."""
    inputs = inputs_of(target.decl)
    if any(argument.name for argument in node.args) or len(node.args) != len(inputs):
        raise _wrong_inputs(scope, target, inputs, node)
    values = [ops.tensor(scope, scope.evaluate(a.value), a.value.span) for a in node.args]
    elsewhere = any(axis in _of_inputs(scope) for value in values for axis in value.axes)
    kept = elsewhere or _keeps_parameters(target.decl)
    if target.instance is None and (scope.extra or not kept):
        return in_place.outputs(scope, target, values, node)
    return apply(scope, target, inputs, values, node)


def _wrong_inputs(
    scope: Scope, target: LayerRef, inputs: Sequence[tree.Declared], node: tree.Call
) -> Refused:
    """The error for a layer that is applied to more or fewer inputs, or to inputs by name."""
    name, count = target.decl.name, len(inputs)
    message = f"`{name}` has {count} input{'s' * (count != 1)}, and gets {len(node.args)}"
    if any(argument.name for argument in node.args):
        message = f"inputs of `{name}` go by their place, not by name"
    sizes = ", ".join(parameter.name for parameter in target.decl.params)
    given = ", ".join(declared.name for declared in inputs)
    return scope.error(
        "E0209",
        message,
        node.span,
        others=[(target.decl.header, "declared here")],
        helps=[f"write `{name}({sizes})({given})`: its sizes, then its inputs"],
    )


def _gives_tensors(scope: Scope, node: tree.Call) -> bool:
    """Whether the arguments are values per token rather than sizes."""
    return any(
        isinstance(scope.evaluate(argument.value), Tensor)
        for argument in node.args
        if argument.name is None
    )


def _keeps_parameters(decl: tree.Decl) -> bool:
    """Whether a layer trains or repeats something, or has rules for chunks of its own, so that it
    is called and not inlined."""

    def has(stmts: tuple[tree.Stmt, ...]) -> bool:
        return any(
            isinstance(stmt, tree.Param | tree.Repeat | tree.Chunk)
            or has(getattr(stmt, "body", ()))
            for stmt in stmts
        )

    return has(decl.body) or decl.kind != "layer"


def _abstract(scope: Scope, target: AbstractLayer, node: tree.Call) -> Tensor:
    """A layer argument that is given only when the module is made: shape in, shape out."""
    if len(node.args) != 1:
        raise scope.error("E0209", f"`{target.name}` is applied to one value", node.span)
    value = ops.tensor(scope, scope.evaluate(node.args[0].value), node.args[0].value.span)
    graph = layer_graph()
    graph.outputs["y"] = graph.add(ir.Input("x", value.type), name="x", span=node.span)
    span = node.span
    layer = ir.Layer(target.name, "argument", "", (), graph, span.source, span)
    made = ops.node(scope, ir.Call(layer, target.name, (), ()), value, span=span)
    return ops.node(scope, ir.Result("y"), made, span=span)


def apply(
    scope: Scope,
    target: LayerRef,
    inputs: list[tree.Declared],
    values: list[Tensor],
    node: tree.Call,
) -> dict[str, Tensor]:
    """The outputs of a Call: the callee is elaborated once for uses that take the same branches."""
    sizes, axes = infer(scope, target, inputs, values, node)
    layer, args = instantiate(scope, target, sizes, node)
    named = target.instance.name if target.instance else snake(target.decl.name)
    path = scope.prefix + scope.context.path(named)
    values = [ops.batched(scope.frame.bring(value)) for value in values]
    values = [
        ops.relabel(scope, value, [(axis, axis) for axis in scope.visible(value)], node.span)
        for value in values
    ]
    along, numbers = dict[str, Axis](), list[Tensor]()
    swapped = _applied_along(scope, values, layer)
    for value, (_, declared) in zip(values, layer.inputs, strict=True):
        _note_tokens(scope, target, value, declared, along, swapped, node.span)
        numbers.append(_typed(scope, value, declared, node.span))
    other = {name: axis for name, axis in along.items() if axis.name != name}
    outer = _caller_axes(scope, layer, args, {**axes, **other})
    op = ir.Call(layer, path, tuple(args.items()), outer)
    if target.instance is not None:
        op, numbers = tied.use(scope, target.instance, op, numbers, node.span)
        return left_out.applied(scope, op, numbers, node.span)
    parts = left_out.parted(scope, layer, numbers)
    return left_out.called(scope, parts, op, f"{path}_optional", numbers, node.span)


def _note_tokens(
    scope: Scope,
    target: LayerRef,
    value: Tensor,
    declared: ir.Input,
    along: dict[str, Axis],
    swapped: bool,
    span: Span,
) -> None:
    """Note in `along` the caller's sequence for one of the callee's, where it is another one: that
    of an input, all of which is there at once, and where a layer is applied along one (`swapped`)
    also the own tokens. Refuse a value without tokens, or with those of pairs or of blocks, and
    values of two sequences for one."""
    wanted = [axis for axis in declared.type.axes if axis.kind != "dim"]
    visible = {axis.name for axis in scope.visible(value)}
    got = [axis for axis in value.axes if axis.name not in visible]
    pairs = [(one, other) for one, other in zip(wanted, got, strict=False) if one != BATCH]
    fits = len(wanted) == len(got) and wanted[:1] == got[:1]
    others = [*_of_inputs(scope), *[TIME] * swapped]
    if fits and all(other in (one, *others) for one, other in pairs):
        if any(along.setdefault(one.name, other) != other for one, other in pairs):
            one, other = pairs[0]
            message = f"values along `{other}` and `{along[one.name]}` enter `{target.decl.name}`"
            helps = ["a layer's own tokens are those of one sequence"]
            raise scope.error("E0311", message, span, helps=helps)
        return
    raise _strange_tokens(scope, target, declared, [a for a in got if a not in wanted], span)


def _applied_along(scope: Scope, values: Sequence[Tensor], layer: ir.Layer) -> bool:
    """Whether a layer is applied along another sequence than the caller's own tokens, which are
    there at once for it, as another sequence is for a layer along these."""
    pairs = zip(values, layer.inputs, strict=True)
    own = (value for value, (_, declared) in pairs if TIME in declared.type.axes)
    return any(axis in _of_inputs(scope) for value in own for axis in value.axes)


def _strange_tokens(
    scope: Scope, target: LayerRef, declared: ir.Input, strange: Sequence[Axis], span: Span
) -> Refused:
    """The refusal of a value with other tokens than an input has, or with none."""
    if TIME in strange:
        wanted = next(axis for axis in declared.type.axes if axis.kind == "stream")
        message = f"`{declared.name}` of `{target.decl.name}` is along `{wanted}`, and gets tokens"
        helps = [
            f"all of `{wanted}` is there at once, and a layer's own tokens come one by one: read "
            "these in an `attend s <= t`, or apply the layer along another sequence"
        ]
        return scope.error("E0311", message, span, helps=helps)
    message = f"`{declared.name}` of `{target.decl.name}` is a value per token, and gets one "
    if not strange:
        message += "that all tokens share"
        helps = [
            "let the layer have the parameter. Layers of a `repeat` share one that is declared "
            "before it, if what reads it is written in the `repeat` and in no layer of its own"
        ]
        return scope.error("E0311", message, span, helps=helps)
    message += f"along `{strange[0]}`"
    helps = [
        f"a layer is applied along `t`, or along an input's own sequence: make what stands along "
        f"`{strange[0]}` in a layer of its own, whose output is an input here"
    ]
    return scope.error("E0311", message, span, helps=helps)


def _of_inputs(scope: Scope) -> list[Axis]:
    """The sequences of inputs beside the layer's own, where no reader is at hand."""
    streams = scope.context.streams.values() if scope.attend is None else ()
    return [axis for axis, blocks in streams if blocks is None and axis != TIME]


def _typed(scope: Scope, value: Tensor, declared: ir.Input, span: Span) -> Tensor:
    """A value of the kind that an input has: a condition counts as 0 or 1."""
    if value.type.dtype == declared.type.dtype:
        return value
    if declared.type.dtype != "real":
        raise scope.error("E0310", f"`{declared.name}` takes whole numbers", span)
    return ops.node(scope, ir.Elementwise("real"), value, span=span)


def _caller_axes(
    scope: Scope, layer: ir.Layer, args: Mapping[str, sympy.Expr], axes: Mapping[str, Axis]
) -> tuple[tuple[str, Axis], ...]:
    """For each dim of the callee's outputs, the caller's axis: what came in, or one by size."""
    known = dict(axes)
    for id in layer.graph.outputs.values():
        for axis in layer.graph[id].type.axes:
            if axis.kind != "dim" or axis.name in known:
                continue
            size = at(axis.size, args)
            own = scope.axis_named(size.name) if isinstance(size, sympy.Symbol) else None
            fresh = (
                axis.name
                if scope.axis_named(axis.name) is None
                else f"{axis.name}_{snake(layer.name)}"
            )
            known[axis.name] = own[0] if own else Axis(fresh, size)
    return tuple(sorted(known.items()))


def instantiate(
    scope: Scope, target: LayerRef, sizes: Mapping[str, Value], node: tree.Call
) -> tuple[ir.Layer, dict[str, sympy.Expr]]:
    """The callee's layer, and a value for each of its symbols in the caller's."""
    given, closed, outer = dict[str, Value](), dict[str, Value](), dict[str, sympy.Expr]()
    for name, value in sizes.items():
        if isinstance(value, sympy.Expr):
            outer[name] = value
            known = scope.number(value)
            if known is not None:
                given[name] = known
        elif isinstance(value, LayerRef):
            tied.check_argument(scope, value, node.span)
            closed[name] = _close(scope, name, value, outer, given)
        elif isinstance(value, AbstractLayer):
            raise _handed_on(scope, target, value, node)
        else:
            closed[name] = value
    key = tuple(sorted((name, _key(value)) for name, value in closed.items()))
    layer = _known_layer(scope, target, key, given)
    if layer is None:
        layer = _elaborated(scope, target, {**given, **closed}, set(outer), bool(closed), node)
        settled = tuple(r for r in layer.requirements if r.settled)
        scope.session.layers.append((target.decl, key, settled, layer))
    return layer, _bind_symbols(scope, layer, outer, node)


def _handed_on(scope: Scope, target: LayerRef, value: AbstractLayer, node: tree.Expr) -> Refused:
    """A layer argument that is given to another layer before it is known itself."""
    return scope.error(
        "E0311",
        f"`{value.name}` cannot be handed on: which layer it is is known when a module is made",
        node.span,
        helps=[f"apply `{value.name}` here, or give `{target.decl.name}` a layer of a spec"],
    )


def _elaborated(
    scope: Scope,
    target: LayerRef,
    values: Mapping[str, Value],
    symbolic: set[str],
    options: bool,
    node: tree.Call,
) -> ir.Layer:
    """The layer of a callee; what is wrong in it is shown with the call. It is the call's doing
    where it depends on sizes, or on options that the call gives."""
    session, decl = scope.session, target.decl
    found = len(session.report.diagnostics)
    try:
        with session.calling(decl, node.span):
            return elaborate_layer(session, target.module, decl, values, symbolic)
    except Refused:
        for place, each in enumerate(session.report.diagnostics[found:], found):
            by_call = each.code.startswith(OF_VALUES if options else OF_SIZES)
            shown = (each.at_call if by_call else each.called_from)(node.span)
            session.report.diagnostics[place] = shown
        raise


def _bind_symbols(
    scope: Scope, layer: ir.Layer, outer: Mapping[str, sympy.Expr], node: tree.Call
) -> dict[str, sympy.Expr]:
    """Each symbol of the callee in the caller's symbols: given, inferred, or its default."""
    bound: dict[str, sympy.Expr] = {}
    lacking = _not_given(layer, set())
    for arg in layer.args:
        if arg.name in lacking:
            raise scope.error(
                "E0311",
                f"`{layer.name}` needs a layer for `{arg.name}`",
                node.span,
                helps=[f"write `{layer.name}({arg.name} = SomeLayer(...))(...)`"],
            )
        if arg.symbol is None:
            continue
        value = outer.get(arg.name, arg.default)
        if value is None:
            raise scope.error(
                "E0311",
                f"`{layer.name}` needs a value for `{arg.name}`",
                node.span,
                helps=[f"write `{layer.name}({arg.name} = ...)(...)`"],
            )
        if arg.name not in outer:
            value = at(value, bound)
        bound[arg.symbol.name] = value
    return bound


def _not_given(layer: ir.Layer, done: set[int]) -> set[str]:
    """Layers that a layer, or a stack in it, is to be given, and is not."""
    if id(layer) in done:
        return set()
    done.add(id(layer))
    found = {call.path for _, call in layer.calls if call.callee.kind == "argument"}
    return found.union(*(_not_given(call.callee, done) for _, call in layer.calls))


def _close(
    scope: Scope, name: str, ref: LayerRef, outer: dict[str, sympy.Expr], given: dict[str, Value]
) -> LayerRef:
    """A layer argument whose sizes are the caller's: each is a size of the callee, `inner_d`."""
    sizes: list[tuple[str, Value]] = []
    symbols: list[sympy.Symbol] = []
    for size, value in ref.sizes:
        if isinstance(value, LayerRef):
            inner = _close(scope, f"{name}_{size}", value, outer, given)
            symbols.extend(inner.symbols)
            sizes.append((size, inner))
            continue
        if not isinstance(value, sympy.Expr):
            sizes.append((size, value))
            continue
        whole = value.is_integer is not False and all(s.is_integer for s in value.free_symbols)
        symbol = (size_symbol if whole else number_symbol)(f"{name}_{size}")
        outer[symbol.name] = value
        known = scope.number(value)
        if known is not None:
            given[symbol.name] = known
        symbols.append(symbol)
        sizes.append((size, symbol))
    return LayerRef(ref.decl, ref.module, tuple(sizes), tuple(symbols), called=True)


def _key(value: Value) -> object:
    """The key by which two settled arguments are the same."""
    if isinstance(value, LayerRef):
        return (id(value.decl), tuple((n, _key(v)) for n, v in value.sizes))
    return repr(value.value) if isinstance(value, Option) else repr(value)


def _known_layer(
    scope: Scope, target: LayerRef, key: tuple, given: Mapping[str, Value]
) -> ir.Layer | None:
    """An earlier elaboration of the same layer whose branches this use would take too."""
    for decl, other, settled, layer in scope.session.layers:
        if decl is not target.decl or other != key:
            continue
        values = _values(layer, given)
        if all(_holds(requirement.condition, values) for requirement in settled):
            return layer
    return None


def _values(layer: ir.Layer, given: Mapping[str, Value]) -> dict[str, sympy.Expr]:
    """Numbers for a layer's symbols, defaults filled in."""
    values: dict[str, sympy.Expr] = {n: v for n, v in given.items() if isinstance(v, sympy.Expr)}
    for arg in layer.args:
        if arg.symbol is not None and arg.name not in values and arg.default is not None:
            value = at(arg.default, values)
            if value.is_number:
                values[arg.name] = value
    return values


def _holds(condition: sympy.Basic, values: Mapping[str, sympy.Expr]) -> bool:
    """Whether a condition is true for these numbers."""
    return at(condition, values) is sympy.true
