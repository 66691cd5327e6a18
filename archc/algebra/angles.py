"""Rule of layer graphs: an attend whose scores have waves makes their constant frequencies itself.

    theta = base ** (-index[K] / K); attend: cos((t - s) * theta)
    -> attend: cos((t - s) * base ** (-index[K] / K))

What reads the body then sees that nothing is learned there, and kernels may make an angle of each
token (`archc/attention/multiplied_out.py`).
"""

from __future__ import annotations

from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.known import is_known

WAVES = ("sin", "cos")


def known_inside(graph: Graph, node: Node) -> int | None:
    """attend(theta = made of indices and numbers) -> attend(), theta made in its body"""
    op = node.op
    if not isinstance(op, ir.Attend) or op.decode is not None or not _has_wave(op):
        return None
    given = {name: id for (name, _), id in zip(op.captures, node.operands, strict=True)}
    body, changed = op.body.copy(), False
    for inner in op.body:
        if isinstance(inner.op, ir.Input) and is_known(graph, given[inner.op.name]):
            body.substitute(inner.id, _copied(graph, given[inner.op.name], body))
            changed = True
    body.prune()
    return graph.add(replace(op, body=body), *node.operands) if changed else None


def _has_wave(op: ir.Attend) -> bool:
    """Whether a body has a sine or cosine of a pair."""
    waves = (n for n in op.body if isinstance(n.op, ir.Elementwise) and n.op.fn in WAVES)
    return any({op.reader.name, op.read.name} <= {*n.type.names} for n in waves)


def _copied(graph: Graph, id: int, body: Graph) -> int:
    """A value of a layer, made once more in a body."""
    node = graph[id]
    operands = [_copied(graph, operand, body) for operand in node.operands]
    return body.add(node.op, *operands, name=node.name, span=node.span)
