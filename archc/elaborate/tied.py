"""One set of weights for a layer that is bound to a name, however often that name is applied.

The weights are then parameters where the name is bound, and inputs of each of its uses: a layer is
*lifted* when what it would train, itself and in the layers it calls, comes in from outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from archc.dims import Axis, at
from archc.elaborate import ops
from archc.elaborate.mentions import names_bound
from archc.elaborate.scope import Scope
from archc.elaborate.values import LayerRef, Tensor, Value
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.source import Span
from archc.syntax import tree


@dataclass(eq=False)
class Instance:
    """A layer under a name: where it is bound and, once it was applied, its sizes and weights."""

    name: str
    home: Scope
    sizes: dict[str, sympy.Expr] = field(default_factory=dict)
    weights: dict[str, Tensor] | None = None


# --- which names are applied more than once -----------------------------------------------------


def mentioned_often(stmts: Sequence[tree.Stmt]) -> frozenset[str]:
    """Names that statements mention more than once, or in a loop that does not bind them."""
    return frozenset(name for name, count in _mentions(tuple(stmts)).items() if count > 1)


def _mentions(node: Any) -> Counter[str]:
    """How often each name is used; of two branches one is taken, and a loop runs more than once."""
    count = Counter[str]()
    _count(node, count)
    return count


def _count(node: Any, into: Counter[str]) -> None:
    """Add what is used in a node, or in a tuple of them."""
    if isinstance(node, tree.Name):
        into[node.id] += 1
    elif isinstance(node, tree.Choice):
        _count(node.condition, into)
        into.update(_mentions(node.then) | _mentions(node.orelse))
    elif isinstance(node, tuple | tree.Node):
        for part in node if isinstance(node, tuple) else vars(node).values():
            _count(part, into)
    if isinstance(node, tree.Repeat | tree.Route):
        own = {name for stmt in node.body for name in names_bound(stmt)}
        into.update({name: n for name, n in _mentions(node.body).items() if name not in own})


def bound(scope: Scope, name: str, value: Value) -> Value:
    """The value that a name gets: a layer that is applied more than once is one set of weights."""
    if not isinstance(value, LayerRef) or not value.called or name not in scope.several:
        return value
    return value if value.instance else replace(value, instance=Instance(name, scope))


def check_argument(scope: Scope, value: LayerRef, span: Span) -> None:
    """Refuse a layer as the argument of another that would have to share its weights with this."""
    if value.instance is not None:
        raise scope.error(
            "E0311",
            f"`{value.instance.name}` is used more than once, and is an argument here",
            span,
            "its weights cannot be shared with another layer",
            helps=["write the call as the argument, which is then a layer of its own"],
        )


# --- lifting ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lifted:
    """A layer whose weights are inputs, and these by name, in the layer's own sizes."""

    layer: ir.Layer
    weights: Mapping[str, ir.Param]


def lifted(layer: ir.Layer, known: dict[int, tuple[ir.Layer, Lifted]]) -> Lifted:
    """The layer with its weights as inputs, those of layers it calls among them."""
    if id(layer) not in known:
        known[id(layer)] = (layer, _lifted(layer, known))
    return known[id(layer)][1]


def _lifted(layer: ir.Layer, known: dict[int, tuple[ir.Layer, Lifted]]) -> Lifted:
    graph, weights = layer.graph.copy(), dict[str, ir.Param]()
    for id, param in layer.params:
        weights[param.name] = param
        graph.replace_op(id, ir.Input(param.name, Type(param.axes)))
    for id, call in layer.calls:
        inner = lifted(call.callee, known)
        if not inner.weights:
            continue
        axes, sizes, names = dict(call.axes), dict(call.sizes), dict[str, int]()
        for name, weight in inner.weights.items():
            own = f"{call.path.replace('.', '_')}_{name}"
            for axis in weight.axes:
                axes.setdefault(axis.name, _named(axis, call.path.replace(".", "_"), sizes))
            here = tuple(axes[axis.name] for axis in weight.axes)
            weights[own] = ir.Param(own, here, initial_at(weight.init, sizes))
            names[name] = graph.add(ir.Input(own, Type(here)), name=own, span=graph[id].span)
        given = iter(graph[id].operands)
        operands = [
            names[i.name] if i.name in names else next(given) for _, i in inner.layer.inputs
        ]
        made = replace(call, callee=inner.layer, axes=tuple(sorted(axes.items())))
        graph.substitute(id, graph.add(made, *operands, span=graph[id].span))
    graph.prune([node.id for node in graph if isinstance(node.op, ir.Input)])
    return Lifted(replace(layer, graph=graph), weights)


