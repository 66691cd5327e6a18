"""What pairs look up in a table by the distance of their tokens becomes calls that make no row of
the table for each pair, and whose gradients add no two pairs up in one place.

    q[t] . R[min(t - s, W - 1)]   `take_by_distance(q @ R.mT, at)`, once products are made before
    k[s] . R[min(t - s, W - 1)]   `products_by_distance(k, R, at)`
    sum[s](p[t, s] R[...])        `sums_by_distance(p, at, W) @ R`
"""

from __future__ import annotations

from typing import NamedTuple

from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import aligned, einsum, permuted

from archc.attention.bounds import of_distance
from archc.ir import layer as ir
from archc.ir.graph import Node


def taken(scope: Scope, node: Node) -> Value | None:
    """Numbers that pairs look up, of all rows or of that of one of their tokens; None where these
    are no numbers of the data, or not looked up by the distance alone."""
    value = scope.value(node.operands[0])
    if not _by_distance(scope, node) or value.kind != DATA:
        return None
    own = [name for name in value.layout if name in _pair(scope)]
    if len(own) > 1:
        return None
    shared = own[0] if own else _pair(scope)[0]
    other = next(name for name in _pair(scope) if name != shared)
    rest = [name for name in value.layout if name not in (shared, node.op.axis)]
    x = permuted(value.text, value.layout, [*rest, *own, node.op.axis])
    x = x if own else call(f"{x.at(ATOM)}.unsqueeze", "-2")
    text = call("take_by_distance", x, _index(scope, node, (shared, other)))
    return scope.settled(node, text, [*rest, shared, other])


def multiplied(scope: Scope, node: Node) -> Value | None:
    """A product with a row that each pair looks up; None where there is none, or it is not looked
    up by the distance alone."""
    if len(node.operands) != 2:
        return None
    for side, operand in enumerate(node.operands):
        row = scope.graph[operand]
        if isinstance(row.op, ir.Gather) and row.name is None:  # a name is a line of the file
            found = _product(scope, node, side, row)
            made = None if found is None else _of_tokens(scope, found) or _of_pairs(scope, found)
            if made is not None:
                return made
    return None


class _Product(NamedTuple):
    """A product of a value and a looked up row, by the names that its sides have for axes."""

    node: Node
    row: Node
    value: Value
    table: Value
    ins: tuple[str, ...]
    looked_up: tuple[str, ...]
    rows: str
    pair: tuple[str, str]


def _product(scope: Scope, node: Node, side: int, row: Node) -> _Product | None:
    """What a product is made of, in the order that values are laid out."""
    if not _by_distance(scope, row) or scope.graph[row.operands[0]].type.names.count("batch"):
        return None
    labels = [
        dict(zip(scope.graph[o].type.names, ins, strict=True))
        for o, ins in zip(node.operands, node.op.ins, strict=True)
    ]
    value, table = scope.value(node.operands[1 - side]), scope.value(row.operands[0])
    if value.kind != DATA or table.kind != DATA:
        return None
    own = labels[side]
    at = row.op.axis
    ins = tuple(labels[1 - side][name] for name in value.layout)
    looked_up = tuple(own.get(name, at) for name in table.layout)
    used = {label for label, _ in node.op.out} | {*ins} | {*own.values()}
    first, second = (own[name] for name in _pair(scope))
    alone = len({*ins}) == len(ins) and len({*looked_up}) == len(looked_up)
    if at in used or not alone or {*_pair(scope)} & {*table.layout}:
        return None
    return _Product(node, row, value, table, ins, looked_up, at, (first, second))


def _of_tokens(scope: Scope, found: _Product) -> Value | None:
    """A product with a vector of one of the tokens, summed over one dim: a number of each pair."""
    out = [label for label, _ in found.node.op.out]
    own = [label for label in found.pair if label in found.ins]
    summed = [x for x in found.ins if x in found.looked_up and x not in out]
    if len(own) != 1 or len(summed) != 1 or not {*found.pair} <= {*out}:
        return None
    if {*found.ins, *found.looked_up} - {*out, *summed, found.rows}:
        return None
    (shared,), (dim,) = own, summed
    lead = [x for x in out if x in found.ins and x != shared]
    lead += [x for x in out if x in found.looked_up and x not in lead]
    x = aligned(found.value.text, found.ins, [*lead, shared, dim])
    table = aligned(found.table.text, found.looked_up, [*lead, found.rows, dim])
    other = next(label for label in found.pair if label != shared)
    names = dict(zip(found.pair, _pair(scope), strict=True))
    at = _index(scope, found.row, (names[other], names[shared]))
    text = call("products_by_distance", x, table, at)
    return _laid_out(scope, found, text, [*lead, other, shared])


def _of_pairs(scope: Scope, found: _Product) -> Value | None:
    """A product with a number of each pair, summed over one of its tokens."""
    out = [label for label, _ in found.node.op.out]
    gone = [label for label in found.pair if label not in out]
    if len(gone) != 1 or not {*found.pair} <= {*found.ins}:
        return None
    (other,) = gone
    shared = next(label for label in found.pair if label != other)
    if {*found.ins, *found.looked_up} - {*out, other, found.rows}:
        return None
    rest = [label for label in found.ins if label not in found.pair]
    x = permuted(found.value.text, found.ins, [*rest, shared, other])
    names = dict(zip(found.pair, _pair(scope), strict=True))
    at = _index(scope, found.row, (names[shared], names[other]))
    count = f"{found.table.text.at(ATOM)}.shape[{found.looked_up.index(found.rows)}]"
    sums = call("sums_by_distance", x, at, count)
    have, layout = [*rest, shared, found.rows], scope.node_layout(found.node)
    label_of = {axis.name: label for label, axis in found.node.op.out}
    wanted = [label_of[name] for name in layout]
    text = einsum([sums, found.table.text], [have, [*found.looked_up]], wanted)
    return Value(text, layout, DATA)


def _laid_out(scope: Scope, found: _Product, text: Text, have: list[str]) -> Value:
    """A product as its node is laid out."""
    axis_of = {label: axis.name for label, axis in found.node.op.out}
    return scope.settled(found.node, text, [axis_of[label] for label in have])


def _by_distance(scope: Scope, row: Node) -> bool:
    """Whether a table is looked up by an index that each pair of tokens has, of their distance
    alone: of the tokens of one sequence."""
    if scope.pair is None or scope.cu_seqlens or scope.file.slots:
        return False
    index = scope.graph[row.operands[1]]
    return {*index.type.names} == {*scope.pair} and of_distance(scope.graph, index, *scope.pair)


def _pair(scope: Scope) -> tuple[str, str]:
    """The names of reader and token read."""
    assert scope.pair is not None
    return scope.pair


def _index(scope: Scope, row: Node, order: tuple[str, str]) -> Text:
    """The index of pairs, with their tokens in an order."""
    index = scope.value(row.operands[1])
    return permuted(index.text, index.layout, order)
