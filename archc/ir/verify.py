"""Check what every pass may rely on in layer IR; whatever fails here is a bug in archc.

Called after elaboration and after every pass. Raises `InternalError`, never `ArchError`: a mistake
in a spec must have been reported before a graph is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import sympy

from archc.diagnostics import InternalError
from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.shapes import KIND_ORDER, TypeMismatch
from archc.ir.typing import infer, result
from archc.ir.value_names import cotangent, primal, state_before

REGIONS = (ir.Recurrence, ir.Attend, ir.Call)
HOLDERS = (*REGIONS, ck.Conjugate)
"""Ops that hold graphs."""

FREE = (ir.Contract, ir.Input, ir.Param, ir.Delta, ir.Result)
"""Ops whose axes stand in any order."""


def verify(layer: ir.Layer) -> None:
    """Check a layer, the bodies in it and, before it and each once, the layers it calls."""
    _verify(layer, set())


def _verify(layer: ir.Layer, done: set[int]) -> None:
    """Check a layer unless that is done."""
    if id(layer) in done:
        return
    done.add(id(layer))
    acyclic = layer.graph.acyclic()
    require(acyclic, f"layer `{layer.name}`: a value depends on itself")
    for _, call in layer.calls:
        _verify(call.callee, done)
    try:
        _check_layer(layer)
    except (TypeMismatch, KeyError) as error:
        # the checks look up what earlier passes promised to be there
        raise InternalError(f"layer `{layer.name}`: {error}") from error


def require(condition: bool, message: str) -> None:
    """Refuse a graph that breaks an invariant."""
    if not condition:
        raise InternalError(message)


def broken(where: object, message: str) -> InternalError:
    """The error for an invariant that a node breaks, where its message takes long to make."""
    return InternalError(f"{where}: {message}")


def _check_layer(layer: ir.Layer) -> None:
    """The interface of a layer, then its graph."""
    where = f"layer `{layer.name}`"
    for arg in layer.args:
        named = arg.symbol is None or arg.symbol.name == arg.name
        require(named, f"{where}: the symbol of argument `{arg.name}` is called `{arg.symbol}`")
    check_graph(layer.graph, where)
    require(bool(layer.graph.outputs), f"{where} has no output")
    _distinct((op.name for _, op in layer.params), f"{where}: parameter")
    own = [call.path for _, call in layer.calls if call.callee.kind != "argument"]
    given = {call.path for _, call in layer.calls if call.callee.kind == "argument"}
    _distinct([*own, *given], f"{where}: path of a called layer")
    _check_symbols(layer, where)


@dataclass(frozen=True)
class Where:
    """The place of a node, put into words only where something is wrong with it."""

    graph: object
    node: Node

    def __str__(self) -> str:
        return f"{self.graph}, {_described(self.node)}"


FOUND: WeakKeyDictionary[Graph, tuple[int, list[Node]]] = WeakKeyDictionary()
"""Graphs whose nodes are in order: the version that was checked, and those nodes that hold graphs,
which may change by themselves, or are results of such."""


def check_graph(graph: Graph, where: object, captured: Mapping[str, Type] | None = None) -> None:
    """A graph's nodes; `captured` are the inputs that a body must have (None: a layer's graph)."""
    for name, id in graph.outputs.items():
        require(id in graph, f"{where}: output `{name}` is not in the graph")
        require(not isinstance(graph[id].op, REGIONS), f"{where}: output `{name}` is a region")
    _check_nodes(graph, where)
    if captured is None:
        return
    inputs = {graph[id].op.name: graph[id].type for id in graph.ids(ir.Input)}
    require(set(inputs) <= set(captured), f"{where}: {sorted(set(inputs) - set(captured))} unknown")
    for name, type in inputs.items():
        if not _same(type, captured[name]):
            raise broken(where, f"`{name}` enters as {_shape(captured[name])}, not {_shape(type)}")
    params = [graph[id].op.name for id in graph.ids(ir.Param)]
    require(not params, f"{where}: parameters {params} are declared in a body")


def _check_nodes(graph: Graph, where: object) -> None:
    """The nodes of a graph that has changed since it was found to be in order, and in any case
    those that hold graphs."""
    version, holders = FOUND.get(graph, (None, []))
    fresh = version != graph.version
    if fresh:
        require(graph.acyclic(), f"{where}: a value depends on itself")
        _distinct((graph[id].op.name for id in graph.ids(ir.Input)), f"{where}: input")
    for node in graph if fresh else holders:
        if fresh or isinstance(node.op, ir.Result):
            _check_node(graph, node, Where(where, node))
        if isinstance(node.op, HOLDERS):
            _check_holder(node, [graph[operand] for operand in node.operands], Where(where, node))
    if fresh:
        holders = [node for node in graph if isinstance(node.op, (*HOLDERS, ir.Result))]
        FOUND[graph] = graph.version, holders


def _check_node(graph: Graph, node: Node, where: Where) -> None:
    """One node: its operands, and its type."""
    for operand in node.operands:
        if operand not in graph:
            raise broken(where, f"operand {operand} is not in the graph")
        if isinstance(graph[operand].op, REGIONS) != isinstance(node.op, ir.Result):
            raise broken(where, "a region is read by Result alone")
    operands = [graph[operand] for operand in node.operands]
    if isinstance(node.op, ir.Result):
        require(node.op.name in _results(operands[0].op), f"{where}: no such result")
    type = infer(node.op, operands)
    if type != node.type:
        raise broken(where, f"is {_shape(type)}, but says {_shape(node.type)}")
    if len(set(type.names)) < len(type.names):
        _distinct(type.names, f"{where}: axis")
    order = [KIND_ORDER[axis.kind] for axis in type.axes]
    if order != sorted(order) and not isinstance(node.op, FREE):
        raise broken(where, "axes are not batch, streams, dims")
    if isinstance(node.op, ir.Contract):
        _check_contract(node.op, operands, where)


def _check_holder(node: Node, operands: list[Node], where: Where) -> None:
    """A node that holds graphs, with them."""
    if isinstance(node.op, ir.Recurrence):
        _check_recurrence(node.op, operands, where)
        if isinstance(node.op.chunked, ck.ChunkForm):
            _check_form(node.op, node.op.chunked, operands, f"{where}, chunked form")
    elif isinstance(node.op, ir.Attend):
        _check_attend(node.op, operands, where)
    elif isinstance(node.op, ir.Call):
        _check_call(node.op, operands, where)
    elif isinstance(node.op, ck.Conjugate):
        _check_conjugate(node.op, operands, where)


def _check_recurrence(op: ir.Recurrence, operands: list[Node], where: object) -> None:
    """The captures at one token and the states before it are the body's inputs."""
    names = [state.name for state in op.states]
    wanted = len(op.captures) + len(names)
    require(len(operands) == wanted, f"{where}: {len(operands)} operands, not {wanted}")
    _distinct([*op.captures, *(state_before(name) for name in names)], f"{where}: input")
    captured = {
        name: Type(tuple(a for a in node.type.axes if a != op.stream), node.type.dtype)
        for name, node in zip(op.captures, operands, strict=False)
    }
    captured |= {state.before: Type(state.axes) for state in op.states}
    check_graph(op.body, f"{where}, body", captured)
    for law in op.laws:
        parts = {law.in_body(part) for part in law.parts}
        require(parts <= set(op.body.outputs), f"{where}: a law without summaries of tokens")
        check_graph(law.merge, f"{where}, merge")
        check_graph(law.apply, f"{where}, apply")
    for state, start in zip(op.states, operands[len(op.captures) :], strict=True):
        wide = {axis.name for axis in state.axes}
        require(state.name in op.body.outputs, f"{where}: no update of state `{state.name}`")
        update = op.body[op.body.outputs[state.name]]
        for what, node in (("update", update), ("initial value", start)):
            fits = set(node.type.names) <= wide
            require(fits, f"{where}: {what} of `{state.name}` is {_shape(node.type)}")


