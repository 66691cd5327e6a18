"""Layer graph -> its routes: what need be computed for chosen places of an axis alone.

    y = sum over N of where(top, w, 0) * (silu(x @ W_g[N]) * (x @ W_u[N])) @ W_d[N]

A value that is 0 wherever `top` has not chosen makes all that it is multiplied with needless there.
What stands between the first product with a matrix for each place of the axis and the sum over the
axis is a route, if nothing else reads it: it is computed for each token and each of its chosen
places, sorted by place, so that each matrix multiplies the tokens that have chosen it.

A route may go through a memory with a state for each place that moves only where a token has chosen
it: the tokens of a place are a sequence of their own there, and those of all places are packed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import sympy

from archc.dims import BATCH
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

LINEAR = ("mul", "div", "neg")
"""Functions that are 0 where their first operand is, `mul` where either is."""


@dataclass(frozen=True)
class Route:
    """One route: `top` chooses `count` places of `axis` for each element of `rows`; `members` are
    computed for these alone, `products` of them with a matrix for each place, and `exit`, the last
    member, is summed over the chosen places. `memory` is a recurrence among the members."""

    top: int
    axis: str
    count: sympy.Expr
    rows: tuple[str, ...]
    members: frozenset[int]
    products: frozenset[int]
    exit: int
    memory: int | None = None

    def reads(self, graph: Graph) -> tuple[int, ...]:
        """The nodes outside that it reads, the choice among them."""
        inner = (o for node in graph if node.id in self.members for o in node.operands)
        return tuple(dict.fromkeys([self.top, *(o for o in inner if o not in self.members)]))


def routes(graph: Graph) -> list[Route]:
    """The routes of a layer's graph, none of which shares a member with another."""
    found: list[Route] = []
    taken: set[int] = set()
    for top in graph:
        if not isinstance(top.op, ir.Top) or "t" not in top.type.names:
            continue
        zero = _zero_outside(graph, top)
        for node in graph:
            route = _route(graph, top, node, zero) if _ends(graph, node, top, zero) else None
            if route is not None and not route.members & taken:
                found.append(route)
                taken |= route.members
    return found


def routed(graph: Graph) -> frozenset[int]:
    """The members of all routes of a graph."""
    return frozenset(id for route in routes(graph) for id in route.members)


def _zero_outside(graph: Graph, top: Node) -> set[int]:
    """The values that are 0 wherever a place is not chosen."""
    found: set[int] = set()
    for node in graph:
        axis = top.op.axis in node.type.names
        if not axis or node.type.dtype != "real" or not node.operands:
            continue
        if node.op == ir.Elementwise("where"):
            at, _, other = node.operands
            if (at == top.id and graph[other].op == ir.Constant(sympy.Integer(0))) or (
                {*node.operands[1:]} <= found
            ):
                found.add(node.id)
        elif isinstance(node.op, ir.Elementwise) and node.op.fn in LINEAR:
            factors = node.operands if node.op.fn == "mul" else node.operands[:1]
            found |= {node.id} if {*factors} & found else set()
        elif isinstance(node.op, ir.Contract) and _keeps(graph, node, top.op.axis, found):
            found.add(node.id)
    return found


def _keeps(graph: Graph, node: Node, axis: str, zero: Collection[int]) -> bool:
    """Whether a product has the places of a value that is 0 outside as places of its own."""
    names = {label: made.name for label, made in node.op.out}
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        if operand in zero:
            return names.get(labels[graph[operand].type.names.index(axis)]) == axis
    return False


def _ends(graph: Graph, node: Node, top: Node, zero: Collection[int]) -> bool:
    """Whether a node sums over the axis what is 0 outside the chosen places."""
    if top.op.axis in node.type.names or not {*node.operands} & {*zero}:
        return False
    if isinstance(node.op, ir.Reduce):
        return node.op.fn == "sum"
    return isinstance(node.op, ir.Contract)


def _route(graph: Graph, top: Node, end: Node, zero: Collection[int]) -> Route | None:
    """The route that ends at a node, if it has a product with matrices, and all of it can be done
    for chosen places by themselves."""
    axis = top.op.axis
    rows = tuple(name for name in top.type.names if name != axis)
    before = graph.ancestors(end.id)
    inside = [n for n in graph if n.id in before and axis in n.type.names] + [end]
    products = {n.id for n in inside if weight_of(graph, n, axis, rows) is not None}
    after = {id for product in products for id in graph.descendants(product)} | products
    members = {n.id for n in inside if n.id in after}
    found = {n.operands[0] for n in inside if n.id in members and isinstance(n.op, ir.Result)}
    if len(found) > 1 or not all(_moves_alone(graph, graph[each], top, rows) for each in found):
        return None
    members, inside = members | found, [*inside, *(graph[each] for each in found)]
    outputs = {*graph.outputs.values()}
    for node in inside:
        if node.id not in members:
            continue
        alone = node.id == end.id or ({*graph.users(node.id)} <= members and node.id not in outputs)
        if not alone or not _by_itself(graph, node, axis, rows, node.id in products):
            return None
    if not products or top.id in members:
        return None
    sets = frozenset(members), frozenset(products)
    return Route(top.id, axis, top.op.count, rows, *sets, end.id, min(found, default=None))


