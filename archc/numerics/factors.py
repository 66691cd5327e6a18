"""Layer IR -> layer IR: what turns states of a recurrence enters it as its angle, and an outer
product that is written to one as its factors.

    c = a * cos(th); s = a * sin(th); w = k * v
    recurrence(c = c, s = s, w = w):  S[t] = c * S[t-1] - s * R[t-1] + w; ..
    -> recurrence(a = a, th = th, k = k, v = v):
           S[t] = a * cos(th) * S[t-1] - a * sin(th) * R[t-1] + k * v; ..

Then the algebra of the body sees that the two scale by `a` and turn by `th`, and what is written
along which dims; and an outer product is no value for each of its elements in memory.
"""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.before_loops import with_captures
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type
from archc.ir.rewrite import rewrite

TURNS = ("cos", "sin")
SCALES = ("mul", "div", "neg")
"""Functions that may stand between a cosine and the recurrence."""
LINEAR = (*SCALES, "add", "sub", "where")


def parts_in_loops(layer: ir.Layer) -> ir.Layer:
    """The layer, its recurrences with the angles that turn states, and factors that are written."""
    return rewrite(layer, [parts_enter])


def parts_enter(graph: Graph, node: Node) -> int | None:
    """recurrence(c = cos(th), w = k * v) -> recurrence(th = th, k = k, v = v), where c scales a
    state, and w has the dims of one"""
    if not isinstance(node.op, ir.Recurrence):
        return None
    outside = dict(zip(node.op.captures, node.operands, strict=False))
    turned = len(node.op.states) > 1
    names = [
        name for name, id in outside.items()
        if (turned and _is_turn(graph, id) and _scales_a_state(node.op, name))
        or (_is_outer(graph, id) and _is_written(graph, node, id))
    ]  # fmt: skip
    if not names:
        return None
    entered = _Entered(graph, node, outside)
    for name in names:
        entered.enter(name)
    return entered.added()


def _is_turn(graph: Graph, id: int) -> bool:
    """Whether a value is a cosine or a sine, scaled perhaps."""
    op = graph[id].op
    if not isinstance(op, ir.Elementwise):
        return False
    inner = graph[id].operands if op.fn in SCALES else ()
    return op.fn in TURNS or any(_is_turn(graph, operand) for operand in inner)


def _is_outer(graph: Graph, id: int) -> bool:
    """Whether a value is a product of values that each lack a dim of it, scaled perhaps."""
    node = graph[id]
    if not isinstance(node.op, ir.Elementwise) or node.op.fn not in SCALES:
        return False
    whole = [o for o in node.operands if {*graph[o].type.names} >= {*node.type.names}]
    if not whole:
        return node.op.fn == "mul"
    return len(whole) == 1 and _is_outer(graph, whole[0])


def _is_written(graph: Graph, node: Node, id: int) -> bool:
    """Whether a value has the dims of a state with more than one of its own, and all that is done
    with values of these dims is linear: such a state is read by sums alone, if at all."""
    dims = {axis.name for axis in graph[id].type.axes if axis.kind == "dim"}
    states = {
        state.name for state in node.op.states
        if {a.name for a in state.axes if a.kind == "dim"} == dims
    }  # fmt: skip
    results = {graph[user].op.name for user in graph.users(node.id)}
    if not states or len(dims - {*node.op.heads}) < 2 or states & results:
        return False
    body = node.op.body
    outputs = {id for name, id in body.outputs.items() if name not in states}
    wide = [n for n in body if dims <= {*n.type.names}]
    return not any(n.id in outputs for n in wide) and all(
        isinstance(body[user].op, ir.Contract | ir.Reduce)
        or getattr(body[user].op, "fn", "") in LINEAR
        for n in wide for user in body.users(n.id)
    )  # fmt: skip


def _scales_a_state(op: ir.Recurrence, capture: str) -> bool:
    """Whether the body has a product of a capture and a state."""
    body, old = op.body, {state.before for state in op.states}
    given = {n.op.name: n.id for n in body if isinstance(n.op, ir.Input)}
    moved = {given[name] for name in old if name in given}
    moved |= {id for state in sorted(moved) for id in body.descendants(state)}
    free = [given[capture]] if capture in given else []
    while free:
        for user in body.users(free.pop()):
            op = body[user].op
            if not isinstance(op, ir.Contract) and getattr(op, "fn", "") not in SCALES:
                continue
            if moved & {*body[user].operands}:
                return True
            free.append(user)
    return False


class _Entered:
    """A Recurrence whose body computes some of its captures."""

    def __init__(self, graph: Graph, node: Node, outside: dict[str, int]) -> None:
        self.graph, self.node, self.outside = graph, node, outside
        self.body = node.op.body.copy()
        self.taken = {n.op.name for n in self.body if isinstance(n.op, ir.Input)}

    def enter(self, name: str) -> None:
        """A capture, computed in the body."""
        given = next(n for n in self.body if isinstance(n.op, ir.Input) and n.op.name == name)
        made, axes = self._inside(self.outside[name]), given.type.axes
        if self.body[made].type.axes != axes:
            labels = tuple((axis.name, axis) for axis in axes)
            made = self.body.add(ir.Contract((self.body[made].type.names,), labels), made)
        self.body.substitute(given.id, made)

    def _inside(self, id: int) -> int:
        """A node of the graph in the body: turns, outer products and their scales are computed
        there."""
        node = self.graph[id]
        if _is_turn(self.graph, id) or _is_outer(self.graph, id):
            whole = node.op.fn in TURNS
            operands = [(self._captured if whole else self._inside)(o) for o in node.operands]
            return self.body.add(node.op, *operands, name=node.name)
        return self._captured(id)

    def _captured(self, id: int) -> int:
        """A value from outside as an input of the body."""
        op, type = self.graph[id].op, self.graph[id].type
        if isinstance(op, ir.Constant):
            return self.body.add(op)
        name = next((name for name, own in self.outside.items() if own == id), None)
        if name is None:
            name = numbered(self.graph[id].name or "angle", self.taken)
            self.outside[name] = id
        self.taken.add(name)
        for node in self.body:
            if isinstance(node.op, ir.Input) and node.op.name == name:
                return node.id
        axes = tuple(a for a in type.axes if a.name != self.node.op.stream.name)
        return self.body.add(ir.Input(name, Type(axes, type.dtype)), name=name)

    def added(self) -> int:
        """The Recurrence."""
        return with_captures(self.graph, self.node, self.outside, self.body)
