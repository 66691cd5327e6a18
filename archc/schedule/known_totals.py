"""Layer IR -> layer IR: choices by a softmax's weights are told its total by what sums with them.

    o      = attend[t reads s](softmax(score) @ v)
    chosen = attend[t reads s](top(f(softmax(score))))
        ->
    o, total = attend[t reads s](softmax(score) @ v, logsumexp(score))
    chosen   = attend[t reads s](top(f(exp(score - total))))

The kernel of a sum has the log of the total; without it the scores would be made twice. Powers are
of 2, which kernels make by one instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import sympy

from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.choices import chooses
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import Rule

NOTHING, LOG2E = ir.Constant(-sympy.oo), 1 / sympy.log(2)
Kernels = Callable[[ir.Attend], bool]


def known_totals(kernels: Kernels) -> tuple[Rule, Rule]:
    """The rules of both sides; `kernels`: whether all sums of an attend are kernels that have
    totals."""

    def telling(graph: Graph, node: Node) -> int | None:
        """An attend with a total that a choice asks for."""
        if not _is(node, False) or not kernels(node.op):
            return None
        wanted = {key for each in graph if _is(each, True) for key, _ in _weights(each)}
        told = {key for key, _ in _totals(node)}
        for key, weights in _weights(node):
            if key in wanted - told:
                body = node.op.body.copy()
                total = ir.Reduce("logsumexp", (node.op.read.name,))
                made = body.add(total, _scores(body, weights), span=weights.span)
                body.outputs[numbered("log_total", {*body.outputs})] = made
                return graph.add(replace(node.op, body=body), *node.operands, span=node.span)
        return None

    def told(graph: Graph, node: Node) -> int | None:
        """A choice with a total that an attend makes."""
        if not _is(node, True):
            return None
        known = {
            key: (each, name)
            for each in graph if _is(each, False) for key, name in _totals(each)
        }  # fmt: skip
        for key, weights in _weights(node):
            if key in known:
                owner, name = known[key]
                total = graph.add(ir.Result(name), owner.id, span=weights.span)
                return _reading(graph, node, weights, total)
        return None

    return told, telling


def _is(node: Node, choice: bool) -> bool:
    """Whether a node is an attend of choices, or one of sums, with one form for any readers."""
    return isinstance(node.op, ir.Attend) and node.op.decode is None and chooses(node.op) == choice


def _reading(graph: Graph, node: Node, weights: Node, total: int) -> int:
    """A choice that makes the weights of a softmax from its total."""
    body, name = node.op.body.copy(), numbered("log_total", {name for name, _ in node.op.captures})
    make = Builder(body, weights.span)
    score, mask = weights.operands
    entering = body.add(ir.Input(name, graph[total].type), name=name)
    score, entering = (make.fn("mul", x, make.number(LOG2E)) for x in (score, entering))
    made = (mask, make.fn("exp2", make.fn("sub", score, entering)), make.number(0))
    where = ir.Elementwise("where")
    body.substitute(weights.id, body.add(where, *made, name=weights.name, span=weights.span))
    body.prune(body.ids(ir.Input))
    op = replace(node.op, body=body, captures=(*node.op.captures, (name, "reader")))
    return graph.add(op, *node.operands, total, span=node.span)


def _scores(body: Graph, weights: Node) -> int:
    """What the total of a softmax's weights is of."""
    score, mask = weights.operands
    make = Builder(body, weights.span)
    return make.fn("where", mask, score, make.add(NOTHING))


def _weights(node: Node) -> Iterator[tuple[object, Node]]:
    """The softmaxes of an attend over what it reads, each with what it is made of."""
    op, key = node.op, _keys(node)
    for each in op.body:
        own = isinstance(each.op, ir.Softmax) and each.op.over == op.read.name
        if own and len(each.operands) == 2:
            yield (op.reader, op.read, *map(key, each.operands)), each


def _totals(node: Node) -> Iterator[tuple[object, str]]:
    """The totals that an attend gives, each with what its softmax is made of."""
    op, key = node.op, _keys(node)
    for name, id in op.body.outputs.items():
        if op.body[id].op == ir.Reduce("logsumexp", (op.read.name,)):
            scores = op.body[op.body[id].operands[0]]
            if scores.op == ir.Elementwise("where") and op.body[scores.operands[2]].op == NOTHING:
                mask, score, _ = scores.operands
                yield (op.reader, op.read, key(score), key(mask)), name


def _keys(node: Node) -> Callable[[int], object]:
    """What a value of an attend's body is made of, as the same value of another attend is."""
    body, known = node.op.body, dict[int, object]()
    entering = dict(zip((name for name, _ in node.op.captures), node.operands, strict=True))

    def key(id: int) -> object:
        if id not in known:
            op = body[id].op
            if isinstance(op, ir.Input):
                known[id] = entering[op.name]
            else:
                known[id] = (op, *map(key, body[id].operands))
        return known[id]

    return key