def _moves_alone(graph: Graph, node: Node, top: Node, rows: tuple[str, ...]) -> bool:
    """Whether a recurrence has a state for each place, which depends on the tokens alone that have
    chosen it, and stays as it is at all others."""
    op, axis = node.op, top.op.axis
    if not isinstance(op, ir.Recurrence) or op.reverse or rows != (BATCH.name, op.stream.name):
        return False
    entering = [graph[operand] for operand in node.operands]
    captures = dict(zip(op.captures, entering, strict=False))
    stray = (
        v for v in captures.values() if axis in v.type.names and not {*rows} <= {*v.type.names}
    )
    if any(stray) or any("t" in v.type.names and "batch" not in v.type.names for v in entering):
        return False
    body = op.body
    for state in op.states:
        update = body[body.outputs[state.name]]
        if update.op != ir.Elementwise("where") or axis not in {a.name for a in state.axes}:
            return False
        gate, _, before = (body[operand].op for operand in update.operands)
        known = [isinstance(each, ir.Input) and each.name for each in (gate, before)]
        if captures.get(str(known[0])) != top or known[1] != state.before:
            return False
    return all(_within_place(body, each, axis) for each in body)


def _within_place(body: Graph, node: Node, axis: str) -> bool:
    """Whether a value of one place is made of values of that place alone."""
    if isinstance(node.op, ir.Contract):
        placed = any(axis in body[operand].type.names for operand in node.operands)
        return _labels_fit(body, node, axis, ()) and (axis in node.type.names) >= placed
    if isinstance(node.op, ir.Reduce):
        return axis not in node.op.axes
    if isinstance(node.op, ir.Position | ir.Delta):
        return axis not in node.type.names
    return isinstance(node.op, ir.Input | ir.Constant | ir.Elementwise)


def weight_of(graph: Graph, node: Node, axis: str, rows: Collection[str]) -> int | None:
    """The operand of a product that is a matrix for each place of the axis, the other being a value
    for each row; None for anything else."""
    if not ir.is_product(node.op):
        return None
    kept = {label for label, _ in node.op.out}
    for place in (0, 1):
        names, other = (graph[o].type.names for o in (node.operands[place], node.operands[~place]))
        own, beside = node.op.ins[place], node.op.ins[~place]
        if axis not in names or {*names} & {*rows} or not {*other} & {*rows}:
            continue
        at = own[names.index(axis)]
        shared = {*own} & {*beside} - {at}
        lone = {
            label for label, name in zip(beside, other, strict=True)
            if label not in shared and name not in rows and name != axis
        }  # fmt: skip
        same = axis not in other or beside[other.index(axis)] == at
        plain = len({*own}) == len(own) and len({*beside}) == len(beside)
        if shared and not shared & kept and not lone and same and plain and {*own} - shared - {at}:
            return place
    return None


def _by_itself(
    graph: Graph, node: Node, axis: str, rows: tuple[str, ...], product: bool
) -> bool:  # fmt: skip
    """Whether an op can be done for one row and one of its places."""
    if node.type.dtype != "real" and not isinstance(node.op, ir.Elementwise):
        return False
    if product or isinstance(node.op, ir.Elementwise | ir.Result | ir.Recurrence):
        return True  # of memories, those that `_moves_alone` has looked at
    if isinstance(node.op, ir.Reduce):
        return not {*node.op.axes} & {*rows} and {*rows} <= {*graph[node.operands[0]].type.names}
    return isinstance(node.op, ir.Contract) and _labels_fit(graph, node, axis, rows)


def _labels_fit(graph: Graph, node: Node, axis: str, rows: tuple[str, ...]) -> bool:
    """Whether rows and places stand for themselves in a product."""
    whole = {*rows, axis}
    made = {label: out.name for label, out in node.op.out}
    seen: dict[str, str] = {}
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        for label, name in zip(labels, graph[operand].type.names, strict=True):
            known = seen.setdefault(label, name)
            if known != name and {known, name} & whole:
                return False
            if name in rows and made.get(label) != name:
                return False
            if name == axis and made.get(label, axis) != axis:
                return False
    owners = [label for label, name in seen.items() if name == axis]
    return len(owners) <= 1


def listing(graph: Graph) -> Iterator[str]:
    """A line for each route."""
    for route in routes(graph):
        what = graph[route.exit].name or "a value"
        chosen = f"{route.count} of {route.axis}"
        memory = "" if route.memory is None else ", and their memories, each a packed sequence"
        done = f"{len(route.products)} products for the chosen {chosen}, sorted by place"
        yield f"{what}: {done}{memory}"
