"""Layer IR -> layer IR: what turns states of a recurrence enters it as its angle.

    c = a * cos(th); s = a * sin(th)
    recurrence(c = c, s = s):     S[t] = c * S[t-1] - s * R[t-1]; ..
    -> recurrence(a = a, th = th):  S[t] = a * cos(th) * S[t-1] - a * sin(th) * R[t-1]; ..

Then the algebra of the body sees that the two scale by `a` and turn by `th`.
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


def angles_in_loops(layer: ir.Layer) -> ir.Layer:
    """The layer, its recurrences of several states with the angles that turn them."""
    return rewrite(layer, [angle_enters])


def angle_enters(graph: Graph, node: Node) -> int | None:
    """recurrence(c = cos(th)) -> recurrence(th = th), where c scales a state"""
    if not isinstance(node.op, ir.Recurrence) or len(node.op.states) < 2:
        return None
    outside = dict(zip(node.op.captures, node.operands, strict=False))
    names = [
        name for name, id in outside.items()
        if _is_turn(graph, id) and _scales_a_state(node.op, name)
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
        """A node of the graph in the body: turns and their scales are computed there."""
        node = self.graph[id]
        if _is_turn(self.graph, id):
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
