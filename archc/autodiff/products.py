"""Sums over a loop of products, as one product outside it: sum over t of a[t] b[t]^T -> A B^T.

The cotangent of a weight that a body captures is such a sum. Made in the loop, it would be a weight
for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from archc.autodiff.builder import Builder
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


@dataclass(frozen=True)
class Term:
    """A contraction whose factors are inputs or outputs of a body: each by its name there, with the
    label of each of its axes."""

    out: tuple[tuple[str, Axis], ...]
    factors: tuple[tuple[str, dict[str, str]], ...]


def take_out(body: Graph, name: str, states: Collection[str]) -> list[Term]:
    """An output of a body that is a sum of contractions -> outputs for their factors in its place;
    nothing changes, and nothing is returned, where it is anything else. `states` are the inputs
    that are not known outside."""
    nodes = _addends(body, body.outputs[name])
    if any(not isinstance(node.op, ir.Contract) for node in nodes):
        return []
    del body.outputs[name]
    terms = []
    for node in nodes:
        factors = [
            (_visible(body, name, id, states), dict(zip(body[id].type.names, labels, strict=True)))
            for id, labels in zip(node.operands, node.op.ins, strict=True)
        ]
        terms.append(Term(node.op.out, tuple(factors)))
    body.prune()
    return terms


def total(b: Builder, terms: list[Term], stream: Axis, value: Callable[[str], int]) -> int:
    """The sum of the terms over a stream; `value` gives a factor outside the body by its name."""
    return b.sum([_product(b, term, stream, value) for term in terms])


def _product(b: Builder, term: Term, stream: Axis, value: Callable[[str], int]) -> int:
    """One term. A factor without the stream is the same at every token."""
    along = stream.name
    while any(along in labels.values() for _, labels in term.factors):
        along += "'"
    ids = [value(name) for name, _ in term.factors]
    if all(stream.name not in b.names(id) for id in ids):
        ids[0] = b.full(ids[0], [stream])
    operands = [
        (id, [labels.get(axis, along) for axis in b.names(id)])
        for id, (_, labels) in zip(ids, term.factors, strict=True)
    ]
    return b.contract(operands, term.out)


def _addends(body: Graph, id: int) -> list[Node]:
    """The terms of a sum of values of one type."""
    node = body[id]
    if node.op != ir.Elementwise("add"):
        return [node]
    if any(body[operand].type != node.type for operand in node.operands):
        return [node]
    return [term for operand in node.operands for term in _addends(body, operand)]


def _visible(body: Graph, name: str, id: int, states: Collection[str]) -> str:
    """The name of a value of the body outside it: of an input, or an output, made where there is
    none."""
    if isinstance(body[id].op, ir.Input) and body[id].op.name not in states:
        return body[id].op.name
    for known, output in body.outputs.items():
        if output == id:
            return known
    number = sum(known.startswith(f"{name}.") for known in body.outputs) + 1
    body.outputs[f"{name}.{number}"] = id
    return f"{name}.{number}"
