"""Products of a loop over tokens that need no state: made before the loop, for all tokens at once.

    recurrence(x = x, W = W, ..):            x_W = x @ W
        h[t] = tanh(W.T @ x + ..)     ->     recurrence(product = x_W, ..):
                                                 h[t] = tanh(product + ..)

A kernel that walks tokens does one at a time, and should hold no weights that it need not hold.
A sum of products of sums that scales a state is made before the loop too, for its logarithm is that
of what it is made of, and in the body it would be multiplied out:

    recurrence(f = f, w = w):                       keep = 1 - (1 - f) * w
        S[t] = (1 - (1 - f) * w) * S[t-1]    ->     recurrence(keep = keep): S[t] = keep * S[t-1]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite

FREE = (ir.Elementwise, ir.Contract, ir.Constant)
"""Ops that move before a loop if a product that moves there needs them."""

SUMS = ("add", "sub", "neg", "real", "where")
"""Functions of which the algebra of a body makes a sum of products."""

MANY = 3
"""Of so many products a sum is made before the loop."""


def made_before(layer: ir.Layer) -> ir.Layer:
    """The layer, in its Recurrences no product of a parameter that needs no state, and no gate that
    would be multiplied out."""
    return rewrite(layer, [parameter_before, gate_before])


def parameter_before(graph: Graph, node: Node) -> int | None:
    """recurrence(.. W @ x ..) -> recurrence(.. product ..), product = W @ x for all tokens"""
    if not isinstance(node.op, ir.Recurrence):
        return None
    op, body = node.op, node.op.body
    outside = dict(zip(op.captures, node.operands, strict=False))
    made = {
        n.id: outside[n.op.name] for n in body
        if isinstance(n.op, ir.Input) and n.op.name in outside
    }  # fmt: skip
    products = dict[int, int]()
    for inner in body:
        if not isinstance(inner.op, FREE) or any(o not in made for o in inner.operands):
            continue
        made[inner.id] = at_every_token(graph, op, inner, [made[o] for o in inner.operands])
        if _is_costly(inner) and _with_parameter(graph, op, [made[o] for o in inner.operands]):
            products[inner.id] = made[inner.id]
    return _given(graph, node, products) if products else None


def gate_before(graph: Graph, node: Node) -> int | None:
    """recurrence(.. (1 - (1 - f) * w) * S[t-1] ..) -> recurrence(.. gate * S[t-1] ..)"""
    if not isinstance(node.op, ir.Recurrence):
        return None
    op, body = node.op, node.op.body
    outside = dict(zip(op.captures, node.operands, strict=False))
    made, many, terms = dict[int, int](), list[Node](), dict[int, int]()
    states = [{axis.name for axis in state.axes} for state in op.states]
    for inner in body:
        if isinstance(inner.op, ir.Input) and inner.op.name in outside:
            made[inner.id] = outside[inner.op.name]
        elif isinstance(inner.op, ir.Elementwise | ir.Constant) and {*inner.operands} <= {*made}:
            made[inner.id] = at_every_token(graph, op, inner, [made[o] for o in inner.operands])
            terms[inner.id] = _terms(body, inner, terms)
            if terms[inner.id] == MANY and _is_of_one(body, inner):
                many.append(inner)
    gates = {each.id: made[each.id] for each in many if _scales(body, each, made, states)}
    return _given(graph, node, gates, "gate") if gates else None


def _is_of_one(body: Graph, node: Node) -> bool:
    """Whether a value that enters has all axes of a value: no outer product is made before."""
    own, above = {*node.type.names}, body.ancestors(node.id)
    return any(own <= {*n.type.names} for n in body if n.id in above and isinstance(n.op, ir.Input))


def _terms(body: Graph, node: Node, known: Mapping[int, int]) -> int:
    """Of how many products a value is the sum, multiplied out, up to MANY; those of its operands
    are `known`, or one."""
    fn = getattr(node.op, "fn", "")
    if fn == "mul":
        return min(MANY, prod(known.get(each, 1) for each in node.operands))
    if fn not in SUMS:
        return 1
    added = (each for each in node.operands if body[each].type.dtype != "bool")
    return min(MANY, sum(known.get(each, 1) for each in added))


def _scales(
    body: Graph, node: Node, made: Collection[int], states: Sequence[Collection[str]]
) -> bool:
    """Whether a value is a factor of one that depends on a state and has its axes."""
    others = [
        other for user in body.users(node.id) for other in body[user].operands
        if other not in made
        and (ir.is_product(body[user].op) or body[user].op == ir.Elementwise("mul"))
    ]  # fmt: skip
    return any({*body[other].type.names} in states for other in others)


def _with_parameter(graph: Graph, op: ir.Recurrence, operands: Sequence[int]) -> bool:
    """Whether one operand is the same at every token and for every sequence, the other not."""
    varied = [
        any(axis.kind == "batch" or axis.name == op.stream.name for axis in graph[id].type.axes)
        for id in operands
    ]
    along = [op.stream.name in graph[id].type.names for id in operands]
    return sorted(varied) == [False, True] and any(along)


def _given(graph: Graph, node: Node, values: Mapping[int, int], kind: str = "product") -> int:
    """The Recurrence with nodes of its body as captures, from their values at every token."""
    body = node.op.body.copy()
    outside = dict(zip(node.op.captures, node.operands, strict=False))
    for id, value in values.items():
        name = marked(f"{kind}.{id}", outside, ".")
        outside[name] = value
        body.substitute(id, body.add(ir.Input(name, body[id].type), name=body[id].name))
    return with_captures(graph, node, outside, body)


def with_captures(graph: Graph, node: Node, outside: Mapping[str, int], body: Graph) -> int:
    """A Recurrence with another body, which reads what it needs of the values outside, by name."""
    body.prune()
    read = {n.op.name for n in body if isinstance(n.op, ir.Input)}
    captures = tuple(name for name in outside if name in read)
    given = [*(outside[name] for name in captures), *node.operands[len(node.op.captures) :]]
    return graph.add(replace(node.op, captures=captures, body=body), *given)


def products_before(graph: Graph) -> Graph:
    """The graph, the products of two captures of its Recurrences made outside, where a sum over a
    dim makes them costly."""
    made = graph.copy()
    for node in tuple(graph):
        if isinstance(node.op, ir.Recurrence):
            _take_out(made, made[node.id])
    made.prune()
    return made


def _take_out(graph: Graph, node: Node) -> None:
    """One Recurrence with such products as captures, and with what is only added to them."""
    op = node.op
    outside = dict(zip(op.captures, node.operands, strict=False))
    inputs = {n.id: n.op.name for n in op.body if isinstance(n.op, ir.Input)}
    captured = {id: outside[name] for id, name in inputs.items() if name in outside}
    made = dict[int, int]()
    for inner in op.body:
        known = {**captured, **made}
        if not all(operand in known for operand in inner.operands):
            continue
        if _is_costly(inner) or _is_added(op.body, inner, made):
            whole = [known[operand] for operand in inner.operands]
            made[inner.id] = at_every_token(graph, op, inner, whole)
    if made:
        graph.substitute(node.id, _given(graph, node, made))


def _is_costly(node: Node) -> bool:
    """Whether a node is a product that is summed."""
    if not ir.is_product(node.op):
        return False
    return bool({label for labels in node.op.ins for label in labels} - {*dict(node.op.out)})


def _is_added(body: Graph, node: Node, made: Collection[int]) -> bool:
    """Whether a node adds to a product what nothing else reads: one value enters, not two."""
    if not isinstance(node.op, ir.Elementwise) or node.op.fn != "add":
        return False
    others = [operand for operand in node.operands if operand not in made]
    return len(others) < 2 and all(body.users(o) == (node.id,) for o in node.operands)


def at_every_token(graph: Graph, op: ir.Recurrence, inner: Node, whole: Sequence[int]) -> int:
    """A value of the body at every token, of `whole` operands."""
    body, label = op.body, f"{op.stream.name}*"
    if not isinstance(inner.op, ir.Contract):
        return graph.add(inner.op, *whole, name=inner.name)
    ins, along = [], False
    for labels, operand, given in zip(inner.op.ins, inner.operands, whole, strict=True):
        names = dict(zip(body[operand].type.names, labels, strict=True))
        axes = graph[given].type.names
        along = along or op.stream.name in axes
        ins.append(tuple(names.get(axis, label) for axis in axes))
    out: list[tuple[str, Axis]] = list(inner.op.out)
    if along:
        first = sum(axis.kind == "batch" for _, axis in out)
        out.insert(first, (label, op.stream))
    return graph.add(ir.Contract(tuple(ins), tuple(out)), *whole, name=inner.name)
