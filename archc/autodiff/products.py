"""Products that leave a loop: those of all tokens are made at once, or as one.

    sum over t of a[t] b[t]^T -> A B^T          a[t] b[t]^T for every t -> one product with axis t

The cotangent of a weight that a body captures is such a sum. Made in the loop, it would be a weight
for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from archc.autodiff.gradient_builder import Builder
from archc.autodiff.keep import size
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.shapes import arrange

Product = tuple[tuple[tuple[str, Axis], ...], list[tuple[int, dict[str, str]]]]
"""The labels of the result with its axes, and for each factor of a body the labels of its axes."""


@dataclass(frozen=True)
class Term:
    """A contraction whose factors are inputs or outputs of a body: each by its name there, with the
    label of each of its axes."""

    out: tuple[tuple[str, Axis], ...]
    factors: tuple[tuple[str, dict[str, str]], ...]


def take_out(
    body: Graph, name: str, states: Collection[str], kept: Collection[int] | None = None
) -> list[Term]:
    """An output of a body that is a sum of contractions -> outputs for their factors in its place;
    nothing changes, and nothing is returned, where it is anything else. `states` are the inputs
    that are not known outside. With `kept`, none of those nodes is taken out, nor what would put
    out more numbers than before.
    """
    products = []
    for node in _addends(body, body.outputs[name]):
        product = _as_product(body, node)
        if product is None or (kept is not None and node.id in kept):
            return []
        products.append(product)
    if kept is not None and not _less_is_put_out(body, name, products, states):
        return []
    del body.outputs[name]
    terms = []
    for out, factors in products:
        visible = [(_visible(body, name, id, states), labels) for id, labels in factors]
        terms.append(Term(out, tuple(visible)))
    body.prune()
    return terms


def _as_product(body: Graph, node: Node) -> Product | None:
    """A contraction, or a sum over some axes of an elementwise product, as labelled factors."""
    if isinstance(node.op, ir.Contract):
        labelled = zip(node.operands, node.op.ins, strict=True)
        factors = [(id, dict(zip(body[id].type.names, ls, strict=True))) for id, ls in labelled]
        return node.op.out, factors
    inner = body[node.operands[0]] if isinstance(node.op, ir.Reduce) else node
    if inner is node or node.op.fn != "sum" or inner.op != ir.Elementwise("mul"):
        return None
    factors = [(id, {name: name for name in body[id].type.names}) for id in inner.operands]
    return tuple((axis.name, axis) for axis in node.type.axes), factors


def _less_is_put_out(
    body: Graph, name: str, products: Sequence[Product], states: Collection[str]
) -> bool:
    """Whether what products are made of, as far as it is not known outside the loop, takes no more
    memory than their sum does."""
    if any(len(factors) < 2 for _, factors in products):
        return False
    ids = dict.fromkeys(id for _, factors in products for id, _ in factors)
    known = {id for output, id in body.outputs.items() if output != name}
    new = [id for id in ids if id not in known and not _is_known(body[id], states)]
    return sum(size(body[id].type) for id in new) <= size(body[body.outputs[name]].type)


def _is_known(node: Node, states: Collection[str]) -> bool:
    """Whether it is an input that has a value outside the loop."""
    return isinstance(node.op, ir.Input) and node.op.name not in states


def added_up(body: Graph, name: str, states: Collection[str], heads: Collection[str]) -> int | None:
    """What each token adds to an output that is summed over all of them, for each sequence and
    head, where what it is a product of would take as much memory; None where that is less, or it is
    anything else. Such a sum is one value that is carried, of which no token's share is stored."""
    factors = dict[int, None]()
    added = _for_each_program(body, body[body.outputs[name]], heads, factors)
    if added is None:
        return None
    known = {id for output, id in body.outputs.items() if output != name}
    new = [id for id in factors if id not in known and not _is_known(body[id], states)]
    return added if sum(size(body[id].type) for id in new) >= size(body[added].type) else None


def _for_each_program(
    body: Graph, node: Node, heads: Collection[str], factors: dict[int, None]
) -> int | None:
    """A value that is linear in products that are summed over sequences and heads, without those
    sums; None where it is anything else. The factors of the products are noted."""
    product = _as_product(body, node)
    if product is not None:
        out, given = product
        factors |= dict.fromkeys(id for id, _ in given)
        return _unsummed(body, out, given, heads)
    op, operands = node.op, [body[id] for id in node.operands]
    if op in (ir.Elementwise("add"), ir.Elementwise("neg")):
        made = [_for_each_program(body, operand, heads, factors) for operand in operands]
        return None if None in made else body.add(op, *(id for id in made if id is not None))
    if op != ir.Elementwise("mul"):
        return None
    for one, other in (operands, operands[::-1]):
        if (made := _for_each_program(body, one, heads, factors)) is not None:
            return body.add(op, made, other.id)
    return None


def _unsummed(
    body: Graph,
    out: Sequence[tuple[str, Axis]],
    factors: list[tuple[int, dict[str, str]]],
    heads: Collection[str],
) -> int:
    """A product of a body that is not summed over sequences and heads."""
    kept = dict[str, Axis]()
    for id, labels in factors:
        own = [axis for axis in body[id].type.axes if axis.kind == "batch" or axis.name in heads]
        kept |= {labels[axis.name]: axis for axis in own}
    kept = {label: axis for label, axis in kept.items() if label not in dict(out)} | dict(out)
    ins = tuple(tuple(labels[axis.name] for axis in body[id].type.axes) for id, labels in factors)
    ids = [id for id, _ in factors]
    if len(ids) == 1 and ins[0] == tuple(kept) and body[ids[0]].type.axes == tuple(kept.values()):
        return ids[0]
    return body.add(ir.Contract(ins, tuple(kept.items())), *ids)


def total(
    b: Builder, terms: list[Term], stream: Axis, value: Callable[[str], int], along: bool = False
) -> int:
    """The sum of the terms over a stream, or `along` it; `value` gives a factor outside the body by
    its name."""
    return b.sum([_product(b, term, stream, value, along) for term in terms])


def _product(b: Builder, term: Term, stream: Axis, value: Callable[[str], int], along: bool) -> int:
    """One term. A factor without the stream is the same at every token."""
    label = stream.name
    while any(label in labels.values() for _, labels in term.factors):
        label += "'"
    ids = [value(name) for name, _ in term.factors]
    if all(stream.name not in b.names(id) for id in ids):
        ids[0] = b.full(ids[0], [stream])
    operands = [
        (id, [labels.get(axis, label) for axis in b.names(id)])
        for id, (_, labels) in zip(ids, term.factors, strict=True)
    ]
    if not along:
        return b.contract(operands, term.out)
    labels = {axis.name: name for name, axis in term.out} | {stream.name: label}
    axes = arrange((stream, *(axis for _, axis in term.out)))
    return b.contract(operands, [(labels[axis.name], axis) for axis in axes])


def _addends(body: Graph, id: int) -> list[Node]:
    """The terms of a sum of values of one type."""
    node = body[id]
    if node.op != ir.Elementwise("add"):
        return [node]
    if any(body[operand].type != node.type for operand in node.operands):
        return [node]
    return [term for operand in node.operands for term in _addends(body, operand)]


def _visible(body: Graph, name: str, id: int, states: Collection[str]) -> str:
    """The name of a value of the body outside it: of an input or an output, which may be new."""
    if _is_known(body[id], states):
        return body[id].op.name
    for known, output in body.outputs.items():
        if output == id:
            return known
    number = sum(known.startswith(f"{name}.") for known in body.outputs) + 1
    body.outputs[f"{name}.{number}"] = id
    return f"{name}.{number}"
