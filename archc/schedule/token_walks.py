"""A recurrence -> kernel IR: one kernel that walks its tokens, with the states in registers.

It is for few tokens, as in generation, where a state is read once and written once; and for a
recurrence that has no chunked form. A program has one sequence, one head, and all of the states or
a block of a dim that no op crosses. Results may be sums over that dim, as gradients of vectors are:
of these a program stores a part. Where a state meets weights that all sequences share, a program
has several sequences (`rows`), so that the weights are loaded once for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.kernel import Kernel
from archc.schedule.axes import labelled, own_dims, reduction_dims
from archc.schedule.scattered import without_scatters

ALONG = "along the tokens"

ROWS = 16
"""How many sequences a program has, where it has several."""

ROOM = 1 << 30
"""Bytes that the states before every token may take, where they could be made again."""


def tokenwise(graph: Graph, node: Node, wanted: Collection[str]) -> Graph:
    """A Recurrence by itself: inputs named as its captures, and `S[0]` for each state; outputs: the
    results that are wanted, along the stream, and `S[T]` for each state after the last token."""
    op, made = node.op, Graph[object](graph.infer)
    types = [graph[id].type for id in node.operands[: len(op.captures)]]
    given = [made.add(ir.Input(n, t)) for n, t in zip(op.captures, types, strict=True)]
    starts = [made.add(ir.Input(ck.start(s.name), Type(s.axes))) for s in op.states]
    body = op.body.copy()
    states = [state.name for state in op.states]
    body.outputs = {n: id for n, id in body.outputs.items() if n in states or n in wanted}
    body.prune()
    body = without_scatters(body)
    recurrence = made.add(replace(op, body=body, chunked=None), *given, *starts)
    results = {name: made.add(ir.Result(name), recurrence) for name in body.outputs}
    made.outputs = {name: results[name] for name in wanted}
    for state, start in zip(states, starts, strict=True):
        last = ck.Last(op.stream.name, op.reverse)
        made.outputs[ck.final(state)] = made.add(last, results[state], start)
    return made


def steps(graph: Graph, name: str, parts: bool = False) -> Kernel:
    """The kernel of a Recurrence by itself, as `tokenwise` makes it; `parts`: whether it may store
    parts of sums."""
    (recurrence,) = (node for node in graph if isinstance(node.op, ir.Recurrence))
    op: ir.Recurrence = recurrence.op
    batch = next(a for node in graph for a in node.type.axes if a.kind == "batch")
    body = [axis for node in op.body for axis in node.type.axes]
    heads = {axis.name: axis for axis in body if axis.name in op.heads}
    loads = {n.id: n.op.name for n in graph if isinstance(n.op, ir.Input)}
    ends = {state.name: ck.final(state.name) for state in op.states}
    loads |= {graph.outputs[end]: end for end in ends.values()}
    stores = {n: id for n, id in graph.outputs.items() if n not in ends.values()}
    shared = any(True for _ in _products_with_weights(op))
    split, summed = (None, frozenset[str]()) if shared else _free(op, parts)
    grid = (batch, *heads.values())
    rows = batch if shared else None
    most = ROWS if shared else 64
    return Kernel(
        name, graph, loads, stores, grid, split, recurrence.id, ends, (ALONG,), rows, most,
        tokenwise=True, summed=summed,
    )  # fmt: skip


def _products_with_weights(op: ir.Recurrence) -> Iterator[Node]:
    """Products of a vector that follows from the states with a matrix that all sequences share."""
    body, names = op.body, {state.before for state in op.states}
    states = {n.id for n in body if isinstance(n.op, ir.Input) and n.op.name in names}
    carried = states | {id for state in states for id in body.descendants(state)}
    for node in body:
        if not ir.is_product(node.op):
            continue
        labels, kept = [set(each) for each in node.op.ins], set(dict(node.op.out))
        for one, other in ((0, 1), (1, 0)):
            shared = "batch" not in body[node.operands[one]].type.names
            meets = node.operands[other] in carried and (labels[0] & labels[1]) - kept
            vector = len(own_dims(body[node.operands[other]].type.axes, op.heads)) == 1
            if shared and vector and meets and labels[one] - labels[other]:
                yield node


def _free(op: ir.Recurrence, parts: bool) -> tuple[Axis | None, frozenset[str]]:
    """A dim of the largest state that no op of the body crosses, the last such dim; with `parts`
    else the one that fewest results are sums over, and these."""
    state, found = max(op.states, key=lambda s: len(s.axes)), list[tuple[int, int]]()
    sums = [_sums_over(op, axis.name) for axis in state.axes]
    for place, axis in enumerate(state.axes):
        own, summed = axis.kind == "dim" and axis.name not in op.heads, sums[place]
        if own and summed is not None and (parts or not summed):
            found.append((len(summed), -place))
    if not found:
        return None, frozenset()
    place = -min(found)[1]
    return state.axes[place], sums[place] or frozenset()


def _sums_over(op: ir.Recurrence, dim: str) -> frozenset[str] | None:
    """The results that are sums over a dim, or linear in such sums; None where something else
    crosses the dim or follows from them."""
    body, summed = op.body, set[int]()
    for node in body:
        given = sum(id in summed for id in node.operands)
        crosses = dim in reduction_dims(body, node)
        if not crosses and not given:
            continue
        linear = not given and _is_sum(node, body, dim) if crosses else _is_linear(node, given)
        if not linear or dim in node.type.names:
            return None
        summed.add(node.id)
    found = {name for name, id in body.outputs.items() if id in summed}
    return None if found & {state.name for state in op.states} else frozenset(found)


def _is_sum(node: Node, body: Graph, dim: str) -> bool:
    """Whether a node that crosses a dim sums over it, by no other name."""
    if isinstance(node.op, ir.Reduce):
        return node.op.fn == "sum"
    if not isinstance(node.op, ir.Contract):
        return False
    names: dict[object, set[str]] = {}
    for label, axis in labelled(body, node):
        names.setdefault(label, set()).add(axis.name)
    kept = dict(node.op.out)
    return all(each == {dim} and n not in kept for n, each in names.items() if dim in each)


def _is_linear(node: Node, given: int) -> bool:
    """Whether a node adds sums up or multiplies one, of operands of which so many are sums."""
    if isinstance(node.op, ir.Elementwise):
        every = {"add": 2, "sub": 2, "neg": 1, "mul": 1}
        return every.get(node.op.fn) == given
    if isinstance(node.op, ir.Reduce):
        return node.op.fn == "sum"
    return isinstance(node.op, ir.Contract) and given == 1


def is_checkpointed(op: ir.Recurrence) -> bool:
    """Whether a gradient may keep states between spans of tokens alone: where one is a matrix, or
    has a dim that nothing given for each token has, the states before every token may be more than
    all else."""
    given = [
        {*node.type.names}
        for node in op.body
        if isinstance(node.op, ir.Input) and node.op.name in op.captures
    ]
    return any(
        len(own_dims(state.axes, op.heads)) > 1
        or not any({axis.name for axis in state.axes} <= names for names in given)
        for state in op.states
    )


def tokens_between(tokens: int, numbers: int) -> int:
    """How many tokens are learned from at a time, where the states are so many numbers: as many as
    have room, or about the square root of all (as that of `archc/runtime/steps.py` says)."""
    most = max(16, int(tokens**0.5) + 1, ROOM // (4 * max(numbers, 1)))
    return -(-tokens // max(1, -(-tokens // most)))
