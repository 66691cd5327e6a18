"""Layer IR -> layer IR: what a recurrence's inputs are made of moves into the recurrence.

    log_alpha = -exp(A_log) * softplus(f + dt_bias); recurrence(log_alpha = log_alpha)
        ->  recurrence(f = f, A_log = A_log, dt_bias = dt_bias), which begins with these ops

The kernels then read what a product of matrices has written, and no input is written and read
again on its way to them. Gates are computed in float32 there, whatever f has.

What moves is elementwise, runs along the tokens, and is read by nothing else: so no kernel has to
look across a dim for it, as for a norm. In its place enters one value that is as large; what is of
parameters alone is made again of them if it is a number a head, which takes less than launches of
its own, and else stays, as it is the same for every token. Every kernel that reads it computes it
again, and where it has a dim of its own that takes longer than memory does if it has an exp in it,
unless it has a dim more than what it is made of, as exp(dt[D] A[D, N]):
on an H200 a softplus for each channel of a gate made the kernels 3.3 ms slower and what is around
them 0.5 ms faster (B 2, T 8192, H 32, K 128, forward and backward).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from archc.functions.definitions import FUNCTIONS
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.of_parameters import is_of_parameters
from archc.ir.rewrite import rewrite
from archc.schedule.axes import own_dims
from archc.schedule.forms import Differentiate, bare
from archc.schedule.moving import (
    add_ops,
    called,
    fresh,
    is_number,
    may_move,
    names_inside,
    rebuilt,
)

REASONS: Mapping[str, str] = {
    "moves": "made in the kernels, of {}",
    "given": "comes from {} as it is",
    "shared": "is read by others too",
    "several": "is made of {}: not of one value along the tokens of its own size",
    "costly": "is made of {} by an exp or the like: more time in each kernel than its bytes take",
}
"""The reasons why the values that a capture is made of move or stay."""


@dataclass(frozen=True)
class Prologue:
    """The ops that make one capture of a Recurrence, operands first, the values that they read, and
    whether they move, which is a reason of `REASONS`."""

    capture: str
    ops: tuple[Node, ...]
    reads: tuple[int, ...]
    rule: str

    @property
    def moves(self) -> bool:
        """Whether the recurrence begins with the ops."""
        return self.rule == "moves"


def prologues(layer: ir.Layer, differentiate: Differentiate) -> ir.Layer:
    """The layer, its chunked recurrences with what their inputs are made of."""

    def begin(graph: Graph, node: Node) -> int | None:
        """recurrence(f(x)) -> recurrence'(x)"""
        form = node.op.chunked if isinstance(node.op, ir.Recurrence) else None
        found = [] if form is None else [each for each in considered(graph, node) if each.moves]
        return _moved(graph, node, found, differentiate) if found else None

    return rewrite(layer, [begin])


def considered(graph: Graph, recurrence: Node) -> Iterator[Prologue]:
    """The prologue of each capture of a Recurrence, and whether it moves into the Recurrence."""
    for name, operand in ir.captured(recurrence).items():
        ops = _alone(graph, recurrence, operand)
        reads = _read(graph, ops)
        if ops:
            one = _is_one(graph, recurrence, operand, reads)
            costly = _is_costly(recurrence, ops)
            rule = "several" if not one else "costly" if costly else "moves"
            rule = "moves" if _is_wider(graph, recurrence, operand, reads) else rule
            if rule == "moves":
                ops = [*_again(graph, recurrence, reads), *ops]
                reads = _read(graph, ops)
            yield Prologue(name, tuple(ops), reads, rule)
        else:
            shared = may_move(graph, graph[operand], recurrence.op.stream.name)
            yield Prologue(name, (), (operand,), "shared" if shared else "given")


def _alone(graph: Graph, recurrence: Node, capture: int) -> list[Node]:
    """The elementwise ops along the tokens that only a capture of a Recurrence is made of."""
    kept = {*graph.outputs.values(), *recurrence.operands[len(recurrence.op.captures) :]}
    found = dict[int, Node]()
    for node in reversed([*graph]):
        users = graph.users(node.id)
        here = (
            node.id == capture
            and users == (recurrence.id,)
            and recurrence.operands.count(capture) == 1
        )
        alone = here or (bool(users) and set(users) <= found.keys())
        if alone and node.id not in kept and may_move(graph, node, recurrence.op.stream.name):
            found[node.id] = node
    return [*found.values()][::-1]


def _read(graph: Graph, ops: Sequence[Node]) -> tuple[int, ...]:
    """The values that ops read and do not make, numbers aside."""
    own = {node.id for node in ops}
    every = (o for n in ops for o in n.operands if o not in own)
    return tuple(o for o in dict.fromkeys(every) if not is_number(graph, o))


def _again(graph: Graph, recurrence: Node, reads: Sequence[int]) -> list[Node]:
    """The ops that make those values that are of parameters alone and a number a head."""
    heads = {*recurrence.op.heads}
    found = [o for o in reads if is_of_parameters(graph, o) and {*graph[o].type.names} <= heads]
    before = set().union(*({o, *graph.ancestors(o)} for o in found))
    return [n for n in graph if n.id in before and isinstance(n.op, ir.Elementwise)]


