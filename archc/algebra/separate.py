"""Layer IR -> layer IR: a sum over weights that softmaxes are combined to is a sum for each.

    (softmax(a) - g[t] * softmax(b) * h[s]) @ v[s]
        -> softmax(a) @ v[s] - g[t] * (softmax(b) @ (h[s] * v[s]))

Each sum is then one pass over the tokens read that keeps no weights; together they are all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import sympy

from archc.algebra.product import is_alone
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite

SUMS = {"add": 1, "sub": -1}
"""Elementwise sums: the sign of the second term."""


@dataclass(frozen=True)
class Term:
    """One term of weights: a sign, what scales it (a function and a value each, outermost first),
    and the weights. `mask`: outside of it the term is 0."""

    weights: int
    sign: int = 1
    scales: tuple[tuple[str, int], ...] = ()
    mask: int | None = None


def separate(layer: ir.Layer) -> ir.Layer:
    """The layer with sums over combined softmaxes taken apart, in called layers as well."""
    return rewrite(layer, [apart])


def apart(graph: Graph, node: Node) -> int | None:
    """(w1 + c w2) @ v -> w1 @ v + c (w2 @ v), where weights are made of softmaxes of a stream."""
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return None
    for place, operand in enumerate(node.operands):
        over = _softmaxes(graph, operand)
        if len(over) != 1 or node.operands[1 - place] == operand:
            continue
        terms = [*_terms(graph, Term(operand), min(over))]
        if not _is_combined(operand, terms) or not is_alone(graph, node, operand):
            continue
        found = [_summed(graph, node, place, term, min(over)) for term in terms]
        if None not in found:
            return _joined(graph, node, [(t.sign, id) for t, id in zip(terms, found, strict=True)])
    return None


def _is_combined(operand: int, terms: list[Term]) -> bool:
    """Whether weights are more than a term that is all of them."""
    (first, *more) = terms
    alone = first.mask is not None or first.weights == operand
    return bool(more or first.scales or first.sign < 0 or not alone)


def _softmaxes(graph: Graph, id: int) -> set[str]:
    """The streams along which softmaxes run that a value is a combination of."""
    node = graph[id]
    if isinstance(node.op, ir.Softmax):
        return {a.name for a in node.type.axes if a.name == node.op.over and a.kind == "stream"}
    known = node.op in map(ir.Elementwise, ("add", "sub", "mul", "div", "neg", "where"))
    return set().union(*(_softmaxes(graph, o) for o in node.operands)) if known else set()


def _terms(graph: Graph, term: Term, over: str) -> Iterator[Term]:
    """The terms of weights that are a sum, each with its sign, its scales and its mask."""
    node = graph[term.weights]
    fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
    inner = [id for id in node.operands if _softmaxes(graph, id)]
    if fn in SUMS and inner:
        for id, sign in zip(node.operands, (1, SUMS[fn]), strict=True):
            yield from _terms(graph, replace(term, weights=id, sign=sign * term.sign), over)
    elif fn == "neg" and inner:
        yield from _terms(graph, replace(term, weights=inner[0], sign=-term.sign), over)
    elif fn in ("mul", "div") and (scale := _scale(graph, node, inner, over)) is not None:
        scales = (*term.scales, (fn, scale))
        yield from _terms(graph, replace(term, weights=inner[0], scales=scales), over)
    elif fn == "where" and inner == [node.operands[1]] and _is_masked(graph, node, term):
        yield from _terms(graph, replace(term, weights=inner[0], mask=node.operands[0]), over)
    elif isinstance(node.op, ir.Softmax) and node.operands[1] == term.mask:
        yield replace(term, mask=None)
    else:
        yield term


def _is_masked(graph: Graph, node: Node, term: Term) -> bool:
    """Whether a choice is between weights and 0, by one mask for all of them."""
    nothing = graph[node.operands[2]].op == ir.Constant(sympy.Integer(0))
    return nothing and term.mask in (None, node.operands[0])


def _scale(graph: Graph, node: Node, inner: list[int], over: str) -> int | None:
    """The factor or divisor of weights, if it belongs to the reader or to the token read alone."""
    if len(inner) != 1 or (node.op.fn == "div" and inner[0] != node.operands[0]):
        return None
    scale = graph[node.operands[1 - node.operands.index(inner[0])]]
    streams = {axis.name for axis in scale.type.axes if axis.kind == "stream"}
    return scale.id if streams in (set(), {over}) or over not in streams else None


def _summed(graph: Graph, node: Node, place: int, term: Term, over: str) -> int | None:
    """The sum of one term; None where its dims do not fit."""
    make, other = Builder(graph, node.span), node.operands[1 - place]
    labels = dict(zip(graph[node.operands[place]].type.names, node.op.ins[place], strict=True))
    beside = dict(zip(graph[other].type.names, node.op.ins[1 - place], strict=True))
    kept = {label: axis.name for label, axis in node.op.out}
    if {*graph[term.weights].type.names} != {*labels} or labels[over] in kept:
        return None
    after: list[tuple[str, int]] = []
    for fn, scale in term.scales:
        names = graph[scale].type.names
        if over in names:
            if any(beside.get(name) != labels[name] for name in names):
                return None
            other = make.fn(fn, other, scale)
        elif any(kept.get(labels[name]) != name for name in names):
            return None
        else:
            after.append((fn, scale))
    if graph[other].type.names != tuple(beside):
        return None
    weights = term.weights
    if term.mask is not None:
        weights = make.fn("where", term.mask, weights, make.number(0))
    ins = [tuple(labels[name] for name in graph[weights].type.names), tuple(beside.values())]
    pair = (weights, other) if place == 0 else (other, weights)
    made = make.add(ir.Contract(tuple(ins if place == 0 else ins[::-1]), node.op.out), *pair)
    for fn, scale in reversed(after):
        made = make.fn(fn, made, scale)
    return made if graph[made].type == node.type else None


def _joined(graph: Graph, node: Node, terms: list[tuple[int, int | None]]) -> int:
    """Sums, added up."""
    make, total = Builder(graph, node.span), -1
    for sign, id in sorted(terms, key=lambda term: -term[0]):
        assert id is not None
        if total < 0:
            total = id if sign > 0 else make.fn("neg", id)
        else:
            total = make.fn("add" if sign > 0 else "sub", total, id)
    return total
