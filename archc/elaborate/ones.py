"""Matrices of ones where the identity is meant, found in a layer: `(1 - k @ k.T) @ S`; and where an
outer product is: `S[t-1] + k.T @ v`, which has one number in every entry.

A number beside a matrix is the same in every entry, as everywhere in the language. As a mask,
`(1 - w @ e.T) * S`, that is an update of its own; as a factor of `@` it adds the sum of all rows,
which no update wants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from archc.diagnostics import Diagnostic, Label
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.text import called_layers

THROUGH = ("mul", "div", "neg")
"""Functions that leave an outer product one, times a number."""


def ones(layer: ir.Layer) -> tuple[Diagnostic, ...]:
    """A warning for each matrix, in a layer and those that it calls, that is a number plus or minus
    an outer product and a factor of a product of matrices."""
    found: dict[object, Diagnostic] = {}
    for each in called_layers(layer):
        for node in _sums(each.graph):
            found.setdefault(node.span or node.id, _warning(each, node))
        for node in each.graph:
            for term in _numbers(node.op) if isinstance(node.op, ir.Recurrence) else ():
                found.setdefault(term.span or term.id, _number(each, term))
    return tuple(found.values())


def _numbers(op: ir.Recurrence) -> Iterator[Node]:
    """Inner products, times numbers, that are added to a state with the dim that they sum over, and
    with another one."""
    for state in op.states:
        terms = [*_terms(op.body, op.body[op.body.outputs[state.name]])]
        dims = {axis for axis in state.axes if axis.kind == "dim"}
        whole = any(dims <= {*term.type.axes} for term in terms)
        for term in terms if whole else ():
            product = _inner(op.body, term)
            missing = dims - {*term.type.axes}
            if product is not None and len(missing) > 1:
                summed = {axis.base for axis in _summed(op.body, product)}
                yield from [product] if summed & {axis.base for axis in missing} else []


def _inner(graph: Graph, node: Node) -> Node | None:
    """A product of two values that is summed, or the one in what is a number times it."""
    if isinstance(node.op, ir.Elementwise) and node.op.fn in THROUGH:
        found = (_inner(graph, graph[operand]) for operand in node.operands)
        return next((each for each in found if each is not None), None)
    return node if isinstance(node.op, ir.Contract) and _summed(graph, node) else None


def _summed(graph: Graph, node: Node) -> set[Axis]:
    """The axes that a product of two values sums over."""
    kept = {label for label, _ in node.op.out}
    pairs = zip(node.operands, node.op.ins, strict=True) if len(node.operands) == 2 else ()
    return {
        axis
        for operand, labels in pairs
        for label, axis in zip(labels, graph[operand].type.axes, strict=True)
        if label not in kept
    }


def _sums(graph: Graph) -> Iterator[Node]:
    """The sums that are warned of; those in bodies too."""
    for node in graph:
        if isinstance(node.op, ir.Recurrence | ir.Attend):
            yield from _sums(node.op.body)
        if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
            continue
        kept = {label for label, _ in node.op.out}
        for operand, labels in zip(node.operands, node.op.ins, strict=True):
            made = graph[operand]
            dims = [*zip(labels, made.type.axes, strict=True)]
            rows = [axis for label, axis in dims if label not in kept and axis.kind == "dim"]
            cols = [axis for label, axis in dims if label in kept]
            pairs = [(row, col) for row in rows for col in cols if row.base == col.base]
            if any(_is_sum(graph, made, *pair) for pair in pairs):
                yield made


def _is_sum(graph: Graph, node: Node, *dims: Axis) -> bool:
    """Whether a value is a sum of an outer product of these dims and of what has neither."""
    terms = list(_terms(graph, node))
    alone = [term for term in terms if not {*dims} & {*term.type.axes}]
    return bool(alone) and any(_is_outer(graph, term, *dims) for term in terms)


def _terms(graph: Graph, node: Node) -> Iterator[Node]:
    """The addends of a sum, whatever their signs."""
    if isinstance(node.op, ir.Elementwise) and node.op.fn in ("add", "sub", "neg"):
        for operand in node.operands:
            yield from _terms(graph, graph[operand])
    else:
        yield node


def _is_outer(graph: Graph, node: Node, *dims: Axis) -> bool:
    """Whether a value is an outer product, times or divided by what has neither of its dims."""
    if not {*dims} <= {*node.type.axes}:
        return False
    operands = [graph[operand] for operand in node.operands]
    if isinstance(node.op, ir.Elementwise) and node.op.fn in THROUGH:
        return any(_is_outer(graph, operand, *dims) for operand in operands)
    if not isinstance(node.op, ir.Contract) or len(operands) != 2:
        return False
    summed = {label for labels in node.op.ins for label in labels} - {x for x, _ in node.op.out}
    sides = [{axis for label, axis in node.op.out if label in labels} for labels in node.op.ins]
    return not summed and all(len({*dims} & side) == 1 for side in sides)


def _warning(layer: ir.Layer, node: Node) -> Diagnostic:
    return Diagnostic(
        "E0318",
        "a number beside a matrix is added to every entry, not only to the diagonal",
        Label(node.span or layer.span, "a matrix of ones, in a product of matrices"),
        notes=("its product with a state adds the sum of all rows of the state to each",),
        helps=(
            "the identity matrix is written `I`: `(I - k @ k.T) @ S[t-1]`",
            "if the sum of the rows is meant, write it: `sum[K](S[t-1])`",
        ),
        severity="warning",
    )


def _number(layer: ir.Layer, node: Node) -> Diagnostic:
    text = " ".join(node.span.text.split()) if node.span is not None else "k.T @ v"
    turned = re.fullmatch(r"(\S+)\.T @ (\S+)", text)
    outer = f"{turned[1]} @ {turned[2]}.T" if turned is not None else "k @ v.T"
    return Diagnostic(
        "E0318",
        f"`{text}` is a number, which is added to every entry of a matrix",
        Label(node.span or layer.span, "an inner product"),
        notes=("a value with one dim is a column here, where papers may have rows",),
        helps=(f"an outer product is `{outer}`",),
        severity="warning",
    )
