"""The epilogue of a recurrence: the ops after an output that could move into it, one after the
other, the traffic that each saves, and why the next one stays.

Only what is affine in the output may move, with numbers as factors: `c * o + skip * x`. The
gradient of anything else needs the output itself, which is then written and read all the same; and
each kernel that reads the output's gradient would read or compute the other factor again.

Traffic is counted in tensors as large as the output: what PyTorch reads and writes for the ops, one
after the other as the layer has them, less what the kernels read and write in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from archc.functions.definitions import FUNCTIONS
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.schedule.moving import is_number, may_move

SUMS, PRODUCTS = ("add", "sub"), ("mul", "div")

REASONS: Mapping[str, str] = {
    "given": "is what the layer gives",
    "several": "is read by {}",
    "across": "{0} looks across {1}, of which a program may have a part",
    "other": "{0} is not elementwise of as many numbers",
    "needed": "the gradient of {0} needs it, which is then written and read all the same",
    "same": "{0} reads another output of the recurrence",
    "sum": "the gradient of {1} in {0} is a sum over dims of which a program may have a part",
    "copied": "{0} would save nothing: the gradient of {1} is that of the sum, and not written",
}
"""Why what follows an output stays."""


@dataclass(frozen=True)
class Follower:
    """An op that alone reads the value before it, the ops beside it that make its other operand,
    operands first, and what all of them read. `forward` and `backward` are tensors that need not be
    read or written in the layer's pass forward, and for its gradient."""

    node: Node
    beside: tuple[Node, ...]
    reads: tuple[int, ...]
    forward: int
    backward: int


@dataclass(frozen=True)
class Stop:
    """The reason why what follows stays, and the values that this is about: those that read the
    output first."""

    rule: str
    about: tuple[int, ...] = ()


def following(graph: Graph, recurrence: Node, result: Node) -> tuple[list[Follower], Stop]:
    """The ops that follow an output of a Recurrence, one after the other, and why no more do."""
    found: list[Follower] = []
    while not isinstance(
        last := _next(graph, recurrence, found[-1].node if found else result), Stop
    ):
        found.append(last)
    return found, last


def _next(graph: Graph, recurrence: Node, value: Node) -> Follower | Stop:
    """The op that reads a value, if it may move."""
    users = graph.users(value.id)
    if value.id in graph.outputs.values():
        return Stop("given")
    across = _across(graph, value)
    if across is not None and (len(users) > 1 or across in users):
        return Stop("across", (across,))
    if len(users) != 1:
        return Stop("several", users)
    node, stream = graph[users[0]], recurrence.op.stream.name
    if not may_move(graph, node, stream, whole=True) or node.type != value.type:
        return Stop("other", (node.id,))
    others = tuple(o for o in node.operands if o != value.id)
    if not _is_affine(graph, node, value.id):
        return Stop("needed", (node.id, *others))
    beside = _beside(graph, node, others[0], stream) if others else ()
    own = {value.id, *(each.id for each in beside)}
    every = dict.fromkeys(o for n in (*beside, node) for o in n.operands if o not in own)
    reads = tuple(o for o in every if not is_number(graph, o))
    if late := tuple(id for id in reads if id in graph.descendants(recurrence.id)):
        return Stop("same", (node.id, *late))
    if narrow := tuple(id for id in reads if _is_narrower(graph, id, node, stream)):
        return Stop("sum", (node.id, *narrow))
    return _counted(graph, recurrence, Follower(node, beside, reads, 0, 0))


def _across(graph: Graph, value: Node) -> int | None:
    """The first op that looks across dims of a value, or of what elementwise ops make of it."""
    dims = {axis.name for axis in value.type.axes if axis.kind == "dim"}
    near = {value.id}
    for node in graph:
        reads = not near.isdisjoint(node.operands)
        if reads and isinstance(node.op, ir.Elementwise):
            near.add(node.id)
        elif reads and isinstance(node.op, ir.Reduce | ir.Contract) and dims - {*node.type.names}:
            return node.id
    return None


def _is_affine(graph: Graph, node: Node, value: int) -> bool:
    """Whether an op adds something to a value, or multiplies it by a number."""
    others = [o for o in node.operands if o != value]
    if len(others) != len(node.operands) - 1 or node.op.fn not in ("neg", *SUMS, *PRODUCTS):
        return False
    divisor = node.op.fn == "div" and node.operands[0] != value
    return node.op.fn not in PRODUCTS or (not divisor and is_number(graph, others[0]))


def is_costly(graph: Graph, id: int) -> bool:
    """Whether a value is made by elementwise ops with a special function among them."""
    op = graph[id].op
    if not isinstance(op, ir.Elementwise):
        return False
    return bool(FUNCTIONS[op.fn].special) or any(is_costly(graph, o) for o in graph[id].operands)


def _beside(graph: Graph, reader: Node, id: int, stream: str) -> tuple[Node, ...]:
    """The ops of one value along the tokens, affine in it, that make what only a reader reads."""
    found: list[Node] = []
    kept = set(graph.outputs.values())
    while id not in kept and may_move(graph, graph[id], stream, True):
        node = graph[id]
        along = [o for o in node.operands if stream in graph[o].type.names]
        divided = node.op.fn == "div" and along == [node.operands[0]]
        known = divided or node.op.fn in ("neg", "mul", *SUMS)
        wide = all(graph[o].type == node.type for o in along)
        if len(along) != 1 or not known or not wide or graph.users(id) != (reader.id,):
            break
        found.append(node)
        reader, id = node, along[0]
    return tuple(found[::-1])


def _is_narrower(graph: Graph, id: int, node: Node, stream: str) -> bool:
    """Whether a value along the tokens lacks a dim of a node: its gradient is a sum over that."""
    names = graph[id].type.names
    return stream in names and set(names) != set(node.type.names)


def _counted(graph: Graph, recurrence: Node, found: Follower) -> Follower:
    """An op that follows with what it saves where it moves.

    The kernels read a value along the tokens once for the result; for its gradient they read that
    of the result, and write unless it is added to one that they write already, which autograd would
    have done in three. The sum for a weight's gradient is a kernel of its own, which reads both.
    """
    stream = recurrence.op.stream.name
    ops = (*found.beside, found.node)
    along = [id for id in found.reads if stream in graph[id].type.names]
    captured = [id for id in along if id in recurrence.operands[: len(recurrence.op.captures)]]
    forward = sum(1 + _along(graph, node, stream) for node in ops) - len(along)
    weighed = any(_weights(graph, node) for node in ops)
    inside = len(along) * (2 + 2 * weighed) - len(captured)
    outside = sum(_autograd(graph, node, stream) for node in ops) + 3 * len(captured)
    return Follower(found.node, found.beside, found.reads, forward, outside - inside)


def _along(graph: Graph, node: Node, stream: str) -> int:
    """How many operands of an op run along the tokens."""
    return sum(stream in graph[o].type.names for o in node.operands)


def _weights(graph: Graph, node: Node) -> bool:
    """Whether an op multiplies by what is the same for every token, and no number."""
    others = [o for o in node.operands if not is_number(graph, o)]
    return node.op.fn in PRODUCTS and any(graph[o].type != node.type for o in others)


def _autograd(graph: Graph, node: Node, stream: str) -> int:
    """The tensors that autograd reads and writes for an op: none where a gradient is that of the
    result, and for a weight the product of the gradient and the other operand, which is then
    summed."""
    if node.op.fn == "add":
        return 0
    if node.op.fn == "sub":
        return 2 * (stream in graph[node.operands[1]].type.names)
    return 2 + 4 * _weights(graph, node)
