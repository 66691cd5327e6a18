"""Layer IR -> torch's own softmax attention, where a sum over the tokens read is plainly that.

    o[t] = sum over s of softmax(sum of q_i[t] k_i[s])[s] v[s],    s <= t or all s

is one call of `scaled_dot_product_attention`, which never lays the weights out. Heads may share
keys and values in groups, scores may be a sum of products (of which the vectors are joined), and
weights may be dropped out. Any other score (a bias, a cap, a sink, a window) is no such call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import sympy
from archc.backends.eager.fused import Fused
from archc.backends.eager.value import Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import aligned

from archc.attention.grouped import grouped
from archc.dims import T_SEEN, TIME
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

if TYPE_CHECKING:
    from archc.backends.eager.scope import Scope


@dataclass(frozen=True)
class Factor:
    """One vector a token: a value, its dim that is summed over or kept, and its heads' dim."""

    id: int
    dim: str
    heads: str | None


@dataclass(frozen=True)
class Attention:
    """The arguments of one call of a library's attention; `heads` is the dim of the readers'
    heads, `scale` what all scores are multiplied by."""

    queries: tuple[Factor, ...]
    keys: tuple[Factor, ...]
    values: Factor
    read: str
    heads: str | None
    causal: bool
    dropout: sympy.Expr | None
    scale: sympy.Expr


def attention(graph: Graph, node: Node) -> Fused | None:
    """softmax(q k') v -> scaled_dot_product_attention(q, k, v)."""
    if not ir.is_product(node.op):
        return None
    for this in (0, 1):
        found = _found(graph, node, this)
        if found is not None:
            ids = [factor.id for factor in (*found.queries, *found.keys, found.values)]
            return Fused(tuple(dict.fromkeys(ids)), partial(_call, found=found), "read")
    return None


def _found(graph: Graph, node: Node, this: int) -> Attention | None:
    """The attention that a sum of weighted values is, its weights being operand `this`."""
    weights, dropout = _weights(graph, graph[node.operands[this]], node)
    if weights is None or len(weights.operands) != 2 or not _once(graph, weights, dropout):
        return None
    score, mask = (graph[operand] for operand in weights.operands)
    read = weights.op.over
    reader = next((a for a in weights.type.axes if a.kind == "stream" and a.name != read), None)
    causal = _causal(graph, mask, read)
    heads = [axis.name for axis in weights.type.axes if axis.kind == "dim"]
    if reader != TIME or causal is None or len(heads) > 1:
        return None
    head = heads[0] if heads else None
    value = _value(graph, node, this, read, head)
    pairs = [_pair(graph, term, read, head) for term in _terms(graph, score, weights.id)]
    if value is None or not pairs or None in pairs:
        return None
    queries, keys = zip(*[pair for pair in pairs if pair is not None], strict=True)
    if len({key.heads for key in keys} - {None}) > 1:
        return None
    queries, scale = _unscaled(graph, queries)
    return Attention(queries, keys, value, read, head, causal, dropout, scale)


def _weights(graph: Graph, node: Node, user: Node) -> tuple[Node | None, sympy.Expr | None]:
    """The softmax that weights are, and how likely one of them is dropped."""
    if graph.users(node.id) != (user.id,):
        return None, None
    if isinstance(node.op, ir.Softmax):
        return node, None
    if node.op != ir.Elementwise("where"):
        return None, None
    mask, product, rest = (graph[operand] for operand in node.operands)
    if product.op != ir.Elementwise("mul") or rest.op != ir.Constant(sympy.Integer(0)):
        return None, None
    for noise, softmax in (product.operands, product.operands[::-1]):
        op = graph[noise].op
        if isinstance(op, ir.Noise) and isinstance(graph[softmax].op, ir.Softmax):
            same = graph[softmax].operands[1] == mask.id and graph[noise].operands == (softmax,)
            return (graph[softmax], op.p) if same else (None, None)
    return None, None