def _is_one(graph: Graph, recurrence: Node, capture: int, reads: Sequence[int]) -> bool:
    """Whether one value that is as large as a capture enters in its place, and else what is the
    same for every token: the gradient of anything between would be a sum over dims."""
    axes = set(graph[capture].type.names)
    along = [id for id in reads if recurrence.op.stream.name in graph[id].type.names]
    return len(along) == 1 and set(graph[along[0]].type.names) == axes


def _is_wider(graph: Graph, recurrence: Node, capture: int, reads: Sequence[int]) -> bool:
    """Whether a capture has two dims for every token of which no value that it is made of has both:
    what enters in its place is smaller by a dim, and kernels make a token's numbers of that in less
    time than memory takes for them."""
    stream = recurrence.op.stream.name
    axes = own_dims(graph[capture].type.axes, recurrence.op.heads)
    dims = {axis.name for axis in axes}
    along = [graph[id].type.names for id in reads if stream in graph[id].type.names]
    return len(dims) > 1 and bool(along) and all(not dims <= {*names} for names in along)


def _is_costly(recurrence: Node, ops: Sequence[Node]) -> bool:
    """Whether a special function is taken of more than one number a head and token."""
    axes = {
        a.name for n in ops if FUNCTIONS[n.op.fn].special for a in n.type.axes if a.kind == "dim"
    }
    return bool(axes - set(recurrence.op.heads))


def _moved(
    graph: Graph, recurrence: Node, moves: list[Prologue], differentiate: Differentiate
) -> int:
    """Another Recurrence, which begins with the ops that moved."""
    names = _names(graph, recurrence, moves)
    operands = ir.captured(recurrence)
    gone = {move.capture for move in moves}
    captured = {name: id for name, id in operands.items() if name not in gone}
    captured |= {name: id for id, name in names.items()}
    order = [n for c in recurrence.op.captures for n in _entering(c, moves, names)]
    captured = {name: captured[name] for name in dict.fromkeys(order)}
    body, forward = recurrence.op.body.copy(), bare(recurrence.op.chunked)
    for move in moves:
        _begin(body, graph, move, names, without=recurrence.op.stream.name)
        _begin(forward, graph, move, names)
    return rebuilt(graph, recurrence, captured, body, forward, differentiate)


def _entering(capture: str, moves: list[Prologue], names: Mapping[int, str]) -> list[str]:
    """The values that enter for a capture: itself, or those it is made from."""
    found = [move for move in moves if move.capture == capture]
    return [names[id] for id in found[0].reads] if found else [capture]


def _names(graph: Graph, recurrence: Node, moves: list[Prologue]) -> dict[int, str]:
    """A name of its own for each value that enters: as the spec has it, or after its capture."""
    gone = {move.capture for move in moves}
    captured = ir.captured(recurrence).items()
    entering = {id: name for name, id in captured if name not in gone}
    taken, found = names_inside(recurrence.op), dict[int, str]()
    for move in moves:
        for id in move.reads:
            if id in entering:
                found[id] = entering[id]
            if id not in found:
                found[id] = fresh(called(graph, id) or _hint(graph, move, id), taken)
                _call(graph, id, found[id], move.capture)
    return found


def _hint(graph: Graph, move: Prologue, id: int) -> str:
    """`log_alpha_raw` for what a gate is made of, `log_alpha_of_A` for what a parameter gives."""
    if graph[id].type.names and graph[id].type.names == graph[move.ops[-1].id].type.names:
        return f"{move.capture}_raw"
    sources = sorted(graph.ancestors(id))
    params = [graph[each].op.name for each in sources if isinstance(graph[each].op, ir.Param)]
    return "_of_".join([move.capture, *params[:1]])


def _call(graph: Graph, id: int, name: str, capture: str) -> None:
    """Give a value its name; what is kept of earlier tokens to make it stays named after the
    capture, as states are when there are no kernels."""
    waiting = [id]
    while waiting:
        node = graph[waiting.pop()]
        if node.name is None and isinstance(node.op, ir.Window | ir.Shift):
            graph.rename(node.id, capture)
        elif node.name is None:
            waiting += node.operands
    if called(graph, id) is None:
        graph.rename(id, name)


def _begin(
    graph: Graph, home: Graph, move: Prologue, names: Mapping[int, str], without: str | None = None
) -> None:
    """Put the ops of a prologue in the place of the input that they make; `without` the stream
    where the graph is of one token."""
    old = [n for n in graph if isinstance(n.op, ir.Input) and n.op.name == move.capture]
    made = dict[int, int]()
    add_ops(graph, home, move.ops, move.reads, names, made, without)
    for node in old:
        graph.substitute(node.id, made[move.ops[-1].id])
    kept = [n.id for n in graph if isinstance(n.op, ir.Input) and n.op.name != move.capture]
    graph.prune(kept)
