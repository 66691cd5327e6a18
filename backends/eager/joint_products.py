"""Products of one value with several parameters become one call, whose gradient of that value is
one sum: `q, k, v = products_of(x, self.W_q, self.W_k, self.W_v)`."""

from __future__ import annotations

from collections.abc import Collection

from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, Value
from archc.backends.expression import ATOM, Text

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.routes import routes


def join_products(scope: Scope, params: Collection[int], away: Collection[int]) -> None:
    """Let products of a value with `params` be made together where it has several, and one that
    sums over several dims as a product of rows; `away`: nodes that stay where they are."""
    graph, taken = scope.graph, {*taken_elsewhere(scope, away), *scope.regions}
    groups: dict[tuple[int, int], list[int]] = {}
    for node in graph:
        known = weight_of(graph, node, params)
        if known is None or node.id not in scope.uses or node.id in taken:
            continue
        place, summed = known
        if node.operands[place] not in taken:
            groups.setdefault((node.operands[1 - place], summed), []).append(node.id)
    found = [
        (JointProducts if len(made) > 1 else WeighedProduct)(scope, x, summed, made)
        for (x, summed), made in groups.items()
        if len(made) > 1 or summed > 1
    ]
    if found:
        regions = {id: each for each in found for id in each.made}
        scope.use_regions({**scope.regions, **regions})


def taken_elsewhere(scope: Scope, away: Collection[int]) -> set[int]:
    """Nodes that are made by something else than a product of their own."""
    chosen = {id for route in routes(scope.graph) for id in route.members}
    return {*away, *chosen, *scope.fused, *scope.linear}


def weight_of(graph: Graph, node: Node, params: Collection[int]) -> tuple[int, int] | None:
    """Which operand of x [batch, ..., *d] times a parameter [*d, ...] is that, and how many dims
    are summed; None of another op."""
    op = node.op
    if not ir.is_product(op):
        return None
    places = [place for place, operand in enumerate(node.operands) if operand in params]
    if len(places) != 1:
        return None
    (place,) = places
    x, weight, out = op.ins[1 - place], op.ins[place], tuple(label for label, _ in op.out)
    summed = len({*x} - {*out})
    along = summed > 0 and x[-summed:] == weight[:summed]
    along = along and (*x[:-summed], *weight[summed:]) == out
    tokens = "batch" in graph[node.operands[1 - place]].type.names
    return (place, summed) if along and tokens and len({*x, *out}) == len(out) + summed else None


class JointProducts:
    """Products of one value, which sum over so many of its dims."""

    def __init__(self, scope: Scope, x: int, summed: int, made: list[int]):
        self.scope, self.x, self.summed, self.made = scope, x, summed, made
        self.weights = [o for id in made for o in scope.graph[id].operands if o != x]

    @property
    def reads(self) -> tuple[int, ...]:
        """The value, and the parameters."""
        return (self.x, *self.weights)

    def call(self) -> None:
        """Write the line."""
        scope, graph = self.scope, self.scope.graph
        x = scope.whole(self.x, graph[self.x].type.names)
        given = [x.text, *(scope.value(weight).text.text for weight in self.weights)]
        for id, weight in zip(self.made, given[1:], strict=True):
            called = f"{given[0]}_{weight.removeprefix('self.')}"
            called = called if called.isidentifier() and len(called) < 18 else scope.hint(graph[id])
            name = Text(scope.names.fresh(graph[id].name or called))
            scope.values[id] = Value(name, graph[id].type.names, DATA)
        names = ", ".join(scope.values[id].text.text for id in self.made)
        if self.summed > 1:  # views of the parameters
            given = [f"{x.at(ATOM)}.flatten(-{self.summed})"]
            weights = (scope.value(weight).text.at(ATOM) for weight in self.weights)
            given += [f"{each}.flatten(0, {self.summed - 1})" for each in weights]
        scope.writer.call(f"{names} = products_of(", given, ")")


class WeighedProduct(JointProducts):
    """A product of rows. What it multiplies may be what the op of a token region makes later, which
    nothing else reads."""

    def call(self) -> None:
        """Write the line."""
        scope, (id,), (weight,) = self.scope, self.made, self.weights
        x = scope.whole(self.x, scope.graph[self.x].type.names)
        given = [str(self.summed), scope.value(weight).text.text, x.text]
        name = Text(scope.names.fresh(scope.hint(scope.graph[id])))
        scope.values[id] = Value(name, scope.graph[id].type.names, DATA)
        scope.writer.call(f"{name} = weighed(", given, ")")


def weighed_product(
    scope: Scope, x: int, params: Collection[int], taken: Collection[int]
) -> WeighedProduct | None:
    """The product with a parameter that alone reads a value; None if it is `taken` elsewhere."""
    (id,) = scope.graph.users(x)
    known = weight_of(scope.graph, scope.graph[id], params)
    if known is None or id in taken or id not in scope.uses:
        return None
    place, summed = known
    weight = scope.graph[id].operands[place]
    return None if weight in taken else WeighedProduct(scope, x, summed, [id])