def _once(graph: Graph, weights: Node, dropout: sympy.Expr | None) -> bool:
    """Whether nothing else reads the weights: of those that are dropped out, noise does too."""
    return len(graph.users(weights.id)) == (1 if dropout is None else 2)


def _causal(graph: Graph, mask: Node, read: str) -> bool | None:
    """Whether a mask leaves the tokens up to the reader's (True), or all (False); None for any
    other one. The last of a layer's own tokens that is read is the last reader."""
    if not isinstance(mask.op, ir.Elementwise) or len(mask.operands) != 2:
        return None
    left, right = (graph[operand].op for operand in mask.operands)
    if not isinstance(left, ir.Position) or left.axis.name != read:
        return None
    if mask.op.fn == "ge" and right == ir.Constant(sympy.Integer(0)):
        return False
    own = isinstance(right, ir.Position) and right.axis == TIME and left.axis.size == T_SEEN
    return True if mask.op.fn == "le" and own else None


def _terms(graph: Graph, node: Node, user: int) -> Iterator[Node]:
    """The products that a score is the sum of; the score itself where it is none."""
    alone = graph.users(node.id) == (user,)
    if alone and node.op == ir.Elementwise("add") and node.operands[0] != node.operands[1]:
        for operand in node.operands:
            yield from _terms(graph, graph[operand], node.id)
    else:
        yield node


def _named(node: Node, place: int, graph: Graph) -> dict[str, str]:
    """The label of each dim of an operand of a product, by the dim's name."""
    return dict(zip(graph[node.operands[place]].type.names, node.op.ins[place], strict=True))


def _pair(graph: Graph, node: Node, read: str, heads: str | None) -> tuple[Factor, Factor] | None:
    """The query and the key whose product a score is, summed over one dim of both."""
    if not ir.is_product(node.op):
        return None
    names = [_named(node, place, graph) for place in (0, 1)]
    out = {label for label, _ in node.op.out}
    summed = [{n for n, label in each.items() if label not in out} for each in names]
    shared = {names[0][n] for n in summed[0]} == {names[1][n] for n in summed[1]}
    if len(summed[0]) != 1 or len(summed[1]) != 1 or not shared:
        return None
    for query in (0, 1):
        found = [
            _factor(graph, node.operands[place], stream, min(summed[place]), heads)
            for place, stream in ((query, TIME.name), (1 - query, read))
        ]
        if found[0] is not None and found[1] is not None and found[0].heads == heads:
            return found[0], found[1]
    return None


def _unscaled(graph: Graph, queries: tuple[Factor, ...]) -> tuple[tuple[Factor, ...], sympy.Expr]:
    """Queries without the one number that all of them are multiplied by, and that number."""
    found = [_times(graph, query.id) for query in queries]
    scales = {scale for _, scale in found}
    if len(scales) > 1:
        return queries, sympy.Integer(1)
    pairs = zip(queries, found, strict=True)
    return tuple(replace(query, id=id) for query, (id, _) in pairs), scales.pop()


def _times(graph: Graph, id: int) -> tuple[int, sympy.Expr]:
    """A value, and the number that it is multiplied by."""
    node = graph[id]
    if node.op in (ir.Elementwise("mul"), ir.Elementwise("div")):
        for x, by in (node.operands, node.operands[::-1]):
            op = graph[by].op
            if isinstance(op, ir.Constant) and graph[x].type == node.type:
                return x, op.value if node.op.fn == "mul" else 1 / op.value
            if node.op.fn == "div":
                break
    return id, sympy.Integer(1)


def _value(graph: Graph, node: Node, this: int, read: str, heads: str | None) -> Factor | None:
    """The value that is summed: one vector for each token that is read."""
    names = [_named(node, place, graph) for place in (0, 1)]
    out = {label for label, _ in node.op.out}
    summed = {label for each in names for label in each.values() if label not in out}
    if summed != {names[this][read]} or names[1 - this].get(read) not in summed:
        return None
    lacking = {"batch", read, *([heads] if heads else [])}
    kept = [name for name in names[1 - this] if name not in lacking]
    other = node.operands[1 - this]
    grouped = _ungrouped(graph, graph[other], heads)
    kept = [name for name in kept if grouped is None or name != grouped.heads]
    return _factor(graph, other, read, kept[0], heads) if len(kept) == 1 else None


