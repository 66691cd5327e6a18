"""Layer IR -> layer IR: decays enter a recurrence as their logarithms.

    alpha = sigmoid(e)                      log_alpha = logsigmoid(e)
    recurrence(alpha = alpha):          S = alpha * ...
    -> recurrence(log_alpha = log_alpha):  S = exp(log_alpha) * ...

The step form computes the same numbers, and a chunked form takes the logarithm as it is: no digits
are lost by a logarithm of an exponential.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite
from archc.ir.value_names import log_name
from archc.numerics.logs import Known, NoLog, log_of
from archc.numerics.propagation import intervals
from archc.numerics.stated import recurrences, stated

EXP = ir.Elementwise("exp")


def gates_in_logs(layer: ir.Layer, wanted: Callable[[ir.Recurrence], Collection[str]]) -> ir.Layer:
    """The layer in which the captures that `wanted` names for a Recurrence enter as logarithms.

    A capture that has no logarithm stays as it is (`log_capture` says why), and so does one that
    the body reads only through exp, which is a logarithm already.
    """

    homes = recurrences(layer)

    def gate_in_logs(graph: Graph, node: Node) -> int | None:
        """recurrence(alpha = sigmoid(e)) -> recurrence(log_alpha = logsigmoid(e))"""
        if not isinstance(node.op, ir.Recurrence):
            return None
        logs = wanted(node.op)
        names = [each for each in node.op.captures if each in logs and not in_logs(node.op, each)]
        if not names:
            return None
        home = homes.get(id(node.op.body))
        known = intervals(graph) if home is None else stated(replace(home, graph=graph))
        new = node.id
        for name in names:
            found = log_capture(graph, new, name, known)
            new = found if isinstance(found, int) else new
        return None if new == node.id else new

    return rewrite(layer, [gate_in_logs])


def in_logs(recurrence: ir.Recurrence, capture: str) -> bool:
    """Whether the body reads a capture through exp alone, if at all."""
    body = recurrence.body
    inputs = [node.id for node in body if _is_input(node, capture)]
    readers = [body[user].op for id in inputs for user in body.users(id)]
    return all(op == EXP for op in readers) and not set(inputs) & set(body.outputs.values())


def log_capture(graph: Graph, node_id: int, capture_name: str, known: Known) -> int | NoLog:
    """A new Recurrence node with the same results, which takes `log_<capture>` and, in its body,
    reads exp of it wherever the capture was read; or why the capture has no logarithm.

    The caller lets the Results read the new node. `known`: `intervals(graph)`, of older nodes.
    """
    node = graph[node_id]
    op, place = node.op, node.op.captures.index(capture_name)
    gate, fresh = graph[node.operands[place]], graph.fresh
    log = log_of(graph, gate.id, known)
    if isinstance(log, NoLog):
        return log
    name = marked(log_name(capture_name), op.captures)
    for new in range(fresh, graph.fresh):
        graph.rename(new, graph[new].name, gate.span)
    if graph[log].name is None:
        graph.rename(log, name)
    captures = (*op.captures[:place], name, *op.captures[place + 1 :])
    operands = (*node.operands[:place], log, *node.operands[place + 1 :])
    body = _exponentiated(op.body, capture_name, name)
    return graph.add(replace(op, captures=captures, body=body), *operands, span=node.span)


def _exponentiated(body: Graph, capture: str, name: str) -> Graph:
    """The body with exp of the input `name` in place of the input `capture`."""
    new = body.copy()
    for node in tuple(body):
        if _is_input(node, capture):
            log = new.add(ir.Input(name, replace(node.type, dtype="real")), span=node.span)
            gate = new.add(EXP, log, span=node.span)
            new.rename(gate, node.name)
            new.substitute(node.id, gate)
            new.prune([other.id for other in body if other.id != node.id])
    return new.renumbered(lambda id: id)  # what followed from a whole number is real now


def _is_input(node: Node, name: str) -> bool:
    return isinstance(node.op, ir.Input) and node.op.name == name
