"""Layer IR -> layer IR: some states of a Recurrence, token by token, as a Recurrence of their own.

For states without a chunked form, beside others that have one: everything that does not depend on
them is computed for all tokens at once, and enters as a capture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph
from archc.ir.value_names import state_at_start
from archc.recurrence.analysis.degree import before, updates
from archc.recurrence.chunk.lift import Lifted
from archc.recurrence.chunk.scan import Carried


def stepwise(
    recurrence: ir.Recurrence, states: Sequence[str], lifted: Lifted, starts: Mapping[str, int]
) -> dict[str, Carried]:
    """The states along the stream; what they read of others is looked up in `lifted`."""
    own = tuple(state for state in recurrence.states if state.name in states)
    body, captured = _body(recurrence, states)
    operands = [lifted[id] for id in captured.values()]
    frame = lifted.frame
    op = ir.Recurrence(recurrence.stream, tuple(captured), own, body, recurrence.heads)
    node = frame.graph.add(op, *operands, *(starts[state.name] for state in own))
    found = {}
    for state in own:
        after = frame.add(ir.Result(state.name), node)
        begin = frame.add(ir.Result(state_at_start(state.name)), node)
        final = frame.add(ck.Last(recurrence.stream.name), after, starts[state.name])
        found[state.name] = Carried(begin, after, final)
    return found


def _body(recurrence: ir.Recurrence, states: Sequence[str]) -> tuple[Graph, dict[str, int]]:
    """The updates of the states alone, and the nodes of the body that enter them by name."""
    old, after = recurrence.body, updates(recurrence)
    mine = {id for id, name in before(recurrence).items() if name in states}
    inside = mine.union(*(old.descendants(id) for id in sorted(mine)))
    inside |= {after[name] for name in states}
    new, captured = layer_graph(), dict[str, int]()
    copies: dict[int, int] = {}
    needed = {after[name] for name in states}.union(*(old.ancestors(after[n]) for n in states))
    for node in old:
        if node.id not in needed:
            continue
        enters = node.id not in inside and bool(set(old.users(node.id)) & inside)
        if enters and not isinstance(node.op, ir.Constant):
            name = marked(node.name or f"value{node.id}", captured)
            captured[name] = node.id
            copies[node.id] = new.add(ir.Input(name, node.type), name=name, span=node.span)
        elif node.id in inside or isinstance(node.op, ir.Constant):
            operands = (copies[operand] for operand in node.operands)
            copies[node.id] = new.add(node.op, *operands, name=node.name, span=node.span)
    for state in recurrence.states:
        if state.name in states:
            name = state.before
            start = next((i for i in mine if old[i].op.name == name), None)
            begin = copies[start] if start in copies else new.add(ir.Input(name, Type(state.axes)))
            new.outputs[state.name] = copies[after[state.name]]
            new.outputs[state_at_start(state.name)] = begin
    return new, captured
