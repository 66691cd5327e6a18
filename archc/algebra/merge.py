"""Rules that make equal values one, and numbers into fewer numbers."""

from __future__ import annotations

from dataclasses import replace

import sympy

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type

COMMUTES = ("add", "mul", "max", "min", "eq", "ne", "and", "or")


def share(graph: Graph, node: Node) -> int | None:
    """The same op on the same operands a second time -> the first. Two draws of noise stay two."""
    if isinstance(node.op, ir.Noise):
        return None
    operands = _key(node)
    for other in graph:
        twin = type(other.op) is type(node.op) and other.op == node.op and _key(other) == operands
        if twin and other.id != node.id and other.type == node.type:
            return min(node.id, other.id) if other.id < node.id else None
    return None


def _key(node: Node) -> tuple[int, ...]:
    """The operands of a node; in order, unless their order is of no account."""
    if isinstance(node.op, ir.Elementwise) and node.op.fn in COMMUTES:
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


ARITHMETIC = {
    "neg": lambda a: -a,
    "sqrt": sympy.sqrt,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}


def fold_constants(graph: Graph, node: Node) -> int | None:
    """`1 / sqrt(K)` of numbers, step by step -> one number, exactly."""
    if not isinstance(node.op, ir.Elementwise) or node.op.fn not in ARITHMETIC:
        return None
    values = [_constant(graph, operand) for operand in node.operands]
    if any(value is None for value in values):
        return None
    return _add_constant(graph, ARITHMETIC[node.op.fn](*values), node.type)


def join_constants(graph: Graph, node: Node) -> int | None:
    """`(x * a) * b` -> `x * (a * b)`, `(x / a) / b` -> `x / (a * b)`, `(x + a) + b` -> `x + (a + b)`,
    for numbers a and b, if nothing else reads the inner step."""
    outer = _step(graph, node)
    if outer is None:
        return None
    inner_id, fn, b = outer
    inner = _step(graph, graph[inner_id])
    if inner is None or inner[1] != fn or graph.users(inner_id) != (node.id,):
        return None
    x, _, a = inner
    real = Type((), "real") if node.type.dtype == "real" else Type((), "int")
    ...