def _check_form(op: ir.Recurrence, form: ck.ChunkForm, operands: list[Node], where: object) -> None:
    """The forward graph has the Recurrence's results, the backward one gradients of its inputs."""
    given = dict(zip(op.captures, (node.type for node in operands), strict=False))
    given |= {ck.start(state.name): Type(state.axes) for state in op.states}
    check_graph(form.forward, where, given)
    made = {name: form.forward[id].type for name, id in form.forward.outputs.items()}
    saved = set(form.saved)
    require(saved <= set(made), f"{where}: {sorted(saved - set(made))} are saved but not made")
    wanted = {ck.final(state.name): Type(state.axes) for state in op.states}
    wanted |= {name: result(op, name) for name in op.body.outputs}
    for name in (name for name in made if name not in saved):
        require(name in wanted, f"{where}: no result `{name}`")
        same = _same(made[name], wanted[name])
        require(same, f"{where}: `{name}` is {_shape(made[name])}, not {_shape(wanted[name])}")
    if form.backward is None:
        return
    where = f"{where}, backward"
    arriving = {cotangent(name): type for name, type in made.items() if name not in saved}
    check_graph(form.backward, where, {**given, **{n: made[n] for n in form.saved}, **arriving})
    for name, id in form.backward.outputs.items():
        of = given.get(primal(name) or "")
        require(of is not None, f"{where}: `{name}` is the gradient of no input")
        fits = of is not None and set(form.backward[id].type.names) <= set(of.names)
        require(fits, f"{where}: `{name}` is {_shape(form.backward[id].type)}")


