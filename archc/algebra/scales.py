"""Layer IR -> layer IR: what scales every score of an attention scales the queries instead.

    (q[t] @ k[s] + r[t] @ l[s]) / sqrt(K) -> (q / sqrt(K))[t] @ k[s] + (r / sqrt(K))[t] @ l[s]

There is a query for each token and a score for each pair of tokens: one multiplication a query
takes the place of many. A gain before a product could go into the weight in the same way, but that
makes a new weight in every call; such a choice is stated here and not made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy

from archc.algebra import cost
from archc.algebra.absorb_body import few_readers
from archc.algebra.decision import VALUE_BYTES, Decision, Option, size
from archc.algebra.product import is_alone, is_sum
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite, rewrite_attend

SCALES = (ir.Elementwise("mul"), ir.Elementwise("div"))


def scaled_queries(layer: ir.Layer) -> ir.Layer:
    """The layer with the scales of scores moved to the queries, in called layers as well."""
    return rewrite(layer, [scale_queries])


def scale_queries(graph: Graph, node: Node) -> int | None:
    """An attention that scales its scores -> one that scales its queries, if that takes less."""
    return rewrite_attend(graph, node, scale_reader)


def scale_reader(graph: Graph, node: Node, op: ir.Attend) -> int | None:
    """`(q[t] @ k[s]) * a` -> `(q * a)[t] @ k[s]`, for each term of a sum, if that is cheaper where
    one token reads many."""
    found = _scaled(graph, node, op)
    if found is None:
        return None
    scores, scale, terms = found
    sized = few_readers(op)
    queries = [graph[graph[t].operands[side]] for t, side in terms.items()]
    fewer = cost.total(*(cost.elements(map(sized, q.type.axes)) for q in queries))
    if not cost.cheaper(fewer, cost.elements(map(sized, node.type.axes))):
        return None
    return _with_scaled(graph, scores, terms, node.op, scale)


def _with_scaled(graph: Graph, id: int, terms: dict[int, int], how: ir.Op, scale: int) -> int:
    """A sum of products in which the reader's side of each is scaled."""
    node = graph[id]
    operands = list(node.operands)
    if id in terms:
        operands[terms[id]] = graph.add(how, operands[terms[id]], scale)
    else:
        operands = [_with_scaled(graph, o, terms, how, scale) for o in operands]
    return graph.add(node.op, *operands)


def _scaled(graph: Graph, node: Node, op: ir.Attend) -> tuple[int, int, dict[int, int]] | None:
    """Scores that a node scales: their sum, the scale, and for each product in the sum which
    operand is the reader's."""
    if node.op not in SCALES or not {op.reader.name, op.read.name} <= set(node.type.names):
        return None
    places = (0, 1) if node.op == ir.Elementwise("mul") else (0,)
    for place in places:
        scores, scale = node.operands[place], node.operands[1 - place]
        if {op.reader.name, op.read.name, "batch"} & set(graph[scale].type.names):
            continue
        terms: dict[int, int] = {}
        if _terms(graph, node, scores, graph[scale], op, terms):
            return scores, scale, terms
    return None


def _terms(
    graph: Graph, user: Node, id: int, scale: Node, op: ir.Attend, found: dict[int, int]
) -> bool:
    """Find the products of a sum that nothing else reads; False if a term is none that can be
    scaled by its reader's side."""
    node = graph[id]
    if not is_alone(graph, user, id) or node.type.dtype != "real":
        return False
    if is_sum(node):
        return all(_terms(graph, node, o, scale, op, found) for o in node.operands)
    if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
        return False
    kept = {label: axis.name for label, axis in node.op.out}
    for side, (labels, operand) in enumerate(zip(node.op.ins, node.operands, strict=True)):
        type = graph[operand].type
        own = {n for n, label in zip(type.names, labels, strict=True) if kept.get(label) == n}
        real = type.dtype == "real" and op.read.name not in type.names
        if real and op.reader.name in own and set(scale.type.names) <= own:
            found[id] = side
            return True
    return False


# --- what was decided ---------------------------------------------------------------------------


def decisions(layer: ir.Layer) -> Iterator[Decision]:
    """The decisions on scales and gains in a layer: which side of a product each is applied to."""
    for node in layer.graph:
        if isinstance(node.op, ir.Attend):
            for inner in node.op.body:
                found = _scaled(node.op.body, inner, node.op)
                if found is not None:
                    yield _scale(node.op.body, inner, found[2], node.op)
        elif node.op == ir.Elementwise("mul"):
            yield from _gain(layer.graph, node)


def _scale(body: Graph, node: Node, terms: dict[int, int], op: ir.Attend) -> Decision:
    """One multiplication a score, or one for each entry of a query."""
    queries = [body[body[term].operands[side]] for term, side in terms.items()]
    pairs = size(node.type.axes)
    entries: Any = sympy.factor(sympy.Add(*(size(query.type.axes) for query in queries)))
    options = (_touching("scale scores", pairs), _touching("scale queries", entries))
    moved = scale_reader(body.copy(), node, op) is not None
    least = sympy.solve(sympy.Eq(pairs, entries), op.read.size)
    when = f"fewer where {op.read.size} > {least[0]}" if least else "per pair against per token"
    chosen = options[moved].name
    return Decision("the scale of scores", options, chosen, f"`{chosen}`: {when}", _where(node))


def _gain(graph: Graph, node: Node) -> Iterator[Decision]:
    """A gain that every product with a value goes through."""
    for gain, value in (node.operands, node.operands[::-1]):
        users = [graph[user] for user in graph.users(node.id)]
        weights = [_weight(graph, user, node, graph[gain]) for user in users]
        if not isinstance(graph[gain].op, ir.Param) or isinstance(graph[value].op, ir.Param):
            continue
        if not weights or None in weights or node.id in graph.outputs.values():
            continue
        each = sympy.Add(*(size(w.type.axes) for w in weights if w is not None))
        per_token = size(node.type.axes)
        options = (_touching("gain at each token", per_token), _touching("gain in weights", each))
        why = (
            "`gain at each token`: a weight with its gain would be made anew in every call, which"
            f" is less only where {per_token} > {each}"
        )
        what = f"the gain {graph[gain].name or ''}".strip()
        yield Decision(what, options, options[0].name, why, _where(node))


def _weight(graph: Graph, user: Node, value: Node, gain: Node) -> Node | None:
    """The weight that a scaled value is multiplied with, if it has the gain's axes to sum."""
    if not isinstance(user.op, ir.Contract) or len(user.operands) != 2:
        return None
    side = user.operands.index(value.id)
    weight = graph[user.operands[1 - side]]
    labels = dict(zip(value.type.names, user.op.ins[side], strict=True))
    shared = all(labels[name] in user.op.ins[1 - side] for name in gain.type.names)
    return weight if isinstance(weight.op, ir.Param) and shared else None


def _touching(name: str, elements: sympy.Expr) -> Option:
    """One operation an element, which is read and written."""
    return Option(name, elements, 2 * VALUE_BYTES * elements)


def _where(node: Node) -> str:
    return node.span.where if node.span else ""
