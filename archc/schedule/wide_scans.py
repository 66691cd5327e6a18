"""Layer IR -> layer IR: a scan of a state that is larger than what it is made of is done again
where its rows are wanted.

    kept, local = scan(a, 0, 1), scan(a, b, 0);  start = recurrence[n](their last rows)
    h = kept * start + local    ->    h = scan(a, b, start)

where a = exp(dt[D] A[D, N]) and b = dt[D] u[D] B[N], say: a row of h has D N numbers, and is made
of D + N. Nothing with both dims is then materialised for every token, neither by the forward nor
for the gradient: states at the borders of chunks are, and kernels make the rest again, one index of
N after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.joined_scans import KEPT, LOCAL, is_joining
from archc.ir.rewrite import in_order, replace_walk
from archc.schedule.axes import counts_chunks, labelled, own_dims, reduction_dims, scans_numbers
from archc.schedule.forms import Differentiated, bare, derived, with_forms

BLOCK, MOST = 32, 64
"""Indices of a dim that a program has a part of: where it is summed over, and so has more to hold,
and elsewhere. A thread has two beside each other, and all rows of these."""


def wide_scans_again(layer: ir.Layer, differentiate: Callable[..., Differentiated]) -> ir.Layer:
    """The layer, its scans of states that are larger than what they are made of done twice."""

    def change(form: ck.ChunkForm) -> ck.ChunkForm | None:
        """The form, if it has such a scan."""
        graph = bare(form)
        recurrences = [node for node in graph if _is_joined(graph, node)]
        if not sum(_from_start(graph, recurrence) for recurrence in recurrences):
            return None
        again = partial(differentiate, again=(ir.Contract, ck.Scan))
        found = derived(form, graph.renumbered(lambda id: id), again)
        back = found.backward
        return found if back is None else replace(found, backward=_without_unread(back))

    return with_forms(layer, change)


def _without_unread(graph: Graph) -> Graph:
    """The graph, its Recurrences without results that nothing reads: of what a chunk keeps, the
    gradient comes from the scan of its rows."""
    new = graph.copy()
    for node in [n for n in graph if isinstance(n.op, ir.Recurrence)]:
        op: ir.Recurrence = node.op
        read = {new[user].op.name for user in new.users(node.id)}
        kept = read | {state.name for state in op.states}
        body = op.body.copy()
        body.outputs = {name: id for name, id in body.outputs.items() if name in kept}
        replace_walk(new, node, body, ir.captured(node))
    return in_order(new)


def _is_joined(graph: Graph, node: Node) -> bool:
    """Whether a node is a Recurrence that joins scans which are larger than their operands."""
    if not isinstance(node.op, ir.Recurrence) or not is_joining(node.op):
        return False
    last = [graph[o] for o in node.operands[:2]]
    made = [graph[each.operands[0]] for each in last if isinstance(each.op, ck.Select)]
    scans = [each for each in made if scans_numbers(each)]
    return len(scans) == 2 and all(_is_wide(graph, each) for each in scans)


def _is_wide(graph: Graph, scan: Node) -> bool:
    """Whether no value along the tokens that a scan is made of has all of its dims."""
    dims = {axis.name for axis in scan.type.axes if axis.kind == "dim"} - {scan.op.axis}
    inputs = [graph[id] for id in graph.ancestors(scan.id) if isinstance(graph[id].op, ir.Input)]
    along = [n for n in inputs if any(axis.kind == "stream" for axis in n.type.axes)]
    return len(dims) > 1 and all(not dims <= {*n.type.names} for n in along)


def _from_start(graph: Graph, recurrence: Node) -> bool:
    """Put a scan from the state before each chunk in the place of kept * start + local."""
    captured = ir.captured(recurrence)
    kept, local = (graph[captured[name]].operands[0] for name in (KEPT, LOCAL))
    found = False
    for user in graph.users(local):
        total = graph[user]
        if total.op != ir.Elementwise("add"):
            continue
        (product,) = (graph[o] for o in total.operands if o != local)
        starts = [o for o in product.operands if o != kept]
        if product.op == ir.Elementwise("mul") and kept in product.operands and len(starts) == 1:
            a, b, _ = graph[local].operands
            rows = graph.add(graph[local].op, a, b, starts[0], span=total.span)
            graph.substitute(total.id, rows)
            found = True
    return found


# --- kernels ------------------------------------------------------------------------------------


def turned_dims(graph: Graph, heads: Collection[str]) -> tuple[Axis, Axis] | None:
    """The dims of the scans of a graph with two dims for every row, where nothing that enters or
    leaves has both of them for every token: the one that more values along the tokens have, of
    which each program has a part, and the one that goes index by index."""
    scans = [n for n in graph if scans_numbers(n)]
    dims = [[a for a in own_dims(n.type.axes, heads) if a.size != ck.CHUNK] for n in scans]
    wide = {tuple(each) for each in dims if len(each) > 1}
    if len(wide) != 1 or len(next(iter(wide))) != 2:
        return None
    (pair,) = wide
    ends = [n for n in graph if isinstance(n.op, ir.Input)]
    ends += [graph[id] for id in graph.outputs.values()]
    along = [n for n in ends if _has_tokens(n)]
    rows = [n for n in ends if any(a.size == ck.CHUNK for a in n.type.axes)]
    if any({*pair} <= {*n.type.axes} for n in (*along, *rows)):
        return None
    counts = [sum(axis in n.type.axes for n in along) for axis in pair]
    return (pair[0], pair[1]) if counts[0] >= counts[1] else (pair[1], pair[0])


def with_sums_of_blocks(graph: Graph, heads: Collection[str]) -> Graph:
    """The graph in which sums over the dim that programs have a part of are done for each part
    first; itself if there are none."""
    dims = turned_dims(graph, heads)
    if dims is None:
        return graph
    split, _ = dims
    sums = [n for n in graph if _sums(graph, n, split)]
    if not sums:
        return graph
    new = graph.copy()
    for node in sums:
        _sum_blocks(new, node, split)
    return in_order(new)


def _sums(graph: Graph, node: Node, split: Axis) -> bool:
    """Whether a node sums over a dim, for every token, of what depends on a scan."""
    if split.name not in reduction_dims(graph, node) or not _has_tokens(node):
        return False
    if isinstance(node.op, ir.Reduce):
        named = node.op.fn == "sum" and node.op.axes == (split.name,)
    else:
        named = isinstance(node.op, ir.Contract) and _sums_by_name(graph, node, split)
    return named and any(scans_numbers(graph[id]) for id in graph.ancestors(node.id))


def _has_tokens(node: Node) -> bool:
    """Whether a value is one for each token."""
    return any(a.kind == "stream" and not counts_chunks(a) for a in node.type.axes)


def _sums_by_name(graph: Graph, node: Node, split: Axis) -> bool:
    """Whether a product sums over a dim that all of its factors call as it is called; one that only
    calls another dim so sums over nothing."""
    pairs = labelled(graph, node)
    same = all((label == split.name) == (axis == split) for label, axis in pairs)
    summed = {label for labels in node.op.ins for label in labels} - {*dict(node.op.out)}
    return same and split.name in summed


def _sum_blocks(graph: Graph, node: Node, split: Axis) -> None:
    """Put sums over blocks of a dim, and the sum of those, in the place of a sum over it."""
    if isinstance(node.op, ir.Contract):
        out = (*node.op.out, (split.name, split))
        whole = graph.add(ir.Contract(node.op.ins, out), *node.operands, span=node.span)
    else:
        (whole,) = node.operands
    op = ck.BlockSums(split.name, BLOCK)
    parts = graph.add(op, whole, span=node.span)
    found = graph.add(ir.Reduce("sum", (op.block(split).name,)), parts, span=node.span)
    names = tuple((axis.name, axis) for axis in node.type.axes)
    if graph[found].type.names != node.type.names:
        found = graph.add(ir.Contract((graph[found].type.names,), names), found)
    if node.name is not None:
        graph.rename(found, node.name, node.span)
    graph.substitute(node.id, found)