def _check_conjugate(op: ck.Conjugate, operands: list[Node], where: object) -> None:
    """The body makes of `p`, at least as wide as the right-hand side, a value as wide as `p`."""
    right, *others = operands
    require(len(others) == len(op.captures), f"{where}: an operand for each capture")
    require(set(op.over) <= set(right.type.names), f"{where}: a system along {list(op.over)}")
    inputs = {n.op.name: n.type for n in op.body if isinstance(n.op, ir.Input)}
    wide = inputs.get("p", right.type)
    require(set(right.type.axes) <= set(wide.axes), f"{where}: `p` enters as {_shape(wide)}")
    given = {"p": wide, **{n: o.type for n, o in zip(op.captures, others, strict=True)}}
    check_graph(op.body, f"{where}, body", given)
    require("product" in op.body.outputs, f"{where}: the body has no `product`")
    made = op.body[op.body.outputs["product"]].type
    require(_same(made, wide), f"{where}: the product is {_shape(made)}")


def _check_attend(op: ir.Attend, operands: list[Node], where: object) -> None:
    """Captures enter the body with the stream of their role."""
    require(len(operands) == len(op.captures), f"{where}: an operand for each capture")
    _distinct((name for name, _ in op.captures), f"{where}: capture")
    roles: dict[str, dict[str, Any]] = {
        "reader": {},
        "read": {op.source: op.read},
        "path": {op.source: op.path},
    }
    captured: dict[str, Type] = {}
    for (name, role), node in zip(op.captures, operands, strict=True):
        require(role in roles, f"{where}: role `{role}` of `{name}`")
        require(role != "path" or op.path is not None, f"{where}: `{name}` needs a path")
        axes = tuple(roles[role].get(a.name, a) for a in node.type.axes)
        captured[name] = Type(axes, node.type.dtype)
    check_graph(op.body, f"{where}, body", captured)
    if op.decode is None:
        return
    check_graph(op.decode, f"{where}, decode", captured)
    for name, id in op.body.outputs.items():
        other = op.decode.outputs.get(name)
        same = other is not None and _same(op.body[id].type, op.decode[other].type)
        require(same, f"{where}: `{name}` has another type in decode")


def _check_call(op: ir.Call, operands: list[Node], where: object) -> None:
    """The operands fit the callee's inputs, and every size of the callee has a value."""
    inputs = op.callee.inputs
    where = f"{where} of `{op.callee.name}`"
    require(len(operands) == len(inputs), f"{where}: {len(operands)} operands")
    sized = {name for name, _ in op.sizes}
    missing = [
        arg.name for arg in op.callee.args if arg.symbol is not None and arg.name not in sized
    ]
    require(not missing, f"{where}: no value for sizes {missing}")
    renamed = dict(op.axes)
    for (_, input), node in zip(inputs, operands, strict=True):
        axes = {renamed.get(axis.name, axis).name for axis in input.type.axes}
        fits = set(node.type.names) <= axes and node.type.dtype == input.type.dtype
        require(fits, f"{where}: `{input.name}` is {_shape(input.type)}, given {_shape(node.type)}")


