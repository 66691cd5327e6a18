"""Layer IR -> layer IR: what is made of a recurrence's outputs moves into the recurrence.

    o = recurrence(u = u); y = o + skip * u
        ->  y = recurrence(u = u, skip = skip), which ends with the ops

The kernels then write `y` where they wrote `o`, and `o` is not read again to make it. What may move
is in `following.py`; of that moves what saves traffic, forward and backward together: `o + x` saves
reading and writing `o`, but the gradient of `x` would be written by a kernel where it is now the
same tensor as that of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.verify import verify
from archc.schedule.following import Follower, Stop, following
from archc.schedule.forms import Differentiate, bare
from archc.schedule.moving import add_ops, called, fresh, names_inside, rebuilt


@dataclass(frozen=True)
class Epilogue:
    """An output of a Recurrence, what follows it and moves, and why the rest does not."""

    output: Node
    moves: tuple[Follower, ...]
    stop: Stop

    @property
    def last(self) -> Node:
        """The value that the recurrence gives in place of its output."""
        return self.moves[-1].node

    @property
    def forward(self) -> int:
        """Tensors as large as the output that the layer reads and writes less."""
        return sum(each.forward for each in self.moves)

    @property
    def backward(self) -> int:
        """Tensors as large as the output that the layer's gradient reads and writes less."""
        return sum(each.backward for each in self.moves)


def considered(graph: Graph, recurrence: Node) -> Iterator[Epilogue]:
    """The ops that follow each output of a Recurrence, and how many of them move into it."""
    for user in graph.users(recurrence.id):
        found, stop = following(graph, recurrence, graph[user])
        saved = [sum(f.forward + f.backward for f in found[:end]) for end in range(len(found) + 1)]
        end = saved.index(max(saved))
        if end < len(found):
            stop = Stop("copied", (found[end].node.id, *found[end].reads))
        yield Epilogue(graph[user], tuple(found[:end]), stop)


def epilogues(
    layer: ir.Layer, differentiate: Differentiate, done: dict[ir.Layer, ir.Layer] | None = None
) -> ir.Layer:
    """A layer, with those that it calls, its chunked recurrences with the ops that follow them;
    itself where nothing moves."""
    done = {} if done is None else done
    if layer in done:
        return done[layer]
    graph, places = layer.graph.copy(), {node.id: (node.id,) for node in layer.graph}
    new, changed = layer, False
    for id, call in layer.calls:
        callee = epilogues(call.callee, differentiate, done)
        graph.replace_op(id, replace(call, callee=callee))
        changed |= callee is not call.callee
    for node in [node for node in graph if isinstance(node.op, ir.Recurrence)]:
        if node.op.chunked is not None:
            changed |= _move(graph, graph[node.id], differentiate, places)
    if changed:
        new = replace(layer, graph=graph.renumbered(places.__getitem__))
        verify(new)
    done[layer] = new
    return new


def _move(
    graph: Graph, recurrence: Node, differentiate: Differentiate, places: dict[int, tuple[int, ...]]
) -> bool:
    """Put a Recurrence that ends with what follows it in the place of one; whether there was
    any."""
    every = [*considered(graph, recurrence)]
    moves = [each for each in every if each.moves]
    if not moves:
        return False
    names = _names(graph, recurrence, moves)
    inside = {each.output.id: _output(recurrence, each, names) for each in moves}
    new = _ending(graph, recurrence, moves, names, inside, differentiate)
    places[new] = (recurrence.id, new)
    for each in every:
        old = each.last if each.moves else each.output
        result = ir.Result(inside[each.output.id] if each.moves else each.output.op.name)
        made = graph.add(result, new, name=old.name, span=old.span)
        places[made] = (*places[old.id], made)
        graph.substitute(old.id, made)
    graph.prune([node.id for node in graph if isinstance(node.op, ir.Input | ir.Param)])
    return True


def _names(graph: Graph, recurrence: Node, moves: list[Epilogue]) -> dict[int, str]:
    """The names inside of the values that the ops read: their own where they enter already."""
    names = dict(zip(recurrence.operands, recurrence.op.captures, strict=False))
    taken = names_inside(recurrence.op)
    for each in moves:
        for id in (id for follower in each.moves for id in follower.reads):
            if id not in names:
                names[id] = fresh(called(graph, id) or f"{each.output.op.name}_with", taken)
                if called(graph, id) is None:
                    graph.rename(id, names[id])
    return names


def _output(recurrence: Node, move: Epilogue, names: dict[int, str]) -> str:
    """The recurrence's name for the value that it gives in place of an output."""
    taken = {*names.values(), *names_inside(recurrence.op)}
    return fresh(move.last.name or f"{move.output.op.name}_out", taken)


def _ending(
    graph: Graph,
    recurrence: Node,
    moves: list[Epilogue],
    names: dict[int, str],
    inside: dict[int, str],
    differentiate: Differentiate,
) -> int:
    """Another Recurrence, which ends with the ops that moved."""
    body, forward = recurrence.op.body.copy(), bare(recurrence.op.chunked)
    states = [state.name for state in recurrence.op.states]
    for move in moves:
        _end(body, graph, move, names, inside[move.output.id], recurrence.op.stream.name, states)
        _end(forward, graph, move, names, inside[move.output.id])
    body.prune(body.ids(ir.Input))
    captured = ir.captured(recurrence)
    captured |= {name: id for id, name in names.items() if name not in captured}
    return rebuilt(graph, recurrence, captured, body, forward, differentiate)


def _end(
    graph: Graph,
    home: Graph,
    move: Epilogue,
    names: dict[int, str],
    name: str,
    without: str | None = None,
    kept: list[str] | None = None,
) -> None:
    """Let a graph give what follows an output in its place, also if it is `kept`; `without` the
    stream where the graph is of one token."""
    old = move.output.op.name
    made = {move.output.id: graph.outputs[old]}
    for follower in move.moves:
        ops = (*follower.beside, follower.node)
        add_ops(graph, home, ops, follower.reads, names, made, without)
    ends = {name: made[move.last.id]}
    outputs = {each: {each: id} for each, id in graph.outputs.items()}
    outputs[old] = {old: graph.outputs[old]} | ends if old in (kept or ()) else ends
    graph.outputs = {each: id for part in outputs.values() for each, id in part.items()}