def _factor(graph: Graph, id: int, stream: str, dim: str, heads: str | None) -> Factor | None:
    """A vector along `dim` of each token of a stream, for each head, each group of heads, or once
    for all of them."""
    node = graph[id]
    grouped = _ungrouped(graph, node, heads)
    if grouped is not None:
        value = graph[grouped.id]
        own = set(value.type.names) - {grouped.heads} == {"batch", stream, dim}
        return Factor(grouped.id, dim, grouped.heads) if own else None
    rest = set(node.type.names) - {"batch", stream, dim}
    if not {"batch", stream, dim} <= set(node.type.names) or rest - {heads}:
        return None
    return Factor(id, dim, heads if rest else None)


def _ungrouped(graph: Graph, node: Node, heads: str | None) -> Factor | None:
    """The grouped value of which each head reads its group's part."""
    found = grouped(graph, node)
    if found is None or found.heads.name != heads:
        return None
    return Factor(found.value, "", found.groups.name)


# --- the call ------------------------------------------------------------------------------------


def _call(scope: Scope, node: Node, found: Attention) -> Value:
    """`softmax_attention(q, k, v, causal=True)`, or of each of packed sequences."""
    queries = [_vector(scope, factor, TIME.name) for factor in found.queries]
    keys = [_vector(scope, factor, found.read) for factor in found.keys]
    if None in (heads := {factor.heads for factor in found.keys}) and len(heads) > 1:
        keys = [_for_all(scope, key, f, found) for key, f in zip(keys, found.keys, strict=True)]
    given = [_joined(queries), _joined(keys), _vector(scope, found.values, found.read)]
    given += [Text(scope.cu_seqlens)] * bool(scope.cu_seqlens)
    if scope.file.slots:
        given.append(Text(scope.ask("pos")))
    elif found.causal:
        given.append(Text("causal=True"))
    if found.dropout is not None and not scope.file.slots:
        p, training = scope.number(found.dropout), scope.ask(scope.training)
        given.append(Text(f"dropout={p} if {training} else 0.0"))
    if found.scale != 1:
        given.append(Text(f"scale={scope.number(found.scale)}"))
    head = found.heads or "head"
    have = ("batch", TIME.name, head, _kept(node, found))
    function = "packed_attention" if scope.cu_seqlens else "softmax_attention"
    text = call("slot_attention" if scope.file.slots else function, *given)
    if found.heads is None:
        text, have = call(f"{text.at(ATOM)}.squeeze", "2"), (*have[:2], have[3])
    return scope.settled(node, text, have)


def _kept(node: Node, found: Attention) -> str:
    """The dim of the values in the result."""
    own = {"batch", TIME.name, found.heads}
    return next(name for name in node.type.names if name not in own)


def _vector(scope: Scope, factor: Factor, stream: str) -> Text:
    """A value laid out [B, T, heads, K]: one head where all share it."""
    value = scope.as_data(scope.real(scope.value(factor.id)))
    heads = factor.heads or "head"
    return aligned(value.text, value.layout, ["batch", stream, heads, factor.dim])


def _for_all(scope: Scope, key: Text, factor: Factor, found: Attention) -> Text:
    """A key that all heads share, once for each head, to be joined with one that each has."""
    if factor.heads is not None:
        return key
    wide = next(each for each in found.keys if each.heads is not None)
    axis = scope.graph[wide.id].type.axis(wide.heads or "")
    return call(f"{key.at(ATOM)}.expand", "-1", "-1", scope.length(axis), "-1")


def _joined(vectors: list[Text]) -> Text:
    """Vectors one after the other: the sum of their products is one product."""
    if len(vectors) == 1:
        return vectors[0]
    return call("torch.cat", f"[{', '.join(each.text for each in vectors)}]", "-1")