def _check_contract(op: ir.Contract, operands: list[Node], where: object) -> None:
    """Axes under one label are equally long, and a label stands once in the result."""
    if len({label for label, _ in op.out}) < len(op.out):
        _distinct((label for label, _ in op.out), f"{where}: output label")
    sizes: dict[str, Axis] = {}
    pairs = [
        (label, axis)
        for labels, node in zip(op.ins, operands, strict=True)
        for label, axis in zip(labels, node.type.axes, strict=True)
    ]
    for label, axis in [*pairs, *op.out]:
        first = sizes.setdefault(label, axis)
        if first.size != axis.size and sympy.simplify(first.size - axis.size) != 0:
            raise broken(where, f"joins {first} of {first.size} with {axis} of {axis.size}")


def _check_symbols(layer: ir.Layer, where: object) -> None:
    """Every size is known from the arguments, or comes with an input or a run of blocks."""
    known: set[Any] = {arg.symbol for arg in layer.args}
    nodes = list(every_node(layer.graph))
    for node in nodes:
        if isinstance(node.op, ir.Input):
            # a layer given as an argument has no sizes of its own: all come with what it is given
            known |= {a.size for a in node.type.axes if a.kind != "dim" or layer.kind == "argument"}
        if isinstance(node.op, ir.Window) and node.op.blocks is not None:
            known.add(node.op.blocks.size)
        if isinstance(node.op, ir.Recurrence) and node.op.chunked is not None:
            known.add(ck.CHUNK)  # chosen when the form runs
    for node in nodes:
        unknown = sorted(str(symbol) for symbol in _symbols(node) - known)
        if unknown:
            raise broken(Where(where, node), f"unknown sizes {unknown}")


def every_node(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of the bodies in it."""
    for node in graph:
        yield node
        if isinstance(node.op, ir.Recurrence | ir.Attend | ck.Conjugate):
            yield from every_node(node.op.body)
        if isinstance(node.op, ir.Recurrence) and isinstance(node.op.chunked, ck.ChunkForm):
            yield from every_node(node.op.chunked.forward)
            if node.op.chunked.backward is not None:
                yield from every_node(node.op.chunked.backward)
        if isinstance(node.op, ir.Attend) and node.op.decode is not None:
            yield from every_node(node.op.decode)


def _symbols(node: Node) -> set[sympy.Basic]:
    """The sizes and options that a node's axes and numbers speak of."""
    op = node.op
    numbers: list[Any] = []
    if isinstance(op, ir.Constant):
        numbers.append(op.value)
    elif isinstance(op, ir.Noise):
        numbers.append(op.p)
    elif isinstance(op, ir.Top):
        numbers.append(op.count)
    elif isinstance(op, ir.Window) and op.stride is not None:
        numbers.append(op.stride)
    elif isinstance(op, ir.Solve | ck.Conjugate) and op.iterations is not None:
        numbers.append(op.iterations)
    elif isinstance(op, ir.Call):
        numbers += [size for _, size in op.sizes]
    return {*node.type.symbols}.union(*(number.free_symbols for number in numbers))


def _results(owner: Any) -> Iterable[str]:
    """Names of the results of a region."""
    return owner.callee.graph.outputs if isinstance(owner, ir.Call) else owner.body.outputs


def _same(one: Type, other: Type) -> bool:
    """Whether two types have the same axes, in any order."""
    same = one.axes == other.axes or set(one.axes) == set(other.axes)
    return same and one.dtype == other.dtype


def _distinct(names: Iterable[str], what: str) -> None:
    """No name stands twice."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    require(not twice, f"{what} {twice} stands more than once")


def _described(node: Node) -> str:
    """`node 7 (Contract, q)`."""
    name = f", {node.name}" if node.name else ""
    place = f", {node.span.where}" if node.span else ""
    return f"node {node.id} ({type(node.op).__name__}{name}{place})"


def _shape(type: Type) -> str:
    """`real[batch, t, H]`."""
    return f"{type.dtype}[{', '.join(type.names)}]"
