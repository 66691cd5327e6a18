"""Chunk IR -> chunk IR: what pairs of rows add to one value is one sum over all of them.

    mix(A, b, g)                                 ->  mix[strict](A, b, g) + diagonal(A) * b
    mix(A, b, g) + mix(B, c, g)                  ->  mix_sum(A, b, B, c, g)
    gate_gradient(A, a, b, g) + gate_gradient(B, c, d, g) + sums[reverse](x) + sums[exclusive](y)
        ->  sums[reverse](gate_shares(A, a, b, B, c, d, g) + x - y + place[last](sum(y)))
    e * (b * c + x)  where there is e * c        ->  b * (e * c) + e * x

A pair of a row with itself does not decay: where its weight is made it is one number a row. The
products of a sum share an accumulator, and what decays alike is scaled once. What goes into one
running sum is added up before it, so that kernels hand on one value in place of one of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.graph import Graph, Node

ADD, MUL, NEG = ir.Elementwise("add"), ir.Elementwise("mul"), ir.Elementwise("neg")


def with_joint_pairs(graph: Graph) -> Graph:
    """The graph in which pairs that read sums of gates are added up together; itself if none do."""
    if not any((isinstance(n.op, ck.Mix) and _reads_sums(n)) or _as_shares(n) for n in graph):
        return graph
    new, diagonals = graph.copy(), dict[int, int]()
    inputs = [node.id for node in new if isinstance(node.op, ir.Input)]
    for node in graph:
        if isinstance(node.op, ck.Mix) and _reads_sums(node):
            _take_out_diagonal(new, node, diagonals)
    new.prune(inputs)
    for id in [node.id for node in new]:
        if _is_root(new, new[id]):
            _join(new, new[id])
    new.prune(inputs)
    for id in [node.id for node in new if node.op == MUL]:
        _share_product(new, new[id])
    new.prune(inputs)
    return new.renumbered(lambda id: id)


def _reads_sums(node: Node) -> bool:
    return node.op.anchor == ck.SUMS


def _as_shares(node: Node) -> bool:
    """Whether a value is a gradient of gates that may be a running sum of shares: of gates that may
    be 0, by whose size it is divided, what enters and leaves would not cancel in all digits."""
    return isinstance(node.op, ck.GateGradient) and _reads_sums(node) and not node.op.signed


def _take_out_diagonal(graph: Graph, node: Node, diagonals: dict[int, int]) -> None:
    """Add what rows are to themselves beside what they are to others; `diagonals` of weights."""
    op = node.op
    if op.strict or op.exclusive:
        return
    weights, value, gates = node.operands
    make, axes = Sharing(graph, node.span), graph[weights].type
    if weights not in diagonals:
        identity = make.add(ir.Delta(axes.axis(op.row), axes.axis(op.col)))
        on_it = make.fn("where", make.fn("eq", identity, make.number(1)), weights, make.number(0))
        diagonals[weights] = make.add(ir.Reduce("sum", (op.col,)), on_it)
    others = make.add(replace(op, strict=True), weights, value, gates)
    own = make.fn("mul", diagonals[weights], value)
    graph.substitute(node.id, make.fn("add", own, others))


def _is_root(graph: Graph, node: Node) -> bool:
    """Whether a value is a sum of all its addends, or a gradient of gates by itself."""
    if node.op != ADD and not _as_shares(node):
        return False
    users = graph.users(node.id)
    inside = len(users) == 1 and graph[users[0]].op == ADD and _alike(graph[users[0]], node)
    return not inside or node.id in graph.outputs.values()


def _alike(one: Node, other: Node) -> bool:
    return {*one.type.names} == {*other.type.names}


def _addends(graph: Graph, root: Node) -> Iterator[Node]:
    """The addends of a sum, in order; sums that others read too are one."""
    if root.op != ADD:
        yield root
        return
    for operand in root.operands:
        node = graph[operand]
        own = len(graph.users(operand)) == 1 and operand not in graph.outputs.values()
        if node.op == ADD and own and _alike(node, root):
            yield from _addends(graph, node)
        else:
            yield node


@dataclass
class _Sum:
    """The addends of a value: `mixes` and `gates` by the gates and how they decay, `summed` along
    the rows from each row on, and the `rest`, in the order that they are found in."""

    mixes: dict[tuple[int, bool], list[Node]] = field(default_factory=dict)
    gates: dict[tuple[int, bool], list[Node]] = field(default_factory=dict)
    summed: list[Node] = field(default_factory=list)
    rest: list[int] = field(default_factory=list)


def _join(graph: Graph, root: Node) -> None:
    """Add up the addends of a sum together, where they can be."""
    found = _Sum()
    for node in _addends(graph, root):
        _sorted_in(graph, root, node, found)
    several = any(len(nodes) > 1 for nodes in found.mixes.values())
    if not several and not found.gates:
        return
    make = Sharing(graph, root.span)
    sums = [*found.rest]
    for (gates, _), nodes in found.mixes.items():
        one = [nodes[0].id] if len(nodes) == 1 else []
        sums += one or [make.add(ck.MixSum(_terms(nodes)), *_operands(nodes), gates)]
    if found.gates:
        sums += _from_each_row(make, found)
    else:
        sums += [node.id for node in found.summed]
    graph.substitute(root.id, make.chain("add", sums))


def _sorted_in(graph: Graph, root: Node, node: Node, found: _Sum) -> None:
    """Note an addend among those of its kind."""
    single = node.id == root.id or (len(graph.users(node.id)) == 1 and _alike(node, root))
    if isinstance(node.op, ck.Mix) and single and _reads_sums(node):
        found.mixes.setdefault((node.operands[-1], node.op.exclusive), []).append(node)
    elif single and _as_shares(node):
        found.gates.setdefault((node.operands[-1], node.op.exclusive), []).append(node)
    elif isinstance(node.op, ck.Sums) and single and node.op.reverse != node.op.exclusive:
        found.summed.append(node)
    else:
        found.rest.append(node.id)


def _from_each_row(make: Sharing, found: _Sum) -> list[int]:
    """The sum from each row on of all that is summed so, and what is beside it."""
    inside, shares, beside = list[int](), list[int](), list[int]()
    for (gates, exclusive), nodes in found.gates.items():
        op = ck.GateShares(_terms(nodes))
        shares.append(make.add(op, *_operands(nodes), gates))
        if exclusive:
            entering = make.add(replace(op, entering=True), *_operands(nodes), gates)
            beside.append(make.add(NEG, entering))
    row = next(iter(found.gates.values()))[0].op.row
    for node in found.summed:
        if node.op.axis != row:
            beside.append(node.id)
            continue
        (x,) = node.operands
        if node.op.reverse:
            inside.append(x)
            continue
        total = make.add(ir.Reduce("sum", (row,)), x)
        last = make.add(ck.Place(make.type(x).axis(row), -1), total)
        inside += [make.add(NEG, x), last]
    summed = make.add(ck.Sums(row, reverse=True), make.chain("add", [*inside, *shares]))
    return [summed, *beside]


def _terms(nodes: Iterable[Node]) -> tuple[ck.Mix | ck.GateGradient, ...]:
    return tuple(node.op for node in nodes)


def _operands(nodes: Iterable[Node]) -> list[int]:
    return [operand for node in nodes for operand in node.operands[:-1]]


def _share_product(graph: Graph, node: Node) -> None:
    """Take products e * c that there are before a walk into e * (b * c + x) after it, where each c
    is then read no more: kernels hand on one value in place of two."""
    for e, total in (node.operands, node.operands[::-1]):
        apart = graph[total].op == ADD and len(graph.users(total)) == 1
        if not apart or not _after_walk(graph, total):
            continue
        make, rest, made = Sharing(graph, node.span), list[int](), list[int]()
        for addend in [*_addends(graph, graph[total])]:
            shared = _shared(graph, addend, e)
            if shared is None or _after_walk(graph, shared[1]):
                rest.append(addend.id)
            else:
                made.append(make.fn("mul", *shared))
        if made:
            left = [make.fn("mul", e, make.chain("add", rest))] if rest else []
            graph.substitute(node.id, make.chain("add", [*left, *made]))
            return


def _shared(graph: Graph, addend: Node, e: int) -> tuple[int, int] | None:
    """b and e * c of an addend b * c, where nothing else reads c."""
    if addend.op != MUL or len(graph.users(addend.id)) != 1:
        return None
    for b, c in (addend.operands, addend.operands[::-1]):
        others = [graph[user] for user in graph.users(c) if user != addend.id]
        if len(others) != 1 or others[0].op != MUL or b == c:
            continue
        if {*others[0].operands} == {e, c} != {e} and others[0].type == addend.type:
            return b, others[0].id
    return None


def _after_walk(graph: Graph, id: int) -> bool:
    """Whether a value is made of what a walk along the chunks gave."""
    return any(isinstance(graph[each].op, ir.Recurrence) for each in graph.ancestors(id))
