"""Attends of packed sequences that need no borders: those that list, for each token, which of the
tokens up to it are chosen, and those that look at what is on such a list alone.

Only the lists are told where sequences begin: then none has a token of another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import sympy
from archc.backends.eager.chosen_alone import choice_alone

from archc.attention.bounds import S, T, affine, bound, conjuncts, up_to_the_reader
from archc.dims import T_SEEN, TIME
from archc.ir import layer as ir
from archc.ir.choices import chooses
from archc.ir.graph import Graph, Node

COMPARED = ("le", "lt", "ge", "gt", "eq", "ne", "sub")
"""Functions of two places that are the same where both are counted from another token."""


def makes_lists(graph: Graph, node: Node) -> bool:
    """Whether an attend lists tokens that each token chooses among those up to it, for attends that
    look at nothing else."""
    op = node.op
    if not isinstance(op, ir.Attend) or not chooses(op) or len(op.body.outputs) != 1:
        return False
    own = op.source == TIME.name and op.reader == TIME and op.path is None
    if not own or not chooses_past(op) or told_lengths(op) or not _counts_from_anywhere(op):
        return False
    results = graph.users(node.id)
    users = [graph[user] for result in results for user in graph.users(result)]
    return not {*results} & {*graph.outputs.values()} and all(reads_lists(graph, n) for n in users)


def reads_lists(graph: Graph, node: Node) -> bool:
    """Whether an attend looks at single tokens that its readers have chosen, and at nothing
    else."""
    op = node.op
    if not isinstance(op, ir.Attend) or op.source != TIME.name or op.reader != TIME:
        return False
    found = choice_alone(graph, op, node.operands)
    return found is not None and found.size == 1 and op.path is None and not told_lengths(op)


def told_lengths(op: ir.Attend) -> bool:
    """Whether a number of the body depends on how many tokens there are."""
    numbers = (node.op.value for node in op.body if isinstance(node.op, ir.Constant))
    return any(number.free_symbols & {TIME.size, T_SEEN} for number in numbers)


def chooses_past(op: ir.Attend) -> bool:
    """Whether readers choose among the tokens up to their own alone: others have -inf."""
    (id,) = op.body.outputs.values()
    made = op.body[id]
    score = op.body[made.operands[0]]
    if score.op != ir.Elementwise("where") or made.op.axis != op.read.name:
        return False
    mask, _, rest = (op.body[operand] for operand in score.operands)
    if rest.op != ir.Constant(-sympy.oo):
        return False
    found = (bound(op.body, c, op.reader.name, op.read.name) for c in conjuncts(op.body, mask))
    return up_to_the_reader(tuple(each for each in found if each is not None))


OF_ROWS = (ir.Input, ir.Constant, ir.Position, ir.Elementwise, ir.Contract, ir.Reduce, ir.Softmax,
           ir.Gather)  # fmt: skip
"""Ops that have to do with one reader at a time, if they do not look along these."""


def in_pieces(op: ir.Attend, done: Collection[int] = ()) -> bool:
    """Whether a file for kernels makes an attend in PyTorch of some readers at a time. `done` are
    sums over the tokens read that a function of torch or a kernel makes."""
    past = op.causal or op.source != op.reader.name
    return past and op.path is None and not told_lengths(op) and own_rows(op, done)


def own_rows(op: ir.Attend, done: Collection[int]) -> bool:
    """Whether an attend makes all pairs in PyTorch but for sums that are `done`, and no reader has
    to do with another."""
    reader, waiting, seen = op.reader.name, [*op.body.outputs.values()], set[int]()
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        node = op.body[id]
        names = {name for o in node.operands for name in op.body[o].type.names}
        along = getattr(node.op, "over", getattr(node.op, "axis", None))
        if (reader in names and reader not in node.type.names) or along == reader:
            return False
        if id not in done:
            if not isinstance(node.op, OF_ROWS):
                return False
            waiting += node.operands
            seen.add(id)
    pairs = {"batch", reader, op.read.name}
    return any(pairs <= {*op.body[id].type.names} for id in seen)


def _counts_from_anywhere(op: ir.Attend) -> bool:
    """Whether the places of reader and token read are compared with one another alone."""
    return all(_compared(op, node) for node in op.body if _is_place(op, node))


def _compared(op: ir.Attend, place: Node) -> bool:
    """Whether a place is compared with places alone, it or one so many tokens away."""
    compared = [ir.Elementwise(fn) for fn in COMPARED]
    for user in (op.body[user] for user in op.body.users(place.id)):
        both = all(_is_place(op, each) for each in _operands(op, user))
        if not _is_place(op, user) and not (both and user.op in compared):
            return False
    return place.id not in op.body.outputs.values()


def _is_place(op: ir.Attend, node: Node) -> bool:
    """Whether a value is the place of a token, or one so many tokens away."""
    found = affine(op.body, node, op.reader.name, op.read.name)
    return found is not None and any(not (found - x).has(T, S) for x in (T, S))


def _operands(op: ir.Attend, node: Node) -> Iterator[Node]:
    return (op.body[operand] for operand in node.operands)
