"""Layer graph -> values that add up along the tokens without decay, where something asks for them
exactly: an angle whose sine is taken, a count that is compared, a sum of log gates of which scores
take differences.

Such a sum grows with the tokens, and 16 bits have eight binary digits of it: from 256 on a count
would be off by one, an angle by a turn. So backends keep these values in float32, whatever the
dtype of the data, until they are bounded or meet a product of tensors.
"""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

CARRIED = ("add", "sub", "neg", "max", "min", "where", "real", "detach")
"""Functions that leave a sum a sum: what they are given is in the result as it is, or negated."""

SCALED = (*CARRIED, "mul", "div", "abs", "log", "softplus", "relu")
"""Functions whose results are as large as a sum that they are given, or know it by its size."""

EXACT = ("sin", "cos", "exp", "floor", "floordiv", "mod", "sign", "sigmoid", "logsigmoid",
         "lt", "le", "gt", "ge", "eq", "ne")  # fmt: skip
"""Functions for which an absolute error counts, however large the operand is."""


def running_sums(graph: Graph) -> frozenset[int]:
    """The results of recurrences that are such sums, and what is made of them elementwise on the
    way to where they are asked for exactly."""
    sums = [node.id for node in graph if isinstance(node.op, ir.Result) and _adds_up(graph, node)]
    if not sums:
        return frozenset()
    made = _made_of(graph, frozenset(sums))
    asked = {operand for node in graph if _is_exact(node) for operand in node.operands} & made
    on_the_way = asked.union(*(graph.ancestors(id) for id in asked)) if asked else set()
    return frozenset(made & on_the_way)


def _made_of(graph: Graph, sums: frozenset[int]) -> set[int]:
    """Sums, and what is made of them elementwise, or of an earlier token's."""
    found = set(sums)
    for node in graph:
        scaled = isinstance(node.op, ir.Elementwise) and node.op.fn in SCALED
        real = node.type.dtype == "real" and "batch" in node.type.names
        if real and (scaled or isinstance(node.op, ir.Shift)) and found & {*node.operands}:
            found.add(node.id)
    return found


def _is_exact(node: Node) -> bool:
    """Whether an absolute error of what a node is given counts."""
    return isinstance(node.op, ir.Attend) or getattr(node.op, "fn", "") in EXACT


def _adds_up(graph: Graph, node: Node) -> bool:
    """Whether a result is made of a state that adds up, by functions that leave it a sum."""
    op = graph[node.operands[0]].op
    if not isinstance(op, ir.Recurrence) or node.type.dtype != "real":
        return False
    body = op.body
    before = {n.op.name: n.id for n in body if isinstance(n.op, ir.Input)}
    adding = {
        before[state.before] for state in op.states
        if state.before in before and _carries(body, body.outputs[state.name], before[state.before])
    }  # fmt: skip
    made = body.outputs.get(node.op.name)
    return made is not None and any(_carries(body, made, each, SCALED) for each in adding)


def _carries(body: Graph, id: int, state: int, by: tuple[str, ...] = CARRIED) -> bool:
    """Whether a value is made of a state by functions of a kind alone."""
    waiting, seen = [id], set[int]()
    while waiting:
        each = waiting.pop()
        if each == state:
            return True
        node = body[each]
        if each not in seen and isinstance(node.op, ir.Elementwise) and node.op.fn in by:
            waiting += node.operands
        seen.add(each)
    return False