def _named(axis: Axis, of: str, sizes: Mapping[str, sympy.Expr]) -> Axis:
    """An axis of a callee under a name that is its caller's alone."""
    primes = axis.name[len(axis.base) :]
    return Axis(f"{axis.base}_{of}{primes}", at(axis.size, sizes))


def initial_at(init: ir.Init, sizes: Mapping[str, sympy.Expr]) -> ir.Init:
    """How a parameter starts, in the sizes of a caller."""
    return ir.Init(
        init.fn,
        tuple(
            initial_at(arg, sizes)
            if isinstance(arg, ir.Init)
            else at(arg, sizes)
            if isinstance(arg, sympy.Expr)
            else arg
            for arg in init.args
        ),
    )


# --- uses ---------------------------------------------------------------------------------------


def use(
    scope: Scope, instance: Instance, call: ir.Call, operands: Sequence[Tensor], span: Span
) -> tuple[ir.Call, list[Tensor]]:
    """A call of a layer that is bound to a name, with the weights of that name as operands."""
    made = lifted(call.callee, scope.session.lifted)
    if not made.weights:
        return call, list(operands)
    if scope.extra:
        raise scope.error(
            "E0311",
            f"`{instance.name}` is one layer, and a `route` has one for each of the chosen",
            span,
            helps=["write the call where it is applied: each of the chosen has weights of its own"],
        )
    sizes = dict(call.sizes)
    if instance.weights is None:
        own = instance.home.context is scope.context
        label = call.path if own else instance.home.context.path(instance.name)
        instance.sizes, instance.weights = sizes, _parameters(instance, label, made, sizes, span)
    elif set(instance.weights) != set(made.weights) or any(
        sympy.simplify(sizes[name] - size) != 0 for name, size in instance.sizes.items()
    ):
        raise scope.error(
            "E0311",
            f"`{instance.name}` is one layer, and is used with different sizes",
            span,
            ", ".join(f"{name} = {size}" for name, size in sizes.items()),
            helps=["bind a layer for each size to a name of its own"],
        )
    return _with_weights(scope, instance, call, made, operands, span)


def _with_weights(
    scope: Scope,
    instance: Instance,
    call: ir.Call,
    made: Lifted,
    operands: Sequence[Tensor],
    span: Span,
) -> tuple[ir.Call, list[Tensor]]:
    """The call of the lifted layer; an axis of a weight is called as its caller calls it."""
    assert instance.weights is not None
    axes = dict(call.axes)
    for weight in made.weights.values():
        for axis in weight.axes:
            axes.setdefault(axis.name, _named(axis, instance.name, dict(call.sizes)))
    given, every = iter(operands), list[Tensor]()
    for _, declared in made.layer.inputs:
        if declared.name not in made.weights:
            every.append(next(given))
            continue
        value = scope.frame.bring(instance.weights[declared.name])
        out = tuple(
            (axis.name, axis.renamed(axes[inner.name].name))
            for axis, inner in zip(value.axes, declared.type.axes, strict=True)
        )
        same = all(name == axis.name for name, axis in out)
        renamed = ir.Contract((value.type.names,), out)
        every.append(value if same else ops.node(scope, renamed, value, span=span))
    return replace(call, callee=made.layer, axes=tuple(sorted(axes.items()))), every


def _parameters(
    instance: Instance, label: str, made: Lifted, sizes: Mapping[str, sympy.Expr], span: Span
) -> dict[str, Tensor]:
    """The weights as parameters of the layer in which the name is bound, named after it."""
    home = instance.home
    known = {arg.symbol.name for arg in home.context.args if arg.symbol is not None}
    strange = {str(s) for size in sizes.values() for s in size.free_symbols} - known
    if strange:
        raise home.error(
            "E0311",
            f"`{instance.name}` is one layer, and its sizes depend on `{min(strange)}` here",
            span,
            helps=["write the call where it is applied: each is then a layer of its own"],
        )
    taken = {node.op.name for node in home.frame.graph if isinstance(node.op, ir.Param)}
    weights = dict[str, Tensor]()
    for name, weight in made.weights.items():
        own = f"{label}_{name}"
        if own in taken or home.find(own) is not None:
            message = f"`{own}`, a weight of `{instance.name}`, is declared twice"
            raise home.error("E0210", message, span)
        axes = tuple(_named(axis, instance.name, sizes) for axis in weight.axes)
        op = ir.Param(own, axes, initial_at(weight.init, sizes))
        id = home.frame.graph.add(op, name=own, span=span)
        weights[name] = Tensor(home.frame, id, origin=span)
    return weights
