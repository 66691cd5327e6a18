"""The docstring of a kernel: each value that it makes, with its shape, its formula in the values
that the kernel reads, and the line of the spec that it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import Kernel
from archc.ir.roles import held
from archc.ir.text import op_text
from archc.ir.value_names import unsaved
from archc.source import Span

DEPTH, WIDTH = 5, 150
"""How many ops deep a formula goes, and how long it may be: what is longer is cut at its ops."""

SAME = (ck.Chunks, ck.Tokens, ck.Expand, ck.Detach, ir.Contract)
"""Ops that lay one operand out in another way: its shape says so."""

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def stored_texts(kernel: Kernel) -> list[str]:
    """A line for each value that a kernel stores, and for each state that it carries."""
    graph, found = kernel.graph, list[str]()
    names = {id: unsaved(name) for id, name in kernel.loads.items()}
    for name, id in kernel.stores.items():
        if kernel.walk is None or not isinstance(graph[id].op, ir.Result):
            node, own = graph[id], {i: n for i, n in names.items() if i != id}
            found.append(_line(unsaved(name), node, _formula(graph, id, own), node))
    if kernel.walk is not None:
        fold = graph[kernel.walk]
        shown = {result.op.name: name for name, result in _results(kernel).items()}
        states = {state.name for state in fold.op.states}
        made = {
            name: _formula(graph, id, names)
            for name, id in zip(fold.op.captures, fold.operands, strict=False)
            if id not in names
        }
        body = fold.op.body
        inputs = {n.id: made[n.op.name] for n in body if getattr(n.op, "name", "") in made}
        for name, id in body.outputs.items():
            if name in states or name in shown:
                node, inner = body[id], _formula(body, id, inputs)
                called = unsaved(shown.get(name) or name)
                found.append(_line(called, node, inner, fold))
    return found


def _results(kernel: Kernel) -> dict[str, Node]:
    """The results of a walk that are stored, by the names of their buffers."""
    nodes = {name: kernel.graph[id] for name, id in kernel.stores.items()}
    return {name: node for name, node in nodes.items() if isinstance(node.op, ir.Result)}


def _line(name: str, node: Node, formula: str, home: Node) -> str:
    """`scores [batch n H i j] = gram[K, i, j](k, k)  # kda.arch:19`."""
    span: Span | None = node.span or home.span
    where = f"  # {span.where}" if span is not None else ""
    return f"{name} [{' '.join(node.type.names)}] = {formula}{where}"


def _formula(graph: Graph, id: int, names: Mapping[int, str]) -> str:
    """A value in what is read, as deep as there is room for."""
    texts = (_text(graph, id, names, depth) for depth in range(DEPTH, 1, -1))
    fitting = (text for text in texts if len(text) <= WIDTH)
    return next(fitting, None) or _text(graph, id, names, 1)


def _text(graph: Graph, id: int, names: Mapping[int, str], depth: int) -> str:
    node = graph[id]
    if id in names:
        return names[id]
    if isinstance(node.op, ir.Input | ir.Result):
        return node.op.name
    if isinstance(node.op, SAME) and len(node.operands) == 1:
        return _text(graph, node.operands[0], names, depth)
    if depth == 0:
        return held(graph, id)
    operands = [_text(graph, each, names, depth - 1) for each in node.operands]
    fn = getattr(node.op, "fn", "")
    if fn in INFIX and len(operands) == 2:
        return f" {INFIX[fn]} ".join(map(_bracketed, operands))
    if fn == "neg":
        return f"-{_bracketed(operands[0])}"
    if isinstance(node.op, ir.Contract):
        return _product(node.op, operands)
    if isinstance(node.op, ir.Elementwise):
        return f"{fn}({', '.join(operands)})"
    return op_text(node.op, tuple(operands))


def _product(op: ir.Contract, operands: list[str]) -> str:
    """A product, with the dims that it sums over."""
    kept = {label for label, _ in op.out}
    every = dict.fromkeys(label for labels in op.ins for label in labels)
    summed = " ".join(label for label in every if label not in kept)
    text = " * ".join(map(_bracketed, operands))
    return f"sum[{summed}]({text})" if summed else text


def _bracketed(text: str) -> str:
    """A text as an operand: in brackets where it has an operator outside of all brackets."""
    depth = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == " " and depth == 0:
            return f"({text})"
    return text
