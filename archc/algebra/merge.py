"""Rules that make equal values one, and numbers into fewer numbers."""

from __future__ import annotations

from dataclasses import replace

import sympy

from archc.functions.definitions import FUNCTIONS
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node


def share(graph: Graph, node: Node) -> int | None:
    """The same op on the same operands a second time -> the first. Two draws of noise stay two."""
    if isinstance(node.op, ir.Noise):
        return None
    operands = _key(node)
    others = graph.users(node.operands[0]) if node.operands else (other.id for other in graph)
    for other in (graph[id] for id in others if id < node.id):
        if other.op == node.op and _key(other) == operands and other.type == node.type:
            return other.id
    return None


def _key(node: Node) -> tuple[int, ...]:
    """The operands of a node; in order, unless their order is of no account."""
    if isinstance(node.op, ir.Elementwise) and FUNCTIONS[node.op.fn].commutes:
        return tuple(sorted(node.operands))
    return node.operands


def drop_neutral(graph: Graph, node: Node) -> int | None:
    """`x * 1`, `x / 1`, `x + 0`, `x - 0`, `x ** 1`, `-(-x)` -> `x`."""
    if not isinstance(node.op, ir.Elementwise):
        return None
    neutral = {"mul": 1, "div": 1, "add": 0, "sub": 0, "pow": 1}.get(node.op.fn)
    kept: int | None = None
    if node.op.fn == "neg" and graph[node.operands[0]].op == node.op:
        kept = graph[node.operands[0]].operands[0]
    elif neutral is not None:
        first, second = node.operands
        if _constant(graph, second) == neutral:
            kept = first
        elif node.op.fn in ("mul", "add") and _constant(graph, first) == neutral:
            kept = second
    return kept if kept is not None and graph[kept].type == node.type else None


def join_constants(graph: Graph, node: Node) -> int | None:
    """`(x * a) / b` -> `x * (a / b)`, `(x + a) - b` -> `x + (a - b)`, for numbers a and b."""
    for linear in (_scaled, _shifted):
        outer = linear(graph, node.id)
        inner = linear(graph, outer[0]) if outer is not None else None
        if outer is None or inner is None:
            continue
        if graph.users(outer[0]) != (node.id,) or outer[0] in graph.outputs.values():
            continue
        fn, back = ("mul", "div") if linear is _scaled else ("add", "sub")
        value = inner[1] * outer[1] if linear is _scaled else inner[1] + outer[1]
        if graph[node.id].op == graph[outer[0]].op == ir.Elementwise(back):
            fn, value = back, 1 / value if linear is _scaled else -value
        number = _add_constant(graph, value)
        if number is None:
            continue
        new = Builder(graph).fn(fn, inner[0], number)
        if graph[new].type == node.type:
            return new
    return None


def _scaled(graph: Graph, id: int) -> tuple[int, sympy.Expr] | None:
    """A node that is another times a number: that other, and the number."""
    found = _with_number(graph, id, "mul", "div")
    if found is None:
        return None
    other, number, divides = found
    return other, 1 / number if divides else number


def _shifted(graph: Graph, id: int) -> tuple[int, sympy.Expr] | None:
    """A node that is another plus a number: that other, and the number."""
    found = _with_number(graph, id, "add", "sub")
    if found is None:
        return None
    other, number, subtracts = found
    return other, -number if subtracts else number


def _with_number(
    graph: Graph, id: int, forth: str, back: str
) -> tuple[int, sympy.Expr, bool] | None:
    """The operand and the number of `x forth n`, `n forth x` or `x back n` (then True)."""
    op = graph[id].op
    if not isinstance(op, ir.Elementwise) or op.fn not in (forth, back):
        return None
    first, second = graph[id].operands
    number = _constant(graph, second)
    if number is None and op.fn == forth:
        first, number = second, _constant(graph, first)
    if number is None or number == 0:
        return None
    return first, number, op.fn == back


def _constant(graph: Graph, id: int) -> sympy.Expr | None:
    """The number that a node is, if it is one."""
    op = graph[id].op
    return op.value if isinstance(op, ir.Constant) else None


def _add_constant(graph: Graph, value: sympy.Expr) -> int | None:
    """A node for a number; None for what is none (0 / 0, the root of -1)."""
    if value.has(sympy.nan, sympy.zoo) or value.is_extended_real is False:
        return None
    return graph.add(ir.Constant(value))


def share_captures(graph: Graph, node: Node) -> int | None:
    """A body that is handed one value twice, or one that it does not read -> each value once."""
    op = node.op
    if not isinstance(op, ir.Recurrence | ir.Attend):
        return None
    bodies = {
        field: getattr(op, field).copy()
        for field in ("body", "decode")
        if getattr(op, field, None) is not None
    }
    first: dict[tuple[object, ...], str] = {}
    kept: list[int] = []
    for place, capture in enumerate(op.captures):
        name, role = (capture, "") if isinstance(capture, str) else capture
        if not any(_reads(body, name) for body in bodies.values()):
            continue
        twin = first.setdefault((node.operands[place], role), name)
        if twin == name:
            kept.append(place)
        else:
            for body in bodies.values():
                _substitute_input(body, name, twin)
    if len(kept) == len(op.captures):
        return None
    for body in bodies.values():
        body.prune()
    rest = node.operands[len(op.captures) :]
    captures = tuple(op.captures[place] for place in kept)
    operands = [node.operands[place] for place in kept]
    return graph.add(replace(op, captures=captures, **bodies), *operands, *rest)


def _input(body: Graph, name: str) -> int | None:
    """The input of that name, if the body has it."""
    return next((n.id for n in body if isinstance(n.op, ir.Input) and n.op.name == name), None)


def _reads(body: Graph, name: str) -> bool:
    """Whether a body reads an input."""
    id = _input(body, name)
    return id is not None and bool(body.users(id) or id in body.outputs.values())


def _substitute_input(body: Graph, old: str, new: str) -> None:
    """Let a body read one input in place of another that has the same value."""
    id, other = _input(body, old), _input(body, new)
    if id is None:
        return
    if other is None:
        other = body.add(ir.Input(new, body[id].type), name=new, span=body[id].span)
    body.substitute(id, other)
