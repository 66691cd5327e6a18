"""Chunk IR -> chunk IR: pairs of rows that decay read sums of their gates from memory.

    gram[halves](a, b, g)  ->  gram[sums](a, b, sums(g))
    exp(spans(g))          ->  exp(differences(sums(g)))

A kernel makes the decay between two rows from the sums at three places: the two rows, and the
border between the halves of the tree that lies between them; of one gate a row from the two rows.
exp of sums is made from the same sums: of those from the first row on, and of those behind a row,
which are the last ones less its.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import in_order
from archc.ir.value_names import is_saved, primal
from archc.schedule.levels import PAIRED


def with_sums(graph: Graph, heads: Collection[str]) -> Graph:
    """The graph in which pairs that decay along one dim, or by one gate a row, read sums; itself if
    there are none."""
    pairs = [n for n in graph if isinstance(n.op, PAIRED) and _along_one_dim(graph, n, heads)]
    if _has_one_state(graph):
        pairs += [n for n in graph if isinstance(n.op, ck.Spans) and _of_one_gate(graph, n, heads)]
    if not pairs:
        return graph
    new = graph.copy()
    sums: dict[tuple[int, str], int] = {}
    for pair in pairs:
        node = new[pair.id]
        key = gates, row = node.operands[-1], node.op.row
        if key not in sums:
            sums[key] = new.add(ck.Sums(row, gates=True), gates, span=new[gates].span)
            _share(new, sums[key])
        op = _of_sums(node.op)
        operands = (*node.operands[:-1], sums[key])
        new.substitute(node.id, new.add(op, *operands, name=node.name, span=node.span))
    return in_order(new)


def _along_one_dim(graph: Graph, node: Node, heads: Collection[str]) -> bool:
    """Whether rows and gates have one and the same dim, beside the rows and the heads, and a matrix
    of weights has none."""
    matrix = not isinstance(node.op, ck.Gram)
    if matrix and any(
        axis.kind == "dim" and axis.name not in (*heads, node.op.row, node.op.col)
        for axis in graph[node.operands[0]].type.axes
    ):
        return False
    found = []
    for operand in node.operands[1 if matrix else 0 :]:
        axes = graph[operand].type.axes
        found.append([a.name for a in axes if a.kind == "dim" and a.name not in heads])
    dims = [sorted(set(names) - {node.op.row}) for names in found]
    along = matrix or dims[0] == list(node.op.over)
    return len(dims[0]) == 1 and all(each == dims[0] for each in dims) and along


def _has_one_state(graph: Graph) -> bool:
    """Whether one state is carried, of which something is learned: elsewhere nothing is gained."""
    walks = [n.op for n in graph if isinstance(n.op, ir.Recurrence)]
    learns = any(is_saved(name) or primal(name) is not None for name in graph.outputs)
    return learns and len(walks) == 1 and len(walks[0].states) == 1


def _of_one_gate(graph: Graph, node: Node, heads: Collection[str]) -> bool:
    """Whether nothing but exp is wanted of spans of gates that have no dim but rows, one a token,
    and heads."""
    axes = graph[node.operands[0]].type.axes
    dims = {axis.name for axis in axes if axis.kind == "dim"} - {*heads}
    one = dims == {node.op.row} and node.op.col.size == ck.CHUNK
    return one and not node.op.exclusive and _only_in_exp(graph, node.id)


def _only_in_exp(graph: Graph, id: int) -> bool:
    """Whether exp alone reads a value."""
    readers = [graph[reader].op for reader in graph.users(id)]
    return bool(readers) and all(isinstance(r, ir.Elementwise) and r.fn == "exp" for r in readers)


def _of_sums(op: Any) -> object:
    """The same op on sums of gates."""
    if isinstance(op, ck.Spans):
        return ck.Differences(op.row, op.col, op.strict)
    return replace(op, anchor=ck.SUMS)


def _share(graph: Graph, made: int) -> None:
    """exp of plain sums of the same gates reads these: of those up to a row or before it, and of
    those behind it, which are what is left of the last one."""
    (gates,), row, span = graph[made].operands, graph[made].op.axis, graph[made].span
    for user in graph.users(gates):
        op = graph[user].op
        if not _only_in_exp(graph, user):
            continue
        if op == ck.Sums(row):
            graph.substitute(user, made)
        elif op == ck.Sums(row, exclusive=True):
            make = Sharing(graph, span)
            own = make.fn("max", gates, make.number(int(ck.LEAST_GATE)))
            graph.substitute(user, make.fn("sub", made, own))
        elif op == ck.Sums(row, reverse=True, exclusive=True):
            graph.substitute(user, graph.add(ck.Rest(row), made, span=span))
